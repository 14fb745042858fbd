"""The tables of the first experiment, and how numbers and tests are written on both pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.claims.measures import MEASURES, collapsed, curve, evaluated, running
from bench.claims.plan import TASKS, PairedTest, Plan, Test, primaries
from bench.claims.record import find_record
from bench.claims.statistics import Answer, Effect, Records, effect
from bench.common import table
from gtpo.common.files import read_json

ORDER = {
    "withdrawn": "the test finds the effect in noise too",
    "refuted": "the opposite is shown, or the method that should stay accurate collapses too",
    "equivalent": "the two accuracies differ by less than 2 points",
    "undecided": "neither shown nor excluded",
    "holds": "shown",
}
"""Verdict -> what it means. What did not hold comes first."""
COLUMNS = ("pass@1", "maj@n", "pass@n", "hard: pass@1", "hard: pass@n", "format")
BASELINES = ("sft", "grpo", "grpo-filtered", "dr-grpo", "dapo", "80-20", "nsr", "w-reinforce")
"""What GTPO is held against, without a test."""
FLOOR = 0.05
"""Where every method that is trained on rewards ends below this pass@1, its accuracy says nothing about the methods."""


# --- how numbers are written


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
    digits = 3 + fine if unit(measure) == "nats" else 1
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


def points(difference: float, low: float, high: float) -> str:
    """`+1.2 [-0.3, +2.7]`, of fractions."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in (difference, low, high)))


def measure_name(test: PairedTest | Test, plan: Plan) -> str:
    """A test's measure in words, with the samples per question for n."""
    name = test.measure.replace(":", " ").replace("_", " ")
    return name.replace("@n", f"@{plan.evaluation(test.regime)[1]}") if "@n" in name else name


def short_measure(test: PairedTest, plan: Plan) -> str:
    """The same without the name of the task."""
    return measure_name(test, plan).removeprefix(TASKS[test.scale].replace("_", " ")).strip()


def mean(measure: Callable[[dict[str, Any]], float], records: Iterable[dict[str, Any]], factor: float = 100) -> float:
    """The mean of a measure over records, in percent."""
    found = [measure(record) for record in records]
    return factor * sum(found) / len(found)


def compared(test: PairedTest | Test) -> str:
    """`gtpo - grpo`."""
    return f"{test.a} - {test.b}" if test.b else test.a


def described(test: PairedTest | Test, plan: Plan) -> str:
    """`micro-calm: gtpo - grpo, arithmetic pass@1`."""
    return f"{test.regime}: {compared(test)}, {measure_name(test, plan)}"


def p_value(p: float) -> str:
    """Two digits, or an upper bound."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


# --- the first experiment


def questions_table(found: list[Answer], plan: Plan) -> str:
    """The primary test of each question, what did not hold first."""
    rows = [
        (answer.question.short, described(primary.test, plan), interval(primary),
         number(answer.detectable, primary.test.measure), f"{p_value(answer.p_corrected)}, {p_value(answer.p_joint)}",
         f"{primary.seeds} of {primary.planned}", f"**{answer.verdict}**")
        for answer in sorted(found, key=lambda each: list(ORDER).index(each.verdict))
        for primary in answer.effects[:1]
    ]  # fmt: skip
    columns = ("claim", "primary test", ">difference [95 %]", ">80 % power finds", ">p (Holm: scale, both)", ">seeds")
    return table((*columns, "verdict"), rows)


def effects_table(effects: Iterable[Effect], plan: Plan) -> str:
    """A row per test that has an interval, each test once."""
    rows = []
    for test, its in {each.test: each for each in effects if each.difference is not None}.items():
        fine = max(abs(value or 0.0) for value in (its.a, its.b)) < 0.01
        means = (number(value, test.measure, fine=fine) for value in (its.a, its.b))
        rows.append((test.regime, compared(test), measure_name(test, plan), *means, interval(its), f"{its.seeds}"))
    return table(("regime", "comparison", "measure", ">a", ">b", ">difference [95 %]", ">seeds"), rows)


def baselines_table(records: Records, plan: Plan) -> str:
    """pass@1 of GTPO minus each baseline's, a column per regime that runs three or more of them."""
    run = {regime: [name for name in BASELINES if (regime, name) in plan.seeds] for regime in plan.regimes}
    shown = [regime for regime, names in run.items() if len(names) >= 3]

    def cell(regime: str, name: str) -> str:
        return interval(effect(records, plan, PairedTest(regime, "gtpo", name, f"{plan.evaluation(regime)[0]}:pass@1")))

    names = dict.fromkeys(name for regime in shown for name in run[regime])
    rows = [(name, *(cell(regime, name) for regime in shown)) for name in names]
    return table(("GTPO minus", *(f">{regime}" for regime in shown)), rows)


def methods_table(records: Records, plan: Plan, regime: str) -> str:
    """Means of every method of a regime over its seeds, and how many runs collapsed; the base first."""
    base = next(run.base for run in plan.runs if run.regime == regime)
    assert base is not None
    bases = records[base.regime, "base"]
    lines = [("(base)", bases, len(bases))]
    lines += [(method, records[regime, method], plan.seeds[regime, method]) for method in plan.methods(regime)]
    benchmark, k = plan.evaluation(regime)
    measures = [
        evaluated(benchmark + ("_hard" if hard else ""), metric)
        for _, hard, metric in (name.rpartition("hard: ") for name in COLUMNS)
    ]
    rows = []
    for method, seeds, planned in lines:
        found = [record for _, record in sorted(seeds.items())]
        entropy = mean(MEASURES["entropy at the end"], found, 1)
        lost = "-" if method in ("(base)", "sft") else f"{int(sum(map(collapsed, found)))}"
        cells = (f"{mean(measure, found):.1f}" for measure in measures)
        rows.append((method, f"{len(found)} of {planned}", *cells, f"{entropy:.3f}", lost))
    names = (f">{name.replace('@n', f'@{k}')}" for name in COLUMNS)
    return table(("method", ">seeds", *names, ">entropy at the end", ">collapsed"), rows)


