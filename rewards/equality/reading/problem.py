r"""What the text of a problem says about its answers.

Which expressions stand in it (an answer that repeats one has computed nothing), whether it asks for a percentage or a
simplified form, which words it uses (nouns that may be counted, names), and what its options are.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from gtpo.rewards.equality.arithmetic.terms import Term, canonical, is_literal, subterms
from gtpo.rewards.equality.reading.clean import clean, one_spelling
from gtpo.rewards.equality.reading.contract import Contract, read_contract
from gtpo.rewards.equality.reading.grammar import term_of
from gtpo.rewards.equality.reading.tokens import tokens_of
from gtpo.rewards.equality.reading.units import singular
from gtpo.rewards.limits import PROBLEM_CHARACTERS, PROBLEM_EXPRESSIONS

_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_MATHEMATICS = re.compile(
    r"(?:\\[a-zA-Z]+|\\[^a-zA-Z\s]|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\d.,]*\d|[-+*/^_=<>()\[\]{}|!%]|\s)+"
)
_SEPARATOR = re.compile(r"=|<|>|\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|\\approx|\\to(?![a-z])|,|;|&|\\\\")
_RELATION = re.compile(r"=|<|>|\\(?:le|leq|ge|geq|ne|neq|approx|equiv|to|in)(?![a-z])")
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_ASKS = re.compile(
    r"\?|\b(?:find|express|compute|calculate|determine|give|write|what|how|which|state|convert|evaluate|estimate|"
    r"solve|simplify|factor|expand|enter|list|name|answer|round|who|where|when)\b",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"(?:\bpercent(?:age)?\b|\bper cent\b|\bpercents\b|\\?%)", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?:\d|\}|\$|\)|\b(?:ten|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|five|a|x|n|p))[\s$-]*$",
    re.IGNORECASE,
)
_OTHER_FORM = re.compile(r"\bas an? (?:\w+ ){0,2}(?:decimal|fraction|integer|ratio|mixed number)", re.IGNORECASE)
_RESTATED = re.compile(
    r"\b(?:write|express|convert|rewrite|change|simplify|reduce|what is|evaluate|compute|find|round|decimal|fraction|"
    r"number|value|equivalent|equal)\b(?:\s+[a-z]+){0,3}\s*$",
    re.IGNORECASE,
)
"""What stands before a number that is to be written in another form."""
_HOW_MANY = re.compile(r"\bhow (?:many|much)\s+((?:[a-zA-Z]+\s+){0,2}[a-zA-Z]+)", re.IGNORECASE)
_OPTION = re.compile(
    r"(?<![a-zA-Z\\])(?:\\(?:textbf|text|mathrm|mathbf|textrm)\s*\{\s*)?\(?(?P<letter>[A-H])\s*[).](?:\s*\})?"
    r"(?:\\[ ,;]|\\quad|~|\s)*"
)
_OPTION_END = re.compile(r"(?:\\q?quad|[\s$,;&]|\\\\|\\[,; ])+$")
_NUMERAL = re.compile(r"(?<![\w.$\\{])-?(?:\d[\d,]*\.?\d*|\.\d+)(?![\w}])")
_ORDER = re.compile(r"\(\s*([a-zA-Z](?:\s*,\s*[a-zA-Z])+)\s*\)")
_N = r"\$?(\d[\d,]*(?:\.\d+)?|\d+/\d+)\$?"
_SPOKEN: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern.replace("N", _N), re.IGNORECASE), expression)
    for pattern, expression in [
        (r"square root of N", r"\sqrt{{{0}}}"),
        (r"cube root of N", r"\sqrt[3]{{{0}}}"),
        (r"N squared|square of N", "{0}^2"),
        (r"N cubed|cube of N", "{0}^3"),
        (r"N (?:raised )?to the power (?:of )?N", "{0}^{{{1}}}"),
        (r"N divided by N|quotient of N and N|ratio of N to N", "{0}/{1}"),
        (r"N (?:times|multiplied by) N|product of N and N", "{0}*{1}"),
        (r"N plus N|sum of N and N", "{0}+{1}"),
        (r"N minus N|difference (?:between|of) N and N", "{0}-{1}"),
        (r"N subtracted from N", "{1}-{0}"),
        (r"N factorial", "{0}!"),
        (r"half of N", "{0}/2"),
        (r"N\s*(?:\\?%|percent) of N", r"{0}/100*{1}"),
    ]
]
"""Operations in words: "84 divided by 2" states 84/2."""


class ProblemText:
    """What a problem's text says, looked up again and again for its answers; what is not understood says nothing."""

    def __init__(self, text: str) -> None:
        self._text = text[-PROBLEM_CHARACTERS:]
        self._question = _last_shot(self._text)
        self._formulas, self._prose = _split(self._text)
        self._asking = [sentence for sentence in _SENTENCE.split(self._question) if _ASKS.search(sentence)]
        self._asked_prose = _split(" ".join(self._asking))[1]

    @cached_property
    def _runs(self) -> list[str]:
        return [match.group() for match in _MATHEMATICS.finditer(one_spelling(self._prose))]

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Of the whole text in one spelling: where an answer's tokens are sought in a row."""
        return tokens_of(one_spelling(self._text))

    @cached_property
    def literals(self) -> frozenset[Term]:
        """Canonical terms of the numbers and names that are to be written in another form: `0.5` in
        "write 0.5 as a fraction"."""
        return _restated(self._text)

    @cached_property
    def expressions(self) -> frozenset[Term]:
        """Canonical terms of the expressions and of their composite parts."""
        plain = self._text.replace(",", "")
        spoken = [form.format(*filter(None, m.groups())) for pattern, form in _SPOKEN for m in pattern.finditer(plain)]
        whole = [*self._formulas, *self._runs, *spoken]
        pieces = list(dict.fromkeys(piece for part in whole for piece in [part, *_SEPARATOR.split(part)]))
        terms = [term for piece in pieces[:PROBLEM_EXPRESSIONS] if (term := _parsed(piece)) is not None]
        return frozenset(canonical(part) for term in terms for part in subterms(term) if not is_literal(part))

    @cached_property
    def asked(self) -> frozenset[Term]:
        """Canonical terms of those that no relation of the problem gives a value, `m + n` of "find m + n"."""
        return _asked([*self._formulas, *self._runs])

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Words outside formulas, in the singular and as they stand, in lower case."""
        found = re.findall(r"[a-z]+(?:'[a-z]+)?", self._prose.lower())
        return frozenset(found) | frozenset(map(singular, found))

    @cached_property
    def asking(self) -> frozenset[str]:
        """Words of its questions and instructions, in lower case."""
        return frozenset(re.findall(r"[a-z]+", self._asked_prose.lower()))

    @cached_property
    def counted(self) -> frozenset[str]:
        """What "how many" asks for, in the singular."""
        phrases = _HOW_MANY.findall(self._asked_prose)
        return frozenset(singular(word) for phrase in phrases for word in phrase.lower().split())

    @cached_property
    def options(self) -> dict[str, str]:
        """Letter -> text of a choice, where there are two or more."""
        return dict(_options(self._question))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Letters of the tuple it asks for, `x, y` of "find (x, y)"; empty where it names none."""
        order = _ORDER.findall(one_spelling(self._text))
        return tuple(re.findall(r"[a-zA-Z]", order[-1])) if order else ()

    @cached_property
    def asks_percent(self) -> bool:
        """Whether it asks for a percentage."""
        return _asks_percent(self._question)

    @cached_property
    def others(self) -> frozenset[str]:
        """Names of persons whom it speaks of and does not ask for, where it asks for some, in lower case."""
        names, wanted = set(_NAME.findall(self._prose)), set(re.findall(r"\b[A-Z][a-z]+\b", self._asked_prose))
        return frozenset(name.lower() for name in names - wanted) if names & wanted else frozenset()

    @cached_property
    def asked_names(self) -> frozenset[str]:
        """Names of quantities in its question: `AC`, `f^{-1}(x)`."""
        pieces = [*_split(self._asking[-1])[0], *_SEGMENT.findall(self._asked_prose)] if self._asking else []
        return frozenset(plain_name(piece) for piece in pieces if not _RELATION.search(piece) and len(piece) < 40)

    @cached_property
    def fixes_angles(self) -> bool:
        """Whether it speaks of degrees or of radians."""
        return re.search(r"degree|radian|°|\\circ|\bin terms of\b", self._text, re.IGNORECASE) is not None

    @cached_property
    def contract(self) -> Contract:
        """What it asks its answer to be."""
        prose = self._prose if self._question is self._text else _split(self._question)[1]
        return read_contract(self._question, prose, self._text)

    def option(self, letter: str) -> str | None:
        """Return the text of an option, None if there is no such option."""
        return self.options.get(letter.upper())


