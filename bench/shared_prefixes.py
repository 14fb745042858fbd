"""A training step with `training.share_prefixes` and without, GTPO's and TRL's GRPO's: processor time and memory.

`bench.step` with LoRA on the architecture of Qwen2.5-0.5B: a prompt and eight completions of an eighth of --tokens up
to all (--equal: of --tokens all). The padded batch has 8 (prompt + tokens) tokens, the tree has prompt + 4.5 tokens.
Expected before the first run on a CPU, 127 + 128 tokens: GTPO 0.45 of the time, GRPO 0.4; memory 0.45 of both. Null:
--prompt 1 --equal, where nothing is shared: 1.0 and 0.95, for one position in a row is not scored.

    python -m bench.shared_prefixes [--rounds N] [--prompt L] [--tokens L] [--equal] [--dtype TYPE] [--threads N]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bench.common import parser, save, table
from bench.step import ratio, turns

METHODS = ("gtpo", "grpo")


def page(document: dict[str, Any]) -> str:
    """Return the table of results/published/bench/steps.md."""
    rows = []
    for method in METHODS:
        both = [document["median"][name] for name in (method, f"{method} shared")]
        shares = document["ratio"][method]
        rows.append((f"{method.upper()}: processor time of a step, s",
                     *(f"{its['cpu_seconds']:.1f}" for its in both), f"{shares['cpu_seconds']:.2f}"))  # fmt: skip
        rows.append((f"{method.upper()}: peak memory of a step, MiB",
                     *(f"{its['peak_bytes'] / 2**20:.0f}" for its in both), f"{shares['peak_bytes']:.2f}"))  # fmt: skip
    return table(("", "padded", "shared", "ratio"), rows)


def main() -> None:
    """Measure, write the JSON, print its table."""
    asked = parser(__doc__, rounds=2, steps=2, prompt=127, tokens=128, equal=False, dtype=("float32", "bfloat16"),
                   threads=1, out=Path("results/bench/shared_prefixes.json")).parse_args()  # fmt: skip
    shape = {name: value for name, value in vars(asked).items() if name != "out"}
    sizes = (f"--{name}={value}" for name, value in shape.items() if name not in ("rounds", "equal"))
    options = ["--lora", "--model=Qwen2.5-0.5B", *sizes, *["--ragged"] * (not asked.equal)]
    flags = {"": options, " shared": [*options, "--share-prefixes"]}
    contenders = {f"{name}{how}": ["--turn", name, *words] for name in METHODS for how, words in flags.items()}
    every, median = turns(contenders, asked.rounds)
    ratios = {method: ratio(median, f"{method} shared", method) for method in METHODS}
    measured = {"torch": torch.__version__, "shape": shape, "median": median, "ratio": ratios, "all": every}
    print(page(measured))
    save(asked.out, {"schema_version": 1, **measured})


if __name__ == "__main__":
    main()
