"""The policy that samples is the one that the loss is taken of: no false stop, and each way to differ is named."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from approved import check_refusals
from datasets import Dataset
from logs import logged
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.callbacks import GRPOBaseline
from gtpo.inputs.model import logit_transform
from gtpo.inputs.tiny import build_tokenizer
from gtpo.trainer.checks import TOLERANCE, OtherPolicy
from gtpo.trainer.policy_head import KeptSets

TOKENIZER = build_tokenizer()
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
    "pad_token_id": TOKENIZER.pad_token_id, "eos_token_id": TOKENIZER.eos_token_id, "bos_token_id": 1,
    "initializer_range": 0.3, "moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "n_embd": 32, "n_layer": 2, "n_head": 4,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "Mistral": {"sliding_window": 16}, "Phi3": {}, "Phi": {}, "Qwen3Moe": {},
    "Gemma2": {"sliding_window": 16}, "Gemma3Text": {"sliding_window": 16}, "GPT2": {"attn_pdrop": 0.3}, "GPTNeoX": {},
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2}, "Olmo2": {}, "Bloom": {}, "Mamba": {},
    "Cohere": {"logit_scale": 0.5}, "Granite": {"logits_scaling": 4.0}, "Falcon": {"alibi": True},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Llama4Text": {"intermediate_size_mlp": 48, "router_aux_loss_coef": 0.0},
}  # fmt: skip
"""Rotary, absolute, learned and ALiBi positions, windows, scales, caps, a bias in the head, experts, a state space."""
PROMPTS = ["1 + 1?" + " 9" * more for more in range(0, 24, 3)]


def small(family: str, **changes: Any) -> Any:
    kind = getattr(transformers, f"{family}Config")
    known = kind()
    torch.manual_seed(0)
    settings = {name: value for name, value in SHAPE.items() if name in known.to_dict()}
    return AutoModelForCausalLM.from_config(kind(**{**settings, **changes})).float()


def built(
    folder: Path,
    model: Any,
    kind: Any = GTPOTrainer,
    settings: Any = GTPOConfig,
    rollout_func: Any = None,
    **changes: Any,
) -> Any:
    model.config._name_or_path = model.name_or_path = str(folder / "model")
    TOKENIZER.save_pretrained(folder / "model")
    plain = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16, "use_cpu": True}
    arguments = settings(output_dir=str(folder), report_to="none", bf16=False, **{**plain, **changes})
    trainer = kind(
        model=model, reward_funcs=lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids],
        args=arguments, train_dataset=Dataset.from_dict({"prompt": PROMPTS}), processing_class=TOKENIZER,
        rollout_func=rollout_func,
    )  # fmt: skip
    trainer.model.train()
    return trainer


def check(trainer: Any) -> None:
    trainer._tokenize_prompts(PROMPTS)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((name, "float32") for name in FAMILIES), *((name, "bfloat16") for name in ("Llama", "GPT2", "Gemma2", "Phi"))],
)
def test_a_model_that_is_right_is_not_stopped(family: str, dtype: str, tmp_path: Path) -> None:
    """Positions of padded rows and functional dropout are mended before: the tolerance is that of the dtype."""
    width = {} if dtype == "float32" else {"initializer_range": 0.1}  # 0.3 makes half a nat of rounding in bfloat16
    trainer = built(tmp_path, small(family, **FAMILIES[family], **width).to(getattr(torch, dtype)))
    state = torch.random.get_rng_state()
    with logged(logging.WARNING) as lines:
        check(trainer)
    assert not lines
    assert torch.equal(state, torch.random.get_rng_state()), "the training's random numbers are not touched"


def test_logits_under_another_name_are_found(tmp_path: Path) -> None:
    """RecurrentGemma's cap has a name of its own."""
    shape = {"block_types": ["recurrent", "attention"], "attention_window_size": 64, "lru_width": 32}
    model = small("RecurrentGemma", **shape, logits_soft_cap=1.0)
    model.get_output_embeddings().weight.data.mul_(20)
    assert logit_transform(model.config) == (1.0, None)
    with pytest.raises(OtherPolicy) as stopped:
        check(built(tmp_path, model))
    told = str(stopped.value)
    assert told.startswith(
        "step 1: RecurrentGemmaForCausalLM: generate gives the tokens that it draws a mean log-probability"
    )
    assert "the tolerance is 0.001" in told
    assert "the model's own forward differs from the loss by" in told


