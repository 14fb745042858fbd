"""Rewritings that compute nothing and looks that change nothing: text in, text out, None where one does not apply."""

from __future__ import annotations

import re
from collections.abc import Callable

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


REWRITINGS: dict[str, Rewriting] = {
    "a new variable added and taken away": _around("", " + t - t"),
    "a new variable around": _around("t + ", " - t"),
    "nothing times a variable": _around("0x + ", ""),
    "a variable above and below": _around("(", r")\frac{t}{t}"),
    "a variable typed above and below": _around("(", ")t/t"),
    "a sum above and below": _around(r"\frac{(x+1)(", r")}{x+1}"),
    "a number added and taken away": _around("", " + 5 - 5"),
    "zero": _around("0 + ", ""),
    "one": _around(r"1 \cdot (", ")"),
    "times and divided": _around("3(", ")/3"),
    "a fraction of equal factors": _around(r"\frac{7}{7}(", ")"),
    "a fraction of it": _around(r"\frac{2(", ")}{2}"),
    "two minus signs": _around("-(-(", "))"),
    "an integer split": _integer(lambda n: f"({n - 1} + 1)"),
    "the last integer split": _integer(lambda n: f"({n + 3} - 3)", last=True),
    "an integer as a fraction": _integer(lambda n: rf"\frac{{{2 * n}}}{{2}}"),
    "an integer times 1": _integer(lambda n: rf"({n} \cdot 1)"),
    "an integer to the 1": _integer(lambda n: f"{{{n}}}^1"),
    "an integer as a root": _integer(lambda n: rf"\sqrt{{{n * n}}}"),
    "an integer as a floor": _integer(lambda n: rf"\lfloor {n}.5 \rfloor"),
    "an integer as an absolute value": _integer(lambda n: rf"|-{n}|"),
    "root of a square": _around(r"\sqrt{(", ")^2}"),
    "square of a root": _around(r"(\sqrt{", "})^2"),
    "logarithm of an exponential": _around(r"\ln(e^{", "})"),
    "exponential of a logarithm": _around(r"e^{\ln(", ")}"),
    "logarithm to base 2": _around(r"\log_2(2^{", "})"),
    "a sum of one term": _around(r"\sum_{k=1}^{1} (", ")"),
    "a product of one factor": _around(r"\prod_{k=1}^{1} (", ")"),
    "an integral over 1": _around(r"\int_0^1 (", ") dz"),
    "the Pythagorean identity": _around("(", r")(\sin^2 x + \cos^2 x)"),
    "to the 1": _around("(", ")^1"),
    "to the 2/2": _around("(", ")^{2/2}"),
    "maximum of one": _around(r"\max(", ")"),
    "plus or minus 0": _around("", r" \pm 0"),
    "one over one over": _around(r"\frac{1}{\frac{1}{", "}}"),
    "a logarithm of 1": _around("", r" + \ln 1"),
    "to the 0": _around("2^0 (", ")"),
    "a determinant": _around(r"\det\begin{pmatrix}", r"\end{pmatrix}"),
    "a hundredfold percentage": _around("100(", r")\%"),
    "operands swapped": _swapped,
    "named": _around("x = ", ""),
    "equal to itself": lambda text: f"{text} = {text}",
    "in brackets and a box": _around(r"\boxed{(", ")}"),
}
_WIDE = {ord("0") + digit: chr(0xFF10 + digit) for digit in range(10)}
_SPOKEN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]

