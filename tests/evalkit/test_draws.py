"""What counts as a draw of training, and that equal methods are not marked, through the functions of `gtpo compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command_line
from run_folders import write_counts, write_lines

from gtpo.common.errors import UserError
from gtpo.evalkit.comparison.columns import PASS, Column
from gtpo.evalkit.comparison.compare import MethodComparison, compare
from gtpo.evalkit.comparison.questions import BETTER, UNDECIDED, Cell
from gtpo.evalkit.report.summary import answer, sentences
from gtpo.evalkit.statistics import METHODS, OUTPUTS, WEIGHTS
from gtpo.runs.eval_record import read_record
from gtpo.runs.find import find_runs
from gtpo.runs.train_run import TrainFolder

HALF = np.repeat([1, 3], 20)


def compared(home: Path, names: str = "*", **options: Any) -> MethodComparison:
    runs, trains, notes = find_runs([str(path) for path in sorted((home / "results/eval").glob(names))])
    return compare(runs, trains, notes=notes, details=False, metrics=[Column(PASS, 1)], **options)


def cell_of(found: MethodComparison) -> Cell:
    (cell,) = (cell for cell in found.tables[0].cells.values() if cell.paired is not None)
    return cell


def words_of(found: MethodComparison) -> str:
    return "\n".join(text for _, text in answer(found))


# Marks that two runs of one training have in common, and those that are no proof of it.
SAME: dict[str, dict[str, Any]] = {
    "weights": {"weights": "ab"},
    "fingerprint": {"fingerprint": "ab-cd"},
    "adapters of one trainer": {"adapter": "out/checkpoint-{i}", "weights": "w{i}"},
    "first texts": {"engine": {"name": "openai", "canaries": {"texts": {"http://{i}": ["x", "y"]}}}},
    "one Hub model": {"source": "org/model", "engine": {"name": "vllm"}},
}
OTHER: dict[str, dict[str, Any]] = {
    "weights": {"weights": "w{i}"},
    "adapters of one base": {"adapter": "run-{i}", "fingerprint": "ab-c{i}"},
    "first texts": {"engine": {"name": "openai", "canaries": {"texts": {"u": ["x{i}", "y"]}}}},
    "texts that do not vary": {"engine": {"name": "openai", "canaries": {"texts": {"u": ["x", "x"]}}}},
}


def write_runs(home: Path, model: dict[str, Any], names: tuple[str, ...] = ("A0", "A1", "A2", "B0")) -> None:
    for i, name in enumerate(names):
        folder = write_counts(home / "results/eval" / name, np.roll(HALF, i), 4)
        of_run = json.loads(json.dumps(model).replace("{i}", str(i))) if name[0] == "A" else {}
        record = json.loads((folder / "eval.json").read_text())
        record["engine"] = of_run.pop("engine", {"name": "recorded"})
        record["model"] |= of_run
        (folder / "eval.json").write_text(json.dumps(record))


@pytest.mark.parametrize("case", SAME)
def test_seeds_that_are_one_training_are_refused(case: str, tmp_path: Path) -> None:
    write_runs(tmp_path, SAME[case])
    with pytest.raises(UserError, match="--seeds A: A0 and A1 are one training"):
        compared(tmp_path, seeds=["A=A*"])


@pytest.mark.parametrize("case", OTHER)
def test_what_proves_nothing_neither_refuses_nor_makes_seeds(case: str, tmp_path: Path) -> None:
    """Unlike weights are no independent trainings: only what is declared is."""
    write_runs(tmp_path, OTHER[case])
    for option, counted, seeds in (("seeds", "3 seeds, declared", (3, 0)), ("labels", "3 runs", (0, 0))):
        found = compared(tmp_path, baseline="B0", **{option: ["A=A*"]})
        cell = cell_of(found)
        assert cell.paired is not None
        assert (found.methods[0].counted, cell.paired.seeds) == (counted, seeds)


def test_copies_and_checkpoints_of_a_train_folder_are_one_training(tmp_path: Path) -> None:
    """By folder, by the id in run.json, and without ids by settings and seed; evaluations of one are averaged."""
    for i, train in enumerate(("x", "x", "y", "copy", "z")):
        folder = tmp_path / "results/train" / train
        if train == "copy":
            shutil.copytree(tmp_path / "results/train/y", folder)
        write_counts(tmp_path / f"results/eval/A{i}", np.roll(HALF, i), 4, train=folder, preset="gtpo")
    (method,) = compared(tmp_path, group_by="method").methods
    assert (method.counted, list(method.draws.values()), method.doubt) == ("5 runs of 3 seeds", [0, 0, 2, 2, 4], "")
    with pytest.raises(UserError, match="A2 and A3 are one training"):
        compared(tmp_path, seeds=["A=A2,A3,A4"])
    path = tmp_path / "results/train"
    for name, of_id in (("y", "1"), ("copy", "2")):  # trained twice with one seed: neither one draw nor two
        about = json.loads((path / name / "run.json").read_text())
        (path / name / "run.json").write_text(json.dumps(about | {"id": of_id}))
    (method,) = compared(tmp_path, group_by="method").methods
    assert (method.doubt, method.counted) == ("A2 and A3 have the same seed", "5 runs")
    assert compared(tmp_path, seeds=["A=A2,A3,A4"]).methods[-1].counted == "3 seeds, declared"


def test_stages_of_one_training_and_runs_on_other_data_are_no_seeds(tmp_path: Path) -> None:
    """Each stage begins from the one before it; and equal configs, of which run.json tells other data or parameters."""
    for i in range(3):
        for side in ("stage", "script"):
            folder = tmp_path / f"results/train/{side}-s{i}"
            write_counts(tmp_path / f"results/eval/{side}-s{i}", np.roll(HALF, i), 4, train=folder, preset="gtpo")
            if side == "stage" and i:
                TrainFolder(folder).update_run(base_model=str(tmp_path / f"results/train/stage-s{i - 1}/final"))
            if side == "script":
                TrainFolder(folder).update_run(dataset={"kept": 9 - i // 2}, parameters={"trained": 5 + i % 2})
    with pytest.raises(UserError, match=r"stage-s0 and stage-s1 are one training \(one began from the other"):
        compared(tmp_path, "stage*", seeds=["S=stage-s0,stage-s1,stage-s2"])
    assert compared(tmp_path, "stage*", group_by="method").methods[0].counted == "3 runs of 1 seed"
    found = compared(tmp_path, "script*")
    assert [method.counted for method in found.methods] == [""] * 3
    assert any("they differ in parameters.trained (5, 6)" in note for note in found.notes)


def test_three_files_a_side_are_methods_if_they_are_declared(tmp_path: Path) -> None:
    """The whole command, whose runs are named once; and what a wrong declaration costs."""
    rng = np.random.default_rng(3)
    for side, skill in (("a", 0.3), ("b", 0.9)):
        for i in range(3):
            right = rng.random((40, 2)) < skill + 0.02 * i
            rows = [
                {"id": f"q{q}", "gold": "4", "completions": [f"<answer>{4 + (not one)}</answer>" for one in of]}
                for q, of in enumerate(right)
            ]
            write_lines(tmp_path / f"{side}{i}.jsonl", rows)

    def run(*words: str, code: int = 0) -> Any:
        done = command_line("compare", *words, "--format", "json", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if not code else done.stderr

    both = ("--seeds", "A=a0.jsonl,a1.jsonl,a2.jsonl", "--seeds", "B=b0.jsonl,b1.jsonl,b2.jsonl", "--baseline", "A")
    document = run(*both)
    (verdict,) = (record for record in document["records"] if record["verdict"] and record["metric"] == "pass@k")
    assert (verdict["verdict"], verdict["speaks_of"]) == (BETTER, METHODS)
    assert [(m["name"], m["seeds_declared"], [r["training"] for r in m["runs"]]) for m in document["methods"]] == [
        ("A", True, [0, 1, 2]), ("B", True, [0, 1, 2])
    ]  # fmt: skip
    assert run(*both, "--looks", "2")["looks"] == 2
    shutil.copy(tmp_path / "a0.jsonl", tmp_path / "c.jsonl")
    refused = run("--seeds", "A=a0,a1,c.jsonl", "b0", code=2)
    assert "--seeds A: a0 and c are one training (equal files)" in refused
    assert "expected NAME=RUN[,RUN...]" in run("--seeds", "A=", code=2)
    assert "needs RUNS" in run(code=2)


def test_whichever_run_has_the_texts_they_count(tmp_path: Path) -> None:
    for name, correct, texts in (("a", HALF, [f"text {'ab'[i % 2]}" for i in range(40)]), ("b", HALF[::-1], [""] * 40)):
        write_counts(tmp_path / "results/eval" / name, correct, 4, texts=texts)
    found = []
    for names in ("ab", "ba"):
        runs, trains, _ = find_runs([str(tmp_path / "results/eval" / name) for name in names])
        found.append(compare(runs, trains, baseline="a", details=False, metrics=[Column(PASS, 1)]))
    assert [cell_of(one).paired.questions for one in found] == [2, 2]


def test_a_checkpoint_chosen_on_the_benchmark_must_win_in_the_mean(tmp_path: Path) -> None:
    low, high = np.repeat([1, 4], 20), np.repeat([3, 4], 20)
    write_counts(tmp_path / "results/eval/hub", low, 4)
    for i, correct in enumerate((low, low, high)):
        write_counts(tmp_path / f"results/eval/gtpo-{i}", correct, 4, train=tmp_path / "results/train/gtpo",
                     checkpoint=f"checkpoint-{i}", preset="gtpo")  # fmt: skip
    for name, correct in (("best", high), ("other", high)):
        write_counts(tmp_path / f"results/eval/{name}", correct, 4, train=tmp_path / f"results/train/{name}",
                     checkpoint="best" if name == "best" else "checkpoint-9", preset="gtpo")  # fmt: skip
    write_counts(
        tmp_path / "results/eval/best-final", low, 4, train=tmp_path / "results/train/best", checkpoint="final"
    )
    # Sampled in another way: no checkpoint's figure among those that one was chosen by.
    right = write_counts(tmp_path / "results/eval/greedy", np.repeat(4, 40), 4, train=tmp_path / "results/train/gtpo",
                         checkpoint="checkpoint-0", preset="gtpo")  # fmt: skip
    record = read_record(right)
    record.sampling.temperature = 0.0
    record.write(right)
    verdicts = {"gtpo-2": UNDECIDED, "best": BETTER, "other": BETTER}
    found = {}
    for name, verdict in verdicts.items():
        runs, trains, _ = find_runs([str(tmp_path / "results/eval" / one) for one in ("hub", name)])
        found[name] = compare(runs, trains, details=False, metrics=[Column(PASS, 1)])
        assert (name, cell_of(found[name]).verdict) == (name, verdict)
    assert [cell_of(one).checkpoints for one in found.values()] == [3, 1, 1]
    told = "3 checkpoints of its training were evaluated on b: the verdict must also hold for their mean, and does not"
    assert told in words_of(found["gtpo-2"])
    assert told in sentences(found["gtpo-2"])[0].further
    assert "checkpoints" not in words_of(found["best"])
    # Of a checkpoint that was looked at only in another way it is not known how it compares.
    record.model.checkpoint = "checkpoint-5"
    record.model.train_run = str(tmp_path / "results/train/other")
    record.write(right)
    runs, trains, _ = find_runs([str(tmp_path / "results/eval" / one) for one in ("hub", "other")])
    unknown = compare(runs, trains, details=False, metrics=[Column(PASS, 1)])
    assert (cell_of(unknown).verdict, cell_of(unknown).checkpoints) == (UNDECIDED, 2)
    assert "their mean, which is not known: not all were evaluated alike" in words_of(unknown)


def test_a_run_is_named_by_whatever_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an argument, with --baseline, with --seeds."""
    write_runs(tmp_path, OTHER["weights"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("results/eval/A0")
    for word in ("A0", "A0/", "results/eval/A0", "./results/eval/A0/", "results/eval/A0/eval.json", "link"):
        assert [run.name for run in find_runs([word])[0]] == ["A0"]
        assert compared(tmp_path, baseline=word).baseline == "A0", word
        assert compared(tmp_path, baseline="B0", seeds=[f"A={word},A1,A2"]).methods[0].counted == "3 seeds, declared"


def equal_methods(home: Path, rng: np.random.Generator, case: str) -> tuple[str, dict[str, Any]]:
    """Write the runs of two equal methods; return the pattern of what is compared, and how."""

    def sampled(logit: np.ndarray) -> np.ndarray:
        return rng.binomial(4, 1 / (1 + np.exp(-logit - 0.3 * rng.standard_normal(logit.size))))

    logit, place = rng.normal(0, 1.5, 60), home / "results"
    if case == "families":
        logit, unlike = np.repeat(rng.normal(0, 1.5, 20), 5), rng.normal(0, 1, (2, 20))
        texts = [f"{chr(65 + i // 5)} has {i} apples and {7 * i + 3} more." for i in range(100)]
        for name, of_family in zip("AB", unlike, strict=True):
            write_counts(place / f"eval/{name}", sampled(logit + np.repeat(of_family, 5)), 4, texts=texts)
        return "*", {}
    if case == "chosen":
        counts = [sampled(logit + rng.normal(0, 0.15)) for _ in range(6)]
        best = int(np.argmax([of.sum() for of in counts]))
        for i, of in enumerate(counts):
            name = "best-of-6" if i == best else f"left-{i}"
            write_counts(place / f"eval/{name}", of, 4, train=place / "train/A", checkpoint=f"checkpoint-{i}")
        write_counts(place / "eval/base", sampled(logit), 4)
        return "b*", {}
    for side in "AB":
        effects = rng.normal(0, 0.4, 3) if case in ("declared", "files") else [rng.normal(0, 0.4)] * 3
        for i, effect in enumerate(effects):
            kind = ("best", "final", "checkpoint-3")[i] if case == "checkpoints" else "best"
            known = {} if case in ("declared", "files") else {"train": place / f"train/{side}", "checkpoint": kind}
            write_counts(place / f"eval/{side}{i}", sampled(logit + effect), 4, preset=side, **known)
    names = ["A=A*", "B=B*"]
    return "*", {"group_by": "method"} if case == "grouped" else {"seeds" if case == "declared" else "labels": names}


# What is said of methods that are equal: draws, the scope, and how many may be marked.
NULL = {
    "declared": (25, METHODS, 2), "files": (5, OUTPUTS, 0), "grouped": (5, WEIGHTS, 0),
    "checkpoints": (5, OUTPUTS, 0), "chosen": (25, WEIGHTS, 3), "families": (40, WEIGHTS, 6),
}  # fmt: skip


@pytest.mark.parametrize("case", NULL)
def test_equal_methods_are_not_marked(case: str, tmp_path: Path) -> None:
    """Of methods whose seeds are not known nothing is said; of others at most one in ten of so few draws."""
    draws, scope, most = NULL[case]
    marked = 0
    for draw in range(draws):
        home = tmp_path / str(draw)
        pattern, options = equal_methods(home, np.random.default_rng([20261128, draw]), case)
        cell = cell_of(compared(home, pattern, **options))
        assert cell.paired is not None
        assert cell.paired.scope == scope
        marked += cell.direction != 0
    assert marked <= most


def test_what_a_server_is_and_does_not_take_is_no_difference(tmp_path: Path) -> None:
    """Its address and first texts are no setting, a refused parameter that is off is noted, and a mend has the URL."""
    engines: dict[str, dict[str, Any]] = {
        "a": {"name": "openai", "base_urls": ["http://one:1/v1"], "canaries": {"models": ["a"], "texts": {"u": ["x"]}}},
        "b": {"name": "openai", "base_urls": ["http://two:2/v1"], "canaries": {"models": ["b"], "texts": {"v": ["y"]}},
              "parameters_left_out": ["min_p"]},
    }  # fmt: skip
    for name, engine in engines.items():
        folder = write_counts(tmp_path / "results/eval" / name, HALF, 4, source=f"org/{name}")
        record = json.loads((folder / "eval.json").read_text()) | {"engine": engine}
        record["sampling"]["min_p"] = 0.0 if name == "a" else None
        (folder / "eval.json").write_text(json.dumps(record))
    notes = compared(tmp_path).notes
    assert [note for note in notes if "differ" in note] == [
        "min_p differs (a: 0.0; b: unknown), but a server that does not take it leaves it off",
        "also different, which can move samples: engine.parameters_left_out (a: unknown; b: ['min_p'])",
    ]
    record["sampling"]["temperature"] = 0.5
    (folder / "eval.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"mend it: gtpo eval org/b --base-url http://two:2/v1 --like \S*a --out"):
        compared(tmp_path)


@pytest.mark.parametrize("base", ["tiny", "other"])
def test_an_adapter_against_its_own_base_is_what_is_compared(base: str, tmp_path: Path) -> None:
    """Against a model that it does not lie on, an adapter is a difference that is named."""
    write_counts(tmp_path / "results/eval/plain", HALF, 4, source=base)
    write_counts(tmp_path / "results/eval/tuned", HALF, 4, source="tiny", adapter="tuned")
    assert any("adapter" in note for note in compared(tmp_path).notes) == (base == "other")
