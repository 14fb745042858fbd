"""Draw docs/architecture.svg: the rooms of tests/house.py floor by floor, and the three journeys.

`python docs/tools/architecture.py` writes it; a test holds it current and the journeys' places real.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from house import FLOORS  # noqa: E402

TARGET = ROOT / "docs/architecture.svg"

ROOMS = {
    "cli": "the commands: parse, print, exit",
    "gtpo": "public names",
    "gtpo.doctor": "self-test",
    "gtpo.run": "a run and its folder",
    "gtpo.integrations": "verl",
    "gtpo.trainer": "TRL's GRPOTrainer with our objective",
    "gtpo.plan": "what is said before a run",
    "gtpo.inputs": "model and data",
    "gtpo.fused": "the loss in one pass",
    "gtpo.kernels": "what is done to logits",
    "gtpo.entropy": "H_ini",
    "gtpo.objective": "gate, loss: the specification",
    "gtpo.config": "the YAML",
    "gtpo.completions": "one group, prepared",
    "gtpo.conflict": "conflict tokens",
    "gtpo.presets": "the switches",
    "evalkit": "public names",
    "gtpo.evalkit.report": "what is shown",
    "gtpo.evalkit.comparison": "gtpo compare",
    "gtpo.evalkit.evaluation": "gtpo eval",
    "gtpo.evalkit.results": "what is on disk",
    "gtpo.evalkit.engines": "what samples",
    "gtpo.evalkit.statistics": "intervals, tests",
    "gtpo.evalkit.metrics": "pass@k, maj@k",
    "gtpo.evalkit.permutation": "exact tests",
    "gtpo.evalkit.score_interval": "intervals",
    "rewards": "public names",
    "gtpo.rewards.functions": "TRL's signature",
    "gtpo.rewards.golds": "golds that cannot score",
    "gtpo.rewards.verify": "Verifier, Verdict",
    "gtpo.rewards.published": "the authors' rewards",
    "gtpo.rewards.loading": "by dotted path",
    "gtpo.rewards.verification": "bounds on work and time",
    "gtpo.rewards.equality.comparing": "answer against answer",
    "gtpo.rewards.equality.reading": "text to answer",
    "gtpo.rewards.equality.arithmetic": "term to value",
    "gtpo.rewards.data": "problems and prompts",
    "gtpo.rewards.extract": "find the answer",
    "gtpo.rewards.format": "the layout",
    "gtpo.rewards.completions": "text of a completion",
    "gtpo.rewards.checks": "one call before a run",
    "gtpo.rewards.text": "plain strings",
    "gtpo.common": "errors, files, versions",
}
"""Room -> what lives there."""


class Stop(NamedTuple):
    """One place on a journey."""

    what: str
    path: str
    name: str


JOURNEYS = {
    "A key into the loss": (
        Stop("read", "gtpo/config/load.py", "load_config"),
        Stop("resolved", "gtpo/config/resolve.py", "resolve"),
        Stop("handed over", "gtpo/run/trainer_arguments.py", "trainer_arguments"),
        Stop("an Objective", "gtpo/trainer/gtpo_config.py", "GTPOConfig"),
        Stop("coefficients", "gtpo/objective.py", "completion_coefficients"),
    ),
    "A prompt to the gradient": (
        Stop("a row", "gtpo/inputs/dataset.py", "to_row"),
        Stop("sampled, scored", "rewards/functions.py", "final_reward"),
        Stop("advantages, spans", "gtpo/completions.py", "prepare_completions"),
        Stop("gate, one pass", "gtpo/fused.py", "fused_loss"),
        Stop("backward", "gtpo/trainer/gtpo_trainer.py", "GTPOTrainer"),
    ),
    "A sample to a table cell": (
        Stop("sampled", "evalkit/engines/base.py", "Engine"),
        Stop("verified", "evalkit/evaluation/scoring.py", "verify"),
        Stop("stored", "evalkit/results/store.py", "EvalFolder"),
        Stop("pass@k, maj@k", "evalkit/evaluation/summary.py", "summarise"),
        Stop("tested", "evalkit/comparison/compare.py", "compare"),
    ),
}

COLOURS = {"cli": "#e8eaf6", "gtpo": "#fff3e0", "evalkit": "#e3f2fd", "rewards": "#e8f5e9"}
EDGES = {"cli": "#3f51b5", "gtpo": "#e08600", "evalkit": "#1976d2", "rewards": "#388e3c"}
WIDTH, MARGIN, GAP, HEIGHT = 1240, 20, 8, 44
LEFT, RIGHT = (MARGIN + 30, 640), (660, WIDTH - MARGIN)
"""From and to: gtpo's column and evalkit's. rewards spans both."""


def text(x: float, y: float, words: str, size: int = 13, style: str = "") -> str:
    """Return one centred line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="middle" {style}>{escape(words)}</text>'


