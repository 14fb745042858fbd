"""Whose samples are in a run folder: eval.json lost or damaged, parts of another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command_line
from run_folders import samples

from gtpo.common.errors import UserError
from gtpo.runs.eval_folder import EvalFolder

EVAL = ("--engine", "transformers", "--max-tokens", "24", "--batch-size", "32", "--k", "2", "--limit", "4", "--quiet")
BOTH = "arithmetic,arithmetic_hard"


def content(run: Path) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    return samples(run), json.loads((run / "eval.json").read_text())["benchmarks"]


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = command_line("eval", tiny_model, "--benchmarks", BOTH, "--out", "run", *EVAL, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "another file's", "wrong types"])
def test_eval_json_is_rebuilt_from_the_parts(gtpo, tiny_model: Path, run: Path, damage: str) -> None:  # type: ignore[no-untyped-def]
    before, path = content(run), run / "eval.json"
    text = path.read_text()
    path.unlink()
    broken = {
        "cut": text[:500], "empty": "", "another file's": "[]",
        "wrong types": json.dumps({**json.loads(text), "sampling": {"n": "two"}}),
    }  # fmt: skip
    if damage != "missing":
        path.write_text(broken[damage])
    other = gtpo("eval", tiny_model, "--benchmarks", "arithmetic", "--out", run, *EVAL, "--seed", "7", code=2)
    assert "sampling.seed (0 there, 7 now)" in other.stderr
    done = gtpo("eval", tiny_model, "--benchmarks", "arithmetic", "--out", run, *EVAL)
    assert "rebuilt from the samples" in done.stderr
    assert content(run) == before, "the other benchmark is there too"


def test_a_part_of_another_run_is_refused(gtpo, tiny_model: Path, run: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gtpo("eval", tiny_model, "--benchmarks", "arithmetic", "--out", "other", *EVAL, "--seed", "9")
    (foreign,) = (tmp_path / "other/samples").iterdir()
    shutil.copy(foreign, run / "samples/part-000099.parquet")
    done = gtpo("eval", tiny_model, "--benchmarks", "arithmetic", "--out", run, *EVAL, code=2)
    assert "part-000099.parquet was made with other settings: sampling.seed (9 there, 0 now)" in done.stderr


def test_a_part_that_does_not_say_whose_it_is(gtpo, tiny_model: Path, run: Path) -> None:  # type: ignore[no-untyped-def]
    part = sorted((run / "samples").iterdir())[0]
    pq.write_table(pq.read_table(part).replace_schema_metadata({b"gtpo_schema_version": b"2"}), part)
    done = gtpo("eval", tiny_model, "--benchmarks", "arithmetic", "--out", run, *EVAL, code=2)
    assert f"{part.name} does not say of which run it is: move it away" in done.stderr


def test_a_change_of_the_rules_verifies_what_is_stored(gtpo, tiny_model: Path, run: Path) -> None:  # type: ignore[no-untyped-def]
    before = content(run)
    record = json.loads((run / "eval.json").read_text())
    record["verifier"]["version"] = 0
    record["status"] = "incomplete"
    (run / "eval.json").write_text(json.dumps(record))
    part = sorted((run / "samples").iterdir())[0]
    table = pq.read_table(part)
    rows = [{**row, "verdict_strict": "CORRECT", "verdict_lenient": "CORRECT"} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), part)
    done = gtpo("eval", tiny_model, "--benchmarks", BOTH, "--out", run, *EVAL)
    assert "the rules of scoring have changed" in done.stderr
    assert content(run) == before


def test_a_newer_version_is_not_rebuilt(run: Path) -> None:
    (run / "eval.json").write_text(json.dumps({"schema_version": 99, "benchmarks": {}}))
    with EvalFolder(run) as folder, pytest.raises(UserError, match="schema version 99"):
        folder.record()
