"""How long an engine takes, from what has been seen of it.

    seconds = a steps + b tokens + c samples begun

A step gives every running sample a token. Where a step costs the same however many run (a GPU that waits for its
memory), a is all there is; where the arithmetic bounds it (a CPU), b; c is what reading a prompt costs. So the last
samples, which run alone, are not taken for as slow, or as fast, as the many before them.
"""

from __future__ import annotations

import numpy as np

PRIOR = (0.5, 0.4, 0.1)
"""Shares of the time that a, b and c have where what was seen does not tell them apart."""
SERVER = (0.9, 0.05, 0.05)
"""The same of a server, which is not ours alone."""
TRUST = 0.001
"""Weight of the prior, relative to what has been seen."""


class Pace:
    """Non-negative least squares over what is observed."""

    def __init__(self, prior: tuple[float, float, float] = PRIOR) -> None:
        self._prior = np.array(prior)
        self._gram, self._right, self._sums = np.zeros((3, 3)), np.zeros(3), np.zeros(3)
        self._seconds = self._square = 0.0

    def observe(self, seconds: float, steps: float, tokens: float, begun: float) -> None:
        """Take note of what an engine did in so many seconds."""
        row = np.array([steps, tokens, begun])
        self._gram += np.outer(row, row)
        self._right += seconds * row
        self._sums += row
        self._seconds += seconds
        self._square += seconds**2

    def seconds(self, steps: float, tokens: float, begun: float) -> float:
        """Forecast how long this takes; 0 before anything was seen."""
        from scipy.optimize import nnls

        unit = np.divide(self._seconds, self._sums, out=np.zeros(3), where=self._sums > 0)  # a, b, c, if it took all
        if not unit.any():
            return 0.0
        trust = TRUST * self._square
        left = np.linalg.cholesky(unit[:, None] * self._gram * unit + trust * np.eye(3))
        shares, _ = nnls(left.T, np.linalg.solve(left, unit * self._right + trust * self._prior))
        return float(np.dot(shares * unit, [steps, tokens, begun]))
