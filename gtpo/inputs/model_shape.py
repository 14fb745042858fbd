"""Where a model's weights are, what its config rules out, and what it does to logits. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.files import read_json_object
from gtpo.common.hub import adapter_base
from gtpo.config.schema import ModelSection
from gtpo.runs.train_run import RESULTS, find_train_run

# Names in config.json of the number of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def find_weights(section: ModelSection, results: Path = RESULTS) -> str:
    """Return the Hub name or folder of the weights of `model.model_name`; empty for a model that is built.

    A train run means its best weights, else its final ones.

    Raises UserError for a train run without weights, a local path that does not exist, and a broken config.json.
    """
    name = section.model_name
    if name is None:
        return ""
    if (run := find_train_run(name, results)) is not None:
        folder = run.weights()
        _check_config(folder)
        return str(folder)
    path = Path(name)
    if path.is_dir():
        if not ((path / "config.json").is_file() or (path / "adapter_config.json").is_file()):
            raise UserError(f"model.model_name {name!r}: the folder has neither config.json nor adapter_config.json")
        _check_config(path)
    elif path.is_file():
        raise UserError(f"model.model_name {name!r} is a file; a model is a name of the Hub, a folder or a train run")
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or name.startswith("results/"):
        raise UserError(f"model.model_name {name!r}: no such folder; a train run must be trained first")
    return name


def _check_config(folder: Path) -> None:
    """Raise UserError if a model's folder holds a config that its loader would choke on."""
    if (folder / "adapter_config.json").is_file():
        adapter_base(folder / "adapter_config.json")
    if (folder / "config.json").is_file():
        read_json_object(folder / "config.json")


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


def logit_transform(config: Any) -> tuple[float, float | None]:
    """Return (logit scale, soft cap) of a text config, under the names that the model families use.

    Cohere: logit_scale; Falcon-H1: lm_head_multiplier; Granite, MiniCPM: 1 / logits_scaling; HyperCLOVA X:
    logits_scaling; Gemma: final_logit_softcapping.
    """
    softcap = getattr(config, "final_logit_softcapping", None)
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        scale = getattr(config, name, None)
        if scale is not None:
            return float(scale), softcap
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None:
        return float(scaling if config.model_type == "hyperclovax" else 1 / scaling), softcap
    return 1.0, softcap


def beyond_embedding(tokenizer: Any, largest: int, rows: int) -> str | None:
    """Return what is wrong if the largest id of prompts and padding lies beyond the embedding, of so many rows."""
    if largest < rows:
        return None
    where = "the padding" if largest == tokenizer.pad_token_id else "a text"
    return (
        f"token {tokenizer.convert_ids_to_tokens(largest)!r} of {where} has id {largest}, and the embedding has "
        f"{rows} rows: the tokenizer has more tokens than the model. Resize the embedding "
        "(model.resize_token_embeddings) and save both, or use the tokenizer that belongs to the model"
    )
