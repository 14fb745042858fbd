"""One question with its gold answer: the record that training sets and benchmarks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer. `answer` is bare: no `####`, no `\\boxed`."""

    id: str
    problem: str
    answer: str
    solution: str = ""
    """Worked solution, the source of SFT targets; may be empty."""
    subject: str = ""
    level: int | None = None
    answers: Literal["mathematics", "text"] = "mathematics"
    """`text`: the answer is compared as text, without case and outer space."""
