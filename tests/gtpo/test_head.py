"""The head against plain autograd on full logits: values, gradients, precision, operations, and what it refuses."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gtpo.head
from gtpo.completions import Kept
from gtpo.head import head_statistics, token_statistics


def inputs(seed: int, rows: int = 13, width: int = 6, vocabulary: int = 23, dtype: Any = torch.float64) -> list[Tensor]:
    """Return hidden [R, D], lm_head [V, D], bias [V], ids [R]."""
    draw = torch.Generator().manual_seed(seed)
    made = [torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((rows, width), (vocabulary, width))]
    bias = torch.randn(vocabulary, generator=draw, dtype=torch.float64)
    return [*(t.to(dtype) for t in (*made, bias)), torch.randint(0, vocabulary, (rows,), generator=draw)]


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the statistics by autograd on all logits."""
    z = options.get("logit_scale", 1.0) * (hidden @ weight.T if bias is None else hidden @ weight.T + bias)
    if cap := options.get("softcap"):
        z = cap * torch.tanh(z / cap)
    if (kept := options.get("kept")) is not None:
        z = z.masked_fill(~kept, -1e4)  # e^z is 0
    log_p = (z / options.get("temperature", 1.0)).log_softmax(dim=-1)
    p = log_p.exp()
    clamp = options.get("log_clamp", 0.0)
    return log_p.gather(1, ids[:, None])[:, 0], -(p * (p.clamp(min=clamp).log() if clamp else log_p)).sum(dim=-1)


