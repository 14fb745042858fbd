r"""Read a cleaned answer into its parts.

`(1, 2]` is an interval, `-2, 1` a list, `x = 5` a named value, `\text{Monday}` words, `204_5` a numeral in base 5.
The reader splits at the top level, by brackets, and leaves each expression to `gtpo.rewards.equality.reading.grammar`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mpmath import mp

from gtpo.rewards.equality.answers import NO_UNIT, Answer, Based, Listing, Named, Relation, Scalar, Union, Words
from gtpo.rewards.equality.arithmetic import NoValue, Term, contains, evaluate, number_of, symbols
from gtpo.rewards.equality.reading import SAYS, WORDS
from gtpo.rewards.equality.reading.grammar import JOINS, NotMathematics, closes_first, parse, split_top
from gtpo.rewards.equality.reading.types import TYPES
from gtpo.rewards.equality.reading.units import mixed, read_calculation, read_quantity, spoken_number, spoken_quantity
from gtpo.rewards.limits import MAX_DEPTH

_RELATIONS = {"=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\approx": "~", "\\equiv": "=",
              "\\to": "="}  # fmt: skip
_UNCHOSEN = WORDS.changes_meaning - {"and"}


def read(text: str, depth: int = 0) -> Answer:
    """Return what a cleaned answer is; what is not understood comes back as Words. Raises only TooBig."""
    text = text.strip().rstrip(",;").strip()
    # `\text{13}`, `\text{2 hours}`, `\text{A, B}`
    inside = re.fullmatch(r"\\text\s*\{([^{}]*\d[^{}]*|[A-Z](?:\s*,\s*(?:and\s+)?[A-Z])+)\}", text)
    text = inside[1].strip() if inside else text
    if depth > MAX_DEPTH:
        return read_quantity(text)
    for kind in TYPES if SAYS.composed.search(text) else ():
        if kind.marks.search(text) and (typed := kind.read(text, lambda part: read(part, depth + 1))) is not None:
            return typed
    # In the order in which they bind: `x = 1, y = 2` is a list of equations, `x \in A \cup B` says in what x is.
    for reader in (_read_words, _read_list, _read_relation, _read_set_operation, _read_bracketed, _read_ratio):
        if (answer := reader(text, depth)) is not None:
            return answer
    return read_quantity(text)


def split_choice(text: str) -> tuple[str, str, bool] | None:
    """Return (letter, what stands beside it, whether it is marked as choices are) of a cleaned answer, or None."""
    match = SAYS.choice.match(text)
    if match is None:
        return None
    letter = match["a"] or match["b"] or match["c"] or match["d"]
    rest = SAYS.affirmed.sub("", match["rest"]).strip()
    if SAYS.second_choice.search(rest) or not _UNCHOSEN.isdisjoint(re.findall(r"[a-z']+", rest.lower())):
        return None  # `(C) or (D)`, `(C) is wrong`
    if re.fullmatch(r"[A-H]", rest) and rest != letter:  # `C. D.`
        return None
    marked = re.search(r"[().:]", text[: match.start("rest")]) is not None
    if rest and not (match["a"] and marked):
        # `(A)(B)`, `(A) + 1`, `(x) y`: a product or sum in brackets, no choice with its answer
        apart = text[match.start("rest") - 1] == " " and re.match(r"\(|-\S", rest) is not None  # `(A) -5`
        operator = (rest[0] in "^_!+*/=<>-,;(" and not apart) or re.match(r"\\(?:cdot|times|cup|le|ge)", rest)
        if operator or not marked or letter not in "ABCDEFGH":
            return None
    return letter, rest, marked


def _read_words(text: str, depth: int) -> Answer | None:
    plain = SAYS.text.sub(r" \1 ", text)
    plain = re.sub(r"\s+", " ", plain).strip()
    # `sin x` as typed is a function, no words.
    if re.match(r"(?:sin|cos|tan|cot|sec|csc|ln|log)\s", plain):
        return None
    if (number := spoken_number(plain.removesuffix("%"))) is not None:
        return Scalar(("num", number), percent=plain.endswith("%"))
    if (quantity := spoken_quantity(plain)) is not None:
        return Scalar(("num", quantity[0]), unit=quantity[1])
    if re.fullmatch(r"[A-Za-z][A-Za-z'\-. !?\"]*", plain) is None:
        return None
    if len(plain) == 1:
        return Scalar(("const", plain) if plain in "ei" else ("sym", plain))
    if "\\text" not in text:
        if plain.lower() in WORDS.short_words:
            return Words(plain)
        # `ab` may be a product; `even` is a word, and so is a run of capitals (points, seats, initials).
        product = len(plain) <= 3 and re.fullmatch(r"[a-z]{2,3}|[a-z]+ ?[a-z]", plain)
        if product or plain.lower() in ("infinity", "inf", "oo", "pi"):
            return None
    pieces = split_top(SAYS.text.sub(r" \1 ", text), re.compile(r"(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|,|;"))
    parts = [part.strip() for _, part in pieces if part.strip()]
    words = (Scalar(("sym", part)) if len(part) == 1 and part.isalpha() else Words(part) for part in parts)
    return Listing("list", tuple(words), joint=_joint(pieces)) if len(parts) > 1 else Words(plain)


def _read_list(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, SAYS.join)
    if len(pieces) < 2:
        return _expand_signs(text, depth)
    semicolons = [separator == ";" for separator, _ in pieces[1:]]
    if any(semicolons) and not all(semicolons):  # `p=5, q=2; p=7, q=2`: the semicolon binds last
        pieces = split_top(text, re.compile(";"))
    elif any(separator == "," for separator, _ in pieces[1:]) and all("=" in part for _, part in pieces):
        pairs = split_top(text, SAYS.or_)  # `a=1, b=5 or a=5, b=1`
        pieces = pairs if len(pairs) > 1 else pieces
    parts = [part.strip() for _, part in pieces]
    parts = [part for part in parts if part and not re.fullmatch(r"\\text\s*\{[\s,]*\}", part)]
    if len(parts) < 2:
        return read(parts[0], depth + 1) if parts else None
    items: list[Answer] = []
    for part in parts:
        item = read(part, depth + 1)
        items.extend(_branches(item) if _signs(part) else [item])
    first = items[0]
    if isinstance(first, Named) and not any(isinstance(item, (Named, Relation)) for item in items[1:]):
        # `x = 1, 2`: one name, several values
        rest = [first.value, *items[1:]]
        return Named(first.name, Listing("list", tuple(rest)), None, first.variables)
    return Listing("list", tuple(items), joint=_joint(pieces))


def _joint(pieces: Sequence[tuple[str, str]]) -> str:
    joints = {found.group() for separator, _ in pieces[1:] if (found := re.search(r"and|or", separator))}
    return joints.pop() if len(joints) == 1 else ""


def _branches(item: Answer) -> Sequence[Answer]:
    r"""The answers of `1 \pm \sqrt{2}`, and of `x = 1 \pm \sqrt{2}`, each with the name."""
    if isinstance(item, Named):
        return [Named(item.name, value, None, item.variables) for value in _branches(item.value)]
    return item.items if isinstance(item, Listing) and item.kind == "list" else [item]


def _signs(text: str) -> bool:
    return "\\pm" in text or "\\mp" in text


def _expand_signs(text: str, depth: int) -> Answer | None:
    r"""`1 \pm \sqrt{2}` is a list of two answers; several signs change together."""
    if not _signs(text) or SAYS.relation.search(text) or split_top(text, SAYS.set_operation)[1:]:
        return None
    items = tuple(read(text.replace("\\pm", a).replace("\\mp", b), depth + 1) for a, b in ("+-", "-+"))
    return Listing("list", items) if all(isinstance(item, (Scalar, Listing)) for item in items) else None


def is_name(text: str) -> bool:
    """Return whether a text only names something: letters, subscripts, primes, `f(x)`, `AB`, `|AB|`, words."""
    text = re.sub(r"(?<=[a-zA-Z])\^\s*(?:\{\s*-1\s*\}|-1)", "", text.strip())  # f^{-1}(x)
    if not re.search(r"[a-zA-Z]", SAYS.text.sub(r"\1", text)):
        return False
    choice = re.search(r"^\(\s*(?:\\text\s*\{)?[A-H]\s*\}?\s*\)", text)
    denied = not WORDS.negations.isdisjoint(re.findall(r"[a-z']+", text.lower()))
    if choice or denied or SAYS.more_than_a_name.search(text) or SAYS.denied.search(text):  # `x \not` of `\not\in`
        return False
    bare = SAYS.text.sub(" ", text)
    if not bare.strip() or re.fullmatch(r"[a-zA-Z]['a-zA-Z]*\s*\([^()=]*\)", text):  # f(2), W(n), P(A or B)
        return True
    if len(re.findall(r"(?<![\\a-zA-Z])(?!d[a-z](?![a-z]))[a-z]{2,}", bare)) > 1:  # a sentence
        return False
    if re.search(r"\\(?:sin|cos|tan|log|ln|sqrt|pi|sum|int|infty|pm)(?![a-zA-Z])|[+*<>=!]|(?<!\\)-", bare):
        return False
    return SAYS.bare_name.fullmatch(bare) is not None


def _read_relation(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, SAYS.relation)
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
        if any(isinstance(read_calculation(part), Words) for part in parts[cut:]):
            return Words(text)  # a sentence, which may say another value
        # `12 \approx 20`, `x = 12 \approx x = 20`
        if (cut == 0 or "=" in ops[cut:]) and _contradict([read_calculation(p) for p in parts[cut:]], loosely=True):
            return Words(text)
        ops, parts = ops[:cut], parts[: cut + 1]
        if not ops:
            return read(parts[0], depth + 1)
    if all(op == "=" for op in ops):
        return _read_equation(parts, depth)
    terms = _terms(parts)
    return Relation(tuple(ops), tuple(terms)) if terms else None


def _terms(parts: list[str]) -> list[Term] | None:
    try:
        return [parse(mixed(part)) for part in parts]
    except NotMathematics:
        return None


def _read_equation(parts: list[str], depth: int) -> Answer | None:
    left = parts[0]
    if _signs(left):  # `\pm x = 5` says nothing of x
        return Words(" = ".join(parts))
    tuple_name = re.fullmatch(r"\(([^()]*)\)", left)
    if tuple_name and all(is_name(part) for part in tuple_name[1].split(",")):
        return Named(re.sub(r"\s", "", left), read(parts[-1], depth + 1))
    terms = _terms(parts)
    quantities = [read_calculation(part) for part in parts]
    unread = [isinstance(quantity, Words) for quantity in quantities]
    middle = [part for each, part in list(zip(unread, parts, strict=True))[1:-1] if each]
    said = (re.search(r"\d", part) or JOINS.search(part) or SAYS.more_than_a_name.search(part) for part in middle)
    if middle and (unread[-1] or any(said)):
        return Words(" = ".join(parts))  # `y = 2x + 1 attained at y = 5`, `d = m at r = 2`: no chain
    numbers = [q for q in quantities if isinstance(q, Scalar) and not _has_symbols(q.term)]
    contradicted = _contradict(numbers)
    if contradicted and len(numbers) == len(parts):
        bare = all(q.unit == NO_UNIT for q in numbers)
        return Words(" = ".join(parts)) if bare else Named("", read(parts[-1], depth + 1), contradicted=True)
    if isinstance(own := quantities[-1], Based) and len(numbers) == len(parts) - 1:  # `255 = FF_{16}`
        return own
    if len(numbers) == len(parts) and any(number.unit.name for number in numbers) and not contradicted:
        return numbers[-1]  # `180/3 = 60 mph`
    if not is_name(left) and not is_name(parts[-2]) and is_name(parts[-1]) and "frac" not in parts[-1]:
        if isinstance(read(parts[-2], depth + 1), Words):
            return Words(" = ".join(parts))  # `It is odd = even`: two values
        parts = [parts[-1], *parts[:-1]]  # `5 = x`
        left, terms = parts[0], terms and [terms[-1], *terms[:-1]]
    if is_name(left) or is_name(parts[-2]):
        name = left if is_name(left) else parts[-2]
        value = read(parts[-1], depth + 1)
        call = re.fullmatch(r"([a-zA-Z]['a-zA-Z]*(?:\^\{?-1\}?)?)\s*\(\s*([a-zA-Z])\s*\)", name)
        relation = Relation(("=",), (terms[0], terms[-1])) if terms else None
        if relation is not None and relation.terms[0] in [("sym", own) for own in symbols(relation.terms[1])]:
            return relation  # `x = 2x + 1` gives x no value
        name, variables = (call[1], (call[2],)) if call else (re.sub(r"[\s{}]|\\text", "", name), ())
        return Named(name, value, relation, variables, contradicted)
    if terms is None:
        return numbers[-1] if len(numbers) == len(parts) else None  # `0.56 = 56\%`, `2 \text{ eggs} + 3 = 5`
    if not any(_has_symbols(term) for term in terms):  # `2 + 3 = 5`: the last is the answer
        return read(parts[-1], depth + 1)
    return Relation(("=",) * (len(terms) - 1), tuple(terms))


def _contradict(numbers: Sequence[Answer], loosely: bool = False) -> bool:
    """Return whether two numbers of a chain differ (`41 = 42`): then it says nothing.

    Other units make other numbers (`2 hours = 120 minutes`), and a decimal may be rounded (`2/3 = 0.67`); `loosely`: a
    digit more or less in the last place, and the zeros that end an integer, say nothing (`19998 \\approx 20000`).
    """
    known: list[tuple[Any, Any, str]] = []
    for quantity in numbers:
        if not isinstance(quantity, Scalar) or _has_symbols(quantity.term):
            continue
        try:
            value = number_of(evaluate(quantity.term, {}))
        except NoValue:
            continue
        percent = 100 if quantity.percent else 1
        slack = (1.01 if loosely else 0.501) / 10**quantity.places / percent if quantity.digits else 0
        if loosely and known and not slack:
            slack = 0.6 * 10 ** (len(text := str(quantity.term[-1])) - len(text.rstrip("0"))) / percent
        value, unit = value / percent, quantity.unit.name
        for other, other_slack, other_unit in known:
            same = unit == other_unit or not (unit and other_unit)
            if same and abs(value - other) > slack + other_slack + mp.mpf(10) ** -30 * abs(other):
                return True
        known.append((value, slack, unit))
    return False


def _has_symbols(term: Term) -> bool:
    return contains(term, "sym") or contains(term, "opaque")


def _read_set_operation(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, SAYS.set_operation)
    if len(pieces) < 2:
        return None
    names = {"\\cap": "cap", "\\setminus": "setminus", "-": "setminus"}
    return Union(tuple((names.get(separator, "cup"), read(part, depth + 1)) for separator, part in pieces))


def _read_bracketed(text: str, depth: int) -> Answer | None:
    if text in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return Listing("set", ())
    if text == "\\reals":
        inf: Term = ("const", "inf")
        return Listing("tuple", (Scalar(("neg", inf)), Scalar(inf)), "()")
    if text.startswith("\\{") and text.endswith("\\}") and closes_first(text, 2):
        return _read_set(text[2:-2], depth)
    if len(text) < 2 or text[0] not in "([]" or text[-1] not in ")][":
        return None
    if not closes_first(text, 1):
        return None
    opening, inner, closing = text[0], text[1:-1], text[-1]
    items = [part for _, part in split_top(inner, re.compile(r"[,;]"))]
    if len(items) < 2:
        return read(inner, depth + 1) if opening + closing in ("()", "[]") else None
    brackets = opening.replace("]", "(") + closing.replace("[", ")")  # in France an open interval is `]1, 2[`
    return Listing("tuple", tuple(read(item, depth + 1) for item in items), brackets)


def _read_set(inner: str, depth: int) -> Answer | None:
    # `\{x \mid x > 2\}` is the set that its condition says.
    condition = split_top(inner, re.compile(r"\\mid(?![a-zA-Z])|\||:"))
    if len(condition) == 2 and re.fullmatch(r"\s*[a-zA-Z]\s*(?:\\in\s*\\reals\s*)?", condition[0][1]):
        return read(condition[1][1], depth + 1)
    parts = [part for _, part in split_top(inner, re.compile(r"[,;]")) if part.strip()]
    items: list[Answer] = []
    for part in parts:
        item = read(part, depth + 1)
        items.extend(item.items if isinstance(item, Listing) and item.kind == "list" else [item])
    return Listing("set", tuple(items), "{}")


def _read_ratio(text: str, depth: int) -> Answer | None:
    pieces = split_top(text, re.compile(r":|(?<=\d)\s*\\text\s*\{\s*to\s*\}\s*(?=\d)|(?<=\d) to (?=\d)"))
    if len(pieces) < 2 or any(not part.strip() for _, part in pieces):
        return None
    items = tuple(read(part, depth + 1) for _, part in pieces)
    if not all(isinstance(item, Scalar) for item in items):
        return None
    return Listing("ratio", items, text.replace(" ", ""))
