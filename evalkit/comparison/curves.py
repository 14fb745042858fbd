"""pass@k and maj@k over all k with their intervals: what the figures and the page draw."""

from __future__ import annotations

import numpy as np

from gtpo.evalkit.comparison.compare import Table
from gtpo.evalkit.comparison.scores import MAJ, PASS, Column, scores
from gtpo.evalkit.statistics import method_mean

Points = list[tuple[float, float, float]]


def curves_over_k(table: Table) -> dict[str, dict[str, Points]]:
    """method -> metric -> (mean, low, high) for k = 1..n of that method; the band is that of the tables."""
    out: dict[str, dict[str, Points]] = {}
    for name in table.shared.parts:
        largest = table.shared.samples
        out[name] = {
            metric: [_point(table, name, Column(metric, int(k))) for k in _ks(largest)] for metric in (PASS, MAJ)
        }
    return out


def _point(table: Table, name: str, column: Column) -> tuple[float, float, float]:
    cell = table.cells.get((name, column))
    found = cell.value if cell else method_mean(scores(table.shared, name, column))
    return found.mean, found.low, found.high


def curve_ks(table: Table) -> dict[str, list[int]]:
    """method -> the k of its points."""
    return {name: _ks(table.shared.samples).tolist() for name in table.shared.parts}


def _ks(largest: int) -> np.ndarray:
    """All k up to 64; beyond, 64 of them, evenly spaced on a logarithmic axis."""
    if largest <= 64:
        return np.arange(1, largest + 1)
    return np.unique(np.round(np.geomspace(1, largest, 64)).astype(int))
