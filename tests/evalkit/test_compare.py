"""`gtpo compare` through the real command line, and the tables it computes against direct calculation."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_folders import write_eval

from evalkit.comparison.compare import Column, choose_ks, compare
from evalkit.report.tables import as_rich
from evalkit.results.find import find_runs
from evalkit.results.questions import load_questions
from evalkit.statistics import holm, mean_interval, paired_difference

ROOT = Path(__file__).resolve().parents[2]


def gtpo(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/eval with four runs on two benchmarks."""
    home = tmp_path_factory.mktemp("home")
    runs = home / "results" / "eval"
    sizes = {"arithmetic": 120, "hard": 30}
    for i, method in enumerate((None, "sft", "grpo", "gtpo")):
        name = f"demo-{method or 'base'}"
        write_eval(runs / name, skill=0.6 * i, seed=i, method=method, benchmarks=sizes, subjects=("sum", "product"))
    return home


def compared(home: Path, *names: str, **options: object):
    runs, trains, notes = find_runs([str(home / "results" / "eval" / name) for name in names])
    return compare(runs, trains, notes=notes, **options)


def test_tables_are_the_direct_calculation(home: Path) -> None:
    """Mean, interval, paired difference and Holm's correction, from questions.parquet by hand."""
    found = compared(home, "demo-base", "demo-grpo", "demo-gtpo", ks=[1, 4, 8])
    assert (found.baseline, [table.benchmark for table in found.tables]) == ("demo-grpo", ["arithmetic", "hard"])
    for table in found.tables:
        scores = {}
        for name in ("demo-base", "demo-grpo", "demo-gtpo"):
            rows = pq.read_table(home / "results" / "eval" / name / "questions.parquet").to_pylist()
            rows = [row for row in rows if (row["benchmark"], row["scoring"]) == (table.benchmark, "strict")]
            rows.sort(key=lambda row: row["question_id"])
            for k in (1, 4, 8):
                scores[name, Column("pass@k", k)] = [row["pass_at_k"][k - 1] for row in rows]
                scores[name, Column("maj@k", k)] = [row["maj_at_k"][k - 1] for row in rows]
            scores[name, Column("format", 0)] = [row["format_ok"] / row["n"] for row in rows]
        assert set(scores) == set(table.cells)
        tested = [key for key in scores if key[0] != "demo-grpo" and key[1] != Column("maj@k", 1)]
        assert table.tests == len(tested)
        wanted = {key: paired_difference(scores[key], scores["demo-grpo", key[1]]) for key in tested}
        corrected = dict(zip(tested, holm([wanted[key].p_value for key in tested]), strict=True))
        for key, values in scores.items():
            cell = table.cells[key]
            assert cell.interval == pytest.approx((*mean_interval(values)[:3], None, None))
            if key in wanted:
                assert cell.paired is not None
                assert cell.paired.difference == pytest.approx(wanted[key].difference)
                assert cell.paired.p_value == pytest.approx(wanted[key].p_value)
                assert cell.p_holm == pytest.approx(corrected[key])
        assert (
            table.cells["demo-gtpo", Column("maj@k", 1)].p_holm == table.cells["demo-gtpo", Column("pass@k", 1)].p_holm
        )


def test_means_are_those_of_eval_json(home: Path) -> None:
    document = json.loads((home / "results/eval/demo-gtpo/eval.json").read_text())
    for table in compared(home, "demo-gtpo").tables:
        entry = document["benchmarks"][table.benchmark]
        for column in table.columns:
            interval = table.cells["demo-gtpo", column].interval
            if column.metric == "format":
                assert interval.mean == pytest.approx(entry["format_rate"])
            else:
                stored = entry[column.metric][str(column.k)]
                assert interval[:3] == pytest.approx((stored["mean"], stored["low"], stored["high"]))


def test_equal_runs_are_never_emphasised(tmp_path: Path) -> None:
    for i in range(2):
        write_eval(tmp_path / f"twin-{i}", seed=5)
    runs, trains, _ = find_runs([str(tmp_path / f"twin-{i}") for i in range(2)])
    (table,) = compare(runs, trains).tables
    assert {cell.direction for cell in table.cells.values()} == {0}
    assert all(cell.p_holm == 1.0 for cell in table.cells.values())


def test_default_baseline_is_stated(home: Path) -> None:
    for names, baseline in (
        (("demo-gtpo", "demo-sft", "demo-grpo"), "demo-grpo"),
        (("demo-gtpo", "demo-base", "demo-sft"), "demo-sft"),
        (("demo-gtpo", "demo-base"), "demo-base"),
    ):
        assert compared(home, *names).baseline == baseline
    assert compared(home, "demo-gtpo", "demo-grpo", baseline="gtpo").baseline == "demo-gtpo"
    ran = gtpo("compare", "demo-gtpo", "demo-sft", "demo-grpo", cwd=home)
    assert ran.returncode == 0, ran.stderr
    assert "Baseline: demo-grpo (the first run with method grpo;" in " ".join(ran.stdout.split())


