"""The trainer's calibration: H_ini of real rollouts against a float64 brute force, and its reuse on resume."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from logs import logged
from step_gradients import fixed_completion, reward, tiny_model
from test_trainer import arguments
from transformers import TrainerState

from gtpo import GTPOTrainer
from gtpo.entropy import describe_gate
from gtpo.objective import PRESETS
from gtpo.trainer import group_statistics
from gtpo.trainer.checks import OtherPolicy
from gtpo.trainer.group_statistics import padded_batch

PROMPTS = ["1 + 2", "30 - 4", "7", "8 - 5 - 1", "2 + 2"]
ROWS = [{"prompt": prompt} for prompt in PROMPTS]


def trainer_at(folder: Path, model: Any, tokenizer: Any, asked: list[str], **settings: Any) -> GTPOTrainer:
    """Return a trainer whose completions are fixed; `asked` collects the prompts that it sampled for."""

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        asked.extend(prompts)
        completions = [
            fixed_completion(prompt, PROMPTS.index(prompt), len(tokenizer), tokenizer.eos_token_id)
            for prompt in prompts
        ]
        return {"prompt_ids": tokenizer(prompts)["input_ids"], "completion_ids": completions, "logprobs": None}

    sizes = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 32}
    args = arguments(folder, **sizes, **settings, gradient_checkpointing=False)
    return GTPOTrainer(
        model=model, reward_funcs=reward, args=args, processing_class=tokenizer, rollout_func=rollouts,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
    )  # fmt: skip


def brute_force(model: Any, tokenizer: Any) -> list[float]:
    """<H>_i of each prompt's completion, one row at a time, without padding, its softmax in float64."""
    found = []
    for index, prompt in enumerate(PROMPTS):
        start = tokenizer(prompt)["input_ids"]
        completion = fixed_completion(prompt, index, len(tokenizer), tokenizer.eos_token_id)
        with torch.no_grad():
            logits = model(torch.tensor([start + completion])).logits[0].double()
        log_p = logits[len(start) - 1 : -1].log_softmax(-1)
        assert len(log_p) == len(completion), "every token counts, the EOS included"
        found.append(-(log_p.exp() * log_p).sum(-1).mean().item())
    return found


def test_measured_once_and_reused_by_a_resumed_run(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    asked: list[str] = []
    first = trainer_at(tmp_path, model, tokenizer, asked)
    sizes: list[int] = []  # of the batches whose entropies are computed
    first.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["input_ids"])) if "of_hidden" in kwargs else None,
        with_kwargs=True,
    )
    state = torch.get_rng_state()
    with logged(logging.INFO) as lines:
        first.gate.ensure()
    assert torch.equal(torch.get_rng_state(), state), "the calibration leaves the run's random numbers as they were"
    assert asked == PROMPTS, "one completion for each sample, in the dataset's order"
    assert sizes == [2, 2, 1], "a training batch at a time"
    expected = brute_force(model, tokenizer)
    assert first.gate.calibration is not None
    assert first.gate.calibration.initial_entropy == pytest.approx(sum(expected) / 5, abs=1e-5)
    assert first.gate.calibration.samples == 5
    told = "\n".join(lines)
    assert told == "measuring H_ini on the untrained policy: sampling 5 completions"
    assert "H_ini of 5 samples, all there are; the paper takes 100" in describe_gate(
        first.objective, first.gate.calibration
    )
    assert not first.gate.active()

    again = trainer_at(tmp_path, model, tokenizer, asked)
    with logged(logging.WARNING) as lines:
        again.gate.on_train_begin(again.args, TrainerState(global_step=3), again.control)
    assert lines == ["checkpoint-3 has no H_ini; it is measured on the policy as it is now"]


