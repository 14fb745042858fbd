"""How often the watch of a run is wrong, and how late it is right: `python -m bench.health [PART]...`.

stationary: false alarms of both tests together (`gtpo.train.health.Watch`) on policies that do not change. trends: the
same where they learn or drift without a collapse. sudden: delay where the accuracy falls to a tenth at once. claims:
which runs of results/published/claims/first.parquet it flags, and how many steps after the accuracy reward first lay
below half of its best; the records hold means of blocks of steps, and a block is a line.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.common import save, table
from gtpo.common.files import read_json
from gtpo.config import HealthSection
from gtpo.evalkit.comparison.training_curves import running_mean
from gtpo.train.health import ACCURACY, KL, Floats, Watch

Row = dict[str, Any]
OUT = Path("results/published/bench/health.json")
RECORDS = Path("results/published/claims/first.parquet")
COMPLETIONS = 8
RUNS, STEPS = 100, 3000
LONG = 7500


@dataclass(frozen=True)
class Policy:
    """How the metrics of a run are drawn, of every step anew.

    accuracy, spread: problems are Beta with this mean; spread below 1 is U-shaped. prompts: in a step, 8 completions
    each. memory: coefficient of a first-order process that shifts all problems by one standard deviation in logits, and
    KL by half of one in logarithms; 0: none. negative: the reward is -1 or 1 in place of 0 or 1. kl: median divergence;
    it is exp(t) of Student's t with 3 degrees of freedom, per prompt. problems: so many take turns and keep their
    difficulty; 0: each step has new ones.
    """

    accuracy: float = 0.3
    spread: float = 2.0
    prompts: int = 4
    memory: float = 0.0
    negative: bool = False
    kl: float = 0.05
    problems: int = 0

    def metrics(
        self, draw: Any, runs: int, steps: int, drift: Mapping[str, Floats] | None = None, lost_from: int | None = None
    ) -> dict[str, Floats]:
        """Return each metric [runs, steps].

        drift: what is added to its logits (accuracy) or logarithm (kl). lost_from: from this step on a prompt keeps
        its accuracy once in ten times, and has 0 else.
        """
        shift, noise = np.zeros((runs, steps)), draw.standard_normal((runs, steps))
        for at in range(1, steps if self.memory else 0):
            shift[:, at] = self.memory * shift[:, at - 1] + math.sqrt(1 - self.memory**2) * noise[:, at]
        added = {name: np.zeros(1) for name in ("accuracy", "kl")} | dict(drift or {})
        size = (runs, steps, self.prompts)
        turn = np.arange(steps * self.prompts).reshape(steps, self.prompts) % max(1, self.problems)
        a, b = self.accuracy * self.spread, (1 - self.accuracy) * self.spread
        rates = draw.beta(a, b, (runs, self.problems))[:, turn] if self.problems else draw.beta(a, b, size)
        rates = np.clip(rates, 1e-9, 1 - 1e-9)
        odds = rates / (1 - rates) * np.exp(shift + added["accuracy"])[:, :, None]
        passed = draw.binomial(COMPLETIONS, odds / (1 + odds)) / COMPLETIONS
        if lost_from is not None:
            passed[:, lost_from:] *= draw.random(passed[:, lost_from:].shape) < 0.1
        accuracy = passed.mean(2)
        logs = draw.standard_t(3, size) + (0.5 * shift + added["kl"])[:, :, None]
        return {
            "accuracy": 2 * accuracy - 1 if self.negative else accuracy,
            "kl": (self.kl * np.exp(np.minimum(logs, 50.0))).mean(2),
        }


MEANS = (0.05, 0.2, 0.5, 0.8)


def first_alarms(metrics: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return by test the step at which the watch first says it of each run; NaN where it never does."""
    runs, steps = metrics["accuracy"].shape
    watch = Watch(HealthSection().false_alarms, rows=runs)
    first = {name: np.full(runs, np.nan) for name in metrics}
    for at in range(steps):
        for name, alarms in watch.look({n: v[:, at] for n, v in metrics.items()}).items():
            first[name][alarms] = at + 1
    return first


