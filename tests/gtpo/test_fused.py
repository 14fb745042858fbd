"""The one-pass loss against the specification: values and gradients, for every preset, dtype and ragged length."""

import random
from dataclasses import replace

import pytest
import torch

from gtpo.completions import Completions, group_advantages, prepare_completions
from gtpo.fused import fused_linear_gtpo_loss, fused_loss
from gtpo.kernels import matmul, torch_rows, vocabulary_tiles
from gtpo.objective import PRESETS, reference_loss

torch.set_num_threads(1)
G = 4


@pytest.fixture(autouse=True, params=["one-tile", "tiles", "tiles-of-threads"])
def tiles(request, monkeypatch):
    """Vocabularies here are small; `tiles` makes the kernels walk them in several steps nevertheless."""
    if request.param != "one-tile":
        monkeypatch.setitem(vocabulary_tiles.TILE_COLUMNS, "cpu", (5, 9))
        monkeypatch.setattr(torch_rows, "TILE", 4)
        monkeypatch.setattr(matmul, "BLOCK_ROWS", 10)
    if request.param == "tiles-of-threads":
        torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def make(seed, dtype=torch.float64, count=8, length=7, features=6, vocabulary=23, spread=1.2):
    """Random ragged groups over few distinct tokens (so that conflicts occur), and rewards of which some are equal."""
    draw = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(count, length, features, generator=draw, dtype=torch.float64) * spread).to(dtype)
    lm_head = torch.randn(vocabulary, features, generator=draw, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, 3, (count, length), generator=draw)
    lengths = torch.randint(1, length + 1, (count,), generator=draw)
    mask = torch.arange(length) < lengths[:, None]
    ids[~mask] = -7  # the value of padding never matters
    rewards = torch.randint(0, 3, (count,), generator=draw).double()
    return hidden, lm_head, ids, mask, rewards


def threshold_between(objective, hidden, lm_head, ids, mask, rewards, temperature):
    """The objective with a threshold at the median entropy, so that the gate keeps some and drops some."""
    loose = replace(objective, filter="never")
    entropy = reference_loss(loose, hidden @ lm_head.T, ids, mask, rewards, G, temperature=temperature).entropy
    return replace(objective, entropy_threshold=float(entropy.median()) + 1e-3)


