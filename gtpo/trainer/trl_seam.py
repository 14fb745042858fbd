"""What this project leans on inside TRL and transformers: checked when it is imported, read by the functions below.

`gtpo.trainer.gtpo_trainer` overrides the methods; no other module of gtpo has a private name of TRL's trainers.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from accelerate.utils import is_peft_model
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer, SFTTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.models import unwrap_model_for_generation
from trl.trainer import grpo_trainer
from trl.trainer import utils as trl_utils

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.rewards.completions import decode_completion, opened_thought, plain

# The newest release of TRL that all tests have passed with; 1.15 is the oldest.
NEWEST = (1, 16)

# What is overridden, called, read or set, of each class of TRL's: methods with their parameters (...: handed on as they
# come), and fields.
OF_TRAINERS = """
    _run_epoch(...) _get_train_sampler(...) compute_loss(...) create_model_card(...) _get_grad_norm(model,grad_norm)
    _get_output_dir(trial) _save_checkpoint(model,trial) _load_optimizer_and_scheduler(checkpoint)
    _load_from_checkpoint(resume_from_checkpoint,model)
    _total_train_tokens _metrics model_wrapped
"""
OF_GRPO = """
    _compute_loss(model,inputs) _generate_and_score_completions(inputs) _tokenize_prompts(prompts) _generate(prompts)
    _calculate_rewards(inputs,prompts,completions,completion_ids_list) _get_per_token_logps_and_entropies(...)
    _step _buffered_inputs _last_loaded_step _tokenizer eos_token_ids temperature num_iterations reward_funcs
    reward_func_names reward_weights num_generations num_generations_eval epsilon_low epsilon_high tools
    generation_config generation_kwargs _dist aux_loss_enabled router_aux_loss_coef multi_objective_aggregation
    vllm_generation ref_model current_gradient_accumulation_steps
"""
# `gtpo.trainer.adapter_sync`.
OF_VLLM = "_init_vllm() sync_weights() _dist llm gather_params is_fsdp fsdp_version vllm_client"


def missing(owner: type, names: str) -> Iterator[str]:
    """Yield what a class of TRL's has no more: methods, their parameters, fields that some method sets."""
    functions = [inspect.unwrap(f) for kind in owner.__mro__ for f in vars(kind).values() if inspect.isfunction(f)]
    used = {name for function in functions for name in function.__code__.co_names}
    for name, is_method, parameters in (entry.partition("(") for entry in names.split()):
        method: Any = getattr(owner, name, None)
        expected = parameters.rstrip(")")
        if (method is None) if is_method else (name not in used):
            yield f"{owner.__name__}.{name}"
        elif is_method and expected != "...":
            taken = ",".join(list(inspect.signature(method).parameters)[1:])
            if taken != expected:
                yield f"{owner.__name__}.{name}({expected}), which takes ({taken})"


def check_trl(grpo: type = GRPOTrainer, sft: type = SFTTrainer, release: str = version("trl")) -> None:
    """Raise UserError if TRL lacks a name that is leaned on; warn of a TRL newer than the newest tried."""
    lacking = [*missing(grpo, OF_TRAINERS + OF_GRPO), *missing(sft, OF_TRAINERS), *missing(VLLMGeneration, OF_VLLM)]
    known = f"gtpo is tested with TRL 1.15 to {NEWEST[0]}.{NEWEST[1]}"
    install = f"pip install 'trl>=1.15,<{NEWEST[0]}.{NEWEST[1] + 1}'"
    if lacking:
        raise UserError(f"TRL {release} has no {'; no '.join(lacking)}. {known}: {install}")
    if tuple(int(part) for part in release.split(".")[:2]) > NEWEST:
        LOG.warning(f"TRL {release}: {known}. If a run fails: {install}")


check_trl()


# -- the round of sampling ---------------------------------------------------------------------------------------------


def mode(trainer: Any) -> str:
    """Return `train` or `eval`."""
    return "train" if trainer.model is not None and trainer.model.training else "eval"


def group_size(trainer: Any) -> int:
    """Return the completions per prompt, of the mode that the model is in."""
    return int(trainer.num_generations if mode(trainer) == "train" else trainer.num_generations_eval)


