r"""Find the final answer in a completion.

`strict`: what stands inside `<answer>…</answer>`, outside any thinking; the last pair if there are several.
`lenient`: the answer tags, else the last `\boxed`, else `####`, else "the answer is", else the last number.

Everything here is linear-time string work: no model text reaches a parser.
"""

from __future__ import annotations

import re
from typing import Literal

from gtpo.rewards.boxes import MAX_TEXT, Box, last_boxes, rejoined, together, without_operand_box
from gtpo.rewards.limits import VALUE_REACH
from gtpo.rewards.text import words

Scoring = Literal["strict", "lenient"]


_FORMULA_WORDS = words("sin cos tan log sqrt exp and percent pct percentage inf infinity")
ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_THOUGHT_TAGS = ("think", "thinking", "reasoning")

_HASHES = re.compile(r"####[^\S\n]*(\S[^\n]*)")
_LEAD_IN = re.compile(
    r"\b(?:the\s+)?(?:correct\s+|final\s+)?(?:answers?|solutions?)(?:\s+(?:to|for|of)\b[^.:\n]{0,80}?)?"
    r"\s*(?:\bis\b|\bare\b|=|:)(?:\s*:)?[\s*]*",
    re.IGNORECASE,
)
_HEDGED = re.compile(r"\s*(?:not|neither|either|between|less|more|at (?:least|most))\b", re.IGNORECASE)
"""How a phrase begins that does not give its number as the answer."""
_HOPE = re.compile(r"\s*\.?\s*I hope (?:it|this) is correct\b.*", re.IGNORECASE | re.DOTALL)
_FORMULA = re.compile(
    r"(?<!\\)\$\$(?P<a>[^$]{1,4000}?)(?<!\\)\$\$|\\\[(?P<b>.{1,4000}?)\\\]|\\\((?P<c>.{1,4000}?)\\\)"
    r"|(?<![\\\d])\$(?P<d>(?:\\\$|[^$\n]){1,4000}?)(?<!\\)\$",
    re.DOTALL,
)
_UNFINISHED = re.compile(r"\d\s*(?:[-+=*/×÷−]|\\times|\\div|\\cdot)\s*$")
_SHORT_WORD = re.compile(
    r"(?<![\\a-zA-Z{$])\b(?:[Ss]o|[Ii]t|is|[Ww]e|an|[Ii]f|of|to|at|by|as|be|he|in|I|A:)(?![a-zA-Z])"
)
_PLAIN_WORD = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{3,}")
_NUMBER = re.compile(
    r"(?<![\w.,])(?:[-−+]\s?)?[$€£¥₹]?\s?(?:\\\$)?"
    r"(?:\d{1,3}(?:(?:,|\{,\}|\\[,!]|[\u00a0\u2009\u202f])\s?\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:\s?/\s?\d+(?:\.\d+)?)?(?:\s?(?:\\?%|percent\b))?"
)
_DECIMAL_COMMA = re.compile(r"(?<![\w.,])[-−]?\d+,\d\d(?![\d,])")
_PERCENT_AFTER = re.compile(r"[\s$]*(?:\\?%|percent(?:age)?\b|pct\b)")
_FINAL_SENTENCE = re.compile(
    r"the final answer is\s*:?\s*(.{1,400}?)\.?\s*I hope it is correct", re.IGNORECASE | re.DOTALL
)
_OPEN_BOX = re.compile(r"\\boxed\s*\{")
_BARE_FRACTION = re.compile(r"[-−]?\s*\\[dtc]?frac\s*\{[^{}]{1,200}\}\s*\{[^{}]{1,200}\}(?:\s*\\?%)?")


def gsm8k_gold(text: str) -> str | None:
    """Return the answer after the last `####` of a GSM8K solution: stripped, thousands commas removed.

    None if there is no `####` or nothing follows it.
    """
    _, mark, tail = text.rpartition("####")
    answer = tail.strip().split("\n")[0].strip().replace(",", "") if mark else ""
    return answer or None


