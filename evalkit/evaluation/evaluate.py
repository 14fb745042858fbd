"""Sample a model on benchmarks: resolve, resume, sample, score, store, summarise."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Set
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from gtpo.common.errors import UserError
from gtpo.common.log import LOG, libraries_aside
from gtpo.evalkit.engines.base import Engine, EngineStopped, Generation, Prompt, Sampling, Task, check_context
from gtpo.evalkit.engines.local import recommended_sampling
from gtpo.evalkit.engines.model_ref import ModelRef, content_hashes, fingerprint, resolve_model
from gtpo.evalkit.evaluation.benchmarks import (
    Benchmark,
    check_questions,
    checksum,
    find_benchmarks,
    load_problems,
    select_problems,
)
from gtpo.evalkit.evaluation.engine import check_same, choose_engine, make_engine, render_prompts
from gtpo.evalkit.evaluation.pipeline import Incomplete, Interrupt, ScoringPipeline
from gtpo.evalkit.evaluation.progress import EvalProgress
from gtpo.evalkit.evaluation.protocol import Protocol, find_protocol
from gtpo.evalkit.evaluation.record import (
    EVAL_RUNS,
    Plan,
    Problems,
    agreement,
    begin_record,
    drop_unverifiable,
    find_run,
    like,
    previous_record,
    verifier_record,
    verify_again,
    write_results,
)
from gtpo.evalkit.evaluation.recorded import plan_recorded
from gtpo.evalkit.evaluation.scoring import settle_thoughts, verify_stored
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.summary import Tally
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier, usable_cpus
from gtpo.runs.eval_folder import EvalFolder, Key, QuestionKey
from gtpo.runs.eval_record import SCORINGS, BenchmarkRecord, EngineRecord, EvalRecord, ModelRecord, SamplingRecord
from gtpo.runs.train_run import find_train_run

# --max-tokens by default: if the context allows it, and if a server does not say what its context allows.
MOST_TOKENS, SERVER_TOKENS = 32_768, 4096

# When a run stops, requests in flight may still be answered for so long; after Ctrl-C for `pipeline.INTERRUPT_S`.
DRAIN_S = 30.0

# Samples that failed and are named as they fail; all of them are counted.
NAMED_FAILURES = 3

# Samples whose verdicts --rescore has changed and that are printed one by one.
SHOWN = 20


def still_missing(tasks: list[Task], have: Set[Key], failed: Set[Key]) -> list[Task]:
    """Return every task with those of its samples that are not stored yet; those that failed come last."""

    def without(task: Task, keep: bool, keys: Set[Key]) -> Task:
        name, question = task.benchmark, task.question_id
        return replace(task, missing=tuple(i for i in task.missing if ((name, question, i) in keys) == keep))

    last = [without(task, True, failed) for task in tasks] if failed else []
    # A task that lacks nothing stays: batches are cut by all questions, so that a resumed run has the same.
    return [without(task, False, have | failed) for task in tasks] + [task for task in last if task.missing]


def evaluate(settings: EvalSettings, *, engine: Engine | None = None) -> tuple[Path, EvalRecord]:
    """Evaluate a model, or score a file of completions; return the run folder and its eval.json.

    engine: samples in place of the one that the settings name; it is not closed.

    Raises UserError for a mistake of the user's, before anything expensive if that is possible, and Incomplete
    if the run stopped early: what was sampled until then is stored.
    """
    started = time.monotonic()
    settings, alike = like(settings) if settings.like is not None else (settings, {})
    protocol = find_protocol(settings.protocol)
    settings = protocol.applied(settings)
    # One core is left for the engine: verification runs beside it.
    workers = max(1, usable_cpus() - 1)
    with Verifier(workers) as verifier:
        if settings.completions is not None:
            plan, engine = plan_recorded(settings, protocol, verifier)
        else:
            name = choose_engine(settings) if engine is None else engine.name
            plan = plan_evaluation(settings, verifier, name, alike)
        with EvalFolder(settings.out or EVAL_RUNS / plan.name) as folder:
            tally = Tally(folder, verifier)
            old = previous_record(folder, tally)
            asked = plan.record
            if plan.ref is not None:
                sampling = choose_sampling(settings, plan, old)
                body = {"extra_body": settings.request_body()} if settings.extra_body else {}
                asked = asked.model_copy(update={"sampling": SamplingRecord(**asdict(sampling), **body)})
            record = begin_record(folder, settings, asked, plan.problems, old)
            if old is not None and verify_again(folder, plan, old, verifier):
                tally = Tally(folder, verifier)
            check_same(str(folder.path), folder.prompts(), plan.rendered.prompts)
            before = old.engine if old is not None else None
            # Until the engine has described itself, the record names what the stored samples were made on.
            folder.begin(record if before is None else record.model_copy(update={"engine": before}))
            folder.add_problems(plan.problems)
            if plan.ref is not None:
                folder.add_prompts(plan.rendered.prompts)
            earlier = (old.wall_seconds if old is not None else None) or 0.0

            def clock() -> float:
                return round(earlier + time.monotonic() - started, 2)

            have, failed = tally.keys(), tally.keys(failed=True)
            lacking = still_missing(plan.tasks, have, failed)
            if any(task.missing for task in lacking):
                with ExitStack() as stack:
                    if engine is None:
                        assert plan.ref is not None
                        LOG.info("starting %s with %s", asked.engine.name, plan.ref.adapter or plan.ref.source)
                        loading = time.monotonic()
                        with libraries_aside():
                            engine = make_engine(
                                settings, plan.ref, sampling, plan.rendered, record.engine.rows, plan.tasks
                            )
                        stack.callback(engine.close)
                        LOG.info("engine ready after %.0f s", time.monotonic() - loading)
                    now = _engine_record(folder.path, settings, engine, record.engine, before)
                    record = record.model_copy(update={"engine": now, "sampling": _as_sampled(record.sampling, now)})
                    tally.drop_failed({key for key in failed if key[2] < plan.samples.get(key[:2], 0)})
                    folder.begin(record, clock)
                    done = Counter(name for name, question, i in have if i < plan.samples.get((name, question), 0))
                    wanted = Counter(task.benchmark for task in plan.tasks for _ in task.missing)
                    if done:
                        LOG.info("%s: keeping %d stored samples", folder.path, done.total())
                    most = record.sampling.max_tokens
                    progress = stack.enter_context(EvalProgress(record.scoring, wanted, done, engine, most))
                    pipeline = ScoringPipeline(
                        folder, plan.questions, plan.samples, tally, verifier, progress, settings.verifier
                    )
                    try:
                        _sample(settings, protocol, plan, lacking, engine, pipeline, progress)
                    finally:
                        record.model_copy(update={"wall_seconds": clock()}).write(folder.path)
            elif before is not None:
                record = record.model_copy(update={"engine": before})
            apart, judges = record.engine.name in ("openai", "recorded"), record.verifier.name
            every = folder.questions() | plan.questions
            if tally.may_hide_thoughts() and settle_thoughts(folder, apart, every, verifier, judges):
                tally = Tally(folder, verifier)
            if plan.labels:
                (name,) = plan.problems
                record.benchmarks[name].labels = agreement(tally, name, plan.labels)
            return folder.path, write_results(folder, record, tally, verifier, wall_seconds=clock())


def _stored(folder: str | Path | None, problems: list[Problem]) -> list[Problem]:
    return problems


def plan_evaluation(
    settings: EvalSettings, verifier: Verifier, engine: str, alike: dict[str, tuple[str, list[Problem]]] | None = None
) -> Plan:
    """Resolve the model, load and check the problems, and render the prompts for this engine.

    alike: benchmark -> (source, problems) of another run, if --benchmarks names none.
    """
    if alike and not settings.benchmarks:
        benchmarks = [
            Benchmark(name, name, partial(_stored, problems=stored), source) for name, (source, stored) in alike.items()
        ]
    else:
        benchmarks = find_benchmarks(settings.benchmarks or "", settings.field_names())
    ref = resolve_model(settings.model or "", checkpoint=settings.checkpoint, served=engine == "openai")
    problems: Problems = {}
    records: dict[str, BenchmarkRecord] = {}
    loaded = {benchmark.name: load_problems(benchmark, settings.data_dir) for benchmark in benchmarks}
    check_questions(loaded, settings.questions)
    protocol = find_protocol(settings.protocol)
    asked: dict[QuestionKey, tuple[Problem, list[Problem]]] = {}
    run = find_train_run(settings.model or "")
    for benchmark in benchmarks:
        every = loaded[benchmark.name]
        if benchmark.checksum and checksum(every) != benchmark.checksum:
            LOG.warning(
                "%s: these ids and golds (%d problems) are not those of the published set; a comparison with numbers "
                "from elsewhere may not hold", benchmark.name, len(every),
            )  # fmt: skip
        chosen = select_problems(every, settings.limit, settings.questions)
        if settings.questions and not {p.id for p in every}.intersection(settings.questions):
            continue  # those questions are of the other benchmarks
        kept, entry = drop_unverifiable(benchmark.name, benchmark.source, chosen, verifier)
        if run is not None and (seen := run.trained_on(p.problem for p in kept)):
            entry.trained_on = seen
        problems[benchmark.name], records[benchmark.name] = kept, entry
        # Drawn from all problems: `--limit` must not change which examples a question has.
        examples = protocol.examples(every, settings.data_dir)
        asked |= {(benchmark.name, p.id): (p, examples[p.id]) for p in kept}
    recommended = recommended_sampling(ref) if settings.sampling == "model" else {}
    rendered = render_prompts(settings, protocol, ref, engine, asked)
    record = EvalRecord(
        model=_model_record(ref),
        engine=EngineRecord(name=engine, dtype=settings.dtype if engine != "openai" else None),
        prompt=rendered.record,
        scoring=settings.scoring,
        benchmarks=records,
    )
    return Plan(ref.name, record, problems, dict.fromkeys(asked, settings.n), protocol, rendered, ref, recommended)


def choose_sampling(settings: EvalSettings, plan: Plan, old: EvalRecord | None = None) -> Sampling:
    """Settle max_tokens: as asked for, as the run began, as the model was trained, or a default that fits."""
    assert plan.ref is not None
    context, longest = plan.rendered.context, plan.rendered.longest
    most = settings.max_tokens
    if most is None and old is not None:
        most = old.sampling.max_tokens
    if most is None:
        wishes = (
            (plan.protocol.sampling.max_tokens, f"as protocol {plan.protocol.name} says"),
            (plan.ref.max_tokens, "as the model was trained"),
            (MOST_TOKENS if context else None, "default"),
            (SERVER_TOKENS, "the server does not say what its context allows"),
        )
        most, why = next((wish, said) for wish, said in wishes if wish)
        if context is not None and 0 < context - longest < most:
            most, why = context - longest, f"what the context of {context} tokens leaves"
        LOG.info("--max-tokens is %d: %s", most, why)
    if plan.rendered.servers is None:
        check_context(plan.rendered.prompts, context, most, plan.ref.source)
    values = settings.sampling_values(plan.recommended)
    if plan.recommended:
        LOG.info("sampling: %s", ", ".join(f"{name} {value:g}" for name, value in values.items()))
    return Sampling(max_tokens=most, n=settings.n, seed=settings.seed, stop=plan.rendered.reading.stop, **values)


def _model_record(ref: ModelRef) -> ModelRecord:
    folders = [folder for folder in (ref.folder, ref.adapter) if folder is not None]
    return ModelRecord(
        source=ref.source,
        adapter=str(ref.adapter) if ref.adapter else None,
        # None for a Hub name or a server.
        fingerprint="-".join(fingerprint(folder) for folder in folders) or None,
        **content_hashes(ref),
        **{name: getattr(ref, name) for name in ("train_run", "checkpoint", "method", "preset")},
    )


def _engine_record(
    path: Path, settings: EvalSettings, engine: Engine, asked: EngineRecord, old: EngineRecord | None
) -> EngineRecord:
    """Return what samples from now on. UserError if its data type is not that of the samples that are stored."""
    now = EngineRecord(**engine.describe(), **asked.model_dump(include={"dtype"}, exclude_unset=True))
    if old is None:
        return now
    dtype = old.compute_dtype
    if dtype is not None and now.compute_dtype != dtype:
        raise UserError(
            f"{path} was sampled in {dtype}, and --dtype {settings.dtype} means {now.compute_dtype} on this machine: "
            f"repeat it with --dtype {dtype}, or choose another --out"
        )
    before, after = old.canaries or {}, now.canaries or {}
    if before.get("models") and after.get("models") and before["models"] != after["models"]:
        answer, did = (", ".join(canaries["models"]) for canaries in (after, before))
        raise UserError(f"{path} was sampled from another model: {answer} answers, and {did} did. Choose another --out")
    texts = [set(map(tuple, canaries.get("texts", {}).values())) for canaries in (before, after)]
    if all(texts) and not texts[0] & texts[1]:
        LOG.warning("%s: the server's first texts are others than they were for the same seeds", path)
    if earlier := old.followed_by(now):
        now.earlier = earlier
        LOG.warning("the samples are of several versions or machines; eval.json lists them under engine.earlier")
    return now


def _as_sampled(sampling: SamplingRecord, engine: EngineRecord) -> SamplingRecord:
    """Return what was sampled: null for a parameter that a server does not take."""
    names = set(engine.parameters_left_out) & set(SamplingRecord.model_fields)
    return sampling.model_copy(update=dict.fromkeys(names))


def _sample(
    settings: EvalSettings,
    protocol: Protocol,
    plan: Plan,
    tasks: list[Task],
    engine: Engine,
    pipeline: ScoringPipeline,
    progress: EvalProgress,
) -> None:
    """Sample what is missing, scored and stored beside it. Raises Incomplete if that stops before its end."""

    def stored(g: Generation) -> Generation:
        prompt = plan.rendered.prompts.get(g.key[:2], Prompt([]))
        found = g if prompt.ids is None else g._replace(prompt_tokens=len(prompt.ids))
        return protocol.completion(found, plan.rendered.reading, prompt.text)

    total, failed = sum(plan.samples.values()), list[Generation]()
    # Recorded failures are part of the file: they stop nothing.
    allowed = total if plan.ref is None else settings.failure_limit(total)
    stop: Incomplete | None = None
    with Interrupt(engine) as interrupt:
        try:
            for generations in engine.generate(tasks):
                progress.arrive(generations)
                pipeline.put([stored(g) for g in generations])
                new = [g for g in generations if g.error is not None]
                for g in new[: max(0, NAMED_FAILURES - len(failed))]:
                    LOG.warning("%s %s #%d failed: %s", g.benchmark, g.question_id, g.sample_index, g.error)
                failed += new
                if stop is None and len(failed) > allowed:
                    first = failed[0]
                    stop = Incomplete(
                        f"{len(failed)} of {total} samples failed, more than --fail-on-error {settings.fail_on_error} "
                        f"allows (first: {first.benchmark} {first.question_id} #{first.sample_index}: {first.error})"
                    )
                    engine.stop(DRAIN_S)
        except EngineStopped as error:
            stop = Incomplete(str(error))
        except BaseException:
            pipeline.abandon()
            raise
        pipeline.close()
        if interrupt.seen:
            raise Incomplete("stopped", interrupted=True)
    if stop is not None:
        raise stop


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
        stored = {name: entry.samples for name, entry in record.benchmarks.items()}
        with Verifier() as verifier, EvalProgress(headline, stored) as progress:
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
