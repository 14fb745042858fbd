"""A real model's architecture with random weights: `python -m bench.random_model NAME --tokenizer FOLDER OUT`.

For speed and memory where no weights can be had: every layer, the head and the vocabulary have the real sizes. The last
norm is widened so that the next token is drawn from few, as a trained model's is: its entropy is near 0.4 nats and
not near log V, where the gate would drop every completion. What it says means nothing, and it does not end by itself.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from bench.common import parser

QWEN = functools.partial(
    Qwen2Config, vocab_size=151936, num_key_value_heads=2, rope_theta=1e6, tie_word_embeddings=True
)
ARCHITECTURES = {
    "Qwen2.5-0.5B": functools.partial(
        QWEN, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14
    ),
    "Qwen2.5-1.5B": functools.partial(
        QWEN, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12
    ),
    "Qwen2.5-3B": functools.partial(
        QWEN, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16
    ),
}
"""Architectures of real models, as their config.json has them."""
SPREAD = 16.0
"""Standard deviation of the logits."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make(name: str, device: str = "cpu", **options: Any) -> PreTrainedModel:
    """Return the model in bfloat16. options: of its config."""
    config = ARCHITECTURES[name](max_position_embeddings=32768, **options)
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain = config.initializer_range * config.hidden_size**0.5
    with torch.no_grad():
        model.get_submodule("model.norm").weight.fill_(SPREAD / plain)
    return model


def main() -> None:
    """Write the folder, or nothing."""
    made = parser(__doc__)
    made.add_argument("name", choices=ARCHITECTURES)
    made.add_argument("--tokenizer", type=Path, required=True, help="folder of a tokenizer of this vocabulary")
    made.add_argument("out", type=Path)
    asked = made.parse_args()
    if missing := [name for name in TOKENIZER if not (asked.tokenizer / name).is_file()]:
        made.exit(2, f"{made.prog}: {asked.tokenizer}: no {', '.join(missing)}\n")
    model = make(asked.name, "cuda" if torch.cuda.is_available() else "cpu")
    begun = asked.out.with_name(asked.out.name + ".part")
    model.save_pretrained(begun)
    for name in TOKENIZER:
        shutil.copy(asked.tokenizer / name, begun)
    os.rename(begun, asked.out)
    print(f"{asked.out}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} million random weights")


if __name__ == "__main__":
    main()
