"""Intervals by their coverage, tests against SciPy's, and both against recorded reference values."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from approved import check_refusals
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from gtpo.evalkit.statistics import (
    METHODS,
    UNSEEN,
    WEIGHTS,
    by_cluster,
    clusters_of,
    differences,
    holm_factors,
    mean_interval,
    method_mean,
    paired_difference,
    seed_variance,
)

SEED = 20261121


def recorded_labels(shared_dir: Path) -> Iterator[dict]:
    with gzip.open(shared_dir / "recorded" / "zeroeval_gsm_labels.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


@pytest.mark.shared
def test_recorded_pairs_reproduce(shared_dir: Path) -> None:
    """The standard errors, and t's p-values near those of McNemar's exact test."""
    marks = {"0": 0.0, "1": 1.0, "-": math.nan}
    labels = {row["model"]: [marks[mark] for mark in row["labels"]] for row in recorded_labels(shared_dir)}
    expected = json.loads((shared_dir / "recorded" / "paired_expected.json").read_text())["gsm"]
    assert len(expected) == 90
    for row in expected:
        got = paired_difference(labels[row["a"]], labels[row["b"]])
        assert (got.only_a, got.only_b) == (row["b01"], row["b10"])
        assert 100 * got.difference == pytest.approx(row["diff"], abs=1e-9)
        assert row["se_paired"] < 100 * got.se < 1.05 * row["se_paired"]
        assert got.p_value == pytest.approx(row["mcnemar_exact_p"], abs=0.1)  # exact: more cautious


# --- the mean -------------------------------------------------------------------------------------------------------


def test_interval_of_outcomes_is_wilsons() -> None:
    scores = np.repeat([1.0, 0.0], [37, 93])
    got = mean_interval(scores)
    t = stats.t.ppf(0.975, 129)
    roots = np.roots([1 + t**2 / 130, -2 * (37 / 130) - t**2 / 130, (37 / 130) ** 2])
    assert (got.low, got.high) == pytest.approx(tuple(sorted(roots.real)))


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


@pytest.mark.parametrize("questions", [6, 30, 100])
def test_outcomes_are_covered_whatever_the_rate(questions: int) -> None:
    """Exact, over all counts: 92 % at least, where one question in the benchmark is expected to stand apart."""
    counts = np.arange(questions + 1)
    ends = [mean_interval(np.arange(questions) < count)[1:3] for count in counts]
    low, high = np.array(ends).T
    rates = np.geomspace(0.05 / questions, 0.5, 1500)[:, None]
    inside = (low <= rates) & (rates <= high)
    covered = (stats.binom.pmf(counts, questions, rates) * inside).sum(axis=1)
    expected = questions * rates[:, 0]
    assert covered.min() >= 0.917
    assert covered[np.abs(expected - 1) > 0.06].min() >= 0.9295


def test_interval_tends_to_the_t_interval() -> None:
    scores = np.random.default_rng(SEED).beta(2, 3, size=5000)
    got = mean_interval(scores)
    wanted = stats.t.interval(0.95, 4999, loc=scores.mean(), scale=stats.sem(scores))
    assert (got.low, got.high) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("questions", [1, 2, 30, 1319])
def test_nothing_is_certain_at_0_and_100_percent(questions: int) -> None:
    none = mean_interval(np.zeros(questions))
    every = mean_interval(np.ones(questions))
    assert none.low == none.mean == 0.0
    assert every.high == every.mean == 1.0
    assert none.high == pytest.approx(1 - every.low)
    exact = 1 - 0.05 ** (1 / questions)  # one-sided: what no success in Q trials still allows
    assert none.high >= exact


def test_method_mean_covers_seeds_and_keeps_a_width() -> None:
    rng = np.random.default_rng(SEED)
    base = rng.random((1, 200))
    alike = np.repeat(base, 5, axis=0)
    apart = np.clip(alike + rng.normal(0, 0.1, size=(5, 1)), 0, 1)
    one, five = method_mean(alike), method_mean(apart)
    assert (one.low, one.high) == pytest.approx(mean_interval(base[0])[1:3])
    assert five.high - five.low > 1.5 * (one.high - one.low)
    assert five.seed_sd == pytest.approx(np.std(apart.mean(axis=1), ddof=1))
    assert (method_mean(base).seed_sd, method_mean(base).covers_training) == (None, False)
    assert not method_mean(apart[:2]).covers_training
    certain = method_mean(np.ones((5, 6)))
    assert certain.high == 1.0
    assert certain.low < 0.7


# --- two sets of weights --------------------------------------------------------------------------------------------


def test_the_test_is_students_with_a_prior_for_what_no_question_has_shown() -> None:
    """If questions differ either way it is SciPy's; with ties the variance is the one that the module's head states."""
    rng = np.random.default_rng(SEED)
    a, b = rng.random((2, 400))
    b += a.mean() - b.mean() - 0.02
    got, wanted = paired_difference(a, b), stats.ttest_1samp(a - b, 0)
    assert (got.p_value, got.freedom) == (pytest.approx(wanted.pvalue, rel=0.01), 399)
    assert (got.low, got.high) == pytest.approx(tuple(wanted.confidence_interval(0.95)), abs=1e-4)
    a, b = a[:40], b[:40]
    b[:10] = a[:10]
    d = a - b
    informative = np.abs(d).sum() ** 2 / np.square(d).sum()
    assert 2 * informative > 30
    prior = UNSEEN * 10 / 40 * (np.square(d).sum() + 1) / (informative + 1)
    variance = (np.square(d - d.mean()).sum() + prior) / (40 * 39)
    assert paired_difference(a, b).variance == pytest.approx(variance)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=40),
    st.sampled_from([0.8, 0.95, 0.99]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_interval_and_test_agree(pairs: list[tuple[int, int]], level: float) -> None:
    """0 lies in the interval exactly if the test does not reject; a against b mirrors b against a."""
    a, b = (np.array([pair[side] / 8 for pair in pairs]) for side in (0, 1))
    got = paired_difference(a, b)._replace(level=level)
    assert -1 <= got.low <= got.difference <= got.high <= 1
    assert bool(got.shown()) == bool(got.p_value < 1 - level)
    back = paired_difference(b, a)._replace(level=level)
    assert (back.difference, back.low, back.high) == pytest.approx((-got.difference, -got.high, -got.low))
    assert back.p_value == pytest.approx(got.p_value)
    assert got._replace(level=1 - (1 - level) / 4).half_width > got.half_width


@pytest.mark.parametrize("by", [1.0, 0.125])
def test_a_difference_that_is_the_same_on_all_questions_is_not_certain(by: float) -> None:
    got = paired_difference(np.full(30, by), np.zeros(30))
    assert got.shown() == 1
    assert 0.01 < got.half_width < by


def test_identical_runs_differ_by_nothing_but_not_for_certain() -> None:
    scores = np.repeat([0.0, 1.0], 15)
    got = paired_difference(scores, scores)
    assert (got.difference, got.p_value) == (0.0, 1.0)
    assert got.low < -0.05 < 0.05 < got.high
    assert got.equivalence_p(0.02) > 0.05, "30 questions that agree do not show that two models are within 2 points"


def test_one_question_says_nothing() -> None:
    got = paired_difference([1.0], [0.0])
    assert (got.low, got.high, got.p_value, got.shown(), got.equivalence_p(0.5)) == (-1.0, 1.0, 1.0, 0, 1.0)
    assert math.isnan(got.se)


def test_what_has_no_interval_and_no_difference_is_refused() -> None:
    names = {"mean_interval": mean_interval, "paired": paired_difference, "differences": differences}
    check_refusals("refused-statistics.txt", {**names, "np": np, "nan": math.nan})


def test_equivalence_is_two_one_sided_tests() -> None:
    """Shown exactly if the interval lies within the margin."""
    rng = np.random.default_rng(SEED)
    a = rng.binomial(8, rng.random((60, 4, 60))) / 8
    b = np.clip(a + 0.02 * rng.normal(size=a.shape) + rng.choice([0, 0.05, 0.1], (60, 1, 1)), 0, 1)
    found = differences(a, b)
    inside = (found.low > -0.05) & (found.high < 0.05)
    assert np.array_equal(found.equivalence_p(0.05) < 0.05, inside)
    assert 5 < inside.sum() < 55


def test_missing_samples_that_could_reverse_a_verdict_take_it_away() -> None:
    rng = np.random.default_rng(SEED)
    base = rng.random(200) * 0.8
    got = paired_difference(base + 0.1, base + 0.02 * rng.random(200))
    assert got.shown() == got.shown((-0.05, 0.05)) == 1
    assert got.shown((-0.2, 0.0)) == 0
    assert got.equivalence_p(0.12) < 0.05 < got.equivalence_p(0.12, (0.0, 0.05))


# --- questions that repeat ------------------------------------------------------------------------------------------


def test_questions_of_one_text_are_one_question() -> None:
    """Every question k times: the interval and the test of the questions themselves, for means and for differences."""
    rng = np.random.default_rng(SEED)
    a, b = rng.random((2, 30))
    same = np.repeat(np.arange(30), 7)
    once, often = paired_difference(a, b), paired_difference(a[same], b[same], clusters=same)
    assert (often.low, often.high, often.p_value) == pytest.approx((once.low, once.high, once.p_value))
    assert often.questions == 30
    assert mean_interval(a[same], clusters=same)[:3] == pytest.approx(mean_interval(a)[:3])
    seeds = np.stack([a, b, 1 - a])
    assert method_mean(seeds[:, same], clusters=same)[:3] == pytest.approx(method_mean(seeds)[:3])


def test_questions_of_one_text_or_of_one_family_are_a_cluster() -> None:
    found = clusters_of(["a  b", "c", "a b", "d", "", ""], ["", "f", "", "f", "", ""])
    assert found is not None
    assert [found[0] == found[2], found[1] == found[3], len(set(found.tolist()))] == [True, True, 4]
    assert clusters_of(["a", "b", ""], ["", "", ""]) is None


def test_many_wordings_are_families_and_few_are_templates() -> None:
    """Texts that differ in numbers only are one question if there are many such, unless families are known."""
    many, few = ([f"{'x' * (i % count)} costs {i},5{i}0.25 or {3 * i}" for i in range(60)] for count in (20, 19))
    none = [""] * 60
    assert clusters_of(few, none) is clusters_of(many, none, "generated, embedded") is None
    assert clusters_of(many, [*none[1:], "known"]) is None
    found = clusters_of(many, none)
    assert found is not None
    assert {found[i] == found[j] for i in range(60) for j in range(60) if i % 20 == j % 20} == {True}
    assert found.max() == 19


def test_clusters_of_unequal_size_keep_the_mean_and_the_ratio_estimators_variance() -> None:
    rng = np.random.default_rng(SEED)
    clusters = np.repeat(np.arange(12), rng.integers(1, 6, 12))
    d = rng.random(clusters.size)
    d += 0.05 - d.mean()
    got = paired_difference(d, np.zeros_like(d), clusters=clusters)
    totals = np.array([(d[clusters == g] - d.mean()).sum() for g in range(12)])
    assert got.difference == pytest.approx(d.mean())
    sums = np.array([d[clusters == g].sum() for g in range(12)]) * 12 / d.size
    squares = np.square(sums).sum()
    informative = np.abs(sums).sum() ** 2 / squares
    prior = UNSEEN * 12 * d.mean() ** 2 / squares * (squares + 1) / (informative + 1) / (12 * 11)
    assert got.variance == pytest.approx(np.square(totals).sum() * 12 / 11 / d.size**2 + prior)
    x, weight = by_cluster(np.stack([d, 2 * d]), clusters)
    assert x.mean(axis=1) == pytest.approx(np.array([d.mean(), 2 * d.mean()]))
    assert weight.mean() == pytest.approx(1)


# --- training seeds -------------------------------------------------------------------------------------------------


def test_variance_is_the_anova_of_seeds_and_questions() -> None:
    """From the mean squares of the two-way table, computed here cell by cell; Cochran's and Cox's quantile."""
    rng = np.random.default_rng(SEED)
    x = rng.random((6, 12)) * 0.5 + 0.5 * rng.random((1, 12)) - 0.5 + 0.3 * rng.random((6, 1))
    got = differences(x[None], np.zeros((1, 6, 12)), paired=True).at(0)
    seeds, questions = x.shape
    grand = x.mean()
    of_seeds = questions * sum((row.mean() - grand) ** 2 for row in x) / (seeds - 1)
    of_questions = seeds * sum((column.mean() - grand) ** 2 for column in x.T) / (questions - 1)
    left = sum(
        (x[s, q] - x[s].mean() - x[:, q].mean() + grand) ** 2 for s in range(seeds) for q in range(questions)
    ) / ((seeds - 1) * (questions - 1))
    assert of_seeds > left
    d = x.mean(axis=0)
    alike, informative = grand**2 / np.square(d).mean(), np.abs(d).sum() ** 2 / np.square(d).sum()
    of_questions += UNSEEN * alike * (np.square(d).sum() + 1) / (informative + 1) * seeds / (questions - 1)
    variance = (of_questions + of_seeds - left) / (seeds * questions)
    weight = of_seeds / (seeds * questions) / variance
    assert got.variance == pytest.approx(variance)
    assert weight < 1
    wanted = (1 - weight) * stats.t.ppf(0.975, questions - 1) + weight * stats.t.ppf(0.975, seeds - 1)
    assert stats.t.ppf(0.975, got.freedom) == pytest.approx(wanted)
    assert (got.scope, got.judged, got.seeds, got.seeds_paired) == (METHODS, True, (6, 6), True)


def test_a_verdict_about_methods_needs_three_seeds_of_each() -> None:
    rng = np.random.default_rng(SEED)
    a, b = rng.random((2, 1, 10, 30)) * np.array([1.0, 0.1]).reshape(2, 1, 1, 1)
    for first, second, trained, wanted in (
        (1, 1, (True, True), (WEIGHTS, False, 0)),
        (2, 10, (True, True), (WEIGHTS, False, 0)),
        (3, 3, (True, True), (METHODS, True, 1)),
        (1, 1, (False, False), (WEIGHTS, True, 1)),
        (1, 1, (True, False), (WEIGHTS, True, 1)),
        (10, 1, (True, False), (WEIGHTS, True, 1)),
    ):
        got = differences(a[:, :first], b[:, :second], trained=trained).at(0)
        assert (got.scope, got.judged, int(got.shown())) == wanted, (first, second, trained)


def test_three_runs_that_did_not_collapse_do_not_show_that_none_does() -> None:
    """Three runs that came out alike against ten of which half collapsed: the pooled variance keeps the mark away."""
    rng = np.random.default_rng(SEED)
    a = 0.8 + 0.01 * rng.normal(size=(1, 3, 50))
    b = np.where(np.arange(10)[:, None] < 5, 0.8, 0.2) + 0.01 * rng.normal(size=(1, 10, 50))
    got = differences(a, b).at(0)
    own, other = (seed_variance(x) for x in (a, b))
    pooled = (2 * own.between + 9 * other.between) / 11
    assert got.variance == pytest.approx(float((pooled / 3 + other.between / 10)[0]), rel=0.02)
    assert got.shown() == 0
    assert stats.ttest_ind(a.mean(axis=2)[0], b.mean(axis=2)[0], equal_var=False).pvalue < 0.05


def test_pairs_are_used_from_five_seeds_on() -> None:
    rng = np.random.default_rng(SEED)
    of_seed = rng.normal(0, 0.1, (1, 5, 1))
    a, b = (0.5 + of_seed + 0.02 * rng.normal(size=(1, 5, 100)) for _ in range(2))
    five, four = differences(a, b, paired=True).at(0), differences(a[:, :4], b[:, :4], paired=True).at(0)
    assert (five.seeds_paired, four.seeds_paired) == (True, False)
    assert five.half_width < differences(a, b).at(0).half_width / 4


# --- corrections ----------------------------------------------------------------------------------------------------


def holm(p: list[float], owners: list[int] | None = None) -> NDArray[np.float64]:
    """The adjusted p-values."""
    return np.minimum(np.array(p) * holm_factors(np.array(p), owners), 1.0)


def test_a_margin_joins_the_family() -> None:
    """At most one hypothesis of a comparison is true: a step counts the comparisons that are still open."""
    p = [0.001, 0.04, 0.9, 0.012]
    assert holm(p, [0, 1, 0, 1]) == pytest.approx([0.002, 0.08, 0.9, 0.024])
    assert holm([0.01, 0.02, 0.03, 0.04], [0, 0, 1, 1]) == pytest.approx([0.02, 0.04, 0.04, 0.04])
    assert holm(p[:2]) == pytest.approx([0.002, 0.04])


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
