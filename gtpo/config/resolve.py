"""What follows from other keys: contradictions refused by name, idle keys named, open values filled in.

`resolve` is idempotent, so a run folder's config.yaml loads to itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

from gtpo.config.schema import DatasetSection, Optimizer, TrainConfig
from gtpo.presets import PRESETS
from rewards.data.problems import source_names
from rewards.support.errors import UserError, did_you_mean
from rewards.support.packages import installed

if TYPE_CHECKING:
    from gtpo.config.document import Document

LARGEST_8BIT_BETA = 0.9999
"""Above it an Adam moment moves by less than the resolution of block-wise 8-bit states, and updates are lost."""

_32_BIT: dict[str, Optimizer] = {
    "adamw_torch_8bit": "adamw_torch",
    "adamw_8bit": "adamw_torch",
    "adamw_bnb_8bit": "adamw_torch",
    "paged_adamw_8bit": "paged_adamw_32bit",
    "lion_8bit": "lion_32bit",
    "paged_lion_8bit": "paged_lion_32bit",
    "ademamix_8bit": "ademamix",
}

_TRL_GRPO_KNOWS = {"scale_rewards", "mask_truncated"}
"""Fields of Objective that TRL's own GRPO can vary."""

_IDLE_IN_SFT = (
    "training.num_generations",
    "training.steps_per_generation",
    "training.num_iterations",
    "training.temperature",
    "training.max_completion_length",
    "trainer.reward_funcs",
    "trainer.reward_weights",
    "rollout.",
    "model.gpu_memory_utilization",
)

_FAMILIES = {
    "gsm8k": "gsm8k",
    "openai/gsm8k": "gsm8k",
    "math": "math",
    "hendrycks_math": "math",
    "eleutherai/hendrycks_math": "math",
    "arithmetic": "arithmetic",
}
"""dataset.name in any case -> the family whose splits `rewards.data.problems.load_source` knows."""


def training_source(dataset: DatasetSection) -> str:
    """Return the name by which `load_source` knows a dataset section: `<family>_<split>`, or a file's path.

    Raises UserError for an unknown name or split, with the nearest one.
    """
    name = dataset.name
    if name.endswith((".jsonl", ".jsonl.gz", ".parquet")) or name in source_names():
        return name
    family = _FAMILIES.get(name.lower())
    if family is None:
        raise UserError(
            f'dataset.name "{name}" is not known.{did_you_mean(name, [*_FAMILIES, *source_names()])} '
            "Known: gsm8k, math (hendrycks_math), arithmetic, or a .jsonl or .parquet file"
        )
    source = f"{family}_{dataset.split}"
    if source not in source_names():
        splits = [known.removeprefix(f"{family}_") for known in source_names() if known.startswith(f"{family}_")]
        raise UserError(f'dataset.split "{dataset.split}": {name} has the splits {", ".join(splits)}')
    return source


