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
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 75
    assert len(text.split()) <= 650
    code = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    assert [line for line in code.splitlines() if len(line) > 98] == []


def test_the_documentation_is_short():
    assert sum(len(path.read_text().split()) for path in (ROOT / "docs").glob("*.md")) <= 36_000


def test_a_machine_finds_every_page():
    listed = re.findall(r"\]\((\S+\.md)\)", (ROOT / "docs/llms.txt").read_text())
    assert listed == re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"\n## {version}," in (ROOT / "CHANGELOG.md").read_text()


OWN = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"] + [
    f"docs/{name}.md"
    for name in (
        "index", "tutorial", "troubleshooting", "architecture", "howto_train", "howto_reward", "howto_evaluate",
        "howto_runs", "completions", "trl", "laptop", "verifier", "metrics",
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


COMPUTED = ("+5.0 [+2.5, +7.6]",)
"""Intervals that another test computes from records."""


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorial.md", "docs/results.md"])
def test_intervals_in_a_page_are_those_of_the_evidence(page):
    files = ("demo/comparison", "demo/gtpo-against-grpo", "claims/tests", "real/runs", "real/arms")
    evidence = "".join((ROOT / f"results/published/{name}.md").read_text() for name in files)
    evidence = re.sub(r"\\|\*\*| ±\d+\.\d", "", evidence)
    text = re.sub(r"`[^`\n]*`", "", (ROOT / page).read_text(encoding="utf-8"))
    found = re.findall(r"[+-]?\d+\.\d+(?: points)? \[[+-]?\d[^\]]*\]", text)
    assert found
    known = [number.replace(" points", "") for number in found]
    assert [number for number in known if number not in evidence and not in_points(number, evidence)] == []


def in_points(number: str, evidence: str) -> bool:
    """Return whether a difference in points stands in the evidence as a fraction, or is computed elsewhere."""
    parts = [float(part) for part in re.findall(r"[+-]?\d+\.\d+", number)]
    rows = re.findall(r"([+-]\d\.\d{3}) \[([+-]\d\.\d{3}), ([+-]\d\.\d{3})\]", evidence)
    return number in COMPUTED or any(
        all(abs(100 * float(there) - here) < 0.051 for there, here in zip(row, parts, strict=True)) for row in rows
    )


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


HABITS = {
    "Where as a condition": r"\b[Ww]here (?!(?:to|it lies|each|you|the problems are|things)\b)",
    "alone for only": r"\balone\b",
    "that of, those of": r"\b(?:that|those) of\b",
    "is no, are no": r"\b(?:is|are) no\b",
}
MOST = 15
GENERATED = ("cli.md", "config.md", "metrics.md", "files.md", "api.md")


def own_prose(path: Path) -> str:
    return re.sub(
        r"^```.*?^```|<!--.*?-->|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def test_few_habits_that_stop_a_reader():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {
        f"{page.name}: {match[0]}{page_text[match.end() : match.end() + 30]!r}"
        for page in pages
        for page_text in [own_prose(page)]
        for habit in HABITS.values()
        for match in re.finditer(habit, page_text)
    }
    assert len(found) <= MOST, "\n".join(sorted(found))


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_tables_are_small(page):
    """At most five columns and twelve rows; more is a file, or a figure. What is generated is looked up, not read."""
    if page in GENERATED:
        return
    text = re.sub(
        r"^```.*?^```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = table.splitlines()
        columns = len(re.split(r"(?<!\\)\|", rows[0])) - 2
        assert columns <= 5, rows[0]
        assert len(rows) - 2 <= 12, rows[0]
