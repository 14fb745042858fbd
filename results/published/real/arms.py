"""Make the runs of README.md beside this file, side by side on one GPU: arms/ holds what they record.

    python arms.py all MODEL DATA OUT --runs a-s7 b-s7 ... [--until SECONDS] [--at-once 16]

A process a run: `gtpo train`, whose completions `Sampler` draws. As one ends, the next of --runs starts if the time
left is 1.2 times that of the longest so far; after the last, `gtpo eval` of their checkpoints.
OUT/arms.tar, written again and again, holds the records, OUT/unfinished.tar what the runs that were cut off sampled.
gtpo and the folder of this file are on the PYTHONPATH; ARMS_COMMIT is the commit, the one that brings this file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path
from typing import Any

CONFIG = """\
method: gtpo
model: {dtype: bfloat16, max_seq_length: 768, lora_rank: 32, lora_alpha: 32}
dataset: {name: gsm8k, split: train}
trainer: {reward_funcs: [gtpo.rewards.accuracy_reward, gtpo.rewards.format_reward]}
rollout: {engine: transformers}
training:
  learning_rate: 5.0e-5
  lr_scheduler_type: constant_with_warmup
  adam_beta1: 0.9
  adam_beta2: 0.95
  max_grad_norm: 0.1
  num_generations: 8
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 2
  share_prefixes: true
  max_steps: 40
  max_prompt_length: 512
  max_completion_length: 256
  temperature: 1.0
  save_steps: 20
  save_total_limit: null
  log_completions_steps: 1
"""
"""bench/arms.yaml of 98ab998, but for the engine and the checkpoints, of which the validation needs two."""
ARMS = {
    "a": "--objective.preset grpo",
    "b": "--objective.preset gtpo --objective.filter always",
    "c": "--objective.preset gtpo-conflict-only",
    "d": "--objective.preset grpo --objective.filter always",
    "e": "--objective.preset grpo --trainer.reward_funcs gtpo.rewards.accuracy_reward arms.format_all_or_nothing",
    "f": "--method grpo --training.loss_type dr_grpo",
}
"""Arm -> its flags of `gtpo train`."""
STEPS, CHECKED = 40, (20, 40)
TEXTS = 4
"""Completions of a group whose text is kept: the records have 3 MB in all."""
EVERY = 16
"""Tokens after which the sampler looks whether all rows have ended."""
CURVES = ("loss", "grad_norm", "entropy/mean", "gate/kept", "conflict/fraction", "completions/truncated",
          "groups/zero_variance", "sampling/logp_difference", "time/step", "time/generation")  # fmt: skip


def format_all_or_nothing(completions: Any, **columns: Any) -> list[float]:
    """Return the format reward of arm (e): the paper's 10 for the full format, 0 for less."""
    from gtpo.rewards import format_reward

    return [10.0 if score == 10.0 else 0.0 for score in format_reward(completions)]


# -- sampling ----------------------------------------------------------------------------------------------------------


