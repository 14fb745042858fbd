"""Model copies as Ray actors, on this machine or a cluster: a vllm engine in each; Ray's ActorPool deals the questions.

A copy that dies is started again by Ray, which repeats the calls that it owed. One that has died too often is left out,
and its questions go to the others. A sample depends on its seed alone, so it is the same whichever copy draws it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions
from gtpo.evalkit.engines.base import Engine, EngineStopped, Generation, Sampling, Task, one_line
from gtpo.evalkit.engines.model_ref import ModelRef

RESTARTS = 4  # Ray starts a copy again so many times

# A copy has the questions of so many of its batches at a time: enough never to wait, few enough to end together.
BATCHES = 2

MOST_CALLS = 1000  # Calls that a copy takes at a time; each is one question

_TICK_S = 0.2

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about it
    "RAY_worker_niceness": "0",  # Ray's own default is 15
}  # What Ray reads from the environment, unless the user has set it


class ModelCopy:
    """One model copy, an asynchronous actor: each call is one question, and all of them share vLLM's batches."""

    def __init__(self, ref: ModelRef, sampling: Sampling, longest_prompt: int, options: dict[str, Any]) -> None:
        self._mistake: UserError | None = None
        # Sample -> what its call has so far, how many samples that call wants, and what ends it.
        self._calls: dict[tuple[str, str, int], tuple[list[Generation], int, asyncio.Future[None]]] = {}
        self._work: asyncio.Task[None] | None = None
        try:
            for folder in (ref.source, ref.adapter):
                if folder is not None and Path(folder).is_absolute() and not Path(folder).is_dir():
                    raise UserError(f"{folder} is not on every node of the cluster: put it on a shared file system")
            from gtpo.evalkit.engines.vllm import VLLMEngine

            self._engine = VLLMEngine(ref, sampling, longest_prompt, **options)
        except UserError as error:
            # Kept for `start`: raised here, it would be a death, and tried again.
            self._mistake = error

    async def start(self) -> tuple[dict[str, Any], int]:
        """Return the engine's description and its batch, once the model is loaded."""
        if self._mistake is not None:
            raise self._mistake
        return self._engine.describe(), self._engine.batch

    async def sample(self, question: int, task: Task) -> tuple[int, list[Generation]]:
        """Return the question's place in the run, and all of its missing samples."""
        # It was started again, and cannot load the model any more.
        if self._mistake is not None:
            os._exit(1)
        found: list[Generation] = []
        whole = asyncio.get_running_loop().create_future()
        for index in task.missing:
            self._calls[task.benchmark, task.question_id, index] = found, len(task.missing), whole
        self._engine.submit([task])
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._step())
        await whole
        return question, found

    async def _step(self) -> None:
        """Do vLLM's steps, one after another; calls come in and go out between them."""
        try:
            while self._engine.unfinished:
                for generation in self._engine.step():
                    found, wanted, whole = self._calls.pop(generation.key)
                    found.append(generation)
                    if len(found) == wanted:
                        whole.set_result(None)
                await asyncio.sleep(0)
        except BaseException:
            # vLLM is of no use any more: Ray starts the copy again.
            os._exit(1)


class RayEngine(Engine):
    """Copies of the model as Ray actors. Raises UserError if they do not fit or one of them does not start.

    copies: None for as many as the cluster's GPUs hold. address: of a cluster; None starts one on this machine.
    options: of `VLLMEngine`.
    """

    name = "vllm"

    def __init__(
        self,
        copies: int | None,
        ref: ModelRef,
        sampling: Sampling,
        longest_prompt: int,
        *,
        address: str | None = None,
        **options: Any,
    ) -> None:
        folder = str(ref.folder.resolve()) if ref.folder is not None else ref.source
        # Absolute paths: a copy may run in another folder.
        ref = replace(ref, source=folder, adapter=ref.adapter and ref.adapter.resolve())
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
            self._copies = [actor.remote(ref, sampling, longest_prompt, options) for _ in range(count)]
            started = ray.get([copy.start.remote() for copy in self._copies])
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
        self._described, batch = started[0]
        self._calls = max(1, min(MOST_CALLS, -(-BATCHES * batch // sampling.n)))

    def describe(self) -> dict[str, Any]:
        """Return name, versions and hardware of a copy, and how many there are."""
        versions = {**self._described["versions"], **package_versions("ray")}
        return {**self._described, "versions": versions, "data_parallel_size": len(self._copies)}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
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
                    question, generations = pool.get_next_unordered(timeout=_TICK_S)
                except TimeoutError:
                    continue
                except ray.exceptions.RayError as error:
                    why = one_line(error)
                    continue
                del left[question]
                yield generations
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

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # Completions are small and are fetched at once.
    if address is None:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": 256 * 2**20}
    else:
        options["address"] = _checked_address(address)
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


def _checked_address(address: str) -> str:
    """Return HOST:PORT of a cluster's head that answers: Ray itself ends the process if the cluster is gone."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address("auto") or "" if address == "auto" else address
        host, _, port = found.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, OverflowError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error}). --ray-address is auto on a node of the cluster, or "
            "HOST:PORT of its head, where `ray start --head` starts one"
        ) from None
    return found


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