def without_thoughts(text: str, tags: tuple[str, ...] = _THOUGHT_TAGS) -> str:
    """Remove what a model thinks to itself: `<think>…</think>` and the like, whole with their content.

    A closing tag whose opening stood in the prompt ends thinking that began with the text; an opening tag that
    is never closed hides all that follows it (the completion was cut while thinking), except that an unclosed
    `<reasoning>` hides nothing that stands in answer tags after it.
    """
    for tag in tags:
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


def unfinished_thought(text: str) -> bool:
    """Return whether a completion ends inside a thought: `<think>` or `<thinking>` opened and not closed."""
    return any(text.rfind(f"<{tag}>") > text.rfind(f"</{tag}>") for tag in ("think", "thinking"))


def opened_thought(prompt: str) -> str:
    """Return the tag with which a rendered prompt puts the completion inside a thought; empty where it does not."""
    end = prompt.rstrip()
    return next((f"<{tag}>" for tag in _THOUGHT_TAGS[:2] if end.endswith(f"<{tag}>")), "")


def _inner(answer: str) -> str | None:
    """Return the content of answer tags or a phrase: its box if it has one, else itself; None if empty."""
    if (unboxed := without_operand_box(answer)) is not None:
        return unboxed
    boxes = last_boxes(answer)
    return (_of_boxes(boxes, answer) if boxes else answer).strip() or None


def _of_boxes(boxes: list[Box], text: str) -> str:
    """Return what the boxes say together, with the percent sign that may follow the last."""
    boxed = rejoined(together(boxes, text))
    return boxed + "\\%" if boxed and _PERCENT_AFTER.match(text, boxes[-1][1]) else boxed


def _first_sentence(text: str) -> str:
    """Cut a phrase at the end of its sentence: a full stop (not a decimal point), or the end of the line."""
    line = text.lstrip().split("\n")[0]
    match = re.search(r"(?<!\b[A-Za-z])[.!?](?:\*\*|\")?(?=\s|$)", line)
    return (line[: match.start()] if match else line).strip().strip("*").strip()


def _formulas(text: str) -> list[tuple[int, int, str]]:
    found = []
    for match in _FORMULA.finditer(text):
        content = next(group for group in match.groups() if group is not None)
        # `$2 per egg and 9 for sale makes $18`, `$5 + $4 = $9`: prices, no formula.
        bare = re.sub(r"\\[a-zA-Z]+\s*(?:\{[^{}]*\})?", " ", content)
        if match["d"] is None or not (_PLAIN_WORD.search(bare) or _UNFINISHED.search(content)):
            found.append((match.start(), match.end(), content.strip()))
    return found


def _last_value(text: str) -> str | None:
    """Return the last number of a text, widened to the formula or fraction it is part of."""
    numbers = [match for match in _NUMBER.finditer(text) if any(c.isdigit() for c in match.group())]
    formulas = _formulas(text)
    fractions = [(m.start(), m.end(), m.group()) for m in _BARE_FRACTION.finditer(text)]
    numbers += _DECIMAL_COMMA.finditer(text)
    last = max(numbers, key=lambda match: (match.end(), -match.start())) if numbers else None
    fractions = [f for f in fractions if not any(start <= f[0] < end for start, end, _ in formulas)]
    for start, end, content in sorted(formulas + fractions, reverse=True):
        if last is None or start <= last.start() < end or start > last.start():
            after = re.match(r"\s*(?:\\?%|percent(?:age)?\b|pct\b)", text[end:])
            return content + ("\\%" if after else "")
    return last.group().strip() if last else None


