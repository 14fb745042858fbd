"""Validation while training: it sees problems that are not trained on, and the training does not see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from logs import logged
from safetensors.torch import load_file
from test_train_run import MANY_STEPS_A_ROUND, STEPS, assert_same_run, config_of, crash, metrics, whole_run

from gtpo.evalkit.evaluation.summary import score_held_out
from gtpo.inputs.dataset import TrainingProblems
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_record import Interval
from gtpo.train.command import train
from gtpo.train.health import Watch

ON = {"training.eval_steps": 2, "dataset.validation_problems": 3, "health.smoothing_evaluations": 1}


def run(folder: Path, score: Any = score_held_out, **changes: Any) -> Path:
    return train(config_of(folder, **changes), results_dir=folder / "results", score_held_out=score)


def without_validation(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("validation/")} for row in rows]


@pytest.mark.parametrize("changes", [{}, {"method": "grpo", **MANY_STEPS_A_ROUND}], ids=["gtpo", "grpo"])
def test_training_does_not_notice_its_validation(changes: dict[str, Any], tmp_path: Path) -> None:
    plain, watched = whole_run(**changes), run(tmp_path / "on", **changes, **ON)
    rows = metrics(watched)
    assert without_validation(rows) == metrics(plain)
    assert load_file(plain / "final/model.safetensors").keys()
    assert (plain / "final/model.safetensors").read_bytes() == (watched / "final/model.safetensors").read_bytes()
    validated = [row["step"] for row in rows if "validation/pass@1" in row]
    assert validated == [2, 4, 6]
    for name in ("pass@1", "maj@4", "format"):
        found = [rows[1][f"validation/{name}{end}"] for end in ("_low", "", "_high")]
        assert found == sorted(found)
        assert found[2] > found[0]
    state = json.loads((watched / "checkpoints/checkpoint-6/trainer_state.json").read_text())
    assert state["log_history"][3]["validation/pass@1"] == rows[3]["validation/pass@1"], "trackers see it"
    cost = json.loads((watched / "run.json").read_text())["validation"]
    assert (len(cost["problems"]), cost["samples"], cost["count"]) == (3, 4, 4), "the untrained model first"
    assert 0 < cost["share_of_session"] < 1


def test_resumed_run_with_validation_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """The distance from the untrained policy too: from where the first session started."""
    changes = {**ON, "training.log_kl_steps": 2}
    whole = run(tmp_path / "whole", **changes)
    assert [row["step"] for row in metrics(whole) if "kl/untrained" in row] == [2, 4, STEPS]
    crash(5, lambda: run(tmp_path / "cut", **changes))
    assert_same_run(run(tmp_path / "cut", **changes), whole)


def scripted(*rates: float) -> Any:
    """Return a scorer that says these rates one after the other, and remembers what it was shown."""
    left = list(rates)

    def score(problems: Sequence[Problem], completions: Sequence[Sequence[str]]) -> dict[str, Any]:
        assert len({len(texts) for texts in completions}) == 1
        rate = left.pop(0)
        return {"pass@1": Interval(mean=rate, low=rate - 0.01, high=rate + 0.01), "problems": [rate] * len(problems)}

    return score


def test_best_follows_the_held_out_accuracy_and_patience_counts_from_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "best", scripted(0.1, 0.2, 0.6, 0.4), **ON)
    best = json.loads((folder / "best/best.json").read_text())
    assert best.items() >= {"step": 4, "metric": "validation/pass@1", "value": 0.6, "smoothing_evaluations": 1}.items()
    smoothed = run(tmp_path / "smooth", scripted(0.1, 0.2, 0.6, 0.4), **ON | {"health.smoothing_evaluations": 2})
    best = json.loads((smoothed / "best/best.json").read_text())
    assert (best["step"], best["value"]) == (6, 0.5)
    stopped = run(tmp_path / "patience", scripted(0.1, 0.6, 0.5, 0.5), **ON, **{"health.early_stop_patience": 2})
    about = json.loads((stopped / "run.json").read_text())
    assert about["step"] == 4 < STEPS
    assert about["stopped_because"] == "no better validation/pass@1 for 2 steps"
    assert about["validation"]["untrained"] == pytest.approx(0.1)
    assert about["validation"]["gain"]["mean"] == pytest.approx(0.5)


def test_the_untrained_model_competes_and_is_what_a_collapse_returns_to(tmp_path: Path) -> None:
    """Nothing beats it: best/ is the base, bit for bit, also where the run collapsed and was stopped."""
    given = {**ON, "health.on_collapse": "stop"}
    stopped = run(tmp_path / "stop", scripted(0.6, 0.6, 0.1), **given)
    about = json.loads((stopped / "run.json").read_text())
    assert (about["status"], about["step"], about["best"]["step"]) == ("collapsed", 4, 0)
    assert "surely below 50% of the best (60.0 %), paired by problem" in about["stopped_because"]
    best = load_file(stopped / "best/model.safetensors")
    final = load_file(stopped / "final/model.safetensors")
    assert any(not torch.equal(best[name], value) for name, value in final.items())
    back = run(tmp_path / "back", scripted(0.6, 0.6, 0.1, 0.6), **{**ON, "health.on_collapse": "rollback"})
    saved = load_file(back / "checkpoints/checkpoint-4/model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in best.items())


def test_an_alarm_that_the_held_out_problems_do_not_confirm_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "observe", lambda self, step, row: "made up" if step == 3 else None)
    given = {**ON, "health.on_collapse": "stop"}
    with logged() as told:
        healthy = run(tmp_path / "on", scripted(0.5, 0.5, 0.5, 0.5, 0.5), **given)
    assert json.loads((healthy / "run.json").read_text())["status"] == "finished"
    assert "made up. The held-out problems do not confirm a collapse; the run goes on" in told
    assert [row["step"] for row in metrics(healthy) if "validation/pass@1" in row] == [2, 3, 4, 6]
    crash(5, lambda: run(tmp_path / "cut", scripted(0.5, 0.5, 0.5, 0.5), **given))
    assert_same_run(run(tmp_path / "cut", scripted(0.5), **given), healthy)


def test_held_out_problems_are_not_trained_on(tmp_path: Path) -> None:
    problems = [Problem(id=str(number), problem=f"{number % 40} + 1?", answer="4") for number in range(50)]

    def parts(**changes: Any) -> tuple[list[Problem], list[Problem]]:
        return TrainingProblems(config_of(tmp_path, **changes), problems).split()

    everything, nothing = parts()
    assert (len(everything), nothing) == (50, [])
    kept, held_out = parts(**ON)
    assert held_out == everything[-3:]
    assert not {p.problem for p in kept} & {p.problem for p in held_out}, "not even the same text under another id"
    assert kept == [p for p in everything if p in kept], "the others keep their order"

    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"problem": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in (3, 99)))
    for changes in ({"training.eval_steps": 2}, {}, {"method": "sft"}):
        kept, held_out = parts(**changes, **{"dataset.validation_file": str(file)})
        assert [p.problem for p in held_out] == ["3 + 1?", "99 + 1?"]
        assert len(kept) == 48
        assert "3 + 1?" not in {p.problem for p in kept}, "also if only a later evaluation asks for them"
    _, report = TrainingProblems(
        config_of(tmp_path, **{"training.eval_steps": 2, "dataset.validation_file": str(file)}), problems
    ).select(None)
    assert "  2 held out for validation" in report.lines()
