"""The base model and its tokenizer: from the Hub, a folder or a train run, or built from a config."""

from __future__ import annotations

import inspect
import re
import statistics
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gtpo.common.errors import UserError
from gtpo.common.hub import adapter_base, dtype_on_cpu
from gtpo.common.log import LOG
from gtpo.config import ModelSection, TrainConfig
from gtpo.config.load import LARGEST_8BIT_BETA, checked, fields_of
from gtpo.rewards.data.problem import plain_chat_template

# peft's word in model.target_modules for all linear layers but the head.
ALL_LINEAR = "all-linear"

# Names in config.json of the number of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

_PAD_CANDIDATES = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]", "<|reserved_special_token_0|>")


@dataclass
class LoadedModel:
    """What a run trains."""

    model: Any
    tokenizer: Any
    peft_config: Any = None
    """LoraConfig for TRL to apply; None trains all weights (or the model already carries its adapter)."""
    base: str = ""
    """Where the weights came from, for run.json."""
    made_here: bool = False
    """Whether these weights are in no folder yet (built, or merged from an adapter)."""
    notes: list[str] = field(default_factory=list)
    """What was done that the user should know, a sentence each."""

    @property
    def dtype(self) -> str:
        """The dtype of its weights that are not packed."""
        return str(self.model.dtype).removeprefix("torch.")


def resolve_dtype(section: ModelSection, stored: Any) -> torch.dtype:
    """Return the dtype the weights are held in; stored: the transformers config that they were saved with.

    `auto`: bfloat16 for frozen weights (LoRA), on a CPU as `dtype_on_cpu` has it. Weights that are trained stay in
    float32, where the updates of a learning rate of 1e-6 are not rounded away, and on a GPU compute in bfloat16.
    """
    name = section.dtype
    if name == "auto" and (not section.lora_rank or (section.load_in_4bit and not torch.cuda.is_available())):
        # On a CPU, 4-bit weights are unpacked to it.
        name = "float32"
    elif name == "auto" and torch.cuda.is_available():
        name = "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    dtype: torch.dtype = getattr(torch, dtype_on_cpu(stored) if name == "auto" else name)
    return dtype


def compute_precision(section: ModelSection, dtype: str) -> dict[str, bool]:
    """Return the `bf16`/`fp16` arguments of transformers' Trainer (autocast). dtype: of the weights, as loaded.

    On a CPU beside bfloat16 weights, adapters compute in bfloat16 too, as on a GPU: their products in float32, and the
    casts around them, would take more time than all of the model's own. The adapters stay in float32.
    """
    if not torch.cuda.is_available():
        return {"bf16": bool(section.lora_rank) and dtype == "bfloat16", "fp16": False}
    if section.dtype == "float32":
        return {"bf16": False, "fp16": False}
    if section.dtype == "float16" or not torch.cuda.is_bf16_supported():
        return {"bf16": False, "fp16": True}
    return {"bf16": True, "fp16": False}


def prepare_tokenizer(tokenizer: Any) -> list[str]:
    """Give a tokenizer what training needs (pad token, left padding, chat template); return what was done."""
    notes = []
    # A completion begins right after its prompt; padding between them would be read.
    tokenizer.padding_side = "left"
    if tokenizer.eos_token is None:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path} has no end-of-sequence token; completions could not end"
        )
    if tokenizer.pad_token is None:
        vocabulary = tokenizer.get_vocab()
        named = next((token for token in _PAD_CANDIDATES if token in vocabulary), None)
        tokenizer.pad_token = named or tokenizer.eos_token
        notes.append(
            f"the tokenizer has no pad token: using {tokenizer.pad_token!r} (padding is found by length, not by id)"
        )
    if tokenizer.chat_template is None:
        tokenizer.chat_template = plain_chat_template(tokenizer)
        notes.append(
            "the tokenizer has no chat template: using a plain one (### User, ### Assistant), saved with the weights"
        )
    return notes


def load_tokenizer(section: ModelSection, source: str) -> tuple[Any, list[str]]:
    """Return only the tokenizer, prepared, and notes. source: from `find_weights`. UserError if it cannot be read."""
    if section.build is not None:
        from gtpo.inputs.tiny import build_tokenizer

        return build_tokenizer(), []
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=section.trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.model_name {section.model_name!r}: no tokenizer could be loaded ({_first(error)})"
        ) from None
    notes = prepare_tokenizer(tokenizer)
    if source != section.model_name:
        run = f"model.model_name {section.model_name} is a train run"
        notes.insert(0, f"{run}: using its {Path(source).name}/ weights")
    return tokenizer, notes


