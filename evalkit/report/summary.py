"""What a comparison says in words: the verdicts, what would settle them, the gate, and what the numbers mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gtpo.common.terminal import visible
from gtpo.evalkit.comparison import columns
from gtpo.evalkit.comparison.columns import METRICS, Column, difference, points
from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.comparison.questions import ALPHA, EQUIVALENT, UNDECIDED, VERDICTS, Cell, Table
from gtpo.evalkit.design import MOST, Design, Estimate, Noise, limit, needs
from gtpo.evalkit.statistics import LEVEL, OUTPUTS, SEEDS_NEEDED, WEIGHTS

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# A number, or a range of numbers.
_RANGE = re.compile(rf"{_NUMBER.pattern}(?: to {_NUMBER.pattern})?")
# What is said if a side has several runs that are not known to be trained apart.
TRAINING_UNKNOWN = "training is not known, so this says nothing about methods"
_DECLARE = "--seeds NAME=RUN,RUN,RUN declares independent trainings"
# Difference of the shares of answers that were cut off from which on it is said beside the verdict.
CUT_OFF = 0.1
# Without a margin: the difference in points, as a fraction, that an undecided comparison is told how to see.
TARGET = 0.02
NOUNS = {"questions": "such questions", "samples": "samples of each question", "seeds": "seeds of each"}
# What the gate says of a comparison -> its exit code, the worst first.
PASSES, FAILS, OPEN = "passes", "fails", "is undecided"
CODES = {FAILS: 5, OPEN: 6, PASSES: 0}


class Sentence(NamedTuple):
    """The verdict on one primary comparison: `head` says it, `rest` gives the figures.

    advice: what would settle it. remarks: what else bears on it, first what it is about.
    """

    method: str
    benchmark: str
    verdict: str
    head: str
    rest: str
    advice: str
    remarks: tuple[str, ...]

    @property
    def further(self) -> str:
        """The remarks and the advice."""
        return " ".join(filter(None, (*self.remarks, self.advice)))


def verdict_sentence(comparison: MethodComparison, table: Table, method: str) -> Sentence:
    """Return the verdict on a method that was compared in the primary metric of one benchmark."""
    column, margin = comparison.metrics[0], comparison.margin
    cell = table.cells[method, column]
    d, verdict = cell.paired, cell.verdict
    assert d is not None
    assert verdict is not None
    rest = difference(d, " points")
    rest += f", {columns.p_text(cell.p_corrected)}" if cell.p_corrected is not None else ""
    if verdict == EQUIVALENT and cell.p_equivalent is not None:
        rest += f", of equivalence {columns.p_text(cell.p_equivalent)}"
    head = f"{visible(method)} is {_claim(verdict, table.baseline, margin)} on {visible(table.benchmark)}"
    advice = ""
    if verdict == UNDECIDED and d.judged:  # else more training seeds would settle it, or nothing
        if not d.shown():
            text = sees(cell, margin or TARGET, margin=margin is not None)
            advice = f"{text[0].upper()}{text[1:]}." if text else ""
        elif not d.shown(cell.missing):
            advice = "Its missing samples could reverse the difference."
    return Sentence(method, table.benchmark, verdict, head, rest, advice, tuple(_remarks(table, method, column)))


def _claim(verdict: str, baseline: str | None, margin: float | None) -> str:
    """Return `better than grpo`, `undecided against grpo`, `equivalent to grpo within ±2 points`."""
    if verdict == EQUIVALENT:
        return f"equivalent to {visible(str(baseline))} within ±{points(margin or 0)} points"
    return f"{verdict} {'against' if verdict == UNDECIDED else 'than'} {visible(str(baseline))}"


def _remarks(table: Table, method: str, column: Column) -> Iterator[str]:
    """What bears on a verdict beside the figures: training, how checkpoints were chosen, what the limit cut off."""
    baseline, where, cell = str(table.baseline), visible(table.benchmark), table.cells[method, column]
    ours, base, d = cell.checkpoints, table.cells[baseline, column].checkpoints, cell.paired
    assert d is not None
    if d.scope == OUTPUTS:
        yield f"This is about these outputs; {TRAINING_UNKNOWN} ({_DECLARE})."
    elif not d.judged:
        needed = f"a statement about methods needs {SEEDS_NEEDED} training seeds of each"
        yield f"This is about these weights; {needed} (there are {d.seeds[0]} and {d.seeds[1]})."
    elif d.scope == WEIGHTS and any(d.seeds):
        yield "This is about these weights, not about training them anew."
    if max(ours, base) > 1:
        what = f"{ours} checkpoints of its training" if ours > 1 else f"{base} checkpoints of the baseline's"
        what += f" and {base} of the baseline's" * (ours > 1 and base > 1)
        fails = ", and does not" * bool(d.shown(cell.missing) and not cell.direction)
        if -1.0 in (cell.to_mean, table.cells[baseline, column].to_mean):
            fails = ", which is not known: not all were evaluated alike (gtpo eval --like)"
        yield (
            f"{what} were evaluated on {where}: the verdict must also hold for their mean{fails}. Other questions, on "
            "which only the chosen one is evaluated, need no such bound."
        )
    rates = [
        float(side.by_draw([run.entry(table.benchmark).truncation_rate or 0 for run in side.runs]).mean())
        if all(run.entry(table.benchmark).truncation_rate is not None for run in side.runs) else math.nan
        for side in (table.sides[method], table.sides[baseline])
    ]  # fmt: skip
    known = [rate for rate in rates if not math.isnan(rate)]
    if known and (max(known) - min(known) >= CUT_OFF or (len(known) == 1 and known[0] >= CUT_OFF)):
        of_us, of_base = ("an unknown share" if math.isnan(rate) else f"{100 * rate:.0f} %" for rate in rates)
        yield f"{of_us} of its answers on {where} were cut off at the token limit, and {of_base} of the baseline's."


def sees(cell: Cell, target: float, *, margin: bool = False, gate: float | None = None) -> str:
    """Return what a design sees, and what sees the target or, with `margin`, shows equivalence within it.

    gate: the level of an interval by which a loss of the target is excluded, in place of the difference's own. Empty if
    there is too little to say it.
    """
    if cell.noise is None or cell.paired is None:
        return ""
    level = cell.paired.level if gate is None else gate
    seen, lacks = needs(*cell.noise, lambda of: of.equivalence(target) if margin else of.power(target), level)
    goal = f"to show equivalence within ±{points(target)}" if margin else f"for {points(target)}"
    ways = [f"{range_text(n, MOST[lever])} {NOUNS[lever]}" for lever, n in lacks.items() if math.isfinite(n.mean)]
    text = "this design sees a difference" if gate is None else "this design excludes a loss"
    text += f" of {points_text(seen)} points with 80 %"
    if not lacks:
        return f"{text}, enough {goal}"
    text += f"; {goal}: {' or '.join(ways) or 'no number of one of them is enough'}"
    return "; ".join(filter(None, (text, limit_text(*cell.noise, target, level))))


def points_text(spread: Estimate) -> str:
    """Return `4.2 (3.1 to 6.0)`: points that are seen."""
    mean, low, high = (f"{100 * one:.1f}" if one <= 1 else "over 100" for one in spread)
    return mean if low == high else f"{mean} ({low} to {high})"


def range_text(count: Estimate, most: int) -> str:
    """Return `15 (6 to 44)`, to two figures and no fewer; `15` if it was stated."""

    def text(one: float) -> str:
        if math.isinf(one):
            return f"more than {most:,}"
        step: int = 10 ** max(len(str(math.ceil(one))) - 2, 0)
        return f"{math.ceil(one / step) * step:,}"

    mean, low, high = map(text, count)
    return mean if low == high else f"{mean} ({low} to {high})"


def limit_text(noise: Noise, design: Design, target: float, level: float = LEVEL) -> str:
    """Return what a benchmark of this size cannot show at all; empty if that is less than the target, or not known."""
    least = limit(noise.at_least_zero(design), design, level)
    if least is None or least <= target:
        return ""
    what = "samples and seeds" if design.seeds else "samples"
    shown = "no difference" if math.isinf(least) else f"no less than {100 * least:.1f} points"
    return f"{design.questions:,} questions show {shown} with any number of {what}"


def gate(comparison: MethodComparison, most: float) -> tuple[int, list[str]]:
    """Ask of each comparison whether a loss of `most`, a fraction, is excluded at one-sided 5 %.

    Returns the exit code, that of the worst, and a line for each; none if nothing is compared. Each must pass, so no
    level is corrected for their number: all pass by chance no more often than one does.
    """
    lines, outcomes, known = [], list[str](), {method.name for method in comparison.methods}
    if all(table.baseline is None for table in comparison.benchmarks):
        return 0, []
    for name in (method.name for method in comparison.trained if method.name not in known):
        outcomes.append(OPEN)
        lines.append(f"{visible(name)} {OPEN}, as it was not evaluated")
    one_sided = 1 - 2 * (1 - LEVEL) / comparison.looks
    for table in comparison.benchmarks:
        for name in (method.name for method in comparison.methods if method.name != comparison.baseline):
            against = f"{visible(name)} against {visible(str(comparison.baseline))} on {visible(table.benchmark)}"
            cell = table.cells.get((name, comparison.metrics[0]))
            if cell is None or (d := cell.paired) is None:
                outcomes.append(OPEN)
                lines.append(f"{against} {OPEN}, as not both were evaluated on it")
                continue
            worse = FAILS if cell.direction < 0 else OPEN
            outcomes.append(PASSES if d.loses_less(most, cell.moved, comparison.looks) else worse)
            why = "" if d.judged else ", as training is not known" if not d.known else ", as it has too few seeds"
            power = sees(cell, most, gate=one_sided) if d.judged else ""
            lines.append(f"{against} {outcomes[-1]}{why}: {difference(d, ' points')}{'; ' * bool(power)}{power}")
    return next((code for outcome, code in CODES.items() if outcome in outcomes), 0), lines


def sentences(comparison: MethodComparison) -> list[Sentence]:
    """Every verdict of the primary metric, what is shown first."""
    every = [verdict_sentence(comparison, table, name) for table, name, *_ in comparison.primary()]
    return sorted(every, key=lambda one: VERDICTS.index(one.verdict))


def answer(comparison: MethodComparison) -> list[tuple[str, str]]:
    """The verdicts in as few sentences as they fit in: (verdict, sentence). Like verdicts share one."""
    found, lines, several = sentences(comparison), list[tuple[str, str]](), len(comparison.benchmarks)
    for verdict in VERDICTS:
        same = [one for one in found if one.verdict == verdict]
        if len(same) == 1:
            lines.append((verdict, f"{same[0].head}: {same[0].rest}."))
            continue
        places: dict[tuple[str, ...], list[str]] = {}
        for method in dict.fromkeys(one.method for one in same):
            where = tuple(visible(one.benchmark) for one in same if one.method == method)
            places.setdefault(where, []).append(visible(method))
        for where, names in places.items():
            place = columns.join_names(where)
            if len(where) == several > 1:
                place = "both benchmarks" if several == 2 else f"all {several} benchmarks"
            are, claim = "is" if len(names) == 1 else "are", _claim(verdict, comparison.baseline, comparison.margin)
            lines.append((verdict, f"{columns.join_names(names)} {are} {claim} on {place}."))
    texts = [(one, text) for one in found for text in one.remarks] + [(one, one.advice) for one in found]
    lines += [("", text) for text in _one_line_each(texts)]
    if found and len(comparison.methods) > 2:
        lines.append(("", "The others are not compared with each other (--baseline NAME)."))
    return lines


def _one_line_each(texts: Sequence[tuple[Sentence, str]]) -> Iterator[str]:
    """One line for texts that differ in numbers and benchmarks only: all benchmarks, and the range of each number."""
    alike: dict[str, list[tuple[Sentence, str]]] = {}
    for one, text in texts:
        if text:
            text = text.replace(f" on {visible(one.benchmark)}", " on \0")
            alike.setdefault(_RANGE.sub("#", text), []).append((one, text))
    several = len({one.method for one, _ in texts}) > 1
    for skeleton, group in alike.items():
        first, *between = skeleton.split("#")
        for after, column in zip(between, zip(*(_RANGE.findall(text) for _, text in group), strict=True), strict=True):
            ordered = sorted(_NUMBER.findall(" ".join(column)), key=lambda number: float(number.replace(",", "")))
            first += " to ".join(dict.fromkeys((ordered[0], ordered[-1]))) + after
        line = first.replace("\0", columns.join_names(dict.fromkeys(visible(one.benchmark) for one, _ in group)))
        names = dict.fromkeys(visible(one.method) for one, _ in group)
        yield f"{columns.join_names(names)}: {line[0].lower()}{line[1:]}" if several else line


def short_legend(comparison: MethodComparison) -> str:
    """What stands under every table."""
    found = [d for *_, d in comparison.primary()]
    over, level = {one.covers for one in found}, max((one.level for one in found), default=LEVEL)
    corrected = f", of corrected differences up to {100 * level:.4g} %," * (level > LEVEL)
    text = f"[a, b]: 95 %{corrected} over {over.pop() if len(over) == 1 else 'questions and samples'}."
    if any(cell.bounds for table in comparison.benchmarks for cell in table.cells.values()):
        text += " {a, b}: of all questions, if all missing samples were wrong, or right."
    if is_judged(comparison):
        looks = f" 1 of {comparison.looks} planned looks." if comparison.looks > 1 else ""
        if any(0 not in one.seeds and one.judged for one in found):
            looks = looks or " If seeds are added after a look, plan it with --looks."
        text += " ▲ better, ▼ worse" + ", ≈ equivalent" * (comparison.margin is not None)
        text += " (Holm)" * (len(comparison.benchmarks) > 1 or comparison.margin is not None) + "." + looks
    return text


def is_judged(comparison: MethodComparison) -> bool:
    """Return whether any primary comparison can be given a mark."""
    return any(d.judged for *_, d in comparison.primary())


def legend(comparison: MethodComparison) -> list[str]:
    """What the numbers mean, in full."""
    estimates = "; ".join(f"{metric.name} is {metric.estimate}" for metric in METRICS if metric.estimate)
    lines = [
        f"{short_legend(comparison)} Percent, scoring {comparison.scoring}. An interval covers training from "
        f"{SEEDS_NEEDED} seeds on. ±: standard deviation over training seeds. {estimates}."
    ]
    lines += [
        f"{visible(table.benchmark)}: its {table.questions:,} questions have {table.wordings} wordings beside their "
        "numbers. If each wording is one problem in many versions, name it in a column `cluster`."
        for table in comparison.benchmarks if table.wordings
    ]  # fmt: skip
    if comparison.baseline:
        tested = "None of them is tested: what is known of training allows no verdict."
        if is_judged(comparison):
            tested = (
                f"Those in {comparison.metrics[0].label} are tested with t over questions and training seeds, and Holm-"
                f"corrected over the benchmarks: marked if p <= {ALPHA} then, which is what the interval says; else "
                "undecided, neither shown nor excluded. The others have their own 95 % interval, and no mark."
            )
        base = f"Baseline: {visible(comparison.baseline)} ({comparison.baseline_reason})"
        lines.append(f"{base}. Differences are paired by question. {tested}")
    return lines
