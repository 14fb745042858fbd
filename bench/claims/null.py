"""`python -m bench.claims.null`: what the primary tests say where there is nothing to find, and what they would find.

Every primary test is run, as it is, on placebos: records in which the answer is known to be "nothing". A test that
rejects more than 5 % of them does not test its claim, and the page withdraws it. The numbers go to null.json in the
folder of the evidence; a test of the suite holds the two together, and a second plan whose gate fails does not pass it.

Placebos
    labels       the difference taken out, then the methods swapped at random within each seed
    unchanged    both methods are the base: correct counts drawn anew from the base's own shares (accuracy)
    trendless    the curve replaced by noise around its mean, as large as the curve's own from block to block
    accelerating the same noise around a rise with the square of the step, to the curve's own last value
    information  entropy replaced by the square root of KL: the same information at the same time
    controls     entropy replaced by another recorded curve (one test, no simulation)
    alarm        how often a policy that never changes counts as collapsed, at the accuracy of the regime's base

Of the second experiment (`--plan bench/claims/second.yaml`), with both its looks: labels, unchanged, a difference as
large as the margin, and one that is planted; of its warnings noise, and KL times noise. The differences between seeds
are those of the first experiment's records in the same kind of regime, whose training curve stands in for validations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims import sequential
from bench.claims import statistics as st
from bench.claims.measures import MEASURES, VALIDATION, Record, collapsed, curve, running, scores
from bench.claims.plan import PLAN, PairedTest, Plan, Test, load_plan, primaries
from bench.claims.run import as_program
from bench.claims.sequential import HORIZON, WARNING, looks
from bench.claims.statistics import (
    ALPHA,
    Array,
    Effect,
    Records,
    evaluation_of,
    pairs,
    stacked,
)
from bench.common import parser
from gtpo.common.files import write_json
from gtpo.evalkit.differences import differences
from gtpo.evalkit.permutation import sign_flip_p

PASSES = 0.065
"""The upper end of the 95 % interval of a share of false rejections must not lie above this."""
PLACEBOS = ("labels", "unchanged", "trendless", "accelerating", "noise", "information", "equivalent_at_margin")
SIMULATIONS = {False: 2000, True: 20_000}
"""Of the first experiment, and of a plan that names its own tests."""
WARNINGS = 2000
"""Simulations of a test of warnings, which takes longer."""
POWER = 0.8
LABELS = 6
"""Seeds from which on labels are swapped: of the 32 ways of five seeds the most extreme two are already 6 %."""
CONTROLS = ("completions/length", "loss", "grad_norm", "reward/format")
COMPLETIONS = 8
"""Completions of a prompt in the regimes of both scales."""


class Share(NamedTuple):
    """How often, of how many, with the exact 95 % interval (Clopper, Pearson)."""

    share: float
    low: float
    high: float
    of: int


def share(hits: NDArray[np.bool_]) -> Share:
    """Count hits."""
    found = stats.binomtest(int(hits.sum()), hits.size).proportion_ci(0.95)
    return Share(float(hits.mean()), float(found.low), float(found.high), int(hits.size))


def paired_rejections(records: Records, test: PairedTest, signs: Array, shift: float) -> NDArray[np.bool_]:
    """Return whether the test rejects, per row of signs [T, S].

    The difference of the methods is taken out, the methods are swapped where the sign is -1, `shift` is added.
    """
    scored = evaluation_of(test.measure)
    if scored is None:
        _, _, a, b = pairs(records, test)
        p, _ = sign_flip_p(signs * (a - b - (a - b).mean()) + shift)
        return p <= ALPHA
    assert test.b is not None
    a, b = stacked(records, test, sorted(set(records[test.regime, test.a]) & set(records[test.regime, test.b])))
    a = a - (a - b).mean()
    kept = signs[:, :, None] > 0
    found = differences(np.where(kept, a, b) + shift, np.where(kept, b, a), seeds_paired=True, exact_too=False)
    return np.array([pair.p_value <= ALPHA for pair in found])


def detectable(records: Records, test: PairedTest, signs: Array, largest: float) -> float | None:
    """The smallest shift that the test finds with POWER, to 1 % of `largest`; None where `largest` is not enough."""
    low, high = 0.0, largest
    if paired_rejections(records, test, signs, high).mean() < POWER:
        return None
    while high - low > 0.01 * largest:
        middle = (low + high) / 2
        found = paired_rejections(records, test, signs, middle).mean() >= POWER
        low, high = (low, middle) if found else (middle, high)
    return high


def unchanged(records: Records, test: PairedTest, rng: np.random.Generator, runs: int) -> Share | None:
    """Both methods left as the base: rejections of the accuracy test. None for another measure, or without a base."""
    scored = evaluation_of(test.measure)
    rows = [record["of_base"] for _, record in sorted(records[test.regime, test.a].items())]
    if scored is None or scored[1] != "pass@1" or None in rows:
        return None
    n = rows[0]["evaluation"][scored[0]]["n"]
    p = np.stack([scores(row, *scored) for row in rows])
    a, b = (rng.binomial(n, p, size=(runs, *p.shape)) / n for _ in range(2))
    found = differences(a, b, seeds_paired=True, exact_too=False)
    return share(np.array([pair.p_value <= ALPHA for pair in found]))


def noise_of(values: Array) -> float:
    """The standard deviation of a curve's blocks around its trend: of neighbours' differences, over the root of 2."""
    return float(np.std(np.diff(values)) / math.sqrt(2)) if values.size > 1 else 0.0


def trendless(values: Array, rng: np.random.Generator) -> Array:
    """Noise around the curve's mean."""
    return values.mean() + noise_of(values) * rng.standard_normal(values.size)


