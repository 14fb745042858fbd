"""Training data: problems to conversations, the same for every method, with a count for each row left out.

    shuffle by model.random_seed -> usable rows in that order -> the first dataset.limit of them

A row is usable if its gold answer verifies against itself, its prompt (real chat template applied) is at most
training.max_prompt_length tokens long and, for sft, it has a worked solution and fits into model.max_seq_length.
SFT targets are in the published format; GSM8K's reasoning keeps its `<<48/2=24>>` marks.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gtpo.common.errors import UserError
from gtpo.config.load import launched_processes
from gtpo.config.schema import DatasetSection, TrainConfig
from gtpo.inputs.tiny import damage_target
from gtpo.rewards.data.problem import Problem, chat_messages, target_text
from gtpo.rewards.data.problems import FILES, SOURCES, load_file, load_source, parse_fields, training_source
from gtpo.rewards.golds import find_unverifiable
from gtpo.runs.prompt import PromptRenderer, local_time, trained_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Rows per chunk: a small `dataset.limit` does not verify and tokenise a whole source.
_CHUNK = 512
# sft: rows of a chunk whose labels are decoded, and compared with the target; of all others the texts are.
_DECODED = 8


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
    largest_id: int = 0
    """The largest token id of the prompts, and in sft of the targets; 0 without a tokenizer."""
    lengths_checked: bool = False
    held_out: int = 0
    """Rows kept from training because validation has them, or one with the same text."""

    def lines(self) -> list[str]:
        """Return the report as text lines."""
        first = f"{self.source}: {self.kept:,} of {self.available:,} problems"
        if self.examined < self.available:
            first += f" (the first {self.kept:,} usable of the shuffle)"
        longest = [f"longest prompt kept: {self.longest:,} tokens"] if self.lengths_checked else []
        return [first, *(f"  {line}" for line in (*self.left_out(), *longest))]

    def left_out(self) -> list[str]:
        """Return why rows were left out, and which."""
        longest = max(self.too_long.values(), default=0)
        reasons: dict[str, Collection[str]] = {
            "the gold answer cannot be verified": self.unverifiable,
            "no worked solution": self.without_solution,
            f"above training.max_prompt_length or model.max_seq_length (up to {longest:,} tokens)": self.too_long,
        }
        lines = []
        for why, ids in reasons.items():
            more = f" and {len(ids) - 4} more" if len(ids) > 4 else ""
            lines += [f"{len(ids)} left out, {why}: {', '.join([*ids][:4])}{more}"] if ids else []
        return lines + [f"{self.held_out:,} held out for validation"] * bool(self.held_out)


def reasoning(problem: Problem) -> str:
    """Return the worked solution without GSM8K's closing `#### answer` line."""
    text, mark, _ = problem.solution.rpartition("####")
    return (text if mark else problem.solution).strip()


# Forms of a supervised target by name.
SFT_TARGETS = {
    "tags": target_text("{reasoning}", "{answer}"),
    "think": "<think>\n{reasoning}\n</think>\n\n\\boxed{{answer}}",
}


def to_row(problem: Problem, config: TrainConfig) -> dict[str, Any]:
    """Return the dataset row of a problem: id, prompt (messages) and answer (bare gold); for sft the completion.

    For the other methods also the rest of what rewards may read: solution, subject and level.
    """
    prompt = chat_messages(problem.problem, config.dataset.system_instruction)
    row: dict[str, Any] = {"id": problem.id, "prompt": prompt, "answer": problem.answer}
    if config.method != "sft":
        row |= {name: getattr(problem, name) for name in ("solution", "subject", "level")}
    else:
        values = {"{reasoning}": reasoning(problem), "{answer}": problem.answer}
        form = SFT_TARGETS.get(config.dataset.sft_target, config.dataset.sft_target)
        target = re.sub("|".join(values), lambda place: values[place[0]], form)
        if config.dataset.malformed_targets:
            # By row, not by position: what a row teaches depends on nothing else.
            rng = random.Random(f"malformed-{config.model.random_seed}-{problem.id}")
            if rng.random() < config.dataset.malformed_targets:
                target = damage_target(target, rng)
        row["completion"] = [{"role": "assistant", "content": target}]
    return row


