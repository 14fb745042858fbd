"""Make planned runs one after another, each in a process of its own, and record each that ends: for run.py and
pretrained.py beside it.

    python STUDY.py RECORDS.jsonl WORK [--jobs FILE] [--idle FILE] [--packed FILE.parquet] [--only RUN]

A finished run appends one line to RECORDS.jsonl; what stands there or in --packed is not made again, so that the same
command goes on after any end. WORK holds configs, weights and logs. While the file --idle exists, every process stands
still.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

Records = Mapping[str, Mapping[str, Any]]


# What a forked process finds imported; with it come torch, transformers and trl.
PRELOADED = ("gtpo.trainer", "gtpo.evalkit.engines.transformers")


class Study(NamedTuple):
    """What a plan gives the driver. A run has `phase` (base, search, pairs), `name`, `base`, and a record's fields."""

    planned: Callable[[Records], Iterator[Any]]
    """The runs in their order, as far as the records decide them; bases are made when a run needs them."""
    train: Callable[[Any], None]
    """Trains a run into results/train."""
    problem_sets: Callable[[], dict[str, list[Any]]]
    """`search` and `final`."""
    run_from: Callable[..., Any]
    """Makes a run of the words of --only."""
    batch: int
    """Completions of a rollout."""
    samples: int
    """Samples a problem of an evaluation."""


def read(records: Path, packed: Path | None) -> dict[str, dict[str, Any]]:
    """Return the records of finished runs by name; a line that was cut off is none.

    A base that was made again, with other weights, has its name; the ones before it have their fingerprint in it too.
    """
    rows = pq.read_table(packed).to_pylist() if packed and packed.is_file() else []
    for line in records.read_text().splitlines() if records.is_file() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        before = found.get(row["run"], row)
        found |= {f"{row['run']} {before['base']}": before} if before["base"] != row["base"] else {}
        found[row["run"]] = row
    return found


def command(*words: str) -> None:
    """Run a command of gtpo in this process. Raises SystemExit if it fails."""
    import typer

    from gtpo.cli import app

    try:
        app(list(words), standalone_mode=False)
    except typer.Exit as ended:
        if ended.exit_code not in (0, 4):  # 4: collapsed, which counts as it is
            raise SystemExit(ended.exit_code) from None


