"""How many requests a server gets at a time, and how often: both follow what it refuses and how long it is silent.

Two limits, each with multiplicative decrease. The window bounds requests in flight; it grows by one a round trip, and
timeouts, errors of the server and long silences halve it. The rate bounds requests per second; there is none until the
server refuses one (429). Then it falls below what the server has accepted lately, comes back to that, and goes on in
steps that are small at first and double while nothing is refused: an estimate that was too low does not last. While
nothing is accepted at all, one request asks after pauses that double; that says nothing of either limit.

Time is in seconds of a monotonic clock, given by the caller.
"""

from __future__ import annotations

import math
from collections import deque

SPAN_S = 5.0
"""What a server accepts is measured over so long."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 20.0
"""Pause after a refusal; it doubles with each that follows without a request accepted in between."""

STEP = 0.01
"""Beyond the rate that was accepted, it grows by this share a second at first."""

DOUBLING_S, MOST_DOUBLINGS = 10.0, 10
"""That share doubles in so many seconds without a refusal, and so often."""


class Pace:
    """The limits of one server. most: requests in flight at any time."""

    def __init__(self, most: int) -> None:
        self.most, self.window, self.rate = most, float(most), math.inf
        self.refused_since: float | None = None
        """When the first request was refused after which none has been accepted."""
        self.retry_at = self._pause_until = -math.inf
        """Nothing is sent before: Retry-After."""
        self.refused = 0
        """Requests refused, in all."""
        self._good = math.inf  # the rate that was accepted when one was refused last
        self._sent: deque[float] = deque()  # when what was not refused was sent
        self._first = self._next = self._cut = self._strained = -math.inf
        self._pause = FIRST_PAUSE_S

    def wait_s(self, now: float, in_flight: int) -> float:
        """Return for how long no request may be sent; inf where one has to come back first."""
        if in_flight >= int(self.window):
            return math.inf
        return max(0.0, self.retry_at - now, self._pause_until - now, self._next - now)

    def sent(self, now: float) -> None:
        """Note a request."""
        if self._first == -math.inf:
            self._first = now
        if self.refused_since is not None:  # the one that asks again
            self._pause_until = now + self._pause
        self._next = max(self._next, now) + 1 / self.rate
        self._sent.append(now)
        while self._sent[0] < now - SPAN_S:
            self._sent.popleft()

    def accepted(self, now: float) -> None:
        """Note an answer: the limits grow."""
        if self.refused_since is not None:
            self.refused_since, self._pause, self._pause_until = None, FIRST_PAUSE_S, -math.inf
        self.window = min(self.most, self.window + 1 / self.window)
        if self.rate < math.inf:
            share = STEP * 2 ** min(MOST_DOUBLINGS, (now - self._cut) / DOUBLING_S)
            back = 0.1 * max(0.0, self._good - self.rate)
            self.rate += max(back, share * self._good / self.rate)

    def refuse(self, now: float, sent: float, retry_after_s: float, in_flight: int) -> None:
        """Note a refusal (429) of a request that was sent at `sent`, while `in_flight` others wait for their ends."""
        self.refused += 1
        self._sent = deque(moment for moment in self._sent if moment != sent)
        self.retry_at = max(self.retry_at, now + retry_after_s)
        if sent < self._cut:  # it was on its way when the limits were cut
            return
        self._cut = now
        if self.refused_since is None:
            self.refused_since = now
        else:
            self._pause = min(LONGEST_PAUSE_S, 2 * self._pause)
        self._pause_until = now + self._pause
        lately = sum(moment >= now - SPAN_S for moment in self._sent)
        if lately:
            accepted = lately / min(SPAN_S, max(1.0, now - self._first))
            self._good = max(0.05, min(0.95 * accepted, 0.95 * self.rate))
            self.rate = max(0.05, 0.8 * min(accepted, self.rate))
        if lately or in_flight:  # else it takes nothing at all, however little is sent
            self.window = max(1.0, 0.7 * self.window)

    def strain(self, now: float, sent: float) -> None:
        """Note that a request timed out, was silent for long, or met an error of the server."""
        if sent >= self._strained:
            self.window = max(1.0, self.window / 2)
            self._strained = now

    def __str__(self) -> str:
        """Say what is limited; empty where nothing is."""
        rate = f"{self.rate:.1f} requests/s" if self.rate < math.inf else ""
        window = f"at most {int(self.window)} requests at a time" if int(self.window) < self.most else ""
        return ", ".join(filter(None, (rate, window)))