_ROMAN = ["0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]


def _in_words(text: str) -> str | None:
    for sign, word in (("-", "minus"), ("+", "plus"), ("*", "times"), (r"\\times", "times"), ("/", "divided by")):
        text = re.sub(rf"(?<=[\w)}}])\s*{sign if len(sign) > 1 else re.escape(sign)}\s*(?=[\w(\\])", f" {word} ", text)
    return text


FRESH: dict[str, Rewriting] = {
    "conjugates": _around("(", r")(\sqrt{2}-1)(\sqrt{2}+1)"),
    "greatest common divisor with 0": _around(r"\gcd(", ", 0)"),
    "minus i squared": _around("-i^2 (", ")"),
    "a full turn": _around("(", r")e^{2\pi i}"),
    "cosine of 0": _around("(", r")\cos 0"),
    "choose 1": _around(r"\binom{", "}{1}"),
    "repeating nines": _around("(", r")0.\overline{9}"),
    "a limit": _around(r"\lim_{t \to 0} (", ")"),
    "a derivative": _around(r"\frac{d}{dt} [(", ") t]"),
    "an integer as a percentage": _integer(lambda n: rf"{n}00\%"),
    "an integer in base ten": _integer(lambda n: rf"{n}_{{10}}"),
    "times ten to the 0": _around("(", r") \times 10^0"),
    "a ratio to 1": _around("", " : 1"),
    "thirds of it": lambda text: rf"\frac{{1}}{{3}}({text}) + \frac{{2}}{{3}}({text})",
    "logarithm to base 10": _around(r"10^{\log_{10}(", ")}"),
    "the result of": _around(r"\text{the result of } ", ""),
    "a set of it": _around(r"\{", r"\}"),
    "nested brackets": _around("[((", "))]"),
    "a sentence": _around("It is ", "."),
    "something cancelled": _around(r"\cancel{x}", ""),
    "units": _around("", " units"),
    "twice, joined": lambda text: f"{text} or {text}",
    "a mean of equals": lambda text: rf"\frac{{({text}) + ({text})}}{{2}}",
    "its square over it": lambda text: rf"\frac{{({text})^2}}{{{text}}}",
    "half a root of four squares": _around(r"\frac{\sqrt{4(", ")^2}}{2}"),
    "a diagonal determinant": _around(r"\begin{vmatrix} ", r" & 0 \\ 0 & 1 \end{vmatrix}"),
    "an integral of 1 to it": _around(r"\int_0^{", "} 1 dz"),
    "minimum of two equals": lambda text: rf"\min({text}, {text})",
    "a large remainder": _around("(", r") \bmod 10^9"),
    "tangent undone": _around(r"\arctan(\tan(", "))"),
    "sine undone": _around(r"\sin(\arcsin(", "))"),
    "an imaginary nothing": _around("", " + 0i"),
    "the fourth power of i": _around("i^4 (", ")"),
    "a factorial of 0": _around("0! (", ")"),
    "over 1": _around(r"\frac{", "}{1}"),
    "a change of base": _around(r"\frac{\ln e^{", r"}}{\ln e}"),
    "a matrix of one": _around(r"\begin{pmatrix} ", r" \end{pmatrix}"),
    "a limit at infinity": _around(r"\lim_{n \to \infty} (", r" + \frac{1}{n})"),
    "one of a set": _around(r"x \in \{", r"\}"),
    "defined": _around("y := ", ""),
    "therefore": _around(r"\therefore ", ""),
    "about": _around(r"\approx ", ""),
    "under a brace": _around(r"\underbrace{", "}"),
    "in colour": _around(r"\textcolor{red}{", "}"),
    "in text": _around(r"\text{", "}"),
    "a subset": _around(r"\sup\{", r"\}"),
    "a real part": _around(r"\operatorname{Re}(", ")"),
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
    "a reason": _around("because ", ""),
    "the answer of a sentence": _around("The answer is ", " as given"),
    "its own name": _around(r"\text{answer} = ", ""),
    "an argument as a percentage": lambda text: re.sub(r"\((-?\d+)\)", r"(\g<1>00\\%)", text) if "(" in text else None,
    "an argument over 1": lambda text: re.sub(r"\((-?\d+)\)", r"(\\frac{\1}{1})", text) if "(" in text else None,
    "an identity added": _around("", " + (t^2-1) - (t-1)(t+1)"),
    "an identity above and below": _around("(", r") \cdot \frac{t^2-1}{(t-1)(t+1)}"),
    "a cube root of a cube": _around(r"\sqrt[3]{(", ")^3}"),
    "an absolute value": _around("|", "|"),
    "a logarithm to a new base": _around(r"\log_t t^{", "}"),
    "a sum of equal parts": _around(r"\sum_{k=1}^{4} \frac{", "}{4}"),
    "to the Pythagorean identity": _around("(", r")^{\sin^2 t + \cos^2 t}"),
    "hyperbolic one": _around("(", r")(\cosh^2 t - \sinh^2 t)"),
    "a mean by an integral": _around(r"\int_0^1 2t(", ") dt"),
    "choose 0": _around(r"\binom{5}{0}(", ")"),
    "a common divisor below": _around(r"\frac{", r"}{\gcd(2,3)}"),
    "least common multiple with 1": _around(r"\operatorname{lcm}(", ", 1)"),
    "minus as plus a negative": lambda text: re.sub(r"(?<=[\w)}])\s*-\s*(\d+)", r" + (-\1)", text),
    "twice inverted": _around("((", ")^{-1})^{-1}"),
    "two roots of it": lambda text: rf"\sqrt{{{text}}} \cdot \sqrt{{{text}}}",
    "half as a power": lambda text: re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1 \\cdot \2^{-1}", text),
    "sine of pi": _around("", r" + \sin \pi"),
    "a number with a remark": _around("", r" \text{ (simplified)}"),
    "where": lambda text: rf"t, \text{{ where }} t = {text}",
    "defined and used": lambda text: f"x = {text}, x",
    "an array": _around(r"\begin{array}{c} ", r" \end{array}"),
    "cases": _around(r"\begin{cases} ", r" \end{cases}"),
    "aligned": _around(r"\begin{aligned} & ", r" \end{aligned}"),
    "a limit to 1": _around(r"\lim_{t \to 1} t(", ")"),
    "a degree": _around(r"\deg(z^{", "})"),
    "a size of a set": _around(r"|\{1, \ldots, ", r"\}|"),
    "rounded": _around(r"\operatorname{round}(", ")"),
    "in HTML": _around("<b>", "</b>"),
    "lines between": lambda text: re.sub(r"([-+*=])", r"\n\1\n", text),
    "a wide minus": lambda text: text.replace("-", "\uff0d").replace("+", "\uff0b"),
    "operators as relations": lambda text: re.sub(r"([-+])", r"\\mathbin{\1}", text),
    "in base ten": _around("(", ")_{10}"),
    "a norm": _around(r"\lVert ", r" \rVert"),
    "with a question": _around("", " = ?"),
    "a unit of one": _around("", r" \cdot 1 \text{ unit}"),
    "from zero": _around(r"[t]_{0}^{", "}"),
    "its own list": lambda text: f"{text}; {text}",
    "the only one": _around("only ", ""),
    "a mean value": _around(r"\overline{", "}"),
    "a derivative of an antiderivative": _around(r"\frac{d}{du}\int_0^u (", ") dv"),
    "a telescoping sum": _around("(", r")\sum_{k=1}^{\infty} \left(\frac{1}{k} - \frac{1}{k+1}\right)"),
    "a trace": _around(r"\operatorname{tr}\begin{pmatrix} ", r" & 1 \\ 1 & 0 \end{pmatrix}"),
    "a Kronecker delta": _around("(", r")\delta_{1,1}"),
    "an indicator": _around("(", r")\mathbf{1}_{\{1\}}(1)"),
    "times its sign": lambda text: rf"\operatorname{{sgn}}({text}) \cdot |{text}|",
    "an average of a list": _around(r"\operatorname{mean}\{", r"\}"),
    "a dot product": _around(r"(", r", 0) \cdot (1, 0)"),
    "an imaginary exponent": _around("-e^{i\\pi} (", ")"),
    "a complex conjugate": _around(r"\overline{\overline{", "}}"),
    "a composed inverse": _around("f^{-1}(f(", "))"),
    "an integral of a density": _around("(", r")\int_{-\infty}^{\infty} \frac{1}{\sqrt{\pi}} e^{-z^2} dz"),
    "percent of": _around(r"100\% \text{ of } ", ""),
    "an evaluated constant": _around(r"\left. t \right|_{t = ", "}"),
    "an empty sum": _around("", r" + \sum_{k=1}^{0} k"),
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
    "unit fractions": _around("(", r")\left(\frac{1}{2} + \frac{1}{3} + \frac{1}{6}\right)"),
    "a factorial over its value": _around("(", r") \cdot \frac{3!}{6}"),
    "a binomial less its value": _around("", r" + \binom{5}{2} - 10"),
    "half over half": _around(r"\frac{(", r")/2}{1/2}"),
    "two cases alike": lambda text: rf"\begin{{cases}} {text} & t > 0 \\ {text} & t \le 0 \end{{cases}}",
    "the first of a pair": _around("(", ", 0)_1"),
    "the identity function": _around(r"\operatorname{id}(", ")"),
    "let and then": lambda text: f"Let $t = {text}$. Then the answer is $t$.",
    "a sum over one element": _around(r"\sum_{k \in \{1\}} (", ")"),
    "equal weights": lambda text: f"0.5({text}) + 0.5({text})",
    "exclusive or with 0": _around("", r" \oplus 0"),
    "a union with nothing": _around("", r" \cup \emptyset"),
    "the third root of the third power": _around("((", ")^3)^{1/3}"),
    "logarithm to base 7 undone": _around(r"7^{\log_7(", ")}"),
    "a polar angle of 0": _around("(", r")\operatorname{cis} 0"),
    "a full circle in degrees": _around("(", r")\cos 360^\circ"),
    "tangent of 45 degrees": _around("(", r")\tan 45^\circ"),
    "sine of a right angle": _around("(", r")\sin\frac{\pi}{2}"),
    "an interpolation": lambda text: f"(1-0)({text}) + 0({text})",
    "cancelled terms": _around("", r" + \cancel{7} - \cancel{7}"),
    "about itself": lambda text: rf"{text} \approx {text}",
    "that is": lambda text: f"{text}, that is, {text}",
    "under nothing": _around(r"\stackrel{}{", "}"),
    "a comment": _around("", " % done"),
    "a typed times 1": _around("", " × 1"),
    "a typed division by 1": _around("(", ") ÷ 1"),
    "a raised 1": _around("(", ")¹"),
    "a typed minus 0": _around("", " − 0"),
    "plus zero in words": _around("", " plus zero"),
    "times one in words": _around("", " multiplied by 1"),
    "the sum in words": _around("the sum of ", " and 0"),
    "the product in words": _around("the product of 1 and ", ""),
    "an open equation": _around("", " ="),
    "Python": _around("print(", ")"),
    "a macro": _around(r"\newcommand{\a}{", r"}\a"),
    "a table's cell": _around(r"\begin{tabular}{c} ", r" \end{tabular}"),
    "a line through": _around(r"\overline{\mathstrut ", "}"),
    "hours from minutes": _around(r"\frac{60(", ")}{60}"),
    "a golden identity": _around("(", r")\left(\varphi^2 - \varphi\right)"),
    "a variance of nothing": _around("", r" + \operatorname{Var}(1)"),
    "an expected value": _around(r"\mathbb{E}[", "]"),
    "a certain event": _around("(", r") \cdot P(\Omega)"),
    "a projection": _around(r"\operatorname{proj}(", ")"),
    "a determinant of the identity": _around("(", r")\det I"),
    "a ratio of equal sums": _around("(", r")\frac{1+2+3}{3+2+1}"),
    "a repeated root": _around(r"\sqrt{\sqrt{(", ")^4}}"),
    "to a logarithm's 1": _around("(", r")^{\log_5 5}"),
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
    "dollars": _around("$", "$"),
    "a box": _around(r"\boxed{", "}"),
    "spaces": _around("  ", "  "),
    "a thin space": _around(r"\,", r"\,"),
    "a full stop": lambda text: None if text.endswith("\\") else f"{text}.",
    "display style": _around(r"\displaystyle ", ""),
    "TeX brackets": _around(r"\(", r"\)"),
    "the answer is": lambda text: f"The answer is ${text}$." if "$" not in text else None,
    "fractions in another size": lambda text: text.replace(r"\frac", r"\dfrac") if r"\frac" in text else None,
    "sized brackets": lambda text: (
        text.replace("(", r"\left(").replace(")", r"\right)")
        if re.fullmatch(r"[^\\()\[\]]*\([^()\[\]]*\)[^()\[\]]*", text)
        else None
    ),
    "bold": lambda text: f"**{text.strip()}**" if "*" not in text else None,
    "operators apart": lambda text: re.sub(r"(?<=[\w}])\+(?=[\w\\])", " + ", text) if "+" in text else None,
    "double dollars": _around("$$", "$$"),
    "a displayed formula": _around(r"\[", r"\]"),
    "a full stop in dollars": _around("$", ".$"),
    "a bold answer": _around("**Answer: ", "**"),
    "lines around": _around("\n", "\n"),
    "braces": lambda text: f"{{{text}}}" if not text.endswith(".") else None,
    "two boxes": _around(r"\boxed{\boxed{", "}}"),
    "a boxed sentence": _around(r"So the answer is $\boxed{", "}$."),
    "a space that does not break": _around("\u00a0", "\u00a0"),
    "a quad": _around(r"\quad ", r"\ "),
    "code": _around("`", "`"),
    "quotes": _around('"', '"'),
    "answer tags": _around("<answer>", "</answer>"),
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
