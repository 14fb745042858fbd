"""The page of `gtpo compare --html`: one file that holds its data, style and code, and works without a network.

Text that a model wrote is data here, never markup: it lies in JSON blocks in which every `<` is written `\\u003c`,
the page's code puts it on screen through textContent alone, and a Content-Security-Policy with the hashes of the
page's own script and style stops anything else from running or loading.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.comparison.compare import Comparison, Table, compare
from evalkit.comparison.curves import curves_over_k, shared_questions
from evalkit.comparison.training_curves import LN2, METRICS, gate, initial_entropy, read_curves
from evalkit.report.excerpts import Excerpt, choose_groups, choose_samples
from evalkit.report.tables import header, legend, methods
from rewards.support.files import write_text

SCRIPTS = ("base.js", "charts.js", "answer.js", "curves.js", "explorer.js", "tokens.js", "start.js")
POINTS = 400
"""Steps of a training curve that the page holds; longer ones are averaged."""
ALL_BASELINES = 6
"""Up to so many runs, the page holds the differences to every one of them."""
WEIGHTS_SHARE = 0.3
"""Share of the room for text that the token view takes where train runs logged completions."""


def _short(value: float | None, digits: int = 5) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _cells(table: Table) -> dict[str, list[list[float | None]]]:
    """run -> [mean, low, high] of each column."""
    return {
        run: [[_short(v) for v in table.cells[run, column].interval[:3]] for column in table.columns]
        for run in table.runs
    }


def _differences(table: Table) -> dict[str, list[list[Any] | None]]:
    """run -> [difference, low, high, p, corrected p, detectable, test, direction] of each column."""
    out: dict[str, list[list[Any] | None]] = {}
    for run in table.runs:
        row: list[list[Any] | None] = []
        for column in table.columns:
            cell = table.cells[run, column]
            d = cell.paired
            if d is None:
                row.append(None)
                continue
            numbers = (d.difference, d.low, d.high, d.p_value, cell.p_holm, d.detectable)
            row.append([*(_short(v, 6) for v in numbers), d.test, cell.direction])
        out[run] = row
    return out


def payload(comparison: Comparison, *, samples_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(core, blocks): what the page needs at once, and named blocks that it reads when they are asked for."""
    labels = methods(comparison)
    names = [run.name for run in comparison.runs]
    trains = comparison.trains
    versus = {comparison.baseline: comparison} if comparison.baseline else {}
    if comparison.baseline and 2 < len(names) <= ALL_BASELINES:
        for name in names:
            if name not in versus:
                ks = sorted({column.k for table in comparison.tables for column in table.columns if column.k})
                versus[name] = compare(
                    comparison.runs, [], baseline=name, scoring=comparison.scoring, allow_mismatch=True,
                    per_subject=any(table.group for table in comparison.tables), ks=_usable(ks, comparison),
                )  # fmt: skip
    blocks: dict[str, Any] = {}
    benchmarks = []
    whole = [i for i, table in enumerate(comparison.tables) if not table.group]
    logged = {train.name: choose_groups(train, 0)[1] for train in trains}
    with_weights = [train for train in trains if logged[train.name]]
    text_room = samples_bytes * (1 - WEIGHTS_SHARE * bool(with_weights))
    # Small benchmarks first: what they leave of their share goes to the large ones.
    explorers = {}
    for done, i in enumerate(sorted(whole, key=lambda i: comparison.tables[i].questions)):
        *explorers[i], spent = _explorer(comparison, comparison.tables[i], int(text_room / (len(whole) - done)))
        text_room -= spent
    for i, table in enumerate(comparison.tables):
        entry: dict[str, Any] = {
            "name": table.benchmark,
            "group": table.group,
            "title": header(table),
            "questions": table.questions,
            "samples": table.samples,
            "runs": table.runs,
            "columns": [[column.metric, column.k, column.label] for column in table.columns],
            "cells": _cells(table),
            "versus": {
                str(base): {"tests": other.tables[i].tests, "rows": _differences(other.tables[i])}
                for base, other in versus.items()
                if i < len(other.tables) and other.tables[i].baseline == base
            },
            "notes": table.notes,
        }
        if not table.group:
            entry["curves"] = {
                run: {metric: [[_short(v) for v in point] for point in points] for metric, points in found.items()}
                for run, found in curves_over_k(comparison, table).items()
            }
            entry["explorer"], blocks[f"samples-{i}"] = explorers[i]
            entry["block"] = f"samples-{i}"
        benchmarks.append(entry)
    training = []
    for i, train in enumerate(trains):
        groups, total = choose_groups(train, int(samples_bytes * WEIGHTS_SHARE / max(1, len(with_weights))))
        blocks[f"groups-{i}"] = groups
        curves = {key: curve.thinned(POINTS) for key, curve in read_curves(train).items()}
        training.append(
            {
                "name": train.name,
                "method": train.preset or train.method,
                "run": next(
                    (names.index(r.name) for r in comparison.runs if r.train and r.train.folder == train.folder), None
                ),
                "sft": train.method == "sft",
                "initial_entropy": _short(initial_entropy(train)),
                "gate": gate(train),
                "curves": {
                    m.key: [[_short(v, 2) for v in curves[m.key].steps], [_short(v) for v in curves[m.key].values]]
                    for m in METRICS
                    if m.key in curves
                },
                "block": f"groups-{i}",
                "groups": len(groups),
                "weighted": any(c["values"] != [1.0] for g in groups for c in g["completions"]),
                "groups_logged": total,
            }
        )
    core = {
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "scoring": comparison.scoring,
        "settings": {key: value for key, value in comparison.shared_settings.items() if value is not None},
        "notes": comparison.notes,
        "legend": legend(comparison),
        "baseline": comparison.baseline,
        "baseline_reason": comparison.baseline_reason,
        "runs": [{"name": r.name, "label": labels[r.name], "method": r.method} for r in comparison.runs],
        "benchmarks": benchmarks,
        "training": training,
        "metrics": [list(metric) for metric in METRICS],
        "ln2": LN2,
    }
    return core, blocks


