"""The one-pass loss against the paths that exist, in one run.

All contenders get the same inputs: 8 completions of one group whose entropies straddle ln 2, so that the gate keeps
some and drops some, with conflict tokens at both ends. Each contender's log-probabilities, entropies and gradients
are checked against float64 before anything is timed; one that fails is reported as failed. Then they take turns in
random order, once a repetition; one that took SLOW times as long as ours is not repeated. Time is the median of
forward and backward together. Extra memory is the peak of the allocator's bytes during a call less the bytes of what
it returns (on CPU from torch's profiler, which does not see the BLAS library's own workspace). Tokens under a budget
come from the peaks at half the tokens and at all of them, gradients included, as a line through both.

Expected, written down before the first run. CPU, float32, frozen lm_head: against TRL's fused lm_head and
against full logits at most 0.60 and 0.70 of the time at N 1024, D 512, V 32000, and 0.72 and 0.78 at N 256, D 896,
V 151936, with at most 0.25 of full logits' extra memory; trainable: at most 0.9 of both times and 0.5 of the memory.
H200, bf16, 8 x 1024 tokens, frozen: within 1.30 of the two bare matmuls, at most 0.6 GB, faster than everyone.

Expected at the widths of real models, before their first run, one CPU core of 92 GFLOP/s: within 1.05 of
the bare matmuls with a frozen head and 1.06 with a trainable one whose gate drops nothing (1.10 at N 256, where
dlm_head is written for few rows); with the gate, less by a third of the share that it drops. Against TRL's fused
lm_head 0.6, Liger's loss 0.55 frozen and 0.8 trainable, full logits 0.9. Extra memory 0.21 of full logits' at
N 1024 trainable, below 0.05 frozen.

    python -m bench.loss [--shapes NxDxV N@MODEL ...] [--threads 1 2] [--heads frozen trainable] [--gate on|off]
        [--completions 8] [--contenders NAME ...] [--repeats 7] [--busy 0] [--check] [--check-threads N]
        [--out FILE]

On a machine with a CUDA device the same command measures there, in bf16, at the shapes of Llama-3.1-8B and
Qwen2.5-3B. A FILE that exists keeps its other rows. --check leaves errors and memory in FILE, which need no quiet
machine; a later run with the same code takes them from there and only times. --busy N: N processes that do nothing
but compute run beside the timing. --table FILE prints a file's table, --page FILE that of docs/one_pass.md.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench.conflict import with_temporaries
from bench.loss_contenders import CONTENDERS, Case, Contender, Result
from bench.loss_inputs import GROUP, SEED, check_reference, errors, float64_result, make_case
from bench.loss_tables import blocks, page, table
from gtpo.common.files import read_json, write_json
from gtpo.common.packages import installed

BUDGET = 2**30
MODELS = {
    "Qwen2.5-0.5B": "896x151936",
    "Qwen2.5-1.5B": "1536x151936",
    "Llama-3.2-1B": "2048x128256",
    "Llama-3.2-3B": "3072x128256",
    "Llama-3.1-8B": "4096x128256",
}
"""D x V of the language model head."""
CPU_SHAPES = ["1024x512x32000", "256@Qwen2.5-0.5B", "512x2048x32000"]
CUDA_SHAPES = ["8192@Llama-3.1-8B", "8192x2048x151936"]
SLOW = 1.5
"""A contender that takes this many times as long as ours is timed once."""
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 2e-2}
"""Relative L2 error of a gradient against float64, above which a contender is not timed. torch's float32 log_softmax
over 151936 columns is off by 6e-3 on CPU; another gate decision or weight is off by more than 0.1."""
CODE = ("bench/loss_contenders.py", "bench/loss_inputs.py", "gtpo/fused.py", "gtpo/objective.py", "gtpo/kernels/*.py")


def digest() -> str:
    """Return a hash of the code that a check is good for."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for pattern in CODE:
        for path in sorted(root.glob(pattern)):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


DIGEST = digest()
"""Of the code as it was imported."""


def returned_bytes(result: Result) -> int:
    """Return the bytes of what a contender hands over."""
    return sum(t.untyped_storage().nbytes() for t in result.tensors())


def with_peak(call: Callable[[], Result], device: str) -> tuple[Result, int]:
    """Return a call's result and the peak of what it allocates, less what it returns."""
    gc.collect()
    if device == "cpu":
        results: list[Result] = []

        def tensors() -> Any:
            results.append(call())
            return results[0].tensors()

        _, peak = with_temporaries(tensors)
        return results[0], peak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    held = returned_bytes(result)
    return result, torch.cuda.max_memory_allocated() - before - held


