"""Math-Verify's own verdict, as its documentation asks for it: its extraction, its comparison."""

from __future__ import annotations

import logging


def math_verify_outcome(text: str, gold: str) -> str:
    """Return CORRECT, INCORRECT, NO_ANSWER (it extracts nothing) or UNUSABLE_GOLD (it cannot read the gold).

    Its timeouts are off: they are signals, and the worker has clocks of its own.
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