class _Resolver:
    """One resolution: the config, where its keys stand, what was set explicitly, whom to tell."""

    def __init__(
        self, config: TrainConfig, document: Document, set_apart: frozenset[str], say: Callable[[str], None]
    ) -> None:
        self.config = config.model_copy(deep=True)
        self.document, self.set_apart, self.say = document, set_apart, say

    def at(self, dotted: str) -> str:
        place = self.document.place(tuple(dotted.split(".")))
        return f"{place}: " if place else ""

    def refuse(self, dotted: str, message: str) -> NoReturn:
        raise UserError(f"{self.at(dotted)}{dotted} {message}")

    def idle(self, keys: Sequence[str], why: str) -> None:
        if keys:
            self.say(f"no effect {why}: {', '.join(keys)}")

    def env(self) -> None:
        """The shell's choice of devices is nearer to the run than the file's; a flag is nearer than both."""
        file, shell = self.config.env.CUDA_VISIBLE_DEVICES, os.environ.get("CUDA_VISIBLE_DEVICES")
        place = self.document.place(("env", "CUDA_VISIBLE_DEVICES"))
        if file is not None and shell is not None and file != shell and not place.startswith("--"):
            self.say(
                f"{place}: CUDA_VISIBLE_DEVICES={shell} of the environment wins over the file's {file} (--cuda wins)"
            )
            self.config.env.CUDA_VISIBLE_DEVICES = None

    def model(self) -> None:
        model = self.config.model
        if model.model_name and model.build:
            self.refuse("model.model_name", "and model.build exclude each other: load a model or build one")
        if not model.model_name and not model.build:
            self.refuse("model", "needs model_name (a Hub name, a folder or a train run) or build")
        if model.build and model.build.hidden_size % model.build.num_attention_heads:
            heads, width = model.build.num_attention_heads, model.build.hidden_size
            self.refuse("model.build.num_attention_heads", f"{heads} does not divide hidden_size {width}")
        if model.load_in_4bit and not model.lora_rank:
            self.refuse("model.load_in_4bit", "needs lora_rank > 0: 4-bit weights are frozen, adapters are what trains")
        if model.lora_rank:
            model.lora_alpha = model.lora_alpha or model.lora_rank
        else:
            self.idle(
                [key for key in ("model.lora_alpha", "model.target_modules") if key in self.set_apart],
                "without adapters (model.lora_rank 0)",
            )

    def dataset(self) -> None:
        dataset = self.config.dataset
        try:
            source = training_source(dataset)
        except UserError as fault:
            raise UserError(f"{self.at('dataset.name')}{fault}") from None
        if source.startswith(("gsm8k", "arithmetic")):
            # The published file lists MATH's subjects; `--dataset-name gsm8k` leaves them standing there.
            if dataset.subsets == ["main"]:
                dataset.subset = "main"
            elif dataset.subsets:
                self.idle(["dataset.subsets"], f"on dataset {dataset.name} (they are MATH's subjects)")
            dataset.subsets = []
            if dataset.subset not in (None, "main"):
                self.refuse("dataset.subset", f'"{dataset.subset}" is not known; {dataset.name} has only main')
        elif dataset.subset == "main":
            self.idle(["dataset.subset"], f"on dataset {dataset.name} (main is GSM8K's)")
            dataset.subset = None
        elif dataset.subset:
            if dataset.subsets not in ([], [dataset.subset]):
                self.refuse("dataset.subset", f'"{dataset.subset}" and dataset.subsets are both set; drop one')
            dataset.subsets, dataset.subset = [dataset.subset], None

    def lengths(self) -> None:
        model, training = self.config.model, self.config.training
        room = model.max_seq_length - training.max_prompt_length
        if self.config.method == "sft":
            return
        if training.max_completion_length is None:
            if room < 1:
                self.refuse(
                    "training.max_prompt_length",
                    f"{training.max_prompt_length} leaves no room for a completion in model.max_seq_length "
                    f"{model.max_seq_length}",
                )
            training.max_completion_length = room
        elif training.max_completion_length > room:
            self.refuse(
                "training.max_completion_length",
                f"{training.max_completion_length} + max_prompt_length {training.max_prompt_length} exceeds "
                f"model.max_seq_length {model.max_seq_length}",
            )

    def optimizer(self) -> None:
        training = self.config.training
        beta = max(training.adam_beta1, training.adam_beta2)
        wide = _32_BIT.get(training.optimizer)
        if wide and beta > LARGEST_8BIT_BETA:
            self.say(
                f"{self.at('training.optimizer')}training.optimizer {training.optimizer} -> {wide}: with an Adam beta "
                f"of {beta} (> {LARGEST_8BIT_BETA}) 8-bit states would round the updates away"
            )
            training.optimizer = wide
        model = self.config.model
        if beta > LARGEST_8BIT_BETA and not model.lora_rank and model.dtype in ("bfloat16", "float16"):
            self.say(
                f"{self.at('model.dtype')}model.dtype {model.dtype} -> float32: optimiser states have the dtype of the "
                f"weights they train, and with an Adam beta of {beta} 16-bit states would round the updates away"
            )
            model.dtype = "float32"
        if training.optimizer in ("adafactor", "sgd"):
            betas = [key for key in ("training.adam_beta1", "training.adam_beta2") if key in self.set_apart]
            self.idle(betas, f"with optimizer {training.optimizer}")

    def objective(self) -> None:
        config, changes = self.config, self.config.objective.changes()
        if config.method == "sft":
            for key in (["preset"] if config.objective.preset else []) + list(changes):
                self.refuse(f"objective.{key}", "contradicts method sft: supervised fine-tuning has no RL objective")
            return
        if config.method == "grpo":
            if config.preset_name() != "grpo":
                self.refuse(
                    "objective.preset",
                    f'"{config.objective.preset}" contradicts method grpo, which is TRL\'s own GRPO; '
                    "set method: gtpo to train with this preset",
                )
            plain = asdict(PRESETS["grpo"])
            for key, value in changes.items():
                if value != plain[key] and key not in _TRL_GRPO_KNOWS:
                    self.refuse(
                        f"objective.{key}",
                        f"{value} contradicts method grpo, which is TRL's own GRPO and has no such switch; "
                        "method: gtpo with objective.preset grpo or grpo-filtered has it",
                    )
        try:
            objective = config.resolved_objective()
        except ValueError as fault:
            raise UserError(f"{self.at('objective')}objective: {fault}") from None
        self.config = config.with_objective(objective)

    def method(self) -> None:
        config = self.config
        if config.training.beta > 0 and config.method != "grpo":
            why = "GTPO has no reference model and no KL term" if config.method == "gtpo" else "SFT has no KL term"
            self.refuse(
                "training.beta", f"{config.training.beta} contradicts method {config.method}: {why}; set it to 0"
            )
        if config.method == "sft":
            keys = [key for key in sorted(self.set_apart) if key.startswith(_IDLE_IN_SFT)]
            self.idle(keys, "with method sft")
            return
        self.idle([key for key in ("dataset.malformed_targets",) if key in self.set_apart], "without SFT targets")
        if config.training.num_generations < 2:
            self.refuse(
                "training.num_generations",
                f"{config.training.num_generations}: a group of one has no advantage to learn from; at least 2",
            )
        weights, functions = config.trainer.reward_weights, config.trainer.reward_funcs
        if not functions:
            self.refuse("trainer.reward_funcs", "is empty; at least one reward function is needed")
        if weights is not None and len(weights) != len(functions):
            self.refuse("trainer.reward_weights", f"has {len(weights)} values for {len(functions)} reward functions")
        if config.rollout.engine != "vllm_server":
            keys = [key for key in ("rollout.server_host", "rollout.server_port") if key in self.set_apart]
            self.idle(keys, f"with rollout.engine {config.rollout.engine}")

    def batch(self, world_size: int) -> None:
        """Make every round of sampling hold complete groups, by the published rule: raise the batch to G."""
        if self.config.method == "sft":
            return
        training = self.config.training
        group, batch = training.num_generations, training.per_device_train_batch_size
        rounds = training.steps_per_generation or training.gradient_accumulation_steps
        if (batch * rounds * world_size) % group == 0:
            return
        training.per_device_train_batch_size = group
        key, size = "training.per_device_train_batch_size", _divisor(group, batch)
        self.say(
            f"{self.at(key)}{key} {batch} -> {group}: {batch} x {rounds} micro-batch(es) x {world_size} process(es) "
            f"hold no complete groups of {group}; now {rounds * world_size} prompt(s) a round as in the published runs "
            f"(the same gradient in less memory: batch {size}, gradient_accumulation_steps {group // size * rounds})"
        )

    def trackers(self) -> None:
        missing = [name for name in self.config.training.report_to if not installed(name)]
        for name in missing:
            self.say(
                f"{self.at('training.report_to')}training.report_to {name}: not installed here, so this run is not "
                f"reported to it (pip install {name}); metrics.jsonl has everything"
            )
        self.config.training.report_to = [name for name in self.config.training.report_to if name not in missing]


def _divisor(group: int, batch: int) -> int:
    """Return the largest divisor of the group size that is at most the batch."""
    return max(size for size in range(1, min(batch, group) + 1) if group % size == 0)


def resolve(
    config: TrainConfig,
    document: Document,
    set_apart: frozenset[str],
    say: Callable[[str], None],
    world_size: int | None = None,
) -> TrainConfig:
    """Return the resolved copy of a valid config. Raises UserError naming the keys that contradict each other.

    set_apart: the keys that were set to something other than their default.
    """
    resolver = _Resolver(config, document, set_apart, say)
    resolver.env()
    resolver.model()
    resolver.dataset()
    resolver.lengths()
    resolver.optimizer()
    resolver.method()
    resolver.objective()
    resolver.batch(world_size or int(os.environ.get("WORLD_SIZE", "1")))
    resolver.trackers()
    return resolver.config
