"""Held-out problems of a training run, scored as `gtpo eval` scores a benchmark (strict scoring)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gtpo.evalkit.evaluation.scoring import count_votes, verify
from gtpo.evalkit.metrics import maj_at_all_k, pass_at_all_k
from gtpo.evalkit.statistics import Interval, mean_interval
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.extract import extract_answer
from gtpo.rewards.format import format_ok
from gtpo.rewards.verify import default_verifier


def score_held_out(problems: Sequence[Problem], completions: Sequence[Sequence[str]]) -> dict[str, Interval]:
    """Return pass@1, maj@k (k = samples per problem) and the share in format, each with its interval over problems.

    completions: per problem its k >= 1 sampled texts, equally many for each. Raises ValueError where they are not.
    """
    k = len(completions[0]) if completions else 0
    if len(problems) != len(completions) or not k or any(len(texts) != k for texts in completions):
        raise ValueError(f"{len(problems)} problems need equally many completions each, at least one")
    verifier = default_verifier()
    answers = [[extract_answer(text) for text in texts] for texts in completions]
    asked = [problem for problem in problems for _ in range(k)]
    verdicts = verify([answer for row in answers for answer in row], asked, "strict", verifier)
    grouped = [[str(verdict) for verdict in verdicts[at : at + k]] for at in range(0, len(verdicts), k)]
    votes = count_votes(list(zip(answers, grouped, problems, strict=True)), verifier)
    counts = [v.wrong for v in votes], [v.correct for v in votes], [v.abstentions for v in votes]
    rates = {
        "pass@1": pass_at_all_k([k] * len(votes), counts[1])[:, 0],
        f"maj@{k}": maj_at_all_k(*counts)[:, k - 1],
        "format": np.array([np.mean([format_ok(text) for text in texts]) for texts in completions]),
    }
    if k == 1:
        del rates["maj@1"]  # the same as pass@1
    return {name: mean_interval(values) for name, values in rates.items()}
