"""From a YAML file and overrides to a resolved TrainConfig; every error names its key, its file and its line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gtpo.config.document import Document, Key, read_document
from gtpo.config.keys import leaves, sections
from gtpo.config.messages import error_message
from gtpo.config.published import translate
from gtpo.config.resolve import resolve
from gtpo.config.schema import TrainConfig
from rewards.support.errors import UserError

Say = Callable[[str], None]


def print_notice(message: str) -> None:
    """Print a notice on stderr, once per run: something was accepted but mapped, changed, or without effect."""
    if os.environ.get("RANK", "0") == "0":
        print(f"gtpo: {message}", file=sys.stderr)


def _split(dotted: str) -> Key:
    """Split a dotted key; the keys of torch_compile_options have dots of their own."""
    for key, leaf in leaves().items():
        if leaf.scalar is None and dotted.startswith(key + "."):
            return (*key.split("."), dotted.removeprefix(key + "."))
    return tuple(dotted.split("."))


def validate(document: Document) -> TrainConfig:
    """Check a document against the schema. Raises UserError with one line per fault."""
    for section in sections():
        # `section:` with nothing under it is an empty section, except where null is a value of its own.
        if section and section != "model.build" and section in _null_sections(document):
            document.set(tuple(section.split(".")), {})
    for key, leaf in leaves().items():
        # pydantic would read `learning_rate: true` as 1.0.
        if leaf.scalar in (int, float) and isinstance(document.get(key), bool):
            raise UserError(
                error_message(document, {"loc": key.split("."), "type": "bool", "input": document.get(key)})
            )
    try:
        return TrainConfig.model_validate(document.values)
    except ValidationError as faults:
        raise UserError("\n      ".join(error_message(document, fault) for fault in faults.errors())) from None


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
