"""GTPO and GRPO on a real pretrained model: `python -m bench.real_runs --model FOLDER --data-dir DIR`.

Runs bench/real_runs.yaml one after the other: the untrained model's evaluation, the search for the learning rate, then
the runs, each `gtpo train`, `gtpo eval` and a record in the plan's `evidence`. What is recorded is done; a run that
was cut off goes on from its last checkpoint, an evaluation from its last sample. Ctrl-C stops after the step.

Besides the curves, a record says which tokens were conflict tokens, step by step, whatever the method: `conflict_kinds`
counts all tokens and those in a conflict span, by kind (tag, end, number, word).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from bench.claims.plan import EVAL_RUNS, TRAIN_RUNS, Plan, Run, load_plan
from bench.claims.record import evaluation, find_record, one_line, write_record
from bench.claims.run import as_program
from bench.rollout_log import VARIABLE, RolloutLog
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_text

PLAN = Path("bench/real_runs.yaml")
TAG = re.compile(r"</?(?:reasoning|answer)>")
KINDS = ("tag", "end", "number", "word")
SEARCH = "real-search-"
"""What the names of the runs that search for a rate begin with."""
WIDENED = {"share_prefixes": True, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
"""Settings of --widen: products are left out, and rounding alone is another."""
SUMMARY = ("pass@k", "maj@k", "lenient", "format_rate", "truncation_rate", "no_answer_rate", "mean_tokens")
"""What is kept of the summary of a benchmark in eval.json."""


def kinds(tokens: Sequence[str]) -> list[str]:
    """Return the kind of each token of a completion: of a tag, the last one, with a digit, or other text."""
    text = "".join(tokens)
    inside = [False] * (len(text) + 1)
    for found in TAG.finditer(text):
        inside[found.start() : found.end()] = [True] * (found.end() - found.start())
    out, at = [], 0
    for place, token in enumerate(tokens):
        if any(inside[at : at + len(token)]):
            out.append("tag")
        elif place == len(tokens) - 1:
            out.append("end")
        else:
            out.append("number" if any(c.isdigit() for c in token) else "word")
        at += len(token)
    return out


def conflict_kinds(folder: Path) -> dict[str, Any]:
    """Count tokens and conflict tokens by kind, in each step of a completions log.

    Tokens are compared as texts, which the log holds in place of ids. A method without conflict weights is counted as
    if it had them.
    """
    import torch

    from gtpo.conflict import conflict_weights

    out: dict[str, Any] = {"step": [], **{f"{part}/{kind}": [] for kind in KINDS for part in ("tokens", "conflict")}}
    for path in sorted(folder.glob("step-*.parquet")):
        rows = pq.read_table(path, columns=["step", "group", "tokens", "advantage"]).to_pylist()
        size = Counter(row["group"] for row in rows).most_common(1)[0][1]
        known: dict[str, int] = {}
        ids = [torch.tensor([known.setdefault(t, len(known)) for t in row["tokens"]]) for row in rows]
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).bool()
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        advantages = torch.tensor([row["advantage"] or 0.0 for row in rows])  # None: unscored
        spans = conflict_weights(padded, mask, advantages, size).weights != 1
        every: Counter[str] = Counter()
        conflict: Counter[str] = Counter()
        for row, span in zip(rows, spans.tolist(), strict=True):
            found = kinds(row["tokens"])
            every.update(found)
            conflict.update(kind for kind, inside in zip(found, span, strict=False) if inside)
        out["step"].append(rows[0]["step"])
        for kind in KINDS:
            out[f"tokens/{kind}"].append(every[kind])
            out[f"conflict/{kind}"].append(conflict[kind])
    return out


def run_gtpo(program: str, *arguments: str | Path) -> None:
    """Run a command in a process of its own: each has an engine that leaves with it. program: a module."""
    print(program, *arguments, flush=True)
    child = subprocess.Popen([sys.executable, "-m", program, *map(str, arguments)])
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:  # the terminal has told the child too, which saves its step and ends
            continue
    if code:
        raise UserError(f"gtpo {arguments[0]} ended with exit code {code}; the same command goes on where it stopped")


def flags(given: dict[str, Any] | None) -> list[str]:
    """Return the arguments of `gtpo eval`."""
    return [text for key, value in (given or {}).items() for text in (f"--{key.replace('_', '-')}", str(value))]


def execute(plan: Plan, run: Run, program: str, rollouts: Path | None) -> None:
    """Train, evaluate and record one run. rollouts: the folder of its log (bench/rollout_log.py)."""
    begin, held = time.monotonic(), 0
    if rollouts is not None:
        calls = rollouts / f"{run.name}.jsonl.gz"
        os.environ[VARIABLE], held = str(calls.resolve()), len(RolloutLog(calls))
    run_gtpo(program, "train", run.write_config())
    if run.evaluate is not None:
        # The last weights, not the best: what is asked is how a run ends.
        run_gtpo(program, "eval", run.name, "--checkpoint", "final", *flags(run.evaluate))
    log = TRAIN_RUNS / run.name / "completions"
    counted = conflict_kinds(log) if log.is_dir() else None
    config = portable(yaml.safe_load((TRAIN_RUNS / run.name / "config.yaml").read_text(encoding="utf-8")))
    found = summary(EVAL_RUNS / run.name) if run.evaluate is not None else None
    kept = {
        **validation_and_times(TRAIN_RUNS / run.name),
        "config": config,
        "conflict_kinds": counted,
        "summary": found,
        **({"program": program} if program != "gtpo" else {}),
        # Steps that took their samples from the log have not the times of the others.
        **({"calls_in_log": held, "median_seconds": {}} if held else {}),
    }
    write_record(plan, run, None, time.monotonic() - begin, **kept)
    shutil.rmtree(TRAIN_RUNS / run.name / "checkpoints", ignore_errors=True)


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's config without the folders of this machine: the model's own name, and no place of the data."""
    model = {**config["model"], "model_name": Path(config["model"]["model_name"]).name}
    dataset = {key: value for key, value in config["dataset"].items() if key != "data_dir"}
    return {**config, "model": model, "dataset": dataset}


