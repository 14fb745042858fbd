"""`gtpo compare` through the real command line, and the tables it computes against direct calculation."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import command_line
from run_folders import write_eval, write_lines, write_train

from gtpo.common.errors import UserError
from gtpo.evalkit.comparison import columns
from gtpo.evalkit.comparison import compare as compare_module
from gtpo.evalkit.comparison.columns import FORMAT, MAJ, METRICS, PASS, Column, Metric
from gtpo.evalkit.comparison.compare import compare
from gtpo.evalkit.comparison.questions import BETTER, UNDECIDED
from gtpo.evalkit.evaluation.scoring import RULES_VERSION
from gtpo.evalkit.report import writers
from gtpo.evalkit.statistics import (
    OUTPUTS,
    WEIGHTS,
    differences,
    holm_factors,
    mean_interval,
    paired_difference,
)
from gtpo.runs.find import find_runs

ROOT = Path(__file__).resolve().parents[2]


def gtpo(*arguments: object, cwd: Path, code: int | None = None) -> subprocess.CompletedProcess[str]:
    return command_line(*arguments, cwd=cwd, code=code, COLUMNS="200")


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


def test_files_of_the_folder_that_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes its folder, or evaluates anew, reads what is there now."""
    for place, count in (("one", 12), ("other", 7)):
        write_eval(tmp_path / place / "run", skill=0, seed=0, method=None, benchmarks={"arithmetic": count})
        monkeypatch.chdir(tmp_path / place)
        run = find_runs(["run"])[0][0]
        assert len(run.questions("arithmetic", "strict").ids) == count
    other = (tmp_path / "one/run/questions.parquet").read_bytes()
    (tmp_path / "other/run/questions.parquet").write_bytes(other)
    assert len(run.questions("arithmetic", "strict").ids) == 12


def compared(home: Path, *names: str, **options: object):
    runs, trains, notes = find_runs([str(home / "results" / "eval" / name) for name in names])
    return compare(runs, trains, notes=notes, **options)


def test_tables_are_the_direct_calculation(home: Path) -> None:
    """Mean, interval, paired difference and Holm's correction over the benchmarks, from questions.parquet by hand."""
    names = ("demo-base", "demo-grpo", "demo-gtpo")
    found = compared(home, *names, ks=[1, 4, 8])
    assert (found.baseline, [table.benchmark for table in found.tables]) == ("demo-grpo", ["arithmetic", "hard"])
    by_hand: dict[str, list[float]] = {"demo-base": [], "demo-gtpo": []}
    for table in found.tables:
        scores = {}
        for name in names:
            rows = pq.read_table(home / "results" / "eval" / name / "questions.parquet").to_pylist()
            rows = [row for row in rows if (row["benchmark"], row["scoring"]) == (table.benchmark, "strict")]
            rows.sort(key=lambda row: row["question_id"])
            for k in (1, 4, 8):
                scores[name, Column(PASS, k)] = [row["pass_at_k"][k - 1] for row in rows]
                scores[name, Column(MAJ, k)] = [row["maj_at_k"][k - 1] for row in rows]
            scores[name, Column(FORMAT)] = [row["format_ok"] / row["n"] for row in rows]
        assert set(scores) == {key for key in table.cells if key[1].metric.tested}
        for (name, column), values in scores.items():
            cell = table.cells[name, column]
            assert cell.value[:3] == pytest.approx(mean_interval(values)[:3])
            if name == "demo-grpo":
                assert cell.paired is None
                continue
            wanted = paired_difference(values, scores["demo-grpo", column])
            assert cell.paired is not None
            assert cell.paired.p_value == pytest.approx(wanted.p_value)
            assert cell.paired.difference == pytest.approx(wanted.difference)
            assert cell.primary == (column == Column(PASS, 1))
            if cell.primary:
                by_hand[name].append(float(wanted.p_value))
                # Two trained methods of one seed each: shown, and nothing said. A model that was not trained: weights.
                assert (cell.paired.scope, cell.paired.judged) == (WEIGHTS, name == "demo-base")
            else:
                assert (cell.paired.low, cell.paired.high) == pytest.approx((wanted.low, wanted.high))
                assert (cell.p_corrected, cell.direction) == (None, 0)
    for name, p in by_hand.items():
        corrected = [table.cells[name, Column(PASS, 1)].p_corrected for table in found.tables]
        wanted = np.minimum(np.array(p) * holm_factors(np.array(p)), 1.0).tolist()
        assert corrected == (pytest.approx(wanted) if name == "demo-base" else [None, None])


