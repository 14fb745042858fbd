r"""From an answer as written to its bare value: what it may be wrapped in, the words around it, one spelling.

After `clean`, an answer holds no `$`, no `\left`, no spacing or font command, one spelling of fractions, percent
and degrees, and its thousands separators are gone if they cannot be anything else. `cores` gives what is left of an
answer as its words are read away, one after the other: `The chance is $\frac14$.` says 1/4. What doubts, denies or
chooses states nothing, nor does what changes the number: `half of 20`, `the number after 42`, `I doubt that it is 42`.
Text in, text out, in linear time.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gtpo.rewards.completions import without_spaces, words
from gtpo.rewards.equality.answers import Answer, Listing, Scalar, Words
from gtpo.rewards.equality.reading import SAYS, TABLES, WORDS, patterns
from gtpo.rewards.equality.reading.units import NUMBER_WORDS, is_verb, scale_of, singular, spoken_number
from gtpo.rewards.extract import ANSWER, UNSEEN, last_boxed, match_brace, without_operand_box
from gtpo.rewards.limits import MAX_CORES, MAX_STATEMENT

_TRANSLATION = str.maketrans(TABLES["characters"] | dict.fromkeys(map(chr, UNSEEN), ""))
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ", "0123456789+-nx")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
# Commands with another name, and commands of layout, which are dropped.
_RENAMED = {name: by for by, names in TABLES["commands"].items() for name in names.split()}
_TYPED: list[tuple[re.Pattern[str], Any]] = [
    (SAYS.repeating, r"\\repeating{\g<whole>}{\g<fixed>}{\g<bar>\g<bracket>\g<first>\g<block>}"),  # one of four
    (re.compile(r"(?<![\d.,])(\d{1,2}(?:,\d\d)+,\d{3})(?![\d,])"), lambda m: m[1].replace(",", "")),  # 1,00,000
    (re.compile(r"(?<![\d.,'])(\d{1,3}(?:'\d{3})+)(?![\d'])"), lambda m: m[1].replace("'", "")),  # 1'234'567
    (
        re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+,\d+|[1-9]\d{0,2}(?:\.\d{3}){2,})(?![\d.,])"),  # 1.234,56
        lambda m: m[1].replace(".", "").replace(",", "."),
    ),
    *patterns("spellings"),
]
_SYNONYMS = [*_TYPED, *patterns("spellings of LaTeX")]
# In a gold, one dollar sign before a number delimits no formula; what samples have before a number is any habit.
PRICE = re.compile(r"-?\$\s?\d[\d,]*(?:\.\d+)?")
_NAMED_SETS = patterns("words for symbols")
_DECORATIONS, _MARKS = patterns("decorations"), patterns("marks of lists and ends")
_NAMED_FUNCTIONS = words("sin cos tan log ln cot sec csc gcd lcm max det")  # `min` stands for minutes too
_STATING = WORDS.stating | WORDS.leads | WORDS.articles | WORDS.kinds | WORDS.copulas | WORDS.subjects | WORDS.answer


def _contents(
    pattern: re.Pattern[str], text: str, replaced: Callable[[re.Match[str], str], str], between: str = ""
) -> str:
    r"""Replace each `\command{content}` that the pattern opens, balanced; `between` goes before all but the first."""
    parts: list[str] = []
    position = 0
    while (match := pattern.search(text, position)) is not None:
        end = match_brace(text, match.end() - 1)
        if end < 0:
            break
        parts += [text[position : match.start()], between if parts else "", replaced(match, text[match.end() : end])]
        position = end + 1
    return "".join(parts) + text[position:]


def _text(match: re.Match[str], content: str) -> str:
    bare = content.strip()
    if bare in _NAMED_FUNCTIONS or bare == "\\$":
        return f"\\{bare} " if bare[0] != "\\" else bare
    return f"\\text{{{_contents(SAYS.texts, content, _text)}}}"


def _font(match: re.Match[str], content: str) -> str:
    r"""Drop a font command: `\mathbf{i}` is the unit vector and not the imaginary unit; `\mathrm{cm}` is text."""
    content = content.strip()
    if content in ("i", "j", "k", "e") and match.group().startswith(("\\mathbf", "\\bold", "\\bm", "\\pmb")):
        return f"\\unitvector{{{content}}}"
    if re.fullmatch(r"[A-Za-z][A-Za-z .]+", content) is None:
        return content
    before = match.string[max(0, match.start() - 20) : match.start()]
    measured = content in ("min", "sec") and SAYS.after_number.search(before)  # minutes, seconds
    return f"\\{content} " if content in _NAMED_FUNCTIONS | {"min"} and not measured else f"\\text{{{content}}}"


def _undouble(text: str) -> str:
    r"""Undo the doubled backslashes of text that was escaped once too often: `\\frac{1}{2}`."""
    # In an environment `\\` ends a row.
    if "\\\\" not in text or re.search(r"(?<!\\)\\begin", text):
        return text
    return re.sub(r"\\\\(?=[a-zA-Z({\[|,;!%$]|\}(?!\}))", r"\\", text)


def unwrap_answer(text: str, gold: bool = False) -> str:
    r"""Take an answer out of what decorates it: answer tags, `\boxed`, markdown, HTML, ticks; formulas stand in `$`."""
    text = text.strip()
    # To Python `选C` is alphanumeric too.
    if text.isascii() and text.isalnum():
        return text
    if "<answer>" in text:
        text = [text, *ANSWER.findall(text)][-1]
    if "box" in text:
        text = text.replace("\\framebox", "\\fbox")
        for _ in range(50):
            inside = without_operand_box(text) or last_boxed(text)
            if inside is None:
                break
            text = inside
        opened = re.fullmatch(r"\$?\\boxed\s*\{(.*)", text.strip(), re.DOTALL)
        if gold and opened is not None and match_brace(text, text.index("{")) < 0:
            text = opened[1]  # a gold whose last brace was lost with the rest of its solution
    if "<" in text:
        text = SAYS.raised_html.sub(lambda m: ("^{" if m[1].lower() == "sup" else "_{") + m[2] + "}", text)
    text = SAYS.entity.sub(lambda m: html.unescape(m.group()), text)
    if "<" in text or "\n" in text or text[:1] == "{" or not text.isascii():  # what each decoration needs
        text = _substituted(text, _DECORATIONS)
    text = _substituted(text.strip(), _MARKS)
    text = SAYS.delimited.sub(lambda m: f"${next(part for part in m.groups() if part is not None).strip()}$", text)
    for _ in range(3):
        before = text
        text = text.strip().strip("`").strip().strip('"')
        text = text[1:-1] if len(text) > 2 and text[0] in "'“" and text[-1] in "'”" else text
        starred = SAYS.starred.fullmatch(text)  # markdown's emphasis
        text = starred[2] if starred and starred[1] not in starred[2] else SAYS.starred_within.sub(r"\1", text)
        if (formula := re.fullmatch(r"\$([^$]+)(?<!\\)\$[.,]?", text)) is not None:
            text = formula[1]
        around = SAYS.around.match(text)
        if around is not None and match_brace(text, around.end() - 1) == len(text) - 1:
            text = text[around.end() : -1]
        if text == before:
            break
    return text.strip()


def clean(text: str, gold: bool = False) -> str:
    """Return the answer in the one spelling that the reader understands."""
    if text.isascii() and text.isdigit():
        return text
    text = text.replace("\x0crac", r"\frac")  # what `\f` of an unescaped string becomes
    text = _undouble(unwrap_answer(_undouble(text), gold))
    text = one_spelling(text)
    text = SAYS.cases.sub(_cases, text)
    text = re.sub(r"^\s*&\s*=?", "", SAYS.environment.sub(" ", text))
    # After the spellings, by which a thin space of Unicode between digits has become `\,`.
    text = SAYS.thousands.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = SAYS.spaced_thousands.sub(lambda m: m[1] + m[2].replace(" ", ""), text)
    text = re.sub(r"(?<!\\)\$", r"\\$" if gold and PRICE.fullmatch(text.strip()) else " ", text)
    text = _synonyms(text)
    text = re.sub(r"\s+", " ", text).strip()
    for _ in range(3):
        if text.startswith("{") and match_brace(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
        if not text.endswith("\\}"):
            text = text.rstrip(" .,;:").removesuffix("\\\\").removesuffix("\\").strip()
    text = SAYS.quantifier.sub("", text)
    text = SAYS.all_but.sub(r"\\reals \\setminus \\{\1\\}", text.strip())
    if (bound := SAYS.bound.match(text)) is not None:
        sign = ("<", r"\le", ">", r"\ge")[2 * bool(bound[1]) + bool(bound[2])]
        text = f"x {sign} {bound[3]}"
    return next((symbol for pattern, symbol in _NAMED_SETS if pattern.fullmatch(text)), text)


def _cases(match: re.Match[str]) -> str:
    """Return the rows of cases as a list: `value if condition`, or equations."""
    rows = [row.strip() for row in re.split(r"\\\\|\n", (match[1] or match[2] or "").strip(" \\")) if row.strip()]
    if not all(row.count("&") == 1 for row in rows):
        return ", ".join(row.replace("&", " ") for row in rows)
    pairs = (re.split(r"[,\s]*&\s*(?:\\(?:text|mbox|mathrm)\s*\{[^{}]*\}|if\b|for\b|when\b)?", row) for row in rows)
    return "; ".join(f"{value} \\text{{ if }} {condition.strip(' ,.;')}" for value, condition in pairs)


def one_spelling(text: str) -> str:
    """Return a text with one spelling of every symbol, and without the delimiters of formulas in brackets."""
    text = SAYS.raised_run.sub(lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = SAYS.lowered_run.sub(lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = text.translate(_TRANSLATION).replace('\\"', " ")
    if not text.isascii():  # digits in circles and of other scripts, wide and styled letters
        text = "".join(c if c.isascii() else unicodedata.normalize("NFKC", c) for c in text).translate(_TRANSLATION)
        # NFKC leaves the digits of Arabic and Devanagari as they are.
        text = "".join(c if c.isascii() or not c.isdecimal() else str(unicodedata.decimal(c)) for c in text)
    text = SAYS.nothing_joined.sub("", text)
    return re.sub(r"(?s)(?<!\\)\\\((.*?)(?<!\\)\\\)|(?<!\\)\\\[(.*?)(?<!\\)\\\]", r"\1\2", text)


def _substituted(text: str, substitutions: Sequence[tuple[re.Pattern[str], Any]]) -> str:
    for pattern, replacement in substitutions:
        text = pattern.sub(replacement, text)
    return text


def _synonyms(text: str) -> str:
    if "\\" not in text:  # most answers: few of the spellings need to be looked for
        text = _substituted(text, _TYPED)
        if "\\" not in text:
            return text.replace("~", " ")
    text = SAYS.command.sub(lambda m: _RENAMED.get(m[1], m.group()), SAYS.sizes.sub("", text))
    text = SAYS.residue.sub(r"\\text{ mod \1}", text) if "\\equiv" in text else text
    text = _contents(SAYS.fonts, _substituted(text, _SYNONYMS), _font, between=" ")
    return re.sub(r"\\text\{\s*\}", " ", _contents(SAYS.texts, text, _text))


# -- words that take a statement back, or make another one of it --------------------------------------------------
_DENIALS = WORDS.negations | WORDS.denials
_ANSWER_ELSEWHERE = WORDS.answer - WORDS.english
_OPENERS = tuple(f"{word} " for word in sorted(WORDS.prepositions | words("in of each every as with because per")))
_CHOOSING = [words(each) for each in TABLES["choosing"].values()]

# -- pieces of a text: words, mathematics, punctuation ------------------------------------------------------------


class _Piece(NamedTuple):
    kind: str  # `word`, `math` or `mark`
    start: int
    end: int
    text: str


def _pieces(text: str) -> list[_Piece]:
    found: list[_Piece] = []
    position = 0
    while (match := SAYS.piece.search(text, position)) is not None:
        kind, end = match.lastgroup or "", match.end()
        if kind == "command" and match.group() not in (r"\{", r"\}"):
            while (opening := text[end : end + 1]) in ("{", "[", "^", "_"):
                closed = match_brace(text, end) if opening == "{" else text.find("]", end) if opening == "[" else end
                if closed < 0:
                    break
                end = closed + 1
        elif kind == "other" and match.group() in "^_" and text[end : end + 1] == "{":
            end = max(end, match_brace(text, end) + 1)
        said = match.group()
        if said == "^" and found and found[-1].kind == "word" and found[-1].end == match.start():  # cm^2
            position = end + text[end : end + 1].isdigit()
            found[-1] = found[-1]._replace(end=position)
            continue
        is_word = kind == "word" and (len(said) > 1 or not said.isascii()) and said not in WORDS.functions
        if said in ("a", "I", "A"):  # an article, or a letter: `a = 3`
            is_word = re.match(r"\s+[\w$\\]", text[end:]) is not None
        is_word = is_word and not (said.isupper() and said.isascii() and 1 < len(said) < 4 and said not in ("PM", "AM"))
        found.append(_Piece("word" if is_word else "mark" if kind == "mark" else "math", match.start(), end, said))
        position = end
    return found


def _words(pieces: list[_Piece]) -> set[str]:
    return {piece.text.lower().removesuffix("'s") for piece in pieces if piece.kind == "word"}


def _value(pieces: list[_Piece]) -> tuple[int, int] | None:
    """Return (first, last) piece of the last run of mathematics; `and`, `or` and commas may stand between its parts."""
    last = next((at for at in reversed(range(len(pieces))) if pieces[at].kind == "math"), None)
    if last is None:
        return None
    first = last
    while first and (pieces[first - 1].kind != "word" or (pieces[first - 1].text in ("and", "or") and first > 1)):
        if pieces[first - 1].text in "!?:。：" and not pieces[first].text.isdigit():
            break
        first -= 1
    while first < last and (pieces[first].kind == "mark" or pieces[first].text in ("and", "or", "=")):
        first += 1
    return first, last


# -- reading words away -------------------------------------------------------------------------------------------
_REMARKS = patterns("remarks")


def _denies(text: str, allowed: str = "") -> bool:
    spoken = re.findall(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", text.lower())
    return not (_DENIALS - {allowed}).isdisjoint(spoken) or SAYS.denying.search(text.lower()) is not None


def cores(text: str, asked: frozenset[str] = frozenset(), others: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield an answer, then what is left of it as words around it are read away.

    `asked`: words of the question; `others`: names of those whom the problem speaks of and does not ask for.
    """
    current = text
    for _ in range(MAX_CORES):
        yield current
        if len(current) > MAX_STATEMENT or SAYS.wordy.search(current) is None:
            return
        # The first rule that reads anything away decides: a text has one reading.
        bare = _less(SAYS.text_piece.sub(r" \1 ", current).strip(), asked, others)
        rest = unwrap_answer(bare.strip().rstrip(".。"))
        # A remark that becomes an equation may grow by its sign; all else gets shorter, so this ends.
        if not rest or rest == current or len(rest) >= len(current) + 16:
            return
        current = rest


