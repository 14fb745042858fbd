"""Draw the figures of the documentation from committed files: `python docs/tools/figures.py`, into docs/figures/.

`--photographs` also takes those of pages, with Chromium: `gtpo view` on the run of results/published/collapse, and the
page of the README's comparison.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq
from matplotlib.patches import FancyBboxPatch

mpl.rcParams |= {
    "svg.hashsalt": "gtpo", "font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False,
    "axes.spines.right": False, "figure.facecolor": "white", "svg.fonttype": "path",
}  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED, FIGURES = ROOT / "results/published", ROOT / "docs/figures"
GREEN, RED, BLUE, GREY, ORANGE = "#2e7d32", "#c62828", "#1565c0", "#9e9e9e", "#ef6c00"
COLOURS = {
    "holds": GREEN,
    "better": GREEN,
    "equivalent": BLUE,
    "undecided": GREY,
    "refuted": RED,
    "withdrawn": "#000000",
}


LEGEND = (0, 30, 48, 72)
"""Where the four colours of the tokens are explained."""


def published(name: str) -> Any:
    """Return a committed JSON file."""
    return json.loads((PUBLISHED / f"{name}.json").read_text())


def save(figure: Any, name: str) -> None:
    """Write a figure; the same input gives the same bytes."""
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)


def tokens() -> None:
    """A right and a wrong answer of one prompt, each token with what GTPO does to it."""
    group = published("demo/group")
    chosen = [next(c for c in group["completions"] if (c["accuracy"] > 0) == right and c["format"] == 10
                   and c["advantage"] * (1 if right else -1) > 0 and c["weight"].count(1.0) > 1)
              for right in (True, False)]  # fmt: skip
    figure, axes = plt.subplots(figsize=(9.2, 2.9))
    axes.set(xlim=(0, 100), ylim=(0, 33))
    axes.axis("off")
    axes.text(
        0,
        31,
        f"“{group['prompt'].splitlines()[-1]}”  One prompt, {len(group['completions'])} completions; two of them:",
    )
    for row, (completion, said) in enumerate(zip(chosen, ("right", "wrong"), strict=True)):
        y, x = 22 - 11 * row, 0.0
        axes.text(0, y + 4.4, f"{said}, advantage {completion['advantage']:+.2f}", weight="bold")
        for token, weight in zip(completion["tokens"], completion["weight"], strict=True):
            shown = token.replace("\n", "↵").replace("<|end|>", "<end>")
            width = 1.16 * len(shown) + 1.6
            up = completion["advantage"] > 0
            colour = (GREEN if up else BLUE) if weight != 1 else ("#a5d6a7" if up else "#ef9a9a")
            axes.add_patch(FancyBboxPatch((x, y), width - 0.5, 3.4, boxstyle="round,pad=0.1", color=colour))
            ink = "white" if weight != 1 else "black"
            centre = x + (width - 0.5) / 2
            axes.text(centre, y + 1.6, shown, ha="center", va="center", family="DejaVu Sans Mono", size=8, color=ink)
            x += width
    legend = (
        (GREEN, "pushed up twice (λ = 2)"),
        ("#a5d6a7", "pushed up"),
        (BLUE, "protected (λ = 0)"),
        ("#ef9a9a", "pushed down"),
    )
    for place, (colour, text) in enumerate(legend):
        axes.add_patch(FancyBboxPatch((LEGEND[place], 1), 2.4, 2.4, boxstyle="round,pad=0.1", color=colour))
        axes.text(LEGEND[place] + 3.6, 2.1, text, va="center", size=9)
    save(figure, "tokens")


def pipeline() -> None:
    """From a prompt to the loss; the boxes that differ from GRPO are coloured."""
    figure, axes = plt.subplots(figsize=(9.2, 1.9))
    axes.set(xlim=(-2, 102), ylim=(0, 20))
    axes.axis("off")
    boxes = (
        ("prompt", "white"), ("G completions\nand rewards", "white"), ("advantages\n(1)", "white"),
        ("conflict spans,\nweights (2, 3)", "#a5d6a7"), ("entropy gate\nand term (4–6)", "#90caf9"),
        ("loss\n(7)", "white"),
    )  # fmt: skip
    width = 14.6
    for place, (text, colour) in enumerate(boxes):
        x = place * (width + 2.4)
        axes.add_patch(
            FancyBboxPatch((x, 6), width - 1, 9, boxstyle="round,pad=0.3", facecolor=colour, edgecolor="black")
        )
        axes.text(x + (width - 1) / 2, 10.5, text, ha="center", va="center", size=8.5)
        if place:
            axes.annotate("", (x - 0.3, 10.5), (x - 3.2, 10.5), arrowprops={"arrowstyle": "->"})
    axes.text(50, 1.5, "coloured: what GTPO adds to GRPO. Numbers are the sections below.", ha="center", size=8.5)
    save(figure, "pipeline")


def forest() -> None:
    """Every primary test that measures accuracy: difference, interval, verdict."""
    answers, rows = published("claims/answers"), []
    for row in answers["first"]:
        test = row["effects"][0]
        if "pass@1" in test["measure"]:
            rows.append((f"{test['regime']}: {test['a']} − {test['b']}", test, row["verdict"]))
    for row in answers["second"]:
        if row["measure"].startswith("accuracy"):
            verdict = "undecided" if row["regime"] == "reuse-varied" else row["verdict"]  # docs/results.md says why
            rows.append((f"{row['regime']}: {row['a']} − {row['b']}", row, verdict))
    figure, axes = plt.subplots(figsize=(9.2, 0.34 * len(rows) + 1))
    axes.axvspan(-2, 2, color="#eeeeee")
    axes.axvline(0, color="black", linewidth=0.8)
    for place, (_, test, verdict) in enumerate(reversed(rows)):
        low, mean, high = (100 * test[key] for key in ("low", "difference", "high"))
        axes.plot([low, high], [place, place], color=COLOURS[verdict], linewidth=2.4)
        axes.plot(mean, place, "o", color=COLOURS[verdict])
        axes.text(13.5, place, verdict, va="center", size=9, color=COLOURS[verdict])
    axes.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)], size=8.5)
    axes.set(xlim=(-10, 18), xlabel="difference in accuracy, points, with 95 % interval; grey: within 2 points")
    save(figure, "forest")


def real() -> None:
    """Strict and lenient pass@1 of each run on a real model, with intervals, and the untrained model's of both."""
    runs = {"untrained": published("real/untrained")}
    runs |= {
        name: published(f"real/records/real-gsm8k-{name}")
        for name in ("gtpo-s1", "gtpo-s2", "grpo-s1", "grpo-s2", "sft-s1")
    }
    figure, axes = plt.subplots(figsize=(9.2, 2.6))
    for place, (name, record) in enumerate(runs.items()):
        found = record["summary"]["gsm8k"]
        strict, lenient = found["pass@k"]["1"], found["lenient"]["pass@k"]["1"]["mean"]
        colour = GREEN if "gtpo" in name else ORANGE if "grpo" in name else GREY
        axes.plot([place] * 2, [100 * strict["low"], 100 * strict["high"]], color=colour, linewidth=2.4)
        axes.plot(place, 100 * strict["mean"], "o", color=colour, label="strict, 95 %" if not place else None)
        axes.plot(
            place + 0.15, 100 * lenient, "D", color=colour, fillstyle="none", label="lenient" if not place else None
        )
    before = runs["untrained"]["summary"]["gsm8k"]
    for found, style in ((before, "--"), (before["lenient"], ":")):
        axes.axhline(100 * found["pass@k"]["1"]["mean"], color=GREY, linewidth=0.8, linestyle=style)
    axes.text(5.45, 100 * before["pass@k"]["1"]["mean"], "untrained,\nstrict", va="center", size=8.5)
    axes.text(5.45, 100 * before["lenient"]["pass@k"]["1"]["mean"], "untrained,\nlenient", va="center", size=8.5)
    axes.set_xticks(range(len(runs)), list(runs))
    axes.set(ylabel="pass@1, %", ylim=(0, None), xlim=(-0.5, 5.4))
    axes.legend(frameon=False, loc="upper right")
    save(figure, "real")


