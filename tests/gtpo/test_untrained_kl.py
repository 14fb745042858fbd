"""`training.log_kl_steps`: how far the policy has moved from the untrained one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_train_run import config_of, metrics, run
from torch.nn.functional import kl_div

from gtpo.inputs.tiny import build_tiny_model
from gtpo.train import collapse
from gtpo.train.collapse import KL_METRIC, UntrainedKL, summed_kl, token_kl
from gtpo.trainer import SampledTrainer
from gtpo.trainer.policy_head import LMHead


def test_divergence_of_a_token_is_torchs_own() -> None:
    draw = torch.Generator().manual_seed(0)
    p, q = (torch.randn(3, 5, 11, generator=draw, dtype=torch.float64) * 3 for _ in range(2))
    expected = kl_div(q.log_softmax(-1), p.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(token_kl(p, q), expected)
    assert float(token_kl(p, p).abs().max()) == 0
    p[..., 0] = -torch.inf
    assert token_kl(p, q).isfinite().all()
    assert token_kl(p.bfloat16(), q.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(("rows", "softcap"), [(1, None), (4, 3.0), (100, None)])
def test_divergence_of_hidden_states_is_that_of_their_logits(
    rows: int, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collapse, "CHUNK_BYTES", rows * 4 * 11)
    draw = torch.Generator().manual_seed(0)
    now, before = torch.randn(2, 3, 6, 5, generator=draw)
    heads = [LMHead(torch.randn(11, 5, generator=draw), torch.randn(11, generator=draw), 0.5, softcap) for _ in "pq"]
    mask = torch.rand(3, 5, generator=draw) < 0.6
    total, count = summed_kl(now, heads[0], before, heads[1], mask, 0.7).tolist()
    p, q = (head.logits(hidden)[:, :-1] / 0.7 for head, hidden in zip(heads, (now, before), strict=True))
    expected = kl_div(q.log_softmax(-1), p.log_softmax(-1), reduction="none", log_target=True).sum(-1)[mask]
    assert (count, total) == (mask.sum(), pytest.approx(float(expected.sum()), rel=1e-5))


CASES: dict[str, dict[str, Any]] = {
    "gtpo": {"method": "gtpo"},
    "sft": {"method": "sft"},
    "adapters": {"method": "gtpo", "model.lora_rank": 4},
    "beta": {"method": "grpo", "training.beta": 1e-9},
}


@pytest.mark.parametrize("case", CASES)
def test_it_starts_at_nothing_grows_and_leaves_the_training_alone(case: str, tmp_path: Path) -> None:
    changes = CASES[case] | {"training.log_completions_steps": 0, "training.max_steps": 4}
    logged = metrics(run(tmp_path / "on", **changes, **{"training.log_kl_steps": 1}))
    kl = [row.pop(KL_METRIC) for row in logged]
    assert kl[0] == pytest.approx(0, abs=1e-9), "before the first step the policy is the untrained one"
    assert kl[-1] > 1e-6
    if case == "gtpo":
        assert logged == metrics(run(tmp_path / "off", **changes))


@pytest.mark.parametrize("whole", [None, ["lm_head"], ["embed_tokens", "norm"]])
def test_it_is_measured_beside_bfloat16_weights_too(whole: list[str] | None, tmp_path: Path) -> None:
    # accelerate returns in float32 what the first of the two forwards gives in bfloat16.
    base = config_of(tmp_path)
    assert base.model.build is not None
    for part in build_tiny_model(base.model.build, max_seq_length=base.model.max_seq_length, seed=1):
        (part.bfloat16() if isinstance(part, torch.nn.Module) else part).save_pretrained(tmp_path / "base")
    given = {"model.build": None, "model.model_name": str(tmp_path / "base"), "model.dtype": "bfloat16"}
    changes = {"model.lora_rank": 4, "training.max_steps": 4, "training.learning_rate": 0.1, "training.log_kl_steps": 1}
    folder = run(tmp_path, method="gtpo", **given, **changes, **{"lora.modules_to_save": whole} if whole else {})
    found = [row[KL_METRIC] for row in metrics(folder)]
    assert found[0] == 0 < found[-1]
    trained = load_file(folder / "final/adapter_model.safetensors")
    assert any("lora" not in name for name in trained) == bool(whole)
    assert {weight.dtype for weight in trained.values()} == {torch.float32}


@pytest.mark.parametrize("whole", [None, ["lm_head"]])
def test_it_is_that_of_the_logits_with_the_adapter_and_without(
    whole: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, measure = list[float](), UntrainedKL.on_micro_batch

    def by_logits(self: Any, model: Any, inputs: Any) -> None:
        measure(self, model, inputs)
        batch, mask = collapse._sequences(inputs)
        with torch.no_grad():
            now = model(**batch).logits[:, :-1][mask]
            with model.disable_adapter():
                found.append(float(token_kl(now, model(**batch).logits[:, :-1][mask]).mean()))

    monkeypatch.setattr(UntrainedKL, "on_micro_batch", by_logits)
    changes = {"model.lora_rank": 4, "training.max_steps": 3, "training.learning_rate": 0.1, "training.log_kl_steps": 1}
    logged = metrics(run(tmp_path, **changes, **{"lora.modules_to_save": whole} if whole else {}))
    assert [row[KL_METRIC] for row in logged] == pytest.approx(found, rel=1e-3)
    assert found[-1] > 1e-4


@pytest.mark.parametrize(
    ("changes", "every"),
    [
        ({"method": "gtpo", "training.logging_steps": 4}, [12]),
        ({"method": "grpo"}, [10]),
        ({"method": "grpo", "training.beta": 1e-9}, []),
        ({"method": "gtpo", "training.log_kl_steps": 0}, []),
        ({"method": "gtpo", "model.lora_rank": 0}, []),
    ],
)
def test_an_adapter_can_be_switched_off_so_the_watch_has_the_divergence(
    changes: dict[str, Any], every: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(collapse, "UntrainedKL", lambda trainer, steps, reference: found.append(steps))
    config = config_of(tmp_path, **{"model.lora_rank": 2, **changes})
    loaded: Any = SimpleNamespace(peft_config=config.model.lora_rank or None, weights=None)
    # A trainer that was not built: only its class is looked at.
    collapse.untrained_kl(SampledTrainer.__new__(SampledTrainer), config, loaded, loaded.weights)
    assert found == every
