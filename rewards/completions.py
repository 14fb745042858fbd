"""A completion: its text, what of it is thought, where its turn ends, and the format it is asked for.

`plain` brings the delimiters of all families (completions.toml) to one form, `<think>…</think>`, and cuts the text at
the end of its turn; all else reads it. The format is `<reasoning>…</reasoning>`, then `<answer>…</answer>`, last.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any

# Data in a file of data: who adds a family or a language reads no code.
TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("completions.toml").read_text(encoding="utf-8"))


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set: how this package writes its tables."""
    return frozenset(text.split())


class Phrases:
    """Regular expressions by name, as attributes, from a table of `name = pattern`."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.__dict__.update({name: re.compile(pattern) for name, pattern in table.items()})

    def __getattr__(self, name: str) -> re.Pattern[str]:
        raise AttributeError(f"the table has no phrase {name}")


_SAYS = Phrases(TABLES["delimiters"])
# A token that names a thought: <think>, <seed:think>, <|START_THINKING|>, <|plamo:begin_think:plamo|>, <think_fast>.
# The paper's <reasoning> is none: answers may stand in it. <think_off> and <no_think> hold nothing, and with a point it
# is an address.
_NAMED = (
    r"(?![^<>\s]{0,24}?(?:no_?think|think_off))"
    r"[^<>\s.]{0,24}?(?:think|thought|scratch_?pad|reasoning)[^<>\s.]{0,24}(?:\s+\w+=\"[^\"<>\n]{0,40}\")?\s*>"
)
_ENDS = r"[^<>\s]{0,24}?(?:/|(?<![a-z])(?:end|close|stop))"

_OPENING = "|".join([rf"<\s*(?!/|reasoning>|{_ENDS}){_NAMED}", *TABLES["thoughts open"].values()])
_CLOSING = (
    rf"<(?:\s*(?:/\s*(?!reasoning\s*>)|(?={_ENDS})(?!/reasoning\s*>)){_NAMED}|\|inner_suffix\|>)"
    r"(?:\s*<[|｜](?:begin_of_solution|START_RESPONSE|START_TEXT)[|｜]>)?"
)
_OPEN = re.compile(_OPENING, re.IGNORECASE)
_CLOSE = re.compile("|".join([_CLOSING, *TABLES["thoughts close"].values()]), re.IGNORECASE)
_OPENED_AT_END = re.compile(rf"(?:{_OPENING}|(?-i:<\|channel\|>\s*analysis\s*<\|message\|>))\s*\Z", re.IGNORECASE)
_BEGINS = re.compile(rf"\s*(?:{'|'.join(TABLES['thoughts begin with words'].values())})", re.IGNORECASE)

_BARRED = "|".join(TABLES["ends"]["anywhere in bars"].split())
_ANYWHERE = [*TABLES["ends"]["anywhere"], rf"<[|｜]\s*(?:{_BARRED})\s*[|｜]>"]
_TURN_END = re.compile("|".join(_ANYWHERE), re.IGNORECASE)
_ANY_END = f"(?:{'|'.join([*_ANYWHERE, *TABLES['ends']['at the end']])})"
_RUN_OF_ENDS = re.compile(rf"{_ANY_END}(?:\s*{_ANY_END})*", re.IGNORECASE)
_FIRST = re.compile(rf"\s*(?:(?:{'|'.join(TABLES['ends']['headers'])})\s*)+", re.IGNORECASE)


def _may_hold_delimiters(text: str) -> bool:
    return "◁" in text or _SAYS.angle.search(text) is not None or _SAYS.bracket.search(text) is not None


def plain(text: str) -> str:
    """Return a completion with its thoughts in `<think>…</think>`, and without what stands after the end of its turn.

    A closing delimiter whose opening stood in the prompt stays without one.
    """
    delimited = _may_hold_delimiters(text)
    if delimited and "<|begin_of_box|>" in text:  # GLM's vision models box an answer so
        text = text.replace("<|begin_of_box|>", r"\boxed{").replace("<|end_of_box|>", "}")
    channels = delimited and "<|channel|>" in text and (_SAYS.harmony.search(text) or _SAYS.harmony_final.search(text))
    begin = None if channels else _SAYS.stripped.match(text)
    if channels or begin is not None:
        start = begin.end() if begin is not None else 0
        finals = list((_SAYS.harmony_final if channels else _SAYS.stripped_final).finditer(text))
        if not finals:
            return f"<think>{text[start:]}"
        thought = text[start : finals[-1].start()]
        text = (f"<think>{thought}</think>" if thought or begin else "") + text[finals[-1].end() :]
    else:
        if (begin := _BEGINS.match(text)) is not None:
            text = "<think>" + _SAYS.responds.sub("</think>", text[begin.end() :])
        if delimited:
            text = _CLOSE.sub("</think>", _OPEN.sub("<think>", text))
            if unfinished(text) and (begin := _SAYS.next_message.search(text, text.rfind("<think>"))) is not None:
                text = f"{text[: begin.start()]}</think>{text[begin.end() :]}"
    return without_end(text) if delimited else text


def without_end(text: str) -> str:
    """Return a completion up to the special token that ends its turn, outside thoughts, and without its header."""
    if not _may_hold_delimiters(text):
        return text
    if (begin := _FIRST.match(text)) is not None:
        text = text[begin.end() :]
    if not unfinished(text) and (end := _TURN_END.search(text, max(0, text.rfind("</think>")))) is not None:
        return text[: end.start()].rstrip()
    # Each run of them once, and then whether it is the last: `\Z` in the pattern takes the square of a run's length.
    *_, last = None, *_RUN_OF_ENDS.finditer(text)
    return text[: last.start()].rstrip() if last is not None and not text[last.end() :].strip() else text


def unfinished(text: str) -> bool:
    """Return whether a `plain` completion ends inside a thought."""
    return text.rfind("<think>") > text.rfind("</think>")


def closes_unopened(text: str) -> bool:
    """Return whether a `plain` completion closes a thought that it never opened: the prompt did."""
    closing = text.find("</think>")
    return closing >= 0 and not 0 <= text.find("<think>") < closing


def opened_thought(prompt: str) -> bool:
    """Return whether a rendered prompt puts the completion inside a thought."""
    return _OPENED_AT_END.search(prompt[-200:]) is not None


def without_thoughts(text: str, *, reasoning: bool = False) -> str:
    """Remove the thoughts of a `plain` completion, whole with their content.

    A closing tag whose opening stood in the prompt ends thinking that began with the text; an opening tag that
    is never closed hides all that follows it. reasoning: also what stands in `<reasoning>…</reasoning>`, the paper's
    layout, of which an unclosed one hides no answer tags after it.
    """
    if "<" not in text:
        return text
    for tag in ("think", "reasoning") if reasoning else ("think",):
        opening, closing = f"<{tag}>", f"</{tag}>"
        before, *opened = text.split(opening)
        visible, unclosed = [before.split(closing, 1)[-1]], []
        for part in opened:
            _, closed, after = part.rpartition(closing)
            unclosed.append(part)
            if closed:  # nested or repeated openings close together, at the last closing tag before the next opening
                visible.append(after)
                unclosed.clear()
        if unclosed:
            visible.append(opening.join(unclosed) if tag == "reasoning" else "")
        text = " ".join(visible)
    return text


# -- the text of a completion, and its format --------------------------------------------------------------------------
Completion = str | Sequence[Mapping[str, Any]]
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_TAG = re.compile("|".join(TAGS))
_FILLED = re.compile(r"\s*<reasoning>\s*\S.*</reasoning>\s*<answer>\s*\S.*</answer>\s*", re.DOTALL)
FULL, PARTIAL, NONE = 10.0, 1.0, 0.0  # The paper's format rewards: all tags, a part of them, none
AnswerText = str | Real | Decimal | None  # An answer or gold as data sets hold it: text, or a number of Python or NumPy
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_NO_GOLD = frozenset(TABLES["golds"]["none"])
_DRESSED = re.compile(r"[\[\](){}.?!…。]+")


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: the string itself, or the content of the last assistant message.

    Content given as parts (`[{"type": "text", "text": …}]`) is joined. Raises TypeError for anything else.
    """
    return _last_turn(completion, "assistant", "completion")


