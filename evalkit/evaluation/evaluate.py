"""`gtpo eval`: resolve, resume, sample, score, store, summarise."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from evalkit.engines.base import EngineStopped, Prompt, Sampling, Task, check_context
from evalkit.engines.model_ref import ModelRef, fingerprint, resolve_model
from evalkit.evaluation.benchmarks import Benchmark, checksum, find_benchmarks, load_problems, select_problems
from evalkit.evaluation.engine import choose_engine, make_engine
from evalkit.evaluation.pipeline import Incomplete, ScoringPipeline
from evalkit.evaluation.progress import Progress
from evalkit.evaluation.record import Problems, Record, adopt, announce, default_folder, finish, header, lacking, usable
from evalkit.evaluation.scoring import Votes
from evalkit.evaluation.settings import EvalSettings
from evalkit.results.store import QuestionKey, RunFolder
from rewards.data.problem import Problem
from rewards.data.prompt import SYSTEM_INSTRUCTION, chat_messages
from rewards.support.provenance import text_hash
from rewards.verify import Verifier, usable_cpus

DEFAULT_MAX_TOKENS = 2048


def evaluate(settings: EvalSettings) -> tuple[Path, Record]:
    """Run one `gtpo eval` command; return the run folder and its eval.json.

    Raises UserError for a mistake of the user's, before anything expensive where that is possible, and Incomplete
    where the run stopped early: what was sampled until then is stored.
    """
    if settings.completions is not None:
        from evalkit.evaluation.recorded import evaluate_recorded

        return evaluate_recorded(settings)
    started = time.monotonic()
    benchmarks = find_benchmarks(settings.benchmarks or "")
    engine_name = choose_engine(settings)
    ref = resolve_model(settings.model or "", checkpoint=settings.checkpoint, served=engine_name == "openai")
    workers = max(1, usable_cpus() - 1)  # one is left for the engine, which verification runs beside
    with Verifier(workers) as verifier, Progress(settings.scoring, quiet=settings.quiet) as progress:
        for warning in ref.warnings:
            progress.note(f"note: {warning}")
        problems, entries = _load(benchmarks, settings, verifier, progress)
        with RunFolder(settings.out or default_folder(ref.name, settings)) as folder:
            old = folder.record()
            system = _system_prompt(settings, ref)
            prompts, template_hash, context = _prompts(settings, ref, engine_name, system, problems, progress)
            record: Record = {
                **header(folder, settings),
                "model": {
                    "source": ref.source,
                    "adapter": str(ref.adapter) if ref.adapter else None,
                    "fingerprint": _fingerprint(ref),
                    "train_run": ref.train_run,
                    "checkpoint": ref.checkpoint,
                    "method": ref.method,
                    "preset": ref.preset,
                },
                "engine": {"name": engine_name, "dtype": settings.dtype if engine_name != "openai" else None},
                "prompt": {
                    "system": system,
                    "chat_template_hash": template_hash,
                    "hash": text_hash(system, template_hash),
                },
                "benchmarks": entries,
            }
            tasks = [
                Task(name, p.id, prompts[name, p.id], tuple(range(settings.n)))
                for name, chosen in problems.items()
                for p in chosen
            ]
            sampling = _sampling(settings, ref, tasks, context, old, progress)
            record["sampling"] = asdict(sampling)
            if old is not None:
                adopt(folder, record, old)
            have = folder.keys()
            votes: Mapping[QuestionKey, dict[str, Votes]] = {}
            tasks = [
                Task(t.benchmark, t.question_id, t.prompt, lacking(have, t.benchmark, t.question_id, settings.n))
                for t in tasks
            ]
            if any(task.missing for task in tasks):
                announce(folder, progress, problems, settings.n, have)
                votes = _sample(settings, ref, sampling, tasks, problems, folder, record, verifier, progress)
            elif old is not None:
                record["engine"] = old["engine"]
            before = (old or {}).get("wall_seconds") or 0.0
            record["wall_seconds"] = round(before + time.monotonic() - started, 2)
            return folder.path, finish(folder, record, settings.scoring, verifier, votes)


def _load(
    benchmarks: Sequence[Benchmark], settings: EvalSettings, verifier: Verifier, progress: Progress
) -> tuple[Problems, dict[str, Record]]:
    """Load, check and select the problems; return them and each benchmark's first fields of eval.json."""
    problems: Problems = {}
    entries: dict[str, Record] = {}
    for benchmark in benchmarks:
        every = load_problems(benchmark, settings.data_dir)
        if benchmark.checksum and checksum(every) != benchmark.checksum:
            progress.note(
                f"note: {benchmark.name}: these ids and golds ({len(every)} problems) are not those of the published "
                "set; a comparison with numbers from elsewhere may not hold"
            )
        chosen = select_problems(benchmark.name, every, settings.limit, settings.questions, settings.shard_of())
        problems[benchmark.name], entries[benchmark.name] = usable(
            benchmark.name, benchmark.source, chosen, verifier, progress
        )
    return problems, entries


