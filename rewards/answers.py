r"""Read a cleaned answer into its parts: what kind of thing is it?

`(1, 2]` is an interval, `-2, 1` a list, `x = 5` a named value, `\text{Monday}` words, `204_5` a numeral in base 5.
The reader splits at the top level, by brackets, and leaves each expression to `rewards.grammar`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rewards.extract import match_brace, words
from rewards.grammar import NotMathematics, parse
from rewards.terms import Term, contains
from rewards.units import NUMBER_WORDS, SCALES, canonical_unit, is_unit_word


@dataclass(frozen=True)
class Scalar:
    """One expression, with what stood around it."""

    term: Term
    digits: int = 0
    """Significant digits if it is a decimal literal (`2.50` has 3), else 0."""
    places: int = 0
    """Digits after its point."""
    unit: str = ""
    percent: bool = False


@dataclass(frozen=True)
class Listing:
    """Several answers: `tuple` is ordered, `set` and `list` are not, `ratio` is ordered up to a factor."""

    kind: str
    items: tuple[Answer, ...]
    brackets: str = "()"


@dataclass(frozen=True)
class Union:
    r"""A set of reals put together by `\cup`, `\cap` or `\setminus`: (operation, part), the first with `\cup`."""

    parts: tuple[tuple[str, Answer], ...]


@dataclass(frozen=True)
class Relation:
    """A chain `terms[0] ops[0] terms[1] …` of = < > <= >= !=."""

    ops: tuple[str, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Named:
    """`x = 5`, `f(x) = 2x`, `(p, q) = (3, 2)`, `x \\in S`: a value with the name it is given to."""

    name: str
    value: Answer
    relation: Relation | None = None
    """The same as an equation, where both sides are expressions."""
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Words:
    """An answer in words, or text that is not understood: compared as text."""

    text: str


@dataclass(frozen=True)
class Choice:
    """A letter of a multiple-choice question, with the answer beside it if there is one."""

    letter: str
    body: Answer | None
    marked: bool = False
    """Written with parentheses or a point, as choices are: then its case says nothing."""


@dataclass(frozen=True)
class Based:
    """A numeral with its base."""

    digits: str
    base: int


Answer = Scalar | Listing | Union | Relation | Named | Words | Choice | Based

MAX_DEPTH = 12
"""Answers within answers; expressions may nest deeper."""

_OPEN, _CLOSE = "([{", ")]}"
_RELATIONS = {"=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\approx": "~", "\\equiv": "="}
_RELATION = re.compile(r"\\(?:le|ge|ne|approx|equiv|in)(?![a-zA-Z])|[=<>]")
_JOIN = re.compile(
    r"\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|(?<=\d)or(?=[A-Z(\\\d])|;|,"
)
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])|(?<=[)\]}])\s*[U∪]\s*(?=[(\[\\])")
_CHOICE = re.compile(
    r"^(?:\\text\s*\{\s*\(?(?P<a>[A-Za-z])\s*\)?[.:]?\s*\}|\(\s*(?P<b>[A-Za-z])\s*\)|\(\\text\s*\{\s*(?P<d>[A-Za-z])\s*\}\)|(?P<c>[A-Z])\s*[.:)])\s*(?P<rest>.*)$",
    re.DOTALL,
)
_TEXT_PIECE = re.compile(r"\\text\s*\{([^{}]*)\}")
_BASED = re.compile(
    r"^(?:\\text\s*\{\s*|\()?(-?[0-9A-F]+(?:\.[0-9A-F]+)?)\s*[)}]?\s*_\s*\{?\s*(?:\\text\s*\{)?\s*(\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\s*\}{0,2}$"
)
_UNIT_TEXT = re.compile(r"\s*(?:\\text\s*\{(?P<text>[^{}]*)\}\s*(?P<power>\^\s*\{?\s*[23]\s*\}?)?)\s*$")
_UNIT_TYPED = re.compile(
    r"(?<=[\d})!])(?P<space>\s*)(?P<words>[a-zA-Z][a-zA-Z./ ]*?)\.?(?P<power>\s*\^\s*\{?\s*[23]\s*\}?)?\s*$"
)
_DEGREES = re.compile(r"\s*\^\\circ\s*(?:\\text\s*\{\s*)?(?P<scale>[CF])?\s*\}?\s*$")
_DECIMAL = re.compile(r"[+-]?\s*(\d*)\.(\d+)")
_MIXED_TYPED = re.compile(r"(?<![\d.)}\]_^/])(\d+)(?:\s+|\s*-\s*(?=\d+/))(\d+)\s*/\s*(\d+)(?![\d.])")
_MIXED_LATEX = re.compile(r"(?<![\d.^_}\w/])(\d+)\s*\\frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d)(?!\d))")
_SHORT_WORDS = words(
    "no on yes odd one two six ten all any not non red tie win boy man men day mon tue wed thu fri sat sun jan feb mar "
    "apr may jun jul aug sep oct nov dec am pm is it of to or if"
)
_MODULUS = re.compile(r"\s*\\text\s*\{\s*\(?\s*mod\s*(\w+)\s*\)?\s*\}\s*$")
_NAME = re.compile(
    r"(?:\\(?:text|overline|vec|bar|hat|overrightarrow|widehat|triangle|angle|[a-zA-Z]+)|[a-zA-Z]|[_^{}()|'\s,:/]|(?<=[_^{])\d+|(?<=[_^]\{)\d+)+"
)


def split_top(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Split at the matches of `pattern` outside all brackets: (separator before the part, part), in order."""
    parts, depth, start, separator, position = [], 0, 0, "", 0
    while position < len(text):
        character = text[position]
        if depth == 0 and (match := pattern.match(text, position)) is not None and match.end() > position:
            parts.append((separator, text[start:position]))
            separator, start, position = match.group().strip(), match.end(), match.end()
            continue
        if character == "\\":
            following = text[position + 1 : position + 2]
            if following == "{":
                depth += 1
            elif following == "}":
                depth -= 1
            elif text.startswith("\\begin", position):
                depth += 1
            elif text.startswith("\\end", position):
                depth -= 1
            position += 2
            continue
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        position += 1
    parts.append((separator, text[start:]))
    return parts


