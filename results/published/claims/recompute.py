"""Every primary test of both experiments, from the records alone: `python recompute.py`, with numpy, scipy and pyarrow.

A row of first.parquet or second.parquet is a run. answers.json names the tests and holds what was found; null.json says
which of them find their effect in noise too; README.md says what they test. Exit code 1 where a number differs.
"""

import json
import math
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy import optimize, special, stats

HERE, ALPHA = Path(__file__).parent, 0.05
MARGIN = 0.02  # accuracies of the first experiment within 2 points are equivalent
HORIZON = 20  # steps within which a loss counts as announced
ENTROPY, KL, VALIDATION = "entropy/mean", "kl/untrained", "validation/pass@1"
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>", "end")


def read(name):
    """(regime, method) -> seed -> run; `base` of a run is the row of the base that it started from."""
    rows, found = {row["run"]: row for row in pq.read_table(HERE / f"{name}.parquet").to_pylist()}, {}
    for row in rows.values():
        row["base"] = rows.get(row["base"])
        found.setdefault((row["regime"], row["method"]), {})[row["seed"]] = row
    return found


def curve(run, key):
    """Last step and mean of each block of steps that has a value."""
    pairs = [(s, v) for s, v in zip(run["last_step_of_block"], run[key], strict=True) if v is not None]
    return np.array(pairs, dtype=float).T


def running(values):
    """Mean of each value and the three before it, fewer at the start."""
    return np.convolve(values, np.ones(4))[: values.size] / np.minimum(np.arange(values.size) + 1, 4)


def at_end(run, key):
    """Mean of the last tenth of the blocks."""
    values = curve(run, key)[1]
    return values[-max(1, values.size // 10) :].mean()


def collapse_step(run):
    """Where the running accuracy reward falls below half of its best, if it ends there; else NaN."""
    steps, values = curve(run, "reward/accuracy")
    below = running(values) < 0.5 * np.maximum.accumulate(running(values))
    return steps[below][0] if below[-1] else math.nan


def lead(run):
    """Steps from entropy's half way to its value at the collapse to KL's; NaN without a collapse."""
    end, halves = collapse_step(run), []
    for key in (KL, ENTROPY):
        steps, values = curve(run, key)
        if math.isnan(end) or (steps <= end).sum() < 3:
            return math.nan
        way = running(values[steps <= end])
        way = np.abs(way - way[0])
        halves.append(steps[: way.size][way >= 0.5 * way[-1]][0])
    return halves[0] - halves[1]


def lost_at(run):
    """The step of the first validation below half of the base's accuracy; infinite where there is none."""
    (steps, values), base = curve(run, VALIDATION), run["base"]
    below = steps[values < 0.5 * np.mean(base["arithmetic:correct"]) / base["arithmetic:n"]]
    return below[0] if below.size else math.inf


MEASURES = {
    "entropy over training": lambda run: curve(run, ENTROPY)[1].mean(),
    "entropy at the end": lambda run: at_end(run, ENTROPY),
    "tags over training": lambda run: np.mean([run[f"tags:{tag}"][1:] for tag in TAGS]),  # without the start
    "lead of entropy over KL": lead,
    "accuracy over training": lambda run: curve(run, VALIDATION)[1].mean(),
    "accuracy at the end": lambda run: curve(run, VALIDATION)[1][-1],
    "log entropy at the end": lambda run: math.log(max(at_end(run, ENTROPY), 1e-4)),
    "log time to half of the accuracy": lambda run: math.log(min(lost_at(run), curve(run, VALIDATION)[0][-1])),
}


def verdict(row, new, p, same):
    """p: corrected. same: whether the difference is shown to lie within the margin."""
    if p <= ALPHA:
        return "holds" if row["expected"] * new["difference"] > 0 else "refuted"
    return ("equivalent" if row["expected"] else "holds") if same else "undecided"


def holm(p):
    """Holm's adjusted p-values."""
    order, out = np.argsort(p, kind="stable"), np.empty(len(p))
    out[order] = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1))
    return np.minimum(out, 1.0)


