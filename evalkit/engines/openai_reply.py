"""What an OpenAI-compatible server answers, checked field by field: a completion, or the reason why there is none.

A stream is put together from its events, a whole body is taken as its only one. What there is of a completion that
came to no end is kept with the reason.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import BaseModel, Field, StrictInt, StrictStr

LONGEST_MESSAGE = 300
"""Characters of a server's message that are repeated to the user."""

LONGEST_WAIT_S = 120.0
"""Most that a Retry-After header is followed."""

LONGEST_BODY = 64 * 2**20
"""Bytes of one answer."""

_TRY_AGAIN = (408, 409, 425, 429)
"""Client errors that pass; every other one stays."""


ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"})
CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "max_new_tokens", "model_length", "token_limit"})
"""What servers call a completion that came to its end, and one that reached the limit. All else is a failure."""


@dataclass(eq=False)
class RequestError(Exception):
    """A request without a completion.

    passing: another attempt may help. lost: the server itself may be gone. pause_s: what it asks to wait.
    status: the HTTP status, where there was an answer. text: what there is of the completion.
    """

    message: str
    _: KW_ONLY
    passing: bool = False
    lost: bool = False
    pause_s: float = 0.0
    status: int | None = None
    text: str = ""


class Reply(NamedTuple):
    """A completion as the server gave it."""

    text: str
    tokens: int | None
    finish_reason: str
    model: str | None = None
    """The model that answered, as the server names it."""
    fingerprint: str | None = None
    """Its system_fingerprint."""
    prompt_tokens: int | None = None


class _Part(BaseModel):
    """A part of a message: text, or thoughts that may have parts of their own."""

    text: StrictStr | None = None
    thinking: StrictStr | list[_Part] | None = None

    @property
    def thoughts(self) -> str:
        """The thoughts in it."""
        parts = self.thinking or ""
        return parts if isinstance(parts, str) else "".join(part.text or "" for part in parts)


class _Message(BaseModel):
    content: StrictStr | list[_Part] | None = None
    reasoning_content: StrictStr | None = None
    reasoning: StrictStr | None = None
    refusal: StrictStr | None = None


class _Choice(BaseModel):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    text: StrictStr | None = None
    """The completion, where it is not one of a chat."""
    finish_reason: StrictStr | None = None


class _Usage(BaseModel):
    completion_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    prompt_tokens: Annotated[StrictInt, Field(ge=0)] | None = None


class _Event(BaseModel):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: StrictStr | None = None
    system_fingerprint: StrictStr | None = None
    error: Any = None


