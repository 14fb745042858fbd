"""What MODEL on the command line stands for: a Hub name, a local folder, a LoRA adapter, or a train run; what it loads.

A train run is recognised by what lies on disk: `run.json`, `config.yaml`, and `best/` or `final/`.
Its system prompt and its longest completion become the defaults of the evaluation.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import read_json
from gtpo.common.hub import adapter_base, check_model
from gtpo.common.log import LOG
from gtpo.common.provenance import file_hash, text_hash
from gtpo.evalkit.engines.base import one_line
from gtpo.runs.prompt import PromptRecord, own_template
from gtpo.runs.train_run import RESULTS, TrainFolder, find_train_run, run_by_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Where a model's weights lie and what is known of their making."""

    source: str  # Hub name or folder of the (base) weights; the served name for the openai engine
    name: str  # What the eval run is called by default
    adapter: Path | None = None  # Folder of a LoRA adapter that goes on top of `source`
    train_run: str | None = None  # Name of the train run that the weights come from
    method: str | None = None
    preset: str | None = None
    checkpoint: str | None = None  # Which weights of the train run: best, final, or a path
    prompt: PromptRecord | None = None  # Of the train run; None if there is no train run
    max_tokens: int | None = None  # Longest completion of the train run

    @property
    def served_name(self) -> str:
        """What a server calls the model: the run's name for a train run, else the name as it was given."""
        return self.train_run or self.source

    @property
    def tokenizer_source(self) -> str:
        """Where the tokenizer is: with the adapter if that has its own, else with the weights."""
        own = self.adapter is not None and (self.adapter / "tokenizer_config.json").is_file()
        return str(self.adapter) if own else self.source

    @property
    def folder(self) -> Path | None:
        """The local folder of `source`, or None for a Hub name."""
        path = Path(self.source)
        return path if path.is_dir() else None


