"""What `gtpo compare` and `gtpo plan` take; and what the first does: find the runs, compare, print, write."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from gtpo.common.errors import UserError
from gtpo.common.files import check_writable
from gtpo.common.settings import CommandSettings, option
from gtpo.common.terminal import stdout_console, visible

# What an option in points takes.
POINTS: dict[str, Any] = {"gt": 0.0, "lt": 100.0, "about": {"unit": "points"}}


class CompareSettings(CommandSettings):
    """One `gtpo compare` command. Raises UserError that names the flag, or the place that cannot be written to."""

    COMMAND: ClassVar[str] = "gtpo compare"
    ARGUMENT: ClassVar[str] = "runs"

    runs: Sequence[str] = option(
        (), "Eval or train runs: folders, or names under results/eval and results/train; or files of completions, "
        "[NAME=]FILE.jsonl, which are scored and stored in results/eval/NAME.",
    )  # fmt: skip
    baseline: str | None = option(
        None, "Method or run to compare with. Default: GRPO, else SFT, else a model not trained here."
    )
    group_by: Literal["config", "method", "none"] = option(
        "config", "What makes runs one method: config (equal but for the seed), method (one preset), or none."
    )
    seeds: Sequence[str] | None = option(
        None, "NAME=RUN[,RUN...]: these runs are independent trainings of one recipe, wherever they were trained "
        "(repeatable). They need not be named again.",
    )  # fmt: skip
    label: Sequence[str] | None = option(
        None, "NAME=RUN[,RUN...]: these outputs are one row of that name, and no seeds (repeatable)."
    )
    looks: int = option(
        1, "Comparisons planned in all, if seeds are added after a look: each gets its share of the 5 %.", ge=1, le=20
    )
    metric: Sequence[str] | None = option(
        None,
        "Metrics of the table, e.g. pass@1 or maj@64 (repeatable); the first is the primary one. Default: pass@1 and "
        "maj@k of the largest common k.",
    )
    details: bool = option(False, "Also maj@k, every k, format, median tokens, every test and the end of training.")
    explain: bool = option(False, "Say in full what the numbers mean.")
    k: list[int] | None = option(None, "The k of the details, e.g. 1,8,16,32,64.")
    scoring: Literal["strict", "lenient"] | None = option(None, "Default: the runs' own headline.")
    format: Literal["table", "markdown", "latex", "csv", "json"] = option("table", "Format of the output.")
    fields: str | None = option(
        None, "Names of fields in files of completions, as of gtpo eval: completion=response,gold=target."
    )
    per_subject: bool = option(False, "Also one table per subject and level.")
    allow_mismatch: bool = option(False, "Compare unlike or incomplete runs on what they share, with a note.")
    margin: float | None = option(
        None, "Points within which methods count as equivalent; tested in the same corrected family.", **POINTS
    )
    fail_if_worse: float | None = option(
        None, "POINTS that matter: exit code 0 if every method is shown, at one-sided 5 %, to lose fewer against the "
        "baseline; 5 if one is shown to be worse and not by fewer; else 6, also if samples are missing.",
        **POINTS | {"about": {"unit": "points", "needs": "say how many points matter; 2 is usual"}},
    )  # fmt: skip
    undecided: Literal["pass", "fail"] = option("fail", "What --fail-if-worse does if neither is shown: pass is 0.")
    figures: Path | None = option(None, "Write figures to this folder, as PDF, SVG and PNG (extra: report).")
    html: Path | None = option(None, "Write one self-contained page: tables, curves, completions.")
    samples_mb: float = option(
        1.5, "MB of completions in the page, which a browser reads whole; it says how many are left out.", ge=0.0,
        le=200.0, about={"unit": "MB"},
    )  # fmt: skip

    def check_together(self) -> None:
        """Check what more than one option decides, and that the outputs can be written."""
        for flag, texts in (("--seeds", self.seeds), ("--label", self.label)):
            for text in texts or ():
                if not all(names_of(text)):
                    example = f"e.g. {flag} GTPO=gtpo-s1,gtpo-s2"
                    raise UserError(f'{flag} "{text}": expected NAME=RUN[,RUN...], {example}')
        if self.k is not None and min(self.k, default=0) < 1:
            raise UserError("--k must be whole numbers from 1 on, e.g. --k 1,8,64")
        if not self.runs and not self.seeds:
            raise UserError(f"{self.COMMAND} needs RUNS; {self.COMMAND} --help says what they may be")
        if "undecided" in self.model_fields_set and self.fail_if_worse is None:
            raise UserError("--undecided belongs to --fail-if-worse POINTS, and none is given")
        for flag, belongs, given in (("explain", "--format table", self.format == "table"),
                                     ("samples_mb", "--html FILE", self.html is not None)):  # fmt: skip
            if flag in self.model_fields_set and not given:
                raise UserError(f"--{flag.replace('_', '-')} belongs to {belongs}")
        if self.html is not None:
            check_writable("--html", self.html, folder=False)
            if self.html.is_file() and b"<title>gtpo " not in self.html.read_bytes():
                raise UserError(f"--html {self.html} is there already, and is no page of gtpo; name another file")
        if self.figures is not None:
            check_writable("--figures", self.figures, folder=True)

    def recorded(self) -> dict[str, tuple[str, Path]]:
        """Return the files of completions among the runs: word -> (name of its run, file). UserError on a mistake."""
        found: dict[str, tuple[str, Path]] = {}
        declared = [word for text in self.seeds or () for word in names_of(text)[1]]
        for word in (*self.runs, *(word for word in declared if word not in self.runs)):
            before, equals, file = word.partition("=")
            name, file = ("", word) if not equals or Path(word).is_file() else (before, file)
            match = re.fullmatch(r"(.+?)(\.jsonl(\.gz)?|\.csv|\.parquet)", Path(file).name)
            if match is None:
                continue
            if not Path(file).is_file():
                raise UserError(f"{file}: no such file")
            name = name or match[1]
            if word in found or name in (known for known, _ in found.values()):
                raise UserError(f'two files are called "{name}": give each a name of its own, as in NAME={file}')
            found[word] = name, Path(file)
        if self.fields is not None and not found:
            raise UserError("--fields names the fields of files of completions, and none is given")
        return found


class PlanSettings(CommandSettings):
    """One `gtpo plan` command."""

    COMMAND: ClassVar[str] = "gtpo plan"
    ARGUMENT: ClassVar[str] = "runs"

    runs: Sequence[str] | None = option(None, "A pilot: runs of two methods or models, as for gtpo compare.")
    accuracy: float | None = option(None, "Without a pilot: about how much is solved, 0 to 1.", gt=0.0, lt=1.0)
    seed_sd: float | None = option(
        None, "Standard deviation of a method's accuracy between its training seeds. Default: the pilot's, else as in "
        "published experiments.", gt=0.0, lt=50.0, about={"unit": "points"},
    )  # fmt: skip
    models: bool = option(False, "Two models as they are; nothing is said about training them.")
    effect: float = option(2.0, "The difference to be seen.", **POINTS)
    margin: float | None = option(
        None, "Also: the power to show two equal methods to be equivalent within so much.", **POINTS
    )
    questions: list[int] | None = option(None, "Sizes of a benchmark. Default: the pilot's, twice and four times it.")
    samples: list[int] | None = option(None, "Samples of each question.")
    seeds: list[int] | None = option(None, "Training seeds of each method, from 3 on.")
    baseline: str | None = option(None, "Of a pilot: the method to compare with, as for gtpo compare.")
    tokens: int | None = option(None, "Tokens of an answer, for the cost. Default: the pilot's mean.", ge=1)
    json_output: bool = option(False, "Print the plan as JSON on stdout.", "--json")

    def check_together(self) -> None:
        """Check what more than one option decides."""
        if self.runs and self.accuracy is not None:
            raise UserError("--accuracy describes what has no pilot; runs are one: give one of the two")
        if self.baseline is not None and not self.runs:
            raise UserError("--baseline is a run of a pilot, and no runs are given")
        if self.models and (self.seeds or self.seed_sd):
            raise UserError("--models is about two models as they are, so --seeds and --seed-sd say nothing of it")
        for flag, least in (("questions", 2), ("samples", 1), ("seeds", 3)):
            counts = getattr(self, flag)
            if counts is not None and (not counts or min(counts) < least):
                raise UserError(f"--{flag} must be whole numbers from {least} on, e.g. --{flag} {least},{4 * least}")


def names_of(text: str) -> tuple[str, list[str]]:
    """Split NAME=RUN,RUN; without a name or a run it is empty."""
    name, _, runs = text.partition("=")
    return name.strip(), [part.strip() for part in runs.split(",") if part.strip()]


def run_compare(settings: CompareSettings, scored: Mapping[str, str] | None = None) -> int:
    """Run the command and return its exit code. The comparison goes to stdout, everything else to stderr.

    scored: the eval run of each word that names a file of completions. Raises UserError.
    """
    from gtpo.evalkit.comparison.columns import parse_columns
    from gtpo.evalkit.comparison.methods import members_of, named_by
    from gtpo.runs.find import find_runs

    def run_of(word: str) -> str:
        return (scored or {}).get(word, word)

    def runs_of(texts: Sequence[str] | None) -> list[str]:
        return [f"{name}={','.join(map(run_of, words))}" for name, words in map(names_of, texts or ())]

    metrics, seeds = parse_columns(settings.metric or ()), runs_of(settings.seeds)
    words, incomplete = [run_of(word) for word in settings.runs], settings.allow_mismatch
    evals, trains, notes = find_runs(words, allow_incomplete=incomplete) if words else ([], [], [])
    members = members_of(evals, trains)
    # Those that only --seeds names.
    further = [word for text in seeds for word in names_of(text)[1] if not named_by(word, members)]
    if further:
        evals, trains, notes = find_runs([*words, *dict.fromkeys(further)], allow_incomplete=incomplete)
    # Here, not above: a mistake in the arguments is told before the statistics are loaded.
    from gtpo.evalkit.comparison.compare import compare
    from gtpo.evalkit.report.summary import CODES, OPEN, TRAINING_UNKNOWN, answer, gate
    from gtpo.evalkit.report.writers import as_csv, as_json, as_latex, as_markdown, as_terminal

    details = settings.details or settings.k is not None
    comparison = compare(
        evals, trains, baseline=settings.baseline, group_by=settings.group_by, labels=runs_of(settings.label),
        seeds=seeds, looks=settings.looks, metrics=metrics, ks=settings.k, scoring=settings.scoring,
        details=details or settings.html is not None or settings.figures is not None, per_subject=settings.per_subject,
        allow_mismatch=settings.allow_mismatch, margin=settings.margin and settings.margin / 100, notes=notes,
    )  # fmt: skip
    most = settings.fail_if_worse
    code, lines = (0, []) if most is None else gate(comparison, most / 100)
    if most is not None and not lines:
        raise UserError("--fail-if-worse: there is nothing to compare; give two runs on the same benchmark")
    if settings.format == "table":
        console = stdout_console(pipe=160)
        console.print(as_terminal(comparison, console.width, details=details, explain=settings.explain))
    else:
        formats = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv, "json": as_json}
        sys.stdout.write(formats[settings.format](comparison, details=details))
    sys.stdout.flush()
    # A file of numbers has no place for them.
    if settings.format == "csv":
        for note in (*comparison.all_notes, *(text for _, text in answer(comparison) if TRAINING_UNKNOWN in text)):
            print(f"note: {visible(note)}", file=sys.stderr)
    if settings.html is not None:
        from gtpo.evalkit.report.page import write_page

        size = write_page(comparison, settings.html, samples_bytes=int(settings.samples_mb * 1e6))
        print(f"page: {settings.html} ({size / 1e6:.1f} MB), open it in any browser", file=sys.stderr)
    # After the page: figures that fail do not cost it.
    if settings.figures is not None:
        try:
            from gtpo.evalkit.report.figures import write_figures

            written = write_figures(comparison, settings.figures)
        except ImportError as error:
            raise UserError(f"--figures: matplotlib cannot be imported ({error}); pip install 'gtpo[report]'") from None
        print(f"figures: {len(written)} files in {settings.figures}", file=sys.stderr)
    for line in lines:
        print(f"gate: {line}", file=sys.stderr)
    if code == CODES[OPEN] and settings.undecided == "pass":
        print("gate: undecided, which passes (--undecided pass)", file=sys.stderr)
        return 0
    return code
