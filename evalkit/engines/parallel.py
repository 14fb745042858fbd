"""Data parallelism for the vllm engine: copies of the model in processes of their own, each on its share of the GPUs.

Questions are dealt out in turn. vLLM's own offline class refuses data_parallel_size > 1, and copies need nothing of
each other: a sample depends on its seed alone.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from evalkit.engines.base import EngineStopped, Generation, Sampling, Task
from evalkit.engines.model_ref import ModelRef
from rewards.support.errors import UserError


def device_shares(copies: int, per_copy: int, visible: str | None, count: int) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES for each copy. UserError where there are too few devices.

    visible: the variable as the user set it; count: devices torch sees.
    """
    devices = visible.split(",") if visible else [str(i) for i in range(count)]
    if len(devices) < copies * per_copy:
        raise UserError(
            f"--data-parallel-size {copies} x --tensor-parallel-size {per_copy} needs {copies * per_copy} GPUs, "
            f"found {len(devices)}"
        )
    return [",".join(devices[i * per_copy : (i + 1) * per_copy]) for i in range(copies)]


def _serve(
    inbox: Any,
    outbox: Any,
    devices: str | None,
    ref: ModelRef,
    sampling: Sampling,
    longest: int,
    options: dict[str, Any],
) -> None:
    """Run one copy: report that it is up, then its completions, then its end or its error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices  # before torch looks
    try:
        from evalkit.engines.vllm import VLLMEngine

        engine = VLLMEngine(ref, sampling, longest, **options)
        outbox.put(("up", engine.describe()))
        tasks = inbox.get()
        for generations in engine.generate(tasks):
            outbox.put(("done", generations))
        outbox.put(("end", None))
        engine.close()
    except (UserError, EngineStopped) as error:
        outbox.put(("mistake" if isinstance(error, UserError) else "stopped", str(error)))
    except BaseException as error:
        outbox.put(("stopped", f"{type(error).__name__}: {error}"))
        raise


class DataParallelEngine:
    """`copies` vLLM engines behind one interface. Raises UserError where one of them does not start."""

    name = "vllm"

    def __init__(self, copies: int, ref: ModelRef, sampling: Sampling, longest_prompt: int, **options: Any) -> None:
        import torch

        shares: list[str | None] = [None] * copies
        if torch.cuda.is_available():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            shares = [*device_shares(copies, options["tensor_parallel_size"], visible, torch.cuda.device_count())]
        context = multiprocessing.get_context("spawn")
        self._outbox: Any = context.Queue()
        self._inboxes: list[Any] = [context.Queue() for _ in range(copies)]
        self._processes: list[BaseProcess] = [
            context.Process(
                target=_serve, args=(inbox, self._outbox, share, ref, sampling, longest_prompt, options), daemon=False
            )
            for inbox, share in zip(self._inboxes, shares, strict=True)
        ]
        for process in self._processes:
            process.start()
        self._described: dict[str, Any] = {}
        self._stop_at: float | None = None
        try:
            for _ in range(copies):
                kind, value = self._next()
                if kind != "up":
                    raise UserError(str(value))
                self._described = value
        except BaseException:
            self.close()
            raise

    def _next(self) -> tuple[str, Any]:
        """Return the next message. EngineStopped where a copy died without one."""
        while True:
            try:
                message: tuple[str, Any] = self._outbox.get(timeout=0.2)
                return message
            except queue.Empty:
                if self._stop_at is not None and time.monotonic() > self._stop_at:
                    return "stop", None
                dead = [p.exitcode for p in self._processes if p.exitcode not in (None, 0)]
                if dead:
                    raise EngineStopped(f"a vLLM process died (exit code {dead[0]})") from None

    def describe(self) -> dict[str, Any]:
        """Return name, versions and hardware of one copy, and how many there are."""
        return {**self._described, "data_parallel_size": len(self._processes)}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions of all copies as they arrive."""
        copies = len(self._processes)
        for i, inbox in enumerate(self._inboxes):
            inbox.put(list(tasks[i::copies]))
        running = copies
        self._stop_at = None
        while running:
            kind, value = self._next()
            if kind == "done":
                yield value
            elif kind == "end":
                running -= 1
            elif kind == "stop":
                return
            else:
                raise EngineStopped(str(value))

    def stop(self, grace_s: float) -> None:
        """Wait grace_s more seconds for completions."""
        self._stop_at = time.monotonic() + grace_s

    def close(self) -> None:
        """Stop the processes."""
        for process in self._processes:
            process.join(timeout=10 if self._stop_at is None and process.is_alive() else 0)
            if process.is_alive():
                process.terminate()
                process.join(timeout=10)
            if process.is_alive():
                process.kill()
