"""The pages show what the files of the real models' measurements say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.claims.measures import curve
from bench.claims.page import RESULTS, replaced
from bench.claims.plan import load_plan
from bench.real_page import blocks_of, conflict_shares, conflict_table, primary, section, training_table
from bench.real_runs import KINDS, PLAN, best_rate, validation_and_times
from gtpo.common.log import duration
from gtpo.run.progress import summary


def test_agreement_on_a_models_own_completions(root, published) -> None:
    page = (root / "docs/evaluation.md").read_text()
    report = published("real/agreement")
    for golds, rows in (("right", report["rows"]), ("of the next question (null)", report["null"])):
        for task, questions, row in zip(("zero-shot", "few-shot"), (1000, 500), rows, strict=True):
            assert row["questions"] == row["same_prompts"] == questions
            assert row["agree_lm_eval"] == pytest.approx(1 - len(off_lm_eval(row)) / questions)
            names = ("lm_eval_flexible", "inspect_match", "gtpo_lenient", "agree_lm_eval", "agree_inspect")
            assert f"| {task} | {golds} | {' | '.join(f'{100 * row[name]:.1f}' for name in names)} |" in page
    by_reason: dict[str, list[str]] = {}
    for difference in off_lm_eval(report["rows"][0]):
        by_reason.setdefault(difference["why"], []).append(difference["id"].rpartition("/")[2])
    assert f"{sum(map(len, by_reason.values()))} verdicts differ" in page
    for ids in by_reason.values():
        assert f"| {len(ids)} | {', '.join(ids)} | " in page
    reasons = [d["why_inspect"] for d in report["rows"][0]["differ"] if "why_inspect" in d]
    boxes = sum("in a box" in reason for reason in reasons)
    assert len(reasons) == round(1000 * (1 - report["rows"][0]["agree_inspect"]))
    assert f"Of {len(reasons)} differences from inspect_ai under that task, {boxes} are answers in a box" in page


def off_lm_eval(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the differences in which lm-eval and gtpo have different verdicts."""
    return [d for d in row["differ"] if d["lm_eval_right"] != (d["gtpo_verdict"] == "CORRECT")]


def test_both_data_types(root, published) -> None:
    page = (root / "docs/laptop.md").read_text()
    rows = published("real/dtypes")["rows"]
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}
    for row in rows:
        accuracy = row["pass@1"]
        interval = f"{100 * accuracy['mean']:.1f} [{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]"
        cells = (row["model"], row["dtype"], row["questions"], row["samples"], interval)
        assert f"| {' | '.join(map(str, cells))} | {row['processor_seconds']:.0f} |" in page


def test_without_bfloat16(root, published) -> None:
    page = (root / "docs/laptop.md").read_text()
    last = published("real/products")["rows"][-1]
    assert last["rows"] == 1600
    told = "1,600 tokens at {bfloat16:.0f} GFLOP/s in bfloat16 on one core, and at {float32:.0f} in float32"
    assert told.format(**last["gflop_per_second"]) in " ".join(page.split())
    report = published("real/laptop")
    assert not report["multiplies_bfloat16"]
    rows = [row for row in report["rows"] if row["measure"] == "sampling"]
    assert {row["threads"] for row in rows} == {1}
    short, long = (sum(row["seconds"] for row in rows if row["how"] == f"blocks of {of}") / 2 for of in (32, 128))
    assert f"took {short:.0f} s so, and {long:.0f} s with vLLM's 128" in " ".join(page.split())
    run, folder = published("real/qwen-float32/run"), root / "results/published/real/qwen-float32"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert run["dtype"] == "float32"
    flat = " ".join(page.split())
    step, sampling, length = (last[key] for key in ("time/step", "time/generation", "completions/length"))
    assert f"took {step:.0f} s, of which {sampling:.0f} s for sampling 16 completions of {length:.0f} tokens" in flat
    assert f"at most {run['peak_memory_bytes'] / 2**30:.1f} GiB" in flat