def box(room: str, x: float, y: float, width: float) -> str:
    """Return one room: its name and what lives there."""
    package, _, name = room.partition(".")
    style = f'fill="{COLOURS[package]}" stroke="{EDGES[package]}"'
    middle = x + width / 2
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{HEIGHT}" rx="5" {style}/>'
        + text(middle, y + 18, name or package, 13, 'font-weight="bold"')
        + text(middle, y + 35, ROOMS[room], 11, 'fill="#444"')
    )


def row(rooms: list[str], span: tuple[int, int], y: float) -> str:
    """Return the rooms of one floor, side by side."""
    width = (span[1] - span[0] - GAP * (len(rooms) - 1)) / max(1, len(rooms))
    return "".join(box(room, span[0] + place * (width + GAP), y, width) for place, room in enumerate(rooms))


def journey(name: str, stops: tuple[Stop, ...], y: float) -> str:
    """Return one journey: its stops from left to right, with arrows between them."""
    out = [f'<text x="{LEFT[0]}" y="{y:.0f}" font-size="14" font-weight="bold">{escape(name)}</text>']
    width = (RIGHT[1] - LEFT[0] - 26 * (len(stops) - 1)) / len(stops)
    for place, stop in enumerate(stops):
        x, package = LEFT[0] + place * (width + 26), stop.path.partition("/")[0]
        out.append(
            f'<rect x="{x:.0f}" y="{y + 10:.0f}" width="{width:.0f}" height="58" rx="5" fill="{COLOURS[package]}" '
            f'stroke="{EDGES[package]}"/>'
        )
        middle = x + width / 2
        out.append(text(middle, y + 28, stop.what, 13, 'font-weight="bold"'))
        out.append(text(middle, y + 44, stop.path, 11, 'fill="#444"'))
        out.append(text(middle, y + 60, stop.name, 11, 'font-family="monospace" fill="#444"'))
        if place:
            out.append(f'<path d="M{x - 24:.0f} {y + 39:.0f} h18" stroke="#555" marker-end="url(#head)"/>')
    return "".join(out)


def drawing() -> str:
    """Return the picture."""
    out, y = [], MARGIN
    for line in FLOORS.strip().splitlines():
        rooms = line.split()
        left = [room for room in rooms if room.partition(".")[0] == "gtpo"]
        right = [room for room in rooms if room.partition(".")[0] == "evalkit"]
        if left or right:
            out += [row(left, LEFT, y), row(right, RIGHT, y)]
        else:
            out.append(row(rooms, (LEFT[0], RIGHT[1]), y))
        y += HEIGHT + GAP
    out.append(f'<path d="M{MARGIN + 8} {MARGIN} V{y - GAP - 6}" stroke="#555" marker-end="url(#head)"/>')
    out.append(
        f'<text transform="translate({MARGIN + 4} {y / 2:.0f}) rotate(-90)" font-size="12" text-anchor="middle">'
        "imports point down; gtpo and evalkit never import each other</text>"
    )
    y += 28
    for name, stops in JOURNEYS.items():
        out.append(journey(name, stops, y))
        y += 96
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" '
        'font-family="system-ui, sans-serif" fill="#111" role="img">'
        "<title>The rooms of gtpo floor by floor, and three journeys through them</title>"
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        '<path d="M0 0 L6 3 L0 6 z" fill="#555"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{y}" fill="#fff" stroke="none"/>'
    )
    return head + "\n".join(out) + "</svg>\n"


def main() -> None:
    """Write the picture."""
    TARGET.write_text(drawing(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
