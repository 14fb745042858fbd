"""What a comparison says in words: captions, legends, verdicts as sentences, plans, and the end of training."""

from __future__ import annotations

from typing import NamedTuple

from gtpo.evalkit.comparison.compare import Comparison, Table
from gtpo.evalkit.comparison.plan import SAMPLES, TARGET, Plan, averaged, plan_for
from gtpo.evalkit.comparison.plan import table as plan_table
from gtpo.evalkit.comparison.scores import Column
from gtpo.evalkit.comparison.training_curves import summary
from gtpo.evalkit.comparison.verdicts import ALPHA, BETTER, EQUIVALENT, VERDICTS, WORSE, Cell, why_undecided
from gtpo.evalkit.differences import WEIGHTS
from gtpo.evalkit.report.text import TESTS, covers, difference, p_text, percent, points, visible

Rows = tuple[list[str], list[list[str]]]


class Said(NamedTuple):
    """The verdict on one primary comparison: `head` says it, `rest` gives the figures behind it."""

    method: str
    benchmark: str
    verdict: str
    head: str
    rest: str

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.head} {self.rest}"


def caption(comparison: Comparison, column: Column) -> str:
    """`pass@1, %, scoring strict; primary metric, differences against grpo`."""
    role = "primary metric" if column == comparison.metrics[0] else "exploratory: nothing is marked"
    against = f", differences in points against {visible(comparison.baseline)}" if comparison.baseline else ""
    return f"{column.label}, %, scoring {comparison.scoring} ({role}{against})"


def legend(comparison: Comparison) -> list[str]:
    """What the numbers mean, in full: printed under every table."""
    lines = [
        f"Percent, scoring {comparison.scoring}. [low, high]: 95 % interval over questions and samples, and over "
        "training where seeds of it are known. ±: standard deviation over training seeds. pass@k is unbiased; maj@k is "
        "the exact expectation over all k-subsets of the n samples, ties shared evenly."
    ]
    if any(cell.bounds for table in comparison.benchmarks for cell in table.cells.values()):
        lines[0] += " {low to high}: the figure if every missing sample were wrong, and if it were right."
    if not comparison.baseline:
        return lines
    found = [c.paired for t in comparison.benchmarks for c in t.cells.values() if c.primary and c.paired]
    tests = dict.fromkeys(f"{TESTS[d.test]} (covers {covers(d)})" for d in found)
    count, primary = len(comparison.benchmarks), comparison.metrics[0].label
    equal = ""
    if comparison.margin is not None:
        equal = (
            f" ≈ equivalent: within ±{points(comparison.margin)} points by two one-sided tests, corrected in the same "
            "family."
        )
    lines.append(
        f"Baseline: {visible(comparison.baseline)} ({comparison.baseline_reason}). Second line of a cell: difference "
        f"to it in points, paired by question. Primary comparisons: {primary} against the baseline, per method on "
        f"{count} benchmark{'s' * (count != 1)}, Holm-corrected jointly over them; ▲ better or ▼ worse where p <= "
        f"{ALPHA} after correction and the interval excludes 0.{equal} Everything else is undecided: neither shown nor "
        f"excluded. Their intervals are at the level of that correction. Test: {'; '.join(tests) or 'none'}. Other "
        "differences are exploratory: their own 95 % interval, uncorrected, never marked."
    )
    if any(d.scope == WEIGHTS and d.judged for d in found):
        lines.append(
            "A mark between a model that was not trained here and one with too few training seeds means these very "
            "weights, not the method that made them."
        )
    lines.append(
        "Bold: best, and shown to be better than the second (p <= 0.05, and the interval excludes 0); underlined: "
        "second, and shown to be better than the third. The average over benchmarks is not tested."
    )
    return lines


def said(comparison: Comparison, table: Table, method: str, baseline: str) -> Said | None:
    """The verdict on a method in the primary metric of one benchmark; None where there is none."""
    cell = table.cells.get((method, comparison.metrics[0]))
    if cell is None or cell.paired is None or cell.verdict is None:
        return None
    d, verdict, metric = cell.paired, cell.verdict, comparison.metrics[0].label
    a, b, where = visible(method), visible(baseline), visible(table.benchmark)
    if d.scope == WEIGHTS and d.judged:
        a = f"{a} (these weights)"
    p = f"; {p_text(cell.p_corrected)}" if cell.p_corrected is not None else ""
    figures = f"{metric} {difference(d)}{p}; covers {covers(d)}"
    if verdict in (BETTER, WORSE):
        head = f"{a} is {verdict} than {b} on {where} by {percent(abs(d.difference))} points"
        return Said(method, table.benchmark, verdict, head, f"({figures}).")
    if verdict == EQUIVALENT and comparison.margin is not None and cell.p_equivalent is not None:
        head = f"{a} is equivalent to {b} on {where} within ±{points(comparison.margin)} points"
        return Said(method, table.benchmark, verdict, head, f"({figures}; equivalence {p_text(cell.p_equivalent)}).")
    head = f"{a} against {b} is undecided on {where}"
    return Said(method, table.benchmark, verdict, head, f"({figures}). {_lacking(cell, comparison.margin)}")


