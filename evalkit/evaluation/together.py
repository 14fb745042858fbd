"""What the samples of a run say of each other: hidden thoughts, prompts that a server cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Prompt
from gtpo.evalkit.evaluation.caveats import misfit
from gtpo.evalkit.evaluation.scoring import Scorer, Tally
from gtpo.rewards.completions import closes_unopened
from gtpo.runs.eval_folder import EvalFolder, Key, QuestionKey, Sample
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.outcomes import cut_prompts

_KEY = ("benchmark", "question_id", "sample_index")


def settle_thoughts(folder: EvalFolder, tally: Tally, apart: bool, scorer: Scorer) -> None:
    """Decide from a run's other completions whether those that were cut off are thoughts, which have no answer.

    apart: whether a completion that begins with `<think>` had its thought apart (a server's `reasoning_content`).
    """
    cut = {sample.key for sample in tally.scored() if sample.cut_off}
    if all(tally.questions[key[:2]].scored[key[2]].unfinished for key in cut):
        return
    hidden = set[Key]()  # Those that may be thoughts: nothing in them says so
    thought = spoke = 0  # Completions that prove that the model thinks, and finished ones without any thought
    for _, table in folder.tables(["completion", "error", *_KEY]):
        columns = (table.column(name).to_pylist() for name in table.column_names)
        for text, error, *key in zip(*columns, strict=True):
            opens = text.startswith("<think>")
            if error is not None:
                continue
            if (opens and apart) or closes_unopened(text):
                thought += 1
            elif tuple(key) in cut and "<think>" not in text and "</think>" not in text:
                hidden.add((key[0], key[1], key[2]))
            else:
                spoke += not opens
    if not hidden or not thought:
        return
    if thought <= spoke:
        LOG.warning(
            "%d completions were cut off and may be thoughts: %d others have one that the prompt opened, %d have none. "
            "They are read as answers; a protocol with begins_in_thought: true reads them as thoughts",
            len(hidden), thought, spoke,
        )  # fmt: skip
        return
    LOG.info("%d completions were cut off in a thought, by what the others do: they have no answer", len(hidden))

    def think(samples: list[Sample]) -> None:
        for sample in samples:
            sample.completion = f"<think>{sample.completion}"
        scorer(samples)

    _change(folder, tally, hidden, think)


def settle_prompts(folder: EvalFolder, tally: Tally, prompts: Mapping[QuestionKey, Prompt]) -> None:
    """Find prompts that a server cut, by the tokens that it counts in all of them."""
    read: dict[QuestionKey, tuple[int, int]] = {}
    for sample in tally.scored():
        key, prompt = sample.key[:2], prompts.get(sample.key[:2])
        if sample.prompt_tokens and prompt is not None and prompt.ids is None:
            # The most of all samples: some servers do not count what they have in their cache.
            read[key] = prompt.size, max(sample.prompt_tokens, read.get(key, (0, 0))[1])
    cut = cut_prompts(read)

    def settle(samples: list[Sample]) -> None:
        for sample in samples:
            sample.outcome = "prompt cut"

    new = {s.key for s in tally.scored() if s.key[:2] in cut and s.outcome != "prompt cut"}
    _change(folder, tally, new, settle)


def _change(folder: EvalFolder, tally: Tally, keys: Set[Key], change: Callable[[list[Sample]], Any]) -> None:
    """Change some completions where they are stored and counted."""
    for part, table in folder.tables(_KEY) if keys else ():
        if not keys.isdisjoint(zip(*(table.column(name).to_pylist() for name in _KEY), strict=True)):
            samples = folder.part(part)
            chosen = [sample for sample in samples if sample.key in keys and sample.error is None]
            change(chosen)
            folder.replace_part(part, samples)
            tally.add(chosen, again=True)


def first_look(record: EvalRecord, samples: Sequence[Sample]) -> None:
    """Warn if the first completions of a session are not read as they are meant; the run goes on."""
    shares = {
        "strict": [s.answer_strict is None for s in samples], "lenient": [s.answer_lenient is None for s in samples],
        "unfinished": [bool(s.unfinished) for s in samples], "silent": [s.outcome == "empty" for s in samples],
        "thought": ["<think>" in s.completion or "</think>" in s.completion for s in samples],
    }  # fmt: skip
    if told := misfit(record, {name: sum(marks) / len(samples) for name, marks in shares.items()}):
        LOG.warning("of the first %d completions, %s. The run goes on", len(samples), told)