def load_model(config: TrainConfig, source: str) -> LoadedModel:
    """Load or build a config's model. source: from `find_weights`. UserError if it cannot be read, or held here."""
    section, on_gpu = config.model, torch.cuda.is_available()
    if section.backend == "unsloth" and not on_gpu:
        raise UserError(
            "model.backend unsloth needs a CUDA device; this machine has none. Set model.backend: transformers"
        )
    if config.method != "sft" and config.rollout.engine == "vllm_server" and not (section.lora_rank or on_gpu):
        raise UserError(
            "rollout.engine vllm_server sends weights over NCCL, which needs GPUs on both sides; there is none here. "
            "Set model.lora_rank (an adapter needs no NCCL), or rollout.engine: vllm (in this process) or transformers"
        )
    if section.build is not None:
        from gtpo.inputs.tiny import build_tiny_model

        parts = build_tiny_model(section.build, max_seq_length=section.max_seq_length, seed=section.random_seed)
        return LoadedModel(*parts, lora_config(config, parts[0]), "built", made_here=True)
    if section.backend == "unsloth":
        return _load_unsloth(config, source)
    tokenizer, notes = load_tokenizer(section, source)
    model, merged = _load_transformers(section, Path(source), notes)
    return LoadedModel(model, tokenizer, lora_config(config, model), section.model_name or "", merged, notes)


def lora_settings(config: TrainConfig) -> dict[str, Any]:
    """Return what the section `lora` passes on to peft. Raises UserError."""
    from peft import LoraConfig

    decided = {
        "task_type": "gtpo train sets it",
        "r": "the key is model.lora_rank",
        "lora_alpha": "the key is model.lora_alpha",
        "target_modules": "the key is model.target_modules",
        "inference_mode": "the adapter is trained",
    }
    return checked(config, "lora", fields_of(LoraConfig), "LoraConfig", decided)


def lora_config(config: TrainConfig, model: Any) -> Any:
    """Return the LoraConfig of the published setting (alpha = rank unless set) with what `lora` changes, or None.

    Reports a name of `target_modules` that no layer has. Raises UserError if no layer can take an adapter so.
    """
    section = config.model
    if not section.lora_rank:
        return None
    from peft import LoraConfig

    targets, absent = section.target_modules, list[str]()
    layers = {name: module for name, module in model.named_modules() if not any(module.children())}
    for target in targets if targets != [ALL_LINEAR] else ():
        matches = {name: layer for name, layer in layers.items() if f".{name}".endswith(f".{target}")}
        absent += [target] if not matches else []
        for name, layer in matches.items():
            weight = getattr(layer, "weight", None)
            why = "the loss reads its weight, so an adapter on it would not be trained"
            if weight is None or weight.dim() < 2:
                why = f"{name} is a {type(layer).__name__}, which takes no adapter; name linear layers"
            elif layer is not model.get_output_embeddings():
                continue
            raise UserError(f"model.target_modules {target}: {why}")
    if absent:
        linear = sorted({name.rpartition(".")[2] for name, layer in layers.items() if isinstance(layer, nn.Linear)})
        line = f"model.target_modules {', '.join(absent)}: no layer of this name; the model has {', '.join(linear)}"
        if absent == targets:
            raise UserError(line)
        LOG.warning(line)
    return LoraConfig(
        r=section.lora_rank,
        lora_alpha=section.lora_alpha or section.lora_rank,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else list(targets),
        task_type="CAUSAL_LM",
        **lora_settings(config),
    )


def widen_adapters(model: Any) -> None:
    """Hold trained weights in float32: TRL casts QLoRA adapters to bfloat16, which rounds updates of 1e-6 to nothing.

    At |w| = 0.01 neighbouring bfloat16 numbers are 6e-5 apart, and an Adam step is at most the learning rate. What peft
    trains whole (modules_to_save) stands among 16-bit layers, which take and give the original's type.
    """
    from peft.utils import ModulesToSaveWrapper

    for wrapper in (module for module in model.modules() if isinstance(module, ModulesToSaveWrapper)):
        for module in wrapper.modules_to_save.values():
            if (kind := next(module.parameters()).dtype) in (torch.bfloat16, torch.float16):
                module.register_forward_pre_hook(lambda _, args: tuple(x.float() if x.is_floating_point() else x
                                                                       for x in args))  # fmt: skip
                module.register_forward_hook(lambda _, args, output, kind=kind: output.to(kind))
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def not_finite(model: Any) -> str | None:
    """Return the name of a weight that holds NaN or infinity, None if there is none; of this process's shards."""
    for name, weight in model.named_parameters():
        shard = weight.to_local() if hasattr(weight, "to_local") else getattr(weight, "ds_tensor", weight)
        # Packed weights are bytes.
        if weight.element_size() > 1 and not bool(shard.isfinite().all()):
            return str(name)
    return None


