"""`gtpo eval --completions FILE`: score what a model wrote elsewhere, without model or GPU.

The file is read twice, row by row: once to check all of it, once to score it in bounded memory. Ending and first row
say which kind of file it is. A completion that failed is read as one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.packages import installed
from gtpo.common.provenance import file_hash
from gtpo.evalkit.engines.base import Engine, Generation, Reading, Task, finish_word
from gtpo.evalkit.evaluation.benchmarks import (
    BENCHMARKS,
    Benchmark,
    check_questions,
    find_benchmarks,
    load_problems,
    select_problems,
)
from gtpo.evalkit.evaluation.engine import Rendered
from gtpo.evalkit.evaluation.protocol import Protocol
from gtpo.evalkit.evaluation.record import Plan, drop_unverifiable
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import data_folder, math_gold, parse_level, read_rows, renamed
from gtpo.rewards.extract import gsm8k_gold
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_record import EngineRecord, EvalRecord, ModelRecord, PromptRecord, SamplingRecord

CHUNK = 512


# -- files, row by row: plain JSONL, and the logs of lm-eval and inspect_ai --------------------------------------------

# Finish reasons of completions that are none.
_FAILED = ("abort", "aborted", "error", "failed", "cancelled", "canceled", "timeout")


@dataclass(slots=True)
class RecordedSample:
    """One completion, or why there is none."""

    text: str
    error: str | None = None
    finish_reason: str | None = None
    tokens: int | None = None


@dataclass(slots=True)
class Row:
    """Samples of one question. Rows of the same id are further samples of it."""

    where: str
    id: str
    samples: list[RecordedSample]
    no_gold: bool = False  # Whether the row itself says that there is no gold
    problem: Problem | None = None  # With the gold; None without one
    labels: list[bool] = field(default_factory=list)  # The owner's verdicts, one a sample or none


def read_completions(path: Path, fields: Mapping[str, str] | None = None) -> Iterator[Row]:
    """Yield the rows of a file. Raises UserError with file and line on the first that is wrong.

    fields: our names for fields that have others; such a file holds rows of the user's own. Rows without an id are
    numbered, so that files of the same questions in the same order can be compared.
    """
    if path.suffix in (".eval", ".json"):
        return _inspect(path)
    rest = read_rows(path)
    first = next(rest)
    rows = itertools.chain([first], rest)
    if {"doc_id", "resps"} <= first[1].keys() and not fields:
        return _lm_eval(path, rows)
    if not fields or "id" in fields:
        return (_plain(where, renamed(row, fields or {}, where)) for where, row in rows)
    numbered = enumerate(rows)
    return (_plain(where, {"id": f"row {i}", **renamed(row, fields, where)}) for i, (where, row) in numbered)


def _row(
    where: str, identifier: str, samples: list[RecordedSample], gold: Any, about: dict[str, Any], labels: list[bool]
) -> Row:
    """Return a row with its problem; about: the fields of the problem beside its gold."""
    if gold is None:
        return Row(where, identifier, samples, labels=labels)
    if not isinstance(gold, str | int | float) or isinstance(gold, bool):
        raise UserError(f"{where}: gold must be text, found {type(gold).__name__}")
    if isinstance(gold, float) and not math.isfinite(gold):
        raise UserError(f"{where}: gold must be a number or text, found {gold}")
    problem = Problem(
        identifier,
        str(about.get("problem") or ""),
        str(gold).strip(),
        subject=str(about.get("subject") or ""),
        level=parse_level(about.get("level")),
        cluster=str(about.get("cluster") or ""),
    )
    return Row(where, identifier, samples, problem=problem, labels=labels)


def _plain(where: str, row: dict[str, Any]) -> Row:
    if not isinstance(row.get("id"), str | int):
        raise UserError(
            f'{where}: a row needs the fields "id", "gold" and "completion" (or a list, "completions"); "id" is '
            f"{'no text' if 'id' in row else 'missing'}; fields here: {', '.join(row)}"
        )
    if ("completion" in row) == ("completions" in row):
        raise UserError(f'{where}: expected either "completion" or "completions"; fields here: {", ".join(row)}')
    texts = row["completions"] if "completions" in row else [row["completion"]]
    if not isinstance(texts, list) or not all(isinstance(text, str | None) for text in texts):
        hint = '; several go under "completions"' if isinstance(row.get("completion"), list) else ""
        raise UserError(f"{where}: a completion must be text, or null if it failed{hint}")
    if not texts:
        raise UserError(f"{where}: completions is empty")
    names = ("error", "finish_reason", "tokens", "reasoning_content", "label")
    each = {name: _each(where, row, name, len(texts)) for name in names}
    samples = []
    for text, error, reason, tokens, thought in zip(texts, *(each[name] for name in names[:-1]), strict=True):
        if not isinstance(reason, str | None) or not isinstance(tokens, int | None):
            raise UserError(
                f"{where}: finish_reason is text and tokens are a number, found {reason!r:.40}, {tokens!r:.40}"
            )
        failed = str(error) if error else "no completion was recorded" if text is None else _failure(reason)
        if thought:
            text = f"<think>{thought}</think>{text}" if text or _reason(reason) == "stop" else f"<think>{thought}"
            failed = None if failed == "no completion was recorded" else failed
        samples.append(RecordedSample(text or "", failed, _reason(reason), tokens))
    labels = [] if each["label"] == [None] * len(texts) else each["label"]
    for label in labels:
        if not isinstance(label, bool | int | float) or label not in (0, 1):
            raise UserError(f"{where}: a label must be true or false (or 1 or 0), found {label!r:.40}")
    found = _row(where, str(row["id"]), samples, row.get("gold", row.get("answer")), row, [bool(x) for x in labels])
    found.no_gold = "gold" in row and row["gold"] is None
    return found


def _each(where: str, row: dict[str, Any], name: str, count: int) -> list[Any]:
    """Return a field of each completion: a list under its plural, or its one value."""
    plural = name if name == "tokens" else f"{name}s"
    value = row.get(plural, row.get(name))
    values = value if isinstance(value, list) else [value] * (count if value is None else 1)
    if len(values) != count:
        raise UserError(f"{where}: {count} completions but {len(values)} {plural}")
    return values


def _reason(reason: str | None) -> str | None:
    """Return stop or length, None if a row does not say in words that are known."""
    word = finish_word(reason or "")
    return word if word in ("stop", "length") else None


def _failure(reason: str | None) -> str | None:
    """Return why a completion is none, from its finish reason; None if it is one."""
    word = finish_word(reason or "")
    failed = word == "refused" or word.rpartition(".")[2].lower() in _FAILED
    return f"finish_reason {reason}" if failed else None


def _lm_eval(path: Path, rows: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Row]:
    """Yield the rows of lm-eval's samples_TASK_DATE.jsonl: those of its first filter, which stand for all."""
    match = re.match(r"samples_(.+?)_\d{4}-\d\d-\d\d", path.name)
    task = match[1] if match else path.name.partition(".")[0]
    chosen = None
    for where, row in rows:
        chosen = chosen if chosen is not None else row.get("filter")
        if row.get("filter") != chosen:
            continue
        try:
            doc, target = row["doc"], str(row["target"])
            texts = row["resps"][0]
            if not isinstance(doc, dict) or not all(isinstance(text, str) for text in texts):
                raise TypeError("a doc and generated texts are expected; log generate_until tasks")
            number = row["doc_id"]
        except (KeyError, TypeError, IndexError) as error:
            raise UserError(f"{where}: not a row of lm-eval's sample logs ({type(error).__name__}: {error})") from None
        identifier = f"gsm8k/test/{number}" if task.startswith("gsm8k") else f"{task}/{number}"
        label = row.get("exact_match", row.get("acc"))
        labels = [label == 1] if isinstance(label, int | float) and len(texts) == 1 else []
        about = {"problem": doc.get("question") or doc.get("problem")}
        yield _row(where, identifier, [RecordedSample(text) for text in texts], _of_solution(target), about, labels)


