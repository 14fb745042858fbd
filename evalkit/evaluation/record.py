"""The record of an eval run: begun from the command, the plan and what earlier sessions left; finished by the tally."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import command_line, git_commit, now
from gtpo.evalkit.engines.base import Prompt, Task
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.evaluation.benchmarks import checksum, content_checksum
from gtpo.evalkit.evaluation.engine import Rendered
from gtpo.evalkit.evaluation.protocol import Protocol
from gtpo.evalkit.evaluation.scoring import RULES_VERSION, Judges, verify_stored
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.summary import Tally, summarise
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.golds import find_unverifiable
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder, QuestionKey
from gtpo.runs.eval_record import (
    EVAL_SCHEMA_VERSION,
    SCORINGS,
    BenchmarkRecord,
    EvalRecord,
    LabelAgreement,
    SamplingRecord,
    VerifierRecord,
    read_record,
)
from gtpo.runs.eval_run import check_identity

EVAL_RUNS = Path("results/eval")

SAMPLED = frozenset(SamplingRecord.model_fields)

Problems = dict[str, list[Problem]]  # benchmark -> the problems that are evaluated, in order


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command asks for: all that is known before the run's folder and its engine."""

    name: str  # What the run is called by default
    # Model, engine, prompt and benchmarks, as eval.json says them; sampling too, if completions are recorded.
    record: EvalRecord
    problems: Problems
    samples: dict[QuestionKey, int]  # Question -> how many samples it is to have
    protocol: Protocol
    rendered: Rendered
    ref: ModelRef | None = None  # None for recorded completions
    # Sampling parameters of the model's generation_config.json, if they were asked for.
    recommended: dict[str, float] = field(default_factory=dict)
    # Recorded completions: (question, sample) -> the owner's verdict.
    labels: dict[tuple[str, int], bool] = field(default_factory=dict)

    @property
    def questions(self) -> dict[QuestionKey, Problem]:
        """(benchmark, question id) -> problem."""
        return {(name, p.id): p for name, chosen in self.problems.items() for p in chosen}

    @property
    def tasks(self) -> list[Task]:
        """Every question with all of its samples."""
        prompts = self.rendered.prompts
        return [Task(*key, prompts.get(key, Prompt([])), tuple(range(n))) for key, n in self.samples.items()]


def verifier_record(judges: Judges, timeout_s: float | None = None) -> VerifierRecord:
    """Return who judges, by today's rules."""
    theirs = None if judges == "gtpo" else version("math-verify")
    return VerifierRecord(version=RULES_VERSION, timeout_s=timeout_s, name=judges, math_verify=theirs)


def previous_record(folder: EvalFolder, tally: Tally) -> EvalRecord | None:
    """Return what earlier sessions recorded; None if they stored no completion, so that any setting may change."""
    old = folder.record()
    if old is not None and not tally.keys():
        tally.drop_failed(tally.keys(failed=True))
        return None
    return old


