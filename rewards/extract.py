r"""Find the final answer in a completion.

`strict`: what stands inside `<answer>…</answer>`, outside any thinking; the last pair if there are several.
`lenient`: the answer tags, else the last `\boxed`, else `####`, else "the answer is", else the last number.

Everything here is linear-time string work: no model text reaches a parser.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, get_args

from gtpo.rewards.completions import TABLES, Phrases, plain, without_thoughts, words
from gtpo.rewards.limits import BOX_REACH, BRACE_REACH, MAX_JOINED, MAX_OPEN_BOXES, MAX_TEXT, VALUE_REACH

# -- boxes: `\boxed{…}`, `\fbox{…}` and `\boxed 5` -------------------------------------------------------------------
Box = tuple[int, int, str]


def match_brace(text: str, start: int) -> int:
    r"""Return where the `{` at `start` closes, or -1 if not within BRACE_REACH. `\{` and `\}` do not count."""
    depth = 0
    for match in _SAYS.brace.finditer(text, start, start + BRACE_REACH):
        depth += (match.group() == "{") - (match.group() == "}")
        if depth == 0:
            return match.start()
    return -1


def last_boxes(text: str) -> list[Box]:
    """Return the boxes near the last one; all of them if none there is complete. Long texts are not scanned whole."""
    start = _box_before(len(text), text, 0)
    if start < 0:
        return []
    while (before := _box_before(start, text, max(0, start - BOX_REACH))) >= 0:
        start = before
    start = len(text[:start].rstrip("\\"))  # `\\\\boxed`: escaped once too often
    return _boxes(text, start) or _boxes(text, 0)


def _box_before(end: int, text: str, reach: int) -> int:
    # One search in place of two: near most boxes there is no other.
    if text.find("box", reach, end) < 0:
        return -1
    return max(text.rfind(command, reach, end) for command in ("\\boxed", "\\fbox"))


def _boxes(text: str, position: int) -> list[Box]:
    r"""Return (start, end, content) of every complete outermost `\boxed{…}`, `\fbox{…}` or `\boxed 5`."""
    found: list[Box] = []
    never_closed = 0
    while never_closed < MAX_OPEN_BOXES and (match := _SAYS.box.search(text, position)) is not None:
        inside = match.end()
        position = inside + 1
        if text[inside : inside + 1] == "{":
            if (end := match_brace(text, inside)) >= 0:
                found.append((match.start(), end + 1, text[inside + 1 : end].strip()))
                position = end + 1
            never_closed += end < 0  # a cut-off or malformed box is no answer; a later one may be
        elif (token := _SAYS.box_token.match(text, inside)) is not None:
            found.append((match.start(), token.end(), token.group().rstrip(".,;")))
            position = token.end()
    return found


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}` (or `\fbox{…}`, `\boxed 5`), braces balanced, or None."""
    boxes = last_boxes(text[-MAX_TEXT:])
    return boxes[-1][2] if boxes else None


def together(boxes: list[Box], text: str) -> list[str]:
    r"""Return the contents of the last box and of those that form one answer with it, in order; boxes: of this text.

    Nothing but separators is between them (`\boxed{1}, \boxed{2}`), or a short phrase that ends in "and" or "or".
    """
    contents = [boxes[-1][2]] if boxes else []
    for (_, end, content), (start, _, _) in zip(boxes[-2:-MAX_JOINED:-1], boxes[: -MAX_JOINED + 1 : -1], strict=False):
        if _SAYS.joint.fullmatch(text, end, start) is None:
            break
        contents.insert(0, content)
    return list(dict.fromkeys(contents))


def _in_a_factor(before: str) -> bool:
    """Return whether a text ends within a bracket that something is multiplied by, or that holds an argument."""
    opened: list[int] = []
    for match in re.finditer("[()]", before):
        if match.group() == "(":
            opened.append(match.start())
        elif opened:
            opened.pop()
    return bool(opened) and _SAYS.factor.search(before[max(0, opened[-1] - 40) : opened[-1]]) is not None


