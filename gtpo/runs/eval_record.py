"""eval.json, typed: what an eval run says of itself. Whatever writes or reads the file does so through `EvalRecord`.

Rates and metrics are fractions in [0, 1]. A key that a file of this schema version has beyond these stays in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gtpo.common.errors import UserError
from gtpo.common.files import check_schema_version, read_json, write_json
from gtpo.rewards.extract import Scoring
from gtpo.runs.prompt import DERIVED, PromptRecord

# 2: samples that failed are stored with their error; parts carry their run's record. 3: the prompt's record is a train
# run's too. 4: samples have an outcome, the record says who chose the headline, and a benchmark's task is stored.
EVAL_SCHEMA_VERSION = 4
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)


class _Block(BaseModel):
    model_config = ConfigDict(
        extra="allow", validate_by_name=True, validate_by_alias=True, use_attribute_docstrings=True
    )


class Interval(_Block):
    """A mean with its 95 % interval."""

    mean: float = Field(description="The mean over questions.")
    low: float = Field(description="Lower end, over questions and samples.")
    high: float = Field(description="Upper end.")
    questions: int | None = Field(None, description="Questions with k samples, if some have fewer: the mean is theirs.")
    worst: float | None = Field(None, description="The mean if every missing sample were wrong; absent if none is.")
    best: float | None = Field(None, description="The same if every missing sample were right.")


class TokenCounts(_Block):
    """Lengths of completions, in tokens."""

    median: float = Field(description="Half of them are at most so large.")
    high: float = Field(description="95 % of them are at most so large.")


class ScoringMetrics(_Block):
    """What one scoring makes of a benchmark's samples; metrics by k."""

    pass_at_k: dict[int, Interval] = Field({}, alias="pass@k", description="By k: chance that one of k is right.")
    all_pass_at_k: dict[int, Interval] = Field({}, alias="pass^k", description="By k: chance that all of k are right.")
    maj_at_k: dict[int, Interval] = Field({}, alias="maj@k", description="By k: chance that the vote of k is right.")
    no_answer_rate: float | None = Field(None, description="Share of samples from which no answer could be extracted.")
    unsimplified_rate: float | None = Field(None, description="Share of answers right in value, yet to be computed.")
    verdicts: dict[str, int] = Field({}, description="Verdict -> count of samples.")
    tokens_right: TokenCounts | None = Field(None, description="Tokens of right completions, as far as they are known.")
    tokens_wrong: TokenCounts | None = Field(None, description="The same of all others.")


class LabelAgreement(_Block):
    """Recorded completions that bring their owners' labels: samples on which they agree with our verdict."""

    compared: int = Field(description="Samples with a label.")
    agree: dict[str, int] = Field(description="Scoring -> samples on which label and verdict agree.")


class BenchmarkRecord(ScoringMetrics):
    """One benchmark: its questions, and the metrics once it is complete (those at the top: the headline scoring)."""

    source: str = Field("", description="Source of the questions: a Hub name, a file, or embedded.")
    task: dict[str, Any] | None = Field(None, description="Its entry, without the prompt; null for a file's golds.")
    questions: int = Field(0, description="Questions with a scored sample.")
    texts: int | None = Field(None, description="Different texts, if some repeat: intervals count these.")
    checksum: str | None = Field(None, description="Of ids and golds.")
    content_checksum: str | None = Field(None, description="Of ids, texts, golds, ways to compare; null without texts.")
    trained_on: int | None = Field(None, description="Questions that are in the train run's data; null if none is.")
    excluded: list[str] = Field([], description="Ids of questions left out because their gold cannot be verified.")
    n: int | None = Field(None, description="Samples per question that the metrics count, failed too; null at first.")
    n_asked: int | None = Field(None, description="Samples per question asked for last; above `n` while unfinished.")
    finish_with: str | None = Field(None, description="Command that finishes this benchmark; null if complete.")
    samples: int = Field(0, description="Scored samples; the metrics are theirs.")
    unscored: int = Field(0, description="Samples without a completion.")
    unscored_reasons: dict[str, int] = Field({}, description="Why: the server's word -> count.")
    outcomes: dict[str, int] = Field({}, description="What is known of the ends of all samples -> count.")
    unknown_endings: dict[str, int] = Field({}, description="Words for an end that are not known -> samples.")
    absent: int | None = Field(None, description="Questions of the benchmark that the file of completions lacks.")
    refused: int = Field(0, description="Unscored samples that the server refused, e.g. by a content filter.")
    unscored_questions: list[str] = Field([], description="Ids of questions without a scored sample.")
    lacking: dict[str, int] = Field({}, description="Question -> scored samples, if fewer than n: metrics end there.")
    unfinished_rate: float | None = Field(None, description="Share of samples that end inside a thought, if one does.")
    format_rate: float | None = Field(None, description="Share of samples in the full layout.")
    truncation_rate: float | None = Field(None, description="Share of samples cut off at the limit; null if unknown.")
    cut_off_tokens: int | None = Field(None, description="Most tokens of a completion that was cut off.")
    mean_tokens: float | None = Field(None, description="Tokens of a completion.")
    completion_tokens: int | None = Field(None, description="Of all scored samples, as far as they are known.")
    prompt_tokens: int | None = Field(None, description="Of the prompts of scored samples, each counted once a sample.")
    uncounted: int = Field(0, description="Scored samples whose tokens are not known, if those of others are.")
    strict: ScoringMetrics | None = Field(None, description="Metrics if the answer must stand in the tags.")
    lenient: ScoringMetrics | None = Field(None, description="Metrics if the last box or number will do.")
    labels: LabelAgreement | None = Field(None, description="Agreement with labels that recorded completions bring.")

    def before_samples(self) -> BenchmarkRecord:
        """Return the record without what its samples brought."""
        fields = {"source", "task", "questions", "checksum", "content_checksum", "excluded", "trained_on", "n_asked"}
        fields |= {"finish_with", "absent"}
        return BenchmarkRecord(**self.model_dump(include=fields, exclude_unset=True))


