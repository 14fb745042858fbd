"""gtpo with vLLM's LoRA layers made fast on a CPU: `python -m bench.vllm_cpu eval RUN`, or any other command of gtpo.

For the experiments on CPUs; results are those of vLLM's own layers but for rounding.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from gtpo.common.packages import installed
from gtpo.common.vllm_environment import quiet_vllm


def add_adapter(
    wrapper: Any, plain: Any, y: Any, x: Any, downs: Any, ups: Any, scale: float, widths: Any, **options: Any
) -> None:
    """Add scale * x [..., d] A^T B^T to y [..., sum(widths)], slice by slice, as PunicaWrapperCPU.add_lora_linear does.

    vLLM's own way copies the adapter's weights once per token: 2.5 GB a layer for 4,096 tokens of a 0.5B model, which
    makes the reading of prompts seven times slower. It stays in use where some tokens have no adapter.
    """
    if wrapper.token_lora_indices.any():  # the only adapter is number 0; -1: none
        plain(y, x, downs, ups, scale, widths, **options)
        return
    rows, x, begin = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1]), 0
    for down, up, width in zip(downs, ups, widths, strict=True):
        part = rows[:, begin : begin + width]
        part.addmm_((x @ down[0, 0].T).to(part.dtype), up[0, 0].T.to(part.dtype), alpha=scale)
        begin += width


def use_dense_adapters() -> None:
    """Let the LoRA layers of vLLM's engines in this process multiply as `add_adapter` does, if vLLM is installed."""
    if not installed("vllm"):
        return
    quiet_vllm(on_cpu=True)
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    plain = PunicaWrapperCPU.add_lora_linear

    def add_lora_linear(self: Any, *args: Any, **options: Any) -> None:
        add_adapter(self, functools.partial(plain, self), *args, **options)

    PunicaWrapperCPU.add_lora_linear = add_lora_linear


def main() -> None:
    """Run gtpo with the arguments of this command."""
    use_dense_adapters()
    from gtpo.cli import app

    app(sys.argv[1:])


if __name__ == "__main__":
    main()
