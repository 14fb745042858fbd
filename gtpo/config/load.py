"""From YAML files and flags to a resolved TrainConfig: read, translate, lay over each other, validate.

All errors are reported at once.

Settings that a config passes on to TRL or peft are checked later, by whoever has imported the library (`checked`): its
own class says what it has, so that a new version brings its new settings with it.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.settings import Key, alternatives
from gtpo.config.document import Document, find_config, flag_layer, layers, merged, unknown_key
from gtpo.config.keys import is_passed_on, keys, sections
from gtpo.config.published import Findings, complete, translate
from gtpo.config.resolve import resolve
from gtpo.config.schema import TrainConfig
from gtpo.rewards.data.problems import FILES


def load_config(
    path: Path | str, overrides: Mapping[str, Any] | None = None, *, world_size: int | None = None
) -> TrainConfig:
    """Read, check and resolve a training config.

    path: a file, else the name of a config that comes with gtpo, e.g. paper/llama-math-gtpo-g8.
    overrides: flag name (a dotted key or a shortcut) -> value (text is parsed as the key's type), laid over the file.
    world_size: number of training processes; by default the environment's WORLD_SIZE, else 1.

    What was mapped or changed is logged as a warning, as is a published key without effect. Raises UserError with a
    line per error: key as typed, file and line, the allowed values and the nearest name.
    """
    if str(path).endswith((*FILES, ".csv", ".tsv")):
        raise UserError(f"{path} holds data, not a config; to train on it: gtpo train --model MODEL --data {path}")
    file = Path(path) if Path(path).is_file() else find_config(str(path)) or Path(path)
    findings = Findings()
    documents = [translate(layer, findings) for layer in (*layers(file), flag_layer(overrides or {}))]
    document = complete(merged(documents, file.stem), findings)
    config, changes = resolve(to_config(document, findings.errors), document, world_size)
    # TRL and peft check their settings when they have been imported; the document is gone by then.
    config._settings = {".".join(key): setting for key, setting in document.items()}
    # Only now: of a config that is refused, only the errors matter.
    for notice in dict.fromkeys((*findings.notices, *changes)):
        LOG.warning(notice)
    return config


def to_config(document: Document, errors: Iterable[str] = ()) -> TrainConfig:
    """Return a document of our dialect as the schema has it. Raises UserError: `errors`, then its own, a line each."""
    findings = Findings([*errors])
    homes = {name.rpartition(".")[2] for name in keys() if not name.startswith("model.build")}
    for parts, setting in document.items():
        name = ".".join(parts)
        if name in keys() and isinstance(setting.value, bool) and {int, float}.intersection(keys()[name].kinds):
            # pydantic would read `learning_rate: true` as 1.0.
            findings.errors.append(_sentence(document, {"loc": parts, "type": "bool", "input": setting.value}))
        elif len(parts) == 2 and parts[1] in homes and is_passed_on(name):
            # A key of ours in another section than its own: TRL may have the name too, and would take it in silence.
            findings.errors.append(unknown_key(setting))
    # `section:` with nothing under it is an empty section.
    values = {name: {} if value is None and name in sections() else value for name, value in document.nested().items()}
    # Errors are gathered, not raised one by one: a file is mended at one go.
    try:
        config = TrainConfig.model_validate(values)
    except ValidationError as error:
        findings.errors += [_sentence(document, fault) for fault in error.errors()]
    findings.raise_errors()
    return config


def _sentence(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence: place, key as typed, what is expected, what was found."""
    loc, value = tuple(str(part) for part in error["loc"] if not isinstance(part, int)), error["input"]
    # What is wrong within an entry of a list is said of the list.
    if within := next((loc[:end] for end in range(2, len(loc)) if ".".join(loc[:end]) in keys()), None):
        loc, value = within, document.at(within).value
    setting, name = document.at(loc), ".".join(loc)
    key = keys().get(name)
    if error["type"] == "extra_forbidden" and not within:
        return unknown_key(setting)
    if name in sections():
        return f"{setting} must be a mapping, found {value!r}"
    if key is None:
        return f"{setting}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "string_pattern_mismatch":
        names = "a name that starts with a letter, digit or _ and has no slash (it names a folder)"
        return f"{setting} must be {names}; found {value!r}."
    return key.sentence(str(setting), value)


# -- what a config passes on to TRL or peft ----------------------------------------------------------------------------


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the fields of a library's dataclass that may be set, with their types."""
    hints = typing.get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind) if entry.init}


def checked(
    config: TrainConfig, section: str, known: Mapping[str, Any], whose: str, decided: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a section passes on to a library, each value as the type that its field has.

    known: the library's fields -> their types; whose: the class that has them. decided: fields that a run sets itself
    -> what the user sets instead.

    Raises UserError with a line per key that the library does not have, that is decided, or whose value has another
    type.
    """
    values: dict[str, Any] = getattr(config, section).passed_on
    errors: list[str] = []
    for name, value in values.items():
        setting = config.setting(f"{section}.{name}")
        if name in decided:
            errors.append(f"{setting}: {decided[name]}")
        elif name not in known:
            near = unknown_key(setting, [f"{section}.{field}" for field in known])
            errors.append(f"{near} Neither gtpo nor {whose} has it.")
        else:
            kinds = [kind for kind in alternatives(known[name]) if isinstance(kind, type) and issubclass(kind, Enum)]
            # `SchedulerType | str` takes any text; its own check comes later and does not know the key.
            kind: Any = Literal[tuple(member.value for enum in kinds for member in enum)] if kinds else known[name]
            try:
                values[name] = Key(name, FieldInfo.from_annotation(kind)).checked(value, str(setting))
            except UserError as error:
                errors.append(str(error))
    if errors:
        raise UserError("\n      ".join(errors))
    return values
