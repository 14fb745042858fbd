"""From a YAML file and overrides to a resolved TrainConfig. All errors are reported at once, each under its own key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.config.document import (
    Document,
    Findings,
    Origin,
    find_config,
    read_document,
    read_scalar,
    schema_error,
    unknown_key,
)
from gtpo.config.keys import PASSED_ON, full_name, is_passed_on, keys, sections
from gtpo.config.published import translate
from gtpo.config.resolve import resolve
from gtpo.config.schema import TrainConfig


def validate(document: Document, findings: Findings) -> TrainConfig:
    """Translate a document into our dialect and check it. Raises UserError with a line per error."""
    translate(document, findings)
    # `section:` with nothing under it is an empty section.
    values = {name: {} if value is None and name in sections() else value for name, value in document.values.items()}
    for name, key in keys().items():
        if key.scalar in (int, float) and isinstance(value := document.get(name), bool):
            # pydantic would read `learning_rate: true` as 1.0.
            findings.errors.append(schema_error(document, {"loc": name.split("."), "type": "bool", "input": value}))
    for section in PASSED_ON:
        inside = values.get(section)
        for name in inside if isinstance(inside, dict) else ():
            elsewhere = any(key.rpartition(".")[2] == name and not key.startswith("model.build") for key in keys())
            if elsewhere and is_passed_on(f"{section}.{name}"):  # a key of ours in another section than its own
                findings.errors.append(unknown_key(document.origin((section, name))))
    try:
        config = TrainConfig.model_validate(values)
    except ValidationError as error:
        findings.errors += [schema_error(document, found) for found in error.errors()]
    findings.raise_errors()
    return config


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
    file = Path(path)
    if file.name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        raise UserError(f"{path} holds data, not a config; to train on it: gtpo train --model MODEL --data {path}")
    if not file.is_file():
        file = find_config(str(path)) or file
    document = read_document(file)
    for flag, value in (overrides or {}).items():
        name = full_name(flag)
        document.set(name, read_scalar(value) if is_passed_on(name) else value, Origin("", f"--{flag}"))
    if document.values.get("run_name") is None:
        document.set("run_name", file.stem)
    findings = Findings()
    config = validate(document, findings)
    config = resolve(config, document.origin, findings, world_size)
    for section in PASSED_ON:
        for name in getattr(config, section).passed_on:
            config._places[f"{section}.{name}"] = str(document.origin(f"{section}.{name}"))
    for notice in findings.notices:  # only now: of a config that is refused, only the errors matter
        LOG.warning(notice)
    return config