VARIANTS = {
    **PRESETS,
    "eq7-gated": replace(PRESETS["gtpo-eq7"], entropy_gated=True),
    "eq7-clamped": replace(PRESETS["gtpo-eq7"], log_clamp=0.02, filter="never"),
    "eq7-gamma-0": replace(PRESETS["gtpo-eq7"], gamma=0.0),
    "union-norm": replace(PRESETS["gtpo"], conflict_norm="union"),
    "skip-zero-variance": replace(PRESETS["gtpo"], skip_zero_variance_groups=True),
    "no-gamma": replace(PRESETS["gtpo"], gamma=0.0),
    "gtpo-negatives": replace(PRESETS["gtpo"], positive_advantage_weight=0.0, negative_advantage_weight=1.5),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("trainable", [False, True])
def test_equals_the_reference_in_float64(name, trainable):
    for seed in range(6):
        hidden, lm_head, ids, mask, rewards = make(seed)
        temperature = 0.7 if seed % 2 else 1.0
        objective = threshold_between(VARIANTS[name], hidden, lm_head, ids, mask, rewards, temperature)
        hidden.requires_grad_()
        lm_head.requires_grad_(trainable)
        leaves = [hidden, lm_head] if trainable else [hidden]
        options = {"initial_entropy": 0.1, "temperature": temperature}
        expected = reference_loss(objective, hidden @ lm_head.T, ids, mask, rewards, G, **options)
        upstream = 1.7 - seed
        wanted = torch.autograd.grad(expected.loss * upstream, leaves)
        rows = random.Random(seed).randint(1, 60)
        got = fused_linear_gtpo_loss(objective, hidden, lm_head, ids, mask, rewards, G, chunk_rows=rows, **options)
        gradients = torch.autograd.grad(got.loss * upstream, leaves)
        for field, value, target in zip(got._fields, got, expected, strict=True):
            torch.testing.assert_close(value.double(), target.double(), rtol=1e-11, atol=1e-12, msg=f"{field} {seed}")
        for value, target in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(value, target, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gtpo", "gtpo-published", "gtpo-eq7", "grpo"])
def test_lower_precision_keeps_float32_logits(name, dtype, monkeypatch):
    """Where the CPU does not multiply the dtype, against float64 autograd: only the gradient's own rounding remains."""
    monkeypatch.setattr(matmul, "cpu_multiplies", lambda dtype: False)
    hidden, lm_head, ids, mask, rewards = make(11, dtype, features=32, vocabulary=101, spread=0.5)
    objective = replace(PRESETS[name], filter="never")
    exact, head = hidden.double().requires_grad_(), lm_head.double().requires_grad_()
    expected = reference_loss(objective, exact @ head.T, ids, mask, rewards, G)
    wanted = torch.autograd.grad(expected.loss, [exact, head])
    hidden.requires_grad_()
    lm_head.requires_grad_()
    got = fused_linear_gtpo_loss(objective, hidden, lm_head, ids, mask, rewards, G, chunk_rows=9)
    assert got.loss.dtype == torch.float32
    torch.testing.assert_close(got.entropy.double(), expected.entropy, rtol=0, atol=5e-6)
    torch.testing.assert_close(got.loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    for value, target in zip(torch.autograd.grad(got.loss, [hidden, lm_head]), wanted, strict=True):
        assert value.dtype == dtype
        error = (value.double() - target).norm() / target.norm().clamp(min=1e-30)
        assert error < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gtpo", "gtpo-published", "gtpo-eq7", "grpo"])
def test_rounded_products_are_no_worse_than_full_logits(name, dtype, monkeypatch):
    """Where the CPU multiplies the dtype, errors against float64, beside those of a model's own lm_head in it."""
    monkeypatch.setattr(matmul, "cpu_multiplies", lambda dtype: True)
    objective = replace(PRESETS[name], filter="never")
    errors = {"ours": torch.zeros(4), "full": torch.zeros(4)}  # squares: logp, entropy, dhidden, dlm_head
    for seed in range(6):
        hidden, lm_head, ids, mask, rewards = make(seed, dtype, features=32, vocabulary=101, spread=0.5)
        hidden.requires_grad_()
        lm_head.requires_grad_()
        exact, head = hidden.detach().double().requires_grad_(), lm_head.detach().double().requires_grad_()
        targets = torch.where(mask, ids, 0)

        def statistics(logits, targets=targets):
            logp = logits.log_softmax(-1)
            return logp.gather(-1, targets[..., None])[..., 0], -(logp.exp() * logp).sum(-1)

        expected = reference_loss(objective, exact @ head.T, ids, mask, rewards, G)
        wanted = [*statistics(exact @ head.T), *torch.autograd.grad(expected.loss, [exact, head], retain_graph=True)]
        full = (hidden @ lm_head.T).float()
        loss = reference_loss(objective, full, ids, mask, rewards, G).loss
        theirs = [*statistics(full), *torch.autograd.grad(loss, [hidden, lm_head])]
        scored = group_advantages(objective, rewards, G)
        completions = prepare_completions(objective, scored, ids, mask, G)
        got = fused_loss(objective, hidden, lm_head, ids, mask, completions, G, gate_active=False, chunk_rows=9)
        ours = [got.logps, got.token_entropies, *torch.autograd.grad(got.loss, [hidden, lm_head])]
        assert [value.dtype for value in ours[2:]] == [dtype, dtype]
        for who, found in (("ours", ours), ("full", theirs)):
            for i, (value, target) in enumerate(zip(found, wanted, strict=True)):
                difference = (value.double() - target) * (mask if i < 2 else 1)
                errors[who][i] += difference.square().sum() / target.square().sum()
    # The entropy is of the same rounded logits but one; the targets' own are exact. Gradients are put together from
    # tiles of a few columns and chunks of 9 rows here, each rounded.
    assert (errors["ours"] <= errors["full"] * torch.tensor([1.0, 1.05, 1.6, 1.6])).all(), errors


@pytest.mark.parametrize("whole", [False, True])
def test_scale_softcap_and_bias(whole):
    hidden, lm_head, ids, mask, rewards = make(3)
    bias = torch.linspace(-1, 1, len(lm_head), dtype=torch.float64).requires_grad_(whole)
    hidden.requires_grad_()
    for name in ("gtpo", "gtpo-eq7", "gtpo-published"):
        objective = PRESETS[name]
        logits = 3.0 * torch.tanh(0.7 * (hidden @ lm_head.T + bias) / 3.0)
        expected = reference_loss(objective, logits, ids, mask, rewards, G, initial_entropy=0.1, temperature=0.8)
        got = fused_linear_gtpo_loss(
            objective, hidden, lm_head, ids, mask, rewards, G,
            initial_entropy=0.1, temperature=0.8, bias=bias, logit_scale=0.7, softcap=3.0, chunk_rows=5,
        )  # fmt: skip
        leaves = [hidden, bias] if whole else [hidden]
        torch.testing.assert_close(got.loss, expected.loss)
        for value, target in zip(
            torch.autograd.grad(got.loss, leaves), torch.autograd.grad(expected.loss, leaves), strict=True
        ):
            torch.testing.assert_close(value, target, rtol=1e-10, atol=1e-12)


def count_matmul_work(monkeypatch, run, vocabulary):
    """Rows of vocabulary-sized products that `run` computes, by hooking torch.mm and torch.addmm."""
    rows = []

    def hooked(original, first):
        def call(*arguments, **options):
            left, right = arguments[first], arguments[first + 1]
            (m, k), n = left.shape, right.shape[1]
            rows.append(m * k * n)
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(torch, "mm", hooked(torch.mm, 0))
        patch.setattr(torch, "addmm", hooked(torch.addmm, 1))
        run()
    assert sum(rows) % vocabulary == 0
    return sum(rows) // vocabulary


@pytest.mark.parametrize("name", ["gtpo", "gtpo-published", "gtpo-eq7", "grpo"])
def test_two_products_with_a_frozen_head_and_three_with_a_trainable_one(monkeypatch, name):
    hidden, lm_head, ids, mask, _ = make(5, torch.float32, vocabulary=23)
    mask[:], ids[:] = True, torch.arange(ids.numel()).view(ids.shape) % 23  # no conflicts, no padding
    rewards = torch.arange(8.0)
    one = hidden.shape[0] * hidden.shape[1] * hidden.shape[2]
    hidden.requires_grad_()
    objective = replace(PRESETS[name], entropy_threshold=1e3)  # the gate drops nothing
    for trainable in (False, True):
        lm_head.requires_grad_(trainable)

        def run():
            fused_linear_gtpo_loss(
                objective, hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1, chunk_rows=10
            ).loss.backward()

        assert count_matmul_work(monkeypatch, run, 23) == (3 if trainable else 2) * one
    with torch.no_grad():
        assert count_matmul_work(monkeypatch, lambda: run_without_gradient(name, hidden, lm_head, ids, mask), 23) == one


def run_without_gradient(name, hidden, lm_head, ids, mask):
    fused_linear_gtpo_loss(PRESETS[name], hidden, lm_head, ids, mask, torch.arange(8.0), G, initial_entropy=0.1)


def test_rows_without_gradient_skip_the_second_product(monkeypatch):
    """Padding is never projected; lambda = 0 and A' = 0 rows are projected once."""
    hidden, lm_head, ids, _, _ = make(5, torch.float32, count=4)
    lengths = torch.tensor([7, 5, 3, 6])
    mask = torch.arange(7) < lengths[:, None]
    ids = torch.arange(28).view(4, 7) % 23
    ids[:, 0] = 2  # a forward conflict of one token: lambda 0 in both negative completions
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    hidden.requires_grad_()
    features = hidden.shape[2]

    def work(objective, rewards):
        def run():
            fused_linear_gtpo_loss(objective, hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)

        return count_matmul_work(monkeypatch, run, 23) // features

    assert work(PRESETS["gtpo"], rewards) == 21 + 21 - 2
    assert work(PRESETS["gtpo-conflict-only"], rewards) == 21 + 21 - 2
    assert work(PRESETS["grpo"], rewards) == 21 + 21
    assert work(PRESETS["grpo"], torch.ones(4)) == 21  # A = 0 everywhere
    assert work(PRESETS["gtpo"], torch.ones(4)) == 21 + 21  # -gamma <H> still moves them


def test_completions_that_the_gate_drops_skip_the_third_product(monkeypatch):
    hidden, lm_head, ids, mask, _ = make(5, torch.float32)
    mask[:], ids[:] = True, torch.arange(ids.numel()).view(ids.shape) % 23
    hidden.requires_grad_()
    lm_head.requires_grad_()
    count, length, features = hidden.shape
    entropy = reference_loss(PRESETS["grpo"], hidden @ lm_head.T, ids, mask, torch.arange(8.0), G).entropy
    objective = replace(PRESETS["gtpo"], filter="always", entropy_threshold=float(entropy.sort().values[2]) + 1e-4)

    def run():
        fused_linear_gtpo_loss(objective, hidden, lm_head, ids, mask, torch.arange(8.0), G)

    assert count_matmul_work(monkeypatch, run, 23) == (2 * count + 3) * length * features


@pytest.mark.parametrize("trainable", [False, True])
def test_logits_far_apart_move_the_reference(trainable):
    """Scores of hundreds, rising from tile to tile: sums over earlier tiles are rescaled, nothing overflows."""
    hidden, lm_head, ids, mask, rewards = make(8)
    lm_head = (lm_head + torch.arange(len(lm_head))[:, None] * 4.0).requires_grad_(trainable)
    hidden = (hidden.abs() + 0.5).requires_grad_()
    leaves = [hidden, lm_head] if trainable else [hidden]
    expected = reference_loss(PRESETS["grpo"], hidden @ lm_head.T, ids, mask, rewards, G)
    got = fused_linear_gtpo_loss(PRESETS["grpo"], hidden.float(), lm_head.float(), ids, mask, rewards, G)
    torch.testing.assert_close(got.entropy.double(), expected.entropy, rtol=1e-4, atol=1e-5)
    exact = fused_linear_gtpo_loss(PRESETS["grpo"], hidden, lm_head, ids, mask, rewards, G)
    for value, target in zip(
        torch.autograd.grad(exact.loss, leaves), torch.autograd.grad(expected.loss, leaves), strict=True
    ):
        torch.testing.assert_close(value, target, rtol=1e-10, atol=1e-10)


def test_values_of_padding_reach_nothing():
    hidden, lm_head, ids, mask, rewards = make(2)
    clean = fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)
    hidden[~mask] = float("nan")
    hidden.requires_grad_()
    dirty = fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)
    assert torch.equal(clean.loss, dirty.loss)
    (gradient,) = torch.autograd.grad(dirty.loss, hidden)
    assert (gradient[~mask] == 0).all()


def pieces(objective, hidden, lm_head, ids, mask, rewards, **options):
    """Completions for `fused_loss`, from whole groups."""
    scored = group_advantages(objective, rewards, G)
    return prepare_completions(objective, scored, ids, mask, G, dtype=torch.float64)._replace(**options)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", ["gtpo", "gtpo-published", "gtpo-eq7"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_accumulation_equals_one_batch(name, size, trainable):
    """Micro-batches of any size, groups split over them, add up to the batch's gradient."""
    hidden, lm_head, ids, mask, rewards = make(9)
    objective = threshold_between(PRESETS[name], hidden, lm_head, ids, mask, rewards, 1.0)
    hidden.requires_grad_()
    lm_head.requires_grad_(trainable)
    whole = fused_linear_gtpo_loss(objective, hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)
    whole.loss.backward()
    wanted = hidden.grad.clone(), lm_head.grad.clone() if trainable else None
    hidden.grad = lm_head.grad = None
    given = pieces(objective, hidden, lm_head, ids, mask, rewards)
    total = 0.0
    for begin in range(0, 8, size):
        part = slice(begin, begin + size)
        result = fused_loss(
            objective, hidden[part], lm_head, ids[part], mask[part],
            Completions(*(None if field is None else field[part] for field in given)), G,
            gate_active=True, groups=2, chunk_rows=4,
        )  # fmt: skip
        result.loss.backward()
        total += float(result.loss.detach())
    assert total == pytest.approx(float(whole.loss.detach()), rel=1e-12)
    torch.testing.assert_close(hidden.grad, wanted[0], rtol=1e-11, atol=1e-13)
    if trainable:
        torch.testing.assert_close(lm_head.grad, wanted[1], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", ["gtpo", "gtpo-eq7"])
@pytest.mark.parametrize("importance", [None, "token", "sequence"])
@pytest.mark.parametrize("reused", [False, True])
def test_several_iterations_and_importance_weights(name, importance, reused, trainable):
    """PPO's ratio and clipping against plain autograd, with the gate and <H> of the first iteration or of this one."""
    hidden, lm_head, ids, mask, rewards = make(13)
    objective = replace(PRESETS[name], filter="always", entropy_threshold=2.0)
    draw = torch.Generator().manual_seed(1)
    hidden.requires_grad_()
    lm_head.requires_grad_(trainable)
    logps = (hidden @ lm_head.T).log_softmax(-1)
    chosen = logps.gather(-1, ids.clamp(min=0)[..., None]).squeeze(-1)
    entropies = -(logps.exp() * logps).sum(-1)
    lengths = mask.sum(1)
    own = ((entropies * mask).sum(1) / lengths).detach()
    old = chosen.detach() + 0.4 * torch.randn(chosen.shape, generator=draw, dtype=torch.float64)
    factor = torch.rand((8, 7) if importance == "token" else (8,), generator=draw).double() if importance else None
    given = pieces(objective, hidden, lm_head, ids, mask, rewards, old_logps=old, importance_weights=factor)
    if reused:
        entropy, kept = torch.rand(8, generator=draw).double(), torch.rand(8, generator=draw) > 0.4
        given = given._replace(old_entropy=entropy, old_keep_mask=kept)
    else:
        entropy, kept = own, own <= 2.0
    got = fused_loss(objective, hidden, lm_head, ids, mask, given, G, gate_active=True, epsilon_high=0.28, chunk_rows=6)

    shaped = given.advantages - 0.1 * entropy if name == "gtpo" else given.advantages
    shaped = (shaped * kept)[:, None]
    ratio = (chosen - old).exp()
    term = torch.minimum(shaped * ratio, shaped * ratio.clamp(0.8, 1.28)) * given.weights * mask
    if factor is not None:
        term = term * (factor if importance == "token" else factor[:, None])
    losses = -term.sum(1) / lengths
    if name == "gtpo-eq7":
        losses = losses + 0.1 * (entropies * mask).sum(1) / lengths
    expected = losses.mean()
    leaves = [hidden, lm_head] if trainable else [hidden]
    torch.testing.assert_close(got.loss, expected)
    for value, target in zip(torch.autograd.grad(got.loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(value, target, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(got.logps, (chosen * mask).detach())
    torch.testing.assert_close(got.token_entropies, (entropies * mask).detach())


@pytest.mark.parametrize("name", ["gtpo", "gtpo-eq7"])
def test_autocast_leaves_logits_in_float32(name):
    hidden, lm_head, ids, mask, rewards = make(7, torch.float32)
    hidden.requires_grad_()
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got = fused_linear_gtpo_loss(PRESETS[name], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)
        found.append((got.loss.detach(), *torch.autograd.grad(got.loss, hidden)))
    for value, target in zip(*found, strict=True):
        assert torch.equal(value, target)


def test_tied_embeddings_receive_both_gradients():
    _, table, ids, mask, rewards = make(4)
    rewards = torch.arange(8.0)
    results = []
    for fused in (True, False):
        weight = table.clone().requires_grad_()
        hidden = torch.nn.functional.embedding(ids.clamp(min=0), weight).tanh()
        if fused:
            loss = fused_linear_gtpo_loss(PRESETS["grpo"], hidden, weight, ids, mask, rewards, G).loss
        else:
            loss = reference_loss(PRESETS["grpo"], hidden @ weight.T, ids, mask, rewards, G).loss
        results.append(torch.autograd.grad(loss, weight)[0])
    torch.testing.assert_close(*results)


def test_gradients_are_handed_over_without_a_copy():
    """dloss/dW is as large as W: it is scaled where it lies and becomes .grad; so a second backward is refused."""
    hidden, lm_head, ids, mask, rewards = make(3, torch.float32)
    hidden.requires_grad_()
    lm_head.requires_grad_()
    loss = fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1).loss
    computed = [gradient.data_ptr() for gradient in loss.grad_fn.gradients[:2]]
    scaled = loss * 0.5
    scaled.backward(retain_graph=True)
    assert [hidden.grad.data_ptr(), lm_head.grad.data_ptr()] == computed
    with pytest.raises(RuntimeError, match="handed over by an earlier backward"):
        scaled.backward()
    again = fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1).loss
    (first,) = torch.autograd.grad(again, hidden, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_errors_name_the_argument_and_the_shapes():
    hidden, lm_head, ids, mask, rewards = make(1)

    def call(hidden=hidden, lm_head=lm_head, ids=ids, mask=mask, rewards=rewards, group=G, **options):
        options = {"initial_entropy": 0.1, **options}
        return fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, group, **options)

    call()
    for options, words in [
        ({"hidden": hidden[:, :5]}, r"completion_ids must be integers \[8, 5\].*\[8, 7\]"),
        ({"hidden": hidden[0]}, r"hidden must have shape \[N, L, D\].*\[7, 6\]"),
        ({"lm_head": lm_head[:, :4]}, r"lm_head must have shape \[V, 6\].*\[23, 4\]"),
        ({"mask": mask[:, :5]}, r"completion_mask \[8, 5\].*\[8, 7\]"),
        ({"group": 3}, "num_generations 3 does not divide the 8"),
        ({"rewards": rewards[:4]}, r"rewards \[4\].*8"),
        ({"rewards": torch.full((8,), torch.inf)}, "rewards: row 0 is infinite"),
        ({"ids": ids.masked_fill(mask, 23)}, r"completion_ids\[0, 0\] = 23 lies outside the vocabulary of 23"),
        ({"mask": torch.zeros_like(mask)}, "completion_mask: row 0 has no tokens"),
        ({"bias": torch.zeros(3)}, r"bias must have shape \[23\].*\[3\]"),
        ({"bias": torch.full((23,), -torch.inf)}, r"bias\[0\] is not finite"),
        ({"temperature": 0.0}, "temperature"),
        ({"softcap": -1.0}, "softcap"),
        ({"chunk_rows": 0}, "chunk_rows"),
        ({"backend": "cuda"}, "backend"),
        ({"initial_entropy": None}, "initial_entropy"),
    ]:
        with pytest.raises(ValueError, match=words):
            call(**options)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_reported_with_their_row(value):
    hidden, lm_head, ids, mask, rewards = make(1)
    mask[:] = True
    ids = ids.clamp(min=0)
    bad = hidden.clone()
    bad[5, 2, 1] = value
    with pytest.raises(ValueError, match=r"hidden\[5, 2\] is not finite"):
        fused_linear_gtpo_loss(PRESETS["gtpo"], bad, lm_head, ids, mask, rewards, G, initial_entropy=0.1)
    lm_head[7, 0] = value
    with pytest.raises(ValueError, match=r"lm_head\[7\] is not finite"):
        fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)


def test_unscored_rewards_leave_their_completion_out():
    hidden, lm_head, ids, mask, _ = make(6)
    hidden.requires_grad_()
    rewards = [1.0, None, 0.0, 1.0, 0.0, 1.0, float("nan"), 0.0]
    got = fused_linear_gtpo_loss(PRESETS["gtpo"], hidden, lm_head, ids, mask, rewards, G, initial_entropy=0.1)
    (gradient,) = torch.autograd.grad(got.loss, hidden)
    assert (gradient[[1, 6]] == 0).all()
    assert (got.advantages[[1, 6]] == 0).all()