def says_no_less(core: str, text: str) -> bool:
    """Return whether a core leaves out of a text only words, what a clause says of its letters, or a subject."""
    clause = SAYS.clause.search(text)
    if clause is not None and set(re.findall(r"[a-zA-Z]{2,}", text[clause.start("c") :])) <= WORDS.domain:
        text = text[: clause.start()]
    whole, kept = (Counter(SAYS.content.findall(each)) for each in (text, core))
    before = text.partition(core)[0].rstrip(" $")
    is_subject = bool(core) and before.rpartition(" ")[2].lower() in WORDS.copulas
    return is_subject or (whole <= kept and not before.endswith(","))


def _less(text: str, asked: frozenset[str], others: frozenset[str]) -> str:
    """Return what a text says with less around it, empty if nothing can be read away."""
    if (rest := _without_remark(text, asked, others)) is not None:
        return rest
    if (point := SAYS.point.match(text)) is not None:
        return point[1]
    pieces = _pieces(text)
    spoken = _words(pieces)
    value = _value(pieces)
    if not spoken or (value is not None and not others.isdisjoint(spoken)):
        return ""  # of another than the one asked for: `Jane is 24`
    parts = [SAYS.label.match(part.strip()) for part in re.split(r",(?!\d)|;|\band\b", text)]
    if len(parts) > 1 and all(part is not None and re.search(r"[^\W\d_]{2}", part["label"]) for part in parts):
        # `Ann: 18, Ben: 14`
        return "" if _denies(text, "or") else ", ".join(part["rest"] for part in parts if part is not None)
    label = SAYS.label.match(text)
    if label is not None and not _denies(label["label"]):
        named = set(re.findall(r"[a-z]+", label["label"].lower()))
        # What is behind a label that makes no other number of it.
        fits = named.isdisjoint(WORDS.reversals | WORDS.modals | WORDS.bounds) and not _chooses(label["label"], asked)
        return label["rest"] if fits and _is_of_the_question(label["label"], label["rest"], asked) else ""
    if value is None:
        return _in_words(text)
    first, start, end = value[0], pieces[value[0]].start, pieces[value[1]].end
    before, inner, after = text[:start], text[start:end], text[end:]
    leading = [piece for piece in pieces[:first] if piece.kind == "word"]
    said = text[: leading[0].start].strip(" ,;") if leading and leading[-1].text.lower() in WORDS.copulas else ""
    if re.search(r"\d", said) and _words(leading[:-1]) <= {"that", "which", "it", "this"}:
        return f"{said} = {text[start:]}"  # `8 equals 9`, `8, that is, 9`: a chain, which must hold
    if first == 0 and not after.strip(" .!"):
        return ""
    predicate = re.search(r"\b(?:is|are)\s+(?:an?\s+|the\s+)?([a-z]+(?: [a-z]+)?)[.!]?$", after)
    if predicate is not None and not _denies(text):
        return predicate[1]
    prose = before + " " + after
    if _denies(prose) or _chooses(prose, asked) or re.search(r"(?<=\w{3})[.!?]\s+\S", prose.strip()):
        return ""
    if first == 0 or not _leads_to(before, asked) or not _is_of_the_question(before, after, asked):
        return ""
    name = SAYS.named.search(before.strip())
    inner = f"{name[1]} = {inner}" if name is not None and name[1].isascii() else inner
    tail = after.strip(" .!")
    following = tail.lower().split(" ")[0]
    if tail and scale_of(following) is None and following in WORDS.changes_meaning - WORDS.prepositions:
        return ""
    # A few words are a unit, and must be one; many are the rest of the sentence.
    short = 0 < len(tail.split()) <= 3 and not tail.startswith(_OPENERS) and not SAYS.foreign_tail.match(after)
    return f"{inner} {tail}" if tail and (scale_of(following) or short) else inner


