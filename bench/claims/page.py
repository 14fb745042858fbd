"""`python -m bench.claims.page`: from the committed records to answers.json, the figures, and the pages' own sections.

What it writes stands between comments in README.md, docs/results.md and docs/claims-plan.md; a test writes it again and
compares. The words are in pages.jinja, the tables here. What has no pre-stated test is marked exploratory on the page.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.claims import sequential, tables
from bench.claims import statistics as st
from bench.claims.measures import MEASURES, at_end
from bench.claims.null import PASSES
from bench.claims.plan import PLAN, SECOND, TASKS, Plan, Test, load_plan
from bench.claims.run import as_program
from bench.claims.sequential import Look, looks
from bench.claims.statistics import Answer, Records
from bench.claims.tables import compared, described, interval, points, short_measure, unit
from bench.common import table
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_json, write_text

README, RESULTS, PREREGISTERED = Path("README.md"), Path("docs/results.md"), Path("docs/claims-plan.md")
SEARCH, SEARCHED = Path("bench/claims/search.yaml"), Path("results/published/claims/search")
SHOWN = ("entropy/mean", "kl/untrained", "completions/length", "conflict/fraction")
"""Curves whose last tenth the second experiment's table of means shows."""
LEAST_LOSSES = 20
"""So many runs of a regime must have lost their accuracy for the AUC of its warnings to be shown: with fewer, the
intervals of random walks leave 0.5 out too often."""


# --- the second experiment


def gate_table(plan: Plan) -> str:
    """What each primary test of the second experiment says of its placebos, and what it would find."""
    assert plan.packed is not None
    rows = []
    for row in read_json(plan.packed / "null.json")["tests"]:
        half, every = looks(plan, row["regime"])
        kinds = [name for name in ("labels", "unchanged", "noise", "information") if name in row]
        simulated = "equivalent_at_margin" in row
        planted = row["planted"]["difference"] if "planted" in row else row["matters"]
        rows.append((
            described(Test(**{name: row[name] for name in Test._fields}), plan),
            f"{len(half)}, {len(every)}",
            ", ".join(f"{name} {100 * row[name]['share']:.1f}" for name in kinds),
            f"{100 * row['equivalent_at_margin']['share']:.1f}" if simulated else "-",
            f"{row['margin']}",
            f"{100 * row['power']:.0f} at {planted:.2g}",
            f"{100 * row['equivalent_if_none']:.0f}" if simulated else "-",
            "yes" if row["passes"] else "**no**",
        ))  # fmt: skip
    columns = (">seeds: half, all", ">rejects, in % of placebos", ">calls equivalent, at the margin (%)", ">margin",
               ">power (%) at", ">equivalent if none (%)")  # fmt: skip
    return table(("primary test", *columns, "passes"), rows)


def looks_table(found: list[Look], plan: Plan) -> str:
    """Every primary test as far as it has got."""
    rows = []
    for look, verdict in zip(found, sequential.verdicts(found), strict=True):
        d, low, high = (f"{value or 0.0:+.3f}" for value in (look.difference, look.low, look.high))
        numbers = (f"{d} [{low}, {high}]", f"{look.p:.2g}") if look.taken else ("-", "-")
        seeds = f"{look.seeds} of {look.planned}"
        rows.append((look.test.claim, described(look.test, plan), seeds, *numbers, f"**{verdict}**"))
    columns = (">seeds", ">difference [95 % over both looks]", ">p over both looks", "verdict")
    return table(("claim", "primary test", *columns), rows)


def means_and_warnings(records: Records, plan: Plan, found: list[Look]) -> tuple[str, str]:
    """Of the regimes and seeds that a look has been taken at, without a test: every measure of every method, and the
    AUC of each indicator for a loss within HORIZON steps ("" where no regime has enough losses)."""
    means, warnings = [], []
    measures = [MEASURES["accuracy over training"], MEASURES["accuracy at the end"], *map(at_end, SHOWN)]
    for regime, taken in {look.test.regime: look.taken for look in found if look.taken}.items():
        seeds = looks(plan, regime)[taken - 1]
        runs = [run for run in sequential.warning_runs(records, regime) if run[1] in seeds]
        for method in plan.methods(regime):
            its = [records[regime, method][seed] for seed in seeds]
            shown = (f"{np.mean([measure(record) for record in its]):.3f}" for measure in measures)
            survive = sum(lost == math.inf for stratum, _, _, lost in runs if stratum == method)
            means.append((regime, method, f"{len(seeds)}", *shown, f"{survive}"))
        losses = sum(lost < math.inf for *_, lost in runs)
        if losses >= LEAST_LOSSES:
            auc, reach = sequential.auc_and_reach(runs)
            warnings.append((regime, losses, *(f"{a:.2f} ± {r:.2f}" for a, r in zip(auc, reach, strict=True))))
    names = (">accuracy over training", ">at the end", *(f">{key}, at the end" for key in SHOWN), ">kept half of it")
    below = table(("regime", ">losses", *(f">{key}" for key in sequential.INDICATORS)), warnings) if warnings else ""
    return table(("regime", "method", ">seeds", *names), means), below


def second_values(records: Records, plan: Plan, found: list[Look]) -> dict[str, Any]:
    """For docs/results.md: how many runs are in, and every look that has been taken."""
    stopped = sequential.settled(records, plan)
    halves = {regime: set(looks(plan, regime)[0]) for regime in stopped}
    every = [record for seeds in records.values() for record in seeds.values()]
    taken = sum(look.taken > 0 for look in found)
    means, warnings = means_and_warnings(records, plan, found) if taken else ("", "")
    return {
        "recorded": len(every), "planned": sum(run.seed in halves.get(run.regime, {run.seed}) for run in plan.runs),
        "taken": taken, "tests": len(found), "stopped": sorted(stopped), "looks": looks_table(found, plan),
        "commits": Counter(record.get("train", {}).get("git_commit", "unknown")[:7] for record in every),
        "means": means, "warnings": warnings,
    }  # fmt: skip


