"""bench.conflict: its second implementation agrees with ours on random groups, and the command writes its table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.common import with_temporaries
from bench.conflict import batch, page, presence_map_weights
from gtpo.conflict import conflict_weights

ROOT = Path(__file__).resolve().parents[2]


def test_presence_maps_give_the_same_weights_on_small_vocabularies() -> None:
    generator = torch.Generator().manual_seed(20250819)
    conflicts = 0
    for vocabulary in (1, 2, 3, 5):
        for _ in range(60):
            ids = torch.randint(0, vocabulary, (8, 7), generator=generator)
            lengths = torch.randint(1, 8, (8,), generator=generator)
            mask = torch.arange(7) < lengths[:, None]
            advantages = torch.randint(-1, 2, (8,), generator=generator).float()
            found = conflict_weights(ids, mask, advantages, 4)
            assert torch.equal(found.weights, presence_map_weights(ids, mask, advantages, 4, vocabulary))
            conflicts += int(found.union.sum())
    assert conflicts > 1000


def test_temporaries_are_the_peak_without_the_result() -> None:
    def call() -> torch.Tensor:
        first = torch.empty(1000)
        second = torch.empty(3000)
        del first
        result = torch.empty(500)
        del second
        return result

    kept, peak = with_temporaries(call, lambda tensor: [tensor])
    assert kept.numel() == 500
    assert abs(peak - (4000 + 12000 - 2000)) <= 128


def test_inputs_have_conflicts_at_both_ends_of_ragged_completions() -> None:
    ids, mask, advantages = batch(2, 4, 64, 1000)
    found = conflict_weights(ids, mask, advantages, 4)
    assert (found.forward >= 12).all()
    assert (found.backward >= 12).all()
    assert len(set(mask.sum(dim=1).tolist())) > 1


@pytest.mark.slow
def test_the_command_writes_its_json(tmp_path: Path) -> None:
    out = tmp_path / "conflict.json"
    command = [sys.executable, "-m", "bench.conflict", "--groups", "4", "--lengths", "32", "48", "--prompts", "1"]
    command += ["--vocabulary", "500", "--rounds", "2", "--out", str(out)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["L"], row["weights_equal"]) for row in rows] == [(32, True), (48, True)]
    assert page(rows) in done.stdout
    assert all(row["conflict_weights"]["seconds"] > 0 for row in rows)