def test_null_among_the_end_tokens_ends_nothing(tmp_path: Path) -> None:
    model = small("Llama")
    model.generation_config.eos_token_id = [TOKENIZER.eos_token_id, None]
    trainer = built(tmp_path, model)
    check(trainer)
    for found in (trainer.eos_token_ids, trainer.generation_config.eos_token_id, model.generation_config.eos_token_id):
        assert found == [TOKENIZER.eos_token_id]


@pytest.mark.parametrize("kind", [GTPOTrainer, GRPOBaseline])
def test_dropout_that_acts_is_said_and_off_by_default(kind: Any, tmp_path: Path) -> None:
    model = small("Llama", attention_dropout=0.5)
    with logged(logging.INFO) as lines:
        trainer = built(tmp_path, model, kind)
        check(trainer)
    assert lines == ["set to 0, as disable_dropout says: attention_dropout 0.5"]
    assert model.config.attention_dropout == 0
    skipping = small("OPT", ffn_dim=48, word_embed_proj_dim=32, layerdrop=0.5, dropout=0.0)
    built(tmp_path, skipping, kind)
    assert {module.layerdrop for module in skipping.modules() if hasattr(module, "layerdrop")} == {0}
    with logged(logging.WARNING) as lines:
        check(built(tmp_path, small("Llama", attention_dropout=0.5), kind, disable_dropout=False))
    assert lines[0].endswith(
        "Dropout acts (attention_dropout): each forward is another policy; set disable_dropout=True"
    )


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.5}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes"),
    [("GPT2", {}), ("Ministral3", {"max_position_embeddings": 512, "rope_parameters": YARN})],
)
@pytest.mark.parametrize("mended", [True, False])
def test_positions_that_count_from_the_padding_are_found(
    family: str, changes: dict[str, Any], mended: bool, tmp_path: Path
) -> None:
    """GPT-2's in padded rows; Ministral 3's in a row past its original length, right with the mask's positions."""
    trainer = built(tmp_path, small(family, **changes), max_completion_length=100)
    if not mended:
        trainer.model.base_model._forward_pre_hooks.clear()
    with nullcontext() if mended else pytest.raises(OtherPolicy, match="it counts positions from the padding on"):
        check(trainer)


def test_positions_that_follow_from_the_length_of_a_batch_are_refused_or_said(tmp_path: Path) -> None:
    dynamic = small("Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(ValueError, match="rope_type dynamic gives a token another position as the batch grows"):
        built(tmp_path, dynamic)
    with pytest.raises(ValueError, match="may take 147 tokens, and the model knows 64 positions"):
        check(built(tmp_path, small("GPT2", max_position_embeddings=64), max_completion_length=100))
    long = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 64, "factor": 4.0}  # fmt: skip
    with logged(logging.WARNING) as lines:
        built(tmp_path, small("Phi3", original_max_position_embeddings=64, rope_parameters=long))
    assert "rope_type longrope takes other factors for a whole batch" in lines[0]


def test_sampling_parameters_of_the_model_do_not_act(tmp_path: Path) -> None:
    model = small("Llama")
    given = {"min_p": 0.9, "typical_p": 0.5, "no_repeat_ngram_size": 2, "num_beams": 3, "top_k": 5, "do_sample": True}
    model.generation_config.update(**given, return_dict_in_generate=True)
    with logged(logging.WARNING) as lines:
        trainer = built(tmp_path, model)
        check(trainer)
    asked = model._prepare_generation_config(trainer.generation_config)[0]
    assert (asked.min_p, asked.typical_p or 1.0, asked.no_repeat_ngram_size or 0, asked.num_beams) == (None, 1.0, 0, 1)
    assert not asked.return_dict_in_generate  # TRL takes a tensor
    assert asked.top_k == 0  # TRL's own, which it passes
    assert len(lines) == 1
    assert "num_beams 3, min_p 0.9, typical_p 0.5, no_repeat_ngram_size 2 (" in lines[0]


