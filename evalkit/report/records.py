"""A comparison for programs: CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np

from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.comparison.training_curves import summary
from gtpo.evalkit.comparison.verdicts import ALPHA
from gtpo.evalkit.report.summary import legend, sentences
from gtpo.evalkit.report.text import covers, visible

JSON_SCHEMA_VERSION = 6

# Name in a record -> field of PairedDifference.
_DIFFERENCE = {
    "speaks_of": "scope", "judged": "judged", "difference": "difference", "se": "se", "freedom": "freedom",
    "difference_low": "low", "difference_high": "high", "interval_level": "level", "seeds_paired": "seeds_paired",
}  # fmt: skip


def records(comparison: MethodComparison) -> list[dict[str, Any]]:
    """One flat record per method, benchmark, group, metric and k; fractions, None if there is no value."""
    by_name = {method.name: method for method in comparison.methods}
    out = []
    for table in comparison.tables:
        for (name, column), cell in table.cells.items():
            d, method = cell.paired, by_name[name]
            record = {
                "benchmark": table.benchmark,
                "group": table.group or None,
                "method": name,
                "preset": method.preset or None,
                "runs": len(table.parts[name]),
                "metric": column.metric.name,
                "k": column.k or None,
                "scoring": comparison.scoring,
                "questions": table.questions,
                "samples": table.samples,
                "mean": cell.value.mean,
                "low": cell.value.low,
                "high": cell.value.high,
                "covers_training": cell.value.covers_training,
                "worst": cell.bounds[0] if cell.bounds else None,
                "best": cell.bounds[1] if cell.bounds else None,
                "seed_sd": cell.value.seed_sd,
                "baseline": table.baseline if d else None,
                "family": ("primary" if cell.primary else "exploratory") if d else None,
                "verdict": cell.verdict,
                **{name: _plain(getattr(d, of)) if d else None for name, of in _DIFFERENCE.items()},
                "covers": covers(d) if d else None,
                "p": float(d.p_value) if d else None,
                "p_holm": cell.p_corrected,
                "margin": comparison.margin if cell.primary else None,
                "p_equivalent": cell.p_equivalent,
                "significant": bool(cell.direction) if d and cell.primary else None,
                "only_method": int(d.only_a) if d else None,
                "only_baseline": int(d.only_b) if d else None,
            }
            # JSON has no NaN, and a spreadsheet would read it as text.
            lost = [key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value)]
            out.append(record | dict.fromkeys(lost))
    return out


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula is written as text."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def as_csv(comparison: MethodComparison, *, details: bool = False) -> str:
    """`records`, one per line, with a header; empty cells if there is no value."""
    rows = records(comparison)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["benchmark"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def as_document(comparison: MethodComparison) -> dict[str, Any]:
    """Everything, for programs: methods, notes, legend, `records`, verdicts and the end of training."""
    return {
        "schema_version": JSON_SCHEMA_VERSION,
        "scoring": comparison.scoring,
        "baseline": comparison.baseline,
        "baseline_reason": comparison.baseline_reason,
        "alpha": ALPHA,
        "margin": comparison.margin,
        "metrics": [column.label for column in comparison.metrics],
        "primary_metric": comparison.metrics[0].label,
        "notes": comparison.notes,
        "settings": comparison.shared_settings,
        "methods": [
            {
                "name": method.name,
                "preset": method.preset or None,
                "runs": [
                    {
                        "name": member.name,
                        "seed": member.seed,
                        "folder": str(member.run.folder) if member.run else None,
                        "train_run": member.train.name if member.train else None,
                        "collapsed": member.train.collapsed if member.train else None,
                    }
                    for member in method.members
                ],
            }
            for method in comparison.methods
        ],
        "tables": [
            {
                "benchmark": table.benchmark,
                "group": table.group or None,
                "questions": table.questions,
                "samples": table.samples,
                "notes": table.notes,
                "seed_means": {
                    name: {column.label: list(table.cells[name, column].value.seed_means) for column in table.columns}
                    for name in table.methods
                },
            }
            for table in comparison.tables
        ],
        "records": records(comparison),
        "verdicts": [one._asdict() for one in sentences(comparison)],
        "averages": {
            method.name: {column.label: comparison.average(method.name, column) for column in comparison.metrics}
            for method in comparison.methods
        },
        "training": {train.name: summary(train) for method in comparison.trained for train in method.trains},
        "legend": legend(comparison),
    }


def as_json(comparison: MethodComparison, *, details: bool = False) -> str:
    """`as_document` as text; no NaN, and marks of writing direction as escapes."""
    text = json.dumps(as_document(comparison), indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c == "\n" or visible(c) == c else json.dumps(c)[1:-1] for c in text) + "\n"
