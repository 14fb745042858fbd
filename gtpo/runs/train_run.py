"""The folder of a train run: its files (results/FILES.md), who may write to it, and where a run resumes from.

A checkpoint is whole or absent. base/ is there only if an adapter, TRL's KL term or vLLM refers to weights that are
nowhere else.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import flatten, read_json, read_yaml, write_json, write_parquet, write_text
from gtpo.common.provenance import text_hash
from gtpo.runs.eval_folder import read_table
from gtpo.runs.prompt import PromptRecord

# Where names are looked up: results/train/NAME and results/eval/NAME under the working directory.
RESULTS = Path("results")
# 2: run.json has the prompt's record. 4: hashes of the data and the rewards.
SCHEMA_VERSION = 4
COMPLETIONS_SCHEMA = 1
PROBLEMS = "problems.txt"
# Checkpoints are written here and renamed into place, so that a name `checkpoint-N` always means a whole one.
PARTIAL = ".partial"
# A file beside weights that lie elsewhere than in their run's folder: the run's id, and where its folder is from here.
RUN_ID = "gtpo_run.json"
# The status in run.json of a training whose policy collapsed.
COLLAPSED = "collapsed"
# Statuses of a run that is not resumed.
ENDED = ("finished", COLLAPSED)

# Step that the round was sampled for; prompt's and completion's place in it; the user's turn; the completion's tokens
# as text and lambda of each; A_i, <H>_i in nats, whether the entropy gate let it count. Further: reward_NAME, float32,
# of each reward function, and reward_format and reward_accuracy; null is unscored.
COMPLETION_COLUMNS = {
    "step": pa.int64(),
    "group": pa.int32(),
    "completion_index": pa.int32(),
    "prompt": pa.string(),
    "tokens": pa.list_(pa.string()),
    "weight": pa.list_(pa.float32()),
    "advantage": pa.float32(),
    "entropy": pa.float32(),
    "kept": pa.bool_(),
}

# TRL's names -> ours, of what is logged under one name only.
OF_TRL = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "kl": "kl",
    "mean_token_accuracy": "tokens/accuracy",
    "num_tokens": "tokens/seen",
    "epoch": "epoch",
    "entropy_coef": "entropy/coefficient",
    "cispo_clip_ratio": "clip_ratio/high_mean",
    "aux_loss": "router/aux_loss",
    "completions/mean_length": "completions/length",
    "completions/clipped_ratio": "completions/truncated",
}


def checkpoint_step(checkpoint: Path | None) -> int:
    """Return the step in the name of a checkpoint; 0 if there is none."""
    word, _, number = (checkpoint or Path()).name.partition("-")
    return int(number) if word == "checkpoint" and number.isdigit() else 0


def last_checkpoint(checkpoints: Path) -> Path | None:
    """Return the whole checkpoint of the highest step in a folder, or None."""
    return max(filter(checkpoint_step, checkpoints.glob("checkpoint-*")), key=checkpoint_step, default=None)


class TrainFolder:
    """One train run on disk. Anyone may read it; only the main process of a training writes, under `lock_folder`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_yaml = root / "config.yaml"
        self.run_json = root / "run.json"
        self.metrics_jsonl = root / "metrics.jsonl"
        self.checkpoints = root / "checkpoints"
        self.best = root / "best"
        self.final = root / "final"
        self.completions = root / "completions"
        self.base = root / "base"

    # -- reading ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Return run.json as it is now, or an empty dict if there is none. Raises UserError on a newer schema."""
        return read_json(self.run_json, SCHEMA_VERSION) if self.run_json.exists() else {}

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return str(self.run().get("run_name") or self.root.resolve().name)

    @property
    def preset(self) -> str:
        """Return the objective's preset, or the method (sft) if there is none; empty if unknown."""
        about = self.run()
        return str(about.get("preset") or about.get("method") or "")

    @property
    def status(self) -> str:
        """Return the status in run.json; `unknown` if there is none."""
        return str(self.run().get("status") or "unknown")

    @property
    def collapsed(self) -> bool:
        """Return whether training was seen to collapse."""
        return self.status == COLLAPSED

    def config(self) -> dict[str, Any] | None:
        """Return config.yaml as one level with dotted keys; None if there is none. Raises UserError."""
        if not self.config_yaml.is_file():
            return None
        settings = flatten(read_yaml(self.config_yaml, "a mapping of sections")[0])
        # Unset, it follows from the objective and the engine.
        corrected = "importance_sampling_correction"
        if f"rollout.{corrected}" in settings and (resolved := self.run().get(corrected)) is not None:
            settings[f"rollout.{corrected}"] = resolved
        return settings

    def prompt(self) -> PromptRecord:
        """Return the record of its prompt; of a run of before there was one, what its config says. Raises UserError."""
        run = self.run()
        if (record := run.get("prompt")) is not None:
            return PromptRecord.model_validate(record)
        config = read_yaml(self.config_yaml, "a mapping of sections")[0] if self.config_yaml.is_file() else {}
        # A script's config is that of its trainer, without sections.
        kwargs = (config.get("training") or config).get("chat_template_kwargs")
        system, started = (config.get("dataset") or {}).get("system_instruction"), run.get("started")
        return PromptRecord(system=system, chat_template_kwargs=kwargs, time=started)

    @property
    def output(self) -> Path | None:
        """Return the output_dir of a script that logs here; None of `gtpo train`, whose weights are in the folder."""
        elsewhere = self.run().get("weights")
        return None if elsewhere is None else (self.root / str(elsewhere)).resolve()

    def weights(self, checkpoint: str | None = None) -> Path:
        """Return the folder of its weights: best/, else final/; or a checkpoint by name or path. Raises UserError."""
        names, output = ["best", "final"] if checkpoint is None else [checkpoint], self.output
        homes = [self.root, *filter(None, [output])]
        if named := checkpoint not in (None, "best", "final"):
            homes += [self.checkpoints, Path()]
        places = [home / name for name in names for home in homes]
        if output is not None and "final" in names:
            saved = any((output / name).is_file() for name in ("config.json", "adapter_config.json"))
            places += filter(None, [output if saved else last_checkpoint(output)])
        if folder := next(filter(Path.is_dir, places), None):
            return folder
        if named:
            near = did_you_mean(str(checkpoint), ["best", "final", *(p.name for p in self.checkpoints.glob("*-*"))])
            raise UserError(f'train run {self.root} has no checkpoint "{checkpoint}".{near}')
        raise UserError(
            f"train run {self.root} has no {f'{checkpoint}/' if checkpoint else 'best/ or final/'} yet (status: "
            f"{self.status}); the command that started it resumes it; gtpo eval --checkpoint chooses other weights"
        )

    def kind_of(self, weights: Path) -> str:
        """Return best, final or the checkpoint's name for weights of this run; else their path."""
        if weights == self.output:
            return "final"
        return weights.name if weights.parent in (self.root, self.checkpoints, self.output) else str(weights)

    def metrics(self) -> dict[float, dict[str, Any]]:
        """Return the logged metrics by step. Of a step that a resumed run logged again, the last values count.

        A last line without its newline, which a writer or a kill has cut short, is left out. Raises UserError with its
        number for any other line that is no JSON object with a step.
        """
        rows: dict[float, dict[str, Any]] = {}
        lines = self.metrics_jsonl.read_bytes().split(b"\n") if self.metrics_jsonl.is_file() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                known = math.isfinite(row["step"])
            except (ValueError, TypeError, KeyError):
                known = False
            if known:
                rows[row["step"]] = rows.get(row["step"], {}) | row
            elif line.strip() and number < len(lines):
                raise UserError(f"{self.metrics_jsonl}:{number}: not a JSON object with a number as its step")
        return rows

    def began_from(self) -> str | None:
        """Return the weights that it began from, folder or Hub name; None if it built them and did not keep them."""
        base = str(self.run().get("base_model") or "built")
        return str(self.base) if self.base.is_dir() else None if base == "built" else base

    def base_run(self) -> TrainFolder | None:
        """Return the train run whose weights it began from; None if there is none."""
        return train_run_of([self.run().get("base_model")], self.root)

    def lineage(self) -> list[TrainFolder]:
        """Return the run, the run whose weights it began from, and so on."""
        runs = [self]
        while (base := runs[-1].base_run()) is not None and base.root.resolve() not in [r.root.resolve() for r in runs]:
            runs.append(base)
        return runs

    def trained_on(self, texts: Iterable[str]) -> int:
        """Return how many of these problems the run was trained on, or the run that it began from, by their texts."""
        files = [path for run in self.lineage() if (path := run.root / PROBLEMS).is_file()]
        known = {key for path in files for key in path.read_text(encoding="utf-8").split()}
        return sum(_text_key(text) in known for text in texts)

    def has_begun(self) -> bool:
        """Return whether the run made a step that anything is left of."""
        measured = self.metrics_jsonl.exists() and bool(self.metrics_jsonl.read_bytes().strip())
        return measured or last_checkpoint(self.checkpoints) is not None or self.run().get("status") in ENDED

    def completions_files(self) -> list[Path]:
        """Return the files of the logged rollouts, in order of their steps."""
        return sorted(self.completions.glob("*.parquet"))

    # -- writing ---------------------------------------------------------------------------------------------------

    def remove_partial(self) -> None:
        """Remove what an interrupted write left behind; put back a folder that was moved aside for a new one."""
        shutil.rmtree(self.checkpoints / PARTIAL, ignore_errors=True)
        for folder in (self.best, self.final, self.base):
            new, old = (folder.with_name(f"{PARTIAL}{part}-{folder.name}") for part in ("", "-old"))
            if old.exists() and not folder.exists():
                old.rename(folder)
            for part in (new, old):
                shutil.rmtree(part, ignore_errors=True)

    def update_run(self, **fields: Any) -> None:
        """Merge `fields` into run.json."""
        write_json(self.run_json, {"schema_version": SCHEMA_VERSION, **self.run(), **fields})

    def write_problems(self, texts: Iterable[str]) -> None:
        """Note the problems that are trained on, as a hash of each text, beside those that were before."""
        path, keys = self.root / PROBLEMS, set(map(_text_key, texts))
        keys |= set(path.read_text(encoding="utf-8").split() if path.is_file() else ())
        write_text(path, "".join(f"{key}\n" for key in sorted(keys)))

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl. A value that is not finite becomes null and is named in `nonfinite`."""
        bad = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        clean = {key: None if key in bad else value for key, value in row.items()}
        if bad:
            clean["nonfinite"] = bad
        with self.metrics_jsonl.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(clean, allow_nan=False) + "\n")

    def drop_after(self, step: int) -> None:
        """Remove the metrics and completions of later steps, which will be made again, and a line that a kill cut."""
        if self.metrics_jsonl.exists():
            lines = self.metrics_jsonl.read_text(encoding="utf-8").split("\n")[:-1]
            write_text(
                self.metrics_jsonl, "".join(f"{line}\n" for line in lines if json.loads(line).get("step", 0) <= step)
            )
        for path in self.completions.glob("step-*.parquet"):
            if int(path.stem.split("-")[1]) > step:
                path.unlink()

    def write_completions(self, step: int, columns: Mapping[str, list[Any]]) -> None:
        """Write a rollout as completions/step-NNNNNN.parquet, whole or not at all.

        columns: those of `COMPLETION_COLUMNS`, and reward_NAME of each reward function.
        """
        table = pa.table({
            name: pa.array(values, COMPLETION_COLUMNS.get(name, pa.float32()), from_pandas=True)  # NaN is null
            for name, values in columns.items()
        }).replace_schema_metadata({"gtpo_schema_version": str(COMPLETIONS_SCHEMA)})  # fmt: skip
        write_parquet(self.completions / f"step-{step:06d}.parquet", table)


def _text_key(text: str) -> str:
    return text_hash(" ".join(text.split()))


def read_completions(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a logged rollout. Raises UserError if it is no file that gtpo train wrote."""
    table = read_table(path, remedy="remove it to go on", newest=COMPLETIONS_SCHEMA)
    for name in COMPLETION_COLUMNS:
        if name not in ("completion_index", "prompt", *table.column_names):
            raise UserError(f"{path}: column {name} is missing; remove it to go on")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def find_train_run(name: str, results: Path = RESULTS) -> TrainFolder | None:
    """Return the train run of a path or of a name under results/train; None if there is none."""
    places = (Path(name), results / "train" / name)
    return next((TrainFolder(place) for place in places if (place / "run.json").is_file()), None)


