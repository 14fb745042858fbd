"""`gtpo eval --completions FILE`: score what a model wrote elsewhere, without model or GPU.

The file is read twice, row by row: once to check all of it, once to score it in bounded memory. Logs of lm-eval are
read as rows of the user's own: `_row` says what is in one. A completion that failed is read as one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import file_hash, text_hash
from gtpo.evalkit.engines.base import Engine, Task
from gtpo.evalkit.evaluation.plan import EVAL_RUNS, Plan, Rendering, drop_unverifiable
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.evaluation.tasks import BENCHMARKS, Benchmark, Protocol, file_stem, load_problems, select_problems
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import data_folder, math_gold, problem_of, read_rows, renamed
from gtpo.rewards.extract import gsm8k_gold
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import Sample
from gtpo.runs.eval_record import EngineRecord, EvalRecord, ModelRecord, SamplingRecord, read_record
from gtpo.runs.outcomes import Reply, Tokens, check_reply, whole_number
from gtpo.runs.prompt import PromptRecord

CHUNK = 512


class Row(NamedTuple):
    """Samples of one question. Rows of the same id are further samples of it."""

    where: str
    id: str
    samples: list[Sample]  # Without the benchmark, which the row does not know
    labels: list[Any]  # The owner's verdict on each, true or 1 if it is right; None if there is none
    problem: Problem | None  # With the gold; None without one
    no_gold: bool  # Whether the row itself says that there is no gold


def read_completions(path: Path, fields: Mapping[str, str] | None = None) -> Iterator[Row]:
    """Yield the rows of a file. Raises UserError with file and line on the first that is wrong.

    fields: our names for fields that have others; such a file holds rows of the user's own. Rows without an id are
    numbered, so that files of the same questions in the same order can be compared.
    """
    counts, filter_name = Counter[str](), None
    for number, (where, row) in enumerate(read_rows(path)):
        if fields:
            row = {"id": f"row {number}"} | renamed(row, fields, where)
        elif {"doc_id", "resps"} <= row.keys():
            # lm-eval logs each completion once for every filter: those of the first one stand for all.
            filter_name = row.get("filter") if filter_name is None else filter_name
            if row.get("filter") != filter_name:
                continue
            row = _of_lm_eval(path, row, where)
        yield _row(where, _typed(row, where) if path.suffix == ".csv" else row, counts)


def _typed(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a row of a CSV, in which all is text, with numbers, truth values and lists, and without empty cells."""
    # An empty completion is one.
    typed = {name: text for name, text in row.items() if text or name in ("completion", "problem")}
    for name in typed.keys() & {"completions", "tokens", "label", "labels"}:
        try:
            value = json.loads(typed[name] if name == "completions" else typed[name].lower())
        except ValueError:
            raise UserError(f"{where}: {name}: expected JSON, found {typed[name]!r:.40}") from None
        typed[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    return typed


def _row(where: str, row: dict[str, Any], counts: Counter[str]) -> Row:
    """Read one row: id, gold, completion or completions, and what may be said of the question and of each of them.

    counts: id -> the samples in the rows before.
    """
    if not isinstance(row.get("id"), str | int):
        raise UserError(
            f'{where}: a row needs the fields "id", "gold" and "completion" (or a list, "completions"); "id" is '
            f"{'no text' if 'id' in row else 'missing'}; {_here(row)}"
        )
    if ("completion" in row) == ("completions" in row):
        raise UserError(f'{where}: expected either "completion" or "completions"; {_here(row)}')
    texts = row["completions"] if "completions" in row else [row["completion"]]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str | None) for text in texts):
        raise UserError(f'{where}: a completion is text, or null if it failed; "completions" is a list of some')
    names = ("label", "finish_reason", "tokens", "reasoning_content", "error")
    labels, *columns = (_each(where, row, name, len(texts)) for name in names)
    for label in labels:
        if label not in (None, 0, 1):
            raise UserError(f"{where}: a label must be true or false (or 1 or 0), found {label!r:.40}")
    question, samples = str(row["id"]), list[Sample]()
    for text, reason, tokens, thought, error in zip(texts, *columns, strict=True):
        if not isinstance(reason, str | None) or (tokens is not None and whole_number(tokens) is None):
            found = f"{reason!r:.40}, {tokens!r:.40}"
            raise UserError(f"{where}: finish_reason is text and tokens are a whole number, found {found}")
        tokens = whole_number(tokens)
        sample = Sample("", question, counts[question], text or "", tokens=tokens)
        samples.append(sample)
        counts[question] += 1
        if error or (text is None and not thought):
            sample.error, sample.finish_reason = str(error or "no completion was recorded"), "error"
            continue
        sample.settle(check_reply(Reply(text or "", thought or "", reason or "", tokens=Tokens(tokens))))
        if thought:
            ended = text or sample.finish_reason == "stop"
            sample.completion = f"<think>{thought}</think>{text or ''}" if ended else f"<think>{thought}"
    problem, gold = None, row.get("gold", row.get("answer"))
    if gold is not None:
        problem = problem_of({**row, "problem": str(row.get("problem") or ""), "answer": gold}, 0, "", where)
    return Row(where, question, samples, labels, problem, "gold" in row and row["gold"] is None)


