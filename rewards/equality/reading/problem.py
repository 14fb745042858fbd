r"""What the text of a problem says about its answers.

Which expressions stand in it (an answer that repeats one has computed nothing), whether it asks for a percentage or a
simplified form, which words it uses (nouns that may be counted, names), and what its options are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gtpo.rewards.equality.arithmetic.terms import Term, canonical, is_literal, subterms, symbols
from gtpo.rewards.equality.reading.clean import clean, one_spelling
from gtpo.rewards.equality.reading.contract import Contract, read_contract
from gtpo.rewards.equality.reading.grammar import term_of
from gtpo.rewards.equality.reading.tokens import tokens_of
from gtpo.rewards.equality.reading.units import singular

MAX_CHARACTERS = 8_000
"""Of a problem's text that are looked at."""
MAX_EXPRESSIONS = 400
MAX_STATEMENTS = 40

_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_MATHEMATICS = re.compile(
    r"(?:\\[a-zA-Z]+|\\[^a-zA-Z\s]|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\d.,]*\d|[-+*/^_=<>()\[\]{}|!%]|\s)+"
)
_SEPARATOR = re.compile(r"=|<|>|\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|\\approx|\\to(?![a-z])|,|;|&|\\\\")
_RELATION = re.compile(r"=|<|>|\\(?:le|leq|ge|geq|ne|neq|approx|equiv|to|in)(?![a-z])")
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_ASKS = re.compile(
    r"\?|\b(?:find|express|compute|calculate|determine|give|write|what|how|which|state|convert|evaluate|estimate)\b",
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


@dataclass(frozen=True)
class ProblemText:
    """What a problem's text says, looked up again and again for its answers."""

    tokens: tuple[str, ...]
    """Of the whole text in one spelling: where an answer's tokens are sought in a row."""
    literals: frozenset[Term]
    """Canonical terms of the numbers and names that are to be written in another form: `0.5` in
    "write 0.5 as a fraction"."""
    expressions: frozenset[Term]
    """Canonical terms of the expressions and of their composite parts."""
    statements: tuple[tuple[Term, Term], ...]
    """(side, side) of its equations whose left side is no number."""
    stated: tuple[tuple[str, Term], ...]
    """(left side as written without space, value) of those whose right side is one number."""
    asked: frozenset[Term]
    """Canonical terms of those that no relation of the problem gives a value, `m + n` of "find m + n"."""
    vocabulary: frozenset[str]
    """Words outside formulas, in the singular and as they stand, in lower case."""
    asking: frozenset[str]
    """Words of its questions and instructions, in lower case."""
    counted: frozenset[str]
    """What "how many" asks for, in the singular."""
    options: tuple[tuple[str, str], ...]
    """(letter, text) of a choice, where there are two or more."""
    order: tuple[str, ...]
    """Letters of the tuple it asks for, `x, y` of "find (x, y)"; empty where it names none."""
    asks_percent: bool
    contract: Contract

    def option(self, letter: str) -> str | None:
        """Return the text of an option, None if there is no such option."""
        return dict(self.options).get(letter.upper())


@lru_cache(maxsize=1024)
def read_problem(text: str) -> ProblemText:
    """Return what a problem says. What is not understood in it says nothing."""
    text = text[:MAX_CHARACTERS]
    formulas = [next(part for part in match.groups() if part is not None) for match in _FORMULA.finditer(text)]
    prose = _FORMULA.sub(" ", text)
    runs = [match.group() for match in _MATHEMATICS.finditer(one_spelling(prose))]
    plain = text.replace(",", "")
    spoken = [form.format(*filter(None, m.groups())) for pattern, form in _SPOKEN for m in pattern.finditer(plain)]
    pieces = [piece for part in [*formulas, *runs, *spoken] for piece in [part, *_SEPARATOR.split(part)]]
    terms = [term for piece in list(dict.fromkeys(pieces))[:MAX_EXPRESSIONS] if (term := _parsed(piece)) is not None]
    found = re.findall(r"[a-z]+(?:'[a-z]+)?", prose.lower())
    order = _ORDER.findall(one_spelling(text))
    return ProblemText(
        tokens_of(one_spelling(text)),
        _restated(text),
        frozenset(canonical(part) for term in terms for part in subterms(term) if not is_literal(part)),
        *_statements(formulas),
        _asked([*formulas, *runs]),
        frozenset(found) | frozenset(map(singular, found)),
        frozenset(re.findall(r"[a-z]+", " ".join(filter(_ASKS.search, _SENTENCE.split(prose))).lower())),
        frozenset(singular(word) for phrase in _HOW_MANY.findall(prose) for word in phrase.lower().split()),
        _options(text),
        tuple(re.findall(r"[a-zA-Z]", order[-1])) if order else (),
        _asks_percent(text),
        read_contract(text, prose),
    )


@lru_cache(maxsize=4096)
def _parsed(piece: str) -> Term | None:
    """Return the term of a piece of the text, None where it is none."""
    return term_of(clean(piece)) if any(map(str.isalnum, piece)) else None


def _statements(formulas: list[str]) -> tuple[tuple[tuple[Term, Term], ...], tuple[tuple[str, Term], ...]]:
    found: list[tuple[Term, Term]] = []
    stated: list[tuple[str, Term]] = []
    for formula in formulas[:MAX_STATEMENTS]:
        for part in re.split(r",|;|\\\\|\\q?quad", formula) if formula.count("=") > 1 else [formula]:
            sides = part.split("=")
            if len(sides) != 2:
                continue
            left, right = map(_parsed, sides)
            if left is not None and right is not None and left[0] != "num":
                found.append((left, right))
                if not symbols(right):
                    stated.append((re.sub(r"[\s{}]|\\text", "", clean(sides[0])), right))
    return tuple(found), tuple(stated)


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
    for formula in formulas[:MAX_EXPRESSIONS]:
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
