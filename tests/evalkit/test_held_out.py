"""Scores of held-out problems: those of `gtpo eval`, by brute force."""

from __future__ import annotations

from collections import Counter

import pytest

from gtpo.evalkit.evaluation.summary import score_held_out
from gtpo.rewards.data.problem import Problem

RIGHT, WRONG, OTHER = (f"<reasoning>x</reasoning>\n<answer>{answer}</answer>" for answer in ("4", "5", "6"))
SILENT = "I do not know"
SAMPLES = [[RIGHT, WRONG, RIGHT, OTHER], [WRONG, WRONG, RIGHT, SILENT], [SILENT] * 4, [RIGHT, RIGHT, WRONG, WRONG]]
PROBLEMS = [Problem(id=str(number), problem="2 + 2?", answer="4") for number in range(4)]


def majority(samples: tuple[str, ...]) -> float:
    """Return the chance that a vote is right, ties shared, silent samples not voting."""
    votes = Counter(text for text in samples if text != SILENT)
    top = [text for text, count in votes.items() if count == max(votes.values())]
    return (RIGHT in top) / len(top) if top else 0.0


def test_rates_are_those_counted_by_hand() -> None:
    found = score_held_out(PROBLEMS, SAMPLES)
    assert found.pop("problems") == [0.5, 0.25, 0.0, 0.5]
    assert list(found) == ["pass@1", "maj@4", "format"]
    assert found["pass@1"].mean == pytest.approx((2 + 1 + 0 + 2) / 16)
    assert found["maj@4"].mean == pytest.approx(sum(majority(tuple(texts)) for texts in SAMPLES) / 4)
    assert found["format"].mean == pytest.approx((4 + 3 + 0 + 4) / 16)
    for interval in found.values():
        assert 0 <= interval.low < interval.mean < interval.high <= 1


def test_votes_are_for_answers_and_not_for_texts() -> None:
    halves = ["<reasoning>a</reasoning>\n<answer>0.5</answer>", "<reasoning>b</reasoning>\n<answer>1/2</answer>"]
    found = score_held_out([Problem(id="a", problem="?", answer="4")] * 2, [[RIGHT, *halves]] * 2)
    assert found["maj@3"].mean == 0, "two samples say one half, in different words"


def test_one_sample_has_no_majority() -> None:
    assert list(score_held_out(PROBLEMS, [[RIGHT]] * 4)) == ["pass@1", "format", "problems"]


@pytest.mark.parametrize("completions", [[], [[]] * 4, [[RIGHT], [RIGHT], [RIGHT], [RIGHT, WRONG]], [[RIGHT]] * 3])
def test_ragged_samples_are_refused(completions: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="equally many completions"):
        score_held_out(PROBLEMS, completions)
