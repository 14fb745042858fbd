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


def measure(rounds: int, options: list[str]) -> dict[str, Any]:
    """Return medians of each contender, and for each method the shared one's as a share of the padded one's."""
    contenders = {}
    for method in METHODS:
        contenders[method] = ["--turn", method, "--lora", *options]
        contenders[f"{method} shared"] = [*contenders[method], "--share-prefixes"]
    found, median = turns(contenders, rounds)
    ratios = {method: ratio(median, f"{method} shared", method) for method in METHODS}
    return {"median": median, "ratio": ratios, "all": found}


def page(document: dict[str, Any]) -> str:
    """Return the table of results/published/bench/steps.md."""
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
    asked = parser(__doc__, rounds=2, steps=2, prompt=127, tokens=128, equal=False, dtype=("float32", "bfloat16"),
                   threads=1, out=Path("results/bench/shared_prefixes.json")).parse_args()  # fmt: skip
    given = [f"--{name}={getattr(asked, name)}" for name in ("steps", "prompt", "tokens", "dtype", "threads")]
    options = ["--model=Qwen2.5-0.5B", *given, *["--ragged"] * (not asked.equal)]
    names = ("rounds", "steps", "prompt", "tokens", "equal", "dtype", "threads")
    shape = {name: getattr(asked, name) for name in names}
    document = {"schema_version": 1, "torch": torch.__version__, "shape": shape, **measure(asked.rounds, options)}
    print(page(document))
    save(asked.out, document)


if __name__ == "__main__":
    main()