def read(text: str, depth: int = 0) -> Answer:
    """Return what a cleaned answer is. Never raises: what is not understood comes back as Words."""
    text = text.strip().rstrip(",;").strip()
    inside = re.fullmatch(r"\\text\s*\{([^{}]*\d[^{}]*)\}", text)  # `\text{13}`, `\text{2 hours}`
    text = inside[1].strip() if inside else text
    if depth > MAX_DEPTH:
        return _read_scalar(text)
    for reader in (
        _read_choice,
        _read_words,
        _read_list,
        _read_relation,
        _read_set_operation,
        _read_bracketed,
        _read_ratio,
    ):
        answer = reader(text, depth)
        if answer is not None:
            return answer
    return _read_scalar(text)


def _read_choice(text: str, depth: int) -> Answer | None:
    match = _CHOICE.match(text)
    if match is None or depth:
        return None
    letter = match["a"] or match["b"] or match["c"] or match["d"]
    rest = match["rest"].strip()
    if rest and (
        (not match["a"] and letter not in "ABCDEFGH")
        or rest[0] in "^_!+*/=<>-,;"
        or rest.startswith(("\\cdot", "\\times", "\\frac", "\\cup", "\\le", "\\ge", "("))
    ):
        return None
    marked = re.search(r"[().:]", text[: match.start("rest")]) is not None
    return Choice(letter, read(rest, depth + 1) if rest else None, marked)


