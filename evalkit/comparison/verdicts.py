"""What is said of a difference: better, worse, equivalent within a margin, or undecided.

The family of primary comparisons is declared beforehand: one method against the baseline, in the primary metric, on
every benchmark, and with a margin also the equivalence of each. Holm's correction covers that family jointly, and every
interval in it is given at the level at which Holm's procedure tests it: a difference is marked exactly if its interval
excludes 0. If samples are missing, a verdict must also hold at both extremes of what they could have been; and if the
checkpoint of a training was chosen among several that were evaluated on these questions, also for the mean of them. A
family belongs to one method. Every other difference is exploratory: shown with its own 95 % interval, and never marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gtpo.evalkit.comparison.columns import Array, Column
from gtpo.evalkit.comparison.questions import Shared
from gtpo.evalkit.design import Design, Noise, measure_noise, parts
from gtpo.evalkit.statistics import (
    PAIRS_NEEDED,
    MethodMean,
    PairedDifference,
    by_cluster,
    differences,
    holm_factors,
    question_variance,
)

# Family-wise error rate of one method's primary comparisons.
ALPHA = 0.05
BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
VERDICTS = (BETTER, WORSE, EQUIVALENT, UNDECIDED)


@dataclass(frozen=True)
class Cell:
    """One method's value of one column, and how it differs from the baseline (None for the baseline itself)."""

    value: MethodMean
    paired: PairedDifference | None = None
    # The mean if every missing sample were wrong, and if it were right; None if none is missing.
    bounds: tuple[float, float] | None = None
    # How far missing samples of this method and of the baseline could move the difference, down and up.
    missing: tuple[float, float] = (0.0, 0.0)
    # Checkpoints of one of its trainings that were evaluated on these questions, the most of any; 1 if none was chosen
    # among them. And how far their mean lies above `value`.
    checkpoints: int = 1
    to_mean: float = 0.0
    # How far the difference would move if both sides scored as their checkpoints do in the mean.
    selected: float = 0.0
    primary: bool = False
    # Holm's, within the method's primary comparisons; None for an exploratory difference, and if too few seeds are
    # known to judge.
    p_corrected: float | None = None
    # The same, of equivalence within the margin; None without a margin.
    p_equivalent: float | None = None

    @property
    def unknown(self) -> tuple[float, float]:
        """How far missing samples could move the mean, down and up."""
        low, high = self.bounds or (self.value.mean, self.value.mean)
        return low - self.value.mean, high - self.value.mean

    @property
    def moved(self) -> tuple[float, float]:
        """How far the difference could move, down and up: a verdict holds at both ends."""
        return self.missing[0] + min(self.selected, 0.0), self.missing[1] + max(self.selected, 0.0)

    @property
    def direction(self) -> int:
        """1: shown to be better than the baseline, -1: worse, 0: not shown, or exploratory."""
        return int(self.paired.shown(self.moved)) if self.primary and self.paired is not None else 0

    @property
    def verdict(self) -> str | None:
        """One of VERDICTS; None for the baseline and for an exploratory difference."""
        if not self.primary or self.paired is None:
            return None
        if self.direction:
            return BETTER if self.direction > 0 else WORSE
        return EQUIVALENT if self.p_equivalent is not None and self.p_equivalent <= ALPHA else UNDECIDED


def pairing(shared: Shared, a: str, b: str) -> tuple[list[int], list[int]] | None:
    """The rows of two methods' scores that trained the same seeds; None if seeds do not pair.

    They do if at least PAIRS_NEEDED seeds are common, each once, and these are at least half of either method's.
    """
    of_a, of_b = (shared.by_name[name].seeds(shared.runs[name]) for name in (a, b))
    if any(None in of or len(set(of)) < len(of) for of in (of_a, of_b)):
        return None
    # Runs of one seed saw the same problems in the same order: a difference within the pair varies less.
    common = [seed for seed in of_a if seed in of_b]
    if len(common) < PAIRS_NEEDED or 2 * len(common) < max(len(of_a), len(of_b)):
        return None
    return [of_a.index(seed) for seed in common], [of_b.index(seed) for seed in common]


