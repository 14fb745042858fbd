"""`gtpo train --rollout.engine vllm` with real vLLM on a CPU: the weights it samples with are those of the step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from commands import process
from test_train_run import KILLED, STEPS
from test_train_run import PLAIN as SHORT
from test_train_run import metrics as logged_metrics
from vllm_servers import vllm_server

from gtpo.config import BuiltModel
from gtpo.inputs.tiny import build_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROUNDING = 0.05
"""Nats per token that bfloat16 in vLLM and float32 in the trainer may differ by on this model."""
PLAIN: dict[str, Any] = {
    **SHORT,
    # vLLM's attention on a CPU takes heads of 32 numbers and more.
    "model": {**SHORT["model"], "build": {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
                                          "num_attention_heads": 2, "initializer_range": 0.2}},
    "dataset": {**SHORT["dataset"], "limit": 16, "validation_problems": 4},
    "training": {**SHORT["training"], "learning_rate": 3e-2, "lr_scheduler_type": "constant", "eval_steps": 3,
                 "eval_samples": 2, "max_completion_length": 8},
    "trainer": {"reward_funcs": ["my_reward.mine"]},
    "rollout": {"engine": "vllm"},
}  # fmt: skip
REWARD = """
def mine(completions, completion_ids, **_):
    return [float(sum(ids[:1]) % 5) for ids in completion_ids]
def coarse(completion_ids, **_):
    return [float(not reward) for reward in mine(None, completion_ids)]
"""
STALE = """
import sys
from trl.generation.vllm_generation import VLLMGeneration
plain, calls = VLLMGeneration.sync_weights, []
def once(self):
    calls.append(1)
    if len(calls) == 1:
        plain(self)
VLLMGeneration.sync_weights = once
from gtpo import cli
sys.argv = ["gtpo", *sys.argv[1:]]
cli.app()
"""


def command_of(folder: Path, *flags: str, start: tuple[str, ...] | None = None) -> tuple[list[str], dict[str, str]]:
    root = Path(__file__).resolve().parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    model = {**PLAIN["model"]}
    if "--model.model_name" in flags:
        del model["build"]
    (folder / "run.yaml").write_text(yaml.safe_dump({**PLAIN, "model": model}))
    (folder / "my_reward.py").write_text(REWARD)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return [sys.executable, *(start or (str(root / "cli.py"),)), "train", "run.yaml", *flags], environment


def gtpo(folder: Path, *flags: str, start: tuple[str, ...] | None = None, code: int = 0) -> str:
    """Run `gtpo train`; return its standard error."""
    command, environment = command_of(folder, *flags, start=start)
    return process(*command, code=code, cwd=folder, env=environment, timeout=500).stderr


def metrics(folder: Path) -> list[dict[str, Any]]:
    return logged_metrics(folder / "results/train/run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run that validates on the way."""
    folder = tmp_path_factory.mktemp("whole")
    said = gtpo(folder)
    assert "Likely cause" not in said, "the alarm rang on a healthy run"
    return folder


def test_vllm_samples_with_the_weights_of_the_step(whole: Path) -> None:
    """At a learning rate that moves every token's log-probability, the two engines agree to rounding at each step."""
    rows = metrics(whole)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(0 < row["sampling/logp_difference"] < ROUNDING for row in rows)
    assert [row["step"] for row in rows if "validation/pass@1" in row] == [3, 6]


def test_weights_that_stay_behind_stop_the_run(whole: Path, tmp_path: Path) -> None:
    """The same run with the weights synchronised once: it stops at the second step, with the numbers."""
    flags = ("--training.eval_steps", "null", "--rollout.logp_difference_alarm", str(ROUNDING))
    said = gtpo(tmp_path, *flags, start=("-c", STALE), code=2)
    differences = [row["sampling/logp_difference"] for row in metrics(tmp_path)]
    assert differences == [pytest.approx(metrics(whole)[0]["sampling/logp_difference"], rel=1e-6)]
    told = " ".join(said.split())
    assert "step 2: " in told
    assert "ForCausalLM: vLLM gives the tokens that it draws a mean log-probability of" in told
    assert "the tolerance is 0.05 (rollout.logp_difference_alarm). Likely cause: vLLM holds other weights" in told
    assert json.loads((tmp_path / "results/train/run/run.json").read_text())["status"] == "failed"


