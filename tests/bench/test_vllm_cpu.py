"""bench/vllm_cpu.py multiplies adapters as vLLM does."""

from __future__ import annotations

import pytest
import torch

from bench.vllm_cpu import add_adapter


@pytest.mark.vllm
@pytest.mark.parametrize("is_prefill", [False, True])
def test_the_dense_product_of_an_adapter_is_vllms_own(is_prefill: bool) -> None:
    from vllm.lora.layers import LoRAMapping
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    draw = torch.Generator().manual_seed(3)
    downs = tuple(torch.randn(1, 1, 4, 16, generator=draw) for _ in range(2))
    ups = tuple(torch.randn(1, 1, width, 4, generator=draw) for width in (8, 6))
    x, start = torch.randn(5, 16, generator=draw), torch.randn(5, 14, generator=draw)
    wrapper = PunicaWrapperCPU(5, 5, "cpu")
    wrapper.update_metadata(LoRAMapping((1,) * 5, (1,) * 5, is_prefill=is_prefill), [1], 1, 50)
    plain, dense, called = start.clone(), start.clone(), []
    wrapper.add_lora_linear(plain, x, downs, ups, 0.5, (8, 6))
    add_adapter(wrapper, lambda *given, **options: called.append(given), dense, x, downs, ups, 0.5, (8, 6))
    assert called == []
    assert (plain - start).abs().max() > 0.1
    torch.testing.assert_close(dense, plain)

    wrapper.update_metadata(LoRAMapping((1, 1, 0, 1, 1), (1,) * 5, is_prefill=is_prefill), [1], 1, 50)
    add_adapter(wrapper, lambda *given, **options: called.append(given), dense, x, downs, ups, 0.5, (8, 6))
    assert len(called) == 1, "a token without the adapter: vLLM's own way"
