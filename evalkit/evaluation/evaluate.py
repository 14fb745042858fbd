"""Sample a model on benchmarks: resolve, resume, sample, score, store, summarise."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Set
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from gtpo.common.errors import UserError
from gtpo.common.log import LOG, libraries_aside
from gtpo.evalkit.engines.base import (
    Engine,
    EngineStopped,
    Generation,
    Prompt,
    Reading,
    Sampling,
    Task,
    check_context,
)
from gtpo.evalkit.engines.model_ref import ModelRef, content_hashes, fingerprint, resolve_model
from gtpo.evalkit.evaluation.benchmarks import (
    Benchmark,
    check_questions,
    checksum,
    find_benchmarks,
    load_problems,
    select_problems,
)
from gtpo.evalkit.evaluation.engine import choose_engine, make_engine
from gtpo.evalkit.evaluation.pipeline import Incomplete, Interrupt, ScoringPipeline
from gtpo.evalkit.evaluation.progress import EvalProgress
from gtpo.evalkit.evaluation.prompts import Question, check_same, render_prompts
from gtpo.evalkit.evaluation.protocol import Protocol, find_protocol
from gtpo.evalkit.evaluation.record import (
    Problems,
    RunRequest,
    agreement,
    begin_record,
    default_folder,
    drop_unverifiable,
    like,
    previous_record,
    verify_again,
    write_results,
)
from gtpo.evalkit.evaluation.recorded import recorded_file, scored_by_content
from gtpo.evalkit.evaluation.scoring import find_hidden_thoughts, hide_thoughts
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.summary import Tally
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier, usable_cpus
from gtpo.runs.eval_folder import EvalFolder, Key, QuestionKey
from gtpo.runs.eval_record import (
    BenchmarkRecord,
    EngineRecord,
    EvalRecord,
    ModelRecord,
    PromptRecord,
    SamplingRecord,
)
from gtpo.runs.train_run import find_train_run

MOST_TOKENS = 32_768
"""--max-tokens by default, if the context allows it."""

SERVER_TOKENS = 4096
"""--max-tokens by default, if a server does not say what its context allows."""

DRAIN_S = 30.0
"""When a run stops, requests in flight may still be answered for so long; after Ctrl-C for `pipeline.INTERRUPT_S`."""

NAMED_FAILURES = 3
"""Samples that failed and are named as they fail; all of them are counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of which model: everything that is known before the run's folder and the engine."""

    ref: ModelRef
    protocol: Protocol
    engine: str
    problems: Problems
    benchmarks: dict[str, BenchmarkRecord]
    prompts: dict[QuestionKey, Prompt]
    prompt: PromptRecord
    context: int | None
    """Tokens that the model takes, None if unknown."""
    recommended: dict[str, float]
    """Sampling parameters of the model's generation_config.json, if they were asked for."""
    reading: Reading
    """What of a completion is thought, and where it ends."""

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt; an upper bound if a server tokenises."""
        if any(prompt.ids is None for prompt in self.prompts.values()):
            texts = ((p.text or "", *(m["content"] + 64 * " " for m in p.messages)) for p in self.prompts.values())
            return max(sum(len(text.encode()) for text in each) for each in texts)
        return max(len(prompt.ids or ()) for prompt in self.prompts.values())

    def asked(self, settings: EvalSettings, sampling: Sampling) -> RunRequest:
        """Return what a session asks for."""
        dtype = settings.dtype if self.engine != "openai" else None
        body = settings.request_body() if settings.extra_body else None
        record = EvalRecord(
            model=_model_record(self.ref),
            engine=EngineRecord(name=self.engine, dtype=dtype),
            sampling=SamplingRecord(**asdict(sampling), **({"extra_body": body} if body else {})),
            prompt=self.prompt,
            benchmarks=self.benchmarks,
        )
        return RunRequest(record, self.problems)

    def tasks(self, n: int) -> list[Task]:
        """Return every question with its n samples."""
        return [Task(name, question, prompt, tuple(range(n))) for (name, question), prompt in self.prompts.items()]


def still_missing(tasks: list[Task], have: Set[Key], failed: Set[Key]) -> list[Task]:
    """Return every task with those of its samples that are not stored yet; those that failed come last."""

    def without(task: Task, keep: bool, keys: Set[Key]) -> Task:
        name, question = task.benchmark, task.question_id
        return replace(task, missing=tuple(i for i in task.missing if ((name, question, i) in keys) == keep))

    last = [without(task, True, failed) for task in tasks] if failed else []
    return [without(task, False, have | failed) for task in tasks] + [task for task in last if task.missing]


def evaluate(settings: EvalSettings, *, engine: Engine | None = None) -> tuple[Path, EvalRecord]:
    """Evaluate a model, or score a file of completions; return the run folder and its eval.json.

    engine: samples in place of the one that the settings name; it is not closed.

    Raises UserError for a mistake of the user's, before anything expensive if that is possible, and Incomplete
    if the run stopped early: what was sampled until then is stored.
    """
    started = time.monotonic()
    alike: dict[str, tuple[str, list[Problem]]] = {}
    if settings.like is not None:
        settings, alike = like(settings)
    protocol = find_protocol(settings.protocol)
    if settings.completions is not None and "scoring" not in settings.given and protocol.scoring == "strict":
        settings = scored_by_content(settings)
    settings = protocol.applied(settings)
    # One is left for the engine: verification runs beside it.
    workers = max(1, usable_cpus() - 1)
    with Verifier(workers) as verifier, EvalProgress(settings.scoring) as progress:
        plan: Plan | None = None
        recorded: Engine | None = None
        if settings.completions is not None:
            name, asked, tasks, labels, recorded = recorded_file(settings, verifier)
        else:
            plan = plan_evaluation(
                settings, verifier, choose_engine(settings) if engine is None else engine.name, alike
            )
            name, labels = plan.ref.name, {}
        with EvalFolder(settings.out or default_folder(name, settings)) as folder:
            tally = Tally(folder, verifier)
            old = previous_record(folder, tally)
            if plan is not None:
                sampling = choose_sampling(settings, plan, old)
                asked, tasks = plan.asked(settings, sampling), plan.tasks(settings.n)
            record = begin_record(folder, settings, asked, old)
            if old is not None and verify_again(folder, asked, old, verifier):
                tally = Tally(folder, verifier)
            wanted = {(task.benchmark, task.question_id): len(task.missing) for task in tasks}
            if plan is not None:
                check_same(str(folder.path), folder.prompts(), plan.prompts)
            before_now = old.engine if old is not None else None
            folder.begin(record if before_now is None else record.model_copy(update={"engine": before_now}))
            folder.add_problems(asked.problems)
            if plan is not None:
                folder.add_prompts(plan.prompts)
            have, failed = tally.keys(), tally.keys(failed=True)
            lacking = still_missing(tasks, have, failed)
            before = (old.wall_seconds if old is not None else None) or 0.0

            def clock() -> dict[str, float]:
                return {"wall_seconds": round(before + time.monotonic() - started, 2)}

            if any(task.missing for task in lacking):
                with ExitStack() as stack:
                    source = engine
                    if plan is None:
                        source = source or recorded
                    elif source is None:
                        LOG.info("starting %s with %s", plan.engine, plan.ref.adapter or plan.ref.source)
                        loading = time.monotonic()
                        with libraries_aside():
                            source = make_engine(
                                settings,
                                plan.ref,
                                sampling,
                                plan.longest_prompt,
                                record.engine.rows,
                                tasks,
                                plan.reading.thoughts,
                            )
                        stack.callback(source.close)
                        LOG.info("engine ready after %.0f s", time.monotonic() - loading)
                    assert source is not None
                    now = _engine_record(folder.path, settings, source, record.engine, before_now)
                    record = record.model_copy(update={"engine": now, "sampling": _as_sampled(record.sampling, now)})
                    again = {key for key in failed if key[2] < wanted.get(key[:2], 0)}
                    tally.drop_failed(again)
                    folder.begin(record, lambda: clock()["wall_seconds"])
                    _add_benchmarks(progress, folder.path, wanted, have)
                    pipeline = ScoringPipeline(
                        folder, asked.questions, wanted, tally, verifier, progress, settings.verifier
                    )
                    progress.start(source, record.sampling.max_tokens)
                    try:
                        _sample(settings, protocol, plan, lacking, source, pipeline, progress, sum(wanted.values()))
                    finally:
                        progress.tell_throughput()
                        if plan is not None:
                            sampled = Counter(record.benchmark_seconds) + Counter(progress.seconds())
                            times = {name: round(value, 2) for name, value in sampled.items()}
                            record = record.model_copy(update={"benchmark_seconds": times})
                        record.model_copy(update=clock()).write(folder.path)
            elif before_now is not None:
                record = record.model_copy(update={"engine": before_now})
            if tally.may_hide_thoughts() and _settle_thoughts(folder, record, asked, verifier):
                tally = Tally(folder, verifier)
            if labels:
                entry = record.benchmarks[tasks[0].benchmark]
                entry.labels = agreement(tally, tasks[0].benchmark, labels)
            return folder.path, write_results(folder, record, tally, verifier, **clock())


def _settle_thoughts(folder: EvalFolder, record: EvalRecord, asked: RunRequest, verifier: Verifier) -> bool:
    """Decide from the run's other completions whether those that were cut off are thoughts; return whether any is."""
    found = find_hidden_thoughts(folder, apart=record.engine.name in ("openai", "recorded"))
    if not found.in_question or not found.thought:
        return False
    if found.thought <= found.spoke:
        LOG.warning(
            "%d completions were cut off and may be thoughts: %d others have one that the prompt opened, %d have none. "
            "They are read as answers; a protocol with begins_in_thought: true reads them as thoughts",
            found.in_question, found.thought, found.spoke,
        )  # fmt: skip
        return False
    LOG.info("%d completions were cut off in a thought, by what the others do: they have no answer", found.in_question)
    problems = {(name, p.id): p for name, chosen in folder.problems(everything=True).items() for p in chosen}
    hide_thoughts(folder, found, {**problems, **asked.questions}, verifier, record.verifier.name)
    return True


