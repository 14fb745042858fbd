"""What `gtpo eval` does with its settings: dispatch, print, exit code."""

from __future__ import annotations

import json
import sys

from gtpo.common.files import DISK_FULL
from gtpo.common.log import LOG, start_logging
from gtpo.evalkit.evaluation.settings import EvalSettings

# Exit codes, beside 2 for a mistake of the user's.
COMPLETE, INCOMPLETE, INTERRUPTED = 0, 3, 130


def run_eval(settings: EvalSettings, *, summary: bool = True) -> int:
    """Run one `gtpo eval` command and return its exit code. Raises UserError for a mistake of the user's.

    summary: print the results; otherwise only where they are.
    """
    from gtpo.evalkit.evaluation import printing

    start_logging(settings.verbosity)
    if settings.list_benchmarks:
        printing.print_benchmarks()
        return COMPLETE
    if settings.check is not None:
        printing.print_check(settings)
        return COMPLETE
    # What is above needs no pyarrow.
    from gtpo.evalkit.evaluation.evaluate import evaluate, rescore
    from gtpo.evalkit.evaluation.pipeline import Incomplete

    try:
        folder, record = rescore(settings) if settings.rescore else evaluate(settings)
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
    if not summary:
        LOG.info(f"{settings.completions or settings.model}: {record.scoring} scoring, stored in {folder}")
    elif settings.json_output:
        print(json.dumps(record.as_json(), indent=2))
    else:
        as_like = settings.like is not None and "k" not in settings.given  # k is the other run's
        printing.print_summary(folder, record, None if settings.rescore or as_like else settings.k)
        sys.stdout.flush()
    printing.warn(record)  # below the numbers that it speaks of
    return COMPLETE if record.status == "complete" else INCOMPLETE
