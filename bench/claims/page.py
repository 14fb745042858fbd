"""`python -m bench.claims.page`: from the committed records to answers.json, the figures, and the pages' own sections.

What it writes stands between comments in README.md, docs/results.md and docs/claims-plan.md; a test writes it again and
compares.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.claims.answers import Answer, Effect, Records, answers, as_json, read_records
from bench.claims.measures import MEASURES, curve, running
from bench.claims.plan import PLAN, Plan, load_plan
from bench.claims.questions import TASKS, primaries
from bench.claims.record import find_record
from bench.claims.run import as_program
from bench.claims.second import SECOND
from bench.claims.second_tables import gate_table, phrases, results_lines
from bench.claims.tables import (
    ORDER,
    alarm_notes,
    apart_from_zero,
    at_every_scale,
    bare,
    baselines_table,
    compared,
    compute_table,
    effects_table,
    entropy_as_predictor,
    fewer_seeds_notes,
    floors,
    interval,
    measure_name,
    methods_table,
    null_table,
    provenance_lines,
    questions_table,
    secondary,
    table,
    unit,
)
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_json, write_text

README, RESULTS, PREREGISTERED = Path("README.md"), Path("docs/results.md"), Path("docs/claims-plan.md")
SEARCH, SEARCHED = Path("bench/claims/search.yaml"), Path("results/published/claims/search")


def readme_lines(records: Records, plan: Plan, found: list[Answer]) -> list[str]:
    """The generated part of the README: a line per verdict with its claims, what did not hold first."""
    second = load_plan(SECOND)
    later = phrases(read_records(second), second)
    recorded, planned = sum(len(seeds) for seeds in records.values()), len(plan.runs)
    lines = (
        [] if recorded == planned else [f"- **Interim: {recorded} of {planned} runs are in.** What follows may change."]
    )
    for verdict, meaning in ORDER.items():
        claims: dict[str, list[Answer]] = {}
        for answer in found:
            if bare(answer.verdict) == verdict:
                claims.setdefault(answer.question.short, []).append(answer)
        said = [f'"{short}" ({", ".join(answer.scale for answer in its)})' for short, its in claims.items()]
        if said := [*said, *later.get(verdict, [])]:
            lines.append(f"- **{verdict.capitalize()}** ({meaning}): {'; '.join(said)}.")
    return lines


def withdrawn_lines(plan: Plan, found: list[Answer]) -> list[str]:
    """Each claim whose test fails its placebos, with what the placebos gave; nothing where there is none."""
    lines = []
    null = {(row["question"], row["regime"]): row for row in read_json(plan.evidence / "null.json")["tests"]}
    for answer in found:
        if answer.verdict != "withdrawn":
            continue
        primary = answer.effects[0]
        row = null[answer.question.name, primary.test.regime]
        noise, length, loss = row["trendless"], row["completions/length"], row["loss"]
        noise_share = f"{100 * noise['share']:.1f} % of {noise['of']:,} simulations"
        lines.append(
            f"- **Withdrawn: {answer.question.short}** ({primary.test.regime}). The test gave {interval(primary)} "
            f'steps and was called "holds". With entropy replaced by noise without a trend it gives '
            f"{noise['lead']:+.1f} steps and rejects in {noise_share}. Completion length leads KL by "
            f"{length['lead']:+.1f} steps, the loss by {loss['lead']:+.1f}. The measure favours any curve that "
            "wiggles over one that accelerates, as KL does."
        )
    return [*lines, ""] if lines else []


def predictor_line(records: Records, scale: str) -> str:
    """Entropy at the start against collapse; "" without runs."""
    found = entropy_as_predictor(records, scale)
    if found is None:
        return ""
    runs = f"Of {found.runs} {scale} runs without a gate {found.collapsed} collapsed"
    if found.auc is None:
        return f"- {runs}, and in no regime some did and others did not, so nothing can be said of H_ini."
    return (
        f"- {runs}. Entropy at the start was {found.in_collapsed:.3f} nats in these and {found.in_others:.3f} in the "
        f"others; within a regime: AUC {found.auc:.2f} [{found.low:.2f}, {found.high:.2f}]."
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


def methods_lines(records: Records, plan: Plan) -> list[str]:
    """Regime by regime: the table of its methods, what to mind about it, the figure of its training."""
    parts = []
    for regime in dict.fromkeys(regime for regime, _ in plan.seeds):
        if rows := methods_table(records, plan, regime):
            parts += [f"**{regime}**", "", *rows, ""]
            for note in [*alarm_notes(plan, regime), *fewer_seeds_notes(records, plan, regime)]:
                parts += [note, ""]
            parts += [f"![Training in {regime}](../{plan.evidence}/figures/training-{regime}.png)", ""]
    return parts[:-1]


def results_blocks(records: Records, plan: Plan, found: list[Answer]) -> dict[str, list[str]]:
    """The generated parts of docs/results.md."""
    recorded, planned = sum(len(seeds) for seeds in records.values()), len(plan.runs)
    others = secondary(found)
    seen = apart_from_zero(others)
    second = load_plan(SECOND)
    return {
        "verdicts": [
            *withdrawn_lines(plan, found),
            "All planned runs are recorded." if recorded == planned else
            f"**Interim: {recorded} of {planned} planned runs are recorded.** Rows with missing seeds say so.",
            "",
            *(f"- **{verdict}**: {meaning}." for verdict, meaning in ORDER.items() if verdict != "no answer yet"),
            "",
            *questions_table(found, plan),
            "",
            *floors(records, plan),
        ],
        "questions": [
            line
            for question in dict.fromkeys(a.question for a in found if a.effects[0].difference is not None)
            for line in (f"![{question.short}](../{plan.evidence}/figures/question-{question.name}.png)", "")
        ],
        "methods": methods_lines(records, plan),
        "baselines": baselines_table(records, plan),
        "others": [
            f"**Other tests whose interval excludes 0.** {len(seen)} of {len(others)}; about {len(others) / 20:.0f} "
            f"would by chance alone. All of them: [effects.md](../{plan.evidence}/effects.md).",
            "",
            *effects_table(seen, plan),
            "",
            *repeated_lines(at_every_scale(seen), plan),
        ],
        "predictor": [line for scale in TASKS if (line := predictor_line(records, scale))],
        "compute": compute_table(records, plan),
        "second": results_lines(read_records(second), second),
        "provenance": provenance_lines(records),
    }  # fmt: skip


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
    rows = []
    for run in plan.runs:
        record = None if run.method == "base" else find_record(plan, run)
        if record is None:
            continue
        steps, accuracy = curve(record, "reward/accuracy")
        _, entropy = curve(record, "entropy/mean")
        smooth, nats = running(accuracy), running(entropy)
        above = max(running(curve(record, "entropy/above_ln2")[1]))
        form, kl = (MEASURES[name](record) for name in ("format reward at the end", "KL at the end"))
        rows.append((
            run.regime,
            run.method,
            f"{int(steps[-1])}",
            f"{accuracy[0]:.1f}, {smooth.max():.1f}, {smooth[-1]:.1f}",
            f"{form:.1f}",
            f"{entropy[0]:.2f}, {nats.max():.2f}, {nats[-1]:.2f}",
            f"{100 * above:.0f} %",
            f"{kl:.2f}",
        ))  # fmt: skip
    columns = (">steps", ">accuracy: start, best, end", ">format: end", ">entropy: start, highest, end (nats)",
               ">most completions above ln 2", ">KL: end")  # fmt: skip
    lines = [
        "# The search for regimes: every run",
        "",
        "One seed, training alone; no evidence about a method. Rewards: points of 10. Best, highest, most and end are",
        "of a running mean over a twentieth of the run. KL: from the base, in nats.",
        "",
        *table(("regime", "method", *columns), rows),
    ]
    return "\n".join(lines) + "\n"


def plan_lines(plan: Plan) -> list[str]:
    """The generated part of docs/claims-plan.md: the primary tests, the runs, the gates of both experiments."""
    tests = [
        (question.asks, question.claim, f"{test.regime}: {compared(test)}, {measure_name(test, plan)}",
         f"{min(plan.seeds[test.regime, name] for name in (test.a, test.b or test.a))}")
        for _, question, test in primaries()
    ]  # fmt: skip
    by_seeds: dict[tuple[str, int], list[str]] = {}
    for (regime, method), seeds in plan.seeds.items():
        by_seeds.setdefault((regime, seeds), []).append(method)
    runs = [(regime, ", ".join(methods), f"{seeds}") for (regime, seeds), methods in by_seeds.items()]
    return [
        *table(("question", "claim", "primary test (paired by seed)", ">seeds"), tests),
        "",
        *table(("regime", "method", ">seeds"), runs),
        "",
        *null_table(read_json(plan.evidence / "null.json"), plan),
        "",
        "The second experiment:",
        "",
        *gate_table(load_plan(SECOND)),
    ]


def replaced(page: Path, blocks: dict[str, list[str]]) -> str:
    """The page with what stands between `<!-- claims: NAME -->` and `<!-- claims: end -->` written anew."""
    text, left = page.read_text(encoding="utf-8"), dict(blocks)
    new = re.sub(
        r"(<!-- claims: (\w+)[^\n]* -->\n\n).*?\n\n(<!-- claims: end -->)",
        lambda match: match[1] + "\n".join(left.pop(match[2])).rstrip("\n") + "\n\n" + match[3],
        text,
        flags=re.DOTALL,
    )
    if left:
        raise UserError(f"{page}: expected <!-- claims: NAME --> ... <!-- claims: end --> for {', '.join(left)}")
    return new


def pages(records: Records, plan: Plan, found: list[Answer]) -> dict[Path, str]:
    """Every page with its sections written anew."""
    return {
        README: replaced(README, {"verdicts": readme_lines(records, plan, found)}),
        RESULTS: replaced(RESULTS, results_blocks(records, plan, found)),
        PREREGISTERED: replaced(PREREGISTERED, {"tests": plan_lines(plan)}),
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
