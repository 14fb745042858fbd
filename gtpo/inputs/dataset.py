"""Training data: problems to conversations, the same for every method, with a count for each row left out.

    shuffle by model.random_seed -> usable rows in that order -> the first dataset.limit of them

A row is usable if its gold answer verifies against itself, its prompt (real chat template applied) is at most
training.max_prompt_length tokens long and, for sft, it has a worked solution and fits into model.max_seq_length.
SFT targets are in the published format; GSM8K's reasoning keeps its `<<48/2=24>>` marks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gtpo.config.resolve import training_source
from gtpo.config.schedule import launched_processes, require_a_rollout
from gtpo.config.schema import TrainConfig
from gtpo.inputs.tiny import damage_target
from rewards.data.problem import Problem
from rewards.data.problems import load_source
from rewards.data.prompt import chat_messages, target_text
from rewards.golds import find_unverifiable
from rewards.support.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_CHUNK = 512
"""Rows examined at a time, so that a small `dataset.limit` does not verify and tokenise a whole source."""


@dataclass
class DatasetReport:
    """What became of the rows of a source."""

    source: str
    available: int
    """Rows of the source."""
    examined: int = 0
    kept: int = 0
    unverifiable: dict[str, str] = field(default_factory=dict)
    """Row id -> why its gold answer cannot score anything."""
    without_solution: list[str] = field(default_factory=list)
    """sft: rows without a worked solution."""
    too_long: dict[str, int] = field(default_factory=dict)
    """Row id -> tokens of its prompt (sft: of the whole example)."""
    longest: int = 0
    """Tokens of the longest prompt kept; 0 without a tokenizer."""
    lengths_checked: bool = False

    def lines(self) -> list[str]:
        """Say it in words, one line each."""
        out = [f"{self.source}: {self.kept:,} of {self.available:,} problems"]
        if self.examined < self.available:
            out[0] += f" (the first {self.kept:,} usable of the shuffle)"
        if self.unverifiable:
            out.append(
                f"  {len(self.unverifiable)} left out, the gold answer cannot be verified: {_some(self.unverifiable)}"
            )
        if self.without_solution:
            out.append(f"  {len(self.without_solution)} left out, no worked solution: {_some(self.without_solution)}")
        if self.too_long:
            longest = max(self.too_long.values())
            out.append(f"  {len(self.too_long)} left out, too long (up to {longest:,} tokens): {_some(self.too_long)}")
        if self.lengths_checked:
            out.append(f"  longest prompt kept: {self.longest:,} tokens")
        return out

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and ids for run.json."""
        return asdict(self)


def _some(ids: Iterable[str], most: int = 4) -> str:
    names = list(ids)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def reasoning(problem: Problem) -> str:
    """Return the worked solution without GSM8K's closing `#### answer` line."""
    text, mark, _ = problem.solution.rpartition("####")
    return (text if mark else problem.solution).strip()


def to_row(problem: Problem, config: TrainConfig) -> dict[str, Any]:
    """Return the dataset row of a problem: id, prompt (messages), answer (bare gold) and, for sft, completion."""
    prompt = chat_messages(problem.problem, config.dataset.system_instruction)
    row: dict[str, Any] = {"id": problem.id, "prompt": prompt, "answer": problem.answer}
    if config.method == "sft":
        target = target_text(reasoning(problem), problem.answer)
        if config.dataset.malformed_targets:
            # By row, not by position: what a row teaches depends on nothing else.
            rng = random.Random(f"malformed-{config.model.random_seed}-{problem.id}")
            if rng.random() < config.dataset.malformed_targets:
                target = damage_target(target, rng)
        row["completion"] = [{"role": "assistant", "content": target}]
    return row


def token_counts(
    conversations: Sequence[list[dict[str, str]]], tokenizer: PreTrainedTokenizerBase, *, answered: bool
) -> list[int]:
    """Return the tokens of each conversation under the model's own chat template.

    answered: the assistant's turn is there; otherwise the generation prompt is added, as it is when sampling.
    Raises UserError where the template refuses a conversation, as some do with a system turn.
    """
    from jinja2 import TemplateError

    try:
        encoded: Any = tokenizer.apply_chat_template(
            list(conversations), add_generation_prompt=not answered, tokenize=True, return_dict=False
        )
    except TemplateError as fault:
        raise UserError(
            f"the chat template of {tokenizer.name_or_path or 'this tokenizer'} refuses the conversation ({fault}); "
            'if it has no system role, leave it out: --dataset.system_instruction ""'
        ) from None
    return [len(ids) for ids in encoded]


