"""The command line of `gtpo train`: a config, a few options of the command, and every key of the config as a flag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from gtpo.common.errors import UserError
from gtpo.common.settings import CommandSettings, option

# The config of ours that `gtpo train --model M --data D` starts from.
START = "recipes/start"


class TrainOptions(CommandSettings):
    """The options of one `gtpo train` command beside its config's keys. Raises UserError that names the flag."""

    COMMAND: ClassVar[str] = "gtpo train"
    ARGUMENT: ClassVar[str] = "config"
    USED_MOST = (
        ("--model NAME", "Hub name, model folder or train run."),
        ("--data NAME", "gsm8k, math, arithmetic, or a .jsonl or .parquet file."),
        ("--method NAME", "gtpo (default), grpo or sft."),
        ("--run-name NAME", "The run's folder is results/train/NAME."),
        ("--max-tokens N", "Longest completion, training.max_completion_length."),
        ("--training.max_steps N", "Optimizer steps; --help-config lists every other key."),
    )

    config: str | None = option(
        None, "A YAML file, or the name of a config that comes with gtpo (gtpo configs lists them)."
    )
    dry_run: bool = option(False, "Print what would run and a memory forecast (--verbose: every key).")
    processes: int | None = option(None, "With --dry-run: training processes, as torchrun would start them.", ge=1)
    shard: Literal["fsdp2", "zero3"] | None = option(None, "With --dry-run and --processes: what divides the model.")
    help_config: bool = option(False, "Print every key: type, range, default, meaning.")
    quiet: bool = option(False, "Only warnings and errors on stderr.")
    verbose: bool = option(False, "More detail on stderr, also from the libraries.")
    json_output: bool = option(False, "Print the result as JSON on stdout.", "--json")

    def check_together(self) -> None:
        """Check what more than one option decides."""
        if self.quiet and self.verbose:
            raise UserError("--quiet and --verbose exclude each other")
        if (self.processes is not None or self.shard) and not self.dry_run:
            raise UserError("--processes and --shard describe a run for --dry-run; torchrun starts its processes")
        if self.shard and (self.processes or 1) < 2:
            raise UserError(f"--shard {self.shard} divides the model over --processes N, at least 2")


def read_command(words: Iterable[str]) -> tuple[TrainOptions, dict[str, Any]]:
    """Return the options of a command line, and all other flags (without their dashes) with their text or words."""
    # Here, and not above: the help does not need it.
    from gtpo.config.schema import full_name, keys

    options, overrides = TrainOptions.split(words, lambda flag: keys().get(full_name(flag)))
    return TrainOptions(**options), overrides


def from_flags(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of START if no config is named, with a run name. UserError without a model or data."""
    from gtpo.config.schema import full_name

    values = {full_name(flag): value for flag, value in overrides.items()}
    model, data = values.get("model.model_name"), values.get("dataset.name")
    if not model or not data:
        raise UserError(
            "gtpo train needs a config, e.g. gtpo train demo/gtpo (gtpo configs lists them), or a model and data, e.g. "
            f"gtpo train --model {model or 'Qwen/Qwen2.5-0.5B-Instruct'} --data {data or 'gsm8k'} --method gtpo"
        )
    # The same flags name the same folder: the same command again resumes the run.
    name = "-".join((Path(model).name, Path(data).name.partition(".")[0], values.get("method") or "gtpo")).lower()
    return {"run_name": re.sub(r"[^a-z0-9._-]+", "-", name), **overrides}
