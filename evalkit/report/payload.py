"""What the page holds: the core that it needs at once, and blocks that it reads when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from gtpo.common.files import write_text
from gtpo.evalkit.comparison.columns import FORMAT, MAJ, PASS, Column
from gtpo.evalkit.comparison.compare import MethodComparison, Table, mean_cell, rebased
from gtpo.evalkit.comparison.training_curves import LN2, METRICS, Metric, bands, gate, initial_entropy, read_curves
from gtpo.evalkit.report.excerpts import choose_groups, choose_samples
from gtpo.evalkit.report.latex import as_latex
from gtpo.evalkit.report.page import render
from gtpo.evalkit.report.records import as_csv
from gtpo.evalkit.report.summary import legend, verdict_sentence
from gtpo.evalkit.report.tables import as_markdown
from gtpo.evalkit.report.text import covers, header, visible
from gtpo.runs.train_run import TrainFolder

# Steps of a training curve that the page holds; longer ones are averaged.
POINTS = 300
# Share of the room for text that the token view takes if train runs logged completions.
WEIGHTS_SHARE = 0.3

Points = list[tuple[float, float, float]]


def _short(value: float | None, digits: int = 5) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _cells(table: Table) -> dict[str, list[list[Any]]]:
    """method -> [mean, low, high, sd over seeds, seed means, bounds] of each column, unrounded: the page rounds."""
    return {
        name: [
            [*cell.value[:3], cell.value.seed_sd, [_short(v) for v in cell.value.seed_means], cell.bounds]
            for cell in (table.cells[name, column] for column in table.columns)
        ]
        for name in table.methods
    }


def _differences(comparison: MethodComparison, table: Table, columns: list[Column]) -> dict[str, list[Any]]:
    """method -> the difference of each column, None if it was not computed."""
    out: dict[str, list[Any]] = {}
    for name in table.methods:
        row: list[Any] = []
        for column in columns:
            cell = table.cells.get((name, column))
            if cell is None or cell.paired is None:
                row.append(None)
                continue
            d = cell.paired
            row.append({
                "d": float(d.difference), "low": float(d.low), "high": float(d.high), "p": float(d.p_value),
                "holm": cell.p_corrected, "level": _short(d.level, 4), "covers": covers(d), "shown": cell.direction,
                "verdict": cell.verdict, "pe": cell.p_equivalent, "judged": d.judged, "about": d.scope,
            })  # fmt: skip
            one = verdict_sentence(comparison, table, name) if cell.verdict else None
            row[-1] |= {"said": [one.head, f"{one.rest}.", one.advice]} if one else {}
        out[name] = row
    return out


def key_columns(comparison: MethodComparison, table: Table) -> list[Column]:
    """The columns that a reader compares under every baseline."""
    top = max(column.k for column in table.columns)
    wanted = [*comparison.metrics, Column(PASS, 1), Column(MAJ, top), Column(PASS, top), Column(FORMAT)]
    return [column for column in dict.fromkeys(wanted) if column in table.columns and column != Column(MAJ, 1)]


def curve_ks(table: Table) -> list[int]:
    """The k of a curve's points: all up to 64; beyond, 64 of them, evenly spaced on a logarithmic axis."""
    largest = table.samples
    if largest <= 64:
        return list(range(1, largest + 1))
    return [int(k) for k in np.unique(np.round(np.geomspace(1, largest, 64)))]


def curves_over_k(table: Table) -> dict[str, dict[str, Points]]:
    """method -> metric -> (mean, low, high) at each of `curve_ks`; the band is that of the tables."""

    def point(name: str, column: Column) -> tuple[float, float, float]:
        found = (table.cells.get((name, column)) or mean_cell(table, name, column)).value
        return found.mean, found.low, found.high

    ks = curve_ks(table)
    return {
        name: {metric.name: [point(name, Column(metric, k)) for k in ks] for metric in (PASS, MAJ)}
        for name in table.methods
    }


