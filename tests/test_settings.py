"""The one reader of words for commands: each kind of option, by every spelling (refusals: tests/golden)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from gtpo.common.settings import CommandSettings, JsonObject, option


class Example(CommandSettings):
    COMMAND = "gtpo example"
    ARGUMENT = "model"

    model: str | None = option(None, "What is read.")
    count: int = option(1, "How many.", ge=1, le=9)
    share: float | None = option(None, "How much.", gt=0.0)
    kind: Literal["plain", "other"] = option("plain", "Which.", "--kind", "-t")
    name: Sequence[str] | None = option(None, "Of whom (repeatable).")
    body: JsonObject | None = option(None, "Further fields.")
    out: Path | None = option(None, "Where.")
    quiet: bool = option(False, "Say less.")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("m", {"model": "m"}),
        ("--count 3 m --quiet", {"model": "m", "count": 3, "quiet": True}),
        ("--quiet m", {"model": "m", "quiet": True}),
        ("--quiet false --count=2", {"count": 2, "quiet": False}),
        ("-t other --name a --name b m", {"model": "m", "kind": "other", "name": ["a", "b"]}),
        ("--count 2 --count 4", {"count": 4}),
        ("--share .5 m", {"model": "m", "share": 0.5}),
        ('--body {"a":1}', {"body": {"a": 1}}),
        ("--out=--strange", {"out": Path("--strange")}),
        ("--out --strange", {"out": Path("--strange")}),
    ],
)
def test_words(words: str, values: dict[str, Any]) -> None:
    settings = Example.from_words(words.split())
    assert {name: getattr(settings, name) for name in settings.given} == values


def test_what_was_not_set_is_filled() -> None:
    settings = Example.from_words(["--count", "3"]).filled({"count": 5, "kind": "other", "out": None})
    assert (settings.count, settings.kind, settings.given) == (3, "other", {"count", "kind"})
