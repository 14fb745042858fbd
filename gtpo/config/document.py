"""The first step of loading a config: read YAML with `extends`, from a file or a table, and lay the flags over it.

A Document is what was read: raw values, and where each key was set. It is never changed; `put` and `without` return
another one.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.yaml_file import read_yaml
from gtpo.config.keys import Origin, full_name, is_passed_on

Key = tuple[str, ...]

_PACKAGE = Path(__file__).resolve().parents[1]
# The configs that come with gtpo: beside its modules if it is installed, configs/ in a checkout.
CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")), _PACKAGE / "configs")
# A file of many configs: FOLDER/table.yaml holds FOLDER/NAME for each of its names (`_from_table`).
TABLE = "table.yaml"
# Folder of CONFIGS -> what is in it.
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


@dataclass(frozen=True)
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

    def put(self, dotted: str, value: Any, origin: Origin | None = None) -> Document:
        """Return the document with a value set. Raises UserError if a section above it is no mapping."""

        def inside(values: Any, above: Key, rest: list[str]) -> Any:
            if not rest:
                return value
            # None: `section:` with nothing under it.
            if not isinstance(values, dict | None):
                raise UserError(f"{self.origin(above)} must be a mapping, found {values!r}")
            values = values or {}
            return {**values, rest[0]: inside(values.get(rest[0]), (*above, rest[0]), rest[1:])}

        key = dotted.split(".")
        return Document(inside(self.values, (), key), self.origins | ({tuple(key): origin} if origin else {}))

    def without(self, dotted: str) -> Document:
        """Return the document without a key."""
        section, _, name = dotted.rpartition(".")
        inside = self.get(section) if section else self.values
        if not isinstance(inside, dict) or name not in inside:
            return self
        left = {key: value for key, value in inside.items() if key != name}
        return self.put(section, left) if section else Document(left, self.origins)

    def over(self, below: Document) -> Document:
        """Return this document laid over another."""
        return Document(_merge(below.values, self.values), below.origins | self.origins)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another; only mappings merge, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _string_keys(value: Any) -> Any:
    return {str(key): _string_keys(inner) for key, inner in value.items()} if isinstance(value, dict) else value


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


# -- the configs that come with gtpo -----------------------------------------------------------------------------------


def config_names() -> list[str]:
    """Return the names of the configs that come with gtpo, e.g. paper/llama-math-gtpo-g8."""
    files = (path.relative_to(CONFIGS) for path in CONFIGS.rglob("*") if path.suffix in (".yaml", ".sbatch"))
    names = {file.with_suffix("").as_posix() for file in files if file.name != TABLE}
    for table in CONFIGS.glob(f"*/{TABLE}"):
        names |= {f"{table.parent.name}/{name}" for name in _table_names(table)}
    return sorted(names)


def find_config(name: str) -> Path | None:
    """Return the file that comes with gtpo under this name, with or without its ending; None if there is none.

    A config of a table has a path like any other, which `read` understands; there is no such file.
    """
    known = name.removesuffix(".yaml").removesuffix(".sbatch")
    if known not in config_names():
        return None
    return next(CONFIGS.glob(f"{known}.*"), CONFIGS / f"{known}.yaml")


@functools.cache
def _table_names(table: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of a table's configs: an entry of each axis, joined by dashes -> the entries."""
    if not table.is_file():
        return {}
    values = _string_keys(read_yaml(table, "a mapping of sections", _Loader)[0])
    axes = [entries for axis, entries in values.items() if axis != "base"]
    # A user's config may be called table.yaml too; an entry of a table is a mapping, or has nothing under it.
    if not all(isinstance(section, dict) for section in values.values()):
        return {}
    if not all(isinstance(entry, dict | None) for entries in axes for entry in entries.values()):
        return {}
    return {"-".join(entries): entries for entries in itertools.product(*axes)}


def _from_table(path: Path) -> Document:
    """Return the config that a table has under a path's name: its `base`, and an entry of each axis laid over it."""
    table = path.with_name(TABLE)
    read_values, lines = read_yaml(table, "a mapping of sections", _Loader)
    values = _string_keys(read_values)
    chosen = _table_names(table)[path.name.removesuffix(".yaml")]
    document = Document({}, {(): Origin(str(table), "")})
    for layer in [("base",), *zip((axis for axis in values if axis != "base"), chosen, strict=True)]:
        # An entry with nothing under it changes nothing.
        above: Any = functools.reduce(lambda inside, key: inside.get(key) or {}, layer, values)
        places = {key[len(layer) :]: line for key, line in lines.items() if key[: len(layer)] == layer}
        origins = {key: Origin(f"{table}:{line}", ".".join(key)) for key, line in places.items() if key}
        document = Document(above, origins).over(document)
    return document


# -- reading -----------------------------------------------------------------------------------------------------------


def _exists(path: Path) -> bool:
    return path.is_file() or path.name.removesuffix(".yaml") in _table_names(path.with_name(TABLE))


def _parse(path: Path) -> Document:
    if path.is_dir():
        what = "a folder; expected a config file (.yaml)"
        raise UserError(f"{path} is {_model_hint(path) if (path / 'config.json').is_file() else what}")
    if _exists(path) and not path.is_file():
        return _from_table(path)
    if not path.exists():
        raise UserError(_absent(path))
    values, lines = read_yaml(path, "a mapping of sections", _Loader)
    origins = {key: Origin(f"{path}:{line}", ".".join(key)) for key, line in lines.items()}
    return Document(_string_keys(values), {(): Origin(str(path), ""), **origins})


def _absent(path: Path) -> str:
    near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.y*ml")))
    typed = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if inside := [name for name in config_names() if name.startswith(f"{typed}/")]:
        return f"{path} is a folder of configs; name one of them: {', '.join(inside)}"
    hint = near or did_you_mean(typed, config_names()) or " `gtpo configs` lists those that come with gtpo."
    if not near and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and path.suffix not in (".yaml", ".yml"):
        hint += f" If it is {_model_hint(path)}"
    return f"{path}: no such config file.{hint}"


def _model_hint(model: Path) -> str:
    return f"a model: gtpo train --model {model} --data gsm8k --method gtpo"


def _extended(path: Path, chain: tuple[Path, ...] = ()) -> Document:
    """Read a file over what it `extends`: files relative to it, or configs of gtpo by name; the later ones win."""
    document = _parse(path)
    # A file that comes with gtpo may extend one beside it, or one by its name.
    bases, place, below = document.values.get("extends"), document.origin("extends").place, Document()
    chain = (*chain, path.resolve())
    for base in bases if isinstance(bases, list) else [] if bases is None else [bases]:
        if not isinstance(base, str):
            raise UserError(f"{place}: extends takes a file or a list of files, found {bases!r}")
        file = path.parent / base
        if not _exists(file):
            file = find_config(base) or file
        if file.resolve() in chain:
            raise UserError(f"{place}: extends {base} is circular")
        if not _exists(file):
            raise UserError(f"{place}: extends {base}: no such file ({file})")
        below = _extended(file, chain).over(below)
    return document.without("extends").over(below)


def read(path: Path, flags: Mapping[str, Any]) -> Document:
    """Return the document of a file with flags laid over it: name without dashes -> text, or a list of words.

    A key of TRL or peft takes the text as a file would; a key of ours takes it as its type.
    """
    document = _extended(path)
    # A flag of an unknown name is kept, so that it is named with the errors of the file.
    for flag, value in flags.items():
        name = full_name(flag)
        document = document.put(name, read_scalar(value) if is_passed_on(name) else value, Origin("", f"--{flag}"))
    return document if document.get("run_name") is not None else document.put("run_name", path.stem)
