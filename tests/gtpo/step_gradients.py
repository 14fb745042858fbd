"""One optimizer step of GTPOTrainer on fixed rollouts: its gradient, saved for comparison.

Run by test_gradients.py, in its own process or under torchrun: step_gradients.py FOLDER WORLD_SIZE
PRESET:BATCH:ACCUMULATION... Two processes then shard a head, too. Run by test_launch.py under `accelerate launch`:
step_gradients.py FOLDER sharded PRESET BATCH, which saves the weights after the step, whole. The optimizer is plain SGD
at STEP, so that the gradient can be read off the weights whoever holds them: (before - after) / STEP.
"""

from __future__ import annotations

import functools
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import TrainerCallback

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.config import BuiltModel
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.inputs.tiny import build_tiny_model
from gtpo.objective import PRESETS, reference_loss
from gtpo.train.environment import end_process
from gtpo.trainer.policy_head import LMHead, add_policy_head

GROUP = 8
PROMPTS = ["1 + 2", "30 - 4"]
INITIAL_ENTROPY = 0.5
STEP = 1e3
"""So large that the old weights are rounding errors beside the update."""


def fixed_completion(prompt: str, index: int, vocabulary: int, eos: int) -> list[int]:
    """Return a completion that depends on nothing but its place: a shared start and end, a ragged middle."""
    generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()) + index)
    middle = torch.randint(10, vocabulary, (1 + 2 * index,), generator=generator).tolist()
    return [11, 12, *middle, 13, eos]


def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Return a reward that differs within a group."""
    return [float(len(ids) % 5 + ids[2] % 3) for ids in completion_ids]


def tiny_model(**settings: Any) -> tuple[Any, Any]:
    """Return a model of wide logits, the same at each call, and its tokenizer."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    spec = BuiltModel(**sizes, initializer_range=0.5, **settings)
    return build_tiny_model(spec, max_seq_length=64, seed=1)


def group(
    prompt: str, dtype: torch.dtype = torch.float32, trained: Any = None
) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the model, its logits for the group's completions [G, L, V], their ids and mask [G, L].

    trained: the model, where it is no longer the untrained one.
    """
    model, tokenizer = tiny_model()
    model = trained or model.to(dtype)
    rows = [fixed_completion(prompt, place, len(tokenizer), tokenizer.eos_token_id) for place in range(GROUP)]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    start = torch.tensor(tokenizer(prompt)["input_ids"]).expand(GROUP, -1)
    whole = torch.cat([torch.ones_like(start), mask], dim=1)
    logits = model(input_ids=torch.cat([start, ids], dim=1), attention_mask=whole).logits
    return model, logits[:, start.shape[1] - 1 : -1], ids, mask


@functools.cache
def dropping_half() -> dict[str, float]:
    """Return the objective's change: a threshold between the entropies of this model's completions."""
    _, logits, ids, mask = group(PROMPTS[0])
    found = reference_loss(PRESETS["grpo"], logits, ids, mask, torch.zeros(GROUP), GROUP).entropy.sort().values
    return {"entropy_threshold": float(found[GROUP // 2 - 1 : GROUP // 2 + 1].mean())}


def record(folder: Path) -> None:
    """Write the model and the rollouts of both prompts for what cannot import this: another engine's environment."""
    model, tokenizer = tiny_model()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    prompts = [prompt for prompt in PROMPTS for _ in range(GROUP)]
    completions = [
        fixed_completion(prompt, place % GROUP, len(tokenizer), tokenizer.eos_token_id)
        for place, prompt in enumerate(prompts)
    ]
    rollouts = {
        "prompts": tokenizer(prompts)["input_ids"],
        "completions": completions,
        "rewards": reward([], completions),
        "initial_entropy": INITIAL_ENTROPY,
        **dropping_half(),
    }
    (folder / "rollouts.json").write_text(json.dumps(rollouts))


