"""The texts of the experiments: worked solutions in which the tags are read, and solutions that share little.

The log-probability of the format's tags over training is read in right answers that no run produced: for each held-out
problem the worked solution is written in the format and fed to the policy, at each checkpoint. Reading fixed texts
keeps what is measured apart from what a policy happens to sample.

In `arithmetic` all answers to a problem are nearly the same text, which no language model's are. In the varied task two
right answers share few tokens besides the format: each equation stands among remarks that say nothing, drawn anew for
every solution out of `REMARKS` that begin with different words. A wrong target is wrong in its last digit only, so that
right and wrong answers end differently but for the last tag. Only the base reads this file (SFT on its solutions). The
runs from it train on `arithmetic`'s problems, with which it shares the held-out split.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from gtpo.common.files import write_text
from gtpo.rewards.data.arithmetic import arithmetic_problems
from gtpo.rewards.data.prompt import chat_messages, target_text
from gtpo.rewards.data.word_problems import TEXTS, word_problems

READ = 64
"""Problems whose solutions the tags are read in."""
TASKS = {"arithmetic": arithmetic_problems, "word_problems": word_problems}
FILE = Path("results/claims/varied.jsonl")
"""Where a base's config expects it. Written where it is missing: it follows from this module alone."""
PROBLEMS = 3000
REMARKS = 40
WORDS = 9
"""Words of a remark."""
BEFORE, BETWEEN = 6, 2
"""Remarks before the first equation, and after each."""
WRONG = 0.4
"""Share of solutions with a wrong last digit: what is left to learn."""


def remarks() -> list[str]:
    """REMARKS fixed texts of WORDS words of the word problems, no two with the same first word."""
    words = sorted(set(re.findall(r"[A-Za-z]{2,}", " ".join(re.sub(r"{\w}", " ", text) for text in TEXTS))))
    rng = random.Random("gtpo-varied-remarks")
    return [" ".join([first, *rng.sample(words, WORDS - 1)]) for first in rng.sample(words, REMARKS)]


def solution(worked: str, answer: str, rng: random.Random, wrong: bool) -> tuple[str, str]:
    """(solution, answer) with remarks around the equations of `worked`; wrong: the last digit is off by 1 to 9."""
    known = remarks()
    if wrong:
        other = answer[:-1] + str((int(answer[-1]) + rng.randint(1, 9)) % 10)
        worked, answer = worked.removesuffix(answer) + other, other
    lines = rng.sample(known, BEFORE)
    for equation in worked.split("\n"):
        lines += [equation, *rng.sample(known, BETWEEN)]
    return "\n".join(lines), answer


def write_varied(path: Path = FILE) -> None:
    """Write the problems with their solutions, one JSON object a line."""
    rng = random.Random("gtpo-varied")
    rows = []
    for problem in arithmetic_problems("train", PROBLEMS):
        text, answer = solution(problem.solution, problem.answer, rng, rng.random() < WRONG)
        rows.append({"id": problem.id, "problem": problem.problem, "answer": answer, "solution": text})
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def tag_log_probabilities(folder: Path, task: str) -> dict[str, float]:
    """Mean log-probability in nats of each tag, and of the end of the text, for a folder of weights.

    Each given what stands before it, averaged over the problems.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gtpo.inputs.tiny import TAGS

    problems = TASKS[task]("test", READ)
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
