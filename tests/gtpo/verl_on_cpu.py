"""verl on a CPU: a platform for it, and completions sampled by transformers in place of an inference engine.

Named in VERL_USE_EXTERNAL_MODULES, so that every process of a run imports it. All else is verl's: Ray, TransferQueue,
agent loops, reward workers, the FSDP actor, the checkpoints.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
import verl.utils.distributed
from transfer_queue import KVBatchMeta
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _TorchCPU:
    """torch.cpu, with the calls of torch.cuda's that verl makes on every device."""

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = staticmethod(lambda *_: 0)
    mem_get_info = staticmethod(lambda *_: (0, 0))
    empty_cache = manual_seed = manual_seed_all = reset_peak_memory_stats = set_device = staticmethod(lambda *_: None)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda *_: "cpu")
    get_rng_state = staticmethod(lambda *_: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *_: torch.set_rng_state(state))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def __reduce__(self) -> Any:
        return _TorchCPU, ()


def _returning(value: Any) -> Any:
    return lambda *given, **options: value


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = _TorchCPU()
    is_available, device_count, is_ipc_supported = _returning(True), _returning(1), _returning(False)
    current_device, communication_backend_name = _returning(torch.device("cpu")), _returning("gloo")
    visible_devices_envvar, ray_noset_envvars = _returning("CUDA_VISIBLE_DEVICES"), _returning([])
    ray_resource_name = _returning("GPU")  # Ray is told that this machine has one
    get_device_capability = _returning((None, None))
    set_device = synchronize = set_allocator_settings = empty_cache = _returning(None)
    profiler_start = profiler_stop = cudart = _returning(None)

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def nvtx_range(self, msg):
        return contextlib.nullcontext()


_initialize_process_group = verl.utils.distributed.initialize_global_process_group_ray


def _initialize_gloo(timeout_second=None, backend=None):
    # verl asks for "cpu:gloo,DEVICE:BACKEND", which torch refuses where the device is the CPU itself.
    _initialize_process_group(timeout_second, backend="gloo")


verl.utils.distributed.initialize_global_process_group_ray = _initialize_gloo

from verl.trainer.ppo.v1.trainer_base import register_trainer  # noqa: E402
from verl.workers.rollout.llm_server import LLMServerClient  # noqa: E402
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput  # noqa: E402

from gtpo.integrations.verl.reward import final_score  # noqa: E402
from gtpo.integrations.verl.trainer import GTPOTrainerSync, _objects  # noqa: E402

RolloutReplicaRegistry.register("vllm", lambda: RolloutReplica)  # looked up, and with no replica never built


class TransformersClient(LLMServerClient):
    """Samples in the agent loop's own process, from the weights on disk: those of the untrained policy."""

    model: Any = None

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        if TransformersClient.model is None:
            from transformers import AutoModelForCausalLM

            torch.set_num_threads(1)
            torch.manual_seed(0)
            TransformersClient.model = AutoModelForCausalLM.from_pretrained(self.config.actor_rollout_ref.model.path)
        model = TransformersClient.model
        sampled = model.generate(
            torch.tensor([prompt_ids]),
            do_sample=True,
            temperature=sampling_params["temperature"],
            top_k=0,
            max_new_tokens=self.config.data.max_response_length,
            output_scores=True,
            return_dict_in_generate=True,
        )
        logps = model.compute_transition_scores(sampled.sequences, sampled.scores, normalize_logits=True)
        return TokenOutput(
            token_ids=sampled.sequences[0, len(prompt_ids) :].tolist(),
            log_probs=logps[0].tolist(),
            extra_fields=dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), 0),
        )


@register_trainer("gtpo_sync_on_cpu")
class GTPOTrainerOnCPU(GTPOTrainerSync):
    """The trainer as it is, without an inference engine; keeps what the actor is about to be trained on."""

    _enable_hybrid_replicas = False

    def get_llm_client(self):
        return TransformersClient(self.config)

    def _setup(self):
        super()._setup()
        self.checkpoint_manager.update_weights = lambda global_steps: None  # no engine to hand weights to

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        fields = ["prompts", "responses", "response_mask", "rm_scores", "entropy", "old_log_probs", "advantages", "uid"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        rows = {name: [row.clone() for row in data[name].unbind()] for name in fields[:-1]}
        folder = Path(os.environ["GTPO_TEST_BATCHES"])
        torch.save(rows | {"uid": [str(uid) for uid in _objects(data, "uid")]}, folder / f"step{self.global_steps}.pt")
        return super()._update_actor(batch, metrics)


def varied_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict[str, float]:
    """The reward of gtpo, varied by the text: an untrained model earns 0 for all, and equal rewards show nothing."""
    found = final_score(data_source, solution_str, ground_truth, extra_info)
    return found | {"score": found["score"] + len(solution_str) % 3, "unscored": float(len(solution_str) % 11 == 0)}
