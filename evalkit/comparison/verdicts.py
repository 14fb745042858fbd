"""What is said of a difference: better, worse, equivalent within a margin, or undecided.

The family of primary comparisons is declared beforehand: one method against the baseline, in the primary metric, on
every benchmark, and with a margin also the equivalence of each. Holm's correction covers that family jointly, and every
interval in it is given at the level at which Holm's procedure tests it. A difference is marked where its interval
excludes 0, which implies that Holm's procedure rejects it. Not the other way round: with few questions the score
interval may contain 0 where the exact test rejects. A family belongs to one method. Every other difference is
exploratory: shown with its own 95 % interval and p-value, and never marked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gtpo.evalkit.comparison.plan import Plan
from gtpo.evalkit.differences import PairedDifference, holm_factors
from gtpo.evalkit.statistics import MethodMean
from gtpo.evalkit.training_variance import FREEDOM_NEEDED

ALPHA = 0.05
"""Family-wise error rate of one method's primary comparisons."""
BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
VERDICTS = (BETTER, WORSE, EQUIVALENT, UNDECIDED)


@dataclass(frozen=True)
class Cell:
    """One method's value of one column, and how it differs from the baseline (None for the baseline itself)."""

    value: MethodMean
    paired: PairedDifference | None = None
    bounds: tuple[float, float] | None = None
    """The mean if every missing sample were wrong, and if it were right; None where none is missing."""
    primary: bool = False
    p_corrected: float | None = None
    """Holm's, within the method's primary comparisons; None for an exploratory difference, and where too few seeds are
    known to judge."""
    p_equivalent: float | None = None
    """The same, of equivalence within the margin; None without a margin."""
    plan: Plan | None = None
    """What the design lacks where the verdict is undecided."""

    @property
    def direction(self) -> int:
        """1: shown to be better than the baseline, -1: worse, 0: not shown, or exploratory."""
        return self.paired.shown if self.primary and self.paired is not None else 0

    @property
    def verdict(self) -> str | None:
        """One of VERDICTS; None for the baseline and for an exploratory difference."""
        if not self.primary or self.paired is None:
            return None
        if self.direction:
            return BETTER if self.direction > 0 else WORSE
        return EQUIVALENT if self.p_equivalent is not None and self.p_equivalent <= ALPHA else UNDECIDED


def corrected(family: list[Cell], margin: float | None) -> list[Cell]:
    """One method's primary comparisons, corrected jointly. margin: of equivalence, as a fraction; None: not asked."""
    judged = [i for i, cell in enumerate(family) if cell.paired is not None and cell.paired.judged]
    out = [replace(cell, primary=True) for cell in family]
    p = [found.p_value for i in judged if (found := family[i].paired)]
    alike = [found.equivalence_p(margin) for i in judged if margin and (found := family[i].paired)]
    values = np.array(p + alike)
    if not values.size:
        return out
    factors = holm_factors(values, judged * 2 if alike else judged)
    adjusted = np.minimum(values * factors, 1.0)
    for place, i in enumerate(judged):
        cell, equal = out[i], float(adjusted[len(judged) + place]) if alike else None
        assert cell.paired is not None
        at_level = cell.paired.at_level(float(1 - ALPHA / factors[place]))
        out[i] = replace(cell, paired=at_level, p_corrected=float(adjusted[place]), p_equivalent=equal)
    return out


def why_undecided(paired: PairedDifference) -> str:
    """Why nothing is said about methods; empty where the design could have decided."""
    if paired.judged:
        return ""
    seeds = f"{paired.seeds[0]} against {paired.seeds[1]} training seed{'s' * (max(paired.seeds) > 1)}"
    if max(paired.seeds) == 1:
        return f"{seeds}: these weights are compared, nothing is said about the methods"
    return (
        f"{seeds}: training that fails now and then would show as a difference too often; {FREEDOM_NEEDED + 2} runs of "
        "two methods are the fewest to judge by"
    )
