"""Problems: one record type for training sets and benchmarks, from local files, the Hub, or generated.

A source is a name of `SOURCES`, a split of the embedded task, or a .jsonl, .csv or .parquet file of the user's with the
fields problem and answer (and id, solution, subject, level if there are any). Named sources are read from
`<name>.jsonl` or `<name>.parquet` in the data folder if one is given (argument, else GTPO_DATA_DIR) and from the
Hugging Face Hub otherwise; both give the same ids and the same golds.
"""

from __future__ import annotations

import csv
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import read_jsonl
from gtpo.common.hub import cache_if_unreachable, is_offline, not_cached
from gtpo.common.log import LOG
from gtpo.rewards.completions import is_no_gold
from gtpo.rewards.data.arithmetic import DEFAULT_COUNTS, arithmetic_problems
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import gsm8k_gold, last_boxed

FIELDS = ("id", "problem", "answer", "solution", "subject", "level", "cluster")
RECORDED_FIELDS = ("gold", "completion", "completions", "finish_reason", "tokens", "label", "reasoning_content")
# How the gold stands in the field for it.
_GOLDS: dict[str, Callable[[Any], str]] = {
    "plain": lambda answer: plain_integer(str(answer)),
    "text": str,
    "hashes": lambda answer: plain_integer(gsm8k_gold(str(answer)) or ""),
    "boxed": lambda answer: math_gold(str(answer)),
    "list": ", ".join,
}


def math_gold(solution: str) -> str:
    r"""Return the gold of a MATH solution, empty if it has none: its last `\boxed` alone, as published results have it
    (22 of the 12,500 end in several boxes; `gtpo.rewards.extract.last_boxed` would join them).
    """
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    return (last_boxed(solution[start:]) or "") if start >= 0 else ""


def plain_integer(answer: str) -> str:
    """Return an integer as it is commonly written: `27.0`, `073` and `1,080` become 27, 73 and 1080."""
    text = answer.strip()
    # AMC's file holds its golds as floats (27.0), AIME's as three digits (073).
    match = re.fullmatch(r"(-?(?:\d{1,3}(?:,\d{3})+|\d+))(?:\.0+)?", text)
    return str(int(match[1].replace(",", ""))) if match else text


def parse_level(value: Any) -> int | None:
    """Return 3 for 3, "3" and "Level 3"; None if the level is missing (`Level ?` in MATH), or no such number."""
    digits = re.search(r"(?<!\d)\d{1,9}(?!\d)", str(value))
    return int(digits.group()) if digits else None


def parse_fields(text: str) -> dict[str, str]:
    """Return {ours: theirs} for `problem=question,answer=label`. Raises UserError."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for ours, equals, theirs in pairs:
        if not (equals and theirs) or ours not in (*FIELDS, *RECORDED_FIELDS):
            raise UserError(
                f'fields are ours=theirs with commas between them, e.g. problem=question,answer=label; found "{ours}'
                f'{equals}{theirs}". Ours: {", ".join(FIELDS)}; of completions also {", ".join(RECORDED_FIELDS)}'
            )
        if [name for name, *_ in pairs].count(ours) > 1:
            raise UserError(f"fields: {ours} is named twice")
    return {ours: theirs for ours, _, theirs in pairs}


def renamed(row: dict[str, Any], fields: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return a row under our names; fields: ours -> theirs, `a.b` a nested one. UserError if it has no such field."""
    found = {name: value for name, value in row.items() if name not in fields.values()}
    for ours, theirs in fields.items():
        value: Any = row
        for part in [theirs] if theirs in row else theirs.split("."):
            at = int(part) if isinstance(value, list) and part.isdecimal() else part
            try:
                value = value[at]
            except (KeyError, IndexError, TypeError):
                there = ", ".join(row)
                raise UserError(f'{where}: field "{theirs}" ({ours}) is missing; fields here: {there}') from None
        found[ours] = value
    return found


