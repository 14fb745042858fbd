"""What `make docs` checks of the pages: what they name exists, and their numbers are those of the files.

It runs under pytest, but is no test of the product: a page may be worded as its writer likes.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats

from bench import loss
from gtpo.common.files import read_json
from gtpo.config import HealthSection
from gtpo.train.health import Health

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(path.name for path in (ROOT / "docs").glob("*.md")), "../CONTRIBUTING.md"])
LARGEST = 6_000_000


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def published() -> Callable[[str], Any]:
    """Name below results/published, without its end -> what the JSON holds."""
    return lambda name: read_json(ROOT / f"results/published/{name}.json")


# -- what pages name ---------------------------------------------------------------------------------------------------


def is_defined(path: str, name: str) -> bool:
    """Return whether a Python file defines `function`, `Class`, `Class.method` or a constant."""
    source = (ROOT / path).read_text(encoding="utf-8")
    return all(
        re.search(rf"^\s*(?:(?:async )?def|class) {part}\b|^\s*{part}\s*(?::[^=\n]+)?=", source, re.MULTILINE)
        for part in name.split(".")
    )


@pytest.mark.parametrize("page", PAGES)
def test_places_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for path, name in re.findall(r"`((?:[\w-]+/)+[\w.-]+\.py)::([\w.]+)`", text):
        assert (ROOT / path).is_file(), path
        assert is_defined(path, name), f"{path}::{name}"


def test_recipes_of_the_readme_exist() -> None:
    recipes = set(re.findall(r"configs/[\w./-]+\.yaml", (ROOT / "README.md").read_text()))
    assert [name for name in sorted(recipes) if not (ROOT / name).exists()] == []


def test_a_machine_finds_every_page() -> None:
    listed = re.findall(r"\]\((\S+\.md)\)", (ROOT / "docs/llms.txt").read_text())
    assert listed == re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"\n## {version}," in (ROOT / "CHANGELOG.md").read_text()


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_what_is_published_is_small() -> None:
    files = (path for path in (ROOT / "results/published").rglob("*") if path.is_file())
    # Other tests import its scripts, and Python leaves compiled copies beside them.
    assert sum(path.stat().st_size for path in files if path.parent.name != "__pycache__") <= LARGEST


COMPUTED = ("+5.0 [+2.5, +7.6]",)
"""Intervals that another check computes from records."""


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorial.md", "docs/results.md"])
def test_intervals_in_a_page_are_those_of_the_evidence(page: str) -> None:
    files = ("demo/comparison", "demo/gtpo-against-grpo", "claims/tests", "real/runs", "real/arms", "small/README")
    evidence = "".join((ROOT / f"results/published/{name}.md").read_text() for name in files)
    evidence = re.sub(r"\\|\*\*| ±\d+\.\d", "", evidence)
    text = re.sub(r"`[^`\n]*`", "", (ROOT / page).read_text(encoding="utf-8"))
    intervals = re.findall(r"[+-]?\d+\.\d+(?: points)? \[[+-]?\d[^\]]*\]", text)
    assert intervals
    known = [number.replace(" points", "") for number in intervals]
    assert [number for number in known if number not in evidence and not in_points(number, evidence)] == []


def in_points(number: str, evidence: str) -> bool:
    """Return whether a difference in points stands in the evidence as a fraction, or is computed elsewhere."""
    parts = [float(part) for part in re.findall(r"[+-]?\d+\.\d+", number)]
    rows = re.findall(r"([+-]\d\.\d{3}) \[([+-]\d\.\d{3}), ([+-]\d\.\d{3})\]", evidence)
    return number in COMPUTED or any(
        all(abs(100 * float(there) - here) < 0.051 for there, here in zip(row, parts, strict=True)) for row in rows
    )


def test_the_collapse_is_the_published_one() -> None:
    rows = [json.loads(line) for line in (ROOT / "results/published/collapse/metrics.jsonl").read_text().splitlines()]
    tutorial = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    assert f"says so: {rows[-1]['completions/repeated']:.2f}." in tutorial
    health = Health(HealthSection())
    sentence = next(filter(None, (health.observe(row["step"], row).collapsed for row in rows)))
    assert f"collapse: {sentence} (health.on_collapse: warn)" in " ".join(tutorial.split())


def test_the_demo_on_file_took_what_is_said() -> None:
    minutes, seconds = re.search(
        r"^demo: (\d+):(\d+)$", (ROOT / "results/published/demo/time.txt").read_text(), re.MULTILINE
    ).groups()
    assert f"`gtpo demo` ({minutes} minutes)" in (ROOT / "README.md").read_text()
    assert f"{minutes}:{seconds} on an" in (ROOT / "docs/index.md").read_text()


def test_the_cost_of_the_harness_is_that_of_its_files() -> None:
    text = (ROOT / "results/published/bench/eval.md").read_text()
    rows = re.findall(r"\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \(.*?/(eval\w*\.json)\) \|", text)
    assert len(rows) == 4
    for samples, tokens, alone_ms, ratio, name in rows:
        measured = json.loads((ROOT / "results/published/bench" / name).read_text())
        assert int(samples.replace(",", "")) == measured["samples"]
        assert int(tokens) == round(measured["tokens"] / measured["samples"])
        bare = measured["seconds"]["bare"]
        assert float(alone_ms) == round(1e3 * sum(bare) / len(bare) / measured["samples"], 1)
        assert float(ratio) == round(measured["ratio_median"], 2)


def recomputed(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(folder / "recompute.py")]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_every_primary_test_follows_from_the_records(root: Path, tmp_path: Path) -> None:
    """From a copy of the folder, so from its files alone; and a number that is another one is seen."""
    folder = shutil.copytree(root / "results/published/claims", tmp_path / "claims")
    done = recomputed(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "all primary tests recomputed: 28 of 28 equal"
    answers = json.loads((folder / "answers.json").read_text())
    answers["first"][0]["effects"][0]["difference"] += 1e-6
    answers["second"][4]["verdict"] = "undecided"
    (folder / "answers.json").write_text(json.dumps(answers))
    done = recomputed(folder)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "all primary tests recomputed: 26 of 28 equal"
    assert "DIFFERS: ['difference']" in done.stdout
    assert "DIFFERS: ['verdict']" in done.stdout


def points(row: dict[str, Any]) -> str:
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * row[key] for key in ("difference", "low", "high")))


def test_the_pages_verdicts_are_those_of_the_answers(root: Path, published: Any) -> None:
    page, answers = (root / "results/published/claims/tests.md").read_text(), published("claims/answers")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    for row in answers["first"]:
        test = row["effects"][0]
        its = [line for line in lines if line.startswith(f"| {row['claim']} | {test['regime']}:")]
        assert len(its) == 1, row["claim"]
        assert its[0].endswith(f"| **{row['verdict']}** |")
        if ":" in test["measure"]:
            assert f"| {points(test)} |" in its[0]
    for row in answers["second"]:
        numbers = "{difference:+.3f} [{low:+.3f}, {high:+.3f}] | {p:.2g} | **{verdict}** |".format(**row)
        assert any(line.startswith(f"| {row['claim']} |") and line.endswith(numbers) for line in lines), row["claim"]
    verdicts = [row["verdict"] for part in answers.values() for row in part]
    effects = [row["effects"][0] for row in answers["first"]] + answers["second"]
    primary = {points(row) for row in effects if abs(row["difference"]) < 1}
    tests = published("small/results")["tests"]
    helped = {name: tests[name] for name in ("8 steps", "4 steps", "1 step")}
    primary |= {"{:+.1f} [{:+.1f}, {:+.1f}]".format(pairs["difference"], *pairs["95 %"]) for pairs in helped.values()}
    for page in ("README.md", "docs/results.md"):
        told = (root / page).read_text()
        assert f"{verdicts.count('undecided')} tests" in told
        for name, pairs in helped.items():
            row = "| {verdict} | {bases:.0f} to {0:.0f}, {1:.0f} |".format(*pairs["ends"], **pairs)
            assert re.search(rf"^\| {name}, training helps.*{re.escape(row)}$", told, re.MULTILINE), (page, name)
        rows = re.findall(
            r"^\| [^|]*(?:step|prompt|answers|parameters)[^|]* \| ([+-]\d+\.\d \[[^\]]+\]) \|", told, re.MULTILINE
        )
        assert len(rows) >= 4, page
        assert set(rows) <= primary, page


def began_and_ended(runs: dict[str, dict[str, Any]], regime: str) -> str:
    """Return the mean accuracy of the bases of a regime's runs, and of both methods' at the end, of GTPO's seeds."""

    def evaluated(row: dict[str, Any]) -> float:
        name = next(key for key in ("arithmetic", "word_problems") if row.get(f"{key}:correct"))
        return float(np.mean(row[f"{name}:correct"]) / row[f"{name}:n"])

    def ended(row: dict[str, Any]) -> float:
        validations = [value for value in row.get("validation/pass@1") or () if value is not None]
        return float(np.mean(validations[-2:])) if validations else evaluated(row)

    of = {method: [row for row in runs.values() if (row["regime"], row["method"]) == (regime, method)]
          for method in ("gtpo", "grpo")}  # fmt: skip
    seeds = {row["seed"] for row in of["gtpo"]}
    ends = [100 * np.mean([ended(row) for row in rows if row["seed"] in seeds]) for rows in of.values()]
    base = 100 * np.mean([evaluated(runs[row["base"]]) for row in of["gtpo"]])
    return f"| {base:.0f} to {ends[0]:.0f}, {ends[1]:.0f} |"


