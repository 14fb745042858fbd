"""`gtpo eval` as a user runs it: a real model, real files, kill -9, a second writer, eval.json lost or damaged, parts
of another run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command_line, python
from run_folders import samples

from gtpo.common.errors import UserError
from gtpo.runs.eval_folder import EvalFolder

EVAL = ("--engine", "transformers", "--max-tokens", "24", "--batch-size", "32", "--quiet", "--limit", "10")
BOTH = ("--benchmarks", "arithmetic,arithmetic_hard", "--k", "12")


def metrics(run: Path) -> dict[str, Any]:
    return json.loads((run / "eval.json").read_text())["benchmarks"]


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with 12 samples of 10 questions on two benchmarks."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = command_line("eval", tiny_model, *BOTH, "--out", out, *EVAL, cwd=out.parent, code=0)
    assert "pass@k" in done.stdout
    assert str(out) in done.stdout
    assert len(samples(out)) == 240
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


KILLED = """
import os, signal, sys
from gtpo import cli
from gtpo.runs.eval_folder import EvalFolder
append = EvalFolder.append
def killed(self, rows):
    append(self, rows[: (len(rows) + 1) // 2])
    if rows:
        os.kill(os.getpid(), signal.SIGKILL)
EvalFolder.append = killed
sys.argv = ["gtpo", *sys.argv[1:]]
cli.app()
"""


def test_killed_and_resumed(gtpo, tiny_model: Path, whole: Path, tmp_path: Path, environment: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    """kill -9 with half of the first part stored, then the same command: the same samples, the same numbers."""
    out = tmp_path / "killed"
    arguments = ["eval", str(tiny_model), *BOTH, "--out", str(out), *EVAL]
    python("-c", KILLED, *arguments, env=environment, code=-signal.SIGKILL)
    kept = samples(out)
    assert 0 < len(kept) < 240
    assert json.loads((out / "eval.json").read_text())["status"] == "incomplete"
    gtpo(*arguments)
    assert samples(out) == samples(whole)
    assert metrics(out) == metrics(whole)


def test_raised_k_keeps_what_exists(gtpo, tiny_model: Path, whole: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "raised"
    command = ("eval", tiny_model, "--out", out, *EVAL)
    gtpo(*command, "--benchmarks", "arithmetic", "--k", "3")
    first = {path: path.read_bytes() for path in (out / "samples").iterdir()}
    gtpo(*command, *BOTH)
    assert all(path.read_bytes() == content for path, content in first.items())
    assert samples(out) == samples(whole)
    assert metrics(out) == metrics(whole)
    # Nothing to do: nothing is written again, and no model is loaded.
    before = sorted(path.name for path in (out / "samples").iterdir())
    done = gtpo(*command, "--benchmarks", "arithmetic", "--k", "12", "--json")
    assert json.loads(done.stdout)["status"] == "complete"
    assert sorted(path.name for path in (out / "samples").iterdir()) == before


def test_a_damaged_part_is_named(gtpo, tiny_model: Path, whole: Path, run: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    part = sorted((run / "samples").iterdir())[0]
    part.write_bytes(part.read_bytes()[:-40])
    command = ("eval", tiny_model, *BOTH, "--out", run, *EVAL)
    assert f"{part} is damaged" in gtpo(*command, code=2).stderr
    assert part.exists()
    part.rename(tmp_path / "aside")
    gtpo(*command)
    assert samples(run) == samples(whole)


def test_two_writers(gtpo, whole: Path, tiny_model: Path) -> None:  # type: ignore[no-untyped-def]
    command = ("eval", tiny_model, *BOTH, "--out", whole, *EVAL)
    with EvalFolder(whole):
        assert f"being written by another process (process {os.getpid()})" in gtpo(*command, code=2).stderr
    gtpo(*command)


def test_rescore(gtpo, whole: Path, run: Path) -> None:  # type: ignore[no-untyped-def]
    assert "no verdicts changed" in gtpo("eval", run, "--rescore", "--quiet").stderr
    assert metrics(run) == metrics(whole)
    part = sorted((run / "samples").iterdir())[0]
    table = pq.read_table(part)
    rows = table.to_pylist()
    assert rows[0]["verdict_strict"] != "CORRECT"
    rows[0]["verdict_strict"] = "CORRECT"  # as an earlier verifier might have judged
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), part)
    done = gtpo("eval", run, "--rescore", "--verbose")
    assert f"{rows[0]['question_id']} #{rows[0]['sample_index']}, strict: CORRECT -> " in done.stderr
    first = samples(whole)[(rows[0]["benchmark"], rows[0]["question_id"], rows[0]["sample_index"])]
    assert f"rescored: 1 verdicts changed\n       1  strict: CORRECT -> {first['verdict_strict']}\n" in done.stderr
    assert metrics(run) == metrics(whole)


# -- whose samples are in a run folder ---------------------------------------------------------------------------------

ONE = ("--benchmarks", "arithmetic", "--k", "12", *EVAL)


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "another file's", "wrong types"])
def test_eval_json_is_rebuilt_from_the_parts(gtpo, tiny_model: Path, whole: Path, run: Path, damage: str) -> None:  # type: ignore[no-untyped-def]
    path = run / "eval.json"
    text = path.read_text()
    path.unlink()
    broken = {
        "cut": text[:500], "empty": "", "another file's": "[]",
        "wrong types": json.dumps({**json.loads(text), "sampling": {"n": "two"}}),
    }  # fmt: skip
    if damage != "missing":
        path.write_text(broken[damage])
    other = gtpo("eval", tiny_model, "--out", run, *ONE, "--seed", "7", code=2)
    assert "sampling.seed (0 there, 7 now)" in other.stderr
    assert "rebuilt from the samples" in gtpo("eval", tiny_model, "--out", run, *ONE).stderr
    assert samples(run) == samples(whole), "the other benchmark is there too"
    assert metrics(run) == metrics(whole)


def test_a_part_of_another_run_is_refused(gtpo, tiny_model: Path, run: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gtpo("eval", tiny_model, "--out", "other", *ONE, "--seed", "9", "--k", "1")
    (foreign,) = (tmp_path / "other/samples").iterdir()
    shutil.copy(foreign, run / "samples/part-000099.parquet")
    done = gtpo("eval", tiny_model, "--out", run, *ONE, code=2)
    assert "part-000099.parquet was made with other settings: sampling.seed (9 there, 0 now)" in done.stderr


def test_a_part_that_does_not_say_whose_it_is(gtpo, tiny_model: Path, run: Path) -> None:  # type: ignore[no-untyped-def]
    part = sorted((run / "samples").iterdir())[0]
    pq.write_table(pq.read_table(part).replace_schema_metadata({b"gtpo_schema_version": b"2"}), part)
    done = gtpo("eval", tiny_model, "--out", run, *ONE, code=2)
    assert f"{part.name} does not say of which run it is: move it away" in done.stderr


def test_a_change_of_the_rules_verifies_what_is_stored(gtpo, tiny_model: Path, whole: Path, run: Path) -> None:  # type: ignore[no-untyped-def]
    record = json.loads((run / "eval.json").read_text())
    record["verifier"]["version"] = 0
    (run / "eval.json").write_text(json.dumps(record | {"status": "incomplete"}))
    part = sorted((run / "samples").iterdir())[0]
    table = pq.read_table(part)
    rows = [{**row, "verdict_strict": "CORRECT", "verdict_lenient": "CORRECT"} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), part)
    done = gtpo("eval", tiny_model, *BOTH, "--out", run, *EVAL)
    assert "the rules of scoring have changed" in done.stderr
    assert (samples(run), metrics(run)) == (samples(whole), metrics(whole))


def test_a_newer_version_is_not_rebuilt(run: Path) -> None:
    (run / "eval.json").write_text(json.dumps({"schema_version": 99, "benchmarks": {}}))
    with EvalFolder(run) as folder, pytest.raises(UserError, match="schema version 99"):
        folder.record()
