"""docs/tools/run_reference.yaml declares what real runs write, all of it and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from reference import RUN_REFERENCE
from test_train_run import MANY_STEPS_A_ROUND, config_of

from gtpo.evalkit.evaluation.summary import score_held_out
from gtpo.train.command import train

VALIDATED = {"training.eval_steps": 2, "dataset.validation_problems": 2, "training.log_kl_steps": 1}
OWN = {"objective.loss": "gtpo.objective:policy_loss", "objective.band_low": 0.01}
RUNS: dict[str, dict[str, Any]] = {
    "gtpo": MANY_STEPS_A_ROUND | VALIDATED | OWN | {"training.resample_equal_groups": 1, "training.top_p": 0.9},
    "grpo": MANY_STEPS_A_ROUND | {"training.beta": 0.04, "training.use_adaptive_entropy": True},
    "sft": {},
}

NOT_WRITTEN_HERE = {
    "sampling/logp_difference": "needs vLLM",
    "sampling/sampling_logp_difference/max": "needs vLLM",
    "sampling/importance_sampling_ratio/NAME": "needs vLLM",
    "router/aux_loss": "needs a mixture of experts; tests/gtpo/test_mixture_of_experts.py trains one",
    "nonfinite": "needs a run that breaks; tests/gtpo/test_health.py writes one",
    "hardware.gpus": "needs a GPU",
    "reward_NAME": "a pattern",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    common = {"training.max_steps": 4}
    return {
        method: train(
            config_of(folder / method, method=method, **common, **changes),
            results_dir=folder / method / "results",
            score_held_out=score_held_out,
        )
        for method, changes in RUNS.items()
    }


def pattern(name: str) -> re.Pattern[str]:
    """Return what a declared name matches: UPPER CASE parts stand for anything."""
    return re.compile(re.sub(r"(?<![A-Za-z])(?:NAME|K)(?![A-Za-z])", ".+", re.escape(name)))


def assert_same(declared: Iterable[str], written: set[str]) -> None:
    patterns = {name: pattern(name) for name in declared}
    undeclared = [key for key in sorted(written) if not any(p.fullmatch(key) for p in patterns.values())]
    assert undeclared == []
    missing = [name for name, p in patterns.items() if not any(p.fullmatch(key) for key in written)]
    assert [name for name in missing if name not in NOT_WRITTEN_HERE] == []


def dotted(value: Any, declared: Iterable[str], prefix: str = "") -> set[str]:
    """Return the dotted names of a JSON object, down to those that are declared."""
    if prefix in set(declared) or not isinstance(value, dict):
        return {prefix}
    dot = f"{prefix}." if prefix else ""
    return {name for key, inner in value.items() for name in dotted(inner, declared, f"{dot}{key}")}


def test_committed_metrics_are_declared(root: Path) -> None:
    patterns = [pattern(name) for name in RUN_REFERENCE["metrics"]]
    for path in (root / "results/published/demo").rglob("metrics.jsonl"):
        for line in path.read_text().splitlines():
            assert [key for key in json.loads(line) if not any(p.fullmatch(key) for p in patterns)] == [], path


def test_metrics_of_one_method_alone_say_so(runs: dict[str, Path]) -> None:
    written = {method: (runs[method] / "metrics.jsonl").read_text() for method in runs}
    for name, metric in RUN_REFERENCE["metrics"].items():
        if f'"{name}"' in written["gtpo"] and "when" not in metric:
            assert f'"{name}"' in written["sft"], f"{name}: `when` must say who writes it"


def test_what_runs_write_is_declared_and_nothing_else(runs: dict[str, Path]) -> None:
    lines = [line for run in runs.values() for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert_same(RUN_REFERENCE["metrics"], {key for line in lines for key in json.loads(line)})
    for file in ("run.json", "best/best.json"):
        names = RUN_REFERENCE[Path(file).name]
        paths = [path for run in runs.values() if (path := run / file).is_file()]
        written = {name for path in paths for name in dotted(json.loads(path.read_text()), names)}
        assert_same(names, written)
    rollouts = [path for run in runs.values() for path in (run / "completions").glob("*.parquet")]
    assert_same(RUN_REFERENCE["completions"], {name for path in rollouts for name in pq.read_schema(path).names})