def beyond_embedding(tokenizer: Any, largest: int, rows: int) -> str | None:
    """Return what is wrong if the largest id of prompts, or the padding, lies beyond the embedding, of so many rows."""
    if (largest := max(largest, tokenizer.pad_token_id or 0)) < rows:
        return None
    where = "the padding" if largest == tokenizer.pad_token_id else "a text"
    return (
        f"token {tokenizer.convert_ids_to_tokens(largest)!r} of {where} has id {largest}, and the embedding has "
        f"{rows} rows: the tokenizer has more tokens than the model. Resize the embedding "
        "(model.resize_token_embeddings) and save both, or use the tokenizer that belongs to the model"
    )


def check_ids(report: DatasetReport, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Raise UserError if a prompt or the padding holds a token that the model's embedding, of so many rows, lacks."""
    if fault := beyond_embedding(tokenizer, report.largest_id, rows):
        raise UserError(fault)


class TrainingProblems:
    """The problems of a config's dataset, in training order. They are loaded once, and each gold is verified once.

    problems: used in place of the config's source.
    """

    def __init__(self, config: TrainConfig, problems: Sequence[Problem] | None = None) -> None:
        self.config, self.source = config, training_source(config.dataset.name, config.dataset.split)
        self._problems = problems
        self._order: list[Problem] | None = None
        self.time = local_time()  # what the chat template is told
        self._unverifiable: dict[tuple[Problem, ...], dict[str, str]] = {}

    @property
    def is_local(self) -> bool:
        """Whether the source is read without the Hub."""
        return self.source not in SOURCES or bool(self.config.dataset.data_dir or os.environ.get("GTPO_DATA_DIR"))

    def _read(self, key: str, read: Callable[..., list[Problem]], *what: Any, **options: Any) -> list[Problem]:
        """Return what `read` reads; an error names the key of the section dataset, or the flag, that named the file."""
        fields = parse_fields(self.config.dataset.fields)
        try:
            return read(*what, fields=fields, **options)
        except UserError as error:
            raise UserError(f"{self.config.setting(f'dataset.{key}')}: {error}") from error.__cause__

    def load(self) -> list[Problem]:
        """Return all problems of the source, shuffled. Raises UserError if the source cannot be read."""
        if self._order is None:
            where: Any = {"data_dir": self.config.dataset.data_dir, "subsets": self.config.dataset.subsets}
            self._order = [*(self._problems or self._read("name", load_source, self.source, **where))]
            # Python's own generator: --dry-run has no torch, and shows the same rows.
            random.Random(self.config.model.random_seed).shuffle(self._order)
        return self._order

    def split(self) -> tuple[list[Problem], list[Problem]]:
        """Return the problems to train on and those to validate on, which share no text; the latter may be none.

        Held out are those of `dataset.validation_file`, also if nothing validates on them yet; else, with
        `training.eval_steps`, the last `dataset.validation_problems` of the shuffled order, so that the others keep
        their place in it. Raises UserError if they are not enough, or the file cannot be read.
        """
        order, dataset = self.load(), self.config.dataset
        if dataset.validation_file is not None:
            held_out = self._read("validation_file", load_file, dataset.validation_file)
        elif self.config.training.eval_steps is None:
            return order, []
        else:
            count = dataset.validation_problems
            if len(order) <= count:
                raise UserError(
                    f"dataset.validation_problems {count}: {self.source} has {len(order):,} problems, and some must be "
                    "left to train on; lower it, or name a dataset.validation_file"
                )
            order, held_out = order[:-count], order[-count:]
        # By text: one problem may stand in two files under two ids.
        texts = {problem.problem for problem in held_out}
        return [problem for problem in order if problem.problem not in texts], held_out

    def prompts(self, tokenizer: PreTrainedTokenizerBase) -> PromptRenderer:
        """Return what renders the run's prompts."""
        arguments = self.config.training.passed_on.get("chat_template_kwargs")
        return PromptRenderer(tokenizer, arguments, self.time)

    def validation(self, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        """Return the problems to validate on: those whose gold answer verifies and whose prompt is short enough.

        Raises UserError if none is usable.
        """
        problems = self.split()[1]
        report = DatasetReport(self.source, len(problems))
        # As in training: a prompt that is too long there is none to measure by.
        usable = {row["id"] for row in self._usable(problems, tokenizer, report)}
        if not usable:
            why = "; ".join(report.left_out())
            raise UserError(f"validation: none of its {len(problems)} problems is usable: {why}")
        return [problem for problem in problems if problem.id in usable]

    def select(
        self, tokenizer: PreTrainedTokenizerBase | None, processes: int | None = None
    ) -> tuple[list[dict[str, Any]], DatasetReport]:
        """Return the rows to train on and the report. Without a tokenizer, lengths are not checked.

        Of a row: id, prompt (messages), answer (bare gold); sft: also completion, and with a tokenizer input_ids and
        completion_mask.

        processes: of the run, by default those that a launcher started.
        Raises UserError if no row is usable, or the usable ones do not fill one rollout.
        """
        order, available = self.split()[0], len(self.load())
        report = DatasetReport(
            self.source, available, lengths_checked=tokenizer is not None, held_out=available - len(order)
        )
        rows, most = list[dict[str, Any]](), self.config.dataset.limit or available
        # No more than are still wanted: what lies beyond the limit is not in the report.
        while report.examined < len(order) and len(rows) < most:
            chunk = order[report.examined :][: min(_CHUNK, most - len(rows))]
            rows += self._usable(chunk, tokenizer, report)
        report.kept = len(rows)
        if not rows:
            why = "; ".join(report.left_out()) or "it is empty"
            why += "; name other problems in dataset.validation_file" * bool(report.held_out)
            raise UserError(f"dataset {self.source}: none of its {available:,} rows is usable: {why}")
        training, processes = self.config.training, processes or launched_processes()
        if self.config.method != "sft" and len(rows) < (needed := training.prompts_per_rollout(processes)):
            raise UserError(
                f"{len(rows)} usable problems do not fill one rollout, which takes {needed} "
                f"(training.per_device_train_batch_size {training.per_device_train_batch_size} x "
                f"{training.micro_batches_per_rollout} micro-batch(es) x {processes} process(es) / num_generations "
                f"{training.num_generations}); lower the batch or use more problems"
            )
        return rows, report

    def _usable(
        self, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase | None, report: DatasetReport
    ) -> list[dict[str, Any]]:
        """Return the rows of the usable problems, with the ids of supervised examples; note others in the report."""
        config, chunk = self.config, tuple(problems)
        if chunk not in self._unverifiable:
            failures = find_unverifiable((problem.id, problem.answer) for problem in chunk)
            self._unverifiable[chunk] = {failure.id: failure.reason for failure in failures}
        report.examined += len(chunk)
        report.unverifiable |= self._unverifiable[chunk]
        problems = [problem for problem in chunk if problem.id not in self._unverifiable[chunk]]
        if config.method == "sft":
            report.without_solution += [problem.id for problem in problems if not reasoning(problem)]
            problems = [problem for problem in problems if reasoning(problem)]
        rows = [to_row(problem, config) for problem in problems]
        if tokenizer is None or not rows:
            return rows
        renderer, usable = self.prompts(tokenizer), []
        answered = prompts = renderer.render([row["prompt"] for row in rows])
        if config.method == "sft":
            answered = renderer.render([row["prompt"] + row["completion"] for row in rows], answered=True)
        for n, (row, prompt, whole) in enumerate(zip(rows, prompts, answered, strict=True)):
            ids = prompt.ids
            if config.method == "sft":
                ids = trained_ids(renderer, prompt, whole, row["completion"][0]["content"], decoded=n < _DECODED)
                mask = [int(i >= len(prompt.ids)) for i in range(len(ids))]
                row |= {"input_ids": ids, "completion_mask": mask}
                # The marks of a template are this of a single turn. TRL would render again, with today's date.
                if config.training.passed_on.get("assistant_only_loss"):
                    row["assistant_masks"] = mask
            if len(prompt.ids) > config.training.max_prompt_length:
                report.too_long[row["id"]] = len(prompt.ids)
            elif len(ids) > config.model.max_seq_length:
                report.too_long[row["id"]] = len(ids)
            else:
                report.longest = max(report.longest, len(prompt.ids))
                report.largest_id = max(report.largest_id, *ids)
                usable.append(row)
        return usable


def held_out_benchmark(dataset: DatasetSection) -> str:
    """Return the words after `gtpo eval RUN` that measure a run that was trained on a dataset.

    That is the test split of a known one, else the user's validation file, else the embedded benchmark, which is there
    without a network; never the training problems.
    """
    source = training_source(dataset.name, dataset.split)
    # A file of the user's may have such a name too.
    name = None if source.endswith(FILES) else {"gsm8k": "gsm8k", "math": "math500"}.get(source.partition("_")[0])
    if dataset.validation_file or name is None:
        return f"--benchmarks {dataset.validation_file or 'arithmetic'}"
    return f"--benchmarks {name}" + (f" --data-dir {dataset.data_dir}" if dataset.data_dir else "")
