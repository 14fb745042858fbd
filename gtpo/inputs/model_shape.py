"""Where a model's weights are, and its dimensions. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.files import read_json_object
from gtpo.common.hub import adapter_base
from gtpo.config.schema import ModelSection


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder-only transformer with gated feed-forward layers (Llama, Qwen, Mistral, Gemma, ...)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tied: bool
    attention_bias: bool = False

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """(d_in, d_out) of each linear layer of a block."""
        width, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (width, queries),
            "k_proj": (width, keys),
            "v_proj": (width, keys),
            "o_proj": (queries, width),
            "gate_proj": (width, inner),
            "up_proj": (width, inner),
            "down_proj": (inner, width),
        }

    @property
    def linear_parameters(self) -> int:
        """Parameters of the blocks' linear layers: what 4-bit loading quantises."""
        return self.num_hidden_layers * sum(d_in * d_out for d_in, d_out in self.linear_layers.values())

    @property
    def parameters(self) -> int:
        """All parameters."""
        biases = sum(self.linear_layers[name][1] for name in ("q_proj", "k_proj", "v_proj")) * self.attention_bias
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        norms = 2 * self.hidden_size
        return self.linear_parameters + self.num_hidden_layers * (biases + norms) + embeddings + self.hidden_size

    def adapter_parameters(self, rank: int, target_modules: list[str]) -> int:
        """LoRA parameters: r (d_in + d_out) for each target layer; names that no block has count nothing."""
        layers = [self.linear_layers[name] for name in target_modules if name in self.linear_layers]
        return self.num_hidden_layers * sum(rank * (d_in + d_out) for d_in, d_out in layers)


_LLAMA_8B = ModelShape(128256, 4096, 14336, 32, 32, 8, 128, tied=False)


KNOWN_MODELS: dict[str, ModelShape] = {
    "meta-llama/llama-3.1-8b-instruct": _LLAMA_8B,
    "meta-llama/meta-llama-3.1-8b-instruct": _LLAMA_8B,  # as the published file has it
    "meta-llama/llama-3.2-1b-instruct": ModelShape(128256, 2048, 8192, 16, 32, 8, 64, tied=True),
    "meta-llama/llama-3.2-3b-instruct": ModelShape(128256, 3072, 8192, 28, 24, 8, 128, tied=True),
    "huggingfacetb/smollm2-135m-instruct": ModelShape(49152, 576, 1536, 30, 9, 3, 64, tied=True),
    "qwen/qwen2.5-0.5b-instruct": ModelShape(151936, 896, 4864, 24, 14, 2, 64, tied=True, attention_bias=True),
    "qwen/qwen2.5-1.5b-instruct": ModelShape(151936, 1536, 8960, 28, 12, 2, 128, tied=True, attention_bias=True),
    "qwen/qwen2.5-3b-instruct": ModelShape(151936, 2048, 11008, 36, 16, 2, 128, tied=True, attention_bias=True),
    "qwen/qwen2.5-7b-instruct": ModelShape(152064, 3584, 18944, 28, 28, 4, 128, tied=False, attention_bias=True),
}
"""Dimensions by Hub name in lower case, known offline: the paper's two models and their smaller and larger kin."""


_BIASED = {"qwen2", "qwen2_moe", "qwen2_vl"}
"""Model types whose q, k and v projections have a bias that their config.json does not mention."""


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What config.json calls the number of experts of a mixture of experts."""


class Weights(NamedTuple):
    """Where a run's weights come from."""

    source: str
    """Hub name or folder; empty for a model that is built."""
    note: str | None = None
    """What a train run's name was resolved to."""