def _of_solution(target: Any) -> Any:
    """The gold of a target that may be a whole solution, as in GSM8K and MATH."""
    if not isinstance(target, str):
        return target
    return gsm8k_gold(target) if "####" in target else math_gold(target) if "\\boxed" in target else target


def _inspect(path: Path) -> Iterator[Row]:
    """Yield the samples of an inspect_ai log, read by their package."""
    if not installed("inspect_ai"):
        raise UserError(
            f"--completions {path}: a {path.suffix} file is read as a log of inspect_ai, which is not installed: pip "
            "install inspect-ai. Rows of your own go into a .jsonl file, one a line"
        )
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # whatever their reader raises
        first = str(error).split("\n")[0][:200]
        raise UserError(f"{path}: not a log of inspect_ai ({type(error).__name__}: {first})") from None
    if not log.samples:
        raise UserError(f"{path}: the log holds no samples (status {log.status})")
    for sample in sorted(log.samples, key=lambda sample: sample.epoch):
        where = f"{path}, sample {sample.id}, epoch {sample.epoch}"
        output, failed = sample.output, sample.error.message if sample.error else None
        text = output.completion if output.choices else ""
        if failed is None and not output.choices:
            failed = output.error or "no completion was recorded"
        usage, message = output.usage, sample.input
        if not isinstance(message, str):
            message = next((m.text for m in reversed(message) if m.role == "user"), "")
        scores = [score.value for score in (sample.scores or {}).values()]
        right = {"C": True, "I": False, 1: True, 0: False}.get(scores[0]) if scores and failed is None else None
        gold = sample.target if isinstance(sample.target, str) else ", ".join(sample.target)
        reason = _reason(str(output.stop_reason)) if output.choices else None
        failed = failed or _failure(str(output.stop_reason) if output.choices else None)
        found = RecordedSample(text, failed, reason, usage.output_tokens if usage else None)
        labels = [] if right is None else [right]
        yield _row(
            where, str(sample.id), [found], gold or None, {"problem": message, **(sample.metadata or {})}, labels
        )


