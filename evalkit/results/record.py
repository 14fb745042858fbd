"""eval.json, typed: what an eval run says of itself. Everything that writes or reads the file does so through `EvalRecord`.

Rates and metrics are fractions in [0, 1]. A key that a file of this schema version has beyond these stays in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rewards.extract import Scoring
from rewards.support.errors import UserError
from rewards.support.files import check_schema_version, read_json, write_json

EVAL_SCHEMA_VERSION = 2
"""2: samples that failed are stored with their error; parts carry their run's record."""
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)


class _Block(BaseModel):
    model_config = ConfigDict(extra="allow", validate_by_name=True, validate_by_alias=True)


class Interval(_Block):
    """A mean with its two 95 % intervals."""

    mean: float
    low: float
    high: float
    """Covers the choice of questions and the sampling noise; clustered by question."""
    low_sampling: float | None = None
    high_sampling: float | None = None
    """Sampling noise on these very questions alone; None with one sample per question."""


class ScoringMetrics(_Block):
    """What one scoring makes of a benchmark's samples; metrics by k."""

    pass_at_k: dict[int, Interval] = Field({}, alias="pass@k")
    maj_at_k: dict[int, Interval] = Field({}, alias="maj@k")
    no_answer_rate: float | None = None
    unsimplified_rate: float | None = None
    """Share of answers that are right in value but still to be computed; they are not correct."""
    verdicts: dict[str, int] = {}


class GroupMetrics(_Block):
    """Means over the questions of one subject or level, by k."""

    questions: int
    pass_at_k: dict[int, float] = Field(alias="pass@k")
    maj_at_k: dict[int, float] = Field(alias="maj@k")


class LabelAgreement(_Block):
    """Recorded completions that bring their owners' labels: samples on which they agree with our verdict."""

    compared: int
    agree: dict[str, int]


class BenchmarkRecord(ScoringMetrics):
    """One benchmark: its questions, and the metrics once it is complete (those at the top: the headline scoring)."""

    source: str = ""
    questions: int = 0
    checksum: str | None = None
    """Of ids and golds."""
    excluded: list[str] = []
    """Ids of questions left out because their gold cannot be verified."""
    samples: int = 0
    """Scored samples; the metrics are theirs."""
    unscored: int = 0
    """Samples without a completion, and why: the server's word -> count."""
    unscored_reasons: dict[str, int] = {}
    unscored_questions: list[str] = []
    """Ids of questions without a single scored sample: left out of the metrics."""
    format_rate: float | None = None
    truncation_rate: float | None = None
    mean_tokens: float | None = None
    strict: ScoringMetrics | None = None
    lenient: ScoringMetrics | None = None
    by_subject: dict[str, GroupMetrics] | None = None
    by_level: dict[str, GroupMetrics] | None = None
    labels: LabelAgreement | None = None

    def by_scoring(self, scoring: Scoring) -> ScoringMetrics:
        """Return the metrics under one scoring."""
        found = self.strict if scoring == "strict" else self.lenient
        assert found is not None, "asked for before the benchmark was complete"
        return found


class ModelRecord(_Block):
    """What was evaluated; None where unknown."""

    source: str | None = None
    adapter: str | None = None
    fingerprint: str | None = None
    train_run: str | None = None
    checkpoint: str | None = None
    method: str | None = None
    preset: str | None = None

    @property
    def has_fingerprint(self) -> bool:
        """Whether the fingerprint covers all weights: those of the adapter, where there is one, and of its base."""
        return self.fingerprint is not None and self.fingerprint.count("-") == (self.adapter is not None)


class EngineRecord(_Block):
    """What sampled: `Engine.describe`, and the dtype as it was asked for."""

    name: str = ""
    dtype: str | None = None
    compute_dtype: str | None = None
    versions: dict[str, str] = {}
    hardware: str | None = None
    rows: int | None = None
    """Batch rows, engine transformers: its samples' rounding depends on them."""
    deterministic: bool = False
    """Whether a sample does not depend on what shares its batch, by --deterministic."""