class Sampler:
    """Plain sampling at temperature 1 by the model that is trained; the next token of all rows is one CUDA graph.

    The adapter is merged into the base for the time of a round, and the base put back from a copy, without a drift.
    """

    def __init__(self, trainer: Any, rows: int, length: int) -> None:
        import torch
        from peft.tuners.lora import LoraLayer
        from transformers import StaticCache

        self.torch, self.model, self.length = torch, trainer.accelerator.unwrap_model(trainer.model), length
        self.base = self.model.get_base_model()
        self.device, self.tokens = self.base.device, trainer.max_completion_length
        self.eos = torch.tensor(sorted(trainer.eos_token_ids), device=self.device)
        self.layers = [m for m in self.model.modules() if isinstance(m, LoraLayer)]
        self.plain = [layer.get_base_layer().weight.detach().clone() for layer in self.layers]
        self.cache = StaticCache(config=self.base.config, max_cache_len=length)
        whole = {"device": self.device, "dtype": torch.long}
        self.now, self.position = torch.zeros(rows, 1, **whole), torch.zeros(rows, 1, **whole)
        self.column, self.at = torch.zeros(1, **whole), torch.zeros(1, **whole)
        self.seen = torch.zeros(rows, 1, 1, length, dtype=torch.bool, device=self.device)
        self.ids = torch.zeros(rows, self.tokens, **whole)
        self.logps = torch.zeros(rows, self.tokens, device=self.device)
        self.ended = torch.zeros(rows, 1, dtype=torch.bool, device=self.device)
        self.graph: Any = None

    def merge(self) -> None:
        for layer, plain in zip(self.layers, self.plain, strict=True):
            [name] = layer.active_adapters
            change = layer.lora_B[name].weight.float() @ layer.lora_A[name].weight.float() * layer.scaling[name]
            layer.get_base_layer().weight.data.copy_(plain.float() + change)

    def unmerge(self) -> None:
        for layer, plain in zip(self.layers, self.plain, strict=True):
            layer.get_base_layer().weight.data.copy_(plain)

    def forward(self, ids: Any, positions: Any, seen: Any) -> Any:
        """Return the last hidden state [rows, D] of ids [rows, n]; seen [rows, 1, n, length]: who attends to whom."""
        out = self.base.model(input_ids=ids, position_ids=positions, attention_mask={"full_attention": seen},
                              past_key_values=self.cache, use_cache=True)  # fmt: skip
        return out.last_hidden_state[:, -1]

    def draw(self, hidden: Any) -> None:
        """Draw the next token of each row and note it at column `at`."""
        torch = self.torch
        logps = torch.log_softmax(self.base.lm_head(hidden).float(), -1)
        noise = torch.empty_like(logps).exponential_().clamp_(min=1e-30).log_()
        ids = (logps - noise).argmax(-1, keepdim=True)
        self.ids.index_copy_(1, self.at, ids)
        self.logps.index_copy_(1, self.at, logps.gather(1, ids))
        self.ended.logical_or_(torch.isin(ids, self.eos))
        self.now.copy_(ids)
        self.at.add_(1)

    def step(self) -> None:
        """Compute the last token of each row and draw the one that follows."""
        self.seen.index_fill_(3, self.column, True)
        hidden = self.forward(self.now, self.position, self.seen)
        self.position.add_(1)
        self.column.add_(1)
        self.draw(hidden)

    def capture(self) -> None:
        """Record `step` as a CUDA graph."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.graph = graph

    def start(self, prompts: list[list[int]]) -> None:
        """Read the prompts, padded on the left, and draw the first token of each row."""
        torch, most = self.torch, max(map(len, prompts))
        padding = [most - len(prompt) for prompt in prompts]
        ids = torch.tensor([[0] * n + prompt for n, prompt in zip(padding, prompts, strict=True)], device=self.device)
        here = torch.arange(self.length, device=self.device)
        valid = (here[None, :] >= torch.tensor(padding, device=self.device)[:, None]) & (here < most)
        self.cache.reset()
        for tensor in (self.at, self.ended, self.ids):
            tensor.zero_()
        self.column.fill_(most)
        self.seen.copy_(valid[:, None, None])
        self.position.copy_(torch.tensor([[len(prompt)] for prompt in prompts]))
        # A row's padding attends to itself, so that it is a number.
        seen = (valid[:, None, None] & (here <= here[:most, None])) | (here == here[:most, None])
        positions = (here[None, :most] - torch.tensor(padding, device=self.device)[:, None]).clamp(min=0)
        self.draw(self.forward(ids, positions, seen))

    def __call__(self, prompts: list[list[int]], seed: int) -> tuple[list[list[int]], list[list[float]]]:
        """Return the ids of the completions with their end, and the log-probability of each token."""
        torch = self.torch
        self.model.eval()
        self.merge()
        with torch.no_grad(), self.model.disable_adapter():
            if self.graph is None and self.device.type == "cuda":
                self.start(prompts)
                self.capture()
            torch.manual_seed(seed)
            self.start(prompts)
            for number in range(1, self.tokens):
                if number % EVERY == 0 and bool(self.ended.all()):
                    break
                self.step() if self.graph is None else self.graph.replay()
        self.unmerge()
        self.model.train()
        eos, out = set(self.eos.tolist()), []
        for row in self.ids[:, : int(self.at)].tolist():
            out.append(row[: next((i + 1 for i, token in enumerate(row) if token in eos), len(row))])
        return out, [row[: len(ids)] for row, ids in zip(self.logps.tolist(), out, strict=True)]


def sample_here(log: Path, length: int, kind: Any = Sampler) -> None:
    """Let TRL's trainers draw by `kind`, and go on from the log of an earlier start.

    The random numbers of a round follow from its prompts and its number, so that the arms of a seed begin alike.
    """
    import torch
    from trl import GRPOTrainer

    lines = gzip.decompress(log.read_bytes()).splitlines() if log.is_file() else []
    rounds = [json.loads(line) for line in lines]
    state: dict[str, Any] = {"at": 0, "sampler": None}

    def generate(self: Any, prompt_ids: Any, images: Any, fields: Any, generations: int, *rest: Any) -> Any:
        at, seed = state["at"], zlib.crc32(json.dumps(prompt_ids).encode())
        state["at"] += 1
        if at < len(rounds) and rounds[at]["prompts"] == seed:
            ids, logps = rounds[at]["ids"], None
        else:
            if state["sampler"] is None:
                state["sampler"] = kind(self, len(prompt_ids), length)
            ids, logps = state["sampler"](prompt_ids, seed + 2 * at)
            with log.open("ab") as out:
                out.write(gzip.compress(json.dumps({"prompts": seed, "ids": ids}).encode() + b"\n"))
        torch.manual_seed(seed + 2 * at + 1)
        self.vllm_generation = None  # gtpo compares these log-probabilities with the trainer's, and stops at 0.1 nats
        return ids, logps

    GRPOTrainer._generate_single_turn = generate


# -- a run -------------------------------------------------------------------------------------------------------------


def train(name: str, model: str, data: str, *flags: str, kind: Any = Sampler) -> None:
    """Run `gtpo train` in this process."""
    import torch

    if torch.cuda.is_available():  # a run gives back what it does not use before it takes another one's part
        share = float(os.environ.get("ARMS_SHARE", "1")) * (1.6 if name[0] == "f" else 1)  # TRL keeps all logits
        torch.cuda.set_per_process_memory_fraction(min(share, 1))
    Path("arms.yaml").write_text(CONFIG)
    sample_here(Path(f"{name}.jsonl.gz"), 528, kind)  # the longest prompt has 268 tokens
    from gtpo.cli import app

    given = f"--run_name {name} --model.random_seed {name[3:]} --model.model_name {model} --dataset.data_dir {data}"
    app(["train", "arms.yaml", *given.split(), *ARMS[name[0]].split(), *flags])


def evaluation(name: str, step: int, data: str) -> list[str]:
    """Return the arguments of `gtpo eval` of a checkpoint."""
    validation = "--benchmarks gsm8k --limit 64 --k 4 --max-tokens 256 --engine transformers --batch-size 256"
    return f"eval {name} --checkpoint checkpoint-{step} --out {name}-{step} {validation} --data-dir {data}".split()


def keep_completions(name: str) -> None:
    """Write what is kept of a run's completions: numbers of all, texts of the first of each group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for path in sorted(Path(f"results/train/{name}/completions").glob("step-*.parquet")):
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
    pq.write_table(pa.Table.from_pylist(rows), f"arms/{name}.parquet", compression="zstd")