def _chooses(prose: str, asked: frozenset[str]) -> bool:
    """Return whether prose speaks of another than the one asked for: of the second number, or of the larger."""
    spoken = set(re.findall(r"[a-z]+", prose.lower()))
    if not (WORDS.answer | {"value", "form"}).isdisjoint(spoken):
        spoken -= {"last"}  # the last result
    return any(not kind.isdisjoint(spoken) and kind.isdisjoint(asked) for kind in _CHOOSING)


def _ends_in_value(text: str) -> bool:
    """Return whether a text is or states a value to its end: `x = 3`, `12 apples`, `one third`, not `The answer is`."""
    pieces = _pieces(text)
    if not pieces or pieces[-1].text in (":", "："):
        return False
    if (value := _value(pieces)) is None:
        return pieces[-1].text in ("pi", "π") or spoken_number(text) is not None
    return _words(pieces[value[1] + 1 :]).isdisjoint(WORDS.stating | WORDS.copulas)


def _without_remark(text: str, asked: frozenset[str], others: frozenset[str]) -> str | None:
    for pattern, joint in _REMARKS:
        match = pattern.match(text)
        said = match["v"].strip(" $") if match is not None else ""
        if match is not None and _ends_in_value(said) and not _denies(said, "or") and re.search(r"\d", match["a"]):
            *_, value = cores(said, asked, others)
            return value + joint + match["a"].strip(" .$")
    bracketed = SAYS.in_brackets.search(text)
    if bracketed is not None and re.search(r"[\d\\$]", text[: bracketed.start()]):
        said, bare = bracketed[1].strip(), text[: bracketed.start()] + text[bracketed.end() :]
        number, digits = spoken_number(said), re.search(r"-?[\d,]*\.?\d+", bare)
        agrees = digits is not None and digits.group().replace(",", "") == str(number)
        if agrees or (number is None and not _denies(said) and WORDS.changes_meaning.isdisjoint(said.lower().split())):
            return bare
    place = SAYS.place.search(text)
    head = text[: place.start()] if place is not None else ""
    if place is not None and re.search(r"\d", head) and _ends_in_value(head) and not _words(_pieces(place["v"])):
        return head
    clause = SAYS.clause.search(text)
    if clause is not None and not _denies(text, "or"):
        spoken = set(re.findall(r"[a-zA-Z]{2,}", text[clause.start("c") :]))
        second, head = SAYS.second_value.match(text, clause.start("c")), text[: clause.start()]
        if second is not None and not _words(_pieces(second["v"])):
            # `12, which equals 3 \cdot 4` is an equation, which must hold; `4 because 5` says nothing.
            *_, value = cores(head, asked, others)
            return f"{second['v']} = {value}" if second["equal"] else ""
        if clause["c"][:3] in ("whi", "bec", "sin", "as ", "att", "ach", "rea", "occ") or spoken <= WORDS.domain:
            return head
    if (it := SAYS.is_answer.match(text)) is not None and not _denies(text, "or"):
        said = set(re.findall(r"[^\W\d_]+", it["c"].lower()))
        kinds = (asked | WORDS.kinds) - WORDS.changes_meaning
        answers = said <= kinds or not said.isdisjoint(WORDS.answer | {"correct"})
        if answers and re.search(r"[\d\\$]|^\(?[A-H]\)?$", it["v"]):
            return it["v"]
    yes = SAYS.yes.match(text)
    return yes[yes.lastindex or 1] if yes is not None else None


