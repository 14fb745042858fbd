"""From a YAML file and flags to a resolved TrainConfig: read, translate, validate. All errors are reported at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.log import LOG
from gtpo.config.document import Document, find_config, read
from gtpo.config.keys import is_passed_on, keys, sections, unknown_key
from gtpo.config.published import Findings, translate
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
    if str(path).endswith(FILES):
        raise UserError(f"{path} holds data, not a config; to train on it: gtpo train --model MODEL --data {path}")
    file = Path(path) if Path(path).is_file() else find_config(str(path)) or Path(path)
    document, found = translate(read(file, overrides or {}))
    config, changes = resolve(to_config(document, found.errors), document, world_size)
    # TRL and peft check their settings when they have been imported; the document is gone by then.
    config._places = {".".join(key): str(origin) for key, origin in document.origins.items()}
    # Only now: of a config that is refused, only the errors matter.
    for notice in (*found.notices, *changes):
        LOG.warning(notice)
    return config


def to_config(document: Document, errors: Iterable[str] = ()) -> TrainConfig:
    """Return a document of our dialect as the schema has it. Raises UserError: `errors`, then its own, a line each."""
    found = Findings([*errors])
    # `section:` with nothing under it is an empty section.
    values = {name: {} if value is None and name in sections() else value for name, value in document.values.items()}
    for name, key in keys().items():
        if key.scalar in (int, float) and isinstance(value := document.get(name), bool):
            # pydantic would read `learning_rate: true` as 1.0.
            found.errors.append(_sentence(document, {"loc": name.split("."), "type": "bool", "input": value}))
    homes = {name.rpartition(".")[2] for name in keys() if not name.startswith("model.build")}
    # TRL may have a field of this name too, and would take it in silence.
    for section, inside in values.items():
        for name in inside if isinstance(inside, dict) else ():
            # A key of ours in another section than its own.
            if name in homes and is_passed_on(f"{section}.{name}"):
                found.errors.append(unknown_key(document.origin((section, name))))
    # Errors are gathered, not raised one by one: a file is mended at one go.
    try:
        config = TrainConfig.model_validate(values)
    except ValidationError as error:
        found.errors += [_sentence(document, fault) for fault in error.errors()]
    found.raise_errors()
    return config


def _sentence(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence: place, key as typed, what is expected, what was found."""
    loc = tuple(str(part) for part in error["loc"])
    name, found = ".".join(part for part in loc if not part.isdigit()), error["input"]
    origin, key = document.origin(name), keys().get(name)
    if error["type"] == "extra_forbidden":
        # A section that exists only through a flag has no place of its own.
        inside = [origin for place, origin in document.origins.items() if place[: len(loc)] == loc]
        parent = ".".join(loc[:-1])
        siblings = sections()[parent].model_fields if parent in sections() else ()
        return unknown_key((inside or [origin])[0], [f"{parent}.{sibling}".lstrip(".") for sibling in siblings])
    if error["type"] == "missing":
        return f"{origin} is missing"
    if name in sections():
        return f"{origin} must be a mapping, found {found!r}"
    if key is None:
        return f"{origin}: {error['msg'].removeprefix('Value error, ')}"
    expects = key.expects + (" or null" if key.optional and found is None else "")
    if error["type"] == "string_pattern_mismatch":
        expects = "a name that starts with a letter, digit or _ and has no slash (it names a folder)"
    return f"{origin} must be {expects}; found {found!r}.{_nearest_choice(found, key.choices)}"


def _nearest_choice(value: Any, choices: Iterable[str]) -> str:
    """Suggest one of the choices; YAML reads the words off, no, on and yes as booleans."""
    if not isinstance(value, bool):
        return did_you_mean(str(value), choices)
    meant = next((choice for choice in choices if choice in (("always",) if value else ("never", "none"))), None)
    read = "on and yes as true" if value else "off and no as false"
    return f' Did you mean "{meant}"? (YAML reads {read})' if meant else ""
