"""`python -m bench.claims.page`: from the committed records to answers.json, the figures, and the pages' own sections.

What it writes stands between two comments in docs/results.md and docs/claims-plan.md; a test writes it again and
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
from bench.claims.second import SECOND, gate_table, results_lines
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


def readme_section(records: Records, plan: Plan, found: list[Answer]) -> str:
    """The generated part of the README: a line per verdict with its claims, what did not hold first."""
    recorded, planned = sum(len(seeds) for seeds in records.values()), len(plan.runs)
    lines = (
        [] if recorded == planned else [f"- **Interim: {recorded} of {planned} runs are in.** What follows may change."]
    )
    for verdict, meaning in ORDER.items():
        claims: dict[str, list[Answer]] = {}
        for answer in found:
            if bare(answer.verdict) == verdict:
                claims.setdefault(answer.question.short, []).append(answer)
        if claims:
            said = "; ".join(
                f'"{short}" ({", ".join(answer.scale for answer in its)})' for short, its in claims.items()
            )
            lines.append(f"- **{verdict.capitalize()}** ({meaning}): {said}.")
    return "\n".join(lines)


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
        *withdrawn_lines(plan, found),
        state,
        "",
        *(f"- **{verdict}**: {meaning}." for verdict, meaning in ORDER.items() if verdict != "no answer yet"),
        "",
        *questions_table(found, plan),
        "",
        *floors(records, plan),
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
            notes = [*alarm_notes(plan, regime), *fewer_seeds_notes(records, plan, regime)]
            parts += [line for note in notes for line in (note, "")]
            parts += [f"![Training in {regime}]({figures}/training-{regime}.png)", ""]
    parts += [
        "### Exploratory",
        "",
        "Looked at without a pre-stated test. Intervals are of one comparison each, uncorrected.",
        "",
        "**Where GTPO stands among the baselines**: its pass@1 minus theirs, in points [95 %].",
        "",
        *baselines_table(records, plan),
        "",
        f"![pass@1 of every method, a dot per seed]({figures}/baselines.png)",
        "",
        f"**Other tests whose interval excludes 0.** {len(seen)} of {len(others)}; about {len(others) / 20:.0f} would "
        f"by chance alone. All of them: [effects.md](../{plan.evidence}/effects.md).",
        "",
        *effects_table(seen, plan),
        "",
        *repeated_lines(at_every_scale(seen), plan),
        "**Does H_ini predict which runs collapse?** AUC: the chance that of two runs of one regime the one that",
        "collapsed began with the higher entropy; 0.5 is none. [95 %] by resampling seeds.",
        "",
        *filter(None, (predictor_line(records, scale) for scale in TASKS)),
        "",
        "### Compute",
        "",
        *compute_table(records, plan),
        "",
        "### The second experiment",
        "",
        "Fresh seeds, bases of their own, a plan written first, runs from clean commits. Accuracy: fractions; entropy",
        "and time: natural logarithms of a ratio; warnings: AUC. In the regimes `reuse-2`, `-4`, `-8`, `dose`, `calm`",
        "some 40 % of the tokens are conflict tokens, in `reuse-varied` 3 %. What is tested how, and what a look is:",
        "[claims-plan.md](claims-plan.md#the-second-experiment).",
        "",
        *results_lines(read_records(load_plan(SECOND)), load_plan(SECOND)),
        "",
        "### Provenance",
        "",
        *provenance_lines(records),
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


def plan_section(plan: Plan) -> str:
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
    parts = [
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
    return "\n".join(parts)


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
