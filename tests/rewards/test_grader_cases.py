"""Agreement with other projects' grader tests; with the owners' labels of recorded completions: test_recorded."""

import itertools
import json
import random
import re
from pathlib import Path

import math_verify
import pytest

from gtpo.common.files import read_jsonl
from gtpo.rewards import Verdict, Verifier, extract_answer, last_boxed
from gtpo.rewards.equality.comparing.decide import decide
from gtpo.rewards.golds import find_unverifiable

IN_A_PROCESS = ("rewards/equality/",)

pytestmark = pytest.mark.shared

LISTED = json.loads((Path(__file__).parent / "grader_disagreements.json").read_text())["cases"]
FLOORS = {"math_verify": (268, 262), "ms_swift": (27, 26), "qwen_math_equal": (17, 16), "trl": (12, 12)}


def rows(path: Path) -> list[dict]:
    return [row for _, row in read_jsonl(path)]


def prediction_of(case: dict) -> str:
    """The lenient extraction; TRL's reasoning reward looks for a box after the reasoning's end and nowhere else."""
    if case.get("cls") == "TestReasoningAccuracyReward":
        _, end, answer = re.split(r"(</think>|</REASONING_END>)", case["pred"] + "</think>", maxsplit=1)
        return last_boxed(answer) or "" if end and answer else ""
    return extract_answer(case["pred"], "lenient") or ""


@pytest.mark.parametrize("suite", FLOORS)
def test_suites_agree_but_for_the_listed_cases(suite: str, shared_dir: Path, verifier: Verifier) -> None:
    cases = rows(shared_dir / "grader_cases" / f"{suite}.jsonl")
    disagreements = {}
    for index, case in enumerate(cases):
        gold = case["gold"]  # one suite has an empty gold: nothing equals it
        verdict = verifier.verify(prediction_of(case), gold, scoring="lenient") if gold.strip() else Verdict.NO_ANSWER
        if (verdict is Verdict.CORRECT) != case["expected"]:
            disagreements[index] = verdict is Verdict.CORRECT
    assert all(row["contested"] and row["reason"] for row in LISTED)
    listed = {row["index"]: row["ours"] for row in LISTED if row["suite"] == suite}
    assert disagreements == listed
    total, floor = FLOORS[suite]
    assert len(cases) == total
    assert total - len(disagreements) >= floor


def golds(shared_dir: Path, name: str) -> list[tuple[str, str]]:
    return [(row["id"], row["answer"]) for row in rows(shared_dir / "data" / f"{name}.jsonl")]


def test_every_gold_verifies_against_itself(shared_dir: Path, verifier: Verifier) -> None:
    names = ["gsm8k_train", "gsm8k_test", "math_test", "math500", "aime24", "aime25", "amc23", "amc_aimo83"]
    for name in names:
        assert find_unverifiable(golds(shared_dir, name), verifier) == []
    failures = find_unverifiable(golds(shared_dir, "math_train"), verifier)
    assert {failure.id: failure.reason for failure in failures} == {
        "math/train/5341": "the gold answer is empty",
        "math/train/5343": "the gold answer is empty",
    }


def plain(text: str) -> str:
    """What is left of an answer without its spelling: equal for answers that differ in notation alone."""
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"\s|\\left|\\right|\\text|\\mbox|\\%|\\\$|\\!|[{}().,]|\^\\circ", "", text)


def test_near_misses_among_the_golds_are_told_apart(shared_dir: Path) -> None:
    """Golds of the same characters in another order, and random pairs: what we accept, Math-Verify accepts too."""
    every = golds(shared_dir, "math_train") + golds(shared_dir, "math_test")
    answers = sorted({answer for _, answer in every if answer})
    groups: dict[str, list[str]] = {}
    for answer in answers:
        groups.setdefault("".join(sorted(re.sub(r"\\[dt]?frac|[^a-zA-Z0-9]", "", answer))), []).append(answer)
    pairs = [pair for group in groups.values() for pair in itertools.combinations(group, 2)]
    draw = random.Random(0)
    pairs = [*pairs[::3], *((draw.choice(answers), draw.choice(answers)) for _ in range(600))]
    assert len(pairs) > 3000
    accepted = [(a, b) for a, b in pairs if plain(a) != plain(b) and decide(a, b, by_text=False) == "CORRECT"]
    assert accepted
    for a, b in accepted:
        first, second = (math_verify.parse(f"${answer}$", parsing_timeout=None) for answer in (a, b))
        assert math_verify.verify(first, second, timeout_seconds=None) or math_verify.verify(
            second, first, timeout_seconds=None
        ), (a, b)
