"""What is printed for people and programs, against approved copies in tests/golden (its README; `make golden`)."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from approved import GOLDEN, check, check_refusals, check_schema, plain_json
from commands import command_line
from datasets import Dataset
from servers import Reply, Server, completion
from trl import GRPOConfig

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.evalkit.comparison.compare import compare
from gtpo.evalkit.report.page import payload, write_page
from gtpo.evalkit.view import Runs, samples
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.runs.eval_record import EVAL_SCHEMA_VERSION
from gtpo.runs.find import find_runs
from gtpo.runs.train_run import SCHEMA_VERSION

ROOT = GOLDEN.parents[1]
GOLDS = {problem.problem: problem.answer for split in ("test", "hard") for problem in arithmetic_problems(split, 7)}
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="approved outputs are those of a CPU")

ALL = "base sft grpo-s1 grpo-s2 grpo-s3 gtpo-s1 gtpo-s2 gtpo-s3"

# Approved copy -> the command whose output it is.
PRINTED = {
    "compare.txt": f"compare {ALL} --baseline base",
    "compare-details.txt": f"compare {ALL} --details --explain --k 1,4",
    "compare-subjects.txt": "compare grpo-s1 gtpo-s1 --per-subject --metric maj@4 --margin 20",
    "compare-gate.txt": "compare strong weak --baseline strong --margin 5 --fail-if-worse 3",
    "compare-markdown.txt": f"compare {ALL} --format markdown",
    "compare-latex.txt": f"compare {ALL} --format latex",
    "compare-csv.txt": "compare base grpo-s1 gtpo-s2 --format csv",
    "compare-json.txt": f"compare {ALL} --format json",
    "eval-list.txt": "eval --list",
    "eval-check.txt": "eval --check problems.jsonl",
    "configs.txt": "configs",
    "help-train.txt": "train --help",
    "help-eval.txt": "eval --help",
    "help-eval-all.txt": "eval --help-all",
    "help-compare.txt": "compare --help",
    "help-plan.txt": "plan --help",
    "plan.txt": "plan grpo-s1 grpo-s2 grpo-s3 gtpo-s1 gtpo-s2 gtpo-s3 --effect 10 --margin 10",
    "configs-one.txt": "configs demo/gtpo",
}
TINY = "--training.optimizer adamw_torch --training.max_steps 2 --training.eval_steps 2"
# The same of commands that write; the sooner ones make what the later ones read.
WRITING = {
    "eval-recorded.txt": "eval --completions recorded.jsonl --k 3 --out new-recorded",
    "eval-rescore.txt": "eval results/eval/server --rescore",
    "train-dry-run.txt": f"train run.yaml --dry-run {TINY}",
    "train-dry-run-verbose.txt": f"train run.yaml --dry-run --verbose {TINY}",
    "train-dry-run-json.txt": f"train run.yaml --dry-run --json {TINY}",
    "train-dry-run-published.txt": "train published/llama-math --dry-run --json",
    "train-gtpo.txt": f"train run.yaml --run-name new-gtpo {TINY}",
    "train-sft.txt": "train run.yaml --run-name new-sft --method sft --training.optimizer adamw_torch",
    "train-json.txt": f"train run.yaml --run-name new-gtpo --json {TINY}",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture of runs, in a folder in which commands may write."""
    home = tmp_path_factory.mktemp("golden") / "home"
    shutil.copytree(GOLDEN / "runs", home)
    return home


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def run(words: str, home: Path) -> Any:
    """Run a command in an environment that says nothing of this machine."""
    unset = dict.fromkeys(("NO_COLOR", "GTPO_DATA_DIR", "OPENAI_BASE_URL", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    return command_line(*shlex.split(words), cwd=home, COLUMNS="120", LANG="C.UTF-8", TZ="UTC", **unset)


def files(home: Path) -> list[Path]:
    """Return what lies in a folder, but for what Python keeps of a user's module that it imported."""
    return sorted(path for path in home.rglob("*") if "__pycache__" not in path.parts)


def printed(words: str, home: Path) -> str:
    """Return a command with what it writes to stdout and stderr, and its exit code."""
    done = run(words, home)
    out = done.stdout
    if out.startswith("{"):
        out = plain_json(json.loads(out))
    parts = [f"$ gtpo {words}\n{out}"]
    parts += [f"--- stderr\n{done.stderr}"] * bool(done.stderr) + [f"--- exit code {done.returncode}\n"]
    return "".join(parts).replace(str(home), "<home>").replace(str(ROOT), "<checkout>")


@pytest.mark.parametrize("name", PRINTED)
def test_output(name: str, home: Path) -> None:
    check(name, printed(PRINTED[name], home))


def answer(payload: dict[str, Any], times: int) -> Reply:
    """Answer one seed in three rightly, one wrongly, one without tags; odd seeds are cut off."""
    gold, seed = GOLDS[payload["messages"][-1]["content"]], payload["seed"]
    texts = f"<answer>{gold}</answer>", f"<answer>{gold}0</answer>", f"It is {gold}"
    reply = completion(payload, content=texts[seed % 3])
    reply.body["choices"][0]["finish_reason"] = "length" if seed % 2 else "stop"
    return reply


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A project of 0.2 in which more is evaluated and trained: its folder, and what the commands printed."""
    home = tmp_path_factory.mktemp("golden") / "project"
    shutil.copytree(GOLDEN / "0.2", home)
    server = Server(answer)
    words = "eval m --benchmarks arithmetic,arithmetic_hard --limit 7 --k 8 --max-tokens 8 --engine openai --quiet"
    told = {"eval-server.txt": printed(f"{words} --out new-server --base-url {server.url}", home)}
    told["eval-server.txt"] = told["eval-server.txt"].replace(server.url, "<url>")
    server.close()
    told |= {name: printed(words, home) for name, words in WRITING.items()}
    return home, told


@on_a_cpu
@pytest.mark.parametrize("name", ["eval-server.txt", *WRITING])
def test_output_of_what_writes(name: str, project: tuple[Path, dict[str, str]]) -> None:
    check(name, project[1][name])


@on_a_cpu
def test_eval_json(project: tuple[Path, dict[str, str]]) -> None:
    check("eval-json.txt", plain_json(read(project[0] / "new-recorded/eval.json")))
    runs = ("new-recorded", "new-server", "results/eval/server")
    check_schema("schema-eval.json", [read(project[0] / run / "eval.json") for run in runs], EVAL_SCHEMA_VERSION)


@on_a_cpu
def test_files_of_a_training(project: tuple[Path, dict[str, str]]) -> None:
    runs = [project[0] / f"results/train/{name}" for name in ("new-gtpo", "new-sft")]
    check_schema("schema-run.json", [read(run / "run.json") for run in runs], SCHEMA_VERSION)
    lines = [json.loads(line) for run in runs for line in (run / "metrics.jsonl").read_text().splitlines()]
    check_schema("schema-metrics.json", lines, SCHEMA_VERSION)
    check_schema("schema-best.json", [read(run / "best/best.json") for run in runs], SCHEMA_VERSION)


@on_a_cpu
def test_columns_of_tables(project: tuple[Path, dict[str, str]]) -> None:
    home, columns = project[0], {}
    for place in ("new-server/samples", "new-server/questions.parquet", "new-server/problems.parquet",
                  "new-server/prompts.parquet", "results/train/new-gtpo/completions"):  # fmt: skip
        path = next(iter(sorted((home / place).glob("*.parquet"))), home / place)
        columns[Path(place).stem] = {field.name: str(field.type) for field in pq.read_schema(path)}
    check("columns.txt", json.dumps(columns, indent=1))


@on_a_cpu
def test_doctor(tmp_path: Path) -> None:
    """Its numbers and packages are this machine's: what it says of them is approved."""
    text = printed("doctor --out doctor.json", tmp_path)
    text = re.sub(r"within \S+, gradients \S+ of float64(.*) \(\d+ s\)", r"within <number> of float64\1", text)
    text = re.sub(r"(?<=^  )(.{16}) .+$", r"\1 <value>", text, flags=re.MULTILINE)
    check("doctor.txt", re.sub(r"(?<=^packages\n)(  .*\n)+", "  <packages>\n", text, flags=re.MULTILINE))
    report = read(tmp_path / "doctor.json")
    check_schema("schema-doctor.json", [report], report["schema_version"])


def test_view(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    runs = Runs(["gtpo-s2"])
    shown = {"state": runs.state({})}
    for folder, run in shown["state"]["runs"].items():
        if run["kind"] == "eval":
            shown["samples"] = samples(Path(folder), {"benchmark": "hard", "verdict": "INCORRECT"})
    check("view-payload.txt", plain_json(shown).replace(str(home), "<home>"))


CASES = (
    "refused-compare.txt", "refused-config.txt", "refused-eval.txt", "refused-train.txt", "said-compare.txt",
    "said-train.txt",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cases_that_a_file_holds_itself(name: str, tmp_path: Path) -> None:
    """`@ FILE LINE` writes a file (`@+` adds a line), `! COMMAND` is shell, `$ gtpo WORDS` is what is approved.

    refused-*: a mistake is one sentence and leaves nothing. said-*: notes, what goes to stderr, and the exit code.
    """
    home, told = tmp_path / "home", []
    shutil.copytree(GOLDEN / "runs", home)
    shutil.copy(GOLDEN / "0.2/run.yaml", home)
    shutil.copytree(GOLDEN / "0.2/results/train/gtpo/final", home / "model")
    for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("@", "@+"):
            file, _, content = rest.partition(" ")
            with (home / file).open("w" if kind == "@" else "a") as out:
                out.write(f"{content}\n" * bool(content))
        elif kind == "!":
            subprocess.run(rest, shell=True, cwd=home, check=True)
        elif kind == "$" and name.startswith("said"):
            done = run(rest.removeprefix("gtpo").strip(), home)
            notes = [text for text in done.stdout.splitlines() if text.startswith("note: ")]
            line = "\n".join([line, *notes, *done.stderr.splitlines(), f"--- exit code {done.returncode}"])
        elif kind == "$":
            before = files(home)
            done = run(rest.removeprefix("gtpo").strip(), home)
            assert (done.returncode, done.stdout) == (2, ""), (line, done)
            assert ("compare" in name) or files(home) == before, line  # it scores files as it comes to them
            assert len(re.findall("^gtpo: ", done.stderr, re.MULTILINE)) == 1, (line, done.stderr)
            line += f"\n{done.stderr.rstrip()}"
        else:
            continue
        told.append(line)
    check(name, "\n".join(told).replace(str(home), "<home>").replace(str(ROOT), "<checkout>"))


@on_a_cpu
def test_mistakes_of_a_script(tmp_path: Path) -> None:
    """Before a model is loaded."""
    plain: dict[str, Any] = {"num_generations": 4, "per_device_train_batch_size": 4, "use_cpu": True, "bf16": False}

    def config(**changes: Any) -> GTPOConfig:
        return GTPOConfig(**{"output_dir": str(tmp_path), "report_to": "none", **plain, **changes})

    def trainer(columns: dict[str, Any], reward: Any = lambda completions, **_: [0.0] * 2, **changes: Any) -> None:
        args = changes.get("args") or config(**changes)
        GTPOTrainer("no/such-model", reward, args, Dataset.from_dict(columns))

    rows = {"prompt": ["1 + 1?"] * 8}
    names = {"config": config, "trainer": trainer, "rows": rows, "inf": float("inf"), "GRPOConfig": GRPOConfig}
    check_refusals("refused-script.txt", names)


@pytest.fixture(scope="module")
def comparison(home: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        runs, trains, notes = find_runs(["base", "gtpo-s1", "gtpo-s2"])
        yield compare(runs, trains, notes=notes)


def test_payload_of_the_page(comparison: Any) -> None:
    core, blocks = payload(comparison, samples_bytes=6000)
    blocks["exports"] = dict.fromkeys(blocks["exports"], "as printed")
    check("page-payload.txt", plain_json({"core": core, **blocks}))


def test_page_without_its_data(comparison: Any, tmp_path: Path) -> None:
    write_page(comparison, tmp_path / "page.html", samples_bytes=0)
    text = (tmp_path / "page.html").read_text()
    for tag in ("style", "script"):
        text = re.sub(rf"(<{tag}[^>]*>).*?(</{tag}>)", r"\1...\2", text, flags=re.DOTALL)
    check("page-html.txt", text)


@pytest.mark.parametrize(("name", "ways"), [
    ("schema-compare.json", [f"compare {ALL} --format json"]),
    ("schema-plan.json", ["plan --accuracy 0.4 --json", "plan --accuracy 0.4 --margin 10 --models --json"]),
])  # fmt: skip
def test_schemas_of_what_is_printed(home: Path, name: str, ways: list[str]) -> None:
    documents = [json.loads(command_line(*words.split(), cwd=home).stdout) for words in ways]
    check_schema(name, documents, documents[0]["schema_version"])


def test_every_approved_file_is_compared() -> None:
    used = "".join(path.read_text() for path in GOLDEN.parent.rglob("test_*.py"))
    assert [path.name for path in GOLDEN.iterdir() if path.suffix in (".txt", ".json") and path.name not in used] == []