read_problem = lru_cache(maxsize=1024)(ProblemText)


_SHOT = re.compile(
    r"(?:^|\n)\W*(?:Q|Question|Problem|Exercise|Task|Input|User|Human)\b[ \t]*\d*\W*[:.]\s", re.IGNORECASE
)
_PRICE = re.compile(r"\s?[\d.][\d,.]*(?![\w\\^])")
_WORD = re.compile(r"(?<![\\{a-zA-Z])[a-z]{3,}")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+\b")
_SEGMENT = re.compile(r"\b[A-Z]{2}\b")


def _last_shot(text: str) -> str:
    """Return the last problem of a prompt with solved ones before it, and the whole text of any other."""
    starts = [match.start() for match in _SHOT.finditer(text)]
    return next((text[start:] for start in reversed(starts) if _ASKS.search(text[start:])), text) if starts else text


def _split(text: str) -> tuple[list[str], str]:
    """Return the formulas of a text, and its prose without them. What lies between two prices is no formula."""
    formulas: list[str] = []
    prose: list[str] = []
    start = position = 0
    while (match := _FORMULA.search(text, position)) is not None:
        inner = match[2]
        if inner is not None and _PRICE.match(inner) and (_WORD.search(inner) or text[match.end() :][:1].isdigit()):
            position = match.start() + 1
            continue
        prose.append(text[start : match.start()])
        formulas.append(next(part for part in match.groups() if part is not None))
        start = position = match.end()
    return formulas, " ".join([*prose, text[start:]])


