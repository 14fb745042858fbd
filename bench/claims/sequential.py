"""The second experiment: what it finds at each look, and its warnings of a loss of accuracy.

Each test is looked at twice, with O'Brien and Fleming's bounds. At look k, with the share t_k of
the seeds, the statistic is z_k; under the null hypothesis z_k sqrt(t_k) is a Brownian motion at t_k. The bounds are
|z_k| >= c / sqrt(t_k), with c such that the chance to cross any of them is the level. The p-value after a look is the
smallest level whose bounds have been crossed so far: it may be corrected like any other (Jennison and Turnbull, Group
Sequential Methods, 1999, chapter 9). One-sided tests, of equivalence, use the same bounds at twice their level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from bench.claims.measures import VALIDATION, Record, curve, lost_at
from bench.claims.plan import PairedTest, Plan, Test
from bench.claims.statistics import ALPHA, Array, Records, pairs
from gtpo.evalkit.differences import holm

WARNING = "entropy against KL as a warning"
HORIZON = 20
"""Steps within which a loss counts as announced."""
INDICATORS = ("entropy/mean", "kl/untrained", "completions/length", "loss", "grad_norm")
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


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
                held_out = accuracy[(steps > t - HORIZON) & (steps <= t)]  # none with one validation, at the end
                level = float(held_out.mean()) if held_out.size else math.nan
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


def auc_and_reach(runs: list[tuple[Any, int, Record, float]]) -> tuple[Array, Array]:
    """(AUC of each indicator, half of its 95 % interval by the jackknife over seeds)."""
    auc, without = warning_auc(runs, INDICATORS)
    return auc, 1.96 * math.sqrt(len(without) - 1) * without.std(0)


def compared_auc(auc: Array, without: Array) -> tuple[float, float]:
    """(difference of two AUCs, its standard error by the jackknife over seeds)."""
    parts = without[:, 0] - without[:, 1]
    n = len(parts)
    return float(auc[0] - auc[1]), math.sqrt((n - 1) / n * float(((parts - parts.mean()) ** 2).sum()))


def warning_runs(records: Records, regime: str) -> list[tuple[Any, int, Record, float]]:
    """Every run of a regime for warning_auc; a stratum is a method."""
    found = ((method, seeds) for (its, method), seeds in records.items() if its == regime)
    return [(method, seed, record, lost_at(record)) for method, seeds in found for seed, record in seeds.items()]