# --- the pages


def teller(found: list[Answer], later: list[Look]) -> Callable[[str, str, str], str]:
    """Return, for the README's sentences, a function of a claim, where it was tested (a scale, or `second`) and the
    verdict that the sentence states. It returns the difference that was found; UserError where the verdict has changed.
    """
    known = {(answer.question.short, answer.scale): (answer.verdict, interval(answer.effects[0])) for answer in found}
    for look, verdict in zip(later, sequential.verdicts(later), strict=True):
        values = [value or 0.0 for value in (look.difference, look.low, look.high)]
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*map(math.exp, values))
        text = points(*values) if look.test.measure.startswith("accuracy") else ratio
        known[look.test.claim, "second"] = verdict, text

    def tell(claim: str, where: str, stated: str) -> str:
        verdict, text = known[claim, where]
        if verdict != stated:
            raise UserError(
                f'pages.jinja calls "{claim}" ({where}) {stated}; it is {verdict} now: write its sentence again'
            )
        return text

    return tell


def values(records: Records, plan: Plan, found: list[Answer]) -> dict[str, Any]:
    """What the template's blocks say."""
    null = read_json(plan.evidence / "null.json")
    rows = {(row["question"], row["regime"]): row for row in null["tests"]}
    second = load_plan(SECOND)
    later = st.read_records(second)
    seen_later = [sequential.look_at(later, second, test) for test in second.tests]
    others = tables.secondary(found)
    seen = tables.apart_from_zero(others)
    commits = [record["train"].get("git_commit", "") for seeds in records.values() for record in seeds.values()]
    alarms = {regime: alarm for regime, alarm in null["collapsed"].items() if alarm["high"] > PASSES}
    return {
        "order": tables.ORDER, "evidence": plan.evidence, "interval": interval, "compared": compared, "unit": unit,
        "short_measure": lambda test: short_measure(test, plan),
        "tell": teller(found, seen_later),
        "undecided": [*(answer.verdict for answer in found), *sequential.verdicts(seen_later)].count("undecided"),
        "withdrawn": [(answer, rows[answer.question.name, answer.effects[0].test.regime])
                      for answer in found if answer.verdict == "withdrawn"],
        "questions_table": tables.questions_table(found, plan),
        "floors": tables.floors(records, plan),
        "figures": {answer.question.name: answer.question.short for answer in found},
        "regimes": [{"name": regime, "table": tables.methods_table(records, plan, regime), "alarm": alarms.get(regime),
                     "fewer": tables.fewer_seeds(records, plan, regime)}
                    for regime in plan.regimes],
        "baselines_table": tables.baselines_table(records, plan),
        "others": others, "seen": seen, "seen_table": tables.effects_table(seen, plan),
        "repeated": tables.at_every_scale(seen),
        "predictors": {scale: st.entropy_as_predictor(records, scale) for scale in TASKS},
        "compute_table": tables.compute_table(records, plan),
        "second": second_values(later, second, seen_later),
        "changed": sum(commit.endswith("+") for commit in commits), "recorded": len(commits),
        "tests_table": tables.tests_table(plan), "runs_table": tables.runs_table(plan),
        "null_table": tables.null_table(plan),
        "gate_table": gate_table(second),
        "effects_table": tables.effects_table((effect for answer in found for effect in answer.effects), plan),
        "search_table": tables.search_table(load_plan(SEARCH)),
    }  # fmt: skip


def rendered(name: str, **given: Any) -> str:
    """A block of pages.jinja, without the empty lines around it."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = environment.get_template("pages.jinja")
    return "".join(template.blocks[name](template.new_context(given))).strip("\n")


def replaced(page: Path, blocks: dict[str, str], of: str = "claims") -> str:
    """The page with what stands between `<!-- claims: NAME -->` and `<!-- claims: end -->` written anew."""
    text, left = page.read_text(encoding="utf-8"), dict(blocks)
    new = re.sub(
        rf"(<!-- {of}: (\w+)[^\n]* -->\n\n).*?\n\n(<!-- {of}: end -->)",
        lambda match: f"{match[1]}{left.pop(match[2])}\n\n{match[3]}",
        text,
        flags=re.DOTALL,
    )
    if left:
        raise UserError(f"{page}: expected <!-- {of}: NAME --> ... <!-- {of}: end --> for {', '.join(left)}")
    return new


def pages(records: Records, plan: Plan, found: list[Answer]) -> dict[Path, str]:
    """Every page with its sections written anew."""
    given = values(records, plan, found)
    of_results = ("verdicts", "questions", "methods", "baselines", "others", "predictor", "compute", "second",
                  "provenance")  # fmt: skip
    return {
        README: replaced(README, {"verdicts": rendered("readme", **given)}),
        RESULTS: replaced(RESULTS, {name: rendered(name, **given) for name in of_results}),
        PREREGISTERED: replaced(PREREGISTERED, {"tests": rendered("tests", **given)}),
        plan.evidence / "effects.md": rendered("effects", **given) + "\n",
        SEARCHED / "summary.md": rendered("search", **given) + "\n",
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    from bench.claims.figures import write_figures

    plan = load_plan(PLAN)
    records = st.read_records(plan)
    found = st.answers(records, plan)
    write_json(plan.evidence / "answers.json", st.as_json(found))
    for page, text in pages(records, plan, found).items():
        write_text(page, text)
    write_figures(records, plan, found)


if __name__ == "__main__":
    as_program(main)
