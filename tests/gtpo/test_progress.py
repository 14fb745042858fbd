"""The progress of a run on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from datasets import Dataset
from logs import logged
from step_gradients import tiny_model

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.run import progress
from gtpo.run.progress import SHOWN, Progress, summary

ROW = {name: 123.456 for name, _, _ in SHOWN}

SCRIPT = """
import sys, time
from gtpo.run.progress import Progress, SHOWN
from gtpo.common.log import LOG, start_logging
start_logging()
progress = Progress(sys.argv[1], shown=True)
progress.start(0, 100000)
for step in range(1, 4):
    progress.step(step, {name: 123.456 for name, _, _ in SHOWN})
    time.sleep(0.15)
progress.stop()
"""


def on_a_terminal(title: str, columns: int) -> str:
    """Return what the script writes to a terminal of this width, control sequences removed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, title], stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert child.wait() == 0
    return written.decode()


@pytest.mark.parametrize("title", ["demo-gtpo (gtpo)", "a" * 200 + " (gtpo)"])
def test_bar_and_metrics_take_one_line_each_of_80_columns(title: str) -> None:
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_a_terminal(title, 80)).replace("\r", "\n")
    lines = [line.rstrip() for line in shown.split("\n") if line.strip()]
    assert max(map(len, lines)) <= 80, lines
    assert any("3/100000" in line for line in lines)
    assert any(line.startswith("loss 123.4560  acc 123.46") for line in lines)
    assert not any(line.startswith("loss") and "3/100000" in line for line in lines)


def test_summary_keeps_whole_metrics_within_the_width() -> None:
    whole = summary(ROW)
    assert all(f"{label} " in whole for _, label, _ in SHOWN)
    for width in (20, 40, 80):
        short = summary(ROW, width)
        assert len(short) <= width
        assert whole.startswith(short)
        assert whole[len(short) :].startswith("  "), "cut between metrics"
    assert summary({}) == ""


@pytest.mark.parametrize("shown", [True, False])
def test_a_long_step_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    monkeypatch.setattr(progress, "TELL_SECONDS", 0.01)
    model, tokenizer = tiny_model()
    arguments = GTPOConfig(
        output_dir=str(tmp_path), num_generations=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        max_completion_length=48, bf16=False, use_cpu=True, report_to="none", disable_tqdm=True,
        gradient_checkpointing=False, max_steps=2, initial_entropy=0.5, save_strategy="no",
    )  # fmt: skip

    def slow(completions: list[str], **columns: object) -> list[float]:
        time.sleep(0.1)
        return [float(i) for i in range(len(completions))]

    trainer = GTPOTrainer(
        model=model, reward_funcs=slow, args=arguments, processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["1 + 2", "7"]}),
    )  # fmt: skip
    plain = trainer.compute_loss

    def slow_loss(*arguments: object, **options: object) -> object:
        time.sleep(0.1)
        return plain(*arguments, **options)

    monkeypatch.setattr(trainer, "compute_loss", slow_loss)
    with logged(logging.INFO) as told:
        progress.StepProgress(trainer, Progress("run (gtpo)", shown=shown))
        trainer.train()
    parts = [
        re.sub(r" for .*", "", line.removeprefix("run (gtpo)  ")) for line in told if line.startswith("run (gtpo)  ")
    ]
    order = [name for name, _ in itertools.groupby(parts)]
    step = [
        "sampling 4 completions",
        "scoring 4 completions",
        "training on micro-batch 1 of 2",
        "training on micro-batch 2 of 2",
    ]
    assert order == (2 * step if shown else [])
    said = [line for line in told if "sampling" in line]
    tokens = [int(line.split("token ")[1].split()[0]) for line in said if "of at most 48" in line]
    assert all(0 < token <= 48 for token in tokens)
    assert bool(tokens) == shown
    assert not model._forward_pre_hooks, "nothing is left on the model"
