"""`gtpo train` through real subprocesses: bad input, dry run, help, start-up."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from commands import command_line, python

ROOT = Path(__file__).resolve().parents[2]
TINY = """\
model:
  build: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}
  max_seq_length: 128
training:
  max_prompt_length: 64
  max_completion_length: 16
"""


UNSET = dict.fromkeys(("GTPO_DATA_DIR", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))


def gtpo(*words: str, cwd: Path, code: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that has imported nothing."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"} | environment
    env = {name: value for name, value in env.items() if name not in UNSET}
    return python(ROOT / "cli.py", *words, code=code, cwd=cwd, env=env, timeout=240)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(TINY)
    return path


@pytest.mark.parametrize("dry", [pytest.param(["--dry-run"], marks=pytest.mark.slow), []])
def test_hub_that_does_not_answer_is_asked_once(tmp_path: Path, dry: list[str]) -> None:
    (tmp_path / "run.yaml").write_text("model:\n  model_name: org/model\n")
    hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = gtpo("train", "run.yaml", *dry, cwd=tmp_path, code=0 if dry else 2, **hub)
    assert "Retrying" not in done.stderr
    assert "Traceback" not in done.stderr
    if dry:
        assert "the Hugging Face Hub does not answer; using what is cached" in done.stderr
        assert "prompt lengths not checked" in done.stdout
    else:
        assert "org/model is not in the Hugging Face cache, and the Hub does not answer" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(404, "RepoNotFound", "neither a folder here nor a model of"), (403, "GatedRepo", "org/model is gated")],
)
def test_model_that_the_hub_does_not_give(tmp_path: Path, status: int, code: str, said: str) -> None:
    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    (tmp_path / "data.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    (tmp_path / "run.yaml").write_text("model:\n  model_name: org/model\ndataset:\n  name: data.jsonl\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
        done = gtpo("train", "run.yaml", cwd=tmp_path, code=2, **environment)
        hub.shutdown()
    assert said in done.stderr
    assert not (tmp_path / "results").exists()


def test_help_config_lists_every_flag() -> None:
    from gtpo.config.schema import keys

    done = command_line("train", "--help-config", cwd=ROOT, code=0)
    for key in keys():
        assert f"--{key}\n" in done.stdout


def test_a_dry_run_of_a_launcher_s_processes_waits_for_none(run: Path) -> None:
    done = command_line("train", "run.yaml", "--dry-run", cwd=run.parent, code=0, WORLD_SIZE="8", MASTER_ADDR=None)
    assert "by 8 processes" in done.stdout
    batch = ["--training.per_device_train_batch_size", "2", "--training.num_generations", "8"]
    done = command_line("train", "run.yaml", "--dry-run", "--processes", "4", *batch, cwd=run.parent, code=0)
    assert "8 completions (1 prompts)" in done.stdout, "a group may span processes"


def test_data_that_cannot_be_had_are_missed_before_torch_is_loaded(tmp_path: Path) -> None:
    """A new user's first command without a network: one sentence, soon, and no run folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "llama"}))
    words = ["train", "--model", "model", "--data", "gsm8k"]
    done = gtpo(*words, cwd=tmp_path, code=2, HF_HOME=str(tmp_path / "hub"), PYTHONPROFILEIMPORTTIME="1")
    assert "put gsm8k_train.jsonl in a folder and pass it as --data-dir" in done.stderr
    assert re.search(r"\| +yaml$", done.stderr, re.MULTILINE), "the times of imports are listed"
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert not (tmp_path / "results").exists()
