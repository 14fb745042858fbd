"""`python -m bench.claims.page`: from the committed records to answers.json, the figures, and the pages' own sections.

What it writes stands between two comments in docs/results.md and docs/claims-plan.md; a test writes it again and
compares.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.claims.answers import Answer, Effect, Records, answers, as_json, read_records
from bench.claims.exploratory import against_baselines, apart_from_zero, at_every_scale, entropy_as_predictor, secondary
from bench.claims.measures import MEASURES, curve, running
from bench.claims.plan import PLAN, Plan, load_plan
from bench.claims.questions import QUESTIONS, TASKS
from bench.claims.record import read_record
from bench.claims.run import as_program
from bench.claims.tables import (
    ORDER,
    baselines_table,
    compared,
    compute_table,
    effects_table,
    fewer_seeds_notes,
    interval,
    measure_name,
    methods_table,
    questions_table,
    rank,
    unit,
)
from gtpo.common.errors import UserError
from gtpo.common.files import write_json, write_text

README, RESULTS, PREREGISTERED = Path("README.md"), Path("docs/results.md"), Path("docs/claims-plan.md")
SEARCH, SEARCHED = Path("bench/claims/search.yaml"), Path("results/published/claims/search")


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
        rows.append((min(map(rank, reached)), line))
    return "\n".join([*lines, *(line for _, line in sorted(rows, key=lambda row: row[0]))])


def predictor_line(records: Records, scale: str) -> str:
    """Entropy at the start against collapse; "" without runs."""
    found = entropy_as_predictor(records, scale)
    if found is None:
        return ""
    runs = f"Of {found.runs} {scale} runs without a gate {found.collapsed} collapsed"
    if found.auc is None:
        return f"- {runs}, so nothing can be said of H_ini yet."
    return (
        f"- {runs}. Entropy at the start was {found.in_collapsed:.3f} nats in these and {found.in_others:.3f} in the "
        f"others: AUC {found.auc:.2f} [{found.low:.2f}, {found.high:.2f}]."
    )


def repeated_lines(repeated: list[list[Effect]], plan: Plan) -> list[str]:
    """What excludes 0 at both scales, a line each; nothing where there is none."""
    if not repeated:
        return []
    lines = ["Of these, found at both scales, in the same direction:", ""]
    for effects in repeated:
        numbers = "; ".join(f"{effect.test.scale} {interval(effect)}" for effect in effects)
        test = effects[0].test
        what = measure_name(test, plan).removeprefix(TASKS[test.scale].replace("_", " ")).strip()
        regime = test.regime.removeprefix(f"{test.scale}-")
        lines.append(f"- `{compared(test)}`, {regime}, {what}: {numbers} {unit(test.measure)}.")
    return [*lines, ""]


def results_section(records: Records, plan: Plan, found: list[Answer]) -> str:
    """The generated part of docs/results.md."""
    recorded, planned = sum(len(seeds) for seeds in records.values()), len(plan.runs)
    figures = f"../{plan.evidence}/figures"
    state = "All planned runs are recorded." if recorded == planned else (
        f"**Interim: {recorded} of {planned} planned runs are recorded.** Where fewer seeds than planned are in, the\n"
        "pre-stated test has not been reached: its row says so, and may change."
    )  # fmt: skip
    others = secondary(found)
    seen = apart_from_zero(others)
    parts = [
        state,
        "",
        *questions_table(found, plan),
        "",
        f"![The primary tests, a dot per seed]({figures}/primary-tests.png)",
        "",
        "### The methods, regime by regime",
        "",
        "Means over seeds in percent; entropy in nats. What the regimes are: [claims-plan.md](claims-plan.md).",
        "",
    ]
    for regime in dict.fromkeys(regime for regime, _ in plan.seeds):
        table = methods_table(records, plan, regime)
        if table:
            parts += [f"**{regime}**", "", *table, ""]
            parts += [line for note in fewer_seeds_notes(records, plan, regime) for line in (note, "")]
            parts += [f"![Training in {regime}]({figures}/training-{regime}.png)", ""]
    parts += [
        "### Exploratory",
        "",
        "Looked at without a pre-stated test. Intervals are of one comparison each, uncorrected.",
        "",
        "**Where GTPO stands among the baselines**: its pass@1 minus theirs, in points [95 %].",
        "",
        *baselines_table(against_baselines(records, plan)),
        "",
        f"![pass@1 of every method, a dot per seed]({figures}/baselines.png)",
        "",
        f"**Other tests whose interval excludes 0.** {len(seen)} of {len(others)}; about {len(others) / 20:.0f} would "
        f"by chance alone. All of them: [effects.md](../{plan.evidence}/effects.md).",
        "",
        *effects_table(seen, plan),
        "",
        *repeated_lines(at_every_scale(seen), plan),
        "**Does H_ini predict which runs collapse?** AUC: the chance that a run that collapsed began with the higher",
        "entropy of the two; 0.5 is none. [95 %] by resampling seeds. Regimes differ in more than H_ini.",
        "",
        *filter(None, (predictor_line(records, scale) for scale in TASKS)),
        "",
        f"![Entropy at the start, by regime and outcome]({figures}/entropy-at-start.png)",
        "",
        "### Compute",
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
        *effects_table((effect for answer in found for effect in answer.effects), plan),
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


def pages(records: Records, plan: Plan, found: list[Answer]) -> dict[Path, str]:
    """Every page with its section written anew."""
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
    found = answers(records, plan)
    write_json(plan.evidence / "answers.json", as_json(found))
    for page, text in pages(records, plan, found).items():
        write_text(page, text)
    if not asked.no_figures:
        from bench.claims.figures import write_figures

        write_figures(records, plan, found)


if __name__ == "__main__":
    as_program(main)
