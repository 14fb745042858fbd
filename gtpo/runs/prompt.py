"""The prompt of a run is one record, and one function renders messages to text and ids by it.

Training (sampling, SFT, the limit of lengths, validation) and evaluation ask a model through it, so that the same
problem is the same prompt to the last id, also on another day: a template's clock shows when the run was created.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from string import ascii_letters
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.common.provenance import text_hash
from gtpo.rewards.data.problem import plain_chat_template

PROMPT_SCHEMA_VERSION = 1
Messages = Sequence[Mapping[str, str]]
# How a system prompt is left out, in evaluation and in training.
WITHOUT_SYSTEM = "--prompt '' of gtpo eval, --dataset.system_instruction '' of gtpo train"


class PromptRecord(BaseModel):
    """What came before the question."""

    model_config = ConfigDict(extra="allow")

    schema_version: int | None = Field(None, description="Version of this record; null in files that have none.")
    protocol: str = Field("gtpo", description="Name of the protocol.")
    system: str | None = Field(None, description="The system prompt.")
    system_role: str = Field("system", description="Role of its message.")
    user: str = Field("{problem}", description="Template of the question.")
    fewshot: dict[str, Any] | None = Field(None, description="Worked examples: source, number, how chosen and shown.")
    api: str = Field("chat", description="chat, or completions: one text without a chat template.")
    thoughts: list[tuple[str, str]] = Field([], description="Delimiters of thoughts beside `<think>` and `<thinking>`.")
    begins_in_thought: bool = Field(False, description="Whether completions begin in a thought if prompts are unknown.")
    chat_template_hash: str | None = Field(None, description="Of the chat template.")
    chat_template_source: str | None = Field(None, description="tokenizer, plain (it had none), a file, or server.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Passed to the chat template.")
    generation_prompt: str | None = Field(None, description="What the template puts behind the question.")
    bos: bool | None = Field(None, description="Whether the prompt begins with the tokenizer's first token; or null.")
    time: str | None = Field(None, description="Local time of the run's creation, if the template asks for it.")
    hash: str | None = Field(None, description="Of all that comes before the question.")


# What follows from the other fields, or is compared by the rendered text itself.
DERIVED = ("schema_version", "protocol", "chat_template_source", "generation_prompt", "bos", "time", "hash")


class RenderedPrompt(NamedTuple):
    """A conversation as the model reads it."""

    text: str
    ids: list[int]


def local_time() -> str:
    """Return the time now, here, as a run records it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def clock(time: str) -> str:
    """Return `strftime_now` for a template, which stands still at an ISO time, shown as it stands there.

    A macro: transformers hands a template no function of ours, only text.
    """
    shown = datetime.fromisoformat(time).replace(tzinfo=None)
    # `-d`: without its zero.
    parts = {form: shown.strftime(f"%{form}") for letter in ascii_letters for form in (letter, f"-{letter}")}
    return (
        f"{{% set run_clock = {json.dumps(parts)} %}}"
        "{% macro strftime_now(form) %}{% for part in form.split('%') %}{% set n = 2 if part[:1] == '-' else 1 %}"
        "{{ part if loop.first else run_clock[part[:n]] + part[n:] }}{% endfor %}{% endmacro %}{{ '' }}"
    )


