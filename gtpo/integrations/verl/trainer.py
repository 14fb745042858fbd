"""GTPO as a verl trainer, registered from outside: `trainer.v1.trainer_mode: gtpo_sync`.

A verl policy loss or advantage estimator sees neither the token ids of a group nor the entropies. A v1 trainer sees
both, for the whole batch and before any split: between verl's own advantages and the update it writes GTPO's
token-level advantages (`gtpo.integrations.verl.advantages`) over them. Rollouts, log-probabilities, entropies, the
update and the checkpoints are verl's.

Before the first step the filter `auto` measures H_ini on the first 100 training samples through verl's own rollout
and stores it beside the checkpoints, where a resumed run reads it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_to_nested

from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_json
from gtpo.common.log import LOG, start_logging
from gtpo.entropy import SAMPLES, Calibration, describe_gate, summarise
from gtpo.integrations.verl.advantages import mean_entropy, token_advantages
from gtpo.integrations.verl.settings import TRAINER_MODE, check_settings
from gtpo.objective import LossFunction, policy_loss
from gtpo.own_loss import needs_entropy_gradient, user_loss

# H_ini, in verl's `trainer.default_local_dir`.
CALIBRATION_FILE = "initial_entropy.json"


@register_trainer(TRAINER_MODE)
class GTPOTrainerSync(PPOTrainerSync):
    """verl's synchronous trainer with GTPO's objective; the config section `gtpo` says which.

    Raises UserError, before anything is loaded, for settings under which verl's loss would not be GTPO's, and for a
    run to resume whose H_ini is not stored.
    """

    def __init__(self, config: DictConfig) -> None:
        start_logging()
        self.settings = check_settings(OmegaConf.to_container(config, resolve=True))
        self.loss_function: LossFunction = policy_loss
        if name := self.settings.objective.loss:
            # Tried before anything is loaded. verl's loss has no place for a gradient of entropies but its own bonus.
            self.loss_function = user_loss(self.settings.objective)
            if needs_entropy_gradient(self.settings.objective, self.loss_function):
                raise UserError(
                    f"gtpo.loss {name} differentiates the entropies, which verl's policy loss does not; train it with "
                    "gtpo train or GTPOTrainer"
                )
        self.folder = Path(config.trainer.default_local_dir).absolute()
        given = self.settings.initial_entropy
        self.calibration: Calibration | None = None if given is None else Calibration(given)
        if self.settings.needs_calibration:
            self.calibration = _stored_calibration(config.trainer)
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        """`sync`: verl asks this name which replay buffer and which checkpoints a trainer needs."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, name: str) -> None:
        """Take no notice: verl's constructor assigns the registered name."""

    # -- H_ini -------------------------------------------------------------------------------------------------------

    def on_train_begin(self) -> None:
        """Measure H_ini on the untrained policy, if the filter is `auto` and it is not known."""
        super().on_train_begin()
        if self.settings.needs_calibration:
            if self.calibration is None:
                self.calibration = self._measure()
            record = {
                **self.calibration.record(),
                "model": self.config.actor_rollout_ref.model.path,
                "temperature": self.config.actor_rollout_ref.rollout.temperature,
            }
            write_json(self.folder / CALIBRATION_FILE, record)
        LOG.info(describe_gate(self.settings.objective, self.calibration))

    def _measure(self) -> Calibration:
        """Sample one completion for each of the first training samples; the order of the data stays as it was."""
        count = min(SAMPLES, len(self.train_dataset))
        LOG.info(f"measuring H_ini on the untrained policy: {count} samples")
        rows = collate_fn([self.train_dataset[index] for index in range(count)])
        rows["uid"] = np.array([str(uuid.uuid4()) for _ in range(count)], dtype=object)
        rows["__rollout_n__"] = np.array([1] * count, dtype=object)
        prompts = tensordict_utils.get_tensordict(rows)
        tensordict_utils.assign_non_tensor_data(prompts, "global_steps", self.global_steps)
        self._submit_batch_to_rollout(prompts)
        batch, _ = self.replay_buffer.sample(global_steps=self.global_steps, partition_id="train", batch_size=count)
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        self.checkpoint_manager.sleep_replicas()
        batch = self._compute_old_log_prob(self._balance_batch(batch, metrics={}), metrics={})
        data = self._read(batch, "entropy", "response_mask").to_padded_tensor(0)
        mask = data["response_mask"].bool()
        sampled = mask.any(dim=1)  # the others are verl's padding
        calibration = summarise(mean_entropy(data["entropy"][sampled], mask[sampled]))
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        # The rollout engine takes its memory back.
        self.checkpoint_manager.update_weights(self.global_steps)
        return calibration

    # -- the objective -----------------------------------------------------------------------------------------------

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        for key in batch.keys:
            if not key.endswith("_0"):
                raise ValueError(f"sample {key}: GTPO needs agent loops with one output per sample")
        tensors = ("responses", "response_mask", "rm_scores", "entropy", "old_log_probs")
        data = self._read(batch, "uid", "extra_fields", *tensors)
        prompts = [str(uid) for uid in _objects(data, "uid")]
        nested_mask = data["response_mask"]
        padded = data.select(*tensors).to_padded_tensor(0)
        mask, ids = padded["response_mask"].bool(), padded["responses"]
        # What the reward function returned beside the score; a number has nothing beside it.
        fields = _objects(data, "extra_fields") if "extra_fields" in data else [None] * len(batch)
        infos = [each.get("reward_extra_info", {}) if isinstance(each, Mapping) else {} for each in fields]
        rewards = padded["rm_scores"].sum(dim=1).double()
        rewards[[bool(info.get("unscored")) for info in infos]] = torch.nan
        initial_entropy = None if self.calibration is None else self.calibration.initial_entropy
        lengths = mask.sum(dim=1)
        ended = ids.gather(1, (lengths - 1).clamp(min=0)[:, None]).squeeze(1) == self.tokenizer.eos_token_id
        progress = (self.global_steps - 1) / max(self.total_training_steps, 1)
        found = token_advantages(
            self.settings.objective, ids, mask, rewards, padded["entropy"], prompts, progress=progress,
            batch_rows=self.settings.batch_rows, token_logps=padded["old_log_probs"], initial_entropy=initial_entropy,
            truncated=(lengths >= self.settings.max_completion_length) & ~ended, loss_function=self.loss_function,
        )  # fmt: skip
        metrics.update(found.metrics)
        scored = [info for info, sampled in zip(infos, mask.any(dim=1).tolist(), strict=True) if sampled]
        for name in ("accuracy", "format"):
            values = [info[name] for info in scored if name in info and not info.get("unscored")]
            if values:
                metrics[f"reward/{name}"] = float(np.mean(values))
        ours = TensorDict({"advantages": response_to_nested(found.advantages, nested_mask)}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=ours)

    def _read(self, batch: KVBatchMeta, *fields: str) -> TensorDict:
        return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))


def _objects(data: TensorDict, field: str) -> list[Any]:
    """Return a field that holds no tensors, per row; storage backends hand it out as a stack, an array or a list."""
    values = data[field]
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _stored_calibration(trainer: DictConfig) -> Calibration | None:
    """Return the H_ini of the run that verl is going to resume, None for a fresh run. Raises UserError without one."""
    folder = None
    if trainer.resume_mode == "resume_path":
        folder = trainer.resume_from_path
    elif trainer.resume_mode == "auto":
        folder = find_latest_ckpt_path(os.path.abspath(trainer.default_local_dir))
    if folder is None:
        return None
    path = Path(folder).absolute().parent / CALIBRATION_FILE
    if not path.is_file():
        raise UserError(
            f"{path}: no such file, and H_ini can no longer be measured: the policy in {path.parent} is a trained one. "
            "Set gtpo.initial_entropy to the untrained model's entropy in nats, or gtpo.filter to always or never"
        )
    return Calibration.from_record(read_json(path))