class ModelRecord(_Block):
    """What was evaluated; None if unknown."""

    source: str | None = Field(None, description="Hub name, folder, or the base of an adapter.")
    adapter: str | None = Field(None, description="Folder of the LoRA adapter.")
    fingerprint: str | None = Field(None, description="Hash of the weights: of the base, of the adapter after a dash.")
    weights: str | None = Field(None, description="Hash of every byte of weights and config; null if elsewhere.")
    tokenizer: str | None = Field(None, description="Hash of the tokenizer's files and chat template.")
    generation_config: str | None = Field(None, description="Hash of the file of this name, which has the end tokens.")
    train_run: str | None = Field(None, description="Train run that the weights come from.")
    checkpoint: str | None = Field(None, description="Which of its weights: best, final or a checkpoint.")
    method: str | None = Field(None, description="Its method.")
    preset: str | None = Field(None, description="Its preset.")


# Flags of vLLM that say how many replicas there are, and where, each with its value.
_REPLICAS = re.compile(r" (?:--data[-_]parallel[-\w]*|-dp\w*|--api[-_]server[-_]count|-asc)(?:[= ][^-\s]\S*)?(?= )")


class EngineRecord(_Block):
    """What sampled: `Engine.describe`, and the dtype as it was asked for."""

    name: str = Field("", description="The engine; `recorded` for recorded completions.")
    dtype: str | None = Field(None, description="Data type as asked for.")
    compute_dtype: str | None = Field(None, description="Data type as used.")
    versions: dict[str, str] = Field({}, description="Package -> version.")
    hardware: str | None = Field(None, description="The GPU or processor.")
    serve: str | None = Field(None, description="Flags, or command, of the server started for the run.")
    rows: int | None = Field(None, description="Batch rows of engine transformers: rounding depends on them.")
    canaries: dict[str, Any] | None = Field(None, description="Servers: models, effect of seeds, hashes of texts.")
    parameters_left_out: list[str] = Field([], description="Servers: sampling parameters that they do not take.")
    earlier: list[dict[str, Any]] = Field([], description="Other versions and hardware, of earlier sessions.")

    @property
    def serve_settings(self) -> str:
        """Flags of the server without those that say how many replicas there are: no sample depends on these.

        Without any it is as the engine in this process.
        """
        return " ".join(_REPLICAS.sub(" ", f" {self.serve or ''} ").split())

    def followed_by(self, now: EngineRecord) -> list[dict[str, Any]]:
        """Return what samples were made on before a session on `now`, without what it has itself."""
        current, last = (one.model_dump(include={"versions", "hardware"}) for one in (now, self))
        before = [*self.earlier, last]
        return [one for i, one in enumerate(before) if one != current and one not in before[:i]]


class SamplingRecord(_Block):
    """How completions were drawn; None for recorded completions."""

    temperature: float | None = Field(None, description="Sampling temperature; 0 is greedy.")
    top_p: float | None = Field(None, description="Nucleus sampling; 1 is off.")
    max_tokens: int | None = Field(None, description="Token limit of a completion.")
    n: int = Field(0, description="Samples per question, the most of any benchmark; each benchmark has its own `n`.")
    seed: int | None = Field(None, description="Seed of the run.")
    top_k: int | None = Field(0, description="0 is off. Null, here and above: a server's own default is not changed.")
    min_p: float | None = Field(0.0, description="0 is off.")
    presence_penalty: float | None = Field(0.0, description="0 is off.")
    repetition_penalty: float | None = Field(1.0, description="1 is off.")
    extra_body: dict[str, Any] | None = Field(None, description="Further fields of every request to a server.")
    stop: list[str] = Field([], description="A completion ends before the first of these texts.")


