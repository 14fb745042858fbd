"""What the one-pass loss is told of completions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Completions(NamedTuple):
    """What is known of completions before the model runs; groups may be split over micro-batches and ranks."""

    advantages: Tensor
    """A_i [N]."""
    weights: Tensor
    """lambda [N, L]."""
    forward: Tensor
    """Forward span length [N] long."""
    backward: Tensor
    """Backward span length [N] long."""
    union: Tensor
    """Tokens in either span [N] long."""
    excluded: Tensor | None = None
    """bool [N]: outside the loss whatever the gate says."""
    frozen_entropy: Tensor | None = None
    """<H>_i [N] of the first iteration over these completions; by default this pass's own."""
    frozen_kept: Tensor | None = None
    """delta_i [N] bool of the first iteration; by default this pass's own gate."""
    old_logps: Tensor | None = None
    """log pi_old [N, L]: rho = pi / pi_old, clipped. Without it rho is 1 and its gradient that of log pi."""
    importance_weights: Tensor | None = None
    """Factor on each token's policy term: [N, L], [N, 1] or [N]."""