def test_where_the_runs_of_each_row_began_and_ended(root: Path, published: Any) -> None:
    folder = root / "results/published/claims"
    tables = {name: pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("first", "second")}
    runs = {name: {row["run"]: row for row in table} for name, table in tables.items()}
    rows = {"8 optimizer steps per rollout": ("second", "reuse-8"), "4 steps": ("second", "reuse-4"),
            "2 steps": ("second", "reuse-2"), "4 steps, answers share": ("second", "reuse-varied"),
            "1 step, stable training": ("second", "calm"), "one prompt per step": ("first", "micro-unstable"),
            "2.2 million parameters": ("first", "small-calm")}  # fmt: skip
    for page in ("README.md", "docs/results.md"):
        lines, told = (root / page).read_text().splitlines(), 0
        for start, (experiment, regime) in rows.items():
            for line in lines:
                if re.match(rf"\| {re.escape(start)}[^|]* \| [+-]\d", line) and not re.match(rf"\| {start},", line):
                    assert line.endswith(began_and_ended(runs[experiment], regime)), line
                    told += 1
        assert told >= 3, page
    names = ("untrained", *(f"records/real-gsm8k-{run}" for run in ("gtpo-s1", "gtpo-s2", "grpo-s1", "grpo-s2")))
    right = [100 * published(f"real/{name}")["summary"]["gsm8k"]["pass@k"]["1"]["mean"] for name in names]
    base, *ends = right
    qwen = f"| {base:.0f} to {np.mean(ends[:2]):.0f}, {np.mean(ends[2:]):.0f} |"
    assert re.search(rf"^\| Qwen.*{re.escape(qwen)}$", (root / "README.md").read_text(), re.MULTILINE)


