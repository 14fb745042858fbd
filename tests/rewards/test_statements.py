"""What stands around an answer: statements that say something else, names of sets, another thing that is counted."""

import pytest

from gtpo.rewards import Verdict, Verifier, accuracy_reward


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1) as shared:
        yield shared


GIRLS = "There are 50 boys and girls in the class, 8 of them boys. How many girls are there?"
FORM = r"Write $2x^2-4x+5$ in the form $a(x-h)^2+k$."
STATED = "Given that $f(x) = 2$ for all x and $g(1) = 7$, how many solutions has $f(x) = g(1) - 5$ in one period?"


@pytest.mark.parametrize(
    ("prediction", "gold", "problem", "right"),
    [
        ("Ann thinks Bob has 42", "42", None, False),
        ("My friend claims 42", "42", None, False),
        ("It could be 42", "42", None, False),
        ("It used to be 42", "42", None, False),
        ("It should have been 42", "42", None, False),
        ("I think it is 42", "42", None, True),
        ("The merchant would make a profit of $42", "42", None, True),
        ("Total: 42", "42", None, True),
        ("Therefore, 42", "42", None, True),
        ("3 s^{2}", "3s^{2}", None, True),
        ("3 s^{2}", "9s", None, False),
        ("one thousand dollars", "1000", None, True),
        ("twenty-one apples", "21", None, True),
        ("twenty-one or more", "21", None, False),
        ("one hundredth", "1", None, False),
        ("one and a half", "1.5", None, True),
        ("one and a half", "1/2", None, False),
        ("no solution", r"\emptyset", None, True),
        ("all real numbers", r"(-\infty, \infty)", None, True),
        ("DNE", r"\text{does not exist}", None, True),
        ("It is Monday.", "Monday", None, True),
        ("Tuesday", "Monday", None, False),
        ("5 p.m.", "5:00 PM", None, True),
        ("5 a.m.", "5:00 PM", None, False),
        ("42 seconds", "42", "How long does it take in minutes?", False),
        ("42 minutes", "42", "How long does it take in minutes?", True),
        ("42 miles", "42", "How far does he run in an hour?", True),
        ("42 boys", "42", GIRLS, False),
        ("42 girls", "42", GIRLS, True),
        ("42 children", "42", GIRLS, True),
        ("The first number is 42", "42", "Find the first number.", True),
        ("The second number is 42", "42", "Find the first number.", False),
        ("The smaller number is 42", "42", "Two numbers differ by 3. What is the smallest one?", True),
        ("The larger number is 42", "42", "Two numbers differ by 3. What is the smaller one?", False),
        ("42 cents", "$42", "How much is it?", False),
        ("$42", "42", "How many cents is it?", True),
        ("y = 5", "5", "If $2x = 10 - y$ and $y = 0$, find $x$.", False),
        ("N = 5", "5", "If $2x = 10$, find $x$.", True),
        ("y = 5", "5", "If $x = 2$ and $x + y = 0$, find $x + 3$.", True),
        ("= 2", "2", "If $2^8 = 4^x$ and $y = 2$, what is $x - 2$?", True),
        (r"{\text{(E)}}", r"\text{(E)}", None, True),
        ("sixty percent", "60", "What percent of them are girls?", True),
        ("a third", r"\frac{1}{3}", None, True),
        ("all real numbers except 0", r"(-\infty,0)\cup(0,\infty)", None, True),
        ("the point (0, 1)", "(0,1)", None, True),
        (r"\frac{\pi}{4}^\circ", r"\frac{\pi}{4}", None, False),
        ("b", "B", "Which? (A) 1 (B) 2", True),
        (r"\boxed{8} - 1 + 1", "8", None, False),
        (r"- \boxed{8}", "8", None, True),
        (r"2(x-1)^2+3", r"2(x-1)^2+3", FORM, True),
        (r"3+2(x-1)^2", r"2(x-1)^2+3", FORM, True),
        (r"2x^2-4x+5", r"2(x-1)^2+3", FORM, False),
        (r"2x(x-2)+5", r"2(x-1)^2+3", FORM, False),
        ("f(x) = 2", "2", STATED, False),
        ("2", "2", STATED, True),
        (r"-i^2 (42)", "42", None, False),
        (r"42 e^{2\pi i}", "42", None, False),
        (r"(42) \times 10^0", "42", None, False),
    ],
)
def test_statement(verifier: Verifier, prediction: str, gold: str, problem: str | None, right: bool) -> None:
    assert (verifier.verify(prediction, gold, problem=problem) is Verdict.CORRECT) is right


def test_paid_answers_that_say_more_are_logged() -> None:
    logged: dict[str, float] = {}
    texts = [f"<answer>{answer}</answer>" for answer in ("42", "x = 42", "41", "42.0")]
    accuracy_reward(texts, ["42"] * 4, log_metric=lambda name, value: logged.update({name: value}))
    assert logged["reward/paid_longer"] == pytest.approx(2 / 3)
