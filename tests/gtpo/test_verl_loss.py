"""verl's own loss with our token-level advantages is reference_loss, in value and in gradient, for every preset."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gtpo.integrations.verl.advantages import token_advantages
from gtpo.objective import PRESETS, reference_loss, token_entropy

pytestmark = pytest.mark.verl
PROMPTS, G, L, V, PROMPT_TOKENS = 3, 6, 17, 11, 4


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@pytest.mark.parametrize("preset", PRESETS)
def test_verls_ppo_loss_is_the_reference(preset: str) -> None:
    from tensordict import TensorDict
    from verl.workers.config import ActorConfig
    from verl.workers.utils.losses import ppo_loss

    # A threshold in the midst of these entropies, and what verl cannot have: the clamp in the published logarithm.
    objective = replace(PRESETS[preset], log_clamp=0.0, entropy_threshold=1.95)
    rows = PROMPTS * G
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, L + 1, (rows,), generator=generator)
        mask = torch.arange(L)[None] < lengths[:, None]
        ids = torch.randint(0, 3, (rows, L), generator=generator)
        rewards = torch.randint(0, 3, (rows,), generator=generator).double()
        logits = (torch.randn(rows, L, V, dtype=torch.float64, generator=generator) * 1.1).requires_grad_()
        expected = reference_loss(objective, logits, ids, mask, rewards, G, initial_entropy=0.4)
        (expected_gradient,) = torch.autograd.grad(expected.loss, logits)
        if objective.filter != "never":
            dropped = int((~expected.kept).sum())
            assert 0 < dropped < rows

        order = torch.randperm(rows, generator=generator)
        log_probabilities = logits[order].log_softmax(dim=-1)
        entropy = token_entropy(log_probabilities)
        logps = log_probabilities.gather(-1, ids[order][..., None]).squeeze(-1)
        tokens = token_advantages(
            objective,
            *(ids[order], mask[order], rewards[order], entropy.detach()),
            [str(row // G) for row in order.tolist()],
            batch_rows=rows, initial_entropy=0.4, token_logps=logps.detach(),
        )  # fmt: skip
        actor = ActorConfig(
            strategy="fsdp", rollout_n=G, ppo_mini_batch_size=rows, ppo_micro_batch_size_per_gpu=rows,
            loss_agg_mode="seq-mean-token-mean",
            entropy_coeff=-objective.gamma if objective.entropy_mode == "loss" else 0,
        )  # fmt: skip
        cut = [slice(0, int(length)) for length in lengths[order]]

        def responses(table: torch.Tensor, cut: list[slice] = cut) -> torch.Tensor:
            return nested([row[part] for row, part in zip(table, cut, strict=True)])

        def whole(table: torch.Tensor, cut: list[slice] = cut) -> torch.Tensor:
            """Values of prompt and response as the model returns them: one position early."""
            first, last = torch.zeros(PROMPT_TOKENS - 1, dtype=table.dtype), torch.zeros(1, dtype=table.dtype)
            return nested([torch.cat([first, row[part], last]) for row, part in zip(table, cut, strict=True)])

        data = TensorDict(
            {
                "prompts": nested([torch.zeros(PROMPT_TOKENS, dtype=torch.long)] * rows),
                "responses": responses(ids[order]),
                "response_mask": responses(mask[order].long()),
                "old_log_probs": responses(logps.detach()),
                "advantages": responses(tokens.advantages),
            },
            batch_size=rows,
        )
        for name, value in {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": rows}.items():
            data.set_non_tensor(name, value)
        outputs = {"log_probs": whole(logps)}
        if objective.entropy_mode == "loss":
            outputs["entropy"] = whole(entropy)
        loss, _ = ppo_loss(actor, outputs, data)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert float(loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=1e-6, abs=1e-6)
        assert (gradient - expected_gradient).norm() <= 1e-6 * expected_gradient.norm()
