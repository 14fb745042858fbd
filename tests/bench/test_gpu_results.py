"""The pages show what the files of the measurements on a GPU say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import loss, loss_tiles
from gtpo.config import load_config
from gtpo.inputs.model_shape import KNOWN_MODELS
from gtpo.plan.memory import forecast

GPU = "results/published/gpu"


def steps(root: Any, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / GPU / run / "metrics.jsonl").read_text().splitlines()]


def test_the_loss(root, published) -> None:
    page, report = (root / "docs/one_pass.md").read_text(), published("bench/loss_cuda")
    assert {block["environment"]["gpu"] for block in report["blocks"]} == {"NVIDIA H200"}
    assert loss.page(report) in page
    largest = {block["head"]: block["contenders"] for block in report["blocks"] if block["shape"] == "8192x4096x128256"}
    for name, row in largest["frozen"].items():
        if "seconds" in row:
            cells = [f"{1e3 * its[name]['seconds']:.1f}" for its in (largest["frozen"], largest["trainable"])]
            assert f"| {name} | {' | '.join(cells)} |" in page
    ours, older = (largest["frozen"][name] for name in ("ours/triton", "trl full logits"))
    flat = " ".join(page.split())
    assert f"takes {older['seconds'] / ours['seconds']:.2f} of our time and nine times the memory" in flat
    assert older["extra_bytes"] / ours["extra_bytes"] == pytest.approx(9, abs=0.5)
    assert [f"{100 * row['error_to_float64']['dhidden']:.1f}" for row in (ours, older)] == ["0.3", "2.0"]
    found = [
        loss.ratio(b, "bare matmuls") for b in report["blocks"] if (b["head"], b["shape"][:4]) == ("frozen", "8192")
    ]
    assert "was expected at 8,192 tokens; it takes {:.2f} and {:.2f}".format(*found) in flat
    assert loss_tiles.page(published("gpu/tiles")) in page


def test_the_doctor_and_the_launches(root, published) -> None:
    report = published("gpu/doctor")
    assert all(check["ok"] for check in report["checks"])
    rows = report["checks"][0]["numbers"]["gradients"]
    assert {row["backend"] for row in rows} == {"torch", "triton"}
    assert len({row["preset"] for row in rows}) == 4
    worst = [max(row["gradient_error"] for row in rows if row["dtype"] == dtype) for dtype in ("float32", "bfloat16")]
    page = " ".join((root / "docs/scale.md").read_text().split())
    assert "within {:.0e} (float32) and {:.0e} (bfloat16) of float64".format(*worst).replace("e-0", "e-") in page
    losses = [[row["loss"] for row in steps(root, run)[:2]] for run in ("ddp", "fsdp2")]
    assert losses[0] == losses[1]
    rows = steps(root, "gpu-gsm8k-gtpo")
    full = [row for row in rows[1:] if row["completions/truncated"] > 0.1]  # the first step compiles
    assert len(full) == 2
    assert all(35 < 1e3 * row["time/generation"] / 256 < 45 for row in full)
    first, second = (f"{row['time/step']:.0f}" for row in full)
    assert f"10 s of a step of {second} to {first} s" in page


def test_memory(root, published) -> None:
    page = (root / "docs/recipes.md").read_text()
    lengths = {"training.max_prompt_length": 268, "training.max_completion_length": 256}
    given = {"rollout.engine": "transformers", **lengths}
    desk = load_config(root / "configs/desk/qwen-1.5b-gsm8k-gtpo.yaml", given, world_size=1)
    configs = {
        "q1": (desk, "1.5b"),
        **{
            run: (load_config(root / GPU / run / "config.yaml", {}, world_size=1), size)
            for run, size in (("q05", "0.5b"), ("q3", "3b"))
        },
    }
    for run, (config, size) in configs.items():
        found = forecast(config, KNOWN_MODELS[f"qwen/qwen2.5-{size}-instruct"])
        context = sum(part.gib for part in found.parts if part.name == "CUDA context")
        peak = published(f"gpu/{run}/run")["peak_memory_bytes"] / 2**30
        assert f"| {found.training_gib - context:.2f} | {peak:.2f} |" in page, run


def test_what_was_learned(root, published) -> None:
    said = " ".join((root / "docs/results.md").read_text().split())
    rows, about = steps(root, "gpu-gsm8k-gtpo"), published("gpu/gpu-gsm8k-gtpo/run")
    metric = published("gpu/gpu-gsm8k-gtpo/eval")["benchmarks"]["gsm8k"]["pass@k"]["1"]
    right, low, high = (100 * metric[key] for key in ("mean", "low", "high"))
    first, last = (rows[at]["completions/length"] for at in (0, -1))
    assert f"shrank from {first:.0f} to {last:.0f} tokens, and {right:.1f} % [{low:.1f}, {high:.1f}] are right" in said
    assert min(row["reward/format"] for row in rows[4:]) > 9.5
    minutes, seconds = divmod(round(about["wall_time_s"]), 60)
    assert f"128 completions a step, {len(rows)} steps in {minutes}:{seconds:02}, one seed" in said