def _add_benchmarks(progress: EvalProgress, path: Path, wanted: dict[QuestionKey, int], have: Set[Key]) -> None:
    """Say what is kept of earlier sessions, and add each benchmark. wanted: samples per question."""
    total: Counter[str] = Counter()
    for (name, _), n in wanted.items():
        total[name] += n
    done = Counter(name for name, question, index in have if index < wanted.get((name, question), 0))
    for name in total:
        progress.add(name, total[name], done[name])
    if done.total():
        LOG.info("%s: keeping %d stored samples", path, done.total())


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
    for warning in ref.warnings:
        LOG.warning(warning)
    problems: Problems = {}
    records: dict[str, BenchmarkRecord] = {}
    loaded = {benchmark.name: load_problems(benchmark, settings.data_dir) for benchmark in benchmarks}
    check_questions(loaded, settings.questions)
    protocol = find_protocol(settings.protocol)
    asked: dict[QuestionKey, Question] = {}
    run = find_train_run(settings.model or "")
    for benchmark in benchmarks:
        every = loaded[benchmark.name]
        if benchmark.checksum and checksum(every) != benchmark.checksum:
            LOG.warning(
                "%s: these ids and golds (%d problems) are not those of the published set; a comparison with numbers "
                "from elsewhere may not hold", benchmark.name, len(every),
            )  # fmt: skip
        chosen = select_problems(every, settings.limit, settings.questions, settings.shard_of())
        if settings.questions and not {p.id for p in every}.intersection(settings.questions):
            continue  # those questions are of the other benchmarks
        problems[benchmark.name], records[benchmark.name] = drop_unverifiable(
            benchmark.name, benchmark.source, chosen, verifier
        )
        if run is not None and (seen := run.trained_on(p.problem for p in problems[benchmark.name])):
            records[benchmark.name].trained_on = seen
        examples = protocol.examples(every, settings.data_dir)
        asked |= {(benchmark.name, p.id): Question(p, examples[p.id]) for p in problems[benchmark.name]}
    from gtpo.evalkit.engines import local

    recommended = local.recommended_sampling(ref) if settings.sampling == "model" else {}
    prompts, prompt, context, thoughts = render_prompts(settings, protocol, ref, engine, asked)
    reading = Reading(tuple(protocol.stop), thoughts)
    return Plan(ref, protocol, engine, problems, records, prompts, prompt, context, recommended, reading)


