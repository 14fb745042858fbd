"""`python -m bench.real_page`: the section of docs/results.md on the real model, from the records of bench.real_runs.

What is not recorded yet is named as such. A test writes the section again and compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims.figures import REWARDS_AND_ENTROPY, training_figure
from bench.claims.measures import Record, curve, scores
from bench.claims.page import RESULTS, replaced
from bench.claims.plan import Plan, load_plan
from bench.claims.record import find_record
from bench.claims.run import as_program
from bench.claims.tables import points
from bench.common import table
from bench.real_runs import KINDS, PLAN, SEARCH, searched
from gtpo.common.files import read_json, write_bytes, write_text
from gtpo.evalkit.differences import METHODS, PairedDifference, differences
from gtpo.evalkit.report.figures import STYLE

BENCHMARK = "gsm8k"
BLOCK = 10
"""Steps that a row of the tables of training is the mean of."""
CURVES_OF = ("gtpo", "grpo")
"""The methods whose training is shown."""
FIGURE = Path("training.png")
PANELS = (
    *REWARDS_AND_ENTROPY,
    ("conflict/fraction", "Share of conflict tokens"),
    ("completions/length", "Length (tokens)"),
)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def marked(found: PairedDifference) -> str:
    """`+1.2 [+0.3, +2.7] ▲`, marked where the difference is shown."""
    return points(found.difference, found.low, found.high) + ("", " ▲", " ▼")[found.shown]


def search_table(records: Iterable[Record]) -> str:
    """Of each rate of the search: held-out pass@1 before and after, and what training did meanwhile."""
    rows = []
    for record in records:
        before, after = record["validation"]["untrained"], curve(record, "validation/pass@1")[1][-1]
        steps = record["curves"]["last_step_of_block"][-1]
        shown = [curve(record, key)[1] for key in ("reward/format", "reward/accuracy", "completions/length")]
        first, last = ([float(values[part].mean()) for values in shown] for part in (slice(5), slice(-5, None)))
        rate = record["config"]["training"]["learning_rate"]
        moves = (f"{a:.3g} to {b:.3g}" for a, b in zip(first, last, strict=True))
        rows.append((f"{rate:g}", steps, f"{percent(before)} to {percent(after)}", *moves))
    columns = (">rate", ">steps", ">held-out pass@1, %", ">format, of 10", ">accuracy, of 10", ">tokens")
    return table(columns, rows)


def accuracy_table(untrained: dict[str, Any], records: Mapping[str, Record]) -> str:
    """The test problems: the accuracy of each run's last weights, against the untrained model."""
    before = scores(untrained, BENCHMARK, "pass@1")
    rows = []
    for name, record in {"untrained": untrained, **records}.items():
        found = record["summary"][BENCHMARK]
        n = record["evaluation"][BENCHMARK]["n"]
        at_k = [found[metric][k] for metric, k in (("pass@k", "1"), ("pass@k", str(n)), ("maj@k", str(n)))]
        shown = [f"{percent(each['mean'])} [{percent(each['low'])}, {percent(each['high'])}]" for each in at_k]
        after = scores(record, BENCHMARK, "pass@1")[None, None]
        against = marked(differences(after, before[None, None], trained=(False, False))[0]) if record["run"] else ""
        rows.append((name.removeprefix("real-gsm8k-"), shown[0], against, *shown[1:]))
    return table(("run", ">pass@1, %", ">against untrained", f">pass@{n}", f">maj@{n}"), rows)


def answers_table(untrained: dict[str, Any], records: Mapping[str, Record]) -> str:
    """The same answers: their format and length, and their accuracy where any format is taken."""
    rows = []
    for name, record in {"untrained": untrained, **records}.items():
        found = record["summary"][BENCHMARK]
        shares = (found["lenient"]["pass@k"]["1"]["mean"], found["format_rate"], found["truncation_rate"])
        rows.append((name.removeprefix("real-gsm8k-"), *map(percent, shares), f"{found['mean_tokens']:.0f}"))
    return table(("run", ">lenient pass@1, %", ">format, %", ">cut off, %", ">tokens"), rows)


def blocks_of(record: Record, key: str) -> list[float]:
    """The means of a curve over every BLOCK steps; NaN where it has no value."""
    steps, values = curve(record, key)
    last = record["curves"]["last_step_of_block"][-1]
    which = [(steps > begin) & (steps <= begin + BLOCK) for begin in range(0, last, BLOCK)]
    return [float(values[inside].mean()) if inside.any() else float("nan") for inside in which]


def conflict_shares(record: Record, *kinds: str) -> list[float]:
    """The share, in percent, of the tokens of some kinds that are conflict tokens, over every BLOCK steps."""
    found = record["conflict_kinds"]
    conflict, every = (np.sum([found[f"{part}/{kind}"] for kind in kinds], axis=0) for part in ("conflict", "tokens"))
    parts = range(0, len(every), BLOCK)
    return [100 * float(conflict[at : at + BLOCK].sum() / max(1, every[at : at + BLOCK].sum())) for at in parts]