def savable_generation_config(model: Any) -> str:
    """Drop a generation_config that transformers reads and refuses to write; return what was dropped, or nothing.

    Else the run would end at its first checkpoint. Weights that were trained need no sampling defaults of their base.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None:
        return ""
    if isinstance(settings.eos_token_id, list):  # null among them ends nothing
        settings.eos_token_id = [each for each in settings.eos_token_id if each is not None]
    try:
        settings.validate(strict=True)
    except ValueError as error:
        kept = ("bos_token_id", "eos_token_id", "pad_token_id")
        model.generation_config = type(settings)(**{name: getattr(settings, name) for name in kept})
        named = ", ".join(re.findall(r"^- `(\w+)`", str(error), re.MULTILINE)) or _first(error)
        return f"the model's generation_config cannot be saved as it is ({named}): its sampling defaults are dropped"
    return ""


# Fields of a generation_config that do not change which tokens are drawn, or that every call sets.
NOT_OF_SAMPLING = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "max_length", "max_new_tokens"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("do_sample", "transformers_version"),
}


def drop_leaks(own: Any, asked: Any) -> str:
    """Remove from a model's own generation_config what would act in `generate`, as `asked` leaves it open; name it."""
    from transformers import GenerationConfig

    names = [name for name in vars(GenerationConfig()) if not name.startswith("_") and name not in NOT_OF_SAMPLING]
    leaks = {
        name: value
        for name in names
        if (value := getattr(own, name, None)) is not None and getattr(asked, name, None) is None
    }
    for name in leaks:
        setattr(own, name, None)
    return ", ".join(f"{name} {value}" for name, value in leaks.items() if value not in (0, 1, [], ""))


def router_loss_obstacle(config: Any, coefficient: float | None = None) -> str | None:
    """Return why the load-balancing loss of a mixture of experts cannot be added, in one sentence; None if it can.

    config: of transformers; coefficient: of the loss, the config's own if None. TRL computes Mixtral's loss for every
    family, from two fields that not all of them have, and fails at the first step without them.
    """
    text = config.get_text_config()
    coefficient = getattr(text, "router_aux_loss_coef", 0.0) if coefficient is None else coefficient
    absent = [name for name in ("num_experts", "num_experts_per_tok") if not hasattr(text, name)]
    if not (coefficient and absent and hasattr(text, "output_router_logits")):
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
        if (scale := getattr(config, name, None)) is not None:
            return float(scale), softcap
    scaling = getattr(config, "logits_scaling", None) or 1.0
    return float(scaling if config.model_type == "hyperclovax" else 1 / scaling), softcap


def dropouts(model: nn.Module) -> Iterator[tuple[Any, str, float]]:
    """Yield (owner, attribute, value) of each dropout above 0 of a model's modules and their configs.

    So are layers that are left out at random (layerdrop) and noise on a router's input (router_jitter_noise).
    """
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    for owner in (*model.modules(), *configs.values()):
        for name, value in vars(owner).items():
            # TRL sets nn.Dropout to 0 itself, and not what attention takes as a number.
            named = "drop" in name or "jitter" in name
            if (named or (isinstance(owner, nn.Dropout) and name == "p")) and isinstance(value, float) and value > 0:
                yield owner, name, value


def backbone(model: Any) -> Any:
    """Return the part of a causal LM that gives its last hidden states, or the whole model if it has no such part."""
    # Llama 4 and Mllama have another name for it than their own `base_model` looks for.
    return getattr(model, "model", model) if model.base_model is model else model.base_model


