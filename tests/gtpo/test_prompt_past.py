"""A prompt's reward beside what it had before."""

from __future__ import annotations

import json
import math

from gtpo.prompt_past import MOST, PromptPast, prompt_key


def test_a_share_of_the_own_past_of_prompts_that_earned_something() -> None:
    past = PromptPast()
    assert past.compare([1, 2, 3], [0.5, 0.0, 1.0]) is None, "none was seen before"
    assert past.compare([1, 2, 4], [0.25, 1.0, 0.3]) == 0.5, "the second never earned anything"
    assert past.compare([2, 3, 1], [1.0, math.nan, 0.0]) == (MOST + 0.0) / 2
    assert past.compare([3], [0.5]) == 0.5, "an unscored group is no past"
    again = PromptPast()
    again.load(json.loads(json.dumps(past.state())))
    assert again.seen == past.seen


def test_keys_tell_prompts_apart_and_fit_a_tensor() -> None:
    messages = [{"role": "user", "content": "1 + 1?"}]
    assert prompt_key(messages) == prompt_key([dict(reversed(messages[0].items()))]) != prompt_key("1 + 1?")
    assert 0 <= prompt_key(messages) < 2**63
