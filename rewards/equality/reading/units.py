"""Units: what may follow a number without changing whether it is the right one, and what may not.

A unit that only one side names is left out of the comparison. Two units of the table that differ make two answers
differ (5 cm is not 5 m); words outside the table (apples, dollars per week) do not.
"""

from __future__ import annotations

import re

from rewards.text import words

_TABLE = {
    "meter": "m metre meter", "centimeter": "cm centimetre centimeter", "millimeter": "mm millimetre millimeter",
    "kilometer": "km kilometre kilometer", "inch": "in inch inches", "foot": "ft foot feet", "yard": "yd yard",
    "mile": "mi mile", "gram": "g gm gram", "kilogram": "kg kilo kilogram", "milligram": "mg milligram",
    "pound": "lb lbs pound", "ounce": "oz ounce", "ton": "ton tonne", "second": "s sec second",
    "minute": "min minute", "hour": "h hr hour", "day": "day", "week": "week", "month": "month", "year": "yr year",
    "liter": "l liter litre", "milliliter": "ml milliliter millilitre", "gallon": "gal gallon", "quart": "qt quart",
    "pint": "pt pint", "cup": "cup", "dollar": "dollar usd buck", "cent": "cent",
    "euro": "euro eur", "degree": "degree deg",
    "radian": "radian rad", "mph": "mph", "kmh": "kph kmh km/h kmph", "am": "am", "pm": "pm", "north": "north",
    "south": "south", "east": "east", "west": "west", "celsius": "celsius", "fahrenheit": "fahrenheit",
    "acre": "acre", "hectare": "hectare", "dozen": "dozen", "newton": "newton", "joule": "joule", "watt": "watt",
}  # fmt: skip
_CANONICAL = {spelling: name for name, spellings in _TABLE.items() for spelling in spellings.split()}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_CHANGES_MEANING = words(
    "not no or and less more than over under below above plus minus times factorial squared mod remainder to "
    "if when for where choose percent infinity undefined false true yes"
)

_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
NUMBER_WORDS = {word: value for value, word in enumerate(_NUMBERS.split())}


def _singular(word: str) -> str:
    if word in _CANONICAL:
        return _CANONICAL[word]
    for ending in ("es", "s"):
        if word.endswith(ending) and word[: -len(ending)] in _CANONICAL and len(word) > len(ending) + 1:
            return _CANONICAL[word[: -len(ending)]]
    return ""


def is_unit_word(word: str) -> bool:
    """Say whether a word typed next to a number is a unit of the table."""
    return bool(_singular(word.lower().rstrip("."))) and len(word) > 1


def canonical_unit(text: str) -> str | None:
    """Return the canonical name of a unit (`sq cm`, `cm^2` -> `centimeter^2`), "" if it is not in the table.

    None if the words are no unit at all but change the meaning of the number before them (`5 or more`).
    """
    found = re.findall(r"[a-zA-Z]+(?:/[a-zA-Z]+)?|\\^|\d+|\S", text.lower().replace("p.m", "pm").replace("a.m", "am"))
    power, names = 1, []
    for index, word in enumerate(found):
        if word in _POWERS and (index == 0 or word.endswith("ed")):
            power = _POWERS[word]
        elif word.isdigit() and index and found[index - 1] == "^":
            power = int(word)
        elif word in _CHANGES_MEANING or word in SCALES or word in NUMBER_WORDS or word.isdigit():
            return None
        elif word[0].isalpha():
            names.append(word)
    if len(names) != 1:
        parts = [_singular(name) for name in names if name not in ("of", "the", "per", "an", "a", "each")]
        if "per" in names and len(parts) == 2 and all(parts):
            return f"{parts[0]}/{parts[1]}"
        return ""
    name = _singular(names[0])
    return (name if power == 1 else f"{name}^{power}") if name else ""