def test_h_ini_takes_what_the_page_says(root, published) -> None:
    page = (root / "docs/laptop.md").read_text()
    for name in ("run", "run_avx512"):
        run = published(f"real/qwen-times/{name}")
        found = run["initial_entropy"]
        assert (run["dtype"], run["hardware"]["cpus"], found["samples"]) == ("bfloat16", 2, 100)
        assert f"took {duration(found['seconds'])}" in page


def test_the_first_steps(root, published) -> None:
    page, folder = (root / "docs/laptop.md").read_text(), "real/first-steps"
    for run in ("real-sft", "real-gtpo", "real-grpo", "smollm2-135m"):
        report = published(f"{folder}/{run}/eval")
        of = f"of the original model, {32 * report['sampling']['n']} completions of at most 48 tokens"
        assert report["sampling"]["max_tokens"] == 48
        command = f"`gtpo eval` {of}" if run == "smollm2-135m" else f"`gtpo eval {run}`"
        assert f"| {command} | {report['wall_seconds']:.0f} |" in page
    notes, primary_metric, rest, *_ = (root / f"results/published/{folder}/comparison.txt").read_text().split("\n\n")
    assert notes.startswith("note: ")
    verdicts = [line for line in rest.splitlines() if "(these weights) is better" in line]
    assert len(verdicts) == 3
    assert "\n".join(("```", primary_metric, *verdicts, "```")) in page
    against_sft = (root / f"results/published/{folder}/against-sft.txt").read_text()
    assert [f"{run} against real-sft is undecided" in against_sft for run in ("real-grpo", "real-gtpo")] == [True, True]
    runs = {method: published(f"{folder}/real-{method}/run") for method in ("sft", "gtpo", "grpo")}
    for method, started in (
        ("sft", "laptop/first-steps-sft`, 14 steps"),
        ("gtpo", "laptop/first-steps --method gtpo`, 3 steps of 8 completions"),
        ("grpo", "laptop/first-steps --method grpo`"),
    ):
        assert f"| `gtpo train {started} | {runs[method]['wall_time_s']:.0f} |" in page
    measured = runs["gtpo"]["initial_entropy"]
    assert f"| of these, H_ini of {measured['samples']} completions | {measured['seconds']:.0f} |" in page
    assert f"entropy filter off: {measured['nats']:.3f} >= 0.693 (H_ini of" in page
    for line in (root / f"results/published/{folder}/real-gtpo/metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert f"real-gtpo (gtpo) {row['step']}/3  {summary(row)}  (" in page


def test_the_pages_section_is_that_of_the_records() -> None:
    assert replaced(RESULTS, {"runs": section(load_plan(PLAN))}, "real") == RESULTS.read_text()


def record_of(correct: Any, shares: list[float] | None = None) -> dict[str, Any]:
    steps = list(range(1, 13))
    kinds = {f"{part}/{kind}": [4 if part == "tokens" else 1] * 12 for part in ("tokens", "conflict") for kind in KINDS}
    return {
        "evaluation": {"gsm8k": {"n": 4, **{key: list(correct) for key in ("correct", "format_ok", "maj")}}},
        "curves": {"last_step_of_block": steps, "metrics": {"reward/format": {"mean": shares or [None] * 12}}},
        "conflict_kinds": {"step": steps, **kinds},
    }


def test_what_the_text_says_of_the_runs(root, published) -> None:
    one, two = (published(f"real/records/real-gsm8k-gtpo-s{seed}") for seed in (1, 2))
    grpo, other = (published(f"real/records/real-gsm8k-grpo-s{seed}") for seed in (1, 2))
    for record in (one, two):
        assert curve(record, "reward/format")[1][15:25].mean() > 8.5
    length = curve(two, "completions/length")[1]
    assert 45 < length[30:50].mean() < 55
    assert length[-10:].mean() > 2 * length[30:50].mean()
    ends = [record["summary"]["gsm8k"]["pass@k"]["1"]["mean"] for record in (one, two)]
    assert ends[1] / ends[0] == pytest.approx(0.5, abs=0.05)
    dropped = [
        100 * (1 - np.mean(blocks)) for blocks in zip(*(blocks_of(r, "gate/kept") for r in (one, two)), strict=True)
    ]
    first, second, last = (f"{dropped[at]:.0f} %" for at in (0, 1, -1))
    said = " ".join(RESULTS.read_text().split())
    untrained = json.loads((root / "results/published/real/untrained.json").read_text())
    lenient = [100 * r["summary"]["gsm8k"]["lenient"]["pass@k"]["1"]["mean"] for r in (untrained, one, two)]
    assert "seed 1 rose from {:.1f} to {:.1f} %; seed 2 ended at {:.1f} %".format(*lenient) in said
    assert (
        f"drops {first} of the completions in the first ten steps, {second} in the next and {last} in the last" in said
    )
    search = published("real/records/real-search-5e-5-grpo-s101")
    formats = [curve(record, "reward/format")[1][20:25].mean() for record in (one, two, search, grpo, other)]
    told = (
        "GTPO's format reward was {:.1f} and {:.1f} of 10, that of the search's GRPO run at the same rate {:.1f}. "
        "GRPO's seeds have {:.1f} and {:.1f} there."
    )
    assert told.format(*formats) in said
    compared = ([grpo], [other], [one, two])
    equal = [100 * np.mean([curve(r, "groups/zero_variance")[1][20:] for r in runs]) for runs in compared]
    ends_of_grpo = [record["summary"]["gsm8k"] for record in (grpo, other)]
    of_grpo = [100 * end["pass@k"]["1"]["mean"] for end in ends_of_grpo]
    tokens = [end["mean_tokens"] for end in ends_of_grpo]
    assert f"{of_grpo[0]:.1f} % are right at the end, in answers of {tokens[0]:.0f} tokens" in said
    assert f"{of_grpo[1]:.1f} % are right at the end. From step 21 on" in said
    alone = [curve(other, name)[1][8:] for name in ("reward/format", "completions/length")]
    assert alone[0] == pytest.approx(1.0, abs=0.05)
    assert (alone[1].mean(), max(alone[1])) == (pytest.approx(10, abs=1), pytest.approx(10, abs=3))
    assert (other["summary"]["gsm8k"]["format_rate"], other["program"]) == (0.0, "bench.rollout_log")
    told = "From step 21 on, {:.0f} and {:.0f} % of their groups earned equal rewards (GTPO: {:.0f} %)"
    assert told.format(*equal) in said
    sft = published("real/records/real-gsm8k-sft-s1")
    assert sft["config"]["training"]["gradient_accumulation_steps"] == 4
    assert (sft["train"]["step"], sft["config"]["training"]["per_device_train_batch_size"]) == (80, 4)
    assert (sft["train"]["started"][:10], sft["train"]["hardware"]["torch_threads"]) == ("2026-11-25", 2)
    found = sft["summary"]["gsm8k"]
    right, in_any = (100 * metric["1"]["mean"] for metric in (found["pass@k"], found["lenient"]["pass@k"]))
    assert (
        f"80 steps of 16 written solutions of GSM8K. {right:.1f} % are right at the end, as with GTPO's seed 2. "
        f"Right in any format are {in_any:.1f} % (untrained: {lenient[0]:.1f})" in said
    )
    assert right == pytest.approx(100 * ends[1], abs=0.5)
    assert f"GTPO's own seeds differ by {100 * (ends[0] - ends[1]):.0f} points" in said
    assert (grpo["program"], grpo["config"]["training"]["per_device_train_batch_size"]) == ("bench.bfloat16_cpu", 8)
    assert not any("program" in record for record in (one, two))
    rates = [record["config"]["training"]["learning_rate"] for record in (one, two, grpo, other, search)]
    assert rates == [5e-5] * 5
    shares = [np.mean([conflict_shares(record, *KINDS)[at] for record in (one, two)]) for at in (0, -1)]
    assert f"rise from {shares[0]:.0f} to {shares[1]:.0f} % of all tokens" in said
    found = {kind: sum(sum(record["conflict_kinds"][f"conflict/{kind}"]) for record in (one, two)) for kind in KINDS}
    of = {kind: f"{100 * count / sum(found.values()):.0f} %" for kind, count in found.items()}
    assert (
        f"Of them {of['tag']} are tags, {of['word']} words, {of['number']} numbers and {of['end']} last tokens" in said
    )
    strict = [100 * r["summary"]["gsm8k"]["pass@k"]["1"]["mean"] for r in (untrained, one, two)]
    told = "{:.1f} before, {:.1f} and {:.1f} after; of GRPO, two seeds: {:.1f} and {:.1f}; of SFT, one: {:.1f}.".format(
        *strict, *of_grpo, right
    )
    assert told in (root / "README.md").read_text()
    printed = (root / "results/published/real/resumed-steps.txt").read_text().splitlines()
    assert printed[::2] == printed[1::2]
    assert [int(line.split("/80")[0].split()[-1]) for line in printed[::2]] == [16, 61, 62, 63, 64, 36]


def test_the_rate_is_what_the_search_chose(published) -> None:
    found = published("real/search")
    searched = [published(f"real/records/real-search-{rate}-grpo-s101") for rate in ("5e-5", "2e-4")]
    rate, rows = best_rate(searched)
    assert found == {"learning_rate": rate, "from": rows}
    for seed in (1, 2):
        assert published(f"real/records/real-gsm8k-gtpo-s{seed}")["config"]["training"]["learning_rate"] == rate


def test_a_verdict_needs_pairs() -> None:
    rng = np.random.default_rng(0)
    lower, higher = (rng.binomial(4, p, size=(6, 200)) for p in (0.1, 0.5))
    runs = {"gtpo": dict(enumerate(map(record_of, higher))), "grpo": dict(enumerate(map(record_of, lower)))}
    assert "no pair of runs" in primary({"gtpo": runs["gtpo"]})
    one = primary({name: {0: its[0]} for name, its in runs.items()})
    assert "too few pairs" in one
    assert "questions, not seeds" in one
    six = primary(runs)
    assert "GTPO is better" in six
    assert "questions and seeds" in six
    assert "GRPO is better" in primary({"gtpo": runs["grpo"], "grpo": runs["gtpo"]})
    assert "undecided" in primary({"gtpo": runs["gtpo"], "grpo": runs["gtpo"]})


def test_training_in_blocks_of_ten_steps() -> None:
    record = record_of([0], [1.0] * 10 + [3.0, None])  # type: ignore[list-item]
    assert blocks_of(record, "reward/format") == [1.0, 3.0]
    assert training_table([record, record]).splitlines()[2:] == ["| 1-10 | 1 |", "| 11-20 | 3 |"]


def test_conflict_tokens_in_blocks_of_ten_steps() -> None:
    record = record_of([0])
    record["conflict_kinds"]["conflict/tag"] = [2] * 12
    assert conflict_shares(record, "tag") == [50.0, 50.0]
    assert conflict_shares(record, "tag", "word") == [37.5, 37.5]
    assert conflict_table([record, record]).splitlines() == [
        "| steps | all | tags | ends | numbers | words |",
        "|:--|--:|--:|--:|--:|--:|",
        "| 1-10 | 31.2 | 50 | 25 | 25 | 25 |",
        "| 11-20 | 31.2 | 50 | 25 | 25 | 25 |",
    ]


def test_what_a_record_keeps_validation_and_times(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"validation": {"untrained": 0.1, "problems": ["a"]}}))
    rows = [{"step": 1, "time/step": 9.0}, {"step": 2, "time/step": 5.0}, {"step": 3, "time/step": 6.04}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert validation_and_times(tmp_path) == {"validation": {"untrained": 0.1}, "median_seconds": {"time/step": 6.0}}
