"""verl trains with GTPO: a whole run on a local Ray, its steps recomputed without verl, and mistakes before the start.

The run is verl's own (`verl_on_cpu` says what stands in for the GPU and the inference engine): two steps of a tiny
model, then a third after a resume.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gtpo.objective import PRESETS, Loss, reference_loss

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1800)]
HERE = Path(__file__).resolve().parent
PROMPTS, G, THRESHOLD = 4, 4, 0.62
SETTINGS: dict[str, Any] = {
    **dict(line.split("=", 1) for line in (HERE / "verl_training.txt").read_text().splitlines()),
    "+gtpo.entropy_threshold": THRESHOLD, "data.train_batch_size": PROMPTS, "actor_rollout_ref.rollout.n": G,
    "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
}  # fmt: skip
"""What a run takes: verl's defaults otherwise."""


def verl(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m gtpo.integrations.verl`."""
    return subprocess.run(
        [sys.executable, "-m", "gtpo.integrations.verl", *words],
        cwd=cwd,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAY_DEDUP_LOGS": "0", **environment},
        capture_output=True,
        text=True,
        timeout=1500,
    )


class Run:
    """A finished run of verl's and where it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.checkpoints, self.batches = folder / "model", folder / "checkpoints", folder / "batches"

    def start(self, steps: int, log: str) -> None:
        places = {
            "data.train_files": self.folder / "data/train.parquet",
            "data.val_files": self.folder / "data/test.parquet",
            "actor_rollout_ref.model.path": self.model,
            "trainer.default_local_dir": self.checkpoints,
            "trainer.total_training_steps": steps,
        }
        words = [f"{key}={value}" for key, value in {**SETTINGS, **places}.items()]
        done = verl(
            *words,
            cwd=self.folder,
            PYTHONPATH=str(HERE),
            VERL_USE_EXTERNAL_MODULES="verl_on_cpu",
            VERL_PLATFORM="cpu",
            VERL_ENGINE_DEVICE="cuda",  # verl registers its FSDP engine for this name; it runs on any device
            GTPO_TEST_BATCHES=str(self.batches),
            VERL_FILE_LOGGER_PATH=str(self.folder / f"metrics{steps}.jsonl"),
        )
        (self.folder / log).write_text(done.stdout + done.stderr)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]

    def metrics(self, steps: int) -> list[dict[str, Any]]:
        lines = (self.folder / f"metrics{steps}.jsonl").read_text().splitlines()
        return [json.loads(line)["data"] for line in lines]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    found = Run(tmp_path_factory.mktemp("verl"))
    found.batches.mkdir()
    shape = BuiltModel(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, initializer_range=0.5
    )
    model, tokenizer = build_tiny_model(shape, max_seq_length=512, seed=1)
    model.lm_head.weight.data.mul_(3.3)  # an entropy just below ln 2, so that the gate is on and has something to do
    model.save_pretrained(found.model)
    tokenizer.save_pretrained(found.model)
    words = ["-m", "gtpo.integrations.verl.data", "arithmetic", "--out", str(found.folder / "data")]
    subprocess.run([sys.executable, *words], check=True)
    found.start(2, "training.log")
    return found


def recompute(run: Run, step: int, weights: Path) -> tuple[Loss, dict[str, Any], Any, Tensor]:
    """Return the reference loss of a step from what the actor was handed and the weights it had, without verl."""
    from transformers import AutoModelForCausalLM

    batch = torch.load(run.batches / f"step{step}.pt")
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager")
    order = sorted(range(len(batch["uid"])), key=lambda row: batch["uid"][row])
    longest = max(len(row) for row in batch["responses"])
    logits, ids, mask = [], [], []
    for row in order:
        prompt, response = batch["prompts"][row], batch["responses"][row]
        whole = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        padding = longest - len(response)
        logits.append(torch.nn.functional.pad(whole, (0, 0, 0, padding)))
        ids.append(torch.nn.functional.pad(response, (0, padding)))
        mask.append(torch.arange(longest) < len(response))
    scores = torch.stack([batch["rm_scores"][row].sum() for row in order]).double()
    tokenizer = _tokenizer(run.model)
    texts = [tokenizer.decode(batch["responses"][row], skip_special_tokens=True) for row in order]
    scores[[len(text) % 11 == 0 for text in texts]] = torch.nan
    stored = json.loads((run.checkpoints / "initial_entropy.json").read_text())["nats"]
    objective = replace(PRESETS["gtpo"], entropy_threshold=THRESHOLD)
    loss = reference_loss(
        objective, torch.stack(logits), torch.stack(ids), torch.stack(mask), scores, G, initial_entropy=stored
    )
    written = torch.stack(
        [
            torch.nn.functional.pad(batch["advantages"][row], (0, longest - len(batch["advantages"][row])))
            for row in order
        ]
    )
    return loss, batch, model, torch.where(torch.stack(mask), written, 0.0)


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("step", [1, 2])
def test_each_step_is_the_references(run: Run, step: int) -> None:
    """Advantages in the TransferQueue, loss and gradient norm of verl's FSDP actor: all as reference_loss has them."""
    weights = run.model if step == 1 else run.checkpoints / "global_step_1/actor/huggingface"
    loss, _, model, written = recompute(run, step, weights)
    assert 0 < int(loss.kept.sum()) < PROMPTS * G
    mask = written != 0
    expected = torch.where(mask, loss.shaped_advantages[:, None] * loss.weights, 0.0)
    error = float((written - expected).abs().max())
    loss.loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    logged = run.metrics(2)[step - 1]
    print(
        f"step {step}: |a - A' lambda| <= {error:.1e}; kept {int(loss.kept.sum())} of {PROMPTS * G}; loss verl "
        f"{logged['actor/pg_loss']:.7f} reference {float(loss.loss.detach()):.7f}; gradient norm verl "
        f"{logged['actor/grad_norm']:.7f} reference {float(norm):.7f}"
    )
    assert error <= 2e-5  # float32 entropies of another order of summation
    assert logged["actor/loss"] == pytest.approx(float(loss.loss.detach()), abs=1e-5)
    assert logged["actor/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert logged["gate/kept"] == pytest.approx(float(loss.kept.double().mean()))
    assert logged["entropy/mean"] == pytest.approx(float(loss.entropy.mean()), rel=1e-5)


def test_initial_entropy_is_that_of_the_first_hundred_samples_and_survives_a_resume(run: Run) -> None:
    path = run.checkpoints / "initial_entropy.json"
    stored = json.loads(path.read_text())
    assert stored["samples"] == 100
    assert 0.3 < stored["nats"] < 0.6931
    assert stored["model"] == str(run.model)
    log = (run.folder / "training.log").read_text()
    assert "measuring H_ini on the untrained policy: 100 samples" in log
    assert "'VERL_USE_EXTERNAL_MODULES': 'verl_on_cpu,gtpo.integrations.verl.trainer'" in log  # what Ray is told

    run.start(3, "resumed.log")
    assert json.loads(path.read_text()) == stored
    resumed = (run.folder / "resumed.log").read_text()
    assert "measuring H_ini" not in resumed
    assert f"entropy filter on: {stored['nats']:.3f} < 0.693" in resumed
    assert len(run.metrics(3)) == 1


# -- before anything starts ---------------------------------------------------------------------------------------


def test_mistakes_end_with_code_2_before_ray_starts(tmp_path: Path) -> None:
    good = ["trainer.v1.trainer_mode=gtpo_sync", "+gtpo.preset=gtpo", "actor_rollout_ref.rollout.name=vllm"]
    wrong = verl(*good, "actor_rollout_ref.actor.ppo_epochs=2", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "actor_rollout_ref.actor.ppo_epochs is 2" in wrong.stderr
    assert "actor_rollout_ref.actor.loss_agg_mode is 'token-mean'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert "Ray" not in wrong.stdout

    unused = verl("+gtpo.preset=gtpo", "actor_rollout_ref.rollout.name=vllm", cwd=tmp_path)
    assert unused.returncode == 2
    assert "the section gtpo has no effect with trainer.v1.trainer_mode sync" in unused.stderr


def test_a_trainer_that_cannot_be_imported_is_no_secret(tmp_path: Path) -> None:
    """The entry point alone would be logged at level DEBUG, and verl would not know the trainer."""
    broken = tmp_path / "gtpo"
    shutil.copytree(HERE.parents[1] / "gtpo", broken, ignore=shutil.ignore_patterns("__pycache__"))
    with (broken / "integrations/verl/advantages.py").open("a") as handle:
        handle.write("\nimport no_such_module\n")
    done = verl(cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "the GTPO trainer for verl could not be imported (No module named 'no_such_module')" in done.stderr


def test_the_installed_plugin_registers_the_trainer(tmp_path: Path) -> None:
    script = (
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync\n"
        "trainer = get_trainer_cls('gtpo_sync')\n"
        "assert trainer.__module__ == 'gtpo.integrations.verl.trainer'\n"
        # What the trainer leans on in verl, private names included.
        "for name in ('_compute_advantage', '_compute_old_log_prob', '_balance_batch', '_submit_batch_to_rollout',\n"
        "             '_compute_metrics', 'on_train_begin'):\n"
        "    assert any(name in vars(cls) for cls in trainer.__mro__[1:]), f'verl no longer has {name}'\n"
        "bare = object.__new__(trainer)\n"
        "bare.trainer_mode = 'gtpo_sync'\n"
        "assert bare.trainer_mode == 'sync'  # else verl builds the asynchronous replay buffer and checkpoints\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", ["gsm8k-gtpo-1x8", "gsm8k-gtpo-4x8"])
def test_the_recipes_compose_and_are_accepted(root: Path, name: str) -> None:
    from hydra import compose as compose_config
    from hydra import initialize_config_module
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from omegaconf import OmegaConf

    from gtpo.integrations.verl.settings import check_settings

    class Recipes(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("recipes", f"file://{root / 'configs/verl'}")

    Plugins.instance().register(Recipes)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose_config(name)
    settings = check_settings(OmegaConf.to_container(config, resolve=True))
    assert settings.preset == "gtpo"
    assert settings.batch_rows == 2048
