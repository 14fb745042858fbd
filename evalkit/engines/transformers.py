"""The transformers engine: batched sampling on CPU or GPU that gives the same samples however a run was cut.

Every sample draws from a stream of uniforms of its own, keyed by its seed (Philox); token t is the
inverse of the cumulative distribution at uniform t. What remains is floating point: a batch of another shape may
round otherwise. Hence the shape of a batch is fixed by the run's questions and its rows alone (`plan_batches`):
samples come in blocks [0,1) [1,2) [2,4) [4,8) [8,16) [16,32) [32,48) ..., whatever n is, and a block is always
sampled whole. A resumed run, or one raised from 16 to 64, repeats those batches that it lacks, bit for bit.

One prefill serves all samples of a question in a batch; finished rows leave the batch when half of it is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtpo.common.errors import UserError
from gtpo.common.hub import dtype_on_cpu
from gtpo.common.provenance import package_versions
from gtpo.evalkit.engines.base import Engine, Generation, Running, Sampling, Task, sample_seed
from gtpo.evalkit.engines.local import check_all_loaded, context_length, load_config, with_adapter
from gtpo.evalkit.engines.model_ref import ModelRef

if TYPE_CHECKING:
    import torch

BLOCK = 16
"""Most samples of one question in one batch."""

CPU_ROWS = 256
"""Rows of a batch on a CPU."""

_MIN_ROWS = 8  # a batch is not thinned below this


class Batch(NamedTuple):
    """Samples [first, last) of some questions: one unit of sampling and of resumption."""

    tasks: list[Task]
    first: int
    last: int


def sample_blocks(n: int) -> list[tuple[int, int]]:
    """Return the blocks that hold samples 0..n-1; the last may reach beyond n."""
    blocks, low = [], 0
    while low < n:
        high = low + min(max(low, 1), BLOCK)
        blocks.append((low, high))
        low = high
    return blocks


def plan_batches(tasks: Sequence[Task], n: int, rows: int) -> list[Batch]:
    """Cut the samples of a benchmark into batches and return those that still lack a sample.

    Questions of like prompt length share a batch. Which samples form a batch depends on the questions and on rows
    only: not on n, and not on what is missing.
    """
    ordered = sorted(tasks, key=lambda task: (-len(task.prompt.ids or ()), task.question_id))
    batches = []
    for low, high in sample_blocks(n):
        width = max(1, rows // (high - low))
        for start in range(0, len(ordered), width):
            chunk = ordered[start : start + width]
            if any(low <= index < high for task in chunk for index in task.missing):
                batches.append(Batch(chunk, low, high))
    return batches


def draw_tokens(logits: torch.Tensor, uniforms: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    logits: [rows, V]; uniforms: [rows] float64 in [0, 1); returns [rows] long. temperature 0 takes the likeliest
    token. min_p, top_k and top_p apply in this order, each to what the one before left, as in vLLM; top_p keeps the
    smallest set of likeliest tokens whose probability reaches it.
    """
    import torch

    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = logits.float() / sampling.temperature
    if sampling.min_p > 0:
        scaled = scaled.masked_fill(scaled < scaled.amax(-1, keepdim=True) + math.log(sampling.min_p), -math.inf)
    if 0 < sampling.top_k < scaled.shape[-1]:
        scaled = scaled.masked_fill(scaled < scaled.topk(sampling.top_k, -1).values[:, -1:], -math.inf)
    probabilities = torch.softmax(scaled, -1).double()
    top_p = sampling.top_p
    if top_p < 1:
        ordered, order = probabilities.sort(stable=True, dim=-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= top_p
        probabilities = probabilities.scatter(-1, order, ordered.masked_fill(outside, 0.0))
    cumulative = probabilities.cumsum(-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    # The first token whose cumulative probability exceeds the target: never one of probability 0.
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)


class _Penalties:
    """The penalties on tokens that a row has already: [rows, V] masks of the prompt's tokens and the completion's."""

    def __init__(self, prompts: torch.Tensor, mask: torch.Tensor, sampling: Sampling, vocabulary: int) -> None:
        import torch

        self._sampling = sampling
        self._completion = torch.zeros((len(prompts), vocabulary), dtype=torch.bool, device=prompts.device)
        counts = torch.zeros((len(prompts), vocabulary), dtype=torch.long, device=prompts.device)
        self._prompt = counts.scatter_add_(1, prompts, mask) > 0  # padding counts zero

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the penalised logits [rows, V]."""
        import torch

        repeated = self._prompt | self._completion
        penalty = self._sampling.repetition_penalty
        logits = torch.where(repeated, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        return logits - self._sampling.presence_penalty * self._completion

    def add(self, tokens: torch.Tensor) -> None:
        """Count the next token of every row [rows]."""
        self._completion.scatter_(1, tokens[:, None], True)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep some rows."""
        self._prompt, self._completion = self._prompt[rows], self._completion[rows]


class _Stopped(Exception):
    """The batch was given up."""


class TransformersEngine(Engine):
    """Samples with transformers. `rows` is the batch size, taken from the device's memory where it is None."""

    name = "transformers"

    def __init__(
        self,
        ref: ModelRef,
        tokenizer: Any,
        sampling: Sampling,
        *,
        rows: int | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # of loading weights; our own table follows
        # Not the table of missing weights: `check_all_loaded` says it in a sentence.
        logging.set_verbosity_error()
        self.ref, self.tokenizer, self.sampling = ref, tokenizer, sampling
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.config = load_config(ref, trust_remote_code=trust_remote_code)
        if dtype == "auto" and self.device.type == "cuda":
            dtype = "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
        self.dtype = dtype = dtype_on_cpu(self.config) if dtype == "auto" else dtype
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                ref.source,
                dtype=getattr(torch, dtype),
                trust_remote_code=trust_remote_code,
                use_safetensors=True,
                output_loading_info=True,
            )
            model, info = loaded
            check_all_loaded(ref.source, model, info)
            if ref.adapter is not None:
                model = with_adapter(model, ref.adapter)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"{ref.adapter or ref.source}: cannot be loaded ({' '.join(str(error).split())[:300]})"
            ) from None
        self.model = model.to(self.device).eval()
        self._at: tuple[list[Task], int, list[int]] = [], 0, []
        """What is sampled: questions, steps done, and the length of each row, the limit where it is not known yet."""
        self.rows = rows or self._default_rows()
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        self.end_ids = sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})

    def _default_rows(self) -> int:
        """Rows whose key-value cache takes at most half of the memory that is free on the GPU."""
        import torch

        if self.device.type == "cpu":
            return CPU_ROWS
        text = self.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        per_token = 2 * text.num_hidden_layers * heads * size * (4 if self.dtype == "float32" else 2)
        length = min(context_length(self.config) or 4096, self.sampling.max_tokens + 512)
        free, _ = torch.cuda.mem_get_info()
        return max(BLOCK, min(1024, int(free * 0.5 / (per_token * length)) // BLOCK * BLOCK))

    def describe(self) -> dict[str, Any]:
        """Return name, versions, hardware, and the batch rows that the samples' rounding depends on."""
        import torch

        hardware = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        return {
            "name": self.name,
            "versions": package_versions("torch", "transformers", "peft"),
            "hardware": hardware,
            "compute_dtype": self.dtype,
            "rows": self.rows,
        }

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Generation]]:
        """Yield one batch of completions at a time."""
        self._stop_at = None
        for benchmark in dict.fromkeys(task.benchmark for task in tasks):
            of_benchmark = [task for task in tasks if task.benchmark == benchmark]
            for batch in plan_batches(of_benchmark, self.sampling.n, self.rows):
                try:
                    yield self._sample(batch)
                except _Stopped:
                    return

    def _sample(self, batch: Batch) -> list[Generation]:
        import torch

        size = batch.last - batch.first
        seeds = [
            sample_seed(self.sampling.seed, task.benchmark, task.question_id, index)
            for task in batch.tasks
            for index in range(batch.first, batch.last)
        ]
        try:
            with torch.inference_mode():
                rows = self._decode(batch.tasks, size, seeds)
        except torch.cuda.OutOfMemoryError:
            raise UserError(
                f"the GPU has too little memory for a batch of {self.rows}: use a smaller --batch-size"
            ) from None
        self._at = [], 0, []
        generations = []
        for row, (tokens, seed) in enumerate(zip(rows, seeds, strict=True)):
            task, index = batch.tasks[row // size], batch.first + row % size
            if index in task.missing:
                stopped = bool(tokens) and tokens[-1] in self.end_ids
                text = self.tokenizer.decode(tokens, skip_special_tokens=True)
                reason = "stop" if stopped else "length"
                generations.append(Generation(task.benchmark, task.question_id, index, text, len(tokens), reason, seed))
        return generations

    def _decode(self, tasks: list[Task], size: int, seeds: list[int]) -> list[list[int]]:
        """Return `size` completions for each task, task by task, as token ids up to and with the end token."""
        import torch

        prompts = [task.prompt.ids or [] for task in tasks]
        width = max(len(ids) for ids in prompts)
        pad = self.tokenizer.pad_token_id or 0
        inputs = torch.tensor([[pad] * (width - len(ids)) + ids for ids in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=self.device)
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        out = self.model(
            input_ids=inputs, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        cache = out.past_key_values  # a question's prompt is read once for all of its samples
        cache.batch_repeat_interleave(size)
        logits = out.logits[:, -1].repeat_interleave(size, 0)
        mask = mask.repeat_interleave(size, 0)
        position = positions[:, -1:].repeat_interleave(size, 0)
        most = self.sampling.max_tokens
        penalties = None
        if self.sampling.presence_penalty or self.sampling.repetition_penalty != 1:
            rows = inputs.repeat_interleave(size, 0)
            penalties = _Penalties(rows, mask.long(), self.sampling, logits.shape[-1])
        uniforms = _Uniforms(seeds)
        ends = torch.tensor(self.end_ids or [-1], device=self.device)
        written = torch.zeros((len(seeds), most), dtype=torch.long, device=self.device)
        lengths = torch.full((len(seeds),), most, dtype=torch.long, device=self.device)
        # The row of `written` that each batch row belongs to.
        alive = torch.arange(len(seeds), device=self.device)
        finished = torch.zeros(len(seeds), dtype=torch.bool, device=self.device)
        known = lengths.tolist()
        for step in range(most):
            self._at = tasks, step, known
            if self._stop_at is not None:  # a batch is sampled whole or not at all
                raise _Stopped
            drawn = uniforms.at(step)[alive.cpu()].to(self.device)
            tokens = draw_tokens(penalties.apply(logits.float()) if penalties else logits, drawn, self.sampling)
            written[alive, step] = tokens
            ended = torch.isin(tokens, ends) & ~finished
            ended |= self._at_stop(written[alive, : step + 1], finished)
            lengths[alive[ended]] = step + 1
            finished |= ended
            left = int((~finished).sum())
            if bool(ended.any()):
                known = lengths.tolist()
            if left == 0 or step + 1 == most:
                break
            if left <= len(alive) // 2 and len(alive) > _MIN_ROWS:
                keep = (~finished).nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                tokens, mask, position = tokens[keep], mask[keep], position[keep]
                alive, finished = alive[keep], finished[keep]
                if penalties:
                    penalties.keep(keep)
            if penalties:
                penalties.add(tokens)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            position = position + 1
            out = self.model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            )
            logits = out.logits[:, -1]
        table, ends_at = written.cpu().tolist(), lengths.cpu().tolist()
        return [row[:length] for row, length in zip(table, ends_at, strict=True)]

    def _at_stop(self, written: torch.Tensor, finished: torch.Tensor) -> torch.Tensor:
        """Return which rows [rows, steps] have reached a stop text with their last token."""
        import torch

        reached = torch.zeros_like(finished)
        if self.sampling.stop:
            last = written[:, -(max(map(len, self.sampling.stop)) + 1) :]
            for row in (~finished).nonzero().flatten().tolist():
                text = self.tokenizer.decode(last[row].tolist(), skip_special_tokens=True)
                reached[row] = any(stop in text for stop in self.sampling.stop)
        return reached

    def running(self) -> Sequence[Running]:
        """Return the rows of the batch, with their tokens so far."""
        batch, step, lengths = self._at
        size = max(1, len(lengths) // max(1, len(batch)))
        return [
            Running(batch[row // size].benchmark, min(step, length), length <= step)
            for row, length in enumerate(lengths)
        ]

    def close(self) -> None:
        """Let go of the model."""
        import torch

        del self.model
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class _Uniforms:
    """The uniforms of a batch's rows, drawn in stretches so that a long limit costs nothing for short completions."""

    def __init__(self, seeds: list[int], stretch: int = 256) -> None:
        self._streams = [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]
        self._stretch, self._begin = stretch, 0
        self._values = self._next()

    def _next(self) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.stack([stream.random(self._stretch) for stream in self._streams], 1))

    def at(self, step: int) -> torch.Tensor:
        """Return uniform `step` of every row: [rows] float64. Steps come in ascending order."""
        while step >= self._begin + self._stretch:
            self._begin += self._stretch
            self._values = self._next()
        return self._values[step - self._begin]
