"""`gtpo train --dry-run`: the resolved run in full, before a GPU hour is spent.

Config, dataset counts where the source can be reached, tokens per step, the gate's decision if it is already
stored, and the memory forecast. Loads no model; loads the tokenizer only to count prompt lengths.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo.common.errors import UserError
from gtpo.common.files import read_json
from gtpo.common.hub import cache_if_unreachable
from gtpo.common.packages import install_command, installed
from gtpo.common.terminal import columns_of_stdout, folded
from gtpo.config.schedule import launched_processes, optimizer_steps
from gtpo.config.schema import TrainConfig
from gtpo.inputs.model_shape import Weights, find_shape, find_weights
from gtpo.plan.memory import Forecast, forecast
from gtpo.plan.preflight import check_inputs, is_local, needed_packages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gtpo.inputs.dataset import DatasetReport, TrainingProblems


def _tokenizer(config: TrainConfig, weights: Weights) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer that training will use, or None and why not."""
    from transformers.utils import logging

    from gtpo.inputs.model import load_tokenizer

    logging.set_verbosity_error()
    try:
        return load_tokenizer(config.model, weights)[0], ""
    except UserError as error:
        return None, str(error)


def _dataset(problems: TrainingProblems, tokenizer: Any, why: str) -> tuple[DatasetReport | None, str]:
    """Return the counts of the dataset and a note; None and why where its source cannot be reached."""
    try:
        problems.load()
    except UserError as error:
        if is_local(problems):
            raise
        return None, f"{problems.source}: not counted; {error}"
    return problems.select(tokenizer)[1], "" if tokenizer else f"prompt lengths not checked: {why}"


def _steps(config: TrainConfig, rows: int | None, world_size: int) -> dict[str, Any]:
    """Count completions, prompts, tokens and steps; rows is None where the dataset could not be counted."""
    training = config.training
    examples = training.per_device_train_batch_size * training.gradient_accumulation_steps * world_size
    steps: dict[str, Any] = {"processes": world_size}
    if config.method == "sft":
        steps["examples_per_step"] = examples
        steps["tokens_per_step_at_most"] = examples * config.model.max_seq_length
    else:
        completion = training.max_completion_length or 0
        steps |= {
            "prompts_per_step": examples / training.num_generations,
            "completions_per_step": examples,
            "completion_tokens_per_step_at_most": examples * completion,
            "tokens_per_step_at_most": examples * (completion + training.max_prompt_length),
        }
    if rows is not None or training.max_steps > 0:
        steps["steps"] = optimizer_steps(config, rows or 0, world_size)
    return steps


def gate_line(config: TrainConfig) -> str:
    """Say what the entropy gate will do, from the run folder if H_ini was already measured there."""
    if config.method != "gtpo":
        return "none (method " + config.method + ")"
    objective = config.resolved_objective()
    threshold = f"<H> > {objective.entropy_threshold:.4g} nats"
    which = "" if objective.filter_scope == "all" else ", completions of negative advantage only"
    if objective.filter == "never":
        return "off (objective.filter never)"
    if objective.filter == "always":
        return f"on (objective.filter always): drops {threshold}{which}"
    run_json = Path("results") / "train" / config.run_name / "run.json"
    stored = read_json(run_json).get("initial_entropy") if run_json.is_file() else None
    if stored is None:
        return (
            f"auto: on iff H_ini < ln 2, measured before step 0 on the first 100 samples; then drops {threshold}{which}"
        )
    from gtpo.entropy import Calibration, describe_gate

    decision = describe_gate(objective, Calibration.from_record(stored))
    return f"{decision}, stored in {run_json}; where on, drops {threshold}{which}"


def _missing(config: TrainConfig) -> list[str]:
    """Name what this run needs and this environment lacks."""
    return [
        f"{package} ({purpose}): {install_command(extra)}"
        for purpose, package, extra in needed_packages(config)
        if not installed(package)
    ]


def _awaits_a_run(name: str | None) -> bool:
    """Return whether a model's name means a train run, whose weights may be made before this one starts."""
    runs = Path("results") / "train"
    return name is not None and (runs in Path(name).parents or (runs / name).is_dir())


