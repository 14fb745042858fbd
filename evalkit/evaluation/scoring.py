"""Scoring: answers, verdicts and format of completions, beside the engine that samples them, and of stored ones.

Its progress, always on stderr: a live table on a terminal, log lines elsewhere, nothing with --quiet.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from gtpo.common.log import LOG, duration, stderr_console
from gtpo.evalkit.engines.base import Engine, Prompt
from gtpo.evalkit.evaluation.caveats import first_look
from gtpo.rewards.completions import closes_unopened, format_ok, plain, unfinished
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import Scoring, extract_both, is_expression
from gtpo.rewards.verify import Verdict, Verifier
from gtpo.runs.eval_folder import EvalFolder, Key, QuestionKey, Sample, sample_parts, stores_outcomes
from gtpo.runs.eval_record import SCORINGS, EvalRecord
from gtpo.runs.outcomes import cut_prompts

# Version of extraction and verification as eval.json records it; raised with a change that moves verdicts.
RULES_VERSION = 23

# Between two lines of the progress, if it is not on a terminal.
LINE_EVERY_S = 10.0

# Completions of a session after which it is looked at whether they are read as they are meant.
FIRST_LOOK = 32

# A part is written when it has this many rows, this much text, or its first row is this old.
PART_ROWS, PART_CHARACTERS, PART_SECONDS = 2048, 32_000_000, 20.0

# Samples are scored in lots of what came in so long: a thread that woke with every step of an engine in the same
# process would take the interpreter from it every time.
LOT_SECONDS = 0.2

# Text that may wait for its verdicts before the engine has to.
WAITING_CHARACTERS = 32_000_000


def score(samples: Sequence[Sample], problems: Mapping[QuestionKey, Problem], verifier: Verifier) -> None:
    """Set answers, verdicts and format of samples; those with an error stay unscored.

    problems: (benchmark, question id) -> problem with its gold answer.
    """
    for sample in samples:
        sample.completion, sample.error = _storable(sample.completion), sample.error and _storable(sample.error)
    answered = [s for s in samples if s.error is None]
    asked = [problems[s.key[:2]] for s in answered]
    texts = [f"<think>{s.completion}" if _hides_thought(s) else s.completion for s in answered]
    rules = [(p.extract, text) for text, p in zip(texts, asked, strict=True)]
    by_rule = iter(verifier.extract_by_rules([pair for pair in rules if is_expression(pair[0])]))
    extracted = [
        (one := next(by_rule), one) if is_expression(rule) else extract_both(text, rule) for rule, text in rules
    ]
    strict, lenient = (
        verify([answers[i] for answers in extracted], asked, scoring, verifier) for i, scoring in enumerate(SCORINGS)
    )
    for sample, text, answers, *verdicts in zip(answered, texts, extracted, strict, lenient, strict=True):
        sample.answer_strict, sample.answer_lenient = answers
        sample.verdict_strict, sample.verdict_lenient = map(str, verdicts)
        sample.format_ok = format_ok(text)
        sample.unfinished = unfinished(plain(text))


def _hides_thought(sample: Sample) -> bool:
    # By `settle_by_others`: the text stays as it came, or it would be evidence in a later session.
    return bool(sample.unfinished) and "<think>" not in sample.completion


def verify_stored(
    folder: EvalFolder,
    record: EvalRecord,
    problems: Mapping[QuestionKey, Problem],
    verifier: Verifier,
    *,
    outcomes: bool = False,
) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """Verify stored completions again, part by part, and yield each part's samples before and after.

    outcomes: also write how samples ended if an older version did not; they are read alike.
    """
    with EvalProgress(record, {name: entry.samples for name, entry in record.benchmarks.items()}, {}) as progress:
        for part in sample_parts(folder.path):
            before = folder.part(part)
            after = [replace(sample) for sample in before]
            score(after, problems, verifier)
            if before != after or (outcomes and not stores_outcomes(part)):
                folder.replace_part(part, after)
            progress.count(after)
            yield before, after


def verify(
    answers: Sequence[str | None], problems: Sequence[Problem], scoring: Scoring, verifier: Verifier
) -> list[Verdict]:
    """Return the verdicts under one scoring, on problems whose answers are mathematics and on those that are text."""
    pairs = [(answer, p.answer) for answer, p in zip(answers, problems, strict=True)]
    texts, kinds = [p.problem for p in problems], [p.answers for p in problems]
    return verifier.verify_many(pairs, texts, scoring=scoring, answers=kinds)


def _storable(text: str) -> str:
    """Replace lone surrogates, which fit no Parquet file."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Votes(NamedTuple):
    """How the samples of one question vote."""

    correct: int
    abstentions: int
    wrong: list[int]  # Sizes of the wrong answer classes, the largest first

    @property
    def total(self) -> int:
        """How many samples were counted."""
        return self.correct + self.abstentions + sum(self.wrong)


