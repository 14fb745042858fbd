"""`gtpo train` end to end on a tiny model: the run folder, resume, interruption, and what goes wrong."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from commands import command_line, python
from logs import logged
from safetensors.torch import load_file

from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder
from gtpo.common.packages import installed
from gtpo.config import TrainConfig, load_config
from gtpo.dry_run import needed_packages
from gtpo.inputs.model import prepare_tokenizer
from gtpo.inputs.tiny import build_tokenizer
from gtpo.runs.train_run import TrainFolder
from gtpo.train.command import train
from gtpo.train.environment import FOLDERS
from gtpo.train.health import Health, Judgement
from gtpo.train.run_log import RunLog

STEPS = 6
PLAIN: dict[str, Any] = {
    "run_name": "run",
    "method": "gtpo",
    "model": {
        "build": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "max_seq_length": 96,
    },
    "dataset": {"name": "arithmetic", "system_instruction": "", "limit": 8},
    "training": {
        "learning_rate": 1e-2,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_steps": STEPS,
        "save_steps": 2,
        "max_prompt_length": 64,
        "max_completion_length": 6,
        "log_completions_steps": 2,
    },
    "health": {"smoothing_steps": 2},
}

# A round of sampling that feeds four optimizer steps: checkpoints are due in its middle.
MANY_STEPS_A_ROUND = {
    "training.per_device_train_batch_size": 4,
    "training.gradient_accumulation_steps": 2,
    "training.steps_per_generation": 4,
    "training.num_iterations": 2,
}


def config_of(folder: Path, **changes: Any) -> TrainConfig:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(PLAIN))
    return load_config(path, changes)


def run(folder: Path, **changes: Any) -> Path:
    return train(config_of(folder, **changes), results_dir=folder / "results")


WHOLE, _number = tempfile.TemporaryDirectory(), itertools.count()


@functools.cache
def whole_run(**changes: Any) -> Path:
    """Return the uninterrupted run of a config, trained once a process: who changes it takes a copy."""
    return run(Path(WHOLE.name) / str(next(_number)), **changes)


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    """Return metrics.jsonl without what the clock says."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")} for line in lines]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{prefix}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for place, inner in enumerate(value) for k, v in flat(inner, f"{prefix}/{place}").items()}
    return {prefix: value.tolist() if isinstance(value, torch.Tensor) else value}


def assert_same_run(found: Path, expected: Path) -> None:
    """Bit for bit: metrics, weights, optimizer, schedule, random numbers, the run's own state, best weights."""
    assert metrics(found) == metrics(expected)
    last = f"checkpoints/checkpoint-{STEPS}"
    weights, name = "model.safetensors", "gtpo_state.json"
    assert (found / last / weights).read_bytes() == (expected / last / weights).read_bytes()
    states = [json.loads((where / last / name).read_text()) for where in (found, expected)]
    # The sizes of pickles follow from the run's path, and from what was read.
    assert states[0] | {"bytes": None} == states[1] | {"bytes": None}
    for name in ("optimizer.pt", "scheduler.pt"):
        assert flat(torch.load(found / last / name)) == flat(torch.load(expected / last / name)), name
    assert (found / "final/model.safetensors").read_bytes() == (expected / "final/model.safetensors").read_bytes()
    assert (found / "best/best.json").read_text() == (expected / "best/best.json").read_text()
    assert (found / "best/model.safetensors").read_bytes() == (expected / "best/model.safetensors").read_bytes()
    names = sorted(path.name for path in (expected / "completions").glob("*"))
    assert sorted(path.name for path in (found / "completions").glob("*")) == names


@pytest.mark.parametrize("method", ["gtpo", "grpo"])
def test_a_truncated_completion_that_is_masked_is_logged_whole(method: str) -> None:
    rows = pq.read_table(whole_run(method=method, **{"objective.mask_truncated": True}) / "completions").to_pylist()
    lengths = {len(row["tokens"]) for row in rows}
    assert lengths <= set(range(1, 7))
    assert sum(len(row["tokens"]) == 6 for row in rows) > len(rows) / 2, "the untrained model seldom ends"


# -- the folder ------------------------------------------------------------------------------------------------------


