"""What the files of a train run hold: run.json, best.json and completions/*.parquet, column by column.

docs/files.md is written from these tables (`python docs/tools/reference.py`). A test compares
them with what real runs write, in both directions.
"""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """One dotted key of a JSON file, or one column of a Parquet file."""

    name: str
    meaning: str


RUN_JSON = (
    Field("schema_version", "Version of this layout. A reader that meets a newer one says so."),
    Field("run_name", "Name of the folder."),
    Field("method", "gtpo, grpo or sft."),
    Field("preset", "Preset of the objective; null for sft."),
    Field("base_model", "What the run started from."),
    Field("dtype", "Data type of its weights."),
    Field("parameters.all", "Number of parameters."),
    Field("parameters.trained", "Number of parameters with a gradient."),
    Field("notes", "What was decided while loading, as printed."),
    Field("dataset.source", "Name of the data set."),
    Field("dataset.available", "Problems in it."),
    Field("dataset.examined", "Problems looked at, after `dataset.limit`."),
    Field("dataset.kept", "Problems trained on."),
    Field("dataset.unverifiable", "Problem id to reason: golds that cannot score any answer."),
    Field("dataset.without_solution", "Ids without a worked solution (sft)."),
    Field("dataset.too_long", "Problem id to length: prompts above `training.max_prompt_length`."),
    Field("dataset.longest", "Tokens of the longest prompt that was kept."),
    Field("dataset.lengths_checked", "Whether lengths were measured."),
    Field("dataset.held_out", "Problems kept out for validation."),
    Field("seed", "Seed of initialisation, data order and sampling."),
    Field("python", "Version of Python."),
    Field("packages", "Package to version."),
    Field("hardware.machine", "Processor architecture."),
    Field("hardware.cpu", "The processor's name, as its system says it."),
    Field("hardware.system", "Operating system."),
    Field("hardware.cpus", "Processors of the machine."),
    Field("hardware.memory_bytes", "Its memory."),
    Field("hardware.torch_threads", "Threads of a torch operation."),
    Field("hardware.gpus", "Names of the GPUs, where there are any."),
    Field("git_commit", "Commit of gtpo, where it runs from a checkout; else null."),
    Field("processes", "Number of training processes."),
    Field("started", "Time of the first start, UTC."),
    Field("status", "running, finished, interrupted, failed or collapsed (stopped by `health.on_collapse`)."),
    Field("initial_entropy.nats", "H_ini: mean entropy of the untrained policy. gtpo with `objective.filter: auto`."),
    Field("initial_entropy.samples", "Completions that it was measured on."),
    Field("initial_entropy.standard_error", "Its standard error, in nats."),
    Field("gate.filter", "`objective.filter`. gtpo alone."),
    Field("gate.active", "Whether the entropy gate acts in this run."),
    Field("gate.scope", "`objective.filter_scope`."),
    Field("step", "Last step."),
    Field("steps", "Steps planned."),
    Field("stopped_because", "Why it stopped early; null where it did not."),
    Field("best.step", "Step of the weights in `best/`."),
    Field("best.metric", "What selected them."),
    Field("best.value", "Its running mean there."),
    Field("validation.problems", "Ids of the held-out problems. With `training.eval_steps`, as are the next eight."),
    Field("validation.samples", "Samples per problem."),
    Field("validation.untrained", "Held-out pass@1 before the first step."),
    Field("validation.gain.mean", "Held-out pass@1 of `best/` less that of the untrained model."),
    Field("validation.gain.low", "Lower end of its 95 % interval, paired by problem."),
    Field("validation.gain.high", "Upper end of it."),
    Field("validation.count", "Validations in this session."),
    Field("validation.seconds", "Time that they took."),
    Field("validation.share_of_session", "The same as a share of the session's wall time."),
    Field("wall_time_s", "Wall time of all sessions, in seconds."),
    Field("peak_memory_bytes", "Peak memory of the first GPU; null on a CPU."),
)

BEST_JSON = (
    Field("schema_version", "Version of this layout."),
    Field("step", "Step of these weights."),
    Field("metric", "What selected them: `validation/pass@1`, `reward/accuracy`, or for sft `loss`."),
    Field("value", "Its running mean there."),
    Field("smoothing_steps", "Steps that the mean covers, without validation."),
    Field("smoothing_evaluations", "Validations that the mean covers, with validation."),
    Field("why", "The same in words."),
)

COMPLETION_COLUMNS = (
    Field("step", "Step that the round was sampled for."),
    Field("group", "Place of the prompt in the round."),
    Field("completion_index", "Place of the completion in its group."),
    Field("prompt", "The user's turn."),
    Field("tokens", "The completion's tokens, each as text."),
    Field("weight", "lambda of each token: 0 protected, 1 plain, 2 doubled (in grpo: what GTPO would give)."),
    Field("advantage", "A of the completion; null if unscored."),
    Field("entropy", "Its mean token entropy in nats."),
    Field("kept", "Whether the entropy gate let it count."),
    Field("reward_NAME", "What the reward function NAME gave; null if unscored."),
    Field("reward_format", "Its format reward."),
    Field("reward_accuracy", "Its accuracy reward, where a reward function gives one."),
)
