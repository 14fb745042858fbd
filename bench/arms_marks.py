"""What the runs of bench/arms.py say: the marks of the predictions in results/published/real/README.md.

`python -m bench.arms_marks stage0 --model FOLDER` samples the untrained model, if its parquet is not there yet, and
computes the selection on log length. `null` tries the primary test where nothing is to be found. `tests` marks stage 1.
All but the sampling read nothing but the records.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import stats

from bench.arms import ENVIRONMENT, OUT, TEXTS, UNFINISHED, order, recorded, step_tokens
from bench.common import SHARED, parser, rows_of
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_parquet, write_text
from gtpo.conflict import conflict_weights
from gtpo.evalkit.differences import holm
from gtpo.presets import LN2
from gtpo.rewards import accuracy_reward, format_reward
from gtpo.rewards.data.prompt import chat_messages

WINDOW = slice(25, 35)
"""Steps 26 to 35, of which the primary measure takes the mean."""
MARGIN = 0.22
"""Equivalence, in the logarithm of mean tokens."""
FALL = 0.6
"""Difference that is not made by one run in three or fewer that falls; the null says why it is asked for."""
PREDICTED = {"conflict": (-0.01, 0.01), "gate": (0.005, 0.04), "format 10 or 0": (0.04, 99.0)}
"""Stage 0: rule -> the range of its selection on log length less that of grpo."""


def sample_untrained(model: str, data: Path) -> list[dict[str, Any]]:
    """Return the first 96 training problems with 8 completions each, as ids, sampled by vLLM."""
    from vllm import LLM, SamplingParams

    problems = rows_of(data / "gsm8k_train.jsonl")[:96]
    torch.manual_seed(0)
    engine = LLM(model, dtype="bfloat16", max_model_len=768, enforce_eager=True)
    params = SamplingParams(n=8, temperature=1.0, max_tokens=256)
    found = engine.chat([chat_messages(row["problem"]) for row in problems], params)
    return [
        {"problem": row["problem"], "answer": row["answer"], "prompt": list(each.prompt_token_ids),
         "completions": [list(out.token_ids) for out in each.outputs]}
        for row, each in zip(problems, found, strict=True)
    ]  # fmt: skip


@torch.no_grad()
def mean_entropies(model: Any, prompt: list[int], completions: list[list[int]]) -> list[float]:
    """Return the mean entropy in nats of each completion's distributions: bfloat16 model, float32 logits."""
    past = model(torch.tensor([prompt]), logits_to_keep=1).past_key_values
    past.batch_repeat_interleave(len(completions))
    rows = [torch.tensor([prompt[-1], *ids[:-1]]) for ids in completions]  # what each token was drawn after
    past.crop(-1)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # behind a row's end: seen by none of its tokens
    hidden = model.model(padded, past_key_values=past).last_hidden_state
    head, out = model.lm_head.weight.float(), []
    for row, ids in zip(hidden, rows, strict=True):
        logs = torch.log_softmax(row[: len(ids)].float() @ head.T, -1)
        out.append(float(-(logs.exp() * logs).sum(-1).mean()))
    return out


def stage0(path: str, data: Path) -> None:
    """Sample 96 problems x 8 from the untrained model, and take the exact entropies of what it sampled."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    os.environ |= {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    sampled = UNFINISHED / "untrained.json"
    if not sampled.is_file():
        write_text(sampled, json.dumps(sample_untrained(path, data)))
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    rows = []
    for group, each in enumerate(read_json(sampled)):
        ids = [torch.tensor(row) for row in each["completions"]]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        form = np.array(format_reward(texts))
        right = np.array(accuracy_reward(texts, [each["answer"]] * 8, prompts=[each["problem"]] * 8), float)
        a = advantages((form + right)[None])[0]
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).bool()
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        weights = conflict_weights(padded, mask, torch.tensor(a), 8).weights
        entropies = mean_entropies(model, each["prompt"], each["completions"])
        key = hashlib.sha256(each["problem"].encode()).hexdigest()[:12]
        for i, (entropy, row) in enumerate(zip(entropies, mask, strict=True)):
            rows.append({
                "step": 0, "group": group, "index": i, "problem": key, "tokens": len(ids[i]), "format": form[i],
                "accuracy": right[i], "reward": form[i] + right[i], "advantage": a[i], "entropy": entropy,
                "kept": entropy <= LN2, "mean_weight": float(weights[i][row].mean()),
                "text": texts[i] if i < TEXTS else None,
            })  # fmt: skip
        print(f"problem {group + 1} of 96", flush=True)
    write_parquet(OUT / "untrained.parquet", pa.Table.from_pylist(rows))
    sampled.unlink()


def advantages(rewards: np.ndarray) -> np.ndarray:
    """Return A [groups, G] of rewards [groups, G]."""
    return (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)


def selection(weights: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return, per group, the mean of weight x deviation of log length from the group's mean."""
    logs = np.log(tokens)
    return (weights * (logs - logs.mean(1, keepdims=True))).mean(1)


