"""One optimizer step of verl's actor on recorded rollouts: its gradient, saved for comparison.

Run by test_two_engines.py: verl_step.py FOLDER PRESET... The actor is verl's own TrainingWorker: two Ray workers, FSDP2
over gloo, two micro-batches each. Entropies and log-probabilities are those that it computes itself, as in a run.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from gtpo.integrations.verl.advantages import token_advantages
from gtpo.presets import PRESETS

WORKERS, MICRO_BATCH = 2, 4


class RecordingWorker(TrainingWorker):
    """verl's worker; notes the whole gradient of a step before verl clips it."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        super().__init__(config)
        step = self.engine.optimizer_step

        def recorded() -> Any:
            parameters = self.engine.module.named_parameters()
            self.noted = {name: p.grad.full_tensor() for name, p in parameters if p.grad is not None}
            return step()

        self.engine.optimizer_step = recorded

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gradient(self) -> dict[str, Tensor]:
        return self.noted


def actor(model: Path) -> Any:
    """Return the worker group, its model not yet loaded."""
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(model), use_remove_padding=False, override_config={"attn_implementation": "eager"}
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", dtype="float32", mixed_precision={"param_dtype": "fp32"}, use_torch_compile=False,
            use_dynamic_bsz=False, micro_batch_size_per_gpu=MICRO_BATCH, infer_micro_batch_size_per_gpu=MICRO_BATCH,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=1),
    )  # fmt: skip
    pool = RayResourcePool([WORKERS], use_gpu=False, max_colocate_count=1)
    worker = RayClassWithInitArgs(ray.remote(RecordingWorker), config=config)
    return RayWorkerGroup(pool, worker, device_name="cpu")


def nested(rows: list[list[int]] | list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def batch_of(rollouts: dict[str, list[Any]]) -> TensorDict:
    """Return the rollouts as verl's trainer hands them to its actor."""
    prompts, completions = rollouts["prompts"], rollouts["completions"]
    whole = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
    written = [[1] * len(row) for row in completions]
    data = TensorDict(
        {
            "prompts": nested(prompts),
            "responses": nested(completions),
            "input_ids": nested(whole),
            "position_ids": nested([list(range(len(row))) for row in whole]),
            "response_mask": nested(written),
            "loss_mask": nested([[0] * len(prompt) + row for prompt, row in zip(prompts, written, strict=True)]),
        },
        batch_size=len(whole),
    )
    tensordict_utils.assign_non_tensor(data, temperature=1.0, global_batch_size=len(whole))
    return data


def gradient(workers: Any, preset: str, rollouts: dict[str, Any]) -> dict[str, Tensor]:
    """Return the gradient of one step from the weights on disk."""
    workers.reset()
    objective = replace(PRESETS[preset], entropy_threshold=rollouts["entropy_threshold"])
    data = batch_of(rollouts)
    tensordict_utils.assign_non_tensor(data, calculate_entropy=True, compute_loss=False)
    output = workers.infer_batch(data).get()
    entropy, logps = (no_padding_2_padding(output[name], data).float() for name in ("entropy", "log_probs"))
    ids, mask = (data[name].to_padded_tensor(0) for name in ("responses", "response_mask"))
    rows, lengths = len(mask), mask.sum(dim=1).tolist()
    found = token_advantages(
        objective, ids, mask.bool(), torch.tensor(rollouts["rewards"]), entropy, list(map(str, rollouts["prompts"])),
        batch_rows=rows, token_logps=logps, initial_entropy=rollouts["initial_entropy"],
    )  # fmt: skip
    for name, table in {"advantages": found.advantages, "old_log_probs": logps}.items():
        data[name] = nested([row[:length] for row, length in zip(table, lengths, strict=True)])
    tensordict_utils.assign_non_tensor(data, calculate_entropy=False)
    settings = ActorConfig(
        strategy="fsdp2", rollout_n=rows // 2, ppo_mini_batch_size=rows, ppo_micro_batch_size_per_gpu=MICRO_BATCH,
        loss_agg_mode="seq-mean-token-mean", entropy_coeff=0,
    )  # fmt: skip
    workers.set_loss_fn(partial(ppo_loss, config=settings))
    workers.train_batch(data).get()
    whole: dict[str, Tensor] = workers.gradient()[0]
    return whole


def main() -> None:
    folder, *presets = sys.argv[1:]
    rollouts = json.loads((Path(folder) / "rollouts.json").read_text())
    ray.init(num_cpus=WORKERS, num_gpus=0, include_dashboard=False)
    workers = actor(Path(folder) / "model")
    assert workers.world_size == WORKERS
    for preset in presets:
        torch.save(gradient(workers, preset, rollouts), Path(folder) / f"{preset}-verl.pt")
    ray.shutdown()


if __name__ == "__main__":
    main()