class PromptRenderer:
    """Renders the conversations of a run.

    template: in place of the tokenizer's own, with its source. arguments: of the template. time: that it is told, ISO;
    by default now.
    """

    def __init__(
        self, tokenizer: Any, arguments: Mapping[str, Any] | None = None, time: str | None = None,
        *, template: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.arguments, self.time = tokenizer, dict(arguments or {}), time or local_time()
        self.own_template, self.source = template or own_template(tokenizer)
        self.asks_for_time = "strftime_now" in self.own_template
        self.template = (clock(self.time) if self.asks_for_time else "") + self.own_template

    def render(self, conversations: Sequence[Messages], *, answered: bool = False) -> list[RenderedPrompt]:
        """Return the conversations as text and ids.

        answered: they end with the assistant's turn; else the generation prompt follows. Raises UserError if the
        template refuses one, or leaves all of it out.
        """
        if not conversations:
            return []
        name = self.source if self.source not in ("tokenizer", "plain") else self.tokenizer.name_or_path
        try:
            texts: list[str] = self.tokenizer.apply_chat_template(
                [[dict(message) for message in messages] for messages in conversations],
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=not answered,
                **self.arguments,
            )
        except Exception as error:
            # Jinja raises what the template's author chose.
            raise UserError(
                f"the chat template of {name or 'this tokenizer'} refuses the conversation ({error}); if it has no "
                f"system role, leave the system prompt out: {WITHOUT_SYSTEM}"
            ) from None
        # A template writes the first token itself.
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        if not all(ids):
            raise UserError(f"the chat template of {name or 'this tokenizer'} leaves the prompt out; take another")
        return [RenderedPrompt(str(text), list(each)) for text, each in zip(texts, ids, strict=True)]

    def fields(self, example: Messages) -> dict[str, Any]:
        """Return the fields of the record that template, tokenizer and clock decide, by an example.

        Warn of a message that does not stand in it.
        """
        (prompt,) = self.render([example])
        shown = _flat(prompt.text)
        for role in dict.fromkeys(m["role"] for m in example if _flat(m["content"]) not in shown):
            drops = f"the chat template drops the {role} message, or a part of it: the model is not told what stands"
            remedy = f" Write it into the question, or leave it out: {WITHOUT_SYSTEM}" if role != "user" else ""
            LOG.warning(f"{drops} there.{remedy}")
        try:
            (bare,) = self.render([example], answered=True)
        except UserError:  # some want an assistant's turn then
            bare = prompt
        bos, known = self.tokenizer.bos_token_id, bare is not prompt and prompt.text.startswith(bare.text)
        return {
            "schema_version": PROMPT_SCHEMA_VERSION,
            "chat_template_hash": text_hash(self.own_template),
            "chat_template_source": self.source,
            "chat_template_kwargs": self.arguments or None,
            "generation_prompt": prompt.text[len(bare.text) :] if known else None,
            "bos": None if bos is None else prompt.ids[0] == bos,
            "time": self.time if self.asks_for_time else None,
        }


def own_template(tokenizer: Any) -> tuple[str, str]:
    """Return a tokenizer's chat template, else the plain one, and which of them it is."""
    own = tokenizer.chat_template
    own = own.get("default") if isinstance(own, dict) else own
    return (str(own), "tokenizer") if own else (plain_chat_template(tokenizer), "plain")


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that the model is to go on from: with one first token, without an end token.

    A tokenizer of a finetuned model may add an end token to every text (`add_eos_token`), and a text that was rendered
    with a chat template begins with the first token.
    """
    ids: list[int] = list(tokenizer(text)["input_ids"])
    while len(ids) > 1 and ids[-1] == tokenizer.eos_token_id and not text.endswith(str(tokenizer.eos_token)):
        ids.pop()
    return ids[1:] if begins_twice(tokenizer, text) else ids


def begins_twice(tokenizer: Any, text: str) -> bool:
    """Return whether a tokenizer puts its first token before a text that begins with it."""
    first = tokenizer.bos_token
    return first is not None and text.startswith(first) and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]


def _flat(text: str) -> str:
    """Return a text without white space, which templates trim."""
    return "".join(text.split())


def trained_ids(
    renderer: PromptRenderer, prompt: RenderedPrompt, whole: RenderedPrompt, target: str, *, decoded: bool
) -> list[int]:
    """Return the ids of a supervised example, which begin with those of its prompt as sampling has it.

    whole: the conversation with its answer. decoded: whether to look at what its tokens decode to, not at their text.
    A template may put an empty thought before the target, and white space of its own. Raises UserError with both texts
    if the prompt is another, or what follows it is not the target.
    """
    tokenizer, opening = renderer.tokenizer, re.match(r"<think>\s*", target)
    follows, opens = whole.text.startswith(prompt.text), prompt.text.rstrip().endswith("<think>")
    # The generation prompt may have opened the thought that the target begins with.
    told = target[opening.end() :] if opening and opens else target
    rest = whole.text[len(prompt.text) :]
    if told != target and not follows:
        # The template drops thoughts: what it puts behind the answer ends the turn.
        _, answer, end = whole.text.rpartition(target.rpartition("</think>")[2].strip())
        follows, rest = bool(answer), told + end
    ids = whole.ids
    # Tokens may merge across the boundary; in sampling they cannot.
    if ids[: len(prompt.ids)] != prompt.ids:
        ids = prompt.ids + tokenizer(rest, add_special_tokens=False)["input_ids"]
    labels = rest
    if decoded:
        labels = tokenizer.decode(ids[len(prompt.ids) :], clean_up_tokenization_spaces=False)
    before, there, _ = _flat(labels).partition(_flat(told))
    if not (follows and there and before in ("", "</think>", "<think></think>")):
        pairs = enumerate(zip(prompt.text, whole.text, strict=False))
        begin = max(0, next((i for i, (a, b) in pairs if a != b), len(prompt.text)) - 40)
        raise UserError(
            "method sft: the model's chat template makes another text of an answer than sampling asks for, or changes "
            "the answer. Let its assistant's turn be the generation prompt followed by the answer as it is "
            "(chat_template.jinja beside the weights)"
            + ", or train on a thought: dataset.sft_target think"
            * (opens and not opening)
            + f"\n  sampling asks   ...{prompt.text[begin:]!r}"
            f"\n  sft trains on   ...{whole.text[begin:][:240]!r}"
            f"\n  to be trained      {target[:200]!r}"
        )
    return ids