def without_operand_box(text: str) -> str | None:
    r"""Return the text without its box if that is an operand, as in `\boxed{8} - 1`: else None.

    What such a box holds is no answer. Words around a box make it one that prose goes on from, unless it is taken from
    or added to right there.
    """
    boxes = last_boxes(text)
    if not boxes:
        return None
    start, end, _ = boxes[-1]
    around = (_SAYS.spacing.sub(" ", part) for part in (text[:start], text[end:]))
    before, after = (_SAYS.wrapped.sub(r"\1", part).replace("{}", "") for part in around)
    told = _SAYS.told_operand.search(before) is not None and re.match(r"[\s$]*(?:and|by|with)\b", after) is not None
    if not told and _SAYS.operated_after.match(after) is None:
        if any(_SAYS.word.search(_SAYS.no_prose.sub(" ", part)) for part in (before, after)):
            return None
        counted = re.search(r"\d", _SAYS.unit_power.sub("", _SAYS.apart.sub("", after))) is not None
        if not (counted or _SAYS.operated_before.search(before) or _in_a_factor(before)):
            return None
    return text.replace("\\boxed", "").replace("\\fbox", "")


# -- answers -------------------------------------------------------------------------------------------------------
Scoring = Literal["strict", "lenient"]

_FORMULA_WORDS = words("sin cos tan log sqrt exp and percent pct percentage inf infinity")
ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)

_SAYS = Phrases(TABLES["phrases"])
# The words are looked for by themselves first: the pattern costs as much as all else that is done with an English text.
_ANSWER_WORDS, _COPULA, _SCRIPT = (TABLES["languages"][name] for name in ("answer", "copula", "other_script"))
_LEAD_IN_ELSEWHERE = re.compile(
    rf"(?i:(?<![a-zà-ÿ])(?<![不别没])(?<!不[能应可会要该])(?:{'|'.join(_ANSWER_WORDS)}"
    rf"|选择?(?=\s*:?\s*\(?[A-H](?![a-zA-Z])))){_COPULA}"
)
_OTHER_SCRIPT = re.compile(_SCRIPT)
# Joiners, fillers, soft hyphens, marks of direction: they say nothing of a value. The two that turn the direction of
# what follows are refused as answers (`reject_reason`).
UNSEEN = (
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202D), *range(0x2060, 0x206A),
    0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0,
)  # fmt: skip
# Full-width forms of ASCII; the ideographic space and full stop, the danda; joiners and marks of direction go.
_PUNCTUATION = {
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}, "\u3000": " ", "\u3002": ".", "\u0964": ".",
    **dict.fromkeys(map(chr, UNSEEN), ""),
}  # fmt: skip
# `str.translate` asks a dictionary for every character: a text of which one is not ASCII took a millisecond.
_PUNCTUATED = re.compile(f"[{''.join(_PUNCTUATION)}]")
# What plain text writes with more than one number: `2π/3`, `5√2`, `(1 + √5)/2`; `3:4`, `12:30`; `2.5 million`.
_DIGITS = r"\d+(?:\.\d+)?"
_TERM = rf"(?:{_DIGITS}\s?)?(?:π|[√∛]\s?(?:{_DIGITS}|\([^()\n]{{1,30}}\)))+(?:\s?/\s?{_DIGITS})?"
_SUM = rf"(?:(?:{_DIGITS}|{_TERM})\s?[-+−]\s?)?{_TERM}(?:\s?[-+−]\s?(?:{_TERM}|{_DIGITS}))?"
_PI_OR_ROOT = re.compile(rf"(?<![\w.])([-−]?(?:\({_SUM}\)\s?/\s?{_DIGITS}|{_SUM}))")
# What such a text must hold -> the pattern.
_PLAIN_VALUES = (
    ("π", _PI_OR_ROOT), ("√", _PI_OR_ROOT), ("∛", _PI_OR_ROOT),
    ("frac", re.compile(r"((?:[-−]\s*)?\\[dtc]?frac\s*\{[^{}]{1,200}\}\s*\{[^{}]{1,200}\}(?:\s*\\?%)?)")),
    ("10^", re.compile(rf"(?<![\w.])([-−]?{_DIGITS}\s?(?:[×x*·⋅]|\\times|\\cdot)\s?10\^(?:\{{[-−]?\d+\}}|[-−]?\d+))")),
    ("/", re.compile(r"(?<![\w./])([-−]?\d+\s\d+/\d+)(?![\d/])")),
    (":", re.compile(rf"(?<![\d:.])({_DIGITS}(?:(?::|\s:\s){_DIGITS})+)(?![\d:])")),
    ("ratio ", re.compile(rf"\bratio [^.\n]{{0,60}}?\b({_DIGITS}(?: to {_DIGITS})+)")),
    ("illion", re.compile(
        rf"(?<![\w.,])(\$?\s?(?:\d{{1,3}}(?:,\d{{3}})+|{_DIGITS})\s?(?:million|billion|trillion)\b)"
    )),
)  # fmt: skip


