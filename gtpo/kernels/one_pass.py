"""The autograd function behind `gtpo.fused`: which rows go into a chunk, and what is done once it has been visited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gtpo.common.packages import installed
from gtpo.completions import Completions
from gtpo.kernels import matmul, torch_rows, vocabulary_tiles, workers
from gtpo.kernels.chunks import Chunk, default_rows, split
from gtpo.kernels.torch_rows import Transform
from gtpo.kernels.vocabulary_tiles import Powers
from gtpo.objective import Coefficients, Objective, completion_coefficients, entropy_gate, weighted_advantages


@dataclass(frozen=True)
class Plan:
    """Everything but the tensors that carry gradients."""

    objective: Objective
    ids: Tensor
    mask: Tensor
    completions: Completions
    num_generations: int
    gate_active: bool
    groups: float
    epsilon_low: float
    epsilon_high: float
    backend: str
    chunk_rows: int | None
    transform: Transform
    differentiate: bool
    """Whether autograd is recording; inside the function it never is."""
    matmul_dtype: torch.dtype
    """What goes into the products (`gtpo.kernels.matmul.choose_matmul_dtype`)."""


def choose_backend(name: str, hidden: Tensor) -> str:
    """Return `torch` or `triton`; `auto` takes triton for CUDA tensors where it is installed."""
    if name not in ("auto", "torch", "triton"):
        raise ValueError(f'backend must be "auto", "torch" or "triton"; found {name!r}')
    if name == "triton" and not installed("triton"):
        raise ValueError('backend "triton" needs the package triton; pip install triton, or use backend "torch"')
    if name == "auto":
        return "triton" if hidden.is_cuda and installed("triton") else "torch"
    return name


class OnePass(torch.autograd.Function):
    """(hidden [N*L, D], weight [V, D], bias [V] or None, plan) -> loss, logps, entropies [N*L], A', <H>, delta [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, ...]:
        """Compute the loss and, in the same pass, whatever gradients are needed."""
        needs = [plan.differentiate and needed for needed in ctx.needs_input_grad[:3]]
        with torch.autocast(hidden.device.type, enabled=False):
            work = _Pass(hidden, weight, bias, plan, *needs)
            outputs = work.run()
        ctx.gradients = work.grad_hidden, work.grad_weight, work.grad_bias
        ctx.dtypes = tuple(None if t is None else t.dtype for t in (hidden, weight, bias))
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Any) -> Any:
        """Scale the stored gradients by the upstream one and hand them over.

        Scaled in place, and not kept: dloss/dW is as large as W, and autograd would copy what is held here as well.
        Raises RuntimeError the second time.
        """
        scale = upstream[0]
        if scale is None:
            return None, None, None, None
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError(
                "the gradients of this GTPO loss were handed over by an earlier backward: compute the loss again "
                "rather than call backward twice with retain_graph"
            )
        if scale.is_cuda or float(scale) != 1.0:  # on a GPU the question would wait for the device
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(scale)
        return (*(None if g is None else g.to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)), None)


