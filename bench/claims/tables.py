"""The tables of the experiment's pages, and how their numbers are written.

What has no pre-stated test stands at the end: it is marked exploratory on the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.claims.answers import Answer, Effect, Records, effect
from bench.claims.measures import MEASURES, collapsed, evaluated, initial_entropy
from bench.claims.plan import Plan
from bench.claims.questions import BASELINES, TASKS, PairedTest
from gtpo.common.files import read_json

ORDER = {
    "withdrawn": "the test finds the effect in noise too",
    "refuted": "the opposite is shown, or the method that should stay accurate collapses too",
    "equivalent": "the two accuracies differ by less than 2 points",
    "undecided": "neither shown nor excluded",
    "holds": "shown",
    "no answer yet": "runs are missing",
}
"""Verdict -> what it means. What did not hold comes first."""
PASSES = 0.065
"""The upper end of the 95 % interval of a share of false rejections must not lie above this."""
RESAMPLES = 2000
WITHOUT_GATE = ("grpo", "gtpo-no-filter")
COLUMNS = ("pass@1", "maj@n", "pass@n", "hard: pass@1", "hard: pass@n", "format")


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; a column whose name begins with > is aligned to the right."""
    columns = list(columns)
    marks = "|".join("--:" if name.startswith(">") else ":--" for name in columns)
    lines = [" | ".join(cells) for cells in ((name.removeprefix(">") for name in columns), *rows)]
    return [f"| {lines[0]} |", f"|{marks}|", *(f"| {line} |" for line in lines[1:])]


def is_share(measure: str) -> bool:
    """Return whether a measure is a fraction, shown in percent and points."""
    return ":" in measure or measure in ("collapsed", "kept by the gate")


def unit(measure: str) -> str:
    """What a difference of a measure is counted in."""
    if is_share(measure):
        return "points"
    return "steps" if "lead" in measure else "points of 10" if "reward" in measure else "nats"


def number(value: float | None, measure: str, *, signed: bool = False, fine: bool = False) -> str:
    """A value as the page shows it; fine: with a digit more, where nats are few."""
    if value is None:
        return "-"
    digits = 1 if is_share(measure) or "lead" in measure or "reward" in measure else 3 + fine
    value = round(100 * value if is_share(measure) else value, digits) or 0.0  # never "-0.0"
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def interval(effect: Effect) -> str:
    """`+1.2 [-0.3, +2.7]`."""
    if effect.difference is None:
        return "-"
    values = (effect.difference, effect.low, effect.high)
    fine = max(abs(value or 0.0) for value in values) < 0.01
    middle, low, high = (number(value, effect.test.measure, signed=True, fine=fine) for value in values)
    return f"{middle} [{low}, {high}]"


def measure_name(test: PairedTest, plan: Plan) -> str:
    """A test's measure in words, with the samples per question for n."""
    name = test.measure.replace(":", " ").replace("_", " ")
    return name.replace("@n", f"@{plan.evaluation(test.regime)[1]}") if "@n" in name else name


def compared(test: PairedTest) -> str:
    """`gtpo - grpo`."""
    return f"{test.a} - {test.b}" if test.b else test.a


def p_value(p: float | None) -> str:
    """Two digits, or an upper bound."""
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.2g}"


def bare(verdict: str) -> str:
    """A verdict without "interim: "."""
    return verdict.removeprefix("interim: ")


def questions_table(found: list[Answer], plan: Plan) -> list[str]:
    """The primary test of each question, what did not hold first."""
    rows = []
    for answer in sorted(found, key=lambda each: list(ORDER).index(bare(each.verdict))):
        primary = answer.effects[0]
        test = primary.test
        rows.append((
            answer.question.short,
            f"{test.regime}: {compared(test)}, {measure_name(test, plan)}",
            interval(primary),
            number(answer.detectable, test.measure),
            f"{p_value(answer.p_corrected)}, {p_value(answer.p_joint)}",
            f"{primary.seeds} of {primary.planned}",
            f"**{answer.verdict}**",
        ))  # fmt: skip
    columns = ("claim", "primary test", ">difference [95 %]", ">80 % power finds", ">p (Holm: scale, both)", ">seeds")
    return table((*columns, "verdict"), rows)


def effects_table(effects: Iterable[Effect], plan: Plan) -> list[str]:
    """A row per test that has an interval, each test once."""
    rows = []
    for test, its in {each.test: each for each in effects if each.difference is not None}.items():
        fine = max(abs(value or 0.0) for value in (its.a, its.b)) < 0.01
        means = (number(value, test.measure, fine=fine) for value in (its.a, its.b))
        names = (test.regime, compared(test), measure_name(test, plan))
        rows.append((*names, *means, interval(its), f"{its.seeds}"))
    return table(("regime", "comparison", "measure", ">a", ">b", ">difference [95 %]", ">seeds"), rows)


def baselines_table(records: Records, plan: Plan) -> list[str]:
    """pass@1 of GTPO minus each baseline's, a column per regime; how many seeds, where some are missing."""
    regimes, rows = regimes_with_baselines(plan), []
    for name in dict.fromkeys(name for regime in regimes for name in BASELINES if (regime, name) in plan.seeds):
        cells = []
        for regime in regimes:
            its = effect(records, plan, PairedTest(regime, "gtpo", name, f"{plan.evaluation(regime)[0]}:pass@1"))
            known = its.difference is not None
            some = f" ({its.seeds} of {its.planned} seeds)" if known and not its.complete else ""
            cells.append(interval(its) + some if known else "-")
        rows.append((name, *cells))
    return table(("GTPO minus", *(f">{regime}" for regime in regimes)), rows)