def test_questions_of_one_text_are_one_question_in_eval_and_compare(tmp_path: Path) -> None:
    """24 rows of 6 questions: the intervals are those of 6, and it is said."""
    for name, right in (("one", 2), ("two", 5)):
        rows = [
            {"id": f"{i}-{j}", "problem": f"What is {i} + 1?" + " " * j, "gold": "42",
             "completions": ["<answer>42</answer>" if i < right else "<answer>1</answer>"]}
            for i in range(6) for j in range(4)
        ]  # fmt: skip
        ran = gtpo("eval", "--completions", write_lines(tmp_path / f"{name}.jsonl", rows), "--k", "1", cwd=tmp_path)
        assert "6 different texts, which the intervals count" in ran.stdout, ran.stderr
        (entry,) = json.loads((tmp_path / f"results/eval/{name}/eval.json").read_text())["benchmarks"].values()
        wanted, stored = mean_interval(np.arange(6) < right), entry["pass@k"]["1"]
        assert (stored["low"], stored["high"]) == pytest.approx((wanted.low, wanted.high))
    found = compared(tmp_path, "one", "two")
    (table,) = found.tables
    assert any("24 questions have 6 texts" in note for note in found.all_notes)
    cell = table.cells["two", Column(PASS, 1)]
    wanted = paired_difference(np.arange(6) < 5, np.arange(6) < 2)
    assert (cell.paired.low, cell.paired.high) == pytest.approx((wanted.low, wanted.high))


def test_missing_samples_that_could_reverse_it_take_a_verdict_away(tmp_path: Path) -> None:
    write_eval(tmp_path / "results/eval/low", benchmarks={"arithmetic": 60}, method=None, skill=-1.0)
    gone = tuple((q, i) for q in range(60) for i in range(4))
    for name, failed in (("high", ()), ("half", gone)):
        write_eval(tmp_path / f"results/eval/{name}", benchmarks={"arithmetic": 60}, method=None, skill=0.5,
                   failed=failed)  # fmt: skip
    column = Column(PASS, 1)
    cells = compared(tmp_path, "low", "high", "half", baseline="low", allow_mismatch=True).tables[0].cells
    assert cells["high", column].verdict == BETTER
    assert cells["half", column].verdict == UNDECIDED
    assert cells["half", column].paired.low > 0
    ran = gtpo("compare", "low", "half", "--baseline", "low", "--allow-mismatch", cwd=tmp_path)
    assert "Its missing samples could reverse the difference." in ran.stdout


@pytest.mark.parametrize("seed", [1, 2, 3, "the same questions", "one of each question"])
def test_whatever_is_missing_was_lies_between_the_extremes(seed: int | str, tmp_path: Path) -> None:
    """Samples and whole questions of both runs are lost: the difference without any loss, in every metric."""
    alike, seed, count, n = isinstance(seed, str) and seed, seed if isinstance(seed, int) else 4, 14, 4
    rng = np.random.default_rng(seed)
    for i, name in enumerate(("a", "b")):
        gone = rng.random((count, n)) < 0.2 * (not alike)
        gone[rng.choice(count, 3, replace=False) if not alike else [1, 4, 9]] = True
        if alike == "one of each question":
            gone = np.arange(n) == np.zeros((count, 1))
        for folder, failed in ((name, tuple(map(tuple, np.argwhere(gone)))), (f"whole-{name}", ())):
            write_eval(tmp_path / "results/eval" / folder, method=None, seed=10 * seed + i, skill=i,
                       benchmarks={"arithmetic": count}, n=n, failed=failed)  # fmt: skip
    asked = {"ks": [1, 2], "metrics": [Column(PASS, 1), Column(MAJ, 2)]}
    (whole,), (table,) = (compared(tmp_path, f"{of}a", f"{of}b", **asked).tables for of in ("whole-", ""))
    for column in (column for column in table.columns if column.metric.tested):
        cell, truth = table.cells["b", column], whole.cells["whole-b", column]
        worst, best = (float(cell.paired.difference) + moved for moved in cell.missing)
        assert worst - 1e-9 <= float(truth.paired.difference) <= best + 1e-9, column.label
        for name in ("a", "b"):
            low, high = table.cells[name, column].bounds
            assert low - 1e-9 <= whole.cells[f"whole-{name}", column].value.mean <= high + 1e-9, (name, column.label)
    # What two runs with one question more or less in common would give, whichever is named first.
    (other,) = compared(tmp_path, "b", "a", baseline="a", **asked).tables
    assert other.cells["b", Column(PASS, 1)].missing == table.cells["b", Column(PASS, 1)].missing


