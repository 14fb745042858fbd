"""The rewards: what they pay, how they are loaded, and what is asked of one before a model is loaded."""

import asyncio
import itertools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gtpo.common.errors import UserError
from gtpo.rewards import (
    accuracy_reward,
    boxed_reward,
    final_reward,
    format_ok,
    format_reward,
    format_reward_filled,
    published_final_reward,
)
from gtpo.rewards.loading import load_reward, load_rewards, probe_reward, score_fault

GOOD = "<reasoning>r</reasoning>\n<answer>12</answer>"


def test_accuracy_and_final() -> None:
    chat = [{"role": "assistant", "content": GOOD}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": GOOD}]}]
    completions = [GOOD, chat, parts, "12", GOOD]
    assert accuracy_reward(completions, ["12", "12.0", "120", "12", None]) == [10.0, 10.0, 0.0, 0.0, None]
    both = final_reward(completions=completions, prompts=None, answer=["12", "12", "120", "12", ""])
    assert both == [20.0, 20.0, 10.0, 0.0, None]
    with pytest.raises(ValueError, match="gold answers"):
        accuracy_reward([GOOD], [])


@pytest.mark.parametrize(
    ("text", "paper", "filled"),
    [
        (GOOD, 10.0, 10.0),
        (f"\n{GOOD}\n ", 10.0, 10.0),
        ("<reasoning></reasoning><answer></answer>", 10.0, 1.0),
        ("<reasoning> \n</reasoning>\n<answer>12</answer>", 10.0, 1.0),
        ("<reasoning>r</reasoning>\n<answer> </answer>", 10.0, 1.0),
        (f"Well. {GOOD}", 10.0, 1.0),
        ("<reasoning>r</reasoning> so <answer>12</answer>", 10.0, 1.0),
        (GOOD + " bye", 1.0, 1.0),
        ("<answer>12</answer><reasoning>r</reasoning>", 1.0, 1.0),
        (GOOD + "<answer>13</answer>", 1.0, 1.0),
        ("<reasoning>r</reasoning>", 1.0, 1.0),
        ("</answer>", 1.0, 1.0),
        ("12", 0.0, 0.0),
    ],
)
def test_format_and_blocks_that_hold_something(text: str, paper: float, filled: float) -> None:
    assert format_reward([text]) == [paper]
    assert format_ok(text) == (paper == 10.0)
    assert format_reward_filled([text]) == [filled]


def test_golds_that_are_numbers() -> None:
    golds = [0, -3, 0.5, np.int64(0), np.int32(12), np.float64(2.5), np.float32(0.1), Decimal("12.50"), Fraction(3, 4)]
    answers = ["0", "-3", "1/2", "0", "12", "2.5", "0.1", "12.5", r"\frac{3}{4}"]
    texts = [f"<reasoning>r</reasoning><answer>{answer}</answer>" for answer in answers]
    assert accuracy_reward(texts, golds) == [10.0] * 9
    assert accuracy_reward(["<answer>7</answer>"] * 9, golds) == [0.0] * 9
    assert None not in published_final_reward(texts, golds)


def test_what_is_no_gold_is_unscored() -> None:
    golds = [None, "", " ", "(Proof.)", "证明", float("nan"), np.float64("nan"), float("inf"), True, ["1"]]
    assert accuracy_reward([GOOD] * len(golds), golds) == [None] * len(golds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
    [
        ("<reasoning>r</reasoning><answer>120</answer>", "12", 20.0),
        ("<reasoning>r</reasoning><answer>1,000</answer>", "1000", 10.0),
        ("<reasoning>r</reasoning><answer>12</answer>\n", "12", 20.0),
        ("<reasoning>r</reasoning><answer>12</answer> ", "12", 1.5),
        ("<reasoning>r</reasoning><answer>5</answer><answer>7</answer>", "7", 20.0),
        ("<reasoning>r</reasoning><answer>12.005</answer>", "12", 20.0),
        ("<answer>12</answer>", "12", 1.0),
        ("</reasoning><answer>12</answer>", "12", 1.5),
        ("12", "12", 0.0),
    ],
)
def test_published_reward(completion: str, gold: str, score: float) -> None:
    assert published_final_reward([completion], [gold]) == [score]


def test_loading(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_ok.py").write_text("def short(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    (tmp_path / "mine_bad.py").write_text("import no_such_thing_here\n")
    (tmp_path / "mine_sig.py").write_text("def f(completions):\n    return []\n")
    (tmp_path / "mine_async.py").write_text("async def f(completions, **kwargs):\n    return [1.0]\n")
    assert load_reward("gtpo.rewards.final_reward") is final_reward
    assert load_reward("mine_ok:short")(completions=["a"]) == [1.0]
    loaded = load_rewards(["gtpo.rewards.format_reward", "mine_ok.short"], [1, 0.5])
    assert loaded.weights == [1.0, 0.5]
    assert loaded.names == ["format_reward", "short"]
    (tmp_path / "mine_args.py").write_text("def scaled(completions, k, **kwargs):\n    return [k] * len(completions)\n")
    calls = [("mine_args.scaled", {"k": k}) for k in (1, 100)]
    loaded = load_rewards(calls)
    assert [function(completions=["a"]) for function in loaded.functions] == [[1], [100]]
    assert loaded.names == ["mine_args.scaled", "mine_args.scaled-2"]
    assert [probe_reward("scaled", function, {"prompt": "?"}) for function in loaded.functions] == [(None, None)] * 2
    for path, complaint in [
        ("final_reward", "dotted path"),
        ("gtpo.rewards.final_rewrd", "Did you mean"),
        ("no_such.module.f", 'no module named "no_such"'),
        ("mine_bad.f", "no_such_thing_here"),
        ("mine_sig.f", "kwargs"),
        ("mine_async.f", "an async function, which is not awaited here"),
        ("gtpo.rewards.__all__", "not a function"),
    ]:
        with pytest.raises(UserError, match=complaint):
            load_reward(path)
    with pytest.raises(UserError, match="2 values for 1"):
        load_rewards(["gtpo.rewards.final_reward"], [1, 2])


def test_the_gold_may_have_another_column_and_the_answer_another_place() -> None:
    boxed = [r"It is \boxed{12}.", "It is 12."]
    trl = {"trainer_state": None, "completion_ids": [[0], [0]]}
    for name in ("answer", "gold", "ground_truth", "solution"):
        assert accuracy_reward(boxed, **{name: ["12", "12"]}, scoring="boxed") == [10.0, 0.0]
    assert boxed_reward(boxed, solution=[r"So it is \boxed{12}.", "12"], **trl) == [10.0, 0.0]
    assert accuracy_reward(boxed, ["12", "12"], scoring="lenient") == [10.0, 10.0]
    assert accuracy_reward([GOOD], ["13"], solution=["12"]) == [0.0]  # `answer` comes first


def test_an_option_that_changes_nothing_is_refused() -> None:
    options: dict[str, Any]
    for options, error, message in [
        ({"scorin": "lenient"}, TypeError, 'no option "scorin".*Did you mean "scoring"'),
        ({"scoring": "loose"}, ValueError, "one of strict, lenient, boxed"),
        ({"tolerance": 0.1}, TypeError, 'no option "tolerance"'),
    ]:
        with pytest.raises(error, match=message):
            accuracy_reward([GOOD], ["12"], **options)
    with pytest.raises(ValueError, match="the dataset needs a column"):
        accuracy_reward([GOOD])


def test_paid_answers_that_say_more_are_logged() -> None:
    logged: dict[str, float] = {}
    texts = [f"<answer>{answer}</answer>" for answer in ("42", "x = 42", "41", "42.0")]
    accuracy_reward(texts, ["42"] * 4, log_metric=lambda name, value: logged.update({name: value}))
    assert logged["reward/paid_longer"] == pytest.approx(2 / 3)


ROW = {"id": "1", "prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("scores", "words"),
    [
        *((scores, None) for scores in ([1, 0.5], [True, None], torch.ones(2), (math.nan, 0), (0 for _ in "ab"))),
        ([1.0], "returned 1 scores for 2 completions"),
        ([1.0] * 3, "returned 3 scores for 2 completions"),
        (1.0, "returned float for 2 completions"),
        ({"a": 1.0, "b": 2.0}, "returned dict for 2 completions"),
        ("12", "returned str for 2 completions"),
        ([0.0, "1"], "returned '1' for completion 1"),  # TRL makes a tensor of the scores
        ([0.0, "yes"], "returned 'yes' for completion 1"),
        ([10**400, 0.0], "returned a number beyond float64 for completion 0"),
        ([0.0, math.inf], "returned inf for completion 1"),
        ([-math.inf, 0.0], "returned -inf for completion 0"),
    ],
)
def test_one_number_or_none_per_completion_is_a_score(scores: Any, words: str | None) -> None:
    fault = score_fault("mine", scores, 2)
    assert fault is words or str(fault).startswith(f"reward mine {words}")
    closed = str(score_fault("mine", asyncio.sleep(0), 2))
    assert closed.startswith("reward mine returned a coroutine for 2 completions; await it")


def test_our_own_rewards_pass() -> None:
    for reward, prompt in itertools.product((final_reward, accuracy_reward, format_reward), (ROW["prompt"], "1 + 1?")):
        assert probe_reward("ours", reward, {**ROW, "prompt": prompt}) == (None, None)


def test_arguments_that_do_not_fit_are_named_before_the_first_completion() -> None:
    def needs_gold(completions: list[Any], gold: list[str], **columns: Any) -> list[float]:
        raise AssertionError("not called")

    fault = probe_reward("needs_gold", needs_gold, ROW)[0]
    assert fault is not None
    assert "missing a required argument: 'gold'" in fault
    assert "answer" in fault, "what it is called with is listed"


def test_an_exception_on_a_made_up_completion_is_no_fault_and_a_coroutine_is_awaited() -> None:
    def parses(completions: list[Any], **columns: Any) -> list[float]:
        return [float(columns["label"]) for completion in completions]

    async def judge(completions: list[Any], **columns: Any) -> None:
        await asyncio.sleep(0)

    assert probe_reward("parses", parses, ROW) == (
        None,
        "reward parses raised KeyError: 'label' for an empty completion",
    )
    assert "reward judge returned NoneType for 2 completions" in str(probe_reward("judge", judge, ROW)[0])