def interval(values: np.ndarray, level: float = 0.95) -> list[float]:
    """Return the mean and its t interval."""
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return [values.mean(), values.mean() - half, values.mean() + half]


def selection_of_untrained() -> dict[str, Any]:
    """Return the selection on log length of each rule, and its difference from grpo."""
    table = pq.read_table(OUT / "untrained.parquet")
    [form, right, tokens, entropy, lam, logged, kept] = (
        np.array(table[key].to_pylist(), float).reshape(-1, 8)
        for key in ("format", "accuracy", "tokens", "entropy", "mean_weight", "advantage", "kept")
    )
    a, whole = advantages(form + right), advantages(np.where(form == 10, 10.0, 0.0) + right)
    if np.abs(a - logged).max() > 1e-3 or (kept != (entropy <= LN2)).any():
        raise UserError("untrained.parquet: its advantages or its gate are not those of its rewards and entropies")
    rules = {"grpo": a, "conflict": a * lam, "gate": a * kept, "format 10 or 0": whole,
             "gtpo": (a - 0.1 * entropy) * kept * lam, "dr_grpo": a * tokens / tokens.mean()}  # fmt: skip
    of = {name: selection(weights, tokens) for name, weights in rules.items()}
    rng, apart = np.random.default_rng(0), np.ptp(form + right, axis=1)
    shuffled = [selection(rng.permuted(a, axis=1), tokens).mean() for _ in range(2000)]
    out: dict[str, Any] = {"groups": len(a), "tokens": tokens.mean(), "entropy": entropy.mean(), "kept": kept.mean(),
                           "groups of equal rewards": (apart == 0).mean(), "that differ by 1": (apart == 1).mean(),
                           "null of grpo, 95 %": np.quantile(shuffled, [0.025, 0.975]).tolist()}  # fmt: skip
    for name, values in of.items():
        out[name] = {"selection": interval(values), "less grpo": interval(values - of["grpo"])}
        if name in PREDICTED:
            low, high = PREDICTED[name]
            out[name] |= {"predicted": (low, high), "held": bool(low <= (values - of["grpo"]).mean() <= high)}
    return out


def differences(a: str, b: str) -> np.ndarray:
    """Return the log of mean tokens at steps 26 to 35 of arm a, less that of arm b, of each seed that both have."""
    seeds = [s for s in range(3, 9) if {f"{a}-s{s}", f"{b}-s{s}"} <= set(recorded())]
    of = [[np.log(step_tokens(f"{arm}-s{s}")[WINDOW].mean()) for s in seeds] for arm in (a, b)]
    return np.subtract(*of)


def tests(*, closed: bool) -> dict[str, Any]:
    """Return the marks of stage 1. closed: no run will be added; else all planned runs must be there."""
    missing = [name for name in order() if name not in recorded()]
    if missing and not closed:
        raise UserError(f"not computed before the end; not recorded: {' '.join(missing)}")
    pairs = {f"{a} - {b}": differences(a, b) for a, b in ("ba", "dc", "ca")}
    enough = {key: d for key, d in pairs.items() if len(d) >= 4}
    raw = [stats.ttest_1samp(enough[k], 0).pvalue if k in enough else 1.0 for k in ("b - a", "d - c")]
    p = dict(zip(("b - a", "d - c"), holm(raw), strict=True))  # over two, also if one could not be run
    out: dict[str, Any] = {"not run": missing, **{key: {"pairs": d.tolist()} for key, d in pairs.items()}}
    tried = null()
    for key, d in enough.items():
        low, high = interval(d, 0.9)[1:]
        held = high < MARGIN
        if key in p:
            false = [tried[f"{len(d)} pairs"][draw]["shown"] for draw in ("labels", f"own {key}")]
            held = p[key] < 0.05 and d.mean() > FALL and max(false) <= 0.05
        out[key] |= {"mean, 95 %": interval(d), "p, Holm": p.get(key), "held": bool(held)}
        out[key] |= {"equivalent": bool(low > -MARGIN and high < MARGIN)}
    tokens = {name: step_tokens(name) for name in recorded() if name[0] in "ef"}
    if ends := {name: found[WINDOW].mean() for name, found in tokens.items() if name[0] == "e"}:
        out["e"] = {"tokens at 26 to 35": ends, "held": bool(min(ends.values()) > 100)}
    fives = {name: np.convolve(found, np.ones(5) / 5, "valid").min() for name, found in tokens.items()}
    if least := {name: value for name, value in fives.items() if name[0] == "f"}:
        out["f"] = {"least mean of 5 steps": least, "held": bool(min(least.values()) > 12)}
    return out


