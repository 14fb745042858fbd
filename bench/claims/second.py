"""The second experiment (second.yaml): its measures, its looks, its verdicts, and `python -m bench.claims.second`.

The command runs the gate: every primary test, with both its looks, on placebos and on a planted difference. What it
finds goes to null.json in the folder of the evidence; a plan whose gate fails does not pass the suite.

The differences between seeds that the gate draws from are those of the first experiment's records in the same kind of
regime, whose training curve stands in for the validations.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims.answers import ALPHA, Records, pairs, read_records
from bench.claims.measures import MEASURES, VALIDATION, Record, curve, lost_at, running
from bench.claims.null import share
from bench.claims.plan import PLAN, Plan, load_plan
from bench.claims.questions import PairedTest
from bench.claims.record import pack, scores
from bench.claims.run import as_program
from bench.claims.sequential import level_at, p_value
from bench.claims.tables import PASSES
from gtpo.common.files import write_json
from gtpo.evalkit.differences import holm

Array = NDArray[np.float64]
SECOND = Path("bench/claims/second.yaml")
SIMULATIONS = 20_000
WARNING = "entropy against KL as a warning"
HORIZON = 20
"""Steps within which a loss counts as announced."""
SHOWN = ("entropy/mean", "kl/untrained", "completions/length", "conflict/fraction")
"""Curves whose last tenth the table of means shows."""
INDICATORS = ("entropy/mean", "kl/untrained", "completions/length", "loss", "grad_norm")


class Test(NamedTuple):
    """A primary test: a - b of one number per run, paired by seed."""

    __test__ = False  # not one of pytest's
    claim: str
    regime: str
    a: str
    b: str
    measure: str
    expected: int
    margin: float
    matters: float
    source: str
    slower: float = 1.0


def tests_of(plan: Plan) -> list[Test]:
    """The primary tests of the plan, in its order."""
    return [Test(**{"source" if key == "from" else key: value for key, value in row.items()}) for row in plan.tests]


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


def estimates(records: Records, plan: Plan, test: Test) -> tuple[int, list[tuple[float, float, int]]]:
    """(seeds recorded, of each look whose seeds all are: (difference, standard error, seeds))."""
    half, every = looks(plan, test.regime)
    if test.measure == WARNING:
        runs = warning_runs(records, test.regime)
        methods = [method for regime, method in plan.seeds if regime == test.regime]
        seeds = set.intersection(*(set(records.get((test.regime, method), {})) for method in methods))

        def estimate(chosen: list[int]) -> tuple[float, float, int]:
            auc, without = warning_auc([run for run in runs if run[1] in chosen], (test.a, test.b))
            return *compared_auc(auc, without, 0, 1), len(chosen)
    else:
        _, its, a, b = pairs(records, PairedTest(test.regime, test.a, test.b, test.measure))
        found = dict(zip(its, a - b, strict=True))
        seeds = set(its)

        def estimate(chosen: list[int]) -> tuple[float, float, int]:
            d = np.array([found[seed] for seed in chosen])
            return float(d.mean()), float(stats.sem(d)), len(chosen)

    return len(seeds), [estimate(chosen) for chosen in (half, every) if set(chosen) <= seeds]


def look_at(records: Records, plan: Plan, test: Test) -> Look:
    """Take every look whose seeds are all recorded."""
    half, every = looks(plan, test.regime)
    seeds, found = estimates(records, plan, test)
    if not found:
        return Look(test, 0, seeds, len(every))
    shares = [len(half) / len(every), 1.0][: len(found)]
    mean, error, _ = found[-1]
    wide = stats.t.isf(level_at(ALPHA, shares[-1], shares[0]) / 2, found[-1][2] - 1) * error
    d, e, n = (np.array(column) for column in zip(*found, strict=True))
    p = float(p_value(list(two_sided(d, e, n)), shares))
    same = bool(equivalent(list(d), list(e), list(n), shares, test.margin))
    return Look(test, len(found), seeds, len(every), mean, mean - wide, mean + wide, p, same)


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
    found = [look_at(records, plan, test) for test in tests_of(plan)]
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


def compared_auc(auc: Array, without: Array, i: int, j: int) -> tuple[float, float]:
    """(difference of two AUCs, its standard error by the jackknife over seeds)."""
    parts = without[:, i] - without[:, j]
    n = len(parts)
    return float(auc[i] - auc[j]), math.sqrt((n - 1) / n * float(((parts - parts.mean()) ** 2).sum()))


def warning_runs(records: Records, regime: str) -> list[tuple[Any, int, Record, float]]:
    """Every run of a regime for warning_auc; a stratum is a method."""
    found = ((method, seeds) for (its, method), seeds in records.items() if its == regime)
    return [(method, seed, record, lost_at(record)) for method, seeds in found for seed, record in seeds.items()]


# --- the gate


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
    p_values = [two_sided(*each) for each in zip(means, errors, counts, strict=True)]
    rejected = p_value(p_values, shares) <= ALPHA
    return rejected, equivalent(list(means), list(errors), list(counts), shares, test.margin)


PLACEBOS = ("noise", "information")


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
    return compared_auc(*warning_auc(made, (test.a, test.b)), 0, 1)


def warning_gate(old: Records, plan: Plan, test: Test, rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """The warning's test on its placebos, as at the last look."""
    found: dict[str, Any] = test._asdict()
    made = {
        (test.source, method): {s: stand_in(r, test.slower, rng, 400) for s, r in old[test.source, method].items()}
        for method in ("gtpo", "grpo", "gtpo-conflict-only")
    }
    runs_made = warning_runs(made, test.source)
    n = len(looks(plan, test.regime)[1])
    for kind in (*PLACEBOS, "planted"):
        d, error = np.array([warning_placebo(runs_made, kind, rng, test, n) for _ in range(runs)]).T
        hits = two_sided(d, error, n) <= ALPHA
        found[kind] = {**share(hits)._asdict(), "difference": float(d.mean())}
    found["power"] = found["planted"]["share"]
    found["passes"] = all(found[name]["high"] <= PASSES for name in PLACEBOS)
    return found


def gate_of(old: Records, plan: Plan, test: Test, rng: np.random.Generator, runs: int) -> dict[str, Any]:
    """One primary test on its placebos and its planted difference."""
    if test.measure == WARNING:
        return warning_gate(old, plan, test, rng, min(runs, 2000))
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
    names = ("labels", "unchanged", "equivalent_at_margin")
    found["passes"] = all(found[name]["high"] <= PASSES for name in names if name in found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=SIMULATIONS)
    parser.add_argument("--pack", action="store_true", help="put the records into the repository, and do nothing else")
    asked = parser.parse_args()
    plan = load_plan(SECOND)
    if asked.pack:
        print(", ".join(f"{regime}: {count} runs" for regime, count in pack(plan).items()))
        return
    old = read_records(load_plan(PLAN))
    rng = np.random.default_rng(0)
    rows = [gate_of(old, plan, test, rng, asked.simulations) for test in tests_of(plan)]
    assert plan.packed is not None
    write_json(plan.packed / "null.json", {"simulations": asked.simulations, "passes_at": PASSES, "tests": rows})
    for row in rows:
        shares = {name: f"{100 * row[name]['share']:.1f}" for name in
                  ("labels", "unchanged", "equivalent_at_margin", *PLACEBOS) if name in row}  # fmt: skip
        print(f"{row['regime']:13} {row['measure']:34} {row['a']:19} {shares} power {100 * row['power']:.0f} "
              f"{'passes' if row['passes'] else 'FAILS'}", flush=True)  # fmt: skip


if __name__ == "__main__":
    as_program(main)
