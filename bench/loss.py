"""The loss against the paths that exist, in one run: `python -m bench.loss [--shapes N@MODEL ...]`.

All contenders get the same inputs: 8 completions of one group whose entropies straddle ln 2, so that the gate keeps
some and drops some, with conflict tokens at both ends. Each contender's log-probabilities, entropies and gradients are
checked against float64 before it is timed; one that fails is reported as failed. Then they take turns in random order,
once a repetition; one that took SLOW times as long as ours is not repeated. Time is the median of forward and backward
together: by the clock, or with `--clock processor` processor seconds, which other processes disturb less. Extra memory
is the peak of the allocator's bytes during a call less the bytes of what it returns (on a CPU from torch's profiler,
which does not see the BLAS library's own workspace).

What was expected of it is in results/published/bench/head_expected.md.

On a machine with a CUDA device the same command measures there, in bfloat16. A FILE that exists keeps its other rows.
--shapes: NxDxV or N@MODEL; --gate off: no completion is dropped; --table FILE: print this file's table and stop.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.common import bytes_of, command, in_turns, parser, seconds, table, with_temporaries
from bench.loss_contenders import CONTENDERS, Case, Result, errors, float64_result, make_case
from gtpo.common.files import read_json, write_json
from gtpo.common.packages import installed
from gtpo.common.provenance import cpu_model, package_versions

Block = dict[str, Any]
MODELS = {
    "Qwen2.5-0.5B": "896x151936",
    "Qwen2.5-1.5B": "1536x151936",
    "Llama-3.2-1B": "2048x128256",
    "Llama-3.2-3B": "3072x128256",
    "Llama-3.1-8B": "4096x128256",
}
"""D x V of the language model head."""
SHAPES = {
    "cpu": ["512@Qwen2.5-0.5B", "512x2048x32000", "1024x2048x32000"],
    "cuda": ["8192@Llama-3.1-8B", "8192x2048x151936"],
}
SLOW = 1.5  # A contender that takes this many times as long as ours is timed once
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 5e-2}
"""Relative L2 error of a gradient against float64, above which a contender is not timed. torch's float32 log_softmax
over 151936 columns is off by 6e-3 on CPU, bfloat16 logits by 2e-2; another gate decision or weight by more than 0.1."""
KEY = {"shape": "", "head": "", "threads": 1, "device": "cpu", "dtype": "float32", "gate": "on"}
"""What makes two blocks measurements of the same thing; published blocks without a field have its value here."""


def with_peak(call: Callable[[], Result], device: str) -> tuple[Result, int]:
    """Return a call's result and the peak of what it allocates, less what it returns."""
    gc.collect()
    if device == "cpu":
        return with_temporaries(call, Result.tensors)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before - bytes_of(result.tensors())


def check(names: list[str], case: Case, exact: Result, device: str) -> dict[str, Block]:
    """Return each contender's errors and memory, or why it may not be timed."""
    rows: dict[str, Block] = {}
    for contender in (contender for contender in CONTENDERS if contender.name in names):
        row = rows[contender.name] = {"note": contender.note, "skipped": None}
        if contender.needs and not installed(contender.needs):
            row["skipped"] = f"{contender.needs} is not installed (pip install '.[bench]')"
            continue
        try:
            result, row["extra_bytes"] = with_peak(partial(contender.run, case), device)
        except Exception as problem:
            if contender.name == "ours" and not isinstance(problem, torch.OutOfMemoryError):
                raise
            row["failed"] = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
            continue
        row["returned_bytes"] = bytes_of(result.tensors())
        if contender.comparable:
            row["error_to_float64"] = errors(result, exact)
            if not (worst := gradient_error(row)) < TOLERANCE[case.hidden.dtype]:
                row["failed"] = f"parity: relative gradient error {worst:.1e}"
        note(f"{contender.name}: checked")
    return rows


def time_contenders(rows: dict[str, Block], case: Case, device: str, arguments: argparse.Namespace) -> None:
    """Add the times of the contenders that may be timed to their rows."""
    usable = [name for name, row in rows.items() if not row["skipped"] and "failed" not in row]
    running = {contender.name: contender for contender in CONTENDERS if contender.name in usable}
    times: dict[str, list[float]] = {name: [] for name in running}

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.process_time() if arguments.clock == "processor" else time.perf_counter()

    for repeat, name in in_turns(running, arguments.repeats):
        ours = times["ours"][0] if times.get("ours") else 0.0
        if not repeat or times[name][0] <= SLOW * ours or name == "bare matmuls":
            times[name].append(seconds(partial(running[name].run, case), clock=clock))
            note(f"repetition {repeat + 1} of {arguments.repeats}: {name}")
    for name, its in times.items():
        rows[name] |= {"all_seconds": its, "seconds": statistics.median(its)}


