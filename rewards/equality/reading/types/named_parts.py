"""Answers to the parts of a problem: `(a) 5, (b) x + 1`. Each is compared with its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Listing

_LABEL = re.compile(r"(?:^|(?<=[\s,;.]))(?:\\text\s*\{\s*)?(?:Part\s+)?\(?([a-f]|i{1,3}v?|[1-6])\)[:.]?(?:\s*\})?\s*")


@dataclass(frozen=True)
class NamedParts(Kind):
    """The answer to each part, in their order."""

    answers: tuple[Answer, ...]

    @classmethod
    def read(cls, text: str, part: Callable[[str], Answer]) -> Answer | None:
        """Return the parts of a text that begins with the first label and has the next ones in order."""
        labels = list(_LABEL.finditer(text)) if ")" in text[:12] else []
        if len(labels) < 2 or labels[0].start() or [m[1] for m in labels] not in _in_order(len(labels)):
            return None
        ends = [*(after.start() for _, after in pairwise(labels)), len(text)]
        texts = [text[m.end() : end].strip(" ,;.") for m, end in zip(labels, ends, strict=True)]
        return cls(tuple(part(re.sub(r"[\s,;]*(?:\\text\s*\{\s*)?and\s*\}?$", "", each)) for each in texts))

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Callable[[Answer, Answer], bool], problem: Any) -> bool:
        """Return whether each part equals the gold's; a list in the same order has its parts without labels."""
        first, second = (
            each.answers if isinstance(each, NamedParts) else each.items
            if isinstance(each, Listing) and each.kind == "list" and each.joint != "or" else ()
            for each in (p, g)
        )  # fmt: skip
        return len(first) == len(second) > 1 and all(map(equal, first, second))

    def parts(self) -> Sequence[Answer]:
        """Return the answers."""
        return self.answers


def _in_order(count: int) -> list[list[str]]:
    return [list("abcdef"[:count]), list("123456"[:count]), ["i", "ii", "iii", "iv"][:count]]
