"""`python -m bench.claims.again RUN...`: recorded runs once more, from the committed bases, beside their records.

On the machine and the versions of the record the numbers are the same to the last digit. Elsewhere late digits of
float32 differ, sampling then takes other turns, and what is reproduced is a draw of the same experiment: each number
must lie within three standard deviations over the method's recorded seeds (TOLERANCE), at least `LEAST`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from bench.claims.answers import read_records
from bench.claims.measures import Record, evaluated
from bench.claims.plan import PLAN, load_plan
from bench.claims.record import read_record
from bench.claims.run import as_program, pending, run_all
from rewards.support.errors import UserError

EVIDENCE = Path("results/claims/again")
QUICK = ("sft", "grpo", "gtpo")
"""What --quick runs, with seed 1, of the plan's first regime."""
TOLERANCE = 3.0
LEAST = 0.02
METRICS = ("pass@1", "maj@n", "format")


def rows(name: str, before: Record, now: Record, seeds: list[Record]) -> list[tuple[str, float, float, float]]:
    """(what, recorded, now, tolerance) for every benchmark and metric; seeds: the method's records."""
    out = []
    for benchmark in before["evaluation"]:
        for metric in METRICS:
            measure = evaluated(benchmark, metric)
            spread = float(np.std([measure(record) for record in seeds], ddof=1)) if len(seeds) > 1 else 0.0
            tolerance = max(LEAST, TOLERANCE * spread)
            out.append((f"{name} {benchmark} {metric}", measure(before), measure(now), tolerance))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", help="names of recorded runs")
    parser.add_argument("--quick", action="store_true", help="seed 1 of sft, grpo and gtpo in the first regime")
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    plan = load_plan(asked.plan)
    if asked.quick:
        regime = next(iter(plan.seeds))[0]
        asked.runs += [run.name for run in plan.runs if (run.regime, run.seed) == (regime, 1) and run.method in QUICK]
    chosen = {run.name: run for run in plan.choose(asked.runs)}
    missing = [name for name in asked.runs if chosen[name].method == "base" or not plan.record(chosen[name]).is_file()]
    if missing or not asked.runs:
        raise UserError(f"no record to compare with, or a base: {', '.join(missing) or 'name a run, or --quick'}")
    again = load_plan(asked.plan, prefix="again", evidence=EVIDENCE)
    twins = {old.name: new for old, new in zip(plan.runs, again.runs, strict=True)}
    wanted = again.choose([twins[name].name for name in asked.runs])
    there = {run.name for run in wanted if run.weights is not None and run.weights.is_dir()}  # bases
    todo = [run for run in pending(again, wanted) if run.name not in there]
    failed = run_all(again, todo, asked.jobs)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    records, outside = read_records(plan), 0
    print(f"{'':60} recorded   again  tolerance")
    for name in asked.runs:
        run = chosen[name]
        before, now = read_record(plan.record(run)), read_record(again.record(twins[name]))
        same = before["curves"] == now["curves"] and before["evaluation"] == now["evaluation"]
        print(f"{name}: {'the same numbers, to the last digit' if same else 'other late digits'}")
        for what, recorded, found, tolerance in rows(name, before, now, list(records[run.regime, run.method].values())):
            wrong = abs(recorded - found) > tolerance
            outside += wrong
            print(f"{what:60} {100 * recorded:8.1f} {100 * found:7.1f} {100 * tolerance:10.1f}{'  OUTSIDE' * wrong}")
    if outside:
        sys.exit(f"{outside} numbers lie outside the tolerance")


if __name__ == "__main__":
    as_program(main)
