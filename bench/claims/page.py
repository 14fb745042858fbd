"""`python -m bench.claims.page`: from the committed records to answers.json, the figures, and the pages' own sections.

What it writes stands between two comments in docs/results.md and docs/claims-plan.md; a test writes it again and
compares.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.claims.answers import Answer, Effect, Records, answers, as_json, read_records
from bench.claims.measures import MEASURES, collapsed, curve, evaluated, initial_entropy, running
from bench.claims.plan import PLAN, Plan, load_plan
from bench.claims.questions import QUESTIONS, TASKS, PairedTest
from bench.claims.record import read_record
from bench.claims.run import as_program
from rewards.support.errors import UserError
from rewards.support.files import write_json, write_text

README, RESULTS, PREREGISTERED = Path("README.md"), Path("docs/results.md"), Path("docs/claims-plan.md")
SEARCH, SEARCHED = Path("bench/claims/search.yaml"), Path("results/published/claims/search")
ORDER = ("does not hold", "no difference shown", "holds", "no answer yet")
"""What did not hold comes first."""
COLUMNS = ("pass@1", "maj@n", "pass@n", "hard: pass@1", "hard: pass@n", "format")


def is_share(measure: str) -> bool:
    """Whether a measure is a fraction, shown in percent and points."""
    return ":" in measure or measure in ("collapsed", "kept by the gate")


def unit(measure: str) -> str:
    """What a difference of a measure is counted in."""
    if is_share(measure):
        return "points"
    return "steps" if "lead" in measure else "points of 10" if "reward" in measure else "nats"


def number(value: float | None, measure: str, *, signed: bool = False) -> str:
    """A value as the page shows it."""
    if value is None:
        return "-"
    digits = 1 if is_share(measure) or "lead" in measure or "reward" in measure else 3
    value = round(100 * value if is_share(measure) else value, digits) or 0.0  # never "-0.0"
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def interval(effect: Effect) -> str:
    """`+1.2 [-0.3, +2.7]`."""
    if effect.difference is None:
        return "-"
    measure = effect.test.measure
    low, high = (number(value, measure, signed=True) for value in (effect.low, effect.high))
    return f"{number(effect.difference, measure, signed=True)} [{low}, {high}]"


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


def _rank(answer: Answer) -> int:
    return ORDER.index(answer.verdict.removeprefix("interim: "))


def questions_table(found: list[Answer], plan: Plan) -> list[str]:
    """The primary test of each question, what did not hold first."""
    rows = [
        "| question | primary test | difference [95 %] | p (Holm) | seeds | the claim |",
        "|:--|:--|--:|--:|--:|:--|",
    ]
    for answer in sorted(found, key=_rank):
        primary = answer.effects[0]
        test = primary.test
        seeds = f"{primary.seeds} of {primary.planned}" if primary.planned else "not planned yet"
        rows.append(
            f"| {answer.question.asks} | {test.regime}: {compared(test)}, {measure_name(test, plan)} | "
            f"{interval(primary)} | {p_value(answer.p_corrected)} | {seeds} | "
            f"{answer.verdict} |"
        )
    return rows


def readme_section(records: Records, plan: Plan, found: list[Answer]) -> str:
    """The generated part of the README: a line per primary test, what did not hold first."""
    recorded, planned = sum(len(seeds) for seeds in records.values()), len(plan.runs)
    lines = []
    if recorded < planned:
        lines = [f"- **Interim: {recorded} of {planned} runs are in.** What follows may change."]
    by_question: dict[str, list[Answer]] = {}
    for answer in found:
        by_question.setdefault(answer.question.name, []).append(answer)
    rows = []
    for its in by_question.values():
        short = its[0].question.short
        reached = [answer for answer in its if answer.verdict in ORDER[:-1]]  # not those that lack seeds
        if not reached:
            rows.append((len(ORDER), f"- **No answer yet:** {short}."))
            continue
        alike = len({answer.verdict for answer in reached}) == 1
        verdict = reached[0].verdict if alike else "; ".join(f"{answer.scale}: {answer.verdict}" for answer in reached)
        numbers = "; ".join(f"{answer.scale} {interval(answer.effects[0])}" for answer in reached)
        line = f"- **{verdict.capitalize()}:** {short} ({numbers} {unit(reached[0].effects[0].test.measure)})."
        rows.append((min(map(_rank, reached)), line))
    return "\n".join([*lines, *(line for _, line in sorted(rows, key=lambda row: row[0]))])


def effects_table(found: list[Answer], plan: Plan) -> list[str]:
    """Every other test, exploratory."""
    rows = ["| regime | comparison | measure | a | b | difference [95 %] | seeds |", "|:--|:--|:--|--:|--:|--:|--:|"]
    seen = set()
    for answer in found:
        for effect in answer.effects:
            test = effect.test
            if effect.difference is None or test in seen:
                continue
            seen.add(test)
            means = " | ".join(number(value, test.measure) for value in (effect.a, effect.b))
            rows.append(
                f"| {test.regime} | {compared(test)} | {measure_name(test, plan)} | {means} | {interval(effect)} | "
                f"{effect.seeds} |"
            )
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


def compute_table(records: Records, plan: Plan) -> list[str]:
    """Runs and core hours by regime."""
    planned: dict[str, int] = {}
    for run in plan.runs:
        planned[run.regime] = planned.get(run.regime, 0) + 1
    rows = ["| regime | runs recorded | planned | core hours so far |", "|:--|--:|--:|--:|"]
    for regime, count in planned.items():
        found = [r for (its, _), seeds in records.items() if its == regime for r in seeds.values()]
        rows.append(f"| {regime} | {len(found)} | {count} | {sum(r['seconds'] for r in found) / 3600:.2f} |")
    everything = [r for seeds in records.values() for r in seeds.values()]
    hours = sum(r["seconds"] for r in everything) / 3600
    rows.append(f"| all | {len(everything)} | {sum(planned.values())} | {hours:.2f} |")
    return rows


def h_ini_line(records: Records, scale: str) -> str:
    """Entropy at the start against collapse, over all runs of a scale's methods without a gate; "" without runs."""
    pairs = [
        (initial_entropy(record), collapsed(record))
        for (regime, method), found in records.items()
        if method in ("grpo", "gtpo-no-filter") and regime.startswith(f"{scale}-")
        for record in found.values()
    ]
    lost = [h for h, c in pairs if c]
    kept = [h for h, c in pairs if not c]
    if not pairs:
        return ""
    if not lost or not kept:
        return (
            f"Of {len(pairs)} {scale} runs without a gate {len(lost)} collapsed, so nothing can be said of H_ini yet."
        )
    above = sum(h > k for h in lost for k in kept) + 0.5 * sum(h == k for h in lost for k in kept)
    return (
        f"Of {len(pairs)} {scale} runs without a gate {len(lost)} collapsed; entropy at the start was "
        f"{sum(lost) / len(lost):.3f} nats in these and {sum(kept) / len(kept):.3f} in the others (AUC "
        f"{above / len(lost) / len(kept):.2f}; exploratory)."
    )


