"""Worker processes that verify answers and may be killed at any moment.

A worker is a fresh interpreter (`python -m gtpo.rewards.verification.worker`), never a fork: it holds no CUDA context,
no torch, no lock of the caller's. Who calls `run` takes workers for its tasks, reads what they say and kills those that
are overdue, on the thread that it is: signal handlers and alarms are left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import CHECKOUT
from gtpo.rewards.limits import AHEAD_BYTES, GROW_AFTER_S, RETRY_AFTER_S, START_ALLOWANCE_S

Task = dict[str, Any]


class NotStarted(UserError, RuntimeError):
    """A worker that cannot start, or lacks what it needs: the command line says it in a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a verification worker did not start: {why}")


@dataclass
class _Chunk:
    """Tasks that are sent together, so that the worker never waits for its caller, and their outcomes."""

    lines: Sequence[bytes]
    outcomes: list[str] = field(default_factory=list)
    # How workers have failed at the first task without an outcome: whether they had begun it.
    failed: set[bool] = field(default_factory=set)


def _chunks(tasks: Sequence[Task], most: int) -> Iterator[_Chunk]:
    """Yield chunks of up to `most` tasks and of half a pipe's size: a write that blocked would stop the clock."""
    lines: list[bytes] = []
    for line in (json.dumps(task).encode() + b"\n" for task in tasks):
        if lines and (len(lines) == most or sum(map(len, lines)) + len(line) > AHEAD_BYTES):
            yield _Chunk(lines)
            lines = []
        lines.append(line)
    if lines:
        yield _Chunk(lines)


