"""Write the folders beside this file with the gtpo that runs it. README.md says which commit did; nothing else may.

python tests/golden/0.2/make.py FOLDER: the folder must not exist; its name stands in some of the files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "evalkit"))

CONFIG = """\
model:
  build: {hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2}
  max_seq_length: 96
dataset: {name: arithmetic, system_instruction: "", limit: 8, validation_problems: 2}
training:
  learning_rate: 1.0e-2
  num_generations: 4
  per_device_train_batch_size: 8
  max_steps: 4
  save_steps: 2
  max_prompt_length: 64
  max_completion_length: 6
  log_completions_steps: 2
health: {smoothing_steps: 2}
"""
# A checkpoint of step 3 lies within the round of sampling that feeds steps 1 to 4.
WITHIN_A_ROUND = (
    "--training.per_device_train_batch_size 4 --training.gradient_accumulation_steps 2 "
    "--training.steps_per_generation 4 --training.num_iterations 2 --training.save_steps 3 --training.max_steps 6"
)
# The program, killed when it samples after step 4.
KILLED = """
import os, signal, sys
from gtpo import GTPOTrainer, cli
plain = GTPOTrainer._calculate_rewards
def killed(self, *arguments):
    if self.state.global_step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *arguments)
GTPOTrainer._calculate_rewards = killed
sys.argv = ["gtpo", *sys.argv[1:]]
cli.app()
"""
SCRIPT = """
from datasets import Dataset
from gtpo import GTPOConfig, GTPOTrainer
from gtpo.callbacks import ExactCheckpoints, RunLog
def reward(completion_ids, **columns):
    return [float(sum(ids) % 7) for ids in completion_ids]
rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(8)]})
settings = GTPOConfig(output_dir="script", num_generations=4, per_device_train_batch_size=4, max_completion_length=6,
                      max_steps=2, logging_steps=1, bf16=False, use_cpu=True, report_to="none", save_strategy="steps",
                      save_steps=2, disable_tqdm=True)
trainer = GTPOTrainer("results/train/gtpo/final", reward, args=settings, train_dataset=rows)
trainer.add_callback(ExactCheckpoints(trainer))
trainer.add_callback(RunLog(trainer, "results/train/script", completions_steps=1))
trainer.train()
"""
RECORDED = [
    {"id": "a", "problem": "What is 3 + 4?", "gold": "7", "labels": [True, True, False],
     "completions": ["<reasoning>\n3+4=7\n</reasoning>\n<answer>7</answer>", "It is \\boxed{7}.", "I think 8"]},
    {"id": "b", "problem": "What is a third?", "gold": "\\frac{1}{3}", "finish_reasons": ["stop", "length", "stop"],
     "completions": ["<answer>1/3</answer>", "One third of one is", None], "errors": [None, None, "HTTP 500"]},
]  # fmt: skip


def main(home: Path) -> None:
    """Train, evaluate and compare in `home`."""
    home.mkdir(parents=True)
    os.chdir(home)
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", COLUMNS="160")
    (home / "run.yaml").write_text(CONFIG)
    (home / "recorded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RECORDED))
    gtpo("train run.yaml --run-name gtpo --training.eval_steps 2 --training.log_kl_steps 1")
    gtpo("train run.yaml --run-name grpo --method grpo --model.lora_rank 2 --training.beta 0.05")
    gtpo("train run.yaml --run-name sft --method sft --training.logging_steps 3")
    for run in ("gtpo", "grpo", "sft"):  # these resume from step 2; the end of a finished run is not resumed
        shutil.rmtree(home / f"results/train/{run}/checkpoints/checkpoint-4")
    within = f"train run.yaml --run-name within {WITHIN_A_ROUND}"
    assert python("-c", KILLED, *within.split()) == -signal.SIGKILL
    assert python("-c", SCRIPT) == 0
    sampled = "--benchmarks arithmetic --limit 4 --k 4 --max-tokens 6 --engine transformers --quiet"
    for run in ("gtpo", "grpo"):
        gtpo(f"eval {run} {sampled}")
    gtpo("eval --completions recorded.jsonl --k 3 --quiet")
    from servers import Server

    server = Server()
    gtpo(f"eval m --engine openai --base-url {server.url} --benchmarks arithmetic --limit 4 --k 2 --out "
         "results/eval/server --max-tokens 32 --quiet")  # fmt: skip
    server.close()
    with (home / "compare.json").open("w") as out:
        gtpo("compare gtpo grpo --format json", stdout=out)
    gtpo("doctor --out doctor.json")
    for card in home.rglob("README.md"):  # of peft and TRL; nothing reads them
        card.unlink()


def gtpo(words: str, **options: object) -> None:
    """Run a command, which must succeed."""
    assert python("-m", "gtpo", *words.split(), **options) == 0, words


def python(*words: str, **options: object) -> int:
    """Return the exit code of Python with these arguments."""
    return subprocess.run([sys.executable, *words], **options).returncode  # type: ignore[call-overload]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