def count_positions(model: Any) -> None:
    """Let a padded batch have the positions of its rows without padding, as in `generate`.

    Absolute ones need it, and rotary ones of which some part counts from the first token (Ministral 3's scale). Others
    compute the same from any start. Raises ValueError for rotary positions that change with the length of the batch.
    """
    layers, rotary = backbone(model), getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = {each.get("rope_type") for each in (rotary, *rotary.values()) if isinstance(each, Mapping)}
    if "dynamic" in kinds:
        raise ValueError(
            f"{type(model).__name__}: rope_type dynamic gives a token another position as the batch grows, so the loss "
            "would be of another policy than the one that samples. Set rope_type to yarn or linear in its config.json"
        )
    if "longrope" in kinds:
        LOG.warning(
            f"{type(model).__name__}: rope_type longrope takes other factors for a whole batch if its longest row "
            "lies beyond the original context: the policy of a short completion then follows from its neighbours. Keep "
            "all rows on one side of it (max_completion_length)"
        )
    if "position_ids" not in inspect.signature(layers.forward).parameters:
        return

    def fill(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        # With a cache (its name from transformers 5.24 on, and before), `generate` gives them itself.
        absent = all(kwargs.get(name) is None for name in ("cache", "past_key_values", "position_ids"))
        if absent and isinstance(mask, Tensor) and mask.dim() == 2:
            kwargs = {**kwargs, "position_ids": (mask.long().cumsum(dim=1) - 1).clamp(min=0)}
        return args, kwargs

    layers.register_forward_pre_hook(fill, with_kwargs=True)


def beyond_positions(model: Any, length: int) -> str:
    """Return what to say of rows of so many tokens if the model knows fewer positions; nothing if it knows them.

    Raises ValueError if positions are learned, and no other has a row in their table.
    """
    known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if known is None or length <= known:
        return ""
    name, tokens = type(model).__name__, model.get_input_embeddings()
    told = f"{name}: prompt and completion may take {length} tokens, and the model knows {known} positions"
    tables = (each for each in model.modules() if isinstance(each, nn.Embedding) and each is not tokens)
    # OPT's table begins two rows later.
    if any(each.num_embeddings in (known, known + 2) for each in tables):
        raise ValueError(f"{told}: give shorter prompts, or lower max_completion_length")
    return told


def rounded_away(args: Any, model: Any) -> Iterator[str]:
    """Yield why updates would vanish: in weights too coarse for the learning rate, or in an optimizer's states.

    args: transformers' TrainingArguments; model: with the dtypes that it trains in. An Adam step is at most the
    learning rate; a number moves if the step is above half of the distance to its neighbour.
    """
    # transformers has made an enumeration's member of the name.
    optimizer, beta = str(getattr(args.optim, "value", args.optim)), max(args.adam_beta1, args.adam_beta2)
    trained = (p.detach() for p in model.parameters() if p.requires_grad and p.numel())
    coarse = [p for p in trained if p.dtype in (torch.bfloat16, torch.float16)]
    kind = str(coarse[0].dtype).removeprefix("torch.") if coarse else ""
    # Muon's steps are of the size of the matrix; those of all others of at most the learning rate, as gradients of a
    # norm of 1 are.
    if coarse and "muon" not in optimizer:
        some = coarse[:: max(1, len(coarse) // 16)]
        typical = statistics.median(float(p.float().abs().median()) for p in some)
        spacing = typical * torch.finfo(coarse[0].dtype).eps
        if args.learning_rate < spacing / 2:
            yield (
                f"weights trained in {kind} round the updates away: at |w| = {typical:.2g} neighbouring numbers are "
                f"{spacing:.1g} apart, and a step is at most the learning rate of {args.learning_rate:g}; train them "
                "in float32 (on a GPU with bfloat16 autocast; model.dtype: auto), or train adapters"
            )
    states = "8-bit" if "8bit" in optimizer else kind  # those of a 32-bit optimizer have the weights' type
    if states and beta > LARGEST_8BIT_BETA and "adam" in optimizer:
        yield (
            f"optim={optimizer!r} with an Adam beta of {beta} (> {LARGEST_8BIT_BETA}): {states} states round the "
            "updates away; take a 32-bit optimizer (adamw_torch, paged_adamw_32bit), over float32 weights or adapters, "
            "or a smaller beta"
        )


def _load_transformers(section: ModelSection, source: Path, notes: list[str]) -> tuple[Any, bool]:
    """Return the model, and whether it was merged from an adapter."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    named, adapter = f"model.model_name {section.model_name!r}", source / "adapter_config.json"
    merged = adapter.is_file()
    base = adapter_base(adapter) if merged else str(source)
    if merged and section.load_in_4bit:
        raise UserError(f"{named} is a LoRA adapter, which 4-bit weights cannot take in; set model.load_in_4bit: false")
    options: dict[str, Any] = {"trust_remote_code": section.trust_remote_code}
    try:
        settings = AutoConfig.from_pretrained(base, **options)
        if obstacle := router_loss_obstacle(settings):
            raise UserError(f"{named}: {obstacle}")
        if section.load_in_4bit:
            cuda = torch.cuda.is_available()
            fast = cuda and torch.cuda.is_bf16_supported()
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True,
                # QLoRA's setting (arXiv 2305.14314).
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                # What they are unpacked to: the fastest that this device computes in.
                bnb_4bit_compute_dtype=torch.bfloat16 if fast else torch.float16 if cuda else torch.float32,
            )
        # An update of an adapter is smaller than the spacing of 16-bit weights.
        options["dtype"] = torch.float32 if merged else resolve_dtype(section, settings)
        model = AutoModelForCausalLM.from_pretrained(base, use_safetensors=True, **options)
    except (SafetensorError, RuntimeError, OSError, ValueError, TypeError) as error:
        # A device that is out of memory or order has its own message.
        if isinstance(error, RuntimeError) and "ignore_mismatched_sizes" not in str(error):
            raise
        raise UserError(
            f"{named}: no model could be loaded from {base} ({_first(error)}); are its config.json and weights whole, "
            "and of one model?"
        ) from None
    if section.load_in_4bit and any(p.dim() > 2 and p.is_floating_point() for p in model.parameters()):
        notes.append(
            "model.load_in_4bit: the experts stay unquantised, for bitsandbytes packs linear layers and a mixture of "
            "experts holds its experts' weights in one tensor"
        )
    if getattr(model, "is_quantized", False) and (merged or not section.lora_rank):
        needs = "an adapter on them cannot be merged" if merged else "model.lora_rank must be set to train on them"
        raise UserError(f"{named}: the weights of {base} are quantised, and {needs}")
    if merged:
        dtype, note = torch.float32, "in float32, which holds all of it"
        if section.dtype not in ("auto", "float32"):
            dtype = getattr(torch, section.dtype)
            note = f"rounded to {section.dtype}, in which small updates are lost (model.dtype: auto keeps float32)"
        model, kind = merge_adapter(model, str(source), dtype)
        notes.append(f"{source} is an adapter ({kind}) on {base}: merged before training, {note}")
    if dropped := savable_generation_config(model):
        notes.append(dropped)
    return model, merged


def merge_adapter(model: Any, source: str, dtype: torch.dtype) -> tuple[Any, str]:
    """Return a float32 model with the adapter of a folder merged and rounded to `dtype`, and the adapter's kind.

    Raises UserError if a part of the adapter is missing or does not fit, or the merged weights cannot be what it was.
    """
    from peft import PeftModel

    vocabulary = model.get_input_embeddings().weight.size(0)
    ids = torch.arange(0, vocabulary, -(-vocabulary // 64))[None]
    try:
        with warnings.catch_warnings():
            # Else what is missing begins at random, and peft only warns.
            warnings.filterwarnings("error", "Found missing adapter keys")
            adapted: Any = PeftModel.from_pretrained(model, source)
        kind = str(adapted.active_peft_config.peft_type.value)
        with torch.no_grad():
            before = adapted(input_ids=ids.to(model.device)).logits
            merged = adapted.merge_and_unload()
            apart = float((merged(input_ids=ids.to(model.device)).logits - before).abs().max())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # each kind of adapter raises what it likes
        why = " ".join(str(error).split())[:300]
        raise UserError(f"{source}: the adapter cannot be loaded and merged ({why})") from None
    if not apart <= 1e-2 * float(before.abs().max()):
        raise UserError(
            f"{source}: merged, the model's logits differ by up to {apart:.2g} from those with the adapter (of a head "
            "that is tied to the embedding, say). Train it in a script (GTPOTrainer takes a PeftModel)"
        )
    return merged.to(dtype).requires_grad_(True), kind


def _load_unsloth(config: TrainConfig, source: str) -> LoadedModel:
    """Load through FastLanguageModel. Not tested: it needs a GPU."""
    from unsloth import FastLanguageModel

    section = config.model
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=source,
        max_seq_length=section.max_seq_length,
        load_in_4bit=section.load_in_4bit,
        dtype=None if section.dtype == "auto" else getattr(torch, section.dtype),
        trust_remote_code=section.trust_remote_code,
    )
    if section.lora_rank:
        model = FastLanguageModel.get_peft_model(
            model,
            r=section.lora_rank,
            lora_alpha=section.lora_alpha or section.lora_rank,
            target_modules=ALL_LINEAR if section.target_modules == [ALL_LINEAR] else section.target_modules,
            **{"lora_dropout": 0, "bias": "none"} | lora_settings(config),
            use_gradient_checkpointing="unsloth" if config.training.gradient_checkpointing else False,
            random_state=section.random_seed,
        )
    return LoadedModel(model, tokenizer, None, section.model_name or "", notes=prepare_tokenizer(tokenizer))


def _first(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
