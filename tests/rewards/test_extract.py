import pytest

from gtpo.rewards import accuracy_reward, extract_answer, format_ok, gsm8k_gold, last_boxed, published_final_reward
from gtpo.rewards.completions import words
from gtpo.rewards.extract import check_rule, extract_both


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ("<reasoning>r</reasoning><answer> 12 </answer>", "12", "12"),
        ("<answer>5</answer> or <answer>7</answer>", "7", "7"),
        (r"<answer>so \boxed{\frac{1}{2}}</answer>", r"\frac{1}{2}", r"\frac{1}{2}"),
        ("<answer> </answer>", None, None),
        ("<answer>12", None, "12"),
        ("<think><answer>5</answer></think> all done", None, None),
        ("a thought <answer>5</answer></think>", None, None),
        ("<think> cut while thinking <answer>5</answer>", None, None),
        ("<reasoning><answer>5</answer></reasoning>", None, "5"),
        ("<reasoning>never closed <answer>5</answer>", "5", "5"),
        (r"first \boxed{3}. Then \boxed{\frac{1}{2}}.", None, r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2}", None, r"\boxed{1}, \boxed{2}"),
        (r"The answer is \boxed{4", None, None),
        ("work\n#### 1,234", None, "1,234"),
        ("The answer is 12. I am sure.", None, "12"),
        ("Final Answer: The final answer is $12$. I hope it is correct.", None, "$12$"),
        (r"\boxed{20} percent", None, r"20\%"),
        ("(1, 4.5)", None, "(1, 4.5)"),
        ("The answer is that she has 3 apples.", None, "3"),
        (r"Either \boxed{3} cats and \boxed{4} dogs", None, r"\boxed{3}, \boxed{4}"),
        (r"\boxed{3} no, that is wrong, it is \boxed{4}", None, "4"),
        ("She earns $18 a day, which is $126 a week.", None, "$126"),
        ("In total $5.00 + $3.00 + $1.00 = $9.00", None, "$9.00"),
        (r"So $2 \text{ eggs} + 3 = 5$", None, r"2 \text{ eggs} + 3 = 5"),
        (r"We find $x \geq 5$ at last.", None, r"x \geq 5"),
        ("A loss of 28 percent", None, "28 percent"),
        ("The area is 25π cm².", None, "25π"),
        ("so it turns by 2π/3 radians", None, "2π/3"),
        ("The larger root is (1 + √5)/2, as before.", None, "(1 + √5)/2"),
        ("Cats and dogs are 3 : 4", None, "3 : 4"),
        ("The ratio of cats to dogs is 3 to 4.", None, "3 to 4"),
        ("The film ends at 9:45 PM.", None, "9:45"),
        ("Step 2: 45", None, "45"),
        ("They raised $2.5 million.", None, "$2.5 million"),
        ("There is no solution: 3 is no root of it", None, "3"),
        ("No real solutions", None, "No real solutions"),
        ("The answer is 5, not 6.", None, "5"),
        ("Answer: 5 apples (because 4 + 1)", None, "5"),
        ("The solution to $3x = 15$ is $x = 5$.", None, "$x = 5$"),
        ("उत्तर 42 है।", None, "42"),
        ("因此，答案是选项C。", None, "C"),
        ("정답은 C입니다.", None, "C"),
        ("La respuesta correcta es la C.", None, "C"),
        ("La respuesta no es la C.", None, "no es la C."),
        ("答案是C，其他选项都不正确。", None, "C"),
        ("不应选C", None, None),
        ("Có tất cả 42 quả táo.", None, "42"),
        ("#### 18\n\n## Problem\nFind x.\n## Solution\n#### 5", None, "18"),
        ("\\boxed{0.5}\nSo, the correct option is (C).", None, "(C)"),
        ("<reasoning>Is it \\boxed{7}? No.</reasoning>The answer is 42.", None, "42"),
        ("<answer><|begin_of_box|>42<|end_of_box|></answer>", "42", "42"),
        ("nothing here", None, None),
        ("", None, None),
        ("Monday", None, "Monday"),
    ],
)
def test_extraction(text: str, strict: str | None, lenient: str | None) -> None:
    assert extract_answer(text) == strict
    assert extract_answer(text, "lenient") == lenient
    assert extract_both(text) == (strict, lenient)


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


@pytest.mark.parametrize(
    ("rule", "text", "answer"),
    [
        ("choice", "So the correct option is B) 5 apples.", "B"),
        ("choice", "\\boxed{\\text{(C)}}, since option A is wrong", "C"),
        ("choice", "The best answer is C because A is wrong.", "C"),
        ("choice", "<think>answer is A</think> I think\n(D)", "D"),
        ("choice", "The answer is A man of 5", None),
        ("choice", "\\boxed{42}", None),
        ("boxed", "#### 3 \\boxed{4}", "4"),
        ("boxed", "#### 3", None),
        ("hashes", "#### 3\n#### 5\nso \\boxed{4}", "5"),
        ("number", "\\boxed{4} of 12", "12"),
        ("strict", "\\boxed{4}", None),
        (r"(-?[$0-9.,]{2,})|(-?[0-9]+)", "5 + 12 = 7", "7"),
    ],
)
def test_the_rule_of_a_task(rule: str, text: str, answer: str | None) -> None:
    assert extract_both(text, check_rule(rule)) == (answer, answer)