class _Worker:
    """One interpreter and what it works on; whoever holds it reads what it says, until its deadline."""

    def __init__(self, memory_mb: int, timeout_s: float) -> None:
        paths = [str(CHECKOUT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        # The order of sets, and so the work that is counted, depends on the seed of hashes.
        settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
        # -P: no module of the working directory (a token.py, say) is imported in place of the standard library's.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gtpo.rewards.verification.worker", str(memory_mb), str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C in the terminal is the caller's to handle
            # What Python had buffered, poll would not see.
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self.stdout = self.process.stdin, self.process.stdout
        self._rest = b""
        self._timeout_s = timeout_s
        self.deadline = time.monotonic() + START_ALLOWANCE_S
        self.ready = self._begun = False
        self.chunk: _Chunk | None = None

    def give(self, chunk: _Chunk) -> None:
        """Send the tasks of a chunk that have no outcome. The clock of each starts when the worker begins it."""
        self.chunk, self._begun, self.deadline = chunk, False, time.monotonic() + self._timeout_s
        with contextlib.suppress(OSError):  # it is gone: the end of its output says so
            self._stdin.write(b"".join(chunk.lines[len(chunk.outcomes) :]))

    def hear(self) -> bool:
        """Take in what the worker has said; return False if it is gone. Raises NotStarted with what it lacks."""
        part = os.read(self.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            kind, *rest = json.loads(line)
            if kind == "lacks":
                raise NotStarted(rest[0])
            # "load": it imports what few tasks need, and begins again after it.
            self.deadline = time.monotonic() + (START_ALLOWANCE_S if kind == "load" else self._timeout_s)
            self.ready, self._begun = True, kind in ("begin", "load", "done")
            if self.chunk is not None and kind in ("done", "retire"):
                self.chunk.outcomes.append(str(rest[0]))
                self.chunk.failed.clear()
                if len(self.chunk.outcomes) == len(self.chunk.lines):
                    self.chunk = None
        return bool(part)

    def fail(self, gone: bool) -> None:
        """Note that the worker is gone, or silent beyond its deadline. Raises NotStarted if it was never ready.

        It was stopped or killed from outside, or by its task: one more try on a fresh worker tells them apart, unless
        the task has used up its time or its processor time, which is its own doing.
        """
        status = self.process.wait() if gone else 0
        if not self.ready and not gone:
            why = f"it said nothing for {START_ALLOWANCE_S:.0f} s; the machine is too busy, or short of memory"
            raise NotStarted(why)
        if not self.ready:
            how = f"signal {-status}" if status < 0 else f"exit status {status}; its message is on stderr"
            raise NotStarted(f"it ended with {how}")
        if self.chunk is None:
            return
        spent = self._begun and (not gone or status == -signal.SIGPROF)
        if spent or self._begun in self.chunk.failed:
            self.chunk.outcomes.append("REJECTED" if gone and self._begun else "TIMEOUT")
            self.chunk.failed.clear()
        else:
            self.chunk.failed.add(self._begun)

    def end(self) -> None:
        """Kill the process, reap it, so that no zombie stays, and close its streams: for the thread that holds it."""
        with self.process:
            self.process.kill()


class WorkerPool:
    """Up to `workers` processes, started when there is work, shared by all threads of this process."""

    def __init__(self, workers: int, timeout_s: float, memory_mb: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
        self.workers, self.timeout_s, self.memory_mb = workers, timeout_s, memory_mb
        self._closed = False
        self._renew()
        _POOLS.add(self)

    def _renew(self) -> None:
        """Begin without workers: at first, and in a forked child, where locks and workers are the parent's."""
        self.lock = threading.Condition()
        self._alive: set[_Worker] = set()
        self._idle: list[_Worker] = []  # those that no call holds; some may be starting still
        self._grows_at = 0.0  # not before
        self._refusals: list[str] = []  # to be told when the call is done

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """Return each task's outcome, in order: what the worker said, or `TIMEOUT`, or `REJECTED` if it died."""
        # About four chunks a worker, so that one slow answer does not hold up what others could do.
        chunks = list(_chunks(tasks, max(1, min(64, -(-len(tasks) // (self.workers * 4))))))
        waiting = deque(chunks)
        held: list[_Worker] = []
        tried = False
        patient_until = time.monotonic() + GROW_AFTER_S
        try:
            while waiting or held:
                impatient = time.monotonic() >= patient_until
                if impatient:
                    patient_until = time.monotonic() + GROW_AFTER_S
                lacking = len(waiting) - sum(worker.ready and worker.chunk is None for worker in held)
                held += self._take(lacking, impatient) if lacking > 0 else []
                for worker in held:
                    if waiting and worker.ready and worker.chunk is None:
                        worker.give(waiting.popleft())
                for worker, speaks in self._awaited(held, patient_until if waiting else math.inf):
                    chunk, starting, refused = worker.chunk, not worker.ready, None
                    try:
                        if speaks and worker.hear():
                            if starting:  # what has waited for it says nothing of how many are needed
                                patient_until = time.monotonic() + GROW_AFTER_S
                            continue
                        worker.fail(gone=speaks)
                    except NotStarted as error:
                        refused = error
                    held.remove(worker)
                    self._discard(worker)
                    if chunk is not None and len(chunk.outcomes) < len(chunk.lines):
                        waiting.appendleft(chunk)
                    if refused is not None and (self._alive or tried):
                        self._go_on_without(refused)
                    tried = refused is not None  # one that was killed as it started is replaced, once
                    with contextlib.suppress(NotStarted):  # whoever needs one is told
                        held += self._start(1)  # now: the next task need not wait for its start
                if not waiting:
                    self._give_back([worker for worker in held if worker.chunk is None])
                    held = [worker for worker in held if worker.chunk is not None]
        finally:
            self._give_back(held)
        refusals, self._refusals = self._refusals, []
        for refusal in refusals:  # now that no worker is held: whoever handles the warning may verify something
            LOG.warning("%s", refusal)
        return [outcome for chunk in chunks for outcome in chunk.outcomes]

    def _awaited(self, held: Sequence[_Worker], until: float) -> list[tuple[_Worker, bool]]:
        """Return those of the workers that have spoken or ended, and those that are overdue (False), once there are
        any, or nothing at the time `until`."""
        if not held:
            with self.lock:
                self.lock.wait_for(lambda: self._idle or self._closed, max(0.0, until - time.monotonic()))
            return []
        # poll and not select, which refuses descriptors from 1,024 on: a training run may have more files open.
        poll = select.poll()
        for worker in held:
            poll.register(worker.stdout.fileno(), select.POLLIN | select.POLLHUP)
        until = min(until, *(worker.deadline for worker in held))
        spoken = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
        now = time.monotonic()
        each = [(worker, worker.stdout.fileno() in spoken) for worker in held]
        return [(worker, speaks) for worker, speaks in each if speaks or now >= worker.deadline]

    def _take(self, most: int, impatient: bool) -> list[_Worker]:
        """Return up to `most` idle workers. New ones start if there is none at all, and as many as there are if the
        caller has waited for those that are all at work: a start costs more than many answers."""
        with self.lock:
            if self._closed:
                raise RuntimeError("the verifier is closed")
            taken = [self._idle.pop() for _ in range(min(most, len(self._idle)))]
            grows = not self._alive or (impatient and not taken and all(worker.ready for worker in self._alive))
            return taken + self._start(max(1, len(self._alive))) if grows else taken

    def _start(self, most: int) -> list[_Worker]:
        """Start up to `most` workers, as far as there is room and none was refused lately. Raises NotStarted."""
        if os.name != "posix":
            raise RuntimeError(
                "answers other than plain numbers are verified in worker processes, which need Linux or macOS; "
                "on Windows run gtpo under WSL 2"
            )
        started: list[_Worker] = []
        refused = None
        with self.lock:
            room = 0 if self._alive and time.monotonic() < self._grows_at else self.workers - len(self._alive)
            try:
                while len(started) < min(most, room) and not self._closed:
                    started.append(_Worker(self.memory_mb, self.timeout_s))
            except OSError as error:  # no memory, processes or descriptors left
                refused = NotStarted(str(error))
            self._alive.update(started)
        if refused is not None:
            self._go_on_without(refused)
        return started

    def _go_on_without(self, error: NotStarted) -> None:
        """Start no worker for a while, if there are others. Raises the error if there are none."""
        self._grows_at = time.monotonic() + RETRY_AFTER_S
        if not self._alive:
            raise error
        others = f"verification goes on with {len(self._alive)} of up to {self.workers} workers"
        self._refusals.append(f"{error}; {others}")

    def _give_back(self, held: Sequence[_Worker]) -> None:
        """Leave workers to other calls, but for those that are at work: the call has failed."""
        with self.lock:
            free = [] if self._closed else [worker for worker in held if worker.chunk is None]
            self._idle += free
            self.lock.notify_all()
        for worker in held:
            if worker not in free:
                self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        with self.lock:
            self._alive.discard(worker)
        worker.end()

    def close(self) -> None:
        """Kill the workers. Calls in progress fail with RuntimeError or see their task REJECTED."""
        with self.lock:
            self._closed = True
            alive, idle = self._alive, self._idle
            self._alive, self._idle = set(), []
            self.lock.notify_all()
        # The streams of those at work stay open: a thread may be reading from them, and the number of a closed one
        # soon belongs to another file.
        for worker in alive.difference(idle):
            worker.process.kill()
            worker.process.wait()
        for worker in idle:
            worker.end()


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _with_all(action: Callable[[WorkerPool], None]) -> None:
    for pool in list(_POOLS):
        action(pool)


# Another child of this process may hold the pipe of a worker open, which would wait for tasks after its end.
atexit.register(_with_all, WorkerPool.close)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=lambda: _with_all(WorkerPool._renew))
