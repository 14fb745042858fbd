"""From the committed records to the answers: every effect with its interval over seeds, and the tests' p-values.

Accuracy (scores per question) is compared as `gtpo compare` does it: seeds x questions, paired
(gtpo.evalkit.statistics).
Everything else is one number a run: the mean difference over seeds with Student's interval (SciPy), and the exact sign
flip test over seeds (gtpo.evalkit.permutation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims.measures import MEASURES, Record, collapsed, evaluated
from bench.claims.plan import Plan
from bench.claims.questions import TASKS, PairedTest, Question, primaries
from bench.claims.record import find_record, scores
from gtpo.common.files import read_json
from gtpo.evalkit.differences import differences, holm
from gtpo.evalkit.permutation import sign_flip_p
from gtpo.evalkit.training_variance import SEEDS_NEEDED

Records = Mapping[tuple[str, str], dict[int, Record]]
"""(regime, method) -> seed -> record."""
ALPHA = 0.05
MARGIN = 0.02
"""Accuracies that differ by less count as equivalent: 2 points. Chosen after the first experiment's runs."""


@dataclass(frozen=True)
class Effect:
    """The answer to one test. Without two seeds of both, or a value to compare, the numbers are None."""

    test: PairedTest
    seeds: int
    """Pairs of seeds with a value."""
    planned: int
    complete: bool
    """Whether all planned seeds are recorded. A measure may have no value on some: nothing leads to no collapse."""
    a: float | None = None
    b: float | None = None
    """Means over these seeds."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    low_90: float | None = None
    high_90: float | None = None
    """The 90 % interval: inside +-MARGIN, two one-sided tests at 5 % show equivalence. Accuracy only."""
    how: str = ""
    """The test that gave p."""


@dataclass(frozen=True)
class Answer:
    """One question at one scale with its effects; the first is the primary one."""

    question: Question
    scale: str
    effects: list[Effect]
    p_corrected: float | None
    """Holm's, over the primary tests of the scale."""
    p_joint: float | None
    """Holm's, over the primary tests of both scales: the family that was written down first."""
    detectable: float | None
    """The smallest difference that the test finds with 80 % power (bench.claims.null)."""
    verdict: str
    """One of bench.claims.tables.ORDER, after "interim: " while planned seeds are missing."""


