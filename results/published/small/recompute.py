"""Compute the tests of README.md beside this file from the Parquet files there, without gtpo.

    python recompute.py            compute them; exit code 1 if results.json has other numbers
    python recompute.py --write    write results.json
    python recompute.py --design   the primary test on pairs without a difference and with one, before any run
    python recompute.py --pack RECORDS.jsonl [--into credit.parquet]    put finished runs into runs.parquet, only

It needs numpy, scipy and pyarrow. Rates and numbers of pairs follow from the records by the functions of run.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
import pretrained
from driver import Records, read
from run import (
    ALPHA,
    FIRST_PAIR,
    LEAST,
    MOST,
    PAIRS,
    Run,
    accuracy,
    best_of,
    differences,
    grid_of,
    least_spread,
    pairs_needed,
    power,
    search_runs,
)

HERE = Path(__file__).parent
# Points within which two methods are equivalent.
MARGIN = 2.0
# Seeds of the presets of token credit.
CREDIT = 10
SECONDARY = ("8 steps", "1 step", "larger model", "common rate", "conflict weights", "gate", "against DAPO",
             "against Dr. GRPO")  # fmt: skip


def interval(d: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return Student's interval of a mean."""
    half = stats.t.ppf((1 + level) / 2, len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5
    return float(d.mean() - half), float(d.mean() + half)


def equivalence_p(d: np.ndarray, margin: float = MARGIN) -> float:
    """Return the larger p of two one-sided t tests that the mean lies within the margin."""
    error = d.std(ddof=1) / len(d) ** 0.5
    return float(
        max(stats.t.sf((margin + d.mean()) / error, len(d) - 1), stats.t.sf((margin - d.mean()) / error, len(d) - 1))
    )


def equivalence_power(pairs: int, spread: float, margin: float = MARGIN) -> float:
    """Return the chance that equal methods are called equivalent."""
    rng = np.random.default_rng(0)
    d = rng.normal(0, spread, (20_000, pairs))
    half = stats.t.ppf(0.95, pairs - 1) * d.std(1, ddof=1) / pairs**0.5
    return float((np.abs(d.mean(1)) + half < margin).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given."""
    order, adjusted = np.argsort(p), np.zeros(len(p))
    adjusted[order] = np.maximum.accumulate([(len(p) - rank) * p[at] for rank, at in enumerate(order)])
    return np.minimum(adjusted, 1.0).tolist()


def tested(d: np.ndarray) -> dict[str, Any]:
    """Return the paired t test of differences in points, and what it could have shown at their spread."""
    spread = float(d.std(ddof=1))
    return {
        "pairs": len(d), "difference": float(d.mean()), "spread": spread, "95 %": interval(d), "90 %": interval(d, 0.9),
        "p": float(stats.ttest_1samp(d, 0).pvalue), "p of equivalence": equivalence_p(d),
        "power for 1 point": power(len(d), spread), "power for equivalence": equivalence_power(len(d), spread),
    }  # fmt: skip


def design(draws: int = 20_000) -> dict[str, Any]:
    """Return how often the primary test marks equal methods and a difference of 1 point, by the spread of a pair.

    Pairs are normal; their number follows from the spread of the first LEAST of a draw, as in the plan.
    """
    rng, spreads = np.random.default_rng(1), np.linspace(0.2, 8, 400)
    needed = np.array([pairs_needed(spread) for spread in spreads])
    out: dict[str, Any] = {"spread shown with 90 %": {n: least_spread(n) for n in (LEAST, MOST)}}
    for spread in (1.2, 1.6, 2.0, 3.0, 4.5):
        d = rng.normal(0, spread, (draws, MOST))
        counts = needed[np.searchsorted(spreads, d[:, :LEAST].std(1, ddof=1)).clip(0, len(spreads) - 1)]
        shown = {"equal": 0, "1 point apart": 0}
        for count in np.unique(counts):
            its = d[counts == count, :count]
            for name, by in (("equal", 0.0), ("1 point apart", 1.0)):
                shown[name] += int((stats.ttest_1samp(its + by, 0, axis=1).pvalue <= ALPHA).sum())
        out[str(spread)] = {name: count / draws for name, count in shown.items()} | {
            "pairs": float(counts.mean()),
            "equal called equivalent": {n: equivalence_power(n, spread) for n in (LEAST, MOST)},
        }
    return out


def verdict(found: Mapping[str, Any], p: float, level: float = 0.05) -> str:
    """Return better, worse, equivalent or undecided. p: of the difference, corrected."""
    if p <= level:
        return "better" if found["difference"] > 0 else "worse"
    return "equivalent" if found["p of equivalence"] <= 0.05 else "undecided"


# -- from the records --------------------------------------------------------------------------------------------------


def chosen(records: Records, model: str, steps: int) -> dict[str, Any] | None:
    """Return the grid and each arm's rate; None before the end of the search of GTPO and GRPO."""
    grid, whole = grid_of(records, model, steps, ("gtpo", "grpo"))
    if not whole:
        return None
    arms = [arm for arm in ("gtpo", "grpo", "conflict", "gate", "dapo", "dr-grpo")
            if all(run.name in records for run in search_runs(model, steps, (arm,), grid))]  # fmt: skip
    rates = {arm: best_of(records, model, steps, arm, grid) for arm in arms}
    means = {arm: {f"{rate:.3g}": [accuracy(records[run.name]) for run in search_runs(model, steps, (arm,), (rate,))]
                   for rate in grid} for arm in arms}  # fmt: skip
    edge = [arm for arm, rate in rates.items() if rate in (grid[0], grid[-1])]
    return {"grid": grid, "rates": rates, "best at the edge": edge, "accuracy by rate": means}


def seeds_with(records: Records, *runs: Run) -> list[int]:
    """Return the seeds from FIRST_PAIR on, without a gap, of which all runs are recorded."""
    seeds = []
    for seed in range(FIRST_PAIR, FIRST_PAIR + MOST):
        if not all(run._replace(seed=seed).name in records for run in runs):
            break
        seeds.append(seed)
    return seeds


def contrasts(records: Records) -> dict[str, tuple[Run, Run, int]]:
    """Return, by name, the two runs that are compared (but for the seed) and the number of pairs that is planned."""
    out: dict[str, tuple[Run, Run, int]] = {}
    for name, model, steps in (
        ("4 steps", "130k", 4),
        ("8 steps", "130k", 8),
        ("1 step", "130k", 1),
        ("larger model", "2.2m", 4),
    ):
        if found := chosen(records, model, steps):
            one, other = (Run("pairs", model, 0, arm, steps, found["rates"][arm]) for arm in ("gtpo", "grpo"))
            out[name] = (one, other, PAIRS.get(name, LEAST))
    if "4 steps" not in out:
        return out
    gtpo, grpo, _ = out["4 steps"]
    if len(first := seeds_with(records, gtpo, grpo)[:LEAST]) == LEAST:
        out["4 steps"] = (gtpo, grpo, pairs_needed(float(differences(records, gtpo, grpo, first).std(ddof=1))))
    if gtpo.rate != grpo.rate:
        common = float(np.sqrt(gtpo.rate * grpo.rate))
        out["common rate"] = (gtpo._replace(rate=common), grpo._replace(rate=common), PAIRS["common rate"])
    rates = (chosen(records, "130k", 4) or {})["rates"]
    for name, one, other in (("conflict weights", "conflict", "grpo"), ("gate", "gate", "grpo"),
                             ("against DAPO", "gtpo", "dapo"), ("against Dr. GRPO", "gtpo", "dr-grpo")):  # fmt: skip
        if one in rates and other in rates:
            both = (Run("pairs", "130k", 0, arm, 4, rates[arm]) for arm in (one, other))
            out[name] = (*both, PAIRS["arms"])
    return out


def tests(records: Records) -> dict[str, Any]:
    """Return the primary and the secondary tests; one whose pairs are not complete is counted, not computed."""
    out: dict[str, Any] = {}
    for name, (one, other, planned) in contrasts(records).items():
        seeds = seeds_with(records, one, other)[:planned]
        whole = len(seeds) == planned and (name != "4 steps" or planned >= LEAST)
        about = {"a": f"{one.arm} at {one.rate:.3g}", "b": f"{other.arm} at {other.rate:.3g}", "planned": planned}
        if not whole:
            out[name] = about | {"recorded": len(seeds)}
            continue
        d = differences(records, one, other, seeds)
        rows = [[records[run._replace(seed=seed).name] for run in (one, other)] for seed in seeds]
        out[name] = about | tested(d) | {
            "ends": [float(np.mean([accuracy(pair[at]) for pair in rows])) for at in (0, 1)],
            "bases": mean_of_bases(records, one, seeds),
            "pairs over two bases": sum(pair[0]["base"] != pair[1]["base"] for pair in rows),
            "broken": [sum(pair[at]["status"] == "broken" for pair in rows) for at in (0, 1)],
        }  # fmt: skip
    if "p" in out.get("4 steps", {}):
        out["4 steps"]["verdict"] = verdict(out["4 steps"], out["4 steps"]["p"], ALPHA)
    corrected = holm([out.get(name, {}).get("p", 1.0) for name in SECONDARY])
    for name, p in zip(SECONDARY, corrected, strict=True):
        if "p" in out.get(name, {}):
            out[name] |= {"p, Holm": p, "verdict": verdict(out[name], p)}
    return out


def mean_of_bases(records: Records, one: Run, seeds: Sequence[int]) -> float | None:
    """Return the mean accuracy of the bases that pairs began from."""
    bases = [records.get(one._replace(seed=seed).base.name) for seed in seeds]
    return float(np.mean([accuracy(base) for base in bases if base])) if all(bases) else None


# -- by sampled tokens -------------------------------------------------------------------------------------------------


def curve(row: Mapping[str, Any]) -> np.ndarray:
    """Return tokens sampled so far, in millions, and strict accuracy in percent, at each validation [2, n]."""
    return np.array([np.array(row["sampled"]) / 1e6, 100 * np.array(row["validation"])])


def at_tokens(row: Mapping[str, Any], tokens: float) -> float:
    """Return the accuracy at a number of sampled tokens, in a straight line between validations."""
    return float(np.interp(tokens, *curve(row)))


def tokens_to_reach(curves: np.ndarray, level: float) -> float:
    """Return the tokens at which the mean of curves [runs, 2, n] first reaches a level; infinite if it does not."""
    sampled, right = curves.mean(0)
    above = np.flatnonzero(right >= level)
    if not above.size:
        return float("inf")
    at = int(above[0])
    if at == 0:
        return float(sampled[0])
    share = (level - right[at - 1]) / (right[at] - right[at - 1])
    return float(sampled[at - 1] + share * (sampled[at] - sampled[at - 1]))


def tokens_saved(ones: np.ndarray, others: np.ndarray, draws: int = 2000) -> dict[str, Any]:
    """Return the tokens that one method needs for the other's final accuracy, as a share of what the other needs.

    Curves [pairs, 2, n]. The level is the other's mean over its last three validations; both are read off mean curves.
    The interval resamples pairs; a draw in which the first method does not reach the level counts as infinite.
    """
    rng = np.random.default_rng(0)

    def share(pairs: np.ndarray) -> float:
        level = float(others[pairs, 1, -3:].mean())
        return tokens_to_reach(ones[pairs], level) / tokens_to_reach(others[pairs], level)

    found = [share(rng.integers(len(ones), size=len(ones))) for _ in range(draws)]
    low, high = np.quantile(found, [0.025, 0.975], method="closest_observation")
    return {"share": share(np.arange(len(ones))), "95 %": [float(low), float(high)]}


def by_tokens(records: Records, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the analyses by sampled tokens of the contrasts whose pairs are complete; found: their tests."""
    out: dict[str, Any] = {}
    reuse: dict[str, dict[str, list[float]]] = {}
    whole = {name: (one, other, seeds_with(records, one, other)[:planned])
             for name, (one, other, planned) in contrasts(records).items() if "p" in found[name]}  # fmt: skip
    budget = None
    if "8 steps" in whole:
        rows = [records[run._replace(seed=seed).name] for run in whole["8 steps"][:2] for seed in whole["8 steps"][2]]
        budget = min(row["sampled"][-1] for row in rows) / 1e6
    for name, (one, other, seeds) in whole.items():
        rows = [[records[run._replace(seed=seed).name] for run in (one, other)] for seed in seeds]
        ends = [min(row["sampled"][-1] for row in pair) / 1e6 for pair in rows]
        d = np.array([at_tokens(pair[0], end) - at_tokens(pair[1], end) for pair, end in zip(rows, ends, strict=True)])
        ones, others = (np.array([curve(pair[at]) for pair in rows]) for at in (0, 1))
        out[name] = {"at the same tokens": tested(d), "tokens, millions": float(np.mean(ends)),
                     "tokens for the other's accuracy": tokens_saved(ones, others)}  # fmt: skip
        if budget is not None and name in ("1 step", "4 steps", "8 steps"):
            reuse[name] = {
                run.arm: [at_tokens(pair[at], budget) for pair in rows] for at, run in ((0, one), (1, other))
            }
    if reuse:
        out["steps a rollout"] = {"tokens, millions": budget} | {
            name: {arm: [float(np.mean(values)), *interval(np.array(values))] for arm, values in arms.items()}
            for name, arms in reuse.items()
        }
    return out


def results(records: Records) -> dict[str, Any]:
    """Return all that README.md asks, as far as the records reach."""
    searches = {f"{model}, {steps} a rollout": chosen(records, model, steps)
                for model, steps in (("130k", 4), ("130k", 8), ("130k", 1), ("2.2m", 4))}  # fmt: skip
    found = tests(records)
    return {"runs": len(records), "searches": searches, "tests": found, "by tokens": by_tokens(records, found)}


def afterwards(records: Records, explored: Records) -> dict[str, Any]:
    """Return GTPO and its parts less GRPO, all at GTPO's rate, of the pairs in which GRPO was run at it too.

    No part of the plan. A gate that drops nothing is a null: its runs should end as GRPO's do.
    """
    gtpo, both = contrasts(records)["4 steps"][0], {**records, **explored}
    grpo = gtpo._replace(arm="grpo")
    seeds = seeds_with(both, gtpo, grpo)
    d = differences(both, gtpo, grpo, seeds)
    ends = [float(np.mean([accuracy(both[run._replace(seed=seed).name]) for seed in seeds])) for run in (gtpo, grpo)]
    parts = {}
    for arm in ("conflict", "gate"):
        run = gtpo._replace(arm=arm)
        if all(run._replace(seed=seed).name in records for seed in seeds):
            of = differences(both, run, grpo, seeds)
            parts[arm] = {**tested(of), "pairs without a difference": int(np.sum(of == 0))}
    kept = [share for row in records.values() if (row["phase"], row["arm"]) == ("pairs", "gate")
            for share in row["gate/kept"] if share is not None]  # fmt: skip
    return {"rate": gtpo.rate, **tested(d), "ends": ends, "of these pairs, each at its own rate": float(
        differences(both, *contrasts(records)["4 steps"][:2], seeds).mean()), "parts at this rate": parts,
        "completions that the gate keeps, %": 100 * float(np.mean(kept)) if kept else None}  # fmt: skip


def token_credit(records: Records, credit: Records) -> dict[str, Any]:
    """Return each preset of token credit, and the conflict weights, less GRPO in the same trainer, all at one rate.

    Exploratory: the arm `gate`, which drops nothing here, stands for GRPO. An arm without all CREDIT seeds is left out.
    """
    both, grpo = {**records, **credit}, Run("pairs", "130k", 0, "gate", 4, 2e-4)
    out: dict[str, Any] = {}
    for arm in ("rsi", "ntf", "entropy-band", "conflict"):
        seeds = seeds_with(both, grpo._replace(arm=arm), grpo)[:CREDIT]
        if len(seeds) == CREDIT:
            ends = [
                [accuracy(both[grpo._replace(arm=name, seed=seed).name]) for seed in seeds] for name in (arm, "gate")
            ]
            d = differences(both, grpo._replace(arm=arm), grpo, seeds)
            out[arm] = tested(d) | {"ends": [float(np.mean(end)) for end in ends]}
    return out


def real_model(records: Records) -> dict[str, Any]:
    """Return what pretrained.md asks, as far as the records reach: the search, then answers' length, then accuracy."""
    if not (bases := {row["base"]: row for row in records.values() if row["phase"] == "base"}):
        return {"runs": 0}
    steps = pretrained.steps_of_the_plan()
    grid, _ = pretrained.grid_of(records, steps)
    search: dict[str, dict[str, list[float]]] = {arm: {f"{rate:.3g}": [] for rate in grid} for arm in pretrained.ARMS}
    for run in pretrained.search_runs(steps, grid):
        if run.name in records:
            search[run.arm][f"{run.rate:.3g}"].append(accuracy(records[run.name]))
    rates = pretrained.rates_of(records, steps)
    no_pairs = f"no pairs: no gain of {pretrained.LIFT:g} points by both"
    found: dict[str, Any] = {
        "runs": len(records), "steps a rollout": steps,
        "warm starts": {name: {"search": pretrained.accuracy(base, "lenient_search"), "final": accuracy(base)}
                        for name, base in bases.items()},
        "accuracy by rate": search,
        "search": "not complete" if rates is None else rates or no_pairs,
    }  # fmt: skip
    count = pretrained.pairs_of_the_end(records, steps, rates) if rates else 0
    d = pretrained.differences(records, steps, rates, count) if rates else None
    if rates is None or d is None:
        return found
    pairs = [[records[pretrained.Run("pairs", "135m", pretrained.FIRST_PAIR + at, arm, steps, rates[arm]).name]
              for arm in ("gtpo", "grpo")] for at in range(count)]  # fmt: skip
    length = np.array([np.log(one["completions/length"][-1] / other["completions/length"][-1]) for one, other in pairs])
    primary = tested(d) | {
        "ends": [float(np.mean([accuracy(pair[at]) for pair in pairs])) for at in (0, 1)],
        "p of equivalence": equivalence_p(d, pretrained.MARGIN),
        "power for equivalence": equivalence_power(count, float(d.std(ddof=1)), pretrained.MARGIN),
    }
    level = pretrained.LOOK_LEVEL if count == pretrained.LOOK else pretrained.LEVEL
    outcome = verdict(primary, primary["p"], level)
    if outcome == "equivalent" and primary["power for equivalence"] < 0.5:
        outcome = "undecided"
    return found | {
        "log ratio of lengths, last ten steps": [float(length.mean()), *interval(length)],
        "primary": primary | {"verdict": outcome},
    }


def small(name: str, value: Any) -> Any:
    """Return a value of a record as the Parquet file holds it: strict scoring as one count, curves to four digits."""
    if name == "strict":
        return int(sum(value)) if isinstance(value, list) else value
    if isinstance(value, list) and not name.startswith("lenient"):
        return [None if each is None else float(f"{each:.4g}") if name != "sampled" else each for each in value]
    return value


def pack(lines: Path, file: Path) -> None:
    """Put the runs of a file of records into the Parquet file, beside those that it holds."""
    rows = sorted(read(lines, file).values(), key=lambda row: (row["started"], row["run"]))
    names = dict.fromkeys(name for row in rows for name in row)  # the first row, a base, has no curves
    table = pa.Table.from_pylist([{name: small(name, row.get(name)) for name in names} for row in rows])
    for at, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            kind = pa.int8() if field.name.startswith("lenient") else pa.float32()
            table = table.set_column(at, field.name, table[field.name].cast(pa.list_(kind)))
    pq.write_table(table, file, compression="zstd", compression_level=19)
    print(len(rows), "runs in", file)


def rounded(value: Any) -> Any:
    """Return a result with numbers as JSON holds them: five digits behind the point, infinity as text."""
    if isinstance(value, Mapping):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return "infinite" if np.isinf(value) else float(f"{value:.5g}")
    return value


def main() -> None:
    """Compute, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--design", action="store_true")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--into", default="runs.parquet", help="the file beside this one that --pack writes")
    given = parser.parse_args()
    if given.design:
        print(json.dumps(rounded(design()), indent=1))
        return
    if given.pack:
        pack(given.pack, HERE / given.into)
        return
    records, explored, credit, real = (
        read(Path("none"), HERE / f"{name}.parquet") for name in ("runs", "explored", "credit", "pretrained")
    )
    outside = {"afterwards": afterwards(records, explored), "token credit": token_credit(records, credit)}
    outside |= {"real model": real_model(real)}
    found = rounded(results(records) | outside)
    file = HERE / "results.json"
    if given.write:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    if json.loads(file.read_text()) != found:
        print("results.json has other numbers")
        sys.exit(1)


if __name__ == "__main__":
    main()
