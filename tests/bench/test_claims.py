"""The experiment of bench/claims: its plan resolves, runs are recorded once, the pages say what the records say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from bench.claims import measures, null
from bench.claims import run as runner
from bench.claims.again import spread
from bench.claims.page import pages
from bench.claims.plan import QUESTIONS, TASKS, PairedTest, load_plan, merge
from bench.claims.record import POINTS, find_record, packed_records, read_record
from bench.claims.run import is_done
from bench.claims.statistics import Effect, answers, as_json, effect, entropy_as_predictor, read_records
from bench.claims.tables import apart_from_zero, at_every_scale, fewer_seeds, secondary
from gtpo.common.errors import UserError
from gtpo.common.files import read_json
from gtpo.config import load_config

METHOD_KEYS = {"run_name", "method", "objective", "training"}
PLANS = ("plan", "search", "gpu", "second")


@pytest.fixture(autouse=True)
def _in_the_checkout(root, monkeypatch):
    monkeypatch.chdir(root)


@pytest.fixture
def plan():
    return load_plan()


def test_the_methods_of_a_regime_share_everything_but_the_method(plan, tmp_path, monkeypatch):
    monkeypatch.setattr("bench.claims.plan.CONFIGS", tmp_path)
    shared: dict[str, dict] = {}
    for run in plan.runs:
        if run.seed == 1 and run.method != "base":
            config = load_config(run.write_config()).model_dump(mode="json")
            rest = {key: value for key, value in config.items() if key not in METHOD_KEYS}
            assert shared.setdefault(run.regime, rest) == rest, run.name


@pytest.mark.parametrize("name", PLANS)
def test_every_run_resolves_and_starts_from_the_base_of_its_seed(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bench.claims.plan.CONFIGS", tmp_path)
    plan = load_plan(Path(f"bench/claims/{name}.yaml"))
    assert len({run.name for run in plan.runs}) == len(plan.runs)
    chosen = [run for run in plan.runs if not plan.tests or run.seed in (11, 43)]  # of 786, those of two seeds
    for run in chosen:
        config = load_config(run.write_config())
        assert (config.run_name, config.model.random_seed) == (run.name, run.seed)
        if run.base is not None:
            assert config.model.model_name == str(run.base.weights)
            assert run.base.seed == (1 if run.base.half else run.seed)
            assert plan.runs.index(run.base) < plan.runs.index(run)


def test_a_plan_that_names_what_it_does_not_define_is_refused(tmp_path):
    document = yaml.safe_load(Path("bench/claims/plan.yaml").read_text())
    document["phases"][0]["methods"] = ["gtop"]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(UserError, match=r'methods has no gtop\. Did you mean "gtpo"'):
        load_plan(tmp_path / "plan.yaml")


def test_fragments_merge_key_by_key():
    one = {"extends": "a.yaml", "training": {"beta": 1, "epsilon": 2}}
    two = {"extends": ["b.yaml"], "training": {"beta": 3}, "method": "grpo"}
    assert merge(one, two) == {
        "extends": ["a.yaml", "b.yaml"],
        "training": {"beta": 3, "epsilon": 2},
        "method": "grpo",
    }
    assert one["training"] == {"beta": 1, "epsilon": 2}


TINY = """
evidence: {evidence}
prefix: tinyclaims
weights: {{tiny: {{folder: weights, seed: 1, dtype: float16}}}}
environment: {{OMP_NUM_THREADS: 1, HF_HUB_OFFLINE: 1}}
bases:
  tiny: {{extends: configs/demo/base.yaml, model: {{build: {{hidden_size: 16, intermediate_size: 32}}}},
          training: {{max_steps: 4, save_steps: 4}}}}
scales:
  tiny:
    extends: configs/demo/method.yaml
    settings: {{training: {{max_steps: 4, save_steps: 2, per_device_train_batch_size: 16, log_kl_steps: 2}}}}
    evaluate: {{benchmarks: arithmetic, limit: 3, k: 2, max_tokens: 8, engine: transformers}}
