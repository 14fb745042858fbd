"""What the text of a problem says about its answers.

Which expressions stand in it (an answer that repeats one has computed nothing), which words it uses (nouns that may be
counted, names), what its options are, and what it asks its answer to be: a unit, an order, a rounding, a form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gtpo.rewards.completions import words
from gtpo.rewards.equality.arithmetic import Term, TooBig, canonical, is_literal, subterms
from gtpo.rewards.equality.reading import SAYS, TABLES, WORDS, patterns
from gtpo.rewards.equality.reading.clean import clean, one_spelling
from gtpo.rewards.equality.reading.grammar import NotMathematics, parse, tokens_of
from gtpo.rewards.equality.reading.units import (
    is_noun,
    is_unit_word,
    is_verb,
    read_symbols,
    read_unit,
    singular,
    spell_symbols,
)
from gtpo.rewards.limits import PROBLEM_CHARACTERS, PROBLEM_EXPRESSIONS

# -- what it asks its answer to be; what it does not say asks for nothing ---------------------------------------------
_CURRENCIES, _FORMS, _ORDERS, _TOPICS = (patterns(name) for name in ("currencies", "forms", "orders", "topics"))
_NO_NOUN = words("does is was has this less plus across his its as pass times")
_PERIODS = words("hour day week month year")
_DIRECTIONS = words("north south east west")
_PLACES_OF = {"tenth": 1, "hundredth": 2, "cent": 2, "penny": 2, "thousandth": 3}
_OPENING = WORDS.leads | WORDS.articles | WORDS.answer


@dataclass(frozen=True)
class Contract:
    """What a problem asks its answer to be."""

    units: frozenset[str] = frozenset()  # Measures that may be asked for; empty if none is
    measure: str = ""  # The compound one that it names: `meter/second^2`
    order: str = ""  # `increasing`, `decreasing`, `as named`, or nothing
    rounded: bool = False  # It speaks of rounding or estimating
    places: int | None = None  # Digits after the point of a rounded answer
    # `simplest`, `factored`, `expanded`, `a decimal`, `one fraction`, `as stated` ("in the form ...").
    forms: frozenset[str] = frozenset()
    unknowns: frozenset[str] = frozenset()  # Letters whose value it asks for
    count: int | None = None  # How many answers, if it says a number
    currencies: frozenset[str] = frozenset()  # Those that it speaks of
    counts: bool = False  # It asks how many there are of something that is no measure
    point: bool = False  # It asks for a point, or another tuple, and not for an interval
    interval: bool = False  # It speaks of an interval or an inequality, and of no point
    moduli: frozenset[str] = frozenset()  # Of the congruences that it speaks of

    def __str__(self) -> str:
        """Say it in words; empty if the problem asks for nothing in particular."""
        said = [
            ("unit: " + " or ".join(sorted(self.units))) if self.units else "",
            f"order: {self.order}" if self.order else "",
            "rounded" + (f" to {self.places} decimals" if self.places is not None else "") if self.rounded else "",
            ("form: " + ", ".join(sorted(self.forms))) if self.forms else "",
            ("unknown: " + ", ".join(sorted(self.unknowns))) if self.unknowns else "",
            f"answers: {self.count}" if self.count else "",
        ]
        return "; ".join(part for part in said if part)


def _named(table: Sequence[tuple[re.Pattern[str], str]], text: str) -> frozenset[str]:
    """Return the names of the patterns that a text has."""
    return frozenset(name for pattern, name in table if pattern.search(text))


def _asked_for(sentences: Sequence[str], currencies: Collection[str]) -> tuple[set[str], bool]:
    """Return the measures that the last question which names any asks for, and whether it counts things instead."""
    # From the end: the question comes last, and what stands before it may ask for other things.
    for sentence in reversed(sentences):
        units = _units(SAYS.scale.sub(lambda m: f" {m[1]}elsius " if m[1] == "C" else " fahrenheit ", sentence))
        spoken = [word for phrase in SAYS.counts.findall(sentence) for word in re.findall(r"[a-z]+", phrase.lower())]
        things = list(filter(_is_thing, spoken))
        if not units and currencies and SAYS.how_much_money.search(sentence):
            # `$5 a week` has the unit week: its sign may be that of a formula.
            return {*currencies, *_PERIODS.intersection(map(singular, re.findall("[a-z]+", sentence)))}, False
        if units or things:
            return units, not units and bool(things)
    return ({"year"} if any("how old" in sentence.lower() for sentence in sentences[-1:]) else set()), False


def _is_thing(word: str) -> bool:
    return is_noun(word) or (word.endswith("s") and len(word) > 3 and word not in _NO_NOUN)


def _compound(sentence: str, alone: bool) -> str:
    r"""Return the compound measure that a sentence asks for in symbols: `m/s^2` of "in m/s²" or "in $\text{m/s}^2$".

    Empty if it asks for none, or first for a simple one. alone: `m^3` is one too, and no power of a variable.
    """
    spelled = one_spelling(sentence).replace(r"\,", " ")
    for phrase in (each.replace("$", " ").split() for each in SAYS.in_symbols.findall(spelled)):
        symbols = (" ".join(phrase[:size]).rstrip(")") for size in range(len(phrase), 0, -1))
        quotients = [SAYS.unit_quotient.sub(r"\1/\2", each) for each in symbols]
        names = (read_symbols(each, alone=alone) for each in quotients if "/" in each or "^" in each)
        if name := next(filter(None, names), ""):
            return name
        # `m` set as text is no variable.
        if phrase and (text := SAYS.set_unit.fullmatch(quotients[-1])) and (unit := read_unit(text[1])) is not None:
            return unit.name
        if phrase and is_unit_word(phrase[0]):
            break
    return ""


def _units(prose: str) -> set[str]:
    """Return the measures that are asked for: "how many square feet", "the speed in miles per hour"."""
    found = set()
    for pattern in (SAYS.how_much, SAYS.in_unit, SAYS.converted):
        for phrase in pattern.findall(prose):
            spoken = phrase.split()
            for size in range(len(spoken), 0, -1):
                last = spoken[size - 1]
                ends = last not in WORDS.joining and (is_unit_word(last) or last in ("squared", "cubed"))
                unit = read_unit(" ".join(spoken[:size])) if ends else None
                name = unit.name if unit is not None and not unit.nouns else ""
                above, _, under = name.partition("/")
                # A product is one above "per" only: not of "in hours minutes", or "in miles per gallon has it".
                if not name or "*" in (under or above) or name in _DIRECTIONS:  # in South Africa
                    continue
                # "how many miles does it go per gallon"
                per = SAYS.per.search(prose) if not under else None
                below = read_unit(per[1]) if per and is_unit_word(per[1]) else None
                asked = below.name if below is not None and below.name != name else ""
                found |= {name, f"{name}/{asked}"} if asked else {name}
                if pattern is SAYS.how_much:  # "how many hours a week" are hours
                    found.add(above)
                break
    return found


def _places(text: str) -> int | None:
    nearest = SAYS.nearest.search(text)
    if nearest:
        return _PLACES_OF.get(nearest[1].lower(), 4 if nearest[1].lower().startswith("ten") else 0)
    places = SAYS.decimal_places.search(text)
    if places:
        return int(places[1]) if places[1].isdigit() else TABLES["numbers"][places[1].lower()]
    return None


# -- what stands in it ------------------------------------------------------------------------------------------------
_N = r"\$?(\d[\d,]*(?:\.\d+)?|\d+/\d+)\$?"
_SPOKEN = [
    (re.compile(pattern.replace("N", _N), re.IGNORECASE), expression)
    for pattern, expression in TABLES["operations"].items()
]


class ProblemText:
    """What a problem's text says, looked up again and again for its answers; what is not understood says nothing.

    No text is a problem that is not known: it asks for nothing, and nothing can be copied from it.
    """

    def __init__(self, text: str) -> None:
        self.is_known = bool(text)
        text, self.symbols = spell_symbols(text[-PROBLEM_CHARACTERS:])
        self._text = SAYS.power_word.sub(r"\1 ", text)  # "sq. ft."
        # The last problem of a prompt with solved ones before it, and the whole text of any other.
        shots = (self._text[match.start() :] for match in reversed(list(SAYS.shot.finditer(self._text))))
        self._question = next(filter(SAYS.asks.search, shots), self._text)
        self._formulas, self._prose = _split(self._text)
        self._asking = [sentence for sentence in SAYS.sentence.split(self._question) if SAYS.asks.search(sentence)]
        self._asked_prose = _split(" ".join(self._asking))[1]
        # Words of its questions and instructions, in lower case; and in the singular too.
        self.asking = frozenset(re.findall(r"[a-z]+", self._asked_prose.lower()))
        self.asked_nouns = self.asking.union(map(singular, self.asking))
        # What "how many" asks for, in the singular.
        phrases = SAYS.how_much.findall(self._asked_prose)
        self.counted = frozenset(singular(word) for phrase in phrases for word in phrase.lower().split()[:3])

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Words outside formulas, in the singular and as they stand, in lower case."""
        spoken = re.findall(r"[a-z]+(?:'[a-z]+)?", self._prose.lower())
        return frozenset((*spoken, *map(singular, spoken)))

    @cached_property
    def counted_run(self) -> re.Pattern[str] | None:
        """What its last "how many" asks for, behind the number that ends an answer: its words change nothing."""
        phrases = SAYS.counts.findall(self._asked_prose.lower().rpartition("how much")[2])
        spoken = re.findall(r"[a-z]+(?:-[a-z]+)*", phrases[-1]) if phrases else []
        ends = [end for end, word in enumerate(spoken, 1) if word == "times" or _is_thing(word)]
        starts = [at for at in range(len(spoken)) if (WORDS.amounts | WORDS.fillers).issuperset(spoken[:at])]
        runs = [re.split("-", "-".join(spoken[start:end])) for end in ends for start in starts if start < end]
        found = "|".join("[\\s,-]+".join(run) for run in sorted(runs, key=len, reverse=True))
        return re.compile(TABLES["phrases"]["counted_end"].replace("RUN", found)) if found else None

    @cached_property
    def names(self) -> frozenset[str]:
        """Words with a capital letter within its sentences: of persons, mostly."""
        return frozenset(SAYS.name.findall(self._prose))

    @cached_property
    def others(self) -> frozenset[str]:
        """Names of persons whom it speaks of and does not ask for, if it asks for some, in lower case."""
        wanted = set(re.findall(r"\b[A-Z][a-z]+\b", self._asked_prose))
        return frozenset(map(str.lower, self.names - wanted if self.names & wanted else ()))

    @cached_property
    def speaking(self) -> frozenset[str]:
        """Words that a statement of its answer may use: those of its questions, and names that it asks for."""
        named = {word.lower() for word in re.findall(r"\b[A-Z][a-z]+\b", self._prose)}
        return self.asking | named - self.others

    @cached_property
    def topics(self) -> frozenset[str]:
        """What it speaks of, by the table of topics: `angles`, `matrices`, `monotony`."""
        return _named(_TOPICS, self._text)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Of the whole text in one spelling: where an answer's tokens are sought in a row."""
        return tokens_of(one_spelling(self._text))

    @cached_property
    def literals(self) -> frozenset[Term]:
        """Canonical terms of numbers and names to be written in another form: `0.5` in "write 0.5 as a fraction"."""
        text = one_spelling(self._text)
        inner = [
            next((part for part in match.groups() if part is not None), match.group())
            for match in [*SAYS.formula.finditer(text), *SAYS.numeral.finditer(text)]
            if SAYS.restated.search(text[max(0, match.start() - 60) : match.start()].rstrip("$ "))
        ]
        terms = [_parsed(part) for piece in inner for part in (piece, *SAYS.separator.split(piece))]
        return frozenset(canonical(term) for term in terms if term is not None and is_literal(term))

    @cached_property
    def expressions(self) -> frozenset[Term]:
        """Canonical terms of the expressions and of their composite parts."""
        # `1,200 divided by 3` states 1200/3.
        plain = self._text.replace(",", "")
        spoken = [form.format(*filter(None, m.groups())) for pattern, form in _SPOKEN for m in pattern.finditer(plain)]
        runs = [match.group() for match in SAYS.mathematics.finditer(one_spelling(self._prose))]
        whole = [*self._formulas, *runs, *spoken]
        pieces = list(dict.fromkeys(piece for part in whole for piece in [part, *SAYS.separator.split(part)]))
        terms = [term for piece in pieces[:PROBLEM_EXPRESSIONS] if (term := _parsed(piece)) is not None]
        return frozenset(canonical(part) for term in terms for part in subterms(term) if not is_literal(part))

    @cached_property
    def asked(self) -> frozenset[Term]:
        """Canonical terms of the expressions in its question, `m + n` of "find m + n"."""
        terms = map(_parsed, _split(self._asking[-1])[0] if self._asking else ())
        return frozenset(canonical(term) for term in terms if term is not None and not is_literal(term))

    @cached_property
    def options(self) -> dict[str, str]:
        """Letter -> text of a choice, if there are two or more: letters from A on, in order."""
        text = self._question
        runs: list[list[re.Match[str]]] = []
        for match in SAYS.option.finditer(text):
            runs += [[]] if match["letter"] == "A" else []
            for run in runs:
                if match["letter"] == chr(ord("A") + len(run)):
                    run.append(match)
        # From the last A on: a prompt with solved examples has other options before.
        run = next((run for run in reversed(runs) if len(run) >= 2), [])
        ends = [*(match.start() for match in run[1:]), len(text)]
        lines = {m["letter"]: text[m.end() : end].strip().split("\n")[0] for m, end in zip(run, ends, strict=False)}
        return {name: SAYS.option_end.sub("", line).strip().removeprefix("$").strip() for name, line in lines.items()}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Letters of the tuple it asks for, `x, y` of "find (x, y)"; empty if it names none."""
        order = SAYS.order.findall(one_spelling(self._text))
        return tuple(re.findall(r"[a-zA-Z]", order[-1])) if order else ()

    @cached_property
    def asks_percent(self) -> bool:
        """Whether a question or instruction speaks of a percentage without a number before it."""
        for sentence in SAYS.sentence.split(self._question):
            for before in (sentence[: match.start()] for match in SAYS.percent.finditer(sentence)):
                if re.search(r"\bas an? $", before):
                    return True
                if SAYS.asks.search(sentence) and not SAYS.numbered.search(before):
                    return SAYS.other_form.search(self._question) is None
        return False

    @cached_property
    def asked_names(self) -> frozenset[str]:
        """Names of quantities in its question: `AC`, `f^{-1}(x)`."""
        pieces = [*_split(self._asking[-1])[0], *SAYS.segment.findall(self._asked_prose)] if self._asking else []
        return frozenset(plain_name(piece) for piece in pieces if not SAYS.relates.search(piece) and len(piece) < 40)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names in its question of which an answer may be made: by a number the letter N is then no newton."""
        if SAYS.in_terms.search(self._text):
            return self.asked_names
        # `$m$` of "find $m$" has a value, which may have the unit m.
        return frozenset() if self.contract.units else self.asked_names - self.contract.unknowns

    @cached_property
    def contract(self) -> Contract:
        """What it asks its answer to be."""
        prose = self._prose if self._question is self._text else _split(self._question)[1]
        asking = " ".join(self._asking)
        several = SAYS.several.search(asking)
        currencies = _named(_CURRENCIES, self._text)
        questions = [sentence for sentence in SAYS.sentence.split(prose) if SAYS.asks.search(sentence)]
        units, counts = _asked_for(questions, currencies)
        # The last sentence that asks for any measure decides, as in `_asked_for`.
        alone = SAYS.sized.search(asking) is not None
        asked = ((_compound(sentence, alone), _units(_split(sentence)[1])) for sentence in reversed(self._asking))
        measure = next((compound for compound, plain in asked if compound or plain), "")
        return Contract(
            units=frozenset((measure,) if measure else units),
            measure=measure,
            order=next((order for pattern, order in _ORDERS if pattern.search(asking)), ""),
            rounded=SAYS.rounding.search(self._question) is not None,
            places=_places(self._question),
            forms=_named(_FORMS, self._question),
            # `find a number` does not ask for the value of a.
            unknowns=frozenset(SAYS.unknown.findall(asking)) - set("aI"),
            count=TABLES["numbers"][several[1].lower()] if several else None,
            currencies=currencies,
            counts=counts,
            interval=SAYS.bounded.search(asking) is not None and SAYS.points.search(asking) is None,
            point=SAYS.points.search(asking) is not None and not SAYS.intervals.search(asking),
            moduli=frozenset(SAYS.modulus.findall(self._text)),
        )