def _read_words(text: str, depth: int) -> Answer | None:
    plain = _TEXT_PIECE.sub(r" \1 ", text)
    plain = re.sub(r"\s+", " ", plain).strip()
    if plain.lower() in NUMBER_WORDS:
        return Scalar(("num", Fraction(NUMBER_WORDS[plain.lower()])))
    letters = re.fullmatch(r"[A-Za-z][A-Za-z'\-. !?\"]*", plain)
    if letters is None:
        return None
    if "\\text" in text and len(plain) > 1:
        return _joined_words(text) or Words(plain)
    if len(plain) == 1:
        return Scalar(("const", plain) if plain in "ei" else ("sym", plain))
    if plain.lower() in ("infinity", "inf", "oo", "pi"):
        return None
    if plain.lower() in _SHORT_WORDS:
        return Words(plain)
    # `ab` may be a product; `even` is a word, and so is a run of capitals (points, seats, initials).
    return (
        None
        if re.fullmatch(r"[a-z]{2,3}|[a-z]+ ?[a-z]", plain) and len(plain) <= 3
        else _joined_words(text) or Words(plain)
    )


def _joined_words(text: str) -> Answer | None:
    parts = [
        part.strip()
        for _, part in split_top(_TEXT_PIECE.sub(r" \1 ", text), re.compile(r"(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|,|;"))
    ]
    parts = [part for part in parts if part]
    return Listing("list", tuple(Words(part) for part in parts)) if len(parts) > 1 else None


def _read_list(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, _JOIN)
    if len(pieces) < 2:
        return _expand_signs(text, depth)
    semicolons = [separator == ";" for separator, _ in pieces[1:]]
    if any(semicolons) and not all(semicolons):  # `p=5, q=2; p=7, q=2`: the semicolon binds last
        pieces = split_top(text, re.compile(";"))
    parts = [part.strip() for _, part in pieces]
    parts = [part for part in parts if part and not re.fullmatch(r"\\text\s*\{[\s,]*\}", part)]
    if len(parts) < 2:
        return read(parts[0], depth + 1) if parts else None
    items: list[Answer] = []
    for part in parts:
        item = read(part, depth + 1)
        items.extend(item.items if isinstance(item, Listing) and item.kind == "list" and _signs(part) else [item])
    first = items[0]
    if isinstance(first, Named) and not any(isinstance(item, (Named, Relation)) for item in items[1:]):
        # `x = 1, 2`: one name, several values
        rest = [first.value, *items[1:]]
        return Named(first.name, Listing("list", tuple(rest)), None, first.variables)
    return Listing("list", tuple(items))


def _signs(text: str) -> bool:
    return "\\pm" in text or "\\mp" in text


def _expand_signs(text: str, depth: int) -> Answer | None:
    r"""`1 \pm \sqrt{2}` is a list of two answers; several signs change together."""
    if not _signs(text) or _RELATION.search(text) or split_top(text, _SET_OPERATION)[1:]:
        return None
    upper = re.sub(r"\\pm(?![a-zA-Z])", "+", re.sub(r"\\mp(?![a-zA-Z])", "-", text))
    lower = re.sub(r"\\pm(?![a-zA-Z])", "-", re.sub(r"\\mp(?![a-zA-Z])", "+", text))
    items = (read(upper, depth + 1), read(lower, depth + 1))
    return Listing("list", items) if all(isinstance(item, (Scalar, Listing)) for item in items) else None


def is_name(text: str) -> bool:
    """Say whether a text only names something: letters, subscripts, primes, `f(x)`, `AB`, `|AB|`, words."""
    text = text.strip()
    if not text or not re.search(r"[a-zA-Z]", text):
        return False
    if re.fullmatch(r"[a-zA-Z]['a-zA-Z]*\s*\([^()=]*\)", text):  # f(2), W(n), P(A or B)
        return True
    bare = _TEXT_PIECE.sub(" ", text)
    if not bare.strip():
        return True
    if len(re.findall(r"(?<![\\a-zA-Z])[a-z]{2,}", bare)) > 1:  # a sentence
        return False
    if re.search(r"\\(?:sin|cos|tan|log|ln|sqrt|pi|sum|int|infty|pm)(?![a-zA-Z])|[+*<>=!]|(?<!\\)-", bare):
        return False
    return _NAME.fullmatch(bare) is not None


