"""What a problem asks its answer to be: a unit, an order, a rounding, a form. What it does not say asks for nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gtpo.rewards.equality.reading.units import NUMBER_WORDS, is_unit_word, read_unit

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


def read_contract(text: str, prose: str) -> Contract:
    """Return what a problem asks; `prose` is its text without formulas."""
    asking = " ".join(sentence for sentence in _SENTENCE.split(text) if _ASKS.search(sentence))
    plain = " ".join(sentence for sentence in _SENTENCE.split(prose) if _ASKS.search(sentence))
    forms = {form for form, pattern in _VERBS.items() if pattern.search(text)}
    if _SIMPLEST.search(text):
        forms.add("simplest")
    order = "increasing" if _UP.search(asking) else "decreasing" if _DOWN.search(asking) else ""
    several = _SEVERAL.search(asking)
    return Contract(
        frozenset(_units(plain)),
        order or ("as named" if _AS_NAMED.search(asking) else ""),
        _ROUNDED.search(text) is not None,
        _places(text),
        frozenset(forms),
        frozenset(_UNKNOWN.findall(asking)) - set("aI"),
        NUMBER_WORDS[several[1].lower()] if several else None,
    )


def _units(prose: str) -> set[str]:
    """Return the measures that are asked for: "how many square feet", "the speed in miles per hour"."""
    found = set()
    for phrase in (*_HOW_MANY.findall(prose), *_IN_UNIT.findall(prose), *_HOW_LONG.findall(prose)):
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
