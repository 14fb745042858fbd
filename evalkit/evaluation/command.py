"""What `gtpo eval` does with its settings: run, print, warn, exit code."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gtpo.common.errors import DISK_FULL, UserError
from gtpo.common.log import LOG, start_logging
from gtpo.common.terminal import stacked, stdout_console
from gtpo.evalkit.evaluation.caveats import caveats
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.tasks import BENCHMARKS, checksum, load_problems, presets
from gtpo.evalkit.metrics import DEFINITIONS
from gtpo.rewards.extract import Scoring
from gtpo.rewards.golds import contradiction, read_contract
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_record import SCORINGS, BenchmarkRecord, EvalRecord, Interval

# Exit codes, beside 2 for a mistake of the user's.
COMPLETE, INCOMPLETE, INTERRUPTED = 0, 3, 130


def run_eval(settings: EvalSettings, *, summary: bool = True) -> int:
    """Run one `gtpo eval` command and return its exit code. Raises UserError for a mistake of the user's.

    summary: print the results; otherwise only where they are.
    """
    start_logging(quiet=settings.quiet, verbose=settings.verbose)
    if settings.list_benchmarks:
        print_benchmarks()
        return COMPLETE
    if settings.check is not None:
        print_check(settings)
        return COMPLETE
    # What is above needs no pyarrow.
    from gtpo.evalkit.evaluation.evaluate import Incomplete, evaluate, rescore

    try:
        folder, record = rescore(settings) if settings.rescore else evaluate(settings)
    except (Incomplete, KeyboardInterrupt) as stop:
        LOG.error("incomplete: %s. What was sampled is stored; the same command resumes", str(stop) or "stopped")
        return INCOMPLETE if isinstance(stop, Incomplete) and not stop.interrupted else INTERRUPTED
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        where = f" ({error.filename})" if error.filename else ""
        full, remedy = DISK_FULL[error.errno]
        LOG.error("incomplete: %s%s: %s. The same command resumes", full, where, remedy)
        return INCOMPLETE
    if not summary:
        LOG.info(f"{settings.completions or settings.model}: {record.scoring} scoring, stored in {folder}")
    elif settings.json_output:
        print(json.dumps(record.as_json(), indent=2))
    else:
        print_summary(folder, record, settings)
        sys.stdout.flush()
    # After the numbers that the warnings are about.
    warn(record)
    return COMPLETE if record.status == "complete" else INCOMPLETE


def _cell(interval: Interval) -> str:
    text = f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    if interval.worst is not None and interval.best is not None:
        text += f" {{{100 * interval.worst:.1f}, {100 * interval.best:.1f}}}"
    return text


def print_summary(folder: Path, record: EvalRecord, settings: EvalSettings) -> None:
    """Print the metrics of a run on stdout: one table for all benchmarks, a line on each, what they mean.

    Up to the k that was asked for. Benchmarks that have no metrics yet are left out.
    """
    console = stdout_console(pipe=250)
    done = {name: entry for name, entry in record.benchmarks.items() if entry.pass_at_k}
    # With --like the k is the other run's.
    every_k = settings.rescore or (settings.like is not None and "k" not in settings.model_fields_set)
    # Every k up to the fewest samples of a question is known.
    known = {name: len(entry.pass_at_k) for name, entry in done.items()}
    largest = known if every_k else {name: min(settings.k, most) for name, most in known.items()}
    if done:
        rows = _overview(done, largest)
        _print_table(console, rows, f"{record.name}, {record.scoring} scoring, %")
    for name, entry in done.items():
        if settings.by is not None:
            _print_by(console, folder, record, name, largest[name], settings.by)
        if settings.details and largest[name] > 1:
            curves = {"pass@k, %": entry.pass_at_k, "pass^k, %": entry.all_pass_at_k, "maj@k, %": entry.maj_at_k}
            # The powers of two, and the largest.
            ks = sorted({largest[name], *(1 << i for i in range(largest[name].bit_length()))})
            rows = [{"k": str(k), **{title: _cell(curve[k]) for title, curve in curves.items()}} for k in ks]
            title = f"{name}: {entry.questions} questions, {entry.samples} samples, {record.scoring} scoring"
            _print_table(console, rows, title)
        console.print(_line(record.scoring, entry))
    if prices := settings.prices():
        console.print(_cost(prices, list(done.values())))
    console.print("[a, b]: 95 % interval over questions and samples.", style="dim")
    if any(most > 1 for most in largest.values()):
        console.print(DEFINITIONS, style="dim")
    run, page = shlex.quote(str(folder)), shlex.quote(f"{folder.name}.html")
    ways = f"page: gtpo compare {run} --html {page}   next: gtpo compare {run} OTHER_RUN..."
    console.print(f"Results: {folder}   {ways}")


def _cost(prices: tuple[float, float], entries: Sequence[BenchmarkRecord]) -> str:
    """Say what the scored samples cost."""
    read, written = (sum(e.prompt_tokens or 0 for e in entries), sum(e.completion_tokens or 0 for e in entries))
    known = all(entry.prompt_tokens and entry.completion_tokens and not entry.uncounted for entry in entries)
    cost = f"${(read * prices[0] + written * prices[1]) / 1e6:,.2f}"
    tokens = f"{read:,} prompt and {written:,} completion tokens of the scored samples"
    return f"{cost}: {tokens}" if known else f"at least {cost}: {tokens}; not all are known"


def _print_by(
    console: Any, folder: Path, record: EvalRecord, name: str, k: int, by: Literal["subject", "level"]
) -> None:
    """Print a benchmark's metrics by subject or level of its questions."""
    from gtpo.evalkit.statistics import clusters_of, mean_interval
    from gtpo.runs.find import EvalRun

    run = EvalRun(record.name, folder, record)
    questions, problems = run.questions(name, record.scoring), run.problems(name)
    # From the problems: in the table of questions, level 0 is one that is not known.
    values, many = [getattr(problems[question], by) for question in questions.ids], questions.n >= k
    if not any(value not in (None, "") for value in values):
        LOG.warning("--by %s: the questions of %s have none", by, name)
        return
    rows = []
    there = {value for value, enough in zip(values, many, strict=True) if enough}
    for value in sorted(there, key=lambda v: (v is not None, v)):
        part = questions.take(many & [v == value for v in values])
        asked = [problems[question] for question in part.ids]
        source = record.benchmarks[name].source
        clusters = clusters_of([p.problem for p in asked], [p.cluster for p in asked], source)
        shown = "none" if value in (None, "") else str(value)
        row, curves = {by: shown, "questions": str(len(asked))}, {"pass@1": part.pass_at_k[:, 0]}
        if k > 1:
            curves |= {f"pass@{k}": part.pass_at_k[:, k - 1], f"maj@{k}": part.maj_at_k[:, k - 1]}
        for title, column in curves.items():
            mean, low, high, *_ = mean_interval(column, clusters=clusters)
            row[title] = _cell(Interval(mean=mean, low=low, high=high))
        rows.append(row)
    _print_table(console, rows, f"{name} by {by}, {record.scoring} scoring, %")


