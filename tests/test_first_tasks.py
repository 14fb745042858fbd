"""Four first tasks with the README alone, timed: the built wheel in a new environment, each task in a new folder.

    pytest tests/test_first_tasks.py -s -m slow     prints what was typed and how long it took

The fifth is the demo: `gtpo demo` prints its own time. The environment is a venv that sees this one's packages, so
installation is counted as a command and not timed. The model is a tiny one built here, where the README names one of
the Hub; the file's rows are those that the README shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
TRL_SCRIPT = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def brevity(completions, **columns):
    return [-len(text) / 100 for text in completions]


rows = Dataset.from_list([{"prompt": f"What is {a} + 1?"} for a in range(16)])
config = GRPOConfig(
    output_dir="out", num_generations=4, per_device_train_batch_size=4, max_steps=2, max_completion_length=8,
    report_to="none", use_cpu=True, bf16=False,
)
trainer = GRPOTrainer("MODEL", reward_funcs=brevity, args=config, train_dataset=rows)
trainer.train()
"""


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text()


@pytest.fixture(scope="module")
def bin(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which only the built wheel was installed, with this one's packages behind."""
    folder = tmp_path_factory.mktemp("fresh")
    for name in subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True).stdout.splitlines():
        if (root / name).is_file() and not name.startswith(("results/", "tests/", "bench/")):
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / "tree" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    without = ["--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "wheel", *without, "--wheel-dir", folder, folder / "tree"], folder)
    run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    python = folder / "venv/bin/python"
    run([*pip, "--python", python, "install", *without, next(folder.glob("*.whl"))], folder)
    own = next((folder / "venv/lib").glob("python3*/site-packages"))
    (own / "behind.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    where = run([python, "-c", "import gtpo.cli; print(gtpo.cli.__file__)"], folder).stdout
    assert where.startswith(str(own)), where
    return folder / "venv/bin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    folder = tmp_path_factory.mktemp("model") / "tiny"
    spec = BuiltModel(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    for part in build_tiny_model(spec, max_seq_length=512, seed=0):
        part.save_pretrained(folder)
    return folder


def run(command: list[object], folder: Path, bin: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = f"{bin}{os.pathsep}{os.environ['PATH']}" if bin else os.environ["PATH"]
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def typed(task: str, commands: list[str], folder: Path, bin: Path) -> str:
    """Run the commands as they are typed after `pip install`; print them and the time; return what they printed."""
    begin = time.monotonic()
    said = [run(["bash", "-c", command], folder, bin) for command in commands]
    seconds = time.monotonic() - begin
    assert 1 + len(commands) <= 3
    print(f"\n{task}: {seconds:.0f} s", "  pip install ...", *(f"  {command}" for command in commands), sep="\n")
    return "".join(part.stdout + part.stderr for part in said)


def block_line(readme: str, begin: str) -> str:
    """The README's command that begins so, without its comment."""
    return next(line for line in readme.splitlines() if line.startswith(begin)).partition("  #")[0].rstrip()


def shown_row(readme: str, begin: str) -> dict[str, object]:
    """The row of a data file that the README shows beside that command."""
    line = next(line for line in readme.splitlines() if line.startswith(begin))
    row: dict[str, object] = json.loads(line.partition("a row: ")[2])
    return row


def test_score_a_file(readme: str, bin: Path, tmp_path: Path) -> None:
    begin = "gtpo eval --completions"
    (tmp_path / "my_samples.jsonl").write_text(json.dumps(shown_row(readme, begin)) + "\n")
    said = typed("score a file of completions", [block_line(readme, begin)], tmp_path, bin)
    assert "50.0 [" in said
    assert "gtpo compare results/eval/my_samples OTHER_RUN" in said


def test_compare_two_runs(readme: str, bin: Path, tmp_path: Path) -> None:
    for name, right in (("my_samples", 10), ("other_samples", 30)):
        rows = [
            {"id": f"q{i}", "gold": f"{i}", "completions": [f"<answer>{i if i < right else -1}</answer>"] * 2}
            for i in range(40)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run([bin / "gtpo", "eval", "--completions", f"{name}.jsonl", "--k", "2"], tmp_path)
    said = typed("compare two runs", [block_line(readme, "gtpo compare")], tmp_path, bin)
    assert "other_samples (these weights) is better than my_samples on my_samples by 50.0 points" in said


def test_switch_a_trl_script(readme: str, bin: Path, model: Path, tmp_path: Path) -> None:
    assert "import `GTPOConfig` and `GTPOTrainer` from `gtpo` in place of `GRPOConfig` and\n`GRPOTrainer`" in readme
    (tmp_path / "train.py").write_text(TRL_SCRIPT.replace("MODEL", str(model)))
    change = "sed -i 's/GRPO/GTPO/g; s/from trl import/from gtpo import/' train.py"
    said = typed("switch a TRL script to GTPO", [change, "python train.py"], tmp_path, bin)
    assert "train_loss" in said
    assert "'gate/kept'" in said


def test_train_on_own_data(readme: str, bin: Path, model: Path, tmp_path: Path) -> None:
    begin = "gtpo train --model"
    command = block_line(readme, begin)
    assert MODEL in command
    row = shown_row(readme, begin)
    rows = [row | {"problem": f"What is {a}+3?", "answer": f"{a + 3}"} for a in range(40)]
    (tmp_path / "my_problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    short = " --training.max_steps 2 --training.max_completion_length 32"
    said = typed("train on own data", [command.replace(MODEL, str(model)) + short], tmp_path, bin)
    folder = re.search(r"next: gtpo eval (\S+)", said)
    assert folder
    assert (tmp_path / folder[1] / "best").is_dir()
    assert "my_problems.jsonl: 40 of 40 problems" in said
