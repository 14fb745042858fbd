"""Run by test_fused_triton.py in a process of its own: the kernels in Triton's interpreter, or with `cuda` on a GPU."""

import sys
from dataclasses import replace

import torch

torch.set_num_threads(1)


def check(device):
    from gtpo.fused import fused_linear_gtpo_loss
    from gtpo.kernels import triton_rows, vocabulary_tiles
    from gtpo.kernels.torch_rows import OnlineSoftmax, Transform
    from gtpo.objective import PRESETS, reference_loss

    triton_rows.BLOCK = 8  # several blocks a row
    chosen = {name: PRESETS[name] for name in ("gtpo", "gtpo-published", "gtpo-eq7", "grpo")}
    variants = {**chosen, "eq7-clamped": replace(PRESETS["gtpo-eq7"], log_clamp=0.02, entropy_gated=True)}
    worst = 0.0
    for number, (name, objective) in enumerate(variants.items()):
        for dtype in (torch.float64, torch.float32):
            vocabulary_tiles.TILE_COLUMNS[device] = (5, 9) if number % 3 else (512, 4096)
            draw = torch.Generator().manual_seed(number)
            hidden = torch.randn(8, 3, 6, generator=draw, dtype=dtype).requires_grad_()
            lm_head = torch.randn(19, 6, generator=draw, dtype=dtype).requires_grad_(number % 2 == 0)
            ids = torch.randint(0, 3, (8, 3), generator=draw)
            mask = torch.arange(3) < torch.randint(1, 4, (8, 1), generator=draw)
            rewards = torch.randint(0, 3, (8,), generator=draw).double()
            options = {"initial_entropy": 0.1, "temperature": 0.8}
            leaves = [tensor for tensor in (hidden, lm_head) if tensor.requires_grad]
            here = [t.detach().to(device).requires_grad_(t.requires_grad) for t in (hidden, lm_head)]
            logits = 2.5 * torch.tanh(1.3 * (hidden.double() @ lm_head.double().T) / 2.5)
            expected = reference_loss(objective, logits, ids, mask, rewards, 4, **options)
            wanted = torch.autograd.grad(expected.loss, leaves)
            got = fused_linear_gtpo_loss(
                objective, *here, ids.to(device), mask.to(device), rewards.to(device), 4,
                backend="triton", logit_scale=1.3, softcap=2.5, chunk_rows=7, **options,
            )  # fmt: skip
            gradients = torch.autograd.grad(got.loss, [t for t in here if t.requires_grad])
            for value, target in zip((*got, *gradients), (*expected, *wanted), strict=True):
                error = float((value.cpu().double() - target.double()).abs().max())
                # The interpreter rounds a kernel's float arguments to float32, as a GPU does.
                assert error < (1e-6 if dtype == torch.float64 else 1e-5), (name, dtype, error)
                worst = max(worst, error)
    # Half-precision powers, as on a GPU: rounded once, the target left out.
    z = torch.randn(3, 40, device=device) * 3
    local = torch.tensor([4, 39, 77], device=device)
    states = [OnlineSoftmax.empty(3, torch.float32, z.device) for _ in range(2)]
    outs = [torch.empty(3, 40, dtype=dtype, device=device) for dtype in (torch.float32, torch.bfloat16)]
    for state, out in zip(states, outs, strict=True):
        triton_rows.online_softmax_update_(state, z, powers=out, local=local, transform=Transform())
    torch.testing.assert_close(outs[1].float(), outs[0], rtol=2**-7, atol=0)  # the interpreter truncates
    assert outs[0][0, 4] == 0
    assert outs[0][1, 39] == 0
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)
    print(f"worst {worst:.1e}")


if __name__ == "__main__":
    check(sys.argv[1] if len(sys.argv) > 1 else "cpu")
