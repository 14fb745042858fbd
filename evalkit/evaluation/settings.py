"""What the user asked `gtpo eval` for, checked before anything heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalkit.evaluation.benchmarks import Shard
from evalkit.metrics import MAX_SAMPLES
from evalkit.results.record import SCORINGS
from rewards.extract import Scoring
from rewards.support.errors import UserError, did_you_mean

ENGINES = ("auto", "transformers", "vllm", "openai")


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
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int = 0
    prompt: str | None = None
    chat_template: Path | None = None
    checkpoint: str | None = None
    scoring: Scoring = "strict"
    batch_size: int | None = None
    dtype: str = "auto"
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 64
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
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
        if self.temperature < 0:
            raise UserError(f"--temperature must be 0 or more, found {self.temperature}")
        if self.temperature == 0 and self.n > 1 and self.completions is None:
            raise UserError(
                f"--temperature 0 gives the same completion every time: sample once per question, not {self.n} times"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p must be above 0 and at most 1, found {self.top_p}")
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
        if self.scoring not in SCORINGS:
            raise UserError(f'--scoring is strict or lenient, found "{self.scoring}"')
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise UserError(f'--dtype is auto, float32, bfloat16 or float16, found "{self.dtype}"')
        if self.concurrency < 1:
            raise UserError(f"--concurrency must be at least 1, found {self.concurrency}")
        self.shard_of()
        if self.completions is None and self.model is None:
            raise UserError("gtpo eval needs a MODEL (Hub name, folder or train run), or --completions FILE")
        if self.completions is None and not self.benchmarks:
            raise UserError("--benchmarks names what to evaluate on, e.g. --benchmarks gsm8k,math (gtpo eval --list)")
        if self.engine == "openai" and self.chat_template is not None:
            raise UserError("--chat-template has no effect with --engine openai: the server applies its own")

    @property
    def n(self) -> int:
        """Samples per question."""
        return self.samples or self.k

    def shard_of(self) -> Shard | None:
        """Return the shard asked for; UserError unless it is i/n with 1 <= i <= n."""
        if self.shard is None:
            return None
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f'--shard is i/n, e.g. 1/4 to 4/4, found "{self.shard}"')
        return Shard(int(match[1]), int(match[2]))
