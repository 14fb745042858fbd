"""Run folders of the first schema (tests/gtpo/older_run): read, resumed exactly, or refused in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from logs import logged
from test_train_run import _Crash, assert_same_run, config_of, crash_at, run

from gtpo.common.errors import UserError
from gtpo.run.command import train
from gtpo.run.folder import TrainFolder

OLDER = Path(__file__).parent / "older_run"


def older_folder(tmp_path: Path, **changes: Any) -> TrainFolder:
    """Return a finished run of the older schema in which the dotted keys have other values."""
    root = tmp_path / "results/train/run"
    shutil.copytree(OLDER, root)
    stored = yaml.safe_load((root / "config.yaml").read_text())
    for key, value in changes.items():
        section, _, name = key.partition(".")
        stored[section][name] = value
    (root / "config.yaml").write_text(yaml.safe_dump(stored, sort_keys=False))
    return TrainFolder(root)


def test_the_older_file_has_the_keys_that_are_gone_and_lacks_the_later_ones() -> None:
    stored = yaml.safe_load((OLDER / "config.yaml").read_text())
    assert {"gtpo_runtime", "objective"} <= set(stored)
    assert {"subset", "subsets"} <= set(stored["dataset"])
    assert "max_prompt_length" in stored["model"]
    assert "vocabulary" not in stored["model"]["build"]


def test_finished_older_run_is_left_alone(tmp_path: Path) -> None:
    folder = older_folder(tmp_path)
    before = {path: path.read_bytes() for path in folder.root.iterdir()}
    with logged(20) as told:
        assert train(config_of(tmp_path), results_dir=tmp_path / "results") == folder.root
    assert "is finished; nothing to do" in told[-1]
    assert {path: path.read_bytes() for path in folder.root.iterdir()} == before


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"training.learning_rate": 0.02}, "training.learning_rate = 0.02, now 0.01"),
        ({"objective.gamma": 0.2}, "objective.gamma = 0.2, now 0.1"),
        ({"gtpo_runtime.ent_threshold": 0.5}, "gtpo_runtime.ent_threshold 0.5 and"),
        ({"health.patience": 3}, 'unknown key "health.patience"'),
    ],
)
def test_older_run_of_another_config_is_refused_in_one_sentence(
    stored: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    folder = older_folder(tmp_path, **stored)
    before = folder.config_yaml.read_bytes()
    with pytest.raises(UserError) as error:
        train(config_of(tmp_path), results_dir=tmp_path / "results")
    assert expected in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert folder.config_yaml.read_bytes() == before


def test_key_that_the_older_version_did_not_have_takes_its_default(tmp_path: Path) -> None:
    folder = older_folder(tmp_path)
    folder.check_config(config_of(tmp_path))
    with pytest.raises(UserError, match=r"model\.build\.vocabulary = 'arithmetic', now 'word_problems'"):
        folder.check_config(config_of(tmp_path, **{"model.build.vocabulary": "word_problems"}))


def test_interrupted_older_run_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        crash_at(patched, 3)
        with pytest.raises(_Crash):
            run(tmp_path / "cut")
    cut = tmp_path / "cut/results/train/run"
    shutil.copy(OLDER / "config.yaml", cut / "config.yaml")
    run(tmp_path / "cut")
    assert_same_run(cut, run(tmp_path / "whole"))
    assert "gtpo_runtime" not in yaml.safe_load((cut / "config.yaml").read_text())


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ([], {}, "results/train/run is finished; nothing to do\n"),
        (["--quiet"], {}, ""),
        ([], {"RANK": "1"}, ""),
        (["--quiet", "--verbose"], {}, "gtpo: --quiet and --verbose exclude each other\n"),
    ],
)
def test_flags_set_the_log_level_and_only_rank_0_speaks(
    flags: list[str], environment: dict[str, str], expected: str, tmp_path: Path, root: Path
) -> None:
    older_folder(tmp_path)
    config_of(tmp_path)
    done = subprocess.run(
        [sys.executable, str(root / "cli.py"), "train", "run.yaml", *flags],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == expected
    assert done.stdout == ""


def test_run_json_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    folder = older_folder(tmp_path)
    about = json.loads(folder.run_json.read_text()) | {"schema_version": 99}
    folder.run_json.write_text(json.dumps(about))
    with pytest.raises(UserError, match="schema version 99; this gtpo reads up to 1"):
        train(config_of(tmp_path), results_dir=tmp_path / "results")