def test_k_that_no_question_has_in_every_run_is_refused(tmp_path: Path) -> None:
    for name, odd in (("a", 0), ("b", 1)):
        write_eval(tmp_path / "results/eval" / name, benchmarks={"arithmetic": 6}, n=2,
                   failed=tuple((q, 1) for q in range(6) if q % 2 == odd))  # fmt: skip
    with pytest.raises(UserError, match="no question of arithmetic of which every run has 2 scored samples; 1 is the"):
        compared(tmp_path, "a", "b", ks=[2])


def test_median_tokens_of_right_and_of_wrong_answers(tmp_path: Path) -> None:
    """A metric that is no percentage, from the samples by hand; without an interval, a difference or a verdict."""
    write_eval(tmp_path / "one", benchmarks={"arithmetic": 9, "hard": 4}, seed=2, failed=((0, 7), (3, 0)))
    shutil.rmtree(write_eval(tmp_path / "bare", benchmarks={"arithmetic": 9}, method=None) / "samples")
    rows = pq.read_table(tmp_path / "one/samples").to_pylist()
    rows = [row for row in rows if row["benchmark"] == "arithmetic" and not row["error"]]
    wanted: dict[tuple[str, str], float | None] = {}
    for kind in ("right", "wrong"):
        tokens = [row["tokens"] for row in rows if (row["verdict_strict"] == "CORRECT") == (kind == "right")]
        wanted |= {("one", f"tokens-{kind}"): float(np.median(tokens)), ("bare", f"tokens-{kind}"): None}
    assert len({*wanted.values()}) == 3
    words = ("compare", "one", "bare", "--metric", "pass@1,tokens-wrong")
    ran = gtpo(*words, "--details", "--format", "json", cwd=tmp_path)
    records = [r for r in json.loads(ran.stdout)["records"] if r["metric"].startswith("tokens")]
    assert {(r["method"], r["metric"]): r["mean"] for r in records if r["benchmark"] == "arithmetic"} == wanted
    assert {(r["unit"], r["k"], r["low"], r["difference"], r["verdict"]) for r in records} == {
        ("median tokens", None, None, None, None)
    }
    ran = gtpo("compare", "one", "bare", "--metric", "tokens-right", cwd=tmp_path)
    assert_refused(ran, "--metric tokens-right is shown, not tested", "name a metric that is tested before it")


def test_a_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """What is declared in METRICS is in every output, whatever it is called and however it is written."""
    cut_off = Metric("cut-off", "cut off", lambda of, k: of.truncated / of.n, unit="per mille", digits=2)
    monkeypatch.setattr(columns, "METRICS", (*METRICS, cut_off))
    for module in (compare_module, writers):
        monkeypatch.setattr(module, "METRICS", columns.METRICS)
    words = ("compare", "demo-grpo", "demo-gtpo", "--details", "--metric", "cut-off")
    for form in ("table", "markdown", "latex", "csv", "json"):
        assert "cut-off" in gtpo(*words, "--format", form, cwd=home).stdout, form
    ran = gtpo(*words[:3], "--metric", "cutoff", cwd=home)
    assert_refused(ran, "or cut-off")


HOSTILE = "=a_b%|<b>`x`\u202etxt.exe\x1b[31m"


def test_names_are_text_in_every_format(tmp_path: Path) -> None:
    """Markup, formulas, escape sequences and marks of writing direction in a run's name stay text."""
    write_eval(tmp_path / "one", name=HOSTILE, benchmarks={"arithmetic": 10})
    write_eval(tmp_path / "plain", method="grpo", benchmarks={"arithmetic": 10})
    out = {
        f: gtpo("compare", tmp_path / "one", tmp_path / "plain", "--format", f, cwd=tmp_path).stdout
        for f in ("table", "markdown", "latex", "csv", "json")
    }
    for text in out.values():
        assert not set("\x1b\u202e\r") & set(text)
    assert json.loads(out["json"])["methods"][0]["name"] == HOSTILE
    assert r"=a\_b\%\textbar{}\textless{}b\textgreater{}" in out["latex"]
    assert r"=a\_b%\|\<b\>\`x\`\\u202etxt.exe" in out["markdown"]
    assert {row["method"] for row in csv.DictReader(io.StringIO(out["csv"]))} == {
        "'=a_b%|<b>`x`\\u202etxt.exe\\x1b[31m", "plain"
    }  # fmt: skip
    table = [line for line in out["markdown"].splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table[:4]}) == 1


