"""The format the system instruction asks for: `<reasoning>…</reasoning>`, then `<answer>…</answer>`, last."""

from __future__ import annotations

import re

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_TAG = re.compile("|".join(TAGS))

_FILLED = re.compile(r"\s*<reasoning>\s*\S.*</reasoning>\s*<answer>\s*\S.*</answer>\s*", re.DOTALL)

FULL, PARTIAL, NONE = 10.0, 1.0, 0.0
"""The paper's format rewards: all tags, a part of them, none."""


def format_ok(text: str) -> bool:
    """Return whether both tag pairs stand in order, closed, once each, with nothing but space after the answer."""
    return tuple(_TAG.findall(text)) == TAGS and text.rstrip().endswith("</answer>")


def format_score(text: str) -> float:
    """Return 10 for the full format, 1 for a part of the tags, 0 for none (GTPO paper, reward section)."""
    if format_ok(text):
        return FULL
    return PARTIAL if _TAG.search(text) else NONE


def filled_score(text: str) -> float:
    """Return `format_score`, with 10 only where both blocks hold something and nothing stands outside them."""
    score = format_score(text)
    return PARTIAL if score == FULL and _FILLED.fullmatch(text) is None else score
