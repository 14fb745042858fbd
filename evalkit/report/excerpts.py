"""Which completions go into the page: a bounded sample, chosen so that what matters is in it.

Eight runs of 5,000 questions with 64 completions are gigabytes. The page holds all per-question counts, and the
completions of as many questions as fit: those on which the runs disagree most first, then those that are half solved.
Of a question and run it holds all completions if everything fits, and otherwise a few: one of each verdict first.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from gtpo.common.terminal import visible
from gtpo.evalkit.report.page import segments
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_folder import read_table, sample_parts
from gtpo.runs.find import EvalRun
from gtpo.runs.train_run import read_completions

# Completions shown of a question and run if not all fit.
FEW = 4
# Characters shown of one completion; a longer one is cut in its middle, which the page says.
LONGEST = 6000
# Characters of a token, about.
CHARACTERS = 3.5
# Logged rollouts of a run that are looked at.
LOGS = 12
# Answer classes of a question and method that are listed, the largest first.
ANSWERS = 8
_SAMPLE = ("index", "verdict", "answer", "format", "tokens", "finish", "text", "cut", "run")


def rank_questions(rates: NDArray[np.float64], seed: int = 0) -> list[int]:
    """Order questions [Q]: most disagreement first, then half solved. rates: [R, Q] of right samples of each run."""
    spread, mean = rates.max(axis=0) - rates.min(axis=0), rates.mean(axis=0)
    # Ties are many (all wrong, all right): by id they would all be of one subject. Fixed, so that a page repeats.
    jitter = np.random.default_rng(seed).random(rates.shape[1])
    return [int(q) for q in np.lexsort((jitter, np.abs(mean - 0.5), -spread))]


def _completion_size(runs: list[EvalRun], benchmark: str) -> float:
    """About how many characters a completion has; the budget is enforced again later."""
    tokens = [mean for run in runs if (mean := run.entry(benchmark).mean_tokens)]
    return min(max(CHARACTERS * sum(tokens) / len(tokens), 40.0), LONGEST) if tokens else LONGEST / 4


def choose_samples(
    methods: dict[str, list[EvalRun]],
    benchmark: str,
    ids: list[str],
    rates: NDArray[np.float64],
    *,
    scoring: str,
    samples: int,
    budget: int,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Choose and read the completions of one benchmark within `budget` bytes of text.

    methods: name -> its runs; ids [Q] and rates [R, Q] as in `rank_questions`; samples: completions per question of
    each run.

    Returns which are `shown` (questions by their places), how many at most of `each` question and run, whether that is
    `complete`; and by question and, inside, by method: problems (text, gold, formulas), prompts (as the first run's
    model read them, with their tokens), answers (classes of all samples, not only of those shown), samples.
    """
    runs = [run for found in methods.values() for run in found]
    problems: dict[str, Problem] = {}
    prompts: dict[str, tuple[str, int | None]] = {}
    for run in runs:
        problems = run.problems(benchmark) | problems
        prompts = run.prompts(benchmark) | prompts
    overhead = 60
    size = _completion_size(runs, benchmark) + overhead
    affordable = int(budget / (size * len(methods) * len(ids)))
    samples *= max(len(found) for found in methods.values())
    everything = affordable >= samples
    each = min(samples, max(FEW, affordable))
    room = len(ids) if everything else max(1, int(budget / (size * len(methods) * each)))
    order = rank_questions(rates)[: 2 * room]  # twice: sizes are estimates, and what fits is settled below
    wanted = {ids[q] for q in order}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {question: {} for question in wanted}
    answers: dict[str, dict[str, Counter[tuple[str | None, str]]]] = {question: {} for question in wanted}
    names = ["question_id", "sample_index", f"verdict_{scoring}", f"answer_{scoring}", "format_ok", "tokens"]
    names += ["finish_reason", "completion"]
    for method, run in ((str(m), run) for m, its_runs in enumerate(methods.values()) for run in its_runs):
        asked = (pc.field("benchmark") == run.stored_name(benchmark)) & pc.field("question_id").isin(wanted)
        for table in (read_table(path, ["benchmark", *names]).filter(asked) for path in sample_parts(run.folder)):
            for row in table.select(names).to_pylist():
                question, index, verdict, answer, form, *ending, text = row.values()
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
        cost = sum(len(s["text"]) + overhead for part in found[question].values() for s in part)
        cost += len(problem.problem + problem.answer if problem else "") + len(prompt[0] if prompt else "")
        if shown and spent + cost > budget and not everything:
            break
        spent += cost
        shown.append(q)
        if problem is not None:
            block["problems"][key] = [problem.problem, problem.answer, segments(problem.problem)]
        if prompt is not None:
            block["prompts"][key] = prompt
        block["answers"][key] = {method: _classes(counted) for method, counted in answers[question].items()}
        block["samples"][key] = {m: [list(s.values()) for s in kept] for m, kept in found[question].items()}
    return {"shown": shown, "each": each, "complete": len(shown) == len(ids) and each >= samples}, block


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
        first_of: dict[str, dict[str, Any]] = {}
        for one in kept:
            first_of.setdefault(one["verdict"], one)
        later = [one for one in kept if first_of[one["verdict"]] is not one] or kept
        kept.remove(max(later, key=lambda one: one["index"]))


def choose_groups(files: list[Path], budget: int) -> list[dict[str, Any]]:
    """Choose groups of logged rollouts for the token view, spread over the steps, as far as `budget` bytes go.

    Of every step first the group in which most tokens have a conflict weight, then a second of each.
    """
    picked = sorted({int(i) for i in np.linspace(0, len(files) - 1, num=min(len(files), LOGS))})
    ranked: list[tuple[int, dict[str, Any]]] = []
    for path in (files[i] for i in picked):
        members: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in read_completions(path):
            members.setdefault((int(row["step"]), int(row["group"])), []).append(row)
        # Where all advantages are alike, no weight differs from 1.
        changed = {key: sum(w != 1.0 for row in rows for w in row["weight"]) for key, rows in members.items()}
        ranked += enumerate(
            _group(*key, members[key]) for key in sorted(members, key=changed.__getitem__, reverse=True)
        )
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
