"""What makes the numbers of a run less than they seem, and the likely cause, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gtpo.common.log import LOG
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord, ScoringMetrics

if TYPE_CHECKING:
    from gtpo.runs.eval_folder import Sample

# Share of completions cut off, or of anything else that should be rare, above which the user is warned.
CUT_OFF = 0.05

# Share of completions without an answer above which the likely cause is named.
NO_ANSWER = 0.9


def caveats(record: EvalRecord, entry: BenchmarkRecord) -> Iterator[str]:
    """Yield what is to be known of a benchmark's numbers."""
    unfinished, cut = entry.unfinished_rate or 0.0, entry.truncation_rate or 0.0
    if entry.trained_on:
        yield (
            f"{entry.trained_on} of {entry.questions} questions are in the data that this run was trained on. These "
            "numbers say how well it knows them, not what it does with new ones"
        )
    if entry.absent:
        every = entry.absent + entry.questions + len(entry.excluded) + len(entry.unscored_questions)
        yield f"{entry.absent} of the benchmark's {every} questions are not in the file: these numbers are of a part"
    if entry.unscored:
        reason, count = next(iter(entry.unscored_reasons.items()), ("", 0))
        left_out = f", {len(entry.unscored_questions)} questions are left out" if entry.unscored_questions else ""
        again = "" if record.engine.name == "recorded" else ". The same command tries them again"
        yield (f"{entry.unscored} samples have no completion and are unscored{left_out} ({count}: {reason}){again}")
    if entry.lacking:
        first = ", ".join(f"{question} ({n})" for question, n in list(entry.lacking.items())[:5])
        yield (
            f"{len(entry.lacking)} questions have fewer than {entry.n} samples and count up to the k that they have: "
            f"{first}{', ...' if len(entry.lacking) > 5 else ''}. In braces: the figures if all missing samples were "
            "wrong, and if all were right"
        )
    if part := entry.outcomes.get("prompt cut"):
        yield (
            f"the server read only a part of its prompt in {part} of {entry.samples} samples, by the tokens that it "
            "counts: these numbers are of another prompt. Give it a larger context (vLLM: --max-model-len, Ollama: "
            "OLLAMA_CONTEXT_LENGTH, llama.cpp: -c)"
        )
    if silent := entry.outcomes.get("empty"):
        yield f"{silent} of {entry.samples} replies {_silence(record)}"
    for word, count in entry.unknown_endings.items():
        yield f"{count} completions ended with finish_reason {word}, which is not known here: they count as cut off"
    if unfinished > CUT_OFF:
        yield f"unfinished thoughts {100 * unfinished:.0f} %: they have no answer"
    yield from _of_scoring(record, entry)
    # An ending that is not known was at no limit, as far as one knows.
    cut -= sum(entry.unknown_endings.values()) / max(1, entry.samples)
    if cut > CUT_OFF:
        limit, most = record.sampling.max_tokens, entry.cut_off_tokens or 0
        if limit is not None and 0 < most < limit:
            yield (
                f"{100 * cut:.0f} % of the completions were cut off after at most {most} tokens, by the server's own "
                "limit. Raise it (vLLM: --max-model-len, Ollama: OLLAMA_CONTEXT_LENGTH, llama.cpp: -c)"
            )
            return
        at, advice = (f" at {limit} tokens", ": set a larger --max-tokens, with another --out") if limit else ("", "")
        yield f"{100 * cut:.0f} % of the completions were cut off{at}, most before their answer{advice}"


