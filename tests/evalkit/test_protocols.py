"""What a model is asked, how what it writes is read, and what of it reaches the verdict: special tokens, stop texts,
thoughts that only the other samples show. No reply without a text to trust is scored as a wrong answer in silence."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_folders import samples, write_lines
from scripted import scripted
from servers import Reply, event

from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import sample_seed
from gtpo.evalkit.engines.server import Answer, RequestError
from gtpo.evalkit.evaluation.scoring import score
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.tasks import FewShot, Protocol, presets
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import Sample
from gtpo.runs.eval_record import read_record
from gtpo.runs.outcomes import Tokens, cut_prompts, read_usage

QUESTION = Problem("q", "What is {answer}?", "4", solution="2+2\n#### 4")


def settings(**given: Any) -> EvalSettings:
    return EvalSettings(model="m", benchmarks="arithmetic", **given)


def test_a_flag_wins_over_the_protocol() -> None:
    protocol = presets()["qwen3"]
    found = protocol.apply_to(settings(top_p=0.5))
    assert (found.temperature, found.top_p, found.top_k, found.scoring, found.prompt) == (0.7, 0.5, 20, "lenient", "")
    assert found.chat_template_kwargs == {"enable_thinking": False}
    assert protocol.apply_to(settings(scoring="strict", prompt="Hi")).scoring == "strict"
    # The model's recommendation holds.
    assert "temperature" not in protocol.apply_to(settings(sampling="model")).model_fields_set
    assert vars(presets()["gtpo"].apply_to(settings())) == vars(settings())


def test_fields_are_filled_once() -> None:
    """The text of a field that looks like a field is left as it is."""
    protocol = Protocol(user="{problem} {x}")
    assert protocol.conversation(QUESTION, [], "").messages == [{"role": "user", "content": "What is {answer}? {x}"}]
    with pytest.raises(ValueError, match=r"\{answer\} would show the model what it is asked for"):
        Protocol(user="{problem} ({answer})")
    asked = Protocol(system_role="developer").conversation(QUESTION, [QUESTION], "Do.")
    roles = [m["role"] for m in asked.messages]
    assert roles == ["developer", "user", "assistant", "user"]


def test_examples_are_those_that_lm_eval_draws(tmp_path: Path) -> None:
    """For each question anew, in the order of the benchmark, whatever part of it is asked for."""
    rows = [{"id": f"t{i}", "problem": f"P{i}?", "answer": str(i), "solution": f"S{i}"} for i in range(9)]
    write_lines(tmp_path / "gsm8k_train.jsonl", rows)
    protocol = presets()["lm-eval-gsm8k"]
    problems = [Problem(f"q{i}", f"Q{i}?", "1") for i in range(3)]
    draw = random.Random(1234)
    expected = [draw.sample([f"t{i}" for i in range(9)], 5) for _ in problems]
    found = protocol.examples(problems, tmp_path)
    assert [[e.id for e in found[p.id]] for p in problems] == expected
    text = protocol.conversation(problems[0], found["q0"], "").text
    number = expected[0][0][1:]
    assert text.startswith(f"Question: P{number}?\nAnswer: S{number}\n\nQuestion: ")
    assert text.endswith("\n\nQuestion: Q0?\nAnswer:")
    with pytest.raises(UserError, match="1 questions of the benchmark are among its examples"):
        protocol.examples([Problem("q", "P3?", "3")], tmp_path)
    for choice, words in (({"t1": {"S2": "s"}}, "t1: 'S2', to be .* does not stand"), ({"t9": {}}, "no example t9")):
        of = FewShot(data="gsm8k_train", count=1, choice=choice)
        with pytest.raises(UserError, match=words):
            protocol.model_copy(update={"fewshot": of}).examples(problems, tmp_path)


OPEN, SHUT = "User: hi\nModel: <think>\n", "Model: <think>\n\n</think>\n"


@pytest.mark.parametrize(
    ("text", "reason", "prompt", "stored"),
    [
        ("so \\boxed{5}. But wait", "length", OPEN, "<think>so \\boxed{5}. But wait"),
        ("so \\boxed{5}. But wait", "length", "Model: [T]", "<think>so \\boxed{5}. But wait"),
        ("<think>so", "length", OPEN, "<think>so"),
        ("so</think>5", "stop", OPEN, "<think>so</think>5"),
        ("so \\boxed{5}. But wait", "length", None, "<think>so \\boxed{5}. But wait"),  # a server, template unknown
        ("so \\boxed{5}. But wait", "repetition", None, "<think>so \\boxed{5}. But wait"),
        ("so</think>5", "stop", None, "<think>so</think>5"),
        ("\\boxed{5}", "stop", None, "\\boxed{5}"),  # the server keeps the thoughts to itself
        ("\\boxed{5}", "length", SHUT, "\\boxed{5}"),  # the prompt is known, and opens none
        ("[T]so[/T]5", "stop", SHUT, "<think>so</think>5"),
        ("5 Q: and", "length", SHUT, "5 "),
        ("<think>Q: restated</think>5 Q: and", "stop", SHUT, "<think>Q: restated</think>5 "),
        ("<think>Q: restated", "length", SHUT, "<think>Q: restated"),
    ],
)
def test_thoughts_and_stops(text: str, reason: str, prompt: str | None, stored: str) -> None:
    protocol = Protocol(begins_in_thought=True, thoughts=[("[T]", "[/T]")], stop=["Q:"])
    found = Sample("b", "q", 0, text, finish_reason=reason)
    protocol.reading().read(found, prompt)
    assert found.completion == stored
    assert found.finish_reason == (reason if len(stored) >= len(text) or "[T]" in text else "stop")
    # The server that was sent the stop texts may have cut it there.
    assert protocol.reading().ends_in_thought("so \\boxed{5}", None)


def test_the_prompt_is_stored_and_shown(gtpo, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "own.yaml").write_text('extends: boxed\nsystem: Be brief.\nuser: "Say {problem}"\n')
    evaluate = ("eval", tiny_model, "--protocol", "own.yaml", "--max-tokens", "4", "--limit", "2", "--out", "run")
    gtpo(*evaluate, "--benchmarks", "arithmetic")
    first, _ = pq.read_table(tmp_path / "run/prompts.parquet").to_pylist()
    assert json.loads(first["messages"])[0] == {"role": "system", "content": "Be brief."}
    assert "Say " in first["prompt"]
    assert first["tokens"]
    record = json.loads((tmp_path / "run/eval.json").read_text())
    assert record["prompt"]["user"] == "Say {problem}"
    assert (record["prompt"]["protocol"], record["scoring"]) == ("own", "lenient")
    shown = gtpo("eval", tiny_model, "--check", "arithmetic", "--protocol", "own.yaml").stdout
    assert first["prompt"] in shown
    assert f"{len(first['tokens'])} tokens: {' '.join(map(str, first['tokens']))}" in shown
    (tmp_path / "own.yaml").write_text('extends: boxed\nsystem: Be brief.\nuser: "Tell {problem}"\n')
    said = gtpo(*evaluate, "--benchmarks", "arithmetic", code=2).stderr
    assert "prompt.user (Say {problem} there, Tell {problem} now)" in said


@pytest.mark.parametrize(("rendered", "unfinished"), [("User: hi\nModel: <think>\n", 1.0), ("User: hi\nModel:", None)])
def test_a_server_that_shows_the_prompt_and_no_thoughts(  # type: ignore[no-untyped-def]
    gtpo, serve, tmp_path: Path, rendered: str, unfinished: float | None
) -> None:
    """Its template opens a thought, its answers do not say so: what is cut off in it has no answer."""
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    golds = {p.problem: p.answer for p in arithmetic_problems("test")}

    def cut_off(payload: dict[str, Any], times: int) -> Reply:
        text = f"so maybe \\boxed{{{golds[payload['messages'][-1]['content']]}}}. But wait"
        choice = {"message": {"content": text}, "finish_reason": "length"}
        return Reply(body={"choices": [choice], "usage": {"completion_tokens": 8, "prompt_tokens": 11}})

    server = serve(cut_off)
    server.rendered = rendered
    done = gtpo(
        *("eval", "m", "--engine", "openai", "--base-url", server.url, "--benchmarks", "arithmetic", "--limit", "4"),
        *("--max-tokens", "8", "--scoring", "lenient", "--out", "run"),
    )
    entry = json.loads((tmp_path / "run/eval.json").read_text())["benchmarks"]["arithmetic"]
    assert entry.get("unfinished_rate") == unfinished
    assert ("unfinished thoughts 100 %: they have no answer" in done.stderr) == ("unfinished" in done.stdout)
    assert ("unfinished" in done.stdout) == bool(unfinished)
    assert entry["pass@k"]["1"]["mean"] == (0.0 if unfinished else 1.0)
    first = pq.read_table(tmp_path / "run/prompts.parquet").to_pylist()[0]
    assert (first["prompt"], first["tokens"]) == (rendered, [1, 2, 3])
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (12, 32)


ROW = {"id": "q", "problem": "What is 20 plus 22?", "answer": "42"}


def rows(run: Path) -> dict[str, dict[str, Any]]:
    """Question and sample -> stored row."""
    return {f"{question}{index or ''}": row for (_, question, index), row in samples(run).items()}


def evaluated(gtpo: Any, tmp_path: Path, model: Path, protocol: str = "scoring: lenient\n") -> dict[str, Any]:
    (tmp_path / "b.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "p.yaml").write_text(protocol)
    command = ("eval", model, "--benchmarks", "b.jsonl", "--protocol", "p.yaml", "--temperature", "0")
    gtpo(*command, "--engine", "transformers", "--max-tokens", "24", "--out", "run")
    return rows(tmp_path / "run")["q"]


THINKS = ("<think>", "</think>")
LAYOUT = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens_are_read(gtpo, tmp_path: Path, special: bool) -> None:  # type: ignore[no-untyped-def]
    """Tags and delimiters count alike, whether the tokenizer calls them special or not."""
    text = "<reasoning> add </reasoning> <answer> 42 </answer>"
    row = evaluated(gtpo, tmp_path, scripted(tmp_path / "m", text, LAYOUT if special else ()))
    assert (row["completion"], row["verdict_strict"], row["format_ok"]) == (text, "CORRECT", True)
    assert row["finish_reason"] == "stop"


@pytest.mark.parametrize("opening", ["<think>", "[THINK]", "<|my_thoughts|>"])
def test_an_unfinished_thought_in_special_tokens(gtpo, tmp_path: Path, opening: str) -> None:  # type: ignore[no-untyped-def]
    """A delimiter that no table knows is known by its pair among the tokenizer's tokens."""
    pair = (opening, opening.replace("<|", "<|/") if "|" in opening else f"{opening[0]}/{opening[1:]}")
    model = scripted(tmp_path / "m", f"{opening} maybe \\boxed{{42}} wait", pair, endless=True)
    row = evaluated(gtpo, tmp_path, model)
    assert (row["verdict_lenient"], row["unfinished"], row["finish_reason"]) == ("NO_ANSWER", True, "length")


