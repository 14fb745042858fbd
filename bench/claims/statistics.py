"""From the committed records to the answers: effects, intervals, p-values and verdicts of both experiments.

Accuracy (scores per question) is compared as `gtpo compare` does it: seeds x questions, paired
(gtpo.evalkit.differences). Everything else is one number a run: the mean difference over seeds with Student's interval
(SciPy), and the exact sign flip test over seeds (gtpo.evalkit.permutation).

The second experiment takes two looks at each test, with O'Brien and Fleming's bounds. At look k, with the share t_k of
the seeds, the statistic is z_k; under the null hypothesis z_k sqrt(t_k) is a Brownian motion at t_k. The bounds are
|z_k| >= c / sqrt(t_k), with c such that the chance to cross any of them is the level. The p-value after a look is the
smallest level whose bounds have been crossed so far: it may be corrected like any other (Jennison and Turnbull, Group
Sequential Methods, 1999, chapter 9). One-sided tests, of equivalence, use the same bounds at twice their level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

from bench.claims.measures import MEASURES, VALIDATION, Record, collapsed, curve, evaluated, lost_at, scores
from bench.claims.plan import TASKS, PairedTest, Plan, Question, Test, primaries
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
WARNING = "entropy against KL as a warning"
HORIZON = 20
"""Steps within which a loss counts as announced."""
INDICATORS = ("entropy/mean", "kl/untrained", "completions/length", "loss", "grad_norm")
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


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


# --- two looks


def crossing(c: float | Array, share: float) -> Array:
    """The chance that a Brownian motion's |value| reaches c at `share` or at 1, where it has ended by then."""
    c = np.minimum(np.asarray(c, dtype=np.float64), 9.0)
    first = c / math.sqrt(share)  # on the scale of z_1, a standard normal
    x = first[..., None] * _NODES
    rest = math.sqrt(1 - share)
    moved = math.sqrt(share) * x
    stays = stats.norm.cdf((c[..., None] - moved) / rest) - stats.norm.cdf((-c[..., None] - moved) / rest)
    inside = first * (stats.norm.pdf(x) * stays * _WEIGHTS).sum(-1)
    return np.clip(1 - inside, 0.0, 1.0)


def bound(level: float, share: float) -> float:
    """The constant c of a two-sided level."""
    return float(brentq(lambda c: float(crossing(c, share)) - level, 0.5, 8.0, xtol=1e-10))


def p_value(p_of_looks: Sequence[Array], shares: Sequence[float]) -> Array:
    """The p-value after one or two looks, of the looks' own two-sided p-values. shares: [s1] or [s1, 1]."""
    reached = [stats.norm.isf(np.maximum(p, 1e-15) / 2) * math.sqrt(t) for p, t in zip(p_of_looks, shares, strict=True)]
    return crossing(np.max(reached, axis=0), shares[0])


def level_at(level: float, share: float, first: float) -> float:
    """The two-sided level that a look with `share` of the seeds may spend, where the first look is at `first`."""
    return float(2 * stats.norm.sf(bound(level, first) / math.sqrt(share)))


