"""What `gtpo eval` does with its settings: dispatch, print, exit code."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.files import DISK_FULL
from gtpo.common.log import LOG, Verbosity, start_logging

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 3, 130
"""Exit codes, beside 2 for a mistake of the user's."""

EVERYWHERE = ("model", "scoring", "quiet", "verbose", "json_output")
WITH_COMPLETIONS = ("completions", "benchmarks", "k", "data_dir", "out", "limit", "questions", "shard")
"""Options that do something with --rescore and --completions too; all others are refused there."""


def check_flags(mode: str, flags: Mapping[str, str], known: Container[str]) -> None:
    """Raise UserError that names the flags which do nothing in this mode."""
    idle = sorted(flag for name, flag in flags.items() if name not in known)
    if idle:
        what = "scores again what a run has stored" if mode == "--rescore" else "samples nothing"
        raise UserError(f"{mode} {what}, and {', '.join(idle)} would have no effect: leave out what has none")


def run_eval(
    *,
    list_benchmarks: bool,
    check: str | None,
    rescore: bool,
    json_output: bool,
    verbosity: Verbosity,
    flags: Mapping[str, str],
    **given: Any,
) -> int:
    """Run one `gtpo eval` command and return its exit code. given: the fields of `EvalSettings`.

    flags: those that the user gave, name -> as it is typed. scoring: None where it was not given.

    Raises UserError for a mistake of the user's.
    """
    from gtpo.evalkit.evaluation import printing

    start_logging(verbosity)
    if list_benchmarks:
        printing.print_benchmarks()
        return COMPLETE
    if check is not None:
        printing.print_check(check, given["data_dir"])
        return COMPLETE
    from gtpo.evalkit.evaluation.pipeline import Incomplete
    from gtpo.evalkit.evaluation.settings import EvalSettings

    try:
        if rescore:
            check_flags("--rescore", flags, {*EVERYWHERE, "rescore"})
            from gtpo.evalkit.evaluation.rescore import rescore_run

            folder, record = rescore_run(given["model"], scoring=given["scoring"])
        else:
            if given["completions"] is not None:
                check_flags("--completions", flags, {*EVERYWHERE, *WITH_COMPLETIONS})
            settings = EvalSettings(**given | {"scoring": given["scoring"] or "strict"})
            if settings.completions is not None:
                from gtpo.evalkit.evaluation.recorded import evaluate_recorded

                folder, record = evaluate_recorded(settings)
            else:
                from gtpo.evalkit.evaluation.evaluate import evaluate

                folder, record = evaluate(settings)
    except Incomplete as stop:
        LOG.error("incomplete: %s. What was sampled is stored; the same command resumes", stop)
        return INTERRUPTED if stop.interrupted else INCOMPLETE
    except KeyboardInterrupt:
        LOG.error("stopped. What was sampled is stored; the same command resumes")
        return INTERRUPTED
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        where = f" ({error.filename})" if error.filename else ""
        LOG.error("incomplete: the disk is full%s: free some space. The same command resumes", where)
        return INCOMPLETE
    printing.warn(record)
    if json_output:
        print(json.dumps(record.as_json(), indent=2))
    else:
        printing.print_summary(folder, record, None if rescore else given["k"])
    return COMPLETE if record.status == "complete" else INCOMPLETE
