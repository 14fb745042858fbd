"""`python -m bench.claims.again RUN...`: recorded runs once more, from the committed bases, beside their records.

On the machine and the versions of the record the numbers are the same to the last digit. Elsewhere late digits of
float32 differ, sampling then takes other turns, and what is reproduced is a draw of the same experiment: each number
must lie within three standard deviations (TOLERANCE), at least `LEAST`. Of two estimates the smaller holds: over the
method's recorded seeds, and the same after the mean of the regime's other methods on each seed is taken off, since a
repetition starts from the same base. Both are larger than the spread of a repetition, because seeds differ in more.

--quick: seed 1 of SFT, GRPO and GTPO in the first regime.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.claims.measures import Record, evaluated
from bench.claims.plan import PLAN, load_plan
from bench.claims.record import read_record
from bench.claims.run import as_program, pending, run_all
from bench.claims.statistics import Records, read_records
from bench.common import parser
from gtpo.common.errors import UserError

EVIDENCE = Path("results/claims/again")
QUICK = ("sft", "grpo", "gtpo")
"""What --quick runs, with seed 1, of the plan's first regime."""
TOLERANCE = 3.0
LEAST = 0.02
METRICS = ("pass@1", "maj@n", "format")


def spread(own: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> float:
    """The standard deviation of a number over seeds: the smaller of the two estimates that the module names.

    own: seed -> the method's number; others: the same of the regime's other methods. 0 with fewer than two seeds.
    """
    complete = [other for other in others if own.keys() <= other.keys()]
    estimates = [list(own.values())]
    if complete:
        estimates.append([value - float(np.mean([other[seed] for other in complete])) for seed, value in own.items()])
    return min(float(np.std(values, ddof=1)) for values in estimates) if len(own) > 1 else 0.0


def rows(before: Record, now: Record, records: Records) -> list[tuple[str, float, float, float]]:
    """(what, recorded, now, tolerance) of a run for every benchmark and metric."""
    its = (before["regime"], before["method"])
    others = [found for key, found in records.items() if key[0] == its[0] and key != its]
    out = []
    for benchmark in before["evaluation"]:
        for metric in METRICS:
            measure = evaluated(benchmark, metric)
            numbers = [{seed: measure(record) for seed, record in found.items()} for found in (records[its], *others)]
            tolerance = max(LEAST, TOLERANCE * spread(numbers[0], numbers[1:]))
            out.append((f"{before['run']} {benchmark} {metric}", measure(before), measure(now), tolerance))
    return out


def main() -> None:
    made = parser(__doc__, quick=False, plan=PLAN, jobs=2)
    made.add_argument("runs", nargs="*", help="names of recorded runs")
    asked = made.parse_args()
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
    if kept := [str(again.record(run)) for run in wanted if run.method != "base" and again.record(run).is_file()]:
        print(f"not made now but by an earlier call; remove the file to make it again: {', '.join(kept)}")
    failed = run_all(again, todo, asked.jobs)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    records, outside = read_records(plan), 0
    print(f"{'':60} recorded   again  tolerance")
    for name in asked.runs:
        before, now = read_record(plan.record(chosen[name])), read_record(again.record(twins[name]))
        same = before["curves"] == now["curves"] and before["evaluation"] == now["evaluation"]
        print(f"{name}: {'the same numbers, to the last digit' if same else 'other late digits'}")
        for what, recorded, found, tolerance in rows(before, now, records):
            wrong = abs(recorded - found) > tolerance
            outside += wrong
            print(f"{what:60} {100 * recorded:8.1f} {100 * found:7.1f} {100 * tolerance:10.1f}{'  OUTSIDE' * wrong}")
    if outside:
        sys.exit(f"{outside} numbers lie outside the tolerance")


if __name__ == "__main__":
    as_program(main)
