"""How often the watch of a run is wrong, and how late it is right: `python -m bench.health [stationary|claims]`.

stationary: false alarms of the accuracy test on policies that do not change, and its delay when the accuracy is lost
at once, half-way (to a tenth of it). claims: which runs of results/published/claims it flags, and how many steps after
the accuracy reward first lay below half of its best (`bench.claims.measures`). Their records hold means of blocks of
steps; a block is a line.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims.measures import collapse_step, curve
from gtpo.config import HealthSection
from gtpo.run.health import SIGNALS, Watch
from gtpo.run.sequential import Drift, Floats

OUT = Path("results/published/bench/health.json")
RECORDS = Path("results/published/claims/records")
COMPLETIONS = 8
RUNS, STEPS = 100, 3000


def stationary(draw: Any, mean: float, spread: float, prompts: int, memory: float, steps: int) -> Floats:
    """Return accuracies [RUNS, steps] of a policy that stays: problems Beta with `spread` (below 1 U-shaped).

    memory: AR(1) coefficient of a shift of all problems by one standard deviation in logits; 0: none.
    """
    rates = np.clip(draw.beta(mean * spread, (1 - mean) * spread, (RUNS, steps, prompts)), 1e-9, 1 - 1e-9)
    if memory:
        shift, noise = np.zeros((RUNS, steps)), draw.standard_normal((RUNS, steps))
        for at in range(1, steps):
            shift[:, at] = memory * shift[:, at - 1] + math.sqrt(1 - memory**2) * noise[:, at]
        rates = 1 / (1 + np.exp(-(np.log(rates / (1 - rates)) + shift[:, :, None])))
    found: Floats = draw.binomial(COMPLETIONS, rates).mean(2) / COMPLETIONS
    return found


def first_alarms(values: Floats) -> Floats:
    """Return the first step at which the accuracy test flags each run [RUNS]; NaN where it never does."""
    signal = SIGNALS["accuracy"]
    test = Drift(HealthSection().false_alarms * signal.share, rows=len(values), **signal.settings)
    first = np.full(len(values), np.nan)
    for at, column in enumerate(values.T):
        first[(test.observe(column) >= -math.log(test.alpha)) & np.isnan(first)] = at
    return first


def measure_stationary() -> None:
    """Save false alarms by setting, and the delay after a sudden loss."""
    rows = []
    settings = [
        *itertools.product((0.05, 0.3, 0.8), (0.3, 20.0), (1, 16), (0.0,)),
        (0.3, 2.0, 16, 0.7),
        (0.3, 2.0, 16, 0.9),
    ]
    for number, (mean, spread, prompts, memory) in enumerate(settings):
        draw = np.random.default_rng([7, number])
        false = first_alarms(stationary(draw, mean, spread, prompts, memory, STEPS))
        lost = stationary(draw, mean, spread, prompts, memory, 1000)[:25]
        lost[:, 500:] *= draw.random((25, 500)) < 0.1
        late = first_alarms(lost) - 500
        late = late[~(late < 0)]
        seen = late[~np.isnan(late)]
        rows.append(
            {"accuracy": mean, "spread": spread, "prompts": prompts, "memory": memory, "runs": RUNS, "steps": STEPS,
             "false": int((~np.isnan(false)).sum()), "lost": len(late), "flagged": len(seen),
             "median_delay": float(np.median(seen)) if len(seen) else None}
        )  # fmt: skip
        print(rows[-1], flush=True)
        save("stationary", {"level": HealthSection().false_alarms * SIGNALS["accuracy"].share, "settings": rows})


def watched(record: dict[str, Any]) -> tuple[int, str] | None:
    """Return (step, what was said) of the first alarm of the whole watch on a record."""
    names = [name for signal in SIGNALS.values() for name in signal.names]
    lines: dict[int, dict[str, float]] = {}
    for name in names:
        for step, value in zip(*curve(record, name), strict=True):
            lines.setdefault(int(step), {})[name] = float(value)
    watch = Watch(HealthSection().false_alarms)
    for step in sorted(lines):
        if said := watch.observe(step, lines[step]):
            return step, said
    return None


def measure_claims() -> None:
    """Save which records are flagged, by regime."""
    found: dict[str, Any] = {}
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        if not curve(record, "reward/accuracy")[0].size:
            continue
        regime = found.setdefault(
            record["regime"],
            {"collapsed": 0, "flagged": 0, "others": 0, "others_flagged": 0, "missed": [], "delays": []},
        )
        end, alarm = collapse_step(record), watched(record)
        if math.isnan(end):
            regime["others"] += 1
            regime["others_flagged"] += alarm is not None
            continue
        regime["collapsed"] += 1
        regime["flagged"] += alarm is not None
        if alarm is None:
            regime["missed"].append(record["run"])
        else:
            regime["delays"].append(alarm[0] - int(end))
    everything = [delay for regime in found.values() for delay in regime["delays"]]
    for regime in found.values():
        delays = regime.pop("delays")
        regime["median_delay_steps"] = float(np.median(delays)) if delays else None
    save("claims", {"regimes": found, "median_delay_steps": float(np.median(everything))})
    print(json.dumps(found, indent=1))


def measure_cost() -> None:
    """Save the time of the watch per line, late in a run."""
    draw, watch = np.random.default_rng(0), Watch(0.01)
    row = {"reward/format": 9.0, "entropy/mean": 0.3, "completions/length": 30.0, "kl": 0.01}
    for at in range(2000):
        if at == 1000:
            begin, processor = time.perf_counter(), time.process_time()
        watch.observe(at, row | {"reward/accuracy": float(draw.binomial(8, 0.5))})
    save(
        "cost",
        {
            "milliseconds_per_line": time.perf_counter() - begin,
            "processor_milliseconds": time.process_time() - processor,
        },
    )


def save(part: str, found: dict[str, Any]) -> None:
    """Write a part of the result; the others stay."""
    whole = json.loads(OUT.read_text()) if OUT.exists() else {"schema_version": 1}
    OUT.write_text(json.dumps(whole | {part: found}, indent=2) + "\n")


if __name__ == "__main__":
    parts = {"cost": measure_cost, "claims": measure_claims, "stationary": measure_stationary}
    for name in sys.argv[1:] or parts:
        parts[name]()