def find_weights(section: ModelSection, results: Path = Path("results")) -> Weights:
    """Find the weights of `model.model_name`. A train run means its best weights, else its final ones.

    Raises UserError for a train run without weights, a local path that does not exist, and a broken config.json.
    """
    name = section.model_name
    if name is None:
        return Weights("")
    for run in (Path(name), results / "train" / name):
        if (run / "run.json").is_file() and (run / "config.yaml").is_file():
            for part in ("best", "final"):
                if (run / part).is_dir():
                    _check_config(run / part)
                    note = f"model.model_name {name} is a train run: using its {part}/ weights"
                    return Weights(str(run / part), note)
            raise UserError(
                f"model.model_name {name!r}: {run} is a train run without weights; finish it first "
                f"(the command that started it resumes it)"
            )
    path = Path(name)
    if path.is_dir():
        if not ((path / "config.json").is_file() or (path / "adapter_config.json").is_file()):
            raise UserError(f"model.model_name {name!r}: the folder has neither config.json nor adapter_config.json")
        _check_config(path)
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or name.startswith("results/"):
        raise UserError(f"model.model_name {name!r}: no such folder; a train run must be trained first")
    return Weights(name)


def _check_config(folder: Path) -> None:
    """Raise UserError where a model's folder holds a config that its loader would choke on."""
    if (folder / "adapter_config.json").is_file():
        adapter_base(folder / "adapter_config.json")
    if (folder / "config.json").is_file():
        read_json_object(folder / "config.json")


def shape_of_config(values: dict[str, Any]) -> ModelShape | None:
    """Read the dimensions from a config.json; None if it is no dense decoder of the Llama family."""
    values = values.get("text_config", values)
    if any(values.get(name) for name in EXPERTS):
        return None
    try:
        heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
        return ModelShape(
            **{name: int(values[name]) for name in ("vocab_size", "intermediate_size", "num_hidden_layers")},
            hidden_size=hidden,
            num_attention_heads=heads,
            num_key_value_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or hidden // heads),
            tied=bool(values.get("tie_word_embeddings", False)),
            attention_bias=bool(values.get("attention_bias", values.get("model_type") in _BIASED)),
        )
    except (KeyError, TypeError, ValueError):
        return None


def router_loss_obstacle(config: Any, coefficient: float | None = None) -> str | None:
    """Return why the load-balancing loss of a mixture of experts cannot be added, in one sentence; None if it can.

    config: of transformers; coefficient: of the loss, the config's own if None. TRL computes Mixtral's loss for every
    family, from two fields that not all of them have, and fails at the first step without them.
    """
    text = config.get_text_config()
    coefficient = getattr(text, "router_aux_loss_coef", 0.0) if coefficient is None else coefficient
    if not coefficient or not hasattr(text, "output_router_logits"):
        return None
    absent = [name for name in ("num_experts", "num_experts_per_tok") if not hasattr(text, name)]
    if not absent:
        return None
    return (
        f"{text.model_type} is a mixture of experts with a load-balancing loss (router_aux_loss_coef {coefficient}), "
        f"which TRL cannot compute without {' and '.join(absent)} in its config; set router_aux_loss_coef to 0 in its "
        "config.json to train without that loss"
    )


def find_shape(section: ModelSection, source: str) -> tuple[ModelShape | None, str]:
    """Return a model's dimensions and where they come from; (None, why) where they are not known.

    source: as in `Weights`.
    """
    if build := section.build:
        from gtpo.inputs.tiny import build_tokenizer

        vocabulary = len(build_tokenizer(build.vocabulary))
        values = build.model_dump() | {"vocab_size": vocabulary, "model_type": build.architecture}
        return shape_of_config(values), "model.build"
    adapter, config = Path(source) / "adapter_config.json", Path(source) / "config.json"
    if adapter.is_file():
        return find_shape(section, adapter_base(adapter))
    if config.is_file():
        return shape_of_config(read_json_object(config)), str(config)
    if known := KNOWN_MODELS.get(source.lower()):
        return known, "embedded table"
    return _from_hub(source)


def _from_hub(name: str) -> tuple[ModelShape | None, str]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        file = hf_hub_download(name, "config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        return None, f"{name}: config.json not reachable ({type(error).__name__})"
    shape = shape_of_config(read_json_object(Path(file)))
    return shape, f"{name} on the Hub" if shape else f"{name}: not a dense decoder whose dimensions are known"