def measure(shape: str, device: str, arguments: argparse.Namespace) -> list[Block]:
    """Return the blocks of a shape: all contenders with each head and number of threads."""
    tokens, features, vocabulary = (int(part) for part in shape.split("x"))
    dtype = getattr(torch, arguments.dtype)
    torch.set_num_threads(max(arguments.threads))
    torch._dynamo.reset()  # what was compiled for other shapes
    case = make_case(tokens, features, vocabulary, False, dtype, device)
    if arguments.gate == "off":
        case = case._replace(objective=replace(case.objective, entropy_threshold=1e3))
    note(f"{shape}: float64 reference")
    case, exact = float64_result(case)
    versions = package_versions("torch", "trl", "triton", "liger-kernel")
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    about = {
        "model": next((name for name, size in MODELS.items() if shape.endswith(f"x{size}")), None), "device": device,
        "gate": arguments.gate, "dtype": arguments.dtype, "clock": arguments.clock, "command": command(),
        "environment": {"versions": versions, "cpu": cpu_model(), "gpu": gpu},
        "completions_kept": int((case.shaped != 0).sum()),
    }  # fmt: skip
    blocks = []
    for head in arguments.heads:
        case.lm_head.requires_grad_(head == "trainable")
        checked = check(arguments.contenders, case, exact, device)
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            note(f"{shape} {head}, {threads} thread(s)")
            block = {"shape": shape, "head": head, "threads": threads, **about, "load_average": os.getloadavg()[0]}
            blocks.append(block | {"contenders": {name: dict(row) for name, row in checked.items()}})
            time_contenders(blocks[-1]["contenders"], case, device, arguments)
    return blocks


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def ratio(block: Block, other: str, key: str = "seconds") -> float:
    """Return ours over another contender's, NaN where one of them was not measured."""
    ours, theirs = (block["contenders"].get(name, {}).get(key) for name in ("ours", other))
    return ours / theirs if ours is not None and theirs else math.nan


def gradient_error(row: Block) -> float:
    """Return the largest relative error of a contender's gradients; NaN where it has none."""
    found = row.get("error_to_float64", {})
    return max((found[name] for name in ("dhidden", "dlm_head") if name in found), default=math.nan)


def cells(block: Block) -> list[str]:
    """Return a block as a row of results/published/bench/loss.md has it."""
    both = [gradient_error(block["contenders"].get(name, {})) for name in ("ours", "full logits")]
    return [
        block["shape"].replace("x", " x "),
        block["head"] + ", gate off" * (block["gate"] == "off"),
        f"{ratio(block, 'bare matmuls'):.2f}",
        f"{ratio(block, 'full logits', 'extra_bytes'):.2f}",
        "{:.0e} ({:.0e})".format(*both),
    ]


def summary(blocks: list[Block]) -> str:
    """Return what the command prints: a row of each block, and who was not timed and why."""
    others = ("trl fused lm_head", "liger grpo", "full logits")
    rows = [
        (block["dtype"], block["threads"], *cells(block), *(f"{ratio(block, name):.2f}" for name in others))
        for block in (KEY | block for block in blocks)
    ]
    columns = ("type", ">threads", "N x D x V", "lm_head", ">time / bare matmuls", ">memory / full logits",
               ">error of gradients (full logits)", *(f">time / {name}" for name in others))  # fmt: skip
    left_out = [
        f"{block['shape']} {block['head']}: {name}: {row.get('failed') or row.get('skipped')}"
        for block in blocks
        for name, row in block["contenders"].items()
        if "seconds" not in row
    ]
    return "\n".join([table(columns, rows), "", *left_out])


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    names = [contender.name for contender in CONTENDERS]
    made = parser(
        __doc__, shapes=SHAPES[device], dtype=("float32", "bfloat16")[:: -1 if on_gpu else 1],
        threads=[1] if on_gpu else [1, 2], heads=["frozen", "trainable"], gate=("on", "off"),
        contenders=names, repeats=7, clock=("wall", "processor"), out=Path("results/bench/loss.json"), table=Path,
    )  # fmt: skip
    arguments = made.parse_args()
    if unknown := {*arguments.contenders, *arguments.heads} - {*names, "frozen", "trainable"}:
        made.error(f"unknown: {', '.join(unknown)}; --heads frozen trainable, --contenders {', '.join(names)}")
    if arguments.table:
        print(summary(read_json(arguments.table)["blocks"]))
        return
    warm, exact = float64_result(make_case(64, 64, 1000, True, getattr(torch, arguments.dtype), device))
    check(arguments.contenders, warm, exact, device)  # no import and no compilation is timed
    blocks = read_json(arguments.out)["blocks"] if arguments.out.exists() else []
    for shape in arguments.shapes:
        tokens, _, model = shape.partition("@")
        blocks += measure(f"{tokens}x{MODELS[model]}" if model else shape, device, arguments)
        blocks = [*{tuple((KEY | block)[key] for key in KEY): block for block in blocks}.values()]
        write_json(arguments.out, {"blocks": blocks})
    print(summary(blocks))
    note(f"wrote {arguments.out}; python -m bench.loss --table {arguments.out} prints it again")


if __name__ == "__main__":
    main()
