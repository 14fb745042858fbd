"""What `gtpo eval` does with its settings: dispatch, print, exit code."""

from __future__ import annotations

import json
from typing import Any

from rewards.support.files import DISK_FULL
from rewards.support.log import LOG, Verbosity, start_logging

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 3, 130
"""Exit codes, beside 2 for a mistake of the user's."""


def run_eval(
    *,
    list_benchmarks: bool,
    check: str | None,
    rescore: bool,
    json_output: bool,
    verbosity: Verbosity,
    **given: Any,
) -> int:
    """Run one `gtpo eval` command and return its exit code. given: the fields of `EvalSettings`.

    Raises UserError for a mistake of the user's.
    """
    from evalkit.evaluation import printing

    start_logging(verbosity)
    if list_benchmarks:
        printing.print_benchmarks()
        return COMPLETE
    if check is not None:
        printing.print_check(check, given["data_dir"])
        return COMPLETE
    from evalkit.evaluation.pipeline import Incomplete
    from evalkit.evaluation.settings import EvalSettings

    try:
        if rescore:
            from evalkit.evaluation.rescore import rescore_run

            folder, record = rescore_run(given["model"], scoring=given["scoring"])
        else:
            settings = EvalSettings(**given)
            if settings.completions is not None:
                from evalkit.evaluation.recorded import evaluate_recorded

                folder, record = evaluate_recorded(settings)
            else:
                from evalkit.evaluation.evaluate import evaluate

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
