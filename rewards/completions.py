"""Prompts and completions as TRL hands them to rewards: plain strings, or lists of chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: the string itself, or the content of the last assistant message.

    Content given as parts (`[{"type": "text", "text": …}]`) is joined. Raises TypeError for anything else.
    """
    return _last_turn(completion, "assistant", "completion")


def problem_text(prompt: Completion) -> str:
    """Return the problem that a prompt states: the string itself, or the content of the last user message.

    Raises TypeError for anything else.
    """
    return _last_turn(prompt, "user", "prompt")


def _last_turn(completion: Completion, role: str, what: str) -> str:
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, Sequence) or not all(isinstance(message, Mapping) for message in completion):
        raise TypeError(f"a {what} is a string or a list of chat messages, not {type(completion).__name__}")
    messages = [message for message in completion if isinstance(message, Mapping)]
    spoken = [message for message in messages if message.get("role", role) == role]
    content = spoken[-1].get("content") if spoken else ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content)
    return content or ""
