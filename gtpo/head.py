"""Log-probabilities and entropies of a language model's head, differentiable, without ever holding its logits.

    z_v = cap tanh(scale (W_v h + bias_v) / cap) / tau,   p = softmax z,   logp = z_y - lse
    H = - sum_v p_v q_v,   q_v = max(log p_v, log clamp)     (no clamp: Shannon's entropy)
    dL/dz_v = g (onehot_y - p_v) - b p_v (q_v + H + k_v - K),   g = dL/dlogp, b = dL/dH

k_v = 1 where the clamp does not bite, K = sum_v p_v k_v. The vocabulary is walked in tiles, as attention with the query
h and keys = values = W, with sums over v != y relative to a running reference r of each row:

    S = sum e^{z_v - r},   T = sum e^{z_v - r} (z_v - r),   u = sum e^{z_v - r} dz_v/draw W_v,   total = S + e^{z_y - r}

**One visit.** With a frozen W and no gradient of the entropy, dlogp/dh = (S dz_y/draw W_y - u) / total does not depend
on the loss: the forward saves it, the backward multiplies it by g. The target is kept out of u, so that 1 - p_y keeps
its digits whatever u's factors are rounded to. r may lag behind the row's maximum, so that tiles hardly ever rescale u.

**Two visits.** Otherwise the backward walks the tiles again, for the rows whose g or b is not 0. It makes e^{z - r}
anew, or takes what the forward has kept for as many rows as fit `kept_bytes` and 16 bits a logit.

Symbols: R rows, hidden width D, vocabulary V, W = lm_head [V, D], m rows of a chunk, w columns of a tile.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.completions import check_tokens


class Sizes(NamedTuple):
    """How much is worked on at a time."""

    chunk_rows: int
    """Rows that a tile of W serves before the next one is read."""
    tile_logits: int
    kept_bytes: int
    """Most that a forward keeps for a second visit."""


CPU, GPU = Sizes(1024, 2**19, 2**28), Sizes(4096, 2**26, 2**31)
"""A tile of 2 MiB stays in a core's cache; on a GPU few large launches win."""


class Head(NamedTuple):
    """From hidden states to statistics: what `head_statistics` is told."""

    weight: Tensor
    bias: Tensor | None
    temperature: float
    scale: float
    softcap: float | None
    log_clamp: float
    entropy_gradient: bool
    factors: torch.dtype
    """Of what is multiplied; logits, statistics and sums are in `compute_dtype`."""

    @property
    def lag(self) -> float:
        """How far r may lie below a row's largest logit: e^30 fits float32 and bfloat16, float16 has no room for it."""
        return 0.0 if self.factors == torch.float16 else 30.0

    @property
    def sizes(self) -> Sizes:
        """Those of the device."""
        return GPU if self.weight.is_cuda else CPU

    def tiles(self, rows: int) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yield the columns of each tile that so many rows visit, its W [w, D] and its bias [w]."""
        width = max(1, self.sizes.tile_logits // max(rows, 1))
        for start in range(0, len(self.weight), width):
            columns = slice(start, min(start + width, len(self.weight)))
            yield columns, self.weight[columns].to(self.factors), None if self.bias is None else self.bias[columns]

    def logits_(self, raw: Tensor, bias: Tensor | None) -> Tensor:
        """Turn W h into logits, in place."""
        if bias is not None:
            raw += bias
        if self.softcap is not None:
            return raw.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        return raw if self.scale == self.temperature else raw.mul_(self.scale / self.temperature)

    def slope(self, z: Tensor) -> Tensor | float:
        """Return dz/draw, but for the factor scale / temperature."""
        return 1.0 if self.softcap is None else 1 - (z * (self.temperature / self.softcap)).square_()


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the type of logits, statistics and sums."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


@functools.cache
def cpu_multiplies(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for products of a half-precision type (AVX512_BF16, AMX)."""
    mkldnn = torch.ops.mkldnn
    known = {torch.bfloat16: mkldnn._is_mkldnn_bf16_supported, torch.float16: mkldnn._is_mkldnn_fp16_supported}
    return dtype not in known or bool(known[dtype]())


