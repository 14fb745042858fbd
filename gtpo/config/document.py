"""The raw document of a config: YAML with `extends`, found by path or name, and where each key was set.

And one sentence for each error in it: place, key as typed, what is expected, what was found, the nearest name.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.yaml_file import read_yaml
from gtpo.config.keys import SHORTCUTS, keys, sections

Key = tuple[str, ...]

_PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")), _PACKAGE / "configs")
"""The configs that come with gtpo: beside its modules if it is installed, configs/ in a checkout."""


TABLE = "table.yaml"
"""A file of many configs: FOLDER/table.yaml holds FOLDER/NAME for each of its names (`_from_table`)."""
GROUPS = {
    "demo": "a toy on a CPU core: a base model, then SFT, GRPO, GTPO and eight baselines from it",
    "laptop": "a real model of 0.1B or 0.5B on a CPU",
    "desk": "Qwen2.5-1.5B on GSM8K with LoRA, one GPU of 24 GiB",
    "paper": "the paper's runs: Llama-3.1-8B and Qwen2.5-3B, GSM8K and MATH, one GPU of 80 GB",
    "ablations": "the paper's figures, each from one of its runs",
    "published": "the authors' own files",
    "recipes": "layers for `extends:`, a baseline each; start is what --model and --data begin from",
    "accelerate": "for accelerate launch: several GPUs or nodes",
    "slurm": "for sbatch",
    "verl": "for python -m gtpo.integrations.verl",
}
"""Folder of CONFIGS -> what is in it."""


def config_names() -> list[str]:
    """Return the names of the configs that come with gtpo, e.g. paper/llama-math-gtpo-g8."""
    files = (path.relative_to(CONFIGS) for path in CONFIGS.rglob("*") if path.suffix in (".yaml", ".sbatch"))
    names = {file.with_suffix("").as_posix() for file in files if file.name != TABLE}
    for table in CONFIGS.glob(f"*/{TABLE}"):
        names |= {f"{table.parent.name}/{name}" for name in _table_names(table)}
    return sorted(names)


def find_config(name: str) -> Path | None:
    """Return the file that comes with gtpo under this name, with or without its ending; None if there is none.

    A config of a table has a path like any other, which `read_document` understands; there is no such file.
    """
    known = name.removesuffix(".yaml").removesuffix(".sbatch")
    if known not in config_names():
        return None
    return next(CONFIGS.glob(f"{known}.*"), CONFIGS / f"{known}.yaml")


def _axes(table: Path) -> list[dict[str, Any]]:
    values, _ = read_yaml(table, "a mapping of sections", _Loader)
    return [entries for axis, entries in values.items() if axis != "base"]


@functools.cache
def _table_names(table: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of a table's configs: an entry of each axis, joined by dashes -> the entries."""
    if not table.is_file():
        return {}
    return {"-".join(entries): entries for entries in itertools.product(*_axes(table))}


def _exists(path: Path) -> bool:
    return path.is_file() or path.name.removesuffix(".yaml") in _table_names(path.with_name(TABLE))


def _from_table(path: Path) -> Document:
    """Return the config that a table has under a path's name: its `base`, and an entry of each axis laid over it."""
    table = path.with_name(TABLE)
    values, lines = read_yaml(table, "a mapping of sections", _Loader)
    chosen = _table_names(table)[path.name.removesuffix(".yaml")]
    layers = [("base",), *zip((axis for axis in values if axis != "base"), chosen, strict=True)]
    document = Document({}, {(): Origin(str(table), "")})
    for layer in layers:
        above: Any = functools.reduce(lambda inside, key: inside.get(key, {}), layer, values)
        document.values = _merge(document.values, _string_keys(above))
        places = {key[len(layer) :]: line for key, line in lines.items() if key[: len(layer)] == layer}
        document.origins |= {key: Origin(f"{table}:{line}", ".".join(key)) for key, line in places.items() if key}
    return document


class Origin(NamedTuple):
    """Where a key was set and how the user typed it. As text, the start of an error message."""

    place: str
    """`file:line`; empty for a flag."""
    typed: str
    """The key in the file's dialect, or the flag with its dashes."""

    def __str__(self) -> str:
        return f"{self.place}: {self.typed}" if self.place else self.typed

    @property
    def is_flag(self) -> bool:
        """Return whether the key was set on the command line."""
        return self.typed.startswith("--")


@dataclass
class Document:
    """Raw values of a config and the origin of each key that was set."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)

    def origin(self, key: str | Key) -> Origin:
        """Return where a key (dotted, or in its parts) was set; else where its section begins, or the file."""
        key = tuple(key.split(".")) if isinstance(key, str) else key
        if key in self.origins:
            return self.origins[key]
        above = (self.origins[key[:end]].place for end in range(len(key) - 1, -1, -1) if key[:end] in self.origins)
        return Origin(next(above, ""), ".".join(key))

    def get(self, dotted: str) -> Any:
        """Return the raw value of a dotted key, None if it is absent."""
        value: Any = self.values
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def set(self, dotted: str, value: Any, origin: Origin | None = None) -> None:
        """Set a value and create the sections above it. Raises UserError if one of them is no mapping."""
        *sections, name = dotted.split(".")
        inside = self.values
        for depth, part in enumerate(sections, start=1):
            if inside.get(part) is None:
                inside[part] = {}
            inside = inside[part]
            if not isinstance(inside, dict):
                raise UserError(f"{self.origin('.'.join(sections[:depth]))} must be a mapping, found {inside!r}")
        inside[name] = value
        if origin is not None:
            self.origins[*sections, name] = origin

    def drop(self, dotted: str) -> Any:
        """Remove a dotted key and return its value, None if it is absent."""
        section, _, name = dotted.rpartition(".")
        inside = self.get(section) if section else self.values
        return inside.pop(name, None) if isinstance(inside, dict) else None


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-6` as the number it is (YAML 1.1 wants `1.0e-6`)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_scalar(value: Any) -> Any:
    """Return what a file would hold: a flag's text read as YAML. Text that is no YAML stays as it is."""
    if isinstance(value, list):
        return [read_scalar(each) for each in value]
    try:
        return yaml.load(value, _Loader) if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