def looks(plan: Plan, regime: str) -> tuple[list[int], list[int]]:
    """The seeds of the look at half, and all seeds."""
    seeds = list(dict.fromkeys(run.seed for run in plan.runs if run.regime == regime))
    half = seeds[: -(-len(seeds) // 2)]
    return half, seeds


class Look(NamedTuple):
    """A primary test as far as it has got."""

    test: Test
    taken: int
    """Looks taken: 0, 1, 2."""
    seeds: int
    """Seeds recorded."""
    planned: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval that covers with 95 % over both looks."""
    p: float = 1.0
    """Over both looks; 1 before the first."""
    equivalent: bool = False


def two_sided(d: Array, error: Array, n: Array | int) -> Array:
    """Student's two-sided p; 1 without any spread, which says that the measure had no value to differ in."""
    t = np.divide(d, error, out=np.zeros_like(d), where=error > 0)
    return 2 * stats.t.sf(np.abs(t), np.asarray(n) - 1)


def equivalent(d: list[Array], error: list[Array], n: list[int], shares: list[float], margin: float) -> Array:
    """Return whether two one-sided tests at 5 % over the looks show a difference below the margin at any of them."""
    found = []
    for mean, sem, seeds, t in zip(d, error, n, shares, strict=True):
        half = stats.t.isf(level_at(2 * ALPHA, t, shares[0]) / 2, seeds - 1) * sem
        found.append((mean - half > -margin) & (mean + half < margin) & (sem > 0))
    return np.any(found, axis=0)


def look_at(records: Records, plan: Plan, test: Test) -> Look:
    """Take every look whose seeds are all recorded."""
    chosen = looks(plan, test.regime)
    planned = len(chosen[1])
    if test.measure == WARNING:
        runs = warning_runs(records, test.regime)
        methods = [method for regime, method in plan.seeds if regime == test.regime]
        seeds = set.intersection(*(set(records.get((test.regime, method), {})) for method in methods))

        def estimate(its: list[int]) -> tuple[float, float]:
            return compared_auc(*warning_auc([run for run in runs if run[1] in its], (test.a, test.b)))
    else:
        _, known, a, b = pairs(records, PairedTest(test.regime, test.a, test.b, test.measure))
        found, seeds = dict(zip(known, a - b, strict=True)), set(known)

        def estimate(its: list[int]) -> tuple[float, float]:
            d = np.array([found[seed] for seed in its])
            return float(d.mean()), float(stats.sem(d))

    taken = [its for its in chosen if set(its) <= seeds]
    if not taken:
        return Look(test, 0, len(seeds), planned)
    d, error = np.array([estimate(its) for its in taken]).T
    n = np.array([len(its) for its in taken])
    shares = [len(its) / planned for its in taken]
    wide = stats.t.isf(level_at(ALPHA, shares[-1], shares[0]) / 2, n[-1] - 1) * error[-1]
    p = float(p_value(list(two_sided(d, error, n)), shares))
    same = bool(equivalent(list(d), list(error), list(n), shares, test.margin))
    return Look(test, len(taken), len(seeds), planned, d[-1], d[-1] - wide, d[-1] + wide, p, same)


def verdicts(found: list[Look]) -> list[str]:
    """One word each. Holm's correction counts the tests that have not been looked at, with p = 1."""
    out = []
    for look, p in zip(found, holm([look.p for look in found]), strict=True):
        if not look.taken:
            out.append("not tested yet")
        elif p <= ALPHA:
            out.append("holds" if look.test.expected * (look.difference or 0.0) > 0 else "refuted")
        elif look.equivalent:
            out.append("equivalent")
        else:
            out.append("undecided" if look.taken == 2 else "continues")
    return out


def settled(records: Records, plan: Plan) -> set[str]:
    """The regimes whose look at half has decided all their primary tests: their second half is not run."""
    found = [look_at(records, plan, test) for test in plan.tests]
    open_ones = {look.test.regime for look, verdict in zip(found, verdicts(found), strict=True)
                 if verdict in ("not tested yet", "continues")}  # fmt: skip
    return {look.test.regime for look in found if look.taken == 1} - open_ones


# --- warnings


def warning_auc(runs: list[tuple[Any, int, Record, float]], keys: tuple[str, ...]) -> tuple[Array, Array]:
    """AUC per indicator and its delete-one-seed values [seeds, keys].

    runs: (stratum, seed, record, step at which it lost half of its base's accuracy or inf). At every
    HORIZON-th step each run that has not lost it yet is a case; its score is how far the indicator has moved from its
    start. What a straight line in held-out accuracy explains within a stratum and step is taken out first. Pairs are
    of one stratum and one step. NaN without a pair.
    """
    cases: dict[Any, list[tuple[int, bool, float, list[float]]]] = {}
    for stratum, seed, record, lost in runs:
        steps, accuracy = curve(record, VALIDATION)
        series = [curve(record, key) for key in keys]
        for t in range(HORIZON, int(steps[-1]) - HORIZON + 1, HORIZON):
            if lost > t:
                moved = [abs(v[(s > t - HORIZON) & (s <= t)].mean() - v[s <= HORIZON].mean()) for s, v in series]
                level = float(accuracy[(steps > t - HORIZON) & (steps <= t)].mean())
                cases.setdefault((stratum, t), []).append((seed, lost <= t + HORIZON, level, moved))
    seeds = sorted({seed for _, seed, _, _ in runs})
    right, pairs = np.zeros((len(seeds), len(seeds), len(keys))), np.zeros((len(seeds), len(seeds)))
    place = {seed: i for i, seed in enumerate(seeds)}
    for found in cases.values():
        event = np.array([hit for _, hit, _, _ in found])
        if event.all() or not event.any() or len(found) < 5:
            continue
        level = np.array([acc for _, _, acc, _ in found])
        x = np.array([row for _, _, _, row in found])
        centred = level - level.mean()
        slope = centred @ x / max(float(centred @ centred), 1e-12)
        x = x - centred[:, None] * slope
        who = np.array([place[seed] for seed, _, _, _ in found])
        one, other = np.flatnonzero(event), np.flatnonzero(~event)
        above = (x[one][:, None] > x[other][None]) + 0.5 * (x[one][:, None] == x[other][None])
        np.add.at(right, (who[one][:, None], who[other][None]), above)
        np.add.at(pairs, (who[one][:, None], who[other][None]), 1.0)
    total, count = right.sum((0, 1)), pairs.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        without = total - right.sum(0) - right.sum(1) + right[np.arange(len(seeds)), np.arange(len(seeds))]
        left = count - pairs.sum(0) - pairs.sum(1) + np.diag(pairs)
        return total / count, without / left[:, None]


def compared_auc(auc: Array, without: Array) -> tuple[float, float]:
    """(difference of two AUCs, its standard error by the jackknife over seeds)."""
    parts = without[:, 0] - without[:, 1]
    n = len(parts)
    return float(auc[0] - auc[1]), math.sqrt((n - 1) / n * float(((parts - parts.mean()) ** 2).sum()))


def warning_runs(records: Records, regime: str) -> list[tuple[Any, int, Record, float]]:
    """Every run of a regime for warning_auc; a stratum is a method."""
    found = ((method, seeds) for (its, method), seeds in records.items() if its == regime)
    return [(method, seed, record, lost_at(record)) for method, seeds in found for seed, record in seeds.items()]
