"""The fenced code blocks of a Markdown page, and why some of them are not run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n+)?^(?P<mark>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=mark)\s*$",
    re.MULTILINE | re.DOTALL,
)
NOT_CODE = {"text", "yaml", "json", ""}
"""Output, configs and data: they are read, not run. A page's configs are written to files by its bash blocks."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run; None for one that is."""


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.name, text.count("\n", 0, found.start("mark")) + 1, found["language"], found["text"], found["reason"]
        )
        for found in FENCE.finditer(text)
    ]


def expected_output(code: str) -> list[str]:
    """Return what the comments behind a block's print statements promise, one line each."""
    return re.findall(r"^\s*print\(.*\)  # (.*)$", code, re.MULTILINE)
