"""Prompts per round and optimizer steps, against what TRL and transformers make of the same config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_train_run import config_of as tiny_config

from gtpo.dry_run import optimizer_steps


def config_of(folder: Path, method: str = "gtpo", **training: Any) -> Any:
    given = {"num_generations": 8, "max_steps": -1, "max_prompt_length": 80} | training
    changes = {f"training.{name}": value for name, value in given.items()}
    return tiny_config(folder, method=method, **changes, **{"dataset.limit": None})


@pytest.mark.parametrize(
    ("batch", "accumulation", "rounds", "iterations", "rows", "epochs"),
    [(8, 1, None, 1, 20, 1), (16, 2, None, 1, 21, 1), (4, 2, None, 1, 9, 2), (8, 1, 2, 1, 9, 1), (8, 2, 1, 1, 9, 1),
     (16, 1, None, 2, 7, 1.5), (8, 3, None, 1, 10, 1), (4, 2, 4, 2, 11, 1)],
)  # fmt: skip
def test_steps_are_those_of_the_trainer(
    tmp_path: Path, batch: int, accumulation: int, rounds: int | None, iterations: int, rows: int, epochs: float
) -> None:
    from gtpo import GTPOTrainer
    from gtpo.inputs.dataset import TrainingProblems
    from gtpo.inputs.tiny import build_tiny_model
    from gtpo.rewards.data.problem import Problem
    from gtpo.train.resume import ExactCheckpoints
    from gtpo.train.session import trainer_arguments

    config = config_of(
        tmp_path,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=rounds,
        num_iterations=iterations,
        num_train_epochs=epochs,
    )
    from datasets import Dataset

    problems = [Problem(str(n), f"{n}+1", str(n + 1)) for n in range(rows)]
    data = Dataset.from_list(TrainingProblems(config, problems).select(None)[0])
    model, tokenizer = build_tiny_model(config.model.build, max_seq_length=96, seed=0)
    arguments = trainer_arguments(config, tmp_path / "checkpoints", "float32")
    assert arguments.generation_batch_size // arguments.num_generations == config.training.prompts_per_rollout(1)
    trainer = GTPOTrainer(
        model=model,
        args=arguments,
        reward_funcs=[lambda completions, **columns: [0.0] * len(completions)],
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.add_callback(ExactCheckpoints(trainer))
    loader = trainer.get_train_dataloader()
    _, _, _, _, _, _, steps = trainer.set_initial_training_values(arguments, loader)
    assert optimizer_steps(config, rows, 1) == steps


def test_sft_steps_and_max_steps(tmp_path: Path) -> None:
    config = config_of(tmp_path, method="sft", per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert optimizer_steps(config, 33, 1) == 5  # 9 micro-batches, two a step
    assert optimizer_steps(config, 33, 2) == 3
    assert optimizer_steps(config_of(tmp_path, max_steps=7), 1000, 1) == 7
