"""`gtpo eval` as a user runs it: a real model, real files, kill -9, a second writer, eval.json lost or damaged, parts
of another run; and what a run says while something is unfinished, with an engine that stops where a test says."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import command_line, python
from run_folders import samples, write_lines

from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import Engine, EngineStopped, Task
from gtpo.evalkit.evaluation.evaluate import Incomplete, evaluate
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.tasks import BENCHMARKS, load_problems
from gtpo.runs.eval_folder import EvalFolder, Sample
from gtpo.runs.eval_record import EvalRecord, read_record

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


GOLDS = {p.id: p.answer for p in load_problems(BENCHMARKS["arithmetic"], None)}


class Scripted(Engine):
    """Gives the completions that `text` says, `most` of them, those that `chosen` lets through."""

    name = "transformers"

    def __init__(
        self,
        text: Callable[[str, int], str] = lambda question, index: f"<answer>{index}</answer>",
        most: int | None = None,
        chosen: Callable[[int], bool] = lambda index: True,
        **described: Any,
    ) -> None:
        self.text, self.most, self.chosen = text, most, chosen
        self.described = {"versions": {"torch": "1"}, "hardware": "cpu", "compute_dtype": "float32", "rows": 8}
        self.described |= described

    def describe(self) -> dict[str, Any]:
        return self.described

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        asked = [(t.benchmark, t.question_id, i) for t in tasks for i in t.missing]
        given = [key for key in asked if self.chosen(key[2])][: self.most]
        for benchmark, question, i in given:
            yield [Sample(benchmark, question, i, self.text(question, i), tokens=5, finish_reason="stop")]
        if len(given) < len(asked):
            raise EngineStopped("the engine died")


@pytest.fixture
def sample(tiny_model: Path, tmp_path: Path) -> Callable[..., EvalRecord]:
    """Evaluate with a scripted engine: sample(engine, benchmarks, k); the record as it is on disk then."""

    def run(engine: Scripted, benchmarks: str = "arithmetic", k: int = 2, **fields: Any) -> EvalRecord:
        fields = {"model": str(tiny_model), "limit": 4, "max_tokens": 16, "out": tmp_path / "run"} | fields
        try:
            evaluate(EvalSettings(benchmarks=benchmarks, k=k, **fields), engine=engine)
        except Incomplete:
            assert engine.most is not None or not engine.chosen(1)
        return read_record(fields["out"])

    return run


def wrong(question: str, index: int) -> str:
    return "<answer>-77</answer>"


def right(question: str, index: int) -> str:
    return f"<answer>{GOLDS[question]}</answer>"


def test_a_raise_that_stopped_counts_nothing_of_itself(sample, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The quick samples of the raise are the right ones: with k as before, the figures are as before."""
    sample(Scripted(wrong))
    stopped = sample(Scripted(right, chosen=lambda index: index % 4 == 0), k=16)
    entry = stopped.benchmarks["arithmetic"]
    assert (stopped.status, entry.n, entry.n_asked) == ("incomplete", 2, 16)
    assert (entry.samples, max(entry.pass_at_k)) == (8, 2), "the smaller k's figures are kept meanwhile"
    again = sample(Scripted(wrong))
    entry = again.benchmarks["arithmetic"]
    assert (again.status, again.sampling.n, entry.n, entry.n_asked) == ("complete", 2, 2, 2)
    assert (entry.samples, entry.pass_at_k[1].mean, entry.finish_with) == (8, 0.0, None)
    whole = sample(Scripted(wrong), k=16)
    entry = whole.benchmarks["arithmetic"]
    assert (whole.status, entry.n, entry.samples) == ("complete", 16, 64)
    assert entry.pass_at_k[1].mean == pytest.approx(3 / 16), "what the stopped raise stored is part of it"
    assert sample(Scripted(wrong)).benchmarks["arithmetic"].n == 16, "a smaller k forgets nothing that is whole"


@pytest.mark.parametrize("before", [0, 2])
def test_another_benchmark_is_not_held_up(gtpo, sample, before: int, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    if before:
        sample(Scripted(), k=before)
    sample(Scripted(most=5), k=4)
    record = sample(Scripted(), "arithmetic_hard", k=4)
    first, second = record.benchmarks["arithmetic"], record.benchmarks["arithmetic_hard"]
    assert record.status == "incomplete"
    assert (second.n, second.samples, max(second.pass_at_k), second.finish_with) == (4, 16, 4, None)
    assert (first.n, first.n_asked, first.samples) == (before or None, 4, 4 * before)
    assert record.sampling.n == 4
    assert first.finish_with == record.command
    asked = ("eval", tiny_model, "--benchmarks", "arithmetic_hard", "--engine", "transformers", "--limit", "4")
    done = gtpo(*asked, "--max-tokens", "16", "--k", "4", "--out", tmp_path / "run", code=3)
    assert "incomplete: arithmetic does not have its 4 samples of each question yet" in done.stderr
    rows = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("│ arith")]
    assert rows == [*(["arithmetic"] if before else []), "arithmetic_hard"]
    assert "is incomplete; finish it first" in gtpo("eval", tmp_path / "run", "--rescore", code=2).stderr
    whole = sample(Scripted(), k=4)
    assert whole.status == "complete"
    assert {entry.n for entry in whole.benchmarks.values()} == {4}


