"""What the page holds: the core that it needs at once, and blocks that it reads when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt
from numpy.typing import NDArray

from gtpo.common.files import write_text
from gtpo.common.terminal import visible
from gtpo.evalkit.comparison.columns import FORMAT, MAJ, METRICS, PASS, Column
from gtpo.evalkit.comparison.compare import MethodComparison, Table, mean_cell, with_baseline
from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.comparison.training_curves import CURVES, LN2, bands, read_curves
from gtpo.evalkit.report.excerpts import choose_groups, choose_samples
from gtpo.evalkit.report.grid import Entry, Figure, Grid, MethodName, covers, header, paper_grids, plain, section_grids
from gtpo.evalkit.report.page import render
from gtpo.evalkit.report.summary import legend, verdict_sentence
from gtpo.evalkit.report.writers import as_csv, as_latex, as_markdown
from gtpo.runs.find import Questions
from gtpo.runs.train_run import TrainFolder

# Steps of a training curve that the page holds; longer ones are averaged.
POINTS = 300
# Share of the room for text that the token view takes if train runs logged completions.
WEIGHTS_SHARE = 0.3

Points = list[tuple[float, float, float]]


def _short(value: float | None, digits: int = 5) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _cell(comparison: MethodComparison, versus: dict[str, Table], table: Table, name: str, column: Column) -> Any:
    """Return a figure, unrounded, and how it differs from each baseline that it is compared with: the page rounds."""
    cell = table.cells[name, column]
    return {
        "mean": plain(cell.value.mean), "low": plain(cell.value.low), "high": plain(cell.value.high),
        "sd": plain(cell.value.seed_sd), "seeds": [_short(v) for v in cell.value.seed_means], "bounds": cell.bounds,
        "versus": {
            base: _difference(comparison, other, name, column)
            for base, other in versus.items()
            if (one := other.cells.get((name, column))) is not None and one.paired is not None
        },
    }  # fmt: skip


def _difference(comparison: MethodComparison, table: Table, name: str, column: Column) -> dict[str, Any]:
    cell = table.cells[name, column]
    d = cell.paired
    assert d is not None
    sentence = verdict_sentence(comparison, table, name) if cell.verdict else None
    return {
        "d": float(d.difference), "low": float(d.low), "high": float(d.high), "p": float(d.p_value),
        "holm": cell.p_corrected, "level": _short(d.level, 4), "covers": covers(d), "verdict": cell.verdict,
        "pe": cell.p_equivalent, "judged": d.judged, "about": d.scope,
        **({"sentence": [sentence.head, f"{sentence.rest}.", sentence.further]} if sentence else {}),
    }  # fmt: skip


def _grid(comparison: MethodComparison, grid: Grid) -> dict[str, Any]:
    """Return a table for the page: its cells are texts, {method: name}, and of figures [benchmark, method, column]."""

    def entry(one: Entry) -> Any:
        if isinstance(one, MethodName):
            return {"method": one.method}
        if not isinstance(one, Figure):
            return one
        place = next(i for i, table in enumerate(comparison.tables) if table is one.table)
        return [place, one.method, one.table.columns.index(one.column)]

    return {
        "name": grid.name, "head": grid.head, "section": grid.section,
        "rows": [[entry(one) for one in row] for row in grid.rows],
    }  # fmt: skip


def key_columns(comparison: MethodComparison, table: Table) -> list[Column]:
    """The columns that a reader compares under every baseline."""
    top = max(column.k for column in table.columns)
    wanted = [*comparison.metrics, Column(PASS, 1), Column(MAJ, top), Column(PASS, top), Column(FORMAT)]
    return [c for c in dict.fromkeys(wanted) if c.metric.tested and c in table.columns and c != Column(MAJ, 1)]


def curve_ks(table: Table) -> list[int]:
    """The k of a curve's points: all up to 64; beyond, 64 of them, evenly spaced on a logarithmic axis."""
    spaced = np.geomspace(1, table.samples, 64) if table.samples > 64 else np.arange(1, table.samples + 1)
    return [int(k) for k in np.unique(np.round(spaced))]


def curves_over_k(table: Table) -> dict[str, dict[str, Points]]:
    """method -> metric -> (mean, low, high) at each of `curve_ks`; the band is that of the tables."""

    def point(name: str, column: Column) -> tuple[float, float, float]:
        found = (table.cells.get((name, column)) or mean_cell(table, name, column)).value
        return found.mean, found.low, found.high

    ks = curve_ks(table)
    return {
        name: {metric.name: [point(name, Column(metric, k)) for k in ks] for metric in METRICS if metric.by_k}
        for name in table.methods
    }


