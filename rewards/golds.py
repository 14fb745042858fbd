"""Checks before training and evaluation: every gold must verify against itself, and fit what its problem asks for.

>>> str(read_contract("How many hours does it take? Round to the nearest tenth."))
'unit: hour; rounded to 1 decimals'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from gtpo.rewards.completions import is_no_gold
from gtpo.rewards.equality.answers import Listing, Scalar, Words
from gtpo.rewards.equality.arithmetic import NoValue, TooBig
from gtpo.rewards.equality.comparing.comparison import Comparison
from gtpo.rewards.equality.comparing.decide import read_answer
from gtpo.rewards.equality.reading.problem import Contract, read_problem
from gtpo.rewards.verify import Verdict, Verifier, default_verifier, reject_reason

_OPEN_END = re.compile(r"(?:[-+*/^=_]|\\(?:cdot|times|div|pm|frac|sqrt))[\s$]*$")


class UnverifiableGold(NamedTuple):
    """A problem whose gold answer cannot score any answer: leave it out."""

    id: str
    reason: str


def find_unverifiable(golds: Iterable[tuple[str, str]], verifier: Verifier | None = None) -> list[UnverifiableGold]:
    """Return the (id, gold) pairs whose gold does not verify against itself, each with the reason."""
    pairs = list(golds)
    # Golds repeat, small integers most of all: each text is verified once.
    reasons = {gold: _no_gold(gold) for _, gold in pairs}
    usable = [gold for gold, reason in reasons.items() if reason is None]
    for gold, verdict in zip(usable, (verifier or default_verifier()).verify_golds(usable), strict=True):
        own = Verdict.UNUSABLE_GOLD if verdict is Verdict.CORRECT and _is_cut_off(gold) else verdict
        if own is not Verdict.CORRECT:
            reasons[gold] = f"verified against itself the gold answer is {own}"
    return [UnverifiableGold(identifier, reason) for identifier, gold in pairs if (reason := reasons[gold]) is not None]


def _no_gold(gold: str) -> str | None:
    if is_no_gold(gold):
        return f'the gold answer stands for none ("{gold.strip()}")' if gold.strip() else "the gold answer is empty"
    reason = reject_reason(gold)
    return reason and f"the gold answer is beyond the limits: {reason}"


def _is_cut_off(gold: str) -> bool:
    """Return whether a gold is a formula without its end: a bracket or an operand is missing."""
    # `\left\{ ... \right.` has one brace of a kind and is whole.
    text = re.sub(r"\\[{}]", "", gold)
    if sum(map(text.count, "([{")) == sum(map(text.count, ")]}")) and not _OPEN_END.search(text):
        return False
    return isinstance(read_answer(gold), Words)


def read_contract(problem: str) -> Contract:
    """Return what a problem asks its answer to be; `str` of it is empty if nothing in particular is read."""
    return read_problem(problem).contract


def contradiction(problem: str, gold: str) -> str | None:
    """Return what in a problem's contract its gold contradicts, or None: then the contract has been misread.

    The judge goes by the gold in the order of a list, and in everything else by the contract.
    """
    known = read_problem(problem)
    contract = known.contract
    with suppress(NoValue, TooBig):
        answer = read_answer(gold)
        # Tuples and sets are left out: `(1, 2)` may be one answer of several entries.
        if isinstance(answer, Listing) and answer.kind == "list":
            if contract.count not in (None, len(answer.items)):
                return f"{contract.count} answers are asked for, and the gold has {len(answer.items)}"
            if contract.order and not Comparison(known).in_asked_order(answer):
                return f"the order is {contract.order}, and the gold's is another"
        if isinstance(answer, Scalar):
            if contract.units and answer.unit.name and not Comparison(known).has_asked_unit(answer.unit):
                return f"the unit is {' or '.join(sorted(contract.units))}, and the gold's is {answer.unit.name}"
            if contract.places is not None and answer.places > contract.places:
                return f"{contract.places} decimals are asked for, and the gold has {answer.places}"
    return None
