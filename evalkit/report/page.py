"""The page of `gtpo compare --html`: one file that holds its data, style and code, and works without a network.

Text that a model wrote is data here, never markup: it lies in JSON blocks in which every `<` is written `\\u003c`,
the page's code puts it on screen through textContent only, and a Content-Security-Policy with the hashes of the
page's own script and style stops anything else from running or loading.

A problem's LaTeX between $, $$, \\( \\) and \\[ \\] becomes MathML, which browsers set themselves: no font to load. It
travels as a tree of plain lists, of which the page builds elements one by one: no markup of a problem's text is ever
parsed by the browser. What cannot be converted stays as it is written.

Eight runs of 5,000 questions with 64 completions are gigabytes. The page holds all per-question counts, and the
completions of as many questions as fit: those on which the runs disagree most first, then those that are half solved;
of a question and run all if everything fits, and otherwise a few: one of each verdict first.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.compute as pc
from markdown_it import MarkdownIt

from gtpo.common.files import write_text
from gtpo.common.terminal import visible
from gtpo.evalkit.comparison.columns import FORMAT, MAJ, METRICS, PASS, Column
from gtpo.evalkit.comparison.compare import MethodComparison, fill_tables
from gtpo.evalkit.comparison.methods import Method
from gtpo.evalkit.comparison.questions import Table
from gtpo.evalkit.comparison.training_curves import CURVES, LN2, bands, read_curves
from gtpo.evalkit.report import writers
from gtpo.evalkit.report.summary import legend, verdict_sentence
from gtpo.evalkit.report.writers import Grid, plain
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_folder import read_table, sample_parts
from gtpo.runs.train_run import TrainFolder, read_completions

# What the pages of `gtpo compare` and `gtpo view` are both made of.
SHARED = ("dom.js", "base.js", "charts.js", "samples.js", "weights.js", "tokens.js")
SCRIPTS = (*SHARED, "grid.js", "answer.js", "curves.js", "explorer.js", "question.js", "start.js")
# Steps of a training curve that the page holds; longer ones are averaged.
POINTS = 300
# Share of the room for text that the token view takes if train runs logged completions.
WEIGHTS_SHARE = 0.3
# Completions shown of a question and run if not all fit.
FEW = 4
# Characters shown of one completion; a longer one is cut in its middle, which the page says.
LONGEST = 6000
# Characters of a token, about; and what a completion takes beside its text.
CHARACTERS, OVERHEAD = 3.5, 60
# Logged rollouts of a run that are looked at.
LOGS = 12
# Answer classes of a question and method that are listed, the largest first.
ANSWERS = 8
_SAMPLE = ("index", "verdict", "answer", "format", "tokens", "finish", "text", "cut", "run")

# Text, or [tag, attributes, *children].
Node = str | list[Any]

_MATHS = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$])\$(?!\s)([^$\n]+?)(?<![\s\\])\$(?!\d)", re.DOTALL
)
_TAG_NAMES = (
    "math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts "
    "mtable mtr mtd mstyle mpadded mphantom menclose mfenced merror mprescripts none"
)
_TAGS = frozenset(_TAG_NAMES.split())
_ATTRIBUTE_NAMES = (
    "display displaystyle scriptlevel mathvariant stretchy fence form separator lspace rspace width height depth "
    "linethickness columnalign rowalign columnlines rowlines rowspacing columnspacing notation accent accentunder "
    "movablelimits minsize maxsize symmetric largeop open close"
)
_ATTRIBUTES = frozenset(_ATTRIBUTE_NAMES.split())


def inert_json(value: Any) -> str:
    """JSON that is inert inside a script element: no `<`, `>` or `&`, and no line separators of JavaScript."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    # A lone surrogate (half an emoji that a token cut) is no UTF-8: it stays an escape.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def render(
    core: dict[str, Any],
    blocks: dict[str, Any],
    static: str = "",
    *,
    name: str = "compare",
    scripts: Sequence[str] = SCRIPTS,
    connect: str = "'none'",
) -> str:
    """The whole page: the frame that all have, with the body of templates/NAME.html.

    static: HTML of the tables for a browser without JavaScript. connect: where its code may fetch from, as in a
    Content-Security-Policy.
    """
    templates = resources.files("gtpo.evalkit.report") / "templates"
    style = (templates / "report.css").read_text(encoding="utf-8")
    script = "\n".join((templates / name).read_text(encoding="utf-8") for name in scripts)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )
    pieces = {
        "NAME": name, "POLICY": html.escape(policy), "STYLE": style, "STATIC": static, "SCRIPT": script,
        "DATA": "\n".join(f'<script type="application/json" id="{key}">{inert_json(value)}</script>'
                          for key, value in {"core": core, **blocks}.items()),
    }  # fmt: skip
    page, body = ((templates / f"{part}.html").read_text(encoding="utf-8") for part in ("page", name))
    # In one pass: text that looks like a placeholder stays text.
    return re.sub("@@([A-Z]+)@@", lambda place: pieces[place[1]], page.replace("@@BODY@@", body.strip()))


