"""From YAML files and flags to a resolved TrainConfig: read, translate, lay over each other, validate, resolve.

A file, what it `extends`, and the flags are a layer each: a Document, which is never changed. The authors' dialect
(published.toml, docs/config.md) is translated in each layer by itself, so that what stands above wins, whichever name
it uses. All errors are reported at once. Settings that a config passes on to TRL or peft are checked later, by whoever
has imported the library (`checked`): a new version brings its new settings with it.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from gtpo.common.errors import UserError, did_you_mean, raise_all
from gtpo.common.files import Lines, read_yaml
from gtpo.common.log import LOG
from gtpo.common.settings import Key, alternatives, dashed
from gtpo.common.vllm_environment import LORA_RANKS
from gtpo.config.schema import SHORTCUTS, Setting, TrainConfig, full_name, is_passed_on, keys, sections
from gtpo.presets import PRESETS
from gtpo.rewards.data.problems import FILES, MATH_SUBJECTS, has_subjects, training_source
from gtpo.rewards.loading import source_hash

Parts = tuple[str, ...]

_PACKAGE = Path(__file__).resolve().parents[1]
# The configs that come with gtpo: beside its modules if it is installed, configs/ in a checkout.
CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")), _PACKAGE / "configs")
# A file of many configs: FOLDER/table.yaml holds FOLDER/NAME for each of its names (`_table_names`).
TABLE = "table.yaml"
_NULL = {"none", "null", "~"}


class Document(dict[Parts, Setting]):
    """The settings of a config, each section before what it holds; the key () is the file itself."""

    def at(self, key: str | Parts) -> Setting:
        """Return the setting of a key, dotted or in its parts. If it is absent: None, where its section begins."""
        parts = tuple(key.split(".")) if isinstance(key, str) else key
        above = next((self[parts[:end]].place for end in range(len(parts) - 1, -1, -1) if parts[:end] in self), "")
        return self.get(parts) or Setting(None, above, ".".join(parts))

    def put(self, dotted: str, value: Any, origin: Setting | None = None) -> Document:
        """Return the document with a value in the place of what the key held, and the sections above it."""
        key, setting = tuple(dotted.split(".")), (origin or self.at(dotted))._replace(value=value)
        sections = {key[:end]: setting._replace(value={}) for end in range(len(key))}
        return Document({**sections, **self.without(dotted), key: setting})

    def without(self, dotted: str) -> Document:
        """Return the document without a key and what it holds."""
        key = tuple(dotted.split("."))
        return Document({other: setting for other, setting in self.items() if other[: len(key)] != key})

    def over(self, below: Document) -> Document:
        """Return this document laid over another: sections merge, everything else is replaced."""
        replaced = {key for key, setting in self.items() if setting.value != {}}
        rest = {k: setting for k, setting in below.items() if replaced.isdisjoint(k[:end] for end in range(len(k) + 1))}
        return Document(rest | self)

    def inside(self, *section: str) -> Document:
        """Return what a section holds, as a document of its own."""
        size = len(section)
        held = {key[size:]: setting for key, setting in self.items() if key[:size] == section and len(key) > size}
        return Document({key: setting._replace(typed=".".join(key)) for key, setting in held.items()})

    def nested(self) -> dict[str, Any]:
        """Return the values as a file has them. Raises UserError for a value that is set inside another one."""
        values: dict[str, Any] = {}
        for key, setting in self.items():
            within = values
            for end, part in enumerate(key[:-1], 1):
                # None: `section:` with nothing under it.
                within[part] = within = {} if within.get(part) is None else within[part]
                if not isinstance(within, dict):
                    raise UserError(f"{self.at(key[:end])} must be a mapping, found {within!r}")
            if key:
                within[key[-1]] = {} if setting.value == {} else setting.value
        return values


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-6` as the number it is (YAML 1.1 wants `1.0e-6`)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_scalar(value: Any) -> Any:
    """Return what a file would hold: a flag's text read as YAML. Text that is no YAML stays as it is."""
    if isinstance(value, list):
        return [read_scalar(each) for each in value]
    try:
        return yaml.load(value, _Loader) if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


# -- the configs that come with gtpo -----------------------------------------------------------------------------------


