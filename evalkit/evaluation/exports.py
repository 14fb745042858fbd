"""Results in the format of the Hugging Face Hub, for a pull request to a model's repository."""

from __future__ import annotations

from pathlib import Path

import yaml

from gtpo import __version__
from gtpo.common.files import write_text
from gtpo.common.log import LOG
from gtpo.evalkit.evaluation.tasks import Benchmark
from gtpo.runs.eval_record import EvalRecord


def write_hub_results(folder: Path, record: EvalRecord) -> None:
    """Write .eval_results/NAME.yaml of each benchmark that is one on the Hub and was evaluated as a whole.

    The format: https://huggingface.co/docs/hub/eval-results. Files of results that are no longer whole go.
    """
    for name, entry in record.benchmarks.items():
        path, benchmark = folder / ".eval_results" / f"{name}.yaml", Benchmark(**{"name": name, **(entry.task or {})})
        if benchmark.hub_id is None:
            continue
        if entry.finish_with is not None or not entry.pass_at_k or entry.questions != benchmark.size:
            path.unlink(missing_ok=True)
            LOG.info("%s: not all of its questions are answered: nothing is written for the Hub", name)
            continue
        dataset, _, task = benchmark.hub_id.partition(":")
        one, sampling = entry.pass_at_k[1], record.sampling
        drawn = "".join(
            f", {key} {value:g}"
            for key in ("temperature", "top_p", "max_tokens")
            if (value := getattr(sampling, key)) is not None
        )
        notes = (
            f"percent; pass@1 as the mean of n = {entry.n} samples a question (k = 1), 95 % interval "
            f"{100 * one.low:.2f} to {100 * one.high:.2f}; {record.scoring} scoring; protocol {record.prompt.protocol}"
            f"{drawn}; gtpo {__version__}"
        )
        result = {
            "dataset": {"id": dataset, "task_id": task or "default"}, "value": round(100 * one.mean, 2),
            "date": (record.created or "")[:10], "notes": notes,
        }  # fmt: skip
        write_text(path, yaml.safe_dump([result], sort_keys=False, allow_unicode=True, width=1000))