def _here(row: Mapping[str, Any]) -> str:
    """Say which fields there are, and how they are named."""
    return f"fields here: {', '.join(row)}. If they have other names: --fields id=...,gold=...,completion=..."


def _each(where: str, row: dict[str, Any], name: str, count: int) -> list[Any]:
    """Return a field of each completion: a list under its plural, or its one value."""
    plural = name if name == "tokens" else f"{name}s"
    value = row.get(plural, row.get(name))
    values = value if isinstance(value, list) else [value] * (count if value is None else 1)
    if len(values) != count:
        raise UserError(f"{where}: {count} completions but {len(values)} {plural}")
    return values


def _of_lm_eval(path: Path, row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a row of lm-eval's samples_TASK_DATE.jsonl in our fields."""
    match = re.match(r"samples_(.+?)_\d{4}-\d\d-\d\d", path.name)
    task = match[1] if match else path.name.partition(".")[0]
    try:
        doc, target, number, texts = row["doc"], str(row["target"]), row["doc_id"], row["resps"][0]
        if not isinstance(doc, dict) or not all(isinstance(text, str) for text in texts):
            raise TypeError("a doc and generated texts are expected; log generate_until tasks")
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"{where}: not a row of lm-eval's sample logs ({type(error).__name__}: {error})") from None
    # The target may be a whole solution, as in GSM8K and MATH.
    gold = gsm8k_gold(target) if "####" in target else math_gold(target) if "\\boxed" in target else target
    right = row.get("exact_match", row.get("acc"))
    return {
        "id": f"gsm8k/test/{number}" if task.startswith("gsm8k") else f"{task}/{number}",
        "problem": doc.get("question") or doc.get("problem"),
        **({"gold": gold} if gold is not None else {}),
        "completions": texts,
        **({"label": right == 1} if isinstance(right, int | float) and len(texts) == 1 else {}),
    }


# -- what is asked of a file -------------------------------------------------------------------------------------------


class RecordedFile(Engine):
    """A file of completions, which gives them in place of sampling. It is checked when it is made.

    UserError with file and line on the first row that is wrong.
    """

    name = "recorded"

    def __init__(self, path: Path, fields: Mapping[str, str]) -> None:
        self.path, self._fields = path, fields
        self.problems: dict[str, Problem] = {}  # Id -> problem with its gold, for rows that bring one
        self.counts = Counter[str]()  # Id -> samples
        self.labels: dict[tuple[str, int], bool] = {}  # (id, sample) -> the owner's verdict
        self.without_gold: Row | None = None  # The first that has no gold and does not say so
        self.no_gold: set[str] = set()  # Questions whose rows say that there is no gold
        for row in read_completions(path, fields):
            if row.problem is None and row.no_gold:
                self.no_gold.add(row.id)
            elif row.problem is None:
                self.without_gold = self.without_gold or row
            elif (before := self.problems.setdefault(row.id, row.problem).answer) != (gold := row.problem.answer):
                raise UserError(f'{row.where}: id "{row.id}" had the gold "{before}" before, now "{gold}"')
            self.counts[row.id] += len(row.samples)
            known = zip(row.samples, row.labels, strict=True)
            self.labels |= {(row.id, sample.sample_index): bool(label) for sample, label in known if label is not None}

    def describe(self) -> dict[str, Any]:
        """Return what is known of what sampled: nothing."""
        return {"versions": {}, "hardware": None}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        """Yield the missing samples in the order of the file, CHUNK at a time."""
        wanted = {(task.question_id, index): task.benchmark for task in tasks for index in task.missing}
        chunk: list[Sample] = []
        for row in read_completions(self.path, self._fields):
            for sample in row.samples:
                sample.benchmark = wanted.get(sample.key[1:], "")
            chunk += [sample for sample in row.samples if sample.benchmark]
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
            if self._stop_at is not None:
                return
        yield chunk


