"""Which part of GTPO keeps answers long: the runs of results/published/real/README.md and what is computed from them.

`python -m bench.arms --command run --model FOLDER [--runs a-s3 ...]` makes the runs that are not recorded yet, in the
plan's order: `gtpo train` on bench/arms.yaml with the arm's switches, `gtpo eval` of steps 20 and 40, a record. What is
sampled is kept in arms/unfinished (bench/rollout_log.py), so that another machine can go on. `stage0` samples the
untrained model. `null` tries the tests where nothing is to be found, `tests` marks the predictions; both read the
records and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from scipy import stats

from bench.common import SHARED, parser, rows_of
from bench.rollout_log import VARIABLE
from gtpo.common.errors import UserError
from gtpo.common.files import read_json, write_parquet, write_text
from gtpo.conflict import conflict_weights
from gtpo.evalkit.differences import holm
from gtpo.presets import LN2
from gtpo.rewards import accuracy_reward, format_reward
from gtpo.rewards.data.prompt import chat_messages

OUT, TRAIN, EVAL = Path("results/published/real/arms"), Path("results/train"), Path("results/eval")
UNFINISHED = OUT / "unfinished"
OWN = "gtpo.rewards.accuracy_reward bench.arms.format_all_or_nothing"
ARMS = {
    "a": "--objective.preset grpo",
    "b": "--objective.preset gtpo --objective.filter always",  # H_ini is 0.40 to 0.41: `auto` would be on, too
    "c": "--objective.preset gtpo-conflict-only",
    "d": "--objective.preset grpo --objective.filter always",
    "e": f"--objective.preset grpo --trainer.reward_funcs {OWN}",
    "f": "--method grpo --training.loss_type dr_grpo",
}
"""Arm -> its flags of `gtpo train`."""
SEEDS = {**dict.fromkeys("abcd", range(3, 9)), **dict.fromkeys("ef", range(3, 6))}
VALIDATION = "--benchmarks gsm8k --limit 64 --k 4 --max-tokens 256 --engine vllm --data-dir"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "THP_MEM_ALLOC_ENABLE": "1",
               "MALLOC_MMAP_THRESHOLD_": "4194304"}  # fmt: skip
"""The last two are what gtpo asks for before it imports torch, which bench.rollout_log imports first."""
STEPS, CHECKED = 40, (20, 40)
WINDOW = slice(25, 35)
"""Steps 26 to 35, of which the primary measure takes the mean."""
MARGIN = 0.22
"""Equivalence, in the logarithm of mean tokens."""
FALL = 0.6
"""Difference that is not made by one run in three or fewer that falls; the null says why it is asked for."""
TEXTS = 4
"""Completions of a group whose text is kept: the records have 3 MB in all."""
CURVES = ("loss", "grad_norm", "entropy/mean", "gate/kept", "conflict/fraction", "completions/truncated",
          "groups/zero_variance", "sampling/logp_difference", "time/step", "time/generation")  # fmt: skip
PREDICTED = {"conflict": (-0.01, 0.01), "gate": (0.005, 0.04), "format 10 or 0": (0.04, 99.0)}
"""Stage 0: rule -> the range of its selection on log length less that of grpo."""


def format_all_or_nothing(completions: Any, **columns: Any) -> list[float]:
    """Return the format reward of arm (e): the paper's 10 for the full format, 0 for less."""
    return [10.0 if score == 10.0 else 0.0 for score in format_reward(completions)]


def order() -> list[str]:
    """Return the runs in their order: of each seed (a), (b), (d), (e), then of each (c), (f); shuffled by the seed."""
    names = []
    for arms in ("abde", "cf"):
        for seed in range(3, 9):
            mine = [arm for arm in arms if seed in SEEDS[arm]]
            random.Random(f"arms {arms} {seed}").shuffle(mine)
            names += [f"{arm}-s{seed}" for arm in mine]
    return names


def processor() -> str:
    """Return the kind of this machine's processor: its maker, and how it multiplies bfloat16."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    maker = re.search(r"vendor_id\s*: (\S+)", text)
    return f"{maker[1] if maker else '?'} {next((k for k in ('amx_bf16', 'avx512_bf16') if k in text), 'float32')}"


def program(module: str, *arguments: Any) -> None:
    """Run gtpo in a process of its own."""
    print("gtpo", *arguments, flush=True)
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=False)
    if done.returncode:
        raise UserError(f"gtpo {arguments[0]} ended with exit code {done.returncode}; the same command goes on")


def train(name: str, arm: str, seed: int, model: str, data: Path, *flags: Any) -> None:
    """Run `gtpo train`, with a log of what is sampled."""
    os.environ |= {**ENVIRONMENT, VARIABLE: str(UNFINISHED / f"{name}.jsonl.gz")}
    given = f"--run_name arms-{name} --model.random_seed {seed} --model.model_name {model} --dataset.data_dir {data}"
    program("bench.rollout_log", "train", "bench/arms.yaml", *given.split(), *ARMS[arm].split(), *flags)


def keep_completions(name: str) -> None:
    """Write what is kept of a run's completions: numbers of all, texts of the first TEXTS of each group."""
    rows = []
    for path in sorted((TRAIN / f"arms-{name}" / "completions").glob("step-*.parquet")):
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
    write_parquet(OUT / f"{name}.parquet", pa.Table.from_pylist(rows))


