"""The labelled pairs made by mutation: no false accept, and what is equal is accepted."""

from pathlib import Path

import pytest

from bench.mutations import Pair, ours, own_pairs, real_pairs, score
from gtpo.rewards import Verifier

IN_A_PROCESS = ("rewards/equality/",)


def assert_judged_right(pairs: list[Pair], verifier: Verifier) -> None:
    accepted = ours(pairs, verifier)
    wrongly = [p for p, yes in zip(pairs, accepted, strict=True) if yes and p.label != "equal" and not p.contested]
    assert wrongly == []
    result = score(pairs, accepted)
    assert result.accepted >= 0.99 * result.equal, [
        p for p, yes in zip(pairs, accepted, strict=True) if not yes and p.label == "equal"
    ]


def test_our_own_golds(verifier: Verifier) -> None:
    pairs = own_pairs()
    uncontested = [pair for pair in pairs if not pair.contested]
    assert len(uncontested) >= 1000
    assert {pair.label for pair in uncontested} == {"equal", "unequal", "unsimplified"}
    assert len({pair.rule for pair in uncontested}) > 100
    assert_judged_right(pairs, verifier)


@pytest.mark.shared
def test_golds_of_the_real_sets(shared_dir: Path, verifier: Verifier) -> None:
    pairs = real_pairs(shared_dir, 150)
    assert len(pairs) > 1000
    assert_judged_right(pairs, verifier)