def test_run_folder_and_names_shared_by_the_methods() -> None:
    folders = {"gtpo": whole_run(), **{method: whole_run(method=method) for method in ("grpo", "sft")}}
    for method, folder in folders.items():
        about = json.loads((folder / "run.json").read_text())
        assert (about["status"], about["method"], about["step"]) == ("finished", method, STEPS)
        for key in ("packages", "hardware", "seed", "dataset", "base_model", "wall_time_s", "schema_version"):
            assert about[key], key
        assert about["peak_memory_bytes"] or sys.platform != "linux"
        assert [row["step"] for row in metrics(folder)] == list(range(1, STEPS + 1))
        assert load_config(folder / "config.yaml").method == method
        for part in ("best", "final"):
            assert {"model.safetensors", "config.json", "tokenizer.json"} <= {p.name for p in (folder / part).iterdir()}
        pickles = {path.parent.parent.name for path in folder.rglob("training_args.bin")}
        assert pickles == {"checkpoints"}, "pickles stay inside checkpoints"
    assert json.loads((folders["gtpo"] / "run.json").read_text())["gate"]["filter"] == "auto"
    first = {method: metrics(folder)[0] for method, folder in folders.items()}
    assert set(first["gtpo"]) - set(first["grpo"]) == {"gate/kept"}
    assert {"loss", "grad_norm", "lr", "entropy/mean", "step"} <= set(first["sft"])
    # The first round is sampled from the same weights with the same random numbers.
    for name in ("reward/format", "completions/length", "conflict/forward", "entropy/mean"):
        assert first["gtpo"][name] == pytest.approx(first["grpo"][name], rel=1e-5), name


def test_a_reward_says_itself_that_it_is_the_accuracy(tmp_path: Path) -> None:
    names = {"trainer.reward_funcs": ["gtpo.rewards.format_reward", "gtpo.rewards.boxed_reward"]}
    (line,) = metrics(run(tmp_path, **names, **{"training.max_steps": 1}))
    assert line["reward/accuracy"] == line["rewards/boxed_reward/mean"]


# -- resume ----------------------------------------------------------------------------------------------------------


class _Crash(BaseException):
    pass


def crash(step: int, start: Callable[[], Any], event: str = "on_log") -> None:
    """Let what `start` trains die, as far as the run can tell, after an event of `step`."""
    plain = getattr(RunLog, event)

    def dies(self: RunLog, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        plain(self, args, state, control, **kwargs)
        if state.global_step == step and "loss" in kwargs.get("logs", {"loss": None}):
            raise _Crash

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunLog, event, dies)
        with pytest.raises(_Crash):
            start()


@pytest.mark.parametrize(
    ("method", "changes", "step"),
    [("gtpo", MANY_STEPS_A_ROUND, 5), ("grpo", {"training.beta": 0.05}, 5), ("sft", {}, 3)],
    ids=["gtpo within a round", "grpo with KL", "sft"],
)
def test_resumed_run_is_the_uninterrupted_one(method: str, changes: dict[str, Any], step: int, tmp_path: Path) -> None:
    whole = whole_run(**{} if method == "gtpo" else {"method": method}, **changes)
    crash(step, lambda: run(tmp_path / "cut", method=method, **changes))
    cut = tmp_path / "cut/results/train/run"
    assert len(metrics(cut)) == step
    (cut / "metrics.jsonl").open("a").write('{"step": 99, "lo')  # the line that was being written
    run(tmp_path / "cut", method=method, **changes)
    assert_same_run(cut, whole)


KILLED = """
import os, signal, sys
from gtpo import GTPOTrainer, cli
plain = GTPOTrainer._calculate_rewards
def killed(self, *arguments):
    if self.state.global_step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *arguments)
GTPOTrainer._calculate_rewards = killed
sys.argv = ["gtpo", *sys.argv[1:]]
cli.app()
"""
"""In the fourth step: one step more is logged than the last checkpoint has."""


@pytest.mark.slow
def test_kill_9_and_the_same_command_again(tmp_path: Path) -> None:
    config_of(tmp_path)
    folder = tmp_path / "results/train/run"
    python("-c", KILLED, "train", "run.yaml", cwd=tmp_path, code=-signal.SIGKILL)
    assert len(metrics(folder)) == 3
    assert not (folder / "checkpoints/checkpoint-3").exists()
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert run(tmp_path) == folder
    assert_same_run(folder, whole_run())


