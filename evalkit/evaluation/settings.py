"""What the user asked `gtpo eval` for, checked before anything heavy is imported."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtpo.evalkit.evaluation.benchmarks import Shard
from gtpo.evalkit.metrics import MAX_SAMPLES
from gtpo.evalkit.results.record import SCORINGS
from gtpo.rewards.extract import Scoring

from gtpo.common.errors import UserError, did_you_mean

SAMPLING_DEFAULTS: dict[str, float] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""The paper's sampling: the model's own distribution."""

ENGINES = ("auto", "transformers", "vllm", "openai", "ray")


def check_scoring(scoring: str | None) -> None:
    """Raise UserError unless it is one of SCORINGS, or None: not given."""
    if scoring not in (None, *SCORINGS):
        raise UserError(f'--scoring is strict or lenient, found "{scoring}"')


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """One `gtpo eval` command."""

    model: str | None
    benchmarks: str | None = None
    k: int = 1
    samples: int | None = None
    """Samples per question, k where None."""
    engine: str = "auto"
    data_dir: Path | None = None
    completions: Path | None = None
    out: Path | None = None
    limit: int | None = None
    questions: Sequence[str] | None = None
    shard: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    sampling: str = "default"
    """What the six above are where they are None: `SAMPLING_DEFAULTS`, or `model`, its generation_config.json."""
    max_tokens: int | None = None
    seed: int = 0
    prompt: str | None = None
    chat_template: Path | None = None
    chat_template_kwargs: str | None = None
    """A JSON object."""
    checkpoint: str | None = None
    scoring: Scoring = "strict"
    batch_size: int | None = None
    dtype: str = "auto"
    base_url: Sequence[str] | None = None
    """Servers: URLs, lists of them, files (`openai_server.server_urls`)."""
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 64
    timeout: float = 600.0
    """Seconds without a byte from the server."""
    retries: int = 5
    fail_on_error: str = "5%"
    """Samples that may fail: a number, or a share of all samples (0.05 or 5%)."""
    deterministic: bool = False
    tensor_parallel_size: int = 1
    data_parallel_size: int | None = None
    """Model copies; None: one, with engine ray as many as the GPUs hold."""
    ray_address: str | None = None
    """`auto` or HOST:PORT of the cluster to join; None starts one on this machine."""
    gpu_memory_utilization: float = 0.9
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Raise UserError for a value out of range, or two that contradict each other."""
        if not 1 <= self.k <= MAX_SAMPLES:
            raise UserError(f"--k must be between 1 and {MAX_SAMPLES}, found {self.k}")
        if self.samples is not None and self.samples < self.k:
            raise UserError(
                f"--k {self.k} needs at least {self.k} samples per question, found --samples {self.samples}: "
                "pass@k from fewer samples would be wrong"
            )
        if self.n > MAX_SAMPLES:
            raise UserError(f"--samples must be at most {MAX_SAMPLES}, found {self.n}")
        for name in SAMPLING_DEFAULTS:
            value = getattr(self, name)
            if value is not None:
                self.check_sampling(name, value, f"--{name.replace('_', '-')}")
        if self.sampling not in ("default", "model"):
            raise UserError(f'--sampling is default or model, found "{self.sampling}"')
        if not 0 < self.timeout < math.inf:
            raise UserError(f"--timeout must be above 0, found {self.timeout}")
        if self.retries < 0:
            raise UserError(f"--retries must be 0 or more, found {self.retries}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise UserError(
                f"--gpu-memory-utilization is a share above 0 and at most 1, found {self.gpu_memory_utilization}"
            )
        self.failure_limit(1)
        self.template_kwargs()
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"--max-tokens must be at least 1, found {self.max_tokens}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit must be at least 1, found {self.limit}")
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"--batch-size must be at least 1, found {self.batch_size}")
        if self.engine not in ENGINES:
            raise UserError(
                f'unknown engine "{self.engine}".{did_you_mean(self.engine, ENGINES)} Known: {", ".join(ENGINES)}'
            )
        check_scoring(self.scoring)
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise UserError(f'--dtype is auto, float32, bfloat16 or float16, found "{self.dtype}"')
        if self.concurrency < 1:
            raise UserError(f"--concurrency must be at least 1, found {self.concurrency}")
        for name in ("tensor_parallel_size", "data_parallel_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1, found {size}")
        if (self.data_parallel_size or 1) > 1 and self.engine not in ("vllm", "ray"):
            raise UserError(f"--data-parallel-size needs --engine vllm or ray, found {self.engine}")
        if self.ray_address is not None and not self.on_ray:
            raise UserError(f"--ray-address needs --engine ray, found {self.engine}")
        if self.base_url and self.engine != "openai":
            raise UserError(f"--base-url needs --engine openai, found {self.engine}")
        self.shard_of()
        if self.completions is None and self.model is None:
            raise UserError("gtpo eval needs a MODEL (Hub name, folder or train run), or --completions FILE")
        if self.completions is None and not self.benchmarks:
            raise UserError("--benchmarks names what to evaluate on, e.g. --benchmarks gsm8k,math (gtpo eval --list)")
        if self.engine == "openai" and self.chat_template is not None:
            raise UserError("--chat-template has no effect with --engine openai: the server applies its own")

    @property
    def on_ray(self) -> bool:
        """Whether the model runs in Ray actors."""
        return self.engine == "ray" or (self.engine == "vllm" and (self.data_parallel_size or 1) > 1)

    @property
    def n(self) -> int:
        """Samples per question."""
        return self.samples or self.k

    def check_sampling(self, name: str, value: float, origin: str) -> None:
        """Raise UserError unless a sampling parameter is in its range; origin: where the value comes from."""
        needed, fits = {
            "temperature": ("0 or more", value >= 0),
            "top_p": ("above 0 and at most 1", 0 < value <= 1),
            "top_k": ("0 (off) or more", value >= 0),
            "min_p": ("0 (off) or more and below 1", 0 <= value < 1),
            "presence_penalty": ("between -2 and 2", -2 <= value <= 2),
            "repetition_penalty": ("above 0", value > 0),
        }[name]
        if not fits or not math.isfinite(value):
            raise UserError(f"{origin} must be {needed}{' and finite' * fits}, found {value}")
        if name == "temperature" and value == 0 and self.n > 1 and self.completions is None:
            raise UserError(
                f"{origin} 0 gives the same completion every time: sample once per question, not {self.n} times"
            )

    def sampling_values(self, recommended: Mapping[str, float]) -> dict[str, Any]:
        """Return the sampling parameters: as given, else as the model recommends, else the defaults."""
        for name, value in recommended.items():
            if getattr(self, name) is None:
                self.check_sampling(name, value, f"--sampling model: {name}")
        given = {name: getattr(self, name) for name in SAMPLING_DEFAULTS if getattr(self, name) is not None}
        return {**SAMPLING_DEFAULTS, **recommended, **given}

    def failure_limit(self, total: int) -> int:
        """Return how many of `total` samples may fail. UserError where --fail-on-error is no number or share."""
        text = self.fail_on_error.strip()
        try:
            if text.isdecimal():
                return int(text)
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise UserError(
                f'--fail-on-error is a number of samples (10) or a share of them (0.05, 5%), found "{text}"'
            )
        return int(share * total)

    def template_kwargs(self) -> dict[str, Any] | None:
        """Return --chat-template-kwargs. UserError unless it is a JSON object."""
        if self.chat_template_kwargs is None:
            return None
        try:
            found = json.loads(self.chat_template_kwargs)
        except ValueError as error:
            raise UserError(f"--chat-template-kwargs is not valid JSON ({error})") from None
        if not isinstance(found, dict):
            raise UserError("--chat-template-kwargs must be a JSON object, e.g. '{\"enable_thinking\": true}'")
        return found

    def shard_of(self) -> Shard | None:
        """Return the shard asked for; UserError unless it is i/n with 1 <= i <= n."""
        if self.shard is None:
            return None
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f'--shard is i/n, e.g. 1/4 to 4/4, found "{self.shard}"')
        return Shard(int(match[1]), int(match[2]))
