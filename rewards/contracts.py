"""The answer contract of a problem: what it asks its answer to be, as the judge reads it.

>>> str(read_contract("How many hours does it take? Round to the nearest tenth."))
'unit: hour; rounded to 1 decimals'
"""

from __future__ import annotations

from gtpo.rewards.equality.arithmetic.values import NoValue, TooBig
from gtpo.rewards.equality.comparing.comparison import Comparison
from gtpo.rewards.equality.comparing.decide import read_answer
from gtpo.rewards.equality.reading.answers import Listing, Scalar
from gtpo.rewards.equality.reading.contract import Contract
from gtpo.rewards.equality.reading.problem import read_problem


def read_contract(problem: str) -> Contract:
    """Return what a problem asks its answer to be; `str` of it is empty where nothing in particular is read."""
    return read_problem(problem).contract


def contradiction(problem: str, gold: str) -> str | None:
    """Return what in a problem's contract its gold contradicts, or None: then the contract has been misread.

    The judge goes by the gold in the order of a list, and in everything else by the contract.
    """
    known = read_problem(problem)
    contract = known.contract
    try:
        answer = read_answer(gold)
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
    except (NoValue, TooBig):
        return None
    return None
