"""Tokens of an expression, a place in them, the tables of the names the grammar knows, and brackets of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate

from gtpo.rewards.equality.arithmetic.values import TooBig
from gtpo.rewards.limits import MAX_DECIMAL_EXPONENT
from gtpo.rewards.text import words


class NotMathematics(Exception):
    """The text is not an expression of this grammar."""


GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar"
)
TRIGONOMETRY = words("sin cos tan cot sec csc")
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arctg": "arctan", "tg": "tan", "ctg": "cot"}
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}
UNARY = words("sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh exp ln log lg det gcd lcm max min")
_WORDS = UNARY | ALIASES.keys() | {"sqrt", "pi", "oo", "inf", "infinity", "infty", "abs", "floor", "ceil", "theta"}
ACCENTS = words(
    "overline bar vec hat widehat overrightarrow overleftrightarrow tilde widetilde dot ddot underline overarc"
)
OPAQUE_COMMANDS = words("angle triangle nabla partial mathbb ldots cdots dots vdots dotsb square star Box")
CALLED = frozenset("fghFG")
CLOSERS = {"(": ")", "[": "]", "\\{": "\\}", "\\lceil": "\\rceil", "\\lfloor": "\\rfloor"}
STARTS = frozenset(["(", "[", "\\{", "{", "\\lceil", "\\lfloor"])

STARTING_COMMANDS = (
    GREEK
    | UNARY
    | ALIASES.keys()
    | ACCENTS
    | OPAQUE_COMMANDS
    | {"frac", "sqrt", "pi", "infty", "binom", "dbinom", "tbinom", "sum", "prod", "int", "lim", "begin", "{"}
    | {"lceil", "lfloor", "lvert", "unitvector", "repeating", "mixed", "theta", "abs", "floor", "ceil"}
)

_TOKEN = re.compile(
    r"\s*(?:(?P<sci>(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+(?![\w]))|(?P<num>\d+\.\d+|\.\d+|\d+\.(?![\d.])|\d+)"
    r"|(?P<env>\\(?:begin|end)\s*\{\s*[a-zA-Z]+\*?\s*\})|(?P<cmd>\\[a-zA-Z]+|\\[^a-zA-Z\s])|(?P<word>[a-zA-Z]+)|(?P<op>\*\*|[-+*/^_()\[\]{}|!,'&;=%]))"
)
MATRIX_NAMES = frozenset(["pmatrix", "bmatrix", "vmatrix", "matrix", "Bmatrix", "Vmatrix", "smallmatrix", "array"])


def tokenize(text: str) -> list[tuple[str, str]]:
    """Split into (kind, text) tokens. Raises NotMathematics at a character that starts none."""
    tokens, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotMathematics(f"unexpected {text[position : position + 8]!r}")
        kind = match.lastgroup or ""
        value = match[kind]
        position = match.end()
        if kind == "word":
            tokens += _split_word(value)
        elif kind == "env":
            command, _, name = value.rstrip("} ").partition("{")
            tokens += [("cmd", command.strip()), ("env", name.strip())]
        else:
            tokens.append(("num" if kind == "sci" else kind, value))
    return tokens


def _split_word(word: str) -> list[tuple[str, str]]:
    """Letters are variables, one each; known names are taken whole; longer words are no mathematics."""
    if word in _WORDS:
        return [("cmd", "\\" + word)]
    for name in ("sqrt", "arcsin", "arccos", "arctan", "sin", "cos", "tan", "log", "ln", "pi"):
        if name in word and len(word) <= len(name) + 2:  # `xsin`, `2pix`
            before, _, after = word.partition(name)
            return [("let", c) for c in before] + [("cmd", "\\" + name)] + [("let", c) for c in after]
    if len(word) > 4:
        return [("word", word)]  # no atom: good for nothing but a subscript
    return [("let", letter) for letter in word]


class Cursor:
    """The tokens of a text and how far they have been read. What is missing raises NotMathematics."""

    def __init__(self, text: str) -> None:
        self.tokens = [*tokenize(text), ("", ""), ("", "")]
        self.at: int = 0

    def _peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1]

    def _kind(self) -> str:
        return self.tokens[self.at][0]

    def _take(self, *expected: str) -> bool:
        found = self.tokens[self.at][1] in expected
        self.at += found
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
            self.at += 1
            depth += (parts[-1] == "{") - (parts[-1] == "}")
        return "".join(parts[:-1])

    def _environment(self) -> str:
        if self._kind() != "env":
            raise NotMathematics("an environment without a name")
        self.at += 1
        return self.tokens[self.at - 1][1]


def read_number(token: str) -> Fraction:
    """Return the value of a number token, `1.5`, `2.`, `1.2e5`. Raises TooBig for exponents beyond bounds."""
    _, mark, exponent = token.lower().partition("e")
    if mark and abs(int(exponent)) > MAX_DECIMAL_EXPONENT:
        raise TooBig
    return Fraction(token.rstrip(".") if token.endswith(".") else token)


def repeating_decimal(whole: str, fixed: str, period: str) -> Fraction:
    """Return the value of whole.fixed(period)(period)…"""
    if not period.isdigit() or (fixed and not fixed.isdigit()) or (whole and not whole.isdigit()):
        raise NotMathematics("a repeating decimal without digits")
    scale = 10 ** len(fixed)
    return Fraction(int(whole + fixed or "0"), scale) + Fraction(int(period), scale * (10 ** len(period) - 1))


_PIECE = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]+|\\?[^\s]")
_SAME = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\times": "*", r"\cdot": "*", r"\ast": "*",
    r"\div": "/", r"\leq": r"\le", r"\geq": r"\ge", r"\%": "%",
}  # fmt: skip
_SILENT = frozenset(
    ["$", "{", "}", r"\left", r"\right", r"\,", r"\;", r"\!", r"\:", r"\displaystyle", r"\quad", r"\text", r"\$",
     r"\(", r"\)", r"\[", r"\]", r"\big", r"\Big", r"\bigl", r"\bigr", "~", "\\",
     r"\mathbf", r"\mathrm", r"\textbf", r"\mathit", r"\boldsymbol", r"\bm", r"\operatorname", r"\mathsf", r"\limits"]
)  # fmt: skip


def tokens_of(text: str) -> tuple[str, ...]:
    """Return the tokens of a text without delimiters, braces and space, operators in one spelling."""
    joined = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return tuple(_SAME.get(token, token) for token in _PIECE.findall(joined) if token not in _SILENT)


def occurs(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    """Return whether tokens stand in a row within others."""
    if not part:
        return False
    first, size = part[0], len(part)
    return any(token == first and whole[at : at + size] == part for at, token in enumerate(whole))


_OPEN, _CLOSE = "([{", ")]}"


def _steps(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each character, or of a backslash with the next, and by how much it changes the depth."""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            following = text[position + 1 : position + 2]
            environment = text.startswith("\\begin", position) - text.startswith("\\end", position)
            yield position, (following == "{") - (following == "}") + environment
            position += 1
        else:
            yield position, (character in _OPEN) - (character in _CLOSE)
        position += 1


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