def count_votes(
    questions: Sequence[tuple[Sequence[str | None], Sequence[str], Problem]], verifier: Verifier
) -> list[Votes]:
    """Count the votes of questions, each (answers, verdicts, problem).

    The stored verdicts say what is right; wrong answers are grouped by the same equality, each undecided one
    (TIMEOUT, REJECTED) with identical texts only. UNSIMPLIFIED answers vote for one wrong class.
    """
    wrong = [
        Counter(a for a, v in zip(answers, verdicts, strict=True) if v not in (Verdict.CORRECT, Verdict.NO_ANSWER))
        for answers, verdicts, _ in questions
    ]
    # One wrong text is one class: nothing is to be compared.
    divided = [i for i, answers in enumerate(wrong) if len(answers) > 1]
    asked = [questions[i][2] for i in divided]
    classes = verifier.answer_classes_many(
        [(list(wrong[i]), p.answer) for i, p in zip(divided, asked, strict=True)],
        [p.problem for p in asked],
        answers=[p.answers for p in asked],
    )
    labels: dict[int, Sequence[Any]] = dict(zip(divided, classes, strict=True))
    counted = []
    for i, (_, verdicts, _) in enumerate(questions):
        sizes = Counter[Any]()
        for label, count in zip(labels.get(i, [*wrong[i]]), wrong[i].values(), strict=True):
            sizes[label] += count
        correct, abstentions = (sum(v == verdict for v in verdicts) for verdict in (Verdict.CORRECT, Verdict.NO_ANSWER))
        counted.append(Votes(correct, abstentions, sorted(sizes.values(), reverse=True)))
    return counted


# What the metrics need of a sample: not the texts, which are most of a run.
_COLUMNS = [field.name for field in fields(Sample) if field.name not in ("completion", "seed")]


@dataclass(slots=True)
class QuestionSamples:
    """A question's samples by index, in the order in which they came, without their texts."""

    scored: dict[int, Sample] = field(default_factory=dict)
    failed: dict[int, Sample] = field(default_factory=dict)  # those with an error in place of a completion
    votes: dict[str, Votes] = field(default_factory=dict)  # by scoring, once they are counted

    def reached(self) -> int:
        """Return the n for which samples 0 to n - 1 are all stored, completed or failed."""
        there = {*self.scored, *self.failed}
        return next(i for i in range(len(there) + 1) if i not in there)

    def column(self, name: str) -> list[Any]:
        """Return a field of every sample that was scored, if it is known."""
        values = (getattr(sample, name) for sample in self.scored.values())
        return [value for value in values if value is not None]

    def answers(self, scoring: str) -> tuple[list[str | None], list[str]]:
        """Return the answers and the verdicts under one scoring."""
        samples = self.scored.values()
        return [s.answer(scoring) for s in samples], [s.verdict(scoring) or "" for s in samples]

    def first(self, n: int) -> QuestionSamples:
        """Return the samples with an index below n, with their votes if these are all."""
        scored, failed = ({i: s for i, s in of.items() if i < n} for of in (self.scored, self.failed))
        return QuestionSamples(scored, failed, self.votes if len(scored) == len(self.scored) else {})


# Questions of a benchmark with their samples.
Answered = Sequence[tuple[Problem, QuestionSamples]]


