"""What the samples of a run say of each other: hidden thoughts, limits of a server, prompts that it cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import Prompt
from gtpo.evalkit.evaluation.caveats import misfit
from gtpo.evalkit.evaluation.scoring import Scorer, Tally
from gtpo.rewards.thoughts import closes_unopened
from gtpo.runs.eval_folder import EvalFolder
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.outcomes import Outcome, cut_prompts, shared_limit
from gtpo.runs.tables import Key, QuestionKey, Sample


def settle_thoughts(folder: EvalFolder, tally: Tally, apart: bool, scorer: Scorer) -> None:
    """Decide from a run's other completions whether those that were cut off are thoughts, which have no answer.

    apart: whether a completion that begins with `<think>` had its thought apart (a server's `reasoning_content`).
    """
    if not any(sample.finish_reason == "length" and not sample.unfinished for sample in tally.scored()):
        return
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
        return
    if thought <= spoke:
        LOG.warning(
            "%d completions were cut off and may be thoughts: %d others have one that the prompt opened, %d have none. "
            "They are read as answers; a protocol with begins_in_thought: true reads them as thoughts",
            count, thought, spoke,
        )  # fmt: skip
        return
    LOG.info("%d completions were cut off in a thought, by what the others do: they have no answer", count)
    for part, places in hidden.items():
        samples = folder.part(part)
        for place in places:
            samples[place].completion = f"<think>{samples[place].completion}"
        changed = [samples[place] for place in places]
        scorer(changed)
        folder.replace_part(part, samples)
        tally.add(changed, again=True)


def settle_prompts_and_limits(folder: EvalFolder, tally: Tally, prompts: Mapping[QuestionKey, Prompt]) -> None:
    """Find prompts that a server cut, and completions that end at a limit of its own though they are called whole."""
    outcomes: dict[Key, Outcome] = {}
    complete = [s for s in tally.scored() if s.outcome == "complete"]
    for counts in ([s.tokens or 0 for s in complete], [(s.tokens or 0) + (s.prompt_tokens or 0) for s in complete]):
        if (limit := shared_limit(counts)) is not None:
            outcomes |= {s.key: "cut off" for s, n in zip(complete, counts, strict=True) if n == limit}
            LOG.warning("%d completions end at %d tokens: cut off, whatever the server says", len(outcomes), limit)
    read: dict[QuestionKey, tuple[int, int]] = {}
    for sample in tally.scored():
        key, prompt = sample.key[:2], prompts.get(sample.key[:2])
        if sample.prompt_tokens and prompt is not None and prompt.ids is None:
            # The most of all samples: some servers do not count what they have in their cache.
            read[key] = prompt.size, max(sample.prompt_tokens, read.get(key, (0, 0))[1])
    if cut := cut_prompts(read):
        outcomes |= {sample.key: "prompt cut" for sample in tally.scored() if sample.key[:2] in cut}
    changed = outcomes.keys() - {s.key for s in tally.scored() if s.outcome == outcomes.get(s.key)}
    for part, table in folder.tables(["benchmark", "question_id", "sample_index"]) if changed else ():
        if changed.isdisjoint(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)):
            continue
        samples = folder.part(part)
        for sample in samples:
            if sample.key in changed and sample.error is None:
                sample.outcome = outcomes[sample.key]
                sample.finish_reason = "length" if sample.outcome == "cut off" else sample.finish_reason
        folder.replace_part(part, samples)
        tally.add((sample for sample in samples if sample.key in changed), again=True)


def first_look(record: EvalRecord, samples: Sequence[Sample]) -> None:
    """Warn if the first completions of a session are not read as they are meant; the run goes on."""
    total, endings = len(samples), Counter(sample.outcome for sample in samples)
    shares = {
        "strict": sum(sample.answer_strict is None for sample in samples) / total,
        "lenient": sum(sample.answer_lenient is None for sample in samples) / total,
        "unfinished": sum(bool(sample.unfinished) for sample in samples) / total,
        "thought": sum("<think>" in sample.completion or "</think>" in sample.completion for sample in samples) / total,
        "silent": endings["empty"] / total,
    }
    if told := misfit(record, shares):
        LOG.warning("of the first %d completions, %s. The run goes on", total, told)