def results_section(records: Records, plan: Plan, found: list[Answer]) -> str:
    """The generated part of docs/results.md."""
    recorded, planned = sum(len(seeds) for seeds in records.values()), len(plan.runs)
    state = "All planned runs are recorded." if recorded == planned else (
        f"**Interim: {recorded} of {planned} planned runs are recorded.** Where fewer seeds than planned are in, the\n"
        "pre-stated test has not been reached: its row says so, and may change."
    )  # fmt: skip
    parts = [state, "", *questions_table(found, plan), ""]
    for regime in dict.fromkeys(regime for regime, _ in plan.seeds):
        table = methods_table(records, plan, regime)
        if table:
            parts += [f"**{regime}**, means over seeds in percent (entropy in nats):", "", *table, ""]
            parts += [f"![Training in {regime}](../{plan.evidence}/figures/training-{regime}.png)", ""]
    parts += [
        f"Every test, the exploratory ones too: [effects.md](../{plan.evidence}/effects.md).",
        *filter(None, (h_ini_line(records, scale) for scale in TASKS)),
        "",
        *compute_table(records, plan),
    ]
    return "\n".join(parts)


def effects_page(found: list[Answer], plan: Plan) -> str:
    """effects.md: every test with its own interval."""
    lines = [
        "# Every test",
        "",
        "Each with its own 95 % interval over seeds (accuracy: over seeds and questions), uncorrected. All but the",
        "primary tests of docs/claims-plan.md are exploratory. Accuracy, format, collapse: percent and points;",
        "entropy, KL, log-probabilities: nats; rewards: points of 10; lead: steps.",
        "",
        *effects_table(found, plan),
    ]
    return "\n".join(lines) + "\n"


