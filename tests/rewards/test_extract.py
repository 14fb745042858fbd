from pathlib import Path

import pytest

from gtpo.rewards import accuracy_reward, extract_answer, format_ok, gsm8k_gold, last_boxed, published_final_reward
from gtpo.rewards.completions import words
from gtpo.rewards.extract import check_rule, extract_both, extract_by


def test_the_answer_of_each_completion() -> None:
    lines = Path(__file__).with_name("completions.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.replace("⏎", "\n").split("\t") for line in lines if line[0] != "#"]
    found = [(rules, answer, text, extract_by(rule, text)) for rules, answer, text in rows for rule in rules.split(" ")]
    assert len(found) > 125
    assert [row for row in found if (row[3] or "") != row[1]] == []
    for text in {row[2] for row in rows}:
        assert extract_both(text) == (extract_answer(text), extract_answer(text, "lenient"))
        assert extract_both(text, check_rule("number"))[0] == extract_by("number", text)


def test_unknown_scoring_is_an_error() -> None:
    with pytest.raises(ValueError, match="strict"):
        extract_answer("1", "loose")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{\sqrt{2}}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed 5.", "5"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\boxed{7}}", r"\boxed{7}"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{3} and later \boxed{4", "3"),
        ("none", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    "piece",
    sorted(
        words(
            r"\boxed{ \ <answer> <think> </think> <think></think> <reasoning> \[ $$ $ ( { 9 1, #### answer "
            r"the_answer_is I_hope_it_is_correct \boxed{1},_ \frac{1}{2} 1_ <|pad|> <|odd|> [EOS] <_ _ -_ ¶ ¶*_"
        )
    ),
)
def test_long_hostile_text_is_linear(piece: str) -> None:
    """Quadratic work on this length would not end before the limit of a test."""
    text = (piece.replace("_", " ").replace("¶", "\n") * 200_000)[:200_000]
    for scoring in ("strict", "lenient"):
        assert accuracy_reward([text], answer=["7"], scoring=scoring) == [0.0]
    assert (last_boxed(text) or "1") == "1"
    assert not format_ok(text)
    extract_both(text, "choice")
    assert len(published_final_reward([text, "<reasoning>" + text], ["1", "1"])) == 2


def test_gsm8k_gold() -> None:
    assert gsm8k_gold("work <<1+1=2>>\n#### 1,080\n") == "1080"
    assert gsm8k_gold("no mark") is None
    assert gsm8k_gold("####  ") is None