def methods_table(records: Records, plan: Plan, regime: str) -> list[str]:
    """Means of every method of a regime over its recorded seeds, and how many runs collapsed; the base first."""
    lines = [
        (method, records[its, method], plan.seeds[its, method])
        for its, method in plan.seeds
        if its == regime and (its, method) in records
    ]
    if not lines:
        return []
    bases = {run.base.name: run.base for run in plan.runs if run.regime == regime and run.base}
    for base in list(bases.values())[:1]:
        if (base.regime, "base") in records:
            lines.insert(0, ("(base)", records[base.regime, "base"], len(bases)))
    benchmark, k = plan.evaluation(regime)
    measures = []
    for name in COLUMNS:
        _, hard, metric = name.rpartition("hard: ")
        measures.append(evaluated(benchmark + ("_hard" if hard else ""), metric))
    rows = []
    for method, seeds, planned in lines:
        found = [record for _, record in sorted(seeds.items())]
        cells = [f"{100 * sum(map(measure, found)) / len(found):.1f}" for measure in measures]
        entropy = sum(map(MEASURES["entropy at the end"], found)) / len(found)
        lost = "-" if method in ("(base)", "sft") else f"{int(sum(map(collapsed, found)))}"
        rows.append((method, f"{len(found)} of {planned}", *cells, f"{entropy:.3f}", lost))
    names = (f">{name.replace('@n', f'@{k}')}" for name in COLUMNS)
    return table(("method", ">seeds", *names, ">entropy at the end", ">collapsed"), rows)


def fewer_seeds_notes(records: Records, plan: Plan, regime: str) -> list[str]:
    """What GTPO has on the seeds of each method with fewer: seeds differ by more than methods do."""
    measure = evaluated(plan.evaluation(regime)[0], "pass@1")
    reference = records.get((regime, "gtpo"), {})
    notes = []
    for method in (method for its, method in plan.seeds if its == regime):
        seeds = sorted(set(records.get((regime, method), {})) & set(reference))
        if 0 < len(seeds) < len(reference):
            theirs, ours = (100 * sum(measure(found[seed]) for seed in seeds) / len(seeds)
                            for found in (records[regime, method], reference))  # fmt: skip
            notes.append(
                f"`{method}` has {len(seeds)} of these {len(reference)} seeds: on them its pass@1 is "
                f"{theirs:.1f}, that of `gtpo` {ours:.1f}."
            )
    return notes


def compute_table(records: Records, plan: Plan) -> list[str]:
    """Runs and core hours by regime."""
    rows = []
    for regime in (*dict.fromkeys(run.regime for run in plan.runs), "all"):
        planned = sum(regime in (run.regime, "all") for run in plan.runs)
        found = [r for (its, _), seeds in records.items() if regime in (its, "all") for r in seeds.values()]
        rows.append((regime, f"{len(found)}", f"{planned}", f"{sum(r['seconds'] for r in found) / 3600:.2f}"))
    return table(("regime", ">runs recorded", ">planned", ">hours of one core, by the clock"), rows)


FLOOR = 0.05
"""Where every method that is trained on rewards ends below this pass@1, its accuracy says nothing about the methods."""


def floors(records: Records, plan: Plan) -> list[str]:
    """The regimes in which all methods but SFT end near 0, one sentence for all; nothing where there is none."""
    named = []
    for regime in dict.fromkeys(regime for regime, _ in plan.seeds):
        measure = evaluated(plan.evaluation(regime)[0], "pass@1")
        means = [
            sum(map(measure, seeds.values())) / len(seeds)
            for (its, method), seeds in records.items()
            if its == regime and method != "sft"
        ]
        if means and max(means) < FLOOR:
            named.append(f"`{regime}` ({100 * min(means):.1f} to {100 * max(means):.1f} %)")
    if not named:
        return []
    return [
        f"**Floor effects.** In {', '.join(named)} every method that is trained on rewards ends near 0. Differences in "
        "accuracy there say nothing about a method.",
        "",
    ]


def alarm_notes(plan: Plan, regime: str) -> list[str]:
    """A note where a policy that never changes would count as collapsed in more than 5 % of runs."""
    found = read_json(plan.evidence / "null.json")["collapsed"].get(regime)
    if found is None or found["high"] <= PASSES:
        return []
    return [
        f"`collapsed` is no measure here: a policy that never changes, at the base's accuracy of "
        f"{100 * found['accuracy']:.1f} %, would count as collapsed in {100 * found['share']:.0f} % of runs."
    ]


def null_table(null: dict[str, Any], plan: Plan) -> list[str]:
    """What each primary test says of its placebos, and the smallest difference that it finds."""
    kinds = ("labels", "unchanged", "trendless", "accelerating")
    rows = []
    for row in null["tests"]:
        test = PairedTest(*(row[name] for name in PairedTest._fields))
        rows.append((
            f"{test.regime}: {compared(test)}, {measure_name(test, plan)}",
            *(f"{100 * row[kind]['share']:.1f}" if kind in row else "-" for kind in kinds),
            f"{number(row.get('detectable'), test.measure)} {unit(test.measure)}",
            "yes" if row["passes"] else "**no**",
        ))  # fmt: skip
    columns = (">rejects, in % of placebos: labels", ">unchanged", ">trendless", ">accelerating", ">80 % power finds")
    return table(("primary test", *columns, "passes"), rows)


def provenance_lines(records: Records) -> list[str]:
    """How many records come from trees with uncommitted changes."""
    commits = [record["train"].get("git_commit", "") for seeds in records.values() for record in seeds.values()]
    changed = sum(commit.endswith("+") for commit in commits)
    return [
        f"{changed} of {len(commits)} records come from trees with uncommitted changes (the record's `git_commit` ends",
        "in `+`). The commit of the small base's record is not in the history. Repeated runs are below.",
    ]


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
