"""What a model writes reaches the verdict: special tokens, stop texts, thoughts that only the other samples show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_folders import samples
from scripted import scripted

QUESTION = {"id": "q", "problem": "What is 20 plus 22?", "answer": "42"}


def rows(run: Path) -> dict[str, dict[str, Any]]:
    """Question and sample -> stored row."""
    return {f"{question}{index or ''}": row for (_, question, index), row in samples(run).items()}


def evaluated(gtpo: Any, tmp_path: Path, model: Path, protocol: str = "scoring: lenient\n") -> dict[str, Any]:
    (tmp_path / "b.jsonl").write_text(json.dumps(QUESTION) + "\n")
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
