"""Two looks at one test, with O'Brien and Fleming's bounds.

At look k, with the share t_k of the seeds, the statistic is z_k; under the null hypothesis z_k sqrt(t_k) is a Brownian
motion at t_k. The bounds are |z_k| >= c / sqrt(t_k), with c such that the chance to cross any of them is the level. The
p-value after a look is the smallest level whose bounds have been crossed so far: it may be corrected like any other
(Jennison and Turnbull, Group Sequential Methods, 1999, chapter 9). One-sided tests, of equivalence, use the same bounds
at twice their level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

Array = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def crossing(c: float | Array, share: float) -> Array:
    """The chance that a Brownian motion's |value| reaches c at `share` or at 1, where it has ended by then."""
    c = np.minimum(np.asarray(c, dtype=np.float64), 9.0)
    first = c / math.sqrt(share)  # on the scale of z_1, a standard normal
    x = first[..., None] * _NODES
    rest = math.sqrt(1 - share)
    moved = math.sqrt(share) * x
    stays = stats.norm.cdf((c[..., None] - moved) / rest) - stats.norm.cdf((-c[..., None] - moved) / rest)
    inside = first * (stats.norm.pdf(x) * stays * _WEIGHTS).sum(-1)
    return np.clip(1 - inside, 0.0, 1.0)


def bound(level: float, share: float) -> float:
    """The constant c of a two-sided level."""
    return float(brentq(lambda c: float(crossing(c, share)) - level, 0.5, 8.0, xtol=1e-10))


def p_value(p_of_looks: Sequence[Array], shares: Sequence[float]) -> Array:
    """The p-value after one or two looks, of the looks' own two-sided p-values. shares: [s1] or [s1, 1]."""
    reached = [stats.norm.isf(np.maximum(p, 1e-15) / 2) * math.sqrt(t) for p, t in zip(p_of_looks, shares, strict=True)]
    return crossing(np.max(reached, axis=0), shares[0])


def level_at(level: float, share: float, first: float) -> float:
    """The two-sided level that a look with `share` of the seeds may spend, where the first look is at `first`."""
    return float(2 * stats.norm.sf(bound(level, first) / math.sqrt(share)))
