"""Answers to the parts of a problem: `(a) 5, (b) x + 1`. Each is compared with its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Listing, Part, Same

_LABEL = re.compile(r"(?:^|(?<=[\s,;.]))(?:\\text\s*\{\s*)?(?:Part\s+)?\(?([a-f]|i{1,3}v?|[1-6])\)[:.]?(?:\s*\})?\s*")
_ORDERS = [*"abcdef"], [*"123456"], ["i", "ii", "iii", "iv"]


@dataclass(frozen=True)
class NamedParts(Kind):
    """The answer to each part, in their order."""

    marks = re.compile(r"^(?:\\text\s*\{\s*)?(?:Part\s+)?\(?(?:[a-f]|i{1,3}v?|[1-6])\)")
    answers: tuple[Answer, ...]

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the parts of a text that begins with a label and has each of the first ones, joined by no `or`."""
        labels = list(_LABEL.finditer(text))
        ends = [*(after.start() for _, after in pairwise(labels)), len(text)]
        texts = {m[1]: text[m.end() : end].strip(" ,;.") for m, end in zip(labels, ends, strict=False)}
        order = next((names[: len(labels)] for names in _ORDERS if names[: len(labels)] == sorted(texts)), [])
        if len(order) < 2 or labels[0].start() or any(re.search(r"\bor\s*\}?$", each) for each in texts.values()):
            return None
        return cls(tuple(part(re.sub(r"[\s,;]*(?:\\text\s*\{\s*)?and\s*\}?$", "", texts[name])) for name in order))

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
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
