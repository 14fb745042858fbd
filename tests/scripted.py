"""A model that writes what a test says, on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch


def scripted(
    folder: Path, words: str, special: Sequence[str] = (), *, endless: bool = False, eos_after: bool = False
) -> Path:
    """A one-layer model that is certain of each word: after `Go` it writes `words`, then ends or goes on for ever."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    chain = ["Go", *words.split(), *([f"more{i}" for i in range(30)] if endless else [])]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["<unk>", "<pad>", "</s>", *chain, *special]))}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if eos_after:
        raw.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}Go"
    width = 64 * -(-len(vocabulary) // 64)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=width, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None, eos_token_id=2, pad_token_id=1,
    ))  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight[range(len(vocabulary)), range(len(vocabulary))] = 1.0
        model.model.norm.weight.fill_(1.0)
        for word, following in zip(chain, [*chain[1:], chain[-30] if endless else "</s>"], strict=True):
            model.lm_head.weight[vocabulary[following], vocabulary[word]] = 50.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