def test_questions_with_another_text_are_other_questions(gtpo, sample, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The same ids and golds: refused on resume, by the record or, of an older run, by its problems; and compared."""

    def write(words: str, answers: str = "mathematics") -> None:
        rows = [{"id": f"q{i}", "problem": f"{words} {i}?", "answer": "0.5"} for i in range(3)]
        write_lines(tmp_path / "own.jsonl", rows)
        (tmp_path / "own.yaml").write_text(f"name: own\nfile: own.jsonl\nanswers: {answers}\n")

    own = str(tmp_path / "own.yaml")
    message = r"the texts, or the ways in which answers are compared, of 3 questions of own"
    write("Compute")
    sample(Scripted(), own)
    for words, answers in (("Guess", "mathematics"), ("Compute", "text")):
        older = tmp_path / f"older-{answers}"
        write("Compute")
        sample(Scripted(), own, out=older)
        document = json.loads((older / "eval.json").read_text())
        del document["benchmarks"]["own"]["content_checksum"]
        (older / "eval.json").write_text(json.dumps(document))
        gtpo("compare", "run", older)
        write(words, answers)
        for run in (tmp_path / "run", older):
            with pytest.raises(UserError, match=message):
                sample(Scripted(), own, k=4, out=run)
        sample(Scripted(), own, out=tmp_path / words)
        refused = gtpo("compare", "run", words, code=2).stderr
        assert "the questions or golds of own differ under the same ids" in refused
        assert ("the text of Guess is another" if words == "Guess" else "answers are compared as text") in refused


def test_a_question_of_one_of_the_benchmarks(sample) -> None:  # type: ignore[no-untyped-def]
    question = "arithmetic_hard", load_problems(BENCHMARKS["arithmetic_hard"], None)[3].id
    record = sample(Scripted(), "arithmetic,arithmetic_hard", limit=None, questions=[question[1]])
    assert {name: entry.questions for name, entry in record.benchmarks.items()} == {question[0]: 1}


def test_another_machine(sample) -> None:  # type: ignore[no-untyped-def]
    """The data type that `auto` came to must stay; what the earlier samples were made on is kept."""
    sample(Scripted(most=5))
    elsewhere = {"hardware": "H200", "versions": {"torch": "2"}}
    told = r"in float32, and --dtype auto means bfloat16 .*: repeat it with --dtype float32"
    with pytest.raises(UserError, match=told):
        sample(Scripted(compute_dtype="bfloat16", **elsewhere))
    record = sample(Scripted(**elsewhere), dtype="float32")
    assert (record.status, record.engine.dtype, record.engine.hardware) == ("complete", "auto", "H200")
    assert record.engine.earlier == [{"hardware": "cpu", "versions": {"torch": "1"}}]
    assert sample(Scripted(), k=3).engine.earlier == [elsewhere]


def test_subsets_are_views(sample, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What is stored is never sampled again, whatever part of it is asked for; the metrics are of what was asked."""
    whole = sample(Scripted(right), limit=8)
    nothing = Scripted(wrong, most=0)
    fewer = sample(nothing, limit=3).benchmarks["arithmetic"]
    assert (fewer.questions, fewer.samples, fewer.pass_at_k[1].mean) == (3, 6, 1.0)
    one = sample(nothing, limit=None, questions=["arithmetic/test/5"]).benchmarks["arithmetic"]
    assert (one.questions, one.samples) == (1, 2)
    again = sample(nothing, limit=8).benchmarks["arithmetic"]
    assert again == whole.benchmarks["arithmetic"].model_copy(update={"finish_with": again.finish_with})
    assert len(pq.read_table(tmp_path / "run/problems.parquet")) == 8
    # Of more questions only the others are sampled.
    more = sample(Scripted(wrong), limit=32)
    entry = more.benchmarks["arithmetic"]
    assert (more.status, entry.questions, entry.samples, entry.n) == ("complete", 32, 64, 2)
    assert entry.pass_at_k[1].mean == pytest.approx(8 / 32)
    assert sample(Scripted(wrong), limit=32, k=4).benchmarks["arithmetic"].samples == 128


def test_the_wall_time_survives_a_kill(sample, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The time of a session that was killed is in its parts; eval.json says so at the next one."""
    sample(Scripted(right))
    document = json.loads((tmp_path / "run/eval.json").read_text())
    (part,) = (tmp_path / "run/samples").glob("*.parquet")
    table = pq.read_table(part)
    header = json.loads(table.schema.metadata[b"gtpo_run"])
    assert 0 < header["wall_seconds"] <= document["wall_seconds"]
    killed = json.dumps(header | {"wall_seconds": 700.0})
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"gtpo_run": killed}), part)
    (tmp_path / "run/eval.json").write_text(json.dumps(document | {"wall_seconds": None}))
    assert sample(Scripted(right), k=3).wall_seconds > 700


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "model.safetensors"])
def test_all_of_the_model_is_its_identity(sample, tiny_model: Path, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    """One byte, wherever it lies: the run is refused by the name of what changed."""
    shutil.copytree(tiny_model, tmp_path / "model")
    sample(Scripted(), model=str(tmp_path / "model"))
    content = bytearray((tmp_path / "model" / name).read_bytes())
    content = content[:-1] + bytes([content[-1] ^ 1]) if name.endswith("safetensors") else content + b" "
    (tmp_path / "model" / name).write_bytes(content)
    kinds = {"tokenizer.json": "tokenizer", "model.safetensors": "weights"}
    with pytest.raises(UserError, match=f"model.{kinds.get(name, 'generation_config')}"):
        sample(Scripted(), model=str(tmp_path / "model"), k=4)