def read_records(plan: Plan) -> Records:
    """Every record of the plan; under `of_base` that of the base it started from, where there is one."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for run in plan.runs:
        record = find_record(plan, run)
        if record is not None:
            of_base = found.get((run.base.regime, "base"), {}).get(run.base.seed) if run.base else None
            found.setdefault((run.regime, run.method), {})[run.seed] = {**record, "of_base": of_base}
    return found


def evaluation_of(measure: str) -> tuple[str, str] | None:
    """(benchmark, metric) of a measure that has scores per question, `benchmark:metric`; None for one per run."""
    benchmark, colon, metric = measure.partition(":")
    return (benchmark, metric) if colon else None


class Pairs(NamedTuple):
    """One measure of a and b, on the seeds that both have and where it has a value."""

    recorded: int
    """Seeds that both have."""
    seeds: list[int]
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    """Zeros where the test has no b."""


def pairs(records: Records, test: PairedTest) -> Pairs:
    """What a test compares, seed by seed."""
    of_a = records.get((test.regime, test.a), {})
    of_b = records.get((test.regime, test.b), {}) if test.b else of_a
    seeds = sorted(set(of_a) & set(of_b))
    scored = evaluation_of(test.measure)
    measure = evaluated(*scored) if scored else MEASURES[test.measure]
    a = np.array([measure(of_a[seed]) for seed in seeds])
    b = np.array([measure(of_b[seed]) for seed in seeds]) if test.b else np.zeros(len(seeds))
    usable = ~np.isnan(a + b)
    return Pairs(len(seeds), [seed for seed, use in zip(seeds, usable, strict=True) if use], a[usable], b[usable])


def effect(records: Records, plan: Plan, test: PairedTest) -> Effect:
    """Compare a with b on the seeds that both have."""
    recorded, seeds, a, b = pairs(records, test)
    planned = min(plan.seeds.get((test.regime, name), 0) for name in (test.a, test.b or test.a))
    complete = recorded >= planned
    if len(seeds) < 2:
        return Effect(test, len(seeds), planned, complete)
    means = (float(a.mean()), float(b.mean()) if test.b else None)
    scored = evaluation_of(test.measure)
    if scored and len(seeds) >= SEEDS_NEEDED:
        sides = (records[test.regime, name] for name in (test.a, test.b or test.a))
        stacked = [np.stack([scores(found[seed], *scored) for seed in seeds])[None] for found in sides]
        pair = differences(*stacked, seeds_paired=True)[0]
        wide = pair.at_level(1 - 2 * ALPHA)
        numbers = (pair.difference, pair.low, pair.high, pair.p_value, wide.low, wide.high, pair.test)
        return Effect(test, len(seeds), planned, complete, *means, *numbers)
    d = a - b
    half = float(stats.t.ppf(0.975, d.size - 1) * stats.sem(d))
    p = float(sign_flip_p(d[None])[0][0])
    mean = float(d.mean())
    numbers = (mean, mean - half, mean + half, p, None, None, "sign flips over seeds")
    return Effect(test, len(seeds), planned, complete, *means, *numbers)


def read_null(plan: Plan) -> dict[PairedTest, dict[str, Any]]:
    """Primary test -> what bench.claims.null found of it."""
    rows = read_json(plan.evidence / "null.json")["tests"]
    return {PairedTest(*(row[name] for name in PairedTest._fields)): row for row in rows}


def answers(records: Records, plan: Plan) -> list[Answer]:
    """Every question at every scale, with Holm's correction over the primary tests of the scale, and over all."""
    null = read_null(plan)
    found: list[tuple[str, Question, list[Effect]]] = []
    for scale, question, _ in primaries():
        found.append((scale, question, [effect(records, plan, test) for test in question.tests if test.scale == scale]))
    joint = _holm([effects[0].p for _, _, effects in found])
    of_scale: list[float | None] = []
    for name in TASKS:
        of_scale += _holm([effects[0].p for scale, _, effects in found if scale == name])
    out = []
    for (scale, question, effects), p, p_joint in zip(found, of_scale, joint, strict=True):
        gate = null.get(effects[0].test, {"passes": False})
        lost = _stays_lost(records, question, effects[0].test)
        verdict = _verdict(question, effects[0], p_joint, passes=gate["passes"], lost=lost)
        out.append(Answer(question, scale, effects, p, p_joint, gate.get("detectable"), verdict))
    return out


def _holm(p_values: list[float | None]) -> list[float | None]:
    known = [i for i, p in enumerate(p_values) if p is not None]
    out: list[float | None] = [None] * len(p_values)
    if known:
        for i, p in zip(known, holm([p_values[i] or 0.0 for i in known]), strict=True):
            out[i] = float(p)
    return out


def _stays_lost(records: Records, question: Question, test: PairedTest) -> bool:
    """Return whether the claim says that `a` stays accurate, and over half of its runs collapse (one-sided, 5 %)."""
    if not question.stays:
        return False
    lost = [collapsed(record) for record in records.get((test.regime, test.a), {}).values()]
    return bool(lost) and float(stats.binomtest(int(sum(lost)), len(lost), 0.5, "greater").pvalue) <= ALPHA


def _verdict(question: Question, primary: Effect, p: float | None, *, passes: bool, lost: bool) -> str:
    if primary.difference is None or p is None:
        return "no answer yet"
    if not passes:
        found = "withdrawn"
    elif lost:
        found = "refuted"
    elif p <= ALPHA:
        found = "holds" if question.expected * primary.difference > 0 else "refuted"
    elif primary.low_90 is not None and primary.low_90 > -MARGIN and (primary.high_90 or 0.0) < MARGIN:
        found = "equivalent" if question.expected else "holds"
    else:
        found = "undecided"
    return found if primary.complete else f"interim: {found}"


def as_json(found: list[Answer]) -> list[dict[str, Any]]:
    """The answers as the committed file holds them; numbers to six digits, so that machines agree on them."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {key: short(part) for key, part in value.items()}
        return [short(part) for part in value] if isinstance(value, list | tuple) else value

    rows = []
    for answer in found:
        effects = [{**answer_effect.test._asdict(), **asdict(answer_effect)} for answer_effect in answer.effects]
        for row in effects:
            row.pop("test")
        rows.append(
            {
                "question": answer.question.name,
                "scale": answer.scale,
                "verdict": answer.verdict,
                "p_corrected": short(answer.p_corrected),
                "p_joint": short(answer.p_joint),
                "detectable": short(answer.detectable),
                "effects": [short(row) for row in effects],
            }
        )
    return rows
