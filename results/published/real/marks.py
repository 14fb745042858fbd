"""Compute the marks of the predictions in README.md beside this file, from the records in arms/ alone.

    python marks.py gather         move what arms.py and arms_cpu.py recorded into arms/completions.parquet
    python marks.py selection      stage 0: selection on log length, from arms/untrained.parquet
    python marks.py null           the primary test where nothing is to be found
    python marks.py lengths        stage 1 so far, without a test: tokens of each run, and the figure (matplotlib)
    python marks.py tests          stage 1, when all runs are recorded; --closed: those that are
    python marks.py afterwards     what no plan named: both loans side by side, power, accuracy at step 40

It needs numpy, scipy and pyarrow, and writes arms/COMMAND.json. At commit 7894f47 `python -m bench.arms_marks stage0`
samples the untrained model; arms.py beside this file makes the runs.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

OUT = Path(__file__).resolve().parent / "arms"
LN2 = float(np.log(2))
SEEDS = {**dict.fromkeys("abcd", range(3, 13)), "e": range(3, 11), "f": (3, 4, 5, 7, 8, 9, 13, 14, 15)}
WINDOW = slice(25, 35)
"""Steps 26 to 35, of which the primary measure takes the mean."""
MARGIN = 0.22
"""Equivalence, in the logarithm of mean tokens."""
FALL = 0.6
"""Difference that is not made by one run in three or fewer that falls; the null says why it is asked for."""
PREDICTED = {"conflict": (-0.01, 0.01), "gate": (0.005, 0.04), "format 10 or 0": (0.04, 99.0)}
"""Stage 0: rule -> the range of its selection on log length less that of grpo."""


def order() -> list[str]:
    """Return the runs in their order: of each seed (a), (b), (d), (e), then of each (c), (f); shuffled by the seed."""
    names = []
    for arms in ("abde", "cf"):
        for seed in range(3, 16):
            mine = [arm for arm in arms if seed in SEEDS[arm]]
            random.Random(f"arms {arms} {seed}").shuffle(mine)
            names += [f"{arm}-s{seed}" for arm in mine]
    return names


def recorded() -> list[str]:
    return [name for name in order() if (OUT / f"{name}.json").is_file()]


def gather() -> dict[str, Any]:
    """Move each run's completions into one file; of a run that was cut off it has the lengths only."""
    whole, tables = OUT / "completions.parquet", []
    if whole.is_file():
        tables.append(pq.read_table(whole))
    made = sorted(OUT.glob("?-s*.parquet"))
    tables += [pq.read_table(path).append_column("run", pa.array([path.stem] * pq.read_metadata(path).num_rows))
               for path in made]  # fmt: skip
    logs = sorted((OUT / "unfinished").glob("*.jsonl.gz"))
    for log in logs:
        # No step followed the last round, or the step that drew it had lost the weights.
        rounds = [json.loads(line)["ids"] for line in gzip.decompress(log.read_bytes()).splitlines()][:-1]
        rows = [{"step": at, "group": row // 8, "index": row % 8, "tokens": len(ids)}
                for at, each in enumerate(rounds, 1) for row, ids in enumerate(each)]  # fmt: skip
        tables.append(pa.Table.from_pylist([row | {"run": log.name.partition(".")[0]} for row in rows]))
    table = pa.concat_tables(tables, promote_options="default").sort_by([("step", "ascending"), ("run", "ascending")])
    codes = [name for name in table.column_names if name != "text"]
    pq.write_table(table, whole, compression="zstd", compression_level=19, use_dictionary=codes, data_page_size=2**26)
    for path in (*made, *logs):
        path.unlink()
    return dict(collections.Counter(sorted(table["run"].to_pylist())))


@functools.cache
def all_tokens(folder: Path) -> dict[str, np.ndarray]:
    """Return the mean tokens of each step of each run, also of those that were cut off."""
    found = pq.read_table(folder / "completions.parquet").group_by(["run", "step"]).aggregate([("tokens", "mean")])
    rows = sorted(zip(*(found[key].to_pylist() for key in ("run", "step", "tokens_mean")), strict=True))
    return {run: np.array([row[2] for row in its]) for run, its in itertools.groupby(rows, key=lambda row: row[0])}


def step_tokens(name: str) -> np.ndarray:
    """Return the mean tokens of each step of a run."""
    return all_tokens(OUT)[name]


def holm(p: list[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given."""
    order, adjusted = np.argsort(p), np.zeros(len(p))
    adjusted[order] = np.maximum.accumulate([(len(p) - rank) * p[at] for rank, at in enumerate(order)])
    return np.minimum(adjusted, 1.0).tolist()


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
        raise SystemExit("untrained.parquet: its advantages or its gate are not those of its rewards and entropies")
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
    seeds = [s for s in range(3, 13) if {f"{a}-s{s}", f"{b}-s{s}"} <= set(recorded())]
    of = [[np.log(step_tokens(f"{arm}-s{s}")[WINDOW].mean()) for s in seeds] for arm in (a, b)]
    return np.subtract(*of)


def tests(*, closed: bool) -> dict[str, Any]:
    """Return the marks of stage 1. closed: no run will be added; else all planned runs must be there."""
    missing = [name for name in order() if name not in recorded()]
    if missing and not closed:
        raise SystemExit(f"not computed before the end; not recorded: {' '.join(missing)}")
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


def lengths() -> dict[str, Any]:
    """Return the tokens of each run, also of those that were cut off, and draw them."""
    from matplotlib import pyplot as plt

    names = {"a": "(a) grpo", "b": "(b) gtpo", "c": "(c) conflict weights", "d": "(d) gate",
             "e": "(e) grpo, format 10 or 0", "f": "(f) dr_grpo"}  # fmt: skip
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharex=True, sharey=True)
    for axis, (arm, label) in zip(axes.flat, names.items(), strict=True):
        for name, found in all_tokens(OUT).items():
            if name[0] == arm:
                # Seeds of one machine have one colour.
                colour = "C0" if int(name[3:]) < 7 else "C1" if int(name[3:]) < 13 else "C2"
                axis.plot(range(1, len(found) + 1), found, "-" if name in recorded() else ":", color=colour, lw=1.2)
        axis.set(title=label, xlim=(1, 40), ylim=(0, 260))
    for axis in axes[1]:
        axis.set_xlabel("step")
    for axis in axes[:, 0]:
        axis.set_ylabel("tokens a completion")
    figure.tight_layout()
    figure.savefig(OUT / "lengths.png", dpi=75, metadata={"Software": None})
    return {name: {"steps": len(found), "tokens at 26 to 35": found[WINDOW].mean() if len(found) >= 35 else None,
                   "tokens at the last five": found[-5:].mean()} for name, found in all_tokens(OUT).items()}  # fmt: skip


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
        curves = json.loads((OUT.parent / f"records/real-gsm8k-{name}.json").read_text())["curves"]
        lengths = np.array(curves["metrics"]["completions/length"]["mean"])
        first.append(np.log([lengths[at : at + 10].mean() for at in range(20, 31)]))  # ten steps from 21 to 31 on
    runs = np.array(first)
    apart = (runs[:2, None, :, None] - runs[None, 2:, None, :]).ravel()
    noise = (runs - runs.mean(1, keepdims=True)).ravel()
    out: dict[str, Any] = {}
    for n in range(4, 11):
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


def rounded(value: Any) -> Any:
    """Return a number or an array of numpy as JSON holds it."""
    return np.round(value, 3).tolist() if isinstance(value, np.ndarray) else round(float(value), 5)


LOANS = {"first": range(3, 7), "second": range(7, 11)}
"""The seeds of each loan of a GPU."""
WINDOWS = ((16, 20), (16, 24), (16, 25), (21, 25), (26, 30), (26, 35), (31, 35))
"""First and last step."""


def pairs_with_grpo(arm: str, seeds: range) -> dict[int, np.ndarray]:
    """Return, by seed, the tokens of each step of the arm and of (a), as far as both runs go."""
    found, out = all_tokens(OUT), {}
    for seed in seeds:
        if {f"{arm}-s{seed}", f"a-s{seed}"} <= found.keys():
            both = found[f"{arm}-s{seed}"], found[f"a-s{seed}"]
            out[seed] = np.array([run[: min(map(len, both))] for run in both])
    return out


def side_by_side(arm: str, first: int, last: int) -> dict[str, Any]:
    """Return the pairs of both loans in a window of steps, as logarithms, and the exact test that the first's are larger.

    A pair counts if both of its runs reached the end of the window.
    """
    of = {loan: {seed: np.subtract(*np.log(pair[:, first - 1 : last].mean(1)))
                 for seed, pair in pairs_with_grpo(arm, seeds).items() if pair.shape[1] >= last}
          for loan, seeds in LOANS.items()}  # fmt: skip
    one, other = ([*pairs.values()] for pairs in of.values())
    out: dict[str, Any] = {"pairs": of, "times as long as (a)": [np.exp(np.mean(each)) for each in (one, other) if each]}
    if one and other:
        out["every pair of the first above"] = bool(min(one) > max(other))
        out["p, one-sided"] = stats.mannwhitneyu(one, other, alternative="greater", method="exact").pvalue
    return out


def power(d: np.ndarray, factor: float, level: float) -> float:
    """Return how often the plan's rule shows a true factor, if differences are normal with the spread of `d`."""
    drawn = np.random.default_rng(0).normal(np.log(factor), d.std(ddof=1), (100_000, len(d)))
    return float(((stats.ttest_1samp(drawn, 0, axis=1).pvalue < level) & (drawn.mean(1) > FALL)).mean())


def afterwards() -> dict[str, Any]:
    """Return what was looked at after the tests: descriptions without a verdict, in windows that were chosen afterwards.

    power: at 2.5 %, which Holm's correction asks of the smaller of two p-values.
    """
    fives = np.ones(5) / 5
    out: dict[str, Any] = {
        "windows": {f"{first} to {last}": {f"{arm} - a": side_by_side(arm, first, last) for arm in "bd"}
                    for first, last in WINDOWS},
        "by step, means of five": {
            f"{arm} - a": {loan: {seed: np.subtract(*[np.log(np.convolve(run, fives, "valid")) for run in pair])
                                  for seed, pair in pairs_with_grpo(arm, seeds).items() if pair.shape[1] >= 5}
                           for loan, seeds in LOANS.items()} for arm in "bd"},
        "power": {f"{a} - {b}": {str(factor): power(differences(a, b), factor, 0.025) for factor in (1.8, 2.0)}
                  for a, b in ("ba", "dc")},
    }  # fmt: skip
    ends = {name: json.loads((OUT / f"{name}.json").read_text())["validation"] for name in recorded()}
    right = {name: found["40"]["lenient"]["mean"] for name, found in ends.items() if "40" in found}
    untrained = json.loads((OUT.parent / "untrained.json").read_text())["summary"]["gsm8k"]["lenient"]["pass@k"]["1"]
    least = {name: np.convolve(step_tokens(name), fives, "valid").min() for name in recorded()}
    out["least mean of five steps"] = {"runs": len(least), "of any": min(least.values())}
    out["lenient pass@1 at step 40"] = {"runs": right, "mean": np.mean([*right.values()]), "untrained": untrained["mean"]}
    return out


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=("gather", "selection", "null", "lengths", "tests", "afterwards"))
    made.add_argument("--closed", action="store_true", help="no run will be added")
    given = made.parse_args()
    run = {"selection": selection_of_untrained, "null": null, "lengths": lengths, "gather": gather, "afterwards": afterwards}
    run["tests"] = lambda: tests(closed=given.closed)
    text = json.dumps(run[given.command](), indent=1, default=rounded) + "\n"
    if given.command != "gather":
        (OUT / f"{given.command}.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
