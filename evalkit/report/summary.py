"""What a comparison says in words: captions, legends, verdicts, and the end of training."""

from __future__ import annotations

from gtpo.evalkit.comparison.compare import ALPHA, Column, Comparison
from gtpo.evalkit.comparison.training_curves import summary
from gtpo.evalkit.report.text import TESTS, VERDICTS, covers, difference, p_text, visible
from gtpo.evalkit.statistics import SEEDS_NEEDED


def caption(comparison: Comparison, column: Column) -> str:
    """`pass@1, %, scoring strict; primary metric, differences against grpo`."""
    role = "primary metric" if column == comparison.metrics[0] else "exploratory: nothing is marked"
    against = f", differences in points against {visible(comparison.baseline)}" if comparison.baseline else ""
    return f"{column.label}, %, scoring {comparison.scoring} ({role}{against})"


def legend(comparison: Comparison) -> list[str]:
    """What the numbers mean, in full: printed under every table."""
    lines = [
        f"Percent, scoring {comparison.scoring}. [low, high]: 95 % interval; it covers the choice of questions and the "
        f"sampling of completions, and training too where a method has {SEEDS_NEEDED} seeds or more. ±: standard "
        "deviation over training seeds. pass@k is unbiased; maj@k is the exact expectation over all k-subsets of the n "
        "samples, ties shared evenly."
    ]
    if not comparison.baseline:
        return lines
    families = [f for table in comparison.benchmarks for f in table.cells.values() if f.primary and f.paired]
    tests = dict.fromkeys(f"{TESTS[c.paired.test]} (covers {covers(c.paired)})" for c in families if c.paired)
    count = len(comparison.benchmarks)
    primary = comparison.metrics[0].label
    lines.append(
        f"Baseline: {visible(comparison.baseline)} ({comparison.baseline_reason}). Second line of a cell: difference "
        f"to it in points, paired by question. Primary comparisons: {primary} against the baseline, per method on "
        f"{count} benchmark{'s' * (count != 1)}, Holm-corrected jointly over them; ▲ better or ▼ worse where p <= "
        f"{ALPHA} after correction and the interval excludes 0. Their intervals are at the level of that correction. "
        f"Test: {'; '.join(tests) or 'none'}. Everything else is exploratory: its own 95 % interval, "
        "uncorrected, never marked."
    )
    lines.append(
        "Bold: best, and shown to be better than the second (p <= 0.05, and the interval excludes 0); underlined: "
        "second, and shown to be better than the third. The average over benchmarks is not tested."
    )
    return lines


def verdicts(comparison: Comparison) -> list[tuple[str, dict[str, list[str]]]]:
    """(method, verdict -> phrases a reader can quote) of the primary metric, for every method but the baseline."""
    primary = comparison.metrics[0]
    found = []
    for method in comparison.methods:
        phrases: dict[str, list[str]] = {}
        for table in comparison.benchmarks:
            cell = table.cells.get((method.name, primary))
            if cell is None or cell.paired is None or cell.p_corrected is None:
                continue
            text = f"{visible(table.benchmark)} {difference(cell.paired)} ({p_text(cell.p_corrected)})"
            phrases.setdefault(VERDICTS[cell.direction], []).append(text)
        if phrases:
            found.append((method.name, {word: phrases[word] for word in VERDICTS.values() if word in phrases}))
    return found


def test_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of primary comparisons: every test, and what it covers."""
    head = ["method", "benchmark", "difference", "p, Holm", "p", "test", "covers", "p over questions", "p over seeds",
            "detectable", "seeds"]  # fmt: skip
    rows = []
    primary = comparison.metrics[0]
    for method in comparison.methods:
        for table in comparison.benchmarks:
            cell = table.cells.get((method.name, primary))
            if cell is None or cell.paired is None or cell.p_corrected is None:
                continue
            d = cell.paired
            over_seeds = "one seed"
            if d.p_seeds is not None and d.smallest_p_seeds is not None:
                over_seeds = f"{p_text(d.p_seeds)} (smallest possible {p_text(d.smallest_p_seeds)[4:]})"
            rows.append([
                visible(method.name), visible(table.benchmark), difference(d), p_text(cell.p_corrected)[2:],
                p_text(d.p_value)[2:], TESTS[d.test], covers(d), p_text(d.p_questions)[2:],
                over_seeds.removeprefix("p "), f"±{100 * d.detectable:.1f}",
                f"{d.seeds[0]} against {d.seeds[1]}{', paired' * d.seeds_paired}",
            ])  # fmt: skip
    return head, [[cell.removeprefix("= ") for cell in row] for row in rows]


def training_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
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
                visible(method.name), visible(member.train.name), member.seed or "–",
                member.train.preset or member.train.method, show("steps", 1, 0), show("reward/accuracy"), best,
                show("reward/format"), show("entropy/mean", 1, 3), show("gate/kept", 100, 1),
                show("conflict/fraction", 100, 1),
            ])  # fmt: skip
    return head, rows
