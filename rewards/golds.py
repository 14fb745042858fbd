"""The check before training and evaluation: every gold answer must verify against itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gtpo.rewards.verification.static import reject_reason
from gtpo.rewards.verify import Verdict, Verifier, default_verifier


class UnverifiableGold(NamedTuple):
    """A problem whose gold answer cannot score any answer: leave it out."""

    id: str
    reason: str


def find_unverifiable(golds: Iterable[tuple[str, str]], verifier: Verifier | None = None) -> list[UnverifiableGold]:
    """Return the (id, gold) pairs whose gold does not verify against itself, each with the reason:
    empty ones and those beyond the limits first."""
    failures: list[UnverifiableGold] = []
    checked: list[tuple[str, str]] = []
    for identifier, gold in golds:
        if not gold.strip():
            failures.append(UnverifiableGold(identifier, "the gold answer is empty"))
        elif (reason := reject_reason(gold)) is not None:
            failures.append(UnverifiableGold(identifier, f"the gold answer is beyond the limits: {reason}"))
        else:
            checked.append((identifier, gold))
    distinct = list(dict.fromkeys(gold for _, gold in checked))
    known = dict(zip(distinct, (verifier or default_verifier()).verify_golds(distinct), strict=True))
    for identifier, gold in checked:
        if known[gold] is not Verdict.CORRECT:
            failures.append(UnverifiableGold(identifier, f"verified against itself the gold answer is {known[gold]}"))
    return failures
