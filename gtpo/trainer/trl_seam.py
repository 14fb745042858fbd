"""TRL's and transformers' private names, all of them in this file: what is wrapped, read, set and replaced.

A part (`gtpo.callbacks`) and GTPOTrainer ask `seam_of(trainer)`, which has names of ours. `Seam.around` lets a function
stand for a method of one trainer, whatever its class. TRL 1.15 and 1.16 agree in every one of these names, so that one
file serves both; `check_version` refuses another minor. tests/gtpo/test_trl_contract.py compares METHODS and FIELDS
with the release that is installed.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer
from trl.trainer import utils as trl_utils

from gtpo.common.errors import UserError

MINORS = ("1.15", "1.16")
"""The releases of TRL whose private names these are."""

METHODS: dict[str, tuple[str, list[str]]] = {
    "output_folder": ("_get_output_dir", ["trial"]),
    "save": ("_save_checkpoint", ["model", "trial"]),
    "load_state": ("_load_optimizer_and_scheduler", ["checkpoint"]),
    "load_weights": ("_load_from_checkpoint", ["resume_from_checkpoint", "model"]),
    "epoch": ("_run_epoch", []),
    "order": ("_get_train_sampler", []),
    "training_step": ("training_step", []),
    "compute_loss": ("compute_loss", []),
    "loss": ("_compute_loss", ["model", "inputs"]),
    "round": ("_generate_and_score_completions", ["inputs"]),
    "generate": ("_generate", ["prompts"]),
    "rewards": ("_calculate_rewards", ["inputs", "prompts", "completions", "completion_ids_list"]),
    "statistics": ("_get_per_token_logps_and_entropies", []),
}
"""Our name of a method that is wrapped or called -> TRL's, and its parameters where they are relied upon."""

SAMPLED = ("loss", "round", "generate", "rewards", "statistics")
"""Methods that a GRPOTrainer alone has."""

FIELDS = (
    *("_total_train_tokens", "_metrics", "_tr_loss", "_globalstep_last_logged"),
    *("_step", "_buffered_inputs", "_last_loaded_step", "_tokenizer"),
)
"""Private fields that are read and set; from `_step` on a GRPOTrainer's alone."""

Part = TypeVar("Part")


def check_version(found: str) -> None:
    """Raise UserError where the private names of a release of TRL are not known."""
    if ".".join(found.split(".")[:2]) not in MINORS:
        beyond = re.sub("[0-9]+$", lambda minor: str(int(minor[0]) + 1), MINORS[-1])
        raise UserError(
            f"gtpo knows the private methods of TRL {' and '.join(MINORS)}, found {found}: "
            f"pip install 'trl>={MINORS[0]},<{beyond}'"
        )


check_version(version("trl"))


class _Field:
    """A field of the trainer under a name of the seam's."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, seam: Seam, kind: type | None = None) -> Any:
        return getattr(seam.trainer, self.name)

    def __set__(self, seam: Seam, value: Any) -> None:
        setattr(seam.trainer, self.name, value)


class Sampled(NamedTuple):
    """One completion per prompt."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    completions: list[Any]
    """As reward functions get them: text, or messages."""


class Seam:
    """A trainer of any method under names of ours; of what only sampling has, nothing."""

    samples = False
    tokens_seen: Any = _Field("_total_train_tokens")
    """Tokens that were trained on, as TRL's `num_tokens` counts them (sft)."""
    micro_step: Any = 0
    """Micro-batches so far, of one process."""
    round_inputs: Any = None
    """The micro-batches of the round of sampling in use."""
    reference_model: Any = None
    """TRL's reference of its KL term, where it holds one as a separate model."""
    temperature: Any = 1.0
    """Of the sampling; 1 where nothing is sampled."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def around(self, name: str, wrapper: Callable[..., Any]) -> None:
        """Let `wrapper(plain, ...)` stand for a method of METHODS; `plain` is the method as it was."""
        method = METHODS[name][0]
        setattr(self.trainer, method, functools.partial(wrapper, getattr(self.trainer, method)))

    @property
    def mode(self) -> str:
        """`train` or `eval`."""
        return "train" if self.trainer.model is not None and self.trainer.model.training else "eval"

    def mid_round(self) -> bool:
        """Return whether a round of sampling still feeds later steps."""
        return False

    def forget_round(self) -> None:
        """Sample again before the next step, also within a round, with the current weights."""

    def load_weights(self, folder: str) -> None:
        """Put the weights of a folder into the trainer's model."""
        self.trainer._load_from_checkpoint(folder, self.trainer.model)

    # -- metrics -------------------------------------------------------------------------------------------------------

    def log(self, name: str, value: float) -> None:
        """Let the next line of the log have `value` in its mean of `name`."""
        self.trainer._metrics[self.mode][name].append(value)

    def logged(self, name: str) -> float:
        """Return what was logged last under a name."""
        return float(self.trainer._metrics[self.mode][name][-1])

    def open_window(self) -> dict[str, Any] | None:
        """Return what a process has gathered since the last line of the log; None at a line."""
        trainer = self.trainer
        if trainer._globalstep_last_logged >= trainer.state.global_step:
            return None
        return {
            "last_logged": trainer._globalstep_last_logged,
            "loss": trainer._tr_loss.cpu(),
            "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        }

    def reopen_window(self, window: dict[str, Any]) -> None:
        """Go on gathering where `open_window` was. After the trainer has set its counters to 0."""
        trainer = self.trainer
        trainer._globalstep_last_logged = window["last_logged"]
        trainer._tr_loss += window["loss"].to(trainer._tr_loss.device)
        for name, values in window["metrics"].items():
            trainer._metrics["train"][name] = values


class SampledSeam(Seam):
    """A GRPOTrainer, GTPOTrainer among them."""

    samples = True

    micro_step = _Field("_step")
    round_inputs = _Field("_buffered_inputs")
    reference_model = _Field("ref_model")
    temperature = _Field("temperature")
    tokenizer = _Field("_tokenizer")
    """The tokenizer, also where the processing class is a processor around it."""

    @property
    def group_size(self) -> int:
        """Completions per prompt, of the mode that the model is in."""
        trainer = self.trainer
        return int(trainer.num_generations if self.mode == "train" else trainer.num_generations_eval)

    def mid_round(self) -> bool:
        """Return whether a round of sampling still feeds later steps."""
        args = self.trainer.args
        return bool(self.micro_step % (args.steps_per_generation * args.num_iterations))

    def forget_round(self) -> None:
        """Sample again before the next step, also within a round, with the current weights."""
        self.round_inputs = None
        self.trainer._last_loaded_step = -1  # vLLM takes the weights again

    def sample(self, prompts: Sequence[Any]) -> Sampled:
        """Return a completion for each prompt of this process. All processes call it."""
        generated = self.trainer._generate(list(prompts))
        return Sampled(generated[0], generated[1], generated[3])

    @contextmanager
    def aside(self, seed: int) -> Iterator[None]:
        """Let `sample` draw from its own random stream.

        Random numbers, metrics and counters of the training are afterwards what they were.
        """
        trainer = self.trainer
        generations, seen, metrics = trainer.num_generations, trainer.state.num_input_tokens_seen, trainer._metrics
        trainer.num_generations, trainer._metrics = 1, {**metrics, "train": defaultdict(list)}
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed + trainer.accelerator.process_index)
                yield
        finally:
            trainer.num_generations, trainer._metrics = generations, metrics
            trainer.state.num_input_tokens_seen = seen