def record(name: str, processor: str = "") -> bool:
    """Write the record of a run, with the evaluations that are there; return whether the run has ended."""
    import yaml

    folder, validation = Path("results/train") / name, {}
    lines = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.is_file() else []
    if len(rows) != STEPS or len(list((folder / "completions").glob("step-*.parquet"))) != STEPS:
        return False
    if not Path(f"arms/{name}.parquet").is_file():
        keep_completions(name)
    for step in CHECKED:
        path = Path(f"{name}-{step}/eval.json")
        found = json.loads(path.read_text())["benchmarks"]["gsm8k"] if path.is_file() else {}
        if "strict" in found:  # else it is being written
            kept = {how: found[how]["pass@k"]["1"] for how in ("strict", "lenient")}
            validation[str(step)] = kept | {k: found[k] for k in ("format_rate", "truncation_rate", "mean_tokens")}
    run, config = json.loads((folder / "run.json").read_text()), yaml.safe_load((folder / "config.yaml").read_text())
    config["model"]["model_name"], config["dataset"]["data_dir"] = "qwen2.5-coder-0.5b", None
    text = {
        "schema_version": 1, "run": name, "processor": processor or "; ".join(run["hardware"].get("gpus", ["no GPU"])),
        "git_commit": os.environ.get("ARMS_COMMIT"),
        **{key: run.get(key) for key in ("packages", "hardware", "started", "gate", "peak_memory_bytes")},
        "config": config, "validation": validation,
        "curves": {k: [None if row.get(k) is None else float(f"{row[k]:.4g}") for row in rows] for k in CURVES},
    }  # fmt: skip
    Path(f"arms/{name}.json").write_text(json.dumps(text, separators=(",", ":")) + "\n")
    return True


