"""Which scoring is the headline: chosen once, by what completions hold, and the same wherever a file is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_lines

from gtpo.evalkit.evaluation.caveats import misfit
from gtpo.rewards.__main__ import main
from gtpo.rewards.adapters import correct
from gtpo.runs.eval_record import EvalRecord, read_record


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