def config_names() -> list[str]:
    """Return the names of the configs that come with gtpo, e.g. paper/llama-math-gtpo-g8."""
    files = (path.relative_to(CONFIGS) for path in CONFIGS.glob("*/*") if path.suffix in (".yaml", ".sbatch"))
    names = {file.with_suffix("").as_posix() for file in files if file.name != TABLE}
    for table in CONFIGS.glob(f"*/{TABLE}"):
        names |= {f"{table.parent.name}/{name}" for name in _table_names(table)}
    return sorted(names)


def find_config(name: str) -> Path | None:
    """Return the file that comes with gtpo under this name, with or without its ending; None if there is none.

    Of a config of a table the path is one that `layers` understands; there is no such file.
    """
    known = name.removesuffix(".yaml").removesuffix(".sbatch")
    if known not in config_names():
        return None
    return next(CONFIGS.glob(f"{known}.*"), CONFIGS / f"{known}.yaml")


@functools.cache
def _table_names(table: Path) -> dict[str, list[Parts]]:
    """Return the names of a table's configs: an entry of each axis, joined by dashes -> its layers, lowest first."""
    document = _parse(table).without("base") if table.is_file() else Document()
    # A user's config may be called table.yaml too; an entry of a table is a mapping, or has nothing under it.
    if any(setting.value not in ({}, None) for key, setting in document.items() if len(key) < 3):
        return {}
    axes = itertools.groupby((key for key in document if len(key) == 2), lambda key: key[0])
    rows = itertools.product(*(list(entries) for _, entries in axes))
    return {"-".join(name for _, name in row): [("base",), *row] for row in rows}


# -- reading -----------------------------------------------------------------------------------------------------------


def _settings(
    path: Path, values: Mapping[Any, Any], lines: Lines, above: Setting, key: Parts = ()
) -> Iterator[tuple[Parts, Setting]]:
    yield key, above
    for name, value in values.items():
        inside = (*key, str(name))
        place = f"{path}:{lines[inside]}" if inside in lines else above.place
        section = isinstance(value, dict)
        setting = Setting({} if section else value, place, ".".join(inside))
        yield from _settings(path, value if section else {}, lines, setting, inside)


def _exists(path: Path) -> bool:
    return path.is_file() or path.name.removesuffix(".yaml") in _table_names(path.with_name(TABLE))


def _parse(path: Path) -> Document:
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a config file (.yaml). A model: gtpo train --model {path} ...")
    if not path.is_file() and _exists(path):
        table = _parse(path.with_name(TABLE))
        layers = _table_names(path.with_name(TABLE))[path.name.removesuffix(".yaml")]
        return functools.reduce(
            lambda below, layer: table.inside(*layer).over(below), layers, Document({(): table[()]})
        )
    if not path.exists():
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.y*ml")))
        typed = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
        hint = near or did_you_mean(typed, config_names()) or " `gtpo configs` lists those that come with gtpo."
        if not near and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and path.suffix not in (".yaml", ".yml"):
            hint += f" If it is a model: gtpo train --model {path} --data gsm8k --method gtpo"
        raise UserError(f"{path}: no such config file.{hint}")
    values, lines = read_yaml(path, "a mapping of sections", _Loader)
    return Document(_settings(path, values, lines, Setting({}, str(path), "")))


def layers(path: Path, chain: tuple[Path, ...] = ()) -> list[Document]:
    """Return a file and what it `extends`, lowest first: files relative to it, or configs of gtpo by name."""
    document = _parse(path)
    # A file that comes with gtpo may extend one beside it, or one by its name.
    (bases, place, *_), below = document.at("extends"), list[Document]()
    chain = (*chain, path.resolve())
    for base in bases if isinstance(bases, list) else [] if bases is None else [bases]:
        if not isinstance(base, str):
            raise UserError(f"{place}: extends takes a file or a list of files, found {bases!r}")
        file = path.parent / base
        if not _exists(file):
            file = find_config(base) or file
        if file.resolve() in chain:
            raise UserError(f"{place}: extends {base} is circular")
        if not _exists(file):
            raise UserError(f"{place}: extends {base}: no such file ({file})")
        below += layers(file, chain)
    return [*below, document.without("extends")]