def test_sampling_parameters_of_the_user_act_and_are_said(tmp_path: Path) -> None:
    with logged(logging.WARNING) as lines:
        check(built(tmp_path, small("Llama"), repetition_penalty=1.5))
        check(built(tmp_path, small("Llama"), GRPOBaseline, GRPOConfig, top_k=2, disable_dropout=True))
    for line, acting in zip(lines, ("repetition_penalty 1.5", "top_k 2"), strict=True):
        assert f"sampling parameters ({acting}) move the log-probability of a drawn token by" in line
    with logged(logging.WARNING) as lines:
        check(built(tmp_path, small("Llama"), generation_kwargs={"use_cache": False}))
    assert not lines

    def generating(**kwargs: Any) -> None:
        built(tmp_path, small("Llama"), generation_kwargs=kwargs)

    check_refusals("refused-sampler.txt", {"generating": generating})
    with pytest.raises(ValueError, match="GRPOConfig: neftune_noise_alpha contradicts method grpo"):
        built(tmp_path, small("Llama"), GRPOBaseline, GRPOConfig, neftune_noise_alpha=5.0)


def vllm_cut(logits: torch.Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    """Return log-probabilities of one token's logits [V] after vLLM's cuts, min_p, top_k and top_p, by hand."""
    p = logits.double().softmax(-1)
    p = torch.where(p >= min_p * p.max(), p, 0.0)
    order = p.argsort(descending=True)
    keep = order[: top_k or None]
    p = torch.zeros_like(p).index_copy(0, keep, p[keep])
    p = p / p.sum()
    before = p[order].cumsum(0) - p[order]
    p = torch.zeros_like(p).index_copy(0, order, torch.where(before < top_p, p[order], 0.0))
    return (p / p.sum()).log()


def sampled_by_vllm(trainer: Any, kept: dict[str, Any], temperature: float = 1.0) -> dict[str, torch.Tensor]:
    """Return a batch whose completions and log-probabilities are those of a vLLM with the trainer's weights."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, len(TOKENIZER), (4, 6), generator=rng)
    drawn = torch.zeros((4, 0), dtype=torch.long)
    logps = torch.zeros((4, 0))
    for _ in range(8):
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.cat([ids, drawn], dim=1)).logits[:, -1] / temperature
        left = torch.stack([vllm_cut(row, **kept) for row in logits])
        token = torch.multinomial(left.exp(), 1, generator=rng)
        drawn, logps = torch.cat([drawn, token], dim=1), torch.cat([logps, left.gather(1, token).float()], dim=1)
    return {
        "prompt_ids": ids, "prompt_mask": torch.ones_like(ids), "completion_ids": drawn,
        "completion_mask": torch.ones_like(drawn), "sampling_per_token_logps": logps,
    }  # fmt: skip


def under_vllm(
    folder: Path, tolerance: float | None, kind: Any = GTPOTrainer, settings: Any = GTPOConfig, **changes: Any
) -> Any:
    kwargs = changes.pop("generation_kwargs", None)
    trainer = built(folder, small("Llama"), kind, settings, **changes)
    trainer.args.generation_kwargs = kwargs  # of vLLM's SamplingParams
    trainer.use_vllm, trainer.vllm_generation, trainer.sampler.tolerance = True, None, tolerance
    trainer.kept_sets = None if kind is GRPOBaseline else KeptSets.of_trainer(trainer)
    return trainer


def test_what_vllm_cuts_from_trls_own_loss_is_said_with_the_measured_difference(tmp_path: Path) -> None:
    """Below the tolerance once, as of the own sampler; above it the run stops."""
    trainer = under_vllm(tmp_path, 100.0, GRPOBaseline, GRPOConfig, top_k=3)
    batch = sampled_by_vllm(trainer, {"top_k": 3})
    logps = trainer.logps_of(batch)
    moved = float((logps - batch["sampling_per_token_logps"]).abs().mean())
    assert moved > 0.2
    with logged(logging.WARNING) as lines:
        for _ in range(2):
            trainer.sampler.observe(logps, batch)
    (line,) = lines
    assert f"(top_k 3) move the log-probability of a drawn token by {moved:.2g} nats on average: the loss" in line
    trainer.sampler.tolerance = None  # 0.1: a server's dtype is taken for bfloat16
    with pytest.raises(OtherPolicy, match=r"sampling parameters act \(top_k 3\)"):
        trainer.sampler.observe(logps, batch)


@pytest.mark.parametrize(
    ("corrected", "words"),
    [
        (True, "The paper's exact loss is that of rollout.importance_sampling_correction: false (a script: vllm_"),
        (False, "is not corrected: the loss is exactly the paper's"),
    ],
)
def test_rounding_of_vllm_is_said_and_whether_it_is_corrected(corrected: bool, words: str, tmp_path: Path) -> None:
    trainer = under_vllm(tmp_path, None)
    trainer.vllm_importance_sampling_correction = corrected
    batch = sampled_by_vllm(trainer, {})
    with logged(logging.INFO) as lines:
        trainer.sampler.observe(trainer.logps_of(batch) + 0.01, batch)
    assert lines[0].startswith(
        "vLLM's log-probabilities differ from the loss's by 0.01 nats per token: rounding, which"
    )
    assert words in lines[0]


@pytest.mark.parametrize(
    ("changes", "words", "absent"),
    [
        ({"generation_kwargs": {"stop": ["x"], "seed": 1, "top_k": -1}}, "vLLM holds other weights", "parameters"),
        ({"top_k": 3}, "vLLM holds other weights", "sampling parameters"),
        ({"generation_kwargs": {"temperature": 0.5}}, "act (temperature 0.5).*If it stops then too, vLLM", "?"),
    ],
)
def test_other_weights_are_the_cause_if_parameters_do_not_explain_it(
    changes: dict[str, Any], words: str, absent: str, tmp_path: Path
) -> None:
    trainer = under_vllm(tmp_path, None, **changes)
    batch = sampled_by_vllm(trainer, {"top_k": 3} if "top_k" in changes else {})
    with torch.no_grad():  # as after a synchronisation that failed
        trainer.model.lm_head.weight.mul_(-1)
    with pytest.raises(OtherPolicy, match=words.replace("(", r"\(").replace(")", r"\)")) as stopped:
        trainer.sampler.observe(trainer.logps_of(batch), batch)
    assert absent not in str(stopped.value).partition("Likely cause")[2]


def test_a_head_that_is_no_matrix_is_refused(tmp_path: Path) -> None:
    model = small("Llama")
    model.lm_head = torch.nn.Sequential(torch.nn.LayerNorm(32), model.lm_head)
    with pytest.raises(OtherPolicy, match=r"the weight of its head \(Sequential\)"):
        built(tmp_path, model)


def test_ids_beyond_the_embedding_are_named(tmp_path: Path) -> None:
    trainer = built(tmp_path, small("Llama", vocab_size=len(TOKENIZER) - 1))
    with pytest.raises(OtherPolicy, match=f"and the embedding has {len(TOKENIZER) - 1} rows"):
        trainer.sampler.prompts([[5, len(TOKENIZER) - 1]])


def test_the_tolerance_is_that_of_the_coarsest_dtype(tmp_path: Path) -> None:
    assert built(tmp_path, small("Llama").to(torch.bfloat16)).sampler.allowed() == TOLERANCE[torch.bfloat16]
    assert TOLERANCE[torch.float32] < TOLERANCE[torch.float16] < TOLERANCE[torch.bfloat16]


def test_a_reference_model_counts_positions_as_the_policy_does(tmp_path: Path) -> None:
    """Before the first step GRPO's KL term is 0, on padded rows too."""
    model = small("GPT2")
    model.save_pretrained(tmp_path / "model")
    trainer = built(tmp_path, model, GRPOBaseline, GRPOConfig, beta=0.04, disable_dropout=True)
    ids = torch.full((2, 12), 5)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        ours, theirs = (
            trainer._get_per_token_logps_and_entropies(of, ids, mask, 4)[0] for of in (trainer.model, trainer.ref_model)
        )
    assert torch.equal(ours, theirs)
