"""The prompts of a run, rendered as the model reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.provenance import text_hash
from gtpo.evalkit.engines.base import Prompt
from gtpo.evalkit.engines.model_ref import ModelRef
from gtpo.evalkit.evaluation.protocol import Protocol
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.rewards.data.problem import SYSTEM_INSTRUCTION, Problem
from gtpo.runs.eval_folder import QuestionKey, StoredPrompt
from gtpo.runs.eval_record import PromptRecord


class Question(NamedTuple):
    """A question and the examples that are shown before it."""

    problem: Problem
    examples: list[Problem]


def conversation(protocol: Protocol, question: Question, system: str) -> Prompt:
    """Return the prompt before any chat template: messages, or the text for a base model."""
    if protocol.api == "completions":
        return Prompt([], protocol.text(question.problem, system, question.examples))
    return Prompt(protocol.messages(question.problem, system, question.examples))


def render_prompts(
    settings: EvalSettings, protocol: Protocol, ref: ModelRef, engine: str, asked: Mapping[QuestionKey, Question]
) -> tuple[dict[QuestionKey, Prompt], PromptRecord, int | None, tuple[tuple[str, str], ...]]:
    """Render every question for the engine.

    Return the prompts, what they were made with, the tokens that the model takes (None if unknown), and the
    delimiters of its thoughts beside those in use. Raises UserError for a model or template that cannot be used.
    """
    system = settings.prompt
    if system is None:
        system = "" if protocol.api == "completions" else SYSTEM_INSTRUCTION if ref.system is None else ref.system
    prompts = {key: conversation(protocol, question, system) for key, question in asked.items()}
    kwargs, template_hash = settings.template_kwargs(), None
    thoughts = tuple(protocol.thoughts)
    if engine == "openai":
        from gtpo.evalkit.engines.openai_request import served_context, served_prompts
        from gtpo.evalkit.evaluation.engine import servers

        urls, access = servers(settings, ref)
        context = served_context(ref, urls, access, settings.wait_for_server)
        prompts = served_prompts(ref, urls[0], access, prompts, kwargs)
    else:
        from gtpo.evalkit.engines import local

        config = local.load_config(ref, trust_remote_code=settings.trust_remote_code)
        local.check_adapter(ref, config)
        tokenizer = local.load_tokenizer(ref, trust_remote_code=settings.trust_remote_code)
        context = local.context_length(config)
        thoughts += local.thought_tokens(tokenizer)
        if protocol.api == "completions":
            prompts = {
                key: prompt._replace(ids=local.text_ids(tokenizer, prompt.text or ""))
                for key, prompt in prompts.items()
            }
        else:
            template = local.chat_template(tokenizer, settings.chat_template)
            prompts = {key: local.render(tokenizer, template, p.messages, kwargs) for key, p in prompts.items()}
            template_hash = text_hash(template)
    declared = {"system_role", "user", "fewshot", "api", "thoughts", "begins_in_thought"}
    record = PromptRecord(
        protocol=protocol.name,
        system=system,
        chat_template_hash=template_hash,
        chat_template_kwargs=kwargs,
        **protocol.model_dump(include=declared),
    )
    plain = PromptRecord()
    other = {key: value for key in ("user", "fewshot", "api") if (value := getattr(record, key)) != getattr(plain, key)}
    further = [json.dumps(what, sort_keys=True) for what in (kwargs, other) if what]
    return prompts, record.model_copy(update={"hash": text_hash(system, template_hash, *further)}), context, thoughts


def check_same(where: str, stored: Mapping[QuestionKey, StoredPrompt], now: Mapping[QuestionKey, StoredPrompt]) -> None:
    """Raise UserError if a question that has samples would now be asked in other words."""
    for key in stored.keys() & now.keys():
        before, after = Prompt(*stored[key]), Prompt(*now[key])
        one, other = before.text, after.text
        if one is None or other is None:
            one, other = json.dumps(before.messages), json.dumps(after.messages)
        if one != other:
            at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), len(one))
            shown = slice(max(0, at - 20), at + 20)
            raise UserError(
                f"{where}: the prompt of {key[0]} {key[1]} is another than it was when it was sampled: {one[shown]!r} "
                f"there, {other[shown]!r} now. Repeat the protocol, data and template, or choose another --out"
            )
