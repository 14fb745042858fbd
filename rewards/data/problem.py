"""One question with its gold answer: the record that training sets and benchmarks share, and how it is generated."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gtpo.common.errors import UserError

Split = Literal["train", "test", "hard"]
_MOST_MISSES = 5000  # draws in a row that give nothing new: the split is exhausted


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


def generate(
    task: str,
    counts: Mapping[str, int],
    split: Split,
    count: int | None,
    seed: int,
    draw: Callable[[random.Random], tuple[str, Callable[[str], Problem]]],
) -> list[Problem]:
    """Generate the distinct problems of a split; the same arguments give the same list on every machine.

    `counts`: problems of each split where no `count` is asked for. `draw` draws what tells a problem from others, as a
    key, and gives the problem for an id. A hash of the key, which no seed changes, holds one in eight out for `test`.
    Raises UserError for an unknown split, or a count beyond the distinct problems there are.
    """
    if split not in counts:
        raise UserError(f'{task} has the splits {", ".join(counts)}; found "{split}"')
    count = counts[split] if count is None else count
    rng = random.Random(f"gtpo-{task.replace('_', '-')}-{split}-{seed}")
    problems: list[Problem] = []
    seen: set[str] = set()
    misses = 0
    while len(problems) < count:
        if misses > _MOST_MISSES:
            raise UserError(f"{task}/{split} has only about {len(problems)} distinct problems; {count} were asked for")
        key, problem = draw(rng)
        held_out = zlib.crc32(key.encode()) % 8 == 0
        if key in seen or (split != "hard" and held_out != (split == "test")):
            misses += 1
            continue
        misses = 0
        seen.add(key)
        problems.append(problem(f"{task}/{split}/{len(problems)}"))
    return problems