def _in_words(text: str) -> str:
    """Return what a sentence without mathematics ends in: `It will be Thursday.`, `The shape is an ellipse.`"""
    spoken = text.strip(" .!").split()
    if _denies(text) or not WORDS.modals.isdisjoint(map(str.lower, spoken)):
        return ""
    if (kind := SAYS.kind_of.fullmatch(text.strip(" .!"))) is not None:
        return kind[1]
    for at in range(len(spoken) - 1, max(1, len(spoken) - 5), -1):
        if spoken[at - 1].lower() in WORDS.copulas | {"called"}:
            return re.sub(r"^(?:an?|the)\s+", "", " ".join(spoken[at:]))
    return ""


def _leads_to(before: str, asked: frozenset[str]) -> bool:
    """Return whether the words before a value state it: one clause, whose verb it follows, or "a total of" and such."""
    lowered = re.sub(r"\$[^$]*\$", " x ", before.lower()).strip()
    # `答案是5` has no spaces between words: what leads to its number is sought as a pattern.
    if SAYS.cjk_answer.search(lowered) or (not lowered.isascii() and SAYS.cjk_copula.search(lowered)):
        return True
    named = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)?", lowered)
    if not named or len(named) > 40:
        return False
    if WORDS.kinds.issuperset(named):  # `47% of 52`, `47 is 52`, `$y = 4$ at $x = 2$`
        if "is" not in named and SAYS.stated.search(before):
            return False
        return not re.search(r"\d", lowered) and (named[-1] != "of" or not WORDS.measured.isdisjoint(named))
    last = named[-1]
    if last in WORDS.answer | (WORDS.copulas - WORDS.verbs) or not _ANSWER_ELSEWHERE.isdisjoint(named[-2:]):
        return True
    if not any(map(str.isascii, named)) and SAYS.no_latin.search(lowered):
        return True  # a script of which nothing but its denials is known here
    if (re.search(r"\d", lowered) or SAYS.stated.match(before.strip())) and last not in WORDS.copulas:
        return False  # another number, and not as part of what is spoken of
    return _states(re.sub(r"\b(?:larger|smaller|greater|bigger)\b", "", lowered) if asked else lowered)