def fingerprint(base: Any) -> str:
    """Return 16 hex digits of a base's weights."""
    files = sorted(Path(f"results/train/{base.name}/final").glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def evaluate(study: Study, run: Any, name: str) -> dict[str, Any]:
    """Return right samples of each problem of a set, lenient and strict, by the last weights."""
    problems, out = study.problem_sets()[name], Path(f"results/eval/{run.name}-{name}")
    command("eval", run.name, "--checkpoint", "final", "--benchmarks", f"{name}.jsonl", "--k", str(study.samples),
            "--max-tokens", "48", "--quiet", "--out", str(out))  # fmt: skip
    rows = [row for part in (out / "samples").glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    right = {scoring: dict.fromkeys((problem.id for problem in problems), 0) for scoring in ("lenient", "strict")}
    for row in rows:
        for scoring, counts in right.items():
            if row[f"verdict_{scoring}"] in ("TIMEOUT", "", None):
                raise SystemExit(f"{run.name}: an answer is unscored")
            counts[row["question_id"]] += row[f"verdict_{scoring}"] == "CORRECT"
    if len(rows) != study.samples * len(problems):
        raise SystemExit(f"{run.name}: {len(rows)} samples in place of {study.samples * len(problems)}")
    counted = {scoring: list(counts.values()) for scoring, counts in right.items()}
    return {"set": name, "samples": study.samples, **counted, "tokens": float(np.mean([row["tokens"] for row in rows]))}


LOGGED = ("entropy/mean", "gate/kept", "conflict/fraction", "completions/length", "reward/accuracy", "reward/format",
          "groups/zero_variance")  # fmt: skip


def curves(study: Study, run: Any) -> dict[str, Any]:
    """Return steps, tokens sampled so far and strict accuracy at each validation; and means of the log between them."""
    folder = Path(f"results/train/{run.name}")
    about = json.loads((folder / "run.json").read_text())
    sampled, unscored, since = 0.0, 0.0, list[list[float]]()
    found: dict[str, list[Any]] = {"step": [0], "sampled": [0.0], "validation": [about["validation"]["untrained"]]}
    found |= {name: [] for name in LOGGED}
    for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        if "completions/length" in row:  # the first step of a rollout
            sampled += study.batch * row["completions/length"]
            unscored += row["reward/unscored"] + row["reward/timeout"]
            since.append([row.get(name, np.nan) for name in LOGGED])
        if "validation/pass@1" in row:
            for name, value in (("step", row["step"]), ("sampled", sampled), ("validation", row["validation/pass@1"])):
                found[name].append(value)
            means = np.mean(since, axis=0) if since else np.full(len(LOGGED), np.nan)
            for name, mean in zip(LOGGED, means, strict=True):
                found[name].append(None if np.isnan(mean) else round(float(mean), 5))
            since = []
    kept = {key: about.get(key) for key in ("status", "step", "initial_entropy", "gate")}
    return found | {"unscored": unscored, "about": json.dumps(kept)}


def execute(study: Study, run: Any, base: str) -> dict[str, Any]:
    """Train and evaluate; return the record. A run whose weights are no numbers any more has no answer right."""
    from gtpo.common.provenance import cpu_model, git_commit, now, package_versions

    record: dict[str, Any] = {**run._asdict(), "run": run.name, "base": base, "git_commit": git_commit()}
    record["started"] = now()
    record["machine"] = json.dumps({"cpu": cpu_model(), **package_versions("torch", "transformers", "trl", "gtpo")})
    name, status = "search" if run.phase == "search" else "final", "finished"
    try:
        study.train(run)
        record |= evaluate(study, run, name)
        if run.phase == "base":
            record |= {"lenient_search": evaluate(study, run, "search")["lenient"], "base": fingerprint(run)}
    except SystemExit as error:
        if run.phase == "base" or "no numbers" not in Path(f"results/train/{run.name}/run.json").read_text():
            raise SystemExit(f"{run.name}: {error}") from None
        status, nothing = "broken", [0] * len(study.problem_sets()[name])
        record |= {"set": name, "samples": study.samples, "lenient": nothing, "strict": nothing, "tokens": 0.0}
    if run.phase != "base":
        record |= curves(study, run)
    return record | {"status": status, "seconds": time.process_time()}


def child(study: Study, run: Any, base: str, records: Path) -> int:
    """Make a run in a forked process, with its output in a file; return its process id."""
    if made := os.fork():
        return made
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with Path(f"logs/{run.name}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            line = json.dumps(execute(study, run, base)) + "\n"
            if run.phase != "base":
                shutil.rmtree(f"results/train/{run.name}", ignore_errors=True)
            with records.open("a") as handle:  # one write: whole, or cut off and no JSON
                handle.write(line)
                handle.flush()
                os.fsync(handle.fileno())
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def next_run(study: Study, records: Records, busy: Mapping[int, Any], failed: set[str]) -> Any:
    """Return the next run that can start: its base if that is missing, else itself."""
    names = {run.name for run in busy.values()}
    for run in study.planned(records):
        if run.name in records or {run.name, run.base.name} & (names | failed):
            continue
        whole = run.base.name in records and Path(f"results/train/{run.base.name}/final").is_dir()
        return run if whole else run.base
    return None


def drive(study: Study) -> None:
    """Make what is planned and not recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--jobs", type=Path, help="a file that holds the number of processes, 1 without it")
    parser.add_argument("--idle", type=Path)
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--only", help="make one run, PHASE:MODEL:SEED:ARM:STEPS:RATE, whatever the plan says")
    given = parser.parse_args()
    paths = {key: value.resolve() for key in ("records", "jobs", "idle", "packed") if (value := getattr(given, key))}
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    (given.work / "logs").mkdir(parents=True, exist_ok=True)
    os.chdir(given.work)
    for name, problems in study.problem_sets().items():
        rows = ({"id": each.id, "problem": each.problem, "answer": each.answer} for each in problems)
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for module in PRELOADED:
        importlib.import_module(module)

    single = None
    if given.only:
        phase, model, seed, arm, steps, rate = given.only.split(":")
        single = [study.run_from(phase, model, int(seed), arm, int(steps), float(rate))]
    busy: dict[int, Any] = {}
    failed: set[str] = set()
    while True:
        records = read(paths["records"], paths.get("packed"))
        jobs = int(paths["jobs"].read_text()) if "jobs" in paths and paths["jobs"].is_file() else 1
        if "idle" in paths and paths["idle"].exists():
            for process in busy:
                os.kill(process, signal.SIGSTOP)
            while paths["idle"].exists():
                time.sleep(1)
            for process in busy:
                os.kill(process, signal.SIGCONT)
        run = None
        if len(busy) < jobs:
            if single is None:
                run = next_run(study, records, busy, failed)
            elif single[0].name not in records and not busy and not failed:
                base = single[0].base
                run = single[0] if Path(f"results/train/{base.name}/final").is_dir() else base
        if run is not None:
            base = "" if run.phase == "base" else fingerprint(run.base)
            busy[child(study, run, base, paths["records"])] = run
            print(time.strftime("%H:%M:%S"), "started", run.name, flush=True)
            continue
        if not busy:
            break
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            ended = busy.pop(process)
            failed |= {ended.name} if status else set()
            print(time.strftime("%H:%M:%S"), "FAILED" if status else "ended", ended.name, flush=True)
        else:
            time.sleep(1)
    print("not made:" if failed else "nothing left to make", *sorted(failed))
    sys.exit(bool(failed))
