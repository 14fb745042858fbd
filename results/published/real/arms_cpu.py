"""Make the runs of a seed of README.md beside this file on a CPU, at the same time: arms/ holds what they record.

    python arms_cpu.py SEED[,SEED] MODEL DATA ARMS [--arms abde]

A process a run: `gtpo train` as arms.py starts it. This process draws the completions of all of them at once: a token
costs the reading of all weights, for 16 rows as for 64. Two runs at a time compute a gradient: more would not fit in the
memory of 24 GB. ARMS is the folder arms/ of a worktree of the commit that brought
this file, or a copy: the records go there, and what a run samples to ARMS/unfinished, from which a run that was cut off
goes on. gtpo and the folder of this file are on the PYTHONPATH; ARMS_COMMIT is the commit.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

import arms
import torch
from torch import Tensor, nn

TOKENS = 256
EVERY = 16  # tokens after which the rows that have ended are left out
# The last two: memory that a step has used goes back, and large blocks are in large pages.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "4194304",
               "THP_MEM_ALLOC_ENABLE": "1"}  # fmt: skip


class Adapted(nn.Module):
    """A linear layer for the rows of several runs, each of which adds its own adapter; nothing is merged."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        # [runs, D, r] and [runs, r, D'], B with its scale.
        self.a = self.b = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        plain = self.linear(x)
        inner = torch.bmm(x.reshape(len(self.a), -1, x.size(-1)), self.a)
        return plain + torch.bmm(inner, self.b).view_as(plain)


class Remote:
    """The sampler of a run's process: it sends its prompts and adapter to the process that draws."""

    line: Connection

    def __init__(self, trainer: Any, rows: int, length: int) -> None:
        from peft.tuners.lora import LoraLayer

        model = trainer.accelerator.unwrap_model(trainer.model)
        layers = model.get_base_model().named_modules()
        self.layers = {name: layer for name, layer in layers if isinstance(layer, LoraLayer)}
        self.eos = sorted(trainer.eos_token_ids)

    def __call__(self, prompts: list[list[int]], seed: int) -> tuple[list[list[int]], list[list[float]]]:
        """Return the ids of the completions with their end, and the log-probability of each token."""
        adapter = {}
        for name, layer in self.layers.items():
            [key] = layer.active_adapters
            a, b = layer.lora_A[key].weight.detach().T, layer.lora_B[key].weight.detach().T * layer.scaling[key]
            adapter[name] = tuple(part.bfloat16().contiguous().view(torch.int16).numpy() for part in (a, b))
        self.line.send({"prompts": prompts, "seed": seed, "eos": self.eos, "adapter": adapter})
        ids, logps = self.line.recv()
        return ids, logps


def gradients_in_turn(slot: Path) -> None:
    """Let runs that share a slot compute their gradients one after the other."""
    from gtpo.trainer import RunTrainer

    compute_loss, training_step, handle = RunTrainer.compute_loss, RunTrainer.training_step, slot.open("w")

    def loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        fcntl.flock(handle, fcntl.LOCK_EX)  # not before: the first micro-batch of a round waits for its completions
        return compute_loss(self, *args, **kwargs)

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return training_step(self, *args, **kwargs)
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)

    RunTrainer.compute_loss, RunTrainer.training_step = loss, step  # type: ignore[method-assign]


def put_adapters(model: Any, asked: list[dict[str, Any]]) -> None:
    """Let each run's rows have its adapter."""
    for name in asked[0]["adapter"]:
        layer = model.get_submodule(name)
        if not isinstance(layer, Adapted):
            layer = Adapted(layer)
            model.set_submodule(name, layer)
        parts = zip(*(one["adapter"][name] for one in asked), strict=True)
        layer.a, layer.b = (torch.stack([torch.from_numpy(p).view(torch.bfloat16) for p in part]) for part in parts)


@torch.no_grad()
def draw(model: Any, asked: list[dict[str, Any]]) -> list[tuple[list[list[int]], list[list[float]]]]:
    """Return what each run asked for: plain sampling at temperature 1, with random numbers of its own."""
    from transformers import StaticCache

    put_adapters(model, asked)
    prompts = [prompt for one in asked for prompt in one["prompts"]]
    most = max(map(len, prompts))
    cache, here = StaticCache(config=model.config, max_cache_len=most + TOKENS), torch.arange(most + TOKENS)
    padding = torch.tensor([most - len(prompt) for prompt in prompts])[:, None]
    valid = (here >= padding) & (here < most)
    # A row's padding attends to itself, so that it is a number.
    seen = (valid[:, None, None] & (here <= here[:most, None])) | (here == here[:most, None])
    ids = torch.tensor([[0] * (most - len(prompt)) + prompt for prompt in prompts])
    positions = (here[:most] - padding).clamp(min=0)
    each, eos = len(prompts) // len(asked), torch.tensor(asked[0]["eos"])
    random = [torch.rand(each, TOKENS, generator=torch.Generator().manual_seed(one["seed"])) for one in asked]
    chance, rows = torch.cat(random), torch.arange(len(prompts))
    drawn, logps = torch.zeros(len(prompts), TOKENS, dtype=torch.long), torch.zeros(len(prompts), TOKENS)
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for number in range(TOKENS):
        hidden = model.model(input_ids=ids, position_ids=positions, attention_mask={"full_attention": seen},
                             past_key_values=cache, use_cache=True).last_hidden_state[:, -1]  # fmt: skip
        odds = model.lm_head(hidden).float().softmax(-1)
        up_to = odds.cumsum(-1)
        ids = torch.searchsorted(up_to, chance[rows, number, None] * up_to[:, -1:]).clamp(max=odds.size(1) - 1)
        drawn[rows, number], logps[rows, number] = ids[:, 0], odds.gather(1, ids)[:, 0].log()
        ended[rows] |= torch.isin(ids[:, 0], eos)
        valid[:, most + number], positions = True, positions[:, -1:] + 1
        if bool(ended.all()):
            break
        if number % EVERY == EVERY - 1:
            kept = still_needed(~ended[rows].view(len(asked), -1))
            rows, ids, positions, valid = rows[kept], ids[kept], positions[kept], valid[kept]
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[kept], layer.values[kept]
        seen = valid[:, None, None]
    ends = set(asked[0]["eos"])
    whole = []
    for row, values in zip(drawn[:, : number + 1].tolist(), logps.tolist(), strict=True):
        size = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        whole.append((row[:size], values[:size]))
    parts = [whole[at : at + each] for at in range(0, len(whole), each)]
    return [([row for row, _ in part], [values for _, values in part]) for part in parts]