def crossed(a, b):
    """Compare two methods, scores [seeds, questions] each: difference, 95 and 90 % interval, p.

    A score test: the differences of the questions get the trinomial on {-scale, 0, scale} with their first two moments
    (Tango 1998). The variance of training is that between the paired seeds, less what samples and single questions
    leave in it. Reference: Cochran and Cox's quantile of Q - 1 and S - 1 degrees of freedom.
    """
    each, (s, q) = a - b, a.shape
    d = each.mean(0)
    left = each - each.mean(1)[:, None] - d + d.mean()
    of_seeds = each.mean(1).var(ddof=1) / s
    extra = max(of_seeds - (left**2).sum() / ((s - 1) * (q - 1) * q * s), 0.0)
    weight = min(of_seeds / (d.var(ddof=1) / q + extra), 1.0)
    total, squares, prior = abs(d.sum()), (d**2).sum(), 0.2 / (np.count_nonzero(d) + 0.2)
    # Few differences say little of how large they get: the scale moves towards 1.
    scale = min(size + (1 - size) * prior for size in (np.abs(d).max(), squares / total))
    less = max(squares / scale**2 - total / scale, 0.0) / 2
    down, up = sorted((less, less + total / scale), reverse=bool(d.sum() < 0))

    def statistic(delta):
        x = np.clip(delta / scale, -1, 1)
        linear = (2 * q - up + down) * x - up - down
        lost = (math.sqrt(linear**2 + 8 * q * down * x * (1 - x)) - linear) / (4 * q)
        variance = max(2 * lost + x * (1 - x), 1e-300) / (q - 1) + extra / scale**2
        return ((up - down) / q - delta / scale) / math.sqrt(variance)

    def quantile(tail):
        return (weight - 1) * special.stdtrit(q - 1, tail) - weight * special.stdtrit(s - 1, tail)

    t = abs(statistic(0.0))
    least, most = sorted(math.log(special.stdtr(freedom, -t)) for freedom in (q - 1, s - 1))
    tail = optimize.brentq(lambda x: quantile(math.exp(x)) - t, least - 1e-6, most + 1e-6)
    new = {"difference": d.mean(), "p": 2 * math.exp(tail)}
    for alpha, end in ((0.05, ""), (0.1, "_90")):
        for name, side, reach in (("low", -1.0, min), ("high", 1.0, max)):
            found = optimize.brentq(lambda x, alpha=alpha: abs(statistic(x)) - quantile(alpha / 2), d.mean(), side)
            new[name + end] = reach(found, 0.0) if new["p"] > alpha else found
    return new


def first(told, passes):
    """The primary test of each question at each scale: difference, intervals, p, Holm's p, verdict."""
    records, found = read("first"), []
    for test in (row["effects"][0] for row in told):
        a, b = records[test["regime"], test["a"]], records.get((test["regime"], test["b"]), {})
        seeds = sorted(set(a) & set(b) if b else a)
        benchmark, scored, _ = test["measure"].partition(":")
        if scored:  # pass@1
            name, n = f"{benchmark}:correct", a[seeds[0]][f"{benchmark}:n"]
            found.append(crossed(*(np.array([its[seed][name] for seed in seeds]) / n for its in (a, b))))
            found[-1]["seeds"] = len(seeds)
        else:
            measure = MEASURES[test["measure"]]
            d = np.array([measure(a[seed]) - (measure(b[seed]) if b else 0.0) for seed in seeds])
            d = d[~np.isnan(d)]
            flipped = np.abs(np.array(list(product((-1, 1), repeat=d.size))) @ d)
            p = (flipped >= abs(d.sum()) - 1e-7 * np.abs(d).max()).mean()
            mean, half = d.mean(), stats.t.ppf(0.975, d.size - 1) * stats.sem(d)
            found.append({"difference": mean, "low": mean - half, "high": mean + half, "p": p, "seeds": d.size})
    p, scales = np.array([new["p"] for new in found]), np.array([row["scale"] for row in told])
    for i, (row, new, joint) in enumerate(zip(told, found, holm(p), strict=True)):
        same, test = scales == scales[i], row["effects"][0]
        new |= {"p_joint": joint, "p_corrected": holm(p[same])[same[:i].sum()]}
        lost = [not math.isnan(collapse_step(run)) for run in records[test["regime"], test["a"]].values()]
        if not passes[row["question"], test["regime"]]:
            new["verdict"] = "withdrawn"  # it finds its effect in noise too
        elif row["stays"] and stats.binomtest(sum(lost), len(lost), 0.5, "greater").pvalue <= ALPHA:
            new["verdict"] = "refuted"  # the method that should stay accurate collapses too
        else:
            new["verdict"] = verdict(row, new, joint, max(-new.get("low_90", -1), new.get("high_90", 1)) < MARGIN)
    return found


def crossing(c, share):
    """The chance that a Brownian motion's |value| reaches c at `share` or, not yet there, at 1."""
    nodes, weights = np.polynomial.legendre.leggauss(96)
    x = c / math.sqrt(share) * nodes
    below, above = (stats.norm.cdf((end - math.sqrt(share) * x) / math.sqrt(1 - share)) for end in (-c, c))
    return 1 - c / math.sqrt(share) * (stats.norm.pdf(x) * (above - below) * weights).sum()