class Tally:
    """The scores of all samples of a run: those that are stored, and those that come. Each is read once.

    Votes are counted here and nowhere else: on the way, when a question has what it was asked for, else at the end.
    """

    wasted = 0  # Tokens of this session's requests that were sent again

    def __init__(self, folder: EvalFolder, verifier: Verifier) -> None:
        self.folder, self.verifier, self.problems = folder, verifier, folder.questions()
        self.questions = defaultdict[QuestionKey, QuestionSamples](QuestionSamples)
        for part in sample_parts(folder.path):
            self.add(folder.part(part, _COLUMNS))

    def score(self, samples: Sequence[Sample]) -> None:
        """Score samples; they are not counted yet."""
        score(samples, self.problems, self.verifier)

    def add(self, samples: Iterable[Sample], *, again: bool = False) -> None:
        """Count new samples; again: in place of what was counted of them."""
        for sample in samples:
            of = self.questions[sample.key[:2]]
            if sample.error is not None:
                of.failed[sample.sample_index] = replace(sample, completion="")
            # One that is stored twice counts once.
            elif again or sample.sample_index not in of.scored:
                of.scored[sample.sample_index] = replace(sample, completion="")
                of.votes.clear()

    def tokens(self) -> int:
        """Return the tokens of all prompts and completions, each prompt once a request, as far as they are known."""
        every = (s for of in self.questions.values() for samples in (of.scored, of.failed) for s in samples.values())
        return self.wasted + sum((sample.prompt_tokens or 0) + (sample.tokens or 0) for sample in every)

    def scored(self) -> Iterator[Sample]:
        """Yield every completion's sample."""
        return (sample for samples in self.questions.values() for sample in samples.scored.values())

    def drop_failed(self, wanted: Mapping[QuestionKey, int]) -> None:
        """Forget failed samples that are asked for again, here and in the folder; others belong to a larger k."""
        failed = (sample for of in self.questions.values() for sample in of.failed.values())
        again = [sample.key for sample in failed if sample.sample_index < wanted.get(sample.key[:2], 0)]
        self.folder.drop_failed(set(again))
        for *question, index in again:
            del self.questions[question[0], question[1]].failed[index]

    def count_votes(self, questions: Answered) -> None:
        """Count the votes of some questions, if they are not known: both scorings together, which mostly agree."""
        missing = [(p, s, scoring) for scoring in SCORINGS for p, s in questions if scoring not in s.votes]
        counted = count_votes([(*s.answers(scoring), p) for p, s, scoring in missing], self.verifier)
        for (_, samples, scoring), votes in zip(missing, counted, strict=True):
            samples.votes[scoring] = votes


class ScoringPipeline(AbstractContextManager["ScoringPipeline"]):
    """Takes samples from an engine's thread; scores and stores them in its own, and shows how far they are.

    What was put together is stored together: a batch never ends up half in a part, so a resumed run repeats whole
    batches. An error in the thread comes out of the next `put` or of `close`.

    `wanted` holds how many samples a question will have: its votes are counted with the last one. That may take the
    workers a while; at the end of the run it would be time to wait. `record` is the run's.
    """

    def __init__(
        self, tally: Tally, wanted: Mapping[QuestionKey, int], record: EvalRecord, engine: Engine | None = None
    ) -> None:
        self.tally, self._wanted, self._record = tally, wanted, record
        # Of this command's questions, not of all that are stored.
        total, done = Counter[str](), Counter[str]()
        for (name, question), n in wanted.items():
            total[name] += n
            done[name] += sum(i < n for i in tally.questions[name, question].scored)
        if done.total():
            LOG.info("%s: keeping %d stored samples", tally.folder.path, done.total())
        self._progress = EvalProgress(record, total, done, engine)
        self._first: list[Sample] | None = []  # Completions that are to be looked at; None once they were
        self._waiting = deque[tuple[int, list[Sample]]]()  # With their characters
        self._closing = threading.Event()
        pool = ThreadPoolExecutor(1, "scoring")
        self._work_done = pool.submit(self._work)
        pool.shutdown(wait=False)

    def put(self, samples: list[Sample]) -> None:
        """Hand over samples; blocks while much text waits to be scored."""
        while sum(size for size, _ in self._waiting.copy()) > WAITING_CHARACTERS and not self._work_done.done():
            time.sleep(0.05)
        if self._work_done.done():
            self._work_done.result()
        self._waiting.append((_characters(samples), samples))

    def close(self) -> None:
        """Score and store what is left, and stop the thread."""
        self._closing.set()
        self._work_done.result()

    def __enter__(self) -> ScoringPipeline:
        self._progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self.close()
        except Exception as error:
            if kind is None:
                raise
            LOG.warning("while storing what was left: %s", error)
        finally:
            self._progress.__exit__()

    def _work(self) -> None:
        rows: list[Sample] = []
        oldest, last = 0.0, False
        try:
            while not last:
                last = self._closing.wait(LOT_SECONDS)
                new = [sample for _ in range(len(self._waiting)) for sample in self._waiting.popleft()[1]]
                if new:
                    self.tally.score(new)
                oldest = oldest if rows else time.monotonic()
                rows += new
                old = time.monotonic() - oldest > PART_SECONDS
                if last or old or len(rows) >= PART_ROWS or _characters(rows) >= PART_CHARACTERS:
                    self.tally.folder.append(rows)
                    rows = []
                self._count(new)
        except BaseException as error:
            # What was scored before the error is good. An OSError is the disk's: another write would fail too.
            if rows and not isinstance(error, OSError):
                self.tally.folder.append(rows)
            raise

    def _count(self, new: list[Sample]) -> None:
        """Count what is scored; after storing, since counting votes may take a while."""
        self._progress.count(new)
        self.tally.add(new)
        if self._first is not None:
            self._first += [sample for sample in new if sample.error is None]
            if len(self._first) >= FIRST_LOOK:
                first_look(self._record, self._first)
                self._first = None
        of = self.tally.questions
        whole = [key for key in {sample.key[:2]: None for sample in new} if len(of[key].scored) == self._wanted[key]]
        self.tally.count_votes([(self.tally.problems[key], of[key]) for key in whole])