def validation_and_times(folder: Path) -> dict[str, Any]:
    """Return what else is kept of a train run: its held-out accuracy before the first step, seconds a step takes."""
    validation = read_json(folder / "run.json").get("validation") or {}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = {}
    for key in ("time/step", "time/generation"):
        if values := [row[key] for row in rows if key in row]:
            seconds[key] = round(statistics.median(values), 1)
    held_out = {key: validation[key] for key in ("untrained", "gain", "samples") if key in validation}
    return {"validation": held_out, "median_seconds": seconds}


def summary(folder: Path) -> dict[str, Any]:
    """Return what is kept of the summary of each benchmark of an evaluation."""
    found = read_json(folder / "eval.json")["benchmarks"]
    return {name: {key: row[key] for key in SUMMARY if key in row} for name, row in found.items()}


def untrained_record(folder: Path) -> dict[str, Any]:
    """Return what is kept of the untrained model's evaluation: how it was made, its summary, counts per question."""
    found = read_json(folder / "eval.json")
    model = {key: found["model"][key] for key in ("fingerprint", "weights")}
    kept = {key: found[key] for key in ("engine", "sampling", "scoring", "verifier", "git_commit", "wall_seconds")}
    record = {"schema_version": 1, "model": model, "prompt": found["prompt"]["hash"], **kept}
    return {**record, "summary": summary(folder), "evaluation": evaluation(folder)}


def best_rate(records: Sequence[dict[str, Any]]) -> tuple[float, list[dict[str, float]]]:
    """Return the rate of the search, and what it was chosen from.

    The smallest rate whose last held-out pass@1 is within a standard error of the best one's. records: of the search.
    """
    rows = []
    for record in records:
        mean = [m for m in record["curves"]["metrics"]["validation/pass@1"]["mean"] if m is not None][-1]
        problems = record["config"]["dataset"]["validation_problems"]
        rate = record["config"]["training"]["learning_rate"]
        rows.append({"learning_rate": rate, "pass@1": mean, "standard_error": (mean * (1 - mean) / problems) ** 0.5})
    best = max(rows, key=lambda row: row["pass@1"])
    good = [row["learning_rate"] for row in rows if row["pass@1"] >= best["pass@1"] - best["standard_error"]]
    return min(good), rows


