"""On a CPU, what shares a batch with a sample changes no digit of it: why an interrupted run ends with the same bytes.

Log-probabilities are compared, which show a difference in rounding long before a sampled token does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]

PROGRAM = """
import json, sys
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from gtpo.evalkit.engines.base import Sampling
from gtpo.evalkit.engines.model_ref import resolve_model
from gtpo.evalkit.engines.vllm import VLLMEngine

engine = VLLMEngine(resolve_model(sys.argv[1]), Sampling(1.0, 1.0, max_tokens=24, n=16, seed=0), 130)._engine


def drain(found, first=0):
    while engine.has_unfinished_requests():
        for request in engine.step():
            if request.finished:
                for sample in request.outputs:
                    log_probs = [next(iter(one.values())).logprob for one in sample.logprobs]
                    name = request.request_id.split("-")[0]
                    found[f"{name} {first + sample.index}"] = (list(sample.token_ids), log_probs)
            cached.add(request.num_cached_tokens)


def run(order, one_at_a_time=False, first=0):
    found = {}
    engine.reset_prefix_cache()
    for question in order:
        prompt = [*range(10, 50), *(5 + (3 * question + place) % 200 for place in range(50 + 7 * question))]
        params = SamplingParams(
            n=16 - first,
            seed=1000 * question + first,
            max_tokens=24,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        engine.add_request(str(question), TokensPrompt(prompt_token_ids=prompt), params)
        if one_at_a_time:
            drain(found, first)
    drain(found, first)
    return found


cached = set()
whole = run(range(6))
others = [run(range(5, -1, -1)), run(range(6), one_at_a_time=True), run(range(6), first=11)]
print(json.dumps([len(whole), sum(whole[key] != other[key] for other in others for key in other), max(cached), whole]))
"""


def sampled(model: Path, environment: dict[str, str], threads: int, cut: str | None = None) -> tuple[int, int, object]:
    """Return samples, those that come out otherwise in another order, one question after the other or when some of a
    question's were there before, and the samples. cut: vLLM's own setting."""
    changed = {"OMP_NUM_THREADS": str(threads), **({"VLLM_CPU_ATTN_SPLIT_KV": cut} if cut else {})}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)],
        env={**environment, **changed},
        capture_output=True,
        text=True,
        timeout=400,
        cwd=model.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    samples, other, shared, whole = json.loads(done.stdout.strip().split("\n")[-1])
    assert shared >= 64, "samples read their prompt once"
    return samples, other, whole


def test_order_batch_and_threads_change_no_digit(tiny_model: Path, environment: dict[str, str]) -> None:
    samples, other, two_threads = sampled(tiny_model, environment, threads=2)
    assert (samples, other) == (96, 0)
    assert sampled(tiny_model, environment, threads=1) == (96, 0, two_threads)


def test_vllms_own_setting_would(tiny_model: Path, environment: dict[str, str]) -> None:
    """With several threads it cuts some sequences of a batch in two; the pieces' sum rounds otherwise."""
    samples, other, _ = sampled(tiny_model, environment, threads=2, cut="1")
    assert samples == 96
    assert other > 0