class SamplingRecord(_Block):
    """How completions were drawn; None for recorded completions."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    n: int = 0
    seed: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0


class PromptRecord(_Block):
    """What came before the question."""

    system: str | None = None
    chat_template_hash: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    hash: str | None = None


class VerifierRecord(_Block):
    """How answers were judged."""

    version: int | str | None = None
    timeout_s: float | None = None


class EvalRecord(_Block):
    """eval.json."""

    schema_version: int = EVAL_SCHEMA_VERSION
    status: Literal["complete", "incomplete"] = "incomplete"
    name: str = ""
    model: ModelRecord = ModelRecord()
    engine: EngineRecord = EngineRecord()
    sampling: SamplingRecord = SamplingRecord()
    prompt: PromptRecord = PromptRecord()
    scoring: Scoring = "strict"
    """The headline."""
    shard: str | None = None
    """i/n: every n-th question, from the i-th."""
    verifier: VerifierRecord = VerifierRecord()
    created: str | None = None
    wall_seconds: float | None = None
    benchmark_seconds: dict[str, float] = {}
    """Time in which each benchmark's samples arrived; benchmarks may overlap."""
    command: str | None = None
    git_commit: str | None = None
    benchmarks: dict[str, BenchmarkRecord] = {}

    def as_json(self) -> dict[str, Any]:
        """Return the content of eval.json; what was never set is left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def header(self) -> EvalRecord:
        """Return the record of the run as it is before any metric: what every part of its samples carries."""
        fields = ("source", "questions", "checksum", "excluded")
        benchmarks = {
            name: BenchmarkRecord(**{field: getattr(entry, field) for field in fields})
            for name, entry in self.benchmarks.items()
        }
        return self.model_copy(update={"status": "incomplete", "benchmarks": benchmarks})

    def write(self, folder: Path) -> None:
        """Write eval.json in the run's folder."""
        self.schema_version = EVAL_SCHEMA_VERSION  # whatever version it was read from
        write_json(folder / "eval.json", self.as_json())


def read_record(folder: Path) -> EvalRecord:
    """Read eval.json of a run's folder. UserError, naming the field, where it is missing, broken, or of a newer schema."""
    path = folder / "eval.json"
    return parse_record(read_json(path), path)


def parse_record(document: Any, path: Path) -> EvalRecord:
    """Check what was read from a file. UserError, naming the field, where it is no run's record."""
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected a JSON object")
    if not isinstance(document.get("schema_version"), int):
        raise UserError(f"{path}: no schema_version; not a file that gtpo wrote")
    check_schema_version(path, document["schema_version"], EVAL_SCHEMA_VERSION)
    if not isinstance(document.get("benchmarks"), dict):
        raise UserError(f"{path}: no benchmarks; not an eval run's summary")
    try:
        return EvalRecord.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


IDENTITY = (
    "model.source", "model.adapter", "model.fingerprint", "engine.name", "engine.dtype",
    "engine.deterministic", "sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p",
    "sampling.presence_penalty", "sampling.repetition_penalty", "sampling.max_tokens", "sampling.seed",
    "prompt.system", "prompt.chat_template_hash", "prompt.chat_template_kwargs", "shard",
)  # fmt: skip
"""Settings that a run keeps for life: samples drawn under others would not be of one kind."""


def check_identity(where: Path, old: EvalRecord, new: EvalRecord) -> None:
    """Raise UserError that names each setting in which a run and a command differ."""
    moved = old.model.has_fingerprint and new.model.has_fingerprint  # then the weights count, not where they lie
    differing = [
        f"{key} ({_short(before)} there, {_short(now)} now)"
        for key in IDENTITY
        if (before := _setting(old, key)) != (now := _setting(new, key))
        and not (moved and key in ("model.source", "model.adapter"))
    ]
    for name, benchmark in new.benchmarks.items():
        before = old.benchmarks.get(name)
        if before is not None and before.checksum != benchmark.checksum:
            differing.append(f"the questions of {name} ({before.questions} there, {benchmark.questions} now)")
    if differing:
        raise UserError(
            f"{where} was made with other settings: {'; '.join(differing)}. Repeat those, or choose another --out"
        )


def _setting(record: EvalRecord, key: str) -> Any:
    value: Any = record
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else f"{text[:45]}..."