def head_statistics(
    hidden: Tensor,
    lm_head: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    log_clamp: float = 0.0,
    entropy_gradient: bool = False,
    gradient_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log p(ids) and the entropy in nats [R] of each row, in float32 (float64 if lm_head is).

    hidden [R, D]; lm_head [V, D]; ids [R] long, in 0..V-1; bias [V]. Log-probabilities are differentiable in hidden,
    lm_head and bias, entropies if `entropy_gradient`. gradient_rows: only so many leading rows may get a gradient; the
    others are spared the second product of the one visit. Raises ValueError for a temperature or cap not above 0.
    """
    for name, value in {"temperature": temperature, "softcap": softcap}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive; found {value}")
    trains = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (hidden, lm_head, bias)]
    again = trains[1] or trains[2] or (trains[0] and entropy_gradient)
    # A gradient of 1 / (N L) would vanish in float16, whose smallest number is 6e-8.
    widened = (again and lm_head.dtype == torch.float16) or not (lm_head.is_cuda or cpu_multiplies(lm_head.dtype))
    factors = torch.float32 if widened else lm_head.dtype
    # Aliases: ZeRO-3 takes a parameter's own data away when the model's forward has ended.
    weight, shift = lm_head.detach(), None if bias is None else bias.detach()
    head = Head(weight, shift, temperature, logit_scale, softcap, log_clamp, entropy_gradient, factors)
    leading = (len(hidden) if gradient_rows is None else gradient_rows) if trains[0] else 0
    function, arguments = (_TwoVisits, (lm_head, bias)) if again else (_OneVisit, (leading,))
    with torch.autocast(hidden.device.type, enabled=False):
        logps, entropies = function.apply(hidden, ids, head, *arguments)
    return logps, entropies


def token_statistics(
    hidden: Tensor, lm_head: Tensor, ids: Tensor, mask: Tensor, *, moving: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies [N, L] of the tokens that the mask marks, 0 elsewhere.

    hidden [N, L, D]: last hidden states, at the positions that predict ids [N, L]. moving [N, L]: which tokens may get
    a gradient, by default all. options: of `head_statistics`. Padding is never multiplied.

    Raises ValueError naming the argument: shapes that do not fit, ids outside the vocabulary, a row with no tokens.
    """
    bias = options.get("bias")
    if hidden.dim() != 3:
        raise ValueError(f"hidden must have shape [N, L, D]; found {list(hidden.shape)}")
    if lm_head.dim() != 2 or lm_head.shape[1] != hidden.shape[2]:
        raise ValueError(f"lm_head must have shape [V, {hidden.shape[2]}] to fit hidden; found {list(lm_head.shape)}")
    if bias is not None and bias.shape != lm_head.shape[:1]:
        raise ValueError(f"bias must have shape [{len(lm_head)}], as lm_head has; found {list(bias.shape)}")
    check_tokens(ids, mask, hidden.shape[:2], len(lm_head))
    mask = mask.bool()
    frozen = not (lm_head.requires_grad or options.get("entropy_gradient"))
    first = mask & moving if moving is not None and frozen else mask
    order = [first.flatten().nonzero()[:, 0], (mask & ~first).flatten().nonzero()[:, 0]]
    rows, states = torch.cat(order), hidden.flatten(0, 1)
    if len(order[0]) < len(states):
        states = states.index_select(0, rows)
    found = head_statistics(states, lm_head, ids.flatten()[rows].long(), gradient_rows=len(order[0]), **options)
    logps, entropies = (values.new_zeros(ids.numel()).index_copy(0, rows, values).view(ids.shape) for values in found)
    return logps, entropies


def check_finite(hidden: Tensor, lm_head: Tensor, bias: Tensor | None, logps: Tensor, entropies: Tensor) -> None:
    """Raise ValueError for the first token whose statistics [N, L] are not finite, saying whose fault it is.

    It waits for the device, and so is called when everything has been launched.
    """
    bad = ~(logps.detach().isfinite() & entropies.detach().isfinite())
    if not bool(bad.any()):
        return
    row, token = bad.nonzero()[0].tolist()
    if not bool(hidden[row, token].isfinite().all()):
        raise ValueError(f"hidden[{row}, {token}] is not finite (completion {row}, token {token})")
    for name, values in {"lm_head": lm_head, "bias": lm_head if bias is None else bias[:, None]}.items():
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name}[{int((~values.isfinite()).any(dim=1).nonzero()[0])}] is not finite")
    raise ValueError(f"the logits of hidden[{row}, {token}] overflow {logps.dtype}")