def _read_relation(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, _RELATION)
    if len(pieces) < 2:
        return None
    separators = [separator for separator, _ in pieces[1:]]
    parts = [part.strip() for _, part in pieces]
    if "\\in" in separators:
        return read(parts[-1], depth + 1) if len(parts) == 2 and is_name(parts[0]) else None
    ops = [_RELATIONS[separator] for separator in separators]
    if not parts[0] and ops[0] in "=~":  # `= 5`
        return read(text[text.index(parts[1], 1) :], depth + 1) if len(parts) > 1 and parts[1] else None
    if not all(parts):
        return None
    # What is only approximate adds nothing to what stands before it, except after a bare name.
    if "~" in ops:
        cut = ops.index("~")
        if cut == 0 and is_name(parts[0]):
            ops[0] = "="
            cut = ops.index("~") if "~" in ops else len(ops)
        ops, parts = ops[:cut], parts[: cut + 1]
        if not ops:
            return read(parts[0], depth + 1)
    if all(op == "=" for op in ops):
        return _read_equation(parts, depth)
    try:
        return Relation(tuple(ops), tuple(parse(_mixed(part)) for part in parts))
    except NotMathematics:
        return None


def _read_equation(parts: list[str], depth: int) -> Answer | None:
    left = parts[0]
    tuple_name = re.fullmatch(r"\(([^()]*)\)", left)
    if tuple_name and all(is_name(part) for part in tuple_name[1].split(",")):
        return Named(re.sub(r"\s", "", left), read(parts[-1], depth + 1))
    terms: list[Term] | None
    try:
        terms = [parse(_mixed(part)) for part in parts]
    except NotMathematics:
        terms = None
    if is_name(left) or is_name(parts[-2]):
        name = left if is_name(left) else parts[-2]
        value = read(parts[-1], depth + 1)
        call = re.fullmatch(r"([a-zA-Z]['a-zA-Z]*)\s*\(\s*([a-zA-Z])\s*\)", name)
        relation = Relation(("=",), (terms[0], terms[-1])) if terms else None
        if call:
            return Named(call[1], value, relation, (call[2],))
        return Named(re.sub(r"[\s{}]|\\text", "", name), value, relation)
    if terms is None:
        scalars = [_read_scalar(part) for part in parts]  # `0.56 = 56\%`
        return scalars[-1] if all(isinstance(x, Scalar) and not _has_symbols(x.term) for x in scalars) else None
    if not any(_has_symbols(term) for term in terms):  # `2 + 3 = 5`: the last is the answer
        return read(parts[-1], depth + 1)
    return Relation(("=",) * (len(terms) - 1), tuple(terms))


def _has_symbols(term: Term) -> bool:
    return contains(term, "sym") or contains(term, "opaque")


def _read_set_operation(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, _SET_OPERATION)
    if len(pieces) < 2:
        return None
    parts = []
    for separator, part in pieces:
        operation = "cap" if "cap" in separator else "setminus" if "setminus" in separator else "cup"
        parts.append((operation, read(part, depth + 1)))
    return Union(tuple(parts))


def _read_bracketed(text: str, depth: int) -> Answer | None:
    text = re.sub(r"^\\langle\s*(.*?)\s*\\rangle$", r"(\1)", text, flags=re.DOTALL)
    if text in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return Listing("set", ())
    if text == "\\reals":
        inf: Term = ("const", "inf")
        return Listing("tuple", (Scalar(("neg", inf)), Scalar(inf)), "()")
    if text.startswith("\\{") and text.endswith("\\}") and _closes(text, 2, 2):
        return _read_set(text[2:-2], depth)
    if not text or text[0] not in "([{]" or text[-1] not in ")]}[" or len(text) < 2:
        return None
    opening, closing = text[0], text[-1]
    if opening == "{":
        if match_brace(text, 0) != len(text) - 1:
            return None
        return read(text[1:-1], depth + 1)
    if not _closes(text, 1, 1):
        return None
    inner = text[1:-1]
    items = [part for _, part in split_top(inner, re.compile(r"[,;]"))]
    if len(items) < 2:
        if (opening == "(" and closing == ")") or (opening == "[" and closing == "]"):
            return read(inner, depth + 1)
        return None
    brackets = {"]": "(", "[": "["}.get(opening, opening) + {"[": ")", "]": "]"}.get(closing, closing)
    return Listing("tuple", tuple(read(item, depth + 1) for item in items), brackets)


