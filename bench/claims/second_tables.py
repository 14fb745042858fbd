"""The second experiment in docs/claims-plan.md and docs/results.md: its gate, its looks, its means, its warnings."""

from __future__ import annotations

import math

import numpy as np

from bench.claims.answers import Records
from bench.claims.measures import MEASURES, at_end
from bench.claims.plan import Plan
from bench.claims.second import (
    INDICATORS,
    PLACEBOS,
    SHOWN,
    Look,
    look_at,
    looks,
    settled,
    tests_of,
    verdicts,
    warning_auc,
    warning_runs,
)  # fmt: skip
from bench.claims.tables import table
from gtpo.common.files import read_json


def gate_table(plan: Plan) -> list[str]:
    """For the plan's page: what each primary test says of its placebos, and what it would find."""
    assert plan.packed is not None
    rows = []
    for row in read_json(plan.packed / "null.json")["tests"]:
        half, every = looks(plan, row["regime"])
        kinds = [name for name in ("labels", "unchanged", *PLACEBOS) if name in row]
        simulated = "equivalent_at_margin" in row
        planted = row["planted"]["difference"] if "planted" in row else row["matters"]
        rows.append((
            f"{row['regime']}: {row['a']} - {row['b']}, {row['measure']}",
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


def means_table(records: Records, plan: Plan, found: list[Look]) -> list[str]:
    """Every measure of every method, without a test, of the regimes and seeds that a look has been taken at."""
    rows = []
    for regime, taken in {look.test.regime: look.taken for look in found if look.taken}.items():
        seeds = looks(plan, regime)[taken - 1]
        lost = {(method, seed): step for method, seed, _, step in warning_runs(records, regime)}
        for method in (method for its, method in plan.seeds if its == regime):
            runs = [records[regime, method][seed] for seed in seeds]
            accuracy = [MEASURES[f"accuracy {when}"] for when in ("over training", "at the end")]
            values = [[measure(run) for run in runs] for measure in accuracy]
            values += [[at_end(key)(run) for run in runs] for key in SHOWN]
            shown = [f"{np.mean(column):.3f}" for column in values]
            survive = sum(lost[method, seed] == math.inf for seed in seeds)
            rows.append((regime, method, f"{len(seeds)}", *shown, f"{survive}"))
    names = (">accuracy over training", ">at the end", *(f">{key}, at the end" for key in SHOWN), ">kept half of it")
    return table(("regime", "method", ">seeds", *names), rows)


def warnings_table(records: Records, plan: Plan, found: list[Look]) -> list[str]:
    """The AUC of each indicator for a loss within HORIZON steps, of the same regimes."""
    rows = []
    for regime, taken in {look.test.regime: look.taken for look in found if look.taken}.items():
        seeds = looks(plan, regime)[taken - 1]
        auc, without = warning_auc([run for run in warning_runs(records, regime) if run[1] in seeds], INDICATORS)
        errors = math.sqrt(len(seeds) - 1) * without.std(0)
        if not np.isnan(auc).any():
            rows.append((regime, *(f"{a:.2f} ± {1.96 * e:.2f}" for a, e in zip(auc, errors, strict=True))))
    return table(("regime", *(f">{key}" for key in INDICATORS)), rows) if rows else []


def phrases(records: Records, plan: Plan) -> dict[str, list[str]]:
    """For the README: each verdict -> the claims of which the last look is taken, with what was found."""
    found = [look_at(records, plan, test) for test in tests_of(plan)]
    out: dict[str, list[str]] = {}
    for look, verdict in zip(found, verdicts(found), strict=True):
        if look.taken == 2:
            values = [value or 0.0 for value in (look.difference, look.low, look.high)]
            if look.test.measure.startswith("accuracy"):
                number = "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*(100 * value for value in values))
            else:
                number = "times {:.2f} [{:.2f}, {:.2f}]".format(*(math.exp(value) for value in values))
            out.setdefault(verdict, []).append(f'"{look.test.claim}" (second experiment: {number})')
    return out


def results_lines(records: Records, plan: Plan) -> list[str]:
    """For docs/results.md: how many runs are in, and every look that has been taken."""
    found = [look_at(records, plan, test) for test in tests_of(plan)]
    stopped = settled(records, plan)
    halves = {regime: set(looks(plan, regime)[0]) for regime in stopped}
    planned = sum(run.seed in halves.get(run.regime, {run.seed}) for run in plan.runs)
    recorded = sum(len(seeds) for seeds in records.values())
    taken = sum(look.taken > 0 for look in found)
    state = "All planned runs are recorded." if recorded >= planned else (
        f"**Interim: {recorded} of {planned} runs, "
        + (f"{taken} of {len(found)} tests made.**" if taken else "no test made yet.**"))  # fmt: skip
    commits: dict[str, int] = {}
    for record in (record for seeds in records.values() for record in seeds.values()):
        commit = record.get("train", {}).get("git_commit", "unknown")
        commits[commit[:7]] = commits.get(commit[:7], 0) + 1
    lines = [f"{state} Their commits: {', '.join(f'{name} ({n} runs)' for name, n in commits.items()) or 'none'}.", ""]
    if stopped:
        lines += [f"Stopped at half, as the plan says: {', '.join(sorted(stopped))}.", ""]
    rows = []
    for look, verdict in zip(found, verdicts(found), strict=True):
        test = look.test
        d, low, high = (f"{value or 0.0:+.3f}" for value in (look.difference, look.low, look.high))
        numbers = (f"{d} [{low}, {high}]", f"{look.p:.2g}")
        rows.append((
            test.claim,
            f"{test.regime}: {test.a} - {test.b}, {test.measure}",
            f"{look.seeds} of {look.planned}",
            *(numbers if look.taken else "--"),
            f"**{verdict}**",
        ))  # fmt: skip
    columns = (">seeds", ">difference [95 % over both looks]", ">p over both looks", "verdict")
    lines += table(("claim", "primary test", *columns), rows)
    if taken:
        lines += ["", "Means over seeds, and the AUC of warnings ± 95 %, without a test:", ""]
        lines += [*means_table(records, plan, found), "", *warnings_table(records, plan, found)]
    return lines
