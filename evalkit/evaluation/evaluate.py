"""Sample a model on benchmarks: resolve, resume, sample, score, store, summarise."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from evalkit.engines.base import Engine, EngineStopped, Prompt, Sampling, Task, check_context
from evalkit.engines.model_ref import ModelRef, fingerprint, resolve_model
from evalkit.evaluation.benchmarks import checksum, find_benchmarks, load_problems, select_problems
from evalkit.evaluation.engine import choose_engine, make_engine
from evalkit.evaluation.pipeline import Incomplete, ScoringPipeline
from evalkit.evaluation.progress import Progress
from evalkit.evaluation.record import (
    EvalSession,
    Problems,
    default_folder,
    drop_unverifiable,
    merge_previous,
    new_record,
    start_progress,
    write_results,
)
from evalkit.evaluation.scoring import Votes
from evalkit.evaluation.settings import EvalSettings
from evalkit.results.record import BenchmarkRecord, EngineRecord, EvalRecord, ModelRecord, PromptRecord, SamplingRecord
from evalkit.results.store import EvalFolder, Key, QuestionKey
from rewards.data.prompt import SYSTEM_INSTRUCTION, chat_messages
from rewards.support.log import LOG
from rewards.support.provenance import text_hash
from rewards.verify import Verifier, usable_cpus

DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of which model: everything that is known before the run's folder and the engine."""

    ref: ModelRef
    engine: str
    problems: Problems
    benchmarks: dict[str, BenchmarkRecord]
    prompts: dict[QuestionKey, Prompt]
    prompt: PromptRecord
    context: int | None
    """Tokens that the model takes, None where unknown."""

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt; 0 where a server tokenises."""
        return max(len(prompt.ids or ()) for prompt in self.prompts.values())

    def tasks(self, n: int, have: Set[Key] = frozenset()) -> list[Task]:
        """Return every question with those of its n samples that are not stored yet."""
        return [
            Task(name, question, prompt, tuple(i for i in range(n) if (name, question, i) not in have))
            for (name, question), prompt in self.prompts.items()
        ]


def evaluate(settings: EvalSettings, *, engine: Engine | None = None) -> tuple[Path, EvalRecord]:
    """Evaluate a model; return the run folder and its eval.json.

    engine: samples in place of the one that the settings name; it is not closed.

    Raises UserError for a mistake of the user's, before anything expensive where that is possible, and Incomplete
    where the run stopped early: what was sampled until then is stored.
    """
    started = time.monotonic()
    workers = max(1, usable_cpus() - 1)  # one is left for the engine, which verification runs beside
    with Verifier(workers) as verifier, Progress(settings.scoring) as progress:
        plan = plan_evaluation(settings, verifier, choose_engine(settings) if engine is None else engine.name)
        with EvalFolder(settings.out or default_folder(plan.ref.name, settings)) as folder:
            old = folder.record()
            sampling = choose_sampling(settings, plan, old)
            record = new_record(
                folder,
                settings,
                model=_model_record(plan.ref),
                engine=EngineRecord(name=plan.engine, dtype=settings.dtype if plan.engine != "openai" else None),
                sampling=SamplingRecord(**asdict(sampling)),
                prompt=plan.prompt,
                benchmarks=plan.benchmarks,
            )
            if old is not None:
                merge_previous(folder, record, old)
            session = EvalSession(settings, folder, record, plan.problems, verifier, progress)
            have = folder.keys()
            tasks = plan.tasks(settings.n, have)
            votes: Mapping[QuestionKey, Mapping[str, Votes]] = {}
            if any(task.missing for task in tasks):
                with (
                    closing(make_engine(settings, plan.ref, sampling, plan.longest_prompt, record.engine.rows))
                    if engine is None
                    else nullcontext(engine) as source
                ):
                    start_progress(session, have, dict.fromkeys(plan.prompts, settings.n))
                    votes = _sample(session, tasks, source)
            elif old is not None:
                record.engine = old.engine
            before = (old.wall_seconds if old is not None else None) or 0.0
            record.wall_seconds = round(before + time.monotonic() - started, 2)
            return folder.path, write_results(folder, record, verifier, votes)


def plan_evaluation(settings: EvalSettings, verifier: Verifier, engine: str) -> Plan:
    """Resolve the model, load and check the problems, and render the prompts for this engine."""
    benchmarks = find_benchmarks(settings.benchmarks or "")
    ref = resolve_model(settings.model or "", checkpoint=settings.checkpoint, served=engine == "openai")
    for warning in ref.warnings:
        LOG.warning(warning)
    problems: Problems = {}
    records: dict[str, BenchmarkRecord] = {}
    for benchmark in benchmarks:
        every = load_problems(benchmark, settings.data_dir)
        if benchmark.checksum and checksum(every) != benchmark.checksum:
            LOG.warning(
                "%s: these ids and golds (%d problems) are not those of the published set; a comparison with numbers "
                "from elsewhere may not hold", benchmark.name, len(every),
            )  # fmt: skip
        chosen = select_problems(benchmark.name, every, settings.limit, settings.questions, settings.shard_of())
        problems[benchmark.name], records[benchmark.name] = drop_unverifiable(
            benchmark.name, benchmark.source, chosen, verifier
        )
    system = settings.prompt
    if system is None:
        system = SYSTEM_INSTRUCTION if ref.system is None else ref.system
    messages = {
        (name, p.id): chat_messages(p.problem, system) for name, chosen in problems.items() for p in chosen
    }  # fmt: skip
    if engine == "openai":
        prompts = {key: Prompt(conversation) for key, conversation in messages.items()}
        template_hash, context = None, None
    else:
        from evalkit.engines import local

        config = local.load_config(ref, trust_remote_code=settings.trust_remote_code)
        local.check_adapter(ref, config)
        tokenizer = local.load_tokenizer(ref, trust_remote_code=settings.trust_remote_code)
        template = local.chat_template(tokenizer, settings.chat_template)
        prompts = {key: local.render(tokenizer, template, conversation) for key, conversation in messages.items()}
        template_hash, context = text_hash(template), local.context_length(config)
    prompt = PromptRecord(system=system, chat_template_hash=template_hash, hash=text_hash(system, template_hash))
    return Plan(ref, engine, problems, records, prompts, prompt, context)


def choose_sampling(settings: EvalSettings, plan: Plan, old: EvalRecord | None = None) -> Sampling:
    """Settle max_tokens: as asked for, as the run began, as the model was trained, or a default that fits."""
    most = settings.max_tokens
    if most is None and old is not None:
        most = old.sampling.max_tokens
    if most is None:
        most = plan.ref.max_tokens or DEFAULT_MAX_TOKENS
        if plan.context is not None and 0 < plan.context - plan.longest_prompt < most:
            most = plan.context - plan.longest_prompt
            LOG.info("--max-tokens is %d: what the context of %d tokens leaves", most, plan.context)
    check_context(plan.prompts, plan.context, most, plan.ref.source)
    return Sampling(settings.temperature, settings.top_p, most, settings.n, settings.seed)


def _model_record(ref: ModelRef) -> ModelRecord:
    folders = [folder for folder in (ref.folder, ref.adapter) if folder is not None]
    return ModelRecord(
        source=ref.source,
        adapter=str(ref.adapter) if ref.adapter else None,
        fingerprint="-".join(fingerprint(folder) for folder in folders) or None,  # None: a Hub name or a server
        train_run=ref.train_run,
        checkpoint=ref.checkpoint,
        method=ref.method,
        preset=ref.preset,
    )


def _sample(session: EvalSession, tasks: list[Task], engine: Engine) -> Mapping[QuestionKey, Mapping[str, Votes]]:
    """Sample what is missing, scoring and storing beside it; return the votes that were counted on the way."""
    record, n = session.record, session.settings.n
    record.engine = EngineRecord(**engine.describe(), dtype=record.engine.dtype)
    session.folder.add_problems(session.problems)
    record.write(session.folder.path)
    whole = {(t.benchmark, t.question_id): n for t in tasks if len(t.missing) == n}
    pipeline = ScoringPipeline(session.folder, session.asked, whole, session.verifier, session.progress)
    try:
        for generations in engine.generate(tasks):
            pipeline.put(generations)
    except (EngineStopped, KeyboardInterrupt) as stop:
        pipeline.close()
        reason = "stopped" if isinstance(stop, KeyboardInterrupt) else str(stop)
        raise Incomplete(reason, interrupted=isinstance(stop, KeyboardInterrupt)) from None
    except BaseException:
        pipeline.abandon()
        raise
    pipeline.close()
    return pipeline.votes
