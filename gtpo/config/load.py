"""From a YAML file and overrides to a resolved TrainConfig; every error names its key, its file and its line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gtpo.config.leaves import leaves, sections
from gtpo.config.published import translate
from gtpo.config.resolve import resolve
from gtpo.config.schema import TrainConfig
from rewards.support.errors import UserError, did_you_mean

Key = tuple[str, ...]
Say = Callable[[str], None]


def print_notice(message: str) -> None:
    """Print a notice on stderr, once per run: something was accepted but mapped, changed, or without effect."""
    if os.environ.get("RANK", "0") == "0":
        print(f"gtpo: {message}", file=sys.stderr)


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


def _split(dotted: str) -> Key:
    """Split a dotted key; the keys of torch_compile_options have dots of their own."""
    for key, leaf in leaves().items():
        if leaf.scalar is None and dotted.startswith(key + "."):
            return (*key.split("."), dotted.removeprefix(key + "."))
    return tuple(dotted.split("."))


def _unknown(document: Document, loc: Key) -> str:
    dotted, parent = ".".join(loc), ".".join(loc[:-1])
    where = document.place(loc)
    siblings = (
        [f"{parent}.{name}".lstrip(".") for name in sections()[parent].model_fields] if parent in sections() else []
    )
    hint = did_you_mean(dotted, siblings) or did_you_mean(dotted, leaves())
    if not hint:
        same = [key for key in leaves() if key.rpartition(".")[2] == loc[-1]]
        hint = f' Did you mean "{same[0]}"?' if same else " gtpo train --help-config lists the keys."
    return f'{where}: unknown key "{dotted}".{hint}'


def _message(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence: place, key, what is expected, what was found."""
    loc = tuple(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(document, loc)
    names = [part for part in loc if not part.isdigit()]
    dotted, place = ".".join(names), document.place(loc)
    where = f"{place}: " if place and not place.startswith("--") else ""  # a flag's place is the key itself
    if error["type"] == "missing":
        return f'{where}the key "{dotted}" is missing'
    leaf = leaves().get(dotted)
    if leaf is None:
        if dotted in sections():
            return f"{where}{dotted} must be a mapping, found {error['input']!r}"
        return f"{where}{dotted}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "string_pattern_mismatch":
        expects = "a name that starts with a letter, digit or _ and has no slash (it becomes a folder)"
    else:
        expects = leaf.expects + (" or null" if leaf.optional and error["input"] is None else "")
    hint = did_you_mean(str(error["input"]), leaf.choices) if leaf.choices else ""
    return f"{where}{dotted} must be {expects}; found {error['input']!r}.{hint}"


def validate(document: Document) -> TrainConfig:
    """Check a document against the schema. Raises UserError with one line per fault."""
    for section in sections():
        # `section:` with nothing under it is an empty section, except where null is a value of its own.
        if section and section != "model.build" and section in _null_sections(document):
            document.set(tuple(section.split(".")), {})
    for key, leaf in leaves().items():
        # pydantic would read `learning_rate: true` as 1.0.
        if leaf.scalar in (int, float) and isinstance(document.get(key), bool):
            raise UserError(_message(document, {"loc": key.split("."), "type": "bool", "input": document.get(key)}))
    try:
        return TrainConfig.model_validate(document.values)
    except ValidationError as faults:
        raise UserError("\n      ".join(_message(document, fault) for fault in faults.errors())) from None


def _null_sections(document: Document) -> set[str]:
    return {name for name, value in document.values.items() if value is None}


def load_config(
    path: Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    say: Say = print_notice,
    world_size: int | None = None,
) -> TrainConfig:
    """Read, check and resolve a training config.

    overrides: dotted key -> value (text is parsed as the key's type), laid over the file.
    say: receives one line for whatever was mapped, changed, or has no effect; prints on stderr by default.
    world_size: number of processes; by default the environment's WORLD_SIZE, else 1.

    Raises UserError naming key, file and line, the allowed values and the nearest name.
    """
    file = Path(path)
    document = read_document(file)
    for dotted, value in (overrides or {}).items():
        document.set(_split(dotted), value, f"--{dotted}")
    notices: list[str] = []
    translate(document, notices.append)
    if document.values.get("run_name") is None:
        document.set(("run_name",), file.stem)
    if document.values.get("model") is None:
        raise UserError(f'{file}: the section "model" is missing (model.model_name: a Hub name or a local folder)')
    config = validate(document)
    # A key set to its default changes nothing by having no effect, so it needs no line.
    set_apart = frozenset(
        key for key, leaf in leaves().items() if document.get(key) is not None and _value(config, key) != leaf.default
    )
    config = resolve(config, document, set_apart, notices.append, world_size)
    for notice in notices:  # only now: of a config that is refused, the one sentence is what matters
        say(notice)
    return config


def _value(config: TrainConfig, dotted: str) -> Any:
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part, None)
    return value