@dataclass(frozen=True, slots=True)
class HubSource:
    """Where a named source lies on the Hub, and how one of its rows becomes a Problem."""

    repository: str
    split: str
    count: int
    id: str  # with the fields of a row, `position` in the whole set, and `paper` of an AIME
    configs: Sequence[str] = ("default",)
    gold: str = "plain"  # One of _GOLDS
    fields: Mapping[str, str] | None = None  # Ours -> theirs, for fields that have other names there

    def parse(self, row: dict[str, Any], position: int) -> Problem:
        """Return the problem that a row is. Raises KeyError for a field that is not there."""
        where = f"{self.repository}, row {position + 1}"
        row = renamed(row, self.fields or {}, where)
        # AIME 2024 names paper and problem in its link; AIME 2025 has them in order, 15 of I and then 15 of II.
        place = re.search(r"2024_AIME_(I+)_Problems/Problem_(\d+)", str(row.get("url", "")))
        paper = "-".join(place.groups()) if place else f"{'I' if position < 15 else 'II'}-{position % 15 + 1}"
        known = {"position": position, "paper": paper, "id": position, "problem_idx": position + 1}
        row |= {
            "id": self.id.format_map(known | row),
            "problem": row.get("question") or row["problem"],
            "solution": row.get("solution") or str(row.get("answer", "")).rpartition("####")[0].strip(),
            "subject": row.get("subject") or row.get("type"),
            "answer": _GOLDS[self.gold](row["solution" if self.gold == "boxed" else "answer"]),
        }
        return problem_of(row, position, "", where)


_TABLE = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
SOURCES = {name: HubSource(**source) for name, source in _TABLE["sources"].items()}
# Hub config -> subject.
MATH_SUBJECTS: dict[str, str] = _TABLE["math_subjects"]
# Splits of the embedded task, generated when they are asked for.
GENERATED = {f"arithmetic_{split}": partial(arithmetic_problems, split) for split in DEFAULT_COUNTS}
# Every name that `load_source` knows.
SOURCE_NAMES = (*SOURCES, *GENERATED)
# The name of a dataset to train on, in any case -> the family whose splits are sources: `<family>_<split>`.
FAMILIES = {
    "gsm8k": "gsm8k", "openai/gsm8k": "gsm8k", "math": "math", "hendrycks_math": "math",
    "eleutherai/hendrycks_math": "math", "arithmetic": "arithmetic",
}  # fmt: skip
# How the name of a file of problems ends.
FILES = (".jsonl", ".jsonl.gz", ".csv", ".parquet")


def training_source(name: str, split: str) -> str:
    """Return the source of `dataset.name` and `dataset.split`. Raises UserError, which names the key at fault."""
    if name.endswith(FILES):
        return name
    if name in SOURCE_NAMES:
        # The name has its split already. "train" is also what is read if no split was set.
        if split == "train" or name.endswith(f"_{split}"):
            return name
        raise UserError(f'dataset.split "{split}" contradicts dataset.name {name}, which names its split itself')
    if (family := FAMILIES.get(name.lower())) is None:
        hint = did_you_mean(name, [*FAMILIES, *SOURCE_NAMES])
        known = "gsm8k, math (hendrycks_math), arithmetic, or a .jsonl, .csv or .parquet file"
        raise UserError(f'dataset.name "{name}" is not known.{hint} Known: {known}')
    if (source := f"{family}_{split}") in SOURCE_NAMES:
        return source
    splits = [known.removeprefix(f"{family}_") for known in SOURCE_NAMES if known.startswith(f"{family}_")]
    raise UserError(f'dataset.split "{split}" is not known: {name} has the splits {", ".join(splits)}')


def has_subjects(source: str) -> bool:
    """Return whether a source of `load_source` may be divided by subject."""
    return source.endswith(FILES) or not source.startswith(("gsm8k_", "arithmetic_"))


def _with_options(row: dict[str, Any], form: str, where: str) -> dict[str, Any]:
    """Return a row of multiple choice with its `choices` below the question, and the letter of the right one as gold.

    form: of each, "{letter}. {text}". The gold is their number (from 0), their letter or their text. UserError if it is
    none of them, or two.
    """
    choices = row.get("choices")
    choices = choices.get("text") if isinstance(choices, dict) else choices
    if not isinstance(choices, list) or not 1 < len(choices) <= len(ascii_uppercase):
        raise UserError(f'{where}: field "choices" must be a list of two or more; fields here: {", ".join(row)}')
    by_letter, gold = dict(zip(ascii_uppercase, map(str, choices), strict=False)), row.get("answer")
    if isinstance(gold, int) and not isinstance(gold, bool):
        if any(isinstance(choice, int | float) for choice in choices):
            raise UserError(f"{where}: the answer {gold} may be a choice or its place: write the choices as texts")
        right = [letter for at, letter in enumerate(by_letter) if at == gold]
    else:
        word = str(gold).strip()
        right = [letter for letter, text in by_letter.items() if word in (letter, text.strip())]
    if len(right) != 1:
        count = len(right) or "none"
        raise UserError(f"{where}: the answer {gold!r:.40} stands for {count} of the {len(choices)} choices")
    lines = [form.replace("{letter}", letter).replace("{text}", text) for letter, text in by_letter.items()]
    return row | {"problem": "\n".join((str(row.get("problem", "")), *lines)), "answer": right[0]}