def test_table_shows_emphasis_only_where_significant(home: Path) -> None:
    found = compared(home, "demo-base", "demo-grpo", "demo-gtpo")
    ran = gtpo("compare", "demo-base", "demo-grpo", "demo-gtpo", cwd=home)
    assert ran.returncode == 0, ran.stderr
    directions = [cell.direction for table in found.tables for cell in table.cells.values()]
    body = ran.stdout.split("Percent, scoring")[0]
    assert body.count("▲") == directions.count(1) > 0
    assert body.count("▼") == directions.count(-1) > 0
    assert 0 in directions
    assert "detectable" in body


def test_narrow_terminal_cuts_nothing_off(home: Path) -> None:
    from rich.console import Console

    found = compared(home, "demo-base", "demo-gtpo")
    for width in (80, 160):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(as_rich(found, console.width))
        grid = [line for line in console.export_text().splitlines() if line.startswith("│")]
        assert grid
        assert not any("…" in line for line in grid)


def test_formats_agree(home: Path) -> None:
    names = ("demo-grpo", "demo-gtpo")
    out = {
        f: gtpo("compare", *names, "--format", f, "--k", "1,8", cwd=home).stdout
        for f in ("json", "csv", "markdown", "latex")
    }
    document = json.loads(out["json"])
    rows = list(csv.DictReader(io.StringIO(out["csv"])))
    assert len(rows) == len(document["records"]) == 2 * 2 * 5
    for row, record in zip(rows, document["records"], strict=True):
        assert row["run"] == record["run"]
        assert float(row["mean"]) == record["mean"]
        assert (row["p_holm"] == "") == (record["p_holm"] is None) == (record["run"] == "demo-grpo")
    one = next(r for r in document["records"] if (r["run"], r["metric"], r["k"]) == ("demo-gtpo", "pass@k", 1))
    assert one["significant"] is True
    bold = f"{100 * one['mean']:.1f}"
    assert f"**{bold}** [" in out["markdown"]
    assert rf"\textbf{{{bold}}}" in out["latex"]
    assert out["latex"].count(r"\toprule") == out["latex"].count(r"\bottomrule") == 2
    body = re.sub(r"\\caption\{.*", "", out["latex"])
    assert len({line.count("&") for line in body.splitlines() if line.endswith(r"\\")}) == 1


def test_latex_and_markdown_escape_names(tmp_path: Path) -> None:
    write_eval(tmp_path / "a_b%|<b>")
    write_eval(tmp_path / "plain", method="grpo")
    latex = gtpo("compare", tmp_path / "a_b%|<b>", tmp_path / "plain", "--format", "latex", cwd=tmp_path).stdout
    assert r"a\_b\%|\textless{}b\textgreater{}" in latex
    markdown = gtpo("compare", tmp_path / "a_b%|<b>", tmp_path / "plain", "--format", "markdown", cwd=tmp_path).stdout
    assert r"a\_b%\|\<b\>" in markdown


def test_per_subject(home: Path) -> None:
    ran = gtpo("compare", "demo-grpo", "demo-gtpo", "--per-subject", "--format", "json", cwd=home)
    tables = json.loads(ran.stdout)["tables"]
    assert [(t["benchmark"], t["group"], t["questions"]) for t in tables[:3]] == [
        ("arithmetic", None, 120),
        ("arithmetic", "product", 60),
        ("arithmetic", "sum", 60),
    ]


@pytest.mark.parametrize(
    ("n", "asked", "shown"),
    [
        (64, None, [1, 8, 16, 32, 64]),
        (4, None, [1, 2, 4]),
        (1, None, [1]),
        (24, None, [1, 8, 16, 24]),
        (8, [8, 2, 2], [2, 8]),
    ],
)
def test_default_ks(n: int, asked: list[int] | None, shown: list[int]) -> None:
    assert choose_ks(n, asked) == shown


# --- what cannot be compared, and what is wrong with the input -------------------------------------------------

MISMATCHES = {
    "temperature": {"sampling__temperature": 0.6},
    "prompt": {"prompt__system": "Other."},
    "n": {"n": 4},
    "max_tokens": {"sampling__max_tokens": 128, "cut_off": True},
    "verifier": {"verifier__version": "2"},
    "chat template": {"prompt__chat_template_hash": "c1"},
}


