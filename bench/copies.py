"""What Ray costs: two model copies as Ray actors against one process, and against two bare processes.

Same requests, same two cores, engines only, in turns of random order. `one process` is
`--engine vllm` with as many threads as there are cores; `two processes` are two of them with one thread each and every
second question, begun together, ended with the slower; `ray` is `--engine ray --data-parallel-size 2`. All are up
before the clock starts. Expected, written down before the first run: `ray` takes at most 1.10 times `one process`.

    python -m bench.copies [--k N] [--max-tokens N] [--rounds N] [--out FILE]

The model is small, with random weights. Needs vLLM and Ray.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import in_turns, parser, save, table
from bench.kills import QUIET, random_model
from gtpo.evalkit.engines.base import Engine, Generation, Sampling, Task
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.evaluation.engine import make_engine
from gtpo.evalkit.evaluation.evaluate import choose_sampling, plan_evaluation
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.rewards.verify import Verifier

COPIES = 2


def collect(engine: Engine, tasks: Sequence[Task]) -> dict[tuple[str, int], str]:
    """Return (question, sample index) -> text."""
    found: list[Generation] = [g for lot in engine.generate(tasks) for g in lot]
    return {(g.question_id, g.sample_index): g.text for g in found}


def serve(pipe: Any, settings: EvalSettings, ref: ModelRef, sampling: Sampling, longest: int) -> None:
    """Run one bare process: tasks in, texts out."""
    engine = make_engine(settings, ref, sampling, longest)
    pipe.send("up")
    while (tasks := pipe.recv()) is not None:
        pipe.send(collect(engine, tasks))
    engine.close()


class BareProcesses:
    """Engines in processes of their own, with nothing between them and the clock but pipes."""

    def __init__(self, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started; this one has its threads
        pairs = [context.Pipe() for _ in range(COPIES)]
        self._processes = [context.Process(target=serve, args=(far, *arguments)) for _, far in pairs]
        self._pipes = [near for near, _ in pairs]
        for process in self._processes:
            process.start()
        for pipe in self._pipes:
            assert pipe.recv() == "up"

    def collect(self, tasks: Sequence[Task]) -> dict[tuple[str, int], str]:
        """Return (question, sample index) -> text."""
        for number, pipe in enumerate(self._pipes):
            pipe.send(tasks[number::COPIES])
        return {key: text for pipe in self._pipes for key, text in pipe.recv().items()}

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


def page(report: dict[str, Any]) -> str:
    """Return the table of docs/scale.md."""
    labels = {
        "one process": f"one process, {report['cpus']} threads",
        "two processes": "two bare processes, one thread each",
        "ray": "two copies on Ray, one thread each",
    }
    rows = [
        (label, ", ".join(f"{value:.1f}" for value in report["seconds"][name]),
         "-" if name == "ray" else f"{report['ray_over_' + name.replace(' ', '_')]:.2f}")
        for name, label in labels.items()
    ]  # fmt: skip
    return table(("", "seconds, by round", "time of Ray / its time"), rows)


def main() -> None:
    made = parser(__doc__, k=64, limit=64, max_tokens=24, rounds=3, out=Path("results/bench/copies.json"))
    arguments = made.parse_args()
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory() as scratch:
        given: dict[str, Any] = {name: getattr(arguments, name) for name in ("k", "limit", "max_tokens")}
        given |= {"model": str(random_model(Path(scratch) / "model")), "benchmarks": "arithmetic"}
        settings = EvalSettings(**given, engine="vllm")
        with Verifier() as verifier:
            plan = plan_evaluation(settings, verifier, "vllm")
        sampling, tasks = choose_sampling(settings, plan), plan.tasks(settings.n)
        common = (plan.ref, sampling, plan.longest_prompt)
        one = make_engine(settings, *common)
        two = BareProcesses(settings, *common)
        ray = make_engine(EvalSettings(**given, engine="ray", data_parallel_size=COPIES), *common)
        contenders = {
            "one process": partial(collect, one), "two processes": two.collect, "ray": partial(collect, ray),
        }  # fmt: skip
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        texts: dict[str, dict[tuple[str, int], str]] = {}
        for collect_from in contenders.values():
            collect_from(tasks[:8])  # allocations, the workers' caches
        for number, name in in_turns(contenders, arguments.rounds):
            start = time.perf_counter()
            texts[name] = contenders[name](tasks)
            seconds[name].append(time.perf_counter() - start)
            print(f"round {number + 1}: {name} {seconds[name][-1]:.2f} s", flush=True)
        two.close()
        ray.close()
    ratios = {
        other: [a / b for a, b in zip(seconds["ray"], seconds[other], strict=True)]
        for other in ("one process", "two processes")
    }
    expected = texts["one process"]
    result = {
        "samples": len(expected),
        "max_tokens": arguments.max_tokens,
        "cpus": len(os.sched_getaffinity(0)),
        "engine": one.describe(),
        "seconds": seconds,
        "same_texts_as_one_process": {n: sum(texts[n][key] == text for key, text in expected.items()) for n in texts},
        **{f"ray_over_{other.replace(' ', '_')}": statistics.median(found) for other, found in ratios.items()},
        "ratios": ratios,
    }
    print(page(result))
    save(arguments.out, result)


if __name__ == "__main__":
    main()
