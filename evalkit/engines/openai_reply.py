"""What an OpenAI-compatible server answers, checked field by field: a completion, or the reason why there is none."""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import pydantic
from pydantic import BaseModel, Field, StrictInt, StrictStr

LONGEST_MESSAGE = 300
"""Characters of a server's message that are repeated to the user."""

LONGEST_WAIT_S = 120.0
"""Most that a Retry-After header is followed."""

_TRY_AGAIN = (408, 409, 425, 429)
"""Client errors that pass; every other one stays."""


ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"})
CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "max_new_tokens", "model_length", "token_limit"})
"""What servers call a completion that came to its end, and one that reached the limit. All else is a failure."""


class RequestError(Exception):
    """A request without a completion.

    passing: another attempt may help, after pause_s. lost: the server itself may be gone.
    status: the HTTP status, where there was an answer. text: what there is of the completion.
    """

    def __init__(
        self,
        message: str,
        *,
        passing: bool = False,
        lost: bool = False,
        pause_s: float = 0.0,
        status: int | None = None,
        text: str = "",
    ) -> None:
        super().__init__(message)
        self.text = text
        self.passing, self.lost, self.pause_s, self.status = passing, lost, pause_s, status


class Reply(NamedTuple):
    """A completion as the server gave it."""

    text: str
    tokens: int | None
    finish_reason: str


class _Message(BaseModel):
    content: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    reasoning: StrictStr | None = None
    refusal: StrictStr | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: StrictStr | None = None


class _Usage(BaseModel):
    completion_tokens: Annotated[StrictInt, Field(ge=0)] | None = None


class _ChatCompletion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage | None = None


def read_reply(status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    """Return the completion in an HTTP answer. Raises RequestError where it holds none."""
    if status != 200:
        passing = status >= 500 or status in _TRY_AGAIN
        raise RequestError(
            f"HTTP {status}: {error_message(body)}",
            passing=passing,
            lost=status >= 500,
            pause_s=_retry_after(headers.get("retry-after", "")),
            status=status,
        )
    try:
        answer = _ChatCompletion.model_validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RequestError(f"malformed answer: {where}: {first['msg']}", passing=True) from None
    choice = answer.choices[0]
    reason, message = choice.finish_reason, choice.message
    text = message.content or message.refusal or ""
    thoughts = message.reasoning_content or message.reasoning
    if thoughts:
        text = f"<think>{thoughts}</think>{text}" if text or reason in ENDED else f"<think>{thoughts}"
    if reason == "content_filter":
        raise RequestError("the server's content filter withheld the completion", text=text)
    if reason not in ENDED | CUT_OFF:
        raise RequestError(f"the completion was not finished (finish_reason {reason})", passing=True, text=text)
    tokens = answer.usage.completion_tokens if answer.usage is not None else None
    return Reply(text, tokens, "length" if reason in CUT_OFF else "stop")


def error_message(body: bytes) -> str:
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
