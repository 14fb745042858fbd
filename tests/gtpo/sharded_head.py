"""The fused loss in a model sharded by FSDP2 over two gloo processes: run by step_gradients.py under torchrun.

Prints one line a case: how far its loss and gradients are from those of the whole model.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gtpo.config import BuiltModel
from gtpo.fused import fused_linear_gtpo_loss
from gtpo.inputs.tiny import build_tiny_model
from gtpo.objective import PRESETS
from gtpo.trainer.policy_head import LMHead, add_policy_head


def main() -> None:
    """Print the differences; needs a process group of two."""
    assert dist.get_world_size() == 2
    mesh = init_device_mesh("cpu", (2,))
    ids = torch.randint(10, 200, (4, 12), generator=torch.Generator().manual_seed(5))

    def loss(hidden: torch.Tensor, head: LMHead) -> torch.Tensor:
        return fused_linear_gtpo_loss(
            PRESETS["gtpo-eq7" if frozen else "gtpo-no-filter"],
            hidden[:, :-1],
            head.lm_head,
            ids[:, 1:],
            torch.ones_like(ids[:, 1:]),
            torch.tensor([1.0, 2.0, 3.0, 5.0]),
            4,
            initial_entropy=1.0,
        ).loss

    for tied, frozen in ((True, False), (False, False), (False, True)):  # the head is needed again in the backward
        spec = BuiltModel(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.5,
            tie_word_embeddings=tied,
        )
        model, _ = build_tiny_model(spec, max_seq_length=64, seed=1)
        model.lm_head.weight.requires_grad_(not frozen)
        add_policy_head(model)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "policy_loss": loss}
        whole = model(**inputs).value
        whole.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        if not tied:  # a head with a group of its own is still sharded when the loss asks for it
            fully_shard(model.lm_head, mesh=mesh)
        fully_shard(model, mesh=mesh)
        sharded = model(**inputs).value
        sharded.backward()
        gap = max(
            float((p.grad.full_tensor() - expected[name]).abs().max())  # type: ignore[union-attr]
            for name, p in model.named_parameters()
            if p.grad is not None
        )
        size = max(float(gradient.abs().max()) for gradient in expected.values())
        if dist.get_rank() == 0:
            print(f"tied={tied} frozen={frozen} loss={abs(float(sharded - whole)):.2e} gradient={gap / size:.2e}")
