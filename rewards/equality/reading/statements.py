r"""What stands around a value: labels, sentences, remarks, in several languages. `The chance is $\frac14$.` says 1/4.

`cores` gives what is left of an answer as its words are read away, one after the other. Each is judged by itself, as if
it had been the answer: so words around an answer change no verdict. What doubts, denies or chooses states nothing, nor
does what changes the number: `half of 20`, `twice as many as 42`, `the number after 42`, `I doubt that it is 42`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from gtpo.rewards.completions import words
from gtpo.rewards.equality.reading import SAYS, TABLES, WORDS, patterns
from gtpo.rewards.equality.reading.clean import unwrap_answer
from gtpo.rewards.equality.reading.units import NUMBER_WORDS, is_verb, scale_of, singular, spoken_number
from gtpo.rewards.extract import match_brace
from gtpo.rewards.limits import MAX_CORES, MAX_STATEMENT

# -- words that take a statement back, or make another one of it --------------------------------------------------
_DENIALS = WORDS.negations | WORDS.denials
_ANSWER_ELSEWHERE = WORDS.answer - WORDS.english
_OPENERS = tuple(f"{word} " for word in sorted(WORDS.prepositions | words("in of each every as with because per")))
_CHOOSING = [words(each) for each in TABLES["choosing"].values()]
_NO_LATIN = re.compile(r"[\u0590-\u1fff\u3040-\ud7ff]")

# -- pieces of a text: words, mathematics, punctuation ------------------------------------------------------------
_PIECE = re.compile(
    r"(?P<formula>(?<!\\)\$[^$]+\$)|(?P<command>\\(?:[a-zA-Z]+\*?|[^a-zA-Z\s]))|(?P<number>\d[\d,]*(?:\.\d+)?|\.\d+)"
    r"|(?P<word>[\u0590-\u109f\u0e00-\u0fff]+|[^\W\d_]+(?:['’-][^\W\d_]{2,}|['’]s)*)|(?P<mark>[,.;:!?。：，、])|(?P<other>\S)"
)


class _Piece(NamedTuple):
    kind: str  # `word`, `math` or `mark`
    start: int
    end: int
    text: str


def _pieces(text: str) -> list[_Piece]:
    found: list[_Piece] = []
    position = 0
    while (match := _PIECE.search(text, position)) is not None:
        kind, end = match.lastgroup or "", match.end()
        if kind == "command":
            while text[end : end + 1] in ("{", "[", "^", "_") and text[match.start() : end] not in (r"\{", r"\}"):
                closed = (
                    match_brace(text, end) if text[end] == "{" else text.find("]", end) if text[end] == "[" else end
                )
                if closed < 0:
                    break
                end = closed + 1
        elif kind == "other" and match.group() in "^_" and text[end : end + 1] == "{":
            end = max(end, match_brace(text, end) + 1)
        said = match.group()
        if said == "^" and found and found[-1].kind == "word" and found[-1].end == match.start():  # cm^2
            end += text[end : end + 1].isdigit()
            position, found[-1] = end, found[-1]._replace(end=end)
            continue
        is_word = (
            kind == "word" and (len(said) > 1 or not said.isascii() or said in "aIA") and said not in WORDS.functions
        )
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
_POINT = re.compile(r"^[A-Z]'?\s*=?\s*(\((?:[^()]|\([^()]*\))*,.*\))$", re.DOTALL)  # `P(1, 2)`: a point with its name
# A clause that is a value and nothing else.
_SECOND_VALUE = re.compile(
    r"(?:(?P<equal>which (?:is|equals|gives|means)(?: to)?)|because|since)\s+(?P<v>[^=<>]*?)[\s.!$]*$"
)
_TEXT = re.compile(r"\\(?:text|mbox|textrm|textnormal|textbf|textit|emph)\s*\{([^{}]*)\}")


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
        bare = next(_less(_TEXT.sub(r" \1 ", current).strip(), asked, others), "")
        rest = unwrap_answer(bare.strip().rstrip(".。"))
        # A remark that becomes an equation may grow by its sign; all else gets shorter, so this ends.
        if not rest or rest == current or len(rest) >= len(current) + 16:
            return
        current = rest


def _less(text: str, asked: frozenset[str], others: frozenset[str]) -> Iterator[str]:
    """Yield what a text says with less around it."""
    yield from _without_remark(text, asked)
    if (point := _POINT.match(text)) is not None:
        yield point[1]
    pieces = _pieces(text)
    spoken = _words(pieces)
    value = _value(pieces)
    if not spoken or (value is not None and not others.isdisjoint(spoken)):
        return  # of another than the one asked for: `Jane is 24`
    parts = [SAYS.label.match(part.strip()) for part in re.split(r",(?!\d)|;|\band\b", text)]
    if len(parts) > 1 and all(part is not None and re.search(r"[^\W\d_]{2}", part["label"]) for part in parts):
        if not _denies(text, "or"):  # `Ann: 18, Ben: 14`
            yield ", ".join(part["rest"] for part in parts if part is not None)
        return
    label = SAYS.label.match(text)
    if label is not None and not _denies(label["label"]):
        named = set(re.findall(r"[a-z]+", label["label"].lower()))
        # What is behind a label that makes no other number of it.
        if (
            not _chooses(label["label"], asked)
            and _is_of_the_question(label["label"], label["rest"], asked)
            and named.isdisjoint(WORDS.reversals | WORDS.modals | WORDS.bounds)
        ):
            yield label["rest"]
        return
    if value is None:
        yield from _in_words(text)
        return
    first, last = value
    start, end = pieces[first].start, pieces[last].end
    before, inner, after = text[:start], text[start:end], text[end:]
    if first == 0 and not after.strip(" .!"):
        return
    predicate = re.search(r"\b(?:is|are)\s+(?:an?\s+|the\s+)?([a-z]+(?: [a-z]+)?)[.!]?$", after)
    if predicate is not None and not _denies(text):
        yield predicate[1]
        return
    prose = before + " " + after
    if _denies(prose) or _chooses(prose, asked) or re.search(r"(?<=\w{3})[.!?]\s+\S", prose.strip()):
        return
    if first == 0 or not _leads_to(before, asked) or not _is_of_the_question(before, after, asked):
        return
    name = SAYS.named.search(before.strip())
    inner = f"{name[1]} = {inner}" if name is not None and name[1].isascii() else inner
    tail = after.strip(" .!")
    following = tail.lower().split(" ")[0]
    if tail and scale_of(following) is None and following in WORDS.changes_meaning - WORDS.prepositions:
        return
    # A few words are a unit, and must be one; many are the rest of the sentence.
    short = 0 < len(tail.split()) <= 3 and not tail.startswith(_OPENERS) and not SAYS.foreign_tail.match(after)
    yield f"{inner} {tail}" if tail and (scale_of(following) or short) else inner


def _chooses(prose: str, asked: frozenset[str]) -> bool:
    """Return whether prose speaks of another than the one asked for: of the second number, or of the larger."""
    spoken = set(re.findall(r"[a-z]+", prose.lower()))
    if not (WORDS.answer | {"value", "form"}).isdisjoint(spoken):
        spoken -= {"last"}  # the last result
    return any(not kind.isdisjoint(spoken) and kind.isdisjoint(asked) for kind in _CHOOSING)


def _without_remark(text: str, asked: frozenset[str]) -> Iterator[str]:
    for pattern, joint in _REMARKS:
        match = pattern.match(text)
        said = match["v"].strip(" $") if match is not None else ""
        if match is not None and said and not _denies(said, "or") and re.search(r"\d", match["a"]):
            yield said + joint + match["a"].strip(" .$")
            return
    bracketed = SAYS.in_brackets.search(text)
    if bracketed is not None and re.search(r"[\d\\$]", text[: bracketed.start()]):
        said, bare = bracketed[1].strip(), text[: bracketed.start()] + text[bracketed.end() :]
        number = spoken_number(said)
        given = re.search(r"-?[\d,]*\.?\d+", bare)
        agrees = given is not None and given.group().replace(",", "") == str(number)
        if agrees or (number is None and not _denies(said) and WORDS.changes_meaning.isdisjoint(said.lower().split())):
            yield bare
    clause = SAYS.clause.search(text)
    if clause is not None and not _denies(text, "or"):
        spoken = set(re.findall(r"[a-zA-Z]{2,}", text[clause.start("c") :]))
        second, head = _SECOND_VALUE.match(text, clause.start("c")), text[: clause.start()]
        if second is not None and not _words(_pieces(second["v"])):
            # `12, which equals 3 \cdot 4` is an equation, which must hold; `4 because 5` says nothing.
            *_, value = cores(head, asked)
            yield f"{second['v']} = {value}" if second["equal"] else ""
        elif clause["c"][:3] in ("whi", "bec", "sin", "as ", "att", "ach", "rea", "occ") or spoken <= WORDS.domain:
            yield head
    if (it := SAYS.is_answer.match(text)) is not None and not _denies(text, "or"):
        said = set(re.findall(r"[^\W\d_]+", it["c"].lower()))
        kinds = (asked | WORDS.kinds) - WORDS.changes_meaning
        answers = said <= kinds or not said.isdisjoint(WORDS.answer | {"correct"})
        if answers and re.search(r"[\d\\$]|^\(?[A-H]\)?$", it["v"]):
            yield it["v"]
    if (yes := SAYS.yes.match(text)) is not None:
        yield yes[yes.lastindex or 1]


def _in_words(text: str) -> Iterator[str]:
    """Yield what a sentence without mathematics ends in: `It will be Thursday.`, `The shape is an ellipse.`"""
    spoken = text.strip(" .!").split()
    if _denies(text) or not WORDS.modals.isdisjoint(map(str.lower, spoken)):
        return
    if (kind := SAYS.kind_of.fullmatch(text.strip(" .!"))) is not None:
        yield kind[1]
        return
    for at in range(len(spoken) - 1, 0, -1):
        if spoken[at - 1].lower() in WORDS.copulas | {"called"} and at > 1 and len(spoken) - at <= 4:
            yield re.sub(r"^(?:an?|the)\s+", "", " ".join(spoken[at:]))
            return


def _leads_to(before: str, asked: frozenset[str]) -> bool:
    """Return whether the words before a value state it: one clause, whose verb it follows, or "a total of" and such."""
    lowered = re.sub(r"\$[^$]*\$", " x ", before.lower()).strip()
    # `答案是5` has no spaces between words: what leads to its number is sought as a pattern.
    if SAYS.cjk_answer.search(lowered) or (not lowered.isascii() and SAYS.cjk_copula.search(lowered)):
        return True
    named = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)?", lowered)
    if not named or len(named) > 40:
        return False
    if WORDS.kinds.issuperset(named):  # `47% of 52`, `47 is 52`
        return not re.search(r"\d", lowered) and (named[-1] != "of" or not WORDS.measured.isdisjoint(named))
    last = named[-1]
    if last in WORDS.answer | (WORDS.copulas - WORDS.verbs) or not _ANSWER_ELSEWHERE.isdisjoint(named[-2:]):
        return True
    if not any(map(str.isascii, named)) and _NO_LATIN.search(lowered):
        return True  # a script of which nothing but its denials is known here
    if re.search(r"\d", lowered) and last not in WORDS.copulas:
        return False  # another number, and not as part of what is spoken of
    return _states(re.sub(r"\b(?:larger|smaller|greater|bigger)\b", "", lowered) if asked else lowered)


_STATING = WORDS.stating | WORDS.leads | WORDS.articles | WORDS.kinds | WORDS.copulas | WORDS.subjects | WORDS.answer


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
    if not of or foreign or asked <= _STATING or SAYS.named.search(before.strip()):
        return True
    known = {_stem(word) for word in asked}
    if _stem(of[0]) in known:
        return True
    # `She gave away 32 cookies` is not of what is left, `The farm has 32 cows` is of how many there are.
    verbs = (w for last, w in pairwise(["the", *spoken]) if w in of and last not in WORDS.articles | {"total"})
    done = any((word in WORDS.verbs or word.endswith("ed")) and _stem(word) not in known for word in verbs)
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
    if (
        inner
        and spoken[0] not in WORDS.placing
        and not WORDS.leads.issuperset(spoken[:inner])
        and spoken[-1] not in WORDS.copulas
    ):
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
