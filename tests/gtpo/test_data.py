"""Training data: conversations, targets, what is left out and counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from gtpo.common.errors import UserError
from gtpo.config import BuiltModel, TrainConfig, load_config
from gtpo.config.schema import DatasetSection
from gtpo.inputs.dataset import (
    DatasetReport,
    TrainingProblems,
    check_ids,
    held_out_benchmark,
    reasoning,
    to_row,
)
from gtpo.inputs.tiny import TAGS, build_tiny_model, build_tokenizer, damage_target
from gtpo.rewards import accuracy_reward, final_reward, format_ok, format_reward
from gtpo.rewards.data.problem import Problem, target_text
from gtpo.rewards.data.problems import load_source
from gtpo.rewards.golds import find_unverifiable

TOKENIZER = build_tokenizer()


def config_of(folder: Path, **overrides: Any) -> TrainConfig:
    path = folder / "run.yaml"
    path.write_text("model:\n  model_name: org/model\n")
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(path, dotted, world_size=1)


def problem(identifier: str, answer: str = "4", solution: str = "2 + 2 = <<2+2=4>>4", text: str = "2+2?") -> Problem:
    return Problem(identifier, text, answer, solution)


def test_sft_target_is_the_published_format_and_earns_the_full_reward(tmp_path: Path) -> None:
    row = to_row(problem("a"), config_of(tmp_path, method="sft"))
    target = row["completion"][0]["content"]
    assert target == "<reasoning>\n2 + 2 = <<2+2=4>>4\n</reasoning>\n<answer>4</answer>"
    assert format_ok(target)
    assert final_reward(completions=[target], answer=["4"]) == [20.0]


def test_a_reward_sees_what_is_known_of_a_problem(tmp_path: Path) -> None:
    row = to_row(problem("a"), config_of(tmp_path))
    del row["prompt"]
    assert row == {"id": "a", "answer": "4", "solution": "2 + 2 = <<2+2=4>>4", "subject": "", "level": None}


@pytest.mark.parametrize(
    ("solution", "expected"),
    [("a\nb\n#### 4", "a\nb"), ("a #### b\n#### 4", "a #### b"), ("plain", "plain"), ("  \n#### 4", ""), ("", "")],
)
def test_reasoning_drops_only_the_closing_answer_line(solution: str, expected: str) -> None:
    assert reasoning(problem("a", solution=solution)) == expected


def test_damaged_targets_have_their_share_and_depend_on_the_row_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, method="sft", dataset__malformed_targets=0.3)
    sound = to_row(problem("any"), config_of(tmp_path, method="sft"))["completion"]
    rows = [to_row(problem(str(number)), config) for number in range(400)]
    damaged = [row["id"] for row in rows if row["completion"] != sound]
    assert 0.2 < len(damaged) / 400 < 0.4
    assert to_row(problem(damaged[-1]), config)["completion"] == rows[int(damaged[-1])]["completion"]


def test_order_follows_the_seed_and_is_the_same_for_every_method(tmp_path: Path) -> None:
    problems = [problem(str(number)) for number in range(50)]

    def order(**overrides: Any) -> list[str]:
        rows, _ = TrainingProblems(config_of(tmp_path, **overrides), problems).select(None)
        return [row["id"] for row in rows]

    assert order() == order(method="grpo") == order(method="sft")
    assert order() != order(model__random_seed=1)
    assert sorted(order(), key=int) == [p.id for p in problems]
    assert order(dataset__limit=7) == order()[:7]


def test_what_is_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    rows = [
        problem("good"),
        problem("empty", answer=""),
        problem("long", text="1 " * 200),
        problem("unexplained", solution=""),
        problem("long example", solution="1 + " * 100),
    ]
    config = config_of(tmp_path, method="sft", model__max_seq_length=160, training__max_prompt_length=150)
    kept, report = TrainingProblems(config, rows).select(TOKENIZER)
    assert [row["id"] for row in kept] == ["good"]
    assert set(report.unverifiable) == {"empty"}
    assert set(report.too_long) == {"long", "long example"}
    assert report.without_solution == ["unexplained"]
    assert (report.available, report.examined, report.kept) == (5, 5, 1)
    text = "\n".join(report.lines())
    for words in ("1 of 5", "cannot be verified: empty", "no worked solution: unexplained", "above training.max_"):
        assert words in text


def test_rows_beyond_the_limit_are_not_in_the_report(tmp_path: Path) -> None:
    config = config_of(tmp_path, dataset__limit=4, model__max_seq_length=160, training__max_prompt_length=150)
    rows = [problem(str(n), answer="" if n == 9 else "4") for n in range(12)]
    order = TrainingProblems(config, rows).load()
    long = {order[1].id: "1 " * 200, order[5].id: "1 " * 40, order[6].id: "1 " * 200}
    rows = [problem(p.id, answer=p.answer, text=long.get(p.id, "1")) for p in rows]
    problems = TrainingProblems(config, rows)
    kept, report = problems.select(TOKENIZER)
    assert report.examined == 5 + len(report.unverifiable)
    assert set(report.too_long) == {order[1].id}
    assert report.longest == max(
        len(each.ids) for each in problems.prompts(TOKENIZER).render([r["prompt"] for r in kept])
    )


def test_problems_are_loaded_and_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check before the model is loaded and the dataset for TRL share one TrainingProblems."""
    verified: list[str] = []
    load = Mock(side_effect=load_source)

    def verify(golds: Any) -> Any:
        pairs = list(golds)
        verified.extend(identifier for identifier, _ in pairs)
        return find_unverifiable(pairs)

    monkeypatch.setattr("gtpo.inputs.dataset.load_source", load)
    monkeypatch.setattr("gtpo.inputs.dataset.find_unverifiable", verify)
    problems = TrainingProblems(config_of(tmp_path, dataset__name="arithmetic"))
    without, _ = problems.select(None)
    rows, report = problems.select(TOKENIZER)
    assert (load.call_count, len(verified)) == (1, report.available)
    assert len(set(verified)) == report.available == len(rows) == len(without)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("overrides", "available", "kept"),
    [
        ({"dataset__name": "gsm8k"}, 7473, 7473),
        ({"dataset__name": "hendrycks_math"}, 7500, 7497),
        ({"dataset__name": "EleutherAI/hendrycks_math", "dataset__subsets": ["algebra", "geometry"]}, 2614, 2614),
        ({"dataset__name": "math", "dataset__subset": "precalculus", "method": "sft"}, 746, 746),
    ],
)
def test_real_sets_have_the_published_counts(
    tmp_path: Path, shared_dir: Path, overrides: dict[str, Any], available: int, kept: int
) -> None:
    config = config_of(tmp_path, dataset__data_dir=str(shared_dir / "data"), **overrides)
    rows, report = TrainingProblems(config).select(None)
    # Two MATH golds are empty; of a third it is the verifier's policy whether it can be verified against itself.
    assert report.available == available
    assert report.kept - kept in (0, 1) if kept < available else report.kept == kept
    assert len(report.unverifiable) == available - report.kept
    if config.method == "sft":
        assert all(format_ok(row["completion"][0]["content"]) for row in rows)


