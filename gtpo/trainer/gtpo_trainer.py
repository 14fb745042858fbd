"""What GTPO and a run do around TRL's methods, in the order in which it happens.

TRL calls, at the start of a round of sampling, `_generate_and_score_completions`, and from within it `_generate`,
`_calculate_rewards` and, if several steps share the round, `_get_per_token_logps_and_entropies`; then for each
micro-batch `compute_loss`, and from within it `_compute_loss`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTTrainer

from gtpo.common.errors import did_you_mean
from gtpo.common.log import LOG, start_logging
from gtpo.completions import Completions
from gtpo.inputs.model import (
    not_finite,
    prepare_tokenizer,
    rounded_away,
    router_loss_obstacle,
    savable_generation_config,
    widen_adapters,
)
from gtpo.objective import LossFunction, PolicyLoss, policy_loss
from gtpo.own_loss import needs_entropy_gradient, user_loss, with_loss
from gtpo.presets import PRESETS, Objective
from gtpo.rewards.loading import source_hash
from gtpo.trainer import trl_seam
from gtpo.trainer.adapter_sync import AdapterGeneration
from gtpo.trainer.checks import SamplerCheck, check_inputs, prepare, written
from gtpo.trainer.group_statistics import (
    BATCH_ROWS,
    GateCalibration,
    GroupStatistics,
    batch_statistics,
    completion_means,
    draw_again,
    loss_mask,
    without_empty_columns,
)
from gtpo.trainer.policy_head import KEPT_ROWS, KeptSets, add_policy_head, sequences, token_forward

# Settings that are not the user's -> what to do instead, by who decides them (objective, run, sampler): setting one is
# an error, never ignored.
DECIDED = tomllib.loads(Path(__file__).with_name("decided.toml").read_text(encoding="utf-8"))


def grpo_faults(args: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, why) for what TRL's GRPO takes, and then fails with, or trains otherwise than it says."""
    batches = args.accelerator_config
    for name in ("split_batches", "dispatch_batches"):
        if batches.get(name) if isinstance(batches, dict) else getattr(batches, name, None):
            why = "hands a group's rows to processes by another order than TRL's; remove it"
            yield f"accelerator_config {name}", why
    if args.use_transformers_continuous_batching and (args.fp16 or args.bf16 in (None, True)):
        why = "casts the trained weights to 16 bits for good; set bf16=False, or sample without it"
        yield "use_transformers_continuous_batching", why
    # TRL corrects by default; a script that comes from there may say how, and lose the correction in silence.
    for entry in fields(args) if not args.vllm_importance_sampling_correction else ():
        how = entry.name.startswith("vllm_importance_sampling_") and entry.name != "vllm_importance_sampling_correction"
        if how and getattr(args, entry.name) != entry.default:
            key = "vllm_importance_sampling_correction=True (a config: rollout.importance_sampling_correction: true)"
            yield entry.name, f"does nothing without {key}"
    if isinstance(args, GTPOConfig):  # which has none of the others
        return
    loss, high, level = args.loss_type, args.epsilon_high, args.importance_sampling_level
    # inspect.getsource would parse it for half a second.
    if f'"{loss}"' not in Path(inspect.getfile(GRPOTrainer)).read_text():
        yield "loss_type", f"{loss!r} is none of TRL's losses (grpo, dapo, dr_grpo, cispo and others: its GRPOConfig)"
    if loss == "cispo" and (high is None or high < 1):
        why = "cuts the ratio itself off at epsilon_high; set it above 1 (configs/recipes/cispo.yaml: 5.0)"
        yield "epsilon_high", f"{high} contradicts loss_type cispo, which {why}"
    if loss == "luspo" and level != "sequence":
        why = "a loss of whole sequences; set it to sequence"
        yield "importance_sampling_level", f"{level} contradicts loss_type luspo, {why}"
    if args.neftune_noise_alpha:
        yield "neftune_noise_alpha", "contradicts method grpo: the loss would be of another policy than what sampled"
    low, most = args.entropy_coef_min, args.entropy_coef_max
    if args.use_adaptive_entropy and low > most:
        yield "entropy_coef_min", f"{low} exceeds entropy_coef_max {most}"


