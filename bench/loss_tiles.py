"""Tiles and chunks of the one-pass loss on CUDA, against the bare matmuls: `python -m bench.loss_tiles`.

How many rows go into a chunk and how many columns into a tile decides how many kernels are launched and how much memory
a tile takes (`gtpo.kernels.chunks`, `gtpo.kernels.vocabulary_tiles`). Each choice takes its turn, bfloat16, Triton's
kernels, the case of bench.loss; milliseconds are medians by CUDA's events, memory is the peak beyond the inputs, the
gradients included.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.common import command, in_turns, parser, save, table
from bench.loss_contenders import bare_matmuls, make_case, ours
from gtpo.common.provenance import package_versions
from gtpo.kernels import chunks, vocabulary_tiles

SHAPES = ["8192x4096x128256", "8192x2048x151936", "1024x4096x128256", "256x4096x128256", "2048x896x151936"]
DEFAULT_ROWS = chunks.TILED_ROWS["cuda"]


class Choice(NamedTuple):
    """Rows of a chunk, columns of a tile."""

    rows: int
    columns: int


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the time of a call by CUDA's events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def choose(choice: Choice) -> None:
    """Let the op take these sizes, whatever the number of rows."""
    vocabulary_tiles.TILE_ELEMENTS["cuda"] = choice.rows * choice.columns
    vocabulary_tiles.TILE_COLUMNS["cuda"] = (choice.columns, choice.columns)
    chunks.TILED_ROWS["cuda"] = choice.rows
    chunks.TRAINABLE_ROWS["cuda"] = (choice.rows, choice.rows)


def measure(shape: str, trainable: bool, choices: list[Choice], turns: int) -> list[dict[str, Any]]:
    """Return a row for each choice of a shape that differs from the others on it."""
    tokens, features, vocabulary = map(int, shape.split("x"))
    case = make_case(tokens, features, vocabulary, trainable, torch.bfloat16, "cuda")
    fitting = dict.fromkeys(Choice(min(c.rows, tokens), min(c.columns, vocabulary)) for c in choices)
    names: list[Choice | None] = [None, *fitting]
    times: dict[Choice | None, list[float]] = {name: [] for name in names}
    peak: dict[Choice | None, int] = {}
    for number, index in in_turns(map(str, range(len(names))), turns + 1):
        choice = names[int(index)]
        if choice is not None:
            choose(choice)
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        took = milliseconds(partial(bare_matmuls, case) if choice is None else partial(ours, case, "triton"))
        peak[choice] = torch.cuda.max_memory_allocated() - held
        if number:  # the first turn compiles
            times[choice].append(took)
    bare = statistics.median(times[None])
    head = "trainable" if trainable else "frozen"
    return [
        {
            "shape": shape, "head": head, "rows": choice.rows, "columns": choice.columns, "bare_ms": bare,
            "ms": (ms := statistics.median(times[choice])), "of_bare": ms / bare, "mib": peak[choice] >> 20,
        }
        for choice in fitting
    ]  # fmt: skip


def page(report: dict[str, Any]) -> str:
    """Return the table of docs/one_pass.md: chunks of as many rows as the default has, a column for each width."""
    rows = [row for row in report["rows"] if row["rows"] == min(DEFAULT_ROWS, int(row["shape"].split("x")[0]))]
    widths = sorted({_rounded(row["columns"]) for row in rows})
    lines: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in rows:
        place = (row.get("call", 1), row["shape"].replace("x", " x "), row["head"], f"{row['bare_ms']:.1f}")
        lines.setdefault(place, {})[_rounded(row["columns"])] = f"{row['ms']:.1f} ({row['mib']})"
    cells = [(*place, *(found.get(width, "-") for width in widths)) for place, found in lines.items()]
    return table(("process", "N x D x V", "lm_head", ">bare, ms", *(f">{width:,} columns" for width in widths)), cells)


def _rounded(columns: int) -> int:
    """Return the power of two that a whole vocabulary is listed under."""
    return 1 << (columns - 1).bit_length()


def main() -> None:
    """Measure every shape with both heads."""
    made = parser(
        __doc__, shapes=SHAPES, rows=[4096], columns=[8192, 16384, 32768, 65536, 131072], turns=5,
        out=Path("results/bench/loss_tiles.json"),
    )  # fmt: skip
    asked = made.parse_args()
    if not torch.cuda.is_available():
        made.exit(2, f"{made.prog}: needs a CUDA device\n")
    choices = [Choice(rows, columns) for rows in asked.rows for columns in asked.columns]
    report: dict[str, Any] = {
        "command": command(),
        "gpu": torch.cuda.get_device_name(),
        "versions": package_versions("torch", "triton"),
        "rows": [],
    }
    for shape in asked.shapes:
        for trainable in (False, True):
            report["rows"] += measure(shape, trainable, choices, asked.turns)
    print(page(report))
    save(asked.out, report)


if __name__ == "__main__":
    main()
