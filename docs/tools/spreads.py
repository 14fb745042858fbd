"""Write evalkit/spreads.yaml: what questions, samples and seeds add to a difference in the published experiments.

python docs/tools/spreads.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from gtpo.evalkit.design import measure_noise

ROOT = Path(__file__).parents[2]
FILE = ROOT / "evalkit/spreads.yaml"
RECORDS = "results/published/claims/first.parquet"
# Name -> regime, benchmark. Every seed of the smaller model trained a base of its own, which both methods start from.
PAIRS = {
    "word problems, 2.2 million parameters": ("small-calm", "word_problems"),
    "arithmetic, 0.13 million parameters": ("micro-calm", "arithmetic"),
    "harder arithmetic, 0.13 million parameters": ("micro-calm", "arithmetic_hard"),
}


def text() -> str:
    """Return the file."""
    rows = pq.read_table(ROOT / RECORDS).to_pylist()
    lines = [
        "# Written by docs/tools/spreads.py: the noise of GTPO against GRPO, as fractions squared (evalkit/design.py)."
    ]
    for name, (regime, benchmark) in PAIRS.items():
        scores, noise = [], []
        for method in ("gtpo", "grpo"):
            mine = [r for r in rows if (r["regime"], r["method"]) == (regime, method) and r[f"{benchmark}:correct"]]
            counts = np.array([row[f"{benchmark}:correct"] for row in sorted(mine, key=lambda row: row["seed"])])
            n = mine[0][f"{benchmark}:n"]
            scores.append(counts / n)
            noise.append(counts / n * (1 - counts / n) / (n - 1))
        noise_of_pair = measure_noise(*scores, sampling=(noise[0], noise[1]), samples=n, paired="micro" in regime)
        seeds = " and ".join(str(len(x)) for x in scores)
        lines += [
            f"{name}:",
            f"  source: {RECORDS}, {regime}, {benchmark}, {seeds} seeds, {scores[0].shape[1]} questions",
            f"  accuracy: {np.mean([x.mean() for x in scores]):.4f}",
        ]
        for what in ("questions", "single", "samples", "training"):
            lines.append(f"  {what}: {max(getattr(noise_of_pair, what).mean, 0.0):.3g}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(text() != FILE.read_text())
    FILE.write_text(text())
