"""The progress of a run on a terminal of 80 columns."""

from __future__ import annotations

import io
import logging
import math
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from rich.console import Console
from step_gradients import tiny_model
from test_trainer import arguments

from gtpo import GTPOTrainer
from gtpo.common.log import LOG
from gtpo.train import run_log
from gtpo.train.run_log import SHOWN, Progress, summary

ROW = {name: 123.456 for name, _, _ in SHOWN}


@pytest.mark.parametrize("title", ["demo-gtpo (gtpo)", "a" * 200 + " (gtpo)"])
def test_bar_and_metrics_take_one_line_each_of_80_columns(
    title: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr(run_log, "stderr_console", lambda: console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    state, shown = SimpleNamespace(global_step=0, max_steps=100000), Progress(title, shown=True)
    args = SimpleNamespace(gradient_accumulation_steps=1)
    shown.on_train_begin(None, state, None)
    for state.global_step in range(1, 4):
        shown.on_log(args, state, None, ROW)
    shown.on_train_end()
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    lines = [line.rstrip() for line in re.split(r"\r?\n|\r", written) if line.strip()]
    assert max(map(len, lines)) <= 80, lines
    assert any("3/100000" in line for line in lines)
    assert any(line.startswith("loss 123.4560  acc 123.46") for line in lines)
    assert not any(line.startswith("loss") and "3/100000" in line for line in lines)


def test_summary_has_every_metric_that_is_there() -> None:
    assert all(f"{label} " in summary(ROW) for _, label, _ in SHOWN)
    assert summary({"loss": 0.5, "kl": 0.25}) == "loss 0.5000  kl 0.2500"


class Told(logging.Handler):
    """A clock that moves on only in `long`, and the lines that are told meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.lines, self._came = 0.0, list[str](), threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._came:
            self.lines.append(record.getMessage())
            self._came.notify()

    def long(self, what: str) -> None:
        """Let a minute pass, and wait until a line says that it went by in `what`."""
        with self._came:
            before = len(self.lines)
            self.now += 60
            assert self._came.wait_for(lambda: any(what in line for line in self.lines[before:]), 240)


def test_a_long_step_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_log, "TELL_SECONDS", 0.01)
    model, tokenizer = tiny_model()
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_completion_length": 48}
    args = arguments(tmp_path, **settings, gradient_checkpointing=False, initial_entropy=0.5)
    told = Told()

    def reward(completions: list[str], **columns: object) -> list[float]:
        if len(completions) > 2:  # not the call before the start
            told.long("scoring")
        return [float(i) for i in range(len(completions))]

    trainer = GTPOTrainer(
        model=model, reward_funcs=reward, args=args, processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["1 + 2", "7"]}),
    )  # fmt: skip
    loss, generate = trainer.compute_loss, type(model).generate

    def long_loss(*given: object, **options: object) -> object:
        told.long("training")
        return loss(*given, **options)

    def long_generate(*given: object, **options: object) -> object:
        made = generate(*given, **options)
        told.long("sampling")
        return made

    monkeypatch.setattr(trainer, "compute_loss", long_loss)
    monkeypatch.setattr(type(model), "generate", long_generate)
    monkeypatch.setattr(LOG, "handlers", [told])
    caplog.set_level(logging.INFO, LOG.name)
    monkeypatch.setattr(run_log, "PLAIN_SECONDS", math.inf)
    for title, shown in (("run (gtpo)", True), ("of another process", False)):
        trainer.add_callback(Progress(title, shown=shown, clock=lambda: told.now))
    trainer.train()
    step = ["sampling 4 completions", "scoring 4 completions"]
    step += [f"training on micro-batch {i} of 2" for i in (1, 2)]
    parts = [re.split(" for |  ", line)[1] for line in told.lines if line.startswith("run (gtpo)  ")]
    # Before the first round some tokens are sampled, and compared with the loss.
    assert parts == step[:1] + 2 * step
    assert not any("of another process" in line for line in told.lines)