def _characters(samples: list[Sample]) -> int:
    return sum(len(sample.completion) for sample in samples)


class EvalProgress:
    """Progress of an eval run, shown while it is used as a context manager. One thread counts; another may look.

    wanted, done: benchmark -> samples that it will have, and those that are stored already. engine: if some are drawn.
    """

    def __init__(
        self, record: EvalRecord, wanted: Mapping[str, int], done: Mapping[str, int], engine: Engine | None = None
    ) -> None:
        # The headline; None if the completions choose it.
        self._scoring = record.scoring if record.scoring_by else None
        self._engine, self._most = engine, record.sampling.max_tokens if engine is not None else None
        self._wanted, self._before = wanted, done
        # Benchmark -> samples of this session: scored, failed, tagged (with an answer in tags), right by scoring.
        self._counts = {name: Counter[str]() for name in wanted}
        self._tokens = 0
        self._live: Any = None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> EvalProgress:
        if LOG.isEnabledFor(logging.INFO) and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=stderr_console(), get_renderable=self._table, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def count(self, samples: Iterable[Sample]) -> None:
        """Count samples once they are scored, or have failed."""
        for sample in samples:
            counts = self._counts[sample.benchmark]
            self._tokens += sample.tokens or 0
            counts["scored" if sample.error is None else "failed"] += 1
            counts["tagged"] += sample.answer_strict is not None
            counts.update(s for s in SCORINGS if sample.verdict(s) == Verdict.CORRECT)
        if self._live is None and time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            lines = [f"{name}: {self._line(name)}" for name, counts in self._counts.items() if counts["scored"]]
            LOG.info("%s", ", ".join([*lines, *self._speed()]))

    def _speed(self) -> list[str]:
        """Describe what is in flight, how fast it goes, and how long it will take."""
        running, written = self._engine.running() if self._engine is not None else (0, 0)
        elapsed = max(time.monotonic() - self._started, 1e-3)
        scored, failed = (sum(counts[what] for counts in self._counts.values()) for what in ("scored", "failed"))
        waiting = sum(self._wanted.values()) - sum(self._before.values()) - scored - failed
        parts = [f"{running} in flight with {written:,} tokens"] if running else []
        if self._engine is not None and self._engine.retried:
            parts.append(f"{self._engine.retried} requests sent again")
        if sampled := self._tokens + written:
            parts.append(f"{sampled / elapsed:.0f} tokens/s")
        if waiting and scored:
            # The first to end are short: by their length it takes this long at least, and by the limit at most.
            mean = self._tokens / scored
            ends = [mean, self._most] if sampled and self._most else [mean]
            times = [max(0.0, length * waiting - written) / sampled * elapsed for length in ends if length]
            low, high = (times or [waiting / scored * elapsed])[0], (times or [0.0])[-1]
            if high > 1.5 * low:
                parts.append(f"{duration(low)} to {duration(high)} left")
            elif low:
                parts.append(f"about {duration(low)} left")
        return parts

    def _done(self, name: str) -> int:
        return self._before.get(name, 0) + self._counts[name]["scored"]

    def _line(self, name: str) -> str:
        """Describe a benchmark."""
        counts = self._counts[name]
        scored, failed = counts["scored"], counts["failed"]
        scoring = self._scoring or ("strict" if 2 * counts["tagged"] >= scored else "lenient")
        right = f", pass@1 ({scoring}) {100 * counts[scoring] / scored:.1f} %" if scored else ""
        return f"{self._done(name)}/{self._wanted[name]} samples{right}{f', {failed} failed' if failed else ''}"

    def _table(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, total in self._wanted.items():
            table.add_row(name, ProgressBar(max(total, 1), self._done(name), width=24), self._line(name))
        return Group(table, f"  {', '.join(self._speed())}")


# -- what the samples of a run say of each other -----------------------------------------------------------------------


def settle_by_others(tally: Tally, prompts: Mapping[QuestionKey, Prompt], *, apart: bool) -> None:
    """Decide from all of a run's completions which that were cut off are thoughts, and which prompts were cut.

    apart: whether a completion that begins with `<think>` had its thought apart (a server's `reasoning_content`).
    """
    read: dict[QuestionKey, tuple[int, int]] = {}
    for sample in tally.scored():
        key, prompt = sample.key[:2], prompts.get(sample.key[:2])
        if sample.prompt_tokens and prompt is not None and prompt.ids is None:
            # The most of all samples: some servers do not count what they have in their cache.
            read[key] = prompt.size, max(sample.prompt_tokens, read.get(key, (0, 0))[1])
    questions, thoughts = cut_prompts(read), _hidden_thoughts(tally, apart=apart)
    cut = {s.key for s in tally.scored() if s.key[:2] in questions and s.outcome != "prompt cut"}
    for part in sample_parts(tally.folder.path) if thoughts or cut else ():
        before = tally.folder.part(part)
        samples = [replace(sample, unfinished=thoughts.get(sample.key, sample.unfinished)) for sample in before]
        changed = [s for s, old in zip(samples, before, strict=True) if s != old or s.key in cut]
        tally.score([sample for sample in changed if sample.key in thoughts])
        for sample in changed:
            sample.outcome = "prompt cut" if sample.key in cut else sample.outcome
        if changed:
            tally.folder.replace_part(part, samples)
            tally.add(changed, again=True)


def _hidden_thoughts(tally: Tally, *, apart: bool) -> dict[Key, bool]:
    """Return of each completion that was cut off and says nothing of thoughts whether it is one, as the others show."""
    if not any(sample.cut_off for sample in tally.scored()):
        return {}
    hidden = set[Key]()
    thought = spoke = 0  # Completions that prove that the model thinks, and finished ones without any thought
    for part in sample_parts(tally.folder.path):
        for sample in tally.folder.part(part):
            text = sample.completion
            if sample.error is not None:
                continue
            if (apart and text.startswith("<think>")) or closes_unopened(text):
                thought += 1
            elif sample.cut_off and "<think>" not in text and "</think>" not in text:
                hidden.add(sample.key)
            else:
                spoke += not text.startswith("<think>")
    if thought <= spoke and hidden and thought:
        LOG.warning(
            "%d completions were cut off and may be thoughts: %d others have one that the prompt opened, %d have none. "
            "They are read as answers; a protocol with begins_in_thought: true reads them as thoughts",
            len(hidden), thought, spoke,
        )  # fmt: skip
    if thought > spoke and hidden:
        LOG.info("%d completions were cut off in a thought, by what the others do: they have no answer", len(hidden))
    return dict.fromkeys(hidden, thought > spoke)