def _is_of_the_question(before: str, after: str, asked: frozenset[str]) -> bool:
    """Return whether a sentence speaks of what was asked for: its subject does, or it says something of it as being."""
    spoken = _latin(before)
    if not WORDS.unstated.isdisjoint({*spoken, *_latin(after)} - asked):
        return False
    if re.match(r"an? (?!total)[a-z]", before.lower()):
        return False  # `An option is 42`: one of several
    foreign = not set(re.findall(r"[^\W\d_]+", before.lower())[-1:]) <= WORDS.verbs | set(spoken)
    foreign |= bool(spoken) and spoken[-1] in WORDS.copulas - WORDS.verbs
    of = [word for word in spoken if word not in _STATING and not re.search(rf"\b{word.upper()}\b", before)]
    multiple = SAYS.multiple.search(before)
    if multiple is not None and not asked.issuperset(multiple.group().lower().split()):
        return False  # `Half the width is 12`
    if not of or foreign or asked <= _STATING or SAYS.named.search(before.strip()):
        return True
    known = {_stem(word) for word in asked}
    # `She gave away 32 cookies` is not of what is left, `The farm has 32 cows` is of how many there are.
    verbs = (w for last, w in pairwise(["the", *spoken]) if w in of and last not in WORDS.articles | {"total"})
    done = not before.rstrip(" $").endswith("total of")
    done &= any((word in WORDS.verbs or word.endswith("ed")) and _stem(word) not in known for word in verbs)
    return not done and any(_stem(word) in known for word in [*of, *_latin(after)] if word not in _STATING)