def _parse(path: Path) -> Document:
    if path.is_dir():
        what = "a folder; expected a config file (.yaml)"
        raise UserError(f"{path} is {_model_hint(path) if (path / 'config.json').is_file() else what}")
    if _exists(path) and not path.is_file():
        return _from_table(path)
    if not path.exists():
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.y*ml")))
        typed = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
        inside = [name for name in config_names() if name.startswith(f"{typed}/")]
        if inside:
            raise UserError(f"{path} is a folder of configs; name one of them: {', '.join(inside)}")
        hint = near or did_you_mean(typed, config_names()) or " `gtpo configs` lists those that come with gtpo."
        if not near and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and path.suffix not in (".yaml", ".yml"):
            hint += f" If it is {_model_hint(path)}"
        raise UserError(f"{path}: no such config file.{hint}")
    values, lines = read_yaml(path, "a mapping of sections", _Loader)
    origins = {key: Origin(f"{path}:{line}", ".".join(key)) for key, line in lines.items()}
    return Document(_string_keys(values), {(): Origin(str(path), ""), **origins})


def _model_hint(model: Path) -> str:
    return f"a model: gtpo train --model {model} --data gsm8k --method gtpo"


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
    """Read a YAML file and what it `extends`: files relative to it, or configs of gtpo by name; the later ones win."""
    document = _parse(path)
    bases = document.values.pop("extends", None)
    if bases is None:
        return document
    place = document.origin("extends").place
    chain = (*_chain, path.resolve())
    merged = Document()
    for base in [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else [None]:
        if not isinstance(base, str):
            raise UserError(f"{place}: extends takes a file or a list of files, found {bases!r}")
        file = path.parent / base
        if not _exists(file):
            file = find_config(base) or file
        if file.resolve() in chain:
            raise UserError(f"{place}: extends {base} is circular")
        if not _exists(file):
            raise UserError(f"{place}: extends {base}: no such file ({file})")
        below = read_document(file, chain)
        merged = Document(_merge(merged.values, below.values), {**merged.origins, **below.origins})
    return Document(_merge(merged.values, document.values), {**merged.origins, **document.origins})


# -- error messages ----------------------------------------------------------------------------------------------------


OriginOf = Callable[[str], Origin]
"""The read-only map from a dotted key to where it was set."""


@dataclass
class Findings:
    """What loading a config found: all its errors, and what the user should know of a config that is accepted."""

    errors: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def raise_errors(self) -> None:
        """Raise one UserError with a line per error, if there are any."""
        if self.errors:
            raise UserError("\n      ".join(dict.fromkeys(self.errors)))


def unknown_key(origin: Origin, known: Iterable[str] = ()) -> str:
    """Name an unknown key or flag, where it was set, and the nearest known one; `known` are the likeliest."""
    name = origin.typed.removeprefix("--")
    same = [key for key in keys() if key.rpartition(".")[2] == name.rpartition(".")[2].replace("-", "_")]
    section, _, leaf = name.rpartition(".")
    if name in keys() and section and not origin.is_flag:
        hint = f' A file nests its keys: put "{leaf}:" under "{section}:" (with dots it is a flag, --{name}).'
    elif same:
        hint = f' Did you mean "{same[0]}"?'
    else:
        hint = (
            did_you_mean(name, known)
            or did_you_mean(name, (*SHORTCUTS, *keys()))
            or " gtpo train --help-config lists the keys."
        )
    if origin.is_flag:
        return f'unknown flag "{origin.typed}".' + hint.replace('mean "', 'mean "--')
    return f'{origin.place}: unknown key "{origin.typed}".{hint}'


def _unknown(document: Document, loc: Key) -> str:
    parent = ".".join(loc[:-1])
    siblings = (
        [f"{parent}.{name}".lstrip(".") for name in sections()[parent].model_fields] if parent in sections() else []
    )
    if loc not in document.origins:  # a section that exists only through a flag
        inside = [origin for key, origin in document.origins.items() if key[: len(loc)] == loc]
        return unknown_key(inside[0] if inside else document.origin(loc))
    return unknown_key(document.origins[loc], siblings)


def _nearest_choice(value: Any, choices: Iterable[str]) -> str:
    """Suggest one of the choices; YAML reads the words off, no, on and yes as booleans."""
    if isinstance(value, bool):
        meant = next((choice for choice in choices if choice in (("always",) if value else ("never", "none"))), None)
        return f' Did you mean "{meant}"? (YAML reads {"on and yes as true" if value else "off and no as false"})' * (
            meant is not None
        )
    return did_you_mean(str(value), choices)


def schema_error(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence."""
    loc = tuple(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(document, loc)
    name = ".".join(part for part in loc if not part.isdigit())
    origin = document.origin(name)
    if error["type"] == "missing":
        return f"{origin} is missing"
    key = keys().get(name)
    if key is None:
        if name in sections():
            return f"{origin} must be a mapping, found {error['input']!r}"
        return f"{origin}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "string_pattern_mismatch":
        expects = "a name that starts with a letter, digit or _ and has no slash (it names a folder)"
    else:
        expects = key.expects + (" or null" if key.optional and error["input"] is None else "")
    hint = _nearest_choice(error["input"], key.choices)
    return f"{origin} must be {expects}; found {error['input']!r}.{hint}"
