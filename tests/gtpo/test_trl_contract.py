"""What this project leans on in TRL and transformers: each private name, and the shape of its use.

A failure here names what changed upstream; everything else about a new release is covered by the other tests.
"""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from logs import logged
from transformers import GenerationMixin, Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import utils

import gtpo
from gtpo.common.errors import UserError
from gtpo.trainer import trl_seam
from gtpo.trainer.trl_seam import check_trl


def test_a_name_that_is_gone_is_named_and_a_newer_release_only_warned_of() -> None:
    """The names are checked at each import; the oldest release is tested by `make test-trl115`."""

    class Renamed(GRPOTrainer):
        _get_train_sampler = None

        def _generate(self, prompts: Any, images: Any) -> Any: ...

    with pytest.raises(UserError) as refused:
        check_trl(grpo=Renamed, release="1.17.0")
    told = str(refused.value)
    assert (
        "TRL 1.17.0 has no Renamed._get_train_sampler; no Renamed._generate(prompts), which takes (prompts,images)"
        in told
    )
    assert "gtpo is tested with TRL 1.15 to 1.16: pip install 'trl>=1.15,<1.17'" in told
    with pytest.raises(UserError, match=r"no SFT\._total_train_tokens; no SFT\._metrics"):
        check_trl(sft=type("SFT", (Trainer,), {}))
    for found, warned in (("1.15.0", False), ("1.16.3", False), ("1.17.0", True), ("2.0.0", True)):
        with logged(logging.WARNING) as lines:
            check_trl(release=found)
        assert bool(lines) == warned, found


def test_vllm_is_started_and_replaced_where_the_seam_does_it() -> None:
    assert "self.vllm_generation = VLLMGeneration(" in inspect.getsource(GRPOTrainer)
    source = inspect.getsource(VLLMGeneration)
    assert "self.llm = LLM(" in source
    assert "self._init_vllm()" in source


def test_private_names_are_in_the_seam_and_in_the_classes_that_override_them() -> None:
    """No other module of gtpo calls a private name of TRL's, or names one."""
    package = Path(gtpo.__file__).parent
    names = "|".join(re.findall(r"\b_\w+", trl_seam.OF_TRAINERS + trl_seam.OF_GRPO + trl_seam.OF_VLLM))
    private = re.compile(
        rf"[tT]rainer\._\w+|super\(\)\._[a-z]\w+|[\"']({names})[\"']|^ +_(?:name|paper|tag_names)\b", re.MULTILINE
    )
    for path in [*package.glob("trainer/*.py"), *package.glob("train/*.py"), package / "callbacks.py"]:
        if path.name not in ("trl_seam.py", "gtpo_trainer.py", "adapter_sync.py"):
            assert not private.findall(path.read_text()), path.name


def test_what_generate_does_to_logits_can_be_asked_for() -> None:
    parameters = inspect.signature(GenerationMixin._get_logits_processor).parameters
    assert {"generation_config", "input_ids_seq_length", "device"} <= parameters.keys()
    assert "generation_config" in inspect.signature(GenerationMixin._prepare_generation_config).parameters


def test_scored_log_probabilities_take_compute_entropy_and_return_three() -> None:
    method = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    names = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    assert list(inspect.signature(method).parameters)[:7] == names
    assert "return logps, entropies, aux_loss" in inspect.getsource(method)


def test_keys_of_a_scored_batch() -> None:
    keys = "prompt_ids prompt_mask completion_ids completion_mask advantages old_per_token_logps tool_mask"
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    for key in (*keys.split(), "importance_sampling_ratio", "sampling_per_token_logps"):
        assert f'"{key}"' in source, key


def test_helpers_that_are_called() -> None:
    assert list(inspect.signature(utils.maybe_gather_lm_head_ctx).parameters) == ["params"]
    assert list(inspect.signature(utils.pad).parameters)[:3] == ["tensors", "padding_value", "padding_side"]
    order = list(inspect.signature(utils.RepeatSampler).parameters)
    assert order == ["data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed"]


def test_sampled_completions_are_the_fourth_that_generate_returns() -> None:
    assert "return prompt_ids, completion_ids, tool_mask, completions, " in inspect.getsource(GRPOTrainer._generate)


def test_defaults_that_are_overridden_on_purpose() -> None:
    arguments = GRPOConfig(output_dir="unused", bf16=False, use_cpu=True, report_to="none")
    assert (arguments.loss_type, arguments.beta, arguments.scale_rewards) == ("dapo", 0.0, "group")
