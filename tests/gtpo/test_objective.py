"""The objective against the authors' logged steps, hand calculation and plain invariants."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from approved import check_refusals

from gtpo.completions import group_advantages, prepare_completions
from gtpo.conflict import conflict_weights
from gtpo.objective import LN2, PRESETS, Objective, filter_is_active, loss_from_statistics, policy_loss, reference_loss

SEED = 7
F64 = torch.float64


def batch(groups=2, num_generations=4, width=7, vocabulary=5, seed=SEED, dtype=F64, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    rows = groups * num_generations
    logits = spread * torch.randn(rows, width, vocabulary, generator=generator, dtype=dtype)
    ids = torch.randint(0, 2, (rows, width), generator=generator)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    rewards = torch.randint(0, 3, (rows,), generator=generator).to(dtype) * 10
    return logits.requires_grad_(), ids, mask, rewards, num_generations


@pytest.mark.shared
def test_published_preset_reproduces_every_logged_loss(shared_dir):
    steps = json.loads((shared_dir / "golden" / "published_steps.json").read_text())
    logged = [step for step in steps if step["logged_loss"] is not None]
    assert logged
    for step in logged:
        columns = {
            key: torch.tensor([c[key] for c in step["completions"]], dtype=F64)
            for key in ("adv", "entropy", "len", "prefix", "suffix")
        }
        objective = dataclasses.replace(
            PRESETS["gtpo-published"],
            entropy_threshold=step["ent_threshold"],
            gamma=step["ent_scale"],
            positive_weight=step["w_raw"],
        )
        found = loss_from_statistics(objective, *columns.values(), num_generations=step["G"])
        assert found.losses.shape == (step["G"],)
        assert found.loss.item() == pytest.approx(step["logged_loss"], abs=2e-4), (step["source"], step["step"])


def test_statistics_and_logits_give_the_same_loss_for_every_preset():
    # The others choose tokens by their probabilities, which are not among these statistics.
    for name in PRESETS.keys() - {"rsi", "ntf"}:
        objective = PRESETS[name]
        logits, ids, mask, rewards, size = batch()
        loss = reference_loss(objective, logits, ids, mask, rewards, size, initial_entropy=0.4)
        spans = conflict_weights(ids, mask, loss.advantages, size)
        statistics = (loss.advantages, loss.entropy, mask.sum(1), spans.forward, spans.backward)
        found = loss_from_statistics(objective, *statistics, size, initial_entropy=0.4)
        assert found.loss.item() == pytest.approx(loss.loss.item(), abs=1e-12), name


def test_gate_drops_above_the_threshold_and_keeps_equality():
    ids = torch.zeros(2, 1, dtype=torch.long)
    mask = torch.ones(2, 1, dtype=torch.bool)
    rewards = torch.tensor([1.0, 0.0], dtype=F64)
    two_of_three = torch.tensor([0.0, 0.0, -torch.inf], dtype=F64)  # H = ln 2 exactly
    three = torch.zeros(3, dtype=F64)  # H = ln 3
    logits = torch.stack([two_of_three, three]).view(2, 1, 3).requires_grad_()
    gate = dataclasses.replace(PRESETS["gtpo"], filter="always")
    found = reference_loss(gate, logits, ids, mask, rewards, 2)
    assert found.entropy.tolist() == pytest.approx([LN2, math.log(3)])
    assert found.kept.tolist() == [True, False]
    assert found.shaped_advantages[1] == 0
    found.loss.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1].abs().sum() == 0
    # auto: on iff H_ini < ln 2; without H_ini it cannot decide.
    assert [filter_is_active(PRESETS["gtpo"], entropy) for entropy in (0.42, LN2)] == [True, False]
    for entropy in (None, math.nan, math.inf, -0.1):
        with pytest.raises(ValueError, match="initial_entropy"):
            filter_is_active(PRESETS["gtpo"], entropy)


def test_equal_rewards_move_by_the_entropy_term_alone_unless_skipped():
    logits, ids, mask, _, size = batch(groups=1)
    rewards = torch.full((size,), 0.1, dtype=F64)
    published = reference_loss(PRESETS["gtpo-published"], logits, ids, mask, rewards, size)
    expected = (0.1 * published.entropy * published.kept).sum()
    assert published.advantages.eq(0).all()
    assert published.loss.item() == pytest.approx(expected.item())
    skipping = dataclasses.replace(PRESETS["gtpo-no-filter"], skip_zero_variance_groups=True)
    loss = reference_loss(skipping, logits, ids, mask, rewards, size).loss
    assert loss.item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(
    "rewards", [[0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 0.2], [0.7, 0.8, 0.9]]
)
def test_a_reward_at_the_mean_takes_no_side_though_the_mean_is_rounded(rewards, dtype):
    """A = -3e-16 would make the completion a negative one, whose tokens then count as conflicts."""
    middle = sorted(range(len(rewards)), key=rewards.__getitem__)[len(rewards) // 2]
    if len(rewards) == 7:
        middle = 6
    for scale_rewards in ("group", "none"):
        found = group_advantages(
            Objective(scale_rewards=scale_rewards), torch.tensor(rewards, dtype=dtype), len(rewards)
        )
        signs = [0 if row == middle else 1 if reward > rewards[middle] else -1 for row, reward in enumerate(rewards)]
        assert found.advantages.sign().tolist() == signs


@pytest.mark.parametrize(
    ("rewards", "signs", "dtypes"),
    [
        ([0.1] * 7, [0] * 7, [torch.float32]),
        ([20.0, 20.0 + 1e-9, 20.0, 20.0 - 1e-9], [0, 1, 0, -1], [F64]),
        ([20.0] * 7 + [19.0], [1] * 7 + [-1], [torch.bfloat16, torch.float16, torch.long]),
    ],
)
def test_signs_are_those_of_the_rewards_whatever_their_dtype(rewards, signs, dtypes):
    exact = group_advantages(Objective(), rewards, len(rewards)).advantages  # of a list: float64
    for dtype in dtypes:
        found = group_advantages(Objective(), torch.tensor(rewards, dtype=dtype), len(rewards)).advantages
        assert found.sign().tolist() == signs
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


def test_unscored_rewards_are_left_out():
    scored = group_advantages(Objective(), [10.0, None, 0.0, float("nan"), 5.0, 5.0, None, 5.0], 4)
    assert scored.scored.tolist() == [True, False, True, False, True, True, False, True]
    alone = group_advantages(Objective(), torch.tensor([10.0, 0.0]), 2).advantages
    assert scored.advantages[[0, 2]].tolist() == pytest.approx(alone.tolist())
    assert scored.advantages[[1, 3]].eq(0).all()
    assert scored.zero_variance.tolist() == [False] * 4 + [True] * 4
    logits, ids, mask, _, _ = batch(groups=1)
    found = reference_loss(PRESETS["gtpo-no-filter"], logits, ids, mask, [10.0, None, 0.0, 5.0], 4)
    found.loss.backward()
    assert logits.grad[1].abs().sum() == 0
    assert logits.grad[0].abs().sum() > 0


@pytest.mark.parametrize("name", PRESETS)
def test_order_padding_and_split_into_groups_do_not_matter(name):
    logits, ids, mask, rewards, size = batch(groups=3)
    objective = PRESETS[name]
    whole = reference_loss(objective, logits, ids, mask, rewards, size, initial_entropy=0.4)
    parts = [
        reference_loss(objective, logits[s], ids[s], mask[s], rewards[s], size, initial_entropy=0.4).loss
        for s in (slice(0, 4), slice(4, 8), slice(8, 12))
    ]
    # The band is decided by the entropy of the whole round.
    assert objective.has_band or whole.loss.item() == pytest.approx(sum(p.item() for p in parts) / 3, abs=1e-12)
    order = torch.tensor([3, 1, 0, 2, 8, 11, 10, 9, 5, 4, 6, 7])
    shuffled = reference_loss(
        objective, logits[order], ids[order], mask[order], rewards[order], size, initial_entropy=0.4
    )
    assert shuffled.loss.item() == pytest.approx(whole.loss.item(), abs=1e-12)
    junk = torch.where(mask, ids, 4)
    noisy = torch.where(mask[..., None], logits, torch.nan)
    again = reference_loss(objective, noisy, junk, mask, rewards, size, initial_entropy=0.4).loss
    assert again.item() == pytest.approx(whole.loss.item(), abs=1e-12)
    gradient = torch.autograd.grad(again, logits)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(whole.loss, logits)[0])


@pytest.mark.parametrize("name", PRESETS)
def test_a_completion_that_an_environment_wrote_alone_has_no_loss(name):
    _, ids, mask, rewards, size = batch(groups=1)
    objective, generator = PRESETS[name], torch.Generator().manual_seed(0)
    logps, entropies = torch.rand(2, *ids.shape, generator=generator, dtype=torch.float64).requires_grad_().unbind()
    given = prepare_completions(objective, group_advantages(objective, rewards, size), ids, mask, size)
    whole = policy_loss(objective, given, logps, entropies, mask, size, gate_active=True)
    own = mask & (torch.arange(size)[:, None] != 1)
    found = policy_loss(objective, given, logps, entropies, own, size, gate_active=True)
    assert found.losses[1] == 0
    assert torch.equal(found.losses[own.any(dim=1)], whole.losses[own.any(dim=1)])
    for of in torch.autograd.grad(found.loss, (logps, entropies), allow_unused=True):
        assert of is None or not bool(of[1].any())


def test_bad_input_names_the_argument():
    names = "logits", "completion_ids", "completion_mask", "rewards", "num_generations"
    plain = dict(zip(names, batch(), strict=True))

    def loss(**changes):
        reference_loss(PRESETS["gtpo-no-filter"], **plain | changes)

    check_refusals("refused-objective.txt", {"loss": loss, "torch": torch})


def test_exclusions() -> None:
    ids = torch.tensor([[7, 1, 9], [7, 2, 9], [7, 3, 9], [7, 4, 9]])
    mask, rewards = torch.ones_like(ids, dtype=torch.bool), [1.0, None, 0.0, 1.0]
    truncated = torch.tensor([True, False, False, False])
    plain = PRESETS["gtpo"]
    scored = group_advantages(plain, rewards, 2)

    def excluded(**changes: bool) -> list[bool]:
        objective = dataclasses.replace(plain, **changes)
        given = prepare_completions(objective, scored, ids, mask, 2, truncated=truncated)
        return given.excluded.tolist()

    assert excluded() == [False, True, False, False]
    assert excluded(mask_truncated=True) == [True, True, False, False]
    assert excluded(skip_zero_variance_groups=True) == [True, True, False, False]  # one scored reward does not vary
    with pytest.raises(ValueError, match="mask_truncated needs truncated"):
        prepare_completions(dataclasses.replace(plain, mask_truncated=True), scored, ids, mask, 2)


# -- what docs/method.md says of a token that a whole group begins with ------------------------------------------------

G, WIDTH, VOCABULARY = 4, 5, 7
REWARDS = torch.tensor([20.0, 10.0, 10.0, 0.0], dtype=torch.float64)


def push_on_first_token(name: str, lengths: list[int]) -> tuple[float, torch.Tensor]:
    """Return the gradient ascent on the logit of the first token that all share, and the advantages."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(1, VOCABULARY, (G, WIDTH), generator=draw)
    ids[:, 0] = 0
    ids[:, 1] = torch.arange(1, G + 1)  # they part at the second token
    mask = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
    first = torch.randn(VOCABULARY, generator=draw, dtype=torch.float64, requires_grad=True)  # one prompt, one policy
    rest = torch.randn(G, WIDTH - 1, VOCABULARY, generator=draw, dtype=torch.float64)
    logits = torch.cat([first.expand(G, 1, VOCABULARY), rest], dim=1)
    objective = dataclasses.replace(PRESETS[name], filter="never", entropy_mode="none")
    found = reference_loss(objective, logits, ids, mask, REWARDS, G)
    (gradient,) = torch.autograd.grad(-found.loss, first)
    return float(gradient[0] / (1 - first.detach().softmax(0)[0])), found.advantages


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [5, 3, 4, 2]])
def test_opposing_pushes_cancel_in_grpo_at_equal_lengths_and_gtpo_keeps_twice_the_positive(lengths: list[int]) -> None:
    opposing, _ = push_on_first_token("grpo", lengths)
    assert abs(opposing) < 1e-15 if len({*lengths}) == 1 else abs(opposing) > 1e-2
    push, advantages = push_on_first_token("gtpo-conflict-only", lengths)
    positive = sum(float(a) / n for a, n in zip(advantages, lengths, strict=True) if a > 0)
    assert push == pytest.approx(2 / G * positive)
    assert push > 0