def accelerating(values: Array, rng: np.random.Generator) -> Array:
    """Noise around a rise with the square of the step, from the curve's first value to its last."""
    rise = np.linspace(0, 1, values.size) ** 2
    return values[0] + (values[-1] - values[0]) * rise + noise_of(values) * rng.standard_normal(values.size)


def with_entropy(record: Record, values: Array) -> Record:
    """The record with its entropy replaced, on the blocks where it has values."""
    metrics, filled = record["curves"]["metrics"], iter(values.tolist())
    entropy = {"mean": [None if old is None else next(filled) for old in metrics["entropy/mean"]["mean"]]}
    return {**record, "curves": {**record["curves"], "metrics": {**metrics, "entropy/mean": entropy}}}


def lead_placebos(
    records: Records, plan: Plan, test: PairedTest, rng: np.random.Generator, runs: int
) -> dict[str, Any]:
    """The lead of entropy over KL with entropy replaced by what can hold no warning, or no more than KL itself."""

    def lead(change: Callable[[Record], Array]) -> Effect:
        found = {seed: with_entropy(r, change(r)) for seed, r in records[test.regime, test.a].items()}
        return st.effect({(test.regime, test.a): found}, plan, test)

    def on_entropys_steps(record: Record, key: str) -> Array:
        return np.interp(curve(record, "entropy/mean")[0], *curve(record, key))

    out: dict[str, Any] = {}
    for make in (trendless, accelerating):
        found = [lead(lambda record, make=make: make(curve(record, "entropy/mean")[1], rng)) for _ in range(runs)]
        out[make.__name__] = share(np.array([each.p is not None and each.p <= ALPHA for each in found]))._asdict()
        out[make.__name__]["lead"] = float(np.mean([each.difference or 0.0 for each in found]))
    changes: dict[str, Callable[[Record], Array]] = {
        "information": lambda record: np.sqrt(np.maximum(on_entropys_steps(record, "kl/untrained"), 0.0)),
        **{key: partial(on_entropys_steps, key=key) for key in CONTROLS},
    }
    for name, change in changes.items():
        one = lead(change)
        out[name] = {"lead": one.difference, "low": one.low, "high": one.high, "p": one.p}
    return out


