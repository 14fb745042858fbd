r"""Read a quantity: one expression with what may stand around it, a unit, a percent sign, a base, a mixed number."""

from __future__ import annotations

import re
from fractions import Fraction

from gtpo.rewards.equality.arithmetic.terms import Term
from gtpo.rewards.equality.reading.answers import Based, Scalar, Words
from gtpo.rewards.equality.reading.grammar import parse
from gtpo.rewards.equality.reading.tokens import NotMathematics
from gtpo.rewards.equality.reading.units import (
    NO_UNIT,
    NUMBER_WORDS,
    POWER_WORDS,
    Unit,
    is_unit_word,
    read_unit,
    scale_of,
)

_BASED = re.compile(
    r"^(?:\\text\s*\{\s*|\()?(-?(?:[0-9A-F]+|\d[0-9a-f]+)(?:\.[0-9A-F]+)?)\s*[)}]?\s*_\s*\{?\s*(?:\\text\s*\{)?"
    r"\s*(\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\s*\}{0,2}$"
)
_BASED_IN_WORDS = re.compile(
    r"^(?:\\text\s*\{)?\(?(-?[0-9A-Fa-f]+)[\s,)}]*(?:_\s*\{?)?\s*(?:\\text\s*\{)?\s*(?:\(\s*)?(?:in\s+)?(?:the\s+)?base"
    r"[\s-]*(\d{1,2}|[a-z]+)[\s)}]*$|^\(?(-?[0-9A-F]+)\)?\s*_\s*\{?\s*\(\s*(\d{1,2})\s*\)\s*\}?$"
    r"|^(-?[01]+)\s*(?:\\text\s*\{)?\s*\(?(?:in )?(binary)\)?\s*\}?$"
)
"""`104 (base 5)`, `104 in base five`, `104_{(5)}`, `1101 binary`."""
_COUNTED = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*\\text\s*\{[^{}]*\}(?=\s*(?:[-+*/)]|\\times|\\cdot|\\div|$))")
"""A number of a calculation with its unit."""
_UNIT_TEXT = re.compile(r"\s*(?:\\text\s*\{(?P<text>[^{}]*)\}\s*(?P<power>\^\s*\{?\s*[23]\s*\}?)?)\s*$")
_UNIT_TYPED = re.compile(
    r"(?:(?<=[\d})!%])|(?<=\\pi))(?P<space>\s*)(?P<words>[a-zA-Z][a-zA-Z./ ]*?)\.?"
    r"(?P<power>\s*\^\s*\{?\s*[23]\s*\}?)?\s*$"
)
_DEGREES = re.compile(r"\s*\^\\circ\s*(?:\\text\s*\{\s*)?(?P<scale>[CF])?\s*\}?\s*$")
_PLAIN = re.compile(r"[-+]?\s*[\d.]+(?:\s*/\s*\d+)?|-?\\frac\{\d+\}\{\d+\}")
_TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DECIMAL = re.compile(r"[+-]?\s*(\d*)\.(\d+)")
_MIXED_TYPED = re.compile(r"(?<![\d.)}\]_^/])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
_MIXED_LATEX = re.compile(r"(?<![\d.^_}\w/])(\d+)\s*\\frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d)(?!\d))")
_MODULUS = re.compile(r"\s*\\text\s*\{\s*\(?\s*mod\s*(\w+)\s*\)?\s*\}\s*$")


def mixed(text: str) -> str:
    """Write `3 1/2` and `3\\frac{1}{2}` as mixed numbers, where the fraction is below one."""

    def written(match: re.Match[str]) -> str:
        whole, top, bottom = filter(None, match.groups())
        return f"\\mixed{{{whole}}}{{{top}}}{{{bottom}}}" if int(top) < int(bottom) else match.group()

    return _MIXED_LATEX.sub(written, _MIXED_TYPED.sub(written, text))


def read_quantity(text: str) -> Scalar | Based | Words:
    """Return the number or expression a text is, or Words if the grammar does not know it."""
    based = _BASED.match(text)
    if based:
        base = int(based[2]) if based[2].isdigit() else NUMBER_WORDS[based[2]]
        if base > 10 or not re.search("[a-f]", based[1]):  # `2a_5` is 2 times a_5
            return Based(re.sub(r"^(-?)0+(?=\d)", r"\1", based[1].upper()), base)
    worded = _BASED_IN_WORDS.match(text)
    if worded and (base := _base(next(filter(None, worded.groups()[1::2])))):
        return Based(re.sub(r"^(-?)0+(?=\d)", r"\1", next(filter(None, worded.groups()[::2])).upper()), base)
    hexadecimal = re.fullmatch(r"0[xX]([0-9A-Fa-f]+)", text)
    if hexadecimal:
        return Based(hexadecimal[1].lstrip("0").upper() or "0", 16)
    number, unit, percent, scale_words = _strip_unit(text)
    if number is None or (number == "" and percent):
        return Words(text)
    try:
        term = parse(mixed(number))
    except NotMathematics:
        return Words(text)
    if scale_words:
        scaled: Term = term
        for word in scale_words:
            scaled = ("mul", scaled, ("num", Fraction(scale_of(word) or 1)))
        return Scalar(scaled, 0, 0, unit, percent, term, scale_words)
    decimal = _DECIMAL.fullmatch(number.strip("() "))
    digits = places = 0
    if decimal:
        places = len(decimal[2])
        digits = len((decimal[1] + decimal[2]).lstrip("0"))
    return Scalar(term, digits, places, unit, percent)


def _base(word: str) -> int:
    return int(word) if word.isdigit() else 2 if word == "binary" else NUMBER_WORDS.get(word, 0)


def read_calculation(text: str) -> Scalar | Based | Words:
    """Return the number or expression a member of a chain is: a quantity, or a calculation whose numbers have units.

    `3 \\text{ boxes} \\times 5 \\text{ pens/box}` is 3 x 5. Words that are no unit, or that scale, stay (`hundredths`).
    So do two measures, which would have to be converted (`2 \\text{ m} + 30 \\text{ cm}`).
    """
    found = read_quantity(text)
    if not isinstance(found, Words):
        return found
    counted = [read_quantity(match.group()) for match in _COUNTED.finditer(text)]
    units = [q.unit for q in counted if isinstance(q, Scalar) and not q.scales and not q.unit.nouns]
    if len(units) < len(counted) or len({unit.name for unit in units if unit.name}) > 1:
        return found
    return read_quantity(_COUNTED.sub(r"\1", text))


def _strip_unit(text: str) -> tuple[str | None, Unit, bool, tuple[str, ...]]:
    """Return (expression, unit, whether a percent sign was there, the words that scale it: `million`, `dozen`).

    The expression is None if words follow that no unit explains.
    """
    unit, percent = NO_UNIT, False
    scales: tuple[str, ...] = ()
    currency = re.match(
        r"[-+]?\s*(?:\\(?=[$t]))?(\$|text\{(?:sterling|euro|yen|rupee)\}|(?P<typed>USD|US|EUR|GBP|JPY|INR|Rs\.?)(?=\s*[\d(]))\s*",
        text,
    )
    if currency:
        name = currency[1].removeprefix("text{").removesuffix("}")
        text = text[: currency.start(1) - (currency["typed"] is None)] + text[currency.end() :]
        spelled = read_unit("usd" if currency["typed"] == "US" else name.lower().rstrip("."))
        unit = Unit("dollar") if name == "$" or spelled is None else spelled
    elif text.endswith("\\$"):
        text, unit = text[:-2], Unit("dollar")
    for _ in range(4):
        text = text.strip()
        if text.endswith("%"):
            text, percent = text[:-1], True
            continue
        modulus = _MODULUS.search(text)
        if modulus:
            text, unit = text[: modulus.start()], Unit(f"mod {modulus[1]}")
            continue
        degrees = None if _TRIGONOMETRY.search(text) else _DEGREES.search(text)
        if degrees:
            text = text[: degrees.start()]
            unit = Unit({"C": "celsius", "F": "fahrenheit"}.get(degrees["scale"] or "", "degree"))
            continue
        match = _UNIT_TEXT.search(text)
        phrase = (match["text"] or "").strip() if match else ""
        if match is None:
            match = _UNIT_TYPED.search(text)
            if match is None or not _typed_unit(match, text):
                break
            phrase = match["words"].strip()
        if not text[: match.start()].strip():
            break
        while phrase and scale_of(phrase.split(" ")[0]) is not None:
            first, _, phrase = phrase.partition(" ")
            scales = (first.lower(), *scales)
        if phrase and phrase[0] not in "%":
            found = read_unit(phrase + (match["power"] or ""))
            if found is None:
                return None, unit, percent, scales
            unit = Unit(found.name or unit.name, *(a | b for a, b in zip(found[1:], unit[1:], strict=True)))
        text = text[: match.start()]
    return text, unit, percent, scales


def _typed_unit(match: re.Match[str], text: str) -> bool:
    """Return whether letters typed after a number are a unit and not variables: known ones, or words of 3+ letters."""
    phrase = match["words"].replace(".", "").split()
    if not phrase or any(word in ("sin", "cos", "tan", "log", "sqrt", "pi", "inf") for word in phrase):
        return False
    if scale_of(phrase[0]) is not None:
        return True
    if phrase[0] in ("m", "s", "g", "h", "l", "L") and len(phrase) == 1:  # `12 m`; but `12m` and `\\pi m` are products
        return bool(match["space"]) and _PLAIN.fullmatch(text[: match.start()]) is not None
    if not match["space"]:
        return is_unit_word(phrase[0])
    if text[: match.start()].endswith("\\pi"):  # `4\pi abc` is a volume
        return all(is_unit_word(word) or word in POWER_WORDS for word in phrase)
    return all(
        len(word) >= 3 or is_unit_word(word) or word in POWER_WORDS or word.lower() in ("of", "a", "an", "in")
        for word in phrase
    )
