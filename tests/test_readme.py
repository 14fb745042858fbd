"""What the README promises: its script runs, its files and targets exist, its rows are read."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from forks import command_line

from gtpo.config import BuiltModel


@pytest.fixture(scope="module")
def readme(root) -> str:
    return (root / "README.md").read_text()


@pytest.mark.slow
def test_the_trl_users_script_runs(readme, root, tmp_path):
    """The script as printed, except for the two lines that need the Hub, and one step instead of a hundred."""
    from gtpo.inputs.tiny import build_tiny_model

    spec = BuiltModel(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model, tokenizer = build_tiny_model(spec, max_seq_length=512, seed=0)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    script = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    for printed, here in {
        'load_dataset("openai/gsm8k", "main", split="train")': (
            'load_dataset("json", data_files="rows.jsonl", split="train")'
        ),
        "Qwen/Qwen2.5-0.5B-Instruct": str(tmp_path / "tiny"),
        "max_steps=100": 'max_steps=1, max_completion_length=8, use_cpu=True, bf16=False, report_to="none"',
    }.items():
        assert printed in script
        script = script.replace(printed, here)
    rows = [{"question": f"{a} + 1?", "answer": f"{a} + 1 = {a + 1}\n#### {a + 1}"} for a in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train_loss" in done.stdout


def test_its_recipes_and_pages_exist(readme, root):
    linked = set(re.findall(r"\]\(([^)#:]+)\)", readme)) | set(re.findall(r"configs/[\w./-]+\.yaml", readme))
    assert linked
    assert [name for name in sorted(linked) if not (root / name).exists()] == []


def test_its_make_targets_exist(readme, root):
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)(?:[`;\s])", readme)) & targets >= {"demo", "test", "docs", "clean-demo"}


def test_its_row_of_recorded_completions_is_scored(readme, root, tmp_path):
    row = re.search(r"my_samples.jsonl .*# a row: (\{.*\})", readme).group(1)
    (tmp_path / "my_samples.jsonl").write_text(row + "\n")
    done = command_line("eval", "--completions", "my_samples.jsonl", "--k", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results/eval/my_samples/eval.json").read_text())
    assert results["benchmarks"]["my_samples"]["pass@k"]["1"]["mean"] == 0.5


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/tutorial.md"])
def test_the_demos_tables_are_the_published_ones(page, root):
    demo = root / "results/published/demo"
    published = {
        line for name in ("comparison.md", "gtpo-against-grpo.md") for line in (demo / name).read_text().splitlines()
    }
    rows = re.findall(r"^\| demo-.*\|$", (root / page).read_text(), re.MULTILINE)
    assert len(rows) >= 4
    assert [row for row in rows if row not in published] == []


def test_the_demo_on_file_took_what_is_said(readme, root):
    minutes, seconds = re.search(
        r"^demo: (\d+):(\d+)$", (root / "results/published/demo/time.txt").read_text(), re.MULTILINE
    ).groups()
    assert f"compare: about {minutes} minutes" in readme
    assert f"{minutes}:{seconds} on an" in (root / "docs/index.md").read_text()


def test_the_cost_of_the_harness_is_that_of_its_files(root):
    text = (root / "docs/evaluation.md").read_text()
    rows = re.findall(r"\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \(.*?/(eval\w*\.json)\) \|", text)
    assert len(rows) == 4
    for samples, tokens, alone_ms, ratio, name in rows:
        measured = json.loads((root / "results/published/bench" / name).read_text())
        assert int(samples.replace(",", "")) == measured["samples"]
        assert int(tokens) == round(measured["tokens"] / measured["samples"])
        bare = measured["seconds"]["bare"]
        assert float(alone_ms) == round(1e3 * sum(bare) / len(bare) / measured["samples"], 1)
        assert float(ratio) == round(measured["ratio_median"], 2)