def begin_record(
    folder: EvalFolder, settings: EvalSettings, asked: EvalRecord, problems: Problems, old: EvalRecord | None
) -> EvalRecord:
    """Return the record of a session that begins, with what earlier ones recorded.

    UserError if their settings were others. Metrics stay in the record until better ones are known: a raise of k that
    stops leaves those of the smaller k.
    """
    command = command_line()
    for header in settings.header or ():  # it may be a key
        command = command.replace(value, "***") if (value := header.partition(":")[2].strip()) else command
    n = asked.sampling.n
    of_this: dict[str, Any] = {"n_asked": n, "finish_with": command}
    known: dict[str, Any] = {
        "schema_version": EVAL_SCHEMA_VERSION,
        "status": "incomplete",
        "name": folder.path.resolve().name,
        "verifier": verifier_record(settings.verifier),
        "created": now(),
        "wall_seconds": None,
        "command": command,
        "git_commit": git_commit(),
        "benchmarks": {name: e.model_copy(update=of_this) for name, e in asked.benchmarks.items()},
    }
    record = asked.model_copy(update=known)
    if old is None:
        return record
    if old.verifier.name != settings.verifier:
        raise UserError(
            f"{folder.path} was judged with --verifier {old.verifier.name}: repeat that, or judge its samples anew: "
            f"gtpo eval {folder.path} --rescore --verifier {settings.verifier}"
        )
    stored, shown = folder.problems(everything=True), folder.problems()
    kept = dict(old.benchmarks)
    others: list[str] = []
    for name in problems.keys() & stored.keys() & kept.keys():
        others += _changed(name, stored[name], problems[name])
        if {p.id for p in shown.get(name, ())} != {p.id for p in problems[name]}:
            LOG.info("%s: %d questions, of %d that are stored", name, len(problems[name]), len(stored[name]))
            kept[name] = record.benchmarks[name].model_copy(update={"n": kept[name].n})
    check_identity(folder.path, _as_asked(old, record), record, others)
    if old.verifier.version != RULES_VERSION or old.scoring != record.scoring:  # metrics of other rules or headline
        kept = {name: entry.before_samples().model_copy(update={"n": entry.n}) for name, entry in kept.items()}
    for name in kept.keys() & record.benchmarks.keys():
        most = max(n, kept[name].n or 0)
        kept[name] = kept[name].model_copy(update={"n_asked": most, "finish_with": command})
    benchmarks = {**record.benchmarks, **kept}
    most = max(entry.n_asked or old.sampling.n for entry in benchmarks.values())
    # It stays `auto` if what that came to is now asked for by name.
    engine: dict[str, Any] = {"dtype": old.engine.dtype}
    engine |= {"rows": old.engine.rows} if old.engine.rows is not None else {}
    return record.model_copy(
        update={
            "created": old.created or record.created,
            "benchmarks": {name: benchmarks[name] for name in (*kept, *record.benchmarks)},
            "sampling": record.sampling.model_copy(update={"n": most}),
            "engine": record.engine.model_copy(update=engine),
        }
    )


def _as_asked(old: EvalRecord, now: EvalRecord) -> EvalRecord:
    """Return the record of earlier sessions with what is asked for now in place of what their server did not take."""
    taken = {name: getattr(now.sampling, name) for name in old.engine.parameters_left_out if name in SAMPLED}
    return old.model_copy(update={"sampling": old.sampling.model_copy(update=taken)})


def _changed(name: str, stored: Sequence[Problem], asked: Sequence[Problem]) -> list[str]:
    """Say which questions are asked for that have samples, and are others now."""
    now = {p.id: p for p in asked}
    pairs = [(p, now[p.id]) for p in stored if p.id in now]
    golds = [p.id for p, other in pairs if p.answer != other.answer]
    texts = [p.id for p, other in pairs if p.problem and (p.problem, p.answers) != (other.problem, other.answers)]
    said = [("golds", golds), ("texts, or the ways in which answers are compared,", texts)]
    return [f"the {what} of {len(ids)} questions of {name} (first: {ids[0]})" for what, ids in said if ids]


def verify_again(folder: EvalFolder, plan: Plan, old: EvalRecord, verifier: Verifier) -> bool:
    """Verify by today's rules what was verified by others; return whether there was anything."""
    if old.verifier.version == RULES_VERSION:
        return False
    LOG.warning("the rules of scoring have changed: the stored completions are verified again")
    stored = folder.questions() | plan.questions
    return bool(deque(verify_stored(folder, stored, verifier, old.verifier.name), maxlen=1))


def write_results(folder: EvalFolder, begun: EvalRecord, tally: Tally, verifier: Verifier, **known: Any) -> EvalRecord:
    """Compute the metrics of what is in the tally; write questions.parquet and eval.json, and return its record.

    A benchmark is summarised by the first n samples of each of its questions: as many as were asked for, or as every
    question has. More would be those that came first, which are the short ones. The run is complete when every
    benchmark has all that was asked for.

    begun: the record without the metrics. known: other fields of the record that are settled now.
    """
    problems = folder.problems()
    record = begun.model_copy(update={**known, "verifier": verifier_record(begun.verifier.name, verifier.timeout_s)})
    benchmarks: dict[str, BenchmarkRecord] = {}
    rows: list[dict[str, Any]] = []
    unscorable: UserError | None = None
    for name, entry in record.benchmarks.items():
        if name not in problems:
            raise UserError(f"{folder.path}/problems.parquet has no problems of {name}: run with --benchmarks {name}")
        reached = tally.reached(name, problems[name])
        asked = entry.n_asked or reached
        n = min(asked, reached) or None
        found = entry.before_samples()
        try:
            if n is not None:
                # A file of recorded completions has no first ones: all of them count.
                most = sys.maxsize if record.engine.name == "recorded" else n
                samples = tally.first(name, problems[name], most)
                found, of_benchmark = summarise(name, entry, problems[name], samples, record.scoring, tally, n)
                rows += of_benchmark
        except UserError as error:
            unscorable, n = error, None
        left = None if n == asked else entry.finish_with or record.command
        benchmarks[name] = found.model_copy(update={"n": n, "n_asked": asked, "finish_with": left})
    if unscorable is not None and not rows:
        raise unscorable
    left = next((entry.finish_with for entry in benchmarks.values() if entry.finish_with is not None), None)
    most = max((entry.n or 0 for entry in benchmarks.values()), default=0) or record.sampling.n
    record = record.model_copy(
        update={
            "benchmarks": benchmarks,
            "status": "complete" if left is None else "incomplete",
            "command": left or record.command,
            "sampling": record.sampling.model_copy(update={"n": most}),
        }
    )
    folder.write_questions(rows)
    record.write(folder.path)
    return record


