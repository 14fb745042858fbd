"""`trainer.class_path`: a trainer of the user's by dotted path, and the published file end to end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from commands import python
from test_train_run import config_of

from gtpo import GTPOTrainer
from gtpo.callbacks import GRPOBaseline, SFTBaseline
from gtpo.config import load_config
from gtpo.train.command import train
from gtpo.train.session import trainer_class

ROOT = Path(__file__).resolve().parents[2]
MODULE = """\
from trl import GRPOTrainer, SFTTrainer
from gtpo import GTPOTrainer

class Mine(GTPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        open("seen.txt", "a").write(f"{tuple(inputs['conflict_weights'].shape)}\\n")
        return loss

class MyGRPO(GRPOTrainer): pass
class MySFT(SFTTrainer): pass
class Own(GTPOTrainer):
    def __init__(self, *args, **kwargs):
        self.mine = 3
        super().__init__(*args, **kwargs)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_trainers_of_the_test.py").write_text(MODULE)
    (tmp_path / "run.yaml").write_text("model:\n  model_name: org/model\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def class_of(folder: Path, method: str, path: str | None) -> type:
    overrides = {"method": method, "trainer.class_path": path and f"my_trainers_of_the_test.{path}"}
    found: type = trainer_class(load_config(folder / "run.yaml", overrides))
    return found


def test_a_method_has_its_class_and_a_users_class_takes_its_place(folder: Path) -> None:
    assert class_of(folder, "gtpo", None) is GTPOTrainer
    assert class_of(folder, "grpo", None) is GRPOBaseline
    assert class_of(folder, "sft", None) is SFTBaseline
    ours = {"gtpo": GTPOTrainer, "grpo": GRPOBaseline, "sft": SFTBaseline}
    for method, name in (("gtpo", "Mine"), ("grpo", "MyGRPO"), ("sft", "MySFT")):
        found = class_of(folder, method, name)
        assert found.__name__ == name
        assert issubclass(found, ours[method])
        assert any(base.__module__ == "my_trainers_of_the_test" for base in found.__mro__)


def test_an_init_of_the_users_builds_a_trainer(folder: Path) -> None:
    changes = {"trainer.class_path": "my_trainers_of_the_test.Own", "training.max_steps": 1}
    assert train(config_of(folder, **changes), results_dir=folder / "results")


@pytest.mark.slow
def test_published_file_trains_a_tiny_model_with_a_users_trainer(folder: Path) -> None:
    """The authors' file, its model and data replaced by the embedded ones: every other key acts as it stands."""
    (folder / "run.yaml").write_text(
        f"extends: {os.path.relpath(ROOT / 'configs/published/llama-math.yaml', folder)}\n"
        "model:\n"
        "  model_name: null\n"
        "  build: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}\n"
        "  max_seq_length: 96\n  max_prompt_length: 60\n  lora_rank: 4\n  load_in_4bit: false\n"
        "dataset: {name: arithmetic, subsets: [], limit: 8}\n"
        "training: {max_prompt_length: 80, optimizer: adamw_torch, max_steps: 2}\n"
    )
    command = [ROOT / "cli.py", "train", "--run-name", "Q", "run.yaml", "--json"]
    command += ["--trainer.class_path", "my_trainers_of_the_test:Mine", "--gtpo_runtime.ent_threshold", "777"]
    done = python(*command, cwd=folder, env=os.environ | {"HF_HUB_OFFLINE": "1"}, timeout=240)
    told = json.loads(done.stdout)
    assert (told["status"], told["step"], told["method"]) == ("finished", 2, "gtpo")
    run = folder / "results" / "train" / "Q"
    config = load_config(run / "config.yaml")
    assert config.resolved_objective().entropy_threshold == 777
    assert config.training.per_device_train_batch_size == 8
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["gate/kept"] for row in metrics] == [1.0, 1.0], "a threshold of 777 keeps everything"
    assert (folder / "seen.txt").read_text().count("(8, 16)") == 2
    assert (run / "final" / "adapter_config.json").is_file()
    assert json.loads((run / "run.json").read_text())["initial_entropy"]["samples"] == 8