def fewer_seeds(records: Records, plan: Plan, regime: str) -> list[dict[str, Any]]:
    """What GTPO has on the seeds of each method with fewer: seeds differ by more than methods do."""
    measure = evaluated(plan.evaluation(regime)[0], "pass@1")
    reference, notes = records[regime, "gtpo"], []
    for method in plan.methods(regime):
        seeds = sorted(set(records[regime, method]) & set(reference))
        if len(seeds) < len(reference):
            theirs, ours = (mean(measure, map(its.get, seeds)) for its in (records[regime, method], reference))
            notes.append({"method": method, "seeds": len(seeds), "all": len(reference), "theirs": theirs, "ours": ours})
    return notes


def compute_table(records: Records, plan: Plan) -> str:
    """Runs and core hours by regime."""
    rows = []
    for regime in (*dict.fromkeys(run.regime for run in plan.runs), "all"):
        planned = sum(regime in (run.regime, "all") for run in plan.runs)
        found = [r for (its, _), seeds in records.items() if regime in (its, "all") for r in seeds.values()]
        rows.append((regime, f"{len(found)}", f"{planned}", f"{sum(r['seconds'] for r in found) / 3600:.2f}"))
    return table(("regime", ">runs recorded", ">planned", ">hours of one core, by the clock"), rows)


def floors(records: Records, plan: Plan) -> list[str]:
    """The regimes in which all methods but SFT end near 0."""
    named = []
    for regime in plan.regimes:
        measure = evaluated(plan.evaluation(regime)[0], "pass@1")
        means = [mean(measure, records[regime, its].values()) for its in plan.methods(regime) if its != "sft"]
        if max(means) < 100 * FLOOR:
            named.append(f"`{regime}` ({min(means):.1f} to {max(means):.1f} %)")
    return named


def null_table(plan: Plan) -> str:
    """What each primary test says of its placebos, and the smallest difference that it finds."""
    kinds = ("labels", "unchanged", "trendless", "accelerating")
    rows = []
    for row in read_json(plan.evidence / "null.json")["tests"]:
        test = PairedTest(*(row[name] for name in PairedTest._fields))
        rows.append((
            described(test, plan),
            *(f"{100 * row[kind]['share']:.1f}" if kind in row else "-" for kind in kinds),
            f"{number(row.get('detectable'), test.measure)} {unit(test.measure)}",
            "yes" if row["passes"] else "**no**",
        ))  # fmt: skip
    columns = (">rejects, in % of placebos: labels", ">unchanged", ">trendless", ">accelerating", ">80 % power finds")
    return table(("primary test", *columns, "passes"), rows)


def secondary(found: list[Answer]) -> list[Effect]:
    """Every test but the primary and the withdrawn ones, each once, with an interval."""
    tests: dict[PairedTest, Effect] = {}
    for each in (each for answer in found if answer.verdict != "withdrawn" for each in answer.effects[1:]):
        if each.difference is not None:
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


def search_table(plan: Plan) -> str:
    """What every run of the search did, in the order of its plan."""
    rows = []
    for run in plan.runs:
        record = None if run.method == "base" else find_record(plan, run)
        if record is None:
            continue
        steps, accuracy = curve(record, "reward/accuracy")
        _, entropy = curve(record, "entropy/mean")
        smooth, nats = running(accuracy), running(entropy)
        rows.append((
            run.regime,
            run.method,
            f"{int(steps[-1])}",
            f"{accuracy[0]:.1f}, {smooth.max():.1f}, {smooth[-1]:.1f}",
            f"{MEASURES['format reward at the end'](record):.1f}",
            f"{entropy[0]:.2f}, {nats.max():.2f}, {nats[-1]:.2f}",
            f"{100 * max(running(curve(record, 'entropy/above_ln2')[1])):.0f} %",
            f"{MEASURES['KL at the end'](record):.2f}",
        ))  # fmt: skip
    columns = (">steps", ">accuracy: start, best, end", ">format: end", ">entropy: start, highest, end (nats)",
               ">most completions above ln 2", ">KL: end")  # fmt: skip
    return table(("regime", "method", *columns), rows)


def tests_table(plan: Plan) -> str:
    """The primary tests as they were planned."""
    rows = [
        (question.asks, question.claim, described(test, plan),
         f"{min(plan.seeds[test.regime, name] for name in (test.a, test.b or test.a))}")
        for _, question, test in primaries()
    ]  # fmt: skip
    return table(("question", "claim", "primary test (paired by seed)", ">seeds"), rows)


def runs_table(plan: Plan) -> str:
    """The runs as they were planned: the methods of a regime that have as many seeds."""
    by_seeds: dict[tuple[str, int], list[str]] = {}
    for (regime, method), seeds in plan.seeds.items():
        by_seeds.setdefault((regime, seeds), []).append(method)
    rows = [(regime, ", ".join(methods), f"{seeds}") for (regime, seeds), methods in by_seeds.items()]
    return table(("regime", "method", ">seeds"), rows)