@dataclass
class GTPOConfig(GRPOConfig):
    """GRPOConfig plus the objective.

    Raises ValueError for an unknown preset or field of the objective, and for a field of GRPOConfig that the
    objective decides.
    """

    preset: str = field(default="gtpo", metadata={"help": "A preset of docs/method.md."})
    # `str | None` is for TRL's parser, which passes JSON.
    objective: dict[str, Any] | str | Objective | None = field(
        default=None,
        metadata={"help": "Fields of gtpo.objective.Objective that differ from the preset; or an Objective, whole."},
    )
    initial_entropy: float | None = field(
        default=None,
        metadata={"help": "H_ini in nats, if already known; measured before step 0 when the filter is `auto`."},
    )
    resample_equal_groups: int = field(
        default=0, metadata={"help": "How many times groups whose rewards are all equal are drawn again."}
    )
    learning_rate: float = field(default=1e-6, metadata={"help": "The initial learning rate for AdamW."})
    disable_dropout: bool = field(
        default=True, metadata={"help": "Set dropout to 0: the loss is of the policy that samples."}
    )
    loss_type: str = field(default="grpo", metadata={"help": "The objective's own loss; no other."})
    scale_rewards: str = field(default="", metadata={"help": "As the objective has it."})
    vllm_importance_sampling_correction: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Correct vLLM's rounding by importance weights, as TRL does; costs a forward more a round. Unset: "
            "True, if the objective takes the sampling temperature. False: the paper's exact loss."
        },
    )

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(
                f"preset {self.preset!r} is not one of {', '.join(PRESETS)}.{did_you_mean(self.preset, PRESETS)}"
            )
        # As JSON can hold it: GTPOConfig(**to_dict()) has the same objective.
        if isinstance(self.objective, Objective):
            self.objective = asdict(self.objective)
        objective = self.resolved_objective()
        if objective.loss:
            user_loss(objective)  # tried before a model is loaded
        defaults = {entry.name: entry.default for entry in fields(self)}
        faults = list[str]()
        for name, instead in DECIDED["objective"].items():
            as_decided = name == "scale_rewards" and getattr(self, name) == objective.scale_rewards
            if name in defaults and getattr(self, name) != defaults[name] and not as_decided:
                faults.append(f"remove {name}={getattr(self, name)!r}: {instead}")
        on_cpu = self.use_cpu or not torch.accelerator.is_available()
        # TRL's default is True, which transformers refuses there without use_cpu.
        if self.bf16 is None and on_cpu:
            self.bf16 = False
        if self.fp16 and on_cpu:
            faults.append("fp16=True needs a GPU; on a CPU train in float32, or with bf16=True")
        comparable = objective.temperature(self.temperature) == self.temperature
        if self.vllm_importance_sampling_correction is None:
            self.vllm_importance_sampling_correction = comparable
        faults += [f"{name} {why}" for name, why in grpo_faults(self)]
        if self.use_vllm and self.vllm_importance_sampling_correction and not comparable:
            faults.append(
                "vllm_importance_sampling_correction compares vLLM's log-probabilities, at temperature "
                f"{self.temperature}, with the objective's at 1 (entropy_temperature 'one'): set temperature=1.0, "
                "objective={'entropy_temperature': 'sampling'} or vllm_importance_sampling_correction=False"
            )
        if faults:
            raise ValueError(f"GTPOConfig: {'; '.join(faults)}")
        self.scale_rewards = objective.scale_rewards
        # The objective's `mask_truncated` leaves them out of the loss.
        self.mask_truncated_completions = False
        super().__post_init__()

    def resolved_objective(self) -> Objective:
        """Return the preset with the fields changed that `objective` names."""
        changes: Any = self.objective or {}
        if isinstance(changes, str):
            with contextlib.suppress(json.JSONDecodeError):
                changes = json.loads(changes)
        if not isinstance(changes, dict):
            raise ValueError(
                f"GTPOConfig: objective must be an Objective or a dict of its fields; found {self.objective!r} "
                "(the name of a preset goes into preset)"
            )
        try:
            if loss := changes.get("loss"):
                changes = {**changes, "loss_source": source_hash(loss, "objective.loss")}
            return replace(PRESETS[self.preset], **changes)
        except ValueError as error:
            raise ValueError(f"GTPOConfig: {error}") from None