def execute(name: str, model: str, data: Path) -> None:
    """Train, evaluate and record one run. A run that was cut off goes on from what it sampled."""
    begin, folder, validation = time.monotonic(), TRAIN / f"arms-{name}", {}
    train(name, name[0], int(name[3:]), model, data)
    for step in CHECKED:
        out = EVAL / f"arms-{name}-{step}"
        program("gtpo", "eval", folder.name, *f"--checkpoint checkpoint-{step} --out {out} {VALIDATION} {data}".split())
        found = read_json(out / "eval.json")["benchmarks"]["gsm8k"]
        validation[str(step)] = {how: found[how]["pass@k"]["1"] for how in ("strict", "lenient")}
        validation[str(step)] |= {key: found[key] for key in ("format_rate", "truncation_rate", "mean_tokens")}
    run = read_json(folder / "run.json")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["model"]["model_name"], config["dataset"]["data_dir"] = Path(model).name, None
    record = {
        "schema_version": 1, "run": name, "processor": processor(), "seconds": round(time.monotonic() - begin),
        **{key: run.get(key) for key in ("git_commit", "packages", "hardware", "started", "gate", "peak_memory_bytes")},
        "config": config, "validation": validation,
        "curves": {k: [None if row.get(k) is None else float(f"{row[k]:.4g}") for row in rows] for k in CURVES},
    }  # fmt: skip
    keep_completions(name)
    if len(rows) != STEPS or len(step_tokens(name)) != STEPS:
        raise UserError(f"{folder}: {len(rows)} lines of metrics in place of {STEPS}; it is not recorded")
    write_text(OUT / f"{name}.json", json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
    shutil.rmtree(folder / "checkpoints")
    (UNFINISHED / f"{name}.jsonl.gz").unlink()
    print(f"{name}: recorded", flush=True)


def run(names: list[str], model: str, data: Path) -> None:
    """Make the runs that are not recorded; a seed stays on the kind of processor on which it began."""
    here = processor()
    for name in names or order():
        began = {read_json(OUT / f"{other}.json")["processor"] for other in recorded() if other[3:] == name[3:]}
        if began - {here}:
            print(f"{name}: its seed began on {began}, this is {here}: left out")
        elif name not in recorded():
            execute(name, model, data)


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


# -- computed from the records -----------------------------------------------------------------------------------------


def write(name: str, found: dict[str, Any]) -> None:
    text = json.dumps(found, indent=1, default=lambda number: round(float(number), 5))
    write_text(OUT / f"{name}.json", text + "\n")
    print(text)


def recorded() -> list[str]:
    return [name for name in order() if (OUT / f"{name}.json").is_file()]


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


def step_tokens(name: str) -> np.ndarray:
    """Return the mean tokens of each step of a run."""
    table = pq.read_table(OUT / f"{name}.parquet", columns=["step", "tokens"])
    step, tokens = (np.array(table[key].to_pylist()) for key in ("step", "tokens"))
    return np.array([tokens[step == at].mean() for at in np.unique(step)])


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
    for key, d in enough.items():
        low, high = interval(d, 0.9)[1:]
        held = high < MARGIN if key == "c - a" else p[key] < 0.05 and d.mean() > FALL
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
    made = parser(__doc__, command=("list", "run", "stage0", "null", "tests"), model="", data_dir=SHARED / "data",
                  runs=[""], closed=False)  # fmt: skip
    given = made.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if given.command in ("run", "stage0") and not given.model:
        made.error("--model: the folder of the model")
    if given.command == "list":
        print("\n".join(f"{name} {'recorded' * (name in recorded())}" for name in order()))
    elif given.command == "run":
        run([name for name in given.runs if name], given.model, given.data_dir.resolve())
    elif given.command == "stage0":
        if not (OUT / "untrained.parquet").is_file():
            stage0(given.model, given.data_dir)
        write("stage0", selection_of_untrained())
    else:
        write(given.command, null() if given.command == "null" else tests(closed=given.closed))


if __name__ == "__main__":
    main()
