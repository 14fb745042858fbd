"""Worker processes that verify answers and may be killed at any moment.

A worker is a fresh interpreter (`python -m gtpo.rewards.verification.worker`), never a fork: it holds no CUDA context,
no torch, no lock of the caller's. One daemon thread per worker feeds it one task at a time and kills it at the
deadline, so callers may live on any thread and their signal handlers and alarms are left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import CHECKOUT
from gtpo.rewards.limits import AHEAD_BYTES, GROW_AFTER_S, RETRY_AFTER_S, START_ALLOWANCE_S

Task = dict[str, Any]


@dataclass
class _Chunk:
    """Tasks of one call, their outcomes, and a latch for the caller."""

    tasks: Sequence[Task]
    outcomes: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class NotStarted(UserError, RuntimeError):
    """A worker that cannot start, or lacks what it needs: the command line says it in a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a verification worker did not start: {why}")


class Stalled(Exception):
    """A worker that does not begin a task in time: it was stopped, or the machine has no time for it."""


class _Worker:
    """One interpreter: send a task, await its outcome until a deadline, or kill it."""

    def __init__(self, memory_mb: int, timeout_s: float) -> None:
        paths = [str(CHECKOUT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUTF8": "1",
            "PYTHONHASHSEED": "0",  # the order of sets, and so the work that is counted, depends on it
        }
        # -P: no module of the working directory (a token.py, say) is imported in place of the standard library's.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gtpo.rewards.verification.worker", str(memory_mb), str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is the caller's to handle
            # What Python had buffered, poll would not see.
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._buffer = b""
        self._ready = False
        # poll and not select, which refuses descriptors from 1,024 on: a training run may have more files open.
        self._poll = select.poll()
        self._poll.register(self._stdout.fileno(), select.POLLIN | select.POLLHUP)

    def _line(self, deadline: float) -> list[Any]:
        """Read one message. Raises TimeoutError at the deadline, EOFError when the worker is gone, and NotStarted with
        what it lacks."""
        while b"\n" not in self._buffer:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(self._stdout.fileno(), 65536)
            if not part:
                raise EOFError
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: list[Any] = json.loads(line)
        if message[0] == "lacks":
            raise NotStarted(message[1])
        return message

    def await_ready(self) -> None:
        """Wait until the worker has imported what it needs. Raises NotStarted if it cannot start."""
        if self._ready:
            return
        try:
            self._line(time.monotonic() + START_ALLOWANCE_S)
        except TimeoutError:
            raise NotStarted(
                f"it said nothing for {START_ALLOWANCE_S:.0f} s; the machine is too busy, or short of memory"
            ) from None
        except EOFError:
            status = self.process.wait()
            how = f"signal {-status}" if status < 0 else f"exit status {status}; its message is on stderr"
            raise NotStarted(f"it ended with {how}") from None
        self._ready = True

    def run(self, tasks: Sequence[Task], timeout_s: float) -> Iterator[tuple[str, bool]]:
        """Yield (outcome, whether the worker stays fit for use) of each task, in order.

        Tasks are sent ahead, so that the worker never waits for its caller; each still has its own time. Raises
        TimeoutError in place of an outcome that does not come in time, Stalled if the worker does not begin in
        time, EOFError if it is gone.
        """
        self.await_ready()
        lines = [json.dumps(task).encode() + b"\n" for task in tasks]
        sent = ahead = 0
        deadline = time.monotonic() + timeout_s  # until it says that it has begun
        begun = False
        for line in lines:
            # Never more than a pipe holds: a write that blocked would stop the clock.
            while sent < len(lines) and (ahead == 0 or ahead + len(lines[sent]) <= AHEAD_BYTES):
                try:
                    self._stdin.write(lines[sent])
                except (BrokenPipeError, OSError):
                    break  # it is gone: what it had answered is read first, then comes the end of file
                ahead += len(lines[sent])
                sent += 1
            while True:
                try:
                    kind, *rest = self._line(deadline)
                except TimeoutError:
                    if begun:
                        raise
                    raise Stalled from None
                if kind == "load":  # imports what few tasks need, and begins again after it
                    deadline = time.monotonic() + START_ALLOWANCE_S
                elif kind == "begin":
                    begun, deadline = True, time.monotonic() + timeout_s
                else:
                    break
            ahead -= len(line)
            yield str(rest[0]), kind == "done"
            begun, deadline = ahead > 0, time.monotonic() + timeout_s

    def kill(self) -> None:
        """Kill the process and reap it, so that no zombie stays. Its streams stay open: the thread that it serves may
        be reading from them, and the number of a closed one soon belongs to another file."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill the process and close its streams: for the thread that it serves."""
        with self.process:
            self.kill()


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
        """Begin without workers: at first, and in a forked child, where locks, threads and workers are the parent's."""
        self.lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        self._threads = self._starting = 0
        self._grows_at = 0.0  # not before: what waits while workers start says nothing of how many are needed
        self._alive: set[_Worker] = set()

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """Return each task's outcome, in order: what the worker said, or `TIMEOUT`, or `REJECTED` if it died."""
        if not tasks:
            return []
        # About four chunks a worker, so that one slow answer does not hold up what others could do.
        size = max(1, min(64, -(-len(tasks) // (self.workers * 4))))
        chunks = [_Chunk(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        for chunk in chunks:
            self._queue.put(chunk)
        if not self._threads:
            self._grow(1)
        for chunk in chunks:
            # Every wait doubles the workers; most calls end before the first, and a start costs more than many answers.
            while not chunk.done.wait(GROW_AFTER_S):
                self._grow(self._threads)
            if chunk.error is not None:
                raise chunk.error
        return [outcome for chunk in chunks for outcome in chunk.outcomes]

    def _grow(self, most: int) -> None:
        """Start up to `most` workers for what waits, unless some are starting already."""
        refused: NotStarted | None = None
        with self.lock:
            if self._closed:
                raise RuntimeError("the verifier is closed")
            if self._starting or time.monotonic() < self._grows_at:
                return
            for _ in range(min(most, self._queue.qsize(), self.workers - self._threads)):
                thread = threading.Thread(target=_serve, args=(self,), name="gtpo-verifier", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread left; those that started wait for this lock
                    refused = NotStarted(str(error))
                    break
                self._threads += 1
                self._starting += 1
        if refused is not None and not self._goes_on_without(refused):
            raise refused

    def _goes_on_without(self, error: RuntimeError, chunk: _Chunk | None = None, served: int = 0) -> bool:
        """Give up a worker that cannot start, and its thread (`served`), if others serve the pool and can do its chunk.

        The last one stays, to tell its caller.
        """
        with self.lock:
            if self._closed or self._threads <= served:
                return False
            self._threads -= served
            self._grows_at = time.monotonic() + RETRY_AFTER_S
        if chunk is not None:
            self._queue.put(chunk)
        # Without the lock: whoever handles the warning may verify something.
        LOG.warning("%s; verification goes on with %d of up to %d workers", error, self._threads, self.workers)
        return True

    def _start(self) -> _Worker:
        if os.name != "posix":
            raise RuntimeError(
                "answers other than plain numbers are verified in worker processes, which need Linux or macOS; "
                "on Windows run gtpo under WSL 2"
            )
        try:
            worker = _Worker(self.memory_mb, self.timeout_s)
        except OSError as error:  # no memory, processes or descriptors left
            raise NotStarted(str(error)) from error
        with self.lock:
            if not self._closed:
                self._alive.add(worker)
                return worker
        worker.end()
        raise RuntimeError("the verifier is closed")

    def _discard(self, worker: _Worker) -> None:
        with self.lock:
            self._alive.discard(worker)
        worker.end()

    def _run_chunk(self, chunk: _Chunk, worker: _Worker | None) -> _Worker | None:
        outcomes = chunk.outcomes
        failed: set[type] = set()  # how workers have failed at the first task without an outcome
        while len(outcomes) < len(chunk.tasks):
            worker = worker or self._start()
            try:
                for outcome, fit in worker.run(chunk.tasks[len(outcomes) :], self.timeout_s):
                    outcomes.append(outcome)
                    failed.clear()
                    if not fit:
                        break
                else:
                    return worker
            except (TimeoutError, NotStarted, Stalled, EOFError) as error:
                # Stopped or killed from outside, or by this task: one more try on a fresh worker tells them apart,
                # unless the task has used up its time or its processor time, which is its own doing.
                spent = isinstance(error, EOFError) and worker.process.wait() == -signal.SIGPROF
                if not spent and not isinstance(error, TimeoutError) and type(error) not in failed:
                    failed.add(type(error))
                elif isinstance(error, NotStarted):
                    self._discard(worker)
                    raise
                else:
                    outcomes.append("REJECTED" if isinstance(error, EOFError) else "TIMEOUT")
                    failed.clear()
            self._discard(worker)
            worker = None
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            worker = self._start()  # replace a killed worker now: the next task need not wait for its start
        return worker

    def close(self) -> None:
        """Kill the workers. Calls in progress fail with RuntimeError or see their task REJECTED."""
        with self.lock:
            self._closed = True
            alive, self._alive = list(self._alive), set()
            threads, self._threads = self._threads, 0
        for worker in alive:
            worker.kill()
        for _ in range(threads):
            self._queue.put(None)


def _serve(pool: WorkerPool) -> None:
    """Feed one worker until the pool closes (a module function: the thread's name says what it is)."""
    worker: _Worker | None = None
    gone = False
    try:
        worker = pool._start()
        worker.await_ready()  # before it takes a chunk, which another worker may have done by then
    except RuntimeError as error:  # it cannot start, or the pool has closed: its first chunk will be told
        gone = pool._goes_on_without(error, served=1)
    if gone and worker is not None:
        pool._discard(worker)
    with pool.lock:
        pool._starting -= 1
        pool._grows_at = max(pool._grows_at, time.monotonic() + GROW_AFTER_S)
    while not gone:
        chunk = pool._queue.get()
        if chunk is None:
            if worker is not None:
                worker.end()
            return
        try:
            worker = pool._run_chunk(chunk, worker)
        except BaseException as error:  # handed to the caller, who waits on the latch
            worker = None  # _run_chunk has discarded it
            # A killed worker has no successor: the others do the rest of the chunk.
            if isinstance(error, NotStarted) and pool._goes_on_without(error, chunk, served=1):
                return
            chunk.error = error
        chunk.done.set()


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _with_all(action: Callable[[WorkerPool], None]) -> None:
    for pool in list(_POOLS):
        action(pool)


# A daemon thread ends without a word to its worker, which would wait for tasks after this process is gone.
atexit.register(_with_all, WorkerPool.close)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=lambda: _with_all(WorkerPool._renew))