class VerifierRecord(_Block):
    """How answers were judged."""

    version: int | str | None = Field(None, description="Version of the scoring rules.")
    timeout_s: float | None = Field(None, description="Time limit of one verification, in seconds.")


class EvalRecord(_Block):
    """eval.json."""

    schema_version: int = Field(EVAL_SCHEMA_VERSION, description="Version of this layout; readers refuse a newer one.")
    status: Literal["complete", "incomplete"] = "incomplete"
    """complete once every benchmark has all its samples, stored and scored."""
    name: str = Field("", description="Name of the run.")
    model: ModelRecord = Field(ModelRecord(), description="What was evaluated.")
    engine: EngineRecord = Field(EngineRecord(), description="What sampled.")
    sampling: SamplingRecord = Field(SamplingRecord(), description="How completions were drawn.")
    prompt: PromptRecord = Field(PromptRecord(), description="What came before the question.")
    scoring: Scoring = Field("strict", description="The headline.")
    scoring_by: Literal["command", "completions"] | None = None
    """What chose it: flag or protocol, or what most completions hold; null until the run first ends or stops."""
    verifier: VerifierRecord = Field(VerifierRecord(), description="How answers were judged.")
    created: str | None = Field(None, description="Time of the start, UTC.")
    wall_seconds: float | None = Field(None, description="Wall time of all sessions.")
    command: str | None = Field(None, description="The last command line; of an incomplete run the one that goes on.")
    git_commit: str | None = Field(None, description="Commit of gtpo, if it runs from a checkout.")
    benchmarks: dict[str, BenchmarkRecord] = Field({}, description="Benchmark -> its record.")

    def as_json(self) -> dict[str, Any]:
        """Return the content of eval.json: null for each parameter that a server does not take.

        What was never set is left out.
        """
        document = self.model_dump(by_alias=True, exclude_unset=True)
        sampling = document.get("sampling", {})
        sampling |= dict.fromkeys(sampling.keys() & {*self.engine.parameters_left_out})
        return document

    def write(self, folder: Path) -> None:
        """Write eval.json in the run's folder."""
        self.schema_version = EVAL_SCHEMA_VERSION  # whatever version it was read from
        write_json(folder / "eval.json", self.as_json())


def read_record(folder: Path) -> EvalRecord:
    """Read eval.json of a run's folder. UserError, naming the field, if it is missing, broken, or too new."""
    path = folder / "eval.json"
    return parse_record(read_json(path), path)


def parse_record(document: dict[str, Any], path: Path) -> EvalRecord:
    """Check what was read from a file. UserError, naming the field, if it is no run's record."""
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


# Settings that a refusal names; it counts the others.
SHOWN = 3
# Settings that a run keeps for life: samples drawn under others would not be of one kind.
IDENTITY = (
    "model.source", "model.adapter", "model.fingerprint", "model.weights", "model.tokenizer",
    "model.generation_config", "engine.name", "engine.dtype", "engine.serve_settings",
    *(f"sampling.{name}" for name in SamplingRecord.model_fields if name != "n"),
    *(f"prompt.{name}" for name in PromptRecord.model_fields if name not in DERIVED),
)  # fmt: skip


def check_identity(where: Path, old: EvalRecord, new: EvalRecord, also: Sequence[str] = ()) -> None:
    """Raise UserError that names the settings in which a run and a command differ. also: other differences, in words.

    The questions are none of them: a subset is a view on what is stored.
    """
    differences: list[str] = []
    # Where the weights lie counts only if their content is not known, that of an adapter too.
    known_weights = all(
        m.fingerprint is not None and m.fingerprint.count("-") == (m.adapter is not None)
        for m in (old.model, new.model)
    )
    left_out = {*old.engine.parameters_left_out, *new.engine.parameters_left_out}
    for key in IDENTITY:
        before, now = map(attrgetter(key), (old, new))
        # What a server does not take is as it is, whatever is asked for.
        if (key in ("model.source", "model.adapter") and known_weights) or key.removeprefix("sampling.") in left_out:
            continue
        if key == "engine.dtype":  # what `auto` came to counts, not the word
            known = old.engine.compute_dtype, new.engine.compute_dtype
            if all(known):
                key, (before, now) = "engine.compute_dtype", known
            elif before == "auto" and now == known[0]:
                continue
        if before != now:
            differences.append(f"{key} ({before!s:.48} there, {now!s:.48} now)")
    differences += also
    if differences:
        rest = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        other = "choose another --out" + " (in gtpo compare NAME=FILE)" * (new.engine.name == "recorded")
        raise UserError(
            f"{where} was made with other settings: {'; '.join(differences[:SHOWN])}{rest}. Repeat those, or {other}"
        )
