"""What is made of a reply: no combination without a text to trust is scored as a wrong answer in silence."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import samples, write_lines
from servers import event

from gtpo.evalkit.engines.server import Answer, RequestError
from gtpo.evalkit.evaluation.scoring import score
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import Sample
from gtpo.runs.eval_record import read_record
from gtpo.runs.outcomes import Tokens, cut_prompts, read_usage

MOST = 64
WORDS: dict[str, list[str | None]] = {
    "stop": [
        "stop", "STOP", "eos_token", "end_turn", "stop_sequence", "endTurn", "complete", "finished_stopped",
        "generation_complete", "reached_eos", "<|im_end|>", "EOS token found.",
    ],
    "limit": [
        "length", "FinishReason.MAX_TOKENS", "max-tokens", "model_context_window_exceeded", "num_predict",
        "token_limit_reached", "hit_max_ctx", "token_budget", "maxPredictedTokensReached", "Reached max tokens.",
    ],
    "filter": ["content_filter", "FinishReason.PROHIBITED_CONTENT", "SAFETY", "policy_violation", "refusal"],
    "failure": [
        "error", "abort", "rate_limit", "malformed_function_call", "insufficient_system_resource", "userStopped",
        "not_complete", "modelUnloaded",
    ],
    "none": [None, "null", "unknown"],
    "other": ["repetition", "loop_detected", "load", "OTHER", "zqx"],
    "tool": ["tool_calls", "FUNCTION_CALL"],
}  # fmt: skip
TEXTS = {
    "no": ("", None, " \n", "<|im_end|>", "/think>"),
    "yes": ("It is \\boxed{8}.", "<think>7?</think>8", "no idea"),
}
USAGE = (
    {}, {"completion_tokens": 0}, {"completion_tokens": 9}, {"completion_tokens": MOST}, {"completion_tokens": 300},
    {"completion_tokens": 5, "prompt_tokens": 20, "total_tokens": 925},
    {"completion_tokens": 5, "prompt_tokens": 20, "total_tokens": 20 + MOST},
)  # fmt: skip


def receive(word: str | None, text: str | None, thought: str, tool: bool, usage: dict[str, int]) -> Sample:
    """The sample of a streamed reply, as the engine makes it."""
    delta = {"content": text, "reasoning_content": thought or None, "tool_calls": [1] * tool}
    answer = Answer()
    answer.feed(event({"choices": [{"delta": delta, "finish_reason": word}], "usage": usage}) + b"data: [DONE]\n\n")
    sample = Sample("b", "q", 0, "")
    try:
        answer.end(MOST)
        sample.settle(answer.ending)
    except RequestError as error:
        sample.settle(error.ending._replace(why=str(error)))
    sample.completion = answer.text()
    return sample


COMBINATIONS = [
    (kind, word, said, text, thought, tool, usage)
    for kind, words in WORDS.items() for word in words
    for said, texts in TEXTS.items() for text in texts
    for thought, tool, usage in itertools.product(("", "7?"), (False, True), USAGE)
]  # fmt: skip


def test_no_reply_without_a_text_is_wrong_in_silence() -> None:
    found = [receive(*combination[1:2], *combination[3:]) for combination in COMBINATIONS]
    with Verifier(workers=1) as verifier:
        score(found, {("b", "q"): Problem("q", "What is 3 plus 4?", "7")}, verifier)
    for (kind, word, said, text, thought, tool, usage), sample in zip(COMBINATIONS, found, strict=True):
        told = (word, text, thought, tool, usage, sample)
        spent = usage.get("completion_tokens", 0) >= MOST or usage.get("total_tokens") == 20 + MOST
        whole = kind == "stop" and said == "yes" and not tool and not spent
        assert (sample.outcome == "complete") == whole, told
        assert (sample.error is None) == (sample.verdict_lenient is not None), told
        if kind in ("filter", "failure"):
            assert (sample.error is not None, sample.outcome) == (True, "blocked" if kind == "filter" else None), told
        elif said == "no" and not thought and not (kind == "limit" or spent):
            assert sample.error is not None or kind == "other", told
        if sample.error is None and sample.outcome == "complete":
            assert sample.verdict_lenient != "NO_ANSWER" or text == "no idea", told
        # What is scored and is not whole is counted: as cut off, as silent, or as not known.
        if sample.error is None and sample.outcome != "complete":
            assert sample.outcome in ("cut off", "empty", "unknown"), told
            assert (sample.outcome == "unknown") == (sample.cut_off is None), told


def test_words_that_nobody_knows_are_kept_and_counted_as_cut_off() -> None:
    rng = random.Random(4)
    for _ in range(300):
        word = "".join(rng.choice("bghjkqvwxyz_") for _ in range(rng.randint(2, 12))).strip("_") or "q"
        sample = receive(word, "8", "", False, {})
        assert (sample.finish_reason, sample.outcome, sample.cut_off, sample.error) == (word, "cut off", True, None)


def test_samples_of_0_2_end_as_they_would_now() -> None:
    for kind, word, _, text, thought, tool, usage in COMBINATIONS:
        if kind not in ("stop", "limit") or tool or usage.keys() - {"completion_tokens"}:
            continue
        now = receive(word, text, thought, tool, usage)
        said = "stop" if kind == "stop" else "length"
        old = Sample("b", "q", 0, f"<think>{thought}</think>{text or ''}" if thought else text or "")
        old.finish_reason, old.tokens, old.verdict_lenient = said, usage.get("completion_tokens"), "INCORRECT"
        own = replace(old)
        old.settle_as_stored(MOST, own=False)
        ends = [(sample.outcome, sample.finish_reason, sample.error is None) for sample in (old, now)]
        assert ends[0] == ends[1]
        assert old.verdict_lenient == (None if old.error else "INCORRECT")
        # What an engine of this process sampled is what the model wrote.
        own.settle_as_stored(MOST, own=True)
        assert own.error is None


def test_an_unfinished_thought_ends_alike_at_any_length() -> None:
    """What it wrote is there, and has no answer; with a thought that is closed there is nothing."""
    for word, outcome in (("stop", "complete"), ("length", "cut off"), (None, "unknown")):
        for thought in ("Hm. " * length for length in (1, 10, 49, 51, 500)):
            sample = receive(word, f"<think>{thought}", "", False, {})
            assert (sample.outcome, sample.error) == (outcome, None), (word, len(thought))
            silent = receive(word, f"<think>{thought}</think>", "", False, {})
            assert (silent.outcome == "cut off") if word == "length" else (silent.outcome == "empty")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"completion_tokens": 5, "prompt_tokens": 20, "total_tokens": 925}, Tokens(905, 20, 5)),
        ({"completion_tokens": 9, "prompt_tokens": 20, "total_tokens": 29}, Tokens(9, 20, 9)),
        ({"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 900}}, Tokens(905, None, 5)),
        ({"completion_tokens": 905, "completion_tokens_details": {"reasoning_tokens": 900}}, Tokens(905, None, 905)),
        ({"prompt_tokens": 20, "total_tokens": 623}, Tokens(603, 20, None)),
        ({"input_tokens": 3, "output_tokens": 9, "cache_read_input_tokens": 40}, Tokens(9, 43, 9)),
        ({"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 59,
          "prompt_tokens_details": {"cached_tokens": 40}}, Tokens(9, 50, 9)),
        ({"completion_tokens": "9", "prompt_tokens": -1, "total_tokens": True}, Tokens()),
    ],
)  # fmt: skip
def test_tokens(usage: dict[str, object], expected: Tokens) -> None:
    assert read_usage(usage) == expected


def test_prompts_that_were_cut() -> None:
    """By (bytes, tokens) of each question: one number for all of a long prompt, too few, the largest of many."""
    rng = random.Random(5)
    whole = {i: (size, size // 4 + rng.randint(-3, 3)) for i in range(200) for size in [rng.randint(40, 30_000)]}
    assert cut_prompts(whole) == set()
    limit = {i: (size, min(tokens, 4096)) for i, (size, tokens) in whole.items()}
    assert cut_prompts(limit) == {i for i, (_, tokens) in whole.items() if tokens >= 4096}
    assert cut_prompts({i: (19_600 + i, 2050) for i in range(4)}) == set(range(4))
    assert cut_prompts({i: (5_000 + i, 1250) for i in range(4)}) == set(), "short questions of one length"
    assert not any(cut_prompts({i: (4 * n + i % 2, n) for i in range(3)}) for n in range(20, 1000)), "whatever number"
    assert cut_prompts({i: (50 + i % 3, 20) for i in range(9)}) == set()
    assert cut_prompts({0: (30_000, 2048), 1: (400, 100)}) == {0}


RECORDED = [
    ("\\boxed{7}", "stop", "stop", "complete"), ("\\boxed{7}", "eos", "stop", "complete"),
    ("\\boxed{7}", "MAX_TOKENS", "length", "cut off"), ("\\boxed{7}", "whatever", "whatever", "cut off"),
    ("\\boxed{7}", "unknown", None, "unknown"), ("\\boxed{7}", None, None, "unknown"),
    ("", "stop", "error", "empty"), (None, None, "error", None), ("\\boxed{7}", "abort", "error", None),
    ("\\boxed{7}", "content_filter", "refused", "blocked"),
]  # fmt: skip


def test_recorded_rows_end_by_the_same_rule(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {"id": f"q{i}", "gold": "7", "completion": text, "finish_reason": word}
        for i, (text, word, *_) in enumerate(RECORDED)
    ]
    write_lines(tmp_path / "c.jsonl", rows)
    done = gtpo("eval", "--completions", "c.jsonl", "--out", "run")
    assert "4 samples have no completion and are unscored, 4 questions are left out" in done.stderr
    assert "1 completions ended with finish_reason whatever, which is not known here" in done.stderr
    stored = samples(tmp_path / "run").values()
    assert [(row["finish_reason"], row["outcome"]) for row in stored] == [tuple(ends) for _, _, *ends in RECORDED]
    assert all((row["error"] is None) == (row["verdict_lenient"] == "CORRECT") for row in stored)
    entry = read_record(tmp_path / "run").benchmarks["c"]
    assert (entry.samples, entry.outcomes) == (6, {"complete": 2, "cut off": 2, "unknown": 2})
