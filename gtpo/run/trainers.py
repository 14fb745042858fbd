"""What a run trains with: its class of trainer, and reward functions that can neither end it nor score 0 in silence.

Methods grpo and sft are TRL's trainers, which log as GTPOTrainer does and call the parts of a run (`gtpo.callbacks`).
A user's class may stand at the place of ours.

A reward function that raises is called again one completion at a time; the completions on which it raises are
*unscored*: left out of the group's mean, given no gradient, and counted. If more than half of a batch is unscored, the
run stops and shows the first traceback.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer, SFTTrainer

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.config import TrainConfig
from gtpo.rewards.loading import RewardFunction, import_dotted, load_rewards, says, score_fault
from gtpo.run.arguments import grpo_faults
from gtpo.trainer import GTPOTrainer, RunTrainer, SampledTrainer
from gtpo.trainer.group_statistics import GroupStatistics
from gtpo.trainer.policy_head import sequences
from gtpo.trainer.shared_prefixes import share_prefixes
from gtpo.trainer.trl_seam import scoring_labels_alone


class SFTBaseline(RunTrainer, SFTTrainer):
    """TRL's SFTTrainer; the parts of a run can be added to it (`gtpo.callbacks`)."""


class GRPOBaseline(SampledTrainer):
    """TRL's GRPOTrainer, with its own loss: what it logs of a group has GTPOTrainer's names.

    The parts of a run can be added to it (`gtpo.callbacks`). Raises ValueError for what TRL would train otherwise than
    the arguments say.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, why in grpo_faults(self.args):
            raise ValueError(f"GRPOConfig: {name} {why}")
        self.groups = GroupStatistics(self)
        self._micro_batch: dict[str, Any] = {}

    def logps_of(self, batch: dict[str, Tensor]) -> Tensor:
        """Return log-probabilities [B, L] of a batch's completions as TRL's loss has them."""
        length = batch["completion_ids"].size(1)
        with torch.no_grad():
            found = super()._get_per_token_logps_and_entropies(self.model_wrapped, *sequences(batch).values(), length)
        logps: Tensor = found[0]
        return logps

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._micro_batch = inputs
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        logps, entropies = outputs[:2]
        # In the loss, not while a round is scored.
        if kwargs.get("compute_entropy") and entropies is not None:
            self.groups.log_completions(self._micro_batch, entropies.detach())
            self.sampler.observe(logps, self._micro_batch)
        return outputs


def require_trainer(part: Any, trainer: Any, kind: type = RunTrainer) -> Any:
    """Return a trainer that `part` is built for. Raises ValueError if it never calls one."""
    if not isinstance(trainer, kind):
        name, found = type(part).__name__, type(trainer).__name__
        raise ValueError(f"{name} needs a GTPOTrainer, or GRPOBaseline or SFTBaseline of gtpo.callbacks; found {found}")
    return trainer


# Arguments that a run gives to the trainer of any method.
_KEYWORDS = ("model", "args", "train_dataset", "processing_class", "peft_config")

# method -> the class that a user's class must derive from, and the class that trains.
_METHODS: dict[str, tuple[type, type]] = {
    "gtpo": (GTPOTrainer, GTPOTrainer),
    "grpo": (GRPOTrainer, GRPOBaseline),
    "sft": (SFTTrainer, SFTBaseline),
}


def trainer_class(config: TrainConfig) -> Any:
    """Return the class to train with: that at `trainer.class_path`, if it is set, with ours before it.

    Raises UserError if the path does not import, or the class is no trainer of the config's method.
    """
    (base, ours), path, method = _METHODS[config.method], config.trainer.class_path, config.method
    if path is None:
        return ours
    theirs = import_dotted(path, "trainer.class_path")
    # The first that fits: a GTPOTrainer is a GRPOTrainer too.
    of = {its: isinstance(theirs, type) and issubclass(theirs, parent) for its, (parent, _) in _METHODS.items()}
    its = next((its for its, fits in of.items() if fits), None)
    if its != method:
        other = f"; for this class set method: {its}" if its else ""
        raise UserError(f'trainer.class_path "{path}": must be a subclass of {base.__name__}{other}')
    keywords = [*_KEYWORDS, *(() if method == "sft" else ("reward_funcs",))]
    try:  # before any weights are loaded
        inspect.signature(theirs).bind(**dict.fromkeys(keywords))
    except TypeError as error:
        raise UserError(
            f'trainer.class_path "{path}": {error}. It is called with the keywords {", ".join(keywords)}: take '
            "**kwargs, and hand them on to super().__init__"
        ) from None
    # A user's subclass of TRL's trainer does not call the parts of a run; ours does, and its super() is theirs.
    return theirs if issubclass(theirs, ours) else type(theirs.__name__, (ours, theirs), {})


@contextmanager
def sharing_prefixes(config: TrainConfig, model: Any) -> Iterator[None]:
    """Let a model that no trainer has yet share prefixes inside, if the config asks for it.

    Raises UserError if it cannot.
    """
    if not config.training.share_prefixes:
        yield
        return
    try:
        if config.model.backend == "unsloth":
            raise ValueError("unsloth computes attention in its own way")
        shared = share_prefixes(model)
    except ValueError as error:
        raise UserError(f"training.share_prefixes: {error}; set it to false") from None
    with shared, scoring_labels_alone():
        yield


@contextmanager
def vllm_failures_explained(model: Any) -> Iterator[None]:
    """Turn what vLLM raises inside, as it starts or samples, into one UserError. Other errors pass."""
    try:
        yield
    except Exception as error:
        inside_vllm = any("/vllm/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if not inside_vllm or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"rollout.engine vllm: vLLM fails with {model.name_or_path}: "
            f"{' '.join(str(error).split())[:400]}. Set rollout.engine: transformers, which "
            "samples with the trainer's own model"
        ) from error


# -- rewards -----------------------------------------------------------------------------------------------------------

_NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "environments")


class GuardedReward:
    """A reward function whose exceptions leave completions unscored. Has TRL's signature."""

    def __init__(self, function: RewardFunction, name: str | None = None) -> None:
        self.function = function
        self.__name__ = name or getattr(function, "__name__", type(function).__name__)
        self.is_accuracy, self.has_format = (says(function, key) for key in ("is_accuracy", "has_format"))
        self.first_traceback: str | None = None

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> list[float | None]:
        """Return one score per completion, None if the function raised or returned None.

        Raises UserError if what it returned are no scores of these completions.
        """
        scores = self._scores(prompts, completions, completion_ids, columns)
        if scores is not None:
            return scores
        scores = []
        for index in range(len(completions)):
            one = slice(index, index + 1)
            row = {key: value if key in _NOT_COLUMNS else value[one] for key, value in columns.items()}
            # One bad completion must not take the scores of the others.
            scores += self._scores(prompts[one], completions[one], completion_ids[one], row) or [None]
        return scores

    def _scores(self, prompts: Any, completions: Any, ids: Any, columns: dict[str, Any]) -> list[float | None] | None:
        """Return the scores of some completions; None if the function raised."""
        try:
            returned = self.function(prompts=prompts, completions=completions, completion_ids=ids, **columns)
        except Exception:
            # The user's code may raise anything; its traceback is shown, and no score is made up.
            if self.first_traceback is None:
                self.first_traceback = traceback.format_exc()
                LOG.warning(
                    f"reward function {self.__name__} raised; these completions are unscored\n{self.first_traceback}"
                )
            return None
        scores = list(returned) if isinstance(returned, Iterable) else returned
        if fault := score_fault(str(self.__name__), scores, len(completions)):
            raise UserError(fault)
        return scores


def guarded_rewards(
    paths: Sequence[tuple[str, Mapping[str, Any] | None]], weights: Sequence[float] | None = None
) -> list[GuardedReward]:
    """Import the functions of `trainer.reward_funcs`. Raises UserError for a path or signature that does not work."""
    loaded = load_rewards(paths, weights)
    return [GuardedReward(function, name) for function, name in zip(loaded.functions, loaded.names, strict=True)]


def mark_unscored(trainer: Any, rewards: Tensor) -> Tensor:
    """Make a completion unscored if any of its rewards could not be computed. UserError at more than half."""
    # The sum of the others would be the reward of another task.
    unscored = rewards.isnan().any(dim=1)
    if unscored.float().mean() > 0.5:
        guarded = [f for f in trainer.reward_funcs if isinstance(f, GuardedReward)]
        trace = next((g.first_traceback for g in guarded if g.first_traceback), None)
        raise UserError(
            f"{int(unscored.sum())} of {len(unscored)} completions at step {trainer.state.global_step + 1} could not "
            f"be scored by {', '.join(str(g.__name__) for g in guarded)}; the run stops. "
            + (f"The first traceback:\n{trace}" if trace else "The functions returned None.")
        )
    return rewards.masked_fill(unscored[:, None], math.nan)
