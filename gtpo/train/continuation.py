"""Whether a command goes on with the train run that a folder holds, or begins one there."""

from __future__ import annotations

import shutil

from gtpo.common.errors import UserError
from gtpo.common.files import LOCK_FILES, flatten, write_text
from gtpo.common.log import LOG
from gtpo.config import TrainConfig
from gtpo.config.load import layers, merged, to_config
from gtpo.runs.train_run import TrainFolder

# Keys that may differ between a run and its continuation: they change no number.
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


def _difference(folder: TrainFolder, config: TrainConfig) -> str | None:
    """Return the first key that separates a config from the run's, with both values; None if nothing does.

    A key that is unset and has lost its default takes the run's value. Raises UserError if the run's config is of a
    version whose keys are not those of this one; a key that an earlier version did not have takes its default.
    """
    try:
        before = flatten(to_config(merged(layers(folder.config_yaml), folder.root.name)).as_dict())
    except UserError as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"{folder.root} holds a run that this version of gtpo cannot resume ({first}). Choose another run_name "
            "(--run-name), or resume it with the version that run.json names; nothing was overwritten"
        ) from None
    # Its default was false before it followed from the objective: unset, a run goes on as it began.
    if config.rollout.importance_sampling_correction is None:
        config.rollout.importance_sampling_correction = before.get("rollout.importance_sampling_correction")
    # An objective is compared field by field: a preset may have been changed since.
    after = flatten(config.as_dict())
    changed = (key for key in {**before, **after} if key not in FREE_KEYS and before.get(key) != after.get(key))
    return next((f"{key} = {before.get(key)!r}, now {after.get(key)!r}" for key in changed), None)


def check_config(folder: TrainFolder, config: TrainConfig) -> str | None:
    """Refuse to resume with another config. Raises UserError naming the first key that differs.

    A start that failed before its first step binds nothing: why it is to be replaced is returned.
    """
    try:
        names = {path.name for path in folder.root.iterdir()} if folder.root.exists() else set[str]()
    except OSError as error:
        raise UserError(f"{folder.root} cannot be a run folder ({error.strerror}); choose another run_name") from None
    if folder.config_yaml.name not in names:
        if names - LOCK_FILES:
            raise UserError(f"{folder.root} exists and is no train run (no config.yaml); choose another run_name")
        return None
    begun = folder.has_begun()
    try:
        difference = _difference(folder, config)
    except UserError:
        if begun:
            raise
        return "its config is of another version"
    if difference and begun:
        raise UserError(
            f"{folder.root} holds a run with {difference}. Choose another run_name (--run-name), restore the key, or "
            "move the folder away; nothing was overwritten"
        )
    return difference


def check_same(folder: TrainFolder, processes: int, dtype: str | None = None) -> None:
    """Refuse to resume with what the run's numbers depend on and no key says. Raises UserError naming both values.

    processes: their number; dtype: of the weights, None if they are not loaded yet.
    """
    run = folder.run()
    for name, now in (("processes", processes), ("dtype", dtype)):
        if now is not None and (before := run.get(name, now)) != now:
            raise UserError(
                f"{folder.root} was trained with {name} {before}, and it is {now} here: its numbers follow from that. "
                "Resume it as it was, or choose another run_name (--run-name)"
            )


def begin(folder: TrainFolder, config: TrainConfig) -> None:
    """Write the config; remove what an interrupted write left behind, and what depends on a replaced start's config."""
    # Again, under the lock: another process may have been quicker.
    changed = check_config(folder, config)
    folder.remove_partial()
    if changed:
        LOG.warning(f"{folder.root}: replacing a start that made no step ({changed})")
        shutil.rmtree(folder.base, ignore_errors=True)  # weights of the other model
        folder.run_json.unlink(missing_ok=True)  # H_ini of the other policy
    write_text(folder.config_yaml, config.to_yaml())
