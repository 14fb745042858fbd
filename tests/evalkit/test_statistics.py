"""Intervals by their coverage, tests by enumeration, and both against recorded reference values."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evalkit.statistics import holm, mean_interval, paired_difference, paired_differences

SEED = 20261121


def recorded_labels(shared_dir: Path) -> Iterator[dict]:
    with gzip.open(shared_dir / "recorded" / "zeroeval_gsm_labels.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


@pytest.mark.shared
def test_recorded_pairs_reproduce(shared_dir: Path) -> None:
    marks = {"0": 0.0, "1": 1.0, "-": math.nan}
    labels = {row["model"]: [marks[mark] for mark in row["labels"]] for row in recorded_labels(shared_dir)}
    expected = json.loads((shared_dir / "recorded" / "paired_expected.json").read_text())["gsm"]
    assert len(expected) == 90
    for row in expected:
        got = paired_difference(labels[row["a"]], labels[row["b"]])
        assert got.test == "mcnemar"
        assert (got.only_a, got.only_b) == (row["b01"], row["b10"])
        found = [100 * got.difference, 100 * got.se, 100 * got.se_unpaired, got.p_value, got.t_p, got.unpaired_p]
        keys = ["diff", "se_paired", "se_unpaired", "mcnemar_exact_p", "paired_t_p", "unpaired_p"]
        assert found == pytest.approx([row[key] for key in keys], abs=1e-9)


@pytest.mark.shared
def test_unscored_questions_are_left_out_of_the_pair(shared_dir: Path) -> None:
    rows = {row["model"]: row["labels"] for row in recorded_labels(shared_dir)}
    gaps = rows["gemini-1.5-flash-exp-0827"]
    other = rows["gemini-1.5-flash"]
    kept = [(int(x), int(y)) for x, y in zip(gaps, other, strict=True) if x != "-"]
    got = paired_difference(
        [math.nan if mark == "-" else float(mark) for mark in gaps], [float(mark) for mark in other]
    )
    assert got.questions == len(kept) == 681
    assert got.difference == pytest.approx(sum(x - y for x, y in kept) / 681)


@pytest.mark.parametrize("questions", [10, 30, 100])
@pytest.mark.parametrize(
    ("name", "alpha", "beta", "samples"),
    [
        ("one sample, p = 0.03", 0.03, None, 1),
        ("one sample, p = 0.5", 0.5, None, 1),
        ("hard or easy", 0.3, 0.7, 64),
        ("nearly all failed", 0.02, 0.98, 64),
        ("all alike", 20.0, 20.0, 64),
    ],
)
def test_interval_covers(name: str, questions: int, alpha: float, beta: float | None, samples: int) -> None:
    """95 % intervals cover the true mean in at least 92.5 % of 1,500 benchmarks drawn at random; t's do not."""
    rng = np.random.default_rng(SEED)
    repeats = 1500
    chance = np.full((repeats, questions), alpha) if beta is None else rng.beta(alpha, beta, size=(repeats, questions))
    truth = alpha if beta is None else alpha / (alpha + beta)
    scores = rng.binomial(samples, chance) / samples
    intervals = [mean_interval(row) for row in scores]
    covered = np.mean([i.low <= truth <= i.high for i in intervals])
    print(name, questions, f"seed {SEED}", f"coverage {covered:.3f}")
    assert covered >= 0.925


def test_interval_of_outcomes_is_wilsons() -> None:
    scores = np.repeat([1.0, 0.0], [37, 93])
    got = mean_interval(scores)
    t = stats.t.ppf(0.975, 129)
    roots = np.roots([1 + t**2 / 130, -2 * (37 / 130) - t**2 / 130, (37 / 130) ** 2])
    assert (got.low, got.high) == pytest.approx(tuple(sorted(roots.real)))
    assert got.low_sampling is None


def test_interval_tends_to_the_t_interval() -> None:
    scores = np.random.default_rng(SEED).beta(2, 3, size=5000)
    got = mean_interval(scores)
    wanted = stats.t.interval(0.95, 4999, loc=scores.mean(), scale=stats.sem(scores))
    assert (got.low, got.high) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("questions", [1, 2, 30, 1319])
def test_nothing_is_certain_at_0_and_100_percent(questions: int) -> None:
    none = mean_interval(np.zeros(questions), np.zeros(questions))
    every = mean_interval(np.ones(questions), np.zeros(questions))
    assert none.low == none.mean == 0.0
    assert every.high == every.mean == 1.0
    assert none.high == pytest.approx(1 - every.low)
    exact = 1 - 0.05 ** (1 / questions)  # one-sided: what no success in Q trials still allows
    assert none.high >= exact
    assert 0 < none.high_sampling <= none.high


def test_one_success_in_many_samples_does_not_collapse_the_interval() -> None:
    scores = np.zeros(30)
    nothing = mean_interval(scores).high
    scores[0] = 1 / 64
    assert mean_interval(scores).high > 0.9 * nothing


def test_sampling_interval_is_the_narrower_and_right() -> None:
    """Same questions sampled again and again: the sampling interval covers this set's own mean in 95 %."""
    rng = np.random.default_rng(SEED)
    chance, n = rng.beta(0.5, 0.5, size=40), 16
    inside = []
    for _ in range(1000):
        scores = rng.binomial(n, chance) / n
        got = mean_interval(scores, scores * (1 - scores) / (n - 1))
        assert got.high_sampling - got.low_sampling < got.high - got.low
        inside.append(got.low_sampling <= chance.mean() <= got.high_sampling)
    print(f"seed {SEED}", np.mean(inside))
    assert 0.93 <= np.mean(inside) <= 0.98