class _Pass:
    """One forward of OnePass: the state that its chunks share."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        plan: Plan,
        needs_hidden: bool,
        needs_weight: bool,
        needs_bias: bool,
    ) -> None:
        self.hidden, self.weight, self.bias, self.plan = hidden.detach(), weight.detach(), bias, plan
        self.dtype = matmul.compute_dtype(weight)
        objective = plan.objective
        count, length = plan.mask.shape
        self.length = length
        self.device = hidden.device
        self.lengths = plan.mask.sum(dim=1)
        excluded = plan.completions.excluded
        self.completions = given = plan.completions._replace(
            advantages=plan.completions.advantages.to(self.dtype),
            excluded=None if excluded is None else excluded.bool(),
        )
        # What multiplies a token's policy term besides c_i: lambda and the importance weights.
        factors = given.weights.to(self.dtype)
        if given.importance_weights is not None:
            importance = given.importance_weights.to(self.dtype)
            factors = factors * (importance[:, None] if importance.dim() == 1 else importance)
        self.factors = factors.reshape(-1)
        self.targets = torch.where(plan.mask, plan.ids, 0).long().reshape(-1)
        self.logps = torch.zeros(count * length, dtype=self.dtype, device=self.device)
        self.entropies = torch.zeros_like(self.logps)

        self.needs_gradient = needs_hidden or needs_weight or needs_bias
        # Rows are stored unscaled in the dtype of the gradient: no float32 copy of [N L, D] beside bf16 weights.
        self.grad_hidden = torch.zeros_like(self.hidden) if needs_hidden else None
        self.grad_weight: Tensor | None = None
        """Made by the first product that goes into it: filling it with zeros would cost as much as adding to it."""
        self.needs_weight = needs_weight
        self.waits = needs_weight or needs_bias
        """A product or a sum needs the rows' factors before it can add rows up."""
        self.grad_bias = torch.zeros(weight.shape[0], dtype=self.dtype, device=self.device) if needs_bias else None

        self.entropy_term = objective.entropy_mode == "loss" and objective.gamma != 0
        gate_known = not plan.gate_active or given.old_keep_mask is not None
        shape_known = objective.entropy_mode != "advantage" or objective.gamma == 0 or given.old_entropy is not None
        self.coefficients_known = gate_known and shape_known
        """c_i and e_i do not depend on this pass."""
        self.whole_completions = (
            self.needs_gradient
            and not self.coefficients_known
            and (self.waits or (self.entropy_term and not objective.entropy_gated))
        )
        """c_i or e_i must be known inside the chunk: chunks of whole completions."""
        self.tiled = not objective.log_clamp and not (self.entropy_term and self.needs_gradient)
        """No row of logits is needed as a whole (`gtpo.kernels.vocabulary_tiles`)."""
        self.threads = workers.available(self.device) if plan.backend == "torch" else 1
        # Rows scaled by 1 / (N L) would vanish in float16, whose smallest number is 6e-8.
        self.matmul_dtype = torch.float32 if plan.matmul_dtype == torch.float16 else plan.matmul_dtype
        self.scale_at_end = self.needs_gradient and (
            self.tiled or not (self.whole_completions or self.coefficients_known)
        )
        """Rows are scaled after the last chunk."""

    # -- coefficients ----------------------------------------------------------------------------------------------

    def coefficients(self, *, entropy: Tensor, keep_mask: Tensor) -> Coefficients:
        """Return c, e and A' [N]."""
        return completion_coefficients(
            self.plan.objective,
            self.completions,
            lengths=self.lengths,
            entropy=entropy,
            keep_mask=keep_mask,
            num_generations=self.plan.num_generations,
            groups=self.plan.groups,
        )

    def gate(self, entropy: Tensor) -> Tensor:
        """Return delta [N] bool: of the first iteration, where given, or of this pass."""
        old = self.completions.old_keep_mask
        if old is not None:
            return old.bool()
        return entropy_gate(
            self.plan.objective, entropy, self.completions.advantages, gate_active=self.plan.gate_active
        )

    def mean_entropy(self) -> Tensor:
        """Return <H> [N] of what has been visited."""
        return self.entropies.view(-1, self.length).sum(dim=1) / self.lengths

    def shaping_entropy(self, entropy: Tensor) -> Tensor:
        """Return the <H> [N] that shapes advantages: of the first iteration, where given."""
        old = self.completions.old_entropy
        return entropy if old is None else old.to(self.dtype)

    def surrogate(self, policy_scale: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return c lambda rho and the factor of dlogp, both per row, from c [N] (PPO's clipping where rho may move)."""
        coefficient = policy_scale[positions // self.length] * self.factors[positions]
        old = self.completions.old_logps
        if old is None:
            return coefficient, coefficient
        ratio = torch.exp(self.logps[positions] - old.reshape(-1)[positions].to(self.dtype))
        clipped = coefficient * ratio.clamp(1 - self.plan.epsilon_low, 1 + self.plan.epsilon_high)
        moving = coefficient * ratio
        return torch.minimum(moving, clipped), torch.where(moving <= clipped, moving, 0.0)

    # -- chunks ----------------------------------------------------------------------------------------------------

    def may_carry_gradient(self) -> Tensor:
        """Return [N*L] bool: False where dloss/dz is known to be 0 before the row is visited."""
        objective = self.plan.objective
        if not self.needs_gradient:
            return torch.zeros_like(self.factors, dtype=torch.bool)
        advantages, excluded = self.completions.advantages, self.completions.excluded
        if self.coefficients_known:
            entropy = self.shaping_entropy(torch.zeros_like(advantages))
            c, e, _ = self.coefficients(entropy=entropy, keep_mask=self.gate(entropy))
        else:
            moved = objective.entropy_mode == "advantage" and objective.gamma != 0
            included = torch.ones_like(advantages, dtype=torch.bool) if excluded is None else ~excluded
            c = ((weighted_advantages(objective, advantages) != 0) | moved) & included
            e = included & self.entropy_term
        policy = (c != 0)[:, None] & (self.factors.view(-1, self.length) != 0)
        return (policy | (e != 0)[:, None]).reshape(-1)

    def chunks(self) -> list[Chunk]:
        """Return the chunks of this pass."""
        rows = self.plan.chunk_rows or default_rows(
            "cpu" if self.device.type == "cpu" else "cuda",
            tokens=int(self.lengths.sum()),
            row_bytes=self.weight.shape[0] * self.dtype.itemsize,
            tiled=self.tiled,
            trainable=self.waits,
            threads=self.threads,
        )
        return split(self.plan.mask, self.may_carry_gradient(), rows, whole_completions=self.whole_completions)

    def run(self) -> tuple[Tensor, ...]:
        """Visit every chunk, then scale what had to wait."""
        chunks = self.chunks()
        if self.tiled:
            self._visit_tiles(chunks)
        else:
            self._visit_rows(chunks)
        self._check_finite()
        return self._finish()

    def _visit_tiles(self, chunks: list[Chunk]) -> None:
        keep = None
        # Scaled rows go into the third product only.
        matmul_dtype = self.matmul_dtype if self.waits else self.plan.matmul_dtype
        if self.waits:
            most = max((len(chunk.positions) for chunk in chunks if chunk.grad_rows), default=0)
            keep = torch.empty(most * self.weight.shape[0], dtype=matmul_dtype, device=self.device)
        for chunk in chunks:
            positions, targets = chunk.positions, self.targets[chunk.positions]
            hidden = self.hidden[positions]
            found = vocabulary_tiles.visit(
                hidden=hidden,
                weight=self.weight,
                bias=self.bias,
                targets=targets,
                transform=self.plan.transform,
                kernels=self._kernels(),
                matmul_dtype=matmul_dtype,
                grad_rows=0 if self.grad_hidden is None else chunk.grad_rows,
                keep=keep if chunk.grad_rows else None,
                threads=self.threads,
            )
            self.logps[positions], self.entropies[positions] = found.logps, found.entropies
            positions = positions[: chunk.grad_rows]
            if found.gradient is not None and self.grad_hidden is not None:
                self.grad_hidden[positions] = found.gradient.to(self.grad_hidden.dtype)
            if found.powers is not None:
                now = self._current_coefficients()
                scale = self.surrogate(now.policy_scale, positions)[1]
                self._accumulate_outer(found.powers, scale, hidden[: len(scale)], targets[: len(scale)], matmul_dtype)

    def _accumulate_outer(
        self, powers: Powers, scale: Tensor, hidden: Tensor, targets: Tensor, matmul_dtype: torch.dtype
    ) -> None:
        if not bool((scale != 0).any()):
            return
        fresh = self.grad_weight is None
        if self.needs_weight and fresh:
            dtype = matmul.sum_dtype(self.weight, matmul_dtype)
            self.grad_weight = torch.empty(self.weight.shape, dtype=dtype, device=self.device)
        vocabulary_tiles.accumulate_outer(
            powers,
            scale=scale,
            hidden=hidden,
            targets=targets,
            grad_weight=self.grad_weight,
            grad_bias=self.grad_bias,
            fresh=fresh,
            matmul_dtype=matmul_dtype,
        )

    def _visit_rows(self, chunks: list[Chunk]) -> None:
        widest = max(len(chunk.positions) for chunk in chunks)
        buffer = torch.empty(widest, self.weight.shape[0], dtype=self.dtype, device=self.device)
        if self.coefficients_known:
            fixed = self._current_coefficients()
        for chunk in chunks:
            z, rows = self._visit(chunk, buffer)
            if not chunk.grad_rows:
                continue
            policy_scale = entropy_scale = None
            positions = chunk.positions[: chunk.grad_rows]
            if not self.scale_at_end or self.entropy_term:
                if self.coefficients_known:
                    now = fixed
                elif self.whole_completions:
                    now = self._current_coefficients()
                else:  # the gate is the only thing missing; it scales both terms alike
                    none = torch.zeros_like(self.completions.advantages)
                    now = self.coefficients(entropy=none, keep_mask=torch.ones_like(none, dtype=torch.bool))
                policy_scale = self.surrogate(now.policy_scale, positions)[1]
                entropy_scale = now.entropy_scale[positions // self.length] if self.entropy_term else None
            self._differentiate(z, rows, positions, policy_scale=policy_scale, entropy_scale=entropy_scale)

    def _current_coefficients(self) -> Coefficients:
        """Return the coefficients from what has been visited."""
        entropy = self.mean_entropy()
        return self.coefficients(entropy=self.shaping_entropy(entropy), keep_mask=self.gate(entropy))

    def _kernels(self) -> Any:
        if self.plan.backend == "triton":
            from gtpo.kernels import triton_rows

            return triton_rows
        return torch_rows

    def _visit(self, chunk: Chunk, buffer: Tensor) -> tuple[Tensor, torch_rows.RowStatistics]:
        z = buffer[: len(chunk.positions)]
        hidden, targets = self.hidden[chunk.positions], self.targets[chunk.positions]
        matmul.logits_from_hidden(hidden, self.weight, self.bias, z, self.matmul_dtype)
        if matmul.comes_rounded(self.matmul_dtype, self.device):
            z.scatter_(1, targets[:, None], matmul.target_logits(hidden, self.weight, self.bias, targets)[:, None])
        rows = self._kernels().statistics(z, targets, self.plan.transform, self.plan.objective.log_clamp)
        self.logps[chunk.positions] = rows.logps
        self.entropies[chunk.positions] = rows.entropies
        return z, rows

    def _differentiate(
        self,
        z: Tensor,
        rows: Any,
        positions: Tensor,
        *,
        policy_scale: Tensor | None,
        entropy_scale: Tensor | None,
    ) -> None:
        count = len(positions)
        z = z[:count]
        rows = type(rows)(*(None if field is None else field[:count] for field in rows))
        self._kernels().gradient_(
            z,
            self.targets[positions],
            rows,
            self.plan.transform,
            self.plan.objective.log_clamp,
            policy_scale=policy_scale,
            entropy_scale=entropy_scale,
        )
        if self.grad_hidden is not None:
            self.grad_hidden[positions] = matmul.hidden_grad(z, self.weight, self.matmul_dtype).to(
                self.grad_hidden.dtype
            )
        if self.needs_weight:
            self.grad_weight = matmul.accumulate_outer(z, self.hidden[positions], self.grad_weight, self.matmul_dtype)
        if self.grad_bias is not None:
            self.grad_bias += z.sum(dim=0)

    def _finish(self) -> tuple[Tensor, ...]:
        entropy = self.mean_entropy()
        keep_mask = self.gate(entropy)
        final = self.coefficients(entropy=self.shaping_entropy(entropy), keep_mask=keep_mask)
        positions = torch.arange(len(self.logps), device=self.device)
        values, slopes = self.surrogate(final.policy_scale, positions)
        mask = self.plan.mask.reshape(-1)
        loss = (final.entropy_scale * entropy * self.lengths).sum() - values.masked_fill(~mask, 0.0).sum()
        if self.needs_weight and self.grad_weight is None:
            self.grad_weight = torch.zeros_like(self.weight)
        if self.scale_at_end and self.grad_hidden is not None:
            scale = keep_mask.to(self.dtype).repeat_interleave(self.length) if self.entropy_term else slopes
            self.grad_hidden *= scale.masked_fill(~mask, 0.0)[:, None].to(self.grad_hidden.dtype)
        return loss, self.logps, self.entropies, final.shaped_advantages, entropy, keep_mask

    def _check_finite(self) -> None:
        """Raise ValueError for the first row whose logits are not finite, saying whose fault it is."""
        bad = ~(self.logps.isfinite() & self.entropies.isfinite())
        if not bool(bad.any()):
            return
        position = int(bad.nonzero()[0])
        row, token = divmod(position, self.length)
        if not bool(self.hidden[position].isfinite().all()):
            raise ValueError(f"hidden[{row}, {token}] is not finite (completion {row}, token {token})")
        if not bool(self.weight.isfinite().all()):
            raise ValueError(f"lm_head[{int((~self.weight.isfinite()).any(dim=1).nonzero()[0])}] is not finite")
        raise ValueError(f"the logits of hidden[{row}, {token}] overflow {self.dtype}")
