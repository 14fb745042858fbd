"""The openai engine: any server with OpenAI's chat completions (vLLM, SGLang, a cluster's endpoint).

One request a sample, each with the sample's seed, many in flight; a server that caches prefixes reads a prompt once.
429, 5xx and lost connections are tried again with growing pauses. The key comes from the environment, goes into the
request header and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx

from evalkit.engines.base import EngineStopped, Generation, Sampling, Task, sample_seed
from evalkit.engines.model_ref import ModelRef
from rewards.support.errors import UserError, did_you_mean
from rewards.support.provenance import package_versions

ATTEMPTS = 6
LONGEST_PAUSE_S = 20.0
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""Seconds; reading waits for a whole completion."""

NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent to vLLM and SGLang, which otherwise fill in what a model's generation_config.json recommends (Qwen2.5: top_k 20
and a repetition penalty), so that the same command would sample from another distribution than in process."""

GATHER_S = 0.5
"""Completions that arrive within this time are handed on together."""


class OpenAIEngine:
    """Samples from a server at `base_url` (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1.

    Raises UserError where the server cannot be reached, refuses the key, or does not serve the model.
    """

    name = "openai"

    def __init__(
        self,
        ref: ModelRef,
        sampling: Sampling,
        *,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 64,
    ) -> None:
        url = base_url or os.environ.get("OPENAI_BASE_URL")
        if not url:
            raise UserError("--engine openai needs --base-url (or OPENAI_BASE_URL), e.g. http://127.0.0.1:8000/v1")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError("--base-url must start with http:// or https://, e.g. http://127.0.0.1:8000/v1")
        if parts.username or parts.password or parts.query:
            raise UserError(
                f"--base-url must hold no credentials: put the key in the environment variable {api_key_env}"
            )
        self.url, self.ref, self.sampling = url.rstrip("/"), ref, sampling
        self.concurrency, self.key_name = concurrency, api_key_env
        key = os.environ.get(api_key_env)
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )
        self._stop = threading.Event()
        self._neutral: dict[str, float] = {}
        self._check_server()

    def _check_server(self) -> None:
        try:
            response = self._client.get(f"{self.url}/models", timeout=30.0)
        except httpx.HTTPError as error:
            raise UserError(f"no server answers at {self.url} ({type(error).__name__}: {error})") from None
        self._refuse(response)
        try:
            listed = response.json()["data"]
            served = [str(entry["id"]) for entry in listed]
            if any(entry.get("owned_by") in ("vllm", "sglang") for entry in listed):
                self._neutral = NEUTRAL
        except (ValueError, KeyError, TypeError):
            return  # not every server lists its models
        if response.status_code == 200 and served and self.ref.source not in served:
            near = did_you_mean(self.ref.source, served)
            raise UserError(f'{self.url} does not serve "{self.ref.source}".{near} It serves: {", ".join(served[:8])}')

    def _refuse(self, response: httpx.Response) -> None:
        """Raise UserError for what no retry mends."""
        status = response.status_code
        if status in (401, 403):
            state = "the key in" if os.environ.get(self.key_name) else "a request without a key; set"
            raise UserError(f"{self.url} refuses {state} {self.key_name} (HTTP {status})")
        if 400 <= status < 500 and status not in (404, 408, 409, 425, 429):
            raise UserError(f"{self.url} refuses the request (HTTP {status}): {_message(response)}")

    def describe(self) -> dict[str, Any]:
        """Return name, the server's address and what it says of itself."""
        versions = package_versions("httpx")
        root = self.url.removesuffix("/v1")
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):  # only vLLM and its like say
            versions["server"] = str(self._client.get(f"{root}/version", timeout=10.0).json()["version"])
        return {"name": self.name, "versions": versions, "hardware": None, "base_url": self.url}

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield completions as they arrive. Raises EngineStopped once the server stays away."""
        wanted = [(task, index) for task in tasks for index in task.missing]
        results: queue.Queue[Generation | Exception] = queue.Queue()

        def work(task: Task, index: int) -> None:
            if self._stop.is_set():
                return
            try:
                results.put(self._complete(task, index))
            except Exception as error:  # told to the caller, below
                results.put(error)

        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="openai")
        try:
            for task, index in wanted:
                pool.submit(work, task, index)
            left = len(wanted)
            while left:
                gathered, error = self._gather(results, left)
                left -= len(gathered)
                if gathered:
                    yield gathered
                if error is not None:
                    self._stop.set()
                    pool.shutdown(wait=True, cancel_futures=True)  # what is in flight may still arrive
                    late, _ = self._gather(results, results.qsize()) if results.qsize() else ([], None)
                    if late:
                        yield late
                    raise error
        finally:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _gather(results: queue.Queue[Generation | Exception], most: int) -> tuple[list[Generation], Exception | None]:
        """Return what arrives within GATHER_S of the first arrival, and the first error among it."""
        gathered: list[Generation] = []
        error: Exception | None = None
        end = None
        while len(gathered) < most:
            try:
                result = results.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            end = end or time.monotonic() + GATHER_S
            if isinstance(result, Exception):
                error = error or result
                break
            gathered.append(result)
        return gathered, error

    def _complete(self, task: Task, index: int) -> Generation:
        seed = sample_seed(self.sampling.seed, task.benchmark, task.question_id, index)
        payload = {
            "model": self.ref.source,
            "messages": task.prompt.messages,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self.sampling.max_tokens,
            "seed": seed,
            **self._neutral,
        }
        answer = self._post(payload)
        choice = answer["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        if thoughts:
            text = f"<think>{thoughts}</think>{text}"
        tokens = (answer.get("usage") or {}).get("completion_tokens")
        reason = "length" if choice.get("finish_reason") == "length" else "stop"
        return Generation(task.benchmark, task.question_id, index, text, tokens, reason, seed)

    def _post(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Send one request, again where that may help. Raises UserError or EngineStopped."""
        error, pause = "", 0.0
        for attempt in range(ATTEMPTS):
            if attempt and self._stop.wait(pause):
                break
            pause = min(LONGEST_PAUSE_S, 0.5 * 2**attempt) * random.uniform(0.75, 1.25)
            try:
                response = self._client.post(f"{self.url}/chat/completions", json=payload)
            except (httpx.HTTPError, RuntimeError) as lost:  # RuntimeError: the client was closed under the request
                error = f"{type(lost).__name__}: {lost}"
                continue
            self._refuse(response)
            if response.status_code == 200:
                try:
                    answer: dict[str, Any] = response.json()
                    answer["choices"][0]["message"].get("content")
                    return answer
                except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                    error = f"an answer that is no chat completion: {response.text[:120]!r}"
                    continue
            if response.status_code == 404:
                raise UserError(f"{self.url}/chat/completions is not there (HTTP 404): {_message(response)}")
            error = f"HTTP {response.status_code}: {_message(response)}"
            with contextlib.suppress(ValueError):  # the header may hold a date; the growing pause will do
                pause = max(pause, min(120.0, float(response.headers.get("retry-after", "0"))))
        raise EngineStopped(f"the server at {self.url} gave no answer in {ATTEMPTS} attempts ({error})")

    def close(self) -> None:
        """Drop the connections."""
        self._stop.set()
        self._client.close()


def _message(response: httpx.Response) -> str:
    try:
        error = response.json()
        error = error.get("error", error)
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.text
    return " ".join(str(text).split())[:300]