methods:
  gtpo: {{method: gtpo}}
  broken: {{method: gtpo, trainer: {{reward_funcs: [no.such]}}}}
regimes:
  one: {{scale: tiny, base: tiny}}
phases:
  - {{regime: one, seeds: 1, methods: [broken, gtpo]}}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_are_recorded_once_and_a_failure_stops_no_other(root, tmp_path):
    """The real command in a copy of the checkout's layout: once with a failing run, again with nothing left to do."""
    for name in ("bench", "configs", "cli.py", "gtpo", "evalkit", "rewards"):
        (tmp_path / name).symlink_to(root / name)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.format(evidence="evidence"))
    command = [sys.executable, "-m", "bench.claims.run", "--plan", "tiny.yaml", "--jobs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tinyclaims-one-broken-s1 FAILED, see results/claims/logs/tinyclaims-one-broken-s1.log" in done.stdout
    assert "1 runs failed: tinyclaims-one-broken-s1" in done.stderr
    assert (tmp_path / "weights/tinyclaims-base-tiny-s1/model.safetensors").is_file()
    record = read_record(tmp_path / "evidence/records/tinyclaims-one-gtpo-s1.json")
    assert record["curves"]["last_step_of_block"] == [1, 2, 3, 4]
    assert len(record["evaluation"]["arithmetic"]["correct"]) == 3
    assert record["tags"]["step"] == [0, 2, 4]
    assert all(value < 0 for tag in record["tags"] if tag != "step" for value in record["tags"][tag])
    listed = subprocess.run([*command, "--list"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert listed.stdout.split() == ["tinyclaims-one-broken-s1"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_run_waits_for_its_base_and_is_not_made_without_it(plan, monkeypatch, capsys, jobs):
    """Each base is slow, so that with a worker to spare its runs would overtake it if they did not wait."""
    wanted = [run for run in plan.runs if run.seed in (4, 5) and run.regime in ("base-micro", "micro-reuse")]
    events = []

    def spawn(_, run):
        events.append(("begins", run.name))
        time.sleep(0.05 if run.method == "base" else 0)
        events.append(("ends", run.name))
        return int(run.name == "claims-base-micro-s5")

    monkeypatch.setattr(runner, "_spawn", spawn)
    failed = runner.run_all(plan, wanted, jobs)
    made = [run for run in wanted if ("begins", run.name) in events]
    for run in made:
        if run.base is not None:
            assert events.index(("ends", run.base.name)) < events.index(("begins", run.name))
    lost = {run.name for run in wanted if run.seed == 5}
    assert set(failed) == lost
    assert {run.name for run in made} == {run.name for run in wanted} - lost | {"claims-base-micro-s5"}
    assert capsys.readouterr().out.count("FAILED, see results/claims/logs/") == len(lost) == 4


def test_the_page_is_refused_while_runs_are_missing(plan):
    records = {key: dict(seeds) for key, seeds in read_records(plan).items()}
    del records["micro-calm", "gtpo"][3]
    with pytest.raises(UserError, match="not all runs of micro-calm are recorded: make claims"):
        answers(records, plan)


def _record(accuracy: list[float], entropy: list[float], kl: list[float]) -> dict:
    metrics = {"reward/accuracy": accuracy, "entropy/mean": entropy, "kl/untrained": kl}
    return {
        "curves": {
            "last_step_of_block": list(range(10, 10 * len(accuracy) + 1, 10)),
            "metrics": {key: {"mean": values} for key, values in metrics.items()},
        }
    }


def test_collapse_and_the_lead_of_entropy():
    up, down = np.linspace(4, 6, 20), np.linspace(6, 0, 20)
    lost = [*up, *down]
    entropy = [0.0] * 15 + [0.5] * 25
    kl = [0.0] * 22 + [1.0] * 18
    record = _record(lost, entropy, kl)
    step = measures.collapse_step(record)
    # The running mean of four blocks is below 3 where the values themselves have been for about two blocks.
    assert 300 < step < 340
    assert measures.lead_over_kl(record) == 70
    assert math.isnan(measures.collapse_step(_record([*down, *up], entropy, kl)))  # it came back
    assert math.isnan(measures.lead_over_kl(_record(list(up), entropy[:20], kl[:20])))


def test_effects_are_paired_by_seed_and_match_scipy(plan):
    from scipy import stats

    rng = np.random.default_rng(3)
    base = rng.normal(0.2, 0.05, 6)
    values = {"gtpo": base + rng.normal(0.1, 0.01, 6), "grpo": base}
    records = {
        ("micro-calm", name): {s: _record([1.0], [float(v)], [0.0]) for s, v in enumerate(found, start=1)}
        for name, found in values.items()
    }
    del records["micro-calm", "grpo"][6]  # an unpaired seed is left out
    found = effect(records, plan, PairedTest("micro-calm", "gtpo", "grpo", "entropy at the end"))
    reference = stats.ttest_rel(values["gtpo"][:5], values["grpo"][:5]).confidence_interval()
    assert (found.seeds, found.planned) == (5, 10)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=1e-12)
    assert found.p == pytest.approx(2 / 2**5)


def test_a_test_is_complete_once_its_runs_are_in_whether_or_not_all_have_a_value(plan):
    calm = _record([4.0] * 12, [0.1] * 12, [0.0] * 12)
    lost = _record([6.0] * 20 + [0.0] * 20, [0.0] * 15 + [0.5] * 25, [0.0] * 18 + [1.0] * 22)
    test = PairedTest("micro-unstable", "grpo", None, "lead of entropy over KL")
    records = {("micro-unstable", "grpo"): {seed: calm if seed < 4 else lost for seed in range(1, 11)}}
    found = effect(records, plan, test)
    assert (found.seeds, found.planned, found.complete) == (7, 10, True)
    del records["micro-unstable", "grpo"][1]
    assert not effect(records, plan, test).complete


def test_the_auc_is_the_share_of_pairs_within_a_regime_in_the_right_order():
    rng = np.random.default_rng(5)
    values = rng.integers(0, 6, 40) / 10  # with ties
    collapsed = rng.random(40) < 0.4
    curves = [
        ([6.0] * 20 + [0.0] * 20, float(v)) if c else ([6.0] * 40, float(v))
        for v, c in zip(values, collapsed, strict=True)
    ]
    runs = [_record(accuracy, [entropy] * 40, [0.0] * 40) for accuracy, entropy in curves]
    records = {
        ("micro-calm", "grpo"): dict(enumerate(runs[:20])),
        ("micro-unstable", "gtpo-no-filter"): dict(enumerate(runs[20:])),
        ("micro-unstable", "gtpo"): dict(enumerate(runs[:3])),  # has a gate
        ("small-calm", "grpo"): dict(enumerate(runs[:3])),  # of another scale
    }
    found = entropy_as_predictor(records, "micro")
    pairs = [
        (values[i] > values[j]) + 0.5 * (values[i] == values[j])
        for i in range(40)
        for j in range(40)
        if collapsed[i] and not collapsed[j] and (i < 20) == (j < 20)
    ]
    assert (found.runs, found.collapsed) == (40, collapsed.sum())
    assert found.auc == pytest.approx(np.mean(pairs))
    assert found.low < found.auc < found.high
    assert found.in_collapsed == pytest.approx(values[collapsed].mean())
    # One regime where all collapse and one where none does: no pair to compare.
    apart = {
        ("micro-calm", "grpo"): {s: r for s, r in enumerate(runs) if collapsed[s]},
        ("micro-unstable", "grpo"): {s: r for s, r in enumerate(runs) if not collapsed[s]},
    }
    assert entropy_as_predictor(apart, "micro").auc is None
    assert entropy_as_predictor({}, "micro") is None


def test_a_test_that_finds_its_effect_in_noise_is_withdrawn_and_no_other(plan):
    """The committed placebos: which primary tests fail them, and that the page says so of exactly these."""
    found = answers(read_records(plan), plan)
    null = {(row["question"], row["regime"]): row for row in read_json(plan.evidence / "null.json")["tests"]}
    failed = {key for key, row in null.items() if not row["passes"]}
    assert failed == {("lead", "micro-unstable"), ("lead", "small-unstable")}
    primaries = {(a.question.name, a.effects[0].test.regime): a for a in found}
    assert set(null) == set(primaries)
    assert {key for key, answer in primaries.items() if answer.verdict == "withdrawn"} == failed


def test_the_placebos_are_what_the_records_give(plan):
    """A small number of simulations again: the artefact shows at once, a sound test stays quiet, a shift is found."""
    records, rng = read_records(plan), np.random.default_rng(1)
    tests = {(q.name, t.regime): t for q in QUESTIONS for t in reversed(q.tests)}  # the first of a regime
    lead = null.of_test(records, plan, tests["lead", "small-unstable"], rng, 20)
    assert lead["trendless"]["share"] > 0.8
    assert lead["completions/length"]["p"] < 0.05
    assert not null.passes(lead)
    sound = tests["stability", "micro-unstable"]
    quiet = null.unchanged(records, sound, rng, 300)
    assert quiet.share < 0.07
    signs = rng.choice([-1.0, 1.0], size=(200, 10))
    assert null.paired_rejections(records, sound, signs, 0.0).mean() < 0.07
    assert null.paired_rejections(records, sound, signs, 0.05).mean() > 0.9
    rates = [null.false_collapses(records, plan, regime, rng, 100) for regime in ("micro-calm", "micro-weaker-base")]
    assert rates[0]["share"] < 0.05 < 0.5 < rates[1]["share"]


def test_exploratory_tests_are_complete_ones_that_are_not_primary(plan):
    found = answers(read_records(plan), plan)
    primary = {answer.effects[0].test for answer in found}
    others = secondary(found)
    assert len(others) == len({each.test for each in others})
    assert all(each.complete and each.difference is not None for each in others)
    assert not {each.test for each in others} & primary


def _effect(regime: str, a: str, measure: str, low: float, high: float) -> Effect:
    test = PairedTest(regime, a, "grpo", measure)
    return Effect(test, 5, 5, complete=True, a=1.0, b=1.0, difference=(low + high) / 2, low=low, high=high)


def test_what_excludes_zero_at_both_scales():
    entropy, accuracy = "entropy at the end", "pass@1"
    above = _effect("micro-calm", "gtpo", entropy, 0.1, 0.3)
    below = _effect("micro-unstable", "gtpo", entropy, -0.3, -0.1)
    both = [
        _effect("micro-calm", "gtpo", f"{TASKS['micro']}:{accuracy}", 0.1, 0.2),
        _effect("small-calm", "gtpo", f"{TASKS['small']}:{accuracy}", 0.2, 0.5),
    ]
    other_sign = _effect("small-calm", "gtpo", entropy, -0.3, -0.1)
    other_method = _effect("small-unstable", "gtpo-no-filter", entropy, -0.3, -0.1)
    covers = _effect("small-unstable", "gtpo", entropy, -0.1, 0.3)
    agree = _effect("small-weak", "gtpo", entropy, 0.2, 0.2)  # every seed the same: no width
    seen = apart_from_zero([above, below, *both, other_sign, other_method, covers, agree])
    assert seen == [above, below, *both, other_sign, other_method]
    assert at_every_scale(seen) == [both]


def test_a_method_with_fewer_seeds_is_compared_on_those(plan):
    def run(share: float) -> dict:
        counts = [round(64 * share)] * 4
        return {"evaluation": {"arithmetic": {"n": 64, "correct": counts, "maj": counts, "format_ok": counts}}}

    records = {
        ("micro-calm", "gtpo"): {1: run(0.75), 2: run(0.5), 3: run(0.0)},
        ("micro-calm", "gtpo-no-filter"): {1: run(0.5), 2: run(0.25)},
        ("micro-calm", "grpo"): {1: run(0.5), 2: run(0.25), 3: run(1.0)},
    }
    plan = replace(plan, seeds={key: len(seeds) for key, seeds in records.items()})
    (note,) = fewer_seeds(records, plan, "micro-calm")
    assert note == {"method": "gtpo-no-filter", "seeds": 2, "all": 3, "theirs": 37.5, "ours": 62.5}


def test_the_primary_tests_are_of_runs_that_are_planned(plan):
    """A regime that is still to be chosen has no runs in the plan at all."""
    chosen = {regime for regime, _ in plan.seeds}
    for question in QUESTIONS:
        primary = question.tests[0]
        for method in filter(None, (primary.a, primary.b)):
            assert (primary.regime, method) in plan.seeds or primary.regime not in chosen, question.name


def test_the_pages_and_the_answers_say_what_the_records_say(plan):
    records = read_records(plan)
    found = answers(records, plan)
    for page, text in pages(records, plan, found).items():
        assert page.read_text() == text, f"{page}: write it again with python -m bench.claims.page"
    assert json.loads((plan.evidence / "answers.json").read_text()) == json.loads(json.dumps(as_json(found)))


@pytest.mark.parametrize("name", PLANS)
def test_every_record_is_of_the_plan_as_it_is(name):
    plan = load_plan(Path(f"bench/claims/{name}.yaml"))
    recorded = {path.stem for path in (plan.evidence / "records").glob("*.json")} | set(packed_records(plan))
    assert recorded <= {run.name for run in plan.runs}
    for run in plan.runs:
        if run.name in recorded:
            assert is_done(plan, run)
            record = find_record(plan, run)
            assert len(record["curves"]["last_step_of_block"]) <= POINTS
            assert plan.commit in (None, record["train"]["git_commit"])


def test_the_tolerance_takes_out_what_the_bases_of_the_seeds_differ_in():
    rng = np.random.default_rng(11)
    of_base, noise = rng.normal(0.6, 0.1, 10), rng.normal(0, 0.01, (3, 10))
    own, *others = ({seed: float(of_base[seed] + row[seed]) for seed in range(10)} for row in noise)
    assert 0.005 < spread(own, others) < 0.03
    assert spread(own, []) == pytest.approx(np.std(list(own.values()), ddof=1))
    assert spread(own, [{0: 0.5}]) == spread(own, [])  # a method without all of the seeds
    flat = dict.fromkeys(range(10), 0.5)
    assert spread(flat, [own]) == 0  # taking a noisy method off would only add to it
    assert spread({1: 0.5}, [{1: 0.4}]) == 0


def test_the_repetition_is_told_as_it_was_printed(root):
    page = " ".join((root / "docs/results.md").read_text().split())
    assert "Nine micro runs and two small ones were repeated" in page
    assert "Nine reproduced the recorded numbers to the last digit." in page
    assert "Late digits of the curves then differ in eight of ten runs" in page
    for name, same, late in (("again", 9, 2), ("again-avx2", 2, 8)):
        said = (root / f"results/published/claims/{name}.txt").read_text()
        assert (said.count(": the same numbers, to the last digit"), said.count(": other late digits")) == (same, late)
        numbers = [
            line.split()[-3:-1] for line in said.splitlines() if "pass@1" in line or "maj@n" in line or "format" in line
        ]
        assert len(numbers) == 6 * (same + late)
        assert all(recorded == now for recorded, now in numbers)  # "all evaluations are the same"


def test_the_evidence_is_small(root):
    # Bases that are trained again lie in the same folder, ignored by git.
    given = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "results/published/claims"]
    listed = subprocess.run(given, cwd=root, capture_output=True, text=True, check=True).stdout
    files = [path for name in listed.split("\0") if name and (path := root / name).is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 15e6
