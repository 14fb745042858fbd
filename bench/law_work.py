r"""Work left undone, generated from what the grammar evaluates: none of it may be paid, in no type and no wrapping.

    python -m bench.law_work [--texts N] [--seed N] [--show]

Each operation of the grammar (`FORMS`, one for each function that `arithmetic` evaluates, and the operators) is written
with numbers of the problem, and its value computed by the grammar itself. The undone form stands where the value
should, in each type of answer (`PLACES`): it must be refused if the value is the gold, and the value must be paid.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from mpmath import mp

from bench.common import parser
from bench.law import Case, judge
from bench.rewritings import WRAPPERS, filled
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.completions import words
from gtpo.rewards.equality.arithmetic import Budget, NoValue, TooBig, evaluate, number_of
from gtpo.rewards.equality.reading.clean import clean
from gtpo.rewards.equality.reading.grammar import TRIGONOMETRY, NotMathematics, parse

FORMS = {
    **{name: rf"\{name}(<t>)" for name in sorted(TRIGONOMETRY | words("arcsin arccos arctan"))},
    **{name: rf"\{name}(<a>, <b>)" for name in ("gcd", "lcm", "max", "min")},
    **{name: rf"\{name} <t>" for name in sorted(words("ln exp arccot sinh cosh tanh"))},
    "sqrt": r"\sqrt{<a>}",
    "log": r"\log_{<b>} <a>", "root": r"\sqrt[3]{<a>}", "abs": "|<b> - <a>|", "factorial": "<b>!",
    "binomial": r"\binom{<a>}{<b>}", "floor": r"\lfloor \frac{<a>}{<b>} \rfloor", "mod": r"<a> \bmod <b>",
    "ceil": r"\lceil \frac{<a>}{<b>} \rceil", "mixed": r"<a>\frac{1}{2} + <b>",
    "det": r"\begin{vmatrix} <a> & 1 \\ 1 & <b> \end{vmatrix}",
    "+": "<a> + <b>", "-": "<a> - <b>", "*": r"<a> \cdot <b>", "times": r"<a> \times <b>", "typed *": "<a>*<b>",
    "side by side": "(<a>)(<b>)", "/": "<a>/<b>", "frac": r"\frac{<a>}{<b>}", "div": r"<a> \div <b>",
    "ratio": "<a>:<b>", "to": "<a> to <b>", "ratio to a fraction": r"<a>:\frac{1}{<b>}", "^": "2 \\cdot <b>^2",
    "decimal exponent": "<b> \\cdot <a>^{0.5}", "root of a half": r"<b> \cdot \sqrt[0.5]{<a>}",
    "negative exponent": r"<a> \cdot <b>^{-1}", "per cent of": r"<a>\% \cdot <b>", "sum": r"\sum_{k=1}^{<b>} k",
    "product": r"\prod_{k=1}^{<b>} 2", "sum of a root": r"\sqrt{<a>} + <b>", "tower": "(<b>^2)^2",
    "root below": r"<b> \cdot 27^{-1/3}", "roots": r"64^{1/2} \cdot 27^{-1/3} \cdot <b>",
    "root above": r"\frac{\sqrt{<q>}}{101}", "own logarithm": r"<b>^{\log_{<b>} <a>}",
    "scientific": r"<a> \times 10^2 + <b>", "repeating": r"0.\overline{3} \cdot <a>",
}  # fmt: skip
"""How each operation is written; `<t>` is an exact argument, `<a>`, `<b>` and the square `<q>` are numbers."""
PLACES = {
    "number": "<v>", "named": "x = <v>", "unit": r"<v> \text{ meters}", "list": "<v>, 1009", "set": r"\{<v>, 1009\}",
    "tuple": "(<v>, 1009)", "interval": "[<v>, 100009)", "inequality": r"x \ge <v>",
    "union": r"[<v>, 100009) \cup \{-9\}",
    "matrix": r"\begin{pmatrix} <v> & 1 \\ 0 & 1 \end{pmatrix}", "residue": r"x \equiv <v> \pmod{100003}",
    "ratio": "(<v>):100003", "polynomial": "x^2 + (<v>)x + 1009", "equation": "y = (<v>)x + 1009",
    "function": "f(x) = x + (<v>)", "sentence": "The answer is $<v>$.", "box": r"\boxed{<v>}", "text": r"\text{<v>}",
}  # fmt: skip
"""Where a value may stand, by type."""
FRACTIONS = ("/", "frac", "ratio", "to", "div", "negative exponent")
_ANGLES = ["0", "1", "e", "e^2", r"\frac{\pi}{2}", r"\frac{\pi}{4}", r"\pi", r"\frac{1}{2}", r"\frac{\pi}{6}"]


def value_of(text: str) -> str | None:
    """Return the value of a form as it should be written, None if it is no rational number, nor one times pi."""
    plain = text.replace(" to ", "/").replace(":", "/") if "begin" not in text else text
    Budget.refill()
    try:
        value = evaluate(parse(clean(plain)), {})
    except (NotMathematics, NoValue, TooBig):
        return None
    if not isinstance(value, Fraction) and not abs(value) < 10**9:
        return None
    for unit, mark in ((Fraction(1), ""), (mp.pi, r"\pi")):
        found = (
            value if isinstance(value, Fraction) else Fraction(int(mp.nint(mp.re(number_of(value) / unit) * 360)), 360)
        )
        if isinstance(value, Fraction) or abs(number_of(value) - number_of(found) * unit) < 1e-40:
            top, bottom = abs(found.numerator), found.denominator
            above = mark if mark and top == 1 else f"{top}{mark}"
            sign = "-" if found < 0 else ""
            return sign + (above if bottom == 1 or not top else rf"\frac{{{above}}}{{{bottom}}}") if top else "0"
    return None


def cases(count: int, seed: int) -> Iterator[tuple[Case, Case]]:
    """Yield (undone, done): each operation in turn, in a place and perhaps a wrapper that are drawn."""
    draw, made = random.Random(seed), 0
    while made < count:
        for name, form in FORMS.items():
            b = draw.randint(2, 9)
            a = draw.choice([draw.randint(2, 99), b * draw.randint(2, 9), b**2, b**3, draw.randint(2, 9) ** 2])
            if name in FRACTIONS:
                a = b * draw.randint(2, 9)  # `6/8` for 3/4 is an answer
            text = filled(form, {"a": a, "b": b, "q": b**2, "t": draw.choice(_ANGLES)})
            value = value_of(text)
            if value in (None, text):
                continue
            # A coefficient of 0 or 1 would be work in the gold too.
            place, template = draw.choice(list(PLACES.items())[: 1 if value in ("0", "1") else None])
            wrapper = draw.choice(sorted(WRAPPERS)) if place in ("number", "tuple") and draw.random() < 0.5 else ""
            undone, done = (filled(template, {"v": each}) for each in (text, value))
            wrapped = (WRAPPERS[wrapper](undone) if wrapper else undone) or undone
            problem = f"There are {a} of one kind and {b} of the other. What is it?"
            rule = f"{name} in {place}{' in ' * bool(wrapper)}{wrapper}"
            yield Case(name, rule, wrapped, done, problem), Case(name, rule, done, done, problem)
            made += 1


def main() -> None:
    """Generate, judge, and print what is paid undone and what is lost done."""
    args = parser(__doc__, texts=20_000, seed=0, show=False).parse_args()
    with Verifier() as verifier:
        undone, done = (list(each) for each in zip(*cases(args.texts, args.seed), strict=True))
        paid = [c for c, v in zip(undone, judge(undone, verifier), strict=True) if v is Verdict.CORRECT]
        lost = [c for c, v in zip(done, judge(done, verifier), strict=True) if v is not Verdict.CORRECT]
    print(
        f"{len(undone)} undone forms of {len(FORMS)} operations, seed {args.seed}: {len(paid)} paid, {len(lost)} lost"
    )
    for case in paid + lost if args.show else ():
        print(f"  {case.rule}: {case.text!r} | gold {case.gold!r}")


if __name__ == "__main__":
    main()
