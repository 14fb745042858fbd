"""The first step of loading a config: read YAML with `extends`, from a file or a table, and flags, a layer each.

A Document is a layer: one flat table, each key with its raw value and where it was set. It is never changed; `put`,
`without` and `over` return another one.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from gtpo.common.errors import UserError, did_you_mean, same_elsewhere
from gtpo.common.settings import dashed
from gtpo.common.yaml_file import Lines, read_yaml
from gtpo.config.keys import SHORTCUTS, full_name, is_passed_on, keys, sections
from gtpo.config.schema import Setting

Key = tuple[str, ...]

_PACKAGE = Path(__file__).resolve().parents[1]
# The configs that come with gtpo: beside its modules if it is installed, configs/ in a checkout.
CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")), _PACKAGE / "configs")
# A file of many configs: FOLDER/table.yaml holds FOLDER/NAME for each of its names (`_table_names`).
TABLE = "table.yaml"
_NULL = {"none", "null", "~"}


class Document(dict[Key, Setting]):
    """The settings of a config, each section before what it holds; the key () is the file itself."""

    def at(self, key: str | Key) -> Setting:
        """Return the setting of a key, dotted or in its parts. If it is absent: None, where its section begins."""
        parts = tuple(key.split(".")) if isinstance(key, str) else key
        above = next((self[parts[:end]].place for end in range(len(parts) - 1, -1, -1) if parts[:end] in self), "")
        return self.get(parts) or Setting(None, above, ".".join(parts))

    def put(self, dotted: str, value: Any, origin: Setting | None = None) -> Document:
        """Return the document with a value in the place of what the key held, and the sections above it."""
        key, setting = tuple(dotted.split(".")), (origin or self.at(dotted))._replace(value=value)
        sections = {key[:end]: setting._replace(value={}) for end in range(len(key))}
        return Document({**sections, **self.without(dotted), key: setting})

    def without(self, dotted: str) -> Document:
        """Return the document without a key and what it holds."""
        key = tuple(dotted.split("."))
        return Document({other: setting for other, setting in self.items() if other[: len(key)] != key})

    def over(self, below: Document) -> Document:
        """Return this document laid over another: sections merge, everything else is replaced."""
        replaced = {key for key, setting in self.items() if setting.value != {}}
        rest = {k: setting for k, setting in below.items() if replaced.isdisjoint(k[:end] for end in range(len(k)))}
        return Document(rest | self)

    def inside(self, *section: str) -> Document:
        """Return what a section holds, as a document of its own."""
        size = len(section)
        held = {key[size:]: setting for key, setting in self.items() if key[:size] == section and len(key) > size}
        return Document({key: setting._replace(typed=".".join(key)) for key, setting in held.items()})

    def nested(self) -> dict[str, Any]:
        """Return the values as a file has them. Raises UserError for a value that is set inside another one."""
        values: dict[str, Any] = {}
        for key, setting in self.items():
            within = values
            for end, part in enumerate(key[:-1], 1):
                # None: `section:` with nothing under it.
                within[part] = within = {} if within.get(part) is None else within[part]
                if not isinstance(within, dict):
                    raise UserError(f"{self.at(key[:end])} must be a mapping, found {within!r}")
            if key:
                within[key[-1]] = {} if setting.value == {} else setting.value
        return values


def unknown_key(setting: Setting, likely: Iterable[str] = ()) -> str:
    """Name an unknown key or flag, where it was set, and the nearest known one; `likely` are compared first."""
    name = setting.typed.removeprefix("--")
    section, _, leaf = name.rpartition(".")
    # A right name, or nearly, in a wrong section is the most frequent mistake; one of its own section is nearer.
    own = [key for key in keys() if key.startswith(f"{section}.")]
    leaves = {key.rpartition(".")[2]: key for key in (*reversed(keys()), *own)}
    elsewhere = same_elsewhere(leaf, [*likely, *keys(), *(SHORTCUTS if setting.is_flag else ())])
    close = difflib.get_close_matches(leaf.replace("-", "_"), leaves, n=1, cutoff=0.8)
    if name in keys() and section and not setting.is_flag:
        hint = f' A file nests its keys: put "{leaf}:" under "{section}:" (with dots it is a flag, --{name}).'
    elif elsewhere or close:
        hint = f' Did you mean "{elsewhere or leaves[close[0]]}"?'
    else:
        near = did_you_mean(name, likely) or did_you_mean(name, (*SHORTCUTS, *sections(), *keys()))
        hint = near or " gtpo train --help-config lists the keys."
    if setting.is_flag:
        return f'unknown flag "{setting.typed}".' + hint.replace('mean "', 'mean "--')
    return f'{setting.place}: unknown key "{setting.typed}".{hint}'.removeprefix(": ")


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


def config_folders() -> dict[str, str]:
    """Return the folders of the configs that come with gtpo -> what is in each."""
    return read_yaml(CONFIGS / "folders.yaml")[0]


def config_names() -> list[str]:
    """Return the names of the configs that come with gtpo, e.g. paper/llama-math-gtpo-g8."""
    files = (path.relative_to(CONFIGS) for path in CONFIGS.glob("*/*") if path.suffix in (".yaml", ".sbatch"))
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
def _table_names(table: Path) -> dict[str, list[Key]]:
    """Return the names of a table's configs: an entry of each axis, joined by dashes -> its layers, lowest first."""
    document = _parse(table).without("base") if table.is_file() else Document()
    # A user's config may be called table.yaml too; an entry of a table is a mapping, or has nothing under it.
    if any(setting.value not in ({}, None) for key, setting in document.items() if len(key) < 3):
        return {}
    axes = itertools.groupby((key for key in document if len(key) == 2), lambda key: key[0])
    rows = itertools.product(*(list(entries) for _, entries in axes))
    return {"-".join(name for _, name in row): [("base",), *row] for row in rows}