def test_every_interval_of_the_small_models_was_computed(root: Path, published: Any) -> None:
    def intervals(value: Any) -> list[str]:
        if not isinstance(value, dict):
            return []
        own = (
            ["{:+.1f} [{:+.1f}, {:+.1f}]".format(value["difference"], *value["95 %"])] if "difference" in value else []
        )
        share = value.get("share")
        own += (
            []
            if share is None
            else [
                "{:.2f} [{}, {}]".format(share, *(f"{end:.2f}" if end != "infinite" else end for end in value["95 %"]))
            ]
        )
        return own + [text for part in value.values() for text in intervals(part)]

    page = (root / "results/published/small/README.md").read_text().partition("## What was found")[2]
    told = re.findall(r"[+-]?\d+\.\d+ \[[^\]]+\]", page)
    assert len(told) > 15
    assert set(told) <= set(intervals(published("small/results")))


def test_the_pairs_of_small_models(root: Path, published: Any) -> None:
    page = " ".join((root / "docs/results.md").read_text().replace("\n> ", " ").split())
    found = published("small/results")
    later, eight = found["afterwards"], found["tests"]["8 steps"]
    for steps in ("4 steps", "8 steps"):
        gain = found["by tokens"][steps]["tokens for the other's accuracy"]
        share, low, high = (f"{100 * each:.0f}" for each in (gain["share"], *gain["95 %"]))
        assert f"{share} % [{low}, {high}] of the tokens" in page
    assert f"(p = {eight['p, Holm']:.0e}".replace("e-0", "e-") in page
    interval = "{:+.1f} [{:+.1f}, {:+.1f}]".format(later["difference"], *later["95 %"])
    assert f"GTPO leads by {interval} points in the first {later['pairs']} pairs" in page
    tested, rows = found["tests"]["4 steps"], pq.read_table(root / "results/published/small/runs.parquet").to_pylist()
    right = {row["run"]: sum(row["lenient"]) for row in rows}
    for side, arm in (("a", "gtpo"), ("b", "grpo")):
        rate = float(tested[side].split(" at ")[1])
        below = sum(
            right[f"pairs-130k-4-{arm}-{rate:g}-s{seed}"] < right[f"base-130k-s{seed}"] for seed in range(201, 249)
        )
        assert (f"GTPO in {below}" if arm == "gtpo" else f"below its base in {below} of 48 pairs") in page
    rates = found["searches"]["130k, 4 a rollout"]["accuracy by rate"]["grpo"]
    means = [f"{np.mean(rates[rate]):.1f}" for rate in ("0.0004", "0.0002")]
    assert f"({means[0]} and {means[1]} %)" in page


