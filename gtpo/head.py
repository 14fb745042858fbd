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
e^{z - r} that the forward kept of as many rows as fit `kept_bytes` and 16 bits a logit.

R rows, hidden width D, vocabulary V, W = lm_head [V, D], m rows of a chunk, w columns of a tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.completions import check_tokens


class Sizes(NamedTuple):
    """How much is worked on at a time. A tile of 2 MiB stays in a core's cache; on a GPU few large launches win."""

    chunk_rows: int
    tile_logits: int
    kept_bytes: int


CPU, GPU = Sizes(1024, 2**19, 2**28), Sizes(4096, 2**26, 2**31)
ALIGNED = 128  # columns: products of matrices whose rows do not start at multiples of 16 bytes are slow on a GPU


class Head(NamedTuple):
    """What is done to W h. Temperature is part of scale and softcap."""

    scale: float
    softcap: float | None
    log_clamp: float
    entropy_gradient: bool
    factors: torch.dtype
    """Of what is multiplied; logits, statistics and sums are in `compute_dtype`."""
    lag: float
    """How far r may lie below a row's largest logit."""
    sizes: Sizes

    def chunks(self, *edges: int) -> list[slice]:
        """Return the parts of the rows between edges that are visited together."""
        size, pairs = self.sizes.chunk_rows, itertools.pairwise(edges)
        return [slice(start, min(start + size, end)) for begin, end in pairs for start in range(begin, end, size)]

    def tiles(self, weight: Tensor, bias: Tensor | None, rows: int) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yield the columns of each tile that so many rows visit, its W [w, D] and its bias [w]."""
        width = max(1, self.sizes.tile_logits // rows)
        width -= width % ALIGNED if width > ALIGNED else 0
        for start in range(0, len(weight), width):
            columns = slice(start, min(start + width, len(weight)))
            yield columns, weight[columns].to(self.factors), None if bias is None else bias[columns]

    def logits(self, states: Tensor, block: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the logits [m, w] of states [m, D] for a tile of W [w, D]."""
        return self.logits_(multiply(states, block.t(), states.new_empty(len(states), len(block), dtype=dtype)), bias)

    def logits_(self, raw: Tensor, bias: Tensor | None) -> Tensor:
        """Turn W h into logits, in place."""
        raw = raw if bias is None else raw.add_(bias)
        if self.softcap is not None:
            return raw.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap)
        return raw if self.scale == 1 else raw.mul_(self.scale)

    def slope(self, z: Tensor) -> Tensor | float:
        """Return dz/draw, but for the factor scale."""
        return 1.0 if self.softcap is None else 1 - (z / self.softcap).square_()


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the type of logits, statistics and sums."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def cpu_multiplies(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for products of a type (half precision: AVX512_BF16, AMX)."""
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
) -> tuple[Tensor, Tensor]:
    """Return log p(ids) and the entropy in nats [R] of each row, in float32 (float64 if lm_head is).

    hidden [R, D]; lm_head [V, D]; ids [R] long, in 0..V-1; bias [V]. Log-probabilities are differentiable in hidden,
    lm_head and bias, entropies if `entropy_gradient`. Raises ValueError for a temperature or cap not above 0.
    """
    for name, value in {"temperature": temperature, "softcap": softcap}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive; found {value}")
    trains = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (hidden, lm_head, bias)]
    visits = 2 if trains[1] or trains[2] or (trains[0] and entropy_gradient) else int(trains[0])
    # A gradient of 1 / (N L) would vanish in float16, whose smallest number is 6e-8.
    widened = (visits == 2 and lm_head.dtype == torch.float16) or not (lm_head.is_cuda or cpu_multiplies(lm_head.dtype))
    factors = torch.float32 if widened else lm_head.dtype
    scale, cap = logit_scale / temperature, None if softcap is None else softcap / temperature
    lag = 0.0 if factors == torch.float16 else 30.0  # e^30 fits float32 and bfloat16, float16 has no room for it
    head = Head(scale, cap, log_clamp, entropy_gradient, factors, lag, GPU if lm_head.is_cuda else CPU)
    with torch.autocast(hidden.device.type, enabled=False):
        logps, entropies = _Statistics.apply(hidden, lm_head, bias, ids, head, visits)
    return logps, entropies


