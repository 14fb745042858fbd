"""Rewritings that compute nothing and looks that change nothing: text in, text out, None where one does not apply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Rewriting = Callable[[str], str | None]  # Returns None where it does not apply
_INTEGER = re.compile(r"(?<![\d.,\\a-zA-Z_{])\d{1,6}(?![\d.,}])")
_WIDE = {ord("0") + digit: chr(0xFF10 + digit) for digit in range(10)}
_SPOKEN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_ROMAN = ["0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return the template with each `<name>` of a value replaced by it."""
    return re.sub(r"<([^<> ]+)>", lambda match: str(values.get(match[1], match[0])), template)


def _integer(write: Callable[[int], str], last: bool = False) -> Rewriting:
    def rewrite(text: str) -> str | None:
        found = list(_INTEGER.finditer(text))
        if not found:
            return None
        match = found[-1 if last else 0]
        return text[: match.start()] + write(int(match.group())) + text[match.end() :]

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


REWRITINGS: dict[str, Rewriting] = {
    **{name: _by_template(template) for name, template in _TEXTS["texts"].items()},
    **{name: _of_integer(template) for name, template in _TEXTS["integers"].items()},
    **{name: _of_integer(template, least=1) for name, template in _TEXTS["positive"].items()},
    **{name: _substituted(*given) for name, given in _TEXTS["substitutions"].items()},
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
    "each side doubled": lambda text: "=".join(f"2({side})" for side in text.split("=")) if "=" in text else None,
    "the sides swapped": lambda text: "=".join(text.split("=")[::-1]) if text.count("=") == 1 else None,
    "all on one side": lambda text: "{} - ({}) = 0".format(*text.split("=")) if text.count("=") == 1 else None,
    "a wide minus": lambda text: text.replace("-", "\uff0d").replace("+", "\uff0b"),
}
"""Most were added after the rules were written, by someone who tried to break them."""
WRAPPERS: dict[str, Rewriting] = {
    name: lambda text, template=template: filled(template, {"text": text}) if "$" not in text else None  # type: ignore[misc]
    for name, template in _TEXTS["wrappers"].items()
}
"""What the reader reads away: an answer in it has the verdict of the answer by itself."""
LETTERS: dict[str, Rewriting] = {name: _by_template(template) for name, template in _TEXTS["letters"].items()}
"""Letters of a choice, which count only where the problem has options."""
LOOKS: dict[str, Rewriting] = {
    **{name: _by_template(template) for name, template in _TEXTS["looks"].items()},
    **{name: _substituted(*given) for name, given in _TEXTS["look substitutions"].items()},
    "a full stop": lambda text: None if text.endswith("\\") else f"{text}.",
    "the answer is": lambda text: f"The answer is ${text}$." if "$" not in text else None,
    "fractions in another size": lambda text: text.replace(r"\frac", r"\dfrac") if r"\frac" in text else None,
    "sized brackets": lambda text: (
        text.replace("(", r"\left(").replace(")", r"\right)")
        if re.fullmatch(r"[^\\()\[\]]*\([^()\[\]]*\)[^()\[\]]*", text)
        else None
    ),
    "bold": lambda text: f"**{text.strip()}**" if "*" not in text else None,
    "braces": lambda text: f"{{{text}}}" if not text.endswith(".") else None,
    "decimal zeros": lambda text: f"{text}.0" if re.fullmatch(r"-?\d+", text) else None,
    "thousands": lambda text: f"{int(text):,}" if re.fullmatch(r"-?\d+", text) else None,
    "thousands in TeX": lambda text: f"{int(text):,}".replace(",", r"{,}") if re.fullmatch(r"-?\d+", text) else None,
    "an equals sign": lambda text: f"= {text}" if re.fullmatch(r"-?\d+", text) else None,
    "infinity and unions typed": lambda text: re.sub(
        r"\\(infty|cup)(?![a-zA-Z])", lambda match: "∞" if match[1] == "infty" else "∪", text
    ),
}
