"""Which part of GTPO keeps answers long: the runs of results/published/real/README.md.

`python -m bench.arms --model FOLDER [--runs a-s3 ...]` makes the runs that are not recorded yet, in the plan's order:
`gtpo train` on bench/arms.yaml with the arm's switches, `gtpo eval` of steps 20 and 40, a record. What is sampled is
kept in arms/unfinished (bench/rollout_log.py), so that another machine can go on. `--list` prints the runs in their
order. bench/arms_marks.py computes what they say.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bench.common import SHARED, parser
from bench.rollout_log import VARIABLE
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_parquet, write_text
from gtpo.rewards import format_reward

OUT, TRAIN, EVAL = Path("results/published/real/arms"), Path("results/train"), Path("results/eval")
UNFINISHED = OUT / "unfinished"
OWN = "gtpo.rewards.accuracy_reward bench.arms.format_all_or_nothing"
ARMS = {
    "a": "--objective.preset grpo",
    "b": "--objective.preset gtpo --objective.filter always",  # H_ini is 0.40 to 0.41: `auto` would be on, too
    "c": "--objective.preset gtpo-conflict-only",
    "d": "--objective.preset grpo --objective.filter always",
    "e": f"--objective.preset grpo --trainer.reward_funcs {OWN}",
    "f": "--method grpo --training.loss_type dr_grpo",
}
"""Arm -> its flags of `gtpo train`."""
SEEDS = {**dict.fromkeys("abcd", range(3, 9)), **dict.fromkeys("ef", range(3, 6))}
VALIDATION = "--benchmarks gsm8k --limit 64 --k 4 --max-tokens 256 --engine vllm --data-dir"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "THP_MEM_ALLOC_ENABLE": "1",
               "MALLOC_MMAP_THRESHOLD_": "4194304"}  # fmt: skip
"""The last two are what gtpo asks for before it imports torch, which bench.rollout_log imports first."""
STEPS, CHECKED = 40, (20, 40)
TEXTS = 4
"""Completions of a group whose text is kept: the records have 3 MB in all."""
CURVES = ("loss", "grad_norm", "entropy/mean", "gate/kept", "conflict/fraction", "completions/truncated",
          "groups/zero_variance", "sampling/logp_difference", "time/step", "time/generation")  # fmt: skip


def format_all_or_nothing(completions: Any, **columns: Any) -> list[float]:
    """Return the format reward of arm (e): the paper's 10 for the full format, 0 for less."""
    return [10.0 if score == 10.0 else 0.0 for score in format_reward(completions)]


def order() -> list[str]:
    """Return the runs in their order: of each seed (a), (b), (d), (e), then of each (c), (f); shuffled by the seed."""
    names = []
    for arms in ("abde", "cf"):
        for seed in range(3, 9):
            mine = [arm for arm in arms if seed in SEEDS[arm]]
            random.Random(f"arms {arms} {seed}").shuffle(mine)
            names += [f"{arm}-s{seed}" for arm in mine]
    return names


def recorded() -> list[str]:
    return [name for name in order() if (OUT / f"{name}.json").is_file()]


