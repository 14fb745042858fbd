"""The summary of a run from known samples: every figure against a hand calculation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from gtpo.evalkit.evaluation.scoring import Tally, score
from gtpo.evalkit.evaluation.summary import score_held_out, summarise
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder, Sample
from gtpo.runs.eval_record import BenchmarkRecord


def row(question: str, index: int, text: str, reason: str = "stop") -> Sample:
    return Sample("b", question, index, text, tokens=10 + index, finish_reason=reason, seed=index)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchmarkRecord, list[dict[str, Any]]]:
    """Two questions, four samples: a is 2 of 4 right under strict scoring (3 under lenient), b never."""
    right = "<reasoning>r</reasoning>\n<answer>4</answer>"
    rows = [
        *(row("a", i, text) for i, text in enumerate([right, right, "the answer is 4", "<answer>5</answer>"])),
        *(row("b", i, text) for i, text in enumerate(["<answer>1</answer>", "<answer>1.0</answer>", "", "so 9"])),
    ]
    rows[-2].finish_reason = "length"
    problems = [Problem("a", "p", "4", subject="s", level=1), Problem("b", "p", "7", subject="t", level=1)]
    with EvalFolder(tmp_path_factory.mktemp("runs") / "run") as folder, Verifier() as verifier:
        score(rows, {("b", p.id): p for p in problems}, verifier)
        folder.append(rows[:3])
        folder.append([*rows[2:], rows[0]])  # two samples stored twice count once
        tally = Tally(folder, verifier)
        return summarise("b", BenchmarkRecord(), problems, "strict", tally, 4, 4)


def test_means(summary) -> None:  # type: ignore[no-untyped-def]
    entry, _ = summary
    assert (entry.questions, entry.samples) == (2, 8)
    assert entry.pass_at_k[1].mean == pytest.approx(0.25)
    assert entry.pass_at_k[4].mean == pytest.approx(0.5)
    assert entry.lenient.pass_at_k[1].mean == pytest.approx(3 / 8)
    assert entry.format_rate == pytest.approx(2 / 8)
    assert entry.truncation_rate == pytest.approx(1 / 8)
    assert entry.no_answer_rate == pytest.approx(3 / 8)
    assert entry.mean_tokens == pytest.approx(11.5)
    assert entry.verdicts == {"CORRECT": 2, "INCORRECT": 3, "NO_ANSWER": 3}
    # maj@2 of a, strict: right, right, silent, wrong; the six pairs give 1, 1, 1, 1/2, 1/2, 0.
    assert entry.maj_at_k[2].mean == pytest.approx((4 / 6) / 2)


def test_questions(summary) -> None:  # type: ignore[no-untyped-def]
    _, rows = summary
    found = {(r["question_id"], r["scoring"]): r for r in rows}
    assert (found["b", "strict"]["votes"], found["b", "strict"]["abstentions"]) == ([2], 2)
    assert (found["b", "lenient"]["votes"], found["b", "lenient"]["abstentions"]) == ([2, 1], 1)


def test_what_is_missing_is_bounded() -> None:
    """a: 2 of 4 right; b: 1 of 2, two failed; c: all four failed. By hand, for every k."""
    right, wrong = "<answer>4</answer>", "<answer>5</answer>"
    rows = [
        *(row("a", i, text) for i, text in enumerate([right, right, wrong, wrong])),
        *(row("b", i, text) for i, text in enumerate([right, wrong])),
        *(Sample("b", "b", i, "half", finish_reason="error", error="HTTP 500") for i in (2, 3)),
        *(Sample("b", "c", i, "", finish_reason="refused", error="HTTP 400") for i in range(4)),
    ]
    problems = [Problem(name, "p", "4") for name in "abc"]
    with Verifier() as verifier, tempfile.TemporaryDirectory() as scratch, EvalFolder(Path(scratch) / "run") as folder:
        score(rows, {("b", p.id): p for p in problems}, verifier)
        folder.append(rows)
        tally = Tally(folder, verifier)
        assert min(tally.questions["b", p.id].reached() for p in problems) == 4
        entry, rows = summarise("b", BenchmarkRecord(), problems, "strict", tally, 4, 4)
    assert (entry.samples, entry.unscored, entry.refused) == (6, 6, 4)
    assert (entry.lacking, entry.unscored_questions) == ({"b": 2}, ["c"])
    assert {k: interval.questions for k, interval in entry.pass_at_k.items()} == {1: None, 2: None, 3: 1, 4: 1}
    means = {1: (1 / 2 + 1 / 2) / 2, 2: (5 / 6 + 1) / 2, 3: 1.0, 4: 1.0}
    assert {k: interval.mean for k, interval in entry.pass_at_k.items()} == pytest.approx(means)
    worst = {1: (1 / 2 + 1 / 4 + 0) / 3, 2: (5 / 6 + 1 / 2) / 3, 3: (1 + 3 / 4) / 3, 4: 2 / 3}
    best = {1: (1 / 2 + 3 / 4 + 1) / 3, 2: (5 / 6 + 1 + 1) / 3, 3: 1.0, 4: 1.0}
    assert {k: interval.worst for k, interval in entry.pass_at_k.items()} == pytest.approx(worst)
    assert {k: interval.best for k, interval in entry.pass_at_k.items()} == pytest.approx(best)
    assert entry.maj_at_k[4].worst == pytest.approx((1 / 2 + 0 + 0) / 3)  # b: one right, three alike that are wrong
    assert entry.maj_at_k[4].best == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert {(r["question_id"], len(r["pass_at_k"])) for r in rows} == {("a", 4), ("b", 2)}


# -- scores of held-out problems, by brute force -----------------------------------------------------------------------

RIGHT, WRONG, OTHER = (f"<reasoning>x</reasoning>\n<answer>{answer}</answer>" for answer in ("4", "5", "6"))
SILENT = "I do not know"
SAMPLES = [[RIGHT, WRONG, RIGHT, OTHER], [WRONG, WRONG, RIGHT, SILENT], [SILENT] * 4, [RIGHT, RIGHT, WRONG, WRONG]]
PROBLEMS = [Problem(id=str(number), problem="2 + 2?", answer="4") for number in range(4)]


def test_rates_are_those_counted_by_hand() -> None:
    found = score_held_out(PROBLEMS, SAMPLES)
    assert found.pop("problems") == [0.5, 0.25, 0.0, 0.5]
    assert list(found) == ["pass@1", "maj@4", "format"]
    assert found["pass@1"].mean == pytest.approx((2 + 1 + 0 + 2) / 16)
    assert found["maj@4"].mean == pytest.approx((1 + 0 + 0 + 1 / 2) / 4), "of the last two answers tie"
    assert found["format"].mean == pytest.approx((4 + 3 + 0 + 4) / 16)
    for interval in found.values():
        assert 0 <= interval.low < interval.mean < interval.high <= 1
    assert list(score_held_out(PROBLEMS, [[RIGHT]] * 4)) == ["pass@1", "format", "problems"], "one has no majority"


@pytest.mark.parametrize("completions", [[], [[]] * 4, [[RIGHT], [RIGHT], [RIGHT], [RIGHT, WRONG]], [[RIGHT]] * 3])
def test_ragged_samples_are_refused(completions: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="equally many completions"):
        score_held_out(PROBLEMS, completions)