def _text(value: Any) -> str:
    # NaN: what a table holds if nothing was given. 0 is a value.
    return "" if value is None or value != value else str(value)


def problem_of(
    row: dict[str, Any],
    position: int,
    stem: str,
    where: str,
    *,
    fields: Mapping[str, str] | None = None,
    gold: str | None = None,
    options: str | None = None,
    **judged: Any,
) -> Problem:
    """Return the problem that a row is. Raises UserError.

    fields: as of `renamed`. gold: how it stands in its field, None for as it is. options: how the choices of a question
    stand below it, if it has any. judged: how its answer is found and compared.
    """
    row = renamed(row, fields or {}, where)
    if options is not None:
        row = _with_options(row, options, where)
    elif gold == "list" and isinstance(row.get("answer"), list):
        row = row | {"answer": _GOLDS["list"](map(str, row["answer"]))}
    for field in ("problem",) if row.get("answer", 0) is None else ("problem", "answer"):  # an empty gold is left out
        value = row.get(field)
        # True is an int to Python, and no answer.
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            found = "is missing" if value is None else f"must be text, found {type(value).__name__}"
            if isinstance(value, list | dict) and value:
                inner = next(iter(value)) if isinstance(value, dict) else 0
                found += f" (part of it: --fields {field}={field}.{inner})"
            raise UserError(
                f'{where}: field "{field}" {found}; fields here: {", ".join(row)}. If they have other names: '
                "--fields problem=question,answer=label"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f'{where}: field "{field}" must be a number or text, found {value}')
    answer = "" if row["answer"] is None else str(row["answer"]).strip()
    if gold not in (None, "list") and options is None and answer and not (answer := _GOLDS[gold](answer)):
        form = "\\boxed{}" if gold == "boxed" else "####"
        raise UserError(f"{where}: the answer holds no {form}, where gold: {gold} looks for it")
    return Problem(
        id=_text(row.get("id")) or f"{stem}/{position}",
        problem=str(row["problem"]),
        answer=answer,
        solution=_text(row.get("solution")),
        subject=_text(row.get("subject")),
        level=parse_level(row.get("level")),
        cluster=_text(row.get("cluster")),
        **judged,
    )


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from None
    if table.num_rows == 0:
        raise UserError(f"{path}: the file has no rows")
    for place, column in enumerate(table.columns):
        if pyarrow.types.is_float32(column.type) or pyarrow.types.is_float16(column.type):
            # As written: 0.1 in float32 is 0.10000000149011612 in Python's own floats.
            digits = column.to_numpy().astype(str).astype(float)
            table = table.set_column(place, table.column_names[place], pyarrow.array(digits))
        elif pyarrow.types.is_decimal(column.type):
            texts = [None if value is None else f"{value:f}" for value in column.to_pylist()]
            # Without the zeros that the column's scale adds.
            bare = [text.rstrip("0").rstrip(".") if text and "." in text else text for text in texts]
            table = table.set_column(place, table.column_names[place], pyarrow.array(bare, pyarrow.string()))
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(table.to_pylist(), start=1))


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    # A completion may be longer than the 131,072 characters that Python allows.
    csv.field_size_limit(2**31 - 1)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or ()
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise UserError(f'{path}: two columns are called "{twice[0]}"')
            row = None
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}:{reader.line_num}: the row has not as many cells as the first line")
                yield f"{path}:{reader.line_num}", row
            if row is None:
                raise UserError(f"{path}: the file has no rows")
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: not a readable CSV file ({error})") from None


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and line or row, fields) of a file that ends as in FILES; a CSV is all text. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path}: {'a folder: name one of its files' if path.is_dir() else 'no such file'}")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from ((f"{path}:{number}", row) for number, row in read_jsonl(path))
    elif path.suffix == ".parquet":
        yield from _parquet_rows(path)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    else:
        raise UserError(
            f"{path}: expected a .jsonl, .csv or .parquet file. Rows of your own go into a .jsonl file, a JSON object "
            "a line"
        )


