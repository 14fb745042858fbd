"""Under truncated sampling the loss is of the distribution that was sampled from, in each step of a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampler_check import TOKENIZER, built, check, sampled_by_vllm, small, under_vllm, vllm_cut

from gtpo.trainer.group_statistics import batch_statistics
from gtpo.trainer.policy_head import KeptSets

CUTS: list[dict[str, Any]] = [
    {"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.6, "min_p": 0.05}, {"top_p": 1e-6},
    {"generation_kwargs": {"typical_p": 0.6}}, {"top_k": None},
]  # fmt: skip


class Draws:
    """Every distribution that `generate` draws from, with what it drew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plain, self.steps = torch.multinomial, list[torch.Tensor]()
        monkeypatch.setattr(torch, "multinomial", self)

    def __call__(self, probabilities: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.steps.append(probabilities.clone())
        return self.plain(probabilities, *args, **kwargs)


@pytest.mark.parametrize(
    ("cut", "preset", "several"),
    [*((cut, "gtpo-no-filter", True) for cut in CUTS), (CUTS[0], "gtpo-no-filter", False), (CUTS[3], "gtpo-eq7", True)],
    ids=str,
)
def test_each_step_of_a_round_has_the_policy_that_sampled(
    cut: dict[str, Any], preset: str, several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities and entropies are those of all logits over the ids that `generate` gave a probability."""
    shape = {"steps_per_generation": 3} if several else {}
    trainer = built(
        tmp_path, small("Llama"), preset=preset, temperature=0.9, learning_rate=1e-3,
        max_steps=3 if several else 1, **shape, **cut,
    )  # fmt: skip
    draws, log, differences, moved = Draws(monkeypatch), trainer._log, [], []

    def compare(output: Any, tokens: dict[str, Any], inputs: dict[str, Any]) -> None:
        log(output, tokens, inputs)
        mask, length = inputs["completion_mask"].bool(), inputs["completion_ids"].size(1)
        sampled = torch.stack(draws.steps[-16:], dim=1)[inputs["row"], :length]
        ids, attention = (
            torch.cat([inputs[f"{part}_{what}"] for part in ("prompt", "completion")], 1) for what in ("ids", "mask")
        )
        with torch.no_grad():
            positions = (attention.cumsum(1) - 1).clamp(min=0)
            logits = trainer.model(input_ids=ids, attention_mask=attention, position_ids=positions).logits
        exact = (logits[:, -length - 1 : -1].double() / 0.9).masked_fill(sampled == 0, -torch.inf).log_softmax(-1)
        entropy = -(exact.exp() * exact.masked_fill(sampled == 0, 0)).sum(-1)
        logps = exact.gather(-1, inputs["completion_ids"][..., None])[..., 0]
        differences.append(max(float((tokens["logps"] - logps)[mask].abs().max()),
                               float((tokens["entropies"] - entropy)[mask].abs().max())))  # fmt: skip
        own = sampled.double().gather(-1, inputs["completion_ids"][..., None])[..., 0].log()
        moved.append(float(((logps - own)[mask].exp() - 1).abs().max()))
        assert not inputs["excluded"].any()

    trainer._log = compare
    trainer.train()
    assert len(differences) == trainer.args.max_steps
    assert max(differences) < 1e-4
    assert moved[0] < 1e-4, "the ratio to the sampler is 1 before any update"
    assert not several or cut == {"top_p": 1e-6} or min(moved[1:]) > 1e-3, "and not afterwards"


def test_the_rule_of_vllm_is_the_one_by_hand(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    trainer = under_vllm(tmp_path, 1e-4)
    for _ in range(200):
        logits = 3 * torch.randn((1, 1, 12), generator=rng)
        numbers = torch.rand(3, generator=rng).tolist()
        kept = {"top_k": 1 + int(11 * numbers[0]), "top_p": 0.05 + 0.9 * numbers[1], "min_p": 0.01 + 0.9 * numbers[2]}
        kept = {name: value for name, value in kept.items() if torch.rand((), generator=rng) < 0.6}
        trainer.args.generation_kwargs = kept
        sets = KeptSets.of_trainer(trainer)
        if not kept:
            assert sets is None
            continue
        left = vllm_cut(logits[0, 0], **kept)
        assert sets is not None
        head = type("Head", (), {"lm_head": logits[0, 0], "logits": lambda self, states: states})()
        found = sets.find(logits, head, logits.argmax(-1), torch.ones((1, 1), dtype=torch.bool))
        assert found["kept_ids"][0].tolist() == left.isfinite().nonzero()[:, 0].tolist(), kept


@pytest.mark.parametrize(
    "kept", [{"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.1}, {"top_k": 5, "top_p": 0.7, "min_p": 0.1}], ids=str
)
def test_log_probabilities_of_vllm_are_those_of_the_loss(kept: dict[str, Any], tmp_path: Path) -> None:
    trainer = under_vllm(tmp_path, 1e-4, **kept)
    batch = sampled_by_vllm(trainer, kept)
    found = batch_statistics(trainer, trainer.model_wrapped, batch, temperature=trainer.temperature)
    logps = found["logps"]
    assert (logps - batch["sampling_per_token_logps"]).abs().max() < 1e-4
    assert not found["kept_outside"].any()
    trainer.sampler.observe(logps, batch)


def test_a_completion_that_could_not_be_drawn_is_refused_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id far outside its set, as of a sampler with other weights; its group's others are trained on."""
    trainer = built(tmp_path, small("Llama"), preset="gtpo-no-filter", top_k=3, max_steps=1)
    plain, seen = trainer.draw, []

    def draw(prompts: Any) -> Any:
        outputs = plain(prompts)
        outputs[1][2][3] = (outputs[1][2][3] + 50) % len(TOKENIZER)
        return outputs

    monkeypatch.setattr(trainer, "draw", draw)
    log = trainer._log
    trainer._log = lambda *found: (seen.append(found[-1]), log(*found))
    trainer.train()
    excluded = {int(row) for inputs in seen for row in inputs["row"][inputs["excluded"]]}
    assert excluded == {2}
    assert trainer.state.log_history[0]["sampling/refused"] == 1 / 8


@pytest.mark.parametrize("cut", [{"top_p": 0.5}, {"top_p": 0.02}, {"top_k": 3}, {"min_p": 0.9}, {"typical_p": 0.5}])
def test_what_a_sampler_draws_of_equal_logits_is_not_refused(cut: dict[str, float], tmp_path: Path) -> None:
    """Logits in few steps, as of bfloat16, of which another sampler sorts others first; and all equal."""
    trainer = built(tmp_path, small("Llama"), generation_kwargs={"top_k": 0, **cut}, max_steps=1)
    sets, draw = trainer.kept_sets, torch.Generator().manual_seed(0)
    assert sets is not None
    for spread in (2.0, 0.5, 0.0):
        logits = (spread * torch.randn((64, 500), generator=draw)).round()
        order = torch.randperm(500, generator=draw)
        inside = sets.inside(logits[:, order])[:, order.argsort()]
        ids = torch.multinomial(inside.float(), 4, replacement=True, generator=draw)
        head = type("Head", (), {"lm_head": logits[0], "logits": lambda self, states: states})()
        four = logits.repeat_interleave(4, dim=0).view(64, 4, -1)
        assert not sets.find(four, head, ids, torch.ones_like(ids, dtype=torch.bool))["kept_outside"].any()


def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    def building(**changes: Any) -> None:
        rollout = changes.pop("rollout_func", None)
        check(built(tmp_path, small("Llama"), rollout_func=rollout, **changes))

    with pytest.raises(ValueError, match="cannot be found beside RepetitionPenaltyLogitsProcessor"):
        building(top_p=0.9, repetition_penalty=1.1)
    with pytest.raises(ValueError, match="is known to rollout_func only"):
        building(top_p=0.9, rollout_func=lambda prompts, trainer: {})
