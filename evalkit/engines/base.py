"""What every engine takes and gives: tasks in, samples out, in whatever order they finish."""

from __future__ import annotations

import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from gtpo.rewards.completions import opened_thought, plain, unfinished

# It brings pyarrow, and `gtpo eval --list` reads this module.
if TYPE_CHECKING:
    from gtpo.runs.eval_folder import Sample


class Prompt(NamedTuple):
    """One question as an engine sees it."""

    messages: list[dict[str, str]]  # The conversation; empty if the prompt is one text for a base model
    # The text as the model reads it; None if a server applies its chat template and does not show it.
    text: str | None = None
    ids: list[int] | None = None

    @property
    def size(self) -> int:
        """The bytes of its texts, without what a template adds."""
        texts = [message["content"] for message in self.messages] if self.messages else [self.text or ""]
        return sum(len(text.encode()) for text in texts)


@dataclass(frozen=True, slots=True)
class Task:
    """The samples that one question still lacks."""

    benchmark: str
    question_id: str
    prompt: Prompt
    # Sample indices, ascending; may be empty: the question is there so that batches are always cut alike.
    missing: tuple[int, ...]


class Reading(NamedTuple):
    """How completions are read: what of them is thought, and where they end."""

    stop: tuple[str, ...] = ()  # A completion ends before the first of these texts outside a thought
    thoughts: tuple[tuple[str, str], ...] = ()  # Delimiters of thoughts beside those that `gtpo.rewards` knows
    begins_in_thought: bool = False  # Whether the prompt opens a thought; counts if it is not known as rendered

    def plain(self, text: str, prompt: str | None = None, *, cut: bool = True) -> str:
        """Return a completion with its thoughts in `<think>`, from where they begin. cut: it may end in the first."""
        for opening, closing in self.thoughts:
            text = text.replace(opening, "<think>").replace(closing, "</think>")
        text = plain(text)
        opened = self.opens_thought(prompt) if prompt is not None else self.begins_in_thought
        # Of a prompt that is not known: a whole completion that closes no thought had it taken out by the server.
        if prompt is None and not cut:
            opened = opened and "</think>" in text
        return f"<think>{text}" if opened and not text.lstrip().startswith("<think>") else text

    def opens_thought(self, prompt: str) -> bool:
        """Return whether completions of a rendered prompt begin inside a thought."""
        end = prompt.rstrip()
        return opened_thought(prompt) or any(end.endswith(opening) for opening, _ in self.thoughts)

    def ends_in_thought(self, text: str, prompt: str | None) -> bool:
        """Return whether what there is of a completion ends inside a thought."""
        return unfinished(self.plain(text, prompt))

    def read(self, sample: Sample, prompt: str | None) -> None:
        """Make a completion as it is stored: thoughts in <think>, from where they begin, cut before a stop text.

        prompt: as the model reads it, None if that is not known.
        """
        text = self.plain(sample.completion, prompt, cut=bool(sample.cut_off))
        # Stop texts end an answer, not a thought.
        answer = text.rfind("</think>") + 1
        ends = [at for stop in self.stop if (at := text.find(stop, answer)) >= 0]
        if ends and not unfinished(text):
            text = text[: min(ends)]
            if sample.error is None:
                sample.finish_reason, sample.outcome = "stop", "complete"
        sample.completion = text


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. temperature 0 takes the likeliest token."""

    temperature: float
    top_p: float
    max_tokens: int
    n: int
    seed: int
    top_k: int = 0  # Only the k likeliest tokens; 0: all
    min_p: float = 0.0  # Only tokens at least this fraction as likely as the likeliest
    presence_penalty: float = 0.0  # Subtracted from the logits of tokens that the completion already has
    # Divides (multiplies, if negative) the logits of tokens that prompt or completion already have.
    repetition_penalty: float = 1.0
    reading: Reading = field(default_factory=Reading)

    def parameters(self) -> dict[str, Any]:
        """Return name -> value of what decides how each token is drawn, and of max_tokens."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("n", "seed", "reading")}


def same_model(one: str, other: str) -> bool:
    """Return whether two names are of one model: spelled otherwise, with and without provider or date."""
    plain, dated = zip(*map(_name_and_date, (one, other)), strict=True)
    return plain[0] == plain[1] and (dated[0] == dated[1] or "" in dated)


def _name_and_date(name: str) -> tuple[str, str]:
    last = re.sub(r"(?::free|:latest|[-@:]latest|\.gguf)$", "", name.strip().lower().rstrip("/").rpartition("/")[2])
    date = re.search(r"[-@:_](?:\d{4}-\d\d-\d\d|\d\d-\d\d(?:-\d{4})?|20\d{6}|[01]\d[0-3]\d)$", last)
    return (last[: date.start()], date.group()[1:].replace("-", "")) if date else (last, "")


class Engine(ABC):
    """A source of completions. Created before sampling starts, closed after it."""

    name: str
    retried = 0  # Requests that failed and were sent again
    wasted = 0  # Tokens of requests that were sent again, as far as they are known
    _stop_at: float | None = None  # When `generate` ends at the latest; None: nobody has asked it to

    @property
    def left_out(self) -> Set[str]:
        """Sampling parameters that it cannot pass on, as far as it knows by now."""
        return frozenset()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what eval.json records of the engine: versions, hardware, and what its samples depend on."""

    @abstractmethod
    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        """Yield every missing sample with its completion, not scored; what has been yielded may be stored at once.

        One with an `error` has none: it stays unscored, and the next call asks for it again.
        """

    def running(self) -> tuple[int, int]:
        """Return how many samples it works on, and their tokens so far; the progress asks from another thread."""
        return 0, 0

    def stop(self, grace_s: float = 30.0) -> None:
        """Ask `generate` to end: begin nothing new, give up what is not finished after grace_s seconds.

        Only sets a flag: signal handlers call it.
        """
        end = time.monotonic() + grace_s
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)

    def close(self) -> None:  # noqa: B027  # an engine may have nothing to free
        """Free the device, stop processes."""


class EngineStopped(Exception):
    """The engine can give no more (a server died): what has been yielded stays, the rest can be resumed."""


def one_line(text: object, limit: int = 300) -> str:
    """Return a message without line breaks and control characters, cut to `limit`."""
    printable = "".join(c if c.isprintable() else " " for c in str(text)[: 10 * limit])
    return " ".join(printable.split())[:limit]


def sample_seed(run_seed: int, benchmark: str, question_id: str, sample_index: int) -> int:
    """Return the seed of one sample, in [0, 2^31): consecutive for the samples of a question.

    It depends on nothing but its arguments: not on n, the order, or the batch. 31 bits, because servers differ in
    what they accept; consecutive, as vLLM seeds the samples of one request itself.
    """
    digest = hashlib.sha256(f"{run_seed}\t{benchmark}\t{question_id}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") + sample_index) % 2**31