def gsm8k_gold(text: str) -> str | None:
    """Return the answer after the last `####` of a GSM8K solution, without thousands commas; None if there is none."""
    _, mark, tail = text.rpartition("####")
    answer = tail.strip().split("\n")[0].strip().replace(",", "") if mark else ""
    return answer or None


def _of_boxes(boxes: list[Box], text: str) -> str:
    """Return what the boxes say together, with the percent sign that may follow the last."""
    contents = together(boxes, text)
    boxed = ", ".join(f"\\boxed{{{content}}}" for content in contents) if len(contents) > 1 else contents[0]
    return boxed + "\\%" if boxed and _SAYS.percent_after.match(text, boxes[-1][1]) else boxed


def _formulas(text: str) -> list[tuple[int, int, str]]:
    found: list[Box] = []
    for match in _SAYS.formula.finditer(text) if "$" in text or "\\" in text else ():
        content = next(group for group in match.groups() if group is not None)
        # `$2 per egg and 9 for sale makes $18`, `$5 + $4 = $9`: prices, no formula.
        bare = re.sub(r"\\[a-zA-Z]+\s*(?:\{[^{}]*\})?", " ", content)
        if match["d"] is None or not (_SAYS.plain_word.search(bare) or _SAYS.unfinished.search(content)):
            found.append((match.start(), match.end(), content.strip()))
    return found


