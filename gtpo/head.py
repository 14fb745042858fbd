"""Log-probabilities and entropies of a language model's head, differentiable, without ever holding its logits.

    z_v = cap tanh(scale (W_v h + bias_v) / cap) / tau,   p = softmax z,   logp = z_y - lse
    H = - sum_v p_v q_v,   q_v = max(log p_v, log clamp)     (no clamp: Shannon's entropy)
    dL/dz_v = g (onehot_y - p_v) - b p_v (q_v + H + k_v - K),   g = dL/dlogp, b = dL/dH

k_v = 1 where the clamp does not bite, K = sum_v p_v k_v. The vocabulary is walked in tiles, as attention with the query
h and keys = values = W, with sums over v != y relative to a running reference r of each row:

    S = sum e^{z_v - r},   T = sum e^{z_v - r} (z_v - r),   u = sum e^{z_v - r} dz_v/draw W_v,   total = S + e^{z_y - r}

One visit: with a frozen W and no gradient of the entropy, dlogp/dh = (S dz_y/draw W_y - u) / total does not depend on
the loss. The forward saves it. The target is kept out of u, so that 1 - p_y keeps its digits. r may lag behind the
row's maximum, so that tiles hardly ever rescale u.

Two visits: otherwise the backward walks the tiles again, for rows whose g or b is not 0. It makes p anew, or takes the
e^{z - r} that the forward kept of two fifths of the columns. A tile is visited by all rows: its gradient of W is
complete then.

Truncated sampling (top_p, top_k, min_p) draws from some of the ids, the kept set, which differs by row. All sums are
then over the kept ids and y: the logits of a tile's other columns are lowered until e^z is 0.

R rows, of which m visit, hidden width D, vocabulary V, W = lm_head [V, D], w columns of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.completions import Kept, check_tokens

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped


class Sizes(NamedTuple):
    """A tile of 2 MiB stays in a core's cache. On a GPU few large launches win, of rows that start at 16 bytes."""

    columns: int  # a tile has a multiple of so many
    tile_logits: int
    kept_bytes: int


CPU, GPU = Sizes(512, 2**19, 2**28), Sizes(4096, 2**26, 2**31)
# How far r may lie behind the largest logit: e^10 fits float16, and hardly any later tile rises by so much.
LAG = 10.0


