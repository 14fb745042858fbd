"""`python -m bench.claims.null`: what the primary tests say where there is nothing to find, and what they would find.

Every primary test is run, as it is, on placebos: records in which the answer is known to be "nothing". A test that
rejects more than 5 % of them does not test its claim, and the page withdraws it (questions.py). The numbers go to
null.json in the folder of the evidence; a test of the suite holds the two together.

Placebos
    labels       the difference taken out, then the methods swapped at random within each seed
    unchanged    both methods are the base: correct counts drawn anew from the base's own shares (accuracy)
    trendless    the curve replaced by noise around its mean, as large as the curve's own from block to block
    accelerating the same noise around a rise with the square of the step, to the curve's own last value
    information  entropy replaced by the square root of KL: the same information at the same time
    controls     entropy replaced by another recorded curve (one test, no simulation)
    alarm        how often a policy that never changes counts as collapsed, at the accuracy of the regime's base
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims.answers import ALPHA, Records, effect, evaluation_of, pairs, read_records
from bench.claims.measures import Record, collapsed, curve
from bench.claims.plan import PLAN, Plan, load_plan
from bench.claims.questions import PairedTest, primaries
from bench.claims.record import scores
from bench.claims.run import as_program
from bench.claims.tables import PASSES
from gtpo.common.files import write_json
from gtpo.evalkit.differences import differences
from gtpo.evalkit.permutation import sign_flip_p

Array = NDArray[np.float64]

SIMULATIONS = 2000
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
    seeds = sorted(set(records[test.regime, test.a]) & set(records[test.regime, test.b]))
    a, b = (np.stack([scores(records[test.regime, name][s], *scored) for s in seeds]) for name in (test.a, test.b))
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


def with_curve(record: Record, key: str, values: Array) -> Record:
    """The record with one curve replaced, on the blocks where it has values."""
    found = copy.copy(record)
    metrics = dict(record["curves"]["metrics"])
    old = metrics[key]["mean"]
    filled = iter(values.tolist())
    metrics[key] = {"mean": [None if value is None else next(filled) for value in old]}
    found["curves"] = {**record["curves"], "metrics": metrics}
    return found


def with_entropy(records: Records, test: PairedTest, change: Callable[[Record], Array]) -> Records:
    """The records of the test's runs with entropy replaced."""
    runs = records[test.regime, test.a]
    return {(test.regime, test.a): {s: with_curve(r, "entropy/mean", change(r)) for s, r in runs.items()}}


def lead_placebos(
    records: Records, plan: Plan, test: PairedTest, rng: np.random.Generator, runs: int
) -> dict[str, Any]:
    """The lead of entropy over KL with entropy replaced by what can hold no warning, or no more than KL itself."""

    def entropy(record: Record) -> Array:
        return curve(record, "entropy/mean")[1]

    def kl_on_entropys_steps(record: Record) -> Array:
        steps, kl = curve(record, "kl/untrained")
        return np.sqrt(np.maximum(np.interp(curve(record, "entropy/mean")[0], steps, kl), 0.0))

    out: dict[str, Any] = {}
    for name, make in (("trendless", trendless), ("accelerating", accelerating)):
        found = [
            effect(with_entropy(records, test, lambda r, make=make: make(entropy(r), rng)), plan, test)
            for _ in range(runs)
        ]
        out[name] = share(np.array([each.p is not None and each.p <= ALPHA for each in found]))._asdict()
        out[name]["lead"] = float(np.mean([each.difference or 0.0 for each in found]))
    changes: dict[str, Callable[[Record], Array]] = {"information": kl_on_entropys_steps}
    for key in CONTROLS:

        def control(record: Record, key: str = key) -> Array:
            steps, values = curve(record, key)
            return np.interp(curve(record, "entropy/mean")[0], steps, values)

        changes[key] = control
    for name, change in changes.items():
        one = effect(with_entropy(records, test, change), plan, test)
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
    """Return whether a test rejects few enough of its placebos."""
    names = ("labels", "unchanged", "trendless", "accelerating")
    if any(found[name]["high"] > PASSES for name in names if name in found):
        return False
    return all(found[name]["p"] is None or found[name]["p"] > ALPHA for name in ("information",) if name in found)


def null_gate(records: Records, plan: Plan, runs: int) -> dict[str, Any]:
    """Every primary test and the alarm of every regime."""
    rng = np.random.default_rng(0)
    tests = []
    for _, question, test in primaries():
        row = of_test(records, plan, test, rng, runs)
        tests.append({"question": question.name, **row, "passes": passes(row)})
    regimes = dict.fromkeys(regime for regime, method in plan.seeds if method == "grpo")
    alarms = {regime: false_collapses(records, plan, regime, rng, runs) for regime in regimes}
    return {"simulations": runs, "passes_at": PASSES, "tests": tests, "collapsed": alarms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--simulations", type=int, default=SIMULATIONS)
    asked = parser.parse_args()
    plan = load_plan(asked.plan)
    found = null_gate(read_records(plan), plan, asked.simulations)
    write_json(plan.evidence / "null.json", found)
    for row in found["tests"]:
        print(f"{row['regime']:16} {row['measure']:26} {'passes' if row['passes'] else 'FAILS'}", row.get("detectable"))


if __name__ == "__main__":
    as_program(main)
