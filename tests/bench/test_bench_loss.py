"""bench.loss: a wrong contender fails, a missed mark is named, and the pages show the files."""

from __future__ import annotations

from pathlib import Path

import torch

from bench import loss, shared_prefixes, step
from bench.loss_contenders import CONTENDERS, Contender, float64_result, make_case

torch.set_num_threads(1)


def test_a_contender_with_wrong_gradients_is_not_timed(monkeypatch) -> None:
    def wrong(case):
        result = CONTENDERS[0].run(case)
        return result._replace(gradients=tuple(gradient * 1.02 for gradient in result.gradients))

    monkeypatch.setattr(loss, "CONTENDERS", [CONTENDERS[0], Contender("wrong", wrong)])
    case, exact = float64_result(make_case(128, 16, 400, True, torch.float32, "cpu"))
    rows = loss.check(["ours", "wrong"], case, exact, "cpu")
    assert rows["wrong"]["failed"].startswith("parity")
    assert "failed" not in rows["ours"]
    assert rows["ours"]["returned_bytes"] == 4 * (128 * 16 + 400 * 16 + 2 * 128)


def test_the_pages_tables_are_the_published_measurements(root: Path, published) -> None:
    scale = (root / "docs/scale.md").read_text()
    for name in ("", "_wide", "_wide_sampled", "_bfloat16", "_bfloat16_sampled", "_bfloat16_profile"):
        assert step.page(published(f"bench/step{name}")) in scale, name


def test_shared_prefixes(root: Path, published) -> None:
    page = (root / "docs/scale.md").read_text()
    assert shared_prefixes.page(published("bench/shared_prefixes")) in page
    null = published("bench/shared_prefixes_null")["ratio"]
    told = "one turn of each gave {:.2f} (GTPO) and {:.2f} (GRPO) of the time"
    assert told.format(*(null[method]["cpu_seconds"] for method in ("gtpo", "grpo"))) in page