def tokenizer(trainer: Any) -> Any:
    """Return the tokenizer of a trainer of TRL's, also if its processing class is a processor around it."""
    return getattr(trainer, "_tokenizer", trainer.processing_class)


def round_steps(args: Any) -> int:
    """Return the optimizer steps from one end of a round of sampling to the next that ends with a step."""
    accumulation: int = args.gradient_accumulation_steps
    micro_batches = (args.steps_per_generation or 1) * args.num_iterations if isinstance(args, GRPOConfig) else 1
    return math.lcm(micro_batches, accumulation) // accumulation


def round_in_use(trainer: Any) -> Any:
    """Return the micro-batches of a round of sampling that still feeds later steps; None if there is none."""
    args = trainer.args
    if isinstance(trainer, GRPOTrainer) and trainer._step % (args.steps_per_generation * args.num_iterations):
        return trainer._buffered_inputs
    return None


def policy(trainer: Any) -> Any:
    """Return the causal LM that is trained, without what shards it and without adapters around it."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.get_base_model() if is_peft_model(model) else model


def generate(trainer: Any, ids: torch.Tensor, mask: torch.Tensor, config: GenerationConfig) -> Any:
    """Return what `generate` makes of padded prompts [B, T], in the contexts in which TRL samples."""
    options = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
    known = inspect.signature(unwrap_model_for_generation).parameters  # TRL 1.15 does not have the last one
    unwrapped = unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        generation_kwargs=trainer.generation_kwargs,
        **{name: value for name, value in options.items() if name in known},
    )
    whole = trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False)
    with unwrapped as model, torch.no_grad(), whole:
        return model.generate(input_ids=ids, attention_mask=mask, generation_config=config)


def logits_processors(trainer: Any) -> Any:
    """Return what `generate` does to the logits of a position before it draws, in its order."""
    model, device = policy(trainer), trainer.accelerator.device
    # With what it fills in: without a top_k it takes 50.
    config, _ = model._prepare_generation_config(trainer.generation_config)
    config._eos_token_tensor = torch.tensor(trainer.eos_token_ids, device=device)
    return model._get_logits_processor(config, input_ids_seq_length=0, device=device)


class RoundOver(Exception):
    """Ends TRL's round of sampling before it is scored; its argument is what TRL's `_generate` returned."""


def sample(trainer: Any, rows: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """Return this process's share of what TRL's `_generate` returns for rows of the dataset, one completion for each.

    All processes call it. Gathered, the shares are in the order of the rows, the last of which may be repeated. TRL
    prepares the round, with its tools and environments.
    """
    accelerator = trainer.accelerator
    # Every rank must take part in every forward of a sharded model, so a short batch is filled up.
    share = -(-len(rows) // accelerator.num_processes)
    filled = [*rows, *([rows[-1]] * (share * accelerator.num_processes - len(rows)))]
    trainer.only_samples = True
    try:
        GRPOTrainer._generate_and_score_completions(trainer, filled[share * accelerator.process_index :][:share])
    except RoundOver as over:
        return tuple(over.args[0])
    finally:
        trainer.only_samples = False
    raise RuntimeError("TRL scored a round that it did not generate")


def with_special_tokens(trainer: Any, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what `_generate` returned with completions as `gtpo eval` reads them, special tokens and thoughts whole.

    TRL drops all special tokens: a tag or a thought's delimiter that is one never reached the reward. What TRL parses
    into more than a text, and what tools wrote into, stays as it is.
    """
    if trainer.tools:
        return outputs
    completions = []
    for prompt, ids, completion in zip(outputs[0], outputs[1], outputs[3], strict=True):
        text = decode_completion(trainer._tokenizer, ids, trainer.eos_token_ids)
        # The template opened it: without the tag, a thought that is cut off would be read as an answer. Only the end of
        # the prompt says so, in fewer tokens than these.
        inside = opened_thought(trainer._tokenizer.decode(prompt[-32:]))
        if inside and not plain(text).lstrip().startswith("<think>"):
            text = f"<think>{text}"
        if isinstance(completion, str):
            completion = text
        elif len(completion) == 1 and completion[0].keys() == {"role", "content"}:
            completion = [{**completion[0], "content": text}]
        completions.append(completion)
    return (*outputs[:3], completions, *outputs[4:])