def segments(text: str) -> list[Node]:
    """A text in pieces: plain strings, and a tree for each formula that can be converted."""
    out: list[Node] = []
    at = 0
    for match in _MATHS.finditer(text):
        if tree := _tree_of(next(filter(None, match.groups()), ""), block=match[0][:2] in ("$$", "\\[")):
            out += [text[at : match.start()], tree]
            at = match.end()
    pieces = [*out, text[at:]]
    return [piece.replace("\\$", "$") if isinstance(piece, str) else piece for piece in pieces if piece]


def _tree_of(formula: str, *, block: bool) -> Node | None:
    try:
        from latex2mathml.converter import convert_to_element
    except ImportError:  # the extra `report`: the text is shown as it is written
        return None
    try:
        element = convert_to_element(formula, display="block" if block else "inline")
    except Exception:  # whatever a formula does to the converter, the page shows its source
        return None
    known = all(one.tag.rpartition("}")[2] in _TAGS for one in element.iter())
    return _tree(element) if known and "\\" not in "".join(element.itertext()) else None


def _tree(element: ElementTree.Element) -> Node:
    # latex2mathml writes operators as entities in places: &#x003C; is the character itself in a tree.
    text = [html.unescape(element.text)] if element.text else []
    attributes = {name: value for name, value in element.attrib.items() if name in _ATTRIBUTES}
    return [element.tag.rpartition("}")[2], attributes, *text, *map(_tree, element)]


def _cell(comparison: MethodComparison, versus: dict[str, Table], table: Table, name: str, column: Column) -> Any:
    """Return a figure, unrounded, and how it differs from each baseline that it is compared with: the page rounds."""
    cell, differences = table.cells[name, column], dict[str, dict[str, Any]]()
    for base, other in versus.items():
        one = other.cells.get((name, column))
        if one is None or (d := one.paired) is None:
            continue
        sentence = verdict_sentence(comparison, other, name) if one.verdict else None
        differences[base] = {
            "d": float(d.difference), "low": float(d.low), "high": float(d.high), "p": float(d.p_value),
            "holm": one.p_corrected, "level": plain(d.level, 4), "covers": d.covers, "verdict": one.verdict,
            "pe": one.p_equivalent, "judged": d.judged, "about": d.scope,
            **({"sentence": [sentence.head, f"{sentence.rest}.", sentence.further]} if sentence else {}),
        }  # fmt: skip
    value = cell.value
    return {
        "mean": plain(value.mean), "low": plain(value.low), "high": plain(value.high), "sd": plain(value.seed_sd),
        "seeds": [plain(mean, 5) for mean in value.seed_means], "bounds": cell.bounds, "versus": differences,
    }  # fmt: skip


def _grid(comparison: MethodComparison, grid: Grid) -> dict[str, Any]:
    """Return a table for the page: its cells are texts, {method: name}, and of figures [benchmark, method, column]."""
    places = {
        id(cell): [i, name, table.columns.index(column)]
        for i, table in enumerate(comparison.tables) for (name, column), cell in table.cells.items()
    }  # fmt: skip
    rows: list[list[Any]] = [[places.get(id(entry), entry) for entry in row] for row in grid.rows]
    for row, name in zip(rows, grid.methods, strict=False):
        row[0] = {"method": name}
    return {"name": grid.name, "head": grid.head, "section": grid.section, "rows": rows}