def loans() -> None:
    """How many times as long as GRPO's answers GTPO's and the gate's are, by step, a line a pair, for both loans."""
    found = published("real/arms/afterwards")["by step, means of five"]
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 2.8), sharey=True)
    for panel, (arm, title) in zip(axes, (("b - a", "GTPO"), ("d - a", "only the gate")), strict=True):
        for loan, colour in (("first", BLUE), ("second", ORANGE)):
            for place, ratios in enumerate(found[arm][loan].values()):
                steps, label = range(3, 3 + len(ratios)), None if place else f"{loan} loan"
                panel.plot(steps, [math.exp(ratio) for ratio in ratios], color=colour, linewidth=1.2, label=label)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set(title=title, xlabel="step (means of five)", yscale="log", ylim=(0.5, 4), xlim=(1, 40))
        panel.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        panel.minorticks_off()
    axes[0].set(ylabel="tokens, times GRPO's")
    axes[0].legend(frameon=False)
    save(figure, "loans")


def small() -> None:
    """Accuracy by sampled tokens of GTPO and GRPO, four steps a rollout: a thin line a run, a thick one the mean."""
    test = published("small/results")["tests"]["4 steps"]
    rows = pq.read_table(PUBLISHED / "small/runs.parquet").to_pylist()
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.0), width_ratios=(2, 1))
    ends: dict[str, list[float]] = {}
    for side, colour in (("a", GREEN), ("b", ORANGE)):
        arm, rate = test[side].split(" at ")
        mine = [row for row in rows if row["phase"] == "pairs" and (row["model"], row["steps"]) == ("130k", 4)
                and row["arm"] == arm and f"{row['rate']:.3g}" == rate]  # fmt: skip
        mine = sorted(mine, key=lambda row: row["seed"])[: test["pairs"]]
        sampled, right = (np.array([row[name] for row in mine]) for name in ("sampled", "validation"))
        axes[0].plot(sampled.T / 1e3, 100 * right.T, color=colour, linewidth=0.5, alpha=0.3)
        label = f"{arm.upper()}, rate {rate}"
        axes[0].plot(sampled.mean(0) / 1e3, 100 * right.mean(0), color=colour, linewidth=2.4, label=label)
        ends[side] = [100 * sum(row["lenient"]) / row["samples"] / len(row["lenient"]) for row in mine]
    low, high = min(map(min, ends.values())) - 1, max(map(max, ends.values())) + 1
    axes[1].plot([low, high], [low, high], color="black", linewidth=0.8)
    axes[1].plot(ends["b"], ends["a"], "o", color=BLUE, markersize=4, alpha=0.7)
    axes[0].set(xlabel="sampled tokens, thousands", ylabel="right, % (search set, strict)")
    axes[1].set(xlabel="GRPO at the end, %", ylabel="GTPO at the end, %", xlim=(low, high), ylim=(low, high))
    axes[0].legend(frameon=False)
    save(figure, "small")


