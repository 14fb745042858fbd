"""What the runs on a real model say: the arms, the measures, and the marks from records alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench import arms, arms_marks
from gtpo.common.errors import UserError
from gtpo.config import load_config


def test_the_format_reward_without_the_point(root: Path) -> None:
    texts = ["<reasoning>r</reasoning><answer>1</answer>", "<answer>1</answer>", "none"]
    assert arms.format_all_or_nothing(texts) == [10.0, 0.0, 0.0]
    assert load_config(root / "bench/arms.yaml").training.max_steps == arms.STEPS


def test_the_order_holds_every_run_once() -> None:
    assert len(set(arms.order())) == len(arms.order()) == 30
    assert {name[0] for name in arms.order()[:4]} == set("abde")


def test_selection_on_log_length() -> None:
    """Two completions: the better one is e times as long, so it is half a unit above the mean."""
    a = arms_marks.advantages(np.array([[0.0, 10.0]]))
    assert a == pytest.approx(np.array([[-(0.5**0.5), 0.5**0.5]]), rel=1e-4)
    assert arms_marks.selection(a, np.array([[10.0, 10 * np.e]])) == pytest.approx([0.5**1.5], rel=1e-4)


def test_entropies_behind_a_shared_prompt_are_those_of_whole_rows() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **shape)).eval()
    prompt, completions = [1, 2, 3], [[4, 5], [6, 7, 8, 9]]
    for ids, found in zip(completions, arms_marks.mean_entropies(model, prompt, completions), strict=True):
        logs = model(torch.tensor([prompt + ids])).logits[0, 2:-1].log_softmax(-1)
        assert found == pytest.approx(float(-(logs.exp() * logs).sum(-1).mean().detach()), abs=1e-5)


def write_run(name: str, tokens: float, seed: int) -> None:
    """Write a record of a run whose steps have about `tokens` tokens a completion."""
    lengths = tokens * np.exp(np.random.default_rng(seed).normal(0, 0.05, arms.STEPS))
    rows = [{"step": step + 1, "tokens": float(length)} for step, length in enumerate(lengths) for _ in range(16)]
    pq.write_table(pa.Table.from_pylist(rows), arms.OUT / f"{name}.parquet")
    (arms.OUT / f"{name}.json").write_text(json.dumps({"run": name, "processor": "x"}))


def test_marks_from_records(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(b) three times as long as (a), (d) as (c): shown after Holm; (c) is (a). Before the end nothing is computed."""
    published = root / arms.OUT.parent / "records"
    (tmp_path / "records").symlink_to(published)
    for module in (arms, arms_marks):
        monkeypatch.setattr(module, "OUT", tmp_path / "arms")
    arms.OUT.mkdir()
    lengths = {"a": 40, "b": 120, "c": 40, "d": 110, "e": 90, "f": 30}
    for number, name in enumerate(arms.order()[:-1]):
        write_run(name, lengths[name[0]] * (1 + 0.1 * int(name[3:])), number)
    with pytest.raises(UserError, match="not recorded: c-s8"):
        arms_marks.tests(closed=False)
    found = arms_marks.tests(closed=True)
    assert found["not run"] == [arms.order()[-1]]
    assert [found[key]["held"] for key in ("b - a", "d - c", "c - a", "e", "f")] == [True] * 5
    assert found["c - a"]["equivalent"]
    assert found["b - a"]["mean, 95 %"][0] == pytest.approx(np.log(3), abs=0.05)


def test_the_published_null(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    first = json.loads((arms.OUT / "null.json").read_text())
    for pairs, found in arms_marks.null().items():
        for draw, rates in first[pairs].items():
            assert rates == pytest.approx({key: float(value) for key, value in found[draw].items()}, abs=1e-4)
