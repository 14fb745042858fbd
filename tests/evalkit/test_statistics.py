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

from gtpo.evalkit.differences import WEIGHTS, differences, holm, paired_difference
from gtpo.evalkit.permutation import regroup_p, sign_flip_p
from gtpo.evalkit.score_interval import Student
from gtpo.evalkit.statistics import mean_interval, method_mean
from gtpo.evalkit.training_variance import borrowed, seed_variance

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
        found = [100 * got.difference, 100 * got.se, got.p_value]
        keys = ["diff", "se_paired", "mcnemar_exact_p"]
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


@pytest.mark.parametrize("apart", [1, 2, 3])
def test_interval_of_one_or_two_failures_is_the_modified_wilsons(apart: int) -> None:
    """Brown, Cai and DasGupta (2001): half the 5 % quantile of chi-square with 2x degrees of freedom, over Q."""
    scores = np.repeat([0.0, 1.0], [apart, 30 - apart])
    t = stats.t.ppf(0.975, 29)
    m = apart / 30
    wilson = sorted(np.roots([1 + t**2 / 30, -2 * m - t**2 / 30, m**2]).real)
    wanted = stats.chi2.ppf(0.05, 2 * apart) / 60 if apart < 3 else wilson[0]
    got, mirrored = mean_interval(scores), mean_interval(1 - scores)
    assert (got.low, got.high) == pytest.approx((1 - wilson[1], 1 - wanted))
    assert (mirrored.low, mirrored.high) == pytest.approx((wanted, wilson[1]))


@pytest.mark.parametrize("questions", [6, 30, 64, 100])
def test_outcomes_are_covered_whatever_the_rate(questions: int) -> None:
    """Exact, over all counts: 92 % at least, where one question in the benchmark is expected to stand apart."""
    counts = np.arange(questions + 1)
    ends = [mean_interval(np.arange(questions) < count)[1:3] for count in counts]
    low, high = np.array(ends).T
    rates = np.geomspace(0.05 / questions, 0.5, 1500)[:, None]
    inside = (low <= rates) & (rates <= high)
    covered = (stats.binom.pmf(counts, questions, rates) * inside).sum(axis=1)
    expected = questions * rates[:, 0]
    print(questions, covered.min(), expected[covered.argmin()])
    assert covered.min() >= 0.917
    assert covered[np.abs(expected - 1) > 0.06].min() >= 0.9295


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
    assert got.test in ("sign-flip", "mcnemar")
    assert got.p_value == pytest.approx(brute_force(a - b), abs=1e-9)
    back = paired_difference(b, a)
    assert (back.difference, back.low, back.high) == pytest.approx((-got.difference, -got.high, -got.low))
    assert back.p_value == pytest.approx(got.p_value)


def test_thirty_different_differences_are_enumerated() -> None:
    """AIME's 30 questions: exact, and equal to scipy's test by simulation within its error."""
    rng = np.random.default_rng(SEED)
    a, b = rng.random((2, 30))
    got = paired_difference(a, b - 0.1 * (b > 0.1))
    assert got.test == "sign-flip"
    wanted = stats.permutation_test(
        (a - (b - 0.1 * (b > 0.1)),), np.sum, permutation_type="samples", n_resamples=20_000, rng=SEED
    ).pvalue
    assert got.p_value == pytest.approx(wanted, abs=0.015)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3, 0.6])
def test_saddlepoint_is_the_exact_tail(shift: float) -> None:
    """400 differences of 9 sizes: enumerated through their binomials, and by the saddlepoint with a hair of noise."""
    rng = np.random.default_rng(SEED)
    d = rng.integers(1, 9, size=400) * np.where(rng.random(400) < 0.5 + shift / 2, 1, -1) / 8
    (exact,), (enumerated,) = sign_flip_p(d[None])
    (near,), (also,) = sign_flip_p(d[None] * (1 + 1e-5 * rng.random((1, 400))))
    assert (enumerated, also) == (True, False)
    assert near == pytest.approx(exact, rel=0.08)  # the sums lie 1/4 apart


def test_saddlepoint_where_all_differences_have_one_sign() -> None:
    d = np.random.default_rng(SEED).uniform(0.1, 1, size=(1, 300))
    (p,), (enumerated,) = sign_flip_p(d)
    assert not enumerated
    assert p == pytest.approx(2.0**-299, rel=1e-6)


def test_a_p_value_depends_on_its_own_pair_alone() -> None:
    """Whatever else is compared in the same call, and in whichever direction."""
    rng = np.random.default_rng(SEED)
    a, b = rng.random((2, 6, 1, 500))
    together = differences(a, b)
    for i, found in enumerate(together):
        alone = paired_difference(a[i, 0], b[i, 0])
        assert (alone.p_value, alone.low, alone.high) == (found.p_value, found.low, found.high)
        assert paired_difference(b[i, 0], a[i, 0]).p_value == alone.p_value


