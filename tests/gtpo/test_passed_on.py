"""What a config passes on: each setting of TRL reaches the trainer's arguments, or is refused with a reason."""

from __future__ import annotations

import importlib.metadata
import typing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from logs import logged
from peft import LoraConfig
from trl import GRPOConfig, SFTConfig

from gtpo.common.errors import UserError
from gtpo.common.settings import in_words
from gtpo.config import load_config
from gtpo.dry_run import preflight
from gtpo.inputs.model import lora_settings
from gtpo.rewards import final_reward, format_reward
from gtpo.rewards.loading import load_reward, says
from gtpo.train.session import require_optimizer, trainer_arguments
from gtpo.trainer import GTPOConfig

NAMED = {
    "lr_scheduler_type": "linear", "hub_strategy": "end", "log_level": "error", "log_level_replica": "error",
    "train_sampling_strategy": "sequential", "ddp_backend": "gloo", "vllm_mode": "server", "loss_type": "dapo",
    "importance_sampling_level": "sequence", "multi_objective_aggregation": "normalize_then_sum",
    "vllm_importance_sampling_mode": "token_mask", "torch_compile_mode": "default", "chat_template_kwargs": {"a": 1},
    "lr_scheduler_kwargs": {"num_cycles": 2}, "cache_implementation": "dynamic", "steps_per_generation": 8,
    "num_iterations": 2, "generation_batch_size": 8, "beta": 0.25, "max_steps": 5, "top_entropy_quantile": 0.5,
    "per_device_train_batch_size": 16, "num_generations": 4, "adam_beta1": 0.5, "adam_beta2": 0.5,
    "optim": "sgd", "vllm_model_impl": "transformers", "vllm_gpu_memory_utilization": 0.5,
}  # fmt: skip
"""Values that are none of `other`'s."""
OWN = {"run_name", "reward_weights", "report_to"}
"""TRL's fields whose value has another form among our own keys."""


def other(name: str, default: Any, words: str) -> Any:
    """Return a value of a field's type that is not its default."""
    if name in NAMED:
        return NAMED[name]
    if isinstance(default, bool) or words == "true or false":
        return not default
    if isinstance(default, int | float) and not isinstance(default, bool):
        return default + 1
    for word, value in (("a whole number", 3), ("a number", 0.5), ("a mapping", {"a": 1}), ("a list", ["a"])):
        if word in words.split(" or "):
            return value
    return "text"


MODEL = {"model_name": "o/m", "lora_rank": 4}


def written(folder: Path, **sections: Any) -> Any:
    (folder / "run.yaml").write_text(yaml.safe_dump(sections))
    return load_config(folder / "run.yaml")


def loaded(folder: Path, method: str, **training: Any) -> Any:
    return written(folder, method=method, model={"model_name": "o/m"}, training=training)


@pytest.mark.parametrize(("method", "kind"), [("grpo", GRPOConfig), ("gtpo", GTPOConfig), ("sft", SFTConfig)])
def test_every_field_of_trl_is_read_back_or_refused_with_a_reason(tmp_path: Path, method: str, kind: Any) -> None:
    hints, refused, read = typing.get_type_hints(kind), {}, []
    for field in fields(kind):
        if not field.init or field.name in OWN:
            continue
        value = other(field.name, field.default, in_words(hints[field.name]))
        try:
            arguments = trainer_arguments(loaded(tmp_path, method, **{field.name: value}), tmp_path, "float32")
        except UserError as error:
            refused[field.name] = str(error)
            continue
        read.append(field.name)
        found = getattr(arguments, field.name)
        # TRL itself changes some: a mapping gets further keys, a name becomes an enumeration's member.
        same = found.items() >= value.items() if isinstance(found, dict) else found == value
        assert same or str(value) in str(found), (field.name, value, found)
    assert all(f"training.{name}" in why or why.startswith("training: ") for name, why in refused.items()), refused
    assert len(read) > 0.5 * len(fields(kind)), refused


