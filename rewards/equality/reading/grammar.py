"""Read one mathematical expression, in LaTeX or as typed, into a term. A small grammar, by recursive descent.

Nothing is evaluated and no name is looked up anywhere but in the tables below. What the grammar does not know is a
NotMathematics, never a guess: `2 3` is no product, and a word is no product of its letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate

from gtpo.rewards.completions import words
from gtpo.rewards.equality.arithmetic import FUNCTIONS, NO_BASE, Term, TooBig
from gtpo.rewards.equality.reading import TABLES, WORDS
from gtpo.rewards.limits import MAX_DECIMAL_EXPONENT


# -- tokens, and brackets of a text -----------------------------------------------------------------------------------
class NotMathematics(Exception):
    """The text is not an expression of this grammar."""


TRIGONOMETRY = words("sin cos tan cot sec csc")
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arctg": "arctan", "tg": "tan", "ctg": "cot"}
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}
_TYPED_NAMES = WORDS.unary | ALIASES.keys() | words("sqrt pi oo inf infinity infty abs floor ceil theta")
CALLED = frozenset("fghFG")
CLOSERS = {"(": ")", "[": "]", "\\{": "\\}", "\\lceil": "\\rceil", "\\lfloor": "\\rfloor"}
STARTS = frozenset(["(", "[", "\\{", "{", "\\lceil", "\\lfloor"])

# `at` of `4 at x = 2`, which joins two statements, and not that of `at^2` or `at + b`.
_JOINING = "(?i:" + "|".join(WORDS.joining) + ")"
_JOINED = re.compile(rf"{_JOINING}(?=\s+\w)|(?<=\s){_JOINING}(?=\s+[\\(])")
JOINS = re.compile(rf"(?:(?<![a-zA-Z])[a-zA-Z]|\\[a-z]+|[)}}])\s+{_JOINING}\s")

# What begins a factor with no sign before it: `2\pi`, `x\sqrt{3}`.
STARTING_COMMANDS = WORDS.greek | WORDS.unary | ALIASES.keys() | WORDS.accents | WORDS.opaque_commands | WORDS.factors

_POINTS = re.compile(r"(\{)?((?:[A-Z](?:_\d|_\{\d\}|')?){2,4})(?(1)\})")
_TOKEN = re.compile(
    r"\s*(?:(?P<sci>(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+(?![\w]))|(?P<num>\d+\.\d+|\.\d+|\d+\.(?![\d.])|\d+)"
    r"|(?P<env>\\(?:begin|end)\s*\{\s*[a-zA-Z]+\*?\s*\})|(?P<cmd>\\[a-zA-Z]+|\\[^a-zA-Z\s])|(?P<word>[a-zA-Z]+)|(?P<op>\*\*|[-+*/^_()\[\]{}|!,'&;=%]))"
)
MATRIX_NAMES = frozenset(["pmatrix", "bmatrix", "vmatrix", "matrix", "Bmatrix", "Vmatrix", "smallmatrix", "array"])
_PIECE = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]+|\\?[^\s]")
_SAME = TABLES["same tokens"]
_STEP = re.compile(r"(?P<opens>\\begin|\\\{|[(\[{])|(?P<closes>\\end|\\\}|[)\]}])|\\.|.", re.DOTALL)


def tokenize(text: str) -> list[tuple[str, str]]:
    """Split into (kind, text) tokens. Raises NotMathematics at a character that starts none."""
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotMathematics(f"unexpected {text[position : position + 8]!r}")
        kind = match.lastgroup or ""
        value = match[kind]
        position = match.end()
        if kind == "word":
            tokens += [("word", value)] if _JOINED.match(text, match.start(kind)) else _split_word(value)
        elif kind == "env":
            tokens.append(("cmd", re.sub(r"\s*\{\s*", " ", value).rstrip("} ")))  # `\\begin matrix`
        else:
            tokens.append(("num" if kind == "sci" else kind, value))
    return tokens


def _split_word(word: str) -> list[tuple[str, str]]:
    """Letters are variables, one each; known names are taken whole; longer words are no mathematics."""
    if word in _TYPED_NAMES:
        return [("cmd", "\\" + word)]
    # `arcsin` before `sin`, which it holds.
    for name in ("sqrt", "arcsin", "arccos", "arctan", "sin", "cos", "tan", "log", "ln", "pi"):
        if name in word and len(word) <= len(name) + 2:  # `xsin`, `2pix`
            before, _, after = word.partition(name)
            return [("let", c) for c in before] + [("cmd", "\\" + name)] + [("let", c) for c in after]
    # Up to four letters may be a product of variables; a longer run is a word.
    if len(word) > 4:
        return [("word", word)]  # no atom: good for nothing but a subscript
    return [("let", letter) for letter in word]


def tokens_of(text: str) -> tuple[str, ...]:
    """Return the tokens of a text without delimiters, braces and space, operators in one spelling."""
    # `1,200` of a problem is the `1200` of its answer.
    joined = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return tuple(_SAME.get(token, token) for token in _PIECE.findall(joined) if token not in WORDS.silent_tokens)


def occurs(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    """Return whether tokens stand in a row within others."""
    if not part:
        return False
    first, size = part[0], len(part)
    return any(token == first and whole[at : at + size] == part for at, token in enumerate(whole))


def _steps(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each character, or of a backslash with the next, and by how much it changes the depth."""
    return ((m.start(), (m.lastgroup == "opens") - (m.lastgroup == "closes")) for m in _STEP.finditer(text))