def flag_layer(flags: Mapping[str, Any]) -> Document:
    """Return the document of flags: name without dashes -> text, or a list of words.

    A key of TRL or peft takes the text as a file would; a key of ours takes it as its type.
    """
    document = Document()
    # A flag of an unknown name is kept, so that it is named with the errors of the file.
    for flag, text in flags.items():
        name, value = full_name(flag), text
        if is_passed_on(name):
            value = read_scalar(text)
        elif name in keys() and NoneType in keys()[name].kinds and str(text).lower() in _NULL - {*keys()[name].choices}:
            value = None
        document = document.put(name, value, Setting(None, "", dashed(flag)))
    return document


def merged(documents: Iterable[Document], name: str) -> Document:
    """Return documents laid over each other, the lowest first. name: of the run, if none of them has one."""
    document = functools.reduce(lambda below, layer: layer.over(below), documents)
    for key in keys().values():
        # One word is a list of one.
        if key.many and isinstance(word := document.at(key.name).value, str):
            document = document.put(key.name, [word])
    return document if document.at("run_name").value is not None else document.put("run_name", name)


# -- the published dialect: each change is logged ----------------------------------------------------------------------

_TABLE = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
# class_path -> (method, what the log says; empty: a class of ours or TRL's, nothing to say).
TRAINERS: dict[str, tuple[str, str]] = _TABLE["trainers"]
# Path -> (ours, why).
REWARDS: dict[str, tuple[str, str]] = _TABLE["rewards"]
# Key of the dialect, or TRL's own name of a published key -> ours, of the same meaning.
RENAMED: dict[str, str] = _TABLE["renamed"]
WITHOUT_EFFECT: dict[str, str] = _TABLE["without effect"]
# The section that only the dialect has: GTPO's own switches.
_RUNTIME = "gtpo_runtime"


def translate(document: Document, errors: list[str]) -> Document:
    """Return one layer under our names; add the errors that only the dialect can have."""
    origin, other = document.at("trainer.class_path"), document.at("method")
    if method := _method_of(origin)[0]:  # `complete` takes the class itself away
        if other.value not in (None, method):
            words = f'trains with method {method}, but {other} is "{other.value}"; remove one'
            errors.append(f"{origin} {origin.value} {words}")
        document = document if other.value is not None else document.put("method", method, origin)
    for old, new in RENAMED.items():
        origin, other, document = document.at(old), document.at(new), document.without(old)
        value = [origin.value] if keys()[new].many else origin.value
        if origin.value is None:
            continue
        # A flag's value is text.
        if other.value not in (None, []) and read_scalar(other.value) != read_scalar(value):
            errors.append(f"{origin} {origin.value} and {other} {other.value} set the same thing; remove one")
        else:
            document = document.put(new, value, origin)
    return document


def complete(document: Document, errors: list[str]) -> tuple[Document, list[str]]:
    """Return the merged document with what a file of the authors leaves to us, and what the user should know of it."""
    notices, method = list[str](), document.at("method").value
    for key, why in WITHOUT_EFFECT.items():
        if document.at(key).value is not None:
            notices.append(f"{document.at(key)} has no effect: {why}")
        document = document.without(key)
    # GTPO's own switches, under our names by now.
    runtime = {k: s for k, s in document.items() if s.value != {} and s.typed.lstrip("-").startswith(_RUNTIME)}
    if runtime and method in ("grpo", "sft"):
        section = next(iter(runtime.values()))._replace(typed=_RUNTIME)
        notices.append(f"{section} has no effect with method {method}")
        document = functools.reduce(Document.without, map(".".join, runtime), document)
    errors += [unknown_key(setting, RENAMED) for key, setting in document.items() if key[:-1] == (_RUNTIME,)]
    # What is no section is an unknown key.
    document = document if document.at(_RUNTIME).value else document.without(_RUNTIME)
    for parts, setting in list(document.items()):
        name, value = ".".join(parts), setting.value
        if name == RENAMED.get(setting.typed.lstrip("-")):
            notices.append(f"{setting} -> {name} {value}")
        # The authors' way to note two runs: "8/12".
        if name == "training.num_generations" and (several := re.fullmatch(r"\s*(\d+)\s*/.*", str(value))):
            notices.append(f'{setting} "{value}": taking {several[1]}')
            document = document.put(name, int(several[1]))
        elif name == "trainer.reward_funcs" and isinstance(value, list):
            pairs = [(path, *REWARDS.get(str(path).replace(":", "."), (path, ""))) for path in value]
            notices += [f"{setting} {path} -> {ours} ({why})" for path, ours, why in pairs if why]
            document = document.put(name, [ours for _, ours, _ in pairs])
        elif name == "training.report_to" and value in ("none", ["none"]):  # transformers' word for no tracker
            document = document.put(name, [])
    origin = document.at("trainer.class_path")
    stands_for, line = _method_of(origin)
    if not stands_for:
        return document, notices
    document = document.without("trainer.class_path")
    if method != stands_for:
        notices.append(f"{origin} {origin.value} has no effect: {document.at('method')} is {method}")
    elif line:
        notices.append(f"{origin} {origin.value} -> {line}")
        for key, left_out in _TABLE["left out"].items():
            # GRPO has no preset to choose.
            if document.at(key).value is None and (method == "gtpo" or key != "objective.preset"):
                notices.append(f"    {left_out['notice']}")
                document = document.put(key, left_out["value"]) if "value" in left_out else document
    return document, notices