def extract_answer(text: str, scoring: Scoring = "strict") -> str | None:
    r"""Return the final answer of a completion as written, or None if it gives none.

    `strict` takes the content of the last `<answer>…</answer>` outside thinking (its `\boxed` if it has one).
    Boxes that stand together are one answer and come back as `\boxed{1}, \boxed{2}`.
    `lenient` takes that, else the last `\boxed{…}`, else what follows the last `####`, else the sentence after
    the last "the answer is", else the last number (whole, with the formula or fraction it belongs to).
    Raises ValueError for any other `scoring`.
    """
    if scoring not in ("strict", "lenient"):
        raise ValueError(f'scoring must be "strict" or "lenient", not {scoring!r}')
    if len(text) > MAX_TEXT:  # the tag that opens a thought may be far from the end
        text = without_thoughts(text, _THOUGHT_TAGS[:2])
    tail = text[-MAX_TEXT:].replace("\x0crac", r"\frac")  # what `\f` of an unescaped string becomes
    if "<answer>" in tail and (tagged := ANSWER.findall(without_thoughts(tail))):
        return _inner(tagged[-1].strip())
    if scoring == "strict":
        return None
    visible = without_thoughts(tail, ("think", "thinking"))
    boxes = last_boxes(visible)
    end = boxes[-1][1] if boxes else 0
    if _OPEN_BOX.search(visible, end):  # opened and never closed: the completion was cut in its answer
        return None
    if boxes:
        template = _FINAL_SENTENCE.findall(visible, end)  # Minerva's closing formula, after the box, has the last word
        if template:
            return _of_phrase(template[-1])
        return _of_boxes(boxes, visible) or None
    if "####" not in visible and _is_formula(visible):
        return visible.strip()
    hashes = list(_HASHES.finditer(visible))
    if hashes and not _is_heading(hashes[-1][1], visible[hashes[-1].end() :]):
        return hashes[-1][1].strip()
    lowered = visible.lower()
    spoken = "answer" in lowered or "solution" in lowered
    phrases = [match.end() for match in _LEAD_IN.finditer(visible)] if spoken else []
    if phrases:
        answer = _HOPE.sub("", _first_sentence(visible[phrases[-1] : phrases[-1] + VALUE_REACH]))
        if answer:
            return _of_phrase(answer)
    visible = visible[-VALUE_REACH:]
    if "I hope" in visible:
        visible = _HOPE.sub("", visible)
    return _last_value(_last_lines(visible)) or _last_value(visible) or _only_answer(visible)


def extract_both(text: str) -> tuple[str | None, str | None]:
    """Return (strict, lenient) answer of a completion: `extract_answer` twice, for hardly more than once."""
    strict = extract_answer(text, "strict")
    return strict, extract_answer(text, "lenient") if strict is None else strict  # lenient begins with the tags


def _is_heading(line: str, rest: str) -> bool:
    """Return whether `#### line` is a heading of markdown: more follows, and it has no number or an answer follows."""
    return bool(rest.strip()) and (re.search(r"\d", line) is None or _LEAD_IN.search(rest) is not None)


def _last_lines(text: str, characters: int = 200) -> str:
    """Return the last whole lines of a text, `characters` of it or more: the last number is in them, if anywhere."""
    return text[text.rfind("\n", 0, max(0, len(text) - characters)) + 1 :]


def _of_phrase(phrase: str) -> str:
    """Return the answer that a phrase gives: the phrase, or the last value in it if it is prose."""
    if _HEDGED.match(phrase):
        return phrase.strip()
    rest = _FORMULA.sub(" ", re.sub(r"\\[a-zA-Z]+\s*(?:\{[^{}]*\})?", " ", phrase))
    if any(word.lower() not in _FORMULA_WORDS for word in _PLAIN_WORD.findall(rest)):
        return _last_value(phrase) or phrase.strip()
    return phrase.strip()


def _is_formula(text: str) -> bool:
    """Return whether a completion is nothing but one expression, on one line: no words, some digit or formula."""
    bare = text.strip()
    if "\n" in bare.strip("$[]()\\ \n") or len(bare) > 2000 or not bare or bare.count("$") > 4:
        return False
    without = re.sub(r"\\[a-zA-Z]+\s*(?:\{[a-zA-Z\s,.()-]*\})?|(?<=\d)or(?=[A-Z(\\])", " ", bare)
    prose = any(word.lower() not in _FORMULA_WORDS for word in _PLAIN_WORD.findall(without))
    prose = prose or _SHORT_WORD.search(without) is not None
    return not prose and re.search(r"[\d\\^_]", bare) is not None and not re.search(r"(?<!\d)[.!?:]\s+\S", bare)


def _only_answer(text: str) -> str | None:
    """Return a completion that is nothing but an answer without digits: one word, or one formula."""
    bare = text.strip().strip("*$").rstrip(".").strip()
    return bare if re.fullmatch(r"[A-Za-z]{1,20}|\([A-Za-z]\)|\\[a-zA-Z]+(?:\{[^{}]{0,40}\})?", bare) else None
