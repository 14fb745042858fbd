"""`gtpo doctor`: the machine, a self-test through the commands a user would type, as tables or JSON."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gtpo.common.files import check_writable, read_jsonl, write_json
from gtpo.common.log import LOG
from gtpo.common.packages import installed
from gtpo.common.provenance import git_commit, now, package_versions
from gtpo.common.terminal import stdout_console
from gtpo.doctor.machine import describe_machine, describe_packages, list_abilities

SCHEMA_VERSION = 1
TIMEOUT_S = 600
SAMPLES = 16
STEPS = 3

# head_dim 32 is the least that vLLM takes.
_CONFIG = {
    "run_name": "doctor",
    "method": "gtpo",
    "model": {
        "build": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
        "max_seq_length": 128,
    },
    "dataset": {"name": "arithmetic", "system_instruction": ""},
    "training": {
        "max_steps": STEPS,
        "num_generations": 4,
        "per_device_train_batch_size": 16,
        "max_prompt_length": 64,
        "max_completion_length": 32,
        "save_steps": STEPS,
        "logging_steps": 1,
    },
}


class Check(NamedTuple):
    """One part of the self-test."""

    name: str
    ok: bool
    detail: str
    """What was measured, or the end of what the failed command printed."""
    seconds: float
    numbers: dict[str, Any]


class _Failed(Exception):
    """A command of the self-test did not end as it should."""


def run_doctor(program: Sequence[str], *, out: Path | None, quick: bool, json_output: bool) -> bool:
    """Describe the machine and test it; print a table or the JSON; return whether every check passed.

    program: the command that is `gtpo`. quick: no self-test. out: a file for the JSON; None writes none. Raises
    UserError where it cannot be written.
    """
    if out is not None:
        check_writable("--out", out, folder=False)
    machine, packages = describe_machine(), describe_packages()
    abilities = list_abilities(machine)
    checks = [] if quick or not installed("torch") else _self_test(program)
    report = {
        "schema_version": SCHEMA_VERSION,
        "time": now(),
        "gtpo": package_versions("gtpo").get("gtpo"),
        "git_commit": git_commit(),
        "machine": machine,
        "packages": packages,
        "abilities": [ability._asdict() for ability in abilities],
        "checks": [check._asdict() for check in checks],
    }
    if json_output:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    if out is not None:
        write_json(out, report)
        LOG.info(f"report: {out} (attach it to a bug report; it holds no secrets and no environment variables)")
    return all(check.ok for check in checks)


def _self_test(program: Sequence[str]) -> list[Check]:
    """Run every check that this machine can run, each in a process of its own."""
    checks = []
    with tempfile.TemporaryDirectory(prefix="gtpo-doctor-") as folder:
        tests: dict[str, Callable[[Sequence[str], Path], tuple[str, dict[str, Any]]]] = {
            "loss": _test_loss,
            f"train, {STEPS} steps": _test_train,
            f"eval, {SAMPLES} samples": _test_eval,
        }
        for name, test in tests.items():
            LOG.info(f"testing: {name}")
            begin, ok, numbers = time.monotonic(), True, dict[str, Any]()
            try:
                detail, numbers = test(program, Path(folder))
            except _Failed as error:
                ok, detail = False, str(error)
            checks.append(Check(name, ok, detail, round(time.monotonic() - begin, 1), numbers))
    return checks


def _run(command: Sequence[str], folder: Path) -> str:
    """Return what a command prints on stdout. Raises _Failed with the end of its stderr."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _Failed(f"no end after {TIMEOUT_S} s") from None
    if done.returncode:
        end = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise _Failed(f"exit code {done.returncode}\n{end}".replace(str(Path.home()), "~"))
    return done.stdout


def _test_loss(program: Sequence[str], folder: Path) -> tuple[str, dict[str, Any]]:
    """The fused loss and its gradients against float64."""
    numbers = json.loads(_run([sys.executable, "-m", "gtpo.doctor.loss"], folder))
    wrong = [row for row in numbers["gradients"] if not row["ok"]]
    if wrong:
        raise _Failed(f"{len(wrong)} of {len(numbers['gradients'])} differ from float64, first: {wrong[0]}")
    worst = {
        dtype: max(row["gradient_error"] for row in numbers["gradients"] if row["dtype"] == dtype)
        for dtype in ("float32", "bfloat16")
    }
    detail = (
        f"gradients within {worst['float32']:.0e} (float32) and {worst['bfloat16']:.0e} (bfloat16) of float64 on "
        f"{numbers['device']}"
    )
    return detail, numbers


def _test_train(program: Sequence[str], folder: Path) -> tuple[str, dict[str, Any]]:
    """A run from its config to its final weights, the first batch checked against the reference."""
    (folder / "doctor.yaml").write_text(yaml.safe_dump(_CONFIG))
    _run([*program, "train", "doctor.yaml", "--check-loss"], folder)
    rows = [row for _, row in read_jsonl(folder / "results/train/doctor/metrics.jsonl")]
    if len(rows) != STEPS or not all(math.isfinite(row.get("loss", math.nan)) for row in rows):
        raise _Failed(
            f"{STEPS} finite losses were expected in metrics.jsonl; found {[row.get('loss') for row in rows]}"
        )
    return f"{STEPS} steps, entropy {rows[0]['entropy/mean']:.2f} nats, weights saved", {"metrics": rows}


def _test_eval(program: Sequence[str], folder: Path) -> tuple[str, dict[str, Any]]:
    """The model that the run made, evaluated on the embedded benchmark."""
    words = ["--benchmarks", "arithmetic", "--limit", str(SAMPLES // 4), "--k", "4", "--max-tokens", "32", "--json"]
    record = json.loads(_run([*program, "eval", "results/train/doctor", *words], folder))
    found = record["benchmarks"]["arithmetic"]
    if found["samples"] != SAMPLES:
        raise _Failed(f"{SAMPLES} samples were expected; found {found['samples']}")
    return f"{SAMPLES} samples by {record['engine']['name']}, pass@1 {100 * found['pass@k']['1']['mean']:.0f} %", record


def _print(report: dict[str, Any]) -> None:
    """Print the report as tables on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    machine = report["machine"]
    console = stdout_console(pipe=120)
    console.print(
        f"gtpo {report['gtpo']}, Python {machine['python']}, {machine['system']}\n"
        f"{machine['cpus']} CPUs, {machine['memory_gib']} GiB memory, {machine['disk_free_gib']} GiB free here, "
        f"NVIDIA driver {machine['driver'] or 'none'}, CUDA {machine['cuda'] or 'none'}"
    )

    checks = [
        (row["name"], "ok" if row["ok"] else "FAILED", f"{row['seconds']:.0f} s", row["detail"])
        for row in report["checks"]
    ]
    abilities = [(row["name"], "yes" if row["here"] else "no", row["detail"]) for row in report["abilities"]]
    packages = [
        (name, row["version"] or "-", row["status"], row["tested"] or "-") for name, row in report["packages"].items()
    ]
    for title, columns, rows in (
        ("Packages", ("package", "here", "", "tested with"), packages),
        ("What this machine can do", ("", "here", "detail"), abilities),
        ("Self-test", ("", "result", "took", "measured"), checks),
    ):
        if rows:
            table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD)
            for row in rows:
                table.add_row(*map(Text, row))
            console.print(table)
