"""Planned power is that of the test that compare does; a pilot's variances are those that were put in."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import command_line, python
from numpy.typing import NDArray
from run_folders import write_counts, write_eval

from gtpo.evalkit.design import (
    ENOUGH,
    Design,
    Estimate,
    Noise,
    assumed_noise,
    fewest,
    limit,
    measure_noise,
    needs,
    parts,
    strength,
)
from gtpo.evalkit.statistics import LEVEL, differences
from gtpo.runs.find import find_runs

SEED = 20261128
NOISE = Noise(*(Estimate.exactly(x) for x in (0.01, 0.02, 0.3, 0.0008)))
Array = NDArray[np.float64]


def simulated(noise: Noise, design: Design, effect: float, repeats: int) -> tuple[Array, Array]:
    """Scores [repeats, S, Q] of two methods with this noise; half of each variance belongs to either."""
    rng, out = np.random.default_rng([SEED, *design]), []
    size = (repeats, max(design.seeds, 1), design.questions)
    assert noise.samples is not None
    for sign in (1, -1):
        x = sign * effect / 2 + rng.normal(0, (noise.questions.mean / 2) ** 0.5, (repeats, 1, design.questions))
        x = x + rng.normal(0, ((noise.single.mean + noise.samples.mean / design.samples) / 2) ** 0.5, size)
        if noise.training and design.seeds:
            x = x + rng.normal(0, (noise.training.mean / 2) ** 0.5, size[:2])[..., None]
        out.append(x)
    return out[0], out[1]


@pytest.mark.parametrize("design", [Design(30, 4, 0), Design(200, 1, 0), Design(60, 8, 3), Design(100, 4, 5)])
def test_planned_power_is_that_of_the_comparison(design: Design) -> None:
    plan = strength(NOISE, design)
    for effect in (plan.detectable(), plan.detectable() / 2):
        a, b = simulated(NOISE, design, effect, 1200)
        difference = differences(a, b, trained=(design.seeds > 0, design.seeds > 0))
        assert plan.power(effect) == pytest.approx((difference.shown() > 0).mean(), abs=0.05)
        margin = 3 * effect
    a, b = simulated(NOISE, design, 0.0, 1200)
    difference = differences(a, b, trained=(design.seeds > 0, design.seeds > 0))
    assert plan.equivalence(margin) == pytest.approx((difference.equivalence_p(margin) <= 0.05).mean(), abs=0.06)


@pytest.mark.parametrize("clustered", [False, True])
def test_variances_of_pilots_are_unbiased_and_their_ranges_hold_the_truth(clustered: bool) -> None:
    design, pilots = Design(80, 4, 3), []
    clusters = np.arange(80) if clustered else None
    for a, b in zip(*simulated(NOISE, design, 0.05, 400), strict=True):
        each = np.full(a.shape, 0.3 / 4 / 2)
        pilots.append(measure_noise(a, b, sampling=(each, each), samples=4, clusters=clusters))
    for name in ("questions", "single", "samples", "training"):
        truth, got = getattr(NOISE, name).mean, np.array([getattr(one, name) for one in pilots])
        error = got[:, 0].std() / 20
        assert got[:, 0].mean() == pytest.approx(truth, abs=max(3.5 * error, 1e-9)), name
        assert error < 0.1 * truth
        if name != "samples":  # stated here
            assert 0.72 < ((got[:, 1] <= truth) & (truth <= got[:, 2])).mean() < 0.88, name
    total = [sum(parts(one, design)) for one in pilots]
    assert np.mean(total) == pytest.approx(sum(parts(NOISE, design)), rel=0.1)


def test_what_a_design_lacks_is_what_gives_it_eighty_percent() -> None:
    design = Design(100, 4, 3)
    sees, lacks = needs(NOISE, design, lambda of: of.power(0.05), LEVEL)
    for lever, count in lacks.items():
        if math.isfinite(count.mean):
            enough = strength(NOISE, design._replace(**{lever: int(count.mean)})).power(0.05)
            assert ENOUGH <= enough < ENOUGH + 0.08, lever
    assert math.isinf(lacks["samples"].mean)
    least = limit(NOISE, design)
    assert least is not None
    assert least < sees.mean
    assert needs(NOISE, design, lambda of: of.power(0.9), LEVEL)[1] == {}
    assert limit(replace(NOISE, samples=None), design._replace(seeds=0)) is None, "samples are among the questions"
    assert fewest(NOISE, design, "samples", lambda of: 0.0) == math.inf
    # An estimate may be below 0: a plan has none that is, and the same V for its pilot.
    for values in ((-0.002, 0.03, 0.3, -1e-5), (0.02, -0.03, 0.3, 1e-4), (-0.01, -0.01, 0.3, 1e-4)):
        pilot = Noise(*(Estimate.exactly(value) for value in values))
        plan = pilot.at_least_zero(design)
        assert plan.samples is not None
        assert min(plan.questions.mean, plan.single.mean, plan.samples.mean) >= 0
        assert sum(parts(plan, design)) == pytest.approx(sum(parts(pilot, design)))


def test_the_published_pairs_are_those_of_the_records(root: Path) -> None:
    python(root / "docs/tools/spreads.py", "--check")
    noise, like = assumed_noise(0.4, 0.02)
    assert "results/published/" in like
    assert noise.training == Estimate.exactly(2 * 0.02**2)
    assert assumed_noise(0.4, None, models=True)[0].training is None


def test_the_plan_as_json_has_the_cheapest_design(tmp_path: Path) -> None:
    words = ("plan", "--accuracy", "0.4", "--seed-sd", "2", "--effect", "5", "--questions", "30,500", "--samples", "4")
    (plan,) = json.loads(command_line(*words, "--json", "--tokens", "100", cwd=tmp_path).stdout)["plans"]
    assert plan["cheapest"]["questions"] == 500
    designs = {(d["seeds"], d["questions"]): d for d in plan["designs"]}
    assert designs[5, 500]["power"] == pytest.approx(0.8, abs=0.1)
    assert designs[5, 500]["tokens"] == 2 * 5 * 500 * 4 * 100


def test_the_page_shows_what_the_command_prints(root: Path, tmp_path: Path) -> None:
    page = (root / "docs/plan.md").read_text()
    command = page.split("```bash\ngtpo ")[1].splitlines()[0]
    rows = [
        " ".join(line.replace("│", "|").split())
        for line in command_line(*command.split(), cwd=tmp_path).stdout.splitlines()
        if line.startswith("│")
    ]
    assert len(rows) == 6
    assert all(row in page for row in rows)


def test_runs_tell_samples_from_questions(tmp_path: Path) -> None:
    variances = []
    for seed, name in enumerate("ab"):
        write_eval(tmp_path / name, method=None, seed=seed, n=4)
        (run,), _, _ = find_runs([str(tmp_path / name)])
        share = run.questions("arithmetic", "strict").pass_at_k[:, 0]
        variances.append((share * (1 - share) / 3).mean() / 60)
    for words, known in (((), True), (("--metric", "maj@4"), False), (("--metric", "pass@2"), False)):
        ran = command_line("compare", "a", "b", "--baseline", "a", "--format", "json", *words, cwd=tmp_path)
        noise = json.loads(ran.stdout)["tables"][0]["noise"]["b"]
        assert noise["samples"][0] == pytest.approx(sum(variances) if known else 0.0)
        assert noise["samples"][1] <= noise["samples"][0] <= noise["samples"][2]


PILOTS = {
    "ceiling": (([4] * 40, [4] * 40), 4, (), 2, "nothing to plan by"),
    "one question that differs": (([4] * 40, [4] * 39 + [3]), 4, (), 2, "nothing to plan by"),
    "one question": (([1], [3]), 4, (), 2, "nothing to plan by"),
    "seeds of models": (([1, 3] * 20, [2, 2] * 20), 4, ("--seeds", 3), 2, "--seeds: what seeds add is not known"),
    "more samples than one": (([0, 1] * 20, [1, 1] * 20), 1, ("--samples", 4), 2, "--samples: one sample"),
    "one sample": (([0, 1] * 20, [1, 1] * 20), 1, (), 0, ""),
}


@pytest.mark.parametrize("case", PILOTS)
def test_a_pilot_says_what_it_does_not_know(case: str, tmp_path: Path) -> None:
    counts, n, words, code, told = PILOTS[case]
    for name, right in zip("ab", counts, strict=True):
        write_counts(tmp_path / "results/eval" / name, np.array(right), n)
    ran = command_line("plan", "a", "b", *words, cwd=tmp_path, code=code)
    assert told in ran.stderr
    assert "any number of samples" not in ran.stdout
    compared = command_line("compare", "a", "b", "--fail-if-worse", "2", cwd=tmp_path)
    assert "Warning" not in compared.stderr
    assert ("this design excludes" in compared.stderr) == ("nothing" not in told)
    assert n > 1 or "any number of samples" not in compared.stderr