def _lacking(cell: Cell, margin: float | None) -> str:
    """Why a comparison is undecided, what it would have found, and what would settle it."""
    assert cell.paired is not None
    assert cell.plan is not None
    target, plan = margin or TARGET, cell.plan
    why = why_undecided(cell.paired)
    if why:
        why = f"{why[0].upper()}{why[1:]}. "
    else:
        why = f"This design finds {percent(cell.paired.detectable)} points with 80 % power. "
    least = "at least " if plan.of_training is None else ""
    seeds = plan.seeds(target)
    if seeds is not None:
        return f"{why}To find {points(target)} points takes {least}{seeds} seeds of each."
    more = plan.more_questions(target)
    if more is None:
        return f"{why}No number of seeds finds {points(target)} points, even on 64 times as many such questions."
    return f"{why}To find {points(target)} points takes {least}{more[0]} seeds of each on {more[1]:,} such questions."


def sentences(comparison: Comparison) -> list[Said]:
    """Every verdict of the primary metric, what is shown first."""
    found = [
        one
        for method in comparison.methods
        for table in comparison.benchmarks
        if table.baseline is not None and (one := said(comparison, table, method.name, table.baseline)) is not None
    ]
    return sorted(found, key=lambda one: VERDICTS.index(one.verdict))


def plan_rows(comparison: Comparison, target: float) -> list[tuple[str, Plan, Rows]]:
    """For each benchmark: (what the numbers stand on, the plan, seeds of each method by questions and samples)."""
    out = []
    column = comparison.metrics[0]
    for table in comparison.benchmarks:
        names = table.methods
        base = table.baseline or names[0]
        pairs: list[tuple[str, str | None]] = [(name, base) for name in names if name != base] or [(base, None)]
        pool = table.pools.get(column)
        plan = averaged([plan_for(table.shared, a, b, column, pool) for a, b in pairs])
        known = "unknown (no method has two seeds): these are lower bounds"
        if plan.of_training is not None:
            of = "the differences of paired seeds" if plan.paired else "seeds"
            deviation = plan.of_training**0.5 if plan.paired else (plan.of_training / 2) ** 0.5
            known = f"a standard deviation of {percent(deviation)} points between {of}"
            known += f", {pool.total} degrees of freedom" if pool is not None and not plan.paired else ""
        if len(names) == 1:
            known += "; with one method, what separates two methods on single questions is not in it"
        if plan.silent:
            known += "; all scores are alike, so nothing can be planned from them: give runs that solve some questions"
        title = (
            f"{visible(table.benchmark)}: seeds of each method that find {points(target)} points of {column.label} "
            f"with 80 % power. Noise of training: {known}"
        )
        rows = [
            [f"{questions:,}{' (this one)' * (questions == plan.questions)}",
             *("–" if seeds is None else str(seeds) for seeds in found)]
            for questions, found in plan_table(plan, target)
        ]  # fmt: skip
        out.append((title, plan, (["questions", *(f"{n} sample{'s' * (n > 1)}" for n in SAMPLES)], rows)))
    return out


def test_rows(comparison: Comparison) -> Rows:
    """Header and rows of the table of primary comparisons: every test, and what it covers."""
    head = ["method", "benchmark", "verdict", "difference", "p, Holm", "p", "p, equivalent", "test", "covers",
            "p over questions", "p over seeds", "detectable", "seeds"]  # fmt: skip
    rows = []
    primary = comparison.metrics[0]
    for method in comparison.methods:
        for table in comparison.benchmarks:
            cell = table.cells.get((method.name, primary))
            if cell is None or cell.paired is None or cell.verdict is None:
                continue
            d = cell.paired
            over_seeds = "one seed"
            if d.p_seeds is not None and d.smallest_p_seeds is not None:
                over_seeds = f"{p_text(d.p_seeds)} (smallest possible {p_text(d.smallest_p_seeds)[4:]})"
            rows.append([
                visible(method.name), visible(table.benchmark), cell.verdict, difference(d),
                *("–" if p is None else p_text(p)[2:] for p in (cell.p_corrected, d.p_value, cell.p_equivalent)),
                TESTS[d.test], covers(d), p_text(d.p_questions)[2:], over_seeds.removeprefix("p "),
                f"±{100 * d.detectable:.1f}", f"{d.seeds[0]} against {d.seeds[1]}{', paired' * d.seeds_paired}",
            ])  # fmt: skip
    return head, [[cell.removeprefix("= ") for cell in row] for row in rows]


def training_rows(comparison: Comparison) -> Rows:
    """Header and rows of the table of training runs: the mean of the last tenth of the steps."""
    head = ["method", "run", "seed", "preset", "steps", "accuracy reward", "best (step)", "format reward",
            "entropy, nats", "kept %", "conflict %"]  # fmt: skip
    rows = []
    for method in comparison.trained:
        for member in method.members:
            if member.train is None:
                continue
            end = summary(member.train)

            def show(key: str, scale: float = 1.0, digits: int = 2, end: dict[str, float | None] = end) -> str:
                value = end.get(key)
                return "–" if value is None else f"{scale * value:.{digits}f}"

            best = "–" if end.get("best accuracy") is None else f"{show('best accuracy')} ({show('best step', 1, 0)})"
            rows.append([
                visible(method.name), visible(member.train.name) + " (collapsed)" * member.train.collapsed,
                member.seed or "–", member.train.preset or member.train.method, show("steps", 1, 0),
                show("reward/accuracy"), best, show("reward/format"), show("entropy/mean", 1, 3),
                show("gate/kept", 100, 1), show("conflict/fraction", 100, 1),
            ])  # fmt: skip
    return head, rows
