"""Rewritings that compute nothing and looks that change nothing: text in, text out, None where one does not apply."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import yaml

Rewriting = Callable[[str], str | None]
"""Returns None where it does not apply."""
_INTEGER = re.compile(r"(?<![\d.,\\a-zA-Z_{])\d{1,6}(?![\d.,}])")


def _around(before: str, after: str) -> Rewriting:
    return lambda text: before + text + after


def _replaced(*texts: str) -> Rewriting:
    def rewrite(text: str) -> str:
        for old, new in zip(texts[::2], texts[1::2], strict=True):
            text = re.sub(
                re.escape(old) + r"(?![a-zA-Z])" if old[-1].isalpha() else re.escape(old), lambda _, n=new: n, text
            )
        return text

    return rewrite


def _integer(template: Callable[[int], str], last: bool = False) -> Rewriting:
    def rewrite(text: str) -> str | None:
        found = list(_INTEGER.finditer(text))
        if not found:
            return None
        match = found[-1 if last else 0]
        return text[: match.start()] + template(int(match.group())) + text[match.end() :]

    return rewrite


def _swapped(text: str) -> str | None:
    left, plus, right = text.partition("+")
    simple = plus and not re.search(r"[-+/^*=<>,(){}\\]", right) and not re.search(r"[-=<>,\\]", left)
    return f"{right} + {left}" if simple and left.strip() else None


_AROUND = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
REWRITINGS: dict[str, Rewriting] = {
    **{name: _around(*both) for name, both in _AROUND["rewritings"].items()},
    "an integer split": _integer(lambda n: f"({n - 1} + 1)"),
    "the last integer split": _integer(lambda n: f"({n + 3} - 3)", last=True),
    "an integer as a fraction": _integer(lambda n: rf"\frac{{{2 * n}}}{{2}}"),
    "an integer times 1": _integer(lambda n: rf"({n} \cdot 1)"),
    "an integer to the 1": _integer(lambda n: f"{{{n}}}^1"),
    "an integer as a root": _integer(lambda n: rf"\sqrt{{{n * n}}}"),
    "an integer as a floor": _integer(lambda n: rf"\lfloor {n}.5 \rfloor"),
    "an integer as an absolute value": _integer(lambda n: rf"|-{n}|"),
    "operands swapped": _swapped,
    "equal to itself": lambda text: f"{text} = {text}",
}
_WIDE = {ord("0") + digit: chr(0xFF10 + digit) for digit in range(10)}
_SPOKEN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]

_ROMAN = ["0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]


def _in_words(text: str) -> str | None:
    for sign, word in (("-", "minus"), ("+", "plus"), ("*", "times"), (r"\\times", "times"), ("/", "divided by")):
        text = re.sub(rf"(?<=[\w)}}])\s*{sign if len(sign) > 1 else re.escape(sign)}\s*(?=[\w(\\])", f" {word} ", text)
    return text


FRESH: dict[str, Rewriting] = {
    "an integer as a percentage": _integer(lambda n: rf"{n}00\%"),
    "an integer in base ten": _integer(lambda n: rf"{n}_{{10}}"),
    "thirds of it": lambda text: rf"\frac{{1}}{{3}}({text}) + \frac{{2}}{{3}}({text})",
    "twice, joined": lambda text: f"{text} or {text}",
    "a mean of equals": lambda text: rf"\frac{{({text}) + ({text})}}{{2}}",
    "its square over it": lambda text: rf"\frac{{({text})^2}}{{{text}}}",
    "minimum of two equals": lambda text: rf"\min({text}, {text})",
    "a degenerate interval": lambda text: f"[{text}, {text}]",
    "bounded by itself": lambda text: rf"{text} \le x \le {text}",
    "an integer in scientific notation": _integer(lambda n: rf"{n / 10:.1f} \times 10^1"),
    "an integer with a decimal": _integer(lambda n: f"{n}.0"),
    "an integer with nines": _integer(lambda n: rf"{n - 1}.\overline{{9}}" if n else "0.0"),
    "an integer in base two": _integer(lambda n: f"{n:b}_2"),
    "an integer to the 3-2": _integer(lambda n: rf"{n}^{{3-2}}"),
    "an integer chosen": _integer(lambda n: rf"\binom{{{n}}}{{{n - 1}}}" if n else "0"),
    "an integer in wide digits": _integer(lambda n: str(n).translate(_WIDE)),
    "an integer in words": _integer(lambda n: _SPOKEN[n] if n < len(_SPOKEN) else f"{n}"),
    "an integer in a box": _integer(lambda n: rf"\boxed{{{n}}}"),
    "an integer in hexadecimal": _integer(lambda n: f"0x{n:X}"),
    "an integer as a mixed number": _integer(lambda n: rf"{n - 1}\frac{{2}}{{2}}" if n > 1 else f"{n}"),
    "an integer as two halves": _integer(lambda n: rf"({n / 2} + {n / 2})"),
    "operators in words": _in_words,
    "empty braces between": lambda text: re.sub(r"(?<=[\w)}])([-+=])", r"{}\1{}", text),
    "nothing drawn between": lambda text: re.sub(r"([-+*=])", r"\\phantom{0}\1", text),
    "each side doubled": lambda text: "=".join(f"2({side})" for side in text.split("=")) if "=" in text else None,
    "the sides swapped": lambda text: "=".join(text.split("=")[::-1]) if text.count("=") == 1 else None,
    "all on one side": lambda text: "{} - ({}) = 0".format(*text.split("=")) if text.count("=") == 1 else None,
    "an argument as a percentage": lambda text: re.sub(r"\((-?\d+)\)", r"(\g<1>00\\%)", text) if "(" in text else None,
    "an argument over 1": lambda text: re.sub(r"\((-?\d+)\)", r"(\\frac{\1}{1})", text) if "(" in text else None,
    "minus as plus a negative": lambda text: re.sub(r"(?<=[\w)}])\s*-\s*(\d+)", r" + (-\1)", text),
    "two roots of it": lambda text: rf"\sqrt{{{text}}} \cdot \sqrt{{{text}}}",
    "half as a power": lambda text: re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1 \\cdot \2^{-1}", text),
    "where": lambda text: rf"t, \text{{ where }} t = {text}",
    "defined and used": lambda text: f"x = {text}, x",
    "lines between": lambda text: re.sub(r"([-+*=])", r"\n\1\n", text),
    "a wide minus": lambda text: text.replace("-", "\uff0d").replace("+", "\uff0b"),
    "operators as relations": lambda text: re.sub(r"([-+])", r"\\mathbin{\1}", text),
    "its own list": lambda text: f"{text}; {text}",
    "times its sign": lambda text: rf"\operatorname{{sgn}}({text}) \cdot |{text}|",
    "an integer as a ceiling": _integer(lambda n: rf"\lceil {n - 1}.5 \rceil" if n else "0"),
    "an integer as a continued fraction": _integer(
        lambda n: rf"{n - 1} + \cfrac{{1}}{{0 + \cfrac{{1}}{{1}}}}" if n else "0"
    ),
    "an integer as a logarithm": _integer(lambda n: rf"\log_{{10}} 10^{{{n}}}"),
    "an integer from factorials": _integer(lambda n: rf"\frac{{{n}!}}{{{n - 1}!}}" if n else "0"),
    "an integer as the root of its square": _integer(lambda n: rf"\sqrt{{{n}^2}}"),
    "an integer as a remainder": _integer(lambda n: rf"({n} \bmod {n + 1})"),
    "an integer with a new base": _integer(lambda n: rf"\frac{{\log_2 3^{{{n}}}}}{{\log_2 3}}"),
    "an integer in Roman numerals": _integer(lambda n: _ROMAN[n] if n < len(_ROMAN) else f"{n}"),
}
"""Added after the rules were written, by someone who tried to break them."""
REWRITINGS |= FRESH
UNSEEN: dict[str, Rewriting] = {
    "two cases alike": lambda text: rf"\begin{{cases}} {text} & t > 0 \\ {text} & t \le 0 \end{{cases}}",
    "let and then": lambda text: f"Let $t = {text}$. Then the answer is $t$.",
    "equal weights": lambda text: f"0.5({text}) + 0.5({text})",
    "an interpolation": lambda text: f"(1-0)({text}) + 0({text})",
    "about itself": lambda text: rf"{text} \approx {text}",
    "that is": lambda text: f"{text}, that is, {text}",
    "an integer with zeros before it": _integer(lambda n: f"00{n}"),
    "an integer with a plus": _integer(lambda n: f"(+{n})"),
    "an integer less a thousand": _integer(lambda n: f"({n + 1000} - 1000)"),
    "an integer as a sum of ones": _integer(lambda n: rf"\sum_{{k=1}}^{{{n}}} 1"),
    "an integer as a common divisor": _integer(lambda n: rf"\gcd({n}, {n})"),
    "an integer as a maximum": _integer(lambda n: rf"\max({n}, {n - 1})"),
    "an integer as a modulus": _integer(lambda n: rf"|{n}i|"),
    "an integer as a floor of halves": _integer(lambda n: rf"\left\lfloor \frac{{{2 * n}}}{{2}} \right\rfloor"),
    "an integer as a difference of squares": _integer(lambda n: rf"({n + 1}^2 - {n}^2 - {n + 1})"),
    "an integer as a derivative": _integer(lambda n: rf"({n}t)'"),
    "an integer as an arithmetic mean": _integer(lambda n: rf"\frac{{{n - 1} + {n + 1}}}{{2}}"),
    "an integer as a geometric mean": _integer(lambda n: rf"\sqrt{{{n} \cdot {n}}}"),
    "an integer as a power of a root": _integer(lambda n: rf"\left(\sqrt[3]{{{n}}}\right)^3"),
    "an integer below a bar": _integer(lambda n: rf"\left.{n}\right|"),
    "an integer times i to the 4": _integer(lambda n: rf"{n}i^4"),
    "an integer as an ordinal": _integer(lambda n: rf"{n}^{{\text{{th}}}}"),
    "an integer as an octal number": _integer(lambda n: f"{n:o}_8"),
    "an integer as a limit": _integer(lambda n: rf"\lim_{{t \to {n}}} t"),
    "an integer as an integral": _integer(lambda n: rf"\int_0^{{{n}}} dt"),
    "an integer with an exponent of 0": _integer(lambda n: rf"{n} \cdot 9^0"),
    "an integer in wide spaces": _integer(lambda n: rf"\quad {n} \quad"),
}
"""Added after the rules of version 8, by someone who tried to break those."""
REWRITINGS |= UNSEEN
LOOKS: dict[str, Rewriting] = {
    **{name: _around(*both) for name, both in _AROUND["looks"].items()},
    "a full stop": lambda text: None if text.endswith("\\") else f"{text}.",
    "the answer is": lambda text: f"The answer is ${text}$." if "$" not in text else None,
    "fractions in another size": lambda text: text.replace(r"\frac", r"\dfrac") if r"\frac" in text else None,
    "sized brackets": lambda text: (
        text.replace("(", r"\left(").replace(")", r"\right)")
        if re.fullmatch(r"[^\\()\[\]]*\([^()\[\]]*\)[^()\[\]]*", text)
        else None
    ),
    "bold": lambda text: f"**{text.strip()}**" if "*" not in text else None,
    "operators apart": lambda text: re.sub(r"(?<=[\w}])\+(?=[\w\\])", " + ", text) if "+" in text else None,
    "lines around": _around("\n", "\n"),
    "braces": lambda text: f"{{{text}}}" if not text.endswith(".") else None,
    "a space that does not break": _around("\u00a0", "\u00a0"),
    "a typographic minus": _replaced("-", "\u2212"),
    "brackets without size": _replaced(r"\left", "", r"\right", ""),
    "spaces after commas": lambda text: re.sub(r",(?=[^\s\d!])", ", ", text),
    "fractions in text size": _replaced(r"\frac", r"\tfrac"),
    "fractions without braces": lambda text: re.sub(r"\\frac\{(\d)\}\{(\d)\}(?!\d)", r"\\frac\1\2", text),
    "braces apart": lambda text: re.sub(r"\\frac\{(.*?)\}\{", r"\\frac { \1 } { ", text),
    "a plain fraction": lambda text: re.sub(r"^\\frac\{(\d+)\}\{(\d+)\}$", r"\1/\2", text),
    "a root without braces": lambda text: re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", text),
    "a typed root": lambda text: re.sub(r"\\sqrt\{(\d+)\}", r" sqrt(\1)", text),
    "a percent sign": _replaced(r"\%", "%"),
    "a degree sign": lambda text: re.sub(r"\^\\circ$", "°", text),
    "roman text": _replaced(r"\text", r"\mathrm"),
    "bold text": _replaced(r"\text", r"\textbf"),
    "a Greek letter": lambda text: re.sub(r"\\pi(?![a-z])", "π", text),
    "another dot": _replaced(r"\cdot", r"\times"),
    "braces around exponents": lambda text: re.sub(r"\^(\d)(?!\d)", r"^{\1}", text),
    "decimal zeros": lambda text: f"{text}.0" if re.fullmatch(r"-?\d+", text) else None,
    "thousands": lambda text: f"{int(text):,}" if re.fullmatch(r"-?\d+", text) else None,
    "thousands in TeX": lambda text: f"{int(text):,}".replace(",", r"{,}") if re.fullmatch(r"-?\d+", text) else None,
    "square brackets of matrices": _replaced("pmatrix", "bmatrix"),
    "an equals sign": lambda text: f"= {text}" if re.fullmatch(r"-?\d+", text) else None,
    "infinity and unions typed": _replaced(r"\infty", "∞", r"\cup", "∪"),
}