def by_blocks(columns: Mapping[str, Any]) -> str:
    """A table with a row for every BLOCK steps. columns: heading -> a value for each row."""
    starts = range(1, BLOCK * len(next(iter(columns.values()))), BLOCK)
    rows = [(f"{at}-{at + BLOCK - 1}", *(f"{value:.3g}" for value in row))
            for at, row in zip(starts, zip(*columns.values(), strict=True), strict=True)]  # fmt: skip
    return table(("steps", *(f">{name}" for name in columns)), rows)


def training_table(records: list[Record]) -> str:
    """What a method's runs did, in the means of BLOCK steps and of its seeds."""
    curves = {
        "format, of 10": ("reward/format", 1), "accuracy, of 10": ("reward/accuracy", 1),
        "entropy": ("entropy/mean", 1), "kept, %": ("gate/kept", 100), "tokens": ("completions/length", 1),
        "cut off, %": ("completions/truncated", 100), "KL": ("kl/untrained", 1),
        "equal rewards, %": ("groups/zero_variance", 100),
    }  # fmt: skip
    return by_blocks(
        {
            name: np.mean([np.multiply(blocks_of(record, key), factor) for record in records], axis=0)
            for name, (key, factor) in curves.items()
            if all(curve(record, key)[1].size for record in records)
        }
    )


def conflict_table(records: list[Record]) -> str:
    """The share of conflict tokens, of all and of the tokens of each kind, in the same means."""
    which = {"all": KINDS, **{f"{kind}s": (kind,) for kind in KINDS}}
    shares = {name: [conflict_shares(record, *kinds) for record in records] for name, kinds in which.items()}
    return by_blocks({name: np.mean(values, axis=0) for name, values in shares.items()})


def primary(records: Mapping[str, Mapping[int, Record]]) -> str:
    """GTPO - GRPO on the seeds that both have, and what it can say."""
    seeds = sorted(set(records.get("gtpo", {})) & set(records.get("grpo", {})))
    if not seeds:
        return "**GTPO against GRPO: no pair of runs is recorded yet.**"
    a, b = (np.stack([scores(records[name][s], BENCHMARK, "pass@1") for s in seeds])[None] for name in ("gtpo", "grpo"))
    found = differences(a, b, seeds_paired=True)[0]
    says = {1: "GTPO is better", -1: "GRPO is better", 0: "undecided"}[found.shown]
    if not found.judged:
        says = "too few pairs for a verdict on the methods"
    covers = "questions and seeds" if found.scope == METHODS else "questions, not seeds"
    return (
        f"**GTPO against GRPO: {marked(found)} points, {says}** (pass@1, strict; p = {found.p_value:.2g}; pairs of "
        f"runs: {len(seeds)}; the interval covers {covers}). 80 % power finds {percent(found.detectable)} points."
    )


def runs_by_method(plan: Plan) -> dict[str, dict[int, Record]]:
    """Method -> seed -> record, of the runs after the search."""
    found: dict[str, dict[int, Record]] = {}
    for run in plan.runs:
        if not run.name.startswith(SEARCH) and (record := find_record(plan, run)) is not None:
            found.setdefault(run.method, {})[run.seed] = record
    return found


def section(plan: Plan) -> str:
    """What docs/results.md says of the plan's runs."""
    recorded = {run.name: record for run in plan.runs if (record := find_record(plan, run)) is not None}
    missing = [run.name for run in plan.runs if run.name not in recorded]
    ends = {name: record for name, record in recorded.items() if record["evaluation"]}
    by_method = runs_by_method(plan)
    untrained = {"run": None, **read_json(plan.evidence / "untrained.json")}
    parts = [
        f"{len(recorded)} of {len(plan.runs)} runs are recorded."
        + (f" Not run yet: {', '.join(f'`{name}`' for name in missing)}." if missing else ""),
        primary(by_method),
        accuracy_table(untrained, ends),
        "Of the same answers (lenient: right in any format):",
        answers_table(untrained, ends),
    ]
    if search := searched(plan):
        means = "rewards and tokens: means of the first and the last five steps"
        parts += [f"The search for the learning rate, with GRPO alone ({means}):", search_table(search)]
    if any(method in by_method for method in CURVES_OF):
        parts.append(f"![GTPO and GRPO in training](../{plan.evidence / FIGURE})")
    for method in CURVES_OF:
        if method in by_method:
            runs = [by_method[method][seed] for seed in sorted(by_method[method])]
            count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
            as_if = "" if method == "gtpo" else ", as if it had the weights"
            parts += [f"{method.upper()} in training, {count}:", training_table(runs)]
            parts += [f"Its conflict tokens{as_if}, in % of all tokens and of those of a kind:", conflict_table(runs)]
    return "\n\n".join(parts)


def write_figure(plan: Plan, by_method: Mapping[str, Mapping[int, Record]]) -> None:
    """Draw what the methods' runs did in training."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(STYLE):
        runs = {name: list(by_method[name].values()) for name in CURVES_OF if name in by_method}
        write_bytes(plan.evidence / FIGURE, training_figure("Qwen2.5-Coder-0.5B on GSM8K", runs, PANELS))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    plan = load_plan(PLAN)
    by_method = runs_by_method(plan)
    if any(method in by_method for method in CURVES_OF):
        write_figure(plan, by_method)
    write_text(RESULTS, replaced(RESULTS, {"runs": section(plan)}, "real"))


if __name__ == "__main__":
    as_program(main)