def token_statistics(
    hidden: Tensor, lm_head: Tensor, ids: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies [N, L] of the tokens that the mask marks, 0 elsewhere.

    hidden [N, L, D]: last hidden states, at the positions that predict ids [N, L]. options: of `head_statistics`.
    Padding is never multiplied.

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
    rows = mask.flatten().nonzero()[:, 0]
    states = hidden.flatten(0, 1).index_select(0, rows)
    found = head_statistics(states, lm_head, ids.flatten()[rows].long(), **options)
    logps, entropies = (values.new_zeros(ids.numel()).index_copy(0, rows, values).view(ids.shape) for values in found)
    return logps, entropies


def check_finite(hidden: Tensor, lm_head: Tensor, bias: Tensor | None, logps: Tensor, entropies: Tensor) -> None:
    """Raise ValueError for the first token whose statistics [N, L] are not finite, saying whose fault it is.

    It waits for the device, and so is called when everything has been launched.
    """
    bad = (~(logps + entropies).detach().isfinite()).nonzero()
    if not len(bad):
        return
    row, token = bad[0].tolist()
    causes = {f"hidden[{row}, {token}]": hidden[row, token], "lm_head": lm_head, "bias": bias}
    infinite = [name for name, values in causes.items() if values is not None and not bool(values.isfinite().all())]
    cause = f"{infinite[0]} is not finite" if infinite else f"its logits overflow {logps.dtype}"
    raise ValueError(f"the statistics of completion {row}, token {token} are not finite: {cause}")


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, head: Head, visits: int
    ) -> tuple[Tensor, ...]:
        # Aliases: ZeRO-3 takes a parameter's own data away when the model's forward has ended.
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        slopes = hidden.new_zeros(len(hidden) if visits == 1 else 0, hidden.shape[1])
        most = min(2 * len(hidden) * len(weight), head.sizes.kept_bytes) // (len(weight) * head.factors.itemsize)
        kept = hidden.new_empty(
            most if visits == 2 and not head.entropy_gradient else 0, len(weight), dtype=head.factors
        )
        parts = head.chunks(0, len(kept), len(hidden))
        found = [_visit(head, weight, bias, hidden[at], ids[at], slopes[at], kept[at]) for at in parts]
        logps, entropies, *rest = map(torch.cat, zip(*found, strict=True))
        if not head.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        ctx.head, ctx.visits = head, visits
        ctx.save_for_backward(
            *([hidden, ids, weight, bias, kept, logps, entropies, *rest] if visits == 2 else [slopes])
        )
        return logps, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, b: Tensor) -> Any:
        """Return the gradients, from dL/draw = scale c: c [m, w] is all that may be rounded.

        c is e^{z - r} dz/draw, and at the target - S dz/draw; with the entropy's part it is all but a constant factor.
        """
        head, (_, weight_trains, bias_trains, *_) = ctx.head, ctx.needs_input_grad
        if ctx.visits == 1:
            (slopes,) = ctx.saved_tensors
            return (slopes * g[:, None]).to(slopes.dtype), *[None] * 5
        hidden, ids, weight, bias, kept, *rows = ctx.saved_tensors
        active = ((g != 0) | (b != 0)).nonzero()[:, 0]  # a GPU is waited for here, before the first launch
        g, b, ids, *rows = (values[active] for values in (g, b, ids, *rows))
        logps, entropies, target, miss, total, unclamped = rows

        def entropy_part(log_p: Tensor, at: slice) -> Tensor:
            """b (q + H + k - K) of log_p [m, w]."""
            floor = math.log(head.log_clamp) if head.log_clamp else -math.inf
            excess = log_p.clamp(min=floor).add_((entropies - unclamped)[at, None]).add_(log_p >= floor)
            return excess.mul_(b[at, None])

        if head.entropy_gradient:
            scale = torch.ones_like(g)
            at_target = (entropy_part(logps[:, None], slice(None))[:, 0] * logps.exp() - miss * g) * head.slope(target)
        else:
            at_target = -miss * total * head.slope(target)
            # What rounding takes from the target, by far the largest, the row's scale gives back.
            scale = g / total * (at_target / at_target.to(head.factors)).nan_to_num(1.0)
        scale = scale * -head.scale

        by_hidden = torch.zeros_like(hidden)
        by_weight = (torch.empty_like if len(active) else torch.zeros_like)(weight) if weight_trains else None
        by_bias = torch.zeros_like(bias) if bias_trains else None
        boundary = int((active < len(kept)).sum())
        for at in head.chunks(0, boundary, len(active)):
            states = hidden[active[at]]
            scaled = (states * scale[at, None]).to(head.factors)
            by_states, states = g.new_zeros(states.shape), states.to(head.factors)
            for columns, block, shift in head.tiles(weight, bias, len(states)):
                if at.start < boundary:
                    c = kept[:, columns].index_select(0, active[at])
                else:
                    c = head.logits(states, block, shift, g.dtype)
                    slope = head.slope(c)
                    c.sub_((target - logps)[at, None])
                    c = c.exp().mul_(entropy_part(c, at).add_(g[at, None])) if head.entropy_gradient else c.exp_()
                    c = (c if head.softcap is None else c.mul_(slope)).to(head.factors)
                put_(c, ids[at] - columns.start, at_target[at].to(c.dtype))
                multiply(c, block, by_states, add=True)
                if by_weight is not None:
                    multiply(c.t(), scaled, by_weight[columns], add=at.start > 0)
                if by_bias is not None:
                    by_bias[columns] += c.t().to(g.dtype) @ scale[at]
                del c
            by_hidden[active[at]] = by_states.mul_(scale[at, None]).to(hidden.dtype)
        return by_hidden, by_weight, by_bias, None, None, None


