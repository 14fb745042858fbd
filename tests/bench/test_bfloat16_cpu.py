"""bench/bfloat16_cpu.py multiplies bfloat16 as processors that can do: summed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.bfloat16_cpu import WideProducts, widened_linear
from gtpo.common.processor import has_bfloat16

torch.set_num_threads(1)
SEED = 20261125


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED + len(shape) + shape[-1])).bfloat16()


def linear(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, w)


def with_bias(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, w, x[0, :1].expand(w.shape[0]).contiguous())


def batched(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x.expand(2, *x.shape), w.t().expand(2, *w.t().shape))


def in_place(x: Tensor, w: Tensor) -> Tensor:
    return x[:, :1].repeat(1, w.shape[0]).addmm_(x, w.t(), alpha=0.5)


def into_another(x: Tensor, w: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], w.shape[0])
    assert torch.mm(x, w.t(), out=out) is out
    return out


class Recorder(TorchDispatchMode):
    """Notes which operations reach the processor with bfloat16 factors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(value, Tensor) and value.dtype == torch.bfloat16 for value in args):
            self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def check_rounded_once(found: Tensor, exact: Tensor) -> None:
    """All but a few are exact [float64] rounded to bfloat16; those few lie beside a rounding's edge."""
    assert found.dtype == torch.bfloat16
    assert (found == exact.bfloat16()).double().mean() > 0.998
    assert torch.allclose(found.double(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("product", [linear, with_bias, batched, in_place, into_another])
def test_products_are_rounded_once(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, w = drawn(64, 896), drawn(512, 896)
    exact = product(x.double(), w.double())
    with Recorder() as reached, WideProducts():
        check_rounded_once(product(x, w), exact)
    assert not any("mm" in name for name in reached.seen), "no product is left to the slow kernels"
    with Recorder() as reached:
        product(x, w)
    assert any("mm" in name for name in reached.seen)


def test_vllms_linear_is_rounded_once() -> None:
    x, w, bias = drawn(16, 896), drawn(512, 896), drawn(512)
    exact = torch.nn.functional.linear(x.double(), w.double(), bias.double())
    check_rounded_once(widened_linear(w)(x, None, bias), exact)


def test_gradients_are_rounded_once() -> None:
    x, w, up = drawn(64, 896), drawn(512, 896), drawn(64, 512)
    x.requires_grad_()
    w.requires_grad_()
    with WideProducts():
        torch.nn.functional.linear(x, w).backward(up)
    assert x.grad is not None
    assert w.grad is not None
    check_rounded_once(x.grad, up.double() @ w.detach().double())
    check_rounded_once(w.grad, up.double().t() @ x.detach().double())


def test_attention_and_its_gradients_are_rounded_once() -> None:
    shape = (2, 4, 48, 64)
    parts = [drawn(*shape[:-1], 64 + n)[..., :64].contiguous() for n in range(4)]
    query, key, value = (part.clone().requires_grad_() for part in parts[:3])
    wide = [part.double().requires_grad_() for part in parts[:3]]
    exact = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    exact.backward(parts[3].double())
    with WideProducts():
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found.backward(parts[3])
    check_rounded_once(found.detach(), exact.detach())
    for narrow, precise in zip((query, key, value), wide, strict=True):
        assert narrow.grad is not None
        assert precise.grad is not None
        # Of the output that went into it rounded, as everywhere in bfloat16.
        assert torch.allclose(narrow.grad.double(), precise.grad, rtol=2**-6, atol=2**-6)


def test_other_dtypes_and_operations_are_left_alone() -> None:
    x, w = drawn(64, 896).float(), drawn(512, 896).float()
    plain = torch.nn.functional.linear(x, w)
    with WideProducts():
        assert torch.equal(torch.nn.functional.linear(x, w), plain)
        assert torch.equal((x.bfloat16() * 3).float(), (x.bfloat16() * 3).float())


@pytest.mark.skipif(not has_bfloat16(), reason="this processor multiplies no bfloat16 (AVX512_BF16, AMX)")
def test_the_processor_gives_the_same() -> None:
    x, w = drawn(64, 896), drawn(512, 896)
    plain = linear(x, w)
    with WideProducts():
        assert (linear(x, w) == plain).double().mean() > 0.998
