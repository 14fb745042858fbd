"""The scores that a comparison works on: per question and training seed, in one column of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.comparison.questions import Shared
from gtpo.evalkit.statistics import PAIRS_NEEDED, PairedDifference, differences

PASS, MAJ, FORMAT = "pass@k", "maj@k", "format"


class Column(NamedTuple):
    """One measured quantity: pass@k or maj@k at a k, or the format rate (k = 0)."""

    metric: str
    k: int

    @property
    def label(self) -> str:
        """`pass@8`, `maj@64`, `format`."""
        return self.metric.replace("@k", f"@{self.k}")


def scores(shared: Shared, method: str, column: Column) -> NDArray[np.float64]:
    """[S, Q] per-question scores of one column, one row per training seed, of the questions that have k samples."""
    rows = shared.having(max(column.k, 1))
    return np.stack([
        (part.format_ok / part.n if column.metric == FORMAT
        else np.clip((part.pass_at_k if column.metric == PASS else part.maj_at_k)[:, column.k - 1], 0.0, 1.0))[rows]
        for part in shared.parts[method]
    ])  # fmt: skip


def clusters(shared: Shared, column: Column) -> NDArray[np.int64] | None:
    """[Q] The cluster of each question in `scores`; None if every question is its own."""
    return None if shared.clusters is None else shared.clusters[shared.having(max(column.k, 1))]


def pairing(a: Method, b: Method, benchmark: str) -> tuple[list[int], list[int]] | None:
    """The places of the runs that trained the same seeds, in both; None if seeds do not pair.

    They do if at least PAIRS_NEEDED seeds are common, each once, and these are at least half of either method's.
    """
    of_a, of_b = ([m.seed for m in method.members if m.run and benchmark in m.run.benchmarks] for method in (a, b))
    if any(None in of or len(set(of)) < len(of) for of in (of_a, of_b)):
        return None
    common = [seed for seed in of_a if seed in of_b]
    if len(common) < PAIRS_NEEDED or 2 * len(common) < max(len(of_a), len(of_b)):
        return None
    return [of_a.index(seed) for seed in common], [of_b.index(seed) for seed in common]


def pairing_note(a: Method, b: Method, benchmark: str) -> str | None:
    """Which runs a comparison leaves out because the other method has not trained their seeds."""
    pair = pairing(a, b, benchmark)
    if pair is None:
        return None
    left = []
    for method, kept in zip((a, b), pair, strict=True):
        seeds = [m.seed for m in method.members if m.run and benchmark in m.run.benchmarks]
        out = [str(seed) for i, seed in enumerate(seeds) if i not in kept]
        left += [f"{method.name} seed{'s' * (len(out) > 1)} {', '.join(out)}"] if out else []
    if not left:
        return None
    return (
        f"{a.name} against {b.name}: the {len(pair[0])} seeds that both trained are compared, without "
        f"{' and '.join(left)}"
    )


def differ(shared: Shared, a: str, b: str, columns: Sequence[Column]) -> list[PairedDifference]:
    """Return the differences of two methods in several columns, each as its own 95 % comparison."""
    first, second = shared.method(a), shared.method(b)
    pair = pairing(first, second, shared.benchmark) if first.trained and second.trained else None
    found = []
    for column in columns:
        left, right = scores(shared, a, column), scores(shared, b, column)
        if pair is not None:
            left, right = left[pair[0]], right[pair[1]]
        found.append(
            differences(
                left[None], right[None], paired=pair is not None, trained=(first.trained, second.trained),
                clusters=clusters(shared, column),
            ).at(0)
        )  # fmt: skip
    return found
