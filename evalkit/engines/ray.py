"""Model copies as Ray actors, on this machine or a cluster: the vllm engine in each, questions dealt as they get free.

A question's samples stay with one copy (prefix cache), and a sample depends on its seed alone. A copy that dies or
hangs is started again; what it owed goes to the others meanwhile. The copies keep nothing: what has come is stored.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import package_versions
from gtpo.evalkit.engines import ray_cluster
from gtpo.evalkit.engines.base import Engine, EngineStopped, Generation, Sampling, Task, Throughput
from gtpo.evalkit.engines.dealing import Dealer
from gtpo.evalkit.engines.model_ref import ModelRef

CALLS = 2
"""Calls that a copy has at a time: it works on the second while the first is on its way."""

BATCHES = 2
"""A copy owes at most so many of its batches, and a question: enough never to wait, few enough to end together."""

MOST_DEATHS = 4
"""A copy that dies so often without a completion in between is left out."""

HUNG_S = 60.0
"""A copy whose call has not come back for so long is ended and started again; a call is a few steps of the engine."""

FIRST_CALL_S = 300.0
"""The same for the first call after its start: kernels may be compiled in it."""

HEAD_S = 3.0
"""The head of the cluster is asked so often whether it is there."""

_TICK_S = 0.2

SLICE_S = 0.25
"""A call returns what was finished within this time: long beside the way of a call, short beside a restart."""

MOST_AT_ONCE = 2048
"""Completions after which a call returns earlier."""


class Started(NamedTuple):
    """What a copy says once it is up, or why it is not."""

    described: dict[str, Any]
    batch: int = 0
    """Samples that it runs at once."""
    mistake: str | None = None


class ModelCopy:
    """One model copy. Its process may die at any moment: it keeps nothing that cannot be asked for again."""

    def start(self, ref: ModelRef, sampling: Sampling, longest_prompt: int, options: dict[str, Any]) -> Started:
        """Load the model. A mistake of the user's is returned, not raised: Ray would wrap it in a traceback."""
        try:
            for folder in (ref.source, ref.adapter):
                if folder is not None and Path(folder).is_absolute() and not Path(folder).is_dir():
                    raise UserError(f"{folder} is not on every node of the cluster: put it on a shared file system")
            from gtpo.evalkit.engines.vllm import VLLMEngine

            self._engine = VLLMEngine(ref, sampling, longest_prompt, **options)
        except UserError as error:
            return Started({}, mistake=str(error))
        return Started(self._engine.describe(), self._engine.batch)

    def sample(self, tasks: Sequence[Task]) -> list[Generation]:
        """Take on more questions; work on all that it has for SLICE_S and return what was finished."""
        self._engine.submit(tasks)
        finished: list[Generation] = []
        end = time.monotonic() + SLICE_S
        while self._engine.unfinished and time.monotonic() < end and len(finished) < MOST_AT_ONCE:
            finished += self._engine.step()
        return finished


class _Copy:
    """The driver's side of a model copy."""

    def __init__(self, number: int, group: Any) -> None:
        self.name, self.group = f"copy {number}", group
        self.throughput = Throughput(self.name)
        self.actor: Any = None
        self.starting: Any = None
        """The call that loads the model; None once it is up."""
        self.calls: deque[Any] = deque()
        self.called = 0.0
        """When the oldest of its calls was made, or the last came back."""
        self.warm = False
        """Whether a call has come back since it was started."""
        self.inbox: list[Task] = []
        """Questions that go with its next call."""
        self.batch = 0
        self.deaths = 0
        self.out: str | None = None
        """Why it is not started again."""

    @property
    def ready(self) -> bool:
        """Return whether it takes questions."""
        return self.starting is None and self.out is None

    @property
    def awaited(self) -> bool:
        """Return whether something of it is to come back."""
        return self.out is None and (self.starting is not None or bool(self.calls))