class _OneVisit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ids: Tensor, head: Head, leading: int) -> tuple[Tensor, ...]:
        slopes = hidden.new_zeros(leading, hidden.shape[1])
        parts = _chunks(head, 0, len(hidden))
        found = [_visit(head, hidden[at], ids[at], slopes=slopes[at])[:2] for at in parts]
        logps, entropies = map(torch.cat, zip(*found, strict=True))
        ctx.mark_non_differentiable(entropies)
        ctx.save_for_backward(slopes)
        return logps, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, b: Tensor) -> Any:
        (slopes,) = ctx.saved_tensors
        by_hidden = (slopes * g[: len(slopes), None]).to(slopes.dtype)
        if len(g) > len(slopes):
            by_hidden = torch.nn.functional.pad(by_hidden, (0, 0, 0, len(g) - len(slopes)))
        return by_hidden, None, None, None


class _TwoVisits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ids: Tensor, head: Head, weight: Tensor, bias: Tensor | None) -> Any:
        most = min(2 * len(hidden) * len(weight), head.sizes.kept_bytes) // (len(weight) * head.factors.itemsize)
        kept = hidden.new_empty(0 if head.entropy_gradient else most, len(weight), dtype=head.factors)
        parts = _chunks(head, 0, len(kept), len(hidden))
        found = [_visit(head, hidden[at], ids[at], kept=kept[at] if at.start < len(kept) else None) for at in parts]
        rows = tuple(map(torch.cat, zip(*found, strict=True)))
        if not head.entropy_gradient:
            ctx.mark_non_differentiable(rows[1])
        ctx.head = head._replace(weight=weight[:0], bias=None)
        ctx.save_for_backward(hidden, ids, head.weight, head.bias, kept, *rows)
        return rows[:2]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, b: Tensor) -> Any:
        """Return the gradients, from dL/draw = scale c: c [m, w] is all that may be rounded.

        c is e^{z - r} dz/draw, and at the target - S dz/draw; with the entropy's part it is all but a constant factor.
        """
        hidden, ids, weight, bias, kept, *rows = ctx.saved_tensors
        head, (_, _, _, weight_trains, bias_trains) = ctx.head._replace(weight=weight, bias=bias), ctx.needs_input_grad
        active = ((g != 0) | (b != 0)).nonzero()[:, 0]  # a GPU is waited for here, before the first launch
        g, b, ids, *rows = (values[active] for values in (g, b, ids, *rows))
        logps, entropies, reference, total, rest, unclamped = rows
        scale = (-head.scale / head.temperature) / total * (1 if head.entropy_gradient else g)

        def entropy_part(log_p: Tensor, at: slice) -> Tensor:
            """b (q + H + k - K) of log_p [m, w]."""
            floor = math.log(head.log_clamp) if head.log_clamp else -math.inf
            excess = log_p.clamp(min=floor).add_((entropies - unclamped)[at, None]).add_(log_p >= floor)
            return excess.mul_(b[at, None])

        at_target = -rest
        if head.entropy_gradient:
            at_target = entropy_part(logps[:, None], slice(None))[:, 0] * logps.exp() - rest * g
        at_target = at_target * head.slope(logps + reference)
        if not head.entropy_gradient:
            # What rounding takes from the target, by far the largest, the row's scale gives back.
            scale = scale * (at_target / at_target.to(head.factors)).nan_to_num(1.0)

        boundary = int((active < len(kept)).sum())
        states = hidden[active[boundary:]].to(head.factors)
        scaled = (hidden[active].to(g.dtype) * scale[:, None]).to(head.factors)
        by_states = g.new_zeros(scaled.shape)
        by_weight = (torch.empty_like if len(active) else torch.zeros_like)(weight) if weight_trains else None
        by_bias = torch.zeros_like(bias) if bias_trains else None
        parts = _chunks(head, 0, boundary, len(active))
        for columns, block, shift in head.tiles(max((at.stop - at.start for at in parts), default=1)):
            for at in parts:
                if at.start < boundary:
                    c = kept[:, columns].index_select(0, active[at])
                else:
                    z = g.new_empty(at.stop - at.start, len(block))
                    multiply(states[at.start - boundary : at.stop - boundary], block.t(), z, add=False)
                    slope = head.slope(head.logits_(z, shift))
                    z.sub_(reference[at, None])
                    c = z.exp().mul_(entropy_part(z, at).add_(g[at, None])) if head.entropy_gradient else z.exp_()
                    put_(c if head.softcap is None else c.mul_(slope), ids[at] - columns.start, at_target[at])
                    c = c.to(head.factors)
                multiply(c, block, by_states[at])
                if by_weight is not None:
                    multiply(c.t(), scaled[at], by_weight[columns], add=at is not parts[0])
                if by_bias is not None:
                    by_bias[columns] += c.t().to(g.dtype) @ scale[at]
        by_hidden = torch.zeros_like(hidden)
        by_hidden[active] = by_states.mul_(scale[:, None]).to(hidden.dtype)
        return by_hidden, None, None, by_weight, by_bias