def seconds(call: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def reason_to_skip(contender: Contender, device: str) -> str | None:
    if contender.needs == "cuda":
        return None if device == "cuda" else "needs a CUDA device"
    if contender.needs and not installed(contender.needs):
        return f"{contender.needs} is not installed (pip install '.[bench]')"
    return None


def check(names: list[str], case: Case, exact: Result, device: str) -> dict[str, dict[str, Any]]:
    """Return each contender's errors and memory, or why it may not be timed."""
    half = halved(case)
    tokens, token_size = case.ids.numel(), case.hidden.shape[-1] * case.hidden.dtype.itemsize
    rows: dict[str, dict[str, Any]] = {}
    for contender in CONTENDERS:
        row: dict[str, Any] = {"note": contender.note}
        rows[contender.name] = row
        row["skipped"] = reason_to_skip(contender, device) if contender.name in names else "not asked for"
        if row["skipped"]:
            continue
        try:
            result, extra = with_peak(partial(contender.run, case), device)
        except torch.OutOfMemoryError as problem:
            row["failed"] = str(problem).splitlines()[0]
            continue
        row["extra_bytes"], row["returned_bytes"] = extra, returned_bytes(result)
        if contender.comparable:
            row["error_to_float64"] = errors(result, exact)
            worst = max(row["error_to_float64"].get(name, 0.0) for name in ("dhidden", "dlm_head"))
            if not worst < TOLERANCE[case.hidden.dtype]:
                row["failed"] = f"parity: relative gradient error {worst:.1e}"
                continue
        del result
        if contender.comparable and case.lm_head.nbytes < BUDGET / 4:
            _, less = with_peak(partial(contender.run, half), device)
            slope = (extra - less) / (tokens - half.ids.numel()) + token_size
            fixed = extra + row["returned_bytes"] - slope * tokens
            if slope > 0:
                row["tokens_in_1_gib"] = max(0, int((BUDGET - fixed) / slope))
        note(f"{contender.name}: checked")
    return rows


def halved(case: Case) -> Case:
    """Return the case with the first half of every completion."""
    length = case.ids.shape[1] // 2
    spans = type(case.spans)(*(None if f is None else f[:, :length] if f.dim() == 2 else f for f in case.spans))
    hidden = case.hidden.detach()[:, :length].clone().requires_grad_()
    return case._replace(hidden=hidden, ids=case.ids[:, :length], spans=spans)


def prepare(shape: str, arguments: argparse.Namespace, device: str) -> Case:
    """Return the case of a shape, its lm_head frozen."""
    tokens, features, vocabulary = (int(part) for part in shape.split("x"))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    case = make_case(tokens, features, vocabulary, False, dtype, device, arguments.completions)
    return case if arguments.gate == "on" else case._replace(objective=replace(case.objective, entropy_threshold=1e3))


def place(shape: str, head: str, arguments: argparse.Namespace, device: str) -> str:
    """Return the key of a check."""
    count = "" if arguments.completions == GROUP else f" {arguments.completions} completions"
    return f"{shape} {head} {device} gate {arguments.gate}{count}"


def checks(shape: str, case: Case, known: dict[str, Any], arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """Return, by head, a check of this code with all the contenders asked for: a known one, or a new one."""
    found: dict[str, Any] = {}
    exact = None
    for head in arguments.heads:
        key = place(shape, head, arguments, device)
        old = known.get(key)
        if old and old["code"] == DIGEST and set(arguments.contenders) <= set(old["contenders"]):
            found[key] = old
            continue
        if exact is None:
            note(f"{shape}: float64 reference")
            case, exact = float64_result(case)
        case.lm_head.requires_grad_(head == "trainable")
        found[key] = {
            "code": DIGEST,
            "contenders": arguments.contenders,
            "shaped": case.shaped.tolist(),
            "mean_entropy": float(exact.entropies.mean()) if exact.entropies is not None else None,
            "rows": check(arguments.contenders, case, exact, device),
        }
    return found


def time_all(
    shape: str, case: Case, known: dict[str, Any], arguments: argparse.Namespace, device: str
) -> Iterator[dict[str, Any]]:
    """Yield one block of the table for each head and number of threads: all contenders at one shape."""
    for head in arguments.heads:
        checked = known[place(shape, head, arguments, device)]
        case = case._replace(shaped=torch.tensor(checked["shaped"], device=device))
        case.lm_head.requires_grad_(head == "trainable")
        rows = {name: row for name, row in checked["rows"].items() if name in arguments.contenders}
        usable = [c for c in CONTENDERS if c.name in rows and not (rows[c.name]["skipped"] or "failed" in rows[c.name])]
        for count in arguments.threads:
            torch.set_num_threads(count)
            times: dict[str, list[float]] = {contender.name: [] for contender in usable}
            running = list(usable)
            load = os.getloadavg()[0]
            for repeat in range(arguments.repeats):
                random.shuffle(running)
                for contender in running:
                    times[contender.name].append(seconds(partial(contender.run, case), device))
                note(f"{shape} {head} {count} thread(s): repetition {repeat + 1} of {arguments.repeats}")
                ours = min(times[name][0] for name in times if name.startswith("ours"))
                running = [c for c in running if times[c.name][0] <= SLOW * ours or c.name == "bare matmuls"]
            timed = {
                name: row
                | ({"all_seconds": times[name], "seconds": statistics.median(times[name])} if times.get(name) else {})
                for name, row in rows.items()
            }
            yield {
                "shape": shape,
                "model": next((name for name, size in MODELS.items() if shape.endswith(f"x{size}")), None),
                "head": head,
                "threads": count,
                "gate": arguments.gate,
                "busy": arguments.busy,
                "completions": arguments.completions,
                "device": device,
                "dtype": str(case.hidden.dtype).removeprefix("torch."),
                "environment": environment(device),
                "load_average": load,
                "completions_kept": sum(value != 0 for value in checked["shaped"]),
                "mean_entropy": checked["mean_entropy"],
                "contenders": timed,
            }


def warm_up(names: list[str], device: str) -> None:
    """Run every contender once on little, so that no import and no compilation is timed."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    case, _ = float64_result(make_case(64, 64, 1000, True, dtype, device))
    for contender in CONTENDERS:
        if contender.name in names and not reason_to_skip(contender, device):
            contender.run(case)


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def environment(device: str) -> dict[str, Any]:
    """Return what the figures depend on."""
    versions = {}
    for name in ("torch", "trl", "triton", "liger-kernel"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _cpu_lines() if line.startswith("model name")), platform.machine()
    )
    return {
        "versions": versions,
        "python": platform.python_version(),
        "cpu": cpu,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def expand(shape: str) -> str:
    """Return NxDxV for N@MODEL."""
    tokens, _, model = shape.partition("@")
    return f"{tokens}x{MODELS[model]}" if model else shape


KEY = ("shape", "head", "threads", "device", "gate", "busy", "completions")
"""What makes two blocks measurements of the same thing."""


def read(path: Path) -> dict[str, Any]:
    """Return a report, an empty one where there is no file."""
    report: dict[str, Any] = read_json(path) if path.exists() else {"blocks": [], "checks": {}}
    return report


def merge(path: Path, found: dict[str, Any], new: list[dict[str, Any]]) -> None:
    """Put checks and blocks into the file as it is now, in the place of older ones of the same thing."""
    report = read(path)
    report["checks"] |= found
    keys = [[block[name] for name in KEY] for block in new]
    report["blocks"] = [b for b in blocks(report) if [b[name] for name in KEY] not in keys] + new
    write_json(path, report)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=CUDA_SHAPES if device == "cuda" else CPU_SHAPES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2] if device == "cpu" else [1])
    parser.add_argument("--heads", nargs="+", choices=["frozen", "trainable"], default=["frozen", "trainable"])
    parser.add_argument("--gate", choices=["on", "off"], default="on", help="off: no completion is dropped")
    parser.add_argument("--completions", type=int, default=GROUP, help="of N / this many tokens, in groups of 8")
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--contenders", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes that compute beside the timing")
    parser.add_argument("--check", action="store_true", help="errors and memory only")
    parser.add_argument("--check-threads", type=int, help="for errors and memory; by default the most of --threads")
    parser.add_argument("--out", type=Path, default=Path("results/bench/loss.json"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="print this file's table and stop")
    parser.add_argument("--page", type=Path, metavar="FILE", help="print this file's table for the page and stop")
    arguments = parser.parse_args()
    if arguments.table or arguments.page:
        print(table(read_json(arguments.table)) if arguments.table else page(read_json(arguments.page)))
        return
    random.seed(SEED)
    check_reference()
    warm_up(arguments.contenders, device)
    command = shlex.join(["python", "-m", "bench.loss", *sys.argv[1:]])
    for shape in map(expand, arguments.shapes):
        torch.set_num_threads(arguments.check_threads or max(arguments.threads))
        case = prepare(shape, arguments, device)
        known = checks(shape, case, read(arguments.out)["checks"], arguments, device)
        merge(arguments.out, known, [])
        if arguments.check:
            continue
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)]
        try:
            for block in time_all(shape, case, known, arguments, device):
                merge(arguments.out, {}, [block | {"command": command}])
        finally:
            for process in busy:
                process.kill()
    print(table(read(arguments.out)))
    note(f"wrote {arguments.out}; python -m bench.loss --table {arguments.out} prints it again")


if __name__ == "__main__":
    main()