# -- reading -----------------------------------------------------------------------------------------------------------


def _settings(
    path: Path, values: Mapping[Any, Any], lines: Lines, above: Setting, key: Key = ()
) -> Iterator[tuple[Key, Setting]]:
    yield key, above
    for name, value in values.items():
        inside = (*key, str(name))
        place = f"{path}:{lines[inside]}" if inside in lines else above.place
        section = isinstance(value, dict)
        setting = Setting({} if section else value, place, ".".join(inside))
        yield from _settings(path, value if section else {}, lines, setting, inside)


def _exists(path: Path) -> bool:
    return path.is_file() or path.name.removesuffix(".yaml") in _table_names(path.with_name(TABLE))


def _parse(path: Path) -> Document:
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a config file (.yaml). A model: gtpo train --model {path} ...")
    if not path.is_file() and _exists(path):
        table = _parse(path.with_name(TABLE))
        layers = _table_names(path.with_name(TABLE))[path.name.removesuffix(".yaml")]
        return functools.reduce(
            lambda below, layer: table.inside(*layer).over(below), layers, Document({(): table[()]})
        )
    if not path.exists():
        raise UserError(_absent(path))
    values, lines = read_yaml(path, "a mapping of sections", _Loader)
    return Document(_settings(path, values, lines, Setting({}, str(path), "")))


def _absent(path: Path) -> str:
    near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.y*ml")))
    typed = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    hint = near or did_you_mean(typed, config_names()) or " `gtpo configs` lists those that come with gtpo."
    if not near and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and path.suffix not in (".yaml", ".yml"):
        hint += f" If it is a model: gtpo train --model {path} --data gsm8k --method gtpo"
    return f"{path}: no such config file.{hint}"


def layers(path: Path, chain: tuple[Path, ...] = ()) -> list[Document]:
    """Return a file and what it `extends`, lowest first: files relative to it, or configs of gtpo by name."""
    document = _parse(path)
    # A file that comes with gtpo may extend one beside it, or one by its name.
    (bases, place, _), below = document.at("extends"), list[Document]()
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
        below += layers(file, chain)
    return [*below, document.without("extends")]


def flag_layer(flags: Mapping[str, Any]) -> Document:
    """Return the document of flags: name without dashes -> text, or a list of words.

    A key of TRL or peft takes the text as a file would; a key of ours takes it as its type.
    """
    document = Document()
    # A flag of an unknown name is kept, so that it is named with the errors of the file.
    for flag, text in flags.items():
        name, value = full_name(flag), text
        if is_passed_on(name):
            value = read_scalar(text)
        elif name in keys() and NoneType in keys()[name].kinds and str(text).lower() in _NULL - {*keys()[name].choices}:
            value = None
        document = document.put(name, value, Setting(None, "", dashed(flag)))
    return document


def merged(documents: Iterable[Document], name: str) -> Document:
    """Return documents laid over each other, the lowest first. name: of the run, if none of them has one."""
    document = functools.reduce(lambda below, layer: layer.over(below), documents)
    for key in keys().values():
        # One word is a list of one.
        if key.many and isinstance(word := document.at(key.name).value, str):
            document = document.put(key.name, [word])
    return document if document.at("run_name").value is not None else document.put("run_name", name)