def _latin(prose: str) -> list[str]:
    return re.findall(r"(?<![^\W\d_'])[a-z]{2,}(?![^\W\d_])", re.sub(r"\$[^$]*\$", " ", prose).lower())


def _stem(word: str) -> str:
    """Return what the forms of a word have in common, as far as a rule can tell."""
    word = TABLES["irregular"].get(word, singular(word))
    return re.sub(r"(?<=[a-z]{3})(?:ing|ed|e|er|est|ly)$", "", word)[:7]


def _states(before: str) -> bool:
    spoken = re.findall(r"[a-z']+", re.sub(r"\bthe (?:bigger|larger|smaller|greater)\b(?! (?:than|by))", "the", before))
    if not (WORDS.reversals | WORDS.modals).isdisjoint(spoken):
        return False
    # `I think it is 5` states 5, and `Ann thinks it is 5` does not.
    if any(word in WORDS.opinions and spoken[max(0, at - 1)] not in ("i", "we") for at, word in enumerate(spoken)):
        return False
    inner = next((at for at, word in enumerate(spoken) if at and word in WORDS.subjects), 0)
    leading = not inner or spoken[0] in WORDS.placing or WORDS.leads.issuperset(spoken[:inner])
    if not leading and spoken[-1] not in WORDS.copulas:
        return False  # a clause within another, which may say anything of it
    while spoken and spoken[-1] in WORDS.articles:
        spoken.pop()
    if len(spoken) > 2 and spoken[-1] in WORDS.placing and (spoken[-1] in WORDS.loose or is_verb(spoken[-2])):
        spoken.pop()  # `leaves after 12 minutes`
    last, before_last = [*reversed(spoken), "", ""][:2]
    if last == "of":
        return not WORDS.measured.isdisjoint((before_last, singular(before_last)))
    if last == "to" and before_last in ("equal", "up"):  # adds up to
        return True
    if last in NUMBER_WORDS or scale_of(last) is not None or last in WORDS.bounds | WORDS.prepositions | WORDS.placing:
        return False
    return any(map(is_verb, spoken)) or (before.rstrip().endswith((":", "=")) and len(spoken) > 1)  # `mn = 18`


