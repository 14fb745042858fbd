"""The pages show what the files of the real models' measurements say."""

from __future__ import annotations

import pytest


def test_agreement_on_a_models_own_completions(root, published) -> None:
    page = (root / "docs/evaluation.md").read_text()
    report = published("real/agreement")
    for golds, row in zip(("right", "of the next question (null)"), (*report["rows"], *report["null"]), strict=True):
        assert row["questions"] == row["same_prompts"] == 200
        assert row["agree_lm_eval"] == pytest.approx(
            1 - sum(d["lm_eval_right"] != (d["gtpo_verdict"] == "CORRECT") for d in row["differ"]) / 200
        )
        names = ("lm_eval_flexible", "inspect_match", "gtpo_lenient", "agree_lm_eval", "agree_inspect")
        assert f"| {golds} | {' | '.join(f'{100 * row[name]:.1f}' for name in names)} |" in page
    explained = page.partition("Every difference is a rule")[2]
    for difference in report["rows"][0]["differ"]:
        assert difference["why"]
        assert difference["id"].rpartition("/")[2] in explained.partition("\n## ")[0]


def test_both_data_types(root, published) -> None:
    page = (root / "docs/laptop.md").read_text()
    rows = published("real/dtypes")["rows"]
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}
    for row in rows:
        accuracy = row["pass@1"]
        interval = f"{100 * accuracy['mean']:.1f} [{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]"
        cells = (row["model"], row["dtype"], row["questions"], row["samples"], interval)
        assert f"| {' | '.join(map(str, cells))} | {row['processor_seconds']:.0f} |" in page
