"""The log-probability of the format's tags over training: at each checkpoint, in right answers that no run produced.

For each held-out problem the worked solution is written in the format and fed to the policy; the log-probability of
each of the four tags, and of the end of the text, given what stands before it, is averaged over the problems. Reading
fixed texts keeps what is measured apart from what a policy happens to sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.data.prompt import chat_messages, target_text
from gtpo.rewards.data.word_problems import word_problems

PROBLEMS = 64
TASKS = {"arithmetic": arithmetic_problems, "word_problems": word_problems}


def tag_log_probabilities(folders: Sequence[Path], task: str) -> list[dict[str, float]]:
    """Mean log-probability in nats of each tag and of the end, for each folder of weights."""
    problems = TASKS[task]("test", PROBLEMS)
    return [_of_model(folder, problems) for folder in folders]


def _of_model(folder: Path, problems: Sequence[Problem]) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gtpo.inputs.tiny import TAGS

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = [
        [*chat_messages(problem.problem, ""),
         {"role": "assistant", "content": target_text(problem.solution.strip(), problem.answer)}]
        for problem in problems
    ]  # fmt: skip
    rows = [tokenizer.apply_chat_template(text, tokenize=True, return_dict=False) for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    attention = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    logp = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    out = {}
    for tag in TAGS:
        out[tag] = float(logp[ids[:, 1:] == tokenizer.convert_tokens_to_ids(tag)].mean())
    ends = attention.sum(1) - 2  # of the shifted log-probabilities: the last token of each row
    out["end"] = float(logp[torch.arange(len(rows)), ends].mean())
    return {name: float(f"{value:.4g}") for name, value in out.items()}