def still_needed(runs: Tensor) -> Tensor:
    """Return the indices of the rows to go on with, of rows [runs, n] that are True if they do not end: as many a run."""
    most = int(runs.sum(dim=1).max())
    kept = runs.int().argsort(dim=1, descending=True, stable=True)[:, :most].sort(dim=1).values
    return (kept + runs.size(1) * torch.arange(len(runs))[:, None]).flatten()


def processor() -> str:
    """Return the kind of this machine's processor: its maker, and how it multiplies bfloat16."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    maker = next(line.split(":")[1].strip() for line in text.splitlines() if line.startswith("vendor_id"))
    return f"{maker} {next((kind for kind in ('amx_bf16', 'avx512_bf16') if kind in text), 'float32')}"


def serve(lines: list[Connection], model: Any) -> None:
    """Answer the runs until all have ended: all at once, as soon as each that still runs has asked."""
    pending: dict[Connection, dict[str, Any]] = {}
    while lines:
        for line in wait([line for line in lines if line not in pending]):
            try:
                pending[line] = line.recv()  # type: ignore[index, union-attr]
            except EOFError:
                lines.remove(line)  # type: ignore[arg-type]
        if pending and len(pending) == len(lines):
            for line, answer in zip(pending, draw(model, list(pending.values())), strict=True):
                line.send(answer)
            pending.clear()


def runs(names: list[str], model: str, data: str, out: Path, threads: int, flags: list[str]) -> None:
    """Make the runs that OUT does not hold yet, at the same time, and record them."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    began = {json.loads(path.read_text())["processor"] for name in names for path in out.glob(f"?{name[1:]}.json")}
    if began - {processor()}:
        raise SystemExit(f"the seed began on {began}, this is {processor()}")
    names = [name for name in names if not (out / f"{name}.json").is_file()]
    unfinished = out / "unfinished"
    for folder in (unfinished, Path("arms")):
        folder.mkdir(parents=True, exist_ok=True)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    address, processes = str(Path("line").resolve()), {}
    Path(address).unlink(missing_ok=True)
    with Listener(address, "AF_UNIX") as listener:
        for number, name in enumerate(names):
            log = Path(f"{name}.jsonl.gz")  # `train` goes on from it and adds to it
            (unfinished / log).touch()
            log.unlink(missing_ok=True)
            log.symlink_to((unfinished / log).resolve())
            with open(f"{name}.log", "ab") as handle:
                words = [sys.executable, __file__, "run", name, f"slot{number % 2}", address, model, data, *flags]
                environment = os.environ | ENVIRONMENT | ({"OMP_NUM_THREADS": "2"} if len(names) == 1 else {})
                processes[name] = subprocess.Popen(words, stdout=handle, stderr=subprocess.STDOUT, env=environment)
        serve([listener.accept() for _ in names], base)
    for name, process in processes.items():
        code = process.wait()
        if arms.record(name, processor()):
            for ending in ("parquet", "json"):
                (out / f"{name}.{ending}").write_bytes(Path(f"arms/{name}.{ending}").read_bytes())
            (unfinished / f"{name}.jsonl.gz").unlink()
        print(f"{name}: exit code {code}, {arms.steps(name)} steps", flush=True)


def main() -> None:
    if sys.argv[1] == "run":
        name, slot, address, model, data, *flags = sys.argv[2:]
        gradients_in_turn(Path(slot))
        Remote.line = Client(address, "AF_UNIX")
        arms.train(name, model, data, *flags, kind=Remote)
        return
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("seeds")
    for name in ("model", "data", "out"):
        made.add_argument(name)
    made.add_argument("--arms", default="abde")
    made.add_argument("--threads", type=int, default=1, help="of the process that draws, while the others wait")
    given, flags = made.parse_known_args()
    names = [f"{arm}-s{seed}" for seed in given.seeds.split(",") for arm in given.arms]
    runs(names, given.model, given.data, Path(given.out), given.threads, flags)


if __name__ == "__main__":
    main()
