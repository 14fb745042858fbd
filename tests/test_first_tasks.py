"""What a new user does first, and the mistakes that are made on the way: two commands each, and no dead end."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import command_line

SMALL = ("--training.max_steps", "2", "--training.logging_steps", "1", "--training.per_device_train_batch_size", "8")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def gtpo(home: Path, *words: str, code: int = 0) -> str:
    """Run a command; return what it printed."""
    done = command_line(*words, cwd=home, code=code)
    return done.stdout + done.stderr


def boxed(home: Path, name: str, wrong: int) -> None:
    """Write 40 questions x 4 completions that box their answer, one of `wrong` being wrong."""
    rows = [
        {
            "id": f"q{i}",
            "gold": str(i),
            "completions": [rf"It is \boxed{{{i + (not (i + j) % wrong)}}}." for j in range(4)],
        }
        for i in range(40)
    ]
    write_rows(home / name, rows)


def test_completions_in_boxes_are_scored_and_compared(tmp_path: Path) -> None:
    """Strict scoring finds nothing in them; 0 % would be nobody's result."""
    boxed(tmp_path, "a.jsonl", 2)
    (tmp_path / "lr=1").mkdir()
    boxed(tmp_path, "lr=1/model_b.jsonl", 8)
    said = gtpo(tmp_path, "compare", "model_a=a.jsonl", "lr=1/model_b.jsonl")
    assert "a.jsonl: lenient scoring, stored in results/eval/model_a" in said
    assert "completions hold no answer in answer tags" in said
    assert "model_b is better than model_a" in said
    assert "4 samples each, lenient" in said
    again = gtpo(tmp_path, "eval", "model_a", "--completions", "a.jsonl", "--k", "4")
    parts = list((tmp_path / "results/eval/model_a/samples").iterdir())
    assert len(parts) == 1, "compare stored what eval would have"
    assert "model_a, lenient scoring" in again
    assert "50.0 [" in again
    strict = gtpo(tmp_path, "eval", "--completions", "a.jsonl", "--k", "4", "--scoring", "strict")
    assert "--scoring lenient" in strict.splitlines()[-1], "the advice comes last, and this command takes it"


def test_files_with_other_fields_are_compared(tmp_path: Path) -> None:
    for name, shift in (("one", 0), ("two", 1)):
        rows = [{"target": str(i), "response": f"#### {i + shift * (i % 3 > 0)}"} for i in range(40)]
        write_rows(tmp_path / f"{name}.jsonl", rows)
    said = gtpo(tmp_path, "compare", "one.jsonl", "two.jsonl", "--fields", "gold=target,completion=response")
    assert "two is worse than one" in said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the demo's base, and a run on problems of one's own; and what training printed."""
    home = tmp_path_factory.mktemp("own")
    write_rows(home / "mine.jsonl", [{"problem": f"What is {a}+3?", "answer": str(a + 3)} for a in range(40)])
    gtpo(home, "train", "demo/base", *SMALL)
    words = ("--model", "demo-base", "--data", "mine.jsonl", "--max-tokens", "16", "--run-name", "mine")
    return home, gtpo(home, "train", *words, "--training.max_steps", "2")


def test_a_run_says_where_it_is_and_its_last_line_is_a_command_that_works(trained: tuple[Path, str]) -> None:
    home, said = trained
    assert "results/train/mine   follow it: gtpo view results/train/mine" in said
    following = re.search(r"next: gtpo (eval .*)", said)
    assert following
    assert following[1].endswith(" --with-base"), "training and this command answer: is it better than its base?"
    told = gtpo(home, *shlex.split(following[1]), "--limit", "2", "--out", "results/eval/next")
    assert re.search(r"next (is|against) .*next-base.* on arithmetic", told), told


def test_a_run_is_compared_with_its_base(trained: tuple[Path, str]) -> None:
    """The base is evaluated otherwise by default: the refusal is the command that mends it."""
    home, _ = trained
    asked = ("-b", "mine.jsonl", "--k", "2", "--limit", "4")
    said = gtpo(home, "eval", "mine", *asked)
    assert "4 of 4 questions are in the data that this run was trained on" in said
    record = json.loads((home / "results/eval/mine/eval.json").read_text())
    assert record["benchmarks"]["mine"]["trained_on"] == 4
    gtpo(home, "eval", "demo-base", *asked)
    refusal = gtpo(home, "compare", "mine", "demo-base", code=2)
    mend = re.search(r"To mend it: gtpo (.*)", refusal)
    assert mend
    assert "pass@2" in gtpo(home, *shlex.split(mend[1])), "its k is the other run's"
    assert "mine" in gtpo(home, "compare", "mine", "demo-base-like-mine")


def test_a_run_is_evaluated_with_its_base(trained: tuple[Path, str]) -> None:
    home, _ = trained
    said = gtpo(home, "eval", "mine", "-b", "mine.jsonl", "--limit", "4", "--with-base", "--out", "results/eval/both")
    assert re.search(r"both (is|against) .*both-base.* on mine: ", said), said
    run, base = (json.loads((home / f"results/eval/{name}/eval.json").read_text()) for name in ("both", "both-base"))
    assert "about these weights, not about training them anew" in said, "of the base no seed is missing"
    assert (run["model"]["train_run"], base["model"]["train_run"]) == ("mine", "demo-base")
    assert run["model"]["fingerprint"] != base["model"]["fingerprint"]
    refused = gtpo(home, "eval", "demo-base", "-b", "mine.jsonl", "--with-base", code=2)
    assert "demo-base built its model itself" in refused
    assert [run[key] for key in ("sampling", "prompt")] == [base[key] for key in ("sampling", "prompt")]


def test_fields_of_other_names_are_trained_on_too(trained: tuple[Path, str]) -> None:
    home, _ = trained
    write_rows(home / "theirs.jsonl", [{"question": f"What is {a}+1?", "label": a + 1} for a in range(40)])
    words = ("--model", "demo-base", "--data", "theirs.jsonl")
    refusal = gtpo(home, "train", *words, "--dry-run", code=2)
    assert "--fields problem=question,answer=label" in refusal
    said = gtpo(home, "train", *words, "--fields", "problem=question,answer=label", "--dry-run")
    assert "theirs.jsonl: 40 of 40 problems" in said
