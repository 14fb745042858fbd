"""What stands between a run and its continuation: failed starts, damaged checkpoints, other numbers of processes."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from logs import logged
from safetensors.torch import load_file, save_file
from test_train_run import MANY_STEPS_A_ROUND, assert_same_run, config_of, crash, metrics, run, whole_run

from gtpo import GTPOTrainer
from gtpo.common.errors import UserError
from gtpo.runs.train_run import TrainFolder
from gtpo.train.health import Health, Judgement
from gtpo.train.resume import replace_folder


def fail_at_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the GPU's memory run out in the step after `step`."""
    plain = GTPOTrainer._compute_loss

    def full(self: Any, *args: Any) -> Any:
        if self.state.global_step == step:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")
        return plain(self, *args)

    monkeypatch.setattr(GTPOTrainer, "_compute_loss", full)


def test_start_that_made_no_step_is_replaced_by_the_corrected_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = r"out of GPU memory .*2\.00 GiB.*Lower, in this order: .*per_device_train_batch_size, and raise"
    with monkeypatch.context() as patched:
        fail_at_step(patched, 0)
        with pytest.raises(UserError, match=told):
            run(tmp_path, **{"model.lora_rank": 4})
    folder = tmp_path / "results/train/run"
    assert (folder / "base/model.safetensors").is_file()
    for name in ("best", "final", "completions"):  # such as the untrained model's, if the start validated
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "of the first start").touch()
    assert "initial_entropy" in json.loads((folder / "run.json").read_text())
    corrected = {"model.lora_rank": 2, "training.per_device_train_batch_size": 4, "model.build.hidden_size": 8}
    with logged() as told:
        run(tmp_path, **corrected)
    assert any("replacing a start that made no step (model.build.hidden_size = 16, now 8)" in line for line in told)
    # Nothing of the first start is left: its base, its weights, its H_ini, its config.
    assert not list(folder.rglob("of the first start"))
    whole = run(tmp_path / "whole", **corrected)
    assert metrics(folder) == metrics(whole)
    for name in ("base/config.json", "final/adapter_model.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    found, expected = (json.loads((path / "run.json").read_text()) for path in (folder, whole))
    # Its time is of each process, rounded to tenths.
    measured, anew = ({**document["initial_entropy"], "seconds": None} for document in (found, expected))
    assert measured == anew
    assert found["status"] == "finished"


def test_start_that_made_a_step_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        fail_at_step(patched, 1)
        with pytest.raises(UserError, match="out of GPU memory"):
            run(tmp_path)
    folder = tmp_path / "results/train/run"
    assert not list((folder / "checkpoints").glob("checkpoint-*")), "a measured step is enough"
    with pytest.raises(UserError, match=r"training\.per_device_train_batch_size = 8, now 4"):
        run(tmp_path, **{"training.per_device_train_batch_size": 4})


def cut_run(folder: Path, **changes: Any) -> Path:
    """Return a run as it is when it was killed after the checkpoint of step 4."""
    found = folder / "results/train/run"
    shutil.copytree(whole_run(**changes), found)
    about = json.loads((found / "run.json").read_text())
    (found / "run.json").write_text(json.dumps(about | {"status": "running"}))
    for name in ("checkpoints/checkpoint-6", "final"):
        shutil.rmtree(found / name)
    return found


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [("processes", 2, 1), ("dtype", "bfloat16", "float32"), ("engine", "vllm", "transformers")],
)
def test_what_no_key_of_a_config_says_is_compared_and_refused_with_both(
    key: str, before: Any, now: Any, tmp_path: Path
) -> None:
    folder = cut_run(tmp_path)
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {key: before}))
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and "lock" not in path.name}
    with pytest.raises(UserError, match=rf"holds a run with {key} = {before!r}, now {now!r}\. Choose another run_name"):
        run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.parametrize(("file", "key"), [("mine.jsonl", "data_hash"), ("mine_scored.py", "reward_hashes")])
