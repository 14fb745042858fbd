"""What is printed for people and programs, against approved copies in tests/golden (its README; `make golden`)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from approved import GOLDEN, check, check_schema, plain_json
from commands import command_line

from gtpo.evalkit.comparison.compare import compare
from gtpo.evalkit.report.payload import payload, write_page
from gtpo.runs.find import find_runs

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
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The fixture of runs, in a folder in which commands may write."""
    home = tmp_path_factory.mktemp("golden") / "home"
    shutil.copytree(GOLDEN / "runs", home)
    yield home


def printed(words: str, home: Path) -> str:
    """Return a command with what it writes to stdout and stderr, and its exit code."""
    done = command_line(*words.split(), cwd=home, COLUMNS="120", LANG="C.UTF-8", TZ="UTC", NO_COLOR=None)
    out = done.stdout
    if out.startswith("{\n"):
        out = plain_json(json.loads(out)) + "\n"
    parts = [f"$ gtpo {words}\n{out}"]
    parts += [f"--- stderr\n{done.stderr}"] * bool(done.stderr) + [f"--- exit code {done.returncode}\n"]
    return "".join(parts).replace(str(home), "<home>")


@pytest.mark.parametrize("name", PRINTED)
def test_output(name: str, home: Path) -> None:
    check(name, printed(PRINTED[name], home))


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


def test_schema_of_compare(home: Path) -> None:
    document = json.loads(command_line("compare", *ALL.split(), "--format", "json", cwd=home).stdout)
    check_schema("schema-compare.json", [document], document["schema_version"])