def false_alarms(metrics: Mapping[str, Floats]) -> dict[str, Any]:
    """Return how many runs are flagged by any test within each number of steps, and by which within all."""
    first = first_alarms(metrics)
    earliest = np.nanmin(np.stack([*first.values(), np.full(len(first["kl"]), np.inf)]), axis=0)
    steps = metrics["accuracy"].shape[1]
    return {
        "runs": len(earliest),
        "flagged": {str(until): int((earliest <= until).sum()) for until in sorted({STEPS, steps})},
        "by": {name: int(found) for name, at in first.items() if (found := (~np.isnan(at)).sum())},
    }


def measure_stationary() -> Iterator[Row]:
    """Yield false alarms by setting, of all runs within STEPS and of some within LONG."""
    policies = [Policy(mean, *each) for mean in MEANS for each in ((0.3, 1), (20.0, 4), (0.3, 16))]
    policies += [Policy(0.3, 0.3, 1, negative=True), Policy(0.3, kl=0.5)]
    policies += [Policy(0.05, 0.3, 1, problems=250), Policy(0.2, 0.3, 1, problems=250)]
    policies += [Policy(0.5, 20.0, 4, problems=1000)]
    policies += [Policy(mean, memory=each) for each in (0.7, 0.9) for mean in (0.05, 0.2, 0.5)]
    for number, policy in enumerate(policies):
        steps = LONG if policy in (Policy(0.2, 0.3, 1), Policy(0.2, 0.3, 16)) else STEPS
        yield asdict(policy) | false_alarms(policy.metrics(np.random.default_rng([7, number]), RUNS, steps))


def trends() -> dict[str, dict[str, Floats]]:
    """Return what is added to the metrics [STEPS] of runs that change slowly and do not collapse."""
    way = np.arange(STEPS) / STEPS
    learned = 1 - np.exp(-5 * way)
    return {
        "learns: accuracy 0.3 to 0.9, KL 0.001 to 0.3": {
            "accuracy": 3 * learned, "kl": math.log(0.02) + math.log(300) * learned,
        },
        "is at its level: accuracy stays, KL 0.02 to 0.1": {"kl": math.log(0.4) * (1 - way) + math.log(2) * way},
        "problems grow harder: accuracy 0.3 to 0.18": {"accuracy": -0.67 * way},
    }  # fmt: skip


def measure_trends() -> Iterator[Row]:
    """Yield false alarms of runs that change without a collapse."""
    for number, (name, drift) in enumerate(trends().items()):
        draw = np.random.default_rng([8, number])
        yield {"trend": name} | false_alarms(Policy(prompts=4).metrics(draw, RUNS, STEPS, drift))


def measure_sudden() -> Iterator[Row]:
    """Yield how late the accuracy reward flags runs whose accuracy falls to a tenth at step 501."""
    policies = [Policy(*each) for each in itertools.product(MEANS, (0.3, 20.0), (1, 16))]
    policies += [Policy(mean, 0.3, 1, problems=each) for mean in (0.05, 0.2, 0.5) for each in (100, 400)]
    for number, policy in enumerate(policies):
        metrics = policy.metrics(np.random.default_rng([9, number]), RUNS, 1000, None, lost_from=500)
        late = first_alarms({"accuracy": metrics["accuracy"]})["accuracy"] - 500
        seen = late[late > 0]
        found = {"flagged": len(seen), "median_delay": float(np.median(seen)) if len(seen) else None}
        yield asdict(policy) | {"runs": RUNS, "by": {"accuracy": found}}


def read_records() -> list[Row]:
    """Return the runs of the first experiment."""
    rows: list[Row] = pq.read_table(RECORDS).to_pylist()
    return rows


def curve(record: Row, name: str) -> tuple[Floats, Floats]:
    """Return the last step of each block and its mean, blocks without a value left out; empty without the metric."""
    blocks = zip(record["last_step_of_block"], record.get(name) or [], strict=False)
    steps, means = np.array([pair for pair in blocks if pair[1] is not None], dtype=float).reshape(-1, 2).T
    return steps, means