def searched(plan: Plan) -> list[dict[str, Any]]:
    """Return the records of the search, smallest rate first; those that are missing are left out."""
    found = [record for run in plan.runs if run.name.startswith(SEARCH) and (record := find_record(plan, run))]
    return sorted(found, key=lambda record: float(record["config"]["training"]["learning_rate"]))


def with_settings(run: Run, model: str, data_dir: Path | None, rate: float | None, *, widen: bool = False) -> Run:
    """Return the run with the model and data of this machine, and the search's rate where it is not of the search.

    widen: with what takes products away and changes rounding alone.
    """
    fragment = {section: dict(keys) if isinstance(keys, dict) else keys for section, keys in run.fragment.items()}
    fragment["model"]["model_name"] = model
    if data_dir is not None:
        fragment["dataset"] = {**fragment.get("dataset", {}), "data_dir": str(data_dir.resolve())}
    if rate is not None:
        fragment["training"]["learning_rate"] = rate
    if widen:
        fragment["training"] = {**fragment["training"], **WIDENED}
    given = run.evaluate
    if given is not None and data_dir is not None:
        given = {**given, "data_dir": data_dir}
    return replace(run, fragment=fragment, evaluate=given)


def main() -> None:
    """Run what is not recorded yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="names of the plan, to split it over processes; default: all")
    parser.add_argument("--model", required=True, help="a hub name, or a folder of bench.real_model")
    parser.add_argument("--data-dir", type=Path, help="where gsm8k_train and gsm8k_test lie, if not on the hub")
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument(
        "--widen", action="store_true", help="bfloat16 by float32, on a processor without it (bench/bfloat16_cpu.py)"
    )
    parser.add_argument(
        "--rollouts", type=Path, help="keep what is sampled here, and go on from it (bench/rollout_log.py)"
    )
    parser.add_argument("--list", action="store_true", help="print the runs that are left, and run nothing")
    asked = parser.parse_args()
    plan = load_plan(asked.plan)
    os.environ.update(plan.environment)
    program = "gtpo" if asked.rollouts is None else "bench.rollout_log"
    if asked.widen:
        program = "bench.bfloat16_cpu"
        # It imports torch before gtpo can ask for these (docs/laptop.md).
        os.environ |= {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": "4194304"}
        os.environ["OMP_WAIT_POLICY"] = "ACTIVE"  # a decode step is thousands of short parallel regions
    todo = [run for run in plan.choose(asked.runs) if find_record(plan, run) is None]
    if asked.list or not todo:
        print("\n".join(run.name for run in todo) or "all runs are recorded")
        return
    untrained = plan.evidence / "untrained.json"
    given = next(run.evaluate for run in plan.runs if run.evaluate is not None)
    if not untrained.is_file():
        folder = EVAL_RUNS / f"{todo[0].name.split('-')[0]}-untrained"
        data = ["--data-dir", asked.data_dir] if asked.data_dir else []
        run_gtpo(program, "eval", asked.model, "--out", folder, *flags(given), *data)
        write_text(untrained, one_line(untrained_record(folder)))
    for run in todo:
        rate = None
        if not run.name.startswith(SEARCH):
            records = searched(plan)
            if len(records) < sum(other.name.startswith(SEARCH) for other in plan.runs):
                raise UserError(f"{run.name} takes the rate of the search, which is not recorded yet: run it first")
            rate, rows = best_rate(records)
            write_text(plan.evidence / "search.json", one_line({"learning_rate": rate, "from": rows}))
        execute(plan, with_settings(run, asked.model, asked.data_dir, rate, widen=asked.widen), program, asked.rollouts)


if __name__ == "__main__":
    as_program(main)