class RunPart(TrainerCallback):
    """A callback with events that transformers does not have; a RunTrainer calls them in the order of its callbacks."""

    # Whether it decides how checkpoints are written and read (`gtpo.callbacks.ExactCheckpoints`).
    keeps_checkpoints = False

    def on_activity(self, doing: str, over: str = "", seconds: float = 0.0) -> None:
        """Act as the trainer begins `doing` a thing, or goes on with it after sampling, scoring or such is `over`."""

    def on_round_begin(self) -> None:
        """Act before a round of completions is sampled."""

    def on_micro_batch(self, model: Any, inputs: Mapping[str, Any]) -> None:
        """Act before the loss of a micro-batch is computed. All processes call it."""

    def checkpoint_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this part, in names of its own."""
        return {}

    def on_resume(self, state: dict[str, Any]) -> None:
        """Restore what `checkpoint_state` of all parts returned."""


class RunTrainer(Trainer):
    """A trainer of transformers that calls the parts of a run (`gtpo.callbacks`) that were added to it.

    It goes before TRL's class: `class Mine(RunTrainer, SFTTrainer)`.
    """

    writes_model_card = True
    # What it does beside training, as the parts are told; empty: nothing.
    doing = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Its backward with a mask may be NaN on an H100 or H200, torch's default there (pytorch/pytorch#196678).
        torch.backends.cuda.enable_cudnn_sdp(False)
        super().__init__(*args, **kwargs)
        trl_seam.round_nothing_in_fsdp2(self.accelerator)

    @property
    def parts(self) -> list[RunPart]:
        """The parts of the run, in the order in which they were added."""
        return [part for part in self.callback_handler.callbacks if isinstance(part, RunPart)]

    @property
    def checkpoints(self) -> Any:
        """The part that keeps the checkpoints; None: transformers does."""
        return next((part for part in self.parts if part.keeps_checkpoints), None)

    @contextmanager
    def activity(self, name: str, count: int) -> Iterator[None]:
        """Let the parts know inside what the trainer is doing (`RunPart.on_activity`)."""
        outer, self.doing, begin = self.doing, f"{name} {count} completions", time.monotonic()
        for part in self.parts:
            part.on_activity(self.doing)
        try:
            yield
        finally:
            self.doing = outer
            for part in self.parts:
                part.on_activity(outer, name, time.monotonic() - begin)

    # -- a step --------------------------------------------------------------------------------------------------------

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the gradient's norm; if it is not finite, the step that follows changes nothing."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP2 keeps it in parts
        # float16's scaler skips such a step itself.
        scaled = self.accelerator.scaler is not None
        if not (math.isfinite(float(whole)) or scaled or self.is_deepspeed_enabled):
            model.zero_grad(set_to_none=True)
            step = self.state.global_step + 1
            if name := not_finite(model):
                raise ValueError(f"step {step}: the weight {name} is not finite")
            LOG.warning(f"step {step}: the gradient's norm is {float(whole)}; the step is skipped, the weights stay")
        return norm

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of a micro-batch."""
        if trl_seam.mode(self) == "train":
            for part in self.parts:
                part.on_micro_batch(model, inputs)  # before the step changes the policy
        return super().compute_loss(model, inputs, *args, **kwargs)

    # -- the data's order and checkpoints ------------------------------------------------------------------------------

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        keeper = self.checkpoints
        return super()._get_train_sampler(*args, **kwargs) if keeper is None else keeper.order()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        # Resumed from the run's last step, or by a part that stops it, transformers would train one step more.
        self.control.should_training_stop |= self.state.global_step >= self.state.max_steps
        return None if self.control.should_training_stop else super()._run_epoch(*args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        keeper = self.checkpoints
        return str((keeper and keeper.staging) or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        keeper = self.checkpoints
        if keeper is None:
            super()._save_checkpoint(model, trial)
        elif not keeper.puts_off():
            with keeper.saving():
                super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        keeper = self.checkpoints
        with nullcontext() if keeper is None else keeper.reading(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # None: there is nothing to resume.
        keeper = None if checkpoint is None else self.checkpoints
        with nullcontext() if keeper is None else keeper.reading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
            if keeper is not None:
                keeper.restore(checkpoint)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card, unless the run says what it is itself (run.json)."""
        if self.writes_model_card:
            super().create_model_card(*args, **kwargs)


class SampledTrainer(RunTrainer, GRPOTrainer):
    """What the methods that sample share: TRL's rounds, with the statistics of their groups."""

    groups: GroupStatistics
    # Whether the round that TRL begins is to be measured, and neither scored nor trained on.
    only_samples = False
    # How many times groups whose rewards are all equal are drawn again.
    resample_equal_groups = 0
    # What finds the ids that a truncated sampler could draw; None if it draws from all, and with TRL's own loss.
    kept_sets: KeptSets | None = None
    # Whether a completion is unscored if one of its rewards could not be computed; TRL leaves that one out of the sum.
    unscored_as_whole = False
    _rows: Any = None
    _rewards: Tensor | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # TRL builds its vLLM engine in its constructor, so the class of the engine is decided around it.
        config = kwargs.get("args") or dict(enumerate(args)).get(2)
        if kwargs.get("rollout_func") is not None:
            kwargs["rollout_func"] = written(kwargs["rollout_func"])
        if (given := kwargs.get("processing_class")) is not None:
            self._prepare_tokenizer(getattr(given, "tokenizer", given))
        with trl_seam.sampling_with(AdapterGeneration, scratch=Path(config.output_dir if config else ".")):
            super().__init__(*args, **kwargs)
        self._prepare_tokenizer(trl_seam.tokenizer(self))
        prepare(self)
        self.sampler = SamplerCheck(self)

    @staticmethod
    def _prepare_tokenizer(tokenizer: Any) -> None:
        for note in prepare_tokenizer(tokenizer):
            LOG.info(note)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        for part in self.parts:
            part.on_round_begin()
        # TRL hands `_generate` the prompts only, and a reward wants the other columns.
        self._rows = inputs
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        # Here, since TRL spreads the groups over micro-batches next.
        return self.groups.prepare(batch)

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        outputs = super()._tokenize_prompts(prompts)
        self.sampler.prompts(outputs[0])
        return outputs

    def draw(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Return what TRL's `_generate` samples for prompts, one completion each."""
        with self.activity("sampling", len(prompts)):
            outputs = super()._generate(prompts)
        # The policy cannot draw such an id; a tool or an environment can write it.
        self.sampler.embedded([*outputs[0], *outputs[1]])
        return trl_seam.with_special_tokens(self, outputs)

    def _generate(self, prompts: list[Any]) -> Any:
        outputs = self.draw(prompts)
        # TRL has no other way to sample with its tools and environments and not to score.
        if self.only_samples:
            raise trl_seam.RoundOver(outputs)
        if self.resample_equal_groups and trl_seam.mode(self) == "train":
            self._rewards = draw_again(self, self._rows, prompts, outputs, self.resample_equal_groups)
        return outputs

    def set_resampling(self, times: int) -> None:
        """Set `resample_equal_groups`. Raises ValueError for a trainer whose rounds have a state of their own."""
        for name in ("tools", "environments", "rollout_func"):
            if times and getattr(self, name, None):
                raise ValueError(f"resample_equal_groups does not work with {name}, whose state belongs to one round")
        self.resample_equal_groups = times

    def rewards_of(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Return the rewards [N, functions] of this rank's completions, gathered over ranks."""
        with self.activity("scoring", len(inputs)):
            rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return rewards

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        # Resampling has scored already: a judge model is not asked twice.
        rewards, self._rewards = self._rewards, None
        if rewards is None:
            rewards = self.rewards_of(inputs, prompts, completions, completion_ids_list)
        return self.groups.score(prompts, completions, rewards)


def require_trainer(part: Any, trainer: Any, kind: type = RunTrainer) -> Any:
    """Return a trainer that `part` is built for. Raises ValueError if it never calls one."""
    if not isinstance(trainer, kind):
        baselines = "GRPOBaseline" + " or SFTBaseline" * (kind is RunTrainer)
        needed = f"{type(part).__name__} needs a GTPOTrainer, or {baselines} of gtpo.callbacks"
        raise ValueError(f"{needed}; found {type(trainer).__name__}")
    return trainer


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
            outputs = super()._get_per_token_logps_and_entropies(self.model_wrapped, *sequences(batch).values(), length)
        logps: Tensor = outputs[0]
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


_TITLE = "GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control"


class GTPOTrainer(SampledTrainer):
    """GRPOTrainer with GTPO's objective. Same arguments; `args` is a GTPOConfig.

    loss: a function of your own in the place of `gtpo.objective.policy_loss` (`gtpo.own_loss`).
    """

    _tag_names = ["trl", "gtpo"]  # noqa: RUF012  # TRL declares it so
    _name = "GTPO"
    _paper = {"title": _TITLE, "id": "2508.03772"}  # noqa: RUF012

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GTPOConfig | None = None,
        train_dataset: Any = None,
        *,
        loss: LossFunction | None = None,
        **kwargs: Any,
    ) -> None:
        args = GTPOConfig(output_dir="gtpo-output") if args is None else args
        if not isinstance(args, GTPOConfig):
            raise ValueError(f"GTPOTrainer: args must be a GTPOConfig; found {type(args).__name__}")
        # A TRL user's script that sets up no logging still sees the gate's decision.
        if not LOG.hasHandlers():
            start_logging()
        if train_dataset is not None and kwargs.get("environment_factory") is None:  # environments own their prompts
            prompts = (args.generation_batch_size or 0) // (args.num_generations or 1)
            check_inputs(reward_funcs, train_dataset, prompts=prompts)
        self.objective: Objective = args.resolved_objective()
        if loss is not None:
            if self.objective.loss is not None:
                raise ValueError(f"GTPOTrainer: loss, and objective.loss {self.objective.loss} in args: remove one")
            self.objective = with_loss(self.objective, loss)
        self.loss_function: LossFunction = policy_loss
        if self.objective.loss is not None:
            self.loss_function = user_loss(self.objective, loss)
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        policy: Any = self.model
        if not any(p.requires_grad for p in policy.parameters()):
            raise ValueError(
                "GTPOTrainer: no weight of the model is trained. Load an adapter with is_trainable=True "
                "(PeftModel.from_pretrained); after merge_and_unload, call model.requires_grad_(True)"
            )
        # What is trained beside frozen weights is held in float32.
        if getattr(policy, "is_quantized", False) or kwargs.get("peft_config") is not None:
            widen_adapters(policy)
        for text in filter(None, (*rounded_away(args, policy), savable_generation_config(policy))):
            LOG.warning(text)
        if self.aux_loss_enabled and (obstacle := router_loss_obstacle(policy.config, self.router_aux_loss_coef)):
            raise ValueError(f"GTPOTrainer: {obstacle}")
        add_policy_head(trl_seam.policy(self))
        self.kept_sets = KeptSets.of_trainer(self)
        self.groups = GroupStatistics(self, self.objective)
        self.gate = GateCalibration(self, self.objective)
        self.set_resampling(args.resample_equal_groups)
        # `logps` and `entropies` of the round by the policy that sampled, and its kept sets; None if not taken yet.
        self._round: dict[str, Tensor] | None = None
        self.add_callback(self.gate)

    @property
    def initial_entropy(self) -> float | None:
        """H_ini in nats, None before the calibration."""
        return self.gate.calibration.initial_entropy if self.gate.calibration else None

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; before any training the gate is decided by H_ini of the policy as it is now."""
        self.gate.ensure()
        return super().evaluate(*args, **kwargs)

    # -- a round of sampling -------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._round = None
        batch = super()._generate_and_score_completions(inputs)
        # The gate and the entropy term are of the policy that sampled; a later step of the round has another one.
        if self._round is not None:
            batch["behaviour_entropy"] = completion_means(self._round["entropies"], batch).nan_to_num()
        if self.kept_sets is not None:
            statistics = self._statistics(batch)
            batch |= {name: statistics[name] for name in KEPT_ROWS}
            refused = (batch.pop("kept_outside") & loss_mask(batch).bool()).any(dim=1)
            batch["excluded"] = batch["excluded"] | refused
            trl_seam.log(self, "sampling/refused", self.accelerator.gather(refused.float()).mean().item())
        return batch

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Tensor, mask: Tensor, length: int, *args: Any, **kwargs: Any
    ) -> Any:
        # TRL scores a round only if several steps share it: ratio, gate, entropy term are of the policy that sampled.
        # By the loss's own head, so that the ratio is exactly 1 before any update.
        parts = {"ids": ids, "mask": mask}
        batch = {f"prompt_{name}": whole[:, :-length] for name, whole in parts.items()}
        batch |= {f"completion_{name}": whole[:, -length:] for name, whole in parts.items()}
        self._round = batch_statistics(self, model, batch, **self.head_options())
        return self._round["logps"], self._round["entropies"], None

    def head_options(self) -> dict[str, Any]:
        """Return what the head is told of the loss."""
        differentiated = needs_entropy_gradient(self.objective, self.loss_function)
        return self.objective.head_options(self.temperature) | {"entropy_gradient": differentiated}

    def _statistics(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return the statistics of a round of sampling: a forward, unless TRL has made one."""
        if self._round is None:
            self._round = batch_statistics(self, self.model_wrapped, batch, **self.head_options())
        return self._round

    def round_entropy(self, batch: dict[str, Any]) -> Tensor:
        """Return the mean `<H>_i` in nats of a round of sampling over all ranks."""
        means: Tensor = self.accelerator.gather(completion_means(self._statistics(batch)["entropies"], batch))
        return means.nanmean()

    def logps_of(self, batch: dict[str, Tensor]) -> Tensor:
        """Return log-probabilities [B, L] of a batch's completions by the loss's head, at the sampling temperature."""
        return batch_statistics(self, self.model_wrapped, batch, temperature=self.temperature)["logps"]

    # -- the loss ------------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        # They are padded to the longest completion of the round, not of this micro-batch.
        inputs = without_empty_columns(inputs)
        mask, group = loss_mask(inputs).bool(), trl_seam.group_size(self)
        completions = Completions._make(inputs.get(BATCH_ROWS[field]) for field in Completions._fields)
        micro_batches = self.current_gradient_accumulation_steps if trl_seam.mode(self) == "train" else 1
        tokens, aux_loss = token_forward(self, model, inputs, mask, **self.head_options())
        output = self.loss_function(
            self.objective,
            completions,
            tokens["logps"],
            tokens["entropies"],
            mask,
            group,
            gate_active=self.gate.active(),
            # The micro-batches of a step add up, the ranks are averaged: B of the step is so many groups per rank.
            groups=len(mask) * micro_batches / group,
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
        )
        self._log(output, tokens, inputs)
        total: Tensor = output.loss
        if aux_loss is None:
            return total
        trl_seam.log(self, "aux_loss", self.accelerator.gather(aux_loss.detach()).mean().item())
        return total + self.router_aux_loss_coef * aux_loss / micro_batches

    @torch.no_grad()
    def _log(self, output: PolicyLoss, tokens: dict[str, Tensor], inputs: dict[str, Any]) -> None:
        """Log what the forward has found: entropies, the gate's choice, clipping, the distance from the sampler."""
        logps, entropies = tokens["logps"], tokens["entropies"]
        if self.objective.temperature(self.temperature) == self.temperature:
            self.sampler.observe(logps, inputs)
        elif self.state.global_step == 0 and "sampling_per_token_logps" in inputs:
            # vLLM's are comparable at its own temperature only, which takes a forward more: once is enough.
            self.sampler.observe(self.logps_of(inputs), {**inputs, "old_per_token_logps": None})
        self.groups.log_completions(inputs, entropies, output.kept)
        mask = loss_mask(inputs).bool()
        sums = {"entropy": entropies}
        if (old := inputs.get("old_per_token_logps")) is not None:
            # Tokens whose policy gradient the clipping takes away, under TRL's names.
            ratio, shaped = (logps - old).exp(), output.shaped_advantages[:, None]
            low = mask & (ratio < 1 - self.epsilon_low) & (shaped < 0)
            high = mask & (ratio > 1 + self.epsilon_high) & (shaped > 0)
            sums |= {f"clip_ratio/{x}_mean": of for x, of in (("low", low), ("high", high), ("region", low | high))}
        here = torch.stack([values.sum().float() for values in (mask, *sums.values())])
        totals = self.accelerator.gather(here).view(-1, len(here)).sum(dim=0)
        for name, share in zip(sums, (totals[1:] / totals[0].clamp(min=1)).tolist(), strict=True):
            trl_seam.log(self, name, share)