def gradients(found: tuple[Tensor, Tensor], leaves: list[Tensor], entropy: bool, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the gradients of sums of both statistics with random weights, of which some rows have 0."""
    g, b = torch.randn(2, len(found[0]), generator=torch.Generator().manual_seed(seed)).to(found[0])
    g[3::4] = b[3::4] = 0
    return torch.autograd.grad((found[0] * g).sum() + ((found[1] * b).sum() if entropy else 0), leaves)


def sizes(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    """Vocabularies here are small: let the head walk them in tiles of a few columns."""
    monkeypatch.setattr(gtpo.head, "CPU", gtpo.head.CPU._replace(**{"columns": 1, "tile_logits": 40} | values))


def assert_close(
    found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], leaves: list[Tensor], **options: Any
) -> None:
    """Compare statistics and their gradients, of the entropy too if it has one."""
    entropy = found[1].requires_grad
    pairs = zip(
        (*found, *gradients(found, leaves, entropy)), (*wanted, *gradients(wanted, leaves, entropy)), strict=True
    )
    for value, target in pairs:
        torch.testing.assert_close(value, target, **options)


@pytest.mark.parametrize("trained", ["", "lm_head", "bias", "lm_head, bias"])
@pytest.mark.parametrize("entropy", [False, True])
def test_values_and_gradients_are_those_of_autograd(monkeypatch: Any, trained: str, entropy: bool) -> None:
    """With far, logits of hundreds rise from tile to tile: what earlier tiles gave is rescaled, nothing overflows.

    With cut, each row has a kept set of its own, of one id to all.
    """
    for seed, (cap, clamp, tile, far, cut) in enumerate(
        itertools.product((None, 3.0), (0.0, 0.02), (1, 40, 2**19), (False, True), (False, True))
    ):
        sizes(monkeypatch, tile_logits=tile)
        hidden, weight, bias, ids = inputs(seed)
        if far:
            hidden, weight = hidden.abs() + 0.5, weight + torch.arange(len(weight))[:, None] * 4.0
        weight.requires_grad_("lm_head" in trained)
        bias = bias.requires_grad_("bias" in trained) if seed % 4 < 2 or trained else None
        leaves = [t for t in (hidden.requires_grad_(), weight, bias) if t is not None and t.requires_grad]
        options: dict[str, Any] = {"temperature": 0.8, "logit_scale": 1.3, "softcap": cap, "log_clamp": clamp}
        kept = torch.rand(13, 23, generator=torch.Generator().manual_seed(seed)) < torch.linspace(0, 1, 13)[:, None]
        kept = kept.scatter(1, ids[:, None], True) if cut else None
        sets = Kept(*kept.nonzero().T) if cut else None
        found = head_statistics(hidden, weight, ids, bias=bias, entropy_gradient=entropy, kept_set=sets, **options)
        assert found[1].requires_grad is entropy
        assert_close(found, plain(hidden, weight, bias, ids, kept=kept, **options), leaves, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("multiplied", [False, True])
def test_precision(monkeypatch: Any, dtype: Any, entropy: bool, multiplied: bool) -> None:
    """Against float64: exact statistics if the CPU has no products of the type; else no worse than its full logits."""
    sizes(monkeypatch, tile_logits=2000)
    monkeypatch.setattr(gtpo.head, "cpu_multiplies", lambda dtype: multiplied)
    errors = torch.zeros(2, 4)  # ours and full logits': squares of the relative errors of both statistics and gradients
    for seed in range(6):
        hidden, weight, _, ids = inputs(seed, rows=60, width=32, vocabulary=101, dtype=dtype)
        hidden.mul_(0.5).requires_grad_()
        weight.requires_grad_()
        exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
        target = plain(*exact, None, ids)
        target = (*target, *gradients(target, exact, entropy))
        logits = (hidden @ weight.T).float()
        full = plain(logits, torch.eye(101), None, ids)
        ours = head_statistics(hidden, weight, ids, entropy_gradient=entropy)
        for row, found in enumerate((ours, full)):
            got = (*found, *gradients(found, [hidden, weight], entropy))
            assert [value.dtype for value in got] == [torch.float32, torch.float32, dtype, dtype]
            for i, (value, wanted) in enumerate(zip(got, target, strict=True)):
                difference, norm = (value.detach().double() - wanted).square().sum(), wanted.square().sum()
                errors[row, i] += float((difference / norm).detach()) / 6
    ours, full = errors.sqrt()
    if dtype == torch.float32 or not multiplied:
        rounded = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
        assert (ours < torch.tensor([1e-6, 1e-6, rounded, rounded])).all(), ours
    else:  # products are put together from tiles of a few columns here, each rounded
        assert (ours <= full * torch.tensor([1.0, 1.05, 1.3, 1.3])).all(), (ours, full)


FREE = re.compile(
    r"view|slice|select|t\.|transpose|permute|detach|alias|empty|unsqueeze|expand|split|_unsafe_view|unbind|is_|new_empty"
)


class Launched(TorchDispatchMode):
    """Counts the operations that run on the device, and the multiply-adds of matrix products per column."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.products = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__
        self.operations += not FREE.match(name)
        if name.startswith(("mm", "addmm")):
            left, right = [t for t in args if isinstance(t, Tensor)][-2:]
            self.products += left.shape[0] * left.shape[1] * right.shape[1]
        return function(*args, **(kwargs or {}))


def multiplied_rows(trained: bool, weights: Tensor, entropy: bool = False, **options: Any) -> float:
    """Return the rows of V D products that statistics and gradients of 64 rows take, weighted with g [64]."""
    hidden, weight, _, ids = inputs(5, rows=64, vocabulary=25, dtype=torch.float32)
    hidden.requires_grad_()
    weight.requires_grad_(trained)
    with Launched() as launched:
        logps, entropies = head_statistics(hidden, weight, ids, entropy_gradient=entropy, **options)
        if logps.requires_grad:
            (logps * weights + (entropies * weights if entropy else 0)).sum().backward()
    return launched.products / weight.numel()


def test_products_of_the_vocabulary(monkeypatch: Any) -> None:
    sizes(monkeypatch, tile_logits=300)
    ones, half = torch.ones(64), (torch.arange(64) >= 32).float()
    assert multiplied_rows(False, ones) == 2 * 64
    assert multiplied_rows(False, half, entropy=True) == 64 + 2 * 32
    assert multiplied_rows(True, torch.zeros(64)) == 64
    # Two fifths of the columns are kept: the others are multiplied again.
    assert multiplied_rows(True, ones) == 3 * 64 + 64 * 3 / 5
    assert multiplied_rows(True, half) == 64 + 2 * 32 + 32 * 3 / 5
    sizes(monkeypatch, kept_bytes=0)
    assert multiplied_rows(True, half) == 64 + 3 * 32
    with torch.no_grad():
        assert multiplied_rows(True, ones) == 64


def test_tiles_are_aligned_whatever_the_number_of_rows() -> None:
    weight = torch.empty(151936, 1)
    for rows, kept in itertools.product((0, 1, 7, 384, 3072, 4096, 50_000), (0, 49152)):
        head = gtpo.head.Head(1.0, None, 0.0, False, torch.float32, gtpo.head.GPU)
        parts = [columns for columns, *_ in head.tiles(weight, None, rows, kept)]
        assert all(
            part.start % 4096 == 0 and rows * (part.stop - part.start) <= max(2**26, rows * 4096) for part in parts
        )
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
        assert parts[-1].stop == len(weight)
        assert not kept or kept in [part.stop for part in parts]


def test_a_second_backward_is_refused_and_a_repeated_one_is_not() -> None:
    for trained in (False, True):
        hidden, weight, _, ids = inputs(3)
        leaves = [hidden.requires_grad_(), weight.requires_grad_(trained)][: 1 + trained]
        logps, _ = head_statistics(hidden, weight, ids)
        first, again = (torch.autograd.grad(logps.sum(), leaves, retain_graph=True) for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
        (by_hidden, *_) = torch.autograd.grad(logps.square().sum(), leaves, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            by_hidden.sum().backward()


def test_tokens_outside_the_mask_reach_nothing_and_others_keep_their_places(monkeypatch: Any) -> None:
    sizes(monkeypatch)
    hidden, weight, _, ids = inputs(2, rows=24)
    draw = torch.Generator().manual_seed(1)
    mask = torch.rand(4, 6, generator=draw) < 0.7
    mask[0] = False
    hidden, ids = hidden.view(4, 6, -1).clone(), ids.view(4, 6).masked_fill(~mask, -7)
    hidden[~mask] = float("nan")
    hidden.requires_grad_()
    found = token_statistics(hidden, weight, ids, mask)
    for values, wanted in zip(found, plain(hidden[mask], weight, None, ids[mask]), strict=True):
        torch.testing.assert_close(values[mask], wanted)
        assert (values[~mask] == 0).all()
    (by_hidden,) = torch.autograd.grad(found[0].sum(), hidden)
    (wanted,) = torch.autograd.grad(plain(hidden[mask], weight, None, ids[mask])[0].sum(), hidden)
    torch.testing.assert_close(by_hidden, wanted)
    # A micro-batch of completions that an environment wrote alone.
    parts = (hidden, weight.requires_grad_())
    nothing = token_statistics(*parts, ids, torch.zeros_like(mask))
    assert not any(bool(values.any()) for values in (*nothing, *torch.autograd.grad(nothing[0].sum(), parts)))


def test_autocast_and_tied_weights() -> None:
    table = inputs(4, dtype=torch.float32)[1]
    ids = torch.arange(13)
    results = []
    for head, cast in ((head_statistics, False), (head_statistics, True), (None, False)):
        weight = table.clone().requires_grad_()
        hidden = torch.nn.functional.embedding(ids, weight).tanh()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            logps, _ = plain(hidden, weight, None, ids) if head is None else head(hidden, weight, ids)
        results.append(torch.autograd.grad(logps.sum(), weight)[0])
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2], rtol=1e-5, atol=1e-6)