def test_resumed_after_kill_9(whole: Path, tmp_path: Path) -> None:
    """The continued run draws what the uninterrupted one drew: vLLM's generator on a CPU is torch's."""
    gtpo(tmp_path, start=("-c", KILLED), code=-signal.SIGKILL)
    gtpo(tmp_path)
    assert metrics(tmp_path) == metrics(whole)


def test_grpo_with_adapters_the_importance_correction_and_equal_groups_drawn_again(tmp_path: Path) -> None:
    """Adapters reach vLLM by themselves; the metric and the correction are the same for the baseline, and the
    log-probabilities are those of the completions that were drawn last."""
    flags = ("--method", "grpo", "--model.lora_rank", "4", "--rollout.importance_sampling_correction", "true",
             "--trainer.reward_funcs", "my_reward.coarse", "--training.resample_equal_groups", "2")  # fmt: skip
    gtpo(tmp_path, *flags, "--training.eval_steps", "null")
    rows = metrics(tmp_path)
    assert all(0 < row["sampling/logp_difference"] < 1e-4 for row in rows), "both compute in float32"
    assert all(0.5 < row["sampling/importance_sampling_ratio/mean"] < 1.5 for row in rows)
    assert sum(row["groups/resampled"] for row in rows) > 0
    assert all(row["groups/zero_variance"] <= row["groups/zero_variance_drawn"] for row in rows)
    weights = tmp_path / "results/train/run/final/adapter_model.safetensors"
    assert weights.is_file()


def test_adapters_over_a_server(tmp_path: Path) -> None:
    """A server loads each step's adapter from the run's folder, and samples with it."""
    for part in build_tiny_model(BuiltModel(**PLAIN["model"]["build"]), max_seq_length=96, seed=0):
        part.save_pretrained(tmp_path / "model")
    flags = ("--enable-lora", "--max-lora-rank", "8", "--logprobs-mode", "processed_logprobs",
             "--no-enable-chunked-prefill")  # fmt: skip
    environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}
    environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    with vllm_server(tmp_path / "model", tmp_path / "server.log", *flags, **environment) as server:
        gtpo(tmp_path, "--model.model_name", str(tmp_path / "model"), "--model.lora_rank", "4", "--rollout.engine",
             "vllm_server", "--rollout.server_port", str(urlsplit(server.url).port))  # fmt: skip
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(0 < row["sampling/logp_difference"] < 1e-4 for row in rows), "both compute in float32"


def test_runs_that_start_at_once_take_a_port_each(tmp_path: Path) -> None:
    """As eight runs on eight GPUs do; before, all but one ended with "address already in use"."""
    started = []
    for name in "one", "two":
        command, environment = command_of(tmp_path / name, "--training.max_steps", "1", "--training.eval_steps", "null")
        environment.pop("MASTER_PORT", None)
        started.append(subprocess.Popen(command, cwd=tmp_path / name, env=environment, stderr=subprocess.DEVNULL))
    assert [run.wait(timeout=500) for run in started] == [0, 0]


def test_what_a_cpu_cannot_do_is_refused_in_a_sentence(tmp_path: Path) -> None:
    said = gtpo(tmp_path, "--rollout.engine", "vllm_server", code=2)
    assert "rollout.engine vllm_server sends weights over NCCL" in said
    said = gtpo(tmp_path, "--model.build.num_attention_heads", "4", code=2)
    assert "Traceback" not in said
    assert "rollout.engine vllm: vLLM fails" in said


def test_truncated_sampling_is_that_of_the_loss(tmp_path: Path) -> None:
    """vLLM computes in bfloat16, so that an id at the edge may be in one set only; it counts as drawn."""
    told = gtpo(tmp_path, "--training.top_p", "0.8", "--training.eval_steps", "null")
    assert "rounding, which importance weights correct" in told
    rows = metrics(tmp_path)
    assert max(row["sampling/logp_difference"] for row in rows) < ROUNDING
    assert [row["sampling/refused"] for row in rows] == [0] * len(rows)
