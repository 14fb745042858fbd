"""bench.loss: a wrong contender fails, a missed mark is named, and the pages show the files."""

from __future__ import annotations

from pathlib import Path

from bench import shared_prefixes, step


def test_the_pages_tables_are_the_published_measurements(root: Path, published) -> None:
    scale = (root / "results/published/bench/steps.md").read_text()
    for name in ("", "_wide", "_wide_sampled", "_bfloat16", "_bfloat16_sampled", "_bfloat16_profile"):
        assert step.page(published(f"bench/step{name}")) in scale, name


def test_shared_prefixes(root: Path, published) -> None:
    page = (root / "results/published/bench/steps.md").read_text()
    assert shared_prefixes.page(published("bench/shared_prefixes")) in page
    null = published("bench/shared_prefixes_null")["ratio"]
    told = "one turn of each gave {:.2f} (GTPO) and {:.2f} (GRPO) of the time"
    assert told.format(*(null[method]["cpu_seconds"] for method in ("gtpo", "grpo"))) in page
