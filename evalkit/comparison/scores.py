"""The scores that a comparison works on: per question and training seed, in one column of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.comparison.questions import Shared
from gtpo.evalkit.differences import PairedDifference, differences
from gtpo.evalkit.training_variance import SEEDS_NEEDED, SeedVariance, borrowed, seed_variance

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


def _alike(shared: Shared, columns: Sequence[Column]) -> Iterator[list[int]]:
    """The columns, those of the same questions together."""
    found: dict[int, list[int]] = {}
    for i, column in enumerate(columns):
        found.setdefault(int(shared.having(max(column.k, 1)).sum()), []).append(i)
    yield from found.values()


def pairing(a: Method, b: Method, benchmark: str) -> tuple[list[int], list[int]] | None:
    """The places of the runs that trained the same seeds, in both; None where seeds do not pair.

    They do where at least SEEDS_NEEDED seeds are common, each once, and these are at least half of either method's.
    """
    of_a, of_b = ([m.seed for m in method.members if m.run and benchmark in m.run.benchmarks] for method in (a, b))
    if any(None in of or len(set(of)) < len(of) for of in (of_a, of_b)):
        return None
    common = [seed for seed in of_a if seed in of_b]
    if len(common) < SEEDS_NEEDED or 2 * len(common) < max(len(of_a), len(of_b)):
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


def training_noise(shared: Shared, columns: Sequence[Column]) -> list[SeedVariance | None]:
    """The variance of training in each column, over all methods of the table that training made; None: no two seeds."""
    names = [m.name for m in shared.methods if m.trained and len(shared.parts[m.name]) > 1]
    out: list[SeedVariance | None] = []
    for column in columns:
        values = [scores(shared, name, column)[None] for name in names]
        out.append(borrowed([seed_variance(x) for x in values]) if values and values[0].shape[2] > 1 else None)
    return out


def _joined(parts: list[SeedVariance | None]) -> SeedVariance | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    names = ("between", "residual", "freedom")
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in known]) for name in names}
    return known[0]._replace(**columns)


def differ(
    shared: Shared, a: str, b: str, columns: Sequence[Column], pools: Sequence[SeedVariance | None]
) -> list[PairedDifference]:
    """The differences of two methods in several columns, as their own 95 % comparisons; pools: of `training_noise`."""
    first, second = shared.method(a), shared.method(b)
    pair = pairing(first, second, shared.benchmark) if first.trained and second.trained else None
    found: dict[int, PairedDifference] = {}
    for places in _alike(shared, columns):
        left, right = (np.stack([scores(shared, name, columns[i]) for i in places]) for name in (a, b))
        if pair is not None:
            left, right = left[:, pair[0]], right[:, pair[1]]
        results = differences(
            left, right, seeds_paired=pair is not None, trained=(first.trained, second.trained),
            pool=_joined([pools[i] for i in places]),
        )  # fmt: skip
        found |= dict(zip(places, results, strict=True))
    return [found[i] for i in range(len(columns))]