def payload(comparison: MethodComparison, *, samples_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(core, blocks)."""
    tables = comparison.tables
    bases = {comparison.baseline: tables} if comparison.baseline else {}
    if comparison.baseline:
        keys = [key_columns(comparison, table) for table in tables]
        others = [method.name for method in comparison.methods if method.name != comparison.baseline]
        bases |= {name: with_baseline(comparison, name, keys) for name in others}
    members = [member for method in comparison.trained for member in method.members]
    with_weights = [(m, files) for m in members if m.train is not None and (files := m.train.completions_files())]
    room = samples_bytes * (1 - WEIGHTS_SHARE * bool(with_weights))
    exports = {"Markdown": as_markdown(comparison), "LaTeX": as_latex(comparison), "CSV": as_csv(comparison)}
    blocks: dict[str, Any] = {"exports": exports}
    benchmarks = []
    for i, table in enumerate(tables):
        versus = {base: of_base[i] for base, of_base in bases.items()}
        entry: dict[str, Any] = {
            "name": table.benchmark, "group": table.group, "title": visible(table.title), "header": header(table),
            "methods": table.methods,
            "columns": [{"label": c.label, "unit": c.metric.unit, "digits": c.metric.digits} for c in table.columns],
            "keys": [table.columns.index(column) for column in key_columns(comparison, table)],
            "cells": {name: [_cell(comparison, versus, table, name, column) for column in table.columns]
                      for name in table.methods},
            "grids": [_grid(comparison, grid) for grid in section_grids(comparison, table)],
        }  # fmt: skip
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
    papers = zip(comparison.metrics, paper_grids(comparison), strict=False)
    core = {
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "settings": {k: visible(str(v)) for k, v in comparison.shared_settings.items() if v is not None},
        "notes": [visible(note) for note in comparison.all_notes],
        "legend": legend(comparison) if tables else [],
        "baseline": comparison.baseline, "baseline_reason": comparison.baseline_reason,
        "baselines": [method.name for method in comparison.methods if method.name in bases],
        "metrics": [column.label for column in comparison.metrics],
        "papers": [_grid(comparison, grid) | {"unit": column.metric.unit} for column, grid in papers],
        "over_k": [[metric.name, metric.title, metric.meaning] for metric in METRICS if metric.by_k],
        "margin": comparison.margin,
        "methods": [_method(method) for method in comparison.methods],
        "benchmarks": benchmarks,
        "training": [_method(method) | {"trains": len(method.trains)} | training_payload(method.trains)
                     for method in comparison.trained],
        "groups": groups,
        "curve_metrics": [list(metric) for metric in CURVES], "ln2": LN2,
    }  # fmt: skip
    return core, blocks


def write_page(comparison: MethodComparison, path: Path, *, samples_bytes: int) -> int:
    """Write the page by write-then-rename; return its size in bytes."""
    # For a browser without JavaScript: the tables of the Markdown, in which all names are escaped.
    static = MarkdownIt("commonmark", {"html": True}).enable("table").render(as_markdown(comparison))
    page = render(*payload(comparison, samples_bytes=samples_bytes), static)
    write_text(path, page)
    return len(page.encode())


def _method(method: Method) -> dict[str, Any]:
    return {
        "name": method.name, "label": visible(method.name), "counted": method.counted,
        "runs": [[visible(m.name), m.seed] for m in method.members if m.run is not None],
        "collapsed": sum(train.collapsed for train in method.trains),
    }  # fmt: skip


def training_payload(trains: list[TrainFolder], more: Iterable[str] = ()) -> dict[str, Any]:
    """The curves of train runs of one method, `more` and those of CURVES, and what its entropy gate did.

    low, high of a curve are there if it is not a line: see `Band`.
    """
    found = bands(list(map(read_curves, trains)), POINTS)
    lines = {"x": "steps", "y": "mean", "low": "low", "high": "high"}
    curves = {
        key: {name: [float(f"{v:.6g}") for v in getattr(found[key], of).tolist()] for name, of in lines.items()}
        for key in (*more, *(curve.key for curve in CURVES))
        if key in found
    }
    for curve in curves.values():
        if curve["low"] == curve["high"]:
            del curve["low"], curve["high"]
    abouts = [train.run() for train in trains]
    gates = [of for about in abouts if (of := about.get("gate"))]
    return {
        "sft": any(train.preset == "sft" for train in trains),
        "initial_entropy": [of["nats"] for about in abouts if (of := about.get("initial_entropy")) is not None],
        "gate": ", ".join(dict.fromkeys(f"{of['filter']}: {'on' if of['active'] else 'off'}" for of in gates)),
        "curves": curves,
    }


def _explorer(comparison: MethodComparison, table: Table, budget: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the question list needs, the block with the completions) of one benchmark."""

    def totals(of: Callable[[Questions], NDArray[np.int32]]) -> dict[str, NDArray[np.int32]]:
        return {name: np.sum([of(part) for part in parts], axis=0) for name, parts in table.parts.items()}

    def constants(counts: dict[str, NDArray[np.int32]]) -> dict[str, int | list[int]]:
        return {name: int(one[0]) if len(set(one.tolist())) == 1 else one.tolist() for name, one in counts.items()}

    first = next(iter(table.parts.values()))[0]
    ids = [str(i) for i in first.ids]
    n, correct = totals(lambda part: part.n), totals(lambda part: part.correct)
    rates = np.stack([correct[name] / n[name] for name in table.methods])
    excerpt, block = choose_samples(
        table.runs, table.benchmark, ids, rates, scoring=comparison.scoring, samples=table.samples, budget=budget
    )
    subjects = [subject for subject in sorted(set(first.subject)) if any(first.subject)]
    return {
        "ids": ids, "n": constants(n), "correct": {name: counts.tolist() for name, counts in correct.items()},
        "truncated": constants(totals(lambda part: part.truncated)),
        "subjects": subjects, "subject": [subjects.index(one) for one in first.subject] if subjects else [],
        **excerpt,
    }, block  # fmt: skip
