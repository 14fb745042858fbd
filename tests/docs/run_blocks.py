"""Every code block of Start, Tutorial, How-to and Troubleshooting runs, or says in its page why it does not.

The blocks of a page run in order, as printed, in one folder that looks like a checkout after `make demo`. Only sizes
differ: SMALLER lists each printed text that is replaced, and a test fails where it is no longer printed.

`make docs` names this file; no other run of pytest collects it, because it trains eight times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from commands import process, python

pytestmark = [pytest.mark.docs, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
PAGES = (  # in this order: troubleshooting goes on from the runs of runs.md
    "index.md", "tutorial.md", "judge.md", "trl.md", "one_gpu.md", "nodes.md", "plan.md", "reward.md", "evaluate.md",
    "runs.md", "troubleshooting.md",
)  # fmt: skip
SMALLER = {
    "tutorial.md": {"max_steps: 60": "max_steps: 2", "--k 16 --max-tokens 48": "--k 2 --max-tokens 8 --limit 4"},
    "evaluate.md": {"--k 4 --limit 4 --max-tokens 48": "--k 2 --max-tokens 4"},
}
"""page -> printed text -> what the test runs in its place: fewer steps, samples and tokens."""


FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n+)?^(?P<mark>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=mark)\s*$",
    re.MULTILINE | re.DOTALL,
)
NOT_CODE = {"text", "yaml", "json", ""}
"""Output, configs and data: they are read, not run. A page's configs are written to files by its bash blocks."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run; None for one that is."""


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.name, text.count("\n", 0, found.start("mark")) + 1, found["language"], found["text"], found["reason"]
        )
        for found in FENCE.finditer(text)
    ]


def expected_output(code: str) -> list[str]:
    """Return what the comments behind a block's print statements promise, one line each."""
    return re.findall(r"^\s*print\(.*\)  # (.*)$", code, re.MULTILINE)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkout's configs and examples, and a demo base of two steps."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    shell("gtpo train configs/demo/base.yaml --training.max_steps 2 --training.logging_steps 1", folder)
    return folder


def shell(script: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a bash block in `folder` as a reader would; the first command that fails ends it, with `code`."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "400",
    }
    words = ("bash", "-euo", "pipefail", "-c", script)
    return process(*words, code=code, cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=600)


def code(page: str) -> list[Block]:
    return [block for block in blocks_of(ROOT / "docs" / page) if block.language not in NOT_CODE]


def test_the_pages_are_those_of_the_navigation():
    """A new page of a task is run too; the others follow long runs, or need verl."""
    tasks = yaml.safe_load((ROOT / "mkdocs.yml").read_text().partition("hooks:")[0])["nav"][1]["Tasks"]
    written = {page for entry in tasks for page in entry.values()}
    assert written - set(PAGES) == {"watch.md", "verl.md"}


def test_smaller_sizes_replace_what_is_printed():
    for page, changes in SMALLER.items():
        printed = "".join(block.text for block in code(page))
        assert [text for text in changes if text not in printed] == [], page


def test_blocks_that_are_not_run_say_why():
    for page in PAGES:
        for block in code(page):
            assert block.language in ("bash", "python"), f"{page}:{block.line}: {block.language}"
            assert block.reason is None or len(block.reason) > 10, f"{page}:{block.line}: say why it is not run"


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, workspace):
    blocks = blocks_of(ROOT / "docs" / page)
    for place, block in enumerate(blocks):
        if block.reason or block.language in NOT_CODE:
            continue
        where, text = f"docs/{page}:{block.line}", block.text
        for printed, here in SMALLER.get(page, {}).items():
            text = text.replace(printed, here)
        if block.language == "python":
            (workspace / "block.py").write_text(text)
            done = shell("python block.py", workspace)
            assert done.stdout.splitlines() == expected_output(block.text), where
            continue
        done = shell(text, workspace, code=2 if page == "troubleshooting.md" else 0)
        follows = blocks[place + 1] if place + 1 < len(blocks) else None
        if page == "troubleshooting.md":
            assert follows is not None, f"{where}: what does it print?"
            assert follows.language == "text", f"{where}: what does it print?"
            assert follows.text.strip() in done.stderr, f"{where}: {done.stderr}"
            assert "Traceback" not in done.stderr, where


def test_the_examples_of_the_api_print_what_they_say(tmp_path):
    """All in one script, one after the other: torch is imported once."""
    blocks = [block for block in blocks_of(ROOT / "docs/api.md") if block.language == "python"]
    assert len(blocks) >= 7
    assert [block.line for block in blocks if block.reason] == []
    (tmp_path / "api.py").write_text("\n".join(block.text for block in blocks))
    env = os.environ | {"DS_ACCELERATOR": "cpu"}  # DeepSpeed, where it is installed, says on stdout what it found
    done = python("api.py", cwd=tmp_path, env=env, timeout=240)
    expected = [line for block in blocks for line in expected_output(block.text)]
    printed = done.stdout.splitlines()
    assert len(printed) == len(expected)
    assert [(a, b) for a, b in zip(printed, expected, strict=True) if b != "..." and a != b] == []
