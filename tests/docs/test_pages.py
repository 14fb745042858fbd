"""What the pages say of the code, held without building the site: places, length, sentences."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from gtpo.config import HealthSection
from gtpo.run.health import Health

ROOT = Path(__file__).resolve().parents[2]


def is_defined(path: str, name: str) -> bool:
    """Return whether a Python file defines `function`, `Class`, `Class.method` or a constant."""
    source = (ROOT / path).read_text(encoding="utf-8")
    return all(
        re.search(rf"^\s*(?:(?:async )?def|class) {part}\b|^\s*{part}\s*(?::[^=\n]+)?=", source, re.MULTILINE)
        for part in name.split(".")
    )


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_places_that_a_page_names_exist(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for path, name in re.findall(r"`((?:[\w-]+/)+[\w.-]+\.py)::([\w.]+)`", text):
        assert (ROOT / path).is_file(), path
        assert is_defined(path, name), f"{path}::{name}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"\n## {version}," in (ROOT / "CHANGELOG.md").read_text()


OWN = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"] + [
    f"docs/{name}.md"
    for name in (
        "index", "tutorial", "troubleshooting", "architecture", "howto_train", "howto_reward", "howto_benchmark",
        "howto_evaluate", "howto_runs", "metrics",
    )
]  # fmt: skip
LONGEST = 25
"""Words of a sentence."""


@pytest.mark.parametrize("page", OWN)
def test_sentences_are_short(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```|<!--.*?-->|^\|[-: |]+\|$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", " code ", prose)
    parts = re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?=[-*|#>]|\d+\.)|\|", prose)
    long = [" ".join(part.split()) for part in parts if len(re.findall(r"[A-Za-z]{2,}", part)) > LONGEST]
    assert long == []


@pytest.mark.parametrize("page", ["docs/index.md", "docs/tutorial.md"])
def test_intervals_in_a_page_are_those_of_the_published_demo(page):
    demo = ROOT / "results/published/demo"
    evidence = "".join((demo / name).read_text() for name in ("comparison.md", "gtpo-against-grpo.md"))
    evidence = evidence.replace("\\", "")
    text = re.sub(r"`[^`\n]*`", "", (ROOT / page).read_text(encoding="utf-8"))
    found = re.findall(r"[+-]?\d+\.\d(?: points)? \[[+-]?\d[^\]]*\]", text)
    assert found
    assert [number for number in found if number.replace(" points", "") not in evidence] == []


def test_the_collapse_is_the_published_one():
    rows = [json.loads(line) for line in (ROOT / "results/published/collapse/metrics.jsonl").read_text().splitlines()]
    tutorial = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    best = max(rows, key=lambda row: row["reward/accuracy"])
    assert 1 < best["step"] < 10
    assert "rises for a few steps" in tutorial
    assert f"says so: {rows[-1]['completions/repeated']:.2f}." in tutorial
    assert rows[-1]["entropy/mean"] < 0.1 < max(row["entropy/mean"] for row in rows) < 0.69
    health = Health(HealthSection())
    said = next(filter(None, (health.observe(row["step"], row).collapsed for row in rows)))
    assert f"collapse: {said} (health.on_collapse: warn)" in " ".join(tutorial.split())
