"""A completion as text, the format it is asked for, and small text tools that extraction and verification share.

The format is `<reasoning>…</reasoning>`, then `<answer>…</answer>`, last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from gtpo.rewards.thoughts import TABLES, without_end

Completion = str | Sequence[Mapping[str, Any]]


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: the string itself, or the content of the last assistant message.

    Content given as parts (`[{"type": "text", "text": …}]`) is joined. Raises TypeError for anything else.
    """
    return _last_turn(completion, "assistant", "completion")


def problem_text(prompt: Completion) -> str:
    """Return the problem that a prompt states: the string itself, or the content of the last user message.

    Raises TypeError for anything else.
    """
    return _last_turn(prompt, "user", "prompt")


def _last_turn(completion: Completion, role: str, what: str) -> str:
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, Sequence) or not all(isinstance(message, Mapping) for message in completion):
        raise TypeError(f"a {what} is a string or a list of chat messages, not {type(completion).__name__}")
    messages = [message for message in completion if isinstance(message, Mapping)]
    spoken = [message for message in messages if message.get("role", role) == role]
    content = spoken[-1].get("content") if spoken else ""
    # Chat messages of several modalities hold a list of parts, of which the text is looked at.
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content)
    return content or ""


TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_TAG = re.compile("|".join(TAGS))

_FILLED = re.compile(r"\s*<reasoning>\s*\S.*</reasoning>\s*<answer>\s*\S.*</answer>\s*", re.DOTALL)

FULL, PARTIAL, NONE = 10.0, 1.0, 0.0  # The paper's format rewards: all tags, a part of them, none


def format_ok(text: str) -> bool:
    """Return whether both tag pairs stand in order, closed, once each, with nothing but space after the answer."""
    text = without_end(text)
    # Each tag once: with a second pair of answer tags a model could give two answers and be paid for either.
    return tuple(_TAG.findall(text)) == TAGS and text.rstrip().endswith("</answer>")


def format_score(text: str) -> float:
    """Return 10 for the full format, 1 for a part of the tags, 0 for none (GTPO paper, reward section)."""
    if format_ok(text):
        return FULL
    return PARTIAL if _TAG.search(text) else NONE


def filled_score(text: str) -> float:
    """Return `format_score`, with 10 only if both blocks hold something and nothing stands outside them."""
    score = format_score(text)
    return PARTIAL if score == FULL and _FILLED.fullmatch(without_end(text)) is None else score


_NO_GOLD = frozenset(TABLES["golds"]["none"])
_DRESSED = re.compile(r"[\[\](){}.?!…。]+")


def is_no_gold(gold: str) -> bool:
    """Return whether a gold stands for none: empty, `proof`, `notfound`, `N/A` and the like."""
    bare = gold.strip().strip("`'\"*$")
    return bare.casefold() in _NO_GOLD or _DRESSED.sub("", bare).strip().casefold() in _NO_GOLD - {""}


_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def without_spaces(text: str) -> str:
    """Drop all spaces but those between two digits: `2 3` is not 23."""
    return _SPACE.sub("", text.strip())


AnswerText = str | Real | Decimal | None  # An answer or gold as data sets hold it: text, or a number of Python or NumPy


def as_text(value: object) -> str:
    """Return an answer or gold as text: numbers of Python and NumPy as written, "" for what is neither."""
    if isinstance(value, str):
        return value
    # True is an int to Python; as a gold it is a mistake in the data, not 1.
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return ""
    if isinstance(value, Integral | Fraction):
        return str(value)
    return str(value) if math.isfinite(value) else ""  # NaN: what a table holds if nothing was given


def decode_completion(tokenizer: Any, ids: Sequence[int], ends: Collection[int] = ()) -> str:
    """Return the text of a completion's tokens, special ones included: tags and delimiters of thoughts may be such.

    Only padding and end tokens are cut off, at its end; ends: those of the model beside the tokenizer's.
    """
    # Some models have several end tokens, of which the tokenizer knows one.
    cut = {tokenizer.eos_token_id, tokenizer.pad_token_id, *ends}
    length = len(ids)
    while length and ids[length - 1] in cut:
        length -= 1
    return str(tokenizer.decode(ids[:length], skip_special_tokens=False))