def processor() -> str:
    """Return the kind of this machine's processor: its maker, and how it multiplies bfloat16."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    maker = re.search(r"vendor_id\s*: (\S+)", text)
    return f"{maker[1] if maker else '?'} {next((k for k in ('amx_bf16', 'avx512_bf16') if k in text), 'float32')}"


def program(module: str, *arguments: Any) -> None:
    """Run gtpo in a process of its own."""
    print("gtpo", *arguments, flush=True)
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=False)
    if done.returncode:
        raise UserError(f"gtpo {arguments[0]} ended with exit code {done.returncode}; the same command goes on")


def train(name: str, model: str, data: Path) -> None:
    """Run `gtpo train`, with a log of what is sampled."""
    os.environ |= {**ENVIRONMENT, VARIABLE: str(UNFINISHED / f"{name}.jsonl.gz")}
    own = f"--run_name arms-{name} --model.random_seed {name[3:]} {ARMS[name[0]]}"
    here = f"--model.model_name {model} --dataset.data_dir {data}"
    program("bench.rollout_log", "train", "bench/arms.yaml", *own.split(), *here.split())


def keep_completions(name: str) -> None:
    """Write what is kept of a run's completions: numbers of all, texts of the first TEXTS of each group."""
    rows = []
    for path in sorted((TRAIN / f"arms-{name}" / "completions").glob("step-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            [paid] = [row[key] for key in row if key in ("reward_format_reward", "reward_format_all_or_nothing")]
            accuracy, tokens = row["reward_accuracy"], len(row["tokens"])
            rows.append({
                "step": row["step"], "group": row["group"], "index": row["completion_index"],
                "problem": hashlib.sha256(row["prompt"].encode()).hexdigest()[:12], "tokens": tokens,
                "format": row["reward_format"], "accuracy": accuracy,
                "reward": None if accuracy is None else paid + accuracy, "advantage": row["advantage"],
                "entropy": row["entropy"], "kept": row["kept"], "mean_weight": sum(row["weight"]) / tokens,
                "text": "".join(row["tokens"]) if row["completion_index"] < TEXTS else None,
            })  # fmt: skip
    write_parquet(OUT / f"{name}.parquet", pa.Table.from_pylist(rows))


def step_tokens(name: str) -> np.ndarray:
    """Return the mean tokens of each step of a run."""
    table = pq.read_table(OUT / f"{name}.parquet", columns=["step", "tokens"])
    step, tokens = (np.array(table[key].to_pylist()) for key in ("step", "tokens"))
    return np.array([tokens[step == at].mean() for at in np.unique(step)])


def execute(name: str, model: str, data: Path) -> None:
    """Train, evaluate and record one run. A run that was cut off goes on from what it sampled."""
    begin, folder, validation = time.monotonic(), TRAIN / f"arms-{name}", {}
    train(name, model, data)
    for step in CHECKED:
        out = EVAL / f"arms-{name}-{step}"
        program(
            "bench.vllm_cpu",
            "eval",
            folder.name,
            *f"--checkpoint checkpoint-{step} --out {out} {VALIDATION} {data}".split(),
        )
        found = read_json(out / "eval.json")["benchmarks"]["gsm8k"]
        validation[str(step)] = {how: found[how]["pass@k"]["1"] for how in ("strict", "lenient")}
        validation[str(step)] |= {key: found[key] for key in ("format_rate", "truncation_rate", "mean_tokens")}
    run = read_json(folder / "run.json")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["model"]["model_name"], config["dataset"]["data_dir"] = Path(model).name, None
    record = {
        "schema_version": 1, "run": name, "processor": processor(), "seconds": round(time.monotonic() - begin),
        **{key: run.get(key) for key in ("git_commit", "packages", "hardware", "started", "gate", "peak_memory_bytes")},
        "config": config, "validation": validation,
        "curves": {k: [None if row.get(k) is None else float(f"{row[k]:.4g}") for row in rows] for k in CURVES},
    }  # fmt: skip
    keep_completions(name)
    if len(rows) != STEPS or len(step_tokens(name)) != STEPS:
        raise UserError(f"{folder}: {len(rows)} lines of metrics in place of {STEPS}; it is not recorded")
    write_text(OUT / f"{name}.json", json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
    shutil.rmtree(folder / "checkpoints")
    (UNFINISHED / f"{name}.jsonl.gz").unlink()
    print(f"{name}: recorded", flush=True)


def run(names: list[str], model: str, data: Path) -> None:
    """Make the runs that are not recorded; a seed stays on the kind of processor on which it began."""
    here = processor()
    for name in names or order():
        began = {read_json(OUT / f"{other}.json")["processor"] for other in recorded() if other[3:] == name[3:]}
        if began - {here}:
            print(f"{name}: its seed began on {began}, this is {here}: left out")
        elif name not in recorded():
            execute(name, model, data)


def main() -> None:
    """Run the command."""
    made = parser(__doc__, model="", data_dir=SHARED / "data", runs=[""], list=False)
    given = made.parse_args()
    if given.list:
        print("\n".join(f"{name} {'recorded' * (name in recorded())}" for name in order()))
    elif not given.model:
        made.error("--model: the folder of the model")
    else:
        run([name for name in given.runs if name], given.model, given.data_dir.resolve())


if __name__ == "__main__":
    main()