def collapse_step(record: Row) -> float:
    """Return the step at which the running accuracy falls below half of its best and does not come back; else NaN."""
    steps, values = curve(record, "reward/accuracy")
    smooth = running_mean(values, 4)
    below = smooth < 0.5 * np.maximum.accumulate(smooth)
    return float(steps[below][0]) if below[-1] else math.nan


def watched(record: Row) -> int | None:
    """Return the step of the first alarm of the whole watch on a record."""
    lines: dict[int, dict[str, float]] = {}
    for name in (*ACCURACY, *KL):
        for step, value in zip(*curve(record, name), strict=True):
            lines.setdefault(int(step), {})[name] = float(value)
    watch = Watch(HealthSection().false_alarms)
    return next((step for step in sorted(lines) if watch.observe(step, lines[step])), None)


def measure_claims() -> Row:
    """Return which records are flagged, by regime."""
    found: dict[str, Row] = {}
    delays: list[int] = []
    for record in read_records():
        if record["reward/accuracy"] is None:
            continue
        end, alarm = collapse_step(record), watched(record)
        counts = {"collapsed": 0, "flagged": 0, "others": 0, "others_flagged": 0}
        regime = found.setdefault(record["regime"], counts)
        collapsed = not math.isnan(end)
        regime["collapsed" if collapsed else "others"] += 1
        if alarm is not None:
            regime["flagged" if collapsed else "others_flagged"] += 1
            delays += [alarm - int(end)] if collapsed else []
    return {"regimes": found, "median_delay_steps": float(np.median(delays))}


def tables(found: dict[str, Any]) -> list[str]:
    """Return the tables of results/published/bench/health.md: false alarms, slow changes, delays."""
    rows = found["stationary"]
    plain = [row for row in rows if not (row["memory"] or row["problems"] or row["negative"] or row["kl"] > 0.05)]
    groups = {f"accuracy {mean}": [row for row in plain if row["accuracy"] == mean] for mean in MEANS}
    groups["prompts that come again"] = [row for row in rows if row["problems"]]
    groups["rewards of -1 and 1"] = [row for row in rows if row["negative"]]
    groups["KL of 0.5 nats"] = [row for row in rows if row["kl"] > 0.05]
    groups |= {f"memory {each}": [row for row in rows if row["memory"] == each] for each in (0.7, 0.9)}
    alarms = []
    for name, its in groups.items():
        long = [row for row in its if str(LONG) in row["flagged"]]
        flagged, of = sum(row["flagged"][str(STEPS)] for row in its), sum(row["runs"] for row in its)
        until = f"{sum(row['flagged'][str(LONG)] for row in long)} of {sum(row['runs'] for row in long)}"
        alarms.append((name, f"{of:,}", flagged, until if long else ""))
    late = []
    for row in found["sudden"]:
        again = f"after {row['problems']} steps" if row["problems"] else "no"
        shape, by = "U-shaped" if row["spread"] < 1 else "even", row["by"]["accuracy"]
        late.append((f"{row['accuracy']}", shape, row["prompts"], again, by["flagged"], f"{by['median_delay']:.0f}"))
    return [
        table(("policy that does not change", ">runs", ">flagged in 3,000 steps", ">in 7,500"), alarms),
        table(
            ("policy that changes slowly", ">flagged of 100"),
            ((row["trend"], row["flagged"][str(STEPS)]) for row in found["trends"]),
        ),
        table((">accuracy", "problems", ">prompts a step", "come again", ">flagged of 100", ">median delay"), late),
    ]


def main() -> None:
    """Measure the parts that are named, or all; the others stay in the file."""
    parts: dict[str, Callable[[], Any]] = {
        "claims": measure_claims, "sudden": measure_sudden, "trends": measure_trends, "stationary": measure_stationary,
    }  # fmt: skip
    for name in sys.argv[1:] or parts:
        found = parts[name]()
        if isinstance(found, Iterator):
            found = [print(row, flush=True) or row for row in found]
        whole = read_json(OUT) if OUT.exists() else {"schema_version": 1}
        save(OUT, whole | {name: found})


if __name__ == "__main__":
    main()