def coverage() -> None:
    """Every simulated cell that can be judged, by kind of noise: false marks, coverage, and planned power."""
    cells = published("bench/coverage")["cells"]
    judged = [one for one in cells if one.get("judged") and one["kind"] not in ("missing", "chosen")]
    kinds = list(dict.fromkeys(one["kind"] for one in judged))
    figure, axes = plt.subplots(1, 3, figsize=(9.2, 3.2), width_ratios=(3, 3, 2))
    for panel, name, limit in ((axes[0], "marked", 6), (axes[1], "coverage", 93)):
        for place, kind in enumerate(kinds):
            mine = [one for one in judged if one["kind"] == kind and (name == "coverage" or not one["difference"])]
            heights = [100 * one[name] for one in mine]
            panel.plot(np.linspace(place - 0.3, place + 0.3, len(mine)), heights, ".", color=BLUE, markersize=3)
        panel.axhline(limit, color="black", linewidth=0.8, linestyle=":")
        panel.set_xticks(range(len(kinds)), kinds, rotation=90)
    axes[0].set(ylabel="equal ones marked, %", ylim=(0, None))
    axes[1].set(ylabel="coverage, %", ylim=(90, 100))
    power = [one for one in cells if one["kind"] == "power"]
    axes[2].plot([0, 100], [0, 100], color=GREY, linewidth=0.8)
    axes[2].plot([100 * one["planned"] for one in power], [100 * one["shown"] for one in power], "o", color=GREEN)
    axes[2].set(xlabel="planned power, %", ylabel="simulated power, %")
    figure.tight_layout()
    save(figure, "coverage")