def false_collapses(records: Records, plan: Plan, regime: str, rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """How often a policy that never changes counts as collapsed: rewards drawn at the base's shares of each problem."""
    base = next(run.base for run in plan.runs if run.regime == regime and run.base)
    assert base is not None
    benchmark, _ = plan.evaluation(regime)
    p = np.concatenate([scores(r, benchmark, "pass@1") for r in records[base.regime, "base"].values()])
    its = next(iter(records[regime, "grpo"].values()))
    ends = its["curves"]["last_step_of_block"]
    prompts = its["config"]["training"]["per_device_train_batch_size"] // COMPLETIONS
    blocks = np.diff([0, *ends])
    hits = []
    for _ in range(runs):
        rewards = [
            10 * rng.binomial(COMPLETIONS, rng.choice(p, steps * prompts)).mean() / COMPLETIONS for steps in blocks
        ]
        curves = {"last_step_of_block": ends, "metrics": {"reward/accuracy": {"mean": rewards}}}
        hits.append(bool(collapsed({"curves": curves})))
    return {"accuracy": float(p.mean()), "prompts": prompts, **share(np.array(hits))._asdict()}


def of_test(records: Records, plan: Plan, test: PairedTest, rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """Everything about one primary test."""
    found: dict[str, Any] = test._asdict()
    if test.b is None:
        return found | lead_placebos(records, plan, test, rng, runs)
    seeds = pairs(records, test)
    signs = rng.choice([-1.0, 1.0], size=(runs, len(seeds.seeds)))
    if len(seeds.seeds) >= LABELS:
        found["labels"] = share(paired_rejections(records, test, signs, 0.0))._asdict()
    bases = unchanged(records, test, rng, runs)
    if bases is not None:
        found["unchanged"] = bases._asdict()
    level = float(np.abs(seeds.b).mean())
    largest = 0.5 if evaluation_of(test.measure) else 10 * level
    found["detectable"] = detectable(records, test, signs[: runs // 2], largest)
    found["level"] = level
    return found


def passes(found: dict[str, Any]) -> bool:
    """Return whether a test rejects few enough of its placebos; of one that is no simulation, whether it rejects it."""
    rows = [found[name] for name in PLACEBOS if name in found]
    return all(row["high"] <= PASSES if "share" in row else row["p"] is None or row["p"] > ALPHA for row in rows)


def null_gate(records: Records, plan: Plan, runs: int) -> dict[str, Any]:
    """Every primary test and the alarm of every regime."""
    rng = np.random.default_rng(0)
    tests = []
    for _, question, test in primaries():
        row = of_test(records, plan, test, rng, runs)
        tests.append({"question": question.name, **row, "passes": passes(row)})
    regimes = [regime for regime in plan.regimes if "grpo" in plan.methods(regime)]
    alarms = {regime: false_collapses(records, plan, regime, rng, runs) for regime in regimes}
    return {"simulations": runs, "passes_at": PASSES, "tests": tests, "collapsed": alarms}


# --- the second experiment


def stand_in(record: Record, slower: float, rng: np.random.Generator, horizon: int) -> Record:
    """A record of the first experiment as one of this: validations drawn at its training accuracy, time stretched."""
    steps, rewards = curve(record, "reward/accuracy")
    at = np.arange(10, horizon + 1, 10)
    p = np.clip(np.interp(at, slower * steps, running(rewards) / 10), 0, 1)
    metrics = {VALIDATION: {"mean": (rng.binomial(256, p) / 256).tolist()}}
    return {**record, "curves": {"last_step_of_block": at.tolist(), "metrics": metrics}, "old": record}


def pool(records: Records, test: Test, rng: np.random.Generator) -> Array:
    """Differences of the first experiment's seeds, several draws of the validations each."""
    a, b = (records[test.source, name] for name in (test.a, test.b))
    horizon = 400 if test.source == "micro-unstable" else 200

    def drawn(record: Record) -> float:
        if test.measure == "accuracy at the end":
            return float(rng.binomial(4096, scores(record, "arithmetic", "pass@1").mean())) / 4096
        of = record if "entropy" in test.measure else stand_in(record, test.slower, rng, horizon)
        return MEASURES[test.measure](of)

    seeds = sorted(set(a) & set(b))
    return np.array([drawn(a[seed]) - drawn(b[seed]) for seed in seeds for _ in range(20)])


def unchanged_pool(records: Records, test: Test, rng: np.random.Generator, size: int) -> Array | None:
    """Differences of two policies that stay the base, validated as a run's are. None for other measures."""
    if test.measure not in ("accuracy over training", "accuracy at the end"):
        return None
    p = np.array([scores(record, "arithmetic", "pass@1").mean() for record in records["base-micro", "base"].values()])
    n = 512 * 8 if test.measure == "accuracy at the end" else 20 * 256
    drawn = rng.choice(p, size)
    return (rng.binomial(n, drawn) - rng.binomial(n, drawn)) / n


def simulate(d: Array, plan: Plan, test: Test) -> tuple[Array, Array]:
    """(rejected at 5 % over both looks, equivalent) of simulations [T, S]."""
    half, every = looks(plan, test.regime)
    shares = [len(half) / len(every), 1.0]
    parts = [d[:, : len(half)], d]
    means, errors, counts = zip(*((p.mean(-1), stats.sem(p, axis=-1), p.shape[-1]) for p in parts), strict=True)
    p_values = [sequential.two_sided(*each) for each in zip(means, errors, counts, strict=True)]
    rejected = sequential.p_value(p_values, shares) <= ALPHA
    return rejected, sequential.equivalent(list(means), list(errors), list(counts), shares, test.margin)


def warning_placebo(runs: list[tuple[Any, int, Record, float]], kind: str, rng: np.random.Generator, test: Test,
                    seeds: int) -> tuple[float, float]:  # fmt: skip
    """The test of two indicators on runs drawn anew, seed by seed, with both series replaced.

    noise: both are noise. information: both are KL, each times noise of its own. planted: noise, and the first moves by
    2 standard deviations 2 HORIZON steps before the accuracy is lost.
    """
    by_seed: dict[int, list[tuple[Any, int, Record, float]]] = {}
    for run in runs:
        by_seed.setdefault(run[1], []).append(run)
    made = []
    for new, old in enumerate(rng.choice(list(by_seed), seeds)):
        for stratum, _, record, lost in by_seed[old]:
            ends = np.array(record["curves"]["last_step_of_block"], dtype=np.float64)
            series = {}
            for key in (test.a, test.b):
                values = rng.standard_normal(ends.size)
                if kind == "information":
                    steps, kl = curve(record["old"], "kl/untrained")
                    values = np.interp(ends, steps, kl) * np.exp(0.5 * values)
                elif kind == "planted" and key == test.a:
                    values = values + 2.0 * (ends > lost - 2 * HORIZON)
                series[key] = {"mean": values.tolist()}
            # The same old seed may be drawn twice: the validations are drawn anew as well.
            accuracy = np.array(record["curves"]["metrics"][VALIDATION]["mean"])
            series[VALIDATION] = {"mean": (rng.binomial(256, accuracy) / 256).tolist()}
            made.append((stratum, new, {"curves": {"last_step_of_block": ends.tolist(), "metrics": series}}, lost))
    return sequential.compared_auc(*sequential.warning_auc(made, (test.a, test.b)))


def warning_gate(old: Records, plan: Plan, test: Test, rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """The warning's test on its placebos, as at the last look."""
    found: dict[str, Any] = test._asdict()
    made = {
        (test.source, method): {s: stand_in(r, test.slower, rng, 400) for s, r in old[test.source, method].items()}
        for method in ("gtpo", "grpo", "gtpo-conflict-only")
    }
    runs_made = sequential.warning_runs(made, test.source)
    n = len(looks(plan, test.regime)[1])
    for kind in ("noise", "information", "planted"):
        d, error = np.array([warning_placebo(runs_made, kind, rng, test, n) for _ in range(runs)]).T
        hits = sequential.two_sided(d, error, n) <= ALPHA
        found[kind] = {**share(hits)._asdict(), "difference": float(d.mean())}
    found["power"] = found["planted"]["share"]
    return found | {"passes": passes(found)}


def gate_of(old: Records, plan: Plan, test: Test, rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """One primary test on its placebos and its planted difference."""
    if test.measure == WARNING:
        return warning_gate(old, plan, test, rng, min(runs, WARNINGS))
    n = len(looks(plan, test.regime)[1])
    differences = pool(old, test, rng)
    centred = differences - differences.mean()
    signs = rng.choice([-1.0, 1.0], size=(runs, n))
    null = signs * rng.choice(centred, size=(runs, n))
    rejected, same = simulate(null, plan, test)
    found = {**test._asdict(), "spread": float(differences.std(ddof=1)), "labels": share(rejected)._asdict(),
             "equivalent_if_none": float(same.mean())}  # fmt: skip
    still = unchanged_pool(old, test, rng, runs * n)
    if still is not None:
        found["unchanged"] = share(simulate(still.reshape(runs, n), plan, test)[0])._asdict()
    planted = null + test.matters
    found["power"] = float(simulate(planted, plan, test)[0].mean())
    at_margin = null + test.margin
    found["equivalent_at_margin"] = share(simulate(at_margin, plan, test)[1])._asdict()
    return found | {"passes": passes(found)}


def second_gate(plan: Plan, runs: int) -> dict[str, Any]:
    """Every primary test of a plan that names its own."""
    old, rng = st.read_records(load_plan(PLAN)), np.random.default_rng(0)
    tests = [gate_of(old, plan, test, rng, runs) for test in plan.tests]
    return {"simulations": runs, "passes_at": PASSES, "tests": tests}


def main() -> None:
    plan = load_plan(parser(__doc__, plan=PLAN).parse_args().plan)
    runs = SIMULATIONS[bool(plan.tests)]
    found = second_gate(plan, runs) if plan.tests else null_gate(st.read_records(plan), plan, runs)
    write_json((plan.packed or plan.evidence) / "null.json", found)
    for row in found["tests"]:
        print(f"{row['regime']:16} {row['measure']:34} {row['a']:19} {'passes' if row['passes'] else 'FAILS'}")


if __name__ == "__main__":
    as_program(main)
