"""What a completion is worth: extract the answer, check the format, verify equality.

What judges is loaded on first use: `gtpo compare` reads problems and needs no verifier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtpo.rewards.completions import format_ok
from gtpo.rewards.data.problem import chat_messages
from gtpo.rewards.extract import extract_answer, gsm8k_gold, last_boxed

if TYPE_CHECKING:
    from gtpo.rewards.functions import (
        accuracy_reward,
        boxed_reward,
        final_reward,
        format_reward,
        format_reward_filled,
        math_verify_reward,
        published_correctness_reward,
        published_final_reward,
        published_format_reward,
    )
    from gtpo.rewards.verify import Verdict, Verifier, default_verifier

__all__ = [
    "Verdict", "Verifier", "accuracy_reward", "boxed_reward", "chat_messages", "default_verifier", "extract_answer",
    "final_reward", "format_ok", "format_reward", "format_reward_filled", "gsm8k_gold", "last_boxed",
    "math_verify_reward", "published_correctness_reward", "published_final_reward", "published_format_reward",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gtpo.rewards import functions, verify

        return getattr(verify if hasattr(verify, name) else functions, name)
    raise AttributeError(f"module 'gtpo.rewards' has no attribute {name!r}")


def __dir__() -> list[str]:
    # For "did you mean" of a reward that is not there, before any of them is loaded.
    return [*globals(), *__all__]