def plain_name(name: str) -> str:
    r"""Return a name in one spelling: `BA` and `|AB|` are AB, `m\angle CBA` is `\angle ABC`."""
    bare = re.sub(r"[\s{}$|.,?]|\\(?:overline|text|mathrm|left|right)(?![a-z])", "", name)
    bare = re.sub(r"^m(?=\\angle)", "", bare)
    return re.sub(r"[A-Z]{2,}", lambda m: min(m.group(), m.group()[::-1]), bare)


@lru_cache(maxsize=4096)
def _parsed(piece: str) -> Term | None:
    """Return the term of a piece of the text, None where it is none."""
    return term_of(clean(piece)) if any(map(str.isalnum, piece)) else None


def _restated(text: str) -> frozenset[Term]:
    text = one_spelling(text)
    matches = [*_FORMULA.finditer(text), *_NUMERAL.finditer(text)]
    inner = [
        next((part for part in match.groups() if part is not None), match.group())
        for match in matches
        if _RESTATED.search(text[max(0, match.start() - 60) : match.start()].rstrip("$ "))
    ]
    terms = [_parsed(part) for piece in inner for part in (piece, *_SEPARATOR.split(piece))]
    return frozenset(canonical(term) for term in terms if term is not None and is_literal(term))


def is_name_in(gold: str, problem: ProblemText) -> bool:
    """Return whether a gold is one word of several letters that the problem uses as a word: a name, a day."""
    return re.fullmatch(r"[A-Za-z]{2,}", gold.strip()) is not None and gold.strip().lower() in problem.vocabulary


def _asked(formulas: list[str]) -> frozenset[Term]:
    """Return the formulas without a relation that stand on no side of one."""
    alone: set[Term] = set()
    given: set[Term] = set()
    for formula in formulas[:PROBLEM_EXPRESSIONS]:
        sides = _RELATION.split(formula)
        for term in map(_parsed, sides):
            if term is not None and not is_literal(term):
                (alone if len(sides) == 1 else given).add(canonical(term))
    return frozenset(alone - given)


def _asks_percent(text: str) -> bool:
    """Return whether a question or instruction speaks of a percentage without a number before it."""
    for sentence in _SENTENCE.split(text):
        for match in _PERCENT.finditer(sentence):
            if re.search(r"\bas an? $", sentence[: match.start()]):
                return True
            if _ASKS.search(sentence) and not _NUMBERED.search(sentence[: match.start()]):
                return _OTHER_FORM.search(text) is None
    return False


def _options(text: str) -> tuple[tuple[str, str], ...]:
    """Return the options of a multiple-choice problem: letters from A on, in order."""
    matches = list(_OPTION.finditer(text))
    starts = [i for i, match in enumerate(matches) if match["letter"] == "A"]
    for start in reversed(starts):
        run = [matches[start]]
        for match in matches[start + 1 :]:
            if ord(match["letter"]) == ord(run[-1]["letter"]) + 1:
                run.append(match)
        if len(run) >= 2:
            ends = [*(match.start() for match in run[1:]), len(text)]
            lines = [text[match.end() : end].strip().split("\n")[0] for match, end in zip(run, ends, strict=True)]
            bare = [_OPTION_END.sub("", line).strip().removeprefix("$").strip() for line in lines]
            return tuple(zip((match["letter"] for match in run), bare, strict=True))
    return ()
