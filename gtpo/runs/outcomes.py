"""How a reply ended: what a server, or a file, says of it, compared with what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gtpo.rewards.completions import plain, unfinished, without_thoughts

# complete: it ended by itself. cut off: at a limit, or with a word that is not known. empty: no text outside thoughts.
# blocked: a filter held it back. prompt cut: the model read a part of its prompt. unknown: nothing says how it ended.
Outcome = Literal["complete", "cut off", "empty", "blocked", "prompt cut", "unknown"]

# What the letters of a finish reason hold, in any server's spelling; the first that fits counts.
_FINISHES = (
    ("failed", r"error|abort|fail|cancel|timeout|timelimit|timedout|deadline|rateli|rateex|quota|resource|unavail"
               r"|overload|malformed|unexpected|unspecified|unfinish|notfinish|notcomplete|interrupt|disconnect|killed"
               r"|userstop|byuser|outofmemory|unloaded"),
    ("refused", r"filter|safety|recitation|blocklist|blocked|prohibited|spii|refus|sensitive|guardrail|policy|moderat"
                r"|unsafe"),
    ("length", r"length|limit|trunc|incomplete|cutoff|context|ctx|exceed|capped|budget|n(?:um)?predict"
               r"|max(?:imum)?(?:new|predicted|output|completion|total|token|len|hit|reach)|(?:hit|reached)max"),
    ("tool", r"tool|functioncall"),
    ("stop", r"stop|^eo[smta]|eos(?:reached)?$|^end|imend|reachedend|finish|done|complete|succe|normal|natural|^ok$"),
    ("", r"^(?:|none|null|unknown|na|undefined)$"),
)  # fmt: skip


def finish_word(word: str) -> str:
    """Return stop, length, tool, refused or failed for how a completion ended, "" if that says nothing, else itself.

    By the letters only: `FinishReason.MAX_TOKENS`, `max-tokens` and `maxTokens` are one word.
    """
    letters = "".join(filter(str.isalpha, word.rstrip(". ").rpartition(".")[2].lower())).removeprefix("finishreason")
    return next((name for name, pattern in _FINISHES if re.search(pattern, letters)), word)


class Tokens(NamedTuple):
    """What is counted of a reply; None if it is not known."""

    completion: int | None = None  # The larger of what is said and what follows from the totals
    prompt: int | None = None
    said: int | None = None  # Of the completion, as it is said: some leave thoughts out


def read_usage(usage: Mapping[str, Any]) -> Tokens:
    """Return the tokens in what a server says of its use, in OpenAI's or Anthropic's names."""
    blocks = [usage, *(block for name, block in usage.items() if name.endswith("_details") and isinstance(block, dict))]

    def count(*names: str) -> int | None:
        values = (whole_number(block.get(name)) for block in blocks for name in names)
        return next((value for value in values if value is not None), None)

    prompt, completion = count("prompt_tokens", "input_tokens"), count("completion_tokens", "output_tokens")
    total, thoughts, cached = count("total_tokens"), count("reasoning_tokens") or 0, count("cached_tokens") or 0
    if "prompt_tokens" not in usage:
        cached = (count("cache_read_input_tokens") or 0) + (count("cache_creation_input_tokens") or 0) or cached
    # What a cache has is a part of the prompt, which some count without it.
    if prompt is not None and cached > prompt:
        prompt += cached
    known = [n for n in (completion, None if total is None or prompt is None else total - prompt) if n is not None]
    # Thoughts are a part of the completion: more of them stand beside it.
    known += [thoughts + (completion or 0)] if thoughts > (completion or 0) else []
    return Tokens(*map(whole_number, (max(known, default=None), prompt, completion)))


def whole_number(value: Any) -> int | None:
    """Return a count that a server or a file says; None if it is none, or more than a column of int32 holds."""
    whole = isinstance(value, int | float) and 0 <= value < 2**31 and value % 1 == 0 and not isinstance(value, bool)
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


# Nothing, or what a server's parser leaves of a delimiter: `/think>`.
_NOTHING = re.compile(
    r"[\s\u200b-\u200f\u2060\ufeff\ufffd\0]*|(?=.*[<>/|\[\]])\W*(?:think(?:ing)?|thoughts?|reasoning)\W*", re.IGNORECASE
)


def says_something(text: str) -> bool:
    """Return whether a reply has a text outside thoughts, or one that it left unfinished."""
    text = plain(text)
    text = text.rpartition("<think>")[2] if unfinished(text) else without_thoughts(text)
    return _NOTHING.fullmatch(text) is None


def check_reply(reply: Reply, max_tokens: int | None = None, context: int | None = None) -> Ending:
    """Return how a reply ended, from what is said of it and from what is known.

    max_tokens: the most that was asked for. context: the most that prompt and completion may have together.
    """
    word, (tokens, prompt, said) = finish_word(reply.word), reply.tokens
    if word == "refused" or (reply.withheld and word != "failed"):
        return Ending("blocked", why=f"the server withheld the completion (finish_reason {reply.word or None})")
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
            parts = [f"finish_reason {reply.word or None}", *([f"{tokens} tokens"] if tokens else [])]
            parts += ["a tool call"] * for_tool + ["a thought"] * thought
            return Ending("empty", why=f"the reply is empty ({', '.join(parts)}, no text)")
    if limited:
        return Ending("cut off", "length")
    if word in ("stop", "") and not for_tool:
        return Ending("complete" if word else "unknown", word or None)
    # What waits for a tool is not at its end.
    return Ending("cut off", "tool_calls" if for_tool else reply.word[:40])


def cut_prompts(prompts: Mapping[Any, tuple[int, int]]) -> set[Any]:
    """Return the questions whose prompt was cut, by (its bytes, the tokens of it that were read) of each.

    A token has hardly more than 12 bytes, in a whole text hardly more than 6; and texts of different lengths do not
    have one largest number of tokens, least of all one as round as limits are.
    """
    cut = {key for key, (size, tokens) in prompts.items() if size > 12 * tokens}
    largest = max((tokens for _, tokens in prompts.values()), default=0)
    full = {key: size for key, (size, tokens) in prompts.items() if tokens == largest}
    if len(full) >= 3:
        least, most = min(full.values()), max(full.values())
        # Hardly a server has a smaller limit: below, one number of a few questions is chance.
        like_a_limit = least > 6 * largest or (largest >= 1024 and min(largest % 128, -largest % 128) <= 2)
        if most - least >= 64 or (len(full) == len(prompts) and least < most and like_a_limit):
            cut |= full.keys()
    return cut
