"""What gtpo 0.2 wrote (tests/golden/0.2, see its README) is read, or refused with the command that mends it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import command_line
from servers import Server

from gtpo.evalkit.view import Runs, rollout, samples
from gtpo.runs.eval_folder import sample_parts

WRITTEN = Path(__file__).parent / "golden/0.2"
TRAINED, EVALUATED = ("gtpo", "grpo", "sft", "within", "script"), ("gtpo", "grpo", "recorded", "server")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the folders, in which a test may write."""
    shutil.copytree(WRITTEN, tmp_path / "home")
    return tmp_path / "home"


def gtpo(words: str, home: Path) -> str:
    """Return what a command prints, which must succeed."""
    return command_line(*words.split(), cwd=home, code=0).stdout


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def steps(run: Path) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}


@pytest.mark.parametrize("name", ["gtpo", "grpo", "sft"])
def test_a_train_run_goes_on_from_its_checkpoint(name: str, home: Path) -> None:
    """To the end that it had; the line of metrics that spans the checkpoint of sft is of the steps after it."""
    run = home / "results/train" / name
    before = steps(run)
    run.joinpath("run.json").write_text(json.dumps(read(run / "run.json") | {"status": "running"}))
    shutil.rmtree(run / "final", ignore_errors=True)
    gtpo(f"train results/train/{name}/config.yaml --quiet", home)
    ended = read(run / "run.json")
    assert (ended["status"], ended["step"]) == ("finished", 4)
    assert list((run / "final").glob("*.safetensors"))
    # A line of 0.2 may span a checkpoint; ours after it is of the steps since.
    averages = ("time/", "loss", "tokens/accuracy") if name == "sft" else ("time/",)
    for step, row in before.items():
        kept = {key: value for key, value in row.items() if not key.startswith(averages)}
        assert {key: steps(run)[step][key] for key in kept} == pytest.approx(kept, rel=1e-3, abs=1e-5), step


def test_a_checkpoint_within_a_round_is_refused_and_the_run_made_again_is_the_same(home: Path) -> None:
    run = home / "results/train/within"
    before = steps(run)
    words = ["train", "results/train/within/config.yaml", "--quiet"]
    done = command_line(*words, cwd=home, code=2)
    assert "checkpoint-3 was written within a round of sampling" in done.stderr
    assert "or starts from the beginning where there is none" in done.stderr
    assert steps(run) == before, "nothing is lost until it is moved away"
    shutil.move(run / "checkpoints/checkpoint-3", home)
    gtpo(" ".join(words), home)
    assert read(run / "run.json")["step"] == 6
    for step, row in before.items():
        kept = {key: value for key, value in row.items() if not key.startswith("time/")}
        assert {key: steps(run)[step][key] for key in kept} == pytest.approx(kept, rel=1e-3, abs=1e-5), step