def test_level_of_the_permutation_test() -> None:
    """Two equal models are called different at 5 % in about 5 % of 1,000 benchmarks of 40 questions."""
    rng = np.random.default_rng(SEED)
    chance = rng.beta(0.6, 0.8, size=(1000, 40))
    a, b = rng.binomial(8, chance) / 8, rng.binomial(8, chance) / 8
    rejected = np.mean([found.p_value <= 0.05 for found in differences(a[:, None], b[:, None])])
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
    assert (got.difference, got.p_value) == (0.0, 1.0)
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


def test_interval_of_whole_outcomes_is_tangos() -> None:
    """Table 1 of Tango (1998): 44 pairs, discordant 0 and 1; and 50 pairs, 7 and 0. With t for z it is a bit wider."""
    a = np.zeros(44)
    got = paired_difference(np.append(a[1:], 1.0), a)
    assert got.low == pytest.approx(-0.0602, abs=0.012)
    assert got.high == pytest.approx(0.1181, abs=0.012)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=40),
    st.sampled_from([0.8, 0.95, 0.99]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_interval_and_test_agree(pairs: list[tuple[int, int]], level: float) -> None:
    """0 lies in the interval wherever the test does not reject, at every level; a higher level is wider."""
    a, b = (np.array([pair[side] / 8 for pair in pairs]) for side in (0, 1))
    got = paired_difference(a, b).at_level(level)
    assert -1 <= got.low <= got.difference <= got.high <= 1
    if got.p_value > 1 - level + 1e-9:
        assert got.low <= 0 <= got.high
        assert got.shown == 0
    wider = got.at_level(1 - (1 - level) / 4)
    assert wider.low <= got.low + 1e-9
    assert wider.high >= got.high - 1e-9
    assert wider.detectable >= got.detectable - 1e-9


def test_mcnemars_detectable_difference_is_found_with_80_percent_power() -> None:
    """The power of the exact test that is marked, not of its normal approximation."""
    rng = np.random.default_rng(SEED)
    questions = 40
    null = paired_difference(np.repeat([0.0, 1.0], 20), np.tile([0.0, 0, 0, 1, 1, 1, 1, 1], 5)[::-1])
    rate = max((null.only_a + null.only_b) / questions, null.detectable)
    m = rng.binomial(questions, rate, size=20_000)
    won = rng.binomial(m, (1 + null.detectable / rate) / 2)
    p = np.minimum(2 * stats.binom.cdf(np.minimum(won, m - won), m, 0.5), 1)
    power = np.mean((p <= 0.05) & (won > m - won))
    print(f"seed {SEED}", null.detectable, power)
    assert 0.79 <= power <= 0.83


# --- training seeds ---------------------------------------------------------------------------------------------


def test_variance_is_the_anova_of_seeds_and_questions() -> None:
    """V(mean) from the mean squares of the two-way table, computed here cell by cell."""
    rng = np.random.default_rng(SEED)
    x = np.clip(rng.random((4, 12)) + 0.3 * rng.random((4, 1)), 0, 1)
    zero = np.zeros_like(x)
    (got,) = differences(x[None], zero[None], seeds_paired=True)
    seeds, questions = x.shape
    grand = x.mean()
    of_seeds = questions * sum((row.mean() - grand) ** 2 for row in x) / (seeds - 1)
    of_questions = seeds * sum((column.mean() - grand) ** 2 for column in x.T) / (questions - 1)
    left = sum(
        (x[s, q] - x[s].mean() - x[:, q].mean() + grand) ** 2 for s in range(seeds) for q in range(questions)
    ) / ((seeds - 1) * (questions - 1))
    variance = (of_questions + max(of_seeds - left, 0)) / (seeds * questions)
    assert got.se == pytest.approx(math.sqrt(variance))
    assert got.test == "seeds-x-questions"
    assert (got.p_value <= 0.05) == (got.shown != 0)


def test_three_paired_seeds_keep_the_level_where_training_is_most_of_the_noise() -> None:
    """The worst case for Satterthwaite's degrees of freedom: they reject 8 % at 5 %, and 3.6 % at 1 %."""
    rng = np.random.default_rng(SEED)
    tests, seeds, questions = 4000, 3, 400
    of_seeds = rng.normal(0, 0.9**0.5 * 0.05, size=(tests, seeds, 1))
    of_questions = rng.normal(0, 0.1**0.5 * 0.05 * (questions / seeds) ** 0.5, size=(tests, 1, questions))
    d = of_seeds + of_questions + rng.normal(0, 0.01, size=(tests, seeds, questions))
    found = differences(0.5 + d / 2, 0.5 - d / 2, seeds_paired=True)
    at_5, at_1 = (np.mean([one.p_value <= alpha for one in found]) for alpha in (0.05, 0.01))
    print(f"seed {SEED}", at_5, at_1)
    assert 0.04 <= at_5 <= 0.057
    assert 0.005 <= at_1 <= 0.015


def test_quantiles_of_two_terms_are_cochrans_and_coxs() -> None:
    student = Student(np.array([29.0, 1318.0, 5.0]), np.array([2.0, 2.0, 9.0]), np.array([0.3, 0.95, 0.0]))
    for p in (0.2, 0.05, 0.01, 1e-6):
        q, other = stats.t.isf(p / 2, student.freedom), stats.t.isf(p / 2, student.other)
        wanted = (1 - student.weight) * q + student.weight * other
        assert student.quantile(1 - p / 2) == pytest.approx(wanted)
        assert student.p_value(-wanted) == pytest.approx(np.full(3, p), rel=1e-9)
    assert student.p_value(np.array([0.0, 0.0, 0.0])) == pytest.approx(np.ones(3))


@pytest.mark.parametrize("paired", [True, False])
def test_interval_and_test_over_seeds_agree(paired: bool) -> None:
    """At every level 0 lies in the interval exactly where the crossed test does not reject."""
    rng = np.random.default_rng(SEED)
    base = rng.random((60, 1, 30))
    a, b = (np.clip(base + rng.normal(0, 0.1, (60, 3, 1)) + rng.normal(0, 0.2, base.shape), 0, 1) for _ in range(2))
    found = differences(a, b, seeds_paired=paired)
    for level in (0.5, 0.8, 0.95, 0.99):
        shown = [one.at_level(level).shown != 0 for one in found]
        assert shown == [one.p_value <= 1 - level for one in found]
        assert any(shown) or level > 0.8


def test_test_over_seeds_is_full_enumeration() -> None:
    rng = np.random.default_rng(SEED)
    for size in (2, 3, 5):
        a, b = rng.random(size), rng.random(size) + 0.5
        values = np.concatenate([a, b])
        observed = abs(a.mean() - b.mean())
        found = [
            abs(values[list(chosen)].mean() - np.delete(values, list(chosen)).mean())
            for chosen in itertools.combinations(range(2 * size), size)
        ]
        assert regroup_p(a, b) == pytest.approx(np.mean(np.array(found) >= observed - 1e-12))
    scores = np.repeat(rng.random((2, 5, 1)), 8, axis=2)
    (paired,) = differences(scores[:1], scores[1:], seeds_paired=True)
    assert paired.p_seeds == pytest.approx(brute_force(scores[0, :, 0] - scores[1, :, 0]))
    assert paired.smallest_p_seeds == 2 / 2**5


def test_more_seeds_than_can_be_enumerated_still_depend_on_themselves_alone() -> None:
    a, b = np.random.default_rng(SEED).random((2, 12))
    assert (
        regroup_p(a, b)
        == regroup_p(a, b)
        == pytest.approx(
            stats.permutation_test((a, b), lambda x, y: x.mean() - y.mean(), n_resamples=20_000, rng=1).pvalue, abs=0.02
        )
    )


def test_too_few_seeds_are_shown_and_not_judged() -> None:
    """Two against two: an interval from two degrees of freedom, and no verdict; the same borrowed from others."""
    rng = np.random.default_rng(SEED)
    scores = rng.random((2, 2, 30))
    (got,) = differences(scores[:1], scores[1:] * 0.1)
    assert (got.test, got.judged, got.shown) == ("seeds-x-questions", False, 0)
    pool = borrowed([seed_variance(rng.random((1, 4, 30))) for _ in range(2)])
    (lent,) = differences(scores[:1], scores[1:] * 0.1, pool=pool)
    assert (lent.judged, lent.shown) == (True, 1)
    (weights,) = differences(scores[:1, :1], scores[1:, :1] * 0.1, trained=(False, False))
    assert (weights.test, weights.scope, weights.judged) == ("sign-flip", WEIGHTS, True)
    (one_each,) = differences(scores[:1, :1], scores[1:, :1] * 0.1)
    assert (one_each.scope, one_each.judged, one_each.shown) == (WEIGHTS, False, 0)
    assert (one_each.low, one_each.high) == (weights.low, weights.high)


def test_variances_are_pooled_unless_they_differ() -> None:
    """Bartlett's test is SciPy's; where it rejects, the largest variance stands for all."""
    rng = np.random.default_rng(SEED)
    sets = [rng.random((1, seeds, 20)) + scale * rng.normal(size=(1, seeds, 1))
            for seeds, scale in ((4, 0.1), (6, 0.12), (3, 0.11))]  # fmt: skip
    parts = [seed_variance(x) for x in sets]
    means = [x[0].mean(axis=1) for x in sets]
    assert stats.bartlett(*means).pvalue > 0.05
    pool = borrowed(parts)
    assert pool is not None
    assert (pool.freedom[0], pool.total) == (10, 10)
    assert pool.between[0] == pytest.approx(sum((m.size - 1) * m.var(ddof=1) for m in means) / 10)
    wild = rng.random((1, 5, 20)) + 2 * rng.normal(size=(1, 5, 1))
    assert stats.bartlett(*means, wild[0].mean(axis=1)).pvalue < 0.05
    pool = borrowed([*parts, seed_variance(wild)])
    assert pool is not None
    assert (pool.between[0], pool.freedom[0], pool.total) == (pytest.approx(wild[0].mean(axis=1).var(ddof=1)), 4, 14)
    assert borrowed([]) is None


def test_two_estimates_of_training_must_agree() -> None:
    """Three runs that came out alike against ten of which half collapsed: the pooled variance keeps the mark away."""
    rng = np.random.default_rng(SEED)
    a = 0.8 + 0.01 * rng.normal(size=(1, 3, 50))
    b = np.where(np.arange(10)[:, None] < 5, 0.8, 0.2) + 0.01 * rng.normal(size=(1, 10, 50))
    (got,) = differences(a, b)
    assert len(got.references) == 2
    ends = [[float(x) for x in got.fit.bounds(r.student.quantile(0.975), r.extra)] for r in got.references]
    low, high = zip(*ends, strict=True)
    assert (got.low, got.high) == pytest.approx((min(low), max(high)))
    p = [float(r.student.p_value(got.fit.statistic(np.array(0.0), r.extra))) for r in got.references]
    assert got.p_value == pytest.approx(max(p))
    assert min(p) < 0.05 < max(p)


def test_equivalence_is_two_one_sided_tests() -> None:
    """Rejected at 5 % exactly where the 90 % interval lies within the margin; and never for certain."""
    rng = np.random.default_rng(SEED)
    found = 0
    for _ in range(60):
        a = rng.binomial(8, rng.random((1, 1, 60)), size=(1, 4, 60)) / 8
        b = np.clip(a + 0.02 * rng.normal(size=(1, 4, 60)) + rng.choice([0, 0.05]), 0, 1)
        (got,) = differences(a, b, exact_too=False)
        wide = got.at_level(0.9)
        inside = wide.low > -0.05 and wide.high < 0.05
        assert (got.equivalence_p(0.05) < 0.05) == inside
        found += inside
    assert 5 < found < 55
    (same,) = differences(a[:, :1], a[:, :1], trained=(False, False))
    assert same.equivalence_p(0.2) < 0.05 < same.equivalence_p(0.005)


def test_a_margin_joins_the_family() -> None:
    """At most one hypothesis of a comparison is true: a step counts the comparisons that are still open."""
    p = [0.001, 0.04, 0.9, 0.012]
    assert holm(p, [0, 1, 0, 1]) == pytest.approx([0.002, 0.08, 0.9, 0.024])
    assert holm([0.01, 0.02, 0.03, 0.04], [0, 0, 1, 1]) == pytest.approx([0.02, 0.04, 0.04, 0.04])
    assert holm(p[:2]) == pytest.approx([0.002, 0.04])


def test_method_mean_covers_seeds_and_keeps_a_width() -> None:
    rng = np.random.default_rng(SEED)
    base = rng.random((1, 200))
    alike = np.repeat(base, 5, axis=0)
    apart = np.clip(alike + rng.normal(0, 0.1, size=(5, 1)), 0, 1)
    one, five = method_mean(alike), method_mean(apart)
    assert (one.low, one.high) == pytest.approx(mean_interval(base[0])[1:3])
    assert five.high - five.low > 1.5 * (one.high - one.low)
    assert five.seed_sd == pytest.approx(np.std(apart.mean(axis=1), ddof=1))
    assert method_mean(base).seed_sd is None
    certain = method_mean(np.ones((5, 6)))
    assert certain.high == 1.0
    assert certain.low < 0.7


def test_differences_refuse() -> None:
    x = np.zeros((1, 3, 4))
    with pytest.raises(ValueError, match="same questions"):
        differences(x, np.zeros((1, 3, 5)))
    with pytest.raises(ValueError, match="equally many"):
        differences(x, np.zeros((1, 2, 4)), seeds_paired=True)


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
