"""What goes into the page and the figures, and that model text cannot become markup."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from run_folders import HOSTILE, RUNS, write_eval, write_train
from test_compare import gtpo

from gtpo.common.errors import UserError
from gtpo.common.terminal import stacked
from gtpo.evalkit.comparison.compare import compare
from gtpo.evalkit.comparison.training_curves import read_curves
from gtpo.evalkit.engines.model_ref import fingerprint
from gtpo.evalkit.report import figures
from gtpo.evalkit.report.page import choose_samples, inert_json, render
from gtpo.runs.find import find_runs
from gtpo.runs.train_run import TrainFolder


def scripts(page: str) -> dict[str, Any]:
    """What the data blocks of a page hold, by id; its code is another script."""
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL)
    assert page.count("<script") == len(found) + 1
    return {name: json.loads(text) for name, text in found}


def test_hostile_text_stays_data(page_home: Path) -> None:
    page = (page_home / "page.html").read_text()
    blocks = [block for block in scripts(page).values() if "samples" in block]
    texts = [s[6] for b in blocks for q in b["samples"].values() for run in q.values() for s in run]
    assert sum(HOSTILE in text for text in texts) == 8  # one a benchmark and run
    assert "<img" not in page


@pytest.mark.parametrize(
    "text", ["</script>", "<!--<script>", "&lt;", "\u2028\u2029", "\ud83d broken", "@@DATA@@", "\x00\x1b"]
)
def test_embedded_json_is_inert_and_exact(text: str) -> None:
    made = inert_json({"x": text})
    assert not set(made) & set("<>&\u2028\u2029")
    assert json.loads(made) == {"x": text}
    made.encode("utf-8")
    core = {"runs": [], "notes": [text]}
    assert scripts(render(core, {})) == {"core": core}


def test_mathematics_becomes_mathml_trees() -> None:
    pytest.importorskip("latex2mathml")
    from gtpo.evalkit.report.page import segments

    found = segments(r"If $x < \frac{1}{2}$, it costs \$5 and $7 <b>each</b>. \[ \unknown{x} \]")
    assert found[0] == "If "
    assert found[1][:2] == ["math", {"display": "inline"}]
    assert json.dumps(found[1]).count("mfrac") == 1
    assert found[2] == r", it costs $5 and $7 <b>each</b>. \[ \unknown{x} \]"
    assert segments(r"$\href{javascript:alert(1)}{x}$ $\style{color:red}{y}$ $\frac{$")
    assert "href" not in json.dumps(segments(r"$\href{javascript:alert(1)}{x}$")[0][1:2])


def test_a_train_run_of_the_same_name_in_another_project_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project in ("p1", "p2"):
        write_train(tmp_path / project / "results/train/run", steps=5)
    made = {"benchmarks": {"arithmetic": 5}, "train_run": "run"}
    write_eval(tmp_path / "p2/results/eval/run", model__source="results/train/run/best", **made)
    monkeypatch.chdir(tmp_path / "p2")
    runs, trains, notes = find_runs(["../p1/results/train/run"])
    assert (runs, len(trains)) == ([], 1)
    assert "no eval run yet" in notes[0]
    write_eval(tmp_path / "p1/results/eval/run", **made)
    (run,), _, _ = find_runs(["../p1/results/train/run"])
    assert run.folder.resolve() == tmp_path / "p1/results/eval/run"
    # An eval run of p1 whose train run is gone does not get the curves of p2's.
    shutil.rmtree(tmp_path / "p1/results/train/run")
    (run,), trains, _ = find_runs(["../p1/results/eval/run"])
    assert (run.train, trains) == (None, [])


def test_weights_that_changed_since_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights trained again under the same name; none where they were deleted, or published without."""
    monkeypatch.chdir(tmp_path)
    train = write_train(tmp_path / "results/train/run", steps=5)
    (train / "best").mkdir()
    (train / "best/model.safetensors").write_bytes(b"as evaluated")
    made = {"benchmarks": {"arithmetic": 5}, "train_run": "run", "model__checkpoint": "best"}
    print_of = fingerprint(train / "best")
    write_eval(tmp_path / "results/eval/run", model__fingerprint=print_of, **made)
    write_eval(tmp_path / "lora", model__fingerprint=f"{'b' * 16}-{print_of}", model__adapter="best", **made)

    def noted(name: str) -> list[str]:
        runs, trains, notes = find_runs([name])
        return [note for note in compare(runs, trains, notes=notes).notes if "have changed since" in note]

    assert noted("run") == noted("lora") == []
    (train / "best/model.safetensors").write_bytes(b"trained again")
    for name in ("run", "lora"):
        (note,) = noted(name)
        assert note.startswith(f"{name}: the weights in ")
        assert "gtpo eval" in note
    shutil.rmtree(train / "best")
    assert noted("run") == noted("lora") == []