def _visit(
    head: Head, hidden: Tensor, ids: Tensor, *, slopes: Tensor | None = None, kept: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return logp, H, r, total, S and K [m]; fill slopes [n <= m, D] with dlogp/dh and kept [m, V] with e^{z - r}.

    If nothing is kept, r is lse and total 1: relative to them a second visit makes the powers anew.
    """
    take, states, dtype = fold, hidden.to(head.factors), compute_dtype(head.weight)
    if hidden.is_cuda and installed("triton"):
        from gtpo.triton_head import fold as take
    # A CPU that multiplies bfloat16 hands products over rounded, so the target's logit is computed apart.
    target = head.weight[ids].to(dtype).mul_(hidden).sum(dim=1)  # torch sums pairwise here, and in turn in a bmm
    target = head.logits_(target, None if head.bias is None else head.bias[ids])
    sums = torch.stack([target, torch.zeros_like(target), torch.zeros_like(target)])
    u = slopes if slopes is None or slopes.dtype == dtype else torch.zeros_like(slopes, dtype=dtype)
    for columns, block, bias in head.tiles(len(hidden)):
        z = target.new_empty(len(hidden), len(block))
        e = torch.empty_like(z, dtype=head.factors) if kept is None else kept[:, columns]
        multiply(states, block.t(), z, add=False)
        take(head, z, e, sums, ids, columns.start, bias, u if kept is None else kept[:, : columns.start])
        if u is not None and len(u):
            multiply(e[: len(u)], block, u)
    reference, rest, weighted = sums
    centred = target - reference
    power = centred.exp()
    total = rest + power
    log_total = total.log()
    logps, entropies = centred - log_total, log_total - (weighted + power * centred) / total
    at_target = rest * head.slope(target)
    if slopes is not None and u is not None:
        factor = (head.scale / head.temperature) / total[: len(u), None]
        u.mul_(-factor).addcmul_(head.weight[ids[: len(u)]].to(dtype), factor * at_target[: len(u), None])
        if u is not slopes:
            slopes.copy_(u)
    unclamped = torch.ones_like(total)
    if head.log_clamp:
        entropies, unclamped = _clamped(head, states, reference + log_total)
    if kept is None:
        return logps, entropies, reference + log_total, torch.ones_like(total), rest / total, unclamped
    kept.scatter_(1, ids[:, None], -at_target[:, None].to(kept.dtype))
    return logps, entropies, reference, total, rest, unclamped


def _clamped(head: Head, states: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return H with the clamp in its logarithm, and K [m]. It needs lse first, and so a visit of its own."""
    entropies, unclamped, floor = torch.zeros_like(lse), torch.zeros_like(lse), math.log(head.log_clamp)
    for _, block, bias in head.tiles(len(states)):
        z = lse.new_empty(len(states), len(block))
        multiply(states, block.t(), z, add=False)
        log_p = head.logits_(z, bias).sub_(lse[:, None])
        p = log_p.exp()
        unclamped += (p * (log_p >= floor)).sum(dim=1)
        entropies -= p.mul_(log_p.clamp_(min=floor)).sum(dim=1)
    return entropies, unclamped


def fold(
    head: Head, z: Tensor, e: Tensor, sums: Tensor, ids: Tensor, start: int, bias: Tensor | None, earlier: Tensor | None
) -> None:
    """Take raw scores z [m, w] into sums (r, S, T) [3, m] and write e^{z - r} dz/draw to e [m, w], 0 at the target.

    start: the first column. earlier [n <= m, .]: what was made of earlier tiles, rescaled in rows whose r moves. z is
    lost.
    """
    reference, rest, weighted = sums
    highest = head.logits_(z, bias).amax(dim=1)
    if z.is_cuda or bool((highest > reference + head.lag).any()):
        step = torch.where(highest > reference + head.lag, reference - highest, 0.0)
        factor = step.exp()
        weighted.add_(rest * step).mul_(factor)
        rest.mul_(factor)
        reference.sub_(step)
        if earlier is not None:
            earlier.mul_(factor[: len(earlier), None])
    slope = head.slope(z)
    z.sub_(reference[:, None])
    power = torch.exp(z, out=e) if e.dtype == z.dtype else z.exp()
    put_(power, ids - start, torch.zeros_like(rest))
    rest.add_(power.sum(dim=1))
    weighted.add_(z.mul_(power).sum(dim=1))
    if head.softcap is not None:
        power.mul_(slope)
    if power is not e:
        e.copy_(power)


def put_(matrix: Tensor, columns: Tensor, values: Tensor) -> None:
    """Write values [m] to one column of each row of matrix [m, w], unless that column lies outside."""
    at = columns.clamp(0, matrix.shape[1] - 1)[:, None]
    matrix.scatter_(1, at, torch.where(at == columns[:, None], values[:, None], matrix.gather(1, at)))


def multiply(left: Tensor, right: Tensor, out: Tensor, *, add: bool = True) -> None:
    """out += left right, or out = left right, in the precision of `out` if the device offers it."""
    widens = left.is_cuda and left.itemsize < out.itemsize
    options: dict[str, Any] = {"out_dtype": out.dtype} if widens else {}
    if left.dtype != out.dtype and not widens:
        product = torch.mm(left, right)
        out.add_(product) if add else out.copy_(product)
    elif add:
        torch.addmm(out, left, right, **options, out=out)
    else:
        torch.mm(left, right, **options, out=out)


def _chunks(head: Head, *edges: int) -> list[slice]:
    """Return the parts of the rows between edges that are visited together."""
    size = head.sizes.chunk_rows
    pairs = itertools.pairwise(edges)
    return [slice(start, min(start + size, end)) for begin, end in pairs for start in range(begin, end, size)]
