"""Math-Verify's reading, for what our grammar does not know: derivatives, double integrals, unusual commands.

Only its parser is used, and only if no word of prose is left in the text: its own comparison accepts 1/2^99 for
1/2^98 and reads equations out of sentences. The readings must be equal to SymPy, as they stand or simplified.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gtpo.rewards.equality.arithmetic import TooBig
from gtpo.rewards.limits import SYMPY_EVENTS

_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_BEYOND = re.compile(r"[\x00-\x1f$]|\\text|__|import|lambda")

_INVENTED = re.compile(
    r"(?<![\d^_.])\d+(?:\.\d+)?\s+\d|!\s*!|'|\\prime|[\d)\]}]\s*_|\\[lcvd]?dots|\\[{}]|\\(?:not|neg|lnot)(?![a-zA-Z])"
)
"""What the parser adds up, or leaves out without a word: `2 3`, `(x^2)'`, `12_3`, dots, `20!!`."""
_CUT = re.compile(r"(?:[-+*/=<>^_×·÷]|\\(?:times|cdot|div))\s*$|<<")
"""An operator at the end of a text, or one without an operand."""


def _fit(text: str) -> bool:
    """Return whether a text is for this parser.

    Not so are letters alone, which our grammar reads, and a text that stops short, as a cut completion does: no parser
    reads that, and asking one costs loading SymPy.
    """
    if re.fullmatch(r"[A-Za-z\s.,']*", text) or _INVENTED.search(text) or _BEYOND.search(text) or _CUT.search(text):
        return False
    balanced = sum(map(text.count, "([{")) == sum(map(text.count, ")]}"))
    return balanced and _WORD.search(re.sub(r"\\(?:begin|end)\{\w+\}", "", text)) is None


class _Exhausted(BaseException):
    """No `except Exception` of SymPy's may catch it."""


def _bounded(work: Callable[[], bool]) -> bool:
    """Return whether `work` says so. Raises TooBig when it takes more calls than SYMPY_EVENTS."""
    from sympy.core.cache import clear_cache

    left = SYMPY_EVENTS

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1 or (left < 0 and left % 10_000 == 0):  # again if it goes on; closing its generators is work too
            raise _Exhausted

    clear_cache()
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None  # generators that it ends on their way out
    sys.setprofile(count)
    try:
        result = work()
    except _Exhausted:
        raise TooBig from None
    finally:
        sys.setprofile(None)
        sys.unraisablehook = told
    if left < 0:  # something swallowed the exception
        raise TooBig
    return result


@lru_cache(maxsize=1024)
def _parse(text: str) -> Any:
    """Return SymPy's reading, None if there is none: kept, for an answer comes back with many others."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy

    config = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none")
    try:
        return latex2sympy(text, is_real=True, convert_degrees=False, normalization_config=config)
    except MemoryError:
        raise
    except Exception:  # any parser error means: not read
        return None


def agree(prediction: str, gold: str, before: Callable[[], None] = lambda: None) -> bool:
    """Return whether Math-Verify reads both texts and SymPy finds the readings equal; `before` runs before the import.

    Raises TooBig if that takes more work than an answer is worth.
    """
    if not (_fit(prediction) and _fit(gold)):
        return False
    before()
    import sympy

    logging.disable(logging.CRITICAL)
    first, second = _parse(prediction), _parse(gold)
    if first is None or second is None or type(first).__module__ == "builtins":
        return False
    if not (isinstance(first, sympy.Expr) and isinstance(second, sympy.Expr)):
        return bool(first == second)
    if first == second:
        return True
    try:
        return _bounded(lambda: _is_zero(first - second))
    except (MemoryError, TooBig):
        raise
    except Exception:  # SymPy's own limits; undecided counts as unequal
        return False


def warm_up() -> None:
    """Import SymPy and the parser and use both once: what that takes is no answer's doing. Raises ImportError."""
    import latex2sympy2_extended  # noqa: F401

    agree(r"\frac{d}{dx} \sin(x)", r"\cos(x)")


def _is_zero(difference: Any) -> bool:
    import sympy

    difference = difference.doit()
    return bool((difference if difference.is_Rational else sympy.simplify(difference)) == 0)


def math_verify_outcome(text: str, gold: str) -> str:
    """Return Math-Verify's own verdict, from its extraction and its comparison, as its documentation asks for it.

    CORRECT, INCORRECT, NO_ANSWER (it extracts nothing) or UNUSABLE_GOLD (it cannot read the gold). Its timeouts are
    off: they are signals, and the worker has clocks of its own.
    """
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    golds = parse(f"${gold}$", parsing_timeout=0)
    if not golds:
        return "UNUSABLE_GOLD"
    answers = parse(text, parsing_timeout=0)
    if not answers:
        return "NO_ANSWER"
    return "CORRECT" if verify(golds, answers, timeout_seconds=0) else "INCORRECT"
