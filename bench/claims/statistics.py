"""From the committed records to the answers: effects, intervals, p-values and verdicts of the first experiment.

Accuracy (scores per question) is compared as `gtpo compare` does it: seeds x questions, paired
(gtpo.evalkit.differences). Everything else is one number a run: the mean difference over seeds with Student's interval
(SciPy), and the exact sign flip test over seeds (gtpo.evalkit.permutation).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims.measures import MEASURES, Record, collapsed, curve, evaluated, scores
from bench.claims.plan import TASKS, PairedTest, Plan, Question, primaries
from bench.claims.record import find_record
from gtpo.common.errors import UserError
from gtpo.common.files import read_json
from gtpo.evalkit.differences import differences, holm
from gtpo.evalkit.permutation import sign_flip_p
from gtpo.evalkit.training_variance import SEEDS_NEEDED

Array = NDArray[np.float64]
Records = Mapping[tuple[str, str], dict[int, Record]]
"""(regime, method) -> seed -> record."""
ALPHA = 0.05
MARGIN = 0.02
"""Accuracies that differ by less count as equivalent: 2 points. Chosen after the first experiment's runs."""
RESAMPLES = 2000
WITHOUT_GATE = ("grpo", "gtpo-no-filter")


class Effect(NamedTuple):
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


class Answer(NamedTuple):
    """One question at one scale with its effects; the first is the primary one."""

    question: Question
    scale: str
    effects: list[Effect]
    p_corrected: float
    """Holm's, over the primary tests of the scale."""
    p_joint: float
    """Holm's, over the primary tests of both scales: the family that was written down first."""
    detectable: float | None
    """The smallest difference that the test finds with 80 % power (bench.claims.null)."""
    verdict: str
    """One of bench.claims.page.ORDER."""


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
    found = Effect(test, len(seeds), planned, recorded >= planned)
    if len(seeds) < 2:
        return found
    found = found._replace(a=float(a.mean()), b=float(b.mean()) if test.b else None)
    scored = evaluation_of(test.measure)
    if scored and len(seeds) >= SEEDS_NEEDED:
        pair = differences(*(x[None] for x in stacked(records, test, seeds)), seeds_paired=True)[0]
        wide = pair.at_level(1 - 2 * ALPHA)
        found = found._replace(low_90=wide.low, high_90=wide.high, how=pair.test)
        return found._replace(difference=pair.difference, low=pair.low, high=pair.high, p=pair.p_value)
    d = a - b
    mean, half = float(d.mean()), float(stats.t.ppf(0.975, d.size - 1) * stats.sem(d))
    found = found._replace(p=float(sign_flip_p(d[None])[0][0]), how="sign flips over seeds")
    return found._replace(difference=mean, low=mean - half, high=mean + half)


def stacked(records: Records, test: PairedTest, seeds: Sequence[int]) -> tuple[Array, Array]:
    """[S, Q] scores of a and b on these seeds, of a measure that has scores per question."""
    scored = evaluation_of(test.measure)
    assert scored is not None
    sides = (records[test.regime, name] for name in (test.a, test.b or test.a))
    a, b = (np.stack([scores(its[seed], *scored) for seed in seeds]) for its in sides)
    return a, b


def answers(records: Records, plan: Plan) -> list[Answer]:
    """Every question at every scale, with Holm's correction over the primary tests of the scale, and over all.

    UserError while planned runs of a primary test are missing.
    """
    rows = read_json(plan.evidence / "null.json")["tests"]
    null = {PairedTest(*(row[name] for name in PairedTest._fields)): row for row in rows}
    found: list[tuple[str, Question, list[Effect]]] = []
    for scale, question, test in primaries():
        found.append((scale, question, [effect(records, plan, each) for each in question.tests if each.scale == scale]))
        if not found[-1][2][0].complete:
            raise UserError(f"not all runs of {test.regime} are recorded: make claims runs those that are missing")
    p = np.array([effects[0].p for _, _, effects in found], dtype=np.float64)
    scales = np.array([scale for scale, _, _ in found])
    of_scale = np.concatenate([holm(p[scales == name]) for name in TASKS])
    out = []
    for (scale, question, effects), p_scale, p_joint in zip(found, of_scale, holm(p), strict=True):
        gate = null[effects[0].test]
        verdict = _verdict(records, question, effects[0], p_joint, passes=gate["passes"])
        out.append(Answer(question, scale, effects, float(p_scale), float(p_joint), gate.get("detectable"), verdict))
    return out


