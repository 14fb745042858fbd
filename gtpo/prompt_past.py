"""The reward of each prompt over a run: where prompts come again, a step is compared with its own prompts' past.

Prompts differ in difficulty more than a policy changes in a step, and the comparison leaves that out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

MOST = 2.0
"""A prompt that was hopeless and is solved once says no more than this."""


def prompt_key(prompt: Any) -> int:
    """Return a number of 63 bits for a prompt's text or messages, the same in every process."""
    text = json.dumps(prompt, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


class PromptPast:
    """Sum and number of the mean rewards of each prompt."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[float, int]] = {}

    def compare(self, keys: Sequence[int], rewards: Sequence[float]) -> float | None:
        """Take in the mean rewards of a round's prompts; return their mean as a share of these prompts' own past.

        Each prompt counts with at most MOST. None where no prompt was seen before with a mean above 0. A reward that
        is NaN is left out.
        """
        known = [(key, reward) for key, reward in zip(keys, rewards, strict=True) if reward == reward]
        shares = []
        for key, reward in known:
            total, count = self.seen.get(key, (0.0, 0))
            if total > 0:
                shares.append(min(reward * count / total, MOST))
        for key, reward in known:
            total, count = self.seen.get(key, (0.0, 0))
            self.seen[key] = (total + reward, count + 1)
        return sum(shares) / len(shares) if shares else None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on (JSON)."""
        return {str(key): list(value) for key, value in self.seen.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.seen = {int(key): (total, count) for key, (total, count) in state.items()}
