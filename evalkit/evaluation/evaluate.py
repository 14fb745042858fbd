"""Sample a model on benchmarks: plan, resume, sample, score, store, summarise."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gtpo.common.errors import UserError
from gtpo.common.files import write_text
from gtpo.common.log import LOG, libraries_aside
from gtpo.common.provenance import command_line, git_commit, now, package_versions
from gtpo.evalkit.engines.base import Engine, EngineStopped, Task, same_model
from gtpo.evalkit.engines.serve import IN_FLIGHT, ServerProcess, replicas, serve_vllm, serve_with
from gtpo.evalkit.evaluation.plan import Plan, Rendering, find_run, find_tasks, plan_evaluation, with_sampling
from gtpo.evalkit.evaluation.recorded import plan_recorded
from gtpo.evalkit.evaluation.scoring import RULES_VERSION, ScoringPipeline, Tally, settle_by_others, verify_stored
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.summary import summarise
from gtpo.evalkit.evaluation.tasks import Benchmark
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import choose_scoring
from gtpo.rewards.verify import Verifier, usable_cpus
from gtpo.runs.eval_folder import OUTCOMES_SINCE, EvalFolder, Sample, read_problems, read_prompts
from gtpo.runs.eval_record import (
    EVAL_SCHEMA_VERSION,
    SCORINGS,
    EngineRecord,
    EvalRecord,
    LabelAgreement,
    VerifierRecord,
    check_identity,
)

# After Ctrl-C, requests in flight may still be answered for so long.
INTERRUPT_S = 0.3

# Samples that failed and are named as they fail; all of them are counted.
NAMED_FAILURES = 3


@dataclass(eq=False)
class Incomplete(Exception):
    """The run stopped before its end; what was sampled is stored, and the same command goes on from there."""

    reason: str
    interrupted: bool = False


def evaluate(settings: EvalSettings, *, engine: Engine | None = None) -> tuple[Path, EvalRecord]:
    """Evaluate a model, or score a file of completions; return the run folder and its eval.json.

    engine: samples in place of the one that the settings name; it is not closed.

    Raises UserError for a mistake of the user's, before anything expensive if that is possible, and Incomplete
    if the run stopped early: what was sampled until then is stored.
    """
    started = time.monotonic()
    settings, benchmarks, protocol = find_tasks(settings)
    # One core is left for the engine: verification runs beside it.
    with Verifier(max(1, usable_cpus() - 1)) as verifier:
        if settings.completions is not None:
            plan = plan_recorded(settings, protocol, verifier, benchmarks)
        else:
            plan = plan_evaluation(settings, protocol, verifier, benchmarks, engine)
        with EvalFolder(settings.out or plan.folder, started) as folder:
            old = folder.resume()
            plan = with_sampling(plan, settings, protocol, old)
            record = begin_record(folder, settings, plan, old)
            stored = folder.questions()
            others = [key for key, p in plan.questions.items() if key in stored and p.extract != stored[key].extract]
            if old is not None and (old.verifier.version != RULES_VERSION or others):
                LOG.warning("the rules of scoring have changed: the stored completions are verified again")
                deque(verify_stored(folder, old, stored | plan.questions, verifier), maxlen=0)
            check_prompts(folder, plan.rendered)
            folder.begin(record)
            folder.add_problems(plan.problems)
            if plan.rendered.prompts:
                folder.add_prompts(plan.rendered.prompts)
            tally = Tally(folder, verifier)
            sample_missing(settings, plan, record, tally)
            missing = sum(len(task.missing) for task in still_missing(plan.tasks, tally))
            if missing and tally.tokens() >= settings.budget:
                LOG.warning(
                    "--most-tokens %d is reached: %d of %d samples are missing. The same command with more goes on",
                    settings.most_tokens, missing, sum(plan.samples.values()),
                )  # fmt: skip
            # Recorded completions, and servers that run already, may have thoughts apart.
            apart = plan.ref is None or plan.rendered.servers is not None
            settle_by_others(tally, plan.rendered.prompts, apart=apart)
            if plan.labels:
                (name,) = plan.problems
                known = [(sample, plan.labels[sample.key]) for sample in tally.scored() if sample.key in plan.labels]
                agree = {str(by): sum((s.verdict(by) == "CORRECT") == label for s, label in known) for by in SCORINGS}
                record.benchmarks[name].labels = LabelAgreement(compared=len(known), agree=agree)
            record.wall_seconds = folder.seconds()
            return folder.path, write_results(record, tally)


def sample_missing(settings: EvalSettings, plan: Plan, record: EvalRecord, tally: Tally) -> None:
    """Sample what the plan asks for and the folder lacks, scored and stored as it comes. Raises Incomplete."""
    folder, tasks = tally.folder, still_missing(plan.tasks, tally)
    if not any(task.missing for task in tasks) or tally.tokens() >= settings.budget:
        return
    with ExitStack() as stack:
        engine = plan.engine or stack.enter_context(running_engine(settings, plan, record.engine.rows, folder.path))
        record.engine = _engine_record(folder.path, settings, engine, record.engine)
        tally.drop_failed(plan.samples)
        folder.begin(record)
        pipeline = ScoringPipeline(tally, plan.samples, record, engine)
        try:
            _sample(settings, plan, tasks, engine, pipeline)
        finally:
            # Also after an error: the time was spent. A server may have refused a parameter by now.
            record.engine.parameters_left_out = sorted({*record.engine.parameters_left_out, *engine.left_out})
            choose_headline(record, tally)
            tally.wasted = engine.wasted
            if engine.retried:
                LOG.info("%d requests failed and were sent again", engine.retried)
            record.wall_seconds = folder.seconds()
            record.write(folder.path)


def choose_headline(record: EvalRecord, tally: Tally) -> None:
    """Choose the headline by the completions, if nothing has chosen it: once for all sessions of a run."""
    strict = [sample.answer_strict for sample in tally.scored()]
    if record.scoring_by is None and strict:
        record.scoring, record.scoring_by = choose_scoring(strict), "completions"
        if record.scoring == "lenient":
            LOG.info(
                "scoring: lenient, since %d of %d completions hold no answer in answer tags; --scoring chooses",
                strict.count(None), len(strict),
            )  # fmt: skip


def still_missing(tasks: Sequence[Task], tally: Tally) -> list[Task]:
    """Return every task with those of its samples that are not stored yet, then those that failed."""
    new, again = list[Task](), list[Task]()
    for task in tasks:
        stored = tally.questions[task.benchmark, task.question_id]
        failed = tuple(i for i in task.missing if i in stored.failed)
        lacking = tuple(i for i in task.missing if i not in stored.failed and i not in stored.scored)
        # A task that lacks nothing stays: batches are cut by all questions, so that a resumed run has the same.
        new.append(replace(task, missing=lacking))
        again += [replace(task, missing=failed)] if failed else []
    return new + again


@contextmanager
def running_engine(
    settings: EvalSettings, plan: Plan, rows: int | None = None, folder: Path = Path()
) -> Iterator[Engine]:
    """Start the engine that the plan names, imported now; end it, and the server that was started for it.

    rows: the batch size that the run was begun with, for transformers. folder: gets the log of such a server.
    """
    ref, rendered, sampling, name = plan.ref, plan.rendered, plan.sampling, plan.record.engine.name
    assert ref is not None
    assert sampling is not None
    LOG.info("starting %s with %s", name, ref.adapter or ref.source)
    loading = time.monotonic()
    options: dict[str, Any] = {"dtype": settings.dtype, "trust_remote_code": settings.trust_remote_code}
    process: ServerProcess | None = None
    engine: Engine
    # What libraries print while they load would hide the lines that say something.
    with ExitStack() as stack, libraries_aside():
        if settings.serve is not None:
            longest = rendered.longest + sampling.max_tokens
            process = stack.enter_context(serve_vllm(ref, settings.serve, longest, folder / "server.log", **options))
        elif settings.serve_command is not None:
            process = stack.enter_context(serve_with(ref, settings.serve_command, folder / "server.log"))
        if process is not None or rendered.servers is not None:
            from gtpo.evalkit.engines.server import ServerEngine
            from gtpo.evalkit.engines.server_request import find_own_server

            servers, body, concurrency = rendered.servers or [], settings.request_body(), settings.concurrency
            if process is not None:
                # A template that was applied here is not the server's.
                servers, body = [find_own_server(process, ref, settings.timeout)], settings.extra_body
                if "concurrency" not in settings.model_fields_set:
                    concurrency = IN_FLIGHT * replicas(settings.serve or "")
            engine = ServerEngine(
                servers, sampling, concurrency=concurrency, retries=settings.retries, body=body, first=plan.tasks,
                name=name, process=process,
            )  # fmt: skip
        elif name == "vllm":
            from gtpo.evalkit.engines.vllm import VLLMEngine

            options |= {flag: getattr(settings, flag) for flag in ("tensor_parallel_size", "gpu_memory_utilization")}
            engine = VLLMEngine(ref, sampling, rendered.longest, **options)
        else:
            from gtpo.evalkit.engines.model_ref import load_tokenizer
            from gtpo.evalkit.engines.transformers import TransformersEngine

            tokenizer = load_tokenizer(ref, trust_remote_code=settings.trust_remote_code)
            engine = TransformersEngine(ref, tokenizer, sampling, rows=settings.batch_size or rows, **options)
        stack.callback(engine.close)
        resources = stack.pop_all()
    LOG.info("engine ready after %.0f s", time.monotonic() - loading)
    with resources:
        yield engine


# -- what a run records ------------------------------------------------------------------------------------------------


def begin_record(folder: EvalFolder, settings: EvalSettings, plan: Plan, old: EvalRecord | None) -> EvalRecord:
    """Return the record of a session that begins, with what earlier ones recorded.

    UserError if their settings were others. Metrics stay in the record until better ones are known: a raise of k that
    stops leaves those of the smaller k.
    """
    command = _command(settings.header or ())
    n, record = plan.record.sampling.n, plan.record.model_copy(deep=True)
    record.schema_version, record.status = EVAL_SCHEMA_VERSION, "incomplete"
    record.name = folder.path.resolve().name
    record.scoring = "strict" if settings.scoring == "auto" else settings.scoring
    record.scoring_by = None if settings.scoring == "auto" else "command"
    record.verifier = VerifierRecord(version=RULES_VERSION)
    record.created, record.wall_seconds, record.git_commit = now(), None, git_commit()
    record.command = command
    for entry in record.benchmarks.values():
        entry.n_asked, entry.finish_with = n, command
    if old is None:
        return record
    # Once chosen it is kept; versions that did not say by what had chosen it too.
    if record.scoring_by is None and (old.scoring_by is not None or old.schema_version < OUTCOMES_SINCE):
        record.scoring, record.scoring_by = old.scoring, old.scoring_by or "completions"
    stored, shown = read_problems(folder.path, everything=True), read_problems(folder.path)
    entries = dict(old.benchmarks)
    others: list[str] = []
    for name, before in old.benchmarks.items():
        new = record.benchmarks.get(name)
        # Metrics of other rules, for another headline, or of other questions are computed anew.
        anew = old.verifier.version != RULES_VERSION or old.scoring != record.scoring
        if new is not None and name in stored:
            chosen = plan.problems[name]
            others += _differences(name, {i: p for i, p in stored[name].items() if (name, i) in folder.sampled}, chosen)
            same = {*shown.get(name, ())} == {p.id for p in chosen}
            if not same:
                LOG.info("%s: %d questions, of %d that are stored", name, len(chosen), len(stored[name]))
                anew = True
        entry = entries[name] = (new or before).before_samples() if anew else before
        entry.n = before.n
        if new is not None:
            # A larger n is of the questions that it was reached on.
            reached = (before.n or 0) if same else 0
            entry.n_asked, entry.finish_with, entry.task = max(n, reached), command, new.task
    check_identity(folder.path, old, record, others)
    record.created = old.created or record.created
    record.benchmarks = entries | record.benchmarks | entries
    record.sampling.n = max(entry.n_asked or old.sampling.n for entry in record.benchmarks.values())
    # What the stored samples were made on, until the engine has described itself.
    record.engine = old.engine
    return record


def _command(headers: Sequence[str]) -> str:
    """Return the command that goes on with the run: without its budget, and without what headers hold."""
    variable = r"\s*(?:(?:Bearer|Basic|Token) +)?\$(?:\w+|\{\w+\})\s*"
    own = [header for header in headers if not re.fullmatch(variable, header.partition(":")[2])]
    hidden = {
        f"{flag}{header}": f"{flag}{header.partition(':')[0]}: ***" for header in own for flag in ("", "--header=")
    }
    budget, before, told = "--most-tokens", "", list[str]()
    for word in sys.argv[1:]:
        if budget not in (before.replace("_", "-"), word.partition("=")[0].replace("_", "-")):
            told.append(hidden.get(word, word))
        before = word
    return command_line(told)


def _differences(name: str, stored: Mapping[str, Problem], asked: Sequence[Problem]) -> list[str]:
    """Say which questions are asked for that have samples, and are others now."""
    pairs = [(stored[p.id], p) for p in asked if p.id in stored]
    golds = [p.id for p, other in pairs if p.answer != other.answer]
    texts = [p.id for p, other in pairs if p.problem and (p.problem, p.answers) != (other.problem, other.answers)]
    said = [("golds", golds), ("texts, or the ways in which answers are compared,", texts)]
    return [f"the {what} of {len(ids)} questions of {name} (first: {ids[0]})" for what, ids in said if ids]


def check_prompts(folder: EvalFolder, rendered: Rendering) -> None:
    """Raise UserError if a question that has samples would now be asked in other words.

    Running servers whose template prints the date are sent the tokens of the prompts that they showed at first.
    """
    stored, prompts = read_prompts(folder.path), rendered.prompts
    # A server may have shown the text in one session only.
    differing = [
        key
        for key in stored.keys() & prompts.keys() & folder.sampled
        if any(one and other and one != other for one, other in zip(stored[key][:2], prompts[key][:2], strict=True))
    ]
    if not differing:
        return
    same = prompts.keys() <= stored.keys() and all(stored[key][0] == p.messages for key, p in prompts.items())
    servers = [server for server in rendered.servers or () if server.out is None]
    take_tokens = servers and all(server.card().get("owned_by") == "vllm" for server in servers)
    if not (same and take_tokens and all(stored[key][2] for key in prompts)):
        name, question = min(differing)
        raise UserError(
            f"{folder.path}: the prompt of {name} {question} is another than prompts.parquet says: repeat data and "
            "template, or choose another --out"
        )
    LOG.warning("the servers' chat template makes other prompts than when the run began: they are sent the stored ones")
    prompts |= {key: prompt._replace(text=stored[key][1], ids=stored[key][2]) for key, prompt in prompts.items()}
    for server in rendered.servers or ():
        server.takes_tokens = True


def _engine_record(path: Path, settings: EvalSettings, engine: Engine, old: EngineRecord) -> EngineRecord:
    """Return what samples from now on. UserError if its data type is not that of the samples that are stored.

    old: what they were made on; of a new run only what was asked for.
    """
    # The data type stays `auto` if what that came to is now asked for by name.
    now = EngineRecord(name=engine.name, **engine.describe(), **old.model_dump(include={"dtype"}, exclude_unset=True))
    now.parameters_left_out = sorted({*old.parameters_left_out, *engine.left_out})
    if old.compute_dtype is not None and now.compute_dtype != old.compute_dtype:
        raise UserError(
            f"{path} was sampled in {old.compute_dtype}, and --dtype {settings.dtype} means {now.compute_dtype} on "
            f"this machine: repeat it with --dtype {old.compute_dtype}, or choose another --out"
        )
    before, after = old.canaries or {}, now.canaries or {}
    pairs = itertools.product(before.get("models", ()), after.get("models", ()))
    if not all(same_model(*pair) for pair in pairs):
        answer, did = (", ".join(canaries["models"]) for canaries in (after, before))
        raise UserError(f"{path} was sampled from another model: {answer} answers, and {did} did. Choose another --out")
    # A name may stay while the weights behind it change.
    texts = [set(map(tuple, canaries.get("texts", {}).values())) for canaries in (before, after)]
    if all(texts) and not texts[0] & texts[1]:
        LOG.warning("%s: the server's first texts are others than they were for the same seeds", path)
    if old.versions and (others := old.followed_by(now)):
        now.earlier = others
        LOG.warning("the samples are of several versions or machines; eval.json lists them under engine.earlier")
    return now


def _sample(settings: EvalSettings, plan: Plan, tasks: list[Task], engine: Engine, pipeline: ScoringPipeline) -> None:
    """Sample what is missing, scored and stored beside it. Raises Incomplete if that stops before its end."""
    total, failed, tokens = sum(plan.samples.values()), list[Sample](), pipeline.tally.tokens()
    # Recorded failures are part of the file: they stop nothing.
    allowed = total if plan.ref is None else int(settings.fail_on_error * total)
    why = ""
    with interruptible(engine) as signals, pipeline:
        try:
            for samples in engine.generate(tasks):
                for sample in samples:
                    plan.rendered.read(sample)
                    tokens += (sample.prompt_tokens or 0) + (sample.tokens or 0)
                    if sample.error is not None:
                        failed.append(sample)
                        if len(failed) <= NAMED_FAILURES:
                            LOG.warning("%s %s #%d failed: %s", *sample.key, sample.error)
                    elif settings.most_tokens is not None and None in (sample.tokens, sample.prompt_tokens):
                        why = why or "the server does not say the tokens that --most-tokens is to count: leave it out"
                pipeline.put(samples)
                if len(failed) > allowed:
                    benchmark, question, index = failed[0].key
                    why = why or (
                        f"{len(failed)} of {total} samples failed, more than --fail-on-error "
                        f"{settings.fail_on_error:g} allows (first: {benchmark} {question} #{index}: {failed[0].error})"
                    )
                if why or tokens + engine.wasted >= settings.budget:
                    engine.stop()
        except EngineStopped as error:
            why = str(error)
    if why or signals:
        raise Incomplete("stopped" if signals else why, interrupted=bool(signals))


@contextmanager
def interruptible(engine: Engine) -> Iterator[list[int]]:
    """While sampling, the first Ctrl-C or SIGTERM ends it as soon as what came is stored; the second at once.

    Yields the signals that came.
    """
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        if seen:
            os._exit(130)
        seen.append(number)
        engine.stop(INTERRUPT_S)
        # A handler must not use buffered streams.
        os.write(2, b"\ngtpo: stopping; Ctrl-C again ends at once\n")

    # Python lets only the main thread handle signals.
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_results(record: EvalRecord, tally: Tally) -> EvalRecord:
    """Compute the metrics of what is in the tally; write questions.parquet and eval.json; return its record, now whole.

    A benchmark is summarised by the first n samples of each of its questions: as many as were asked for, or as every
    question has. More would be those that came first, which are the short ones. The run is complete when every
    benchmark has all that was asked for.
    """
    folder, problems = tally.folder, {name: [*of.values()] for name, of in read_problems(tally.folder.path).items()}
    record.verifier = VerifierRecord(version=RULES_VERSION, timeout_s=tally.verifier.timeout_s)
    choose_headline(record, tally)
    rows: list[dict[str, Any]] = []
    unscorable: UserError | None = None
    for name, entry in record.benchmarks.items():
        if name not in problems:
            raise UserError(f"{folder.path}/problems.parquet has no problems of {name}: run with --benchmarks {name}")
        reached = min(tally.questions[name, p.id].reached() for p in problems[name])
        asked = entry.n_asked or reached
        n = min(asked, reached) or None
        found = entry.before_samples()
        try:
            if n is not None:
                # A file of recorded completions has no first ones: all of them count.
                most = sys.maxsize if record.engine.name == "recorded" else n
                found, of_benchmark = summarise(name, entry, problems[name], record.scoring, tally, n, most)
                rows += of_benchmark
        except UserError as error:
            unscorable, n = error, None
        found.n, found.n_asked = n, asked
        found.finish_with = None if n == asked else entry.finish_with or record.command
        record.benchmarks[name] = found
    if unscorable is not None and not rows:
        raise unscorable
    entries = record.benchmarks.values()
    left = next((entry.finish_with for entry in entries if entry.finish_with is not None), None)
    record.status, record.command = "complete" if left is None else "incomplete", left or record.command
    most = max((entry.n or 0 for entry in entries), default=0) or record.sampling.n
    record.sampling = record.sampling.model_copy(update={"n": most})
    folder.write_questions(rows)
    record.write(folder.path)
    write_hub_results(folder.path, record)
    return record


def write_hub_results(folder: Path, record: EvalRecord) -> None:
    """Write .eval_results/NAME.yaml of each benchmark that is one on the Hub and was evaluated as a whole.

    The format: https://huggingface.co/docs/hub/eval-results. A file goes if its results are no longer whole.
    Questions that were trained on, or lack samples, are no result of it.
    """
    for name, entry in record.benchmarks.items():
        path = folder / ".eval_results" / f"{name.replace('/', '-')}.yaml"
        benchmark = Benchmark(**{"name": name, **(entry.task or {})})
        whole = entry.finish_with is None and entry.pass_at_k and entry.questions == benchmark.size
        whole = whole and not entry.lacking and not entry.trained_on
        published = benchmark.checksum in (None, entry.checksum)
        if benchmark.hub_id is None or not whole or not published:
            path.unlink(missing_ok=True)
            continue
        dataset, _, task = benchmark.hub_id.partition(":")
        one = entry.pass_at_k[1]
        drawn = record.sampling.model_dump(include={"temperature", "top_p", "max_tokens"}, exclude_none=True)
        notes = (
            f"percent; pass@1 as the mean of n = {entry.n} samples a question (k = 1), 95 % interval "
            f"{100 * one.low:.2f} to {100 * one.high:.2f}; {record.scoring} scoring; protocol {record.prompt.protocol}"
            f"{''.join(f', {key} {value:g}' for key, value in drawn.items())}; gtpo {package_versions('gtpo')['gtpo']}"
        )
        about = {"dataset": {"id": dataset, "task_id": task or "default"}, "value": round(100 * one.mean, 2)}
        result = {**about, "date": (record.created or "")[:10], "notes": notes}
        write_text(path, yaml.safe_dump([result], sort_keys=False, allow_unicode=True, width=1000))


def rescore(settings: EvalSettings) -> tuple[Path, EvalRecord]:
    """Score every stored completion of a run again; print the changes; return folder and eval.json.

    The headline stays the one that the run has, unless --scoring asks for another.
    """
    changes = Counter[str]()
    with EvalFolder(find_run(settings.model, "--rescore")) as folder:
        record = folder.record()
        assert record is not None
        if record.status != "complete":
            raise UserError(f"{folder.path} is incomplete; finish it first: {record.command}")
        record.scoring_by = record.scoring_by or "completions"
        if settings.scoring != "auto":
            record.scoring, record.scoring_by = settings.scoring, "command"
        with Verifier() as verifier:
            for before, after in verify_stored(folder, record, folder.questions(), verifier, outcomes=True):
                for samples, scoring in itertools.product(zip(before, after, strict=True), SCORINGS):
                    old, new = (sample.verdict(scoring) or "" for sample in samples)
                    changes[f"{scoring}: {old} -> {new}"] += old != new
                    if old != new:
                        LOG.debug("%s %s #%d, %s: %s -> %s", *samples[1].key, scoring, old, new)
            for entry in record.benchmarks.values() if changes.total() else ():
                # The labels are in the file only.
                entry.labels = None
            write_results(record, Tally(folder, verifier))
    lines = [f"  {count:6d}  {change}" for change, count in (+changes).most_common()]
    print("\n".join([f"rescored: {changes.total() or 'no'} verdicts changed", *lines]), file=sys.stderr)
    return folder.path, record