def rejections(d: np.ndarray) -> dict[str, float]:
    """Return how often the t test over the rows' differences rejects, calls an effect shown, or equivalent."""
    p, mean, n = stats.ttest_1samp(d, 0, axis=1).pvalue, d.mean(1), d.shape[1]
    half = stats.t.ppf(0.95, n - 1) * d.std(1, ddof=1) / n**0.5
    found = {"p < .05": p < 0.05, "p < .05 upwards": (p < 0.05) & (mean > 0), "shown": (p < 0.05) & (mean > FALL)}
    return {key: value.mean() for key, value in (found | {"equivalent": np.abs(mean) + half < MARGIN}).items()}


def null() -> dict[str, Any]:
    """Try the primary test where nothing is to be found, on this regime's own noise: the first runs', then these runs'.

    labels: both runs of a pair are any of the four. skewed: GTPO - GRPO less the mean. margin: the same about the true
    difference 0.22. rare: GTPO's runs lie above GRPO's, but one in N falls to GRPO's length, so that the mean is 0.
    own: an arm's differences less their mean, which is not shown; a tenth of their spread keeps draws from being equal.
    """
    rng, first = np.random.default_rng(0), []
    for name in ("gtpo-s1", "gtpo-s2", "grpo-s1", "grpo-s2"):
        curves = read_json(OUT.parent / f"records/real-gsm8k-{name}.json")["curves"]
        lengths = np.array(curves["metrics"]["completions/length"]["mean"])
        first.append(np.log([lengths[at : at + 10].mean() for at in range(20, 31)]))  # ten steps from 21 to 31 on
    runs = np.array(first)
    apart = (runs[:2, None, :, None] - runs[None, 2:, None, :]).ravel()
    noise = (runs - runs.mean(1, keepdims=True)).ravel()
    out: dict[str, Any] = {}
    for n in (4, 5, 6):
        size = (20000, n)
        drawn = {"labels": rng.choice(runs.ravel(), size) - rng.choice(runs.ravel(), size)}
        drawn["skewed"] = rng.choice(apart - apart.mean(), size)
        drawn["margin"] = drawn["skewed"] + MARGIN
        for often in (3, 5, 10):
            falls = apart.mean() * (1 / often - (rng.random(size) < 1 / often))
            drawn[f"rare, 1 in {often}"] = falls + rng.choice(noise, size) - rng.choice(noise, size)
        for a, b in ("ba", "dc"):
            if len(d := differences(a, b)) >= 4:
                drawn[f"own {a} - {b}"] = rng.choice(d - d.mean(), size) + rng.normal(0, 0.1 * d.std(ddof=1), size)
        out[f"{n} pairs"] = {name: rejections(d) for name, d in drawn.items()}
    return out


def main() -> None:
    """Run the command."""
    made = parser(__doc__, model="", data_dir=SHARED / "data", closed=False)
    made.add_argument("command", choices=("stage0", "null", "tests"))
    given = made.parse_args()
    if given.command == "stage0":
        if not (OUT / "untrained.parquet").is_file():
            stage0(given.model, given.data_dir)
        found = selection_of_untrained()
    else:
        found = null() if given.command == "null" else tests(closed=given.closed)
    text = json.dumps(found, indent=1, default=lambda number: round(float(number), 5)) + "\n"
    write_text(OUT / f"{given.command}.json", text)
    print(text)


if __name__ == "__main__":
    main()