@pytest.mark.parametrize("pair", [THINKS, ("<|my_thoughts|>", "<|/my_thoughts|>")])
def test_stop_texts(gtpo, tmp_path: Path, pair: tuple[str, str]) -> None:  # type: ignore[no-untyped-def]
    """One that is a special token stops; one in a thought does not."""
    model = scripted(tmp_path / "m", f"{pair[0]} Q: {pair[1]} 42 <|stop|> 43 44", (*pair, "<|stop|>"))
    row = evaluated(gtpo, tmp_path, model, "scoring: lenient\nstop: ['Q:', '<|stop|>']\n")
    assert (row["completion"], row["verdict_lenient"]) == ("<think> Q: </think> 42", "CORRECT")
    assert (row["tokens"], row["finish_reason"]) == (5, "stop")


def test_a_text_for_a_base_model_has_no_end_token(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    protocol = 'api: completions\nuser: "{problem} Go"\nscoring: lenient\n'
    row = evaluated(gtpo, tmp_path, scripted(tmp_path / "m", "so \\boxed{42}", eos_after=True), protocol)
    assert row["verdict_lenient"] == "CORRECT"


CLOSES, CUT, PLAIN = "is it 7? No.</think>\\boxed{42}", "maybe \\boxed{42}. But wait", "\\boxed{42}"


@pytest.mark.parametrize(
    ("others", "verdict", "said"),
    [([CLOSES], "NO_ANSWER", ""), ([PLAIN], "CORRECT", ""), ([CLOSES, PLAIN, PLAIN], "CORRECT", "may be thoughts")],
)
def test_other_samples_tell_what_a_cut_off_one_is(  # type: ignore[no-untyped-def]
    gtpo, tmp_path: Path, others: list[str], verdict: str, said: str
) -> None:
    texts, reasons = [CUT, *others], ["length", *["stop"] * len(others)]
    row = {"id": "q", "gold": "42", "completions": texts, "finish_reasons": reasons}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    done = gtpo("eval", "--completions", "c.jsonl", "--out", "run")
    found = rows(tmp_path / "run")
    assert found["q"]["verdict_lenient"] == verdict
    assert found["q"]["unfinished"] == (verdict == "NO_ANSWER")
    assert all(row["verdict_lenient"] == "CORRECT" for name, row in found.items() if name != "q")
    assert (said or "thoughts") in done.stderr if said else "may be thoughts" not in done.stderr


def test_a_guess_of_one_session_is_no_evidence_in_the_next(gtpo, serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Of the first samples two of three show thoughts, of all samples two of six."""

    first = {sample_seed(0, "arithmetic", f"arithmetic/test/{q}", 0): q for q in range(4)}

    def behaviour(payload: dict[str, Any], times: int) -> Reply:
        question = first.get(payload["seed"], 3)
        message = {"content": PLAIN if question else CUT, "reasoning_content": "7?" if question in (1, 2) else None}
        return Reply(body={"choices": [{"message": message, "finish_reason": "stop" if question else "length"}]})

    run = ("eval", "m", "--base-url", serve(behaviour).url, "-b", "arithmetic", "--limit", "4", "--protocol", "boxed")
    for words, said in ((("--k", "1"), True), (("--k", "2"), False), (("--k", "2", "--out", "at-once"), False)):
        assert ("unfinished thoughts 25 %" in gtpo(*run, *words).stderr) == said
    assert rows(tmp_path / "results/eval/m") == rows(tmp_path / "at-once")


def test_recorded_completions_are_read_by_a_protocol(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Its delimiters, its stop texts, and whether completions begin in a thought."""
    texts = ["[T]7[/T]The answer is 42. Q: 8", "is it 7?[/T]The answer is 42.", "maybe \\boxed{42}"]
    row = {"id": "q", "gold": "42", "completions": texts, "finish_reasons": ["stop", "stop", "MAX_TOKENS"]}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "p.yaml").write_text("begins_in_thought: true\nthoughts: [['[T]', '[/T]']]\nstop: ['Q:']\n")
    gtpo("eval", "--completions", "c.jsonl", "--protocol", "p.yaml", "--out", "run")
    assert [r["verdict_lenient"] for r in rows(tmp_path / "run").values()] == ["CORRECT", "CORRECT", "NO_ANSWER"]
    record = json.loads((tmp_path / "run/eval.json").read_text())
    assert record["prompt"]["begins_in_thought"]
    assert record["sampling"]["stop"] == ["Q:"]


def test_a_thought_apart_in_a_recorded_row(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    row = {"id": "q", "gold": "42", "completion": "It is 42.", "reasoning_content": "7?", "finish_reason": "stop"}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    gtpo("eval", "--completions", "c.jsonl", "--out", "run")
    assert rows(tmp_path / "run")["q"]["completion"] == "<think>7?</think>It is 42."


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
        ({"completion_tokens": 2**32 - 1, "prompt_tokens": 2**31, "total_tokens": 2**40}, Tokens()),
        ({"prompt_tokens": 20, "total_tokens": 5}, Tokens(None, 20, None)),
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
