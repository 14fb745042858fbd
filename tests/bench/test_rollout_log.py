"""bench/rollout_log.py: a run goes on from what it sampled, without a checkpoint."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.rollout_log import RolloutLog
from gtpo.common.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def call_of(number: int) -> dict[str, Any]:
    return {"prompts": [[number, 1]], "completions": [[number]], "logps": [[-0.5]]}


def test_calls_come_back_in_order_until_the_log_ends(tmp_path: Path) -> None:
    path = tmp_path / "run" / "log.jsonl.gz"
    for number in (1, 2, 1):
        RolloutLog(path).append(call_of(number))  # each in a process of its own
    log = RolloutLog(path)
    assert [log.find([[number, 1]]) for number in (1, 2, 1)] == [call_of(1), call_of(2), call_of(1)]
    assert log.find([[9, 9]]) is None


def test_start_from_a_checkpoint_passes_over_earlier_calls(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    for number in (1, 2, 3):
        RolloutLog(path).append(call_of(number))
    log = RolloutLog(path)
    assert log.find([[3, 1]]) == call_of(3)
    log = RolloutLog(path)
    with pytest.raises(UserError, match=r"log.jsonl.gz: none of its last 3 calls has this run's prompts"):
        log.find([[4, 1]])


def test_call_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    for number in (1, 2):
        RolloutLog(path).append(call_of(number))
    path.write_bytes(path.read_bytes()[:-20])
    assert RolloutLog(path).calls == [call_of(1)]
    RolloutLog(path).append(call_of(3))
    with gzip.open(path, "rt") as lines:
        assert [json.loads(line) for line in lines] == [call_of(1), call_of(3)]


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kept", [3, None])
def test_a_run_without_its_folder_becomes_the_same(
    kept: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the log is left, or all of it: the metrics are those of the first run."""
    monkeypatch.syspath_prepend(ROOT / "tests/gtpo")
    from test_vllm_rollouts import gtpo, metrics

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    log = tmp_path / "log.jsonl.gz"
    monkeypatch.setenv("ROLLOUT_LOG", str(log))
    start = ("-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from bench.rollout_log import main; main()")
    gtpo(tmp_path / "first", start=start)
    expected, calls = metrics(tmp_path / "first"), RolloutLog(log).calls
    if kept is not None:
        log.unlink()
        for call in calls[:kept]:
            RolloutLog(log).append(call)
    shutil.rmtree(tmp_path / "first/results")
    gtpo(tmp_path / "second", start=start)
    assert metrics(tmp_path / "second") == expected
    assert RolloutLog(log).calls == calls
