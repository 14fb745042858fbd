"""The transformers engine: `model.generate` in batches that give the same samples however a run was cut.

A batch draws from a random stream of its own, seeded by its questions and its first sample, and is always sampled
whole. What forms a batch is fixed by the run's questions and its rows alone (`plan_batches`): samples come in blocks
[0,1) [1,2) [2,4) [4,8) [8,16) [16,32) [32,48) ..., whatever n is. A resumed run, or one raised from 16 to 64, repeats
those batches that it lacks, token for token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gtpo.common.errors import UserError
from gtpo.common.hub import contiguous_head_rows, dtype_on_cpu
from gtpo.common.provenance import package_versions
from gtpo.evalkit.engines.base import Engine, Sampling, Task, one_line, sample_seed
from gtpo.evalkit.engines.model_ref import ModelRef, check_all_loaded, load_config
from gtpo.rewards.completions import decode_completion
from gtpo.runs.eval_folder import Sample

if TYPE_CHECKING:
    import torch

BLOCK = 16  # Most samples of one question in one batch

# Rows of a batch. On a GPU the key-value cache bounds them; whoever wants speed there has vLLM.
CPU_ROWS, GPU_ROWS = 256, 64


class Batch(NamedTuple):
    """Samples [first, last) of some questions: one unit of sampling and of resumption."""

    tasks: list[Task]
    first: int
    last: int


def plan_batches(tasks: Sequence[Task], n: int, rows: int) -> list[Batch]:
    """Cut the samples of a benchmark into batches and return those that still lack a sample.

    Questions of like prompt length share a batch.
    """
    ordered = sorted(tasks, key=lambda task: (-len(task.prompt.ids or ()), task.question_id))
    batches, low = [], 0
    while low < n:
        # It may reach beyond n: a raised n has the same batches.
        high = low + min(max(low, 1), BLOCK)
        width = max(1, rows // (high - low))
        for start in range(0, len(ordered), width):
            chunk = ordered[start : start + width]
            if any(low <= index < high for task in chunk for index in task.missing):
                batches.append(Batch(chunk, low, high))
        low = high
    return batches


class TransformersEngine(Engine):
    """Samples with transformers. `rows` is the batch size."""

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

        # Those of loading weights; our own table follows.
        logging.disable_progress_bar()
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
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, str(ref.adapter))
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{ref.adapter or ref.source}: cannot be loaded ({one_line(error)})") from None
        self.model = model.to(self.device).eval()
        self._watch: _Watch | None = None  # Of the batch that is sampled
        self.rows = rows or (CPU_ROWS if self.device.type == "cpu" else GPU_ROWS)
        inner = model.get_base_model() if ref.adapter is not None else model
        contiguous_head_rows(inner)
        # Its name from transformers 5.24 on, where the older one warns with every batch.
        self._cache = "cache" if "cache" in inspect.signature(inner.forward).parameters else "past_key_values"
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        self.end_ids = sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})
        # Else `generate` would fill in the defaults that it holds.
        self.model.generation_config = type(self.model.generation_config)()

    def describe(self) -> dict[str, Any]:
        """Return versions, hardware, and the batch rows that the samples' rounding depends on."""
        import torch

        return {
            "versions": package_versions("torch", "transformers", "peft"),
            "hardware": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "compute_dtype": self.dtype,
            "rows": self.rows,
        }

    def generate(self, tasks: Sequence[Task]) -> Iterator[list[Sample]]:
        """Yield one batch of completions at a time."""
        self._stop_at = None
        for benchmark in dict.fromkeys(task.benchmark for task in tasks):
            of_benchmark = [task for task in tasks if task.benchmark == benchmark]
            for batch in plan_batches(of_benchmark, self.sampling.n, self.rows):
                found = self._sample(batch)
                # A batch is sampled whole or not at all.
                if self._stop_at is not None:
                    return
                yield found

    def _sample(self, batch: Batch) -> list[Sample]:
        """Sample a batch, always whole: the same seed and questions give the same tokens."""
        import torch

        size, s = batch.last - batch.first, self.sampling
        seed = sample_seed(s.seed, batch.tasks[0].benchmark, " ".join(t.question_id for t in batch.tasks), batch.first)
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            # A stream of its own for each batch: which batches a run still lacks changes no sample.
            with torch.inference_mode(), torch.random.fork_rng(devices):
                torch.manual_seed(seed)
                rows = self._generate(batch.tasks, size)
        except torch.cuda.OutOfMemoryError:
            raise UserError(
                f"the GPU has too little memory for a batch of {self.rows}: use a smaller --batch-size"
            ) from None
        samples = []
        for row, tokens in enumerate(rows):
            task, index = batch.tasks[row // size], batch.first + row % size
            if index in task.missing:
                ended = len(tokens) < s.max_tokens or tokens[-1] in self.end_ids
                text = decode_completion(self.tokenizer, tokens, self.end_ids)
                sample = Sample(task.benchmark, task.question_id, index, text, tokens=len(tokens), seed=seed)
                sample.finish_reason = "stop" if ended else "length"
                sample.settle_as_stored(None, own=True)
                samples.append(sample)
        return samples

    def _generate(self, tasks: list[Task], size: int) -> list[list[int]]:
        """Return `size` completions for each task, task by task, as token ids up to and with the end token."""
        import torch
        from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        prompts = [task.prompt.ids or [] for task in tasks]
        width = max(len(ids) for ids in prompts)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (width - len(one)) + one for one in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=self.device)
        options: dict[str, Any] = {}
        # A question's prompt is read once for all of its samples.
        if size > 1 and width > 1:
            cache = DynamicCache(config=self.model.config)
            positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, :-1]
            known = {"attention_mask": mask[:, :-1], "position_ids": positions, self._cache: cache}
            self.model(input_ids=ids[:, :-1], **known, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(size)
            options[self._cache] = cache
        s = self.sampling
        if s.presence_penalty:
            options["logits_processor"] = LogitsProcessorList([_presence_penalty(s, width)])
        drawing = {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k, "min_p": s.min_p or None}
        watch = _Watch(self, [task for task in tasks for _ in range(size)], width)
        self._watch = watch
        written = self.model.generate(
            input_ids=ids.repeat_interleave(size, 0),
            attention_mask=mask.repeat_interleave(size, 0),
            stopping_criteria=StoppingCriteriaList([watch]),
            # Every parameter is given, so that the model's own defaults decide none.
            generation_config=GenerationConfig(
                max_new_tokens=s.max_tokens,
                do_sample=s.temperature > 0,
                repetition_penalty=s.repetition_penalty,
                eos_token_id=self.end_ids or None,
                pad_token_id=pad,
                **(drawing if s.temperature > 0 else {}),
            ),
            **options,
        )
        self._watch = None
        table = written[:, width:].cpu().tolist()
        return [row[:length] for row, length in zip(table, watch.lengths.tolist(), strict=True)]

    def running(self) -> tuple[int, int]:
        """Return the rows of the batch, and their tokens so far."""
        return self._watch.running() if self._watch is not None else (0, 0)


class _Watch:
    """Asked by `generate` after every token: which rows have ended, and how far the batch is."""

    def __init__(self, engine: TransformersEngine, tasks: list[Task], width: int) -> None:
        import torch

        self._engine, self._tasks, self._width = engine, tasks, width
        self._reading = engine.sampling.reading
        self._reach = max(map(len, self._reading.stop), default=0) + 1
        self._ends = torch.tensor(engine.end_ids or [-1], device=engine.device)
        self.lengths = torch.full((len(tasks),), engine.sampling.max_tokens)
        self._done, self._step = torch.zeros(len(tasks), dtype=torch.bool), 0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return which rows [rows] are done, of ids [rows, width + tokens so far]."""
        import torch

        if self._engine._stop_at is not None:
            self._done[:] = True
        self._step = ids.shape[1] - self._width
        ended = torch.isin(ids[:, -1], self._ends).cpu() & ~self._done
        if self._reading.stop:
            for row in (~self._done & ~ended).nonzero().flatten().tolist():
                ended[row] = self._at_stop(ids[row, self._width :].tolist(), self._tasks[row].prompt.text)
        self.lengths[ended] = self._step
        self._done |= ended
        return self._done.to(ids.device)

    def _at_stop(self, tokens: list[int], prompt: str | None) -> bool:
        """Return whether a completion has reached a stop text behind its thoughts."""
        decode = self._engine.tokenizer.decode
        last = decode(tokens[-self._reach :], skip_special_tokens=False)
        if not any(stop in last for stop in self._reading.stop):
            return False
        text = decode(tokens, skip_special_tokens=False)
        begins = [text[:at] for stop in self._reading.stop if (at := text.rfind(stop)) >= 0]
        return any(not self._reading.ends_in_thought(before, prompt) for before in begins)

    def running(self) -> tuple[int, int]:
        """Return the rows that have not ended, and their tokens so far."""
        rows = len(self._tasks) - int(self._done.sum())
        return rows, rows * self._step


def _presence_penalty(sampling: Sampling, width: int) -> Callable[..., torch.Tensor]:
    """Return a logits processor that lowers the tokens that a completion has already; width: of the prompts."""

    def penalise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen = scores.new_zeros(scores.shape).scatter_(1, ids[:, width:], 1.0)
        return scores - sampling.presence_penalty * seen

    return penalise