def test_nothing_is_measured_where_nothing_depends_on_it(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    asked: list[str] = []
    trainer_at(tmp_path, model, tokenizer, asked, preset="gtpo-no-filter").gate.ensure()
    given = trainer_at(tmp_path, model, tokenizer, asked, initial_entropy=0.42)
    given.gate.ensure()
    assert asked == []
    assert given.gate.active()
    assert given.objective == PRESETS["gtpo"]


def test_the_trainers_own_model_samples_so_many_tokens_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_model()
    gate = trainer_at(tmp_path, model, tokenizer, [], gradient_accumulation_steps=2).gate
    tokens = len(tokenizer("8 - 5 - 1")["input_ids"]) + 32
    monkeypatch.setattr(group_statistics, "TOKENS", 70 * tokens)
    assert gate.sampled_at_once(ROWS) == 70
    monkeypatch.setattr(group_statistics, "TOKENS", tokens)
    assert gate.sampled_at_once(ROWS) == 4, "what a step samples"


def test_a_resumed_run_takes_what_its_checkpoint_has(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}
    model, tokenizer = tiny_model()
    asked: list[str] = []
    first = trainer_at(tmp_path, model, tokenizer, asked, max_steps=1, **settings)
    first.train()
    assert asked[:5] == PROMPTS

    asked.clear()
    resumed = trainer_at(tmp_path, model, tokenizer, asked, max_steps=2, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2
    assert resumed.gate.calibration == first.gate.calibration
    assert asked[:5] != PROMPTS


def test_h_ini_is_of_the_tokens_that_the_policy_wrote(tmp_path: Path) -> None:
    """An environment's tokens are in the completion and not in the loss: neither are they in H_ini."""
    model, tokenizer = tiny_model()
    trainer = trainer_at(tmp_path, model, tokenizer, [])
    whole = trainer.gate._completion_entropies(ROWS[:2])
    plain = trainer.rollout_func

    def entropies(*own: int, beyond: int = 0) -> torch.Tensor:
        def rollouts(prompts: Any, trainer: Any) -> Any:
            found = plain(prompts, trainer)
            masks = [[one, *[0] * (len(ids) - 1)] for one, ids in zip(own, found["completion_ids"], strict=True)]
            texts = [[ids[0] + beyond, *ids[1:]] for ids in found["completion_ids"]]
            return found | {"completion_ids": texts, "env_mask": masks}

        trainer.rollout_func = rollouts
        return trainer.gate._completion_entropies(ROWS[:2])

    first = entropies(1, 1)
    assert not torch.allclose(first, whole)
    # A completion without a token of the policy's does not move the mean.
    assert entropies(0, 1).tolist() == pytest.approx([float(first[1])] * 2)
    with pytest.raises(OtherPolicy, match=r"of a text has id 9\d+, and the embedding has"):
        entropies(1, 1, beyond=90_000)
    tokenizer.add_special_tokens({"pad_token": "<|new|>"})
    with pytest.raises(OtherPolicy, match="of the padding has id"):
        trainer.sampler.embedded([[0]])
    outputs = plain(PROMPTS[:2], trainer)
    for value, prompt, completion in zip(first, outputs["prompt_ids"], outputs["completion_ids"], strict=True):
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1].log_softmax(-1)
        assert float(value) == pytest.approx(float(-(logits.exp() * logits).sum()), abs=1e-5)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_completion_of_an_environment_alone_is_in_no_mean(steps: int, tmp_path: Path) -> None:
    """The gate drops what the policy wrote, and `entropy/mean` is of it; steps: that share a round."""
    model, tokenizer = tiny_model()
    settings: dict[str, Any] = {"objective": {"filter": "always", "entropy_threshold": 1e-6}, "logging_steps": 1}
    trainer = trainer_at(tmp_path, model, tokenizer, [], max_steps=1, num_iterations=steps, **settings)
    plain = trainer.rollout_func

    def rollouts(prompts: Any, trainer: Any) -> Any:
        found = plain(prompts, trainer)
        masks = [[int(row % 2 == 0)] * len(ids) for row, ids in enumerate(found["completion_ids"])]
        return found | {"env_mask": masks}

    trainer.rollout_func = rollouts
    trainer.train()
    log, rollout = trainer.state.log_history[0], trainer.groups.rollouts["train"]
    assert rollout["entropy"].isnan().tolist() == [False, True]
    assert log["entropy/mean"] == pytest.approx(float(rollout["entropy"][0]))
    assert log["entropy/mean"] == pytest.approx(log["entropy"], abs=1e-6)
    assert log["gate/kept"] == 0


def test_another_policy_that_samples_is_found_before_h_ini_is_taken_from_it(tmp_path: Path) -> None:
    """Log-probabilities come with the completions, as vLLM's do: those of the same policy, then of another."""
    model, tokenizer = tiny_model()
    trainer = trainer_at(tmp_path, model, tokenizer, [])
    plain, told = trainer.rollout_func, list[torch.Tensor]()

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        found = plain(prompts, trainer)
        batch = padded_batch(trainer, found["prompt_ids"], found["completion_ids"])
        logps = trainer.logps_of(batch) + sum(told)
        return found | {
            "logprobs": [row[: len(ids)].tolist() for row, ids in zip(logps, found["completion_ids"], strict=True)]
        }

    trainer.rollout_func = rollouts
    trainer.gate.ensure()
    trainer.gate.calibration = None
    told.append(torch.tensor(0.01))
    with pytest.raises(
        OtherPolicy, match=r"step 1: .* they differ by 0\.01 nats per token over .* the tolerance is 0\.001"
    ):
        trainer.gate.ensure()
    assert trainer.gate.calibration is None
