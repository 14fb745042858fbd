r"""Read a quantity: one expression with what may stand around it, a unit, a percent sign, a base, a mixed number."""

from __future__ import annotations

import re
from fractions import Fraction

from rewards.equality.reading.answers import Based, Scalar, Words
from rewards.equality.reading.grammar import parse
from rewards.equality.reading.tokens import NotMathematics
from rewards.equality.reading.units import NUMBER_WORDS, SCALES, canonical_unit, is_unit_word

_BASED = re.compile(
    r"^(?:\\text\s*\{\s*|\()?(-?[0-9A-F]+(?:\.[0-9A-F]+)?)\s*[)}]?\s*_\s*\{?\s*(?:\\text\s*\{)?"
    r"\s*(\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\s*\}{0,2}$"
)
_UNIT_TEXT = re.compile(r"\s*(?:\\text\s*\{(?P<text>[^{}]*)\}\s*(?P<power>\^\s*\{?\s*[23]\s*\}?)?)\s*$")
_UNIT_TYPED = re.compile(
    r"(?<=[\d})!])(?P<space>\s*)(?P<words>[a-zA-Z][a-zA-Z./ ]*?)\.?(?P<power>\s*\^\s*\{?\s*[23]\s*\}?)?\s*$"
)
_DEGREES = re.compile(r"\s*\^\\circ\s*(?:\\text\s*\{\s*)?(?P<scale>[CF])?\s*\}?\s*$")
_PLAIN = re.compile(r"[-+]?\s*[\d.]+(?:\s*/\s*\d+)?|-?\\frac\{\d+\}\{\d+\}")
_TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DECIMAL = re.compile(r"[+-]?\s*(\d*)\.(\d+)")
_MIXED_TYPED = re.compile(r"(?<![\d.)}\]_^/])(\d+)(?:\s+|\s*-\s*(?=\d+/))(\d+)\s*/\s*(\d+)(?![\d.])")
_MIXED_LATEX = re.compile(r"(?<![\d.^_}\w/])(\d+)\s*\\frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d)(?!\d))")
_MODULUS = re.compile(r"\s*\\text\s*\{\s*\(?\s*mod\s*(\w+)\s*\)?\s*\}\s*$")


def mixed(text: str) -> str:
    """Read `3 1/2` and `3\\frac{1}{2}` as mixed numbers, where the fraction is below one."""

    def typed(match: re.Match[str]) -> str:
        whole, top, bottom = match.groups()
        return f"({whole}+{top}/{bottom})" if int(top) < int(bottom) else match.group()

    def latex(match: re.Match[str]) -> str:
        whole, top, bottom = match[1], match[2] or match[4], match[3] or match[5]
        return f"({whole}+\\frac{{{top}}}{{{bottom}}})" if int(top) < int(bottom) else match.group()

    return _MIXED_LATEX.sub(latex, _MIXED_TYPED.sub(typed, text))


def read_quantity(text: str) -> Scalar | Based | Words:
    """Return the number or expression a text is, or Words if the grammar does not know it."""
    based = _BASED.match(text)
    if based and (based[2].isdigit() or based[2] in ("ten", "twelve", "sixteen", *NUMBER_WORDS)):
        base = int(based[2]) if based[2].isdigit() else 16 if based[2] == "sixteen" else NUMBER_WORDS[based[2]]
        return Based(re.sub(r"^(-?)0+(?=\d)", r"\1", based[1].upper()), base)
    number, unit, percent, scale = _strip_unit(text)
    if number is None:
        return Words(text)
    if number == "" and percent:
        return Words(text)
    try:
        term = parse(mixed(number))
    except NotMathematics:
        return Words(text)
    if scale != 1:
        term = ("mul", term, ("num", Fraction(scale)))
    decimal = _DECIMAL.fullmatch(number.strip("() "))
    digits = places = 0
    if decimal and scale == 1:
        places = len(decimal[2])
        digits = len((decimal[1] + decimal[2]).lstrip("0"))
    return Scalar(term, digits, places, unit, percent)


def _strip_unit(text: str) -> tuple[str | None, str, bool, int]:
    """Return (expression, canonical unit, whether a percent sign was there, scale of `million` and the like).

    The expression is None if words follow that no unit explains.
    """
    unit, percent, scale = "", False, 1
    if re.match(r"[-+]?\s*\\\$", text):
        text, unit = re.sub(r"\\\$\s*", "", text, count=1), "dollar"
    elif text.endswith("\\$"):
        text, unit = text[:-2], "dollar"
    for _ in range(4):
        text = text.strip()
        if text.endswith("%"):
            text, percent = text[:-1], True
            continue
        modulus = _MODULUS.search(text)
        if modulus:
            text, unit = text[: modulus.start()], f"mod {modulus[1]}"
            continue
        degrees = None if _TRIGONOMETRY.search(text) else _DEGREES.search(text)
        if degrees:
            text = text[: degrees.start()]
            unit = {"C": "celsius", "F": "fahrenheit"}.get(degrees["scale"] or "", "degree")
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
        first = phrase.lower().split(" ")[0]
        if first in SCALES:
            scale *= SCALES[first]
            phrase = phrase[len(first) :].strip()
        if phrase and phrase[0] not in "%":
            found = canonical_unit(phrase + (match["power"] or "").replace(" ", "").replace("{", "").replace("}", ""))
            if found is None:
                return None, "", percent, scale
            unit = found or unit
        text = text[: match.start()]
    return text, unit, percent, scale


def _typed_unit(match: re.Match[str], text: str) -> bool:
    """Whether letters typed after a number are a unit and not variables: a known unit, or words of 3+ letters."""
    phrase = match["words"].replace(".", "").split()
    if not phrase or any(word in ("sin", "cos", "tan", "log", "sqrt", "pi", "inf") for word in phrase):
        return False
    if phrase[0].lower() in SCALES:
        return True
    if phrase[0] in ("m", "s", "g", "h", "l", "L") and len(phrase) == 1:  # `12 m`; but `12m` and `\\pi m` are products
        return bool(match["space"]) and _PLAIN.fullmatch(text[: match.start()]) is not None
    if not match["space"]:
        return is_unit_word(phrase[0])
    return all(len(word) >= 3 or is_unit_word(word) or word.lower() in ("of", "a", "an", "in") for word in phrase)
