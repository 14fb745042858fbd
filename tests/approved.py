"""Approved outputs: tests/golden/NAME holds what a command prints; `make golden` writes them anew.

What differs from run to run is a named placeholder in them: a time is <time>. Numbers that a processor may round
otherwise have six digits.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gtpo.common.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
RENEW = "make golden"
# Lines of a difference that a failure shows.
SHOWN = 60
# Pattern -> placeholder of what says when, where and how fast something ran, or has more digits than are exact.
VOLATILE = {
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z| UTC)?": "<time>",
    r"\b[0-9a-f]{40}\+?": "<commit>",
    r"sha256-[\w+/]+=*": "<hash>",
    r"\(\d+ s left\)": "(<seconds> s left)",
    r"(?<= in )\d+\.\d s\b": "<seconds> s",
    r"(?<=: )\d+\.\d s, \d+\.\d %(?= of the run)": "<seconds> s, <share> %",
    r"(?<= after )\d+:\d\d(:\d\d)?": "<duration>",
    r"(?<=must be one of )[^;\n]{180,}(?=; found)": "<names>",  # of a library
    r"(?<=standard error )[\d.e-]+": "<number>",
    r"(?<=  )(loss|H|kl) -?\d+\.\d+": r"\1 <number>",
}
# Keys of JSON whose value depends on the machine, the time or the versions of packages.
VOLATILE_KEYS = frozenset({
    "wall_seconds", "wall_time_s", "seconds", "share_of_session", "peak_memory_bytes", "created", "started", "time",
    "written", "hardware", "python", "packages", "versions", "git_commit", "fingerprint", "weights", "tokenizer",
    "generation_config", "standard_error", "nats",
})  # fmt: skip
# Objects of JSON whose keys are names: their values are of one kind.
NAMED = frozenset({
    "benchmarks", "pass@k", "pass^k", "maj@k", "verdicts", "unscored_reasons", "lacking", "agree", "versions",
    "packages", "averages", "seed_means", "training", "settings", "unverifiable", "too_long", "abilities", "machine",
    "hardware", "texts",
})  # fmt: skip


def check(name: str, text: str, *, exact: bool = False) -> None:
    """Compare an output, without what is volatile, with the approved one; write it if `make golden` runs.

    exact: nothing in it is volatile.
    """
    text = text if exact else plain(text)
    path = GOLDEN / name
    if os.environ.get("GTPO_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
        return
    approved = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text != approved:
        lines = list(
            difflib.unified_diff(approved.splitlines(), text.splitlines(), "approved", "now", n=1, lineterm="")
        )
        more = [f"... and {len(lines) - SHOWN} more lines"] * (len(lines) > SHOWN)
        told = f"tests/golden/{name} is not what is printed now. If it should be: {RENEW}, and read its diff"
        raise AssertionError("\n".join([told, *lines[:SHOWN], *more]))


def check_refusals(name: str, names: Mapping[str, Any]) -> None:
    """Compare what `$ EXPRESSION`s raise with the approved sentences; the file holds its own cases."""
    told = []
    for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("$ "):
            with pytest.raises((ValueError, UserError)) as error:
                eval(line[2:], dict(names))
            told.append(f"{line}\n{error.value}")
    check(name, "\n".join(told))


def check_schema(name: str, documents: list[Any], version: int | None) -> None:
    """Compare the keys and types of a kind of JSON with the approved ones. They change with the version only.

    A layout that no release has written yet: remove the file first.
    """
    found: dict[str, set[str]] = {}
    for document in documents:
        _describe(document, "", found)
    keys = {key: " or ".join(sorted(found[key])) for key in sorted(found)}
    path = GOLDEN / name
    approved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if approved and approved["keys"] != keys and approved["schema_version"] == version:
        changed = sorted({*approved["keys"].items()} ^ {*keys.items()})
        raise AssertionError(
            f"tests/golden/{name}: keys or types changed ({', '.join(dict.fromkeys(key for key, _ in changed))}), but "
            f"the schema version is still {version}. Programs read it by its version: raise it, then {RENEW}"
        )
    check(name, json.dumps({"schema_version": version, "keys": keys}, indent=1) + "\n")


def _describe(value: Any, place: str, found: dict[str, set[str]]) -> None:
    if isinstance(value, Mapping):
        named = place.rpartition(".")[2] in NAMED
        for key, inner in value.items():
            _describe(inner, f"{place}.{'NAME' if named else key}".lstrip("."), found)
    elif isinstance(value, list):
        for inner in value or [None]:
            _describe(inner, f"{place}[]", found)
    else:
        kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
        found.setdefault(place, set()).add({"NoneType": "null", "str": "text"}.get(kind, kind))


def plain(text: str) -> str:
    """Return a text with placeholders for what is volatile, and numbers of at most six digits."""
    text = re.sub(r"-?\d+\.\d{5,}(e[-+]?\d+)?", lambda match: _rounded(float(match[0])), text)
    for pattern, placeholder in VOLATILE.items():
        text = re.sub(pattern, placeholder, text, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _rounded(value: float) -> str:
    return "0.0" if abs(value) < 1e-9 else f"{value:.6g}"


def plain_json(value: Any) -> str:
    """Return JSON with placeholders for what is volatile; what is short stands in one line."""
    return _laid_out(_without_volatile(value), 0) + "\n"


def _without_volatile(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: f"<{key}>" if key in VOLATILE_KEYS and inner else _without_volatile(inner)
            for key, inner in value.items()
        }
    return [_without_volatile(inner) for inner in value] if isinstance(value, list) else value


def _laid_out(value: Any, depth: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(line) < 100 or not isinstance(value, Mapping | list):
        return line
    indent = "\n" + " " * (depth + 1)
    if isinstance(value, list):
        return f"[{indent}{f',{indent}'.join(_laid_out(inner, depth + 1) for inner in value)}{indent[:-1]}]"
    rows = [f"{json.dumps(key)}: {_laid_out(inner, depth + 1)}" for key, inner in value.items()]
    return f"{{{indent}{f',{indent}'.join(rows)}{indent[:-1]}}}"
