"""A reward of your own, for `gtpo train` and for TRL's trainers alike.

    gtpo train CONFIG.yaml --trainer.reward_funcs gtpo.rewards.final_reward own_reward.brevity \
      --trainer.reward_weights 1 0.5

The name is `file.function` (or `package.module.function`); the working directory is searched.
"""

from gtpo.rewards import extract_answer
from gtpo.rewards.completions import completion_text


def brevity(completions, answer, log_metric=None, **columns):
    """Return up to 2 points for a short right-looking completion; None where there is nothing to score.

    completions: one per sample, messages or text. answer: the data set's column of golds; the others (id, solution,
    subject, level; in a script of TRL every column) come in `columns`. A score of None leaves the completion out, and
    is counted; it is not a 0.
    """
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = completion_text(completion)
        if gold is None:
            scores.append(None)
        elif extract_answer(text) is None:
            scores.append(0.0)
        else:
            scores.append(2.0 * max(0.0, 1.0 - len(text) / 2000))
    if log_metric is not None:  # a column `reward/brief` of metrics.jsonl
        known = [score for score in scores if score is not None]
        log_metric("reward/brief", sum(score > 1.0 for score in known) / max(1, len(known)))
    return scores