def pairing_note(shared: Shared, a: str, b: str) -> str | None:
    """Say that a comparison leaves out runs because the other method has not trained their seeds."""
    pair = pairing(shared, a, b)
    if pair is None or len(pair[0]) == max(len(shared.draws(name)) for name in (a, b)):
        return None
    return f"{a} against {b}: only the {len(pair[0])} seeds that both trained are compared"


def differ(shared: Shared, a: str, b: str, column: Column) -> PairedDifference:
    """Return the difference of two methods in a column, as its own 95 % comparison."""
    trained, pair = _trained(shared, a, b)
    known = not (shared.by_name[a].doubt or shared.by_name[b].doubt)
    of_a, of_b = _rows(shared.scores, a, b, column, pair)
    clusters = shared.clusters_at(column.k)
    return differences(
        of_a[None], of_b[None], paired=pair is not None, trained=trained, known=known, clusters=clusters
    ).at(0)


def noise_of(shared: Shared, a: str, b: str, column: Column) -> tuple[Noise, Design] | None:
    """Return where the noise of a difference comes from, and the design that it was measured by.

    Unlike numbers of seeds count as the smaller. None if too few questions differ to say it: three quarters of V_Q
    are then the test's prior.
    """
    trained, pair = _trained(shared, a, b)
    clusters = shared.clusters_at(column.k)
    scores, sampling = (_rows(values, a, b, column, pair) for values in (shared.scores, shared.sampling))
    questions = scores[0].shape[1] if clusters is None else np.unique(clusters).size
    if questions < 2:
        return None
    noise = measure_noise(
        *scores, sampling=None if 0 in (sampling[0].size, sampling[1].size) else sampling, samples=shared.samples,
        trained=all(trained) and not (shared.by_name[a].doubt or shared.by_name[b].doubt), paired=pair is not None,
        clusters=clusters,
    )  # fmt: skip
    design = Design(int(questions), shared.samples, min(map(len, scores)) if noise.training else 0)
    d, weight = by_cluster(scores[0].mean(axis=0) - scores[1].mean(axis=0), clusters)
    of = parts(noise, design)
    enough = 4 * (of.questions + of.samples) >= question_variance(d[None], weight)[0]
    return (noise, design) if enough else None


def _trained(shared: Shared, a: str, b: str) -> tuple[tuple[bool, bool], tuple[list[int], list[int]] | None]:
    """Whether training made each side, as far as it matters; and the rows that are paired, if any."""
    first, second = shared.by_name[a], shared.by_name[b]
    # Weights from which all runs of the other side began are as they are, whatever their own training seed.
    trained = first.trained and not first.is_base_of(second), second.trained and not second.is_base_of(first)
    return trained, pairing(shared, a, b) if all(trained) else None


def _rows(
    values: Callable[[str, Column], Array], a: str, b: str, column: Column, pair: tuple[list[int], list[int]] | None
) -> tuple[Array, Array]:
    of_a, of_b = values(a, column), values(b, column)
    return (of_a, of_b) if pair is None or 0 in (of_a.size, of_b.size) else (of_a[pair[0]], of_b[pair[1]])


def correct_family(family: list[Cell], margin: float | None, looks: int = 1) -> list[Cell]:
    """One method's primary comparisons, corrected jointly. margin: of equivalence, as a fraction; None: not asked.

    looks: planned in all as seeds are added; each has its share of ALPHA.
    """
    judged = {i: cell.paired for i, cell in enumerate(family) if cell.paired is not None and cell.paired.judged}
    out = [replace(cell, primary=True) for cell in family]
    p = [float(d.p_value) for d in judged.values()]
    p += [float(d.equivalence_p(margin, family[i].moved)) for i, d in judged.items()] if margin else []
    if not p:
        return out
    # Of one comparison only one hypothesis can be true, so its two p-values share an owner (Shaffer 1986).
    factors = holm_factors(np.array(p), [*judged] * (len(p) // len(judged))) * looks
    adjusted = np.minimum(np.array(p) * factors, 1.0).tolist()
    for place, (i, d) in enumerate(judged.items()):
        equal = adjusted[len(judged) + place] if margin else None
        at_level = d._replace(level=float(1 - ALPHA / factors[place]))
        out[i] = replace(out[i], paired=at_level, p_corrected=adjusted[place], p_equivalent=equal)
    return out
