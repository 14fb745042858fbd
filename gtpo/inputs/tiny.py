"""A small decoder built from scratch, with its own tokenizer and chat template: the embedded default model.

It needs no download, so that the whole pipeline can be seen to work on a laptop. Digits are single tokens (numbers
are read column by column) and the four tags of the answer format are one token each.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from gtpo.config import BuiltModel
from gtpo.rewards.data.arithmetic import TEMPLATES
from gtpo.rewards.data.problem import SYSTEM_INSTRUCTION

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PAD, EOS = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")

# The markers `generation` tell TRL's SFT trainer which tokens are the assistant's.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the embedded task's own words; any text round-trips, and every build is the same."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        min_frequency=1,
        special_tokens=[PAD, EOS, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = [template.format("1 + 2 - 3 = 4") for template in TEMPLATES]
    tokenizer.train_from_iterator([SYSTEM_INSTRUCTION, *words], trainer)
    # The tags are ordinary text to the reader, so they must survive skip_special_tokens.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def damage_target(target: str, rng: random.Random) -> str:
    """Return a supervised target with one error, of the kind that a half-trained model makes.

    Half of the errors are in the tags. The others are slips: the last result, and so the answer, is off by 1 or 10.
    """
    if rng.random() < 0.5:
        damaged = (
            target.replace("</reasoning>\n", ""),
            target.replace("<reasoning>\n", "").replace("</reasoning>\n", ""),
            target.replace("</answer>", ""),
        )
        return rng.choice(damaged)
    reasoning, separator, answer = target.rpartition("<answer>")
    value = answer.removesuffix("</answer>")
    if not value.isdigit():
        # No slip for an answer that is no number: it goes missing.
        return reasoning
    slip = int(value) + rng.choice([step for step in (-10, -1, 1, 10) if int(value) + step >= 0])
    return f"{reasoning.replace(f'={value}', f'={slip}')}{separator}{slip}</answer>"


def build_tiny_model(
    spec: BuiltModel, *, max_seq_length: int, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Build the model `spec` describes in float32 with weights drawn from `seed`, and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    tokenizer = build_tokenizer()
    ours = {"architecture", "rope_theta"}
    shape = {
        **spec.model_dump(exclude=ours),
        "vocab_size": len(tokenizer),
        "num_key_value_heads": spec.num_attention_heads,
        "max_position_embeddings": max_seq_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    kinds: Any = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}
    kind, config = kinds[spec.architecture]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config(**shape)).float(), tokenizer