def test_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = whole_run()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with logged(logging.INFO) as told:
        train(config_of(tmp_path), results_dir=folder.parents[1], json_output=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert "nothing to do" in told[-1]
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


@pytest.mark.parametrize(
    ("key", "value"), [("training.learning_rate", 3e-3), ("objective.gamma", 0.2), ("method", "grpo")]
)
def test_folder_of_another_config_is_refused_by_the_key(key: str, value: Any, tmp_path: Path) -> None:
    folder = whole_run()
    before = (folder / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=key if key != "method" else "method = 'gtpo', now 'grpo'"):
        train(config_of(tmp_path, **{key: value}), results_dir=folder.parents[1])
    assert (folder / "config.yaml").read_bytes() == before


def finished(folder: Path, **about: Any) -> TrainFolder:
    """Return the folder of a run that is said to be finished."""
    made = TrainFolder(folder / "results/train/run")
    made.root.mkdir(parents=True)
    made.config_yaml.write_text(config_of(folder).to_yaml())
    made.update_run(status="finished", **about)
    return made


def test_folder_of_another_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    folder.config_yaml.write_text(folder.config_yaml.read_text() + "padding:\n  most: 3\n")
    with pytest.raises(UserError, match=r"that this version of gtpo cannot resume \(.*padding") as error:
        train(config_of(tmp_path), results_dir=tmp_path / "results")
    assert len(str(error.value).splitlines()) == 1
    folder = finished(tmp_path / "newer", schema_version=99)
    with pytest.raises(UserError, match="schema version 99; this gtpo reads up to 4"):
        train(config_of(tmp_path), results_dir=tmp_path / "newer/results")


def test_a_run_that_is_busy_is_refused(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "busy/results/train/run")
    with pytest.raises(UserError, match="another process"):
        run(tmp_path / "busy")
    lock.release()


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.fixture
def own_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        """Write a reward beside the config; it knows its call by a counter."""
        (tmp_path / "my_reward.py").write_text(f"def mine(completions, completion_ids, **columns):\n{body}\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, "my_reward", raising=False)
        return tmp_path

    return write


def test_reward_that_raises_leaves_the_completion_unscored(own_reward: Callable[[str], Path]) -> None:
    folder = own_reward(
        "    if any(len(ids) == 6 and ids[0] % 4 == 0 for ids in completion_ids):\n"
        "        raise RuntimeError('cannot score this')\n"
        "    return [float(ids[0] % 5) for ids in completion_ids]"
    )
    with logged() as told:
        found = metrics(run(folder, **{"trainer.reward_funcs": ["my_reward.mine"]}))
    assert any(0 < row["reward/unscored"] <= 0.5 for row in found)
    assert all(row["loss"] is not None for row in found)
    (warning,) = (line for line in told if "raised" in line)
    assert warning.startswith("reward function mine raised")
    assert "RuntimeError: cannot score this" in warning


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    return [1.0]", "trainer.reward_funcs: reward my_reward.mine returned 1 scores for 2 completions"),
        ("    return [1.0] * len(completions) if completion_ids == [[0], [0]] else [1.0]", "returned 1 scores for 8"),
        (
            "    return [1.0 if ids == [0] else 1e39 for ids in completion_ids]",
            "returned 1e.39 for completion 0; a reward returns one finite number",
        ),
        ("    raise RuntimeError('cannot score anything')", r"8 of 8 completions(.|\n)*cannot score anything"),
        ("    return (float(len(ids)) for ids in completion_ids)", ""),
    ],
)
def test_reward_that_returns_no_scores_stops_with_a_sentence(
    own_reward: Callable[[str], Path], body: str, words: str
) -> None:
    folder = own_reward(body)
    changes = {"trainer.reward_funcs": ["my_reward.mine"], "training.max_steps": 1, "objective.filter": "never"}
    if not words:
        assert run(folder, **changes)
        return
    with pytest.raises(UserError, match=words):
        run(folder, **changes)