def test_a_token_beyond_the_embedding_is_refused_before_anything_is_measured() -> None:
    report = DatasetReport("set", 1, largest_id=TOKENIZER.pad_token_id + 5)
    check_ids(report, TOKENIZER, report.largest_id + 1)
    with pytest.raises(UserError, match=f"of a text has id {report.largest_id}, and the embedding has"):
        check_ids(report, TOKENIZER, report.largest_id)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ({"name": "arithmetic"}, "--benchmarks arithmetic"),
        ({"name": "gsm8k"}, "--benchmarks gsm8k"),
        ({"name": "EleutherAI/hendrycks_math", "data_dir": "sets"}, "--benchmarks math500 --data-dir sets"),
        ({"name": "mine.jsonl"}, "--benchmarks arithmetic"),
        ({"name": "math_mine.jsonl"}, "--benchmarks arithmetic"),
        ({"name": "mine.jsonl", "validation_file": "held.jsonl"}, "--benchmarks held.jsonl"),
    ],
)
def test_a_run_is_measured_on_problems_that_it_was_not_trained_on(dataset: dict[str, str], words: str) -> None:
    assert held_out_benchmark(DatasetSection(**dataset)) == words


# -- the embedded default model ----------------------------------------------------------------------------------------

SMALL = BuiltModel(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def test_any_text_survives_the_tokenizer_in_which_tags_and_digits_are_single_tokens():
    for text in ("<reasoning>\n1+2=3\n</reasoning>\n<answer>3</answer>", "π ≠ 3,14…\u2028\t\x00", "  two  spaces "):
        assert TOKENIZER.decode(TOKENIZER(text).input_ids, skip_special_tokens=True) == text
    for text in (*TAGS, *"0123456789"):
        assert len(TOKENIZER(text).input_ids) == 1
    assert len(TOKENIZER("123").input_ids) == 3


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_seed_decides_the_weights(architecture):
    spec = SMALL.model_copy(update={"architecture": architecture})
    state = torch.random.get_rng_state()
    first, again, other = (build_tiny_model(spec, max_seq_length=64, seed=s)[0].state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state), "building must not move the global generator"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_every_damage_costs_the_format_or_the_answer():
    target = target_text("9+8=17\n17+1=18", "18")
    rng = random.Random(0)
    damaged = sorted({damage_target(target, rng) for _ in range(200)})
    assert len(damaged) == 3 + 4
    rewards = list(zip(format_reward(damaged), accuracy_reward(damaged, answer=["18"] * len(damaged)), strict=True))
    assert rewards.count((10.0, 0.0)) == 4
    assert sum(form < 10 for form, _ in rewards) == 3
