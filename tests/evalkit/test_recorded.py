"""`gtpo eval --completions`: others' completions, the user's own files, their mistakes; and which scoring is the
headline: chosen once, by what completions hold, and the same wherever a file is judged."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import python
from run_folders import write_lines

from gtpo.evalkit.evaluation.caveats import misfit
from gtpo.rewards.__main__ import main
from gtpo.rewards.adapters import correct
from gtpo.runs.eval_record import EvalRecord, read_record

OWNERS_RIGHT = {"6b_finetuning": 21.7, "6b_verification": 39.0, "175b_finetuning": 34.7, "175b_verification": 56.3}


def benchmark(run: Path) -> tuple[str, dict[str, Any]]:
    record = json.loads((run / "eval.json").read_text())
    assert record["status"] == "complete"
    ((name, entry),) = record["benchmarks"].items()
    return name, entry


@pytest.mark.shared
@pytest.mark.parametrize("name", OWNERS_RIGHT)
def test_owners_labels_are_reproduced(gtpo, shared_dir: Path, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    file = shared_dir / f"recorded/gsm8k_openai_gpt3/{name}.jsonl.gz"
    done = gtpo("eval", "--completions", file, "--scoring", "lenient", "--quiet")
    assert "the file's own labels agree on 1319 of 1319 (lenient)" in done.stdout
    found, entry = benchmark(tmp_path / "results/eval" / name)
    assert found == "gsm8k"
    assert entry["labels"] == {"compared": 1319, "agree": {**entry["labels"]["agree"], "lenient": 1319}}
    assert 100 * entry["pass@k"]["1"]["mean"] == pytest.approx(OWNERS_RIGHT[name], abs=0.05)


@pytest.mark.shared
def test_eight_samples_and_ids_of_another_set(gtpo, shared_dir: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Ids like MATH's with golds that are not: scored by the file's own golds, under the file's name."""
    file = shared_dir / "recorded/math100x8_qwen/math_cot_100.jsonl.gz"
    command = ("eval", "--completions", file, "--k", "8", "--scoring", "lenient")
    done = gtpo(*command, "--data-dir", shared_dir / "data")
    assert "other golds: scored as math_cot_100, by its own golds" in done.stderr
    name, entry = benchmark(tmp_path / "results/eval/math_cot_100")
    assert (name, entry["questions"], entry["samples"]) == ("math_cot_100", 100, 800)
    assert entry["labels"]["agree"]["lenient"] >= 0.998 * 800
    expected = json.loads((shared_dir / "recorded/expected.json").read_text())
    (reference,) = expected.values()
    for k in range(1, 9):  # their labels differ from ours on at most two samples of 800
        assert 100 * entry["pass@k"][str(k)]["mean"] == pytest.approx(reference["k"][str(k)]["pass@k"], abs=1.0)


