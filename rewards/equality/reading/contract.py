"""What a problem asks its answer to be: a unit, an order, a rounding, a form. What it does not say asks for nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gtpo.rewards.equality.reading.units import NUMBER_WORDS, is_noun, is_unit_word, read_unit
from gtpo.rewards.text import words

_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n\n+")
_ASKS = re.compile(
    r"\?|\b(?:find|express|compute|calculate|determine|give|write|what|how|which|state|convert|evaluate|estimate|enter|"
    r"list|arrange|order|sort|name|answer|round|solve)\b",
    re.IGNORECASE,
)
_HOW_MANY = re.compile(r"\bhow (?:many|much)((?:\s+[a-zA-Z]+){1,6})", re.IGNORECASE)
_IN_UNIT = re.compile(
    r"(?:,|\b(?:is|answer|it|speed|length|area|volume|time|distance|weight|mass|angle|height|width|depth|radius|diameter"
    r"|perimeter|circumference|temperature|cost|price|value|amount|total|bill|charge|fee|profit|wage|salary|income))"
    r"\s+in\s+((?:[a-zA-Z]+\s*){1,4})",
    re.IGNORECASE,
)
_HOW_LONG = re.compile(
    r"\bhow (?:long|far|fast|old|tall|deep|wide|heavy|high|large)\b[^.?]*?\bin (?!an?\b|one\b|each\b|the\b|half\b)"
    r"((?:[a-zA-Z]+\s*){1,4})(?=[.?,;]|$)",
    re.IGNORECASE,
)
_CONVERTED = re.compile(
    r"\b(?:convert|change|express|write|rewrite|give|equivalent|equal)\b[^.?]*?\b(?:to|into|in)\s+((?:[a-zA-Z]+\s*){1,4})",
    re.I,
)
_SCALE = re.compile(r"(?:°|\^\s*\{?\s*\\circ\s*\}?|\bdegrees?)\s*\$?\s*(?:\\(?:text|mathrm)\{\s*)?([CF])\b\}?")
_CURRENCIES = [
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in [
        (r"(?<![\\$])\\?\$\s?\.?\d|\bdollars?\b|\busd\b|\bbucks?\b", "dollar"),
        (r"¢|\bcents?\b|\bpenn(?:y|ies)\b", "cent"),
        (r"€|\beuros?\b", "euro"), (r"£|\bpounds?\b|\bsterling\b|\bquid\b", "sterling"), (r"¥|\byen\b", "yen"),
        (r"₹|\brupees?\b|\brs\.?\s?\d", "rupee"),
    ]
]  # fmt: skip
_POINT = re.compile(
    r"ordered (?:pair|triple|tuple)|\bpoints?\b|coordinates?\b|\bvert(?:ex|ices)\b|midpoint|\bfoc(?:us|i)\b|"
    r"\bcent(?:er|re)\b|\bvectors?\b|\bpairs?\b|\(\s*[a-zA-Z]\s*,\s*[a-zA-Z]",
    re.IGNORECASE,
)
_INTERVAL = re.compile(
    r"\binterval|\brange\b|\bdomain\b|inequalit|\bset of\b|\bvalues of\b|[<>]|\\[lg]eq?(?![a-z])", re.IGNORECASE
)
_COUNTS = re.compile(
    r"\bhow many((?:[\s,-]+(?!(?:do(?:es)?|did|is|are|was|were|can|could|will|would|ha[sd]|have|must|should)\b)[a-z]+)"
    r"{1,6})",
    re.IGNORECASE,
)
_NO_NOUN = words("does is was has this less plus across his its as pass times")
_MODULUS = re.compile(r"(?:\bmod(?:ulo)?|\\[pb]?mod)\s*\{?\$?\s*(\d+)")
_UP = re.compile(
    r"\b(?:increasing|ascending|numerical) order|\b(?:least|smallest|lowest) to (?:the )?(?:great|larg|high)", re.I
)
_DOWN = re.compile(
    r"\b(?:decreasing|descending) order|\b(?:greatest|largest|highest) to (?:the )?(?:least|small|low)", re.I
)
_AS_NAMED = re.compile(
    r"\brespectively\b|\bin (?:that|this|the same) order\b|\balphabetical order\b"
    r"|\bordered (?:pair|triple|triplet|quadruple|tuple)\b(?!s)|\bin the order\b",
    re.IGNORECASE,
)
_NEAREST = re.compile(
    r"\bnearest\s+(whole|integer|unit|one|tenth|hundredth|thousandth|ten[- ]thousandth|cent|penny|dollar|degree)", re.I
)
_PLACES_OF = {"tenth": 1, "hundredth": 2, "cent": 2, "penny": 2, "thousandth": 3}
_DECIMAL_PLACES = re.compile(
    r"\b(\d|one|two|three|four|five|six) (?:decimal )?(?:places?|digits after the decimal)\b", re.I
)
_ROUNDED = re.compile(r"\b(?:round|nearest|approximat|estimat|decimal places?|significant|about how)", re.IGNORECASE)
_START = r"(?:^|[.;:,!?]\s*|\b(?:and|then|fully|completely|please|to)\s+)"
_VERBS = {
    "factored": re.compile(
        _START + r"factor(?:ise|ize)?\s+(?!of|by|in|is|that)|\bfactored (?:form|completely)", re.I | re.M
    ),
    "expanded": re.compile(_START + r"(?:expand|multiply out)\b|\bexpanded form", re.I | re.M),
    "a decimal": re.compile(r"\bas an? (?:\w+ )?decimal\b|\bin decimal form", re.I),
    "as stated": re.compile(
        r"\b(?:express|write|rewrite|written|expressed|give|put|answer)\b[^.?]{0,80}\bin the form\b", re.I
    ),
    "one fraction": re.compile(r"\bcommon denominator\b|\bas a single fraction\b", re.I),
}
_SIMPLEST = re.compile(
    r"simplif|simplest|lowest terms|reduced|irreducible|common fraction|rationali[sz]e|radical form", re.IGNORECASE
)
_UNKNOWN = re.compile(
    r"\b(?:solve for|find|what is|values? (?:of|for)|solutions? for|compute|determine)"
    r"(?:\s+[a-z]+){0,4}?\s+\$?([a-zA-Z])\$?"
    r"(?=[\s.,?:;!]|$)(?!\s*[-+*/^=<>(|_\\])",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"\b(?:find|list|give|what are|enter)\s+(?:the|all|both)\s+(two|three|four|five|six)\b", re.I)


@dataclass(frozen=True)
class Contract:
    """What a problem asks its answer to be."""

    units: frozenset[str] = frozenset()
    """Measures that may be asked for; empty where none is."""
    order: str = ""
    """`increasing`, `decreasing`, `as named`, or nothing."""
    rounded: bool = False
    """It speaks of rounding or estimating."""
    places: int | None = None
    """Digits after the point of a rounded answer."""
    forms: frozenset[str] = frozenset()
    """`simplest`, `factored`, `expanded`, `a decimal`, `one fraction`, `as stated` ("in the form ...")."""
    unknowns: frozenset[str] = frozenset()
    """Letters whose value it asks for."""
    count: int | None = None
    """How many answers, where it says a number."""
    currencies: frozenset[str] = frozenset()
    """Those that it speaks of."""
    counts: bool = False
    """It asks how many there are of something that is no measure."""
    point: bool = False
    """It asks for a point, or another tuple, and not for an interval."""
    moduli: frozenset[str] = frozenset()
    """Of the congruences that it speaks of."""

    def __str__(self) -> str:
        """Say it in words; empty where the problem asks for nothing in particular."""
        said = [
            ("unit: " + " or ".join(sorted(self.units))) if self.units else "",
            f"order: {self.order}" if self.order else "",
            "rounded" + (f" to {self.places} decimals" if self.places is not None else "") if self.rounded else "",
            ("form: " + ", ".join(sorted(self.forms))) if self.forms else "",
            ("unknown: " + ", ".join(sorted(self.unknowns))) if self.unknowns else "",
            f"answers: {self.count}" if self.count else "",
        ]
        return "; ".join(part for part in said if part)


def read_contract(text: str, prose: str, whole: str = "") -> Contract:
    """Return what a problem asks; `prose` is its text without formulas, `whole` what stands before it too."""
    whole = whole or text
    sentences = [sentence for sentence in _SENTENCE.split(text) if _ASKS.search(sentence)]
    asking = " ".join(sentences)
    forms = {form for form, pattern in _VERBS.items() if pattern.search(text)}
    if _SIMPLEST.search(text):
        forms.add("simplest")
    order = "increasing" if _UP.search(asking) else "decreasing" if _DOWN.search(asking) else ""
    several = _SEVERAL.search(asking)
    units, counts = _asked_for([sentence for sentence in _SENTENCE.split(prose) if _ASKS.search(sentence)])
    return Contract(
        frozenset(units),
        order or ("as named" if _AS_NAMED.search(asking) else ""),
        _ROUNDED.search(text) is not None,
        _places(text),
        frozenset(forms),
        frozenset(_UNKNOWN.findall(asking)) - set("aI"),
        NUMBER_WORDS[several[1].lower()] if several else None,
        frozenset(name for pattern, name in _CURRENCIES if pattern.search(whole)),
        counts,
        _POINT.search(asking) is not None and not _INTERVAL.search(asking),
        frozenset(_MODULUS.findall(whole)),
    )


def _asked_for(sentences: Sequence[str]) -> tuple[set[str], bool]:
    """Return the measures that the last question which names any asks for, and whether it counts things instead."""
    for sentence in reversed(sentences):
        units = _units(_SCALE.sub(lambda m: f" {m[1]}elsius " if m[1] == "C" else " fahrenheit ", sentence))
        spoken = [word for phrase in _COUNTS.findall(sentence) for word in re.findall(r"[a-z]+", phrase.lower())]
        things = [w for w in spoken if is_noun(w) or (w.endswith("s") and len(w) > 3 and w not in _NO_NOUN)]
        if units or things:
            return units, not units and bool(things)
    return ({"year"} if any("how old" in sentence.lower() for sentence in sentences[-1:]) else set()), False


def _units(prose: str) -> set[str]:
    """Return the measures that are asked for: "how many square feet", "the speed in miles per hour"."""
    found = set()
    for pattern in (_HOW_MANY, _IN_UNIT, _HOW_LONG, _CONVERTED):
        for phrase in pattern.findall(prose):
            spoken = phrase.lower().split()
            for size in range(len(spoken), 0, -1):
                unit = read_unit(" ".join(spoken[:size])) if is_unit_word(spoken[size - 1]) else None
                if unit is not None and unit.name and "*" not in unit.name and not unit.nouns:
                    found.add(unit.name)
                    break
    return found


def _places(text: str) -> int | None:
    nearest = _NEAREST.search(text)
    if nearest:
        return _PLACES_OF.get(nearest[1].lower(), 4 if nearest[1].lower().startswith("ten") else 0)
    places = _DECIMAL_PLACES.search(text)
    if places:
        return int(places[1]) if places[1].isdigit() else NUMBER_WORDS[places[1].lower()]
    return None
