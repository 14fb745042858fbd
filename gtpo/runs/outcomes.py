"""How a reply ended: what a server, or a file, says of it, compared with what is known of it.

`check_reply` looks at one reply, `shared_limit` and `cut_prompts` at what the replies of a run say together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from gtpo.rewards.thoughts import plain, without_thoughts

# complete: it ended by itself. cut off: at a limit, or with a word that is not known. empty: no text outside thoughts.
# blocked: a filter held it back. prompt cut: the model read a part of its prompt. unknown: nothing says how it ended.
Outcome = Literal["complete", "cut off", "empty", "blocked", "prompt cut", "unknown"]

# What the letters of a finish reason hold, in any server's spelling; the first that fits counts.
_FINISHES = (
    ("failed", r"error|abort|fail|cancel|timeout|timelimit|timedout|deadline|rateli|rateex|quota|resource|unavail"
               r"|overload|malformed|unexpected|unspecified|unfinish|notfinish|interrupt|disconnect|killed"),
    ("refused", r"filter|safety|recitation|blocklist|blocked|prohibited|spii|refus|sensitive|guardrail|policy|moderat"
                r"|unsafe"),
    ("length", r"length|limit|trunc|incomplete|cutoff|context|ctx|exceed|capped|budget|n(?:um)?predict"
               r"|max(?:imum)?(?:new|output|completion|total|token|len|hit|reach)|(?:hit|reached)max"),
    ("tool", r"tool|functioncall"),
    ("stop", r"stop|^eo[smta]|^end|reachedend|finish|done|^complete|success|succeed|normal|natural|^ok$"),
)  # fmt: skip
_SAYS_NOTHING = frozenset(("", "none", "null", "unknown", "na", "undefined"))


def finish_word(word: str) -> str:
    """Return stop, length, tool, refused or failed for how a completion ended, "" if that says nothing, else itself.

    By the letters only: `FinishReason.MAX_TOKENS`, `max-tokens` and `maxTokens` are one word.
    """
    letters = "".join(filter(str.isalpha, word.rpartition(".")[2].lower())).removeprefix("finishreason")
    if letters in _SAYS_NOTHING:
        return ""
    return next((name for name, pattern in _FINISHES if re.search(pattern, letters)), word)


class Tokens(NamedTuple):
    """What is counted of a reply; None if it is not known."""

    completion: int | None = None  # The larger of what is said and what follows from the totals
    prompt: int | None = None
    said: int | None = None  # Of the completion, as it is said: some leave thoughts out


def read_usage(usage: Mapping[str, Any]) -> Tokens:
    """Return the tokens in what a server says of its use, in OpenAI's or Anthropic's names."""
    details: dict[str, Any] = {}
    for name in ("completion_tokens_details", "output_tokens_details", "prompt_tokens_details", "input_tokens_details"):
        if isinstance(block := usage.get(name), Mapping):
            details |= block

    def count(*names: str) -> int | None:
        values = [*(usage.get(name) for name in names), *(details.get(name) for name in names)]
        return next((number for value in values if (number := whole_number(value)) is not None), None)

    prompt, completion = count("prompt_tokens", "input_tokens"), count("completion_tokens", "output_tokens")
    total, thoughts, cached = count("total_tokens"), count("reasoning_tokens") or 0, count("cached_tokens") or 0
    if prompt is not None and "prompt_tokens" not in usage:
        cached += (count("cache_read_input_tokens") or 0) + (count("cache_creation_input_tokens") or 0)
    # What a cache has is a part of the prompt, which some count without it.
    if prompt is not None and cached > prompt:
        prompt += cached
    known = [n for n in (completion, None if total is None or prompt is None else total - prompt) if n is not None]
    # Thoughts are a part of the completion: more of them stand beside it.
    if thoughts > (completion or 0):
        known.append(thoughts + (completion or 0))
    return Tokens(max(known, default=None), prompt, completion)


def whole_number(value: Any) -> int | None:
    """Return a count that a server sent; None if it is none."""
    whole = isinstance(value, int | float) and value >= 0 and value == value // 1 and not isinstance(value, bool)
    return int(value) if whole else None


class Reply(NamedTuple):
    """What there is of a reply that has ended."""

    text: str  # Without thoughts that came apart
    thought: str = ""
    word: str = ""  # How it ended, as it is said; "" if nothing is
    tool_call: bool = False
    withheld: bool = False  # Whether a filter says that it held something back
    tokens: Tokens = Tokens()


class Ending(NamedTuple):
    """What is known of how a reply ended."""

    outcome: Outcome | None = None  # None: the provider failed, or broke off
    finish_reason: str | None = None  # stop, length, or a word that is not known
    why: str = ""  # Why there is no text to score, if there is none


_NO_CHARACTER = re.compile(r"[\s\u200b-\u200f\u2060\ufeff\ufffd\0]*")
# What a server's parser leaves of a delimiter: `/think>`.
_REMAINS = re.compile(r"(?=.*[<>/|\[\]])\W*(?:think(?:ing)?|thoughts?|reasoning)\W*", re.IGNORECASE)


def says_something(text: str) -> bool:
    """Return whether a reply has a text outside thoughts."""
    # Only what ends with a delimiter needs a look at all of it.
    if len(text) > 200 and text.rstrip()[-1:] not in (">", "]", "|", "▷"):
        return True
    visible = without_thoughts(plain(text))
    return _NO_CHARACTER.fullmatch(visible) is None and _REMAINS.fullmatch(visible) is None


def check_reply(reply: Reply, max_tokens: int | None = None, context: int | None = None) -> Ending:
    """Return how a reply ended, from what is said of it and from what is known.

    max_tokens: the most that was asked for. context: the most that prompt and completion may have together.
    """
    word, (tokens, prompt, said) = finish_word(reply.word), reply.tokens
    if word == "refused" or (reply.withheld and word != "failed"):
        return Ending("blocked", None, f"the server withheld the completion (finish_reason {reply.word or None})")
    if word == "failed":
        return Ending(why=f"the completion was not finished (finish_reason {reply.word})")
    for_tool = reply.tool_call or word == "tool"
    at_limit = max_tokens is not None and ((said or 0) >= max_tokens or tokens == max_tokens)
    if context is not None and tokens is not None and prompt is not None:
        at_limit = at_limit or tokens + prompt >= context
    limited = word == "length" or (at_limit and word in ("stop", ""))
    if not says_something(reply.text):
        thought = bool(reply.thought) or "<think>" in plain(reply.text)
        if thought and word == "stop" and not limited and not for_tool:
            # The model's own: it thought and said nothing.
            return Ending("empty", "stop")
        # Thoughts that are not shown may have used up the tokens.
        spent = limited and (thought or tokens != 0)
        if not spent and (not thought or for_tool or not word):
            return Ending("empty", None, _empty(reply, tokens))
    if limited:
        return Ending("cut off", "length")
    if for_tool:
        # What waits for a tool is not at its end.
        return Ending("cut off", "tool_calls")
    if word in ("stop", ""):
        return Ending("complete" if word else "unknown", word or None)
    return Ending("cut off", reply.word[:40])


def _empty(reply: Reply, tokens: int | None) -> str:
    parts = [f"finish_reason {reply.word or None}", *([f"{tokens} tokens"] if tokens else [])]
    parts += ["a tool call"] * reply.tool_call + ["a thought"] * bool(reply.thought)
    return f"the reply is empty ({', '.join(parts)}, no text)"


# -- what several say together -----------------------------------------------------------------------------------------

SEVERAL = 3  # So many have one number by a limit, not by chance
_Key = TypeVar("_Key", bound=Hashable)


def _is_round(count: int) -> bool:
    """Return whether a count is as limits are, a few tokens of a template aside."""
    return count >= 128 and (min(count % 128, -count % 128) <= 2 or count % 500 == 0)


def shared_limit(counts: Sequence[int]) -> int | None:
    """Return the number of tokens at which replies seem to be cut: a round one that several have and none exceeds."""
    largest = max(counts, default=0)
    several = SEVERAL <= counts.count(largest) < len(counts)
    return largest if several and _is_round(largest) else None


def cut_prompts(prompts: Mapping[_Key, tuple[int, int]]) -> set[_Key]:
    """Return the questions whose prompt was cut, by (its bytes, the tokens of it that were read) of each.

    A token has hardly more than 12 bytes, in a whole text hardly more than 6; and texts of different lengths do not
    have one largest number of tokens.
    """
    cut = {key for key, (size, tokens) in prompts.items() if size > 12 * tokens}
    counts = Counter(tokens for _, tokens in prompts.values())
    largest = max(counts, default=0)
    full = {key: size for key, (size, tokens) in prompts.items() if tokens == largest}
    if len(full) >= SEVERAL:
        differ = max(full.values()) - min(full.values()) >= 64
        alike = len(full) == len(prompts) and len(set(full.values())) > 1
        if differ or (alike and (_is_round(largest) or min(full.values()) > 6 * largest)):
            cut |= full.keys()
    return cut