def split_top(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Split at the matches of `pattern` outside all brackets: (separator before the part, part), in order."""
    parts, depth, start, separator = [], 0, 0, ""
    for position, change in _steps(text) if pattern.search(text) else ():
        if position < start:
            continue
        if depth == 0 and (match := pattern.match(text, position)) is not None and match.end() > position:
            parts.append((separator, text[start:position]))
            separator, start = match.group().strip(), match.end()
        else:
            depth += change
    return [*parts, (separator, text[start:])]


def closes_first(text: str, width: int) -> bool:
    """Return whether the bracket of `width` characters that opens the text is the one that closes it."""
    levels = list(accumulate((change for _, change in _steps(text[width:-width])), initial=1))
    return 0 not in levels and levels[-1] == 1


# -- the grammar ------------------------------------------------------------------------------------------------------
_ONE_DEGREE: Term = ("div", ("const", "pi"), ("num", Fraction(180)))
_SIGNS = ("+", "-", "\\pm", "\\mp")
_OF_TWO: dict[str, Term] = {"frac": ("div",), **dict.fromkeys(("binom", "dbinom", "tbinom"), ("fn", "binomial"))}


class _Parser:
    """One pass over the tokens of one expression; what is missing raises NotMathematics."""

    def __init__(self, text: str) -> None:
        self._tokens = [*tokenize(text), ("", ""), ("", "")]
        self._at = 0
        self._bars = 0
        self._trigonometry = 0

    # -- sums, products, powers ----------------------------------------------------------------------------------
    def _sum(self) -> Term:
        terms = [self._product()]
        while self._peek() in _SIGNS:
            terms.append(self._product())
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def _product(self) -> Term:
        sign = self._peek()
        if self._take(*_SIGNS):
            term = self._product()
            return term if sign == "+" else ("neg", term) if sign == "-" else ("pm", 1 if sign == "\\pm" else -1, term)
        term = self._power()
        while True:
            if self._take("*", "\\cdot", "\\times", "\\ast"):
                term = ("mul", term, self._signed_power())
            elif self._take("/"):
                term = ("div", term, self._signed_power())
            elif self._take("\\div"):  # an operation to carry out, while a fraction is a number
                term = ("mul", term, ("pow", self._signed_power(), ("num", Fraction(-1))))
            elif self._take("\\bmod"):
                term = ("fn", "mod", term, self._signed_power())
            elif self._starts_factor():
                term = ("mul", term, self._power())
            else:
                return term

    def _signed_power(self) -> Term:
        if self._take("-"):
            return ("neg", self._signed_power())
        self._take("+")
        return self._power()

    def _starts_factor(self) -> bool:
        """Return whether a factor follows without a sign of multiplication. A number seldom does."""
        kind, token = self._kind(), self._peek()
        if kind == "num":
            # `2 3` may be a list or 23, and is refused; `(x)2`, `2^{25} 26!` and `n^2 2^n` can be nothing but products.
            before, before_that = self._tokens[self._at - 1][1], self._tokens[self._at - 2][1]
            # So is the `n 2^n` of `3n 2^n`.
            power = self._tokens[self._at - 1][0] == "let" and self._peek(1) in ("^", "**")
            return power or before in (")", "}", "!", "\\rfloor", "\\rceil") or before_that in ("^", "**")
        if kind == "let" or token in STARTS or (token == "|" and not self._bars):
            return True
        return kind == "cmd" and token[1:].partition(" ")[0] in STARTING_COMMANDS

    def _power(self) -> Term:
        base = self._postfix(self._atom())
        while self._take("^", "**"):
            if self._take("\\circ"):
                if self._trigonometry:
                    base = ("mul", base, _ONE_DEGREE)
                continue  # elsewhere degrees are a unit
            if self._peek() in ("'", "\\prime"):
                raise NotMathematics("a prime")
            base = self._postfix(("pow", base, self._exponent()))
        return base

    def _exponent(self) -> Term:
        if self._take("-"):
            return ("neg", self._exponent())
        if self._take("+"):
            return self._exponent()
        if self._peek() == "{":
            return self._group()
        base = self._postfix(self._atom())
        return ("pow", base, self._exponent()) if self._take("^", "**") else base

    def _postfix(self, term: Term) -> Term:
        while self._take("!"):
            if self._peek() == "!":
                raise NotMathematics("a double factorial")
            term = ("fn", "factorial", term)
        while self._take("%"):
            term = ("div", term, ("num", Fraction(100)))
        return term

    # -- tokens --------------------------------------------------------------------------------------------------
    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead][1]

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _take(self, *expected: str) -> bool:
        found = self._tokens[self._at][1] in expected
        self._at += found
        return found

    def _need(self, expected: str) -> None:
        if not self._take(expected):
            raise NotMathematics(f"expected {expected!r}, found {self._peek()!r}")

    def _raw_group(self) -> str:
        self._need("{")
        depth = 1
        parts: list[str] = []
        while depth:
            if not self._kind():
                raise NotMathematics("an open brace")
            parts.append(self._peek())
            self._at += 1
            depth += (parts[-1] == "{") - (parts[-1] == "}")
        return "".join(parts[:-1])

    def _points(self) -> list[str]:
        """Take two or more points (`A`, `A'`, `A_1`), in braces or without; none if something else stands there."""
        ahead = [text for _, text in self._tokens[self._at : self._at + 24]]
        found = _POINTS.match("".join(text if len(text) == 1 else " " for text in ahead))
        self._at += found.end() if found else 0
        return re.findall(r"[A-Z][^A-Z]*", re.sub("[{}]", "", found[2])) if found else []

    # -- atoms ---------------------------------------------------------------------------------------------------
    def _group(self) -> Term:
        self._need("{")
        term = self._sum()
        self._need("}")
        return term

    def _argument(self) -> Term:
        r"""Read the argument of a command as TeX does: a group, or one token (`\frac12`, `\sqrt3`)."""
        if self._peek() == "{":
            return self._group()
        kind, token = self._tokens[self._at]
        if kind == "num" and len(token) > 1 and token.isdigit():
            self._tokens[self._at] = ("num", token[1:])
            return ("num", Fraction(token[0]))
        return self._atom()

    def _atom(self) -> Term:
        kind, token = self._tokens[self._at]
        if kind == "num":
            self._at += 1
            _, mark, exponent = token.lower().partition("e")
            if mark and abs(int(exponent)) > MAX_DECIMAL_EXPONENT:
                raise TooBig
            return ("num", Fraction(token.rstrip(".")))  # `1.5`, `2.`, `1.2e5`
        if kind == "let":
            self._at += 1
            return self._named(token)
        if token == "{":
            return self._group()
        if token in CLOSERS and token != "\\{":  # braces in an expression: a set, or the fractional part
            term, *others = self._listed()
            rounded = {"\\lfloor": "floor", "\\lceil": "ceil"}.get(token)
            return ("opaque", "tuple" + token, term, *others) if others else ("fn", rounded, term) if rounded else term
        if token in ("|", "\\vert", "\\lvert", "\\mid"):
            self._at += 1
            self._bars += 1
            term = self._sum()
            self._bars -= 1
            self._need("\\rvert" if token == "\\lvert" else token)
            return ("fn", "abs", term)
        if kind == "cmd":
            self._at += 1
            return self._command(token[1:])
        raise NotMathematics(f"unexpected {token!r}")

    def _listed(self) -> list[Term]:
        """Read an opening bracket, expressions with commas between them, and the bracket that closes it."""
        opening = self._peek()
        self._at += 1
        terms = [self._sum()]
        while self._take(","):
            terms.append(self._sum())
        self._need(CLOSERS[opening])
        return terms

    def _named(self, letter: str) -> Term:
        """A variable with its subscript and primes, a constant, or the call of a function."""
        if self._take("_"):
            return self._subscripted(letter)
        name = letter
        while self._take("'") or (self._peek() == "^" and self._peek(1) in ("\\prime", "'") and self._take("^")):
            name += "'"
        if self._peek() == "(" and (name != letter or letter in CALLED):
            return ("opaque", name, *self._listed())
        return ("const" if name in ("e", "i") else "sym", name)

    def _subscripted(self, letter: str) -> Term:
        start = self._at
        try:
            index = self._atom()
        except NotMathematics:
            self._at = start
            return ("sym", f"{letter}_{self._raw_group()}")
        return ("sym", f"{letter}_{index[1]}") if index[0] == "num" else ("opaque", f"{letter}_", index)

    def _command(self, name: str) -> Term:
        if name in _OF_TWO:
            top = self._argument()
            bottom = self._argument()
            # `\frac{dy}{dx}` would be read as a quotient of letters, d y / (d x), and the two d cancel.
            if name == "frac" and _is_differential(top) and _is_differential(bottom):
                raise NotMathematics("a derivative")
            return (*_OF_TWO[name], top, bottom)
        if name in ("sqrt", "root"):
            if self._take("["):
                degree = self._sum()
                self._need("]")
                return ("fn", "root", self._argument(), degree)
            return ("fn", "sqrt", self._argument())
        if name in ("pi", "infty", "oo", "inf", "infinity"):
            return ("const", "pi" if name == "pi" else "inf")
        if name in WORDS.unary or name in ALIASES:
            return self._function(ALIASES.get(name, name))
        if name in ("abs", "floor", "ceil"):
            return ("fn", name, self._argument())
        if name in ("sum", "prod"):
            return self._bound(name)
        if name.startswith("begin "):
            return self._matrix(name.removeprefix("begin "))
        if name in WORDS.greek:
            return self._subscripted(name) if self._take("_") else ("sym", name)
        if name in ("angle", "vec", "overrightarrow") and (points := self._points()):
            # The order of a vector's points counts, an angle is the same from its other end.
            kept = min(points, points[::-1]) if name == "angle" else points
            return ("sym", f"{'angle' if name == 'angle' else 'vector'} {''.join(kept)}")
        if name in WORDS.accents:
            return ("opaque", name, self._argument())
        if name == "unitvector":  # what `\mathbf{i}` is cleaned to
            return ("sym", "vector " + self._raw_group())
        # What `0.\overline{3}` is cleaned to (whole part, fixed digits, period), and `3\frac{1}{2}`.
        if name in ("repeating", "mixed"):
            whole, fixed, period = parts = [self._raw_group() for _ in range(3)]
            if name == "mixed" and all(part.removeprefix("-").isdecimal() for part in parts):
                return ("fn", "mixed", *(("num", Fraction(part)) for part in parts))
            if name == "mixed" or not (period and "".join(parts).isdigit()):
                raise NotMathematics("a number without digits")
            tail = Fraction(int(period), 10 ** len(period) - 1)
            return ("num", (int(whole + fixed or "0") + tail) / 10 ** len(fixed))
        if name in WORDS.opaque_commands:
            return ("sym", name) if self._peek() != "{" else ("sym", f"{name} {self._raw_group()}")
        raise NotMathematics(f"the command \\{name}")

    def _function(self, name: str) -> Term:
        """Read `\\sin x`, `\\sin^2 x`, `\\log_2 8`, `\\sin(x) y`, `\\max(a, b)`."""
        base = power = None
        while self._peek() in ("_", "^"):
            if self._take("_"):
                base = self._atom()
            elif self._take("^"):
                if self._take("\\circ"):
                    raise NotMathematics("degrees after a function name")
                power = self._exponent()
        self._trigonometry += name in TRIGONOMETRY
        listed = self._peek() in ("(", "[", "\\{") and self._peek(1)
        bare = self._function_argument if self._peek() != "{" else self._group
        arguments = self._listed() if listed else [bare()]
        self._trigonometry -= name in TRIGONOMETRY
        if name == "lg":
            name, base = "log", ("num", Fraction(10))
        # `\sin^{-1} x` is the inverse, `\sin^2 x` the square of the sine.
        if power == ("neg", ("num", Fraction(1))) and name in INVERSES:
            name, power = INVERSES[name], None
        if name == "log" and base is None:
            # Base 10 or e, by the author's habit: a function of its own, equal to neither.
            term: Term = ("mul", ("fn", "ln", *arguments), NO_BASE)
        elif base is not None:
            term = ("fn", "log", *arguments, base)
        else:
            term = ("fn", name, *arguments)
        if name not in FUNCTIONS:
            raise NotMathematics(f"the function {name}")
        return term if power is None else ("pow", term, power)

    def _function_argument(self) -> Term:
        """Take the factors that follow a function's name, up to a sign or the next function: `\\sin 2x \\cos y`."""
        if self._take("-"):
            return ("neg", self._function_argument())
        if self._kind() == "cmd" and self._peek()[1:] in WORDS.unary:
            return self._power()
        term = self._power()
        while self._starts_factor() and self._peek() not in ("(", "[", "\\{"):
            if self._peek()[1:] in WORDS.unary or self._peek()[1:] in ALIASES or self._peek() == "\\sum":
                break
            term = ("mul", term, self._power())
        # `\sin x/2` divides the argument, `\ln 3/\ln 2` one function by another.
        while self._peek() == "/" and self._peek(1)[1:] not in WORDS.unary and self._take("/"):
            term = ("div", term, self._power())
        return term

    def _bound(self, head: str) -> Term:
        r"""Read `\sum_{k=0}^{n} body`. Integrals, limits and derivatives are no answers: they are not read."""
        variable, low, high = "", None, None
        while self._peek() in ("_", "^"):
            if self._take("^"):
                high = self._atom()
            elif self._take("_"):
                self._need("{")
                kind, variable = self._tokens[self._at]
                self._at += 1
                if kind != "let":
                    raise NotMathematics("a range without a variable")
                self._need("=")
                low = self._sum()
                self._need("}")
        body = self._product()
        if not variable:
            raise NotMathematics(f"\\{head} without a variable")
        return ("bind", head, variable, body, low, high)

    def _matrix(self, name: str) -> Term:
        if name not in MATRIX_NAMES:
            raise NotMathematics(f"the environment {name}")
        if name == "array":
            self._raw_group()
        rows: list[list[Term]] = [[]]
        end = f"\\end {name}"
        while not self._take(end):
            if self._take("\\hline"):
                continue
            if self._peek() in ("\\\\", "&"):
                raise NotMathematics("an empty cell")
            rows[-1].append(self._sum())
            if self._take("\\\\"):
                rows.append([])
            elif not self._take("&") and self._peek() != end:
                raise NotMathematics(f"unexpected {self._peek()!r} in a matrix")
        filled = [tuple(row) for row in rows if row]
        if not filled or len({len(row) for row in filled}) != 1:
            raise NotMathematics("a ragged matrix")
        return ("fn", "det", ("mat", tuple(filled))) if name in ("vmatrix", "Vmatrix") else ("mat", tuple(filled))


def _is_differential(term: Term) -> bool:
    """Return whether a side of a fraction is `d`, `dx`, `d^2 y` or the like with a curly d."""
    while term[0] in ("mul", "pow"):
        term = term[1]
    return term in (("sym", "d"), ("sym", "partial"))


def parse(text: str) -> Term:
    """Read cleaned text into a term. Raises NotMathematics, and TooBig for a number beyond the bounds."""
    parser = _Parser(text)
    try:
        term = parser._sum()
    except RecursionError:
        raise NotMathematics("nested too deeply") from None
    parser._need("")
    return term
