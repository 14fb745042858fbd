"""What a comparison measures: every metric is one entry of METRICS, and each table, format and page reads it there.

A metric that is tested is a mean over questions of scores in [0, 1]: it has an interval and is compared question by
question. One that is not only describes a run: the median of its values, without an interval or a difference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from gtpo.common.errors import UserError
from gtpo.runs.find import Questions

if TYPE_CHECKING:  # scipy loads more slowly than a mistake in the arguments is told
    from gtpo.evalkit.statistics import PairedDifference

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric: what it is called, what its values are, and how they are written."""

    # In records and in --metric; `@k` stands for a number of samples.
    name: str
    # Over its columns.
    title: str
    # (one run's questions, k) -> [Q] scores in [0, 1]; of a metric that is not tested [N] any number of values.
    values: Callable[[Questions, int], Array]
    # What a curve over k shows; what its number is.
    meaning: str = ""
    estimate: str = ""
    # `%`: values are fractions.
    unit: str = "%"
    digits: int = 1
    tested: bool = True
    # (one run's questions, k) -> [Q] the variance that samples give to each value; None if it cannot be told.
    sampling: Callable[[Questions, int], Array | None] = lambda of, k: None

    @property
    def by_k(self) -> bool:
        """Return whether there is a value for each k."""
        return "@k" in self.name

    def text(self, value: SupportsFloat) -> str:
        """Return 45.2 for 0.452: a value as every output writes it; a dash if there is none."""
        number = float(value) * (100 if self.unit == "%" else 1)
        return "–" if math.isnan(number) else round_half_up(number, self.digits)


def _of_samples(counts: NDArray[np.int32], n: NDArray[np.int32]) -> Array | None:
    """The variance that n samples give to a share, without bias; None if a question has only one."""
    return None if n.size == 0 or n.min() < 2 else counts / n * (1 - counts / n) / (n - 1)


PASS = Metric(
    "pass@k", "pass@k", lambda of, k: of.pass_at_k[:, k - 1].clip(0, 1), "at least one of k is right", "unbiased",
    # pass@k of more samples does not vary by 1 / n: near k = n it would promise what no number of them gives.
    sampling=lambda of, k: _of_samples(of.correct, of.n) if k == 1 else None,
)  # fmt: skip
MAJ = Metric(
    "maj@k", "maj@k", lambda of, k: of.maj_at_k[:, k - 1].clip(0, 1), "the majority of k is right",
    "the exact expectation over all k-subsets of the n samples, ties shared evenly",
)  # fmt: skip
FORMAT = Metric(
    "format", "format rate", lambda of, k: of.format_ok / of.n, sampling=lambda of, k: _of_samples(of.format_ok, of.n)
)

_RIGHT = Metric(
    "tokens-right", "median tokens of right and of wrong answers", lambda of, k: of.tokens(right=True),
    unit="median tokens", digits=0, tested=False,
)  # fmt: skip
_WRONG = replace(_RIGHT, name="tokens-wrong", values=lambda of, k: of.tokens(right=False))

# In the order of their columns.
METRICS = (PASS, MAJ, FORMAT, _RIGHT, _WRONG)


class Column(NamedTuple):
    """One column of a table: a metric, at a k if it has one (else 0)."""

    metric: Metric
    k: int = 0

    @property
    def label(self) -> str:
        """Return `pass@8`, `maj@64`, `format`."""
        return self.metric.name.replace("@k", f"@{self.k}")


def signed(value: SupportsFloat) -> str:
    """Return +2.1 for 0.021; +0.0 for what rounds to nothing."""
    text = round_half_up(100 * float(value), 1)
    return ("-" if float(value) < 0 and text != "0.0" else "+") + text


def difference(paired: PairedDifference, unit: str = "") -> str:
    """Return +2.1 [+0.7, +3.5]; with a unit +2.1 points [+0.7, +3.5]."""
    return f"{signed(paired.difference)}{unit} [{signed(paired.low)}, {signed(paired.high)}]"


def points(value: float) -> str:
    """Return 2 for 0.02, 0.5 for 0.005: a margin or a planned difference as it was given."""
    return f"{100 * value:.4g}"


def p_text(p: float) -> str:
    """Return `p = 0.031`, `p = 0.0004`, `p < 0.0001`."""
    return "p < 0.0001" if p < 1e-4 else f"p = {round_half_up(p, 2 if p >= 0.1 else 3 if p >= 0.001 else 4)}"


def join_names(names: Iterable[str]) -> str:
    """Return `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def round_half_up(value: float, digits: int) -> str:
    """Return 12.3 for 12.25, as the page's code does."""
    scale = 10**digits
    # Python rounds half to even and JavaScript half up: 12.25 would be 12.2 here and 12.3 on the page.
    return f"{math.floor(abs(value) * scale + 0.5 + 1e-9) / scale:.{digits}f}"


def parse_columns(words: Sequence[str]) -> list[Column] | None:
    """Return the columns of `pass@1,maj@64`, in order and each once; None if there is none. Raises UserError."""
    columns: dict[Column, None] = {}
    for text in (part.strip() for word in words for part in word.split(",")):
        text = re.sub(r"^cons@", "maj@", text)  # consensus: another name of the majority
        match = re.fullmatch(r"(.+@)([1-9]\d*)", text)
        name, k = (f"{match[1]}k", int(match[2])) if match else (text, 0)
        metric = next((one for one in METRICS if one.name == name and one.by_k == bool(k)), None)
        if metric is None:
            *first, last = (one.name.replace("@k", "@K") for one in METRICS)
            raise UserError(f'--metric "{text}": expected {", ".join(first)} or {last}, e.g. --metric pass@1')
        columns[Column(metric, k)] = None
    if columns and not (primary := next(iter(columns))).metric.tested:
        raise UserError(f"--metric {primary.label} is shown, not tested: name a metric that is tested before it")
    return list(columns) or None