def cell() -> None:
    """The parts of a cell of a comparison."""
    figure, axes = plt.subplots(figsize=(9.2, 1.8))
    axes.set(xlim=(0, 100), ylim=(0, 20))
    axes.axis("off")
    parts = ((15, "+1.2", "points more than the baseline,\nsame questions"),
             (48, "[-0.3, 2.7]", "95 % interval: questions, samples,\nfrom 3 seeds on training"),
             (83, "▲  ▼  ≈", "better, worse, equivalent;\nnothing: undecided"))  # fmt: skip
    for x, text, meaning in parts:
        axes.text(x, 15, text, ha="center", va="center", size=17, family="DejaVu Sans Mono")
        axes.annotate(meaning, (x, 12.4), (x, 4), ha="center", va="center", size=9, arrowprops={"arrowstyle": "->"})
    save(figure, "cell")


def exploit() -> None:
    """Share of problems that each attack is paid for, by four judges."""
    paid = published("bench/exploit")["paid"]
    attacks = ["copy", "rewritten copy", "list", "hedge", "everything", "constant", "words", "sum left undone"]
    figure, axes = plt.subplots(figsize=(9.2, 2.8))
    for place, (judge, colour) in enumerate(zip(paid, (GREEN, BLUE, ORANGE, RED), strict=True)):
        label = "this project" if judge == "gtpo" else judge
        xs = [x + 0.2 * place - 0.3 for x in range(len(attacks))]
        axes.bar(xs, [100 * paid[judge][attack] for attack in attacks], 0.19, color=colour, label=label)
    axes.set_xticks(range(len(attacks)), attacks, size=8.5)
    axes.set(ylabel="problems paid, %")
    axes.legend(frameon=False)
    save(figure, "exploit")


def speed() -> None:
    """Time and memory of a step of GTPO, GRPO and GRPO with KL."""
    cases = {"lora, frozen head": "bench/step", "all weights": "bench/step"}
    shown = [(f"{name}\n(2 layers, 512)", published(file)["cases"][name]["median"]) for name, file in cases.items()]
    shown.append(
        ("lora, Qwen2.5-0.5B\nbfloat16", published("bench/step_bfloat16")["cases"]["lora, frozen head"]["median"])
    )
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 2.8))
    for place, (method, colour) in enumerate((("gtpo", GREEN), ("grpo", BLUE), ("grpo-kl", ORANGE))):
        xs = [x + 0.25 * place - 0.25 for x in range(len(shown))]
        label = {"gtpo": "GTPO", "grpo": "GRPO", "grpo-kl": "GRPO with KL"}[method]
        axes[0].bar(xs, [median[method]["cpu_seconds"] for _, median in shown], 0.24, color=colour, label=label)
        memory = [(median[method]["peak_bytes"] + median[method]["reference_bytes"]) / 2**20 for _, median in shown]
        axes[1].bar(xs, memory, 0.24, color=colour)
    for panel, title in zip(axes, ("processor seconds a step", "peak memory of a step, MiB"), strict=True):
        panel.set_xticks(range(len(shown)), [name for name, _ in shown], size=8)
        panel.set_title(title, size=10)
    axes[0].legend(frameon=False)
    save(figure, "speed")