def dry_run(config: TrainConfig, *, json_output: bool = False) -> None:
    """Print the resolved run on stdout, as text or as one JSON object. Raises UserError on what would refuse it."""
    problems = check_inputs(config)
    tokenizer = shape = None
    name = config.model.model_name
    with nullcontext() if name is None or Path(name).exists() else cache_if_unreachable():
        try:
            weights = find_weights(config.model)
            tokenizer, why = _tokenizer(config, weights)
            shape, origin = find_shape(config.model, weights.source)
        except UserError as error:
            if not _awaits_a_run(name):
                raise
            why = origin = str(error)
    report, note = _dataset(problems, tokenizer, why)
    steps = _steps(config, report.kept if report else None, launched_processes())
    memory = forecast(config, shape) if shape else None
    if json_output:
        summary = {
            "config": config.as_dict(),
            "dataset": report.as_dict() if report else None,
            "dataset_note": note,
            "steps": steps,
            "gate": gate_line(config),
            "memory": _memory_json(memory, origin),
            "missing_here": _missing(config),
        }
        json.dump(summary, sys.stdout, indent=2)
        print()
        return
    print(config.to_yaml(width=min(100, columns_of_stdout(120) - 20)))  # a word that crosses it still fits
    print("Dataset")
    _print_lines([*(report.lines() if report else []), *([note] if note else [])])
    print("\nSteps")
    for name, value in steps.items():
        print(
            f"  {name.replace('_', ' '):38} {value:>12,g}"
            if value < 1e6
            else f"  {name.replace('_', ' '):38} {value:>12,}"
        )
    print("\nEntropy gate")
    _print_lines([gate_line(config)])
    print()
    print(folded(f"Memory forecast, per GPU{_engine(memory, config)} ({origin})"))
    _print_lines(_memory_lines(memory, config), hanging=36 if memory else 0)
    if missing := _missing(config):
        print("\nMissing in this environment")
        _print_lines(missing)
    print()
    print(folded("Dry run: nothing was trained or written. Without --dry-run the same command starts the run."))


def _print_lines(lines: list[str], hanging: int = 0) -> None:
    """Print the lines of a section; hanging: columns before the text of a row, for rows of a table."""
    for line in lines:
        print(folded(f"  {line}", 2 + (hanging if line[hanging - 2 : hanging] == "  " else 0)))


def _engine(memory: Forecast | None, config: TrainConfig) -> str:
    """Say for which rollout engine the forecast is."""
    if memory is None or memory.engine == "none":
        return ""
    how = "; auto takes vLLM where it is installed: --rollout.engine vllm" if config.rollout.engine == "auto" else ""
    return f", for rollout.engine {memory.engine}{how}"


def _memory_lines(memory: Forecast | None, config: TrainConfig) -> list[str]:
    if memory is None:
        return ["none: the model's dimensions are not known"]
    unit, scale = ("GiB", 1.0) if memory.training_gib >= 1 else ("MiB", 1024.0)
    lines = [f"{part.name:20} {part.gib * scale:9.2f} {unit}  {part.basis}" for part in memory.parts]
    lines.append(f"{'sum':20} {memory.training_gib * scale:9.2f} {unit}  every sequence at its greatest length")
    if memory.vllm_share:
        lines.append(
            f"{'vLLM':20} {memory.vllm_share:9.0%}      of the GPU (model.gpu_memory_utilization), which must hold its "
            f"own {memory.vllm_weights_gib:.1f} GiB of weights and the KV cache"
        )
    if memory.training_gib >= 1:
        size = memory.smallest_gpu()
        lines.append(
            f"fits a GPU of {size} GiB (an estimate)"
            if size
            else "fits no single GPU: lower training.per_device_train_batch_size (raise gradient_accumulation_steps), "
            "turn on training.gradient_checkpointing, or shard (docs/scale.md)"
        )
    if not config.training.gradient_checkpointing and memory.training_gib >= 8:
        lines.append("training.gradient_checkpointing true would cut the activations")
    return lines


def _memory_json(memory: Forecast | None, origin: str) -> dict[str, Any]:
    if memory is None:
        return {"from": origin, "parts": None}
    return {
        "from": origin,
        "parts": {part.name: {"gib": round(part.gib, 4), "basis": part.basis} for part in memory.parts},
        "rollout_engine": memory.engine,
        "training_gib": round(memory.training_gib, 4),
        "vllm_share": memory.vllm_share,
        "vllm_weights_gib": round(memory.vllm_weights_gib, 4),
        "smallest_gpu_gib": memory.smallest_gpu(),
    }
