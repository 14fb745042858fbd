"""A TRL script with GTPO: GRPOTrainer and GRPOConfig become GTPOTrainer and GTPOConfig, and nothing else changes.

python examples/trl_script.py                            # a tiny model built here, on a CPU, ten seconds
python examples/trl_script.py Qwen/Qwen2.5-0.5B-Instruct --steps 100
"""

import argparse
import tempfile

from datasets import Dataset

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.callbacks import Advice, CollapseWatch, ExactCheckpoints
from gtpo.config import BuiltModel
from gtpo.inputs.tiny import build_tiny_model
from gtpo.rewards import accuracy_reward, chat_messages, format_reward
from gtpo.rewards.data.arithmetic import arithmetic_problems


def main():
    """Train a few steps on embedded problems. Your own rows need the columns `prompt` and `answer`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a Hub name or a folder; default: a tiny model built here")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    problems = arithmetic_problems("train", 32)
    rows = Dataset.from_list([{"prompt": chat_messages(p.problem), "answer": p.answer} for p in problems])
    model, tokenizer = args.model, None
    if model is None:
        shape = BuiltModel(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        model, tokenizer = build_tiny_model(shape, max_seq_length=512, seed=0)
    config = GTPOConfig(
        output_dir=tempfile.mkdtemp(prefix="gtpo-"),
        preset="gtpo",
        objective={"gamma": 0.1},  # any field of gtpo.objective.Objective
        num_generations=4,
        per_device_train_batch_size=8,  # completions: two prompts of four
        max_completion_length=16 if args.model is None else 256,
        max_steps=args.steps,
        logging_steps=1,
        bf16=False,
        use_cpu=args.model is None,
        report_to="none",
    )
    trainer = GTPOTrainer(
        model,
        reward_funcs=[accuracy_reward, format_reward],
        args=config,
        train_dataset=rows,
        processing_class=tokenizer,
    )
    for part in (ExactCheckpoints, Advice, CollapseWatch):  # optional: what `gtpo train` watches with
        trainer.add_callback(part(trainer))
    trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            print(f"step {line['step']}: reward {line['reward']:.2f}, kept {line['gate/kept']:.2f}")


if __name__ == "__main__":  # the verifier starts worker processes
    main()
