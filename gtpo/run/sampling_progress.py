"""Where the sampling of a round is, while it takes long."""

from __future__ import annotations

import threading
import time
from typing import Any

from gtpo.run.progress import Progress
from gtpo.trainer.trl_seam import seam_of

SAMPLING_SECONDS = 10.0
"""While completions are sampled, a line this often."""


class SamplingProgress:
    """Shows the completions that are done and the tokens in flight while a trainer samples for long.

    vLLM in this process knows both; of the trainer's own model the forwards are counted, one a token; a server tells
    nothing, so that only the time is shown.
    """

    def __init__(self, trainer: Any, progress: Progress) -> None:
        self.trainer, self.progress, self.seam = trainer, progress, seam_of(trainer)
        self._forwards = 0
        self._tokens: dict[str, int] = {}
        """Tokens of each completion that vLLM has been asked for, as last seen."""
        self.seam.around("generate", self._generate)

    def _generate(self, plain: Any, prompts: list[Any]) -> Any:
        if not self.progress.shown:
            return plain(prompts)
        done = threading.Event()
        self._forwards, self._tokens = 0, {}
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        hooked = model.get_base_model() if hasattr(model, "get_base_model") else model
        hook = hooked.register_forward_pre_hook(self._count)
        thread = threading.Thread(target=self._report, args=(len(prompts), done), daemon=True)
        thread.start()
        try:
            return plain(prompts)
        finally:
            done.set()
            hook.remove()
            thread.join()

    def _count(self, *args: Any) -> None:
        self._forwards += 1

    def _report(self, count: int, done: threading.Event) -> None:
        begin = time.monotonic()
        while not done.wait(SAMPLING_SECONDS):
            seconds = time.monotonic() - begin
            self.progress.note(f"sampling {count} completions for {seconds:.0f} s{self._state(seconds)}")

    def _state(self, seconds: float) -> str:
        """Return how far the sampling is, empty where nothing tells."""
        if not self.trainer.use_vllm:
            longest = self.trainer.max_completion_length
            return f": token {self._forwards} of at most {longest}" if self._forwards else ""
        engine = getattr(self.trainer.vllm_generation, "llm", None)
        if engine is None:
            return ""
        running = engine.llm_engine.output_processor.request_states.copy()
        written = {name: state.detokenizer.num_output_tokens() for name, state in running.items() if state.detokenizer}
        self._tokens |= dict.fromkeys(running, 0) | written
        total, flying = sum(self._tokens.values()), sum(written.values())
        done = len(self._tokens) - len(running)
        if not total:
            return f": reading {len(running)} prompts" if running else ""
        return f": {done} done, {flying} tokens in flight ({total / seconds:.0f} tokens/s)"