def payload(comparison: MethodComparison, *, samples_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(core, blocks)."""
    tables = comparison.tables
    versus = {comparison.baseline: tables} if comparison.baseline else {}
    if comparison.baseline:
        keys = [key_columns(comparison, table) for table in tables]
        for method in comparison.methods:
            if method.name not in versus:
                versus[method.name] = rebased(comparison, method.name, keys)
    members = [member for method in comparison.trained for member in method.members]
    with_weights = [(m, files) for m in members if m.train is not None and (files := m.train.completions_files())]
    room = samples_bytes * (1 - WEIGHTS_SHARE * bool(with_weights))
    blocks: dict[str, Any] = {
        "exports": {
            "Markdown": as_markdown(comparison), "LaTeX": as_latex(comparison), "CSV": as_csv(comparison)
        }
    }  # fmt: skip
    benchmarks = []
    for i, table in enumerate(tables):
        entry: dict[str, Any] = {
            "name": table.benchmark,
            "group": table.group,
            "title": header(table),
            "questions": table.questions,
            "samples": table.samples,
            "methods": table.methods,
            "columns": [[column.metric.name, column.k, column.label] for column in table.columns],
            "cells": _cells(table),
            "versus": {
                base: _differences(comparison, versus[base][i], table.columns)
                for base in (method.name for method in comparison.methods)
                if base in versus and versus[base][i].baseline == base
            },
            "notes": [visible(note) for note in table.notes],
        }
        if not table.group:
            points = curves_over_k(table)
            entry["ks"] = curve_ks(table)
            entry["curves"] = {
                name: {metric: [[_short(v) for v in point] for point in line] for metric, line in found.items()}
                for name, found in points.items()
            }
            share = room * table.questions / sum(one.questions for one in comparison.benchmarks)
            entry["explorer"], blocks[f"samples-{i}"] = _explorer(comparison, table, int(share))
            entry["block"] = f"samples-{i}"
        benchmarks.append(entry)
    groups = []
    for i, (member, files) in enumerate(with_weights):
        chosen = choose_groups(files, int(samples_bytes * WEIGHTS_SHARE / len(with_weights)))
        blocks[f"groups-{i}"] = sorted(chosen, key=lambda group: (group["step"], group["group"]))
        weighted = any(c["values"] != [1.0] for g in chosen for c in g["completions"])
        groups.append({
            "name": visible(member.name), "method": member.preset, "block": f"groups-{i}", "groups": len(chosen),
            "weighted": weighted, "said": f"{len(chosen)} group{'s' * (len(chosen) != 1)} of {len(files)} logged "
            "rollouts, spread over the steps, the most telling of each",
        })  # fmt: skip
    core = {
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "scoring": comparison.scoring,
        "settings": {k: visible(str(v)) for k, v in comparison.shared_settings.items() if v is not None},
        "notes": [visible(note) for note in comparison.all_notes],
        "legend": legend(comparison) if tables else [],
        "baseline": comparison.baseline,
        "baseline_reason": comparison.baseline_reason,
        "metrics": [column.label for column in comparison.metrics],
        "margin": comparison.margin,
        "methods": [_method(method) for method in comparison.methods],
        "averages": {
            m.name: {column.label: comparison.average(m.name, column) for column in comparison.metrics}
            for m in comparison.methods
        },
        "benchmarks": benchmarks,
        "training": [
            _method(method) | {"trains": len(method.trains)} | training_payload(method.trains)
            for method in comparison.trained
        ],
        "groups": groups,
        "curve_metrics": [list(metric) for metric in METRICS],
        "ln2": LN2,
    }
    return core, blocks


def write_page(comparison: MethodComparison, path: Path, *, samples_bytes: int) -> int:
    """Write the page by write-then-rename; return its size in bytes."""
    # For a browser without JavaScript: the tables of the Markdown, in which all names are escaped.
    static = MarkdownIt("commonmark", {"html": True}).enable("table").render(as_markdown(comparison))
    page = render(*payload(comparison, samples_bytes=samples_bytes), static)
    write_text(path, page)
    return len(page.encode())


def _method(method: Any) -> dict[str, Any]:
    return {
        "name": method.name,
        "label": visible(method.name),
        "preset": visible(method.preset),
        "counted": method.counted,
        "trained": method.trained,
        "runs": [[visible(m.name), m.seed] for m in method.members if m.run is not None],
        "collapsed": sum(train.collapsed for train in method.trains),
    }


def training_payload(trains: list[TrainFolder], metrics: Iterable[Metric] = METRICS) -> dict[str, Any]:
    """The curves of train runs of one method, and what its entropy gate did.

    low, high of a curve are there if it is not a line: see `Band`.
    """
    found = bands(list(map(read_curves, trains)), POINTS)
    lines = {"x": "steps", "y": "mean", "low": "low", "high": "high"}
    curves = {
        key: {name: [float(f"{v:.6g}") for v in getattr(found[key], of).tolist()] for name, of in lines.items()}
        for key in (metric.key for metric in metrics)
        if key in found
    }
    for curve in curves.values():
        if curve["low"] == curve["high"]:
            del curve["low"], curve["high"]
    entropies = [initial_entropy(train) for train in trains]
    return {
        "sft": any(train.preset == "sft" for train in trains),
        "initial_entropy": [value for value in entropies if value is not None],
        "gate": ", ".join(dict.fromkeys(text for train in trains if (text := gate(train)))),
        "curves": curves,
    }


def _explorer(comparison: MethodComparison, table: Table, budget: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the question list needs, the block with the completions) of one benchmark."""
    first = next(iter(table.parts.values()))[0]
    ids = [str(i) for i in first.ids]
    n = {name: np.sum([part.n for part in parts], axis=0) for name, parts in table.parts.items()}
    correct = {name: np.sum([part.correct for part in parts], axis=0) for name, parts in table.parts.items()}
    rates = np.stack([correct[name] / n[name] for name in table.methods])
    excerpt = choose_samples(
        table.runs, table.benchmark, ids, rates, scoring=comparison.scoring, samples=table.samples, budget=budget
    )
    subjects = sorted(set(first.subject))
    listing = {
        "ids": ids,
        "n": {name: _constant(values.tolist()) for name, values in n.items()},
        "correct": {name: values.tolist() for name, values in correct.items()},
        "truncated": {
            name: _constant(np.sum([part.truncated for part in parts], axis=0).tolist())
            for name, parts in table.parts.items()
        },
        "subjects": subjects if subjects != [""] else [],
        "subject": [subjects.index(s) for s in first.subject] if subjects != [""] else [],
        "shown": excerpt.shown,
        "each": excerpt.each,
        "complete": excerpt.complete,
    }
    return listing, excerpt.block


def _constant(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values
