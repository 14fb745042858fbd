"""Our scoring of GSM8K beside that of lm-eval and inspect_ai, and our prompts beside lm-eval's, byte by byte.

    python bench/agreement.py --data DIR COMPLETIONS... --out RESULT.json

Run it in an environment that has gtpo, lm-eval and inspect_ai (the package index), outside of a checkout's root. DIR
holds gsm8k_test.jsonl and gsm8k_train.jsonl. COMPLETIONS are files that `gtpo eval --completions` reads, with GSM8K's
ids. lm-eval renders its tasks gsm8k and gsm8k_cot_zeroshot from these data files, gets the recorded completions as a
model's, and applies its own filters and metrics. Every difference in a verdict is listed with both answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from gtpo.common.errors import UserError
from gtpo.evalkit.evaluation.recorded import read_completions
from gtpo.evalkit.evaluation.scoring import score
from gtpo.evalkit.evaluation.tasks import find_protocol
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.problems import load_source
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import Sample

TASKS = {"gsm8k": "lm-eval-gsm8k", "gsm8k-cot-zeroshot": "lm-eval-gsm8k-cot-zeroshot"}  # lm-eval's file -> our protocol


def run_lm_eval(task: str, data: Path, completions: dict[str, str], limit: int | None) -> list[dict[str, Any]]:
    """Return lm-eval's logged samples; each has its prompt, and one row a filter."""
    import lm_eval
    from lm_eval.api.model import LM

    folder = Path(lm_eval.__file__).parent / "tasks/gsm8k"
    config = yaml.safe_load((folder / f"{task}.yaml").read_text())
    with tempfile.TemporaryDirectory() as place:
        files = {}
        for split in ("train", "test"):
            files[split] = f"{place}/{split}.jsonl"
            rows = [{"question": p.problem, "answer": p.solution} for p in load_source(f"gsm8k_{split}", data_dir=data)]
            Path(files[split]).write_text("".join(json.dumps(row) + "\n" for row in rows))
        config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
        config["task"] = f"{config['task']}_recorded"

        class Recorded(LM):
            """Gives a recorded completion, ended where lm-eval would have ended it."""

            def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
                found = []
                for request in requests:
                    text = completions[request.doc["question"]]
                    for stop in request.args[1]["until"]:
                        text = text.split(stop)[0]
                    found.append(text)
                return found

            def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
                raise UserError("lm-eval asked for log-likelihoods, which recorded completions do not have")

            loglikelihood_rolling = loglikelihood

        done = lm_eval.simple_evaluate(
            model=Recorded(), tasks=[config], limit=limit, log_samples=True, bootstrap_iters=0, verbosity="ERROR"
        )
    (samples,) = done["samples"].values()
    return samples


async def judge_by_inspect(texts: list[str], golds: list[str]) -> list[bool]:
    """Return inspect_ai's verdicts: its scorer match(numeric=True), which reads the number at the end."""
    from inspect_ai.model import ModelName, ModelOutput
    from inspect_ai.scorer import Target, match
    from inspect_ai.solver import TaskState

    found, judge = [], match(numeric=True)
    for number, (text, gold) in enumerate(zip(texts, golds, strict=True)):
        output = ModelOutput.from_content("recorded", text)
        state = TaskState(ModelName("mockllm/model"), number, 1, "", [], output=output)
        verdict = await judge(state, Target(gold))
        found.append(verdict is not None and verdict.value == "C")
    return found


def compare(name: str, task: str, data: Path, texts: dict[str, str], verifier: Verifier) -> dict[str, Any]:
    """Score one set of completions both ways. texts: question id -> completion, those of the first questions."""
    protocol = find_protocol(TASKS[task])
    problems = load_source("gsm8k_test", data_dir=data)
    examples = protocol.examples(problems, data)
    chosen = [p for p in problems if p.id in texts]
    limit = len(chosen)
    if chosen != problems[:limit]:
        raise SystemExit(f"{name}: lm-eval's --limit takes the first questions; these are others")
    samples = run_lm_eval(task, data, {p.problem: texts[p.id] for p in chosen}, limit)
    by_filter: dict[str, dict[int, dict[str, Any]]] = {}
    for sample in samples:
        by_filter.setdefault(sample["filter"], {})[sample["doc_id"]] = sample
    strict, flexible = by_filter["strict-match"], by_filter["flexible-extract"]
    same = sum(
        flexible[i]["arguments"][0][0] == protocol.conversation(p, examples[p.id], "").text
        for i, p in enumerate(chosen)
    )
    asked: dict[tuple[str, str], Problem] = {("gsm8k", p.id): p for p in chosen}
    ours = [Sample("gsm8k", p.id, 0, texts[p.id]) for p in chosen]
    for sample in ours:
        protocol.reading().read(sample, "")
    score(ours, asked, verifier)
    right = [sample.verdict("lenient") == "CORRECT" for sample in ours]
    inspected = asyncio.run(judge_by_inspect([sample.completion for sample in ours], [p.answer for p in chosen]))
    theirs = [bool(flexible[i]["exact_match"] == 1) for i in range(limit)]
    rows = zip(chosen, ours, theirs, right, inspected, strict=True)
    differ = [
        {"id": p.id, "gold": p.answer, "lm_eval": flexible[i]["filtered_resps"][0], "lm_eval_right": one,
         "inspect_right": other, "gtpo": row.answer("lenient"), "gtpo_verdict": row.verdict("lenient")}
        for i, (p, row, one, its, other) in enumerate(rows)
        if not one == its == other
    ]  # fmt: skip
    shares = {
        "lm_eval_strict": [strict[i]["exact_match"] for i in range(limit)], "lm_eval_flexible": theirs,
        "inspect_match": inspected, "gtpo_lenient": right, "agree_lm_eval": map(operator.eq, right, theirs),
        "agree_inspect": map(operator.eq, right, inspected),
    }  # fmt: skip
    about = {"completions": name, "task": task, "questions": limit, "same_prompts": same}
    return about | {key: sum(values) / limit for key, values in shares.items()} | {"differ": differ}


def main() -> None:
    """Compare every file under both tasks; print a line each and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("completions", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    settings = parser.parse_args()
    results = []
    with Verifier() as verifier:
        for path, task in product(settings.completions, settings.tasks):
            texts = {row.id: row.samples[0].completion for row in read_completions(path) if not row.samples[0].error}
            name = path.name.removesuffix(".gz").removesuffix(".jsonl")
            results.append(compare(name, task, settings.data, texts, verifier))
            print(*(f"{key} {value:.4g} " for key, value in results[-1].items() if isinstance(value, int | float)))
    settings.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
