"""The folder of a train run: its files, who may write to it, and where a run resumes from.

config.yaml      the resolved config
run.json         what ran: versions, hardware, seeds, H_ini and the gate's decision, wall time, status
metrics.jsonl    one line per step
checkpoints/     checkpoint-N, each whole or absent
best/ final/     weights (or adapter) and tokenizer; best.json says why
base/            only where an adapter, TRL's KL term or vLLM refers to weights that are nowhere else
completions/     parquet, one file per logged step
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock

from gtpo.common.errors import UserError
from gtpo.common.files import (
    DISK_FULL,
    LOCK_FILES,
    check_schema_version,
    flatten,
    lock_folder,
    read_json_object,
    write_json,
    write_text,
)
from gtpo.common.log import LOG
from gtpo.config import TrainConfig
from gtpo.config.document import Findings, read_document
from gtpo.config.load import validate
from gtpo.run.logs import drop_metrics_after

SCHEMA_VERSION = 1

PARTIAL = ".partial"
"""Checkpoints are written here and renamed into place, so that a name `checkpoint-N` always means a whole one."""

ENDED = ("finished", "collapsed")
"""Statuses of a run that is not resumed."""

LONGEST_NAME = 255
"""Bytes in the name of a folder, on all common file systems."""

FREE_KEYS = frozenset(
    {
        "env.CUDA_VISIBLE_DEVICES",
        "model.gpu_memory_utilization",
        "dataset.data_dir",
        "training.save_steps",
        "training.save_total_limit",
        "training.report_to",
        "training.log_completions_steps",
        "rollout.server_host",
        "rollout.server_port",
        "rollout.logp_difference_alarm",
    }
)
"""Keys that may differ between a run and its continuation: they change no number."""


def first_difference(old: TrainConfig, new: TrainConfig) -> tuple[str, Any, Any] | None:
    """Return (dotted key, old value, new value) of the first key that separates two resolved configs, or None."""
    before, after = flatten(old.as_dict()), flatten(new.as_dict())
    for key in {**before, **after}:
        if key not in FREE_KEYS and before.get(key) != after.get(key):
            return key, before.get(key), after.get(key)
    return None


def out_of_space(error: BaseException) -> bool:
    """Return whether an error says that the disk is full: the system's own, or that of safetensors or torch."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    text = str(error).lower()
    return any(
        words in text for words in ("no space left", "disk quota", "failed writing", "writing file", "os error 28")
    )


def last_checkpoint(checkpoints: Path) -> Path | None:
    """Return the whole checkpoint of the highest step in a folder, or None."""
    found = [path for path in checkpoints.glob("checkpoint-*") if path.name.split("-")[1].isdigit()]
    return max(found, key=lambda path: int(path.name.split("-")[1]), default=None)


def no_room(checkpoints: Path, what: str) -> UserError:
    """Return the error of a full disk, with what the run resumes from."""
    kept = last_checkpoint(checkpoints)
    return UserError(
        f"no room on disk {what}. "
        + (f"{kept.name} is whole: " if kept else "There is no checkpoint yet: ")
        + "free some space; the same command resumes the run"
    )


