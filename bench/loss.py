"""The one-pass loss against the paths that exist, in one run.

All contenders get the same inputs: 8 completions of one group whose entropies straddle ln 2, so that the gate keeps
some and drops some, with conflict tokens at both ends. Each contender's log-probabilities, entropies and gradients
are checked against float64 before anything is timed; one that fails is reported as failed. Then they take turns in
random order, once a repetition. Time is the median of forward and backward together. Extra memory is the peak of the
allocator's bytes during a call less the bytes of what it returns (on CPU from torch's profiler, which does not see
the BLAS library's own workspace). Tokens under a budget come from the peaks at half the tokens and at all of them,
gradients included, as a line through both.

Expected, written down before the first run (issue 3). CPU, float32, frozen lm_head: against TRL's fused lm_head and
against full logits at most 0.60 and 0.70 of the time at N 1024, D 512, V 32000, and 0.72 and 0.78 at N 256, D 896,
V 151936, with at most 0.25 of full logits' extra memory; trainable: at most 0.9 of both times and 0.5 of the memory.
H200, bf16, 8 x 1024 tokens, frozen: within 1.30 of the two bare matmuls, at most 0.6 GB, faster than everyone.

    python -m bench.loss [--shapes NxDxV ...] [--threads 1 2] [--heads frozen trainable]
        [--contenders NAME ...] [--repeats 7] [--out FILE]

On a machine with a CUDA device the same command measures there, in bf16, at the shapes of Llama-3.1-8B and
Qwen2.5-3B. A FILE that exists keeps its other rows. --table FILE prints a file's table and measures nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench.conflict import with_temporaries
from bench.loss_contenders import CONTENDERS, Case, Contender, Result
from gtpo.conflict import conflict_weights
from gtpo.objective import PRESETS, reference_loss
from rewards.support.files import read_json, write_json
from rewards.support.packages import installed

SEED = 20250819
GROUP = 8
BUDGET = 2**30
CPU_SHAPES = ["1024x512x32000", "256x896x151936"]
CUDA_SHAPES = ["8192x4096x128256", "8192x2048x151936"]
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 2e-2}
"""Relative L2 error of a gradient against float64, above which a contender is not timed. torch's float32 log_softmax
over 151936 columns is off by 6e-3 on CPU; another gate decision or weight is off by more than 0.1."""


def make_case(tokens: int, features: int, vocabulary: int, trainable: bool, dtype: torch.dtype, device: str) -> Case:
    """Return inputs as a trained policy has them: the sampled token likely, more so in some completions."""
    draw = torch.Generator(device).manual_seed(SEED)
    length = tokens // GROUP
    lm_head = torch.randn(vocabulary, features, generator=draw, device=device) * 0.05
    ids = torch.randint(0, vocabulary, (GROUP, length), generator=draw, device=device)
    shared = min(4, length // 4)
    ids[:, :shared] = ids[0, :shared]
    ids[:, length - shared :] = ids[0, length - shared :]
    noise = torch.randn(GROUP, length, features, generator=draw, device=device)
    # Scores of other tokens have deviation 1, the sampled token's about 12 to 18.
    noise = noise / (0.05 * features**0.5)
    aim = lm_head[ids]
    boost = torch.linspace(12, 18, GROUP, device=device)[:, None, None]
    hidden = (noise + aim * boost / aim.square().sum(dim=-1, keepdim=True)).to(dtype).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 0.6, -0.4, 1.2, -0.7, 0.3, -1.0], device=device)
    spans = conflict_weights(ids, torch.ones_like(ids, dtype=torch.bool), advantages, GROUP)
    objective = replace(PRESETS["gtpo"], filter="always")
    weight = lm_head.to(dtype).requires_grad_(trainable)
    return Case(objective, hidden, weight, ids, advantages, spans, GROUP, advantages)


def float64_result(case: Case) -> tuple[Case, Result]:
    """Return the case with A' filled in, and the reference's result, completion by completion in float64."""
    gradients = [torch.zeros(leaf.shape, dtype=torch.float64, device=leaf.device) for leaf in case.leaves]
    logps, entropies, shaped = [], [], []
    weight = case.lm_head.detach().double().requires_grad_(case.lm_head.requires_grad)
    lengths = case.ids.shape[1]
    for row in range(len(case.ids)):
        hidden = case.hidden[row].detach().double().requires_grad_()
        logp = (hidden @ weight.t()).log_softmax(dim=-1)
        entropy = -(logp.detach().exp() * logp.detach()).sum(dim=-1)
        chosen = logp.gather(-1, case.ids[row, :, None]).squeeze(-1)
        mean = entropy.mean()
        kept = mean <= case.objective.entropy_threshold
        a = torch.where(kept, case.advantages[row].double() - case.objective.gamma * mean, 0.0)
        value = -(chosen * case.spans.weights[row].double()).sum() * a / (lengths * GROUP)
        leaves = [hidden, weight] if weight.requires_grad else [hidden]
        found = torch.autograd.grad(value, leaves)
        gradients[0][row] = found[0]
        if weight.requires_grad:
            gradients[1] += found[1]
        logps.append(chosen.detach())
        entropies.append(entropy)
        shaped.append(a)
    dtype = case.advantages.dtype
    return case._replace(shaped=torch.stack(shaped).to(dtype)), Result(
        tuple(gradients), torch.stack(logps), torch.stack(entropies)
    )


def check_reference() -> None:
    """The float64 result above is the specification's, on a case small enough to hold its logits."""
    case = make_case(64, 16, 50, True, torch.float32, "cpu")
    case, found = float64_result(case)
    hidden, weight = (leaf.detach().double().requires_grad_() for leaf in case.leaves)
    # Rewards whose centred values are the advantages: they sum to 0, and the scale is off.
    objective = replace(case.objective, scale_rewards="none")
    rewards = case.advantages.double()
    assert float(rewards.sum().abs()) < 1e-6, "the advantages of make_case must sum to 0"
    mask = torch.ones_like(case.ids, dtype=torch.bool)
    loss = reference_loss(objective, hidden @ weight.t(), case.ids, mask, rewards, GROUP).loss
    for got, want in zip(found.gradients, torch.autograd.grad(loss, [hidden, weight]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


def errors(result: Result, exact: Result) -> dict[str, float]:
    """Return the largest absolute error of statistics and the relative L2 error of gradients."""
    found = {}
    for name, got, want in (("logp", result.logps, exact.logps), ("entropy", result.entropies, exact.entropies)):
        if got is not None and want is not None:
            found[name] = float((got.detach().double() - want).abs().max())
    for name, got, want in zip(("dhidden", "dlm_head"), result.gradients, exact.gradients, strict=False):
        found[name] = float((got.detach().double() - want).norm() / want.norm())
    return found


def peak_bytes(call: Callable[[], Result], device: str) -> int:
    """Return the peak of what a call allocates, less what it returns."""
    gc.collect()
    if device == "cpu":
        return with_temporaries(lambda: call().tensors())[1]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    held = sum(t.untyped_storage().nbytes() for t in result.tensors())
    return torch.cuda.max_memory_allocated() - before - held


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


def check(
    names: list[str], case: Case, half: Case, exact: Result, device: str
) -> tuple[dict[str, dict[str, Any]], list[Contender]]:
    """Return each contender's errors and memory, and those that may be timed."""
    tokens, features = case.ids.numel(), case.hidden.shape[-1]
    rows: dict[str, dict[str, Any]] = {}
    running: list[Contender] = []
    for contender in CONTENDERS:
        row: dict[str, Any] = {"note": contender.note}
        rows[contender.name] = row
        row["skipped"] = reason_to_skip(contender, device) if contender.name in names else "not asked for"
        if row["skipped"]:
            continue
        try:
            result = contender.run(case)
        except torch.OutOfMemoryError as problem:
            row["failed"] = str(problem).splitlines()[0]
            continue
        if contender.comparable:
            row["error_to_float64"] = errors(result, exact)
            worst = max(row["error_to_float64"].get(name, 0.0) for name in ("dhidden", "dlm_head"))
            if not worst < TOLERANCE[case.hidden.dtype]:
                row["failed"] = f"parity: relative gradient error {worst:.1e}"
                continue
        outputs = sum(t.untyped_storage().nbytes() for t in result.tensors())
        del result
        row["extra_bytes"] = peak_bytes(lambda c=contender: c.run(case), device)  # type: ignore[misc]
        less = peak_bytes(lambda c=contender: c.run(half), device)  # type: ignore[misc]
        token_bytes = (row["extra_bytes"] - less) / (tokens - half.ids.numel())
        token_bytes += features * case.hidden.dtype.itemsize
        fixed = row["extra_bytes"] + outputs - token_bytes * tokens
        if contender.comparable and token_bytes > 0:
            row["tokens_in_1_gib"] = max(0, int((BUDGET - fixed) / token_bytes))
        running.append(contender)
        note(f"{contender.name}: checked")
    return rows, running


def measure(
    shape: str, head: str, threads: list[int], names: list[str], repeats: int, device: str
) -> Iterator[dict[str, Any]]:
    """Yield one block of the table for each number of threads: all contenders at one shape."""
    torch.set_num_threads(max(threads))
    tokens, features, vocabulary = (int(part) for part in shape.split("x"))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    trainable = head == "trainable"
    note(f"{shape} {head}: float64 reference")
    case, exact = float64_result(make_case(tokens, features, vocabulary, trainable, dtype, device))
    half = make_case(tokens // 2, features, vocabulary, trainable, dtype, device)
    rows, running = check(names, case, half, exact, device)
    for count in threads:
        torch.set_num_threads(count)
        times: dict[str, list[float]] = {contender.name: [] for contender in running}
        for repeat in range(repeats):
            random.shuffle(running)
            for contender in running:
                times[contender.name].append(seconds(lambda c=contender: c.run(case), device))
            note(f"{shape} {head} {count} thread(s): repetition {repeat + 1} of {repeats}")
        timed = {
            name: row
            | ({"all_seconds": times[name], "seconds": statistics.median(times[name])} if times.get(name) else {})
            for name, row in rows.items()
        }
        yield {
            "shape": shape,
            "head": head,
            "threads": count,
            "device": device,
            "dtype": str(dtype).removeprefix("torch."),
            "load_average": os.getloadavg()[0],
            "completions_kept": int((case.shaped != 0).sum()),
            "mean_entropy": float(exact.entropies.mean()) if exact.entropies is not None else None,
            "contenders": timed,
        }


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = []
    for block in report["blocks"]:
        rows = block["contenders"]
        lines += [
            "",
            f"N x D x V {block['shape']}, lm_head {block['head']}, {block['device']} {block['dtype']}, "
            f"{block['threads']} thread(s), load average {block['load_average']:.1f}",
            f"{'':27}{'ms':>9}{'min-max':>15}{'/trl':>6}{'/full':>6}{'/bare':>6}{'MiB':>8}{'/full':>6}"
            f"{'tokens/GiB':>11}{'dlogp':>9}{'dH':>9}{'dhidden':>9}",
        ]
        base = {key: rows[name] for key, name in BASES.items()}
        for name, row in rows.items():
            if "seconds" not in row:
                lines.append(f"{name:27}{row.get('failed') or row.get('skipped')}")
                continue
            times, error = row["all_seconds"], row.get("error_to_float64", {})
            ratios = "".join(
                f"{row['seconds'] / other['seconds']:6.2f}" if "seconds" in other else f"{'-':>6}"
                for other in base.values()
            )
            span = f"{min(times) * 1e3:.0f}-{max(times) * 1e3:.0f}"
            memory = row["extra_bytes"] / base["full"]["extra_bytes"] if "extra_bytes" in base["full"] else float("nan")
            cells = "".join(
                f"{error[key]:9.0e}" if key in error else f"{'-':>9}" for key in ("logp", "entropy", "dhidden")
            )
            lines.append(
                f"{name:27}{row['seconds'] * 1e3:9.1f}{span:>15}{ratios}{row['extra_bytes'] / 2**20:8.1f}"
                f"{memory:6.2f}{row.get('tokens_in_1_gib', '-'):>11}{cells}  {row['note']}"
            )
    return "\n".join(lines)


BASES = {"trl": "trl fused lm_head", "full": "full logits", "bare": "bare matmuls"}


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


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=CUDA_SHAPES if device == "cuda" else CPU_SHAPES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2] if device == "cpu" else [1])
    parser.add_argument("--heads", nargs="+", choices=["frozen", "trainable"], default=["frozen", "trainable"])
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--contenders", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/bench/loss.json"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="print this file's table and stop")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read_json(arguments.table)))
        return
    random.seed(SEED)
    check_reference()
    command = shlex.join(["python", "-m", "bench.loss", *sys.argv[1:]])
    report: dict[str, Any] = read_json(arguments.out) if arguments.out.exists() else {"blocks": []}
    report["environment"] = environment(device)
    for shape in arguments.shapes:
        for head in arguments.heads:
            for block in measure(shape, head, arguments.threads, arguments.contenders, arguments.repeats, device):
                block["command"] = command
                key = (shape, head, block["threads"], device)
                others = [b for b in report["blocks"] if (b["shape"], b["head"], b["threads"], b["device"]) != key]
                report["blocks"] = [*others, block]
                write_json(arguments.out, report)
    print(table(report))
    note(f"wrote {arguments.out}; python -m bench.loss --table {arguments.out} prints it again")


if __name__ == "__main__":
    main()