def _of_scoring(record: EvalRecord, entry: BenchmarkRecord) -> Iterator[str]:
    """Yield what the headline hides."""
    strict, lenient = entry.strict or ScoringMetrics(), entry.lenient or ScoringMetrics()
    shares = {
        "strict": strict.no_answer_rate or 0.0, "lenient": lenient.no_answer_rate or 0.0,
        "unfinished": entry.unfinished_rate or 0.0, "silent": entry.outcomes.get("empty", 0) / max(1, entry.samples),
    }  # fmt: skip
    # Completions that are cut off have no answer: the warning of these says it.
    if shares[record.scoring] > NO_ANSWER and (entry.truncation_rate or 0.0) <= NO_ANSWER / 2:
        if told := misfit(record, shares):
            yield f"of the completions, {told}"
    elif 1 in strict.pass_at_k and 1 in lenient.pass_at_k:
        one, other = strict.pass_at_k[1].mean, lenient.pass_at_k[1].mean
        if other - one > shares["strict"] or (record.scoring == "strict" and other - one > CUT_OFF):
            work = strict.unsimplified_rate or 0.0
            yield (
                f"pass@1 is {100 * one:.1f} % under strict and {100 * other:.1f} % under lenient scoring: "
                f"{100 * shares['strict']:.0f} % of the completions hold no closed answer tag, and only lenient "
                "scoring reads an answer in another form"
                + (f"; {100 * work:.0f} % leave work in their answer, which strict scoring refuses" if work else "")
            )


def misfit(record: EvalRecord, shares: Mapping[str, float]) -> str | None:
    """Return what is wrong with how completions are asked for or read, and the likely cause; None if nothing is.

    shares: of completions without an answer under `strict` and `lenient`, that are `unfinished` thoughts, `silent`
    outside thoughts, and that hold a `thought`, if that is known.
    """
    asks_for_tags = "<answer>" in f"{record.prompt.system} {record.prompt.user}"
    wants_tags = record.scoring == "strict" and (asks_for_tags or record.scoring_by is not None)
    none = shares["strict" if wants_tags else "lenient"]
    if max(shares["unfinished"], shares["silent"]) <= 1 / 2 and none <= NO_ANSWER:
        return None
    if shares["silent"] > none / 2:
        cause = f"these {_silence(record)}"
    elif shares["unfinished"] > none / 2:
        cause = "thoughts do not end within --max-tokens: set a larger one, with another --out"
    elif shares["lenient"] >= none / 2:
        cause = (
            "no form that is known. Look at one in samples/; a base model wants few-shot examples and no chat template "
            "(--protocol lm-eval-gsm8k)"
        )
    else:
        # Recorded completions cannot be asked for in another way.
        of_a_model = "" if record.engine.name == "recorded" else "--protocol boxed with another --out, or "
        cause = f"they answer in another form: {of_a_model}--scoring lenient"
    seen = {
        "end inside a thought": shares["unfinished"], "say nothing outside thoughts": shares["silent"],
        "hold no answer in answer tags" if wants_tags else "hold no answer": none, "think": shares.get("thought", 0.0),
    }  # fmt: skip
    found = ", ".join(f"{100 * share:.0f} % {what}" for what, share in seen.items() if share > CUT_OFF)
    return f"{found}. Likely cause: {cause}"


def _silence(record: EvalRecord) -> str:
    """Say what replies are that have no text outside thoughts."""
    if record.engine.name in ("vllm", "transformers"):
        return "say nothing: the model ends its turn at once. A base model wants --protocol lm-eval-gsm8k, or the like"
    return (
        "are thoughts only (reasoning_content) though they ended by themselves: the server's reasoning parser takes "
        "answers for thoughts. Start it without one (vLLM: --reasoning-parser), or with thinking on "
        "(--chat-template-kwargs '{\"enable_thinking\": true}')"
    )


def first_look(record: EvalRecord, samples: Sequence[Sample]) -> None:
    """Warn if the first completions of a session are not read as they are meant; the run goes on."""
    shares = {
        "strict": [s.answer_strict is None for s in samples], "lenient": [s.answer_lenient is None for s in samples],
        "unfinished": [bool(s.unfinished) for s in samples], "silent": [s.outcome == "empty" for s in samples],
        "thought": ["<think>" in s.completion or "</think>" in s.completion for s in samples],
    }  # fmt: skip
    if told := misfit(record, {name: sum(marks) / len(samples) for name, marks in shares.items()}):
        LOG.warning("of the first %d completions, %s. The run goes on", len(samples), told)