def _system_prompt(settings: EvalSettings, ref: ModelRef) -> str:
    if settings.prompt is not None:
        return settings.prompt
    return SYSTEM_INSTRUCTION if ref.system is None else ref.system


def _fingerprint(ref: ModelRef) -> str | None:
    """Fingerprint of local weights; None for a Hub name or a server."""
    folders = [folder for folder in (ref.folder, ref.adapter) if folder is not None]
    return "-".join(fingerprint(folder) for folder in folders) or None


def _prompts(
    settings: EvalSettings,
    ref: ModelRef,
    engine: str,
    system: str,
    problems: Mapping[str, Sequence[Problem]],
    progress: Progress,
) -> tuple[dict[tuple[str, str], Prompt], str | None, int | None]:
    """Return the prompt of every question, the chat template's hash, and the model's context."""
    pairs = [(name, p) for name, chosen in problems.items() for p in chosen]
    if engine == "openai":
        return {(name, p.id): Prompt(chat_messages(p.problem, system)) for name, p in pairs}, None, None
    from evalkit.engines import local

    config = local.load_config(ref, trust_remote_code=settings.trust_remote_code)
    local.check_adapter(ref, config)
    tokenizer = local.load_tokenizer(ref, trust_remote_code=settings.trust_remote_code)
    template, notice = local.chat_template(tokenizer, settings.chat_template)
    if notice:
        progress.note(f"note: {notice}")
    prompts = {(name, p.id): local.render(tokenizer, template, chat_messages(p.problem, system)) for name, p in pairs}
    return prompts, text_hash(template), local.context_length(config)


def _sampling(
    settings: EvalSettings,
    ref: ModelRef,
    tasks: Sequence[Task],
    context: int | None,
    old: Record | None,
    progress: Progress,
) -> Sampling:
    """Settle max_tokens: as asked for, as the run began, as the model was trained, or a default that fits."""
    most = settings.max_tokens
    if most is None and old is not None:
        most = int(old["sampling"]["max_tokens"])
    if most is None:
        most = ref.max_tokens or DEFAULT_MAX_TOKENS
        longest = max((len(task.prompt.ids or ()) for task in tasks), default=0)
        if context is not None and 0 < context - longest < most:
            progress.note(f"note: --max-tokens is {context - longest}: what the context of {context} tokens leaves")
            most = context - longest
    check_context(tasks, context, most, ref.source)
    return Sampling(settings.temperature, settings.top_p, most, settings.n, settings.seed)


def _sample(
    settings: EvalSettings,
    ref: ModelRef,
    sampling: Sampling,
    tasks: Sequence[Task],
    problems: Problems,
    folder: RunFolder,
    record: Record,
    verifier: Verifier,
    progress: Progress,
) -> Mapping[QuestionKey, dict[str, Votes]]:
    """Sample what is missing, scoring and storing beside it; return the votes that were counted on the way."""
    asked = {(name, p.id): p for name, chosen in problems.items() for p in chosen}
    with closing(make_engine(settings, ref, sampling, tasks, record["engine"].get("rows"))) as engine:
        record["engine"] = {**engine.describe(), "dtype": record["engine"]["dtype"]}
        folder.add_problems(problems)
        folder.write_record(record)
        whole = {(t.benchmark, t.question_id): sampling.n for t in tasks if len(t.missing) == sampling.n}
        pipeline = ScoringPipeline(folder, asked, whole, verifier, progress)
        progress.start()
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
