"""What the engines that run a model themselves share: the tokenizer, its template, the context, the adapter's fit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo.common.errors import UserError
from gtpo.common.files import read_json
from gtpo.common.log import LOG
from gtpo.evalkit.engines.base import one_line
from gtpo.evalkit.engines.model_ref import ModelRef, adapter_rank
from gtpo.runs.prompt import own_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _load(kind: Any, source: str, trust_remote_code: bool) -> Any:
    try:
        return kind.from_pretrained(source, trust_remote_code=trust_remote_code)
    # The last three: a file of another shape.
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{source}: cannot be loaded ({type(error).__name__}: {one_line(error)})") from None


def load_config(ref: ModelRef, *, trust_remote_code: bool = False) -> Any:
    """Return the model's config. UserError if it is not there, needs code to be trusted, or has damaged weights."""
    from transformers import AutoConfig

    if ref.folder is not None:
        for path in sorted(ref.folder.glob("*.safetensors")):
            safetensors_shapes(path)
    return _load(AutoConfig, ref.source, trust_remote_code)


def load_tokenizer(ref: ModelRef, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Return the tokenizer: the adapter's own if it has one, else the model's."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = _load(AutoTokenizer, ref.tokenizer_source, trust_remote_code)
    return tokenizer


def chat_template(tokenizer: PreTrainedTokenizerBase, given: Path | None) -> tuple[str, str]:
    """Return the chat template, and its source: the file's, the tokenizer's, or the plain one with a warning."""
    if given is not None:
        try:
            return given.read_text(encoding="utf-8-sig"), str(given)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--chat-template {given}: {one_line(error)}") from None
    template, source = own_template(tokenizer)
    if source == "plain":
        LOG.warning(
            "the tokenizer has no chat template: using a plain one (### User, ### Assistant), as training does; "
            "--chat-template FILE sets another"
        )
    return template, source


_THOUGHT_NAME = re.compile(r"think|thought|ponder|scratchpad|reflect", re.IGNORECASE)
_CLOSED_BY = {"<": "</", "[": "[/", "<|": "<|/", "begin": "end", "start": "end", "BEGIN": "END", "START": "END"}


def thought_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a tokenizer's added tokens that delimit thoughts, by their names."""
    names = {str(token) for token in tokenizer.get_added_vocab()}
    opening = sorted(name for name in names if _THOUGHT_NAME.search(name))
    return tuple(
        (name, closing)
        for name in opening
        for before, after in _CLOSED_BY.items()
        if before in name and (closing := name.replace(before, after, 1)) != name and closing in names
    )


def recommended_sampling(ref: ModelRef) -> dict[str, float]:
    """Return the sampling parameters in the model's generation_config.json. UserError if it has none."""
    path = ref.folder and ref.folder / "generation_config.json"
    if path is None:
        import huggingface_hub

        # Whatever the reason: no such model, no such file, no network.
        with contextlib.suppress(OSError, ValueError):
            path = Path(huggingface_hub.hf_hub_download(ref.source, "generation_config.json"))
    if path is None or not path.is_file():
        raise UserError(f"--sampling model: {ref.source} has no generation_config.json here; give the flags instead")
    config = read_json(path)
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty")
    found = {name: config[name] for name in names if isinstance(config.get(name), int | float)}
    return {**found, "temperature": 0.0} if config.get("do_sample") is False else found


def context_length(config: Any) -> int | None:
    """Return the most tokens a model takes, None if its config does not say."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    length = getattr(text, "max_position_embeddings", None)
    return int(length) if length else None


def safetensors_shapes(path: Path) -> dict[str, list[int]]:
    """Return tensor name -> shape of a .safetensors file, from its header alone. UserError if it is unreadable."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a readable .safetensors file ({error}); copy or download it again") from None


def check_adapter(ref: ModelRef, config: Any) -> None:
    """Compare an adapter with its base and its own config before any weight is loaded.

    PEFT drops weights that it does not know and leaves at its start what it does not find. Raises UserError that names
    the first weight of each kind, or of another size.
    """
    if ref.adapter is None or adapter_rank(ref) is None:
        return
    weights = ref.adapter / "adapter_model.safetensors"
    if not weights.is_file():
        raise UserError(f"{ref.adapter} has no adapter_model.safetensors")
    there = safetensors_shapes(weights)
    import torch
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    misfit = f"adapter {ref.adapter} does not fit {ref.source}"
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config)
        of_base = {f"base_model.model.{name}" for name in base.state_dict()}
        try:
            model = get_peft_model(base, PeftConfig.from_pretrained(str(ref.adapter)))
        except ValueError as error:
            raise UserError(f"{misfit}: {one_line(error)}") from None
    known = get_peft_model_state_dict(model, save_embedding_layers=False)
    wanted = {name: list(tensor.shape) for name, tensor in known.items()}
    # A full copy of a base weight may lie beside the adapter: a resized embedding.
    unused, lost = there.keys() - wanted.keys() - of_base, wanted.keys() - there.keys()
    if unused or lost:
        raise UserError(
            f"{misfit}: {len(unused)} of {len(there)} weights in the file are not those of adapter_config.json, "
            f"{len(lost)} of {len(wanted)} weights that it names are not in the file (first: {min(unused or lost)})"
        )
    for name in wanted:
        if there[name] != wanted[name]:
            raise UserError(f"{misfit}: {name} is {there[name]} in the adapter, {wanted[name]} for the base")


def check_all_loaded(source: str, model: Any, info: Mapping[str, Any]) -> None:
    """Raise UserError if a parameter was not in the checkpoint: transformers would leave it at random values.

    info: what `from_pretrained(..., output_loading_info=True)` returns beside the model. A tied head counts as loaded
    with the embedding that it shares. Buffers are no parameters.
    """
    lacking = {str(key) for key in info["missing_keys"]} | {str(key[0]) for key in info["mismatched_keys"]}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in parameters.items() if name not in lacking}
    lost = [name for name, parameter in parameters.items() if name in lacking and id(parameter) not in loaded]
    if lost:
        raise UserError(
            f"{source}: {len(lost)} of {len(parameters)} parameters are not in its weights, or in another size "
            f"(first: {lost[0]}): the files are not all there, or config.json describes another model"
        )
