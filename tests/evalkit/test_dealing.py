"""Dealing against its definition: nothing lost, nothing twice, whatever workers come, fail and return."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gtpo.evalkit.engines.base import Prompt, Task
from gtpo.evalkit.engines.dealing import Dealer, SampleKey


def tasks(rng: random.Random) -> list[Task]:
    """Questions that lack some of 8 samples; some come twice, like those whose failures come last."""
    found = []
    for number in range(rng.randint(1, 12)):
        missing = sorted(rng.sample(range(8), rng.randint(0, 8)))
        cut = rng.randint(0, len(missing))
        for part in (missing[:cut], missing[cut:]):
            found.append(Task("b", f"q{number}", Prompt([]), tuple(part)))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_every_sample_is_settled_once(seed: int) -> None:
    rng = random.Random(seed)
    wanted = tasks(rng)
    expected = Counter((t.benchmark, t.question_id, i) for t in wanted for i in t.missing)
    dealer = Dealer(wanted)
    assert dealer.left == expected.total()
    workers = {f"w{i}": rng.randint(1, 20) for i in range(rng.randint(1, 4))}
    owed: dict[str, list[SampleKey]] = {name: [] for name in workers}
    done: Counter[SampleKey] = Counter()
    while dealer.left:
        up = {name: limit for name, limit in workers.items() if rng.random() < 0.8}
        while (dealt := dealer.deal(up)) is not None:
            assert dealer.load(dealt.worker) - len(dealt.task.missing) < up[dealt.worker], "it had room"
            owed[dealt.worker] += [("b", dealt.task.question_id, i) for i in dealt.task.missing]
        name = rng.choice(list(workers))
        assert dealer.load(name) == len(owed[name])
        if rng.random() < 0.1:
            assert dealer.give_back(name) == len(owed[name])
            assert not any(dealer.settle(name, key) for key in owed[name]), "it owes nothing any more"
            owed[name] = []
        elif owed[name] and rng.random() < 0.2:
            key = rng.choice(owed[name])
            if dealer.move(name, key, 2):
                owed[name].remove(key)
        for key in rng.sample(owed[name], rng.randint(0, len(owed[name]))):
            assert dealer.settle(name, key)
            owed[name].remove(key)
            done[key] += 1
    assert done == expected


def test_a_question_stays_together_and_the_least_loaded_gets_it() -> None:
    dealer = Dealer([Task("b", f"q{i}", Prompt([]), (0, 1, 2)) for i in range(5)])
    limits = {"a": 4, "b": 4}
    dealt = [dealer.deal(limits) for _ in range(5)]
    assert [(d.worker, d.task.question_id) for d in dealt if d] == [("a", "q0"), ("b", "q1"), ("a", "q2"), ("b", "q3")]
    assert dealt[4] is None, "both owe six, and may owe four"
    dealer.settle("a", ("b", "q0", 1))
    dealer.give_back("a")
    again = [dealer.deal({"b": 100}) for _ in range(3)]
    assert [(d.task.question_id, d.task.missing) for d in again if d] == [
        ("q0", (0, 2)), ("q2", (0, 1, 2)), ("q4", (0, 1, 2)),
    ]  # fmt: skip


def test_a_moved_sample_waits_for_a_busy_worker_and_holds_nothing_up() -> None:
    dealer = Dealer([Task("b", f"q{i}", Prompt([]), (0, 1)) for i in range(2)])
    dealer.deal({"a": 1})
    assert dealer.move("a", ("b", "q0", 1), 3)
    dealer.give_back("a")
    next_for_a = [dealer.deal({"a": 100}, busy=["b"]) for _ in range(3)]
    assert [(d.task.question_id, d.task.missing) for d in next_for_a if d] == [("q0", (0,)), ("q1", (0, 1))]
    assert dealer.deal({"a": 100, "b": 1}).worker == "b"  # type: ignore[union-attr]
    assert dealer.give_back("b") == 1
    assert dealer.has_failed("a", ("b", "q0", 1)), "given back by another, it is remembered"
    assert dealer.deal({"a": 100}, busy=["b"]) is None
    assert dealer.deal({"a": 100}) is not None, "unless there is nobody else"