def load_problems(config: TrainConfig) -> tuple[list[Problem], str]:
    """Return every problem of the config's source, in its own order, and the source's name."""
    dataset = config.dataset
    source = training_source(dataset)
    return load_source(source, data_dir=dataset.data_dir, subsets=dataset.subsets), source


def select(
    problems: Sequence[Problem],
    config: TrainConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    source: str,
) -> tuple[list[dict[str, Any]], DatasetReport]:
    """Return the rows to train on and the report; without a tokenizer lengths are not checked, and it says so.

    Raises UserError where no row is usable.
    """
    order = list(problems)
    random.Random(config.model.random_seed).shuffle(order)
    report = DatasetReport(source, available=len(order), lengths_checked=tokenizer is not None)
    limit = config.dataset.limit or len(order)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(order), _CHUNK):
        if len(rows) >= limit:
            break
        for row in _usable(order[start : start + _CHUNK], config, tokenizer, report):
            if len(rows) < limit:
                rows.append(row)
    report.kept = len(rows)
    if not rows:
        raise UserError(_nothing_left(config, report))
    return rows, report


def _usable(
    problems: Sequence[Problem], config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None, report: DatasetReport
) -> list[dict[str, Any]]:
    """Return the usable rows of a few problems, noting the others in the report."""
    report.examined += len(problems)
    failures = {failure.id: failure.reason for failure in find_unverifiable((p.id, p.answer) for p in problems)}
    report.unverifiable.update(failures)
    rows = []
    for problem in problems:
        if problem.id in failures:
            continue
        if config.method == "sft" and not reasoning(problem):
            report.without_solution.append(problem.id)
            continue
        rows.append(to_row(problem, config))
    if tokenizer is None or not rows:
        return rows
    prompts = token_counts([row["prompt"] for row in rows], tokenizer, answered=False)
    wholes = prompts
    if config.method == "sft":
        wholes = token_counts([row["prompt"] + row["completion"] for row in rows], tokenizer, answered=True)
    kept = []
    for row, prompt, whole in zip(rows, prompts, wholes, strict=True):
        if prompt > config.training.max_prompt_length:
            report.too_long[row["id"]] = prompt
        elif whole > config.model.max_seq_length:
            report.too_long[row["id"]] = whole
        else:
            report.longest = max(report.longest, prompt)
            kept.append(row)
    return kept


def _nothing_left(config: TrainConfig, report: DatasetReport) -> str:
    if not report.available:
        return f"dataset {report.source} has no rows"
    reasons = []
    if report.unverifiable:
        identifier, why = next(iter(report.unverifiable.items()))
        reasons.append(f"{len(report.unverifiable)} with a gold answer that cannot be verified ({identifier}: {why})")
    if report.without_solution:
        reasons.append(f"{len(report.without_solution)} without a worked solution, which sft needs")
    if report.too_long:
        reasons.append(
            f"{len(report.too_long)} too long (shortest {min(report.too_long.values()):,} tokens; "
            f"training.max_prompt_length {config.training.max_prompt_length:,}, "
            f"model.max_seq_length {config.model.max_seq_length:,})"
        )
    return f"dataset {report.source}: none of its {report.available:,} rows is usable: {'; '.join(reasons)}"


def training_dataset(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[Dataset, DatasetReport]:
    """Return the dataset for TRL, in the order of training, and the report of counts.

    Columns: id, prompt (messages), answer (bare gold); sft: id, prompt, answer, completion. Raises UserError where
    the source cannot be read, no row is usable, or the usable ones do not fill one round of sampling.
    """
    from datasets import Dataset

    problems, source = load_problems(config)
    rows, report = select(problems, config, tokenizer, source)
    require_a_rollout(config, len(rows), launched_processes())
    return Dataset.from_list(rows), report
