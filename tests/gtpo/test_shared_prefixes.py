"""training.share_prefixes: the same hidden states and gradients as the padded batch, with fewer tokens computed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train_run import config_of, metrics, run, whole_run
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    GPTNeoXJapaneseConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
)
from trl.trainer import utils

from gtpo.common.errors import UserError
from gtpo.train.session import sharing_prefixes
from gtpo.trainer import shared_prefixes
from gtpo.trainer.shared_prefixes import prefix_tree, share_prefixes

torch.set_num_threads(1)
SEED = 20261125
SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 100},
}


def model_of(config: type, attention: str = "sdpa", **settings: Any) -> Any:
    torch.manual_seed(SEED)
    return AutoModelForCausalLM.from_config(config(**SIZES, **settings), attn_implementation=attention)


def batch(groups: int = 2, size: int = 4) -> tuple[Tensor, Tensor]:
    """Groups of completions, padded as TRL pads them, the rows in random order. Some completions begin alike."""
    generator = torch.Generator().manual_seed(SEED)

    def drawn(low: int, high: int, length: int) -> list[int]:
        return torch.randint(low, high, (length,), generator=generator).tolist()

    prompts = [[1, 2, 3, *drawn(4, 100, 4 * (group + 1))] for group in range(groups)]
    completions = [[drawn(4, 6, drawn(1, 9, 1)[0]) for _ in range(size)] for _ in prompts]
    longest, width = len(prompts[-1]), 9
    ids = torch.zeros(groups * size, longest + width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(
        (p, c) for p, some in zip(prompts, completions, strict=True) for c in some
    ):
        begin = longest - len(prompt)
        ids[row, begin : begin + len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        mask[row, begin : begin + len(prompt) + len(completion)] = 1
    order = torch.randperm(len(ids), generator=generator)
    return ids[order], mask[order]


def computed(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states of the tokens, and the gradients of a random function of them."""
    model.zero_grad()
    hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(SEED), dtype=hidden.dtype)
    (hidden * weights)[mask.bool()].sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return hidden[mask.bool()].detach(), gradients


def test_tree_holds_each_prefix_once() -> None:
    ids, mask = batch()
    tree = prefix_tree(ids, mask)
    rows = [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
    prefixes = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
    assert tree.ids.numel() == len(prefixes) < int(mask.sum())
    for row, kept, places, nodes in zip(rows, mask, tree.places, tree.paths[0, 0], strict=True):
        path = places[kept.bool()]
        assert tree.ids[0, path].tolist() == row
        assert tree.positions[0, path].tolist() == list(range(len(row)))
        assert nodes.tolist() == [*path.tolist(), *[int(path[-1])] * (len(nodes) - len(path))]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [Qwen2Config, LlamaConfig, Qwen3Config, GPTNeoXConfig])
def test_hidden_states_and_gradients_are_those_of_the_padded_batch(config: type, attention: str) -> None:
    model = model_of(config, attention)
    model.gradient_checkpointing_enable({"use_reentrant": False})  # a layer is computed again in the backward
    ids, mask = batch()
    expected, gradients = computed(model, ids, mask)
    sharing = share_prefixes(model)
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.append(output.shape[:2]))
    found, shared = computed(model, ids, mask)
    assert seen == [(1, prefix_tree(ids, mask).ids.numel())], "the tree went through the model"
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert shared.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert float((shared[name] - gradient).norm()) < 1e-5 * float(gradient.norm()), name
    sharing.close()
    assert torch.equal(computed(model, ids, mask)[0], expected), "the model is as it was"


def test_generation_is_as_before() -> None:
    model = model_of(Qwen2Config).eval()
    ids, mask = batch(groups=1)
    asked: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **asked)
    share_prefixes(model)
    assert torch.equal(model.generate(ids, **asked), expected)


@pytest.mark.parametrize(
    ("config", "settings", "why"),
    [
        (MistralConfig, {"sliding_window": 4096}, "a window of 4096 tokens"),
        (Qwen3Config, {"layer_types": ["sliding_attention", "full_attention"]}, "layers of sliding_attention"),
        (MixtralConfig, {}, "a mixture of experts"),
        (GPTNeoXJapaneseConfig, {"attention": "eager"}, "an attention of its own"),
        (GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4}, "hidden states are others"),
    ],
)
def test_models_that_cannot_are_refused(config: type, settings: dict[str, Any], why: str) -> None:
    model = model_of(config, **settings)
    with pytest.raises(ValueError, match=why):
        share_prefixes(model)
    assert not model.base_model._forward_pre_hooks


def test_a_wrong_path_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the comparison at the start is for."""

    def one_sequence(ids: Tensor, mask: Tensor) -> Any:
        tree = prefix_tree(ids, mask)
        return tree._replace(paths=torch.arange(tree.ids.numel())[None, None, None])

    monkeypatch.setattr(shared_prefixes, "prefix_tree", one_sequence)
    with pytest.raises(ValueError, match="hidden states are others"):
        share_prefixes(model_of(Qwen2Config).bfloat16())


def test_a_copy_of_the_model_computes_with_its_own_weights() -> None:
    model = model_of(Qwen2Config)
    share_prefixes(model)
    twin = copy.deepcopy(model)
    ids, mask = batch()
    expected, _ = computed(model, ids, mask)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    assert torch.equal(computed(twin, ids, mask)[0], expected)


@pytest.mark.parametrize("method", ["gtpo", "grpo", "sft"])
def test_a_run_learns_the_same(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees: list[int] = []

    def counted(ids: Tensor, mask: Tensor) -> Any:
        tree = prefix_tree(ids, mask)
        trees.append(int(mask.sum()) - tree.ids.numel())
        return tree

    monkeypatch.setattr(shared_prefixes, "prefix_tree", counted)
    head = getattr(utils, "_use_triton", None)
    padded = metrics(whole_run(**{} if method == "gtpo" else {"method": method}))
    shared = metrics(run(tmp_path, method=method, **{"training.share_prefixes": True}))
    # Each step's batch and one at the start; the prompts that the sampler is compared on may share nothing.
    assert sum(saved > 0 for saved in trees) > len(shared)
    assert getattr(utils, "_use_triton", None) is head, "TRL's head is as it was"
    for before, found in zip(padded, shared, strict=True):
        assert before.keys() == found.keys()
        for name in ("loss", "grad_norm", "rewards/accuracy", "completions/length"):
            if name in before:
                assert found[name] == pytest.approx(before[name], rel=1e-4, abs=1e-6), (name, before["step"])
    assert padded[0]["grad_norm"] > 0


def test_a_run_that_cannot_says_what_to_set(tmp_path: Path) -> None:
    config = config_of(tmp_path, **{"training.share_prefixes": True})
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES), attn_implementation="flex_attention")
    told = r"training.share_prefixes: .*attention `flex_attention`.*set it to false"
    with pytest.raises(UserError, match=told), sharing_prefixes(config, model):
        pass
