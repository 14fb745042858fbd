"""The raw document of a config: YAML with `extends`, and where each key stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rewards.support.errors import UserError, did_you_mean

Key = tuple[str, ...]


@dataclass
class Document:
    """Raw values of a config and where each key stands (`file:line`, or the flag)."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Return where a key stands; of an absent one, where its section does."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, "")

    def get(self, dotted: str) -> Any:
        """Return the raw value of a dotted key, None where it is absent."""
        value: Any = self.values
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def set(self, key: Key, value: Any, place: str | None = None) -> None:
        """Set a value, making the sections on the way."""
        section = self.values
        for depth, part in enumerate(key[:-1], start=1):
            if section.get(part) is None:
                section[part] = {}
            section = section[part]
            if not isinstance(section, dict):
                name = ".".join(key[:depth])
                raise UserError(f"{self.place(key[:depth])}: {name} must be a mapping, found {section!r}")
        section[key[-1]] = value
        if place is not None:
            self.places[key] = place

    def drop(self, dotted: str) -> Any:
        """Remove a dotted key and return its value, None where it is absent."""
        *section, name = dotted.split(".")
        inside = self.get(".".join(section)) if section else self.values
        return inside.pop(name, None) if isinstance(inside, dict) else None


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-6` as the number it is (YAML 1.1 wants `1.0e-6`) and refuses duplicate keys."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _note_places(node: yaml.Node | None, file: Path, prefix: Key, places: dict[Key, str]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    if len(prefix) > 8:
        raise UserError(f"{file}:{node.start_mark.line + 1}: nested too deeply for a config")
    for key_node, value_node in node.value:
        key = (*prefix, str(key_node.value))
        place = f"{file}:{key_node.start_mark.line + 1}"
        if key in places:
            raise UserError(f'{place}: the key "{".".join(key)}" stands there twice (first at {places[key]})')
        places[key] = place
        _note_places(value_node, file, key, places)


def _parse(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.y*ml")))
        hint = near or " configs/ has one file per recipe (docs/recipes.md)."
        raise UserError(f"{path}: no such config file.{hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; expected a config file (.yaml)") from None
    except OSError as fault:
        raise UserError(f"{path}: cannot be read ({fault.strerror})") from None
    except UnicodeDecodeError as fault:
        raise UserError(f"{path}: not UTF-8 text (byte {fault.start})") from None
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        places: dict[Key, str] = {}
        _note_places(node, path, (), places)
        values = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as fault:
        line = f":{fault.problem_mark.line + 1}" if fault.problem_mark else ""
        raise UserError(f"{path}{line}: not valid YAML ({fault.problem})") from None
    except yaml.YAMLError as fault:
        raise UserError(f"{path}: not valid YAML ({fault})") from None
    finally:
        if loader is not None:
            loader.dispose()
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return Document(_string_keys(values), places)


def _string_keys(value: Any) -> Any:
    return {str(key): _string_keys(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another; only mappings merge, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def read_document(path: Path, _chain: tuple[Path, ...] = ()) -> Document:
    """Read a YAML file and what it `extends` (one file or several, relative to it; the later ones win)."""
    document = _parse(path)
    bases = document.values.pop("extends", None)
    if bases is None:
        return document
    place = document.place(("extends",))
    chain = (*_chain, path.resolve())
    merged = Document()
    for base in [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else [None]:
        if not isinstance(base, str):
            raise UserError(f"{place}: extends takes a file or a list of files, found {bases!r}")
        file = path.parent / base
        if file.resolve() in chain:
            raise UserError(f"{place}: extends {base} leads back to itself")
        if not file.is_file():
            raise UserError(f"{place}: extends {base}: no such file ({file})")
        below = read_document(file, chain)
        merged = Document(_merge(merged.values, below.values), {**merged.places, **below.places})
    return Document(_merge(merged.values, document.values), {**merged.places, **document.places})