# -- what is asked of a file -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recorded:
    """What the first reading of a file found."""

    problems: dict[str, Problem] = field(default_factory=dict)  # id -> problem with its gold, for rows that bring one
    counts: dict[str, int] = field(default_factory=dict)  # id -> samples
    labels: dict[tuple[str, int], bool] = field(default_factory=dict)  # (id, sample) -> the owner's verdict
    without_gold: tuple[str, str] | None = None  # (place, id) of the first row that has no gold and does not say so
    no_gold: set[str] = field(default_factory=set)  # Questions whose rows say that there is no gold


def read_recorded(path: Path, fields: Mapping[str, str]) -> Recorded:
    """Check every row of a file (`read_completions`). UserError with file and line on the first that is wrong."""
    found = Recorded()
    for row in read_completions(path, fields):
        first = found.counts.get(row.id, 0)
        found.counts[row.id] = first + len(row.samples)
        if row.problem is None and row.no_gold:
            found.no_gold.add(row.id)
        elif row.problem is None:
            found.without_gold = found.without_gold or (row.where, row.id)
        elif (before := found.problems.setdefault(row.id, row.problem).answer) != (gold := row.problem.answer):
            raise UserError(f'{row.where}: id "{row.id}" had the gold "{before}" before, now "{gold}"')
        found.labels |= {(row.id, first + i): label for i, label in enumerate(row.labels)}
    return found


def scored_by_content(settings: EvalSettings) -> EvalSettings:
    """Return settings whose headline scoring is strict if a completion has an answer tag, else lenient."""
    assert settings.completions is not None
    rows = read_completions(settings.completions, settings.field_names())
    tagged = any("<answer>" in sample.text for row in rows for sample in row.samples)
    if not tagged:
        LOG.info("scoring: lenient, since no completion has an <answer> tag; --scoring chooses")
    return settings.filled({"scoring": "strict" if tagged else "lenient"})


def _identify(settings: EvalSettings, path: Path, found: Recorded) -> tuple[str, str, dict[str, Problem]]:
    """Return (benchmark name, source, id -> problem): whose golds count, and under which name."""
    stem = _stem(path)
    if settings.benchmarks:
        asked = find_benchmarks(settings.benchmarks)
        if len(asked) != 1:
            raise UserError(f"--completions scores one benchmark at a time, found --benchmarks {settings.benchmarks}")
        benchmark: Benchmark | None = asked[0]
    else:
        by_ids = (b for b in BENCHMARKS.values() if b.ids and all(re.fullmatch(b.ids, i) for i in found.counts))
        benchmark = next(by_ids, None)
    complete = found.without_gold is None and (benchmark is None or not found.no_gold)
    if benchmark is None:
        if not complete:
            where, identifier = found.without_gold or ("", "")
            raise UserError(
                f'{where}: no gold, and "{identifier}" is no id of a known benchmark; '
                "add gold to the rows, or name the benchmark with gtpo eval --benchmarks"
            )
        return stem, str(path), found.problems
    if complete and not settings.benchmarks and benchmark.local and data_folder(settings.data_dir) is None:
        # Its own golds are enough: no download for a name.
        return benchmark.name, str(path), found.problems
    known = {p.id: p for p in load_problems(benchmark, settings.data_dir)}
    unknown = next((identifier for identifier in found.counts if identifier not in known), None)
    others = sum(p.answer != known[i].answer for i, p in found.problems.items() if i in known)
    if (unknown is not None or others) and complete and not settings.benchmarks:
        what = f'id "{unknown}" is unknown to it' if unknown is not None else f"{others} golds are others"
        LOG.warning("%s has ids like %s's, but %s: scored as %s, by its own golds", path, benchmark.name, what, stem)
        return stem, str(path), found.problems
    if unknown is not None:
        raise UserError(f'{path}: benchmark {benchmark.name} has no question "{unknown}"')
    if others:
        LOG.warning(
            "%d golds of %s are written differently in %s; the benchmark's are used", others, path, benchmark.name
        )
    return benchmark.name, benchmark.source, {identifier: known[identifier] for identifier in found.counts}


