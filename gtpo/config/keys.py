"""Every key of the schema with its type, range and documentation: what flags, errors and the reference print."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from gtpo.common.settings import Key, section_of
from gtpo.config.schema import PassedOn, TrainConfig
from gtpo.presets import PRESETS

# The short flags of the published README, and those that `gtpo eval` has too -> the key they set.
SHORTCUTS: dict[str, str] = {
    "model": "model.model_name",
    "data": "dataset.name",
    "model-name": "model.model_name",
    "dataset-name": "dataset.name",
    "dataset-subset": "dataset.subsets",
    "dataset-split": "dataset.split",
    "data-dir": "dataset.data_dir",
    "cuda": "env.CUDA_VISIBLE_DEVICES",
    "run-name": "run_name",
    "max-tokens": "training.max_completion_length",
    "fields": "dataset.fields",
}


def default_in_words(key: Key) -> str:
    """Return the default as the reference prints it."""
    section, _, field = key.name.rpartition(".")
    if key.name == "dataset.system_instruction":
        return "the published prompt"
    if section == "objective" and field != "preset":
        return f"the preset's; gtpo: {_word(getattr(PRESETS['gtpo'], field))}"
    return _word(key.default)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if value is None or value == "":
        return '""' if value == "" else "unset"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def sections() -> dict[str, type[BaseModel]]:
    """Return every section class by its dotted name, in the schema's order; the root is the empty name."""

    def walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
        for name, info in section.model_fields.items():
            if inner := section_of(info.annotation):
                yield prefix + name, inner
                yield from walk(inner, f"{prefix}{name}.")

    return {"": TrainConfig, **dict(walk(TrainConfig, ""))}


@functools.cache
def keys() -> dict[str, Key]:
    """Return every key by its dotted name, section by section in the schema's order."""
    named = [
        Key(f"{section}.{name}".lstrip("."), info)
        for section, model in sections().items()
        for name, info in model.model_fields.items()
        if not section_of(info.annotation)
    ]
    return {key.name: key for key in named}


def full_name(flag: str) -> str:
    """Return the dotted key that a flag (without its dashes) sets; an unknown flag is returned as it is."""
    name = SHORTCUTS.get(flag, flag)
    return name if name in keys() or name.replace("-", "_") not in keys() else name.replace("-", "_")


def is_passed_on(name: str) -> bool:
    """Return whether a dotted key is a library's own: in a section that takes them, and not one of ours."""
    section, _, inside = name.partition(".")
    own = f"{section}.{inside.partition('.')[0]}" in keys()
    return bool(inside) and issubclass(sections().get(section, BaseModel), PassedOn) and not own


def by_section() -> Iterator[tuple[str, str, list[Key]]]:
    """Yield (section, its documentation, its own keys), for the reference."""
    for name, section in sections().items():
        own = [key for key in keys().values() if key.name.rpartition(".")[0] == name]
        if own or issubclass(section, PassedOn):
            yield name, " ".join((section.__doc__ or "").split()), own


def print_reference() -> None:
    """Print every key as plain text, unwrapped: one block per key."""
    for name, doc, own in by_section():
        print(f"\n{name or 'top level'}: {doc}")
        for key in own:
            print(f"  --{key.name}\n      {key.expects}; default {default_in_words(key)}\n      {key.doc}")
    print("\nshort flags")
    for flag, name in SHORTCUTS.items():
        print(f"  --{flag:20} --{name}")