def test_a_script_goes_on_from_its_checkpoint(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its RunLog continues the folder."""
    from datasets import Dataset

    from gtpo import GTPOConfig, GTPOTrainer
    from gtpo.callbacks import ExactCheckpoints, RunLog

    def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [float(sum(ids) % 7) for ids in completion_ids]

    monkeypatch.chdir(home)
    run = home / "results/train/script"
    config = read(run / "config.yaml")["training"]
    names = ("num_generations", "per_device_train_batch_size", "max_completion_length", "logging_steps", "save_steps")
    settings: Any = {name: config[name] for name in names}
    args = GTPOConfig("script", **settings, max_steps=4, bf16=False, use_cpu=True, report_to="none", disable_tqdm=True)
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(8)]})
    trainer = GTPOTrainer("results/train/gtpo/final", reward, args=args, train_dataset=rows)
    trainer.add_callback(ExactCheckpoints(trainer))
    trainer.add_callback(RunLog(trainer, run, completions_steps=1))
    trainer.train(resume_from_checkpoint="script/checkpoint-2")
    assert list(steps(run)) == [1, 2, 3, 4]
    assert len(list((run / "completions").iterdir())) == 4
    prompt = read(run / "run.json")["prompt"]
    assert (prompt["system"], prompt["chat_template_source"]) == ("", "tokenizer")


@pytest.mark.parametrize("name", EVALUATED)
def test_an_eval_run_is_scored_again(name: str, home: Path) -> None:
    before = read(home / f"results/eval/{name}/eval.json")["benchmarks"]
    gtpo(f"eval results/eval/{name} --rescore --quiet", home)
    for benchmark, entry in read(home / f"results/eval/{name}/eval.json")["benchmarks"].items():
        for scoring in ("strict", "lenient"):
            assert entry[scoring]["pass@k"] == before[benchmark][scoring]["pass@k"]
        assert sum(entry["outcomes"].values()) == entry["samples"]
    parts = sample_parts(home / f"results/eval/{name}")
    assert all("outcome" in pq.read_schema(part).names for part in parts), "what 0.2 did not store is written"


@pytest.mark.parametrize("name", ["gtpo", "grpo"])
def test_a_larger_k_samples_what_is_missing(name: str, home: Path) -> None:
    part = home / f"results/eval/{name}/samples/part-000000.parquet"
    before = part.read_bytes()
    gtpo(f"eval {name} --benchmarks arithmetic --limit 4 --k 5 --max-tokens 6 --engine transformers --quiet", home)
    entry = read(home / f"results/eval/{name}/eval.json")["benchmarks"]["arithmetic"]
    assert (entry["n"], entry["samples"], part.read_bytes()) == (5, 20, before)


def test_a_server_and_recorded_completions_go_on(home: Path) -> None:
    part = home / "results/eval/server/samples/part-000000.parquet"
    server, stored = Server(), part.read_bytes()
    gtpo(f"eval m --engine openai --base-url {server.url} --benchmarks arithmetic --limit 4 --k 3 --out "
         "results/eval/server --max-tokens 32 --quiet", home)  # fmt: skip
    server.close()
    entry = read(home / "results/eval/server/eval.json")["benchmarks"]["arithmetic"]
    assert (entry["n"], entry["samples"], part.read_bytes()) == (3, 12, stored)
    before = read(home / "results/eval/recorded/eval.json")["benchmarks"]["recorded"]
    gtpo("eval --completions recorded.jsonl --k 3 --quiet", home)
    now = read(home / "results/eval/recorded/eval.json")["benchmarks"]["recorded"]
    # Keys may be added, in each scoring too.
    assert now == now | before | {by: now[by] | before[by] for by in ("strict", "lenient")}


def test_runs_are_found_by_name_and_compared_as_before(home: Path) -> None:
    was, now = read(home / "compare.json"), json.loads(gtpo("compare gtpo grpo --format json", home))
    by = ("benchmark", "method", "metric", "k")
    means = [{tuple(row[key] for key in by): row["mean"] for row in one["records"]} for one in (was, now)]
    assert means[0] == pytest.approx(means[1])
    # What a program that reads version 6 looks for is there until the version says otherwise.
    if now["schema_version"] == was["schema_version"]:
        assert was.keys() == now.keys()
        assert was["records"][0].keys() == now["records"][0].keys()
    training = json.loads(gtpo("compare script sft --format json", home))["training"]
    assert {"script", "sft"} == training.keys()


def test_every_run_is_shown_by_view(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    shown = Runs([]).state({})["runs"]
    assert {(run["kind"], run["name"]) for run in shown.values()} == {
        *(("train", name) for name in TRAINED), *(("eval", name) for name in EVALUATED)
    }  # fmt: skip
    for folder, run in shown.items():
        assert "error" not in run
        if run["kind"] == "train":
            assert run["curves"]["loss"]["x"]
            assert bool(rollout(Path(folder), {})["groups"]) == (run["name"] != "sft")
        else:
            benchmark = run["benchmarks"][0]["name"]
            assert samples(Path(folder), {"benchmark": benchmark})["total"] == run["benchmarks"][0]["samples"] > 0
