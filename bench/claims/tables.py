"""The tables of the experiment's pages, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.claims.answers import Answer, Effect, Records
from bench.claims.measures import MEASURES, collapsed, evaluated
from bench.claims.plan import Plan
from bench.claims.questions import PairedTest
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
COLUMNS = ("pass@1", "maj@n", "pass@n", "hard: pass@1", "hard: pass@n", "format")


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


def rank(answer: Answer) -> int:
    return list(ORDER).index(answer.verdict.removeprefix("interim: "))


def questions_table(found: list[Answer], plan: Plan) -> list[str]:
    """The primary test of each question, what did not hold first."""
    rows = [
        "| claim | primary test | difference [95 %] | 80 % power finds | p (Holm: scale, both) | seeds | verdict |",
        "|:--|:--|--:|--:|--:|--:|:--|",
    ]
    for answer in sorted(found, key=rank):
        primary = answer.effects[0]
        test = primary.test
        seeds = f"{primary.seeds} of {primary.planned}" if primary.planned else "not planned yet"
        rows.append(
            f"| {answer.question.short} | {test.regime}: {compared(test)}, {measure_name(test, plan)} | "
            f"{interval(primary)} | {number(answer.detectable, test.measure)} | {p_value(answer.p_corrected)}, "
            f"{p_value(answer.p_joint)} | {seeds} | **{answer.verdict}** |"
        )
    return rows


def effects_table(effects: Iterable[Effect], plan: Plan) -> list[str]:
    """A row per test that has an interval, each test once."""
    rows = ["| regime | comparison | measure | a | b | difference [95 %] | seeds |", "|:--|:--|:--|--:|--:|--:|--:|"]
    for test, effect in {effect.test: effect for effect in effects if effect.difference is not None}.items():
        fine = max(abs(value or 0.0) for value in (effect.a, effect.b)) < 0.01
        means = " | ".join(number(value, test.measure, fine=fine) for value in (effect.a, effect.b))
        rows.append(
            f"| {test.regime} | {compared(test)} | {measure_name(test, plan)} | {means} | {interval(effect)} | "
            f"{effect.seeds} |"
        )
    return rows


def baselines_table(found: dict[str, dict[str, Effect]]) -> list[str]:
    """GTPO minus each baseline, a column per regime; how many seeds, where some are missing."""
    rows = ["| GTPO minus | " + " | ".join(found) + " |", "|:--|" + "--:|" * len(found)]
    for name in dict.fromkeys(name for effects in found.values() for name in effects):
        cells = []
        for effect in (effects.get(name) for effects in found.values()):
            known = effect is not None and effect.difference is not None
            some = f" ({effect.seeds} of {effect.planned} seeds)" if known and not effect.complete else ""
            cells.append(interval(effect) + some if known else "-")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def methods_table(records: Records, plan: Plan, regime: str) -> list[str]:
    """Means of every method of a regime over its recorded seeds, and how many runs collapsed; the base first."""
    lines = [
        (method, records[its, method], plan.seeds[its, method])
        for its, method in plan.seeds
        if its == regime and (its, method) in records
    ]
    if not lines:
        return []
    base = next((run.base for run in plan.runs if run.regime == regime and run.base), None)
    if base is not None and (base.regime, "base") in records:
        bases = {run.base.name for run in plan.runs if run.regime == regime and run.base}
        lines.insert(0, ("(base)", records[base.regime, "base"], len(bases)))
    benchmark, k = plan.evaluation(regime)
    columns = []
    for name in COLUMNS:
        _, hard, metric = name.rpartition("hard: ")
        columns.append((name.replace("@n", f"@{k}"), evaluated(benchmark + ("_hard" if hard else ""), metric)))
    rows = [
        "| method | seeds | " + " | ".join(name for name, _ in columns) + " | entropy at the end | collapsed |",
        "|:--|--:|" + "--:|" * (len(columns) + 2),
    ]
    for method, seeds, planned in lines:
        found = [record for _, record in sorted(seeds.items())]
        cells = [f"{100 * sum(map(measure, found)) / len(found):.1f}" for _, measure in columns]
        entropies = [MEASURES["entropy at the end"](record) for record in found]
        lost = "-" if method in ("(base)", "sft") else f"{int(sum(map(collapsed, found)))}"
        rows.append(
            f"| {method} | {len(found)} of {planned} | " + " | ".join(cells)
            + f" | {sum(entropies) / len(entropies):.3f} | {lost} |"
        )  # fmt: skip
    return rows


def fewer_seeds_notes(records: Records, plan: Plan, regime: str) -> list[str]:
    """What GTPO has on the seeds of each method with fewer: seeds differ by more than methods do."""
    benchmark, _ = plan.evaluation(regime)
    measure = evaluated(benchmark, "pass@1")
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
    planned: dict[str, int] = {}
    for run in plan.runs:
        planned[run.regime] = planned.get(run.regime, 0) + 1
    rows = ["| regime | runs recorded | planned | hours of one core, by the clock |", "|:--|--:|--:|--:|"]
    for regime, count in planned.items():
        found = [r for (its, _), seeds in records.items() if its == regime for r in seeds.values()]
        rows.append(f"| {regime} | {len(found)} | {count} | {sum(r['seconds'] for r in found) / 3600:.2f} |")
    everything = [r for seeds in records.values() for r in seeds.values()]
    hours = sum(r["seconds"] for r in everything) / 3600
    rows.append(f"| all | {len(everything)} | {sum(planned.values())} | {hours:.2f} |")
    return rows


FLOOR = 0.05
"""Where every method that is paid by reward ends below this pass@1, its accuracy says nothing about the methods."""


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
        f"**Floors.** In {', '.join(named)} every method that is paid by reward ends near 0. Differences in accuracy "
        "there say nothing about a method.",
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

    def rejected(row: dict[str, Any], name: str) -> str:
        return f"{100 * row[name]['share']:.1f}" if name in row else "-"

    rows = [
        "| primary test | rejects, in % of placebos: labels | unchanged | trendless | accelerating | "
        "80 % power finds | passes |",
        "|:--|--:|--:|--:|--:|--:|:--|",
    ]
    for row in null["tests"]:
        test = PairedTest(*(row[name] for name in PairedTest._fields))
        shares = " | ".join(rejected(row, name) for name in ("labels", "unchanged", "trendless", "accelerating"))
        rows.append(
            f"| {test.regime}: {compared(test)}, {measure_name(test, plan)} | {shares} | "
            f"{number(row.get('detectable'), test.measure)} {unit(test.measure)} | "
            f"{'yes' if row['passes'] else '**no**'} |"
        )
    return rows


def provenance_lines(records: Records) -> list[str]:
    """How many records come from trees with uncommitted changes."""
    commits = [record["train"].get("git_commit", "") for seeds in records.values() for record in seeds.values()]
    changed = sum(commit.endswith("+") for commit in commits)
    return [
        f"{changed} of {len(commits)} records come from trees with uncommitted changes (the record's `git_commit` ends",
        "in `+`). The commit of the small base's record is not in the history. Runs made again are below.",
    ]