def problem_text(prompt: Completion) -> str:
    """Return the problem that a prompt states: the string itself, or its last user message. Raises TypeError."""
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


def format_ok(text: str) -> bool:
    """Return whether both tag pairs stand in order, closed, once each, with nothing but space after the answer."""
    text = without_end(text)
    # Each tag once: with a second pair of answer tags a model could give two answers and be paid for either.
    return tuple(_TAG.findall(text)) == TAGS and text.rstrip().endswith("</answer>")


def format_score(text: str, *, filled: bool = False) -> float:
    """Return 10 for the full format, 1 for a part of the tags, 0 for none (GTPO paper, reward section).

    filled: 10 only if both blocks hold something and nothing stands outside them.
    """
    if format_ok(text) and not (filled and _FILLED.fullmatch(without_end(text)) is None):
        return FULL
    return PARTIAL if _TAG.search(text) else NONE


def is_no_gold(gold: str) -> bool:
    """Return whether a gold stands for none: empty, `proof`, `notfound`, `N/A` and the like."""
    bare = gold.strip().strip("`'\"*$")
    return bare.casefold() in _NO_GOLD or _DRESSED.sub("", bare).strip().casefold() in _NO_GOLD - {""}


def without_spaces(text: str) -> str:
    """Drop all spaces but those between two digits: `2 3` is not 23."""
    return _SPACE.sub("", text.strip())


def as_text(value: object) -> str:
    """Return an answer or gold as text: numbers of Python and NumPy as written, "" for what is neither."""
    if isinstance(value, str):
        return value
    # True is an int to Python; as a gold it is a mistake in the data, not 1.
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return ""
    # NaN: what a table holds if nothing was given.
    return str(value) if isinstance(value, Integral | Fraction) or math.isfinite(value) else ""


def decode_completion(tokenizer: Any, ids: Sequence[int], ends: Collection[int] = ()) -> str:
    """Return the text of a completion's tokens, special ones included: tags and delimiters of thoughts may be such.

    Only padding and end tokens are cut off, at its end; ends: those of the model beside the tokenizer's.
    """
    # Some models have several end tokens, of which the tokenizer knows one.
    cut = {tokenizer.eos_token_id, tokenizer.pad_token_id, *ends}
    length = next((at for at in range(len(ids), 0, -1) if ids[at - 1] not in cut), 0)
    return str(tokenizer.decode(ids[:length], skip_special_tokens=False))
