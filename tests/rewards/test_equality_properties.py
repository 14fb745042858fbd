"""Equality is reflexive and symmetric, blind to spaces and `\\left`/`\\right`, and sees every changed number."""

import re
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo.rewards import extract_answer, last_boxed
from gtpo.rewards.equality.comparing.decide import decide

PROFILE = settings(max_examples=60, deadline=None, derandomize=True)

integers = st.integers(-999, 999)
atoms = st.one_of(
    st.integers(0, 99).map(str),
    st.sampled_from(["x", "y", "n", r"\pi", r"\theta", "a_1"]),
    st.tuples(st.integers(1, 20), st.integers(2, 20)).map(lambda t: rf"\frac{{{t[0]}}}{{{t[1]}}}"),
    st.integers(2, 50).map(lambda n: rf"\sqrt{{{n}}}"),
)


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda t: f"{t[0]} + {t[1]}"),
        two.map(lambda t: rf"\left({t[0]}\right) \left({t[1]}\right)"),
        two.map(lambda t: rf"\frac{{{t[0]}}}{{1+{t[1]}}}"),
        st.tuples(inner, st.integers(2, 4)).map(lambda t: rf"\left({t[0]}\right)^{{{t[1]}}}"),
    )


expressions = st.recursive(atoms, grow, max_leaves=6)
numerals = st.one_of(
    integers.map(str),
    st.tuples(integers, st.integers(1, 99)).map(lambda t: rf"\frac{{{t[0]}}}{{{t[1]}}}"),
    st.tuples(integers, st.integers(2, 30)).map(lambda t: rf"{t[0]}\sqrt{{{t[1]}}}"),
)
answers = st.one_of(
    expressions,
    st.lists(numerals, min_size=2, max_size=4).map(lambda v: rf"\left({', '.join(v)}\right)"),
    st.lists(numerals, min_size=2, max_size=4).map(lambda v: rf"\{{{', '.join(v)}\}}"),
    st.lists(numerals, min_size=2, max_size=4).map(", ".join),
    expressions.map(lambda e: f"x = {e}"),
    st.tuples(numerals, numerals).map(lambda t: rf"\begin{{pmatrix}} {t[0]} \\ {t[1]} \end{{pmatrix}}"),
    st.sampled_from(["Monday", r"\text{Monday}", r"\text{(B)}", "even", "12:30", "204_5", r"74^\circ", r"\$1,250"]),
)


def equal(first: str, second: str) -> bool:
    return decide(first, second) == "CORRECT"


@PROFILE
@given(answers)
def test_reflexive(answer: str) -> None:
    # A second pair of brackets keeps equal text from deciding alone.
    assert equal(answer, answer)
    assert equal(rf"\left({answer}\right)" if re.fullmatch(r"[\d\\a-z{}+ ^]+", answer) else f"${answer}$", answer)


@PROFILE
@given(answers, answers)
def test_symmetric_for_exact_answers(first: str, second: str) -> None:
    assert equal(first, second) == equal(second, first) or "=" in first + second


@PROFILE
@given(answers)
def test_blind_to_spaces_and_sizes(answer: str) -> None:
    bare = answer.replace(r"\left", "").replace(r"\right", "")
    spaced = re.sub(r"(?<=[-+(),=}{])(?!\s)", " ", bare)
    thin = re.sub(r"(?<=[+,=])\s", r"\\; ", answer)
    for variant in (bare, spaced, thin, f"  {answer}\n", f"${answer}$", rf"\boxed{{{answer}}}"):
        assert equal(variant, answer), variant
        assert equal(answer, variant), variant


@PROFILE
@given(expressions, st.integers(1, 9))
def test_a_changed_constant_is_seen(expression: str, change: int) -> None:
    assert not equal(f"{expression} + {change}", expression)
    assert equal(f"{expression} + {change}", rf"{change} + \left({expression}\right)")


@PROFILE
@given(st.fractions(), st.fractions())
def test_fractions_are_exact(a: Fraction, b: Fraction) -> None:
    first = rf"\frac{{{a.numerator}}}{{{a.denominator}}}"
    second = f"{b.numerator}/{b.denominator}"
    assert equal(first, second) == (a == b)
    assert equal(first, f"{a.numerator}/{a.denominator}")


@PROFILE
@given(st.integers(-(10**12), 10**12))
def test_thousands_separators(n: int) -> None:
    for separator in (",", r"{,}", r"\,", "\u2009", r",\!"):
        assert equal(f"{n:,}".replace(",", separator), str(n))
    assert not equal(f"{n:,}", str(n + 1))


@PROFILE
@given(st.text(max_size=80))
def test_any_text_is_decided(text: str) -> None:
    assert decide(text, r"\frac{1}{2}") in ("CORRECT", "INCORRECT", "REJECTED")
    extract_answer(text, "lenient")


@PROFILE
@given(answers, st.text(alphabet="ab .\n", max_size=30))
def test_boxes_and_tags_give_back_what_they_hold(answer: str, noise: str) -> None:
    assert last_boxed(rf"{noise}\boxed{{{answer}}}{noise}") == answer.strip()
    assert extract_answer(f"{noise}<answer>{answer}</answer>{noise}") == answer.strip()