@contextmanager
def aside(trainer: Any, seed: int | None = None) -> Iterator[None]:
    """Let completions be sampled, one per prompt, without a trace in the metrics and counters of the training.

    seed: of a random stream of their own, if they are to leave no trace in random numbers either.
    """
    generations, seen, metrics = trainer.num_generations, trainer.state.num_input_tokens_seen, trainer._metrics
    # 1: vLLM is asked for the completions of every num_generations-th prompt.
    trainer.num_generations, trainer._metrics = 1, {**metrics, "train": defaultdict(list)}
    try:
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed + trainer.accelerator.process_index)
            yield
    finally:
        trainer.num_generations, trainer._metrics = generations, metrics
        trainer.state.num_input_tokens_seen = seen


def log(trainer: Any, name: str, value: float, *, instead: bool = False) -> None:
    """Let the next line of the log have `value` in its mean of `name`; instead: of what was logged last."""
    values = trainer._metrics[mode(trainer)][name]
    values[len(values) - instead :] = [value]


# -- checkpoints -------------------------------------------------------------------------------------------------------


def load_weights(trainer: Any, folder: str) -> None:
    """Put the weights of a folder into the trainer's model; the next step samples with them, also within a round."""
    trainer._load_from_checkpoint(folder, trainer.model)
    if isinstance(trainer, GRPOTrainer):
        trainer._buffered_inputs = None
        trainer._last_loaded_step = -1  # vLLM takes the weights again


def counters(trainer: Any) -> dict[str, int]:
    """Return what a checkpoint of TRL's own forgets: micro-batches, and tokens as TRL's `num_tokens` counts them."""
    # sft counts no micro-batches.
    return {"micro_step": getattr(trainer, "_step", 0), "tokens_seen": trainer._total_train_tokens}


def restore(trainer: Any, counted: dict[str, Any]) -> None:
    """Take up the counters of a checkpoint."""
    trainer._total_train_tokens = counted["tokens_seen"]
    if isinstance(trainer, GRPOTrainer):
        trainer._step = counted["micro_step"]


# -- what is built inside TRL's ----------------------------------------------------------------------------------------


def round_nothing_in_fsdp2(accelerator: Any) -> None:
    """Let FSDP2 leave what the model's forward returns as it is, and sum gradients over ranks in float32.

    Before the model is wrapped. accelerate has it round both to the type of the products, bfloat16 on a GPU: the
    log-probabilities and entropies that the loss, the gate and H_ini are made of.
    """
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and plugin.fsdp_version == 2:
        plugin.mixed_precision_policy = replace(policy, output_dtype=None, reduce_dtype=torch.float32)


@contextmanager
def _replace(module: Any, name: str, value: Any) -> Iterator[None]:
    """Let a module's name mean something else inside."""
    plain = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, plain)


def score_only_labels() -> AbstractContextManager[None]:
    """Let TRL's fused head project the positions that have a label inside, on a CPU as on a GPU.

    On a CPU TRL 1.16 projects all of them otherwise, those of the prompt and of the padding too; 1.15 did not.
    """
    if not hasattr(trl_utils, "_use_triton"):
        return nullcontext()
    return _replace(trl_utils, "_use_triton", lambda device: True)  # asked there for this alone


def sampling_with(engine: type[VLLMGeneration], **fields: Any) -> AbstractContextManager[None]:
    """Let the GRPOTrainer that is built inside sample with an engine of this class; `fields` are set on it."""
    return _replace(grpo_trainer, "VLLMGeneration", type(engine.__name__, (engine,), fields))


def engine_options(options: dict[str, Any]) -> AbstractContextManager[None]:
    """Let the vLLM engine that is built inside have `options` over what TRL gives it."""
    plain = getattr(vllm_generation, "LLM")  # noqa: B009  # absent without vLLM
    return _replace(vllm_generation, "LLM", lambda **given: plain(**given | options))