# --- methods: runs that differ in their seed alone -----------------------------------------------------------------


def test_seeds_are_one_method(tmp_path: Path) -> None:
    """Five seeds of each, in pairs, by hand. The sixth of one method neither widens nor narrows the interval."""
    for method, seed in (("grpo", 5), *itertools.product(("grpo", "gtpo"), range(5))):
        name, skill = f"{method}-s{seed}", 0.1 * seed + (method == "gtpo")
        write_train(tmp_path / "results/train" / name, method=method, steps=20, seed=seed)
        write_eval(tmp_path / f"results/eval/{name}-eval", skill=skill, seed=seed, method=method, train_run=name,
                   benchmarks={"arithmetic": 40})  # fmt: skip
    names, column = [f"{method}-s{seed}-eval" for method in ("grpo", "gtpo") for seed in range(5)], Column(PASS, 1)
    found = compared(tmp_path, *names)
    assert [(m.name, [member.seed for member in m.members]) for m in found.methods] == [
        ("grpo", list("01234")), ("gtpo", list("01234"))
    ]  # fmt: skip
    assert found.baseline == "grpo"
    grpo, gtpo = (
        np.stack([run.questions("arithmetic", "strict").pass_at_k[:, 0] for run in method.runs])
        for method in found.methods
    )
    cell, wanted = found.tables[0].cells["gtpo", column], differences(gtpo[None], grpo[None], paired=True).at(0)
    assert cell.paired._replace(level=wanted.level) == wanted
    assert (wanted.seeds_paired, wanted.covers) == (True, "seeds, questions and samples")
    assert (cell.value.mean, cell.value.seed_sd) == pytest.approx((gtpo.mean(), gtpo.mean(axis=1).std(ddof=1)))
    (table,) = compared(tmp_path, *names, "grpo-s5-eval").tables
    assert table.cells["gtpo", column].paired == cell.paired
    assert "gtpo against grpo: only the 5 seeds that both trained are compared" in table.notes


def test_weights_of_another_kind_are_no_seed(tmp_path: Path) -> None:
    """best/ is chosen by accuracy, final/ is not: runs of both are not merged in silence, whatever their seeds."""
    for seed in range(2):
        write_train(tmp_path / f"results/train/gtpo-s{seed}", steps=5, seed=seed)
        for kind in ("best", "final"):
            write_eval(tmp_path / f"results/eval/{kind}-s{seed}", train_run=f"gtpo-s{seed}", model__checkpoint=kind,
                       benchmarks={"arithmetic": 10}, seed=seed)  # fmt: skip
    apart = compared(tmp_path, "best-s0", "final-s1")
    assert any("shown apart: they are of different checkpoints (best, final)" in note for note in apart.notes)
    four = compared(tmp_path, "best-s0", "best-s1", "final-s0", "final-s1")
    assert [[run.name for run in m.runs] for m in four.methods] == [["best-s0", "best-s1"], ["final-s0", "final-s1"]]
    merged = compared(tmp_path, "best-s0", "final-s1", labels=["GTPO=best-s0,final-s1"])
    for found, of in ((apart, [1, 1]), (merged, [2])):
        assert [len(method.runs) for method in found.methods] == of
        assert any("the checkpoints differ (best-s0: best; final-s1: final)" in note for note in found.notes)
    assert not any("checkpoint" in note for note in compared(tmp_path, "best-s0", "best-s1").notes)


# --- what cannot be compared, and what is wrong with the input -------------------------------------------------