class Head(NamedTuple):
    """What is done to W h: temperature is part of scale and softcap, floor is that of log p in the entropy."""

    scale: float
    softcap: float | None
    floor: float
    entropy_gradient: bool
    # Dtype of what is multiplied.
    factors: torch.dtype
    sizes: Sizes
    # Of logits, statistics and sums.
    wide: torch.dtype = torch.float32

    def tiles(self, weight: Tensor, bias: Tensor | None, rows: int, kept: int = 0) -> Iterator[tuple[slice, Any, Any]]:
        """Yield each tile's columns, its W [w, D] and its bias [w]. No tile lies on both sides of column `kept`."""
        width = self.sizes.columns * max(1, self.sizes.tile_logits // max(1, rows) // self.sizes.columns)
        for start in (*range(0, kept, width), *range(kept, len(weight), width)):
            columns = slice(start, min(start + width, kept if start < kept else len(weight)))
            yield columns, weight[columns].to(self.factors), None if bias is None else bias[columns]

    def logits(self, states: Tensor, block: Tensor, bias: Any, columns: slice, kept_set: Kept | None) -> Tensor:
        """Return the logits [m, w] of states [m, D] for a tile of W [w, D]."""
        z = states.new_empty(len(states), len(block), dtype=self.wide)
        z = self.logits_(multiply(states, block.t(), z, scale=self.scale), bias)
        return z if kept_set is None else kept_set.lower_others(z, columns)

    def logits_(self, z: Tensor, bias: Tensor | None) -> Tensor:
        """Turn scale W h into logits, in place."""
        z = z if bias is None else z.add_(bias, alpha=self.scale)
        return z if self.softcap is None else z.div_(self.softcap).tanh_().mul_(self.softcap)

    def slope(self, z: Tensor) -> Tensor | float:
        """Return dz/draw, but for the factor scale."""
        return 1.0 if self.softcap is None else 1 - (z / self.softcap).square_()


def cpu_multiplies(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for products of a type (half precision: AVX512_BF16, AMX)."""
    mkldnn = torch.ops.mkldnn
    known = {torch.bfloat16: mkldnn._is_mkldnn_bf16_supported, torch.float16: mkldnn._is_mkldnn_fp16_supported}
    return dtype not in known or bool(known[dtype]())


def head_statistics(
    hidden: Float[Tensor, "R D"],
    lm_head: Float[Tensor, "V D"],
    ids: Int[Tensor, "R"],
    *,
    bias: Float[Tensor, "V"] | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    log_clamp: float = 0.0,
    entropy_gradient: bool = False,
    kept_set: Kept | None = None,
) -> tuple[Float[Tensor, "R"], Float[Tensor, "R"]]:
    """Return log p(ids) and the entropy in nats [R] of each row, in float32 (float64 if lm_head is).

    hidden [R, D]; lm_head [V, D]; ids [R] long, in 0..V-1; bias [V]. Log-probabilities are differentiable in hidden,
    lm_head and bias, entropies if `entropy_gradient`. kept_set: the distribution is over its ids and the row's own.
    Raises ValueError for a temperature or cap not above 0.
    """
    if not (temperature > 0 and (softcap is None or softcap > 0)):
        raise ValueError(f"temperature and softcap must be positive; found {temperature} and {softcap}")
    trains = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (hidden, lm_head, bias)]
    visits = 2 if trains[1] or trains[2] or (trains[0] and entropy_gradient) else int(trains[0])
    # A gradient of 1 / (N L) would vanish in float16, whose smallest number is 6e-8.
    widened = (visits == 2 and lm_head.dtype == torch.float16) or not (lm_head.is_cuda or cpu_multiplies(lm_head.dtype))
    wide = torch.promote_types(lm_head.dtype, torch.float32)
    factors, sizes = wide if widened else lm_head.dtype, GPU if lm_head.is_cuda else CPU
    scale, cap = logit_scale / temperature, None if softcap is None else softcap / temperature
    floor = math.log(log_clamp) if log_clamp else -math.inf
    head = Head(scale, cap, floor, entropy_gradient, factors, sizes, wide)
    with torch.autocast(hidden.device.type, enabled=False):
        logps, entropies = _Statistics.apply(hidden, lm_head, bias, ids, head, visits, kept_set)
    return logps, entropies


def token_statistics(
    hidden: Float[Tensor, "N L D"],
    lm_head: Float[Tensor, "V D"],
    ids: Int[Tensor, "N L"],
    mask: Shaped[Tensor, "N L"],
    kept_set: Kept | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "N L"], Float[Tensor, "N L"]]:
    """Return the log-probabilities and entropies [N, L] of the tokens that the mask marks, 0 elsewhere.

    hidden [N, L, D]: last hidden states, at the positions that predict ids [N, L]. kept_set: with N L rows. options: of
    `head_statistics`.
    Raises ValueError naming the argument: shapes that do not fit, ids outside the vocabulary.
    """
    check_tokens(hidden, lm_head, options.get("bias"), ids, mask)
    # Padding costs no product with the vocabulary.
    rows = mask.flatten().nonzero()[:, 0]
    states = hidden.flatten(0, 1).index_select(0, rows)
    sets = None if kept_set is None else kept_set.among(rows, ids.numel())
    found = head_statistics(states, lm_head, ids.flatten()[rows].long(), kept_set=sets, **options)
    logps, entropies = (values.new_zeros(ids.numel()).index_copy(0, rows, values).view(ids.shape) for values in found)
    return logps, entropies


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Any, ids: Tensor, head: Head, visits: int, kept_set: Kept | None
    ) -> Any:
        # Aliases: ZeRO-3 takes a parameter's own data away when the model's forward has ended.
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        take, states = fold, hidden.to(head.factors)
        if hidden.is_cuda and installed("triton"):
            from gtpo.triton_head import fold as take
        # A CPU that multiplies bfloat16 hands products over rounded, so the target's logit is computed apart.
        # torch sums pairwise here, and in turn in a bmm.
        target = weight[ids].to(head.wide).mul_(hidden).sum(dim=1)
        target = head.logits_(target.mul_(head.scale), None if bias is None else bias[ids])
        sums = torch.stack([target, torch.zeros_like(target), torch.zeros_like(target)])

        u, most = target.new_zeros(len(hidden) if visits == 1 else 0, hidden.shape[1]), 0
        if visits == 2 and not head.entropy_gradient:
            most = min(2 * len(weight) // 5, head.sizes.kept_bytes // (max(len(hidden), 1) * head.factors.itemsize))
            most -= most % head.sizes.columns
        # Only if no entropy is differentiated: that needs log p, which e^{z - r} in 16 bits does not give back.
        kept = states.new_empty(len(hidden), most)
        for columns, block, shift in head.tiles(weight, bias, len(hidden), most):
            z = head.logits(states, block, shift, columns, kept_set)
            e = kept[:, columns] if columns.stop <= most else torch.empty_like(z, dtype=head.factors)
            slope = head.slope(z)
            take(z, e, sums, ids, columns.start, LAG, u if len(u) else kept[:, : columns.start])
            if head.softcap is not None:
                e.mul_(slope)
            if len(u):
                multiply(e, block, u, add=True)
            # Before the next tile's are made beside them.
            del z, e
        reference, rest, weighted = sums
        power = (target - reference).exp()
        total = rest + power
        logps = target - reference - total.log()
        entropies = total.log() - (weighted + power * (target - reference)) / total
        unclamped = torch.ones_like(total)
        # The clamp needs lse first, and so a visit of its own.
        if head.floor > -math.inf:
            entropies, unclamped = torch.zeros_like(total), torch.zeros_like(total)
            for columns, block, shift in head.tiles(weight, bias, len(hidden)):
                log_p = head.logits(states, block, shift, columns, kept_set).sub_((target - logps)[:, None])
                p = log_p.exp()
                unclamped += (p * (log_p >= head.floor)).sum(dim=1)
                entropies -= p.mul_(log_p.clamp_(min=head.floor)).sum(dim=1)
        ctx.head, ctx.visits, ctx.kept_set = head, visits, kept_set
        if visits == 1:
            # dlogp/dh = (S dz_y/draw W_y - u) / total: as large as h, and all that the backward needs.
            own = weight[ids].to(head.wide).mul_((rest / total * head.slope(target))[:, None])
            ctx.save_for_backward(u.div_(-total[:, None]).add_(own).mul_(head.scale).to(hidden.dtype))
        else:
            # If no tile is kept, the backward makes p itself: r = lse.
            if not most:
                reference, rest = target - logps, rest / total
            sums = torch.stack([target, reference, rest, entropies - unclamped])
            ctx.save_for_backward(hidden, ids, weight, bias, kept, sums)
        if not head.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, b: Tensor) -> Any:
        # dL/draw = scale c, and only c [m, w] may be rounded: e^{z - r} dz/draw, at the target - S dz/draw; of the
        # entropy's gradient all but a constant factor.
        head, (_, weight_trains, bias_trains, *_) = ctx.head, ctx.needs_input_grad
        if ctx.visits == 1:
            (slopes,) = ctx.saved_tensors
            return (slopes * g[:, None]).to(slopes.dtype), *[None] * 6
        hidden, ids, weight, bias, kept, sums = ctx.saved_tensors
        # A GPU is waited for here, before the first launch.
        active = ((g != 0) | (b != 0)).nonzero()[:, 0]
        g, b, ids, (target, reference, rest, level) = g[active], b[active], ids[active], sums[:, active]
        sets = None if ctx.kept_set is None else ctx.kept_set.among(active, len(hidden))
        power = (target - reference).exp()
        scale, total = torch.full_like(g, -head.scale), rest + power
        if not head.entropy_gradient:
            scale, g, b = scale * g / total, torch.ones_like(g), torch.zeros_like(g)

        def entropy_part(log_p: Tensor) -> Tensor:
            """b (q + H + k - K) of log_p [m, w]."""
            return log_p.clamp(min=head.floor).add_(level[:, None]).add_(log_p >= head.floor).mul_(b[:, None])

        entropy_at_target = entropy_part((target - reference - total.log())[:, None])[:, 0]
        at_target = (entropy_at_target * power - rest * g) * head.slope(target)
        # What rounding takes from the target, by far the largest, the row's scale gives back; all but next to nothing.
        rounded = at_target / at_target.to(head.factors)
        scale *= torch.where((rounded - 1).abs() < 0.01, rounded, 1.0)

        states, by_states = hidden[active].to(head.factors), scale.new_zeros(len(active), hidden.shape[1])
        scaled = (states * scale[:, None]).to(head.factors)
        by_weight = torch.empty_like(weight) if weight_trains else None
        by_bias = torch.empty_like(bias) if bias_trains else None
        for columns, block, shift in head.tiles(weight, bias, len(active), kept.shape[1]):
            if columns.stop <= kept.shape[1]:
                c = kept[:, columns].index_select(0, active)
            else:
                z = head.logits(states, block, shift, columns, sets)
                slope = head.slope(z)
                z.sub_(reference[:, None])
                c = z.exp().mul_(entropy_part(z).add_(g[:, None])) if head.entropy_gradient else z.exp_()
                c = (c if head.softcap is None else c.mul_(slope)).to(head.factors)
            put_(c, ids - columns.start, at_target.to(c.dtype))
            multiply(c, block, by_states, add=True)
            if by_weight is not None:
                multiply(c.t(), scaled, by_weight[columns])
            if by_bias is not None:
                by_bias[columns] = (c.t().to(g.dtype) @ scale).to(by_bias.dtype)
            # Before the next tile's is made beside it.
            c = z = None
        by_hidden = torch.zeros_like(hidden).index_copy_(0, active, by_states.mul_(scale[:, None]).to(hidden.dtype))
        return by_hidden, by_weight, by_bias, *[None] * 4


def fold(z: Tensor, e: Tensor, sums: Tensor, ids: Tensor, start: int, lag: float, earlier: Tensor) -> None:
    """Take logits z [m, w] into sums (r, S, T) [3, m] and write e^{z - r} to e [m, w], 0 at the target.

    start: the first column. earlier [m, .]: what was made of earlier tiles, rescaled in rows whose r moves. z is lost.
    """
    reference, rest, weighted = sums
    highest = z.amax(dim=1)
    # A CPU may be asked; on a GPU the kernel decides by row, since asking would wait for it.
    if bool((highest > reference + lag).any()):
        step = torch.where(highest > reference + lag, reference - highest, 0.0)
        factor = step.exp()
        weighted.add_(rest * step).mul_(factor)
        rest.mul_(factor)
        reference.sub_(step)
        earlier.mul_(factor[:, None])
    z.sub_(reference[:, None])
    power = torch.exp(z, out=e) if e.dtype == z.dtype else z.exp()
    put_(power, ids - start, torch.zeros_like(rest))
    rest.add_(power.sum(dim=1))
    weighted.add_(z.mul_(power).sum(dim=1))
    if power is not e:
        e.copy_(power)


def put_(matrix: Tensor, columns: Tensor, values: Tensor) -> None:
    """Write values [m] to one column of each row of matrix [m, w], unless that column lies outside."""
    at = columns.clamp(0, matrix.shape[1] - 1)[:, None]
    matrix.scatter_(1, at, torch.where(at == columns[:, None], values[:, None], matrix.gather(1, at)))


def multiply(left: Tensor, right: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> Tensor:
    """Return out = scale left right, or out += left right, in the precision of `out` if the device offers it."""
    if left.dtype == out.dtype or (left.is_cuda and left.itemsize < out.itemsize):
        options: dict[str, Any] = {} if left.dtype == out.dtype else {"out_dtype": out.dtype}
        return torch.addmm(out, left, right, beta=int(add), alpha=scale, **options, out=out)
    product = torch.mm(left, right)
    out = out.add_(product) if add else out.copy_(product)
    return out if scale == 1 else out.mul_(scale)