def _method_of(origin: Setting) -> tuple[str, str]:
    return TRAINERS.get(str(origin.value).replace(":", "."), ("", ""))


# -- what follows from other keys --------------------------------------------------------------------------------------

# Above it an Adam moment moves by less than the resolution of block-wise 8-bit states, and updates are lost.
LARGEST_8BIT_BETA = 0.9999

# The objective of TRL's own GRPO, without the fields that it can vary.
_OF_GRPO = {"preset": "grpo", **asdict(PRESETS["grpo"])}
del _OF_GRPO["scale_rewards"], _OF_GRPO["mask_truncated"]

# Key of training that acts with some methods only -> those, and why not with another.
_OF_METHODS = (
    ("beta", ("grpo",), "has no KL term; set it to 0"),
    ("initial_entropy", ("gtpo",), "has no entropy gate"),
    ("resample_equal_groups", ("gtpo", "grpo"), "samples no groups"),
    ("eval_steps", ("gtpo", "grpo"), "samples nothing; gtpo eval measures its weights"),
)


def launched_processes() -> int:
    """Return the training processes that torchrun or accelerate started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _contradictions(config: TrainConfig) -> Iterator[str]:
    """Yield what of a valid config cannot be: a sentence each, which begins with the key."""
    model, lora, training, method = config.model, config.lora.passed_on, config.training, config.method
    if model.build is None and not model.model_name:
        yield "model needs model_name (a Hub name, a local folder or a train run) or build"
    loaded = {"model_name": model.model_name, "load_in_4bit": model.load_in_4bit, "backend": model.backend == "unsloth"}
    for name in [name for name, value in loaded.items() if value and model.build]:
        yield f"model.{name} contradicts model.build: the model is built, and none is loaded"
    if (build := model.build) and build.hidden_size % build.num_attention_heads:
        heads, width = build.num_attention_heads, build.hidden_size
        yield f"model.build.num_attention_heads {heads} does not divide hidden_size {width}"
    if model.load_in_4bit and not model.lora_rank:
        yield "model.load_in_4bit needs lora_rank > 0: 4-bit weights are frozen, only adapters are trained"
    if lora and not model.lora_rank:
        yield f"lora.{next(iter(lora))} has no effect: model.lora_rank is 0, and there is no adapter"
    if lora.get("lora_dropout") and method != "sft" and training.passed_on.get("disable_dropout", True):
        yield "lora.lora_dropout has no effect: training.disable_dropout is true; the loss is of what sampled"
    engine = config.rollout.engine if model.lora_rank and method != "sft" else ""
    if engine.startswith("vllm") and model.lora_rank > LORA_RANKS[-1]:
        most = f"vLLM takes adapters up to rank {LORA_RANKS[-1]}"
        yield f"model.lora_rank {model.lora_rank}: {most}; lower it, or set rollout.engine: transformers"
    if engine == "vllm_server" and model.load_in_4bit:
        why = "a vLLM server reads no 4-bit weights, and would sample from another base than the one that is trained on"
        mend = "set rollout.engine: vllm (in this process) or transformers, or model.load_in_4bit: false"
        yield f"rollout.engine vllm_server with model.load_in_4bit: {why}; {mend}"
    if model.lora_rank and "lm_head" in model.target_modules:
        yield "model.target_modules lm_head: the loss reads its weight, so an adapter on it would not be trained"

    dataset, form = config.dataset, config.dataset.sft_target
    try:
        # A file may have subjects of its own, which are compared when it is read.
        named = [] if has_subjects(training_source(dataset.name, dataset.split)) else dataset.subsets
    except UserError as fault:
        yield str(fault)
        named = []
    for subset in named:
        if subset not in ("main", *MATH_SUBJECTS, *MATH_SUBJECTS.values()):
            yield f'dataset.subsets "{subset}" is not known; {dataset.name} has only main'
    if form not in ("tags", "think") and not ("{answer}" in form and "{reasoning}" in form):
        yield f"dataset.sft_target {form!r} must be tags, think, or a text with {{reasoning}} and {{answer}}"
    if form != "tags" and dataset.malformed_targets:
        yield "dataset.malformed_targets needs dataset.sft_target tags: its errors are in the tags"

    if training.max_steps == 0:
        yield "training.max_steps 0 trains nothing; set it to 1 or more, or to -1 for training.num_train_epochs"
    if training.num_generations == 1 and method != "sft":
        yield f"training.num_generations 1 contradicts method {method}, which compares completions of a prompt; take 2"
    for name, methods, why in _OF_METHODS:
        value, default = getattr(training, name), type(training).model_fields[name].default
        if value != default and method not in methods:
            yield f"training.{name} {value} contradicts method {method}, which {why}"
    for name in ("eval_steps", "log_kl_steps"):
        every, steps = getattr(training, name), training.logging_steps
        if every is not None and every % steps:
            why = "and its result is a part of that step's line"
            yield f"training.{name} {every} is no multiple of training.logging_steps {steps}, {why}"
    longest, whole = training.max_completion_length, model.max_seq_length
    if method != "sft" and training.max_prompt_length + (longest or 1) > whole:
        completion = f"max_completion_length {longest} + " if longest else ""
        prompt = f"max_prompt_length {training.max_prompt_length}"
        yield f"training.{completion}{prompt} leaves no room in model.max_seq_length {whole}"
    for name, value in config.objective.model_dump(exclude_none=True).items():
        if method == "sft":
            yield f"objective.{name} contradicts method sft: supervised fine-tuning has no RL objective"
        elif method == "grpo" and value != _OF_GRPO.get(name, value):
            instead = "method gtpo takes it, also with objective.preset grpo or grpo-filtered"
            yield f"objective.{name} {value} contradicts method grpo, TRL's own, which has no such switch; {instead}"
    try:
        config.as_dict()
    except ValueError as fault:
        yield str(fault).replace(": ", ".", 1)


def resolve(config: TrainConfig, world_size: int | None = None) -> tuple[TrainConfig, list[str]]:
    """Return the resolved copy of a valid config, and a notice for each change of what the user had set.

    Idempotent: a run folder's config.yaml loads to itself. Raises UserError with a line per contradiction.
    """
    faults = (fault.partition(" ") for fault in _contradictions(config))
    raise_all(f"{config.setting(key)} {message}" for key, _, message in faults)
    config = config.model_copy(deep=True)
    return config, list(_filled_in(config, world_size or launched_processes()))


def _filled_in(config: TrainConfig, world_size: int) -> Iterator[str]:
    """Fill in what follows from other keys; yield a notice for each change of what the user had set."""
    model, dataset, training, setting = config.model, config.dataset, config.training, config.setting
    # The published setting; peft has alpha 8 for every rank.
    if model.lora_rank:
        model.lora_alpha = model.lora_alpha or model.lora_rank

    # Subsets that the dataset does not have: the published file lists MATH's, whatever --dataset-name is.
    source = training_source(dataset.name, dataset.split)
    if not has_subjects(source):
        if dataset.subsets not in ([], ["main"]):
            yield f"no effect on dataset {dataset.name} (they are MATH's subjects): dataset.subsets"
        dataset.subsets = []
    elif source.startswith("math_") and "main" in dataset.subsets:
        yield f"no effect on dataset {dataset.name} (main is GSM8K's): dataset.subsets"
        dataset.subsets = [name for name in dataset.subsets if name != "main"]

    # Optimizer states and weights in which an extreme Adam beta's updates would be rounded away are widened.
    beta, optimizer = max(training.adam_beta1, training.adam_beta2), training.optimizer
    if beta > LARGEST_8BIT_BETA and optimizer.endswith(("4bit", "8bit")):
        # Others have their 32 bits in the name: paged_adamw_32bit, lion_32bit.
        plain = {"adamw": "adamw_torch", "ademamix": "ademamix"}.get(optimizer.partition("_")[0])
        training.optimizer = plain or optimizer.replace("8bit", "32bit")
        yield (
            f"{setting('training.optimizer')} {optimizer} -> {training.optimizer}: with an Adam beta of {beta} "
            f"(> {LARGEST_8BIT_BETA}) 8-bit states would round the updates away"
        )
    if beta > LARGEST_8BIT_BETA and not model.lora_rank and model.dtype in ("bfloat16", "float16"):
        yield (
            f"{setting('model.dtype')} {model.dtype} -> float32: optimizer states have the dtype of the trained "
            f"weights, and with an Adam beta of {beta} 16-bit states would round the updates away"
        )
        model.dtype = "float32"
    if config.method == "sft":
        return

    if training.max_completion_length is None:
        training.max_completion_length = model.max_seq_length - training.max_prompt_length
    config.objective.preset = config.preset_name()
    source_of_loss = source_hash(loss, "objective.loss") if (loss := config.objective.changes().get("loss")) else None
    config.objective = config.objective.model_copy(update={"loss_source": source_of_loss})
    # Every rollout holds complete groups: by the published rule a smaller batch is raised to G; else it is rounded.
    group, batch = training.num_generations, training.per_device_train_batch_size
    rounds = training.micro_batches_per_rollout
    if (batch * rounds * world_size) % group:
        taken = group * max(1, math.ceil(batch / group - 0.5))  # of two that are as near, the smaller
        training.per_device_train_batch_size = taken
        yield (
            f"{setting('training.per_device_train_batch_size')} is taken as {taken}, not {batch}: {batch} x {rounds} "
            f"micro-batches x {world_size} processes cannot be divided into groups of {group} completions. A rollout "
            f"now has {training.prompts_per_rollout(world_size)} prompts"
        )


# -- the whole way -----------------------------------------------------------------------------------------------------


def load_config(
    path: Path | str, overrides: Mapping[str, Any] | None = None, *, world_size: int | None = None
) -> TrainConfig:
    """Read, check and resolve a training config.

    path: a file, else the name of a config that comes with gtpo, e.g. paper/llama-math-gtpo-g8.
    overrides: flag name (a dotted key or a shortcut) -> value (text is parsed as the key's type), laid over the file.
    world_size: number of training processes; by default the environment's WORLD_SIZE, else 1.

    What was changed, or has no effect, is logged as a warning. Raises UserError with a line per error.
    """
    if str(path).endswith((*FILES, ".csv", ".tsv")):
        raise UserError(f"{path} holds data, not a config; to train on it: gtpo train --model MODEL --data {path}")
    file = Path(path) if Path(path).is_file() else find_config(str(path)) or Path(path)
    errors = list[str]()
    documents = [translate(layer, errors) for layer in (*layers(file), flag_layer(overrides or {}))]
    document, notices = complete(merged(documents, file.stem), errors)
    config, changes = resolve(to_config(document, errors), world_size)
    # Only now: of a config that is refused, only the errors matter.
    for notice in dict.fromkeys((*notices, *changes)):
        LOG.warning(notice)
    return config


def to_config(document: Document, further: Iterable[str] = ()) -> TrainConfig:
    """Return a document of our dialect as the schema has it. Raises UserError: `further` errors, then its own."""
    errors = [*further]
    homes = {name.rpartition(".")[2] for name in keys() if not name.startswith("model.build")}
    for parts, setting in document.items():
        name = ".".join(parts)
        if name in keys() and isinstance(setting.value, bool) and {int, float}.intersection(keys()[name].kinds):
            # pydantic would read `learning_rate: true` as 1.0.
            errors.append(_sentence(document, {"loc": parts, "type": "bool", "input": setting.value}))
        elif len(parts) == 2 and parts[1] in homes and is_passed_on(name):
            # A key of ours in another section than its own: TRL may have the name too, and would take it in silence.
            errors.append(unknown_key(setting))
    # `section:` with nothing under it is an empty section.
    values = {name: {} if value is None and name in sections() else value for name, value in document.nested().items()}
    # Errors are gathered, not raised one by one: a file is mended at one go.
    try:
        config = TrainConfig.model_validate(values)
    except ValidationError as error:
        errors += [_sentence(document, fault) for fault in error.errors()]
    raise_all(errors)
    config._setting = document.at
    return config


def _sentence(document: Document, error: Mapping[str, Any]) -> str:
    """Turn one pydantic error into one sentence: place, key as typed, what is expected, what was found."""
    loc, value = tuple(str(part) for part in error["loc"] if not isinstance(part, int)), error["input"]
    # What is wrong within an entry of a list is said of the list.
    if within := next((loc[:end] for end in range(2, len(loc)) if ".".join(loc[:end]) in keys()), None):
        loc, value = within, document.at(within).value
    setting, name = document.at(loc), ".".join(loc)
    key = keys().get(name)
    if error["type"] == "extra_forbidden" and not within:
        return unknown_key(setting)
    if name in sections():
        return f"{setting} must be a mapping, found {value!r}"
    if key is None:
        return f"{setting}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "string_pattern_mismatch":
        names = "a name that starts with a letter, digit or _ and has no slash (it names a folder)"
        return f"{setting} must be {names}; found {value!r}."
    return key.sentence(str(setting), value)


def unknown_key(setting: Setting, likely: Iterable[str] = ()) -> str:
    """Name an unknown key or flag, where it was set, and the nearest known one; `likely` are compared first."""
    name = setting.typed.removeprefix("--")
    section, _, leaf = name.rpartition(".")
    # A right name, or nearly, in a wrong section is the most frequent mistake; one of its own section is nearer.
    own = [key for key in keys() if key.startswith(f"{section}.")]
    leaves = {key.rpartition(".")[2]: key for key in (*reversed(keys()), *own)}
    close = difflib.get_close_matches(leaf.replace("-", "_"), leaves, n=1, cutoff=0.8)
    if name in keys() and section and not setting.is_flag:
        hint = f' A file nests its keys: put "{leaf}:" under "{section}:" (with dots it is a flag, --{name}).'
    elif close:
        hint = f' Did you mean "{leaves[close[0]]}"?'
    else:
        known = (*(SHORTCUTS if setting.is_flag else ()), *sections(), *keys())
        near = did_you_mean(name, likely) or did_you_mean(name, known)
        hint = near or " gtpo train --help-config lists the keys."
    if setting.is_flag:
        return f'unknown flag "{setting.typed}".' + hint.replace('mean "', 'mean "--')
    return f'{setting.place}: unknown key "{setting.typed}".{hint}'.removeprefix(": ")


# -- what a config passes on to TRL or peft ----------------------------------------------------------------------------


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the fields of a library's dataclass that may be set, with their types."""
    hints = typing.get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind) if entry.init}


def checked(
    config: TrainConfig, section: str, known: Mapping[str, Any], whose: str, decided: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a section passes on to a library, each value as the type that its field has.

    known: the library's fields -> their types; whose: the class that has them. decided: fields that a run sets itself
    -> what the user sets instead. Raises UserError with a line per key that cannot be passed on.
    """
    values: dict[str, Any] = getattr(config, section).passed_on
    errors: list[str] = []
    for name, value in values.items():
        setting = config.setting(f"{section}.{name}")
        if name in decided:
            errors.append(f"{setting}: {decided[name]}")
        elif name not in known:
            near = unknown_key(setting, [f"{section}.{field}" for field in known])
            errors.append(f"{near} Neither gtpo nor {whose} has it.")
        else:
            kinds = [kind for kind in alternatives(known[name]) if isinstance(kind, type) and issubclass(kind, Enum)]
            # `SchedulerType | str` takes any text; its own check comes later and does not know the key.
            kind: Any = Literal[tuple(member.value for enum in kinds for member in enum)] if kinds else known[name]
            try:
                values[name] = Key(name, FieldInfo.from_annotation(kind)).checked(value, str(setting))
            except UserError as error:
                errors.append(str(error))
    raise_all(errors)
    return values