def bound(level, share):
    """The c whose crossing has the chance `level`."""
    return optimize.brentq(lambda c: crossing(c, share) - level, 0.5, 8.0)


def warning(records, regime, keys, seeds):
    """Difference of two indicators' AUC for a loss within HORIZON steps, and its jackknife error over seeds."""
    cases, n = {}, len(seeds)
    for (its, method), runs in records.items():
        for place, run in enumerate(runs[seed] for seed in seeds) if its == regime else ():
            lost, (steps, accuracy), series = lost_at(run), curve(run, VALIDATION), [curve(run, key) for key in keys]
            for t in (t for t in range(HORIZON, int(steps[-1]) - HORIZON + 1, HORIZON) if t < lost):
                moved = [abs(v[(s > t - HORIZON) & (s <= t)].mean() - v[s <= HORIZON].mean()) for s, v in series]
                level = accuracy[(steps > t - HORIZON) & (steps <= t)].mean()
                cases.setdefault((method, t), []).append((place, lost <= t + HORIZON, level, *moved))
    # [the first ranks a pair right, the second does, pairs; seed that loses its accuracy; seed that keeps it]
    counts = np.zeros((3, n, n))
    for found in (np.array(case).T for case in cases.values() if len(case) >= 5):
        who, event, level, x = found[0].astype(int), found[1] > 0, found[2] - found[2].mean(), found[3:]
        x = x - (x @ level / max(level @ level, 1e-12))[:, None] * level  # less what a line in accuracy explains
        above = np.sign(x[:, event][:, :, None] - x[:, ~event][:, None]) / 2 + 0.5
        for count, value in zip(counts, [*above, 1.0], strict=True):
            np.add.at(count, np.ix_(who[event], who[~event]), value)
    total = counts.sum((1, 2))
    rest = total[:, None] - counts.sum(1) - counts.sum(2) + counts.diagonal(0, 1, 2)  # without each seed
    return (total[0] - total[1]) / total[2], math.sqrt((n - 1) * ((rest[0] - rest[1]) / rest[2]).var())


def second(told):
    """Each primary test over its looks with O'Brien and Fleming's bounds: difference, interval, p, verdict."""
    records, found = read("second"), []
    for row in told:
        runs = {method: its for (regime, method), its in records.items() if regime == row["regime"]}
        seeds, half = sorted(set.intersection(*map(set, runs.values()))), -(-row["planned"] // 2)
        looks = [seeds[:half], seeds] if len(seeds) == row["planned"] else [seeds[:half]]
        early, reached, same = half / row["planned"], [], False
        bounds = [bound(level, early) for level in (ALPHA, 2 * ALPHA)]
        for its in looks:
            if measure := MEASURES.get(row["measure"]):
                each = [measure(runs[row["a"]][seed]) - measure(runs[row["b"]][seed]) for seed in its]
                d, error = np.mean(each), stats.sem(each)
            else:
                d, error = warning(records, row["regime"], (row["a"], row["b"]), its)
            root, freedom = math.sqrt(len(its) / row["planned"]), len(its) - 1
            wide, narrow = (stats.t.isf(stats.norm.sf(c / root), freedom) * error for c in bounds)
            same |= abs(d) + narrow < row["margin"]
            reached.append(root * stats.norm.isf(max(stats.t.sf(abs(d / error), freedom), 5e-16)))
        new = {"difference": d, "low": d - wide, "high": d + wide, "p": crossing(max(reached), early)}
        found.append(new | {"equivalent": same, "seeds": len(its), "looks": len(looks)})
    for row, new, p in zip(told, found, holm([new["p"] for new in found]), strict=True):
        new["verdict"] = verdict(row, new, p, new["equivalent"])
    return found


if __name__ == "__main__":
    answers, null = (json.loads((HERE / f"{name}.json").read_text()) for name in ("answers", "null"))
    passes = {(row["question"], row["regime"]): row["passes"] for row in null["first"]["tests"]}
    told = [{**row["effects"][0], **row} for row in answers["first"]] + answers["second"]
    equal = 0
    for row, new in zip(told, first(answers["first"], passes) + second(answers["second"]), strict=True):
        near = {key: math.isclose(new[key], row[key], rel_tol=1e-5, abs_tol=1e-9) for key in new if key != "verdict"}
        wrong = [key for key in new if not near.get(key, new[key] == row[key])]
        equal += not wrong
        numbers = "{difference:+9.4f} [{low:+9.4f}, {high:+9.4f}]  p {p:7.2g}  {verdict:10}".format(**new)
        print(f"{row['regime']:16}{row['claim']:76}{numbers}{f' DIFFERS: {wrong}' if wrong else ''}")
    print(f"all primary tests recomputed: {equal} of {len(told)} equal")
    sys.exit(equal < len(told))
