"""bench/bfloat16_cpu.py multiplies bfloat16 as processors that can do: summed in float32, rounded once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench import bfloat16_cpu
from bench.bfloat16_cpu import WideProducts, widened_linear
from gtpo.common.hub import has_bfloat16
from gtpo.common.vllm_cpu import add_adapter
from gtpo.config.schema import BuiltModel
from gtpo.inputs.tiny import build_tiny_model

torch.set_num_threads(1)
SEED = 20261125
PRODUCTS = {str(product) for product in bfloat16_cpu.PRODUCTS}


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


@torch.inference_mode()
def in_inference(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


@torch.inference_mode()
def linear_in_inference(x: Tensor, w: Tensor) -> Tensor:
    return linear(x, w)


def into_another(x: Tensor, w: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], w.shape[0])
    assert torch.mm(x, w.t(), out=out) is out
    return out


class Reached(TorchDispatchMode):
    """Notes which products reach the processor with bfloat16 factors."""

    def __init__(self) -> None:
        super().__init__()
        self.products: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(value, Tensor) and value.dtype == torch.bfloat16 for value in args):
            self.products |= {str(func)} & PRODUCTS
        return func(*args, **(kwargs or {}))


def check_rounded_once(found: Tensor, exact: Tensor) -> None:
    """All but a few are exact [float64] rounded to bfloat16; those few lie beside a rounding's edge."""
    assert found.dtype == torch.bfloat16
    assert (found == exact.bfloat16()).double().mean() > 0.998
    assert torch.allclose(found.double(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(
    "product", [linear, with_bias, batched, in_place, in_inference, linear_in_inference, into_another]
)
def test_products_are_rounded_once(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, w = drawn(64, 896), drawn(512, 896)
    exact = product(x.double(), w.double())
    with Reached() as reached:
        product(x, w)
    assert len(reached.products) == 1, "without the mode"
    with Reached() as reached, WideProducts():
        check_rounded_once(product(x, w), exact)
    assert not reached.products, "none is left to the slow kernels"


def test_vllms_linear_is_rounded_once() -> None:
    x, w, bias = drawn(16, 896), drawn(512, 896), drawn(512)
    exact = torch.nn.functional.linear(x.double(), w.double(), bias.double())
    check_rounded_once(widened_linear(w)(x, None, bias), exact)


def test_adapter_in_vllm_is_rounded_once() -> None:
    """Two slices, as of a merged layer; each adds to its columns alone."""
    x, y, widths = drawn(16, 896), drawn(16, 192), (128, 64)
    downs = [drawn(1, 1, 32, 896), drawn(1, 1, 32, 896) * 2]
    ups = [drawn(1, 1, width, 32) for width in widths]
    wrapper = SimpleNamespace(token_lora_indices=torch.zeros(16, dtype=torch.long))
    inner = [(x.double() @ down[0, 0].double().T).bfloat16().double() for down in downs]
    added = torch.cat([part @ up[0, 0].double().T for part, up in zip(inner, ups, strict=True)], dim=1)
    exact = y.double() + 0.5 * added
    with torch.inference_mode(), Reached() as reached, WideProducts():
        add_adapter(wrapper, None, y, x, downs, ups, 0.5, widths)
    check_rounded_once(y, exact)
    assert not reached.products


def test_gradients_are_rounded_once() -> None:
    x, w, up = drawn(64, 896).requires_grad_(), drawn(512, 896).requires_grad_(), drawn(64, 512)
    with Reached() as reached, WideProducts():
        torch.nn.functional.linear(x, w).backward(up)
    assert not reached.products
    assert x.grad is not None
    assert w.grad is not None
    check_rounded_once(x.grad, up.double() @ w.detach().double())
    check_rounded_once(w.grad, up.double().t() @ x.detach().double())


@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_its_gradients_are_rounded_once(masked: bool) -> None:
    """A batch with padding has a mask of the query's dtype, one without has none."""
    *parts, up = (drawn(2, 4, 48, 60 + n)[..., :60].contiguous() for n in range(4))
    mask = torch.zeros(2, 1, 48, 48).masked_fill(torch.ones(48, 48).triu(1).bool(), float("-inf"))
    mask[1, :, :, 0] = float("-inf")
    mask[1, :, 0, 0] = 0  # a row that sees nothing is not asked for

    def attend(dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        leaves = [part.to(dtype).requires_grad_() for part in parts]
        how: dict[str, Any] = {"attn_mask": mask.to(dtype)} if masked else {"is_causal": True}
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, **how)
        return out.detach(), list(torch.autograd.grad(out, leaves, up.to(dtype)))

    exact, exact_gradients = attend(torch.float64)
    with Reached() as reached:
        attend(torch.bfloat16)
    assert len(reached.products) == 2, "without the mode: forward and backward"
    with Reached() as reached, WideProducts():
        found, gradients = attend(torch.bfloat16)
    assert not reached.products
    check_rounded_once(found, exact)
    for gradient, precise in zip(gradients, exact_gradients, strict=True):
        # Of the output that went into it rounded, as everywhere in bfloat16.
        assert torch.allclose(gradient.double(), precise, rtol=2**-6, atol=2**-6)


def test_other_dtypes_and_operations_are_left_alone() -> None:
    x, w = drawn(64, 896), drawn(512, 896)
    plain, tripled = torch.nn.functional.linear(x.float(), w.float()), x * 3
    with WideProducts():
        assert torch.equal(torch.nn.functional.linear(x.float(), w.float()), plain)
        assert torch.equal(x * 3, tripled)


CONFIG = """\
model: {model_name: model, dtype: auto, lora_rank: 8, max_seq_length: 128}
dataset: {name: arithmetic, system_instruction: "", limit: 16}
training:
  per_device_train_batch_size: 4
  num_generations: 4
  max_steps: 1
  max_prompt_length: 64
  max_completion_length: 16
  log_kl_steps: 1
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["sft", "grpo", "gtpo"])
def test_a_step_of_training(method: str, root: Path, tmp_path: Path) -> None:
    """On weights stored in bfloat16, in batches with padding: gtpo as it is, and widened."""
    spec = BuiltModel(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    model, tokenizer = build_tiny_model(spec, max_seq_length=128, seed=0)
    model.bfloat16().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(CONFIG)
    rollout = [] if method == "sft" else ["--rollout.engine", "transformers", "--objective.filter", "never"]
    taken = {}
    for name, module, dtype in (("plain", "gtpo", "bfloat16"), ("wide", "bench.bfloat16_cpu", "auto")):
        words = ["train", "run.yaml", "--run-name", name, "--method", method, "--model.dtype", dtype, *rollout]
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        folder = tmp_path / "results/train" / name
        assert json.loads((folder / "run.json").read_text())["dtype"] == "bfloat16"
        taken[name] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert taken["wide"]["grad_norm"] > 0
    if method == "sft":  # the others sample, and a token may fall otherwise
        for key in ("loss", "grad_norm"):
            assert taken["wide"][key] == pytest.approx(taken["plain"][key], rel=0.02)


@pytest.mark.skipif(not has_bfloat16(), reason="this processor multiplies no bfloat16 (AVX512_BF16, AMX)")
def test_the_processor_gives_the_same() -> None:
    x, w = drawn(64, 896), drawn(512, 896)
    plain = linear(x, w)
    with WideProducts():
        assert (linear(x, w) == plain).double().mean() > 0.998
