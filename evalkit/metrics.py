r"""pass@k and maj@k, exactly, for every k.

Symbols: n samples of a question, of which c are right; the wrong answers fall into classes of n_1..n_m votes, and
a samples abstain (no answer). k of the n samples are drawn without replacement.

    pass@k = 1 - C(n-c, k) / C(n, k)                                                  (Chen et al. 2021, eq. 1)

    pass^k = C(c, k) / C(n, k), the chance that all k are right                       (Yao et al. 2024, tau-bench)

    maj@k  = 1/C(n, k) * sum_{j=1..c} C(c, j) * [x^{k-j}] (1+x)^a
             * integral_0^1  prod_i ( sum_{v<j} C(n_i, v) x^v  +  y C(n_i, j) x^j )  dy

The second line is the expectation over all k-subsets of "the class with most votes is the right one", where a tie
of t classes gives 1/t to each of them: integral_0^1 y^{t-1} dy = 1/t, and t - 1 is the number of wrong classes that
also reached j votes. Abstaining samples do not vote; a subset without any right vote scores 0. The integrand is a
polynomial in y, so Gauss-Legendre quadrature is exact. All terms are positive: nothing cancels, and float64 stays
within about 1e-13 of the rational result. Every binomial row C(m, .) is kept divided by 2^m, which cancels against
C(n, k) / 2^n and keeps n up to MAX_SAMPLES within range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Most samples a question may have: beyond it 2^-n times a binomial leaves the range of a float64.
MAX_SAMPLES = 1000

# What every table says beside its numbers.
DEFINITIONS = (
    "pass@k: chance that k samples drawn from the n hold a right one (unbiased); pass^k: that all k are right. "
    "maj@k (cons@k): chance that the most frequent answer of k samples is right, over all k-subsets; ties are shared "
    "evenly, samples without an answer do not vote."
)

# Questions worked on at once: the polynomials of one block stay in the processor's cache.
_BLOCK = 64


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the number of samples: k={k}, samples={n}")
    if n > MAX_SAMPLES:
        raise ValueError(f"at most {MAX_SAMPLES} samples a question are supported, found {n}")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased pass@k of a question: n samples, c of them right. ValueError unless 1 <= k <= n."""
    _check(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"correct samples must be between 0 and n={n}: {c}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def maj_at_k(votes: Sequence[int], correct: int, k: int, abstentions: int = 0) -> float:
    """Return the exact expected maj@k of a question. ValueError unless 1 <= k <= all its samples.

    votes: sizes of the wrong answer classes. correct: votes for the right answer. abstentions: samples without one.
    """
    n = sum(votes) + correct + abstentions
    _check(n, k)
    return float(maj_at_all_k([votes], [correct], [abstentions])[0, k - 1])


@lru_cache(maxsize=64)
def _pass_table(n: int) -> Array:
    """Return pass@k for c = 0..n (rows) and k = 1..n (columns)."""
    return np.array([[pass_at_k(n, c, k) for k in range(1, n + 1)] for c in range(n + 1)]).reshape(n + 1, n)


def pass_at_all_k(n: npt.ArrayLike, c: npt.ArrayLike) -> Array:
    """Return pass@k of Q questions for every k: [Q, max n], NaN if k exceeds a question's n."""
    samples, right = np.array(n, dtype=np.int64), np.array(c, dtype=np.int64)
    out = np.full((samples.size, samples.max(initial=0)), np.nan)
    for size in set(samples.tolist()) - {0}:
        _check(size, size)
        rows = samples == size
        out[rows, :size] = _pass_table(size)[right[rows]]
    return out


def all_pass_at_all_k(n: Sequence[int], c: Sequence[int]) -> Array:
    """Return pass^k of Q questions for every k: [Q, max n], NaN if k exceeds a question's n."""
    return 1 - pass_at_all_k(n, [samples - right for samples, right in zip(n, c, strict=True)])


def if_missing(
    votes: Sequence[Sequence[int]], correct: Sequence[int], missing: Sequence[int]
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Yield votes and correct of Q questions if what each is missing were wrong, and if it were right.

    votes: sizes of the wrong answer classes, the largest first.
    """
    # The most that wrong samples can do to maj@k is to agree with the largest wrong class.
    yield [[(of or [0])[0] + lost, *of[1:]] for of, lost in zip(votes, missing, strict=True)], [*correct]
    yield [[*of] for of in votes], [right + lost for right, lost in zip(correct, missing, strict=True)]


@lru_cache(maxsize=8)
def _binomials(size: int) -> Array:
    """Return C(m, v) / 2^m for m, v = 0..size: [size + 1, size + 1]."""
    table = np.zeros((size + 1, size + 1))
    table[0, 0] = 1.0
    for m in range(1, size + 1):
        # Pascal's triangle, halved at each row: products of binomials stay in a float64's range up to MAX_SAMPLES.
        table[m, 0] = table[m - 1, 0] / 2
        table[m, 1:] = (table[m - 1, 1:] + table[m - 1, :-1]) / 2
    return table


@lru_cache(maxsize=64)
def _quadrature(nodes: int) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights on [0, 1]: exact up to degree 2 * nodes - 1."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, w / 2


def _maj_block(
    votes: npt.NDArray[np.int64], correct: npt.NDArray[np.int64], abstentions: npt.NDArray[np.int64]
) -> Array:
    """Return sum_j C(c, j)/2^c [x^{k-j}](...) for k = 0..size of a block: votes [Q, m] in descending order."""
    questions = len(correct)
    size = int((votes.sum(1) + correct + abstentions).max())
    binomial = _binomials(size)
    total = np.zeros((questions, size + 1))
    for j in range(1, int(correct.max()) + 1):
        able = np.flatnonzero(correct >= j)
        v = votes[able]
        big = v >= j
        classes = int(big.sum(1).max()) if v.size else 0
        # Classes that cannot reach j votes are all of one kind: together (1+x)^(their votes), as are abstentions.
        free = (v * ~big).sum(1) + abstentions[able]
        y, w = _quadrature(classes // 2 + 1)
        most = size - j  # the degree that the right votes leave
        product = w[None, :, None] * binomial[free][:, None, : most + 1]  # [able, nodes, most + 1]
        for i in range(classes):
            rows = binomial[np.where(big[:, i], v[:, i], 0)]  # size 0: the factor 1
            following = np.zeros_like(product)
            for power in range(min(j, most) + 1):
                factor = rows[:, power, None, None] * (y[None, :, None] if power == j else 1.0)
                following[:, :, power:] += factor * product[:, :, : most + 1 - power]
            product = following
        total[able, j:] += binomial[correct[able], j][:, None] * product.sum(1)
    return total


def maj_at_all_k(
    votes: Sequence[Sequence[int]], correct: Sequence[int], abstentions: Sequence[int] | None = None
) -> Array:
    """Return the exact expected maj@k of Q questions for every k: [Q, max n], NaN if k exceeds a question's n.

    votes, correct, abstentions: of each question, as in `maj_at_k`; without abstentions there are none.
    """
    abstaining = [0] * len(correct) if abstentions is None else list(abstentions)
    keys = [
        (tuple(sorted((int(v) for v in vs if v), reverse=True)), int(c), int(a))
        for vs, c, a in zip(votes, correct, abstaining, strict=True)
    ]
    if any(c < 0 or a < 0 or (vs and vs[-1] < 0) for vs, c, a in keys):
        raise ValueError("counts of votes must not be negative")
    samples = [sum(vs) + c + a for vs, c, a in keys]
    for n in samples:
        if n:
            _check(n, n)
    out = np.full((len(keys), max(samples, default=0)), np.nan)
    # Questions share signatures (all right, all wrong, ...): each is worked out once; like sizes lie side by side.
    places: dict[tuple[tuple[int, ...], int, int], list[int]] = {}
    for q, key in enumerate(keys):
        places.setdefault(key, []).append(q)
    unique = sorted(places, key=lambda key: (key[1], len(key[0]), key))
    for start in range(0, len(unique), _BLOCK):
        block = unique[start : start + _BLOCK]
        classes, right, silent = zip(*block, strict=True)
        padded = np.array([*zip_longest(*classes, fillvalue=0)], dtype=np.int64).T.reshape(len(block), -1)
        totals = _maj_block(padded, np.array(right, dtype=np.int64), np.array(silent, dtype=np.int64))
        for key, total in zip(block, totals, strict=True):
            n = sum(key[0]) + key[1] + key[2]
            out[places[key], :n] = total[1 : n + 1] / _binomials(n)[n, 1:]
    # Rounding: 1 + 2e-16 is no probability.
    np.minimum(out, 1.0, out=out)
    return out
