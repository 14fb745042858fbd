"""What a real model costs on a CPU without a GPU: `python -m bench.laptop MODEL --data-dir DIR`.

Two measures, each of its contenders in turn, every one in a process of its own:

    gradient   one micro-batch forwards and backwards with LoRA: seconds, peak memory, and what is held afterwards;
               with glibc's own rule for large blocks, with `return_large_blocks`, and with `keep_large_blocks` after
               it, as a run that has the room
    sampling   `gtpo eval` with vLLM, some samples per question: seconds; with vLLM's KV blocks of 128 tokens, and of 32

The first micro-batch, in which the heap grows, is left out. Under `taskset -c N` and OMP_NUM_THREADS=1 on one core.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import merged, parser, save
from gtpo.common.files import read_json
from gtpo.common.processor import cpu_model, dtype_on_cpu, has_bfloat16

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TURNS = 2
MICRO_BATCHES = 3
HOW = ("glibc's default", "return_large_blocks", "keep_large_blocks")


def memory(name: str) -> float:
    """Return MiB of this process under a name of /proc/self/status."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def gradient(model_folder: str, rows: int, length: int, completion: int, how: str) -> dict[str, Any]:
    """Take some micro-batches of GRPO's loss, of lengths that differ a little; return what each took."""
    from gtpo.common.cpu_memory import keep_large_blocks, return_large_blocks

    if how != HOW[0]:
        return_large_blocks()
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    from gtpo.completions import group_advantages, prepare_completions
    from gtpo.fused import fused_loss
    from gtpo.presets import PRESETS

    dtype = dtype_on_cpu(AutoConfig.from_pretrained(model_folder))
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype))
    model: Any = get_peft_model(base, LoraConfig(r=32, lora_alpha=32, target_modules=TARGETS))
    head, objective = model.get_output_embeddings().weight, PRESETS["grpo"]
    if how == HOW[2]:
        keep_large_blocks()
    seconds = []
    for turn in range(MICRO_BATCHES):
        begin = time.monotonic()
        torch.manual_seed(turn)
        ids = torch.randint(0, 1000, (rows, length + 13 * turn))
        targets, mask = ids[:, -completion:], torch.ones(rows, completion, dtype=torch.bool)
        hidden = model.base_model.model.model(input_ids=ids, use_cache=False).last_hidden_state
        rewards = group_advantages(objective, torch.arange(rows).float(), rows)
        taken = prepare_completions(objective, rewards, targets, mask, rows)
        hidden = hidden[:, -completion - 1 : -1]
        found = fused_loss(objective, hidden, head, targets, mask, taken, rows, gate_active=False)
        found.loss.backward()
        seconds.append(time.monotonic() - begin)
        del hidden, found
    return {
        "dtype": dtype,
        "seconds": round(sum(seconds[1:]) / (MICRO_BATCHES - 1), 1),
        "peak_mib": round(memory("VmHWM")),
        "held_mib": round(memory("VmRSS")),
    }


def in_a_process(function: str, *arguments: Any) -> dict[str, Any]:
    """Return what a function of this module returns in a process of its own."""
    program = f"import json; from bench import laptop; print(json.dumps(laptop.{function}(*{arguments!r})))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def sampling(arguments: Sequence[str], block: int) -> dict[str, Any]:
    """Evaluate with vLLM's KV cache in blocks of some tokens."""
    program = f"from gtpo.common import vllm_cpu; vllm_cpu.KV_BLOCK = {block}; from gtpo.cli import app; app()"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-c", program, "eval", *arguments, "--out", str(out), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = read_json(out / "eval.json")
        (entry,) = record["benchmarks"].values()
    seconds = round(sum(record["benchmark_seconds"].values()), 1)
    return {
        "seconds": seconds,
        **{key: entry[key] for key in ("questions", "samples", "completion_tokens")},
        "lenient": entry["lenient"]["pass@k"]["1"]["mean"],
    }


def main() -> None:
    """Measure, print and save."""
    out = Path("results/bench/laptop.json")
    made = parser(__doc__, data_dir=Path, out=out, rows=4, length=400, completion=256, questions=4, k=16, tokens=32,
                  measures=["gradient", "sampling"])  # fmt: skip
    made.add_argument("model")
    asked = made.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    rows: list[dict[str, Any]] = []
    about = {"processor": cpu_model(), "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))}
    evaluated = [asked.model, "--benchmarks", "gsm8k", "--data-dir", str(asked.data_dir), "--engine", "vllm"]
    evaluated += ["--limit", str(asked.questions), "--k", str(asked.k), "--max-tokens", str(asked.tokens)]
    for turn in range(TURNS):
        for how in HOW if "gradient" in asked.measures else ():
            found = in_a_process("gradient", asked.model, asked.rows, asked.length, asked.completion, how)
            shape = {"rows": asked.rows, "length": asked.length, "completion": asked.completion}
            rows.append({"measure": "gradient", "how": how, "turn": turn, **shape, **about, **found})
            print(rows[-1], flush=True)
        for block in (128, 32) if "sampling" in asked.measures else ():
            found = sampling(evaluated, block)
            rows.append({"measure": "sampling", "how": f"blocks of {block}", "turn": turn, **about, **found})
            print(rows[-1], flush=True)
    rows = merged(asked.out, "rows", rows, lambda row: row["processor"])
    save(asked.out, {"multiplies_bfloat16": has_bfloat16(), "rows": rows})


if __name__ == "__main__":
    main()