# -- all of them -------------------------------------------------------------------------------------------------------


def pack(names: list[str], out: Path) -> list[str]:
    """Write the archives of OUT anew; return the runs that have ended."""
    ended = [name for name in names if record(name)]
    left = [Path(f"{name}.jsonl.gz") for name in names if name not in ended]
    archives = {"arms": Path("arms").iterdir(), "unfinished": [*Path().glob("*.log"), *left]}
    for archive, paths in archives.items():
        with tarfile.open(out / "part", "w") as tar:
            for path in sorted(paths):
                if path.is_file():
                    tar.add(path)
        (out / "part").replace(out / f"{archive}.tar")
    return ended


def steps(name: str) -> int:
    lines = Path(f"results/train/{name}/metrics.jsonl")
    return lines.read_text().count("\n") if lines.is_file() else 0


def all_runs(names: list[str], model: str, data: str, out: Path, until: float, width: int, flags: list[str]) -> None:
    """Make the runs, `width` at the same time, then their evaluations, as far as the time reaches."""
    began = time.monotonic()
    Path("arms").mkdir(exist_ok=True)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "ARMS_SHARE": str(0.93 / width)}

    def left() -> float:
        return until - (time.monotonic() - began)

    def queue(jobs: dict[str, list[str]], first: float) -> None:
        """Work through the jobs; none starts later than `first` seconds, or 1.2 times the longest, before the end."""
        waiting, longest, shown = list(jobs), first, time.monotonic()
        running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        while running or (waiting and left() > longest):
            while waiting and len(running) < width and left() > longest:
                name = waiting.pop(0)
                with open(f"{name}.log", "ab") as handle:
                    words = [sys.executable, *jobs[name]]
                    process = subprocess.Popen(words, stdout=handle, stderr=subprocess.STDOUT, env=environment)
                running[name] = process, time.monotonic()
            time.sleep(1)
            for name, (process, start) in list(running.items()):
                if process.poll() is None and left() > 12:
                    continue
                process.kill()  # does nothing to a process that has ended
                longest = max(longest, 1.2 * (time.monotonic() - start))
                print(f"{time.monotonic() - start:4.0f} s {name}: exit code {process.wait()}", flush=True)
                del running[name]
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                print(f"{shown - began:4.0f} s", *(f"{n}:{steps(n)}" for n in names if steps(n)), flush=True)
                pack(names, out)

    queue({name: [__file__, "one", model, data, name, *flags] for name in names}, 0)
    ended = pack(names, out)
    print(f"{time.monotonic() - began:.0f} s: {len(ended)} of {len(names)} runs ended", flush=True)
    checks = [(name, step) for step in reversed(CHECKED) for name in ended]
    queue({f"{name}-{step}": ["-m", "gtpo", *evaluation(name, step, data)] for name, step in checks}, 40)
    pack(names, out)
    print(f"{time.monotonic() - began:.0f} s: packed", flush=True)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=("all", "one"))
    made.add_argument("model")
    made.add_argument("data")
    made.add_argument("out", help="of `one`: the run's name")
    made.add_argument("--runs", nargs="+", default=[], help="a-s7 ...")
    made.add_argument("--until", type=float, default=500, help="seconds after which nothing runs any more")
    made.add_argument("--at-once", type=int, default=16)
    given, flags = made.parse_known_args()
    if given.command == "one":
        train(given.out, given.model, given.data, *flags)
    else:
        all_runs(given.runs, given.model, given.data, Path(given.out), given.until, given.at_once, flags)


if __name__ == "__main__":
    main()