def _read_set(inner: str, depth: int) -> Answer | None:
    condition = split_top(inner, re.compile(r"\\mid(?![a-zA-Z])|\||:"))
    if len(condition) == 2 and re.fullmatch(r"\s*[a-zA-Z]\s*(?:\\in\s*\\reals\s*)?", condition[0][1]):
        return read(condition[1][1], depth + 1)
    parts = [part for _, part in split_top(inner, re.compile(r"[,;]")) if part.strip()]
    items: list[Answer] = []
    for part in parts:
        item = read(part, depth + 1)
        items.extend(item.items if isinstance(item, Listing) and item.kind == "list" else [item])
    return Listing("set", tuple(items), "{}")


def _closes(text: str, skip: int, width: int) -> bool:
    """Whether the bracket that opens the text is the one that closes it."""
    level, position = 1, skip
    while position < len(text) - width:
        if text[position] == "\\":
            following = text[position + 1 : position + 2]
            level += (following == "{") - (following == "}")
            level += text.startswith("\\begin", position) - text.startswith("\\end", position)
            position += 2
        else:
            level += (text[position] in _OPEN) - (text[position] in _CLOSE)
            position += 1
        if level == 0:
            return False
    return level == 1


def _read_ratio(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, re.compile(r":|(?<=\d)\s*\\text\s*\{\s*to\s*\}\s*(?=\d)|(?<=\d) to (?=\d)"))
    if len(pieces) < 2 or any(not part.strip() for _, part in pieces):
        return None
    items = tuple(read(part, depth + 1) for _, part in pieces)
    if not all(isinstance(item, Scalar) for item in items):
        return None
    return Listing("ratio", items, text.replace(" ", ""))


def _mixed(text: str) -> str:
    """Read `3 1/2` and `3\\frac{1}{2}` as mixed numbers, where the fraction is below one."""

    def typed(match: re.Match[str]) -> str:
        whole, top, bottom = match.groups()
        return f"({whole}+{top}/{bottom})" if int(top) < int(bottom) else match.group()

    def latex(match: re.Match[str]) -> str:
        whole, top, bottom = match[1], match[2] or match[4], match[3] or match[5]
        return f"({whole}+\\frac{{{top}}}{{{bottom}}})" if int(top) < int(bottom) else match.group()

    return _MIXED_LATEX.sub(latex, _MIXED_TYPED.sub(typed, text))


def _read_scalar(text: str) -> Answer:
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
        term = parse(_mixed(number))
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
        degrees = _DEGREES.search(text)
        if degrees:
            text = text[: degrees.start()]
            unit = {"C": "celsius", "F": "fahrenheit"}.get(degrees["scale"] or "", "degree")
            continue
        match = _UNIT_TEXT.search(text)
        phrase = (match["text"] or "").strip() if match else ""
        if match is None:
            match = _UNIT_TYPED.search(text)
            if match is None or not _typed_unit(match):
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


def _typed_unit(match: re.Match[str]) -> bool:
    """Whether letters typed after a number are a unit and not variables: a known unit, or words of 3+ letters."""
    phrase = match["words"].replace(".", "").split()
    if not phrase or any(word in ("sin", "cos", "tan", "log", "sqrt", "pi", "inf") for word in phrase):
        return False
    if phrase[0].lower() in SCALES:
        return True
    if not match["space"]:
        return is_unit_word(phrase[0])
    return all(len(word) >= 3 or is_unit_word(word) or word.lower() in ("of", "a", "an", "in") for word in phrase)