def _last_value(text: str) -> str | None:
    """Return the last number of a text, widened to the formula or fraction it is part of."""
    formulas = _formulas(text)
    matches = (match for needed, pattern in _PLAIN_VALUES if needed in text for match in pattern.finditer(text))
    fractions: list[Box] = [(match.start(1), match.end(1), match[1].strip()) for match in matches]
    numbers = [match for pattern in (_SAYS.number, _SAYS.decimal_comma) for match in [*pattern.finditer(text)][-1:]]
    last = max(numbers, key=lambda match: (match.end(), -match.start()), default=None)
    fractions = [f for f in fractions if not any(start <= f[0] < end for start, end, _ in formulas)]
    for start, end, content in sorted(formulas + fractions, reverse=True):
        if last is None or start <= last.start() < end or start > last.start():
            return content + ("\\%" if _SAYS.percent_after.match(text, end) else "")
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
    # Whole, since the tag that opens a thought may be far from the end.
    visible = without_thoughts(plain(text))[-MAX_TEXT:]
    if not visible.isascii():
        visible = _PUNCTUATED.sub(lambda match: _PUNCTUATION[match.group()], visible)
    # Up to where it asks itself another question, if it has given an answer before.
    if (again := _SAYS.next_question.search(visible)) and _SAYS.answered.search(visible, 0, again.start()):
        visible = visible[: again.start()]
    if "\x0c" in visible:
        visible = visible.replace("\x0crac", r"\frac")  # what `\f` of an unescaped string becomes
    tags = "<" in visible
    if tags and "<answer>" in visible and (tagged := ANSWER.findall(without_thoughts(visible, reasoning=True))):
        answer = tagged[-1].strip()
        if (unboxed := without_operand_box(answer)) is not None:
            return unboxed
        boxes = last_boxes(answer)
        return (_of_boxes(boxes, answer) if boxes else answer).strip() or None
    if scoring == "strict":
        return None
    # Reka Flash thinks in <reasoning>, as the paper's layout does: what is said behind it counts.
    _, closed, after = visible.rpartition("</reasoning>") if tags else ("", "", "")
    if closed and "<answer>" not in after and (said := extract_answer(after, "lenient")) is not None:
        return said
    boxes = last_boxes(visible)
    if boxes and (choice := _SAYS.last_line.fullmatch(visible[visible.rstrip().rfind("\n") + 1 :])) is not None:
        return choice[1] or choice[2]
    end = boxes[-1][1] if boxes else 0
    if _SAYS.open_box.search(visible, end):  # opened and never closed: the completion was cut in its answer
        return None
    if boxes:
        # Minerva's closing formula, after the box, has the last word.
        if template := _SAYS.final_sentence.findall(visible, end):
            return _of_phrase(template[-1])
        return _of_boxes(boxes, visible) or None
    if "####" not in visible and _is_formula(visible):
        return visible.strip()
    hashes = list(_SAYS.hashes.finditer(visible))
    if hashes:
        line, rest = hashes[-1][1], visible[hashes[-1].end() :]
        # A heading of markdown: more follows, and it has no number or an answer follows.
        if not rest.strip() or (re.search(r"\d", line) and not _SAYS.lead_in.search(rest)):
            return line.strip()
    lowered = visible.lower()
    spoken = "answer" in lowered or "solution" in lowered
    phrases = [match.end() for match in _SAYS.lead_in.finditer(visible)] if spoken else []
    if elsewhere := not phrases and any(map(lowered.__contains__, ("选", *_ANSWER_WORDS))):
        phrases = [match.end() for match in _LEAD_IN_ELSEWHERE.finditer(visible)]
    if phrases:
        line = visible[phrases[-1] : phrases[-1] + VALUE_REACH].lstrip().split("\n")[0]
        sentence = re.split(r"(?<!\b[A-Za-z])[.!?](?:\*\*|\")?(?=\s|$)", line, maxsplit=1)[0]  # no decimal point
        answer = _SAYS.hope.sub("", sentence.strip().strip("*").strip())
        if answer:
            choices = _SAYS.choice.findall(answer) if elsewhere and not re.search(r"[\d\\]", answer) else []
            if len(choices) == 1:
                clause = next(part for part in re.split("[,;]", answer) if _SAYS.choice.search(part))
                return answer if _SAYS.denied.search(clause) else choices[0]
            return _of_phrase(answer)
    visible = visible[-VALUE_REACH:]
    if "I hope" in visible:
        visible = _SAYS.hope.sub("", visible)
    # The last number is in the last whole lines, if anywhere; else an answer without digits: one word, or one formula.
    lines = visible[visible.rfind("\n", 0, max(0, len(visible) - 200)) + 1 :]
    bare = visible.strip().strip("*$").rstrip(".").strip()
    return _last_value(lines) or _last_value(visible) or (bare if _SAYS.only_answer.fullmatch(bare) else None)


def of_gold(text: str) -> str:
    """Return the answer of a gold that is a whole solution, which says what its answer is; any other gold as it is."""
    return (extract_answer(text, "lenient") or text) if _SAYS.answered.search(text) else text


def choose_scoring(strict: Iterable[str | None]) -> Scoring:
    """Return the scoring that completions want, by their strict answers: lenient if most hold no closed answer tag."""
    answers = list(strict)
    return "lenient" if 2 * answers.count(None) > len(answers) else "strict"


def extract_both(text: str, rule: str = "") -> tuple[str | None, str | None]:
    """Return (strict, lenient) answer of a completion, for hardly more than one; or both by a task's own rule."""
    if rule:
        return (by_rule := extract_by(rule, text)), by_rule
    strict = extract_answer(text, "strict")
    return strict, extract_answer(text, "lenient") if strict is None else strict  # lenient begins with the tags


# -- the rule of a task ----------------------------------------------------------------------------------------------
# "A man" and "I think" are no choices, "A because" is one.
_LETTER = r"(?:\\\w{1,12}\{|[^\w\\]){0,12}([B-HJ-Z]|[AI](?! (?!because|since|as |and )[a-z]))(?![\w'])"
_BEGINS_WITH_LETTER = re.compile(rf"{_LETTER}(?=\W{{0,12}}$|\s{{0,2}}[.):}}\]])")
_SAYS_LETTER = re.compile(
    rf"\b(?i:answer|option|choice)s?\b(?:\W|\b(?i:is|must|be|would|therefore|choice|option|letter)\b){{0,12}}?{_LETTER}"
)


