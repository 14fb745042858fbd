"""Rewritings that compute nothing and looks that change nothing: text in, text out, None where one does not apply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Rewriting = Callable[[str], str | None]
"""Returns None where it does not apply."""
_INTEGER = re.compile(r"(?<![\d.,\\a-zA-Z_{])\d{1,6}(?![\d.,}])")


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return the template with each `<name>` of a value replaced by it."""
    return re.sub(r"<([^<> ]+)>", lambda match: str(values.get(match[1], match[0])), template)


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


def _by_template(template: str) -> Rewriting:
    return lambda text: filled(template, {"text": text})


def _of_integer(template: str, least: int = 0) -> Rewriting:
    def write(n: int) -> str:
        values = {"n": n, "2n": 2 * n, "nn": n * n, "n/2": n / 2, "n-1": n - 1, "n+1": n + 1, "n+1000": n + 1000}
        return filled(template, values) if n >= least else f"{n}"

    return _integer(write)


def _in_words(text: str) -> str | None:
    for sign, word in (("-", "minus"), ("+", "plus"), ("*", "times"), (r"\\times", "times"), ("/", "divided by")):
        text = re.sub(rf"(?<=[\w)}}])\s*{sign if len(sign) > 1 else re.escape(sign)}\s*(?=[\w(\\])", f" {word} ", text)
    return text


def _substituted(pattern: str, by: str, needs: str = "") -> Rewriting:
    return lambda text: re.sub(pattern, by, text) if needs in text else None


_WIDE = {ord("0") + digit: chr(0xFF10 + digit) for digit in range(10)}
_SPOKEN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_ROMAN = ["0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
REWRITINGS: dict[str, Rewriting] = {
    **{name: _by_template(template) for name, template in _TEXTS["texts"].items()},
    **{name: _of_integer(template) for name, template in _TEXTS["integers"].items()},
    **{name: _of_integer(template, least=1) for name, template in _TEXTS["positive"].items()},
    "the last integer split": _integer(lambda n: f"({n + 3} - 3)", last=True),
    "operands swapped": _swapped,
    "an integer in scientific notation": _integer(lambda n: rf"{n / 10:.1f} \times 10^1"),
    "an integer with nines": _integer(lambda n: rf"{n - 1}.\overline{{9}}" if n else "0.0"),
    "an integer in base two": _integer(lambda n: f"{n:b}_2"),
    "an integer in wide digits": _integer(lambda n: str(n).translate(_WIDE)),
    "an integer in words": _integer(lambda n: _SPOKEN[n] if n < len(_SPOKEN) else f"{n}"),
    "an integer in hexadecimal": _integer(lambda n: f"0x{n:X}"),
    "an integer as an octal number": _integer(lambda n: f"{n:o}_8"),
    "an integer as a mixed number": _of_integer(r"<n-1>\frac{2}{2}", least=2),
    "an integer in Roman numerals": _integer(lambda n: _ROMAN[n] if n < len(_ROMAN) else f"{n}"),
    "operators in words": _in_words,
    "empty braces between": _substituted(r"(?<=[\w)}])([-+=])", r"{}\1{}"),
    "nothing drawn between": _substituted(r"([-+*=])", r"\\phantom{0}\1"),
    "each side doubled": lambda text: "=".join(f"2({side})" for side in text.split("=")) if "=" in text else None,
    "the sides swapped": lambda text: "=".join(text.split("=")[::-1]) if text.count("=") == 1 else None,
    "all on one side": lambda text: "{} - ({}) = 0".format(*text.split("=")) if text.count("=") == 1 else None,
    "an argument as a percentage": _substituted(r"\((-?\d+)\)", r"(\g<1>00\\%)", needs="("),
    "an argument over 1": _substituted(r"\((-?\d+)\)", r"(\\frac{\1}{1})", needs="("),
    "minus as plus a negative": _substituted(r"(?<=[\w)}])\s*-\s*(\d+)", r" + (-\1)"),
    "half as a power": _substituted(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1 \\cdot \2^{-1}"),
    "lines between": _substituted(r"([-+*=])", r"\n\1\n"),
    "a wide minus": lambda text: text.replace("-", "\uff0d").replace("+", "\uff0b"),
    "operators as relations": _substituted(r"([-+])", r"\\mathbin{\1}"),
}
"""Most were added after the rules were written, by someone who tried to break them."""
LOOKS: dict[str, Rewriting] = {
    **{name: _by_template(template) for name, template in _TEXTS["looks"].items()},
    "a full stop": lambda text: None if text.endswith("\\") else f"{text}.",
    "the answer is": lambda text: f"The answer is ${text}$." if "$" not in text else None,
    "fractions in another size": lambda text: text.replace(r"\frac", r"\dfrac") if r"\frac" in text else None,
    "sized brackets": lambda text: (
        text.replace("(", r"\left(").replace(")", r"\right)")
        if re.fullmatch(r"[^\\()\[\]]*\([^()\[\]]*\)[^()\[\]]*", text)
        else None
    ),
    "bold": lambda text: f"**{text.strip()}**" if "*" not in text else None,
    "operators apart": _substituted(r"(?<=[\w}])\+(?=[\w\\])", " + ", needs="+"),
    "lines around": _by_template("\n<text>\n"),
    "braces": lambda text: f"{{{text}}}" if not text.endswith(".") else None,
    "a space that does not break": _by_template("\u00a0<text>\u00a0"),
    "a typographic minus": _replaced("-", "\u2212"),
    "brackets without size": _replaced(r"\left", "", r"\right", ""),
    "spaces after commas": _substituted(r",(?=[^\s\d!])", ", "),
    "fractions in text size": _replaced(r"\frac", r"\tfrac"),
    "fractions without braces": _substituted(r"\\frac\{(\d)\}\{(\d)\}(?!\d)", r"\\frac\1\2"),
    "braces apart": _substituted(r"\\frac\{(.*?)\}\{", r"\\frac { \1 } { "),
    "a plain fraction": _substituted(r"^\\frac\{(\d+)\}\{(\d+)\}$", r"\1/\2"),
    "a root without braces": _substituted(r"\\sqrt\{(\d)\}", r"\\sqrt\1"),
    "a typed root": _substituted(r"\\sqrt\{(\d+)\}", r" sqrt(\1)"),
    "a percent sign": _replaced(r"\%", "%"),
    "a degree sign": _substituted(r"\^\\circ$", "°"),
    "roman text": _replaced(r"\text", r"\mathrm"),
    "bold text": _replaced(r"\text", r"\textbf"),
    "a Greek letter": _substituted(r"\\pi(?![a-z])", "π"),
    "another dot": _replaced(r"\cdot", r"\times"),
    "braces around exponents": _substituted(r"\^(\d)(?!\d)", r"^{\1}"),
    "decimal zeros": lambda text: f"{text}.0" if re.fullmatch(r"-?\d+", text) else None,
    "thousands": lambda text: f"{int(text):,}" if re.fullmatch(r"-?\d+", text) else None,
    "thousands in TeX": lambda text: f"{int(text):,}".replace(",", r"{,}") if re.fullmatch(r"-?\d+", text) else None,
    "square brackets of matrices": _replaced("pmatrix", "bmatrix"),
    "an equals sign": lambda text: f"= {text}" if re.fullmatch(r"-?\d+", text) else None,
    "infinity and unions typed": _replaced(r"\infty", "∞", r"\cup", "∪"),
}