def load_file(path: Path, *, published: bool = False, stem: str | None = None, **reading: Any) -> list[Problem]:
    """Read problems from a file. Rows without a gold are left out, and named. UserError names the line at fault.

    published: a set whose ids and count are known; its rows without a gold stay. stem: of the ids of rows that have
    none; by default the file's. reading: further arguments of `problem_of`.
    """
    problems: dict[str, tuple[str, Problem]] = {}  # id -> where it stands, and the problem
    left_out: list[str] = []
    for position, (where, row) in enumerate(read_rows(path)):
        problem = problem_of(row, position, stem or path.stem.removesuffix(".jsonl"), where, **reading)
        # Two rows of MATH's training set have no gold. They keep their places, or every later id would move.
        none = not problem.answer if problem.answers == "text" else is_no_gold(problem.answer)
        if none and not published:
            left_out.append(f'{where} ("{problem.answer}")')
        elif not problem.problem.strip() and not published:
            raise UserError(f'{where}: field "problem" is empty')
        elif problem.id in problems:
            raise UserError(f'{where}: duplicate id "{problem.id}", first at {problems[problem.id][0]}')
        else:
            problems[problem.id] = (where, problem)
    if not problems:
        raise UserError(f"{path}: " + (f"no row has a gold answer (first: {left_out[0]})" if left_out else "no rows"))
    if left_out:
        LOG.warning("%s: %d rows without a gold are left out: %s", path, len(left_out), ", ".join(left_out[:5]))
    return [problem for _, problem in problems.values()]


def load_hub(
    name: str, source: HubSource, parse: Callable[[dict[str, Any], int], Problem] | None = None
) -> list[Problem]:
    """Load a source from the Hub. UserError if it cannot be reached or its fields have changed."""
    remedy = f"put {name}.jsonl in a folder and pass it as --data-dir or GTPO_DATA_DIR"
    with cache_if_unreachable():
        import datasets

        problems: list[Problem] = []
        try:
            for config in source.configs:
                for row in datasets.load_dataset(source.repository, config, split=source.split):
                    problems.append((parse or source.parse)(row, len(problems)))
        except UserError:
            raise
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{source.repository} ({source.split}) no longer has the fields that {name} is read from ({error}); "
                + remedy
            ) from error
        except Exception as error:  # datasets raises a dozen kinds for "not reachable"; all mean the same to the user
            if is_offline():
                raise not_cached(source.repository, remedy) from error
            first_line = str(error).strip().split("\n")[0][:200]
            raise UserError(
                f"could not load {source.repository} from the Hugging Face Hub ({type(error).__name__}: {first_line}); "
                f"offline, {remedy}"
            ) from error
    return problems


def data_folder(data_dir: str | Path | None = None) -> Path | None:
    """Return the folder of benchmark files: the argument, else GTPO_DATA_DIR, else None. UserError if it is none."""
    folder = data_dir or os.environ.get("GTPO_DATA_DIR")
    if folder and not Path(folder).is_dir():
        raise UserError(f"{'--data-dir' if data_dir else 'GTPO_DATA_DIR'}: {folder} is not a folder")
    return Path(folder) if folder else None


def _normalise_subject(name: str) -> str:
    return re.sub(r"[^a-z]+", "_", name.lower().replace("&", "and")).strip("_")


def load_source(
    name: str,
    *,
    data_dir: str | Path | None = None,
    subsets: Sequence[str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Load the problems of a source: one of `SOURCE_NAMES`, or a file that ends as in FILES. Raises UserError.

    subsets: subjects to keep ("algebra" or "Algebra", ...); all if it is empty. fields: of a file (`renamed`).
    """
    if fields and not name.endswith(FILES):
        raise UserError(f"names of fields are for .jsonl, .csv and .parquet files, and {name} is none")
    if name in GENERATED:
        problems = GENERATED[name]()
    elif name in SOURCES:
        folder = data_folder(data_dir)
        files = [folder / f"{name}.{kind}" for kind in ("jsonl", "parquet")] if folder else []
        file = next(filter(Path.is_file, files), None)
        if folder and not file:
            raise UserError(f"{folder} has neither {name}.jsonl nor {name}.parquet")
        problems = load_file(file, published=True) if file else load_hub(name, SOURCES[name])
    elif name.endswith(FILES):
        problems = load_file(Path(name), fields=fields)
    else:
        raise UserError(
            f'unknown dataset "{name}".{did_you_mean(name, SOURCE_NAMES)} '
            f"Known: {', '.join(SOURCE_NAMES)}, or a .jsonl, .csv or .parquet file"
        )
    present = dict.fromkeys(_normalise_subject(problem.subject) for problem in problems if problem.subject)
    wanted = {_normalise_subject(subset): subset for subset in subsets or ()}
    for subject, subset in wanted.items():
        if subject not in present:
            known = f"Known: {', '.join(present) or 'none'}"
            raise UserError(f'{name} has no subset "{subset}".{did_you_mean(subject, present)} {known}')
    return [problem for problem in problems if not wanted or _normalise_subject(problem.subject) in wanted]