# -- words, and times of day, which look like ratios: 7:30 is not 14:60 -----------------------------------------------
_PUNCTUATION = re.compile(r"[\s\"'`.,;:!?~]+|(?<=\w)-(?=\w)")


def bare_text(text: str) -> str:
    """Drop text commands, and all spaces but those between digits."""
    return without_spaces(SAYS.text.sub(r"\1", text))


def _worded(text: str) -> str | None:
    """Return a text of words in lower case, bare; None for others. `x-y` and `n!` have no word of three letters."""
    plain = SAYS.leading.sub("", SAYS.text.sub(r" \1 ", text).strip("() ")).lower()
    runs = re.findall(r"[a-z]+", plain) if re.fullmatch(r"[a-z\d\s\"'`.,;:!?~/-]+", plain) else []
    if not runs or not all(len(run) > 2 or run in WORDS.short_words for run in runs):
        return None
    return without_spaces(plain) if re.search(r"\d", plain) else _PUNCTUATION.sub(" ", plain).strip()


def same_name(prediction: str, name: str) -> bool:
    """Return whether an answer is a name, letter by letter: neither case nor what wraps it counts."""
    bare = re.sub(r"\\[a-zA-Z]+\s*\{|[\s{}$*\"'`.,;:!()]+$|^[\s{}$*\"'`(]+", "", prediction)
    bare = re.sub(r"^(?:it is|it's|it was|on)\s+", "", bare, flags=re.IGNORECASE)
    return bare.strip("{}() ").casefold() == name.strip().casefold()


def same_words(first: str, second: str) -> bool:
    """Return whether two texts agree without their spaces; words also without case and punctuation."""
    bare = bare_text(first)
    if bare and bare == bare_text(second):
        return True
    worded = _worded(first)
    return worded is not None and worded == _worded(second)


def time_of_day(answer: Answer) -> tuple[str, str] | None:
    """Return a time of day as (`h:mm`, `a` or `p` or empty), or None."""
    if isinstance(answer, Scalar) and answer.unit.name in ("am", "pm") and answer.term[0] == "num":
        return f"{answer.term[1]}:00", answer.unit.name[0]
    text = answer.text if isinstance(answer, Words) else answer.brackets if isinstance(answer, Listing) else ""
    match = re.fullmatch(r"0?(\d{1,2}:\d{2})\s*(?:([ap])\.?\s*m\.?)?", bare_text(text).lower())
    return (match[1], match[2] or "") if match else None


def same_time(first: Answer, second: Answer) -> bool | None:
    """Return whether two times of day agree, None if one is no time; without a.m. or p.m. it fits both."""
    a, b = time_of_day(first), time_of_day(second)
    return None if a is None or b is None else a[0] == b[0] and (a[1] == b[1] or "" in (a[1], b[1]))
