"""`training.resample_equal_groups`: equal groups are drawn again, counted, and resumed as they were."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampler_check import built, small
from test_train_run import MANY_STEPS_A_ROUND, assert_same_run, crash, metrics, run

from gtpo.trainer import SampledTrainer

CALLS: list[list[list[int]]] = []


def coarse(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A reward that is equal in about half of the groups of four."""
    CALLS.append(completion_ids)
    return [float(sum(ids) % 100 < 12) for ids in completion_ids]


coarse.is_accuracy = True  # type: ignore[attr-defined]  # chooses best/
SETTINGS = {
    "training.resample_equal_groups": 3,
    "training.per_device_train_batch_size": 16,
    "trainer.reward_funcs": ["test_resampling.coarse"],
}


@pytest.mark.parametrize("method", ["gtpo", "grpo"])
def test_only_equal_groups_are_drawn_again(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[list[list[int]], int]] = []
    plain, draws = SampledTrainer._generate, []

    def watched(self: Any, prompts: list[Any]) -> Any:
        draws.clear()
        outputs = plain(self, prompts)
        rounds.append(([list(ids) for ids in outputs[1]], len(draws)))
        return outputs

    draw = SampledTrainer.draw
    monkeypatch.setattr(SampledTrainer, "_generate", watched)
    monkeypatch.setattr(SampledTrainer, "draw", lambda self, asked: draws.append(asked) or draw(self, asked))
    CALLS.clear()
    folder = run(tmp_path, method=method, **SETTINGS)
    rows = metrics(folder)
    scored = sum(len(ids) for ids in CALLS if len(ids) != 2)  # 2: the probe before the start
    again = sum(round(row["groups/resampled"] * 4) for row in rows)
    assert scored == 6 * 16 + 4 * again, "what is kept is not scored again"
    assert len(rows) == len(rounds) == 6
    drawn = 0
    for row, (ids, times) in zip(rows, rounds, strict=True):
        rewards = coarse(ids)
        equal = [len(set(rewards[at : at + 4])) == 1 for at in range(0, len(rewards), 4)]
        assert row["groups/zero_variance"] == pytest.approx(sum(equal) / len(equal))
        assert not any(equal) or times == 4, "an equal group was drawn as often as it may be"
        assert row["groups/zero_variance"] <= row["groups/zero_variance_drawn"]
        assert row["completions/length"] == pytest.approx(sum(map(len, ids)) / len(ids))
        assert row["rewards/coarse/mean"] == pytest.approx(sum(rewards) / len(rewards))
        drawn += round(row["groups/resampled"] * len(equal))
    assert drawn > 0


@pytest.mark.parametrize(("as_whole", "equal"), [(True, True), (False, False)])
def test_a_group_is_equal_if_its_scored_completions_are(as_whole: bool, equal: bool, tmp_path: Path) -> None:
    trainer = built(tmp_path, small("Llama"))
    trainer.unscored_as_whole, trainer.reward_weights = as_whole, torch.ones(2)
    rewards = torch.tensor([[10.0, 1.0]] * 3 + [[10.0, math.nan]])
    assert trainer.groups.advantages(rewards).zero_variance.tolist() == [equal] * 4


def test_resume_is_exact(tmp_path: Path) -> None:
    settings = {**SETTINGS, **MANY_STEPS_A_ROUND}
    whole = run(tmp_path / "whole", **settings)
    assert sum(row.get("groups/resampled", 0) for row in metrics(whole)) > 0
    crash(3, lambda: run(tmp_path / "cut", **settings))
    cut = run(tmp_path / "cut", **settings)
    assert_same_run(cut, whole)


def test_rounds_with_a_state_of_their_own_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resample_equal_groups does not work with rollout_func"):
        built(tmp_path, small("Llama"), resample_equal_groups=1, rollout_func=lambda prompts, trainer: {})
