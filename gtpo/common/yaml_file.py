"""A YAML file that a user wrote, checked against a pydantic model: every mistake is named with file, line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.settings import section_of

Model = TypeVar("Model", bound=BaseModel)
# Line of each key, by its parts.
Lines = dict[tuple[str, ...], int]


def read_yaml(
    path: Path, what: str = "keys with values", loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> tuple[dict[str, Any], Lines]:
    """Return the mapping in a file, and the line of each of its keys.

    what: is expected in it, as a message says it. UserError if the file is missing, damaged, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node, lines = yaml.compose(text, loader), Lines()
        _note_lines(path, node, (), lines)
        values = {} if node is None else yaml.load(text, loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UserError(f"{place}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected {what}, found {type(values).__name__}")
    return values, lines


def _note_lines(path: Path, node: Any, above: tuple[str, ...], lines: Lines) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value in node.value:
        key, line = (*above, str(key_node.value)), key_node.start_mark.line + 1
        if key in lines:
            raise UserError(f'{path}:{line}: duplicate key "{".".join(key)}" (first at line {lines[key]})')
        lines[key] = line
        _note_lines(path, value, key, lines)


def validate_yaml(model: type[Model], path: Path, values: dict[str, Any], lines: Lines | None = None) -> Model:
    """Return the model of a file's values. UserError that names the line and key of the first mistake."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic puts "[key]" behind a key that is wrong itself.
        key = tuple(str(part) for part in first["loc"] if part != "[key]")
        line = next((f":{lines[key[:i]]}" for i in range(len(key), 0, -1) if key[:i] in lines), "") if lines else ""
        known = _fields(model, key[:-1])
        near = did_you_mean(key[-1], known) if first["type"] == "extra_forbidden" and known else ""
        fault = "no such key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        value = f", found {first['input']!r:.60}" if first["type"] not in ("extra_forbidden", "missing") else ""
        raise UserError(f"{path}{line}: {'.'.join(key) or 'the file'}: {fault}{value}.{near}") from None


def _fields(model: type[BaseModel], key: tuple[str, ...]) -> list[str]:
    """Return the keys that a section may have; empty if they are not fixed."""
    section: type[BaseModel] | None = model
    for part in key:
        field = section.model_fields.get(part) if section else None
        section = section_of(field.annotation) if field else None
    return list(section.model_fields) if section else []