def find_run(name: str | None, flag: str) -> Path:
    """Return the folder of an eval run given by path or name. UserError if there is none."""
    for path in (Path(name or ""), EVAL_RUNS / (name or "")):
        if name and (path / "eval.json").is_file():
            return path
    raise UserError(f'{flag} needs an eval run: no eval.json in "{name}" or {EVAL_RUNS / (name or "")}')


def like(settings: EvalSettings) -> tuple[EvalSettings, dict[str, tuple[str, list[Problem]]]]:
    """Return settings in which what was not given is as in the run of --like, and its questions.

    The questions are benchmark -> (source, problems), as the run stored them. UserError if there is no such run.
    """
    path = find_run(settings.like, "--like")
    record, problems = read_record(path), EvalFolder(path).problems()
    sampling, prompt = record.sampling, record.prompt
    if sampling.max_tokens is None and "max_tokens" not in settings.given:
        raise UserError(
            f"--like {settings.like}: its completions came from a file, which does not say how they were sampled: pass "
            "--max-tokens, and --temperature, --top-p and what else was not the default"
        )
    taken: dict[str, Any] = {name: getattr(sampling, name) for name in (*settings.SAMPLING, "max_tokens", "seed")}
    taken |= {"k": sampling.n, "prompt": prompt.system, "protocol": prompt.protocol, "scoring": record.scoring}
    if prompt.chat_template_kwargs:
        taken["chat_template_kwargs"] = json.dumps(prompt.chat_template_kwargs)
    if "samples" in settings.given:
        del taken["k"]
    questions = {name: (record.benchmarks[name].source, chosen) for name, chosen in problems.items()}
    return settings.filled(taken), questions


def agreement(tally: Tally, name: str, labels: dict[tuple[str, int], bool]) -> LabelAgreement:
    """Count the samples on which our verdict and the owner's label agree. labels: (question, sample) -> verdict."""
    compared, agree = 0, dict[str, int].fromkeys(SCORINGS, 0)
    for (benchmark, question), samples in tally.questions.items():
        label = [labels.get((question, i)) if benchmark == name else None for i in samples.scored]
        compared += sum(known is not None for known in label)
        for scoring in SCORINGS:
            pairs = zip(samples.said(scoring)[1], label, strict=True)
            same = sum((verdict == "CORRECT") == known for verdict, known in pairs if known is not None)
            agree[scoring] += same
    return LabelAgreement(compared=compared, agree=agree)


def drop_unverifiable(
    name: str, source: str, chosen: Sequence[Problem], verifier: Verifier
) -> tuple[list[Problem], BenchmarkRecord]:
    """Leave out problems whose gold does not verify against itself; return the rest and the benchmark's record."""
    failures = find_unverifiable([(p.id, p.answer) for p in chosen], verifier)
    excluded = {failure.id for failure in failures}
    for failure in failures[:5]:
        LOG.warning("%s %s is left out: %s", name, failure.id, failure.reason)
    if len(failures) > 5:
        LOG.warning("%s: %d problems are left out in all (ids in eval.json)", name, len(failures))
    kept = [p for p in chosen if p.id not in excluded]
    if not kept:
        raise UserError(f"{name}: no problem is left to evaluate")
    record = BenchmarkRecord(
        source=source,
        questions=len(kept),
        checksum=checksum(kept),
        content_checksum=content_checksum(kept),
        excluded=[failure.id for failure in failures],
    )
    return kept, record