class RayEngine(Engine):
    """Copies of the model as Ray actors. Raises UserError where they do not fit or one of them does not start.

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
        self._arguments = (ref, sampling, longest_prompt, options)
        self._described: dict[str, Any] = {}
        self._ask_head_at = 0.0
        self._headless = False
        self._copies: list[_Copy] = []
        self._joined = ray_cluster.join(address)
        try:
            self._needed = ray_cluster.unit(options["tensor_parallel_size"])
            groups = ray_cluster.place(copies, self._needed)
            self._copies = [_Copy(number, group) for number, group in enumerate(groups, 1)]
            LOG.info("starting %d %s on Ray", len(groups), "copy" if len(groups) == 1 else "copies")
            for copy in self._copies:
                self._launch(copy)
            for copy in self._copies:
                self._await_start(copy)
        except BaseException:
            self.close()
            raise

    def _launch(self, copy: _Copy) -> None:
        """Start a copy's process and have it load the model, without waiting."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = ray.remote(ModelCopy).options(
            num_cpus=self._needed["CPU"],
            num_gpus=self._needed.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(copy.group, placement_group_bundle_index=0),
        )
        copy.actor = actor.remote()
        copy.starting = copy.actor.start.remote(*self._arguments)
        copy.throughput.state = "starting"

    def _await_start(self, copy: _Copy) -> None:
        """Wait for a copy's first start. UserError where it does not come up."""
        import ray

        try:
            started: Started = ray.get(copy.starting)
        except ray.exceptions.RayError as error:
            raise UserError(
                f"{copy.name} of {self._arguments[0].source} does not start: its process died while it loaded the "
                f"model ({_reason(error)}); it may not fit into the memory of a node"
            ) from None
        if started.mistake is not None:
            raise UserError(started.mistake)
        self._described = started.described
        self._up(copy, started)

    def _up(self, copy: _Copy, started: Started) -> None:
        copy.starting, copy.batch, copy.warm, copy.throughput.state = None, started.batch, False, ""

    def describe(self) -> dict[str, Any]:
        """Return name, versions and hardware of a copy, and how many there are."""
        versions = {**self._described["versions"], **package_versions("ray")}
        return {**self._described, "versions": versions, "data_parallel_size": len(self._copies)}

    def throughput(self) -> Sequence[Throughput]:
        """Return what each of several copies has done."""
        return [copy.throughput for copy in self._copies] if len(self._copies) > 1 else ()

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions of all copies as they arrive. Raises EngineStopped once no copy is left."""
        import ray

        self._stop_at = None
        self._dealer = Dealer(tasks)
        for copy in self._copies:
            copy.throughput.start()
        try:
            while self._dealer.left:
                if self._stop_at is not None and time.monotonic() > self._stop_at:
                    return
                self._deal()
                for copy in self._copies:
                    self._call(copy)
                yield from self._receive()
                self._check()
        except ray.exceptions.RayError as error:  # not of a copy, those are dealt with: of the cluster
            raise EngineStopped(f"Ray failed: {_reason(error)}") from None

    def _deal(self) -> None:
        limits = {copy.name: BATCHES * copy.batch for copy in self._copies if copy.ready}
        named = {copy.name: copy for copy in self._copies}
        while self._stop_at is None and (dealt := self._dealer.deal(limits)) is not None:
            named[dealt.worker].inbox.append(dealt.task)

    def _call(self, copy: _Copy) -> None:
        """Have a copy work as long as it owes samples."""
        while copy.ready and self._dealer.load(copy.name) and len(copy.calls) < CALLS:
            if not copy.calls:
                copy.called = time.monotonic()
            copy.calls.append(copy.actor.sample.remote(copy.inbox))
            copy.inbox = []

    def _receive(self) -> Iterator[list[Generation]]:
        """Wait for the next calls to come back, and yield what they bring."""
        import ray

        awaited = {copy.calls[0] if copy.ready else copy.starting: copy for copy in self._copies if copy.awaited}
        if not awaited:
            time.sleep(_TICK_S)
            return
        done, _ = ray.wait(list(awaited), num_returns=1, timeout=_TICK_S)
        for call in done:
            copy = awaited[call]
            try:
                result = ray.get(call)
            except ray.exceptions.RayError as error:
                self._died(copy, _reason(error))
                continue
            if isinstance(result, Started):
                if result.mistake is not None:
                    self._died(copy, result.mistake)
                else:
                    LOG.info("%s is up again", copy.name)
                    self._up(copy, result)
                continue
            copy.calls.popleft()
            copy.called, copy.warm = time.monotonic(), True
            # A run that was broken off may have left something in a copy that nobody asks for any more.
            owed = [g for g in result if self._dealer.settle(copy.name, g.key)]
            if owed:
                copy.deaths = 0
                copy.throughput.add(owed)
                yield owed

    def _check(self) -> None:
        """End copies that hang. EngineStopped where none is left, or none has room, or the cluster's head is gone."""
        if time.monotonic() > self._ask_head_at:
            if not ray_cluster.head_answers():
                self._headless = True
                raise EngineStopped("the head of the Ray cluster is gone")
            self._ask_head_at = time.monotonic() + HEAD_S
        for copy in self._copies:
            patience = HUNG_S if copy.warm else FIRST_CALL_S
            if copy.calls and time.monotonic() - copy.called > patience:
                self._died(copy, f"it has given nothing for {patience:.0f} s")
        if any(copy.ready for copy in self._copies):
            return
        if all(copy.out is not None for copy in self._copies):
            raise EngineStopped("; ".join(f"{copy.name}: {copy.out}" for copy in self._copies))
        if ray_cluster.capacity(self._needed)[0] == 0:
            raise EngineStopped("no node is left that has room for a model copy")

    def _died(self, copy: _Copy, why: str) -> None:
        """Start a copy again, or leave it out; what it owed is dealt again."""
        if self._stop_at is not None:  # then it need not come back
            self._stop_at = 0.0
            return
        self._end(copy)
        again = self._dealer.give_back(copy.name)
        copy.deaths += 1
        if copy.deaths >= MOST_DEATHS:
            copy.out = f"it died {copy.deaths} times in a row ({why})"
            copy.throughput.state = "left out"
            LOG.warning("%s is left out: %s", copy.name, copy.out)
            return
        LOG.warning("%s died (%s): started again, %d samples are dealt again", copy.name, why, again)
        self._launch(copy)

    @staticmethod
    def _end(copy: _Copy) -> None:
        """End a copy's process, and forget what was asked of it."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(copy.actor)
        copy.calls.clear()
        copy.inbox.clear()

    def close(self) -> None:
        """End the copies; leave the cluster, or end it where it was started here."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for copy in () if self._headless else self._copies:
            if copy.actor is not None:
                self._end(copy)
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(copy.group)
        self._copies = []
        if self._joined:
            ray.shutdown()


def _reason(error: Exception) -> str:
    """Return Ray's reason in a line: the last of a traceback, the first of a death."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        return " ".join(str(error).strip().split("\n")[-1].split())[:300]
    if isinstance(error, ray.exceptions.ActorDiedError):
        return "its process is gone"
    return " ".join(str(error).split())[:200]