def test_other_data_or_another_reward_of_the_same_name_is_refused(
    file: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_scored", raising=False)
    rows = [json.dumps({"problem": f"{n} + 1", "answer": str(n + 1)}) for n in range(8)]
    Path("mine.jsonl").write_text("\n".join(rows) + "\n")
    Path("mine_scored.py").write_text("def r(completions, **_):\n    return [float(len(c)) for c in completions]\n")
    changes = {"dataset.name": "mine.jsonl", "trainer.reward_funcs": "mine_scored.r", "training.initial_entropy": 1}
    crash(3, lambda: run(tmp_path, **changes))
    folder, original = tmp_path / "results/train/run", Path(file).read_text()
    problems = (folder / "problems.txt").read_text()
    Path(file).write_text(original.replace("7 + 1", "7 + 2") + "\n")
    with pytest.raises(UserError, match=rf"holds a run with {key} = .*, now .*Choose another run_name"):
        run(tmp_path, **changes)
    assert (folder / "problems.txt").read_text() == problems
    Path(file).write_text(original)
    about = json.loads((folder / "run.json").read_text())
    for name in ("engine", "data_hash", "reward_hashes"):  # a run of before they were kept
        del about[name]
    (folder / "run.json").write_text(json.dumps(about))
    about = json.loads((run(tmp_path, **changes) / "run.json").read_text())
    assert (about["status"], about["best"]["step"], about["best"]["value"]) == ("finished", None, None)


def test_damaged_checkpoint_is_refused_in_a_sentence_and_the_one_before_it_goes_on(tmp_path: Path) -> None:
    folder = cut_run(tmp_path)
    last = folder / "checkpoints/checkpoint-4"
    kept = tmp_path / "kept"
    shutil.copytree(last, kept)
    damages: list[tuple[str, str | None, str]] = [
        ("optimizer.pt", None, "has no optimizer state"),
        ("scheduler.pt", None, "has no scheduler.pt"),
        ("trainer_state.json", None, "cannot be read .*No such file.*trainer_state"),
        ("trainer_state.json", "{", "cannot be read"),
        ("trainer_state.json", "[]", "cannot be read"),
        ("trainer_state.json", "{}", "is of step 0"),
        ("gtpo_state.json", None, "cannot be read .*No such file.*gtpo_state"),
        ("gtpo_state.json", "{", "cannot be read .JSONDecodeError"),
        ("gtpo_state.json", "{}", "cannot be read .KeyError: 'micro_step'"),
        ("gtpo_state.json", "null", "cannot be read .TypeError"),
        ("model.safetensors", "no weights", "holds 10 bytes of model.safetensors, which had"),
    ]
    for name, text, words in damages:
        shutil.rmtree(last)
        shutil.copytree(kept, last)
        (last / name).unlink() if text is None else (last / name).write_text(text)
        with pytest.raises(UserError, match=f"checkpoint-4 .*{words}.*Move it away"):
            run(tmp_path)
    shutil.rmtree(last)
    assert json.loads((run(tmp_path) / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("run.json", "[]", "run.json: expected a JSON object, found list"),
        ("metrics.jsonl", '{"step": 1}\n5\n', "metrics.jsonl:2: not a JSON object with a number as its step"),
    ],
)
def test_damaged_file_of_a_run_is_named(name: str, text: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "results/train/run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config_of(tmp_path).to_yaml())
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=words):
        run(tmp_path)
    assert (folder / name).read_text() == text


def test_name_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results/train").mkdir(parents=True)
    (tmp_path / "results/train/run").write_text("mine")
    with pytest.raises(UserError, match=r"results/train/run cannot be a run folder .Not a directory"):
        run(tmp_path)
    with pytest.raises(UserError, match=r"cannot be a run folder .File name too long.; choose another run_name"):
        run(tmp_path, run_name="r" + "数" * 133 + "x")


def test_run_cut_between_two_lines_of_metrics_is_the_uninterrupted_one(tmp_path: Path) -> None:
    changes = {"training.logging_steps": 3, "training.save_steps": 2}
    whole = run(tmp_path / "whole", **changes)
    crash(5, lambda: run(tmp_path / "cut", **changes), "on_step_end")
    cut = tmp_path / "cut/results/train/run"
    assert [row["step"] for row in metrics(cut)] == [2, 3, 4], "a line ends at each checkpoint"
    run(tmp_path / "cut", **changes)
    assert_same_run(cut, whole)


def test_rollback_within_a_round_samples_anew_from_the_restored_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round feeds steps 1 to 4; the run collapses at step 3, and step 4 must not learn from what collapsed wrote."""
    observe, prepare = Health.observe, GTPOTrainer._generate_and_score_completions
    sampled_at: list[int] = []

    def collapsing(self: Health, step: int, row: dict[str, Any]) -> Judgement:
        verdict = observe(self, step, row)
        return Judgement("made up", new_best=verdict.new_best) if step == 3 else verdict

    def sampling(self: GTPOTrainer, inputs: Any) -> Any:
        sampled_at.append(self.state.global_step + 1)
        return prepare(self, inputs)

    monkeypatch.setattr(Health, "observe", collapsing)
    monkeypatch.setattr(GTPOTrainer, "_generate_and_score_completions", sampling)
    changes = {**MANY_STEPS_A_ROUND, "health.on_collapse": "rollback", "health.smoothing_steps": 1}
    whole = run(tmp_path / "whole", **changes)
    assert sampled_at == [1, 4, 5]
    # The rollback ended the round: its checkpoint is written at once.
    sampled_at.clear()
    crash(4, lambda: run(tmp_path / "cut", **changes), "on_step_end")
    run(tmp_path / "cut", **changes)
    assert sampled_at == [1, 4, 4, 5]
    assert_same_run(tmp_path / "cut/results/train/run", whole)


def test_a_checkpoint_with_weights_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    weights = cut_run(tmp_path, method="sft") / "checkpoints/checkpoint-4/model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] = math.inf
    save_file(tensors, weights, {"format": "pt"})
    told = r"checkpoint-4 holds NaN or infinity in the weight model\.norm\.weight\. Move it"
    with pytest.raises(UserError, match=told):
        run(tmp_path, method="sft")


def checkpoints(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").glob("*")}


def test_checkpoints_are_written_at_the_end_of_a_round_and_at_the_end_of_the_run(tmp_path: Path) -> None:
    """A round feeds steps 1 to 4 and the next one 5 to 8, of which the run makes 6."""
    with logged(logging.INFO) as told:
        folder = run(tmp_path, **MANY_STEPS_A_ROUND, **{"training.save_steps": 3, "training.save_total_limit": 9})
    assert checkpoints(folder) == {"checkpoint-4", "checkpoint-6"}
    line = "save_steps 3: a round of sampling feeds 4 steps, and a checkpoint is written at the end of the round"
    assert told.count(line) == 1


def test_a_stop_within_a_round_ends_at_once_and_says_which_steps_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal, then by a stop file; one of before a start counts no more."""
    plain, folder = GTPOTrainer._compute_loss, tmp_path / "cut/results/train/run"
    asked = [1, 5]  # the steps made before: the first has no checkpoint before it, the second one at step 4

    def interrupted(self: Any, *args: Any) -> Any:
        if asked and self.state.global_step == asked[0]:
            asked.pop(0)
            os.kill(os.getpid(), signal.SIGINT) if asked else (folder / "stop").touch()
        return plain(self, *args)

    monkeypatch.setattr(GTPOTrainer, "_compute_loss", interrupted)
    longer = {**MANY_STEPS_A_ROUND, "training.max_steps": 8, "training.num_iterations": 2}
    for step, words, there in (
        (2, "resumes the run from step 0: ", set()),
        (6, "resumes the run from step 4: ", {"checkpoint-4"}),
    ):
        with logged(logging.INFO) as told, pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", **longer)
        assert any(f"stopped at step {step} of 8; the same command {words}" in line
                   for line in told), told  # fmt: skip
        about = json.loads((folder / "run.json").read_text())
        assert (about["status"], about["step"], checkpoints(folder)) == ("interrupted", step, there)
        assert not (folder / "stop").exists()
    (folder / "stop").touch()
    run(tmp_path / "cut", **longer)
    whole = run(tmp_path / "whole", **longer)
    assert metrics(folder) == metrics(whole)
    assert (folder / "final/model.safetensors").read_bytes() == (whole / "final/model.safetensors").read_bytes()


def test_best_weights_outlive_a_kill_while_they_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plain = TrainFolder(tmp_path), os.replace
    for name in ("best", ".partial-best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)

    def killed(source: Path, target: Path) -> None:
        if target == folder.best:
            raise KeyboardInterrupt
        plain(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(tmp_path / ".partial-best", folder.best)
    folder.remove_partial()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["best", "best/weights"]
    assert (folder.best / "weights").read_text() == "best"