def plan_recorded(settings: EvalSettings, protocol: Protocol, verifier: Verifier) -> tuple[Plan, RecordedEngine]:
    """Check a file; return what is asked, and what gives the completions. Raises UserError with file and line on the
    first mistake.
    """
    path = settings.completions
    assert path is not None
    found = read_recorded(path, settings.field_names())
    benchmark, source, known = _identify(settings, path, found)
    every = [known[identifier] for identifier in found.counts if identifier in known]
    lacking = sorted(found.no_gold - known.keys())
    if lacking:
        LOG.warning("%s: %d questions have no gold and are left out (first: %s)", path, len(lacking), lacking[0])
    if not every:
        raise UserError(f"{path}: no question has a gold")
    check_questions({benchmark: every}, settings.questions)
    chosen = select_problems(every, settings.limit, settings.questions)
    fewest = min(found.counts[p.id] for p in chosen)
    if settings.k > fewest:
        short = next(p.id for p in chosen if found.counts[p.id] == fewest)
        raise UserError(
            f'--k {settings.k} needs {settings.k} samples of every question; {path} has {fewest} of "{short}"'
        )
    kept, entry = drop_unverifiable(benchmark, source, chosen, verifier)
    entry.excluded = [*entry.excluded, *lacking]
    prompt = PromptRecord(
        protocol=protocol.name, **protocol.model_dump(include={"thoughts", "begins_in_thought"}, exclude_defaults=True)
    )
    record = EvalRecord(
        model=ModelRecord(source=str(path), adapter=None, fingerprint=file_hash(path)),
        engine=EngineRecord(name=RecordedEngine.name, versions={}, hardware=None),
        sampling=SamplingRecord(n=min(found.counts[p.id] for p in kept), stop=list(protocol.stop)),
        prompt=prompt,
        benchmarks={benchmark: entry},
    )
    plan = Plan(
        settings.model or _stem(path),
        record,
        {benchmark: kept},
        {(benchmark, p.id): found.counts[p.id] for p in kept},
        protocol,
        Rendered({}, prompt, Reading(tuple(protocol.stop), tuple(protocol.thoughts))),
        labels=found.labels,
    )
    return plan, RecordedEngine(path, settings.field_names())


class RecordedEngine(Engine):
    """Gives the completions of a file in place of sampling them."""

    name = "recorded"

    def __init__(self, path: Path, fields: Mapping[str, str]) -> None:
        self._path, self._fields = path, fields

    def describe(self) -> dict[str, Any]:
        """Return the name; what sampled is not known."""
        return {"name": self.name, "versions": {}, "hardware": None}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield the missing samples in the order of the file, CHUNK at a time."""
        wanted = {(task.question_id, index): task.benchmark for task in tasks for index in task.missing}
        counts: Counter[str] = Counter()
        chunk: list[Generation] = []
        for row in read_completions(self._path, self._fields):
            for sample in row.samples:
                key = row.id, counts[row.id]
                counts[row.id] += 1
                if key in wanted:
                    reason = "error" if sample.error else sample.finish_reason
                    chunk.append(Generation(wanted[key], *key, sample.text, sample.tokens, reason, None, sample.error))
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
            if self._stop_at is not None:
                return
        yield chunk


def _stem(path: Path) -> str:
    return re.sub(r"\.(jsonl(\.gz)?|json|eval)$", "", path.name)
