"""Command-line flags: every key as `--section.key`, and the published shortcuts. Words in, overrides out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from gtpo.common.errors import UserError
from gtpo.config.document import find_config
from gtpo.config.keys import SHORTCUTS, ConfigKey, full_name, keys

# The config of ours that `gtpo train --model M --data D` starts from.
START = "recipes/start"

_BOOLEAN = {"true", "false", "1", "0", "yes", "no", "y", "n", "t", "f", "on", "off"}
_NULL = {"none", "null", "~"}


def from_flags(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of START if no config is named, with a run name. UserError without a model or data."""
    given = {full_name(flag): value for flag, value in overrides.items()}
    model, data = given.get("model.model_name"), given.get("dataset.name")
    if not model or not data:
        raise UserError(
            "gtpo train needs a config, e.g. gtpo train demo/gtpo (gtpo configs lists them), or a model and data, e.g. "
            f"gtpo train --model {model or 'Qwen/Qwen2.5-0.5B-Instruct'} --data {data or 'gsm8k'} --method gtpo"
        )
    # The same flags name the same folder: the same command again resumes the run.
    name = "-".join((Path(model).name, Path(data).name.partition(".")[0], given.get("method") or "gtpo")).lower()
    return {"run_name": re.sub(r"[^a-z0-9._-]+", "-", name), **overrides}


def as_file(config: Any, overrides: Mapping[str, Any]) -> str:
    """Return the file that says what START and these overrides say, in YAML."""
    document: dict[str, Any] = {"extends": START}
    for name in map(full_name, overrides):
        *sections, key = name.split(".")
        inside, value = document, config.model_dump(mode="json")
        for section in sections:
            inside, value = inside.setdefault(section, {}), value[section]
        inside[key] = value[key]
    return yaml.safe_dump(document, sort_keys=False).rstrip()


def _is_config(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or Path(word).is_file() or find_config(word) is not None


def _value(key: ConfigKey | None, words: list[str]) -> Any:
    if key is not None and key.many:
        text = ",".join(words).strip()
        text = text[1:-1] if text.startswith("[") and text.endswith("]") else text  # a list as YAML writes it
        return [part.strip(" '\"") for part in text.split(",") if part.strip()]
    if len(words) > 1:
        return words
    return None if key is not None and NoneType in key.kinds and words[0].lower() in _NULL else words[0]


def parse_flags(words: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Split the words of a command line into the config's path or name (None if absent) and overrides by flag name.

    Flags may come before or after the path, as `--key value` or `--key=value`; a list takes several words (or
    commas); a boolean alone means true. Unknown flags are kept: `load_config` reports them with the file's errors.
    Raises UserError if a value is missing, and for a second config file or a word that belongs to nothing.
    """
    positional: list[str] = []
    overrides: dict[str, Any] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--") or word == "--":
            positional.append(word)
            continue
        flag, equals, inline = word[2:].partition("=")
        key = keys().get(full_name(flag))
        # -1 is a value, and two dashes begin a flag.
        following = list(itertools.takewhile(lambda word: not word.startswith("--"), queue))
        if equals:
            taken, following = [inline], []
        elif key is None or key.many:
            # `--trainer.reward_funcs a b run.yaml`: the last word is the config if there is no other.
            elsewhere = positional or any(map(_is_config, queue[len(following) :]))
            last = len(following) > (key is not None) and not elsewhere and _is_config(following[-1])
            taken = following[:-1] if last else following
        elif bool in key.kinds:
            taken = [word for word in following[:1] if word.lower() in _BOOLEAN]
        else:
            taken = following[:1]
        if not taken and key is not None and bool not in key.kinds:
            raise UserError(f"--{flag} needs a value: {key.expects}")
        if not equals:
            del queue[: len(taken)]
        value = _value(key, taken or ["true"])
        if flag in SHORTCUTS and key is not None and key.many:
            value = [*overrides.get(flag, []), *value]
        # The last flag wins, also over another spelling of the same key.
        overrides.pop(flag, None)
        overrides[flag] = value
    if strays := [word for word in positional if not _is_config(word)][: len(positional) - 1]:
        raise UserError(
            f'"{strays[0]}" is neither a flag nor a config file; flags begin with two dashes '
            "(gtpo train --help and --help-config list them)"
        )
    if len(positional) > 1:
        raise UserError(f"one config file at a time; found {', '.join(positional)}")
    return (positional[0] if positional else None), overrides
