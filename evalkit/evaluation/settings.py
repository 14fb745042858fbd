"""The options of `gtpo eval`: each declared once, with its section of the help and where it has an effect."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from gtpo.common.errors import UserError
from gtpo.common.settings import CommandSettings, JsonObject, either, option

# Options that make a command another than to sample a model, and what is said if further options have no effect there.
MODES = {
    "list_benchmarks": "--list prints the benchmarks",
    "check": "--check looks at a benchmark",
    "rescore": "--rescore scores again what a run has stored",
    "completions": "--completions samples nothing",
}
EVERY, MODEL, ASKED = ("model", *MODES), ("model",), ("model", "check")
FILE = ("model", "completions")
SCORED = (*FILE, "rescore")

# In the paper's sampling, which is the default, each of them is off: the model's own distribution.
SamplingName = Literal["temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty"]

# What samples: an engine, or a server that a flag starts.
LOCAL = ("auto", "vllm", "transformers", "--serve", "--serve-command")
VLLM = ("auto", "vllm")
SERVER = ("openai", "--serve", "--serve-command")


# Fields of a request that --extra-body may not set: what completions are made of, and how they are read, goes by them.
_OURS = (
    "model messages prompt max_tokens seed stream stream_options skip_special_tokens n best_of echo chat_template "
    "add_generation_prompt continue_final_message add_special_tokens documents"
)
# Where others of them belong.
_HOMES = {
    "chat_template_kwargs": "--chat-template-kwargs",
    "max_completion_tokens": "--max-tokens",
    "stop": "--protocol",
}


def _option(
    default: Any, help: str, *flags: str, section: str, engines: Sequence[str] | None = None,
    modes: Sequence[str] = MODEL, **limits: Any,
) -> Any:  # fmt: skip
    """Declare an option in a section of the help; engines and modes are where it has an effect."""
    return option(default, help, *flags, about={"section": section, "engines": engines, "modes": modes}, **limits)


_what = partial(_option, section="What", modes=FILE)
_sampling = partial(_option, section="Sampling")
_scoring = partial(_option, section="Scoring", modes=SCORED)
_server = partial(_option, section="Servers", engines=SERVER)
_machine = partial(_option, section="This machine", engines=LOCAL)
_output = partial(_option, section="Output", modes=EVERY)


class EvalSettings(CommandSettings):
    """One `gtpo eval` command, checked before anything heavy is imported. Raises UserError that names the flag."""

    COMMAND: ClassVar[str] = "gtpo eval"
    ARGUMENT: ClassVar[str] = "model"
    EXAMPLES = (
        "gtpo eval Qwen/Qwen2.5-0.5B-Instruct --benchmarks gsm8k --k 8",
        "gtpo eval --completions mine.jsonl --k 4",
        "gtpo eval NAME --base-url http://HOST:8000/v1 --benchmarks math500 --k 16",
    )
    FIRST = (
        "model", "benchmarks", "task", "completions", "like", "with_base", "fields", "k", "protocol", "max_tokens",
        "base_url", "out", "list_benchmarks",
    )  # fmt: skip
    SAMPLING: ClassVar[tuple[str, ...]] = get_args(SamplingName)

    model: str | None = _what(None, "Hub name, folder of a model or adapter, or run.", modes=EVERY)
    benchmarks: str | None = _what(None, "Comma-separated names (--list) or files of your own.", "--benchmarks", "-b")
    task: Sequence[str] | None = _what(None, "YAML file: a benchmark with its prompt, rule and judge (repeatable).")
    completions: Path | None = _what(None, "Score the completions of a JSONL, CSV or Parquet file; run no model.")
    like: str | None = _what(None, "An eval run whose questions and settings are taken; flags win.", modes=MODEL)
    with_base: bool = _what(
        False, "Evaluate what a train run started from in the same way, and compare.", engines=LOCAL, modes=MODEL
    )
    check: str | None = _what(None, "Show problems and prompt of this benchmark; verify all golds.", modes=("check",))
    rescore: bool = _what(False, "Verify an eval run's stored completions again; print changes.", modes=("rescore",))
    limit: int | None = _what(None, "Use only the first N questions of each benchmark.", ge=1)
    questions: Sequence[str] | None = _what(None, "Use only the question with this id (repeatable).", "--question")
    data_dir: Path | None = _what(None, "Folder with local benchmark files.", modes=(*FILE, "check"))
    fields: str | None = _what(
        None, "Names of fields in files: problem=question,answer=reward_model.ground_truth.", modes=(*FILE, "check")
    )
    checkpoint: str | None = _what(None, "Weights of a train run: best (default), final, a checkpoint.", modes=MODEL)

    k: int = _sampling(1, "Largest k of pass@k and maj@k.", modes=FILE, ge=1)
    samples: int | None = _sampling(None, "Completions per question (default: k).")
    engine: Literal["auto", "vllm", "transformers", "openai"] = _sampling("auto", "What samples.")
    protocol: str = _sampling(
        "gtpo", "How the model is asked, and read: a name (gtpo eval --list) or a YAML file.", modes=(*FILE, "check")
    )
    prompt: str | None = _sampling(
        None, "System prompt (default: as trained, else the protocol's); '' for none.", modes=ASKED
    )
    chat_template: Path | None = _sampling(
        None, "Jinja file in place of the tokenizer's; a server applies its own.", engines=LOCAL, modes=ASKED
    )
    chat_template_kwargs: JsonObject | None = _sampling(
        None, "JSON for the chat template, e.g. '{\"enable_thinking\": true}'.", modes=ASKED
    )
    temperature: float = _sampling(1.0, "Sampling temperature; 0 is greedy.", ge=0.0)
    top_p: float = _sampling(1.0, "Nucleus sampling; 1 is off.", gt=0.0, le=1.0)
    top_k: int = _sampling(0, "Only the k likeliest tokens; 0 is off.", ge=0)
    min_p: float = _sampling(0.0, "Only tokens this fraction as likely as the likeliest; 0 is off.", ge=0.0, lt=1.0)
    presence_penalty: float = _sampling(0.0, "Between -2 and 2; 0 is off.", ge=-2.0, le=2.0)
    repetition_penalty: float = _sampling(1.0, "1 is off.", gt=0.0)
    sampling: Literal["default", "model"] = _sampling("default", "model: as its generation_config.json; flags win.")
    max_tokens: int | None = _sampling(None, "Of a completion (default: as trained, else what fits, to 32768).", ge=1)
    seed: int = _sampling(0, "Seed of the run; every sample's own seed is derived from it.")
    most_tokens: int | None = _sampling(None, "Of the run: stop when prompts and completions have so many.", ge=1)

    scoring: Literal["auto", "strict", "lenient"] = _scoring(
        "auto",
        "Headline; both are stored. auto: the protocol's, the run's own, or lenient if most have no answer tags.",
    )
    fail_on_error: float = _scoring(0.05, "Stop if more than this share of samples fails.", modes=MODEL, ge=0.0, le=1.0)

    base_url: Sequence[str] | None = _server(
        None, "Server URL (repeatable, or a comma list; default: OPENAI_BASE_URL).", engines=("openai",)
    )
    api_key_env: str = _server("OPENAI_API_KEY", "Environment variable that holds the API key.", engines=("openai",))
    serve: str | None = _server(None, "Start vLLM's server with these flags, use it, stop it.", engines=("--serve",))
    serve_command: str | None = _server(
        None, "The same for any server: its command, with {model} and {port}.", engines=("--serve-command",)
    )
    concurrency: int = _server(64, "Most requests in flight at a server; 256 a replica of one that is started.", ge=1)
    timeout: float = _server(600.0, "Seconds of silence; a whole request may take 60 times as long.", gt=0.0)
    extra_body: JsonObject | None = _server(None, 'JSON: fields of every request: \'{"reasoning_effort": "low"}\'.')
    header: Sequence[str] | None = _server(
        None, "'Name: value' (repeatable); '$NAME' stands for an environment variable.", engines=("openai",)
    )
    retries: int = _server(5, "Further attempts of a failed request.", ge=0)

    batch_size: int | None = _machine(None, "Rows per batch.", engines=("auto", "transformers"), ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _machine(
        "auto",
        "Data type. auto on a CPU: bfloat16 if weights and CPU have it.",
        engines=(*VLLM, "transformers", "--serve"),
    )
    gpu_memory_utilization: float = _machine(0.9, "Share of GPU memory to use.", engines=VLLM, gt=0.0, le=1.0)
    trust_remote_code: bool = _machine(False, "Run code from the model's repository.", modes=ASKED)
    tensor_parallel_size: int = _machine(1, "GPUs per model copy.", engines=VLLM, ge=1)

    out: Path | None = _output(None, "Run folder (default: results/eval/NAME).", modes=FILE)
    list_benchmarks: bool = _output(False, "List the benchmarks and exit.", "--list", modes=("list_benchmarks",))
    by: Literal["subject", "level"] | None = _output(None, "Also a table by this field of the questions.", modes=SCORED)
    details: bool = _output(False, "Also a table of every other k for each benchmark.", modes=SCORED)
    price: str | None = _output(None, "IN,OUT: dollars a million tokens; prints the sum.", modes=SCORED)
    quiet: bool = _output(False, "Show warnings and the result only.")
    verbose: bool = _output(False, "Show details that help to find a fault.")
    json_output: bool = _output(False, "Print eval.json on stdout.", "--json", modes=SCORED)

    def check_together(self) -> None:
        """Check what more than one option decides."""
        keys = self.keys()
        for one, other in (("quiet", "verbose"), ("serve", "serve_command")):
            if getattr(self, one) not in (None, False) and getattr(self, other) not in (None, False):
                raise UserError(f"{keys[one].flags[0]} and {keys[other].flags[0]} exclude each other")
        given = [key for name, key in keys.items() if name in self.model_fields_set and getattr(self, name) is not None]
        idle = sorted(found.flags[0] for found in given if self.mode not in found.about["modes"])
        if idle and self.mode != "model":
            raise UserError(f"{MODES[self.mode]}, and {', '.join(idle)} would have no effect: leave out what has none")
        self.prices()
        if self.mode not in FILE:
            return
        self.check_engine(self.source)
        for whole, does in (("json_output", "--json prints eval.json"), ("with_base", "--with-base compares two runs")):
            tables = [keys[name].flags[0] for name in ("by", "details", "price") if getattr(self, name)]
            if getattr(self, whole) and tables:
                raise UserError(f"{does}, and {', '.join(tables)} would have no effect: leave out what has none")
        if self.server is not None:
            if self.engine != "auto":
                raise UserError(f"{self.source} starts a server, which samples: leave --engine {self.engine} out")
            from gtpo.evalkit.engines.serve import check_server

            check_server(*self.server)
        if self.samples is not None and self.samples < self.k:
            raise UserError(
                f"--k {self.k} needs at least {self.k} samples per question, found --samples {self.samples}: "
                "pass@k from fewer samples would be wrong"
            )
        # It imports numpy, and `gtpo --help` reads this module.
        from gtpo.evalkit.metrics import MAX_SAMPLES

        if self.n > MAX_SAMPLES:
            raise UserError(f"--{'samples' if self.samples else 'k'} must be at most {MAX_SAMPLES}, found {self.n}")
        if self.temperature == 0 and self.n > 1 and self.completions is None:
            raise UserError(
                f"--temperature 0 gives the same completion every time: sample once per question, not {self.n} times"
            )
        self.request_body()
        self.field_names()
        if self.completions is None and self.model is None:
            raise UserError("gtpo eval needs a MODEL (Hub name, folder or train run), or --completions FILE")
        if self.completions is None and (self.model or "").endswith((".jsonl", ".jsonl.gz", ".csv", ".parquet")):
            path = shlex.quote(self.model or "")
            raise UserError(f"{self.model} is no model; to score the completions in it: --completions {path}")
        if self.completions is None and not self.named and self.like is None:
            raise UserError(
                "--benchmarks names what to evaluate on, e.g. --benchmarks gsm8k,math (gtpo eval --list); --like RUN "
                "takes the questions and settings of another run"
            )

    def check_engine(self, name: str) -> None:
        """Check that what was given has an effect on what samples: an engine, `auto`, or the flag of a server."""
        for key in (key for field, key in self.keys().items() if field in self.model_fields_set):
            engines = key.about["engines"]
            if engines is not None and getattr(self, key.name) is not None and name not in engines:
                needs = either([engine for engine in engines if engine != "auto"])
                raise UserError(f"{key.flags[0]} needs --engine {needs}, found {name}")

    @property
    def named(self) -> str:
        """The benchmarks that are named, with commas between them."""
        return self.check or ",".join(filter(None, (self.benchmarks, *(self.task or ()))))

    @property
    def mode(self) -> str:
        """`model`, or the one of MODES that was asked for."""
        return next((name for name in MODES if getattr(self, name)), "model")

    @property
    def server(self) -> tuple[str, str] | None:
        """The flag that starts a server, and its value."""
        flags = (("--serve", self.serve), ("--serve-command", self.serve_command))
        return next(((flag, command) for flag, command in flags if command is not None), None)

    @property
    def source(self) -> str:
        """What samples: an engine, or the flag that starts a server."""
        if self.server:
            return self.server[0]
        return "openai" if self.base_url and self.engine == "auto" else self.engine

    @property
    def n(self) -> int:
        """Samples per question."""
        return self.samples or self.k

    def request_body(self) -> dict[str, Any] | None:
        """Return --extra-body, with --chat-template-kwargs. UserError if it has a field that is sent anyway."""
        body, kwargs = self.extra_body, self.chat_template_kwargs
        if own := sorted({*self.SAMPLING, *_OURS.split(), *_HOMES}.intersection(body or ())):
            named = ", ".join(f"{name} ({_HOMES[name]})" if name in _HOMES else name for name in own)
            raise UserError(f"--extra-body: {named} is set by gtpo eval itself, or by an option of its own")
        return {**(body or {}), "chat_template_kwargs": kwargs} if kwargs else body

    @property
    def budget(self) -> float:
        """Tokens of the run, all sessions, at which sampling ends."""
        return self.most_tokens or math.inf

    def prices(self) -> tuple[float, float] | None:
        """Return --price: dollars for a million tokens of prompts and of completions. UserError unless it is such."""
        if self.price is None:
            return None
        try:
            read, written = map(float, self.price.replace("/", ",").split(","))
        except ValueError:
            read = written = -1.0
        if not (0 <= read < math.inf and 0 <= written < math.inf):
            raise UserError(f'--price must be IN,OUT in dollars a million tokens, as in 0.6,2.4; found "{self.price}"')
        return read, written

    def field_names(self) -> dict[str, str]:
        """Return --fields, ours -> theirs. UserError unless it is such a list."""
        from gtpo.rewards.data.problems import parse_fields

        return parse_fields(self.fields or "")
