"""Units: what may follow a number without changing whether it is the right one, and what may not.

A unit that only one side names is left out of the comparison. Two units that differ make two answers differ (5 cm is
not 5 m, 5 m/s not 5 km/h). A word is a unit only if it is in the tables here (measures, and nouns that are commonly
counted) or the problem uses it: any other word may say something else about the number (5 hundredths, 5 wrong).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import lru_cache, reduce

from gtpo.rewards.equality.answers import NO_UNIT, Based, Scalar, Unit, Words
from gtpo.rewards.equality.reading import SAYS, TABLES, WORDS
from gtpo.rewards.equality.reading.grammar import NotMathematics, parse
from gtpo.rewards.limits import UNIT_WORDS

_CANONICAL: dict[str, str] = {
    spelling: name for name, spellings in TABLES["measures"].items() for spelling in spellings.split()
}
_PLURALS: dict[str, str] = TABLES["plurals"]
_FORMS: dict[str, dict[str, dict[str, str]]] = TABLES["unit symbols"]
# Spelling of a unit that only a problem makes one -> prefix and unit; and what finds one, in one font or two.
_SYMBOLS: dict[str, tuple[str, str]] = {
    prefix + symbol: (name, unit)
    for table in _FORMS.values()
    for prefix, name in table["prefixes"].items()
    for symbol, unit in table["units"].items()
}
_FONT = r"(?:\\(?:mathrm|text|rm)\s*\{[\s~]*)?"
_PREFIXES, _UNITS = ("|".join(sorted(dict.fromkeys(
    re.escape(symbol) + r"[\s~]*" * (symbol[:1] == "\\") for table in _FORMS.values() for symbol in table[kind]
), reverse=True)) for kind in ("prefixes", "units"))  # fmt: skip
_SYMBOL = rf"{_FONT}(?P<symbol>(?:{_PREFIXES}){_FONT}(?:{_UNITS}))(?![a-zA-Z])[\s~]*\}}*"
_ASKED_SYMBOL = re.compile(SAYS.asked_symbol.pattern.replace("SYMBOL", _SYMBOL))
_ANSWERED_SYMBOL = re.compile(rf"(?<=[\d}}])[\s~$]*(?:\\[ ,;])?[\s~$]*{_SYMBOL}")
NUMBER_WORDS, _PARTS, SCALES = (TABLES[name] for name in ("numbers", "parts", "scales"))
# Words before a unit of length that make it one of area or volume.
POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


@lru_cache(maxsize=4096)  # a problem's words are asked for as it is read
def singular(word: str) -> str:
    """Return a noun without its plural ending, as far as a rule can tell; `apples` and `apple` meet."""
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("ies") and (word[:-1] in _CANONICAL or word[:-1] in WORDS.counted):
        return word[:-1]  # calories, cookies
    # Wrong for some words (`lens`), but alike on both sides, which is all that a comparison needs.
    for ending, kept in (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("sses", "ss"), ("s", "")):
        if word.endswith(ending) and len(word) > len(ending) + 1 and not word.endswith("ss"):
            return word[: -len(ending)] + kept
    return word


def _measure(word: str) -> str:
    """Return the name of a measure, with its prefix (`kj` is a kilojoule), empty for other words."""
    for form in (word, singular(word), word.removesuffix("es")):
        if form in _CANONICAL and (form == word or word not in WORDS.joining):  # `has` are no hectares
            return _CANONICAL[form]
    for prefix, name in TABLES["prefixes"].items():
        rest = word.removeprefix(prefix)
        rest = rest if len(prefix) == 1 else singular(rest)
        if word.startswith(prefix) and rest in WORDS.prefixed:
            return f"{name}{_CANONICAL[rest]}"
    return ""


def spell_symbols(text: str, known: Collection[str] | None = None) -> tuple[str, frozenset[str]]:
    r"""Return a text with words for symbols of units, and which units: of a problem those that it asks for (`in nm`).

    known: those that the problem asks for; of an answer only these, with any prefix, as others are products of letters.
    """
    found = set()

    def word(match: re.Match[str]) -> str:
        symbol = re.sub(r"\\(?:mathrm|text|rm)|[\s{}~]", "", match["symbol"])
        prefix, unit = _SYMBOLS.get(symbol, ("", ""))
        # One letter is a variable as well.
        if len(symbol) == 1 or not unit if known is None else unit not in known:
            return match.group()
        found.add(unit)
        closed = "}" * (match.group().count("}") - match.group().count("{"))  # of a box
        return f"{'in' if known is None else ''} {prefix}{unit}s {closed}"

    return (_ASKED_SYMBOL if known is None else _ANSWERED_SYMBOL).sub(word, text), frozenset(found)


def _is_cased(word: str) -> bool:
    """Return whether a symbol is written as units are: `kN`, `eV`, `J`; `3mn` and `3pa` are products of letters."""
    if len(word) == 1:
        return word in "msghlLJKNWV"
    return len(word) > 2 or (word in _CANONICAL and word not in ("pa", "ev")) or not word.islower()


def read_symbols(text: str, *, alone: bool = False) -> str:
    """Return the measure that symbols are (`m/s^2`, `J/(kg K)`, `m s^{-2}`), empty if one of them is none.

    alone: `m^3` is one too, and no power of a variable.
    """
    bare = re.sub(r"\\cdot|\\(?:text|mathrm)", " ", text)
    spoken = re.findall(r"[a-zA-Z]+", bare)
    # Letters alone are variables unless they are written as units are: `N/m`, `m s^{-2}`, and not `3 m n`, `7w^2`.
    written = alone or re.search(r"/|\^\s*\{?\s*-", text) or any(len(word) > 1 for word in spoken)
    known = all(_measure(SAYS.mega.sub("mega", word).lower()) and _is_cased(word) for word in spoken)
    if not (spoken and written and known and re.search(r"[/^*]|\\cdot|\w\s+\w", text)):
        return ""
    unit = read_unit(re.sub(r"\\(?:text|mathrm)|[{}]", " ", text))
    return unit.name if unit is not None else ""


def spoken_number(text: str) -> Fraction | None:
    """Return the number that words are (`forty-two`, `five million`, `one half`), None for anything else."""
    text = re.sub(r"^an? ", "one ", text.lower().strip(" ."))
    if text.startswith(("negative ", "minus ", "-")):
        positive = spoken_number(text.partition("-" if text[0] == "-" else " ")[2])
        return None if positive is None else -positive
    if (mixed := re.fullmatch(r"(.+) and ((?:an?|one|two|three|four|five) \w+)", text)) is not None:
        whole, rest = spoken_number(mixed[1]), spoken_number(mixed[2])
        if whole is not None and rest is not None and rest < 1:
            return whole + rest
    spoken = [word for word in re.split(r"[\s-]+", text) if word not in ("and", "a", "an")]
    part = _PARTS.get(spoken[-1], _PARTS.get(spoken[-1].removesuffix("s"))) if spoken else None
    if part is not None:
        count = int(part == 2) if len(spoken) == 1 else NUMBER_WORDS.get(spoken[0], 0) if len(spoken) == 2 else 0
        return Fraction(count, part) if count else None
    total, group, last = 0, 0, 10**15
    for word in spoken:
        number = NUMBER_WORDS.get(word)
        scale = SCALES.get(word) if word in WORDS.spoken_scales else None
        # Each word must be smaller than the one before: `five twenty` is no number.
        if number is not None and number < last:
            group, last = group + number, 10 if number >= 20 else 1
        elif scale == 100 and group:
            group, last = group * 100, 100
        elif scale is not None and group:
            total, group, last = total + group * scale, 0, 10**15
        else:
            return None
    return Fraction(total + group) if spoken else None


def scale_of(word: str) -> int | None:
    """Return what a word multiplies the number before it by, None if it does not."""
    lowered = word.lower()
    found = SCALES.get(lowered, SCALES.get(lowered.removesuffix("s")))
    return None if lowered in ("score", "ten", "tens") else found  # a score is also a result, ten a number


def is_unit_word(word: str) -> bool:
    """Return whether a word typed next to a number is a unit of the table."""
    lowered = SAYS.mega.sub("mega", word).lower().rstrip(".")
    return len(word) > 1 and bool(_measure(lowered)) and _is_cased(word)


def is_noun(word: str) -> bool:
    """Return whether a word is a noun that is commonly counted."""
    return not WORDS.counted.isdisjoint((word, singular(word), word.removesuffix("s")))


def is_verb(word: str) -> bool:
    """Return whether a word may be a verb that states something."""
    return word in WORDS.verbs or (word.endswith(("ed", "s")) and word not in WORDS.no_verbs)


def read_unit(text: str) -> Unit | None:
    """Return the unit that words are (`sq cm`, `m/s`, `red apples`), None if they change the number (`5 or more`)."""
    if len(text.split()) > UNIT_WORDS:
        return None
    text = SAYS.mega.sub("mega", text).lower()  # `MeV` is not `meV`
    lowered = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).replace("p.m", "pm").replace("a.m", "am")
    found = re.findall(r"[a-z][a-z']*|\^\s*\{?\s*-?\d+|[/*]|\\cdot|\d+|[^\s.{}]", lowered)
    above, below, nouns, amounts, things = (list[str]() for _ in range(5))
    side, power = above, 1
    for index, word in enumerate(found):
        following = found[index + 1] if index + 1 < len(found) else ""
        if word[0] == "^":
            exponent = int(re.sub(r"[^\d-]", "", word))
            if side:  # not so of `units^2`
                last = side.pop()
                (side if exponent > 0 else below).append(f"{last}^{abs(exponent)}" if abs(exponent) != 1 else last)
        elif word in ("/", "per", "every") or (
            word in ("a", "an", "each") and index and side is above and _measure(following)
        ):
            side = below
        elif word in ("*", "·", "\\cdot", "'", '"', "-", ",") or (word in "()" and side is below):
            continue
        elif word in POWER_WORDS and _measure(following):
            power = POWER_WORDS[word]
        elif word in ("squared", "cubed") and side and "^" not in side[-1] and index:
            side[-1] = f"{side[-1]}^{2 if word == 'squared' else 3}"
        elif singular(word) in WORDS.amounts:
            amounts.append(singular(word))
        elif word in WORDS.changes_meaning or scale_of(word) is not None or word in NUMBER_WORDS or word.isdigit():
            return None
        # `in` is inch at the end or before a power only: `5 in`, `5 in^2`, but `5 apples in all`.
        elif word in WORDS.fillers and not (word == "in" and (power > 1 or following[:1] in ("", "^", "/"))):
            continue
        elif (name := _measure(word)) and name not in WORDS.no_measures:
            top, *bottom = name.split("/")  # mph
            side.append(top if power == 1 else f"{top}^{power}")
            below += bottom
            power = 1
        elif name or word in POWER_WORDS:
            continue  # `square units`: no measure
        elif is_noun(word):
            things.append(singular(word))
        elif word[0].isalpha():
            nouns.append(singular(word))
        else:
            return None
    # `degrees Celsius` is one unit in two words.
    if len(above) == 2 and above[0] == "degree" and above[1] in ("celsius", "fahrenheit", "kelvin"):
        above = above[1:]
    name = _product(above) + (f"/{_product(below)}" if above and below else "")
    return Unit(name, frozenset(nouns), frozenset(amounts), frozenset(things))


def _product(units: Sequence[str]) -> str:
    """Return the name of a product of units: `m s s` is `meter*second^2`."""
    powers: Counter[str] = Counter()
    for unit in units:
        base, _, power = unit.partition("^")
        powers[base] += int(power or 1)
    return "*".join(base if power == 1 else f"{base}^{power}" for base, power in sorted(powers.items()))


def spoken_quantity(text: str) -> tuple[Fraction, Unit] | None:
    """Return the number and the unit that words are (`one thousand dollars`), None for anything else."""
    spoken = text.split() if re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text) else []
    for cut in range(len(spoken) - 1, max(0, len(spoken) - 4), -1):
        number, unit = spoken_number(" ".join(spoken[:cut])), read_unit(" ".join(spoken[cut:]))
        if number is not None and unit is not None and scale_of(spoken[cut]) is None:
            return number, unit
    return None


# -- quantities: a number with what may stand around it ----------------------------------------------------------


def mixed(text: str) -> str:
    """Write `3 1/2` and `3\\frac{1}{2}` as mixed numbers, if the fraction is below one."""

    def written(match: re.Match[str]) -> str:
        whole, top, bottom = filter(None, match.groups())
        return f"\\mixed{{{whole}}}{{{top}}}{{{bottom}}}" if int(top) < int(bottom) else match.group()

    return SAYS.mixed_latex.sub(written, SAYS.mixed_typed.sub(written, text))


def _numeral(digits: str, base: int) -> Scalar | Based:
    digits = re.sub(r"^(-?)0+(?=\d)", r"\1", digits.upper())
    # In base 10 it is a plain number; in any other the base is part of the answer.
    plain = base == 10 and digits.removeprefix("-").isdigit()
    return Scalar(("num", Fraction(digits))) if plain else Based(digits, base)


def read_quantity(text: str) -> Scalar | Based | Words:
    """Return the number or expression a text is, or Words if the grammar does not know it."""
    for pattern in (SAYS.based, SAYS.based_in_words):
        if (based := pattern.match(text)) is not None:
            numeral, word = filter(None, based.groups())
            base = int(word) if word.isdigit() else 2 if word == "binary" else NUMBER_WORDS.get(word, 0)
            product = pattern is SAYS.based and base <= 10 and re.search("[a-f]", numeral)  # `2a_5` is 2 times a_5
            if base and not product:
                return _numeral(numeral, base)
    if (hexadecimal := re.fullmatch(r"0[xX]([0-9A-Fa-f]+)", text)) is not None:
        return Based(hexadecimal[1].lstrip("0").upper() or "0", 16)
    number, unit, percent, scale_words = _strip_unit(text)
    if number is None or (number == "" and percent):
        return Words(text)
    try:
        term = parse(mixed(number))
    except NotMathematics:
        return Words(text)
    if scale_words:
        scaled = reduce(lambda t, word: ("mul", t, ("num", Fraction(scale_of(word) or 1))), scale_words, term)
        return Scalar(scaled, 0, 0, unit, percent, term, scale_words)
    decimal = SAYS.decimal.fullmatch(number.strip("() "))
    whole, places = decimal.groups() if decimal else ("", "")
    return Scalar(term, len((whole + places).lstrip("0")), len(places), unit, percent)


def read_calculation(text: str) -> Scalar | Based | Words:
    """Return the number or expression a member of a chain is: a quantity, or a calculation whose numbers have units.

    `3 \\text{ boxes} \\times 5 \\text{ pens/box}` is 3 x 5. Words that are no unit, or that scale, stay (`hundredths`).
    So do two measures, which would have to be converted (`2 \\text{ m} + 30 \\text{ cm}`).
    """
    found = read_quantity(text)
    if not isinstance(found, Words):
        return found
    counted = [read_quantity(match.group()) for match in SAYS.counted.finditer(text)]
    units = [q.unit for q in counted if isinstance(q, Scalar) and not q.scales and not q.unit.nouns]
    if len(units) < len(counted) or len({unit.name for unit in units if unit.name}) > 1:
        return found
    return read_quantity(SAYS.counted.sub(r"\1", text))


def _strip_unit(text: str) -> tuple[str | None, Unit, bool, tuple[str, ...]]:
    """Return (expression, None if no unit explains the words behind it; unit; whether percent; words that scale)."""
    unit, percent, scales = NO_UNIT, False, tuple[str, ...]()
    currency = SAYS.currency.match(text)
    if currency:
        name = currency[1].removeprefix("text{").removesuffix("}")
        text = text[: currency.start(1) - (currency["typed"] is None)] + text[currency.end() :]
        spelled = read_unit("usd" if currency["typed"] == "US" else name.lower().rstrip("."))
        unit = Unit("dollar") if name == "$" or spelled is None else spelled
    elif text.endswith("\\$"):
        text, unit = text[:-2], Unit("dollar")
    text = SAYS.unit_quotient.sub(r"\1/\2", text)
    # From the end, one after the other: `3 \text{ million} \text{ dollars}` has two.
    for _ in range(4):
        text = text.strip()
        if text.endswith("%"):
            text, percent = text[:-1], True
            continue
        degrees = None if SAYS.trigonometry.search(text) else SAYS.degrees.search(text)
        if degrees:
            text = text[: degrees.start()]
            unit = Unit({"C": "celsius", "F": "fahrenheit"}.get(degrees["scale"] or "", "degree"))
            continue
        symbols = SAYS.unit_symbols.search(text)
        if symbols is not None and (name := read_symbols(symbols["symbols"])):
            text, unit = text[: symbols.start()], unit._replace(name=name)
            continue
        match = SAYS.unit_text.search(text)
        phrase = (match["text"] or "").strip() if match else ""
        if match is None:
            match = SAYS.unit_typed.search(text)
            if match is None or not _typed_unit(match, text):
                break
            phrase = match["words"].strip()
        if not text[: match.start()].strip():
            break
        while phrase and scale_of(phrase.split(" ")[0]) is not None:
            first, _, phrase = phrase.partition(" ")
            scales = (first.lower(), *scales)
        if phrase and phrase[0] != "%":
            found = read_unit(phrase + (match["power"] or ""))
            if found is None:
                return None, unit, percent, scales
            name = f"{unit.name}/{found.name}" if currency and found.name != unit.name else found.name
            unit = Unit(name if found.name else unit.name, *(a | b for a, b in zip(found[1:], unit[1:], strict=True)))
        text = text[: match.start()]
    return text, unit, percent, scales


def _typed_unit(match: re.Match[str], text: str) -> bool:
    """Return whether letters typed after a number are a unit and not variables: known ones, or words of 3+ letters."""
    phrase = match["words"].replace(".", "").removeprefix("/").split()
    if not phrase or not {"sin", "cos", "tan", "log", "sqrt", "pi", "inf"}.isdisjoint(phrase):
        return False
    if scale_of(phrase[0]) is not None:
        return True
    if phrase[0] in tuple("msghlLNJWVK") and len(phrase) == 1:  # `12 m`; but `12m` and `\\pi m` are products
        return bool(match["space"]) and SAYS.plain.fullmatch(text[: match.start()]) is not None
    if not match["space"]:
        return is_unit_word(phrase[0])
    if text[: match.start()].endswith("\\pi"):  # `4\pi abc` is a volume
        return all(is_unit_word(word) or word in POWER_WORDS for word in phrase)
    known = {"of", "a", "an", "in"} | POWER_WORDS.keys()
    return all(
        len(word) >= 3 or is_unit_word(word) or word.lower() in known or (last in POWER_WORDS and _measure(word))
        for last, word in zip(["", *phrase], phrase, strict=False)
    )