@pytest.mark.parametrize("two", [{"version": "9"}, {"version": None}, {"version": 15, "math_verify": "0.8.0"}])
def test_runs_of_two_judges_are_mended_by_the_line_that_is_named(two: dict[str, Any], tmp_path: Path) -> None:
    """The commands of the refusal are typed as they stand, and then it compares."""
    home = tmp_path / "a folder"
    home.mkdir()
    for right, (name, verifier) in enumerate((("one", {"version": RULES_VERSION}), ("two", two))):
        rows = [{"id": str(i), "gold": "4", "completion": f"<answer>{4 * (i < 3 + right)}</answer>"} for i in range(6)]
        write_lines(home / f"{name}.jsonl", rows)
        gtpo("eval", "--completions", f"{name}.jsonl", "--out", home / name, cwd=home, code=0)
        record = json.loads((home / name / "eval.json").read_text())
        (home / name / "eval.json").write_text(json.dumps(record | {"verifier": verifier}))
    refused = gtpo("compare", home / "one", home / "two", cwd=home)
    assert_refused(refused, "verifier differs")
    line = refused.stderr.partition("To mend it: ")[2].strip()
    for words in map(shlex.split, line.split(" && ")):
        assert (words[:2], words[3:]) == (["gtpo", "eval"], ["--rescore"])
        gtpo(*words[1:], cwd=home, code=0)
    gtpo("compare", home / "one", home / "two", cwd=home, code=0)


# --- runs that are not known to be trained apart ---------------------------------------------------------------

UNKNOWN = "training is not known, so this says nothing about methods"
PAIR = {"A": ("A1", "A2", "A3"), "B": ("B1", "B2", "B3")}
LABELS = ("--label", "A=A*", "--label", "B=B*")


def side_by_side(home: Path, case: str) -> list[str]:
    """Write three evaluations a side, and what is known of their training; return the words of the command."""
    for side, names in PAIR.items():
        folder = home / f"results/train/{side}-run"
        if case != "files":
            write_train(folder, method="gtpo" if side == "A" else "grpo", steps=20, seed=1)
        for i, name in enumerate(names):
            train, kind = None, None
            if case != "files":
                train, kind = str(folder), ("best", "final", "checkpoint-10")[i] if case == "checkpoints" else "best"
            if case == "copies":
                train = str(home / f"results/train/{name}-copy")
                shutil.copytree(folder, train)
            write_eval(home / f"results/eval/{name}", method=None, train_run=train, skill=2.0 * (side == "B"), n=4,
                       model__checkpoint=kind, seed=ord(name[0]) * 9 + i)  # fmt: skip
    return [*PAIR["A"], *PAIR["B"], *LABELS]


@pytest.mark.parametrize("case", ["files", "copies", "checkpoints"])
def test_runs_that_are_not_known_to_be_trained_apart_say_nothing_of_methods(case: str, tmp_path: Path) -> None:
    """In every output: what it is about, no mark, no verdict; although the outputs differ by far."""
    words = side_by_side(tmp_path, case)
    marks = re.compile(r"[▲▼≈]|\\dagger|\^\{\*|\b(better|worse|equivalent) (than|to)\b|· 3 seeds|\\cdot\$ 3 seeds")
    for form in ("table", "markdown", "latex", "csv", "json"):
        ran = gtpo("compare", *words, "--format", form, "--margin", "50", "--details", cwd=tmp_path, code=0)
        text = ran.stdout + ran.stderr
        assert UNKNOWN in text, form
        assert "about these outputs" in text, form
        assert not marks.search(text), (form, marks.search(text))
    document = json.loads(ran.stdout)
    judged = [record for record in document["records"] if record["verdict"]]
    assert [(r["verdict"], r["speaks_of"], r["judged"], r["p_holm"], r["significant"]) for r in judged] == [
        (UNDECIDED, OUTPUTS, False, None, False)
    ]
    assert max(judged[0]["difference_low"], -judged[0]["difference_high"]) > 0.1
    assert {(r["covers_training"], r["seed_sd"]) for r in document["records"]} == {(False, None)}
    ran = gtpo("compare", *words, "--baseline", "A", "--fail-if-worse=90", cwd=tmp_path, code=6)
    assert "gate: B against A on arithmetic is undecided, as training is not known" in ran.stderr