def _choice(text: str) -> str | None:
    """Return the letter that a completion chooses: in its tags or box, said to be the answer, or at its last line."""
    answer = extract_answer(text, "strict")
    answer = last_boxed(text) if answer is None else answer
    if answer is None and (spoken := _SAYS_LETTER.findall(text)):
        return str(spoken[-1])
    match = _BEGINS_WITH_LETTER.match(text.strip().rpartition("\n")[2] if answer is None else answer)
    return match[1] if match else None


_RULES: dict[str, Callable[[str], str | None]] = {
    "boxed": lambda text: _of_boxes(boxes, text) if (boxes := last_boxes(text)) else None,
    "hashes": lambda text: lines[-1].strip() if (lines := _SAYS.hashes.findall(text)) else None,
    "number": _last_value,
    "choice": _choice,
}
_NAMES = (*get_args(Scoring), *_RULES)


def check_rule(rule: str) -> str:
    """Return a task's rule if it is one: empty, a name, or a regular expression with a group. Raises ValueError."""
    try:
        if not is_expression(rule) or re.compile(rule).groups:
            return rule
        why = "no group says what of it is the answer"
    except re.error as error:
        why = str(error)
    raise ValueError(f"a name ({', '.join(_NAMES)}) or a regular expression with a group is expected; {why}")


def is_expression(rule: str) -> bool:
    """Return whether a task's rule is a regular expression: it may take for ever, and the workers bound it."""
    return rule not in ("", *_NAMES)


def extract_by(rule: str, text: str) -> str | None:
    """Return the answer of a completion, without its thoughts, by a task's rule, or None."""
    if rule in ("strict", "lenient"):
        return extract_answer(text, "strict" if rule == "strict" else "lenient")
    visible = without_thoughts(plain(text))[-MAX_TEXT:]
    if rule in _RULES:
        return (_RULES[rule](visible) or "").strip() or None
    # The last match counts, and in it the first group that takes part.
    last = deque(re.finditer(rule, visible), maxlen=1)
    groups = (group.strip() for match in last for group in match.groups() if group is not None)
    return next(filter(None, groups), None)


def _of_phrase(phrase: str) -> str:
    """Return the answer that a phrase gives: the phrase up to a remark, or the last value in it if it is prose."""
    if _SAYS.hedged.match(phrase):
        return phrase.strip()
    said = _SAYS.remark.split(phrase)[0].strip()
    head = _SAYS.begins.match(said)
    # With a digit behind its value, or what changes it: the judge reads powers of units, scales and second values.
    told = head is not None and (re.search(r"\d", said[head.end() :]) or _SAYS.changed.match(said, head.end()))
    if told or _SAYS.only_answer.fullmatch(said):
        return said
    rest = _SAYS.formula.sub(" ", re.sub(r"\\[a-zA-Z]+\s*(?:\{[^{}]*\})?", " ", phrase))
    if _is_prose(rest):
        return _last_value(said) or _last_value(phrase) or phrase.strip()
    return phrase.strip()


def _is_prose(text: str) -> bool:
    """Return whether a text without its formulas has words in it, of any language."""
    latin = any(word.lower() not in _FORMULA_WORDS for word in _SAYS.plain_word.findall(text))
    return latin or (not text.isascii() and _OTHER_SCRIPT.search(text) is not None)


def _is_formula(text: str) -> bool:
    """Return whether a completion is nothing but one expression, on one line: no words, some digit or formula."""
    bare = text.strip()
    if "\n" in bare.strip("$[]()\\ \n") or len(bare) > 2000 or not bare or bare.count("$") > 4:
        return False
    without = re.sub(r"\\[a-zA-Z]+\s*(?:\{[a-zA-Z\s,.()-]*\})?|(?<=\d)or(?=[A-Z(\\])", " ", bare)
    prose = _is_prose(without) or _SAYS.short_word.search(without) is not None
    return not prose and re.search(r"[\d\\^_]", bare) is not None and not re.search(r"(?<!\d)[.!?:]\s+\S", bare)
