"""The summary of a run from known samples: every figure against a hand calculation."""

from __future__ import annotations

from typing import Any

import pytest
from gtpo.evalkit.engines.base import Generation
from gtpo.evalkit.evaluation.scoring import score
from gtpo.evalkit.evaluation.summary import Tally, summarise
from gtpo.evalkit.results.record import BenchmarkRecord
from gtpo.evalkit.results.store import EvalFolder
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier


def row(question: str, index: int, text: str, reason: str = "stop") -> Generation:
    return Generation("b", question, index, text, 10 + index, reason, index)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchmarkRecord, list[dict[str, Any]]]:
    """Two questions, four samples: a is 2 of 4 right under strict scoring (3 under lenient), b never."""
    right = "<reasoning>r</reasoning>\n<answer>4</answer>"
    generations = [
        *(row("a", i, text) for i, text in enumerate([right, right, "the answer is 4", "<answer>5</answer>"])),
        *(row("b", i, text) for i, text in enumerate(["<answer>1</answer>", "<answer>1.0</answer>", "", "so 9"])),
    ]
    generations[-2] = generations[-2]._replace(finish_reason="length")
    problems = [Problem("a", "p", "4", subject="s", level=1), Problem("b", "p", "7", subject="t", level=1)]
    with EvalFolder(tmp_path_factory.mktemp("runs") / "run") as folder, Verifier() as verifier:
        rows = score(generations, {("b", p.id): p for p in problems}, verifier)
        folder.append(rows[:3])
        folder.append([*rows[2:], rows[0]])  # two samples stored twice count once
        tally = Tally(folder, verifier)
        samples = tally.first("b", problems, 4)
        return summarise("b", BenchmarkRecord(), problems, samples, "strict", tally)


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


def test_groups_and_questions(summary) -> None:  # type: ignore[no-untyped-def]
    entry, rows = summary
    assert entry.by_subject["s"].pass_at_k[1] == pytest.approx(0.5)
    assert entry.by_subject["t"].pass_at_k[4] == 0.0
    assert entry.by_level is None, "one level is no breakdown"
    found = {(r["question_id"], r["scoring"]): r for r in rows}
    assert (found["b", "strict"]["votes"], found["b", "strict"]["abstentions"]) == ([2], 2)
    assert (found["b", "lenient"]["votes"], found["b", "lenient"]["abstentions"]) == ([2, 1], 1)


def test_intervals(summary) -> None:  # type: ignore[no-untyped-def]
    entry, _ = summary
    for interval in entry.pass_at_k.values():
        assert interval.low <= interval.low_sampling <= interval.mean
        assert interval.mean <= interval.high_sampling <= interval.high
