"""A server that streams completions and misbehaves in one way, as a process of its own.

    python streaming_server.py PORT MODE LOG

Sockets are written by hand, so that every byte may be wrong. LOG gets a line for each request: time, seed, status, and
whether the whole answer was sent. Faults named in FAULTS hit every third seed, once; the others are lasting.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
import time
from collections import Counter
from typing import Any

PIECE = 8
"""Characters of a token."""

FAULTS = (
    "hang-before", "hang-inside", "drip", "drip-json", "error-500", "reset", "malformed", "garbage", "empty-choices",
    "no-choices", "abort", "error", "null", "error-event", "other-model", "no-end", "html", "bad-gzip", "503-retry",
)  # fmt: skip


def text_of(seed: int) -> str:
    return f"<reasoning>seed {seed}</reasoning>\n<answer>{seed % 50}</answer>"


class Server:
    def __init__(self, mode: str, log: str) -> None:
        self.mode, self.log = mode, open(log, "a")  # noqa: SIM115
        self.times: Counter[int] = Counter()
        self.began = time.monotonic()
        self.tokens, self.filled = 10.0, time.monotonic()
        self.first_post: float | None = None
        self.answered = 0

    def note(self, seed: int, status: int, whole: bool) -> None:
        self.log.write(json.dumps([time.time(), seed, status, whole]) + "\n")
        self.log.flush()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((int(x.split(":")[1]) for x in head.split("\r\n") if x.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                if not await self.answer(head, body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays."""
        mode = self.mode
        if mode == "auth" and "authorization: bearer sesame" not in head:
            return self.whole(writer, 401, {"error": {"message": "who are you?"}})
        if mode == "header" and "x-team: maths" not in head:
            return self.whole(writer, 400, {"error": {"message": "X-Team is missing"}})
        if head.startswith("get"):
            if self.out():
                writer.transport.abort()  # type: ignore[attr-defined]
                return False
            listed = {"data": [{"id": "m", "owned_by": "someone", "max_model_len": 4096}]}
            return self.whole(writer, 200 if "/models" in head else 404, listed)
        if mode == "redirect":
            return self.whole(writer, 308, {}, location="http://elsewhere.example/v1")
        return await self.complete(json.loads(body), writer)

    def out(self) -> bool:
        """Return whether there is an outage now: from the tenth answer on, for two seconds."""
        if self.mode != "outage" or self.answered < 20:
            return False
        self.first_post = self.first_post or time.monotonic()
        return time.monotonic() - self.first_post < 2.0

    def whole(self, writer: asyncio.StreamWriter, status: int, body: Any, **headers: str) -> bool:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join(lines).replace("retry_after", "retry-after").encode() + b"\r\n\r\n" + data)
        return True

    def refused(self, request: dict[str, Any]) -> str | None:
        """What is wrong with a request in the eyes of this server."""
        unknown = {
            "refuses-seed": ("seed", "Unrecognized request argument supplied: seed"),
            "no-stream": ("stream", "Unsupported parameter: 'stream'"),
            "no-stream-options": ("stream_options", "stream_options: Extra inputs are not permitted"),
            "max-completion-tokens": (
                "max_tokens",
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            ),
        }
        name, message = unknown.get(self.mode, ("", ""))
        return message if name in request else None

    async def complete(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        mode, seed = self.mode, request.get("seed", 0)
        canary = request.get("max_tokens", request.get("max_completion_tokens")) == 48
        self.times[seed] += not canary
        if (message := self.refused(request)) is not None:
            return self.whole(writer, 400, {"error": {"message": message}})
        if mode.startswith("bucket"):
            now = time.monotonic()
            self.tokens, self.filled = min(10.0, self.tokens + 10 * (now - self.filled)), now
            if self.tokens < 1:
                self.note(seed, 429, False)
                headers = {"retry_after": "1"} if mode == "bucket-retry-after" else {}
                return self.whole(writer, 429, {"error": {"message": "slow down"}}, **headers)
            self.tokens -= 1
            if mode == "bucket-slow":
                await asyncio.sleep(1.0)
        if self.out():
            writer.transport.abort()  # type: ignore[attr-defined]
            return False
        hit = not canary and seed % 3 == 0 and self.times[seed] == 1
        fault = mode if mode in FAULTS and hit else ""
        text = text_of(seed)
        if mode == "ignores-seed":
            text = f"{random.random()} {text}"
        if mode == "one-text":
            text = text_of(7)
        if mode == "burst-500" and not canary and 6 < sum(self.times.values()) <= 30:
            fault = "error-500"
        choice = {"index": 0, "finish_reason": "stop"}
        base = {"id": "x", "object": "chat.completion.chunk", "model": "m", "system_fingerprint": "fp"}
        if fault == "other-model" or (mode == "renamed") or (mode == "switches" and self.answered > 20):
            base["model"] = "m-0613"
        if fault == "hang-before" or mode == "hangs":
            await asyncio.sleep(60)
        if fault == "error-500":
            self.note(seed, 500, False)
            return self.whole(writer, 500, {"error": "oops"})
        if fault == "503-retry":
            return self.whole(writer, 503, b"<html>busy</html>", retry_after="0.1")
        if fault == "html":
            return self.whole(writer, 200, b"<html>a proxy's page</html>")
        if fault == "bad-gzip":
            return self.whole(writer, 200, b"\x1f\x8b not gzip", **{"content-encoding": "gzip"})
        if fault == "drip-json":
            writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n{")
            for _ in range(600):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.1)
        if fault in ("empty-choices", "no-choices"):
            return self.whole(writer, 200, {**base, "choices": []} if fault == "empty-choices" else base)
        finish = fault if fault in ("abort", "error") else None if fault == "null" else "stop"
        if mode.startswith("finish-"):
            finish = mode.removeprefix("finish-")
        usage = {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
        if mode in ("ignores-stream", "no-stream", "gzip", "several-choices", "null-content"):
            message = {"role": "assistant", "content": None if mode == "null-content" else text}
            choices = [{**choice, "message": message}]
            if mode == "several-choices":
                choices = [{**choice, "index": 1, "message": {"content": "another"}}, *choices]
            body = json.dumps({**base, "choices": choices, "usage": usage}).encode()
            self.note(seed, 200, True)
            self.answered += 1
            if mode == "gzip":
                return self.whole(writer, 200, gzip.compress(body), **{"content-encoding": "gzip"})
            return self.whole(writer, 200, body)
        kind = "application/json" if mode == "wrong-type" else "text/event-stream"
        writer.write(f"HTTP/1.1 200 X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        end = "\r\n" if mode == "crlf" else "\n"

        def send(data: bytes) -> None:
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        def event(document: Any) -> None:
            send(f"data: {json.dumps(document)}{end}{end}".encode())

        if mode == "comments":
            for _ in range(3):
                send(b": PROCESSING\n\n")
                await asyncio.sleep(0.05)
        pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
        for number, piece in enumerate(pieces):
            if number == 3:
                if fault == "hang-inside":
                    await asyncio.sleep(60)
                if fault == "drip":
                    for _ in range(600):
                        send(b":")
                        await writer.drain()
                        await asyncio.sleep(0.1)
                if fault == "reset":
                    await writer.drain()
                    writer.transport.abort()  # type: ignore[attr-defined]
                    return False
                if fault == "malformed":
                    send(b'data: {"choices": [\n\n')
                if fault == "garbage":
                    writer.write(b"\xff\xfenot a chunk\r\n")
                if fault == "error-event":
                    event({"error": {"message": "out of memory", "code": 500}})
                    send(b"data: [DONE]\n\n")
                    writer.write(b"0\r\n\r\n")
                    return True
            if mode == "slow-long":
                await writer.drain()
                await asyncio.sleep(0.25 if seed % 4 == 0 and not canary else 0.0)
            delta: dict[str, Any] = {"content": piece}
            if mode == "parts":
                delta = {"content": [{"type": "text", "text": piece}]}
            if mode in ("reasoning", "reasoning-cut") and number < 2:
                delta = {"reasoning_content": piece}
            event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if fault != "no-end":
            event({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if mode != "no-usage":
            event({**base, "choices": [], "usage": usage})
        if mode != "no-done" and fault != "no-end":
            send(b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        if not canary:
            self.answered += 1
            self.note(seed, 200, not fault)
        return True


async def main() -> None:
    server = Server(sys.argv[2], sys.argv[3])
    listening = await asyncio.start_server(server.handle, "127.0.0.1", int(sys.argv[1]), backlog=512)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
