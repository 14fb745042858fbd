"""How names and numbers are written, the same in every output."""

from __future__ import annotations

import math
import unicodedata
from typing import SupportsFloat

from gtpo.evalkit.comparison.compare import Table
from gtpo.evalkit.comparison.verdicts import BETTER, EQUIVALENT, WORSE, Cell
from gtpo.evalkit.statistics import METHODS, MethodMean, PairedDifference

MARKS = {BETTER: "▲", WORSE: "▼", EQUIVALENT: "≈"}


def visible(text: str) -> str:
    """Text with control characters, marks of writing direction and the like written out, e.g. `\\u202e`."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c
        for c in text
    )


def rounded(value: float, digits: int) -> str:
    """Half up, as the page's code does it: 12.25 is 12.3 in every output."""
    scale = 10**digits
    # Python rounds half to even and JavaScript half up: 12.25 would be 12.2 here and 12.3 on the page.
    return f"{math.floor(abs(value) * scale + 0.5 + 1e-9) / scale:.{digits}f}"


def percent(value: SupportsFloat) -> str:
    """45.2 for 0.452."""
    return rounded(100 * float(value), 1)


def signed(value: SupportsFloat) -> str:
    """+2.1 for 0.021; +0.0 for what rounds to nothing."""
    text = percent(value)
    return ("-" if float(value) < 0 and text != "0.0" else "+") + text


def points(value: float) -> str:
    """2 for 0.02, 0.5 for 0.005: a margin or a planned difference as it was given."""
    return f"{100 * value:.4g}"


def bounds(cell: Cell) -> str:
    """{61.2, 61.9}: what missing samples could make of a value; empty if none is missing."""
    return "" if cell.bounds is None else f"{{{percent(cell.bounds[0])}, {percent(cell.bounds[1])}}}"


def p_text(p: float) -> str:
    """`p = 0.031`, `p = 0.0004`, `p < 0.0001`."""
    return "p < 0.0001" if p < 1e-4 else f"p = {rounded(p, 2 if p >= 0.1 else 3 if p >= 0.001 else 4)}"


def interval(value: MethodMean) -> str:
    """[43.1, 47.3]."""
    return f"[{percent(value.low)}, {percent(value.high)}]"


def spread(value: MethodMean) -> str:
    """± 0.8: the standard deviation over seeds; empty for one seed."""
    return "" if value.seed_sd is None else f"±{percent(value.seed_sd)}"


def difference(paired: PairedDifference, unit: str = "") -> str:
    """+2.1 [+0.7, +3.5]; with a unit +2.1 points [+0.7, +3.5]."""
    return f"{signed(paired.difference)}{unit} [{signed(paired.low)}, {signed(paired.high)}]"


def change(cell: Cell) -> str:
    """+2.1 [+0.7, +3.5] ▲; empty for the baseline."""
    if cell.paired is None:
        return ""
    return f"{difference(cell.paired)} {MARKS.get(cell.verdict or '', '')}".rstrip()


def header(table: Table) -> str:
    """gsm8k: 1,319 questions, 64 samples each."""
    questions, samples = (
        f"{n:,} {what}{'s' * (n != 1)}" for n, what in ((table.questions, "question"), (table.samples, "sample"))
    )
    return f"{visible(table.title)}: {questions}, {samples} each"


def covers(paired: PairedDifference) -> str:
    """What the test of a difference covers."""
    return "seeds, questions and samples" if paired.scope == METHODS else "questions and samples"