@pytest.mark.parametrize("setting", MISMATCHES)
def test_other_settings_are_refused_by_name(setting: str, tmp_path: Path) -> None:
    write_eval(tmp_path / "one", method="grpo", benchmarks={"arithmetic": 20})
    write_eval(tmp_path / "two", skill=1, benchmarks={"arithmetic": 20}, **MISMATCHES[setting])
    ran = gtpo("compare", tmp_path / "one", tmp_path / "two", cwd=tmp_path)
    assert_refused(ran, f"{setting} differs (one: ", "two: ", "--allow-mismatch")
    runs, trains, _ = find_runs([str(tmp_path / "one"), str(tmp_path / "two")])
    allowed = compare(runs, trains, allow_mismatch=True)
    assert [note for note in allowed.notes if f"not like for like: {setting} differs" in note]
    if setting == "n":
        ran = gtpo("compare", tmp_path / "one", tmp_path / "two", "--allow-mismatch", cwd=tmp_path)
        assert "note: not like for like: n differs (one: 8; two: 4)" in ran.stdout


def assert_refused(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    """One sentence on stderr, exit code 2, nothing on stdout, no traceback."""
    assert ran.returncode == 2, (ran.stdout, ran.stderr)
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in ran.stderr


def test_other_token_limit_that_nothing_reached_is_only_noted(tmp_path: Path) -> None:
    write_eval(tmp_path / "one", method="grpo", benchmarks={"arithmetic": 10})
    write_eval(tmp_path / "two", benchmarks={"arithmetic": 10}, sampling__max_tokens=128)
    ran = gtpo("compare", tmp_path / "one", tmp_path / "two", cwd=tmp_path)
    assert "note: max_tokens differs (one: 64; two: 128), but no completion reached it" in ran.stdout


def test_scoring_differs(tmp_path: Path) -> None:
    write_eval(tmp_path / "one")
    write_eval(tmp_path / "two", scoring="lenient")
    assert_refused(gtpo("compare", tmp_path / "one", tmp_path / "two", cwd=tmp_path), "scoring differs", "--scoring")
    ran = gtpo("compare", tmp_path / "one", tmp_path / "two", "--scoring", "lenient", "--format", "json", cwd=tmp_path)
    assert json.loads(ran.stdout)["scoring"] == "lenient"


def test_other_questions(tmp_path: Path) -> None:
    write_eval(tmp_path / "one", benchmarks={"arithmetic": 40}, method="grpo")
    write_eval(tmp_path / "two", benchmarks={"arithmetic": 40}, skip=10, skill=1)
    both = (tmp_path / "one", tmp_path / "two")
    assert_refused(gtpo("compare", *both, cwd=tmp_path), "the questions of arithmetic differ")
    ran = gtpo("compare", *both, "--allow-mismatch", "--format", "json", cwd=tmp_path)
    (table,) = json.loads(ran.stdout)["tables"]
    assert table["questions"] == 30
    assert "compared on the 30 questions they share" in table["notes"][0]
    runs, _, _ = find_runs([str(path) for path in both])
    ids = [load_questions(run, "arithmetic", "strict") for run in runs]
    shared = sorted(set(ids[0].ids) & set(ids[1].ids))
    wanted = [np.mean([dict(zip(part.ids, part.pass_at_k[:, 0], strict=True))[i] for i in shared]) for part in ids]
    means = [r["mean"] for r in json.loads(ran.stdout)["records"] if (r["metric"], r["k"]) == ("pass@k", 1)]
    assert means == pytest.approx(wanted)


def test_other_golds_under_the_same_ids(tmp_path: Path) -> None:
    write_eval(tmp_path / "one", benchmarks={"arithmetic": 10})
    write_eval(tmp_path / "two", benchmarks={"arithmetic": 10}, golds_from=2)
    ran = gtpo("compare", tmp_path / "one", tmp_path / "two", cwd=tmp_path)
    assert_refused(ran, "golds of arithmetic differ", "one ", "two ")


def test_no_common_question(tmp_path: Path) -> None:
    write_eval(tmp_path / "one", benchmarks={"arithmetic": 20})
    write_eval(tmp_path / "two", benchmarks={"other": 20})
    write_eval(tmp_path / "three", benchmarks={"arithmetic": 20}, skip=20)
    assert_refused(gtpo("compare", tmp_path / "one", tmp_path / "two", cwd=tmp_path), "no question in common")
    ran = gtpo("compare", tmp_path / "one", tmp_path / "three", "--allow-mismatch", cwd=tmp_path)
    assert_refused(ran, "no question of arithmetic in common")


def test_incomplete_run_says_how_to_resume(tmp_path: Path) -> None:
    write_eval(tmp_path / "one")
    write_eval(tmp_path / "half", status="incomplete")
    ran = gtpo("compare", tmp_path / "one", tmp_path / "half", cwd=tmp_path)
    assert_refused(ran, '"half" is incomplete', "resume it with: gtpo eval tiny --out half")
    ran = gtpo("compare", tmp_path / "one", tmp_path / "half", "--allow-mismatch", cwd=tmp_path)
    assert "note: half is incomplete" in ran.stdout
    (tmp_path / "half" / "eval.json").unlink()
    assert_refused(gtpo("compare", tmp_path / "one", tmp_path / "half", cwd=tmp_path), "half", "incomplete", "resumes")


def test_newer_schema(tmp_path: Path) -> None:
    write_eval(tmp_path / "one")
    write_eval(tmp_path / "new", schema_version=99)
    ran = gtpo("compare", tmp_path / "one", tmp_path / "new", cwd=tmp_path)
    assert_refused(ran, "new/eval.json", "schema version 99", "Upgrade")


def test_two_runs_with_one_name(tmp_path: Path) -> None:
    write_eval(tmp_path / "a" / "run")
    write_eval(tmp_path / "b" / "run", seed=1)
    ran = gtpo("compare", tmp_path / "a" / "run", tmp_path / "b" / "run", cwd=tmp_path)
    assert_refused(ran, 'two runs are called "run"', "share questions of arithmetic")
    ran = gtpo("compare", tmp_path / "a" / "run", tmp_path / "a" / "run", cwd=tmp_path)
    assert_refused(ran, '"run" is given twice')


def test_shards_of_one_run_are_joined(tmp_path: Path) -> None:
    runs = tmp_path / "results/eval"
    write_eval(runs / "run-shard-1-of-2", benchmarks={"arithmetic": 20}, shard="1/2")
    write_eval(runs / "run-shard-2-of-2", benchmarks={"arithmetic": 20}, skip=20, shard="2/2")
    write_eval(runs / "whole", benchmarks={"arithmetic": 40}, method="grpo")
    ran = gtpo("compare", "run", "whole", "--format", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert [run["name"] for run in document["runs"]] == ["run", "whole"]
    assert document["tables"][0]["questions"] == 40
    assert "2 parts joined" in document["notes"][0]
    ran = gtpo("compare", runs / "run-shard-2-of-2", "whole", "--allow-mismatch", cwd=tmp_path)
    assert "note: run: shard 1 of 2 is missing" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo-gtqo"], ['no run "demo-gtqo"', 'Did you mean "demo-gtpo"?']),
        (
            ["demo-gtpo", "demo-grpo", "--k", "1,99"],
            ["k = 99 needs 99 samples", "demo-gtpo has n = 8 on arithmetic", "--k 99"],
        ),
        (["demo-gtpo", "--k", "two"], ['--k "two"', "whole numbers"]),
        (["demo-gtpo", "--format", "latx"], ['--format "latx"', 'Did you mean "latex"?']),
        (["demo-gtpo", "--scoring", "strictly"], ["--scoring", 'Did you mean "strict"?']),
        (["demo-gtpo", "demo-grpo", "--baseline", "demo-srt"], ["--baseline", 'Did you mean "demo-sft"?']),
        (["demo-gtpo", "--html", "results"], ["--html results", "that is a folder"]),
        (["demo-gtpo", "--figures", "results/eval/demo-gtpo/eval.json"], ["--figures", "there is a file of that name"]),
        (["demo-gtpo", "--samples-mb", "-1"], ["--samples-mb -1", "from 0 to 200"]),
        (["results"], ["neither an eval run (eval.json) nor a train run"]),
    ],
)
def test_bad_arguments(arguments: list[str], words: list[str], home: Path) -> None:
    if "demo-srt" in arguments:
        arguments = [*arguments[:2], "demo-sft", *arguments[2:]]
    assert_refused(gtpo("compare", *arguments, cwd=home), *words)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("eval.json", "{", ["eval.json:1:2", "not valid JSON"]),
        ("eval.json", "[]", ["expected a JSON object"]),
        ("eval.json", '{"schema_version": 1, "status": "complete"}', ["no benchmarks"]),
        ("questions.parquet", "PAR1 no parquet", ["questions.parquet", "cannot be read", "--rescore"]),
        ("questions.parquet", None, ["questions.parquet is missing", "--rescore"]),
    ],
)
def test_damaged_files(file: str, content: str | None, words: list[str], tmp_path: Path) -> None:
    path = write_eval(tmp_path / "one") / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert_refused(gtpo("compare", tmp_path / "one", cwd=tmp_path), *words)


def test_start_up_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import sys; sys.argv = ['gtpo', 'compare', 'demo-grpo', 'demo-gtpo']\n"
        "from cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers', 'pandas', 'scipy.stats', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.stderr.strip() == "set()"
