"""Conflict spans and weights against a set-based brute force and hand-written cases."""

from __future__ import annotations

import random

import pytest
import torch
from approved import check_refusals

from gtpo.conflict import conflict_weights

SEED = 20250818


def brute_force(rows: list[list[int]], signs: list[int], positive_weight: float, combine: str):
    """lambda and span lengths of one group straight from the definition: sets of (position, token)."""

    def span(sequences: list[list[int]], i: int) -> int:
        held = {
            s: {(p, t) for row, sign in zip(sequences, signs, strict=True) if sign == s for p, t in enumerate(row)}
            for s in (1, -1)
        }
        conflicts = held[1] & held[-1]
        length = 0
        if signs[i] != 0:
            while length < len(sequences[i]) and (length, sequences[i][length]) in conflicts:
                length += 1
        return length

    mirrored = [row[::-1] for row in rows]
    weights, forward, backward = [], [], []
    for i, row in enumerate(rows):
        a, b = span(rows, i), span(mirrored, i)
        inside = {1: positive_weight, -1: 0.0, 0: 1.0}[signs[i]]
        factors = [(t < a) + (t >= len(row) - b) for t in range(len(row))]
        weights.append([inside ** (n if combine == "product" else min(n, 1)) if n else 1.0 for n in factors])
        forward.append(a)
        backward.append(b)
    return weights, forward, backward


def padded(rows: list[list[int]], pad: int, extra: int = 0):
    width = max(map(len, rows)) + extra
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    return ids, mask


def assert_equal_to_brute_force(groups, signs, pad, combine):
    num_generations = len(groups[0])
    rows = [row for group in groups for row in group]
    ids, mask = padded(rows, pad, extra=random.randrange(3))
    advantages = torch.tensor([s * (0.1 + random.random()) for group in signs for s in group])
    ids = ids.to(random.choice((torch.int32, torch.int64)))
    found = conflict_weights(ids, mask, advantages, num_generations, positive_weight=2.0, combine=combine)
    expected = [brute_force(group, sign, 2.0, combine) for group, sign in zip(groups, signs, strict=True)]
    weights = [row for group in expected for row in group[0]]
    for i, row in enumerate(weights):
        assert found.weights[i, : len(row)].tolist() == row, (rows, signs)
        assert found.weights[i, len(row) :].eq(1).all()
        assert found.union[i] == min(len(row), found.forward[i] + found.backward[i])
    assert found.forward.tolist() == [a for group in expected for a in group[1]]
    assert found.backward.tolist() == [b for group in expected for b in group[2]]


@pytest.mark.parametrize("combine", ["or", "product"])
def test_equal_to_brute_force_on_random_groups(combine):
    random.seed(SEED)
    for _ in range(500):
        num_generations, vocabulary = random.randint(1, 6), random.randint(1, 4)
        groups = [
            [[random.randrange(vocabulary) for _ in range(random.randint(1, 9))] for _ in range(num_generations)]
            for _ in range(random.randint(1, 3))
        ]
        signs = [[random.choice((-1, -1, 0, 1, 1)) for _ in group] for group in groups]
        # Padding is a real token of the vocabulary, or none at all: it may not matter.
        assert_equal_to_brute_force(
            groups, signs, random.choice((0, vocabulary - 1, -100, 2**31 - 1, -(2**31))), combine
        )


def test_unscored_and_zero_advantages_take_no_part():
    ids, mask = padded([[1, 2], [1, 2], [1, 2]], 0)
    for advantages in ([0.0, 0.0, 0.0], [1.0, 0.0, float("nan")], [float("nan")] * 3):
        found = conflict_weights(ids, mask, torch.tensor(advantages), 3)
        assert found.weights.eq(1).all()
        assert found.union.eq(0).all()


def test_bad_input_names_the_argument():
    def weights(**changes):
        plain = {
            "completion_ids": torch.ones(4, 3, dtype=torch.long),
            "completion_mask": torch.ones(4, 3, dtype=torch.bool),
            "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0]),
            "num_generations": 2,
        }
        conflict_weights(**plain | changes)

    check_refusals("refused-conflict.txt", {"weights": weights, "torch": torch})


@pytest.mark.parametrize("shared", [63, 64, 65, 319, 320, 321, 400])
def test_spans_longer_than_one_look(shared: int):
    """Spans that end at, before and beyond the borders of the windows; one group's are long, the other's short."""
    start, end = list(range(shared)), list(range(1000, 1000 + shared))
    long = [[*start, 5000 + i, *[9000 + 10 * i + j for j in range(i)], *end] for i in range(4)]
    short = [[7, 8, 20 + i, 9] for i in range(4)]
    assert_equal_to_brute_force([long, short], [[1, -1, -1, 1], [1, 1, -1, 0]], -100, "or")
    same = [list(range(shared + 30))] * 4
    assert_equal_to_brute_force([same, short], [[1, -1, -1, 0], [1, 1, -1, 0]], 0, "product")