class Answer:
    """A completion that is being received. `feed` it what comes; `reply` when that is all. Both raise RequestError."""

    def __init__(self) -> None:
        self.deltas = 0
        """Events that brought something: about as many as tokens."""
        self._streamed: bool | None = None
        self._body, self._size, self._events = b"", 0, 0
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._chosen = False
        self._tokens: int | None = None
        self._prompt_tokens: int | None = None
        self._reason: str | None = None
        self._model: str | None = None
        self._fingerprint: str | None = None

    def feed(self, part: bytes) -> bool:
        """Take bytes of the body; return whether they brought anything new: an event, or the begin of a whole body."""
        self._size += len(part)
        if self._size > LONGEST_BODY:
            raise RequestError(f"an answer of more than {LONGEST_BODY >> 20} MiB", text=self.text())
        self._body += part
        if self._streamed is None:  # by its first characters: servers send either under the other's content type
            begin = self._body.lstrip()[:16]
            if not begin or (len(begin) < 6 and re.fullmatch(rb"[a-z]+", begin)):
                return False
            self._streamed = re.match(rb"(data|event|id|retry)?:", begin) is not None
            if not self._streamed:
                return True
        elif not self._streamed:
            return False
        *lines, self._body = self._body.split(b"\n")
        before = self._events
        for line in lines:
            if line.startswith(b"data:"):
                self._add(line[5:].strip())
        return self._events > before

    def _add(self, document: bytes) -> None:
        """Take one event."""
        self._events += 1
        if not document or document == b"[DONE]":
            return
        try:
            event = _Event.model_validate_json(document)
        except pydantic.ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            why = f"malformed answer: {where}: {first['msg']}"
            raise RequestError(why, passing=True, text=self.text()) from None
        if event.error is not None:
            said = event.error.get("message", event.error) if isinstance(event.error, dict) else event.error
            raise RequestError(f"the server broke off: {one_line(str(said))}", passing=True, text=self.text())
        self._model, self._fingerprint = event.model or self._model, event.system_fingerprint or self._fingerprint
        if event.usage is not None and event.usage.completion_tokens is not None:
            self._tokens, self._prompt_tokens = event.usage.completion_tokens, event.usage.prompt_tokens
        for choice in event.choices or ():
            if choice.index != 0:  # one was asked for
                continue
            self._chosen = True
            self._reason = choice.finish_reason or self._reason
            message = choice.delta or choice.message or _Message(content=choice.text)
            content, thoughts = message.content or message.refusal, message.reasoning_content or message.reasoning
            self.deltas += bool(content or thoughts)
            if thoughts:
                self._thoughts.append(thoughts)
            if isinstance(content, str):
                self._texts.append(content)
            for part in content if isinstance(content, list) else ():
                self._texts.append(part.text or "")
                self._thoughts.append(part.thoughts)

    def text(self) -> str:
        """Return what there is of the completion, thoughts in their tags."""
        text, thoughts = "".join(self._texts), "".join(self._thoughts)
        if not thoughts:
            return text
        return f"<think>{thoughts}</think>{text}" if text or self._reason in ENDED else f"<think>{thoughts}"

    def reply(self) -> Reply:
        """Return the whole completion."""
        if not self._streamed:
            self._add(self._body.strip() or b"{")
            self.deltas = 0  # a whole body is no event
        elif self._body.startswith(b"data:"):
            self._add(self._body[5:].strip())
        text, reason = self.text(), self._reason
        if reason == "content_filter":
            raise RequestError("the server's content filter withheld the completion", text=text)
        if reason not in ENDED | CUT_OFF:
            if not self._streamed and not self._chosen:
                raise RequestError("malformed answer: choices: there are none", passing=True)
            raise RequestError(f"the completion was not finished (finish_reason {reason})", passing=True, text=text)
        ending = "length" if reason in CUT_OFF else "stop"
        return Reply(text, self._tokens, ending, self._model, self._fingerprint, self._prompt_tokens)


def refused(status: int, headers: Any, body: bytes) -> RequestError:
    """Return the error in an HTTP answer whose status is not 200."""
    if 300 <= status < 400:
        where = one_line(str(headers.get("location", "?")))
        return RequestError(f"HTTP {status}: it redirects to {where}; --base-url takes that address", status=status)
    return RequestError(
        f"HTTP {status}: {_message(body)}",
        passing=(status >= 500 or status in _TRY_AGAIN) and b"insufficient_quota" not in body,
        lost=status >= 500,
        pause_s=_retry_after(headers.get("retry-after", "")),
        status=status,
    )


def _message(body: bytes) -> str:
    """Return what a server says of an error, in whatever form it says it, as one short printable line."""
    text = body[:10_000].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        found = pydantic.TypeAdapter(dict[str, object]).validate_json(body)
        inner = found.get("error", found)
        text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    return one_line(text)


def one_line(text: str) -> str:
    """Return text without line breaks and control characters, cut to LONGEST_MESSAGE."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 10 * LONGEST_MESSAGE])
    return " ".join(printable.split())[:LONGEST_MESSAGE]


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header: a number or a date; 0 where it says nothing that can be read."""
    with contextlib.suppress(ValueError):
        return min(LONGEST_WAIT_S, max(0.0, float(value)))
    with contextlib.suppress(ValueError, TypeError):
        return min(LONGEST_WAIT_S, max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()))
    return 0.0