def test_no_room_for_a_checkpoint_leaves_the_last_one_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.save

    def full(value: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if "checkpoint-4" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(value, path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        with pytest.raises(UserError, match=r"no room on disk in .*checkpoint-2 is whole"):
            run(tmp_path)
    folder = tmp_path / "results/train/run"
    about = json.loads((folder / "run.json").read_text())
    assert (about["status"], "no room on disk" in about["stopped_because"]) == ("failed", True)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-2"]
    run(tmp_path)
    assert_same_run(folder, whole_run())


def test_collapse_stops_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Health.observe

    def collapsing(self: Health, step: int, row: dict[str, Any]) -> Judgement:
        verdict = plain(self, step, row)
        return Judgement("made up") if step == 4 else verdict

    monkeypatch.setattr(Health, "observe", collapsing)
    config_of(tmp_path / "stop")
    done = command_line("train", "run.yaml", "--health.on_collapse", "stop", cwd=tmp_path / "stop", code=4)
    assert "collapsed at step 4 of 6" in done.stderr
    stopped = tmp_path / "stop/results/train/run"
    about = json.loads((stopped / "run.json").read_text())
    assert (about["step"], about["status"]) == (4, "collapsed")
    assert "made up" in about["stopped_because"]

    # As if killed between the last checkpoint and the last weights: the same command trains no step more.
    before, weights = metrics(stopped), load_file(stopped / "final/model.safetensors")
    shutil.rmtree(stopped / "final")
    (stopped / "run.json").write_text(json.dumps({**about, "status": "running", "stopped_because": None}))
    run(tmp_path / "stop", **{"health.on_collapse": "stop"})
    again = json.loads((stopped / "run.json").read_text())
    assert (again["step"], again["status"], again["stopped_because"]) == (4, "collapsed", about["stopped_because"])
    assert metrics(stopped) == before
    after = load_file(stopped / "final/model.safetensors")
    assert all(torch.equal(after[name], weight) for name, weight in weights.items())


# -- what a run writes besides --------------------------------------------------------------------------------------


def test_metrics_of_the_users_own_and_clipped_ratios_are_in_metrics_jsonl(own_reward: Callable[[str], Path]) -> None:
    folder = own_reward(
        "    columns['log_metric']('judge/agreement', 0.25)\n"
        "    columns['log_metric']('step', 99.0)\n"
        "    return [float(ids[0] % 5) for ids in completion_ids]"
    )
    changes = {"trainer.reward_funcs": ["my_reward.mine"], "training.epsilon": 1e-3, **MANY_STEPS_A_ROUND}
    for method in ("gtpo", "grpo"):
        rows = metrics(run(folder / method, **changes, method=method))
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "ours, whatever a reward calls its own"
        assert any(row.get("judge/agreement") == 0.25 for row in rows)
        shares = [row["clip_ratio/region_mean"] for row in rows]
        assert max(shares) > 0, "at a learning rate of 1e-2 ratios leave 1 +- 1e-3"
        for row, share in zip(rows, shares, strict=True):
            assert share == pytest.approx(row["clip_ratio/low_mean"] + row["clip_ratio/high_mean"])
            assert 0 <= share <= 1
    alone = metrics(run(folder / "alone", **{"trainer.reward_funcs": ["my_reward.mine"]}))
    assert not any(name.startswith("clip_ratio") for row in alone for name in row), "one step per rollout: no ratio"


@pytest.mark.slow
def test_trackers_write_into_the_run_folder(tmp_path: Path, root: Path) -> None:
    trackers = [name for name in ("tensorboard", "wandb", "trackio") if installed(name)]
    if not trackers:
        pytest.skip("no tracker is installed")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/run.yaml").write_text(yaml.safe_dump(PLAIN))
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "WANDB_MODE": "offline"}
    environment = {name: value for name, value in os.environ.items() if name not in (*FOLDERS, "HF_HOME")} | home
    flags = ("--training.max_steps", "1", "--training.report_to", *trackers)
    python(root / "cli.py", "train", "run.yaml", *flags, cwd=tmp_path / "work", env=environment)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    folder = Path("work/results/train/run")
    for tracker in trackers:
        assert any(path.is_relative_to(folder / tracker) for path in written), tracker
    outside = {path for path in written if not path.is_relative_to(folder)}
    assert not [path for path in outside if "tfevents" in path.name or path.suffix in (".db", ".wandb")]
    assert {path for path in outside if path.parts[0] == "work"} == {Path("work/run.yaml")}


# -- models ----------------------------------------------------------------------------------------------------------


def test_adapters_and_a_run_as_the_next_runs_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapters = train(config_of(tmp_path, **{"model.lora_rank": 4}))
    assert (adapters / "final/adapter_model.safetensors").is_file()
    about = json.loads((adapters / "run.json").read_text())
    assert 0 < about["parameters"]["trained"] < about["parameters"]["all"]
    changes = {"run_name": "next", "model.build": None, "model.model_name": str(adapters), "training.max_steps": 1}
    after = train(config_of(tmp_path, **changes))
    notes = json.loads((after / "run.json").read_text())["notes"]
    assert any("merged before training" in note for note in notes)
    assert (after / "final/model.safetensors").is_file()


def test_tokenizer_without_pad_and_chat_template_is_completed_and_said() -> None:
    tokenizer = build_tokenizer()
    tokenizer.pad_token, tokenizer.chat_template = None, None
    notes = prepare_tokenizer(tokenizer)
    assert len(notes) == 2
    assert tokenizer.pad_token is not None
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="end-of-sequence"):
        prepare_tokenizer(tokenizer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model.backend": "unsloth", "model.build": None, "model.model_name": "some/model"},
            "model.backend unsloth needs unsloth, which is not installed",
        ),
        ({"rollout.engine": "vllm"}, "rollout.engine vllm needs vllm, which is not installed"),
        ({"training.optimizer": "adamw_torch_8bit"}, "adamw_torch_8bit needs torchao, .*: pip install torchao"),
    ],
)
def test_run_that_needs_an_absent_package_is_refused_before_its_folder_is_made(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, **changes)
    if all(installed(package) for _, package, _ in needed_packages(config)):
        pytest.skip("it is installed here")
    with pytest.raises(UserError, match=words):
        train(config, results_dir=tmp_path / "results")
    assert not (tmp_path / "results").exists()
