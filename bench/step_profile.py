"""Where a training step's time goes: seconds by part of the model, forward and backward."""

from __future__ import annotations

import functools
import time
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function
from transformers import TrainerCallback

PARTS = {"self_attn": "attention", "mlp": "MLP", "lora_A": "adapters", "lora_B": "adapters"}
"""Part of a step by the name of a module; the innermost one that has a part counts."""


class Profiler(TrainerCallback):
    """Seconds of the last step by part: forward by the module that ran it, backward by its forward's."""

    def __init__(self, last: int) -> None:
        self.last, self.seconds = last, dict[str, float]()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Mark what each part's modules run."""
        for name, module in model.named_modules():
            part = next((PARTS[piece] for piece in reversed(name.split(".")[-2:]) if piece in PARTS), None)
            if part is not None:
                module.register_forward_pre_hook(functools.partial(self._enter, part))
                module.register_forward_hook(self._leave)
        self.ranges: list[Any] = []

    def _enter(self, part: str, *_: Any) -> None:
        self.ranges.append(record_function(f"part {part}").__enter__())

    def _leave(self, *_: Any) -> None:
        self.ranges.pop().__exit__(None, None, None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the last step."""
        if state.global_step == self.last - 1:
            self.recorded = profile(activities=[ProfilerActivity.CPU]).__enter__()
            self.begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add up what was recorded."""
        if state.global_step == self.last:
            total = time.perf_counter() - self.begin
            self.recorded.__exit__(None, None, None)
            self.seconds = seconds_by_part(list(self.recorded.events() or []))
            self.seconds["between operators"] = total - sum(self.seconds.values())


def seconds_by_part(events: list[Any]) -> dict[str, float]:
    """Return the self time of a profile's CPU events by part; an operator's backward belongs to its forward's part."""

    def forward_part(event: Any) -> str | None:
        while event is not None:
            if event.name.startswith("part "):
                return str(event.name[5:])
            if any(name in event.name for name in ("OnePass", "ChunkedLogProb")):
                return "loss"
            if event.name.startswith("Optimizer.step"):
                return "optimizer"
            event = event.cpu_parent
        return None

    def node(event: Any) -> Any:
        while event is not None and not event.name.startswith("autograd::engine::evaluate_function"):
            event = event.cpu_parent
        return event

    parts = {e.sequence_nr: forward_part(e) for e in events if e.sequence_nr >= 0 and node(e) is None}
    found: dict[str, float] = {}
    for event in events:
        backward = node(event)
        part = forward_part(event) or (parts.get(backward.sequence_nr) if backward is not None else None)
        found[part or "rest"] = found.get(part or "rest", 0.0) + event.self_cpu_time_total / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))
