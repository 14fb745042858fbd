"""What the records show beyond the primary tests: tables without a pre-stated test, marked exploratory on the page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims.answers import Answer, Effect, Records, effect
from bench.claims.measures import collapsed, initial_entropy
from bench.claims.plan import Plan
from bench.claims.questions import BASELINES, TASKS, PairedTest

RESAMPLES = 2000
WITHOUT_GATE = ("grpo", "gtpo-no-filter")


def secondary(found: list[Answer]) -> list[Effect]:
    """Every test but the primary and the withdrawn ones, each once, with an interval and all planned seeds recorded."""
    tests: dict[PairedTest, Effect] = {}
    for answer in found:
        if answer.verdict == "withdrawn":
            continue
        for each in answer.effects[1:]:
            if each.difference is not None and each.complete:
                tests.setdefault(each.test, each)
    return list(tests.values())


def apart_from_zero(effects: list[Effect]) -> list[Effect]:
    """Those whose 95 % interval excludes 0. A width of 0 says that all seeds agree, not that the interval is known."""
    return [each for each in effects if (each.low or 0.0) * (each.high or 0.0) > 0 and each.low != each.high]


def at_every_scale(effects: list[Effect]) -> list[list[Effect]]:
    """Those of them that are found at every scale, with the same sign: one list per comparison."""
    alike: dict[tuple[str, str, str | None, str, bool], list[Effect]] = {}
    for each in effects:
        regime = each.test.regime.removeprefix(f"{each.test.scale}-")
        measure = each.test.measure.removeprefix(TASKS[each.test.scale])
        key = (regime, each.test.a, each.test.b, measure, (each.difference or 0.0) > 0)
        alike.setdefault(key, []).append(each)
    return [found for found in alike.values() if len(found) == len(TASKS)]


def regimes_with_baselines(plan: Plan) -> list[str]:
    """The regimes that run three baselines or more."""
    regimes = dict.fromkeys(regime for regime, _ in plan.seeds)
    return [regime for regime in regimes if sum((regime, name) in plan.seeds for name in BASELINES) >= 3]


def against_baselines(records: Records, plan: Plan) -> dict[str, dict[str, Effect]]:
    """Regime -> baseline -> pass@1 of GTPO minus the baseline's, for the regimes that run several."""
    out: dict[str, dict[str, Effect]] = {}
    for regime in regimes_with_baselines(plan):
        names = [name for name in BASELINES if (regime, name) in plan.seeds]
        measure = f"{plan.evaluation(regime)[0]}:pass@1"
        out[regime] = {name: effect(records, plan, PairedTest(regime, "gtpo", name, measure)) for name in names}
    return out


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


def entropy_at_start(records: Records, scale: str) -> list[tuple[str, int, float, bool]]:
    """(regime, seed, entropy at the start in nats, whether it collapsed) of a scale's runs without a gate."""
    return [
        (regime, seed, initial_entropy(record), bool(collapsed(record)))
        for (regime, method), found in records.items()
        if method in WITHOUT_GATE and regime.startswith(f"{scale}-")
        for seed, record in found.items()
    ]


def entropy_as_predictor(records: Records, scale: str) -> Predictor | None:
    """The AUC of the entropy at the start within a scale's regimes, over runs without a gate; None without runs."""
    runs = entropy_at_start(records, scale)
    if not runs:
        return None
    regimes = np.array([regime for regime, _, _, _ in runs])
    seeds = np.array([seed for _, seed, _, _ in runs])
    entropy = np.array([value for _, _, value, _ in runs])
    lost = np.array([state for _, _, _, state in runs])
    auc = _auc(entropy, lost, regimes)
    drawn = []
    generator = np.random.default_rng(0)
    by_seed = [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]
    for choice in generator.integers(len(by_seed), size=(RESAMPLES if auc is not None else 0, len(by_seed))):
        rows = np.concatenate([by_seed[i] for i in choice])
        drawn.append(_auc(entropy[rows], lost[rows], regimes[rows]))
    known = [value for value in drawn if value is not None]
    low, high = np.percentile(known, [2.5, 97.5]) if known else (None, None)
    means = (float(entropy[part].mean()) if part.any() else float("nan") for part in (lost, ~lost))
    return Predictor(len(runs), int(lost.sum()), *means, auc, low, high)


def _auc(values: NDArray[np.float64], positive: NDArray[np.bool_], groups: NDArray[np.str_]) -> float | None:
    """The AUC over the pairs within a group. Regimes differ in more than entropy, so pairs across them say nothing."""
    ordered, compared = 0.0, 0
    for group in np.unique(groups):
        one, other = values[(groups == group) & positive], values[(groups == group) & ~positive]
        if one.size and other.size:
            ordered += float(stats.mannwhitneyu(one, other).statistic)
            compared += one.size * other.size
    return ordered / compared if compared else None