def search_page(plan: Plan) -> str:
    """summary.md of the search: what every run of it did, in the order of its plan."""
    rows = [
        "# The search for regimes: every run",
        "",
        "One seed, training alone; no evidence about a method. Rewards: points of 10. Best, highest, most and end are",
        "of a running mean over a twentieth of the run. KL: from the base, in nats.",
        "",
        "| regime | method | steps | accuracy: start, best, end | format: end | entropy: start, highest, end (nats) | "
        "most completions above ln 2 | KL: end |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for run in plan.runs:
        if run.method == "base" or not plan.record(run).is_file():
            continue
        record = read_record(plan.record(run))
        steps, accuracy = curve(record, "reward/accuracy")
        _, entropy = curve(record, "entropy/mean")
        smooth, nats = running(accuracy), running(entropy)
        above = max(running(curve(record, "entropy/above_ln2")[1]))
        ends = [MEASURES[name](record) for name in ("format reward at the end", "KL at the end")]
        rewards = f"{accuracy[0]:.1f}, {smooth.max():.1f}, {smooth[-1]:.1f} | {ends[0]:.1f}"
        entropies = f"{entropy[0]:.2f}, {nats.max():.2f}, {nats[-1]:.2f} | {100 * above:.0f} %"
        rows.append(f"| {run.regime} | {run.method} | {int(steps[-1])} | {rewards} | {entropies} | {ends[1]:.2f} |")
    return "\n".join(rows) + "\n"


def plan_section(plan: Plan) -> str:
    """The generated part of docs/claims-plan.md: the primary tests and the runs."""
    rows = ["| question | claim | primary test (paired by seed) | seeds |", "|:--|:--|:--|--:|"]
    for scale in TASKS:
        for question in QUESTIONS:
            test = next((test for test in question.tests if test.scale == scale), None)
            if test is None:
                continue
            seeds = min(plan.seeds.get((test.regime, name), 0) for name in (test.a, test.b or test.a))
            rows.append(
                f"| {question.asks} | {question.claim} | {test.regime}: {compared(test)}, {measure_name(test, plan)} | "
                f"{seeds or 'not planned yet'} |"
            )
    rows += ["", "| regime | method | seeds |", "|:--|:--|--:|"]
    by_seeds: dict[tuple[str, int], list[str]] = {}
    for (regime, method), seeds in plan.seeds.items():
        by_seeds.setdefault((regime, seeds), []).append(method)
    rows += [f"| {regime} | {', '.join(methods)} | {seeds} |" for (regime, seeds), methods in by_seeds.items()]
    return "\n".join(rows)


def replaced(page: Path, section: str) -> str:
    """The page with what stands between its two comments replaced. UserError where they are missing."""
    text = page.read_text(encoding="utf-8")
    new, count = re.subn(
        r"(<!-- claims: [^\n]* -->\n).*?(<!-- claims: end -->)",
        lambda match: f"{match[1]}\n{section}\n\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise UserError(f"{page}: expected one section between <!-- claims: ... --> and <!-- claims: end -->")
    return new


def pages(plan: Plan) -> dict[Path, str]:
    """Every page with its section written anew."""
    records = read_records(plan)
    found = answers(records, plan)
    return {
        README: replaced(README, readme_section(records, plan, found)),
        RESULTS: replaced(RESULTS, results_section(records, plan, found)),
        PREREGISTERED: replaced(PREREGISTERED, plan_section(plan)),
        plan.evidence / "effects.md": effects_page(found, plan),
        SEARCHED / "summary.md": search_page(load_plan(SEARCH)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--no-figures", action="store_true")
    asked = parser.parse_args()
    plan = load_plan(asked.plan)
    records = read_records(plan)
    write_json(plan.evidence / "answers.json", as_json(answers(records, plan)))
    for page, text in pages(plan).items():
        write_text(page, text)
    if not asked.no_figures:
        from bench.claims.figures import write_figures

        write_figures(records, plan)


if __name__ == "__main__":
    as_program(main)
