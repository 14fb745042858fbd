"""pass@k and maj@k against full enumeration in rational arithmetic, and against reference values of others."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo.evalkit.metrics import all_pass_at_all_k, maj_at_all_k, maj_at_k, pass_at_all_k, pass_at_k

RIGHT, SILENT = -1, -2


def enumerated(votes: list[int], correct: int, abstentions: int, k: int) -> tuple[Fraction, ...]:
    """pass@k, pass^k and maj@k by the definition: every k-subset of the samples, ties shared evenly."""
    samples = [RIGHT] * correct + [SILENT] * abstentions
    for name, size in enumerate(votes):
        samples += [name] * size
    passed = every = majority = Fraction(0)
    for subset in itertools.combinations(samples, k):
        passed += RIGHT in subset
        every += set(subset) == {RIGHT}
        counts = Counter(answer for answer in subset if answer != SILENT)
        most = max(counts.values(), default=0)
        if counts[RIGHT] == most and most:
            majority += Fraction(1, sum(1 for size in counts.values() if size == most))
    return tuple(total / math.comb(len(samples), k) for total in (passed, every, majority))


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[int], int, int]:
    correct = draw(st.integers(0, 6))
    abstentions = draw(st.integers(0, 3))
    votes: list[int] = []
    for size in draw(st.lists(st.integers(1, 5), max_size=6)):
        if correct + abstentions + sum(votes) + size <= 11:
            votes.append(size)
    if correct + abstentions + sum(votes) == 0:
        correct = 1
    return votes, correct, abstentions


@settings(max_examples=40, deadline=None)
@given(st.lists(questions(), min_size=1, max_size=3))
def test_equal_to_full_enumeration(block: list[tuple[list[int], int, int]]) -> None:
    votes, correct, abstentions = ([q[i] for q in block] for i in range(3))
    n = [sum(v) + c + a for v, c, a in block]
    majority = maj_at_all_k(votes, correct, abstentions)
    passed, every = pass_at_all_k(n, correct), all_pass_at_all_k(n, correct)
    for q, (v, c, a) in enumerate(block):
        for k in range(1, n[q] + 1):
            expected_pass, expected_all, expected_maj = enumerated(v, c, a, k)
            assert passed[q, k - 1] == pytest.approx(float(expected_pass), abs=1e-12)
            assert every[q, k - 1] == pytest.approx(float(expected_all), abs=1e-12)
            assert majority[q, k - 1] == pytest.approx(float(expected_maj), abs=1e-12)
            assert maj_at_k(v, c, k, a) == pytest.approx(float(expected_maj), abs=1e-12)
        assert np.isnan(passed[q, n[q] :]).all()
        assert np.isnan(majority[q, n[q] :]).all()


def rational_maj(votes: list[int], correct: int, abstentions: int, k: int) -> Fraction:
    """maj@k by counting subsets by (size, ties) in integers: a route without quadrature or floats."""
    total = Fraction(0)
    n = sum(votes) + correct + abstentions
    for j in range(1, min(correct, k) + 1):
        ways: Counter[tuple[int, int]] = Counter({(0, 1): 1})
        for size in votes:
            grown: Counter[tuple[int, int]] = Counter()
            for (drawn, ties), count in ways.items():
                for v in range(min(size, j) + 1):
                    grown[drawn + v, ties + (v == j)] += count * math.comb(size, v)
            ways = grown
        for (drawn, ties), count in ways.items():
            rest = k - j - drawn
            if 0 <= rest <= abstentions:
                total += Fraction(math.comb(correct, j) * count * math.comb(abstentions, rest), ties)
    return total / math.comb(n, k)


@pytest.mark.parametrize(
    ("votes", "correct", "abstentions"),
    [([20, 12, 5, 1, 1, 1], 20, 4), ([1] * 40, 24, 0), ([30], 30, 4), ([33], 31, 0), ([8] * 7, 8, 0), ([], 60, 4)],
)
def test_equal_to_rational_arithmetic_at_64_samples(votes: list[int], correct: int, abstentions: int) -> None:
    computed = maj_at_all_k([votes], [correct], [abstentions])[0]
    for k in (*range(1, 12), *range(12, 64, 5), 64):
        exact = float(rational_maj(votes, correct, abstentions, k))
        assert computed[k - 1] == pytest.approx(exact, rel=1e-12, abs=1e-15)


def test_no_overflow_at_many_samples() -> None:
    votes, correct, abstentions = [300, 100, 3, 3], 350, 20
    computed = maj_at_all_k([votes], [correct], [abstentions])[0]
    for k in (1, 2, 7):
        assert computed[k - 1] == pytest.approx(float(rational_maj(votes, correct, abstentions, k)), rel=1e-10)
    assert computed[-1] == pytest.approx(1.0)


def test_at_the_ends() -> None:
    assert pass_at_k(64, 0, 64) == 0.0
    assert pass_at_k(64, 1, 64) == 1.0
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert maj_at_k([5], 5, 10) == 0.5  # a tie of two
    assert maj_at_k([], 0, 3, abstentions=3) == 0.0  # all abstain
    assert maj_at_k([], 1, 64, abstentions=63) == 1.0  # one vote carries where nobody else votes
    assert maj_at_k([2, 2], 1, 1) == pytest.approx(0.2)


@pytest.mark.parametrize("call", [lambda: pass_at_k(8, 2, 9), lambda: maj_at_k([3], 5, 9), lambda: pass_at_k(8, 2, 0)])
def test_k_beyond_the_samples_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="k must be between 1 and the number of samples"):
        call()


@pytest.mark.shared
def test_reference_values_of_recorded_completions(shared_dir: Path) -> None:
    """Others' completions of 100 MATH problems, 8 each: string vote on the recorded answers, the file's labels."""
    (expected,) = json.loads((shared_dir / "recorded/expected.json").read_text()).values()
    with gzip.open(shared_dir / "recorded/math100x8_qwen/math_cot_100.jsonl.gz", "rt", encoding="utf-8") as handle:
        rows = [json.loads(line) for line in handle]
    assert len(rows) == expected["problems"]
    # The reference votes on strings: a right class is each string that was labelled right.
    total = {int(k): {"pass@k": 0.0, "maj@k": 0.0} for k in expected["k"]}
    for row in rows:
        right = sum(row["labels"])
        classes = Counter(row["preds"])
        labels = dict(zip(row["preds"], row["labels"], strict=True))
        winners = [classes.pop(answer) for answer, label in labels.items() if label]
        n = len(row["preds"])
        for k, sums in total.items():
            sums["pass@k"] += pass_at_k(n, right, k)
            # Several right strings are classes of their own there: the share of each in turn.
            for i, size in enumerate(winners):
                others = [*classes.values(), *winners[:i], *winners[i + 1 :]]
                sums["maj@k"] += maj_at_k(others, size, k)
    for k, sums in total.items():
        assert sums["pass@k"] == pytest.approx(expected["k"][str(k)]["pass@k"], abs=1e-9)
        assert sums["maj@k"] == pytest.approx(expected["k"][str(k)]["maj@k_expect_tie_avg"], abs=1e-9)