def test_what_better_means_in_the_second_experiment(root: Path) -> None:
    """What conflict correction does by itself, and how conflict tokens rise, from the records."""
    rows = pq.read_table(root / "results/published/claims/second.parquet").to_pylist()

    def curves(regime: str, method: str) -> dict[int, Any]:
        mine = [row for row in rows if row["regime"] == regime and row["method"] == method]
        return {row["seed"]: np.array([v for v in row["validation/pass@1"] if v is not None]) for row in mine}

    page = " ".join((root / "docs/results.md").read_text().split())
    alone, grpo = curves("reuse-8", "gtpo-conflict-only"), curves("reuse-8", "grpo")
    found = 100 * np.array([alone[seed].mean() - grpo[seed].mean() for seed in alone])
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
    assert f"{found.mean():+.1f} [{found.mean() - half:+.1f}, {found.mean() + half:+.1f}]" in page
    mine = [row["conflict/fraction"] for row in rows if (row["regime"], row["method"]) == ("reuse-varied", "gtpo")]
    blocks = np.mean([[share for share in shares if share is not None] for shares in mine], axis=0)
    tenth = len(blocks) // 10
    assert f"from {100 * blocks[:tenth].mean():.0f} % to {100 * blocks[-tenth:].mean():.0f} % at the end" in page
    assert blocks[: len(blocks) // 2].max() < 0.055 < blocks[len(blocks) // 2 :].min()


def test_the_verifiers_page(root: Path, published: Any) -> None:
    page = (root / "docs/judge.md").read_text()
    ratios = [row["times_math_verify"] for row in published("bench/verify")["rows"] if row["contender"] == "gtpo"]
    told = f"{min(ratios):.0f} to {max(ratios):.0f} times Math-Verify's"
    assert told in " ".join(page.split())
    assert told in " ".join((root / "README.md").read_text().split())
    draws = published("bench/law")["draws"]
    assert sum(draw["paid"] for draw in draws) == 0
    attacks, looks = (sum(draw[what] for draw in draws) for what in ("attacks", "looks"))
    assert sum(draw["lost"] for draw in draws) == 0
    policy = " ".join((root / "docs/verification.md").read_text().split())
    assert f"0 of {attacks:,} copies were paid, 0 of {looks:,} golds lost" in policy


def test_the_runs_on_a_real_model(root: Path, published: Any) -> None:
    page = (root / "results/published/real/runs.md").read_text()
    runs = {"untrained": published("real/untrained")}
    for name in ("gtpo-s1", "grpo-s1", "gtpo-s2", "grpo-s2", "sft-s1"):
        runs[name] = published(f"real/records/real-gsm8k-{name}")
    for name, record in runs.items():
        found = record["summary"]["gsm8k"]
        interval = "{mean:.1f} [{low:.1f}, {high:.1f}]"
        metric = {key: 100 * found["pass@k"]["1"][key] for key in ("mean", "low", "high")}
        assert f"| {name} | {interval.format(**metric)} |" in page
        lenient, *rates = (found["lenient"]["pass@k"]["1"]["mean"], found["format_rate"], found["truncation_rate"])
        cells = [f"{100 * value:.1f}" for value in (lenient, *rates)]
        assert f"| {name} | {' | '.join(cells)} | {found['mean_tokens']:.0f} |" in page
    right = {name: 100 * record["summary"]["gsm8k"]["pass@k"]["1"]["mean"] for name, record in runs.items()}
    pairs = np.array([right[f"gtpo-s{seed}"] - right[f"grpo-s{seed}"] for seed in (1, 2)])
    half = stats.t.ppf(0.975, 1) * stats.sem(pairs)
    told = f"With two pairs it is [{pairs.mean() - half:+.1f}, {pairs.mean() + half:+.1f}]"
    assert told in (root / "docs/results.md").read_text()


def test_agreement_on_a_models_own_completions(root: Path, published: Any) -> None:
    page, report = (root / "results/published/bench/agreement.md").read_text(), published("real/agreement")
    for golds, rows in (("right", report["rows"]), ("of the next question (null)", report["null"])):
        for task, row in zip(("zero-shot", "few-shot"), rows, strict=True):
            names = ("lm_eval_flexible", "inspect_match", "gtpo_lenient", "agree_lm_eval", "agree_inspect")
            assert f"| {task} | {golds} | {' | '.join(f'{100 * row[name]:.1f}' for name in names)} |" in page
    by_reason: dict[str, list[str]] = {}
    for found in report["rows"][0]["differ"]:
        if found["lm_eval_right"] != (found["gtpo_verdict"] == "CORRECT"):
            by_reason.setdefault(found["why"], []).append(found["id"].rpartition("/")[2])
    for ids in by_reason.values():
        assert f"| {len(ids)} | {', '.join(ids)} | " in page


def head_rows(blocks: list[dict[str, Any]]) -> dict[str, str]:
    """Return the rows of a record's blocks of bench.loss: as the page on speed has them -> as loss.md has them."""
    rows = {}
    for block in blocks:
        size, head, time, memory, error = loss.cells(block)
        line = f"| {size} | {head} | {time} | {memory} | {error} |"
        rows[f"| {size}, {head} | {block['dtype']} | {time} | {memory} |"] = line
    return rows


def test_the_page_on_speed(root: Path, published: Any) -> None:
    page, record = ((root / f"results/published/bench/{name}.md").read_text() for name in ("one_pass", "loss"))
    rows = head_rows(published("bench/loss")["blocks"])
    with_amx = head_rows(published("bench/loss_amx")["blocks"])
    told = re.findall(r"^\| \d+ x .*$", page, re.MULTILINE)
    assert len(told) >= 4
    assert set(told) <= set(rows)
    assert sorted(re.findall(r"^\| \d+ x .*$", record, re.MULTILINE)) == sorted([*rows.values(), *with_amx.values()])
    frozen = [re.findall(r"\d\.\d\d", row)[0] for row in with_amx.values() if "frozen" in row]
    assert f"takes {frozen[0]} of them at D = 2048, {frozen[1]} at D = 896" in " ".join(page.split())
    products = [
        {(b["shape"], b["head"]): b["contenders"]["bare matmuls"]["seconds"] for b in blocks if b["dtype"] == "bfloat16"
         and b["gate"] == "on"} for blocks in (published("bench/loss")["blocks"], published("bench/loss_amx")["blocks"])
    ]  # fmt: skip
    faster = [products[0][case] / seconds for case, seconds in products[1].items()]
    told = f"With AMX the products are {min(faster):.0f} to {max(faster):.0f} times as fast"
    assert all(told in " ".join(text.split()) for text in (page, record))
    step, sampled = (
        published(f"bench/{name}")["cases"]["lora, frozen head"] for name in ("step_bfloat16", "step_bfloat16_sampled")
    )
    time, memory = step["ratio"]["cpu_seconds"], step["ratio"]["peak_bytes"]
    readme = " ".join((root / "README.md").read_text().split())
    assert f"{time:.2f} of the CPU time and {memory:.2f} of the memory of TRL's GRPO" in readme
    for told in (
        f"{time:.2f} of the processor time and {memory:.2f} of the memory of TRL's GRPO step",
        f"and {step['ratio_with_kl']['cpu_seconds']:.2f} of the time if GRPO has its KL term",
        f"it is {sampled['ratio']['cpu_seconds']:.2f} of the processor time",
    ):
        assert told in " ".join(page.split())
    blocks = {(b["shape"], b["head"]): b for b in published("bench/head_cuda")["blocks"]}
    every = [loss.ratio(block, "bare matmuls") for block in blocks.values()]
    assert f"takes {min(every):.2f} to {max(every):.2f} times its bare matmuls" in " ".join(page.split())
    for tokens in (8192, 1024):
        its = [loss.ratio(blocks[f"{tokens}x4096x128256", head], "bare matmuls") for head in ("frozen", "trainable")]
        assert f"| {tokens:,} | {its[0]:.2f} | {its[1]:.2f} |" in page
    steps = published("bench/step_head")["turns"]
    lora, whole = (
        [statistics.median(steps[when][case]["cpu_seconds"]) for when in ("after", "before")]
        for case in ("lora", "all")
    )
    assert f"took {lora[0]:.1f} processor seconds in bfloat16 with AMX and LoRA, and {lora[1]:.1f} before" in " ".join(
        record.split()
    )
    assert f"it took {whole[0]:.1f} and {whole[1]:.1f} " in " ".join(record.split())


def test_what_ran_on_a_gpu(root: Path, published: Any) -> None:
    blocks = {(b["shape"], b["head"]): b for b in published("bench/loss_cuda")["blocks"]}
    ratios = [loss.ratio(blocks[f"{n}x4096x128256", "frozen"], "bare matmuls") for n in (8192, 1024)]
    told = "took {:.2f} of its two bare matmuls at 8,192 tokens of the 8B shape on an H200, frozen and in bfloat16, and"
    assert f"{told.format(ratios[0])} {ratios[1]:.2f} at" in " ".join(
        (root / "results/published/bench/loss.md").read_text().split()
    )
    gpu = root / "results/published/gpu"
    launches = [(gpu / run / "metrics.jsonl").read_text().splitlines()[:2] for run in ("ddp", "fsdp2")]
    one, other = ([json.loads(line)["loss"] for line in lines] for lines in launches)
    assert one == other
    metric = published("gpu/gpu-gsm8k-gtpo/eval")["benchmarks"]["gsm8k"]["pass@k"]["1"]
    told = "{:.1f} % [{:.1f}, {:.1f}] are right".format(*(100 * metric[key] for key in ("mean", "low", "high")))
    assert told in " ".join((root / "results/published/real/runs.md").read_text().split())
    for run in ("q1", "q05", "q3"):
        peak = published(f"gpu/{run}/run")["peak_memory_bytes"] / 2**30
        assert f" | {peak:.2f} |" in (root / "configs/README.md").read_text()


def test_the_page_on_a_real_model(root: Path, published: Any) -> None:
    page = " ".join((root / "results/published/real/arms.md").read_text().split())
    weights, runs = published("real/arms/selection"), published("real/arms/lengths")
    for rule in ("conflict", "gate", "format 10 or 0"):
        assert weights[rule]["held"]
        assert "{:+.3f} ({:+.3f} to {:+.3f})".format(*weights[rule]["less grpo"]) in page
    assert f"GRPO's {weights['grpo']['selection'][0]:.3f}" in page
    tokens = {name: run["tokens at 26 to 35"] for name, run in runs.items() if run["steps"] == 40}
    for arm, label in {"a": "GRPO", "b": "GTPO", "c": "only the conflict weights", "d": "only the gate"}.items():
        cells = " | ".join("{:.0f}".format(tokens[f"{arm}-s{seed}"]) for seed in range(7, 11))
        assert f"| {label} | {cells} |" in page
    assert f"{tokens['e-s3']:.0f} and {tokens['e-s4']:.0f} tokens in its two runs (first loan) | failed" in page
    assert f"GRPO fell to {tokens['a-s4']:.0f} and {tokens['a-s6']:.0f} tokens in the loan of the" in page
    last = [run["tokens at the last five"] for run in runs.values() if run["steps"] == 40]
    rows = pq.read_table(root / "results/published/real/arms/completions.parquet").to_pylist()
    means = [
        [np.mean([row["format"] for row in its if lowest <= row["step"] < lowest + 5]) for lowest in (1, 36)]
        for name in tokens if (its := [row for row in rows if row["run"] == name])
    ]  # fmt: skip
    assert f"to {min(last):.0f} to {max(last):.0f}, while the format reward rose from 1 to 9 or 10" in page
    assert all(0.5 < first < 1.6 and 8.9 < end <= 10 for first, end in means)
    norms = [published(f"real/arms/{arm}-s{seed}")["curves"]["grad_norm"] for arm in "abcd" for seed in range(7, 11)]
    assert sum(map(len, norms)) == 640
    assert not any(None in norm for norm in norms)
    least = published("real/arms/tests")["f"]["least mean of 5 steps"]["f-s13"]
    assert f"| {least:.0f}, the least mean of five steps in its one run | says nothing |" in page
    tests, results = published("real/arms/tests"), " ".join((root / "docs/results.md").read_text().split())
    for pair in ("b - a", "d - c", "c - a"):
        assert not tests[pair]["held"]
        assert not tests[pair]["equivalent"]
        assert "| {:+.2f} ({:+.2f} to {:+.2f}) | not shown |".format(*tests[pair]["mean, 95 %"]) in page
        if pair != "c - a":
            assert "{:.2f} [{:.2f}, {:.2f}] times".format(*np.exp(tests[pair]["mean, 95 %"])) in results


def test_what_both_loans_showed(root: Path, published: Any) -> None:
    """Ratios, exact tests, power and accuracy on the pages are those of marks.py, computed anew."""
    found = published("real/arms/afterwards")
    pages = [
        " ".join((root / name).read_text().split()) for name in ("results/published/real/arms.md", "docs/results.md")
    ]
    gtpo, gate = ([f"{times:.2f}" for times in found["windows"]["16 to 24"][arm]["times as long as (a)"]]
                  for arm in ("b - a", "d - a"))  # fmt: skip
    assert (
        f"GTPO's answers are {gtpo[0]} times as long as GRPO's of the same seed in the first loan and {gtpo[1]}"
        in pages[0]
    )
    assert f"in the second, the gate's {gate[0]} and {gate[1]}" in pages[0]
    assert f"GTPO's answers were {gtpo[0]} and the gate's {gate[0]} times as long" in pages[1]
    assert f"in the second {gtpo[1]} and {gate[1]}" in pages[1]
    early = [
        found["windows"][name][arm]
        for name in ("16 to 20", "16 to 24", "16 to 25", "21 to 25")
        for arm in ("b - a", "d - a")
    ]
    assert all(test["every pair of the first above"] for test in early)
    p = [test["p, one-sided"] for test in early]
    assert f"p = {min(p):.3f} to {max(p):.3f}; the windows were chosen afterwards" in pages[0]
    later = {
        arm: [window[arm] for name, window in found["windows"].items() if int(name[:2]) > 25]
        for arm in ("b - a", "d - a")
    }
    assert all(test["every pair of the first above"] for test in later["d - a"])
    assert not any(test.get("every pair of the first above") for test in later["b - a"])
    power, right = found["power"], found["lenient pass@1 at step 40"]
    ends = [100 * value for value in right["runs"].values()]
    for page in pages:
        assert (
            f"in {100 * power['b - a']['1.8']:.0f} and {100 * power['d - c']['1.8']:.0f} % of such experiments" in page
        )
        assert f"{min(ends):.1f} to {max(ends):.1f} %, {100 * right['mean']:.1f} on average" in page
        assert f"{len(ends)} " in page
        assert f"{100 * right['untrained']:.1f}" in page
    least = found["least mean of five steps"]
    assert f"all {least['runs']} finished runs of all arms have {least['of any']:.0f} or more" in pages[0]


def test_dynamic_sampling_on_a_real_model(root: Path, published: Any) -> None:
    page = (root / "results/published/real/README.md").read_text()
    plain, again = (published("real/dynamic")["runs"][name] for name in ("0", "3"))
    assert plain["steps"] == again["steps"] == 40
    means = [{name: float(np.mean(values)) for name, values in run["by_step"].items()} for run in (plain, again)]
    equal = "groups/zero_variance"
    for label, values in (
        ("drawn", (means[0][equal], means[1][f"{equal}_drawn"])),
        ("trained on", (means[0][equal], means[1][equal])),
    ):
        cells = " | ".join(f"{100 * value:.0f} %" for value in values)
        assert f"| groups with equal rewards, as {label} | {cells} |" in page
    assert round(sum(8 * (1 + draws) for draws in again["by_step"]["groups/resampled"])) == again["completions_drawn"]
    assert f"| completions sampled | {plain['completions_drawn']} | {again['completions_drawn']} |" in page