read_problem = lru_cache(maxsize=1024)(ProblemText)


def _split(text: str) -> tuple[list[str], str]:
    """Return the formulas of a text, and its prose without them. What lies between two prices is no formula."""
    formulas: list[str] = []
    prose: list[str] = []
    start = position = 0
    while (match := SAYS.formula.search(text, position)) is not None:
        inner = match[2]
        digit = text[match.end() :][:1].isdigit()
        if inner is not None and SAYS.price.match(inner) and (digit or SAYS.word.search(inner)):
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
    if "arrow" in bare or "vec" in bare:
        return bare  # the vector BA is not the vector AB
    return re.sub(r"[A-Z]{2,}", lambda m: min(m.group(), m.group()[::-1]), bare)


@lru_cache(maxsize=4096)
def _parsed(piece: str) -> Term | None:
    with suppress(NotMathematics, TooBig):
        return parse(clean(piece)) if any(map(str.isalnum, piece)) else None
    return None


def name_in(gold: str, problem: ProblemText, trusted: bool = False) -> str | None:
    """Return the word of the problem (a name, a day) that a gold is, or the only name in its sentence on who it is."""
    if re.fullmatch(r"[A-Za-z]{2,}", gold.strip()):
        return gold.strip() if gold.strip().lower() in problem.vocabulary else None
    if "who" not in problem.asking or re.fullmatch(r"[A-Za-z ',.]+", gold) is None:
        return None
    spoken = re.findall(r"[A-Za-z']+", gold)
    lowered = {word.lower() for word in spoken}
    capitals = {word for word in spoken if word[0].isupper() and word.lower() not in _OPENING}
    named = capitals & problem.names
    # Another's name, `or`, or a verb that is not the question's (`Jorge lost`) tell of somebody else.
    beside = lowered - WORDS.copulas - {name.lower() for name in named}
    verbs = any(map(is_verb, beside - problem.asking))
    strange = beside - problem.vocabulary - _OPENING - WORDS.stating
    unsaid = trusted or all(word.endswith("er") for word in strange)
    denied = not (WORDS.negations | WORDS.denials).isdisjoint(lowered)
    return named.pop() if unsaid and len(named) == 1 == len(capitals) and not verbs and not denied else None