def test_figures_are_written_and_repeat(page_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = gtpo("compare", *(f"{name}-1" for name in RUNS), "--figures", "figures", cwd=page_home)
    assert "figures: 12 files in figures" in ran.stderr
    names = {path.name for path in (page_home / "figures").iterdir()}
    stems = ("curves-arithmetic", "curves-hard", "differences", "training")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "pdf")}
    assert (page_home / "figures/training.pdf").read_bytes().startswith(b"%PDF")
    assert (page_home / "figures/training.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (page_home / "figures/training.svg").read_text()
    # Drawn again: the same bytes, so that committed figures do not change without a reason. One of four is enough.
    every = figures._figures
    monkeypatch.setattr(figures, "_figures", lambda comparison: itertools.islice(every(comparison), 1))
    runs, trains, notes = find_runs([str(page_home / f"results/eval/{name}-1") for name in RUNS])
    for path in figures.write_figures(compare(runs, trains, notes=notes), page_home / "again"):
        assert path.read_bytes() == (page_home / "figures" / path.name).read_bytes(), path


def test_sample_is_bounded_and_shows_each_verdict(page_home: Path) -> None:
    runs, trains, _ = find_runs([str(page_home / "results/eval" / name) for name in ("grpo-1", "gtpo-1")])
    (table, _) = compare(runs, trains).tables
    parts = [part for side in table.sides.values() for part in side.parts]
    few, held = choose_samples(table, "strict", 8_000)
    assert 1 <= len(few["shown"]) < 30
    assert not few["complete"]
    samples, answers = held["samples"], held["answers"]
    assert sum(len(s[6]) for q in samples.values() for run in q.values() for s in run) <= 8_000
    for q in few["shown"]:
        for r, part in enumerate(parts):
            verdicts = [s[1] for s in samples[str(q)][str(r)]]
            assert len(verdicts) == 4
            assert ("CORRECT" in verdicts) == (part.correct[q] > 0)
            assert any(verdict != "CORRECT" for verdict in verdicts) == (part.correct[q] < 8)
    votes = answers[str(few["shown"][0])]["0"]
    assert sum(count for *_, count in votes) == 8  # of all samples, not of those shown
    every, all_held = choose_samples(table, "strict", 10**7)
    assert every["complete"]
    assert {len(part) for of in all_held["samples"].values() for part in of.values()} == {8}


def test_runs_without_their_samples_and_without_matplotlib_make_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As published evidence often is: eval.json and questions.parquet, no completions; figures that fail come after."""
    for i, method in enumerate(("grpo", "gtpo")):
        shutil.rmtree(write_eval(tmp_path / method, seed=i, method=method, benchmarks={"arithmetic": 12}) / "samples")
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an import of it fails
    ran = gtpo("compare", "grpo", "gtpo", "--html", "page.html", "--figures", "figures", cwd=tmp_path)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    explorer = scripts((tmp_path / "page.html").read_text())["core"]["benchmarks"][0]["explorer"]
    assert (explorer["shown"], len(explorer["ids"])) == ([], 12)


def test_foreign_completions_log_is_named(tmp_path: Path) -> None:
    folder = write_train(tmp_path / "run", steps=60)
    pq.write_table(pa.table({"step": [1]}), folder / "completions" / "step-000001.parquet")
    ran = gtpo("compare", folder, "--html", "page.html", cwd=tmp_path)
    assert ran.returncode == 2
    assert "step-000001.parquet: column group is missing" in ran.stderr
    assert not (tmp_path / "page.html").exists()


def test_curves_survive_a_killed_write_and_a_resume(tmp_path: Path) -> None:
    folder = write_train(tmp_path / "run", steps=4)
    lines = ['{"step": 1, "loss": 1.0}', '{"step": 2, "loss": null}', '{"step": 3, "loss": 9.0}']
    lines += ['{"step": 3, "loss": 3.0}', '{"step": 4, "lo']
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    curve = read_curves(TrainFolder(folder))["loss"]
    assert (curve.steps.tolist(), curve.mean.tolist()) == ([1, 3], [1, 3])
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl:2: not a JSON object"):
        read_curves(TrainFolder(folder))
    (folder / "metrics.jsonl").write_text('{"step": "one", "loss": 1}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl:1: not a JSON object with a number"):
        read_curves(TrainFolder(folder))


def test_problems_that_a_run_was_trained_on_are_known_by_their_text(tmp_path: Path) -> None:
    """Those of the run that it began from too."""
    base, run = write_train(tmp_path / "results/train/base"), tmp_path / "results/train/run"
    write_train(run, base_model=str(base / "final"))
    TrainFolder(base).write_problems(["What is 1 + 1?"])
    TrainFolder(run).write_problems(["What is 2 + 2?", "What is 2 + 2?"])
    asked = ["What is\n1 + 1?", "What is 2 + 2?", "What is 3 + 3?"]
    assert (TrainFolder(run).trained_on(asked), TrainFolder(base).trained_on(asked)) == (2, 1)
    later = write_train(tmp_path / "results/train/later", base_model=str(run / "checkpoints/checkpoint-4"))
    assert TrainFolder(later).trained_on(asked) == 2
    TrainFolder(base).update_run(base_model=str(run / "best"))  # trained again, from its own successor
    assert TrainFolder(base).trained_on(asked) == 2


def test_a_table_that_just_fits_is_one_table() -> None:
    table = Table("a", "bb", "ccc")
    table.add_row("1", "22", "333")
    drawn = Console(width=100, file=io.StringIO())
    width = Measurement.get(drawn, drawn.options, table).maximum
    assert [len(stacked(table, width - less)) for less in (0, 1)] == [1, 2]
