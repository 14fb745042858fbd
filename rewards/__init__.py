"""What a completion is worth: extract the answer, check the format, verify equality."""

from gtpo.rewards.completions import format_ok
from gtpo.rewards.data.problem import chat_messages
from gtpo.rewards.extract import extract_answer, gsm8k_gold, last_boxed
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
    "Verdict",
    "Verifier",
    "accuracy_reward",
    "boxed_reward",
    "chat_messages",
    "default_verifier",
    "extract_answer",
    "final_reward",
    "format_ok",
    "format_reward",
    "format_reward_filled",
    "gsm8k_gold",
    "last_boxed",
    "math_verify_reward",
    "published_correctness_reward",
    "published_final_reward",
    "published_format_reward",
]