def fingerprint(folder: Path) -> str:
    """Return 16 hex digits for a folder's config and weights: names, sizes, and samples of 64 KiB of each file.

    Enough to notice that a folder was trained again, without reading all of a large model.
    """
    digest = hashlib.sha256()
    files = [*folder.glob("*.safetensors"), *folder.glob("config.json"), *folder.glob("adapter_config.json")]
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as handle:
            for offset in sorted({min(size, i * (size // 64)) for i in range(65)} | {max(0, size - 65536)}):
                handle.seek(offset)
                digest.update(handle.read(65536))
    return digest.hexdigest()[:16]


_TOKENIZER = (
    "tokenizer*.json", "tokenizer.model", "vocab.*", "merges.txt", "added_tokens.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip


def content_hashes(ref: ModelRef) -> dict[str, str | None]:
    """Return 16 hex digits for all that samples depend on: every byte of weights, of tokenizer, of generation_config.

    Of an adapter too, and of its own tokenizer; and the fingerprints of both, with a dash between them. None if there
    is no such file, and for what is not on this machine.
    """
    folders = [folder for folder in (ref.folder, ref.adapter) if folder is not None]
    reader = Path(ref.tokenizer_source)
    apart = {"tokenizer_config.json", "generation_config.json"}
    weights = [p for f in folders for name in ("*.safetensors", "*config.json") for p in sorted(f.glob(name))]
    files = {
        "weights": [p for p in weights if p.name not in apart],
        "tokenizer": [p for name in _TOKENIZER for p in sorted(reader.glob(name))] if reader.is_dir() else [],
        "generation_config": [p for f in folders[:1] if (p := f / "generation_config.json").is_file()],
    }
    # Hashing lets go of the interpreter, and large weights are many files.
    with ThreadPoolExecutor() as pool:
        hashes = {what: pool.map(lambda path: f"{path.name} {file_hash(path)}", paths) for what, paths in files.items()}
    known = {what: text_hash(*hashes[what]) if paths else None for what, paths in files.items()}
    return known | {"fingerprint": "-".join(map(fingerprint, folders)) or None}


def _weights(folder: Path, **known: Any) -> ModelRef:
    """Return the reference for a folder of weights: a model, or an adapter with the base it names."""
    if (folder / "adapter_config.json").is_file():
        base = adapter_base(folder / "adapter_config.json")
        # A path in the config may be relative to the run's folder or to where training was started.
        if not Path(base).is_dir():
            if (folder / base).is_dir():
                base = str(folder / base)
            elif Path(base).is_absolute() or base.startswith(("./", "../", "results/")):
                raise UserError(f"{folder}: its base model {base} is not there")
        check_model(base)
        return ModelRef(source=base, adapter=folder, **known)
    if (folder / "config.json").is_file():
        if not any(folder.glob("*.safetensors")):
            unsafe = any(folder.glob("*.bin"))
            hint = "; it has pickled weights (.bin), which are not loaded: convert them" if unsafe else ""
            raise UserError(f"{folder} has no .safetensors weights{hint}")
        return ModelRef(source=str(folder), **known)
    raise UserError(f"{folder} holds neither a model (config.json) nor an adapter (adapter_config.json)")


def _train_run(run: TrainFolder, checkpoint: str | None) -> ModelRef:
    config = run.config() or {}
    chosen, own = run.weights(checkpoint), None
    max_tokens, whole = config.get("training.max_completion_length"), config.get("model.max_seq_length")
    if max_tokens is None and whole is not None and "training.max_prompt_length" in config:
        # A run of method sft need not say it, and the authors' own configs say it so.
        max_tokens = whole - config["training.max_prompt_length"]
    name = run.root.name
    with suppress(UserError):
        own = run.weights().resolve()
    if run.status != "finished":
        why = f" ({run.run()['stopped_because']})" if run.collapsed else ""
        LOG.warning("train run %s is %s%s: evaluating %s/ as it is", name, run.status, why, chosen.name)
    return _weights(
        chosen,
        # By default other weights than the run's own are evaluated in another folder.
        name=name if own == chosen.resolve() else f"{name}-{chosen.name}",
        train_run=name,
        method=run.run().get("method"),
        preset=run.run().get("preset"),
        checkpoint=run.kind_of(chosen),
        prompt=run.prompt(),
        max_tokens=max_tokens,
    )


def adapter_rank(ref: ModelRef) -> int | None:
    """Return the rank of the LoRA adapter, None without one. UserError if it is no LoRA adapter."""
    if ref.adapter is None:
        return None
    settings = read_json(ref.adapter / "adapter_config.json")
    if settings.get("peft_type") != "LORA":
        raise UserError(f"{ref.adapter}: only LoRA adapters are supported, found {settings.get('peft_type')}")
    ranks = [settings.get("r", 8), *(settings.get("rank_pattern") or {}).values()]
    return max(map(int, ranks))


def resolve_model(model: str, *, checkpoint: str | None = None, served: bool = False) -> ModelRef:
    """Return what a path, the name of a run in results/train, or a Hub name stands for. UserError if it is nothing.

    checkpoint: of a train run: best, final, a folder of its checkpoints/, or a path; best if it has one. served: it is
    the name of a model behind a server, which is looked for on disk as a train run only; its settings then apply.
    """
    path = Path(model)
    if (run := find_train_run(model)) is not None:
        return _train_run(run, checkpoint)
    if checkpoint is not None:
        raise UserError(f"--checkpoint chooses among the weights of a train run, and {model} is none")
    if served:
        return ModelRef(source=model, name=model.rstrip("/").split("/")[-1])
    if (run := run_by_id(path)) is not None:  # of a script that wrote its checkpoints elsewhere
        return _train_run(run, str(path))
    if path.is_dir():
        return _weights(path, name=path.resolve().name)
    if model.count("/") != 1 or model.startswith((".", "~", "/", "results/")):
        runs = sorted(p.parent.name for p in (RESULTS / "train").glob("*/run.json"))
        raise UserError(
            f'no model "{model}": no such folder, and no train run of that name in {RESULTS / "train"}.'
            f"{did_you_mean(model, runs)} A Hub model is named owner/name"
        )
    check_model(model)
    return ModelRef(source=model, name=model.split("/")[-1])


# -- of weights on this machine: tokenizer, template, context, an adapter's fit ----------------------------------------


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
        with suppress(OSError, ValueError):
            path = Path(huggingface_hub.hf_hub_download(ref.source, "generation_config.json"))
    if path is None or not path.is_file():
        raise UserError(f"--sampling model: {ref.source} has no generation_config.json here; give the flags instead")
    config = read_json(path)
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty")
    found = {name: config[name] for name in names if isinstance(config.get(name), int | float)}
    return {**found, "temperature": 0.0} if config.get("do_sample") is False else found


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