def choose_sampling(settings: EvalSettings, plan: Plan, old: EvalRecord | None = None) -> Sampling:
    """Settle max_tokens: as asked for, as the run began, as the model was trained, or a default that fits."""
    most = settings.max_tokens
    if most is None and old is not None:
        most = old.sampling.max_tokens
    if most is None:
        default = SERVER_TOKENS if plan.context is None else MOST_TOKENS
        wishes = (
            (plan.protocol.sampling.max_tokens, f"as protocol {plan.protocol.name} says"),
            (plan.ref.max_tokens, "as the model was trained"),
            (default, "default" if plan.context else "the server does not say what its context allows"),
        )
        most, why = next((wish, said) for wish, said in wishes if wish)
        if plan.context is not None and 0 < plan.context - plan.longest_prompt < most:
            most, why = plan.context - plan.longest_prompt, f"what the context of {plan.context} tokens leaves"
        LOG.info("--max-tokens is %d: %s", most, why)
    if plan.engine != "openai":
        check_context(plan.prompts, plan.context, most, plan.ref.source)
    values = settings.sampling_values(plan.recommended)
    if plan.recommended:
        LOG.info("sampling: %s", ", ".join(f"{name} {value:g}" for name, value in values.items()))
    return Sampling(max_tokens=most, n=settings.n, seed=settings.seed, stop=plan.reading.stop, **values)


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
    plan: Plan | None,
    tasks: list[Task],
    engine: Engine,
    pipeline: ScoringPipeline,
    progress: EvalProgress,
    total: int,
) -> None:
    """Sample what is missing, scored and stored beside it. Raises Incomplete if that stops before its end.

    total: samples of the whole run, of which --fail-on-error allows a share to fail.
    """
    recorded = Reading(tuple(protocol.stop), tuple(protocol.thoughts))

    def stored(g: Generation) -> Generation:
        if plan is None:
            return protocol.completion(g, recorded, None)
        prompt = plan.prompts[g.benchmark, g.question_id]
        found = g if prompt.ids is None else g._replace(prompt_tokens=len(prompt.ids))
        return protocol.completion(found, plan.reading, prompt.text)

    failed: list[Generation] = []
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
                if stop is None and plan is not None and len(failed) > settings.failure_limit(total):
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