def curves() -> None:
    """pass@k and maj@k over k of the demo's base and methods (seed 1), with intervals."""
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 2.8), sharey=True)
    for run, colour in (("demo-base", GREY), ("demo-sft-s1", BLUE), ("demo-grpo-s1", ORANGE), ("demo-gtpo-s1", GREEN)):
        found = published(f"demo/{run}/eval")["benchmarks"]["arithmetic"]
        for panel, metric in zip(axes, ("pass@k", "maj@k"), strict=True):
            ks = sorted(map(int, found[metric]))
            mean, low, high = ([100 * found[metric][str(k)][key] for k in ks] for key in ("mean", "low", "high"))
            panel.plot(ks, mean, "o-", color=colour, label=run)
            panel.fill_between(ks, low, high, color=colour, alpha=0.12)
            panel.set(xscale="log", xlabel="k", title=metric)
            panel.set_xticks(ks, [str(k) for k in ks])
            panel.minorticks_off()
    axes[0].set(ylabel="%, arithmetic")
    axes[1].legend(frameon=False)
    save(figure, "curves")


RECORDED = (
    "gtpo compare examples/before.jsonl examples/after.jsonl",
    "gtpo eval --completions examples/after.jsonl --k 4",
    "gtpo plan --models --accuracy 0.6 --questions 64,500 --samples 4,16 --effect 5",
)
"""Commands whose real output the recording shows."""


def recording() -> None:
    """A terminal that runs the first commands: each line appears in its turn, and the whole stays for a while."""
    screen: list[tuple[float, str, bool]] = []  # (second, line, whether it was typed)
    second = 0.5
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        for command in RECORDED:
            done = subprocess.run(
                [sys.executable, "-m", *command.split()], cwd=folder, capture_output=True, text=True, check=True,
                env=os.environ | {"COLUMNS": "96"},
            )  # fmt: skip
            screen.append((second, f"$ {command}", True))
            lines = [part for line in done.stdout.splitlines() for part in textwrap.wrap(line, 96) or [""]]
            screen += [(second + 1, line, False) for line in lines]
            second += 3.5
    whole, height = second + 4, 20 * len(screen) + 24
    rows = []
    for row, (start, line, typed) in enumerate(screen):
        begin = f"{100 * start / whole:.1f}%,100%{{opacity:1}}"
        rows.append(f"<style>@keyframes l{row}{{0%,{100 * start / whole - 0.1:.1f}%{{opacity:0}}{begin}}}</style>")
        style = f"animation:l{row} {whole:g}s infinite" + (";fill:#8fd19e" if typed else "")
        rows.append(f'<text x="14" y="{26 + 20 * row}" xml:space="preserve" style="{style}">{html.escape(line)}</text>')
    (FIGURES / "recording.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {height}" role="img" '
        f'font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14" fill="#e6e6e6">'
        f'<title>What the first commands print</title><rect width="840" height="{height}" rx="8" fill="#1d2330"/>'
        + "".join(rows) + "</svg>\n",
        encoding="utf-8",
    )  # fmt: skip


def photograph_view() -> None:
    """Photograph the page of `gtpo view` on the published collapse."""
    from demo_evidence import chromium, save_screenshot

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "results/train/demo-collapse"
        shutil.copytree(PUBLISHED / "collapse", run)
        command = [sys.executable, "-m", "gtpo", "view", "demo-collapse"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
            with chromium(1100) as browser:
                browser.get(address)
                time.sleep(6)
                save_screenshot(browser, FIGURES / "view.png")
        finally:
            server.terminate()


def photograph_verdict() -> None:
    """Photograph the top of the page that the README's first command writes."""
    from demo_evidence import chromium, save_screenshot

    with tempfile.TemporaryDirectory() as folder:
        runs = [str(ROOT / f"examples/{name}.jsonl") for name in ("before", "after")]
        command = [sys.executable, "-m", "gtpo", "compare", *runs, "--html", "page.html"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with chromium(1000) as browser:
            browser.set_window_size(1000, 560)
            browser.get((Path(folder) / "page.html").as_uri())
            time.sleep(3)
            save_screenshot(browser, FIGURES / "verdict.png")


DRAWN = (recording, tokens, pipeline, forest, real, loans, small, coverage, cell, exploit, speed, curves)


def main() -> None:
    """Draw all of DRAWN."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", action="store_true", help="of gtpo view and of a comparison, with Chromium")
    options = parser.parse_args()
    for draw in (*DRAWN, *(photograph_view, photograph_verdict) * options.photographs):
        draw()


if __name__ == "__main__":
    main()