def seam_of(trainer: Any) -> Any:
    """Return a trainer's seam: a SampledSeam for a GRPOTrainer, else a Seam."""
    return SampledSeam(trainer) if isinstance(trainer, GRPOTrainer) else Seam(trainer)


def part_of(trainer: Any, kind: type[Part]) -> Part | None:
    """Return the part of a class that a trainer has, or None."""
    return next((part for part in trainer.callback_handler.callbacks if isinstance(part, kind)), None)


_PAPER = {
    "title": "GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control",
    "id": "2508.03772",
    "citation": """\
@article{simoni2025gtpo,
    title        = {{GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control}},
    author       = {Marco Simoni and Aleksandar Fontana and Giulio Rossolini and Andrea Saracino and Paolo Mori},
    year         = 2025,
    eprint       = {arXiv:2508.03772},
}""",
}


class OwnLossTrainer(GRPOTrainer, ABC):
    """GRPOTrainer whose loss is that of a subclass, and whose model card cites GTPO, and GRPO, which it extends."""

    _tag_names = ["trl", "gtpo"]  # noqa: RUF012  # TRL declares it so
    _name = "GTPO"
    _paper = _PAPER | {"citation": f"{_PAPER['citation']}\n\n{GRPOTrainer._paper['citation']}"}

    @abstractmethod
    def policy_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the loss (a scalar) of a micro-batch."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        return self.policy_loss(model, inputs)


class OwnEngine(vllm_generation.VLLMGeneration):
    """VLLMGeneration whose engine and synchronisation a subclass may take over."""

    def start(self) -> None:
        """Start the engine, or connect to the server."""
        super()._init_vllm()

    def _init_vllm(self) -> None:
        self.start()

    def is_fsdp_1(self) -> bool:
        """Return whether the weights are sharded by FSDP 1."""
        return bool(self._dist.is_fsdp and self._dist.fsdp_version == 1)

    def whole(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        """Let ZeRO-3's partitions of the parameters be whole inside."""
        gathered: AbstractContextManager[Any] = self._dist.gather_params(parameters)
        return gathered


def round_nothing_in_fsdp2(accelerator: Any) -> None:
    """Let FSDP2 leave what the model's forward returns as it is, and sum gradients over ranks in float32.

    Before the model is wrapped. accelerate has it round both to the type of the products, bfloat16 on a GPU: the loss,
    and the log-probabilities and entropies that the gate, the ratios and H_ini are made of.
    """
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and plugin.fsdp_version == 2:
        plugin.mixed_precision_policy = replace(policy, output_dtype=None, reduce_dtype=torch.float32)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Let a module's name mean something else inside."""
    plain = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, plain)


def scoring_labels_alone() -> AbstractContextManager[None]:
    """Let TRL's fused head project the positions that have a label inside, on a CPU as on a GPU.

    On a CPU TRL 1.16 projects all of them otherwise, those of the prompt and of the padding too; 1.15 did not.
    """
    if not hasattr(trl_utils, "_use_triton"):
        return nullcontext()
    return _replaced(trl_utils, "_use_triton", lambda device: True)  # asked there for this alone


def sampling_with(engine: type[OwnEngine], **fields: Any) -> AbstractContextManager[None]:
    """Let the GRPOTrainer that is built inside sample with an engine of this class; `fields` are set on it."""
    return _replaced(grpo_trainer, "VLLMGeneration", type(engine.__name__, (engine,), fields))


def engine_options(options: dict[str, Any]) -> AbstractContextManager[None]:
    """Let the vLLM engine that is built inside have `options` over what TRL gives it."""
    plain = getattr(vllm_generation, "LLM")  # noqa: B009  # absent without vLLM
    return _replaced(vllm_generation, "LLM", lambda **given: plain(**given | options))
