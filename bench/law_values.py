r"""Texts with several values, drawn from the sentence reader's own tables: none may be CORRECT for two of them.

    python -m bench.law_values [--texts N] [--seed N] [--show]

A text states one to three values of one type (`TYPES`), each in a frame (`The answer is <v>.`), with a joint between
them: every word that the reader knows, every clause and remark that it reads away, every mark. Who writes `4, which
equals 3` and is paid for 4 and for 3 has guessed twice; a text with one value that is paid for two does not tell them
apart.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.common import parser
from gtpo.rewards import Verdict, Verifier
from gtpo.rewards.equality.reading import TABLES

Draw = random.Random
_NAMES = ["Alba", "Bruno", "Carmen", "Dario", "Esther", "Felix", "Greta", "Hassan", "Ines", "Jorge", "Keiko", "Liam"]
SHAPES = ["ellipse", "parabola", "hyperbola", "circle", "rhombus", "kite", "trapezoid", "square"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
_CASES = (r"1 & \text{{otherwise}} \\ 5 & x > {}", r"1 & x \le {} \\ 5 & \text{{otherwise}}")
_OPTIONS = " ".join(
    rf"\textbf{{({letter})}} {number} \qquad" for letter, number in zip("ABCDE", range(11, 96, 17), strict=True)
)


def _some(write: Callable[[int], str], low: int = 2, high: int = 99) -> Callable[[Draw], list[str]]:
    return lambda draw: [write(n) for n in draw.sample(range(low, high), 3)]


def _letters(draw: Draw) -> list[str]:
    """Return `5 N` in some spelling, 5 and `6 N`: a letter of the question is no unit."""
    n, letter = draw.randint(2, 98), draw.choice("Nms")
    write = draw.choice(
        [r"%d %s", r"%d%s", r"%d\,%s", r"%d~%s", r"%d\text{ %s}", r"%d\mathrm{%s}", r"%d{\rm %s}", r"%d{%s}"]
    )
    return [write % (n, letter), f"{n}", write % (n + 1, letter)]


TYPES: dict[str, tuple[str | None, Callable[[Draw], list[str]]]] = {
    "integer": ("How many are there?", _some(str)),
    "integer, no problem": (None, _some(str)),
    "decimal": ("What is it?", _some(lambda n: f"{n}.{n % 7 + 1}")),
    "fraction": ("What is it?", _some(lambda n: rf"\frac{{{n}}}{{101}}")),
    "typed fraction": ("What is it?", _some(lambda n: f"{n}/101")),
    "root": ("What is it?", _some(lambda n: rf"{n}\sqrt{{3}}")),
    "percent": ("What percentage is it?", _some(lambda n: rf"{n}\%")),
    "money": ("How much does it cost, in dollars?", _some(lambda n: rf"\${n}.50")),
    "quantity": ("How far is it, in meters?", _some(lambda n: f"{n} meters")),
    "counted": ("How many apples are there?", _some(lambda n: f"{n} apples")),
    "angle": ("What is the angle, in degrees?", _some(lambda n: rf"{n}^\circ")),
    "number in words": ("How many are there?", lambda draw: draw.sample(list(TABLES["numbers"])[2:], 3)),
    "expression": ("Write it in terms of $x$.", _some(lambda n: f"{n}x^2 + 1")),
    "formula": ("Write it in terms of $x$.", _some(lambda n: f"${n}x + 1$")),
    "equation": ("Find the line.", _some(lambda n: f"y = {n}x + 1")),
    "named": ("Find $x$.", _some(lambda n: f"x = {n}")),
    "point": ("Find the point $(x, y)$.", _some(lambda n: f"({n}, 5)")),
    "interval": ("Find the domain.", _some(lambda n: f"[{n}, 100)")),
    "inequality": ("Solve for $x$.", _some(lambda n: f"x > {n}")),
    "set": ("Find all of them.", _some(lambda n: rf"\{{{n}, 100\}}")),
    "list": ("Find all of them.", _some(lambda n: f"{n}, 100")),
    "matrix": ("Find the matrix.", _some(lambda n: rf"\begin{{pmatrix}} {n} & 1 \\ 0 & 1 \end{{pmatrix}}")),
    "ratio": ("What is the ratio?", _some(lambda n: f"{n}:101")),
    "residue": ("Solve it modulo 101.", _some(lambda n: rf"{n} \pmod{{101}}")),
    "base": ("Write it in base 5.", _some(lambda n: f"{n % 5}{n % 4}{n % 3}{n // 16}_5", 20, 79)),
    "time": ("At what time is it?", _some(lambda n: f"{n % 12 + 1}:{n % 50 + 10} p.m.", 0, 12)),
    "choice": (f"Which one is it? {_OPTIONS}", lambda draw: draw.sample("ABCDE", 3)),
    "choice with brackets": (f"Which one is it? {_OPTIONS}", lambda draw: [f"({c})" for c in draw.sample("ABCDE", 3)]),
    "name": (f"Who won, {', '.join(_NAMES[:-1])} or {_NAMES[-1]}?", lambda draw: draw.sample(_NAMES, 3)),
    "word": ("Which shape is it?", lambda draw: draw.sample(SHAPES, 3)),
    "day": ("On which day is it?", lambda draw: draw.sample(_DAYS, 3)),
    "date": ("On which date is it?", lambda draw: [f"{month} 5" for month in draw.sample(_MONTHS, 3)]),
    "date with its year": ("On which date is it?", _some(lambda n: f"May 5, 19{n}", 10)),
    "date with its weekday": ("When is it?", lambda draw: [f"{day}, May 5" for day in draw.sample(_DAYS, 3)]),
    "mixed units": ("How long does it take?", _some(lambda n: f"{n} hours 30 minutes")),
    "compound unit": ("How fast is it?", _some(lambda n: f"{n} mph")),
    "parts": ("(a) Find $x$. (b) Find $y$.", _some(lambda n: f"(a) {n}, (b) 5")),
    "values of cases": ("Define $f$.", _some(lambda n: rf"\begin{{cases}} {n} & x > 0 \\ 5 & x \le 0 \end{{cases}}")),
    "bounds of cases": ("Define $f$.", _some(lambda n: rf"\begin{{cases}} {_CASES[n % 2].format(n)} \end{{cases}}")),
    "mixed number": ("How many hours are there?", _some(lambda n: f"{n} and 1/3")),
    "letter": ("Write it in terms of $N$, $m$ and $s$.", _letters),
}
"""Problem, and what draws three different values."""
FRAMES = [
    "<v>", "<v>", "<v>.", "$<v>$", "The answer is <v>", "the answer is $<v>$", "It is <v>", "so it is <v>.",
    "Answer: <v>", "**Answer:** <v>", "<v> is the answer", "x = <v>", "x is <v>", "The value of $x$ is <v>", "= <v>",
    "The total is <v>", "There are <v>", "Yes, <v>", "Therefore <v>", "The correct option is <v>", "equal to <v>",
    "答案是<v>", "La respuesta es <v>", "Ответ: <v>", "Die Antwort ist <v>", r"\boxed{<v>}", r"\text{<v>}", "(<v>)",
    "Ann has <v>", "She won <v>", "which is <v>", "about <v>", r"\approx <v>", "[<v>]", "We get <v>", "I think <v>",
]  # fmt: skip
_CLAUSES = """
which is|which equals|that is|which gives|because|since|as required|as the sum is|where|where x is|for all x|for|when|
whenever|with|attained at|achieved when|reached for|occurring at|which is about|approximately|approx.|roughly|around|
nearly|i.e.|e.g.|i.e.,|or about|equivalently|that is,|in other words|because the answer is|since it equals|not|
and not|rather than|instead of|, but|, not|, or|, and|, so|, then|; or|; then|, since|, because|, which is|, where|
, i.e.,|, also
"""
_MARKS = [
    *",;:.!?|/-=~()[]", "\n", "\n\n", "--", "—", "->", "=>", "≈", "或", "oder", "или", r"\\", r"\quad", "...", "…",
    r"\text{ or }", r"\text{ and }", r"\approx", r"\to", r"\Rightarrow", r"\implies", r"\neq",
]  # fmt: skip
_TAILS = [
    "", "", "", ".", "!", " is the answer", " is correct", " in total", ")", "]", " (check)", " as well", " apples",
]  # fmt: skip


def joints() -> list[str]:
    """Return what may stand between two values: each word of the reader, each of its clauses and remarks, each mark."""
    spoken = {word for table in TABLES["words"].values() if isinstance(table, str) for word in table.split()}
    plain = sorted(word for word in spoken if word.replace("'", "").isalpha())
    return [*plain, *(clause.strip() for clause in _CLAUSES.split("|")), *_MARKS]


class Several(NamedTuple):
    """A text that states some of several values."""

    kind: str
    text: str
    values: list[str]
    problem: str | None


def texts(count: int, seed: int) -> Iterator[Several]:
    """Yield texts of each type in turn that state one to three of their values; half of the joints are clauses."""
    draw, words, clauses = random.Random(seed), joints(), [each.strip() for each in _CLAUSES.split("|")]
    for at in range(count):
        kind, (problem, make) = list(TYPES.items())[at % len(TYPES)]
        values = make(draw)[: 3 if draw.random() < 0.25 else 2]
        text = draw.choice(FRAMES).replace("<v>", values[0])
        for value in values[1:] if draw.random() < 0.9 else ():
            joint = draw.choice(words if draw.random() < 0.5 else clauses + _MARKS)
            text += draw.choice(("", " ", " ", " ", ", ", " (")) * (joint[0] not in ",;") + joint
            text += draw.choice((" ", " ", " ", "")) + draw.choice(["<v>", "<v>", *FRAMES]).replace("<v>", value)
        yield Several(kind, text + draw.choice(_TAILS), values, problem)


def paid_twice(cases: list[Several], verifier: Verifier) -> list[tuple[Several, list[str]]]:
    """Return the texts that are CORRECT for two of their values, with these."""
    pairs = [(case.text, value) for case in cases for value in case.values]
    asked = [case.problem for case in cases for _ in case.values]
    verdicts = iter(verifier.verify_many(pairs, asked))
    paid = [(case, [value for value in case.values if next(verdicts) is Verdict.CORRECT]) for case in cases]
    return [each for each in paid if len(each[1]) > 1]


def main() -> None:
    """Draw the texts, judge them for each of their values and print what is paid twice."""
    args = parser(__doc__, texts=20_000, seed=0, show=False).parse_args()
    with Verifier() as verifier:
        cases = list(texts(args.texts, args.seed))
        paid = paid_twice(cases, verifier)
    print(f"{len(cases)} texts of {len(TYPES)} types, seed {args.seed}: {len(paid)} paid for two values")
    print(dict(Counter(case.kind for case, _ in paid)))
    for case, values in paid if args.show else ():
        print(f"  {case.kind}: {case.text!r} for {values}")


if __name__ == "__main__":
    main()
