"""What is said of a difference: better, worse, equivalent within a margin, or undecided.

The family of primary comparisons is declared beforehand: one method against the baseline, in the primary metric, on
every benchmark, and with a margin also the equivalence of each. Holm's correction covers that family jointly, and every
interval in it is given at the level at which Holm's procedure tests it: a difference is marked exactly if its interval
excludes 0. If samples are missing, a verdict must also hold at both extremes of what they could have been. A family
belongs to one method. Every other difference is exploratory: shown with its own 95 % interval, and never marked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gtpo.evalkit.statistics import MethodMean, PairedDifference, holm_factors

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
    """The mean if every missing sample were wrong, and if it were right; None if none is missing."""
    moved: tuple[float, float] = (0.0, 0.0)
    """How far missing samples of this method and of the baseline could move the difference, down and up."""
    primary: bool = False
    p_corrected: float | None = None
    """Holm's, within the method's primary comparisons; None for an exploratory difference, and if too few seeds are
    known to judge."""
    p_equivalent: float | None = None
    """The same, of equivalence within the margin; None without a margin."""

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


def corrected(family: list[Cell], margin: float | None) -> list[Cell]:
    """One method's primary comparisons, corrected jointly. margin: of equivalence, as a fraction; None: not asked."""
    judged = [i for i, cell in enumerate(family) if cell.paired is not None and cell.paired.judged]
    out = [replace(cell, primary=True) for cell in family]
    p = [float(found.p_value) for i in judged if (found := family[i].paired)]
    alike = [
        float(found.equivalence_p(margin, family[i].moved)) for i in judged if margin and (found := family[i].paired)
    ]
    values = np.array(p + alike)
    if not values.size:
        return out
    factors = holm_factors(values, judged * 2 if alike else judged)
    adjusted = np.minimum(values * factors, 1.0)
    for place, i in enumerate(judged):
        cell, equal = out[i], float(adjusted[len(judged) + place]) if alike else None
        assert cell.paired is not None
        at_level = cell.paired._replace(level=float(1 - ALPHA / factors[place]))
        out[i] = replace(cell, paired=at_level, p_corrected=float(adjusted[place]), p_equivalent=equal)
    return out
