"""Command-line flags: every leaf as `--section.key`, and the published shortcuts. Words in, overrides out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gtpo.config.keys import Leaf, leaves
from rewards.support.errors import UserError, did_you_mean

SHORTCUTS: dict[str, str] = {
    "model-name": "model.model_name",
    "dataset-name": "dataset.name",
    "dataset-subset": "dataset.subsets",
    "dataset-split": "dataset.split",
    "data-dir": "dataset.data_dir",
    "cuda": "env.CUDA_VISIBLE_DEVICES",
    "run-name": "run_name",
}
"""The short flags of the published README (and --data-dir, which `gtpo eval` has too) -> the key they set."""

_BOOLEAN = {"true", "false", "1", "0", "yes", "no", "y", "n", "t", "f", "on", "off"}
_NULL = {"none", "null", "~"}


def _leaf(name: str) -> tuple[str, Leaf | None]:
    """Return the dotted key that a flag's name means, and its leaf (None: an entry of a mapping)."""
    key = SHORTCUTS.get(name, name)
    if key in leaves():
        return key, leaves()[key]
    dashed = key.replace("-", "_")
    if dashed in leaves():
        return dashed, leaves()[dashed]
    for mapping, leaf in leaves().items():
        if leaf.scalar is None and key.startswith(mapping + "."):
            return key, None
    known = [*leaves(), *SHORTCUTS]
    hint = did_you_mean(key, known)
    if not hint:
        same = [known_key for known_key in leaves() if known_key.rpartition(".")[2] == key.rpartition(".")[2]]
        hint = f' Did you mean "{same[0]}"?' if same else " gtpo train --help-config lists all flags."
    raise UserError(f'unknown flag "--{name}".{hint.replace("mean " + chr(34), "mean " + chr(34) + "--")}')


def _is_config(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or Path(word).is_file()


def _value(key: str, leaf: Leaf | None, words: list[str]) -> Any:
    if leaf is not None and leaf.many:
        return [] if words in ([""], ["[]"]) else [part for word in words for part in word.split(",")]
    (word,) = words
    if leaf is not None and leaf.optional and word.lower() in _NULL:
        return None
    return word


def parse_flags(words: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Split the words of a command line into the config's path (None if absent) and overrides by dotted key.

    Flags may stand before or after the path, as `--key value` or `--key=value`; a list takes several words (or
    commas); a boolean alone means true. Raises UserError naming the flag.
    """
    positional: list[str] = []
    overrides: dict[str, Any] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--") or word == "--":
            positional.append(word)
            continue
        name, equals, inline = word[2:].partition("=")
        key, leaf = _leaf(name)
        if equals:
            taken = [inline]
        elif leaf is not None and leaf.many:
            taken = []
            while queue and not queue[0].startswith("--"):
                taken.append(queue.pop(0))
            # `--trainer.reward_funcs a b run.yaml`: the last word is the config where none stands elsewhere.
            elsewhere = positional or any(_is_config(later) for later in queue)
            if len(taken) > 1 and not elsewhere and _is_config(taken[-1]):
                positional.append(taken.pop())
        elif leaf is not None and leaf.scalar is bool and (not queue or queue[0].lower() not in _BOOLEAN):
            taken = ["true"]
        else:
            taken = [queue.pop(0)] if queue and not queue[0].startswith("--") else []
        if not taken:
            raise UserError(f"--{name} needs a value: {leaf.expects if leaf else 'any'}")
        value = _value(key, leaf, taken)
        if leaf is not None and leaf.many and key in overrides and name in SHORTCUTS:
            value = [*overrides[key], *value]
        overrides[key] = value
    if len(positional) > 1:
        raise UserError(f"one config file at a time; found {', '.join(positional)}")
    return (positional[0] if positional else None), overrides