def test_a_file_of_ones_own(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Rows of one id are samples of it; half, one half and 0.5 are one vote; hostile text stays text."""
    rows = [
        {"id": "a", "gold": "1/2", "completion": "<reasoning>r</reasoning>\n<answer>\\frac{1}{2}</answer>"},
        {"id": "a", "gold": "1/2", "completion": "<reasoning>r</reasoning>\n<answer>0.5</answer>"},
        {"id": "b", "gold": "7", "completions": ["the answer is 8", "\\boxed{7}\u2028<script>alert(1)</script>\ud83d"]},
        {"id": "a", "gold": "1/2", "completion": "<answer>3</answer>"},
        {"id": "b", "gold": "7", "completion": "no idea"},
    ]
    file = write_lines(tmp_path / "mine.jsonl", rows)
    done = gtpo("eval", "--completions", file, "--k", "3", "--quiet")
    name, entry = benchmark(tmp_path / "results/eval/mine")
    assert entry["truncation_rate"] is None, "the file does not say how they ended"
    assert "cut off 0" not in done.stdout
    assert set(pq.read_table(tmp_path / "results/eval/mine/questions.parquet")["truncated"].to_pylist()) == {None}
    gtpo("compare", "mine", "--details")
    assert (name, entry["questions"], entry["samples"]) == ("mine", 2, 6)
    assert entry["strict"]["pass@k"]["1"]["mean"] == pytest.approx((2 / 3 + 0) / 2)
    assert entry["lenient"]["pass@k"]["1"]["mean"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert entry["lenient"]["maj@k"]["3"]["mean"] == pytest.approx((1 + 0.5) / 2)  # b: 7 and 8 tie, one abstains
    assert entry["format_rate"] == pytest.approx(2 / 6)
    assert entry["mean_tokens"] is None
    stored = pq.read_table(tmp_path / "results/eval/mine/samples").to_pylist()
    assert [row["sample_index"] for row in stored if row["question_id"] == "a"] == [0, 1, 2]
    assert any("<script>" in row["completion"] for row in stored)
    again = gtpo("eval", "--completions", file, "--k", "3", "--quiet", "--json")
    assert json.loads(again.stdout)["benchmarks"]["mine"]["samples"] == 6
    write_lines(file, [*rows, {"id": "b", "gold": "7", "completion": "7"}])
    assert "model.fingerprint" in gtpo("eval", "--completions", file, code=2).stderr


def test_what_fits_no_column_is_not_known(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    half = "\ud83d"
    row = {"id": half, "gold": "5", "completion": half, "problem": half, "finish_reason": f"odd {half}", "error": None}
    file = write_lines(tmp_path / "set[b].jsonl", [row | {"level": 10**12, "tokens": 12.0, "subject": "[/]:end:"}])
    done = gtpo("eval", "--completions", file, "--out", "run", "--by", "subject")
    # Nor is it markup of what prints it.
    assert "set[b] by subject" in done.stdout
    assert "[/]:end:" in done.stdout
    (part,) = (tmp_path / "run/samples").iterdir()
    assert [r["tokens"] for r in pq.read_table(part).to_pylist()] == [12]
    assert pq.read_table(tmp_path / "run/problems.parquet")["level"].to_pylist() == [None]
    # As a file manager names a copy.
    shutil.copy(part, part.with_stem(f"{part.stem} (1)"))
    gtpo("eval", "--completions", file, "--out", "run")


def test_rows_of_a_benchmark_that_repeat_are_scored_all(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_lines(tmp_path / "b.jsonl", [{"id": f"q{i}", "problem": "P?", "answer": "1"} for i in range(3)])
    write_lines(tmp_path / "c.jsonl", [{"id": f"q{i}", "completion": "1"} for i in range(3)])
    gtpo("eval", "o/m", "--completions", "c.jsonl", "-b", "b.jsonl")
    _, entry = benchmark(tmp_path / "results/eval/m")
    assert (entry["questions"], entry["texts"]) == (3, 1)


def test_other_verdicts_make_labels_unknown(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [{"id": str(i), "gold": "5", "completion": "<answer>5</answer>", "label": True} for i in range(3)]
    gtpo("eval", "--completions", write_lines(tmp_path / "c.jsonl", rows), "--out", "run")
    (part,) = (tmp_path / "run/samples").iterdir()
    for verdict, told in (("CORRECT", True), ("INCORRECT", False)):
        table = pq.read_table(part)
        stored = [row | {"verdict_strict": verdict} for row in table.to_pylist()]
        pq.write_table(pa.Table.from_pylist(stored, schema=table.schema), part)
        assert ("the file's own labels agree on 3 of 3" in gtpo("eval", "run", "--rescore").stdout) == told


def test_golds_of_a_known_benchmark(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from gtpo.rewards.data.arithmetic import arithmetic_problems

    problems = arithmetic_problems("test")[:3]
    rows = [{"id": p.id, "completion": f"<answer>{p.answer}</answer>"} for p in problems]
    command = ("eval", "--completions", write_lines(tmp_path / "plain.jsonl", rows), "--quiet")
    part = "61 of the benchmark's 64 questions are not in the file: these numbers are of a part"
    assert part in gtpo(*command).stderr
    # Of a part that was asked for.
    assert "not in the file" not in gtpo(*command, "--limit", "2", "--out", "few").stderr
    name, entry = benchmark(tmp_path / "results/eval/plain")
    assert (name, entry["questions"], entry["absent"], entry["pass@k"]["1"]["mean"]) == ("arithmetic", 3, 61, 1.0)
    rows.append({"id": "arithmetic/test/9999", "completion": "1"})
    done = gtpo("eval", "--completions", write_lines(tmp_path / "more.jsonl", rows), code=2)
    assert 'benchmark arithmetic has no question "arithmetic/test/9999"' in done.stderr


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(environment: dict[str, str], tmp_path: Path) -> None:
    """60 MB of completions under an address space that could not hold them and their rows twice over."""
    row = {"id": "q", "gold": "4", "completion": "words " * 5000 + "<answer>4</answer>"}
    with gzip.open(tmp_path / "long.jsonl.gz", "wt", compresslevel=1) as handle:
        for i in range(2000):
            handle.write(json.dumps({**row, "id": f"q{i // 8}"}) + "\n")
    program = (
        "import re, sys, gtpo.evalkit.evaluation.scoring as p; p.PART_ROWS = 256; from gtpo import cli\n"
        "sys.argv = ['gtpo', 'eval', '--completions', 'long.jsonl.gz', '--k', '8', '--details', '--quiet']\n"
        "try:\n    cli.app()\n"
        # Not getrusage: its peak outlives exec, so it would be that of the process which runs the tests.
        "finally:\n    print('MB', int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
    )
    done = python("-c", program, cwd=tmp_path, env=environment, timeout=200)
    assert "250 questions, 2000 samples" in done.stdout
    assert int(done.stdout.split("MB")[-1]) < 500


def test_recorded_failures_and_missing_golds(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A failed sample is missing data, not a wrong answer; a question that says it has no gold is left out by name."""
    rows = [
        {"id": "a", "gold": "1", "completions": ["<answer>1</answer>", None], "errors": [None, "HTTP 500"]},
        {"id": "b", "gold": 2, "completions": ["<answer>2</answer>", "so 3"], "finish_reasons": ["stop", "length"]},
        {"id": "c", "gold": None, "completion": "<answer>1</answer>"},
        {"id": "b", "gold": 2, "completion": None},
    ]
    write_lines(tmp_path / "mine.jsonl", rows)
    done = gtpo("eval", "--completions", "mine.jsonl")
    assert "1 questions have no gold and are left out (first: c)" in done.stderr
    entry = benchmark(tmp_path / "results/eval/mine")[1]
    assert (entry["questions"], entry["samples"], entry["unscored"], entry["excluded"]) == (2, 3, 2, ["c"])
    assert entry["unscored_reasons"] == {"HTTP 500": 1, "no completion was recorded": 1}
    assert entry["truncation_rate"] == pytest.approx(1 / 2)  # of two it is known how they ended
    first = entry["pass@k"]["1"]
    assert (first["mean"], first["worst"], first["best"]) == pytest.approx((0.75, 0.5, 0.75))
    del rows[2]["gold"]
    write_lines(tmp_path / "mine.jsonl", rows)
    assert "mine.jsonl:3: no gold" in gtpo("eval", "--completions", "mine.jsonl", "--out", "x", code=2).stderr


def test_a_sample_log_of_lm_eval(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def row(number: int, filter: str, text: str, right: float) -> dict[str, Any]:
        doc = {"question": f"What is {number}?", "answer": f"It is.\n#### {number}"}
        logged = {"doc_id": number, "doc": doc, "target": doc["answer"], "resps": [[text]], "filter": filter}
        return {**logged, "filtered_resps": ["?"], "exact_match": right}

    texts = ["#### 0", "#### 7"]
    rows = [row(i, name, text, float(i == 0)) for name in ("strict-match", "flexible") for i, text in enumerate(texts)]
    write_lines(tmp_path / "samples_gsm8k_2026-01-01T00-00-00.1.jsonl", rows)
    command = ("eval", "--completions", "samples_gsm8k_2026-01-01T00-00-00.1.jsonl", "--scoring", "lenient")
    gtpo(*command, "--out", "run", "--quiet")
    name, entry = benchmark(tmp_path / "run")
    assert (name, entry["questions"], entry["samples"], entry["pass@k"]["1"]["mean"]) == ("gsm8k", 2, 2, 0.5)
    assert entry["labels"]["agree"]["lenient"] == entry["labels"]["compared"] == 2
    assert pq.read_table(tmp_path / "run/problems.parquet")["problem"].to_pylist() == ["What is 0?", "What is 1?"]
    del rows[1]["doc"]
    write_lines(tmp_path / "bad.jsonl", rows)
    told = gtpo("eval", "--completions", "bad.jsonl", code=2).stderr
    assert "bad.jsonl:2: not a row of lm-eval's sample logs" in told


def test_two_files_of_the_same_questions_are_compared(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A file's benchmark is named after it; what counts are its ids and golds."""
    for name, right, first in (("ours", 9, 0), ("theirs", 3, 0), ("others", 9, 5)):
        said = [f"<answer>{i + first if i < right else name}</answer>" for i in range(12)]
        rows = ({"id": f"q{i}", "gold": f"{i + first}", "completion": text} for i, text in enumerate(said))
        write_lines(tmp_path / f"{name}.jsonl", rows)
        gtpo("eval", "--completions", f"{name}.jsonl", "--k", "1")
    ran = gtpo("compare", "ours", "theirs", "--format", "json", "--html", "page.html")
    document = json.loads(ran.stdout)
    found = {row["method"]: row["mean"] for row in document["records"] if (row["metric"], row["k"]) == ("pass@k", 1)}
    assert found == {"ours": 0.75, "theirs": 0.25}
    assert document["notes"] == []
    assert [table["benchmark"] for table in document["tables"]] == ["the same questions"], "no model's name"
    page = (tmp_path / "page.html").read_text()
    assert all(f"answer\\u003e{name}" in page for name in ("ours", "theirs")), "both files' completions are shown"
    ran = gtpo("compare", "ours", "others", code=2)
    assert "no question in common (ours: ours; others: others)" in ran.stderr
    assert "their ids and golds are the same" in ran.stderr
    told = gtpo("eval", "m", "--like", "ours", code=2).stderr
    assert "which does not say how they were sampled: pass --max-tokens" in told
    rows = [json.loads(line) for line in (tmp_path / "theirs.jsonl").read_text().splitlines()]
    write_lines(tmp_path / "fewer.jsonl", rows[1:])
    gtpo("eval", "--completions", "fewer.jsonl", "--k", "1")
    assert "--allow-mismatch compares the questions they share" in gtpo("compare", "ours", "fewer", code=2).stderr
    document = json.loads(gtpo("compare", "ours", "fewer", "--allow-mismatch", "--format", "json").stdout)
    assert "fewer has most of the questions and golds of ours, and is shown as ours" in document["notes"]
    # Two models, two sets of questions each.
    for name, right in (("ours-2", 2), ("theirs-2", 7)):
        rows = ({"id": f"p{i}", "gold": f"{i}", "completion": f"{i if i < right else name}"} for i in range(8))
        write_lines(tmp_path / f"{name}.jsonl", rows)
        gtpo("eval", "--completions", f"{name}.jsonl", "--k", "1")
    sets = ("--label", "A=ours,ours-2", "--label", "B=theirs,theirs-2")
    document = json.loads(gtpo("compare", "ours", "ours-2", "theirs", "theirs-2", *sets, "--format", "json").stdout)
    assert [table["benchmark"] for table in document["tables"]] == ["the same questions", "ours-2"]


def write(path: Path, texts: list[str]) -> list[dict[str, str]]:
    rows = [{"id": f"q{i}", "problem": "What is 3 plus 4?", "gold": "7", "completion": t} for i, t in enumerate(texts)]
    write_lines(path, rows)
    return rows


BOX, TAG, OPEN, WORK = "\\boxed{7}", "<answer>7</answer>", "<answer> \\boxed{7}", "so \\boxed{3+4}"
THOUGHT = "<think><answer>7</answer></think>7"
FILES = {
    "one opening tag among boxes": ([OPEN, *[BOX] * 9], "lenient", 100.0),
    "a tag in a thought": ([THOUGHT] * 3, "lenient", 100.0),
    "tags in a few": ([*[TAG] * 2, *[BOX] * 12], "lenient", 100.0),
    "tags in most": ([*[TAG] * 6, *["<answer>8</answer>"] * 2], "strict", 75.0),
    "tags in half": ([TAG, "no idea"], "strict", 50.0),
    "work in boxes": ([WORK, BOX], "lenient", None),
}


@pytest.mark.parametrize("name", FILES)
def test_all_doors_say_the_same_of_a_file(gtpo, tmp_path: Path, capsys, monkeypatch, name: str) -> None:  # type: ignore[no-untyped-def]
    texts, scoring, right = FILES[name]
    rows = write(tmp_path / "c.jsonl", texts)
    gtpo("eval", "--completions", "c.jsonl", "--out", "run")
    record = read_record(tmp_path / "run")
    assert (record.scoring, record.scoring_by) == (scoring, "completions")
    found = 100 * record.benchmarks["c"].pass_at_k[1].mean
    assert right is None or found == pytest.approx(right)
    monkeypatch.setattr(sys, "argv", ["gtpo.rewards", "c.jsonl", "--workers", "1"])
    main()
    judged = [json.loads(line)["verdict"] for line in capsys.readouterr().out.splitlines()]
    assert 100 * judged.count("CORRECT") / len(rows) == pytest.approx(found)
    adapted = [correct(row["completion"], "7", row["problem"]) for row in rows]
    assert 100 * sum(adapted) / len(rows) == pytest.approx(found)


def test_it_is_chosen_once_and_a_flag_wins(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / "c.jsonl", [TAG, BOX, BOX])
    command = ("eval", "--completions", "c.jsonl", "--out", "run")
    told = ""
    # By the only completion that is there at first; a flag wins.
    for words, chosen in (
        ((*command, "--limit", "1"), ("strict", "completions")),
        (command, ("strict", "completions")),
        ((*command, "--scoring", "lenient"), ("lenient", "command")),
        (("eval", "run", "--rescore"), ("lenient", "command")),
    ):
        told += gtpo(*words).stderr
        record = read_record(tmp_path / "run")
        assert (record.scoring, record.scoring_by) == chosen
    assert "pass@1 is 33.3 % under strict and 100.0 % under lenient scoring: 67 %" in told


def test_both_sides_are_compared_by_one_rule(gtpo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for name, text in (("tags", TAG), ("boxes", BOX)):
        write(tmp_path / "c.jsonl", [text] * 30)
        gtpo("eval", "--completions", "c.jsonl", "--out", name)
    done = gtpo("compare", "tags", "boxes", "--allow-mismatch")
    assert "all runs are read by lenient scoring" in done.stdout + done.stderr
    gtpo("eval", "--completions", "c.jsonl", "--scoring", "strict", "--out", "asked")
    assert "scoring differs" in gtpo("compare", "boxes", "asked", "--allow-mismatch", code=2).stderr


GTPO = {"prompt": {"protocol": "gtpo", "system": "Answer in <answer> tags."}}
BOXED = {"prompt": {"protocol": "boxed", "user": "{problem}"}, "scoring": "lenient", "scoring_by": "command"}
NONE = dict.fromkeys(("strict", "lenient", "unfinished", "silent", "thought"), 0.0)
MISFITS = [
    (GTPO, {"strict": 1.0, "thought": 1.0}, "100 % hold no answer in answer tags, 100 % think.", "--protocol boxed"),
    (GTPO | {"engine": {"name": "recorded"}}, {"strict": 1.0}, "answer tags", "another form: --scoring lenient"),
    (GTPO, {"strict": 1.0, "lenient": 1.0}, "no answer in answer tags", "no form that is known"),
    (BOXED, {"strict": 1.0, "lenient": 1.0, "unfinished": 0.9}, "90 % end inside a thought", "--max-tokens"),
    (BOXED, {"strict": 1.0, "lenient": 0.6, "silent": 0.6}, "60 % say nothing outside", "--reasoning-parser"),
    (BOXED, {"strict": 1.0, "lenient": 0.3, "thought": 1.0}, "", ""),
    (GTPO, {"strict": 0.5}, "", ""),
]


@pytest.mark.parametrize(("fields", "shares", "seen", "remedy"), MISFITS)
def test_what_was_seen_and_which_flag_helps(fields: Any, shares: dict[str, float], seen: str, remedy: str) -> None:
    told = misfit(EvalRecord.model_validate(fields), NONE | shares)
    assert (seen in told and remedy in told) if seen else told is None
