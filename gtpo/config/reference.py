"""The reference of every key, from the schema: `gtpo train --help-config`; docs/config.md has the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gtpo.config.flags import SHORTCUTS
from gtpo.config.keys import ConfigKey, keys, sections
from gtpo.presets import PRESETS


def default_of(key: ConfigKey) -> str:
    """Return a key's default as a word."""
    if key.name == "run_name":
        return "the file's name"
    if key.name == "dataset.system_instruction":
        return "the published prompt"
    section, _, field = key.name.rpartition(".")
    if section == "objective" and field != "preset":
        return f"the preset's; gtpo: {_word(getattr(PRESETS['gtpo'], field))}"
    return _word(key.default)


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else '""'


def by_section() -> Iterator[tuple[str, str, list[ConfigKey]]]:
    """Yield (section, its documentation, its own keys)."""
    for name, section in sections().items():
        own = [key for key in keys().values() if key.name.rpartition(".")[0] == name]
        if own:
            yield name, " ".join((section.__doc__ or "").split()), own


def print_reference() -> None:
    """Print every key as plain text, unwrapped: one block per key."""
    for name, doc, own in by_section():
        print(f"\n{name or 'top level'}: {doc}")
        for key in own:
            print(f"  --{key.name}\n      {key.expects}; default {default_of(key)}")
            if key.doc:
                print(f"      {key.doc}")
    print("\nshort flags")
    for flag, name in SHORTCUTS.items():
        print(f"  --{flag:20} --{name}")