def _print_table(console: Any, rows: Sequence[Mapping[str, str]], title: str | None = None, **frame: Any) -> None:
    """Print a table, in pieces that fit; columns in which there is nothing are left out.

    frame: further options of rich's; without a title all columns are texts.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", **frame)
    head = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in head:
        number = title is not None and name not in ("benchmark", "subject")
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in head))
    for piece in stacked(table, console.width):
        console.print(piece)


def _overview(done: Mapping[str, BenchmarkRecord], largest: Mapping[str, int]) -> list[dict[str, str]]:
    """Return one row per benchmark."""
    most = max(largest.values())
    fewest = {len(entry.pass_at_k) for entry in done.values()}
    first = "pass@1" if fewest == {1} else f"pass@1 (avg@{fewest.pop() if len(fewest) == 1 else 'n'})"
    rows = []
    for name, entry in done.items():
        k, every = largest[name], entry.samples + entry.unscored
        row = {"benchmark": name, "questions": str(entry.questions), first: _cell(entry.pass_at_k[1])}
        if most > 1:
            note = "" if k == most else f" (k = {k})"
            row |= {f"pass@{most}": _cell(entry.pass_at_k[k]) + note, f"maj@{most}": _cell(entry.maj_at_k[k]) + note}
        shares = {
            "format": entry.format_rate, "cut off": entry.truncation_rate, "unfinished": entry.unfinished_rate or None,
            "failed": (entry.unscored - entry.refused) / every or None, "refused": entry.refused / every or None,
        }  # fmt: skip
        row |= {title: "" if share is None else f"{100 * share:.1f}" for title, share in shares.items()}
        row["tokens"] = "" if entry.mean_tokens is None else f"{entry.mean_tokens:.0f}"
        rows.append(row)
    return rows


def warn(record: EvalRecord) -> None:
    """Warn of what makes the numbers of a run less than they seem, and name what is unfinished."""
    for name, entry in record.benchmarks.items():
        if entry.finish_with is not None:
            so_far = f"; its figures are of the first {entry.n}" if entry.n else ""
            LOG.error(
                f"incomplete: {name} does not have its {entry.n_asked} samples of each question yet{so_far}. Finish it "
                f"with: {entry.finish_with}"
            )
        for caveat in caveats(record, entry):
            LOG.warning("%s: %s", name, caveat)


def _line(headline: Scoring, entry: BenchmarkRecord) -> str:
    """Say what the overview has no room for."""
    (other,) = (scoring for scoring in SCORINGS if scoring != headline)
    shares = {"no answer": entry.no_answer_rate, "unsimplified": entry.unsimplified_rate}
    parts = [f"{title} {100 * rate:.1f} %" for title, rate in shares.items() if rate is not None]
    if entry.prompt_tokens is not None:
        parts.append(f"{entry.prompt_tokens:,} prompt and {entry.completion_tokens or 0:,} completion tokens")
    for lengths, what in ((entry.tokens_right, "right"), (entry.tokens_wrong, "wrong")):
        if lengths is not None:
            parts.append(f"{what} ones {lengths.median:,.0f} tokens (median; 95 % at most {lengths.high:,.0f})")
    parts.append(f"pass@1 under {other} scoring {100 * getattr(entry, other).pass_at_k[1].mean:.1f} %")
    undecided = sum(entry.verdicts.get(verdict, 0) for verdict in ("TIMEOUT", "REJECTED"))
    counts = {
        "answers could not be verified and count as wrong": undecided,
        "questions left out": len(entry.excluded),
        "samples unscored": entry.unscored,
        "different texts, which the intervals count": entry.texts,
    }
    parts += [f"{count} {what}" for what, count in counts.items() if count]
    if entry.labels:
        lenient, strict = (entry.labels.agree[scoring] for scoring in ("lenient", "strict"))
        parts.append(
            f"the file's own labels agree on {lenient} of {entry.labels.compared} (lenient), {strict} (strict)"
        )
    return ", ".join(parts)


def print_benchmarks() -> None:
    """Print the benchmarks and the protocols that are built in (gtpo eval --list)."""
    rows = [
        {
            "benchmark": b.name, "": b.title if b.checksum else f"{b.title} (unverified)", "questions": str(b.size),
            "source": b.source, "local file": f"{b.local}.jsonl" if b.local else "",
        }
        for b in BENCHMARKS.values()
    ]  # fmt: skip
    console = stdout_console(pipe=250)
    _print_table(console, rows, box=None, pad_edge=False)
    said = "\nLocal files are read from --data-dir or GTPO_DATA_DIR. Your own: a .jsonl, .parquet or .yaml file.\n\n"
    said += "".join(f"protocol {p.name}: {p.title}{f' ({p.source})' if p.source else ''}\n" for p in presets().values())
    console.print(f"{said}Your own protocol: a .yaml file, which may extend one of these.")


def print_check(settings: EvalSettings) -> None:
    """Print what a benchmark holds, how a model is asked (its first prompt), and which golds cannot be verified."""
    from gtpo.evalkit.engines.model_ref import resolve_model
    from gtpo.evalkit.evaluation.plan import find_tasks, find_unusable, render_prompts

    settings, (benchmark, *others), protocol = find_tasks(settings)
    if others:
        raise UserError(f"--check looks at one benchmark, found {settings.check}")
    problems = load_problems(benchmark, settings.data_dir)
    print(f"{benchmark.name}: {len(problems)} problems from {benchmark.source}")
    for problem in problems[:3]:
        extra = "".join(f", {key} {value}" for key in ("subject", "level") if (value := getattr(problem, key)))
        print(f"\n{problem.id}{extra}\n{problem.problem}\ngold: {problem.answer}")
    if settings.model is not None:
        first = problems[0]
        question = first, protocol.examples(problems, settings.data_dir)[first.id]
        rendered = render_prompts(settings, protocol, resolve_model(settings.model), {("", first.id): question})
        prompt = rendered.prompts["", first.id]
        inside = rendered.reading.opens_thought(prompt.text or "")
        print(f"\nprotocol {protocol.name}, the prompt of {first.id}:\n{prompt.text}")
        print(f"\n{len(prompt.ids or ())} tokens: {' '.join(map(str, prompt.ids or ()))}")
        print(f"completions {'begin' if inside else 'do not begin'} inside a thought")
    with Verifier() as verifier:
        failures = [f"{i}: {why}" for i, why in find_unusable(problems, verifier).items()]
    contracts = [f"{p.id}: {contract}" for p in problems if (contract := str(read_contract(p.problem)))]
    against = [f"{p.id}: {why}" for p in problems if (why := contradiction(p.problem, p.answer)) is not None]
    sound = len(problems) - len(failures)
    for title, lines, most in (
        (f"\nself-test: {sound} of {len(problems)} golds verify against themselves", failures, 20),
        (f"answer contracts: {len(contracts)} problems say what their answer must be", contracts, 3),
        (f"contracts that the gold contradicts: {len(against)}", against, 20),
    ):
        print("\n  ".join([title, *itertools.islice(lines, most)]))
    found = checksum(problems)
    same = "as published" if found == benchmark.checksum else "not that of the published set"
    print(f"checksum of ids and golds: {same if benchmark.checksum else found}")
