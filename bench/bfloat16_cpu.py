"""gtpo in bfloat16 on a processor without instructions for it: `python -m bench.bfloat16_cpu train CONFIG`.

AMX and AVX512_BF16 multiply bfloat16 exactly, sum in float32 and round each result once. Without them torch does the
same, slowly (`python -m bench.products` measures it). Here the factors of each product are widened to float32, which is
exact, multiplied there, and the result is rounded once: the same number but for the order of the sums. So a run of a
plan that asks for bfloat16 can be made on such a machine. vLLM holds a float32 copy of its weights for it.

Products means those of matrices, and of attention in the trainer. vLLM's other kernels work in bfloat16 as they are.
GTPO's fused loss widens its factors by itself, and does not round its logits (gtpo/kernels/matmul.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from bench.rollout_log import keep_rollouts
from gtpo.common.packages import installed

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
PRODUCTS = {
    aten.mm.default: aten.mm.default,
    aten.mm.out: aten.mm.default,
    aten.addmm.default: aten.addmm.default,
    aten.addmm_.default: aten.addmm.default,
    aten.bmm.default: aten.bmm.default,
    aten.baddbmm.default: aten.baddbmm.default,
    # In inference mode, that of vLLM, these arrive whole.
    aten.matmul.default: aten.matmul.default,
    aten.linear.default: aten.linear.default,
    ATTENTION: ATTENTION,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    ),
}
"""Operation -> the same one that returns what it computes, where it would write into a tensor."""


class WideProducts(TorchDispatchMode):
    """Products of bfloat16 are computed in float32 and rounded to bfloat16, forward and backward, in this thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        product = PRODUCTS.get(func)
        if product is None or not _is_bfloat16(args[0]):
            return func(*args, **kwargs)
        into = None if product is func else kwargs.pop("out", args[0])
        wide_args, wide_kwargs = tree_map(_widened, (args, kwargs))
        found = product(*wide_args, **wide_kwargs)
        if into is not None:
            return into.copy_(found)
        if product is ATTENTION:  # its log-sum-exp is float32 in bfloat16 too
            return (found[0].bfloat16(), *found[1:])
        return tree_map(torch.Tensor.bfloat16, found)


def _is_bfloat16(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


def _widened(value: Any) -> Any:
    return value.float() if _is_bfloat16(value) else value


def widened_linear(weight: Tensor) -> Callable[[Tensor, Any, Tensor | None], Tensor]:
    """Return vLLM's `cpu_linear` for a bfloat16 weight [N, K]: (x [..., K], -, bias [N]) -> [..., N] in bfloat16."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().float(), 16)

    def linear(x: Tensor, _: Any, bias: Tensor | None) -> Tensor:
        wide = None if bias is None else bias.float()
        return torch.ops.mkldnn._linear_pointwise(x.float(), packed, wide, "none", [], "").bfloat16()

    return linear


def widen_vllm() -> None:
    """Let vLLM's engines of this process multiply bfloat16 weights as `WideProducts` does, from packed copies.

    There the mode is on for adapters alone: it costs a call of Python for each operation.
    """
    from gtpo.common import vllm_cpu
    from gtpo.common.vllm_environment import quiet_vllm

    quiet_vllm(on_cpu=True)
    from vllm.model_executor.layers import utils
    from vllm.v1.engine.llm_engine import LLMEngine

    step, add_adapter = LLMEngine.step, vllm_cpu.add_adapter

    def without_mode(self: Any) -> Any:
        with _disable_current_modes():
            return step(self)

    def widened_adapter(*args: Any, **options: Any) -> None:
        with WideProducts():
            add_adapter(*args, **options)

    LLMEngine.step = without_mode
    vllm_cpu.add_adapter = widened_adapter

    plain = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.is_meta or weight.ndim != 2 or weight.dtype != torch.bfloat16:
            plain(layer, remove_weight)
            return
        layer.cpu_linear = widened_linear(weight)
        if remove_weight:
            layer.weight = torch.nn.Parameter(torch.empty(0, dtype=weight.dtype), requires_grad=False)

    utils.dispatch_cpu_unquantized_gemm = dispatch


def main() -> None:
    """Run gtpo with the arguments of this command."""
    from gtpo.common import hub

    hub.has_bfloat16 = lambda: True  # `dtype: auto` takes it
    if installed("vllm"):
        widen_vllm()
        keep_rollouts()
    with WideProducts():
        from gtpo.cli import app

        app(sys.argv[1:])


if __name__ == "__main__":
    main()
