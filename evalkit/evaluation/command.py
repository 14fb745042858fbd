"""What `gtpo eval` does with its settings: dispatch, print, exit code; and --rescore, which verifies a run again."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from gtpo.common.errors import UserError
from gtpo.common.files import DISK_FULL
from gtpo.common.log import LOG, start_logging
from gtpo.evalkit.evaluation import printing
from gtpo.evalkit.evaluation.evaluate import evaluate
from gtpo.evalkit.evaluation.pipeline import Incomplete
from gtpo.evalkit.evaluation.progress import EvalProgress
from gtpo.evalkit.evaluation.record import find_run, verifier_record, write_results
from gtpo.evalkit.evaluation.scoring import verify_stored
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.summary import Tally
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder
from gtpo.runs.eval_record import SCORINGS, EvalRecord

# Exit codes, beside 2 for a mistake of the user's.
COMPLETE, INCOMPLETE, INTERRUPTED = 0, 3, 130

# Samples whose verdicts --rescore has changed and that are printed one by one.
SHOWN = 20


def run_eval(settings: EvalSettings, *, summary: bool = True) -> int:
    """Run one `gtpo eval` command and return its exit code. Raises UserError for a mistake of the user's.

    summary: print the results; otherwise only where they are.
    """
    start_logging(settings.verbosity)
    if settings.list_benchmarks:
        printing.print_benchmarks()
        return COMPLETE
    if settings.check is not None:
        printing.print_check(settings)
        return COMPLETE
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
        LOG.info(f"{settings.completions}: {record.scoring} scoring, stored in {folder}")
    elif settings.json_output:
        print(json.dumps(record.as_json(), indent=2))
    else:
        as_like = settings.like is not None and "k" not in settings.given  # k is the other run's
        printing.print_summary(folder, record, None if settings.rescore or as_like else settings.k)
        sys.stdout.flush()
    printing.warn(record)  # below the numbers that it speaks of
    return COMPLETE if record.status == "complete" else INCOMPLETE


def rescore(settings: EvalSettings) -> tuple[Path, EvalRecord]:
    """Score every stored completion of a run again; print the changes; return folder and eval.json.

    The headline stays the one that the run has, unless --scoring asks for another.
    """
    changes: Counter[str] = Counter()
    samples: list[str] = []
    with EvalFolder(find_run(settings.model, "--rescore")) as folder:
        record = folder.record()
        assert record is not None
        if record.status != "complete":
            raise UserError(f"{folder.path} is incomplete; finish it first: {record.command}")
        headline = settings.scoring if "scoring" in settings.given else record.scoring
        judges = settings.verifier if "verifier" in settings.given else record.verifier.name
        record = record.model_copy(update={"verifier": verifier_record(judges)})
        with Verifier() as verifier, EvalProgress(headline) as progress:
            for benchmark, entry in record.benchmarks.items():
                progress.add(benchmark, entry.samples, 0)
            progress.start()
            for before, after in verify_stored(folder, folder.questions(), verifier, judges):
                for old, new in zip(before, after, strict=True):
                    for scoring in SCORINGS:
                        if old.verdict(scoring) != new.verdict(scoring):
                            change = f"{scoring}: {old.verdict(scoring) or ''} -> {new.verdict(scoring) or ''}"
                            changes[change] += 1
                            where = f"{new.benchmark} {new.question_id} #{new.sample_index}"
                            samples.append(f"{where} {change}  {new.answer(scoring)!r:.60}")
                progress.count(after)
            record = write_results(folder, record, Tally(folder, verifier), verifier, scoring=headline)
    lines = [f"rescored: {changes.total() or 'no'} verdicts changed"]
    lines += [f"  {count:6d}  {change}" for change, count in changes.most_common()]
    lines += [f"  {sample}" for sample in samples[:SHOWN]]
    lines += [f"  ... and {len(samples) - SHOWN} more"] if len(samples) > SHOWN else []
    print("\n".join(lines), file=sys.stderr)
    return folder.path, record
