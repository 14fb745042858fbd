"""What a command asks for: all that is known before the run's folder is opened and its engine starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG, libraries_aside
from gtpo.common.packages import installed, require
from gtpo.common.provenance import text_hash
from gtpo.evalkit.engines import model_ref
from gtpo.evalkit.engines.base import Engine, Prompt, Reading, Sampling, Task
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.evaluation import tasks
from gtpo.evalkit.evaluation.settings import SERVER, EvalSettings
from gtpo.evalkit.evaluation.tasks import Benchmark, Protocol
from gtpo.rewards.data.problem import SYSTEM_INSTRUCTION, Problem
from gtpo.rewards.golds import find_unverifiable
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import Key, QuestionKey, Sample, read_problems, stored_record
from gtpo.runs.eval_record import BenchmarkRecord, EngineRecord, EvalRecord, ModelRecord, SamplingRecord, read_record
from gtpo.runs.prompt import PROMPT_SCHEMA_VERSION, PromptRecord, PromptRenderer, text_ids
from gtpo.runs.train_run import find_train_run

EVAL_RUNS = Path("results/eval")

# Each question with its examples.
Asked = dict[QuestionKey, tuple[Problem, list[Problem]]]

# --max-tokens by default: if the context allows it, and if a server does not say what its context allows.
MOST_TOKENS, SERVER_TOKENS = 32_768, 4096


@dataclass(frozen=True, slots=True)
class Rendering:
    """The prompts of a run as its engine reads them."""

    prompts: dict[QuestionKey, Prompt]
    record: PromptRecord  # What they were made with
    reading: Reading  # What of a completion is thought, and where it ends
    context: int | None = None  # Tokens that the model takes, None if unknown
    servers: list[Any] | None = field(default=None, repr=False)  # Of `engines.server_request.Server`

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt; if a server tokenises, three bytes for one, and 16 that a template adds."""
        return max(
            len(p.ids) if p.ids is not None else p.size // 3 + 16 * (1 + len(p.messages)) for p in self.prompts.values()
        )

    def read(self, sample: Sample) -> None:
        """Make a completion as it is stored, and note if the model read a part of its prompt only."""
        prompt = self.prompts.get(sample.key[:2], Prompt([]))
        self.reading.read(sample, prompt.text)
        if prompt.ids is not None:
            if (sample.prompt_tokens or sys.maxsize) < len(prompt.ids) - 16 and sample.error is None:
                sample.outcome = "prompt cut"
            sample.prompt_tokens = len(prompt.ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command asks for."""

    folder: Path  # Of the run, by default
    # Model, engine, prompt and benchmarks, as eval.json says them; sampling too, if completions are recorded.
    record: EvalRecord
    problems: dict[str, list[Problem]]  # Benchmark -> the problems that are evaluated, in order
    samples: dict[QuestionKey, int]  # Question -> how many samples it is to have
    rendered: Rendering
    ref: ModelRef | None = None  # None for recorded completions
    sampling: Sampling | None = None  # None for recorded completions, and before the run's folder is opened
    engine: Engine | None = None  # What samples, if it is there already, as a file of completions is
    labels: dict[Key, bool] = field(default_factory=dict)  # Recorded completions: the owner's verdicts

    @property
    def questions(self) -> dict[QuestionKey, Problem]:
        """(benchmark, question id) -> problem."""
        return {(name, p.id): p for name, chosen in self.problems.items() for p in chosen}

    @property
    def tasks(self) -> list[Task]:
        """Every question with all of its samples."""
        prompts = self.rendered.prompts
        return [Task(*key, prompts.get(key, Prompt([])), tuple(range(n))) for key, n in self.samples.items()]


def choose_engine(settings: EvalSettings) -> str:
    """Return what samples; with `auto`, vllm if it is installed (on a CPU too), else transformers.

    With --serve it is vllm, in other processes: its samples are of one kind with those of this one.
    """
    if settings.source in ("vllm", "--serve"):
        require("--serve" if settings.serve is not None else "--engine vllm", "vllm", extra="vllm")
        return "vllm"
    if settings.source == "openai":
        return settings.source
    require("gtpo eval MODEL", "torch", "transformers", extra="train")
    if settings.serve_command is not None:
        return "openai"
    name = "vllm" if settings.engine == "auto" and installed("vllm") else "transformers"
    settings.check_engine(name)
    return name


def find_run(name: str | None, flag: str) -> Path:
    """Return the folder of an eval run given by path or name. UserError if there is none."""
    for path in (Path(name or ""), EVAL_RUNS / (name or "")):
        if name and (path / "eval.json").is_file():
            return path
    raise UserError(f'{flag} needs an eval run: no eval.json in "{name}" or {EVAL_RUNS / (name or "")}')


def find_tasks(settings: EvalSettings) -> tuple[EvalSettings, list[Benchmark], Protocol]:
    """Return what is asked, and how: benchmarks by name, else those of the run of --like.

    And the settings, in which what was not given is as that run, the protocol or the train run says. Raises UserError.
    """
    like: list[Benchmark] = []
    if settings.like is not None:
        settings, like = settings_like(settings)
    # The names of fields are those of the completions, if there are some.
    fields = settings.field_names() if settings.completions is None else {}
    named = tasks.find_benchmarks(settings.named, fields) if settings.named else []
    protocol = tasks.way_of_asking(settings, like or named)
    settings = protocol.apply_to(settings)
    run = find_train_run(settings.model) if settings.model and settings.completions is None else None
    if run is not None and protocol.api == "chat" and settings.chat_template_kwargs is None:
        if kwargs := run.prompt().chat_template_kwargs:
            LOG.info("chat template: %s, as the model was trained", json.dumps(kwargs))
        settings = settings.filled({"chat_template_kwargs": kwargs})
    return settings, named or like, protocol


def settings_like(settings: EvalSettings) -> tuple[EvalSettings, list[Benchmark]]:
    """Return settings in which what was not given is as in the run of --like, and its questions as it stored them.

    UserError if there is no such run, or if it does not know how it was sampled.
    """
    path = find_run(settings.like, "--like")
    record, problems = read_record(path), read_problems(path)
    sampling, prompt = record.sampling, record.prompt
    if sampling.max_tokens is None and "max_tokens" not in settings.model_fields_set:
        raise UserError(
            f"--like {settings.like}: its completions came from a file, which does not say how they were sampled: pass "
            "--max-tokens, and --temperature, --top-p and what else was not the default"
        )
    taken: dict[str, Any] = {name: getattr(sampling, name) for name in (*settings.SAMPLING, "max_tokens", "seed")}
    taken |= {"k": sampling.n, "prompt": prompt.system, "scoring": record.scoring}
    taken["chat_template_kwargs"] = prompt.chat_template_kwargs or None
    taken["extra_body"] = {k: v for k, v in (sampling.extra_body or {}).items() if k != "chat_template_kwargs"} or None
    others = {"k"} if "samples" in settings.model_fields_set else set()
    if "protocol" in settings.model_fields_set:
        # What it says is as given, and what it leaves open is not the other run's.
        others |= {"prompt", "scoring", "chat_template_kwargs", *tasks.find_protocol(settings.protocol).sampling}
    if settings.sampling == "model":
        others |= {*settings.SAMPLING}
    if settings.source not in SERVER and taken["extra_body"]:
        LOG.warning("--like %s: its --extra-body goes to servers only", settings.like)
        others.add("extra_body")
    way = Protocol(
        name=prompt.protocol, stop=sampling.stop, system=prompt.system,
        **prompt.model_dump(include={"system_role", "user", "fewshot", "api", "thoughts", "begins_in_thought"}),
    )  # fmt: skip
    return settings.filled({name: value for name, value in taken.items() if name not in others}), [
        Benchmark(**{"data": entry.source, **(entry.task or {}), "name": name, "prompt": way}).of([*of.values()])
        for name, entry in record.benchmarks.items()
        if (of := problems.get(name))
    ]


def _prompt_time(settings: EvalSettings, ref: ModelRef) -> str | None:
    """Return what a template is told of the time: as this run began, else the run of --like, else the train run."""
    folders = [settings.out or EVAL_RUNS / ref.name, *([find_run(settings.like, "--like")] if settings.like else [])]
    for folder in folders:
        # One that cannot be read is refused when the folder is opened.
        with suppress(UserError):
            if (record := stored_record(folder)) is not None:
                return record.prompt.time or record.created
    return ref.prompt.time if ref.prompt else None


def find_unusable(problems: Sequence[Problem], verifier: Verifier) -> dict[str, str]:
    """Return id -> reason of problems whose gold can score no answer; as text any gold can that is there."""
    golds = [(p.id, p.answer) for p in problems if p.answers != "text"]
    empty = {p.id: "the gold answer is empty" for p in problems if p.answers == "text" and not p.answer}
    return empty | dict(find_unverifiable(golds, verifier))


def drop_unverifiable(
    name: str, source: str, chosen: Sequence[Problem], verifier: Verifier
) -> tuple[list[Problem], BenchmarkRecord]:
    """Leave out problems whose gold does not verify against itself; return the rest and the benchmark's record."""
    excluded = find_unusable(chosen, verifier)
    for identifier, reason in list(excluded.items())[:5]:
        LOG.warning("%s %s is left out: %s", name, identifier, reason)
    if len(excluded) > 5:
        LOG.warning("%s: %d problems are left out in all (ids in eval.json)", name, len(excluded))
    kept = [p for p in chosen if p.id not in excluded]
    if not kept:
        raise UserError(f"{name}: no problem is left to evaluate")
    hashes = {"checksum": tasks.checksum(kept), "content_checksum": tasks.content_checksum(kept)}
    return kept, BenchmarkRecord(source=source, questions=len(kept), excluded=list(excluded), **hashes)


def plan_evaluation(
    settings: EvalSettings, protocol: Protocol, verifier: Verifier, benchmarks: list[Benchmark], engine: Engine | None
) -> Plan:
    """Resolve the model, load and check the problems, and render the prompts for the engine, or the one to start."""
    name = choose_engine(settings) if engine is None else engine.name
    remote = name == "openai" and settings.serve_command is None
    ref = model_ref.resolve_model(settings.model or "", checkpoint=settings.checkpoint, served=remote)
    run = find_train_run(settings.model or "")
    loaded = {benchmark.name: tasks.load_problems(benchmark, settings.data_dir) for benchmark in benchmarks}
    selected = tasks.select_problems(loaded, settings.limit, settings.questions)
    problems: dict[str, list[Problem]] = {}
    records: dict[str, BenchmarkRecord] = {}
    asked: Asked = {}
    for benchmark in benchmarks:
        every = loaded[benchmark.name]
        # The questions that --like brings may be a part.
        if benchmark.checksum and (settings.named or not settings.like) and tasks.checksum(every) != benchmark.checksum:
            LOG.warning(
                "%s: these ids and golds (%d problems) are not those of the published set; a comparison with numbers "
                "from elsewhere may not hold", benchmark.name, len(every),
            )  # fmt: skip
        if not (chosen := selected[benchmark.name]):
            # The questions of --question are of the other benchmarks.
            continue
        kept, entry = drop_unverifiable(benchmark.name, benchmark.source, chosen, verifier)
        entry.task = benchmark.entry()
        if run is not None and (seen := run.trained_on(p.problem for p in kept)):
            entry.trained_on = seen
        problems[benchmark.name], records[benchmark.name] = kept, entry
        # Drawn from all problems: `--limit` must not change which examples a question has.
        drawn = protocol.fewshot is not None and protocol.fewshot.choice == "random"
        if drawn and not settings.named and len(every) != benchmark.size:
            raise UserError(
                f"--like {settings.like}: few-shot examples are drawn at random in the order of all questions of "
                f"{benchmark.name}, and the run may hold a part of them: name it with --benchmarks too"
            )
        examples = protocol.examples(every, settings.data_dir)
        asked |= {(benchmark.name, p.id): (p, examples[p.id]) for p in kept}
    rendered = render_prompts(settings, protocol, ref, asked, remote=remote)
    model = ModelRecord(
        source=ref.source,
        adapter=str(ref.adapter) if ref.adapter else None,
        **model_ref.content_hashes(ref),
        **{name: getattr(ref, name) for name in ("train_run", "checkpoint", "method", "preset")},
    )
    served = {"serve": settings.server[1]} if settings.server else {}
    record = EvalRecord(
        model=model,
        engine=EngineRecord(name=name, dtype=settings.dtype if name != "openai" else None, **served),
        prompt=rendered.record,
        benchmarks=records,
    )
    return Plan(EVAL_RUNS / ref.name, record, problems, dict.fromkeys(asked, settings.n), rendered, ref, engine=engine)


def render_prompts(
    settings: EvalSettings, protocol: Protocol, ref: ModelRef, asked: Asked, *, remote: bool = False
) -> Rendering:
    """Render every question, each with its examples. Raises UserError for a model or template that cannot be used.

    remote: by the template of servers that run already; they say what they make of it if they can.
    """
    system = settings.prompt
    if system is None:
        trained_with = None if ref.prompt is None else ref.prompt.system
        system = "" if protocol.api == "completions" else SYSTEM_INSTRUCTION if trained_with is None else trained_with
    prompts = {key: protocol.conversation(*question, system) for key, question in asked.items()}
    kwargs, servers = settings.chat_template_kwargs, None
    about: dict[str, Any] = {"schema_version": PROMPT_SCHEMA_VERSION, "chat_template_kwargs": kwargs}
    about |= dict.fromkeys(("chat_template_hash", "chat_template_source", "generation_prompt", "bos", "time"))
    thoughts: tuple[tuple[str, str], ...] = ()
    if remote:
        from gtpo.evalkit.engines.server_request import Access, find_servers

        access = Access(settings.api_key_env, settings.header or (), settings.timeout)
        servers = find_servers(ref, settings.base_url or (), access)
        # The least that a server lists, if one of them says it.
        context = min((tokens for server in servers if (tokens := server.context())), default=None)
        prompts = next(server for server in servers if server.out is None).render(prompts, kwargs)
        if protocol.api == "chat":
            about["chat_template_source"] = "server"
    else:
        config = model_ref.load_config(ref, trust_remote_code=settings.trust_remote_code)
        with libraries_aside():
            model_ref.check_adapter(ref, config)
        tokenizer = model_ref.load_tokenizer(ref, trust_remote_code=settings.trust_remote_code)
        context = getattr(config.get_text_config(), "max_position_embeddings", None) or None
        thoughts = model_ref.thought_tokens(tokenizer)
        if protocol.api == "completions":
            prompts = {key: p._replace(ids=text_ids(tokenizer, p.text or "")) for key, p in prompts.items()}
        else:
            template = model_ref.chat_template(tokenizer, settings.chat_template)
            renderer = PromptRenderer(tokenizer, kwargs, _prompt_time(settings, ref), template=template)
            rendered = renderer.render([p.messages for p in prompts.values()])
            prompts = {
                key: p._replace(text=r.text, ids=r.ids) for (key, p), r in zip(prompts.items(), rendered, strict=True)
            }
            about |= renderer.fields(next(iter(prompts.values())).messages)
            if renderer.asks_for_time and ref.prompt and ref.prompt.schema_version is None:
                told = "the chat template prints the date, and %s does not say which it printed: %s is taken"
                LOG.warning(told, ref.name, renderer.time)
            trained = ref.prompt and ref.prompt.chat_template_hash
            if trained and trained != about["chat_template_hash"]:
                LOG.warning("%s was trained with another chat template than it is asked with now", ref.name)
    record = PromptRecord(
        protocol=protocol.name, system=system, **about,
        **protocol.model_dump(include={"system_role", "user", "fewshot", "api", "thoughts", "begins_in_thought"}),
    )  # fmt: skip
    # What is as by default is not part of the hash: it stays that of runs before these keys were known.
    plain = PromptRecord()
    other = {key: value for key in ("user", "fewshot", "api") if (value := getattr(record, key)) != getattr(plain, key)}
    further = [json.dumps(what, sort_keys=True) for what in (kwargs, other) if what]
    record.hash = text_hash(system, record.chat_template_hash, *further)
    return Rendering(prompts, record, protocol.reading(thoughts), context, servers)


def _sampling(settings: EvalSettings, rendered: Rendering, max_tokens: int) -> Sampling:
    values: dict[str, Any] = {name: getattr(settings, name) for name in settings.SAMPLING}
    return Sampling(max_tokens=max_tokens, n=settings.n, seed=settings.seed, reading=rendered.reading, **values)


def measured_longest(plan: Plan, settings: EvalSettings) -> int:
    """Return the tokens of the longest prompt; if its server does not show them, by what it counts in that one."""
    rendered, about = plan.rendered, plan.rendered.longest
    if rendered.servers is None or all(prompt.ids is not None for prompt in rendered.prompts.values()):
        return about
    from gtpo.evalkit.engines.server import CANARY_TOKENS, ServerEngine

    key, prompt = max(rendered.prompts.items(), key=lambda item: item[1].size)
    engine = ServerEngine(rendered.servers, _sampling(settings, rendered, CANARY_TOKENS), body=settings.request_body())
    count = engine.prompt_tokens(Task(*key, prompt, (0,)))
    # Others may have more tokens in fewer bytes. A count that cannot be is none.
    return count + count // 20 + 16 if count is not None and prompt.size <= 12 * count <= 36 * prompt.size else about


def with_sampling(plan: Plan, settings: EvalSettings, protocol: Protocol, old: EvalRecord | None = None) -> Plan:
    """Return the plan with how its model is sampled: as asked for, as the model recommends, else the defaults.

    max_tokens by default: as the run began, as protocol or training say, or what fits. old: the run's record.
    """
    if plan.ref is None:
        return plan
    rendered = plan.rendered
    most = settings.max_tokens or (old.sampling.max_tokens if old is not None else None)
    if most is None:
        wishes = (
            (int(protocol.sampling.get("max_tokens", 0)), f"as protocol {protocol.name} says"),
            (plan.ref.max_tokens, "as the model was trained"),
            (MOST_TOKENS if rendered.context else None, "default"),
            (SERVER_TOKENS, "the server does not say what its context allows"),
        )
        most, why = next((wish, said) for wish, said in wishes if wish)
        if rendered.context is not None:
            left = rendered.context - measured_longest(plan, settings)
            if left <= 0 and rendered.servers is not None:
                LOG.warning("the longest prompt may not fit the context of %d tokens", rendered.context)
            elif 0 < left < most:
                most, why = left, f"what the context of {rendered.context} tokens leaves"
        LOG.info("--max-tokens is %d: %s", most, why)
    context, longest = rendered.context, rendered.longest
    # A server says so itself.
    if rendered.servers is None and context is not None and longest + most > context:
        advice = f"use --max-tokens {context - longest} or less" if longest < context else "this model cannot read it"
        raise UserError(
            f"the longest prompt ({longest} tokens) and --max-tokens {most} do not fit the context of "
            f"{plan.ref.source} ({context} tokens): {advice}"
        )
    if settings.sampling == "model":
        recommended = model_ref.recommended_sampling(plan.ref)
        try:
            settings = settings.filled(recommended)
        except UserError as error:
            raise UserError(f"--sampling model: {str(error).removeprefix('--')}") from None
        LOG.info("sampling: %s", ", ".join(f"{name} {getattr(settings, name):g}" for name in settings.SAMPLING))
    sampling = _sampling(settings, rendered, most)
    body = {"extra_body": settings.request_body()} if settings.extra_body else {}
    own = {"n": sampling.n, "seed": sampling.seed, "stop": list(sampling.reading.stop)}
    record = plan.record.model_copy(update={"sampling": SamplingRecord(**sampling.parameters(), **own, **body)})
    return replace(plan, sampling=sampling, record=record)