@pytest.mark.parametrize("bad", [[], [0.5, 1.2], [math.nan], [[0.1], [0.2]]])
def test_interval_refuses(bad: list) -> None:
    with pytest.raises(ValueError, match="values must"):
        mean_interval(bad)


def test_interval_refuses_bad_variances() -> None:
    with pytest.raises(ValueError, match="within_variance must be 2"):
        mean_interval([0.5, 0.5], [0.1])


def brute_force(d: np.ndarray) -> float:
    sums = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=len(d))
    ]
    return float(np.mean(np.array(sums) >= abs(d.sum()) - 1e-9))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=10), st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_permutation_is_full_enumeration(pairs: list[tuple[int, int]], curved: bool) -> None:
    shape = (lambda x: 1 - math.comb(6 - x, 3) / 20) if curved else (lambda x: x / 6)
    a, b = (np.array([shape(pair[side]) for pair in pairs]) for side in (0, 1))
    got = paired_difference(a, b)
    assert got.test in ("permutation", "mcnemar")
    assert got.p_value == pytest.approx(brute_force(a - b), abs=1e-9)
    back = paired_difference(b, a)
    assert (back.difference, back.low, back.high) == pytest.approx((-got.difference, -got.high, -got.low))
    assert back.p_value == pytest.approx(got.p_value)


def test_thirty_different_differences_are_enumerated() -> None:
    """AIME's 30 questions: exact, and equal to scipy's test by simulation within its error."""
    rng = np.random.default_rng(SEED)
    a, b = rng.random((2, 30))
    got = paired_difference(a, b - 0.1 * (b > 0.1))
    assert got.test == "permutation"
    wanted = stats.permutation_test(
        (a - (b - 0.1 * (b > 0.1)),), np.sum, permutation_type="samples", n_resamples=20_000, rng=SEED
    ).pvalue
    assert got.p_value == pytest.approx(wanted, abs=0.015)


def test_monte_carlo_meets_the_exact_test() -> None:
    """MC is seeded, never 0, and agrees with McNemar where a hair's breadth of a fraction hides the 0/1 scores."""
    rng = np.random.default_rng(SEED)
    a, b = (rng.random((2, 400)) < [[0.8], [0.72]]).astype(float)
    exact = paired_difference(a, b)
    noisy = paired_difference(a * (1 - 1e-4 * rng.random(400)), b)
    assert (exact.test, noisy.test) == ("mcnemar", "permutation-mc")
    assert noisy.p_value == pytest.approx(exact.p_value, abs=0.02)
    certain = paired_difference(np.ones(400) - 1e-4 * rng.random(400), np.zeros(400))
    assert certain.p_value == pytest.approx(1e-4)


def test_level_of_the_permutation_test() -> None:
    """Two equal models are called different at 5 % in about 5 % of 1,000 benchmarks of 40 questions."""
    rng = np.random.default_rng(SEED)
    chance = rng.beta(0.6, 0.8, size=(1000, 40))
    a, b = rng.binomial(8, chance) / 8, rng.binomial(8, chance) / 8
    rejected = np.mean([found.p_value <= 0.05 for found in paired_differences(a, b)])
    print(f"seed {SEED}", rejected)
    assert 0.03 <= rejected <= 0.065


def test_detectable_difference_is_found_with_80_percent_power() -> None:
    rng = np.random.default_rng(SEED)
    base = rng.beta(2, 2, size=(600, 200))
    noise = rng.normal(0, 0.1, size=base.shape)
    null = paired_difference(np.clip(base[0] + noise[0], 0, 1), base[0])
    shifted = np.clip(base + noise + null.detectable, -1, 2)
    power = np.mean([stats.ttest_1samp(x - y, 0).pvalue <= 0.05 for x, y in zip(shifted, base, strict=True)])
    print(f"seed {SEED}", null.detectable, power)
    assert 0.7 <= power <= 0.9


def test_identical_runs_differ_by_nothing_but_not_for_certain() -> None:
    scores = np.repeat([0.0, 1.0], 15)
    got = paired_difference(scores, scores)
    assert (got.difference, got.p_value, got.t_p) == (0.0, 1.0, 1.0)
    assert got.low < 0 < got.high
    assert got.detectable > 0.05


def test_one_question_says_nothing() -> None:
    got = paired_difference([1.0], [0.0])
    assert (got.low, got.high, got.p_value, got.detectable) == (-1.0, 1.0, 1.0, 1.0)
    assert math.isnan(got.se)


def test_difference_refuses() -> None:
    with pytest.raises(ValueError, match="same questions"):
        paired_difference([0.5], [0.5, 1.0])
    with pytest.raises(ValueError, match="no question"):
        paired_difference([math.nan], [1.0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(deadline=None, derandomize=True)
def test_holm_is_the_step_down(p: list[float]) -> None:
    """Against the definition, read as a procedure: reject in order until one fails."""
    adjusted = holm(p)
    for level in (0.01, 0.05, 0.3):
        order = sorted(range(len(p)), key=lambda i: p[i])
        rejected = set()
        for step, i in enumerate(order):
            if p[i] * (len(p) - step) > level:
                break
            rejected.add(i)
        assert rejected == {i for i in range(len(p)) if adjusted[i] <= level}