def _visit(
    head: Head, weight: Tensor, bias: Tensor | None, hidden: Tensor, ids: Tensor, slopes: Tensor, kept: Tensor
) -> tuple[Tensor, ...]:
    """Return logp, H, z_y, 1 - p_y, total and K [m]; fill slopes with dlogp/dh and kept [m, V] with e^{z - r}.

    slopes and kept have no rows if they are not wanted. Without kept, total is 1: p is what a second visit makes.
    """
    take, states, dtype = fold, hidden.to(head.factors), compute_dtype(weight)
    if hidden.is_cuda and installed("triton"):
        from gtpo.triton_head import fold as take
    # A CPU that multiplies bfloat16 hands products over rounded, so the target's logit is computed apart.
    target = weight[ids].to(dtype).mul_(hidden).sum(dim=1)  # torch sums pairwise here, and in turn in a bmm
    target = head.logits_(target, None if bias is None else bias[ids])
    sums, u = torch.stack([target, torch.zeros_like(target), torch.zeros_like(target)]), slopes.to(dtype)
    for columns, block, shift in head.tiles(weight, bias, len(hidden)):
        z = multiply(states, block.t(), target.new_empty(len(hidden), len(block)))
        e = kept[:, columns] if len(kept) else torch.empty_like(z, dtype=head.factors)
        take(head, z, e, sums, ids, columns.start, shift, kept[:, : columns.start] if len(kept) else u)
        if len(u):
            multiply(e, block, u, add=True)
        del z, e  # or the next tile's would be made beside them
    reference, rest, weighted = sums
    centred = target - reference
    power = centred.exp()
    total = rest + power
    logps, entropies = centred - total.log(), total.log() - (weighted + power * centred) / total
    miss, unclamped = rest / total, torch.ones_like(total)
    if len(u):
        own = weight[ids].to(dtype).mul_((miss * head.slope(target))[:, None])
        slopes.copy_(u.div_(-total[:, None]).add_(own).mul_(head.scale))
    if head.log_clamp:  # it needs lse first, and so a visit of its own
        entropies, unclamped, floor = torch.zeros_like(total), torch.zeros_like(total), math.log(head.log_clamp)
        for _, block, shift in head.tiles(weight, bias, len(hidden)):
            log_p = head.logits(states, block, shift, dtype).sub_((target - logps)[:, None])
            p = log_p.exp()
            unclamped += (p * (log_p >= floor)).sum(dim=1)
            entropies -= p.mul_(log_p.clamp_(min=floor)).sum(dim=1)
    return logps, entropies, target, miss, total if len(kept) else torch.ones_like(total), unclamped


def fold(
    head: Head, z: Tensor, e: Tensor, sums: Tensor, ids: Tensor, start: int, bias: Tensor | None, earlier: Tensor
) -> None:
    """Take raw scores z [m, w] into sums (r, S, T) [3, m] and write e^{z - r} dz/draw to e [m, w], 0 at the target.

    start: the first column. earlier [m, .]: what was made of earlier tiles, rescaled in rows whose r moves. z is lost.
    """
    reference, rest, weighted = sums
    highest = head.logits_(z, bias).amax(dim=1)
    if z.is_cuda or bool((highest > reference + head.lag).any()):
        step = torch.where(highest > reference + head.lag, reference - highest, 0.0)
        factor = step.exp()
        weighted.add_(rest * step).mul_(factor)
        rest.mul_(factor)
        reference.sub_(step)
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


def multiply(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> Tensor:
    """Return out = left right, or out += left right, in the precision of `out` if the device offers it."""
    widens = left.is_cuda and left.itemsize < out.itemsize
    options: dict[str, Any] = {"out_dtype": out.dtype} if widens else {}
    if left.dtype != out.dtype and not widens:
        product = torch.mm(left, right)
        return out.add_(product) if add else out.copy_(product)
    return torch.addmm(out, left, right, **options, out=out) if add else torch.mm(left, right, **options, out=out)
