"""What this project leans on in TRL and transformers: each private name, and the shape of its use.

A failure here names what changed upstream; everything else about a new release is covered by the other tests.
"""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer, SFTTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import utils

import gtpo
from gtpo import GTPOTrainer
from gtpo.common.errors import UserError
from gtpo.trainer.trl_seam import FIELDS, METHODS, SAMPLED, check_version


def test_trl_is_one_of_the_two_minor_versions() -> None:
    """The other one is tested by `make test-trl115`."""
    for known in ("1.15.0", "1.16.3", version("trl")):
        check_version(known)
    for unknown in ("1.14.2", "1.17.0", "2.0.0"):
        with pytest.raises(UserError, match=rf"TRL 1.15 and 1.16, found {unknown}: pip install 'trl>=1.15,<1.17'"):
            check_version(unknown)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (GRPOTrainer, "_get_train_sampler", ["self", "dataset"]),
        (GRPOTrainer, "_prepare_inputs", ["self", "generation_batch"]),
        (SFTTrainer, "_get_train_sampler", ["self", "train_dataset"]),
        (VLLMGeneration, "_init_vllm", ["self"]),
        (VLLMGeneration, "sync_weights", ["self"]),
    ],
)
def test_methods_whose_parameters_differ_by_class(owner: type, name: str, parameters: list[str]) -> None:
    found = list(inspect.signature(inspect.unwrap(getattr(owner, name))).parameters)
    assert found == parameters, f"{owner.__name__}.{name} now takes {found}"


@pytest.mark.parametrize("trainer", [GTPOTrainer, GRPOTrainer, SFTTrainer])
def test_what_the_seam_takes_hold_of_is_there(trainer: type) -> None:
    """Every private name of `gtpo.trainer.trl_seam`, for every class that it takes."""
    for ours, (name, parameters) in METHODS.items():
        if ours not in SAMPLED or issubclass(trainer, GRPOTrainer):
            assert hasattr(trainer, name), f"{trainer.__name__}.{name} is gone"
            found = list(inspect.signature(inspect.unwrap(getattr(trainer, name))).parameters)
            assert found[: 1 + len(parameters)] == ["self", *parameters], f"{trainer.__name__}.{name} now takes {found}"
            assert not parameters or len(found) == 1 + len(parameters), f"{trainer.__name__}.{name} now takes {found}"
    sources = "".join(inspect.getsource(owner) for owner in trainer.__mro__ if owner is not object)
    for field in FIELDS if issubclass(trainer, GRPOTrainer) else FIELDS[: FIELDS.index("_step")]:
        assert re.search(rf"self\.{field}(: [^\n=]+)? = ", sources), f"{trainer.__name__}.{field} is gone"


def test_vllm_is_started_and_replaced_where_the_seam_does_it() -> None:
    assert "self.vllm_generation = VLLMGeneration(" in inspect.getsource(GRPOTrainer)
    source = inspect.getsource(VLLMGeneration)
    assert "self.llm = LLM(" in source
    assert "self._dist = DistributedBackend(accelerator)" in source
    assert "self._dist.gather_params(" in source
    assert "self._init_vllm()" in source


def test_private_names_are_taken_hold_of_in_the_seam_alone() -> None:
    """No other module of gtpo calls a private name of a trainer, or names one."""
    package = Path(gtpo.__file__).parent
    names = [name for name, _ in METHODS.values() if name.startswith("_")] + list(FIELDS)
    called = rf"[tT]rainer\._\w+|super\(\)\._[a-z]\w+|[\"']({'|'.join(names)})[\"']|\._dist\b|_init_vllm"
    private = re.compile(rf"{called}|^ +_(?:name|paper|tag_names)\b", re.MULTILINE)
    for path in [*package.glob("trainer/*.py"), *package.glob("run/*.py"), package / "callbacks.py"]:
        if path.name != "trl_seam.py":
            assert not private.findall(path.read_text()), path.name


def test_a_resumed_run_trains_its_epochs_in_a_method_of_its_own() -> None:
    source = inspect.getsource(Trainer._inner_training_loop)
    assert "self._run_epoch(" in source
    assert "if self.control.should_training_stop:" in source[source.index("self._run_epoch(") :]


def test_a_line_of_metrics_gathers_in_fields_that_a_checkpoint_can_keep() -> None:
    begin = inspect.getsource(Trainer._inner_training_loop)
    assert begin.index("self._prepare_for_training(") < begin.index("self._tr_loss = ")
    assert begin.index("self._globalstep_last_logged = ") < begin.index("on_train_begin(")
    log = inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert "tr_loss -= tr_loss" in log
    assert log.index("self.log(") < log.index("self._save_checkpoint(")
    for trainer in (GRPOTrainer, SFTTrainer):
        assert "self._metrics[mode].clear()" in inspect.getsource(trainer.log)