@pytest.mark.parametrize(
    ("skill", "failed", "words", "code", "said"),
    [
        (0.0, (), ["12"], 0, "passes: "),
        (0.0, (), ["2"], 6, "is undecided: "),
        (-2.5, (), ["2"], 5, "fails: "),
        (-2.5, (), ["90"], 0, "passes: "),
        (0.0, tuple((q, j) for q in range(60) for j in range(6)), ["12"], 6, "is undecided: "),
        (0.0, (), ["2", "--undecided", "pass"], 0, "is undecided: "),
    ],
)
def test_the_gate_has_three_outcomes(
    skill: float, failed: Any, words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    """Shown to lose less, shown to be worse, neither: too few questions, or samples that are missing."""
    write_eval(tmp_path / "old", method=None, seed=1)
    write_eval(tmp_path / "new", method=None, seed=2, skill=skill, failed=failed)
    gate = ("--baseline", "old", "--allow-mismatch", "--fail-if-worse", *words)
    ran = gtpo("compare", "old", "new", *gate, cwd=tmp_path, code=code)
    line, *more = (line for line in ran.stderr.splitlines() if line.startswith("gate: "))
    assert f"gate: new against old on arithmetic {said}" in line
    assert "this design excludes a loss of " in line
    assert ("such questions" in line) != (f", enough for {words[0]}" in line)
    assert more == ["gate: undecided, which passes (--undecided pass)"] * ("pass" in words)


@pytest.mark.parametrize(
    ("of_old", "of_new"), [(("arithmetic", "hard"), ("arithmetic",)), (("hard",), ("arithmetic", "hard"))]
)
def test_the_gate_does_not_pass_what_was_not_evaluated(of_old: Any, of_new: Any, tmp_path: Path) -> None:
    for name, skill, benchmarks in (("old", 0.0, of_old), ("new", 2.0, of_new)):
        write_eval(tmp_path / name, method=None, skill=skill, benchmarks=dict.fromkeys(benchmarks, 40))
    ran = gtpo("compare", "old", "new", "--baseline", "old", "--fail-if-worse", 2, cwd=tmp_path, code=6)
    assert "gate: new against old on" in ran.stderr
    assert "is undecided, as not both were evaluated on it" in ran.stderr


def assert_refused(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    """One sentence on stderr, exit code 2, nothing on stdout, no traceback."""
    assert ran.returncode == 2, (ran.stdout, ran.stderr)
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in ran.stderr


def test_n_is_compared_by_benchmark(tmp_path: Path) -> None:
    """A run's record has one n, the most of any benchmark. Other settings: refused-compare.txt, said-compare.txt."""
    runs = tmp_path / "results/eval"
    for name in ("few", "as-few"):
        write_eval(runs / name, benchmarks={"hard": 10}, n=2, sampling__n=8)
    write_eval(runs / "both", benchmarks={"arithmetic": 10, "hard": 10}, n=8)
    for name in ("many", "as-many"):
        write_eval(runs / name, benchmarks={"arithmetic": 10}, n=8)
    with pytest.raises(UserError, match=r"n of hard differs \(few: 2; both: 8\)"):
        compared(tmp_path, "few", "both")
    assert any("n of hard differs" in note for note in compared(tmp_path, "few", "both", allow_mismatch=True).notes)
    assert compared(tmp_path, "few", "as-few", "many", "as-many").shared_settings["n"] == "hard: 2; arithmetic: 8"
    assert compared(tmp_path, "both", "many").shared_settings["n"] == "arithmetic, hard: 8"


def test_missing_samples_leave_bounds_and_every_k(tmp_path: Path) -> None:
    """One failed sample costs its question the largest k, nothing else; the figures say what it could have changed."""
    write_eval(tmp_path / "results/eval/one", benchmarks={"arithmetic": 10}, method="grpo", failed=((3, 7),))
    write_eval(tmp_path / "results/eval/two", benchmarks={"arithmetic": 10}, skill=1)
    (table,) = compared(tmp_path, "one", "two", ks=[1, 8]).tables
    assert (table.samples, table.questions) == (8, 10)
    cells = {(name, column.label): cell for (name, column), cell in table.cells.items()}
    assert cells["two", "pass@1"].paired.questions == 10
    assert cells["two", "pass@8"].paired.questions == cells["two", "maj@8"].paired.questions == 9
    low, high = cells["one", "pass@1"].bounds
    assert 0 < high - low <= 1 / 80 + 1e-12
    assert low <= cells["one", "pass@1"].value.mean <= high + 1e-3
    assert cells["two", "pass@1"].bounds is None


def test_an_average_has_a_spread_only_over_the_same_trainings(tmp_path: Path) -> None:
    """Each benchmark has two seeds, once the same ones, once others; and outputs of two presets are no baseline."""
    for name, seed, benchmarks in (("a1", 1, "xy"), ("a2", 2, "x"), ("a3", 3, "y"), ("b1", 1, "xy"), ("b2", 2, "xy")):
        method = {"a": "gtpo", "b": "dapo"}[name[0]]
        write_train(tmp_path / f"results/train/{name}", seed=seed, method=method, steps=50)
        write_eval(tmp_path / f"results/eval/{name}", train_run=f"results/train/{name}", seed=seed, n=2, method=method,
                   benchmarks=dict.fromkeys(benchmarks, 11))  # fmt: skip
    found = compared(tmp_path, "a1", "a2", "a3", "b1", "b2", group_by="method")
    spreads = [writers.average(found, name, Column(PASS, 1))[1] for name in ("gtpo", "dapo")]
    assert (spreads[0], spreads[1] is None) == (None, False)
    assert "first given" in compared(tmp_path, "b1", "a1", "b2", labels=["mix=a1,b2"]).baseline_reason


def test_other_questions(tmp_path: Path) -> None:
    write_eval(tmp_path / "results/eval/one", benchmarks={"arithmetic": 40})
    write_eval(tmp_path / "results/eval/ten later", benchmarks={"arithmetic": 40}, skip=10)
    write_eval(tmp_path / "results/eval/all later", benchmarks={"arithmetic": 40}, skip=40)
    write_eval(tmp_path / "results/eval/golds", benchmarks={"arithmetic": 40}, golds_from=2)
    write_eval(tmp_path / "results/eval/else", benchmarks={"hard": 40})
    for name, allow, told in (
        ("ten later", False, "the questions of arithmetic differ"),
        ("golds", False, "the questions or golds of arithmetic differ under the same ids .*: one 1, golds 2"),
        ("else", False, "no question in common"),
        ("all later", True, "no question of arithmetic in common"),
    ):
        with pytest.raises(UserError, match=told):
            compared(tmp_path, "one", name, allow_mismatch=allow)
    found = compared(tmp_path, "one", "ten later", allow_mismatch=True)
    (table,) = found.tables
    assert table.questions == 30
    assert "compared on the 30 questions they share" in table.notes[0]
    first, later = (run.questions("arithmetic", "strict").pass_at_k[:, 0] for run in (m.runs[0] for m in found.methods))
    means = [table.cells[name, Column(PASS, 1)].value.mean for name in table.sides]
    assert means == pytest.approx([first[10:].mean(), later[:30].mean()])


def test_the_base_of_all_methods_counts_as_given(tmp_path: Path) -> None:
    """Its own training seed is no part of a difference; if one run began elsewhere, it is again, of its method only."""
    write_train(tmp_path / "results/train/base", method="sft", seed=9)
    write_eval(tmp_path / "results/eval/base", method="sft", train_run="results/train/base", skill=0.0, seed=9)
    names = ["base"]
    for method in ("grpo", "gtpo"):
        for seed in (1, 2, 3):
            name = f"{method}-s{seed}"
            began = ("base", "results/train/base", "results/train/base/best")[seed - 1]  # as --model may name it
            write_train(tmp_path / f"results/train/{name}", method=method, seed=seed, base_model=began)
            write_eval(tmp_path / f"results/eval/{name}", method=method, train_run=f"results/train/{name}",
                       skill=1.5 + 0.1 * seed, seed=seed)  # fmt: skip
            names.append(name)
    found = compared(tmp_path, *names, baseline="base")
    assert [found.methods[0].is_base_of(method) for method in found.methods] == [False, True, True]
    column = Column(PASS, 1)
    given = found.tables[0].cells["gtpo", column].paired
    assert (given.seeds, given.scope, given.judged) == ((3, 0), WEIGHTS, True)
    # A third model that began elsewhere, with a question missing, changes nothing between the two.
    write_eval(tmp_path / "results/eval/hub", method=None, skill=0.0, failed=tuple((7, j) for j in range(8)))
    more = compared(tmp_path, *names, "hub", baseline="base")
    assert (found.tables[0].questions, more.tables[0].questions) == (60, 59)
    for name in ("grpo", "gtpo"):
        assert more.tables[0].cells[name, column].paired == found.tables[0].cells[name, column].paired
        assert more.tables[0].cells[name, column].verdict == found.tables[0].cells[name, column].verdict == BETTER
    path = tmp_path / "results/train/gtpo-s3/run.json"
    path.write_text(path.read_text().replace("results/train/base", "another/base"))
    found = compared(tmp_path, *names, baseline="base")
    apart = found.tables[0].cells["gtpo", column].paired
    assert apart.difference == given.difference
    assert (apart.seeds, apart.judged) == ((3, 1), False)
    assert found.tables[0].cells["grpo", column].verdict == BETTER
