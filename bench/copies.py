"""What Ray costs: two model copies as Ray actors against one process, and against two bare processes.

Same requests, same two cores, engines only, in rounds that begin with each contender in turn. `one process` is
`--engine vllm` with as many threads as there are cores; `two processes` are two of them with one thread each and every
second question, begun together, ended with the slower; `ray` is `--engine ray --data-parallel-size 2`. All are up
before the clock starts. Expected, written down before the first run: `ray` takes at most 1.10 times `one process`.

    python -m bench.copies [--k N] [--max-tokens N] [--rounds N] [--out FILE]

The model is small, with random weights. Needs vLLM and Ray.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.kills import QUIET, random_model
from gtpo.common.files import write_json
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
    lines = ["| | seconds, by round | time of Ray / its time |", "|---|---|---|"]
    labels = {
        "one process": f"one process, {report['cpus']} threads",
        "two processes": "two bare processes, one thread each",
        "ray": "two copies on Ray, one thread each",
    }
    for name, label in labels.items():
        seconds = ", ".join(f"{value:.1f}" for value in report["seconds"][name])
        ratio = report.get(f"ray_over_{name.replace(' ', '_')}")
        lines.append(f"| {label} | {seconds} | {'-' if ratio is None else f'{ratio:.2f}'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/bench/copies.json"))
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory() as scratch:
        model = random_model(Path(scratch) / "model")
        common: dict[str, Any] = {
            "model": str(model),
            "benchmarks": "arithmetic",
            "limit": arguments.limit,
            "k": arguments.k,
            "max_tokens": arguments.max_tokens,
        }
        settings = EvalSettings(**common, engine="vllm")
        with Verifier() as verifier:
            plan = plan_evaluation(settings, verifier, "vllm")
        sampling, tasks = choose_sampling(settings, plan), plan.tasks(settings.n)
        one = make_engine(settings, plan.ref, sampling, plan.longest_prompt)
        two = BareProcesses(settings, plan.ref, sampling, plan.longest_prompt)
        on_ray = EvalSettings(**common, engine="ray", data_parallel_size=COPIES)
        ray = make_engine(on_ray, plan.ref, sampling, plan.longest_prompt)
        contenders = {
            "one process": partial(collect, one),
            "two processes": two.collect,
            "ray": partial(collect, ray),
        }
        names = list(contenders)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        texts: dict[str, dict[tuple[str, int], str]] = {}
        for collect_from in contenders.values():
            collect_from(tasks[:8])  # allocations, the workers' caches
        for number in range(arguments.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                start = time.perf_counter()
                texts[name] = contenders[name](tasks)
                seconds[name].append(time.perf_counter() - start)
                print(f"round {number + 1}: {name} {seconds[name][-1]:.2f} s", flush=True)
        two.close()
        ray.close()

    def ratios(other: str) -> list[float]:
        return [a / b for a, b in zip(seconds["ray"], seconds[other], strict=True)]

    same = {name: sum(texts[name][key] == text for key, text in texts["one process"].items()) for name in names}
    result = {
        "samples": len(texts["one process"]),
        "max_tokens": arguments.max_tokens,
        "cpus": len(os.sched_getaffinity(0)),
        "engine": one.describe(),
        "seconds": seconds,
        "same_texts_as_one_process": same,
        "ray_over_one_process": statistics.median(ratios("one process")),
        "ray_over_two_processes": statistics.median(ratios("two processes")),
        "ratios": {"one process": ratios("one process"), "two processes": ratios("two processes")},
    }
    write_json(arguments.out, result)
    print(
        f"{result['samples']} samples: ray / one process {result['ray_over_one_process']:.3f}, "
        f"ray / two bare processes {result['ray_over_two_processes']:.3f}; written to {arguments.out}"
    )


if __name__ == "__main__":
    main()
