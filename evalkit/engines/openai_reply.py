"""What an OpenAI-compatible server answers: a completion, or the reason why there is none.

A stream is put together from its events, a whole body is taken as its only one. What there is of a completion that
came to no end is kept with the reason.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import time
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from gtpo.evalkit.engines.base import finish_word

LONGEST_MESSAGE = 300
"""Characters of a server's message that are repeated to the user."""

LONGEST_WAIT_S = 120.0
"""Most that a Retry-After header is followed."""

LONGEST_BODY = 64 * 2**20
"""Bytes of one answer."""

_TRY_AGAIN = (408, 409, 425, 429)
"""Client errors that pass; every other one stays."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(eq=False)
class RequestError(Exception):
    """A request without a completion.

    passing: another attempt may help. pause_s: what the server asks to wait. status: the HTTP status, if there was an
    answer. text: what there is of the completion.
    """

    message: str
    _: KW_ONLY
    passing: bool = False
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
    prompt_tokens: int | None = None
    only_thought: bool = False
    """Whether all of it came as `reasoning_content`, though it ended by itself."""


class Answer:
    """A completion that is being received. `feed` it what comes; `reply` when that is all. Both raise RequestError."""

    def __init__(self) -> None:
        self.deltas = 0
        """Events that brought something: about as many as tokens."""
        self._rest = self._data = b""
        """The line that has begun, and the data of the event that has begun."""
        self._whole: list[bytes] = []
        """Lines that belong to no event: a whole body, whatever its content type says."""
        self._size = self._events = 0
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._model: str | None = None

    def feed(self, part: bytes) -> None:
        """Take bytes of the body."""
        self._size += len(part)
        if self._size > LONGEST_BODY:
            raise RequestError(f"an answer of more than {LONGEST_BODY >> 20} MiB", text=self.text())
        if b"\n" not in part and b"\r" not in part:
            self._rest += part
            return
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        """Take one line of a stream. An event may have its JSON on several; servers may leave out the blank one."""
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"data:"):
            self._events += 1
            self._data += (b"\n" if self._data else b"") + line[5:].strip()
            if self._data in (b"[DONE]", b""):
                self._data = b""
                return
            with contextlib.suppress(ValueError, RecursionError):
                self._add(json.loads(self._data))
                self._data = b""
        elif line.strip():
            self._whole.append(line)
        elif self._data:
            raise self._malformed(f"no JSON: {one_line(self._data.decode('utf-8', 'replace'))[:60]}")

    def _malformed(self, why: str) -> RequestError:
        return RequestError(f"malformed answer: {why}", passing=True, text=self.text())

    def _add(self, event: Any) -> None:
        """Take one event, or a whole body."""
        try:
            if (error := event.get("error")) is not None:
                message = error.get("message", error) if isinstance(error, dict) else error
                raise RequestError(f"the server broke off: {one_line(str(message))}", passing=True, text=self.text())
            self._model = event.get("model") or self._model
            self._usage |= event.get("usage") or {}
            for choice in event.get("choices") or ():
                if not choice.get("index"):  # one was asked for
                    self._reason = choice.get("finish_reason") or self._reason
                    self._take(choice.get("delta") or choice.get("message") or {"content": choice.get("text")})
        except (AttributeError, TypeError, ValueError) as error:
            raise self._malformed(one_line(f"{type(error).__name__}: {error}")) from None

    def _take(self, message: dict[str, Any]) -> None:
        content = message.get("content") or message.get("refusal") or ""
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        if isinstance(content, list):  # parts: text, or thoughts that have parts of their own
            thought = "".join(_joined(part.get("thinking")) for part in content) or thought
            content = _joined(content)
        if not (isinstance(content, str) and isinstance(thought, str)):
            raise TypeError(f"content is {type(content).__name__}")
        self.deltas += bool(content or thought)
        self._texts.append(content)
        self._thoughts.append(thought)

    def text(self) -> str:
        """Return what there is of the completion, thoughts in their tags."""
        text, thoughts = "".join(self._texts), "".join(self._thoughts)
        if thoughts:
            ended = text or finish_word(str(self._reason)) == "stop"
            text = f"<think>{thoughts}</think>{text}" if ended else f"<think>{thoughts}"
        if _SURROGATE.search(text):  # a character may come as two events with half of it each
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def reply(self) -> Reply:
        """Return the whole completion."""
        self._line(self._rest)
        self._line(b"")
        if not self._events:
            try:
                self._add(json.loads(b"\n".join(self._whole) or b"{}"))
            except (ValueError, RecursionError) as error:
                raise self._malformed(one_line(str(error))) from None
            self.deltas = 0  # a whole body is no event
        text, word = self.text(), finish_word(str(self._reason))
        if word == "refused":
            raise RequestError(f"the server withheld the completion (finish_reason {self._reason})", text=text)
        if word not in ("stop", "length"):
            said = f"the completion was not finished (finish_reason {self._reason})"
            raise RequestError(
                said if self._events or self._texts else "malformed answer: no choices", passing=True, text=text
            )
        written, read = (_count(self._usage.get(name)) for name in ("completion_tokens", "prompt_tokens"))
        only_thought = word == "stop" and any(self._thoughts) and not "".join(self._texts).strip()
        return Reply(text, written, word, self._model, read, only_thought)


def _joined(content: Any) -> str:
    """Return the text of parts; text itself stays."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part.get("text") or "" for part in content)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 and not isinstance(value, bool) else None


def refused(status: int, headers: Any, body: bytes) -> RequestError:
    """Return the error in an HTTP answer whose status is not 200."""
    if 300 <= status < 400:
        where = one_line(str(headers.get("location", "?")))
        return RequestError(f"HTTP {status}: it redirects to {where}; --base-url takes that address", status=status)
    text = body[:10_000].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        found = json.loads(text)
        inner = found.get("error", found)
        text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    return RequestError(
        f"HTTP {status}: {one_line(text)}",
        passing=(status >= 500 or status in _TRY_AGAIN) and b"insufficient_quota" not in body,
        pause_s=_retry_after(headers.get("retry-after", "")),
        status=status,
    )


def one_line(text: str) -> str:
    """Return text without line breaks and control characters, cut to LONGEST_MESSAGE."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 10 * LONGEST_MESSAGE])
    return " ".join(printable.split())[:LONGEST_MESSAGE]


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header: a number or a date; 0 if it says nothing that can be read."""
    with contextlib.suppress(ValueError):
        return min(LONGEST_WAIT_S, max(0.0, float(value)))
    with contextlib.suppress(ValueError, TypeError):
        return min(LONGEST_WAIT_S, max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()))
    return 0.0
