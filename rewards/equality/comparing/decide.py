"""From two answers as written to an outcome: clean, read, compare. What the workers run."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from mpmath import mp

from gtpo.rewards.boxes import boxed_together
from gtpo.rewards.equality.arithmetic.terms import Budget, evaluate, symbols
from gtpo.rewards.equality.arithmetic.values import DIGITS, NoValue, TooBig
from gtpo.rewards.equality.comparing.comparison import Comparison
from gtpo.rewards.equality.comparing.simplified import ANALYSIS, boxes_a_given, finding
from gtpo.rewards.equality.reading.answers import Answer, Scalar, Words
from gtpo.rewards.equality.reading.clean import clean, typed_thousands
from gtpo.rewards.equality.reading.problem import is_name_in, read_problem
from gtpo.rewards.equality.reading.reader import read
from gtpo.rewards.equality.reading.sentences import sentence_value
from gtpo.rewards.equality.reading.units import NO_UNIT
from gtpo.rewards.equality.reading.words import same_name, same_words
from gtpo.rewards.extract import extract_answer, without_thoughts

_LETTER_AFTER = re.compile(r"(-?(?:[\d.]+|\\frac\{\d+\}\{\d+\}))\s+([msghlL](?:\^\{?\d\}?)?)")
"""`3 s^{2}`, which may be a unit and may be a product."""
_OPTION_LETTER = re.compile(r"^\s*\(?[a-h]\)?\s*\.?\s*$")
KEPT = 1024
"""Answers kept as read: a question's gold and its candidates come again and again."""


@lru_cache(maxsize=KEPT)
def _readings(
    text: str, gold: bool = False, known: bool = False, said: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Return the cleaned texts an answer may be read as, the likeliest first.

    `known`: its problem is; `said`: the words of its question.
    """
    text = without_thoughts(text, ("think", "thinking"))
    if gold and "boxed" in text:
        text = extract_answer(text, "lenient") or text
    boxes = boxed_together(text) if "boxed" in text else []
    readings = _commas(clean(", ".join(boxes) if len(boxes) > 1 else text, gold), gold and known)
    if (spaced := _LETTER_AFTER.fullmatch(readings[0])) is not None:
        readings.append(spaced[1] + spaced[2])
    sentence = sentence_value(text, said)
    if gold and sentence is None and len(text.split()) > 8 and len(boxes) == 0:
        sentence = extract_answer(text, "lenient")  # a gold that is a whole solution
    return (*readings, *_commas(clean(sentence))) if sentence else tuple(readings)


_read = lru_cache(maxsize=KEPT)(read)


def read_answer(gold: str) -> Answer:
    """Return what a gold with a known problem is read as. Raises TooBig."""
    return _read(_readings(gold, gold=True, known=True)[0])


def _commas(cleaned: str, english: bool = False) -> list[str]:
    """Return the text and what its commas might mean: thousands separators, or a decimal comma.

    A gold with a problem has none: its problem is in English.
    """
    bracketed = cleaned.startswith(("(", "[", "\\{"))
    thousands = typed_thousands(cleaned)
    if thousands is not None and (not bracketed or ", " in cleaned):
        # `1,234` might be a list; `115,000` is none, for no list has an entry 000
        return [thousands] if re.search(r",0\d\d", cleaned) else [thousands, cleaned]
    if not english and re.fullmatch(r"[-+]?(?:\d+,\d{2}|\d+,\d{4,}|0,\d{3,})", cleaned):
        return [cleaned, cleaned.replace(",", ".")]
    return [cleaned]


def decide(
    prediction: str,
    gold: str,
    problem: str | None = None,
    sympy_fallback: Callable[[str, str], bool] | None = None,
    by_text: bool = True,
) -> str:
    """Return what comes of two answers as written.

    CORRECT, INCORRECT; COPIED or UNEVALUATED (equal in value, see `simplified`); REJECTED (the answer is
    beyond the bounds on work), UNUSABLE_GOLD (the gold is). Without `by_text`, equal text alone does not decide: the
    answer must be within what can be evaluated.
    """
    mp.dps = DIGITS
    known = read_problem(problem) if problem else None
    if known is not None and is_name_in(gold, known):
        return "CORRECT" if same_name(clean(prediction), gold) else "INCORRECT"
    if known is not None and known.options and re.fullmatch(r"\(?[A-H]\)?", gold.strip()):
        prediction = _OPTION_LETTER.sub(lambda m: m.group().upper(), prediction)
    said = known.asking if known is not None and " " in prediction else frozenset()
    predictions, golds = _readings(prediction, said=said), _readings(gold, gold=True, known=known is not None)
    if by_text and any(same_words(p, g) for p in predictions for g in golds):
        return "COPIED" if known is not None and boxes_a_given(prediction, known) else "CORRECT"
    try:
        Budget.refill()
        read_golds = [_read(text) for text in golds]
    except TooBig:
        return "UNUSABLE_GOLD"
    try:
        Budget.refill()
        read_predictions = [_read(text) for text in predictions]
        Budget.refill()  # the comparison has its own: what it may spend must not hang on what was read before
        comparison = Comparison(known)
        found = {
            finding(prediction, predictions[i], p, golds[j], g, known)
            for i, p in enumerate(read_predictions)
            for j, g in enumerate(read_golds)
            if comparison.equal(p, g)
        }
        if found:
            return next(outcome for outcome in ("CORRECT", "UNEVALUATED", "COPIED") if outcome in found)
        unread = any(isinstance(answer, Words) for answer in (read_predictions[0], read_golds[0]))
        unread = unread or ANALYSIS.search(predictions[0] + golds[0]) is not None
        if unread and sympy_fallback is not None and sympy_fallback(predictions[0], golds[0]):
            return finding(prediction, predictions[0], read_predictions[0], golds[0], read_golds[0], known)
    except TooBig:
        return "UNUSABLE_GOLD" if _is_too_big(read_golds) else "REJECTED"
    return "INCORRECT"


def _is_too_big(golds: list[Answer]) -> bool:
    """Return whether a gold cannot be compared with itself: then the prediction is not to blame."""
    Budget.refill()
    try:
        for gold in golds:
            Comparison().equal(gold, gold)
            if isinstance(gold, Scalar):
                evaluate(gold.term, dict.fromkeys(symbols(gold.term), Fraction(1, 2)))
    except TooBig:
        return True
    except NoValue:
        return False
    return False


def exact_value(text: str) -> str:
    """Return the fraction that an answer is, as `3/4`, and "" for any other answer.

    Two answers with such values are equal if and only if the values are: neither is a decimal, which may stand for
    something near it, nor has a percent sign, a unit, or a second reading.
    """
    mp.dps = DIGITS
    readings = {*_readings(text), *_readings(text, gold=True)}
    if len(readings) != 1:
        return ""
    try:
        Budget.refill()
        answer = _read(readings.pop())
        if not isinstance(answer, Scalar) or answer.digits or answer.unit != NO_UNIT or answer.percent:
            return ""
        value = evaluate(answer.term, {})
    except (TooBig, NoValue):
        return ""
    return str(value) if isinstance(value, Fraction) else ""