@pytest.mark.parametrize(
    ("method", "key", "package", "mend"),
    [
        ("gtpo", "deepspeed", "deepspeed", "pip install 'gtpo[deepspeed]'"),
        ("sft", "deepspeed", "deepspeed", "pip install 'gtpo[deepspeed]'"),
        ("grpo", "use_liger_kernel", "liger_kernel", "pip install liger-kernel"),
    ],
)
def test_a_setting_whose_package_is_absent_is_one_sentence(
    method: str, key: str, package: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    known = importlib.metadata.metadata
    monkeypatch.setattr(importlib.metadata, "metadata", absent)
    monkeypatch.setattr("gtpo.common.packages.installed", lambda name: name != package)
    (tmp_path / "ds.json").write_text("{}")
    value = str(tmp_path / "ds.json") if key == "deepspeed" else True
    with pytest.raises(UserError) as refused:
        trainer_arguments(loaded(tmp_path, method, **{key: value}), tmp_path, "float32")
    assert str(refused.value) == f"run.yaml:5: training.{key} needs {package}, which is not installed: {mend}".replace(
        "run.yaml", str(tmp_path / "run.yaml")
    )


LAZILY = RuntimeError("Failed to import transformers.integrations.x because of the following error")
LAZILY.__cause__ = ModuleNotFoundError("No module named 'apex'")  # as transformers' lazy modules raise


@pytest.mark.parametrize(
    "error", [ImportError("top_p wants apex"), importlib.metadata.PackageNotFoundError("apex"), LAZILY]
)
def test_whatever_transformers_raises_for_an_absent_package_is_one_sentence(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GTPOConfig, "__post_init__", Mock(side_effect=error))
    with pytest.raises(UserError, match=r"apex|because of the following error") as refused:
        trainer_arguments(loaded(tmp_path, "gtpo", top_p=0.9), tmp_path, "float32")
    assert "\n" not in str(refused.value)
    monkeypatch.setattr(GTPOConfig, "__post_init__", Mock(side_effect=KeyError("a fault of ours")))
    with pytest.raises(KeyError):
        trainer_arguments(loaded(tmp_path, "gtpo"), tmp_path, "float32")


def test_an_absent_tracker_is_said_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gtpo.train.session", "gtpo.dry_run"):
        monkeypatch.setattr(f"{module}.installed", lambda package: False)
    config = loaded(tmp_path, "sft", report_to=["wandb"])
    with logged() as lines:
        preflight(config, tmp_path)
    assert ["run.yaml:5: training.report_to wandb: not installed" in line for line in lines] == [True]
    assert trainer_arguments(config, tmp_path, "float32").report_to == []


def test_a_ratio_of_two_temperatures_is_refused(tmp_path: Path) -> None:
    config = loaded(tmp_path, "gtpo", temperature=0.9)
    config.objective.preset = "gtpo-published"
    config.rollout.engine, config.rollout.importance_sampling_correction = "vllm", True
    with pytest.raises(
        UserError, match=r"^\S+/run.yaml:\d+: training.temperature: .* at temperature 0.9, with the objective's"
    ):
        trainer_arguments(config, tmp_path, "float32")


@pytest.mark.parametrize("optimizer", ["schedule_free_adamw", "grokadamw", "galore_adamw"])
def test_an_optimizers_package_is_asked_for_before_the_weights(tmp_path: Path, optimizer: str) -> None:
    plain, other = (loaded(tmp_path, "gtpo", optimizer=name) for name in ("adamw_torch", optimizer))
    require_optimizer(plain, trainer_arguments(plain, tmp_path, "float32"))
    with pytest.raises(UserError, match=rf"run.yaml:5: training.optimizer {optimizer}: .*pip install"):
        require_optimizer(other, trainer_arguments(other, tmp_path, "float32"))


def test_settings_of_peft_and_of_the_sampler(tmp_path: Path) -> None:
    """Those that are refused: tests/golden/refused-config.txt."""
    lora = {"use_dora": True, "modules_to_save": ["norm"], "rank_pattern": {"q_proj": 2}}
    config = written(tmp_path, model=MODEL, lora=lora, rollout={"typical_p": 0.9})
    assert LoraConfig(r=4, **lora_settings(config)).use_dora
    assert trainer_arguments(config, tmp_path, "float32").generation_kwargs == {"typical_p": 0.9}


def test_a_reward_with_arguments_is_called_with_them_or_made_by_them(tmp_path: Path) -> None:
    made = load_reward("trl.rewards.get_soft_overlong_punishment", {"max_completion_len": 4, "soft_punish_cache": 2})
    assert made(completions=[""] * 2, completion_ids=[[1], [1] * 9]) == [0.0, -1.0]
    scored = load_reward("gtpo.rewards.accuracy_reward", {"scoring": "lenient"})
    assert scored(prompts=["?"], completions=["so it is 4"], answer=["4"]) == [10.0]
    assert scored.__name__ == "accuracy_reward"
    assert says(scored, "is_accuracy")
    assert says(partial(final_reward), "has_format")
    assert not says(partial(format_reward), "is_accuracy")
    for wrong in ({"path": "a.b"}, [{"path": "a.b", "arg": {}}]):
        words = r"yaml:\d+: trainer\.reward_funcs must be a list, each text or a mapping of"
        with pytest.raises(UserError, match=words):
            written(tmp_path, trainer={"reward_funcs": wrong})
    with pytest.raises(UserError, match="with args"):
        load_reward("trl.rewards.get_soft_overlong_punishment", {"length": 4})
    config = written(tmp_path, model=MODEL, trainer={"reward_funcs": [{"path": "a.b", "args": {"x": 1}}, "c.d"]})
    assert config.trainer.reward_calls() == [("a.b", {"x": 1}), ("c.d", None)]