def curve_ks(table: Table) -> list[int]:
    """The k of a curve's points: all up to 64; beyond, 64 of them, evenly spaced on a logarithmic axis."""
    spaced = np.geomspace(1, table.samples, 64) if table.samples > 64 else np.arange(1, table.samples + 1)
    return [int(k) for k in np.unique(np.round(spaced))]


def curves_over_k(table: Table) -> dict[str, dict[str, list[list[float | None]]]]:
    """method -> metric -> [mean, low, high] at each of `curve_ks`; the band is that of the tables."""

    def point(name: str, column: Column) -> list[float | None]:
        return [plain(end, 5) for end in (table.cells.get((name, column)) or table.cell(name, column)).value[:3]]

    by_k, ks = [metric for metric in METRICS if metric.by_k], curve_ks(table)
    return {
        name: {metric.name: [point(name, Column(metric, k)) for k in ks] for metric in by_k} for name in table.sides
    }


def payload(comparison: MethodComparison, *, samples_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(core, blocks)."""
    tables, named = comparison.tables, comparison.baseline
    # The columns that a reader compares under every baseline.
    keys: list[list[Column]] = []
    for table in tables:
        top = max(column.k for column in table.columns)
        wanted = [*comparison.metrics, Column(PASS, 1), Column(MAJ, top), Column(PASS, top), Column(FORMAT)]
        keys.append(
            [c for c in dict.fromkeys(wanted) if c.metric.tested and c in table.columns and c != Column(MAJ, 1)]
        )
    others = [method.name for method in comparison.methods if named and method.name != named]
    bases = {named: tables} if named else {}
    bases |= {name: fill_tables(comparison, zip(tables, keys, strict=True), name) for name in others}
    members = [member for method in comparison.trained for member in method.members]
    with_weights = [(m, files) for m in members if m.train and (files := m.train.completions_files())]
    room = samples_bytes * (1 - WEIGHTS_SHARE * bool(with_weights))
    room /= max(1, sum(table.questions for table in comparison.benchmarks))
    formats = {"Markdown": writers.as_markdown, "LaTeX": writers.as_latex, "CSV": writers.as_csv}
    blocks: dict[str, Any] = {"exports": {name: write(comparison) for name, write in formats.items()}}
    benchmarks = []
    for i, table in enumerate(tables):
        versus = {base: of_base[i] for base, of_base in bases.items()}
        entry: dict[str, Any] = {
            "name": table.benchmark, "group": table.group, "title": visible(table.title),
            "header": writers.header(table), "methods": list(table.sides),
            "columns": [{"label": c.label, "unit": c.metric.unit, "digits": c.metric.digits} for c in table.columns],
            "keys": [table.columns.index(column) for column in keys[i]],
            "cells": {name: [_cell(comparison, versus, table, name, column) for column in table.columns]
                      for name in table.sides},
            "grids": [_grid(comparison, grid) for grid in writers.section_grids(comparison, table)],
        }  # fmt: skip
        if not table.group:
            explorer, blocks[f"samples-{i}"] = choose_samples(table, comparison.scoring, int(room * table.questions))
            entry |= {
                "ks": curve_ks(table), "explorer": explorer, "block": f"samples-{i}", "curves": curves_over_k(table),
            }  # fmt: skip
        benchmarks.append(entry)
    groups = []
    for i, (member, files) in enumerate(with_weights):
        chosen = choose_groups(files, int(samples_bytes * WEIGHTS_SHARE / len(with_weights)))
        blocks[f"groups-{i}"] = sorted(chosen, key=lambda group: (group["step"], group["group"]))
        number = f"{len(chosen)} group{'s' * (len(chosen) != 1)} of {len(files)} logged rollouts"
        groups.append({
            "name": visible(member.name), "method": member.preset, "block": f"groups-{i}", "groups": len(chosen),
            "weighted": any(c["values"] != [1.0] for g in chosen for c in g["completions"]),
            "said": f"{number}, spread over the steps, the most telling of each",
        })  # fmt: skip
    papers = zip(comparison.metrics, writers.paper_grids(comparison), strict=False)
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
    static = MarkdownIt("commonmark", {"html": True}).enable("table").render(writers.as_markdown(comparison))
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
    """The curves of a method's train runs, `more` and CURVES, with `low` and `high` if they differ; and its gate."""
    curves: dict[str, dict[str, list[float]]] = {}
    by_key = bands(list(map(read_curves, trains)), POINTS)
    for key in (key for key in (*more, *(curve.key for curve in CURVES)) if key in by_key):
        x, y, low, high = ([float(f"{v:.6g}") for v in of.tolist()] for of in by_key[key][:4])
        curves[key] = {"x": x, "y": y} | ({} if low == high else {"low": low, "high": high})
    abouts = [train.run() for train in trains]
    gates = [of for about in abouts if (of := about.get("gate"))]
    return {
        "sft": any(train.preset == "sft" for train in trains),
        "initial_entropy": [of["nats"] for about in abouts if (of := about.get("initial_entropy")) is not None],
        "gate": ", ".join(dict.fromkeys(f"{of['filter']}: {'on' if of['active'] else 'off'}" for of in gates)),
        "curves": curves,
    }


def choose_samples(table: Table, scoring: str, budget: int) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Choose and read the completions of one benchmark within `budget` bytes of text.

    Returns what the question list needs: all counts, the places of the questions `shown`, the most completions of
    `each` question and run, and whether that is `complete`; and by question and, inside, by method: problems (text,
    gold, formulas), prompts (as the first run's model read them, with their tokens), answers (classes of all samples,
    not only of those shown), samples.
    """
    benchmark, first = table.benchmark, table.first
    counts = {
        what: {name: np.sum([getattr(part, what) for part in side.parts], axis=0) for name, side in table.sides.items()}
        for what in ("n", "correct", "truncated")
    }
    ids = [str(i) for i in first.ids]
    rates = np.stack([counts["correct"][name] / counts["n"][name] for name in table.sides])
    # Ties are many (all wrong, all right): by id they would all be of one subject. Fixed, so that a page repeats.
    jitter = np.random.default_rng(0).random(len(ids))
    order = np.lexsort((jitter, np.abs(rates.mean(axis=0) - 0.5), -np.ptp(rates, axis=0))).tolist()
    runs = [run for side in table.sides.values() for run in side.runs]
    problems: dict[str, Problem] = {}
    prompts: dict[str, tuple[str, int | None]] = {}
    for run in runs:
        problems, prompts = run.problems(benchmark) | problems, run.prompts(benchmark) | prompts
    tokens = [mean for run in runs if (mean := run.entry(benchmark).mean_tokens)]
    length = CHARACTERS * sum(tokens) / len(tokens) if tokens else LONGEST / 4
    of_each = len(table.sides) * (OVERHEAD + min(max(length, 40.0), LONGEST))
    affordable = int(budget / (of_each * len(ids)))
    most = table.samples * max(len(side.runs) for side in table.sides.values())
    everything, each = affordable >= most, min(most, max(FEW, affordable))
    # Twice as many as fit: sizes are estimates, and what fits is settled below.
    order = order if everything else order[: 2 * max(1, int(budget / (of_each * each)))]
    wanted = {ids[q] for q in order}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {question: {} for question in wanted}
    answers: dict[str, dict[str, Counter[tuple[str | None, str]]]] = {question: {} for question in wanted}
    names = ["question_id", "sample_index", f"verdict_{scoring}", f"answer_{scoring}", "format_ok", "tokens"]
    names += ["finish_reason", "completion"]
    for method, run in ((str(m), run) for m, side in enumerate(table.sides.values()) for run in side.runs):
        asked = (pc.field("benchmark") == run.stored_name(benchmark)) & pc.field("question_id").isin(wanted)
        n = run.entry(benchmark).n or math.inf  # samples beyond it were drawn for a larger --k
        for path in sample_parts(run.folder):
            for row in read_table(path, ["benchmark", *names]).filter(asked).select(names).to_pylist():
                question, index, verdict, answer, form, *ending, text = row.values()
                if index >= n:
                    continue
                verdict = verdict or "UNSCORED"
                answers[question].setdefault(method, Counter())[answer, verdict] += 1
                values = index, verdict, answer, int(bool(form)), *ending, *shorten(text or ""), visible(run.name)
                _keep(found[question].setdefault(method, []), dict(zip(_SAMPLE, values, strict=True)), each)
    shown: list[int] = []
    block: dict[str, dict[str, Any]] = {name: {} for name in ("problems", "prompts", "answers", "samples")}
    spent = 0
    for q in order:
        question, key = ids[q], str(q)
        if not found[question]:
            continue  # no run kept its completions of this question
        problem, prompt = problems.get(question), prompts.get(question)
        spent += sum(len(s["text"]) + OVERHEAD for part in found[question].values() for s in part)
        spent += len(problem.problem + problem.answer if problem else "") + len(prompt[0] if prompt else "")
        if shown and spent > budget and not everything:
            break
        shown.append(q)
        if problem is not None:
            block["problems"][key] = [problem.problem, problem.answer, segments(problem.problem)]
        if prompt is not None:
            block["prompts"][key] = prompt
        block["answers"][key] = {method: _classes(counted) for method, counted in answers[question].items()}
        block["samples"][key] = {m: [list(s.values()) for s in kept] for m, kept in found[question].items()}
    subjects = [subject for subject in sorted(set(first.subject)) if any(first.subject)]
    return {
        "ids": ids, **{what: {name: of.tolist() for name, of in each_of.items()} for what, each_of in counts.items()},
        "subjects": subjects, "subject": [subjects.index(one) for one in first.subject] if subjects else [],
        "shown": shown, "each": each, "complete": len(shown) == len(ids) and each >= most,
    }, block  # fmt: skip


def _classes(counted: Counter[tuple[str | None, str]]) -> list[list[Any]]:
    """[answer, verdict, votes] of the largest answer classes, then [None, "other", votes] of the rest."""
    top = counted.most_common(ANSWERS)
    rest = counted.total() - sum(count for _, count in top)
    found: list[list[Any]] = [[a if a is None else a[:120], verdict, count] for (a, verdict), count in top]
    return [*found, [None, "other", rest]] if rest else found


def shorten(text: str, longest: int = LONGEST) -> tuple[str, int]:
    """A text of at most `longest` characters (an even number), and how many its middle lost."""
    cut = max(0, len(text) - longest)
    half = longest // 2
    return (text[:half] + "\u2026" + text[-half:] if cut else text), cut


def _keep(kept: list[dict[str, Any]], sample: dict[str, Any], each: int) -> None:
    """Keep at most `each` samples: one of every verdict before a second of any, low indices first."""
    kept.append(sample)
    if len(kept) > each:
        first_of = {one["verdict"]: one for one in reversed(kept)}
        later = [one for one in kept if first_of[one["verdict"]] is not one] or kept
        kept.remove(max(later, key=lambda one: one["index"]))


def choose_groups(files: list[Path], budget: int) -> list[dict[str, Any]]:
    """Choose groups of logged rollouts for the token view, spread over the steps, as far as `budget` bytes go.

    Of every step first the group in which most tokens have a conflict weight, then a second of each.
    """
    # (its place among those of its step, the group).
    ranked: list[tuple[int, dict[str, Any]]] = []
    for i in sorted({int(i) for i in np.linspace(0, len(files) - 1, num=min(len(files), LOGS))}):
        members: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in read_completions(files[i]):
            members.setdefault((int(row["step"]), int(row["group"])), []).append(row)
        # Where all advantages are alike, no weight differs from 1.
        changed = {key: sum(w != 1.0 for row in rows for w in row["weight"]) for key, rows in members.items()}
        order = sorted(members, key=changed.__getitem__, reverse=True)
        ranked += enumerate(_group(*key, members[key]) for key in order)
    chosen: list[dict[str, Any]] = []
    for _, group in sorted(ranked, key=lambda entry: entry[0]):
        if not chosen or sum(one["bytes"] for one in chosen) + group["bytes"] <= budget:
            chosen.append(group)
    return chosen


def _group(step: int, number: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    """One group as the page shows it."""
    completions = []
    for row in members:
        values = sorted(set(map(float, row["weight"])))
        completions.append({
            "tokens": list(row["tokens"]), "values": values, "weights": [values.index(float(w)) for w in row["weight"]],
            "advantage": row["advantage"], "entropy": row["entropy"], "kept": row["kept"],
            "rewards": {k.removeprefix("reward_"): row[k] for k in row if k.startswith("reward_")},
        })  # fmt: skip
    prompt = str(members[0].get("prompt") or "")
    size = sum(sum(len(t) + 6 for t in row["tokens"]) + 120 for row in members) + len(prompt)
    return {"step": step, "group": number, "prompt": prompt, "completions": completions, "bytes": size}
