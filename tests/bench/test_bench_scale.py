"""docs/scale.md says what the published measurements of kills and of Ray's cost say."""

from __future__ import annotations

from bench import copies, kills


def test_ten_kills_change_nothing(root, published) -> None:
    reports = [published(f"bench/kills_{engine}") for engine in ("ray", "openai")]
    for report in reports:
        assert len(report["kills"]) == 10
        assert report["same_rows"] == report["stored"] == report["samples"]
        assert report["longest_pause_seconds"] <= 60
    assert kills.page(reports) in (root / "docs/scale.md").read_text()


def test_what_ray_costs(root, published) -> None:
    report = published("bench/copies")
    assert report["samples"] == 4096
    assert report["ray_over_one_process"] <= 1.10
    assert copies.page(report) in (root / "docs/scale.md").read_text()