class Gradients(TrainerCallback):
    """Keeps the gradients of the last step."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.found = {
            name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
        }


def step_gradients(
    out: Path,
    preset: str,
    batch: int,
    accumulation: int,
    *,
    weights: Path | None = None,
    loss: Any = None,
    **settings: Any,
) -> dict[str, torch.Tensor]:
    """Return the gradient of the last step and save it to `out`; or save the weights after it to `weights`.

    loss: a function in the place of the objective's own.
    """
    model, tokenizer = tiny_model()

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        first = trainer.accelerator.process_index * len(prompts)
        completions = [
            fixed_completion(prompt, (first + place) % GROUP, len(tokenizer), tokenizer.eos_token_id)
            for place, prompt in enumerate(prompts)
        ]
        return {"prompt_ids": tokenizer(prompts)["input_ids"], "completion_ids": completions, "logprobs": None}

    settings = {"max_steps": 1} | settings
    arguments = GTPOConfig(
        output_dir=str(out.parent / "ignored"),
        preset=preset,
        initial_entropy=INITIAL_ENTROPY,
        objective=dropping_half(),
        num_generations=GROUP,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        max_grad_norm=0.0,
        max_completion_length=32,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        seed=3,
        shuffle_dataset=False,
        **settings,
    )
    gradients = Gradients()
    trainer = GTPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        rollout_func=rollouts,
        callbacks=[gradients],
        loss=loss,
    )
    trainer.train()
    if weights is not None:
        trainer.save_model(str(weights))
    elif trainer.accelerator.is_main_process:
        torch.save(gradients.found, out)
    return gradients.found


def sharded_heads() -> None:
    """Shard a model by FSDP2 over two processes; print how far its loss and gradients are from the whole one's."""
    assert torch.distributed.get_world_size() == 2
    mesh = init_device_mesh("cpu", (2,))
    ids = torch.randint(10, 200, (4, 12), generator=torch.Generator().manual_seed(5))

    def loss(hidden: torch.Tensor, head: LMHead) -> torch.Tensor:
        return fused_linear_gtpo_loss(
            PRESETS["gtpo-eq7" if frozen else "gtpo-no-filter"],
            hidden[:, :-1],
            head.lm_head,
            ids[:, 1:],
            torch.ones_like(ids[:, 1:]),
            torch.tensor([1.0, 2.0, 3.0, 5.0]),
            4,
            initial_entropy=1.0,
        ).loss

    for tied, frozen in ((True, False), (False, False), (False, True)):  # the head is needed again in the backward
        model, _ = tiny_model(tie_word_embeddings=tied)
        model.lm_head.weight.requires_grad_(not frozen)
        add_policy_head(model)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "of_hidden": loss}
        whole = model(**inputs).value
        whole.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        if not tied:  # a head with a group of its own is still sharded when the loss asks for it
            fully_shard(model.lm_head, mesh=mesh)
        fully_shard(model, mesh=mesh)
        sharded = model(**inputs).value
        sharded.backward()
        gap = max(
            float((p.grad.full_tensor() - expected[name]).abs().max())  # type: ignore[union-attr]
            for name, p in model.named_parameters()
            if p.grad is not None
        )
        size = max(float(gradient.abs().max()) for gradient in expected.values())
        if torch.distributed.get_rank() == 0:
            print(f"tied={tied} frozen={frozen} loss={abs(float(sharded - whole)):.2e} gradient={gap / size:.2e}")


if __name__ == "__main__":
    folder, world, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    if world == "sharded":
        from launched_on_cpu import shard_on_cpu

        shard_on_cpu()
        preset, rows = cases
        step_gradients(
            Path(folder) / "ignored.pt", preset, int(rows), 1,
            weights=Path(folder) / "after", optim="sgd", learning_rate=STEP, lr_scheduler_type="constant",
        )  # fmt: skip
        torch.distributed.destroy_process_group()
        end_process()
    for case in cases:
        name, rows, steps = case.split(":")
        step_gradients(Path(folder) / f"{name}.pt", name, int(rows), int(steps))
    from accelerate import PartialState

    assert PartialState().num_processes == int(world), "torchrun did not start the processes it was asked for"
    if PartialState().is_main_process:
        record(Path(folder))
    if int(world) > 1:
        sharded_heads()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    end_process()