class TrainFolder:
    """One run on disk. Anyone may read it; only the main process writes, and holds the lock."""

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
        self._lock: FileLock | None = None

    # -- reading ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Return run.json, or an empty dict for a new folder. Raises UserError on a newer schema."""
        if not self.run_json.exists():
            return {}
        run = read_json_object(self.run_json)
        check_schema_version(self.run_json, run.get("schema_version", 0), SCHEMA_VERSION)
        return run

    def stored_config(self) -> TrainConfig:
        """Return the run's config; a key that an earlier version did not have takes its default.

        Raises UserError where the file is of a version whose keys are not those of this one.
        """
        try:
            return validate(read_document(self.config_yaml), Findings())
        except UserError as error:
            first = str(error).splitlines()[0]
            raise UserError(
                f"{self.root} holds a run that this version of gtpo cannot resume ({first}). Choose another run_name "
                "(--run-name), or resume it with the version that run.json names; nothing was overwritten"
            ) from None

    def has_begun(self) -> bool:
        """Return whether the run made a step that anything is left of."""
        measured = self.metrics_jsonl.exists() and bool(self.metrics_jsonl.read_bytes().strip())
        return measured or last_checkpoint(self.checkpoints) is not None or self.run().get("status") in ENDED

    def check_config(self, config: TrainConfig) -> None:
        """Refuse to resume with another config. Raises UserError naming the first key that differs.

        A start that failed before its first step binds nothing: `start` replaces it.
        """
        if (length := len(self.root.name.encode())) > LONGEST_NAME:
            raise UserError(f"run_name: {length} bytes in UTF-8; the name of a folder has at most {LONGEST_NAME}")
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"{self.root} is a file, where the run folder is to be; choose another run_name")
        if not self.config_yaml.exists():
            if self.root.exists() and {path.name for path in self.root.iterdir()} - LOCK_FILES:
                raise UserError(f"{self.root} exists and is no train run (no config.yaml); choose another run_name")
            return
        if not self.has_begun():
            return
        difference = first_difference(self.stored_config(), config)
        if difference is not None:
            key, before, after = difference
            raise UserError(
                f"{self.root} holds a run with {key} = {before!r}, now {after!r}. Choose another run_name "
                f"(--run-name), restore the key, or move the folder away; nothing was overwritten"
            )

    def check_same(self, processes: int, dtype: str | None = None) -> None:
        """Refuse to resume with what the run's numbers depend on and no key says. Raises UserError naming both values.

        processes: their number; dtype: of the weights, None where they are not loaded yet.
        """
        run = self.run()
        if (before := run.get("processes", processes)) != processes:
            raise UserError(
                f"{self.root} was trained by {before} process(es), now {processes}: batches and data order follow from "
                f"the number. Resume it with {before}, or choose another run_name (--run-name)"
            )
        if dtype and (before := run.get("dtype", dtype)) != dtype:
            raise UserError(
                f"{self.root} was trained in {before}, and model.dtype means {dtype} on this machine: resume it where "
                "it ran, or choose another run_name (--run-name)"
            )

    # -- writing ---------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the folder for this process until it ends. Raises UserError if another process writes to it."""
        self._lock = lock_folder(self.root)

    def unlock(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def start(self, config: TrainConfig) -> None:
        """Write the config and remove what an interrupted write left behind.

        If the folder holds another config, it must be that of a start without a step (UserError else): what
        depends on it goes.
        """
        self.check_config(config)  # again, under the lock: another process may have been quicker
        self.remove_partial()
        if self.config_yaml.exists() and not self.has_begun() and (changed := self._changed(config)):
            LOG.warning(f"{self.root}: replacing a start that made no step ({changed})")
            shutil.rmtree(self.base, ignore_errors=True)  # weights of the other model
            self.run_json.unlink(missing_ok=True)  # H_ini of the other policy
        write_text(self.config_yaml, config.to_yaml())

    def _changed(self, config: TrainConfig) -> str | None:
        """Return how `config` differs from the stored one, None where it does not."""
        try:
            difference = first_difference(self.stored_config(), config)
        except UserError:
            return "its config is of another version"
        return None if difference is None else "{}: {!r}, now {!r}".format(*difference)

    def remove_partial(self) -> None:
        """Remove what an interrupted write left behind."""
        shutil.rmtree(self.checkpoints / PARTIAL, ignore_errors=True)
        for folder in (self.best, self.final, self.base):
            shutil.rmtree(folder.with_name(PARTIAL + "-" + folder.name), ignore_errors=True)

    def update_run(self, **fields: Any) -> None:
        """Merge `fields` into run.json."""
        write_json(self.run_json, {"schema_version": SCHEMA_VERSION, **self.run(), **fields})

    def drop_after(self, step: int) -> None:
        """Remove the metrics and completions of later steps: they will be made again."""
        drop_metrics_after(self.metrics_jsonl, step)
        for path in self.completions.glob("step-*.parquet"):
            if int(path.stem.split("-")[1]) > step:
                path.unlink()


def replace_folder(source: Path, target: Path) -> None:
    """Put the folder `source` in the place of `target`, which may exist; both on one file system."""
    old = target.with_name(f"{PARTIAL}-old-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(source, target)
    shutil.rmtree(old, ignore_errors=True)