def _verdict(records: Records, question: Question, primary: Effect, p: float, *, passes: bool) -> str:
    test, difference = primary.test, primary.difference or 0.0
    if not passes:
        return "withdrawn"
    lost = [collapsed(record) for record in records[test.regime, test.a].values()]
    # The claim says that `a` stays accurate, and over half of its runs collapse (one-sided, 5 %).
    if question.stays and stats.binomtest(int(sum(lost)), len(lost), 0.5, "greater").pvalue <= ALPHA:
        return "refuted"
    if p <= ALPHA:
        return "holds" if question.expected * difference > 0 else "refuted"
    if primary.low_90 is not None and primary.low_90 > -MARGIN and (primary.high_90 or 0.0) < MARGIN:
        return "equivalent" if question.expected else "holds"
    return "undecided"


def as_json(found: list[Answer]) -> list[dict[str, Any]]:
    """The answers as the committed file holds them; numbers to six digits, so that machines agree on them."""

    def short(row: dict[str, Any]) -> dict[str, Any]:
        return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}

    rows = []
    for answer in found:
        effects = [{**each.test._asdict(), **each._asdict()} for each in answer.effects]
        named = {"question": answer.question.name, "scale": answer.scale, "verdict": answer.verdict}
        named |= {name: getattr(answer, name) for name in ("p_corrected", "p_joint", "detectable")}
        shown = [{key: value for key, value in short(row).items() if key != "test"} for row in effects]
        rows.append({**short(named), "effects": shown})
    return rows


# --- entropy at the start


class Predictor(NamedTuple):
    """How well the entropy at the start tells which runs of a regime collapse."""

    runs: int
    collapsed: int
    in_collapsed: float
    """Mean entropy at the start, in nats."""
    in_others: float
    auc: float | None
    """Chance that of two runs of one regime the one that collapsed began with the higher entropy.

    None where in every regime all or none collapsed.
    """
    low: float | None
    high: float | None
    """95 % interval by resampling seeds."""


def entropy_as_predictor(records: Records, scale: str) -> Predictor | None:
    """The AUC of the entropy at the start within a scale's regimes, over runs without a gate; None without runs."""
    rows = [
        # Of the first block of steps: within it the policy has hardly moved.
        (regime, seed, curve(record, "entropy/mean")[1][0], bool(collapsed(record)))
        for (regime, method), found in records.items()
        if method in WITHOUT_GATE and regime.startswith(f"{scale}-")
        for seed, record in found.items()
    ]
    if not rows:
        return None
    regimes, seeds, entropy, lost = map(np.array, zip(*rows, strict=True))
    auc = _auc(entropy, lost, regimes)
    generator, drawn = np.random.default_rng(0), []
    by_seed = [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]
    for choice in generator.integers(len(by_seed), size=(RESAMPLES if auc is not None else 0, len(by_seed))):
        i = np.concatenate([by_seed[j] for j in choice])
        drawn.append(_auc(entropy[i], lost[i], regimes[i]))
    known = [value for value in drawn if value is not None]
    low, high = np.percentile(known, [2.5, 97.5]) if known else (None, None)
    means = (float(entropy[part].mean()) if part.any() else math.nan for part in (lost, ~lost))
    return Predictor(len(rows), int(lost.sum()), *means, auc, low, high)


def _auc(values: Array, positive: NDArray[np.bool_], groups: NDArray[np.str_]) -> float | None:
    """The AUC over the pairs within a group. Regimes differ in more than entropy, so pairs across them say nothing."""
    ordered, compared = 0.0, 0
    for group in np.unique(groups):
        one, other = values[(groups == group) & positive], values[(groups == group) & ~positive]
        if one.size and other.size:
            ordered += float(stats.mannwhitneyu(one, other).statistic)
            compared += one.size * other.size
    return ordered / compared if compared else None