def train_run_of(names: Iterable[str | None], folder: Path) -> TrainFolder | None:
    """Return the train run that a run's files mean by its name or by the path of its weights; None if there is none.

    names: also paths, the surest first. They are looked up in the project of the run's folder, and in the working
    directory if that holds the folder: a run of that name in another project is another run.
    """
    # As given and as links lead to it: results/ or its parts may be links to a larger disk.
    places = Path(os.path.abspath(folder)), folder.resolve()
    homes = [place.parent.parent for place in places]
    homes += [RESULTS] if any(place.is_relative_to(Path.cwd()) for place in places) else []
    for results, name in itertools.product(homes, filter(None, names)):
        weights = results.parent / name
        # Weights of a script may lie anywhere; their id is surer than a name.
        if (run := run_by_id(weights)) is not None:
            return run
        for place in (weights, *weights.parents[:2], results / "train" / name):
            if (place / "run.json").is_file():
                return TrainFolder(place)
    return None


def run_by_id(weights: Path) -> TrainFolder | None:
    """Return the train run whose id lies beside weights; None if there is none, or its folder is another run's."""
    if not (weights / RUN_ID).is_file():
        return None
    about = read_json(weights / RUN_ID)
    run = TrainFolder((weights / str(about.get("folder"))).resolve())
    return run if about.get("id") and run.run().get("id") == about["id"] else None
