"""One line on why a verdict is what it is: both answers as they were read, and the rule that decided."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from gtpo.rewards.equality.arithmetic import Budget
from gtpo.rewards.equality.comparing.decide import decide, readings
from gtpo.rewards.equality.comparing.work import work_left
from gtpo.rewards.equality.reading.answers import (
    Answer,
    Listing,
    Named,
    Relation,
    Scalar,
    Union,
    Words,
    leaves,
    parts_of,
)
from gtpo.rewards.equality.terms import Term, canonical, parts

_RULES: dict[str, Callable[[str], str]] = {
    "CORRECT": lambda work: "equal, and nothing is left to compute that the gold does not leave",
    "INCORRECT": lambda work: "not equal, or not understood, or a text with two values",
    "COPIED": lambda work: f"equal, but copied from the problem{work and '; it leaves '}{work}",
    "UNEVALUATED": lambda work: f"equal, but {f'it leaves {work}' if work else 'not in the form asked for'}",
}


def explain(prediction: str, gold: str, problem: str | None = None) -> str:
    """Return the finding and, behind a tab, what it rests on."""
    found = decide(prediction, gold, problem)
    Budget.refill()
    ours, theirs = readings(prediction), readings(gold, True)
    work = ", ".join(sorted({kind.value for leaf in leaves(ours[-1]) for kind in +work_left(leaf.term)}))
    rule = _RULES.get(found, lambda work: "beyond the limits on work")(work)
    return f"{found}\t{' -> '.join(dict.fromkeys(map(shown, ours)))} | gold {shown(theirs[0])}: {rule}"


def shown(answer: Answer) -> str:
    """Return an answer's kind and normal form."""
    if isinstance(answer, Scalar):
        return " ".join(filter(None, (_shown(canonical(answer.term)), "%" * answer.percent, answer.unit.name)))
    if isinstance(answer, Words):
        return f'words "{answer.text}"'
    if isinstance(answer, Named):
        return f"{answer.name} = {shown(answer.value)}"
    if isinstance(answer, Relation):
        return " ".join(map(str.strip, map(_shown, answer.terms))) + f" ({' '.join(answer.ops)})"
    within = ", ".join(map(shown, parts_of(answer)))
    kind = (
        answer.kind if isinstance(answer, Listing) else "union" if isinstance(answer, Union) else type(answer).__name__
    )
    return f"{kind.lower()} [{within}]"


def _shown(term: Term) -> str:
    if term[0] == "num":
        return str(Fraction(term[1]))
    if term[0] in ("sym", "const"):
        return str(term[1])
    inner = [_shown(part) for part in parts(term)]
    sign = {"add": " + ", "mul": " ", "pow": "^"}.get(term[0])
    if sign is not None:
        return "(" + sign.join(inner) + ")"
    return f"{term[1] if term[0] in ('fn', 'opaque', 'bind') else 'matrix'}({', '.join(inner)})"