def _usable(ks: list[int], comparison: Comparison) -> list[int]:
    least = min(table.samples for table in comparison.tables)
    return [k for k in ks if k <= least]


def _explorer(comparison: Comparison, table: Table, budget: int) -> tuple[dict[str, Any], dict[str, Any], int]:
    """(what the question list needs, the block with the completions, the room they take) of one benchmark."""
    runs = [run for run in comparison.runs if run.name in table.runs]
    parts = shared_questions(comparison, table)
    first = next(iter(parts.values()))
    ids = [str(i) for i in first.ids]
    rates = np.stack([part.correct / part.n for part in parts.values()])
    excerpt: Excerpt = choose_samples(
        runs, table.benchmark, ids, rates, scoring=comparison.scoring, samples=table.samples, budget=budget
    )
    index = {question: i for i, question in enumerate(ids)}
    subjects = sorted(set(first.subject))
    listing = {
        "ids": ids,
        "n": {name: _constant(part.n.tolist()) for name, part in parts.items()},
        "correct": {name: part.correct.tolist() for name, part in parts.items()},
        "subjects": subjects if subjects != [""] else [],
        "subject": [subjects.index(s) for s in first.subject] if subjects != [""] else [],
        "shown": [index[question] for question in excerpt.questions],
        "each": excerpt.each,
        "complete": excerpt.complete,
    }
    block = {
        "problems": {str(index[q]): list(problem) for q, problem in excerpt.problems.items()},
        "samples": {
            str(index[q]): {
                str(table.runs.index(name)): [
                    [
                        s["index"],
                        s["verdict"],
                        s["answer"],
                        int(s["format"]),
                        s["tokens"],
                        s["finish"],
                        s["text"],
                        s["cut"],
                    ]
                    for s in samples
                ]
                for name, samples in by_run.items()
            }
            for q, by_run in excerpt.samples.items()
        },
    }
    return listing, block, excerpt.bytes


def _constant(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def embedded(value: Any) -> str:
    """JSON that is inert inside a script element: no `<`, `>` or `&`, and no line separators of JavaScript."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    # A lone surrogate (half an emoji that a token cut) is no UTF-8: it stays an escape.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def render(core: dict[str, Any], blocks: dict[str, Any]) -> str:
    """The whole page."""
    templates = resources.files("evalkit.report") / "templates"
    style = (templates / "report.css").read_text(encoding="utf-8")
    script = "\n".join((templates / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    data = [("core", core), *blocks.items()]
    pieces = {
        "POLICY": html.escape(policy),
        "STYLE": style,
        "DATA": "\n".join(
            f'<script type="application/json" id="{name}">{embedded(value)}</script>' for name, value in data
        ),
        "SCRIPT": script,
    }
    page = (templates / "report.html").read_text(encoding="utf-8")
    head, *rest = page.split("@@")
    # Pieces are put in once, left to right: text that looks like a placeholder stays text.
    return head + "".join(pieces[part] if i % 2 == 0 else part for i, part in enumerate(rest))


def write_page(comparison: Comparison, path: Path, *, samples_bytes: int) -> int:
    """Write the page by write-then-rename; return its size in bytes."""
    page = render(*payload(comparison, samples_bytes=samples_bytes))
    write_text(path, page)
    return len(page.encode())