def test_the_model_card_takes_a_paper_and_grpos_citation() -> None:
    assert "arXiv:2402.03300" in GRPOTrainer._paper["citation"]
    assert 'self._paper.get("citation")' in inspect.getsource(GRPOTrainer.create_model_card)


def test_scored_log_probabilities_take_compute_entropy_and_return_three() -> None:
    method = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    names = list(inspect.signature(method).parameters)
    assert names[:7] == [
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ]
    assert "return logps, entropies, aux_loss" in inspect.getsource(method)


@pytest.mark.parametrize(
    "field",
    [
        "self._metrics",
        "self._step",
        "self._buffered_inputs",
        "self._tokenizer",
        "self.eos_token_ids",
        "self.reward_func_names",
        "self.reward_weights",
        "self.num_generations",
        "self.num_generations_eval",
        "self.num_iterations",
        "self.temperature",
        "self.epsilon_low",
        "self.epsilon_high",
        "self.aux_loss_enabled",
        "self.router_aux_loss_coef",
        "self.multi_objective_aggregation",
    ],
)
def test_fields_that_are_read(field: str) -> None:
    assert f"{field} = " in inspect.getsource(GRPOTrainer) or f"{field}: " in inspect.getsource(GRPOTrainer)


@pytest.mark.parametrize(
    "key",
    [
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "advantages",
        "old_per_token_logps",
        "importance_sampling_ratio",
        "sampling_per_token_logps",
        "tool_mask",
    ],
)
def test_keys_of_a_scored_batch(key: str) -> None:
    assert f'"{key}"' in inspect.getsource(GRPOTrainer._generate_and_score_completions)


def test_rows_added_to_a_batch_survive_the_shuffle_and_the_split() -> None:
    import torch

    batch: dict[str, Any] = {"completion_ids": torch.arange(8).view(4, 2), "row": torch.arange(4)}
    parts = utils.split_tensor_dict(utils.shuffle_sequence_dict(batch), 2)
    for part in parts:
        assert torch.equal(part["completion_ids"][:, 0], 2 * part["row"])


def test_trls_patch_of_the_forward_takes_the_model_as_self() -> None:
    """A deep copy of the model calls it unbound (`gtpo.trainer.policy_head`)."""
    source = inspect.getsource(utils)
    assert "model.forward = types.MethodType(_fused_forward, model)" in source
    assert "if not fused_lm_head:" in source


def test_helpers_that_are_called() -> None:
    assert list(inspect.signature(utils.maybe_gather_lm_head_ctx).parameters) == ["params"]
    assert list(inspect.signature(utils.pad).parameters)[:3] == ["tensors", "padding_value", "padding_side"]
    order = list(inspect.signature(utils.RepeatSampler).parameters)
    assert order == ["data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed"]
    assert "self.current_gradient_accumulation_steps = " in inspect.getsource(Trainer)
    assert "self.model_wrapped = " in inspect.getsource(Trainer)


def test_switches_of_the_config_are_trls_with_its_defaults() -> None:
    from typing import get_args

    from gtpo.config.schema import CLIPPING, SWITCHES, LossType, TrainingSection

    theirs = GRPOConfig.__dataclass_fields__
    ours = TrainingSection.model_fields
    for name in (*SWITCHES, *CLIPPING):
        if name != "loss_type":  # ours is the paper's GRPO
            assert theirs[name].default == ours[name].default, name
    source = inspect.getsource(GRPOTrainer._compute_loss)
    for loss_type in get_args(LossType):
        assert f'"{loss_type}"' in source, loss_type


def test_sampled_completions_are_the_fourth_that_generate_returns() -> None:
    assert "return prompt_ids, completion_ids, tool_mask, completions, " in inspect.getsource(GRPOTrainer._generate)


def test_loss_is_computed_where_untrained_kl_looks() -> None:
    for owner in (GRPOTrainer, SFTTrainer):
        assert list(inspect.signature(owner.compute_loss).parameters)[:3] == ["self", "model", "inputs"]


def test_old_log_probabilities_are_skipped_where_a_round_feeds_one_step() -> None:
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "self.args.gradient_accumulation_steps % generate_every != 0" in source


def test_defaults_that_are_overridden_on_purpose() -> None:
    arguments = GRPOConfig(output_dir="unused", bf16=False, use_cpu=True, report_to="none")
    assert (arguments.loss_type, arguments.beta, arguments.scale_rewards) == ("dapo", 0.0, "group")
