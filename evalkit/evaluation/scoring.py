"""From completions to samples: both scorings, format, verdicts; stored ones again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Generation
from gtpo.rewards.completions import format_ok
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import Scoring, extract_both
from gtpo.rewards.thoughts import closes_unopened, plain, unfinished
from gtpo.rewards.verify import Verdict, Verifier
from gtpo.runs.eval_folder import EvalFolder
from gtpo.runs.eval_record import SCORINGS
from gtpo.runs.tables import QuestionKey, Sample

# Version of extraction and verification as eval.json records it; raised with a change that moves verdicts.
RULES_VERSION = 16

Scorer = Callable[[Sequence[Generation]], list[Sample]]  # `score` with a run's problems and verifier


def score(
    generations: Sequence[Generation], problems: Mapping[QuestionKey, Problem], verifier: Verifier
) -> list[Sample]:
    """Return one sample per generation, in order; those with an error are unscored.

    problems: (benchmark, question id) -> problem with its gold answer.
    """
    samples = [
        Sample(
            *g.key, completion=_storable(g.text), tokens=g.tokens, finish_reason=g.finish_reason, seed=g.seed,
            error=None if g.error is None else _storable(g.error), prompt_tokens=g.prompt_tokens,
        )
        for g in generations
    ]  # fmt: skip
    answered = [s for s in samples if s.error is None]
    extracted = [extract_both(s.completion) for s in answered]
    asked = [problems[s.key[:2]] for s in answered]
    strict, lenient = (
        verify([answers[i] for answers in extracted], asked, scoring, verifier) for i, scoring in enumerate(SCORINGS)
    )
    for sample, answers, *verdicts in zip(answered, extracted, strict, lenient, strict=True):
        sample.answer_strict, sample.answer_lenient = answers
        sample.verdict_strict, sample.verdict_lenient = map(str, verdicts)
        sample.format_ok = format_ok(sample.completion)
        sample.unfinished = unfinished(plain(sample.completion))
    return samples


def _generation(s: Sample) -> Generation:
    """Return the generation that a stored sample was made of."""
    return Generation(*s.key, s.completion, s.tokens, s.finish_reason, s.seed, s.error, s.prompt_tokens)


def verify_stored(folder: EvalFolder, scorer: Scorer) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """Verify stored completions again, part by part, and yield each part's samples before and after."""
    for part, _ in folder.tables(["error"]):
        before = folder.part(part)
        after = scorer([_generation(sample) for sample in before])
        if before != after:
            folder.replace_part(part, after)
        yield before, after


def settle_thoughts(folder: EvalFolder, apart: bool, scorer: Scorer) -> bool:
    """Decide from a run's other completions whether those that were cut off are thoughts; return whether any is.

    apart: whether a completion that begins with `<think>` had its thought apart (a server's `reasoning_content`).
    """
    hidden: dict[Path, list[int]] = {}  # part -> rows that may be thoughts: nothing in them says so
    thought = spoke = 0  # completions that prove that the model thinks, and finished ones without any thought
    for part, table in folder.tables(["completion", "finish_reason", "error"]):
        columns = (table.column(name).to_pylist() for name in table.column_names)
        for row, (text, reason, error) in enumerate(zip(*columns, strict=True)):
            opens = text.startswith("<think>")
            if error is not None:
                continue
            if (opens and apart) or closes_unopened(text):
                thought += 1
            elif reason == "length" and "<think>" not in text and "</think>" not in text:
                hidden.setdefault(part, []).append(row)
            else:
                spoke += not opens
    count = sum(map(len, hidden.values()))
    if not count or not thought:
        return False
    if thought <= spoke:
        LOG.warning(
            "%d completions were cut off and may be thoughts: %d others have one that the prompt opened, %d have none. "
            "They are read as answers; a protocol with begins_in_thought: true reads them as thoughts",
            count, thought, spoke,
        )  # fmt: skip
        return False
    LOG.info("%d completions were cut off in a thought, by what the others do: they have no answer", count)
    for part, places in hidden.items():
        samples = folder.part(part)
        cut = [_generation(samples[place])._replace(text=f"<think>{samples[place].completion}") for place in places]
        for place, sample in zip(places, scorer(cut), strict=True):
            samples[place] = sample
        folder.replace_part(part, samples)
    return True


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
    sizes: dict[int, Counter[int | None]] = {}
    for i, found in zip(divided, classes, strict=True):
        sizes[i] = Counter()
        for label, count in zip(found.labels, wrong[i].values(), strict=True):
            sizes[i][label] += count
    return [
        Votes(
            sum(verdict == Verdict.CORRECT for verdict in verdicts),
            sum(verdict == Verdict.NO_ANSWER for verdict in verdicts),
            sorted((sizes[i] if i in sizes else wrong[i]).values(), reverse=True),
        )
        for i, (_, verdicts, _) in enumerate(questions)
    ]
