"""How often a server is asked, against servers that are simulated on a clock of their own: nothing here waits."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gtpo.evalkit.engines.openai_pace import Pace

Takes = Callable[[float], bool]
"""Whether a server takes a request at a moment."""


class Outcome(NamedTuple):
    seconds: float
    refused: int
    refused_late: float
    """Share of the requests after the first ten seconds."""


def bucket(per_second: float = 10.0, most: float = 10.0) -> Takes:
    """Return a token bucket."""
    tokens, filled = most, 0.0

    def take(now: float) -> bool:
        nonlocal tokens, filled
        tokens, filled = min(most, tokens + per_second * (now - filled)), now
        tokens -= (taken := tokens >= 1)
        return taken

    return take


def quota(requests: int, span_s: float = 60.0) -> Takes:
    """Return a server that takes so many requests a span, the first of which is half over at the beginning."""
    used: dict[int, int] = {}

    def take(now: float) -> bool:
        span = int((now + span_s / 2) // span_s)
        used[span] = used.get(span, 0) + 1
        return used[span] <= requests

    return take


def run(take: Takes, total: int, *, latency_s: float, jitter_s: float = 0.05, retry_after_s: float = 0.0) -> Outcome:
    """Sample `total` completions with at most 32 requests in flight; a refused one is sent again."""
    rng, order, pace = random.Random(0), itertools.count(), Pace(32)
    now, to_send, in_flight, done = 0.0, total, 0, 0
    answers: list[tuple[float, int, float, bool]] = []
    log: list[tuple[float, bool]] = []
    while done < total and now < 3600:
        now += 1e-4  # two requests are never sent at the same moment
        wait = pace.wait_s(now, in_flight) if to_send else float("inf")
        if wait == 0:
            pace.sent(now)
            taken = take(now)
            log.append((now, taken))
            delay = (latency_s if taken else 0.005) + rng.expovariate(1 / jitter_s)
            heapq.heappush(answers, (now + delay, next(order), now, taken))
            to_send, in_flight = to_send - 1, in_flight + 1
            continue
        now = max(now, min(now + wait, answers[0][0] if answers else float("inf")))
        while answers and answers[0][0] <= now:
            _, _, sent, taken = heapq.heappop(answers)
            in_flight -= 1
            if taken:
                done += 1
                pace.accepted(now)
            else:
                to_send += 1
                pace.refuse(now, sent, retry_after_s, in_flight)
    late = [taken for moment, taken in log if moment > 10]
    return Outcome(now, sum(not taken for _, taken in log), late.count(False) / max(1, len(late)))


@pytest.mark.parametrize("retry_after_s", [0.0, 1.0])
@pytest.mark.parametrize("jitter_s", [0.005, 0.2])
@pytest.mark.parametrize("latency_s", [0.02, 0.2, 1.0])
def test_a_bucket_hardly_refuses_and_is_used(latency_s: float, jitter_s: float, retry_after_s: float) -> None:
    """Also where a refusal comes late, as on a busy machine: what is on its way then is refused too."""
    found = run(bucket(), 320, latency_s=latency_s, jitter_s=jitter_s, retry_after_s=retry_after_s)
    assert found.refused_late <= 0.03
    assert found.seconds <= 1.25 * 32


@pytest.mark.parametrize("retry_after_s", [0.0, 5.0])
@pytest.mark.parametrize("latency_s", [0.2, 2.0])
def test_a_quota_per_minute_is_used(latency_s: float, retry_after_s: float) -> None:
    """It refuses everything for up to a minute, and then takes a full quota: 300 samples need 4 minutes and a bit."""
    found = run(quota(60), 300, latency_s=latency_s, retry_after_s=retry_after_s)
    assert found.seconds <= 330
    assert found.refused <= 60


@pytest.mark.parametrize("begin_s", [0.0, 10.0])
def test_a_server_that_took_nothing_for_a_while_gets_its_pace_back(begin_s: float) -> None:
    """The rate it was asked at meanwhile is no estimate of what it takes."""
    found = run(lambda now: not begin_s <= now <= begin_s + 20, 1000, latency_s=0.2)
    assert found.seconds <= 20 + 20 + 3 * 1000 * 0.2 / 32 + 10, "the outage, the longest pause, and the work"


def test_an_idle_server_is_asked_at_once() -> None:
    """The null: nothing is refused, so nothing is held back."""
    found = run(lambda _: True, 320, latency_s=1.0, jitter_s=0.005)
    assert found.refused == 0
    assert found.seconds < 1.1 * 320 / 32
