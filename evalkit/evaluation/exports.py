"""Results in the format of the Hugging Face Hub, for a pull request to a model's repository."""

from __future__ import annotations

from pathlib import Path

import yaml

from gtpo.common.files import write_text
from gtpo.common.provenance import package_versions
from gtpo.evalkit.evaluation.tasks import Benchmark
from gtpo.runs.eval_record import EvalRecord


def write_hub_results(folder: Path, record: EvalRecord) -> None:
    """Write .eval_results/NAME.yaml of each benchmark that is one on the Hub and was evaluated as a whole.

    The format: https://huggingface.co/docs/hub/eval-results. A file goes if its results are no longer whole.
    Questions that were trained on, or lack samples, are no result of it.
    """
    for name, entry in record.benchmarks.items():
        path = folder / ".eval_results" / f"{name.replace('/', '-')}.yaml"
        benchmark = Benchmark(**{"name": name, **(entry.task or {})})
        whole = entry.finish_with is None and entry.pass_at_k and entry.questions == benchmark.size
        whole = whole and not entry.lacking and not entry.trained_on
        published = benchmark.checksum in (None, entry.checksum)
        if benchmark.hub_id is None or not whole or not published:
            path.unlink(missing_ok=True)
            continue
        dataset, _, task = benchmark.hub_id.partition(":")
        one = entry.pass_at_k[1]
        drawn = record.sampling.model_dump(include={"temperature", "top_p", "max_tokens"}, exclude_none=True)
        notes = (
            f"percent; pass@1 as the mean of n = {entry.n} samples a question (k = 1), 95 % interval "
            f"{100 * one.low:.2f} to {100 * one.high:.2f}; {record.scoring} scoring; protocol {record.prompt.protocol}"
            f"{''.join(f', {key} {value:g}' for key, value in drawn.items())}; gtpo {package_versions('gtpo')['gtpo']}"
        )
        about = {"dataset": {"id": dataset, "task_id": task or "default"}, "value": round(100 * one.mean, 2)}
        result = {**about, "date": (record.created or "")[:10], "notes": notes}
        write_text(path, yaml.safe_dump([result], sort_keys=False, allow_unicode=True, width=1000))
