"""pass@k and maj@k over all k with their intervals: what the figures and the page draw."""

from __future__ import annotations

import numpy as np

from evalkit.comparison.compare import MAJ, PASS, Comparison, Table
from evalkit.results.questions import Questions, load_questions
from evalkit.statistics import mean_interval

Points = list[tuple[float, float, float]]


def shared_questions(comparison: Comparison, table: Table) -> dict[str, Questions]:
    """Per run of a table, its questions that all runs share, in one order."""
    parts = {
        run.name: load_questions(run, table.benchmark, comparison.scoring)
        for run in comparison.runs
        if run.name in table.runs
    }
    first, *rest = parts.values()
    common = first.ids
    for part in rest:
        common = np.intersect1d(common, part.ids)
    if all(part.ids.size == common.size for part in parts.values()):
        return parts
    return {name: part.take(np.isin(part.ids, common)) for name, part in parts.items()}


def curves_over_k(comparison: Comparison, table: Table) -> dict[str, dict[str, Points]]:
    """run -> metric -> (mean, low, high) for k = 1..n of that run."""
    out: dict[str, dict[str, Points]] = {}
    for name, part in shared_questions(comparison, table).items():
        out[name] = {}
        for metric, scores in ((PASS, part.pass_at_k), (MAJ, part.maj_at_k)):
            intervals = [mean_interval(np.clip(scores[:, k], 0, 1)) for k in range(scores.shape[1])]
            out[name][metric] = [(i.mean, i.low, i.high) for i in intervals]
    return out
