"""What a design can show, in words: the advice after an undecided comparison, and the gate."""

from __future__ import annotations

import math

from gtpo.common.terminal import visible
from gtpo.evalkit.comparison.compare import MethodComparison, Table
from gtpo.evalkit.comparison.verdicts import noise_of
from gtpo.evalkit.design import MOST, Design, Estimate, Noise, limit, needs
from gtpo.evalkit.report.grid import difference, points, points_text
from gtpo.evalkit.statistics import LEVEL

# Without a margin: the difference in points, as a fraction, that an undecided comparison is told how to see.
TARGET = 0.02
NOUNS = {"questions": "such questions", "samples": "samples of each question", "seeds": "seeds of each"}


def round_up(count: float) -> int:
    """Return a count to two figures, no fewer: a planned number is no more exact."""
    step: int = 10 ** max(len(str(math.ceil(count))) - 2, 0)
    return math.ceil(count / step) * step


def range_text(count: Estimate, most: int) -> str:
    """Return `15 (6 to 44)`; `15` if it was stated."""
    mean, low, high = (f"more than {most:,}" if math.isinf(one) else f"{round_up(one):,}" for one in count)
    return mean if low == high else f"{mean} ({low} to {high})"


def sees(comparison: MethodComparison, table: Table, method: str, target: float, *, margin: bool = False) -> str:
    """Return what a design sees, and what sees the target or, with `margin`, shows equivalence within it.

    Empty if there is too little to say it.
    """
    cell, baseline = table.cells[method, comparison.metrics[0]], str(table.baseline)
    measured = noise_of(table, method, baseline, comparison.metrics[0])
    if measured is None or cell.paired is None:
        return ""
    level = cell.paired.level
    seen, lacks = needs(*measured, target, margin=margin, level=level)
    goal = f"to show equivalence within ±{points(target)}" if margin else f"for {points(target)}"
    ways = [f"{range_text(count, MOST[lever])} {NOUNS[lever]}" for lever, count in lacks.items() if count]
    text = f"this design sees a difference of {points_text(seen)} points with 80 %"
    if not lacks:
        return f"{text}, enough {goal}"
    text += f"; {goal}: {' or '.join(ways) or 'no number of one of them is enough'}"
    return "; ".join(filter(None, (text, limit_text(*measured, target, level))))


def limit_text(noise: Noise, design: Design, target: float, level: float = LEVEL) -> str:
    """Return what a benchmark of this size cannot show at all; empty if that is less than the target, or not known."""
    least = limit(noise.at_least_zero(design), design, level)
    if least is None or least <= target:
        return ""
    what = "samples and seeds" if design.seeds else "samples"
    shown = "no difference" if math.isinf(least) else f"no less than {100 * least:.1f} points"
    return f"{design.questions:,} questions show {shown} with any number of {what}"


PASSES, FAILS, UNDECIDED = "passes", "fails", "is undecided"


def gate(comparison: MethodComparison, most: float) -> tuple[str, list[str]]:
    """Ask of each comparison whether a loss of `most`, a fraction, is excluded at one-sided 5 %.

    Returns the outcome, that of the worst, and a line for each; none if nothing is compared. Each must pass, so no
    level is corrected for their number: all pass by chance no more often than one does.
    """
    lines, outcomes = [], []
    if all(table.baseline is None for table in comparison.benchmarks):
        return "", []
    for table in comparison.benchmarks:
        for name in (method.name for method in comparison.methods if method.name != comparison.baseline):
            against = f"{visible(name)} against {visible(str(comparison.baseline))} on {visible(table.benchmark)}"
            cell = table.cells.get((name, comparison.metrics[0]))
            if cell is None or (d := cell.paired) is None:
                outcomes.append(UNDECIDED)
                lines.append(f"{against} {UNDECIDED}, as not both were evaluated on it")
                continue
            worse = FAILS if cell.direction < 0 else UNDECIDED
            outcome = PASSES if d.loses_less(most, cell.moved, comparison.looks) else worse
            outcomes.append(outcome)
            why = "" if d.judged else ", as training is not known" if not d.known else ", as it has too few seeds"
            power = sees(comparison, table, name, most).replace("a difference", "a loss") if d.judged else ""
            lines.append(f"{against} {outcome}{why}: {difference(d, ' points')}{'; ' * bool(power)}{power}")
    return min(outcomes, key=(FAILS, UNDECIDED, PASSES).index, default=""), lines