def _identify(
    settings: EvalSettings, file: RecordedFile, named: Sequence[Benchmark]
) -> tuple[Benchmark, str, dict[str, Problem]]:
    """Return the benchmark that a file is scored as, and whose golds count: where they are from, id -> problem."""
    if len(named) > 1:
        raise UserError(f"--completions scores one benchmark at a time, found --benchmarks {settings.named}")
    own = Benchmark(name=file_stem(file.path), file=str(file.path))
    by_ids = (b for b in BENCHMARKS.values() if b.ids and all(re.fullmatch(b.ids, i) for i in file.counts))
    benchmark = next(iter(named), next(by_ids, own))
    if benchmark == own and (row := file.without_gold) is not None:
        raise UserError(
            f'{row.where}: no gold, and "{row.id}" is no id of a known benchmark; '
            "add gold to the rows (--fields gold=NAME if it has another name), or name the benchmark with gtpo eval "
            "--benchmarks"
        )
    by_itself = not (file.without_gold or file.no_gold or named)
    # Its own golds are enough: no download for a name.
    if benchmark == own or (by_itself and benchmark.local and data_folder(settings.data_dir) is None):
        return benchmark, str(file.path), {i: replace(p, **benchmark.judged) for i, p in file.problems.items()}
    # Golds of a benchmark are verified; those in a file may be spelled otherwise.
    known = {p.id: p for p in load_problems(benchmark, settings.data_dir, repeats=True)}
    unknown = next((identifier for identifier in file.counts if identifier not in known), None)
    others = sum(p.answer != known[i].answer for i, p in file.problems.items() if i in known)
    what = f'has no question "{unknown}"' if unknown is not None else f"has {others} other golds"
    if (unknown is not None or others) and by_itself:
        LOG.warning(
            "%s has ids like %s, which %s: scored as %s, by its own golds", file.path, benchmark.name, what, own.name
        )
        return own, str(file.path), file.problems
    if unknown is not None:
        raise UserError(f"{file.path}: benchmark {benchmark.name} {what}")
    if others:
        LOG.warning("%s: %s %s: the benchmark's are used", file.path, benchmark.name, what)
    return benchmark, benchmark.source, {identifier: known[identifier] for identifier in file.counts}


def plan_recorded(settings: EvalSettings, protocol: Protocol, verifier: Verifier, named: Sequence[Benchmark]) -> Plan:
    """Check a file; return what is asked of it. Raises UserError with file and line on the first mistake.

    named: the benchmark that it is of, if the command says so.
    """
    path = settings.completions
    assert path is not None
    file = RecordedFile(path, settings.field_names())
    benchmark, source, known = _identify(settings, file, named)
    name, counts = benchmark.name, file.counts
    every = [known[identifier] for identifier in counts if identifier in known]
    lacking = sorted(file.no_gold - known.keys())
    if lacking:
        LOG.warning("%s: %d questions have no gold and are left out (first: %s)", path, len(lacking), lacking[0])
    if not every:
        raise UserError(f"{path}: no question has a gold")
    chosen = select_problems({name: every}, settings.limit, settings.questions)[name]
    short = min(chosen, key=lambda p: counts[p.id])
    if settings.k > counts[short.id]:
        texts = {p.problem for p in chosen if p.problem}
        # Rows without ids are questions of their own.
        again = "; its rows repeat their problems: --fields id=problem makes these one question each"
        raise UserError(
            f"--k {settings.k} needs {settings.k} samples of every question; {path} has {counts[short.id]} of "
            f'"{short.id}"{again if 0 < len(texts) < len(chosen) else ""}'
        )
    kept, entry = drop_unverifiable(name, source, chosen, verifier)
    if not (settings.limit or settings.questions) and (absent := (benchmark.size or 0) - len(counts)) > 0:
        entry.absent = absent
    entry.excluded = [*entry.excluded, *lacking]
    # Golds of the file are no task's.
    entry.task = None if benchmark.file == str(path) else benchmark.entry()
    prompt = PromptRecord(
        protocol=protocol.name, **protocol.model_dump(include={"thoughts", "begins_in_thought"}, exclude_defaults=True)
    )
    record = EvalRecord(
        model=ModelRecord(source=str(path), adapter=None, fingerprint=file_hash(path)),
        engine=EngineRecord(name=file.name, **file.describe()),
        sampling=SamplingRecord(n=min(counts[p.id] for p in kept), stop=list(protocol.stop)),
        prompt=prompt,
        benchmarks={name: entry},
    )
    return Plan(
        EVAL_RUNS / Path(settings.model).resolve().name if settings.model else run_folder(path),
        record,
        {name: kept},
        {(name, p.id): counts[p.id] for p in kept},
        Rendering({}, prompt, protocol.reading()),
        engine=file,
        labels={(name, *key): label for key, label in file.labels.items()},
    )


def run_folder(path: Path) -> Path:
    """Return where the scores of a file are stored by default: by its stem, unless those of another file are there."""
    folder = EVAL_RUNS / file_stem(path)
    before = read_record(folder).model if (folder / "eval.json").is_file() else None
    if before is None or Path(before.source or "").resolve() == path.resolve():
        return folder
    return folder.with_name(f"{folder.name}-{text_hash(str(path.resolve()))[:8]}")
