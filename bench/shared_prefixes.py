"""A training step with `training.share_prefixes` and without, GTPO's and TRL's GRPO's: processor time and memory.

`bench.step` with LoRA on the architecture of Qwen2.5-0.5B: a prompt and eight completions of an eighth of --tokens up
to all. The padded batch has 8 (prompt + tokens) tokens, the tree has prompt + 4.5 tokens. Each turn is a process.

Expected, written down before the first run, for a prompt of 127 tokens and up to 256 (3,064 tokens padded, 1,279 in the
tree) on one thread of a CPU: GTPO 0.5 of the time, since its head scores completions alone as it is; GRPO 0.45, whose
head projects all positions of the padded batch on a CPU; memory 0.5 of both. At --prompt 16, --tokens 64 without
--ragged, where there is no padding and little prompt, nothing is gained: 1.0.

    python -m bench.shared_prefixes [--rounds N] [--prompt L] [--tokens L] [--equal] [--dtype TYPE] [--out FILE]

--rounds: turns of each contender, of which each has --steps - 1 counted steps. --equal: completions of --tokens all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from bench.common import in_turns, parser, save, table

METHODS = ("gtpo", "grpo")
CONTENDERS = tuple(f"{method}{end}" for method in METHODS for end in ("", " shared"))


def turn(contender: str, options: list[str]) -> dict[str, list[float]]:
    """Return what `bench.step --turn` prints for a contender, from a process whose freed buffers go back."""
    method, _, shared = contender.partition(" ")
    command = [sys.executable, "-m", "bench.step", "--turn", method, "--lora", *options]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [*command, *["--share-prefixes"] * bool(shared)], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(rounds: int, options: list[str]) -> dict[str, Any]:
    """Return medians of each contender, and for each method the shared one's as a share of the padded one's."""
    names = ("cpu_seconds", "seconds", "peak_bytes")
    found: dict[str, dict[str, list[float]]] = {each: {name: [] for name in names} for each in CONTENDERS}
    for _, contender in in_turns(CONTENDERS, rounds):
        taken = turn(contender, options)
        for name in names:
            found[contender][name] += taken[name]
    median = {each: {name: statistics.median(values) for name, values in its.items()} for each, its in found.items()}
    ratio = {
        method: {name: median[f"{method} shared"][name] / median[method][name] for name in names} for method in METHODS
    }
    return {"median": median, "ratio": ratio, "all": found}


def page(document: dict[str, Any]) -> str:
    """Return the table of docs/scale.md."""
    rows = []
    for method in METHODS:
        padded, shared = (document["median"][name] for name in (method, f"{method} shared"))
        ratio = document["ratio"][method]
        rows.append((f"{method.upper()}: processor time of a step, s", f"{padded['cpu_seconds']:.1f}",
                     f"{shared['cpu_seconds']:.1f}", f"{ratio['cpu_seconds']:.2f}"))  # fmt: skip
        rows.append((f"{method.upper()}: peak memory of a step, MiB", f"{padded['peak_bytes'] / 2**20:.0f}",
                     f"{shared['peak_bytes'] / 2**20:.0f}", f"{ratio['peak_bytes']:.2f}"))  # fmt: skip
    return table(("", "padded", "shared", "ratio"), rows)


def main() -> None:
    """Measure, write the JSON, print its table."""
    asked = parser(__doc__, rounds=2, steps=3, prompt=127, tokens=256, equal=False, dtype=("float32", "bfloat16"),
                   out=Path("results/bench/shared_prefixes.json")).parse_args()  # fmt: skip
    options = ["--model", "Qwen2.5-0.5B", "--steps", str(asked.steps), "--prompt", str(asked.prompt),
               "--tokens", str(asked.tokens), "--dtype", asked.dtype, *["--ragged"] * (not asked.equal)]  # fmt: skip
    shape = {name: getattr(asked, name) for name in ("rounds", "steps", "prompt", "tokens", "equal", "dtype")}
    document = {"schema_version": 1, "torch": torch.__version__, "shape": shape, **measure(asked.rounds, options)}
    print(page(document))
    save(asked.out, document)


if __name__ == "__main__":
    main()
