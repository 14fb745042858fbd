"""The power of designs before they are paid for: what `gtpo plan` prints."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from rich.text import Text

from gtpo.common.errors import UserError
from gtpo.common.terminal import stdout_console, visible
from gtpo.evalkit import design as power
from gtpo.evalkit.comparison.columns import PASS, Column
from gtpo.evalkit.comparison.compare import compare
from gtpo.evalkit.design import MOST, Chance, Design, Estimate, Noise, Strength, fewest, over_range, strength
from gtpo.evalkit.report.command import PlanSettings
from gtpo.evalkit.report.summary import limit_text, points_text, range_text
from gtpo.evalkit.report.writers import Grid, draw, plain
from gtpo.runs.find import find_runs

PLAN_SCHEMA_VERSION = 1
SEEDS, SAMPLES = (3, 5, 10, 20), (1, 4, 16, 64)
# AIME, a part of MATH, MATH-500, GSM8K.
QUESTIONS = (30, 100, 500, 1319)
# Name in the JSON -> title, chance.
Goals = dict[str, tuple[str, Chance]]


@dataclass(frozen=True)
class BenchmarkPlan:
    """What is planned for one benchmark."""

    about: str
    noise: Noise
    questions: Sequence[int]
    samples: Sequence[int]
    # (0,): two models.
    seeds: Sequence[int]
    tokens: float | None

    @cached_property
    def strengths(self) -> dict[Design, Strength]:
        """What each design can show, by seeds, then questions, then samples."""
        every = itertools.product(self.seeds, self.questions, self.samples)
        return {(at := Design(questions, n, seeds)): strength(self.noise, at) for seeds, questions, n in every}

    def completions(self, design: Design) -> int:
        """Return what both methods generate in the evaluation."""
        return 2 * design.questions * design.samples * max(design.seeds, 1)

    def cheapest(self, chance: Chance) -> tuple[Design, Estimate] | None:
        """Return the design that is enough with the fewest seeds, then the fewest completions; and its seeds' range."""
        designs = [Design(questions, samples, 0) for questions in self.questions for samples in self.samples]
        if self.seeds[0]:
            counts = [(design, fewest(self.noise, design, "seeds", chance)) for design in designs]
            enough = [design._replace(seeds=int(count)) for design, count in counts if math.isfinite(count)]
        else:
            enough = [design for design in designs if chance(strength(self.noise, design)) >= power.ENOUGH]
        if not enough:
            return None
        best = min(enough, key=lambda design: (design.seeds, self.completions(design)))
        seeds = over_range(lambda end: fewest(self.noise, best, "seeds", chance, end=end) if best.seeds else 0)
        return best, seeds


def run_plan(settings: PlanSettings) -> int:
    """Run the command and return its exit code. Raises UserError."""
    plans = list(_pilot(settings) if settings.runs else _without_pilot(settings))
    if not plans:
        raise UserError("nothing to plan by: a pilot needs more questions on which the two differ")
    effect, margin = settings.effect, settings.margin or 0.0
    goals: Goals = {"power": (f"to see a difference of {effect:g} points", lambda of: of.power(effect / 100))}
    if margin:
        within = f"to show equal methods to be equivalent within ±{margin:g} points"
        goals["equivalence"] = within, lambda of: of.equivalence(margin / 100)
    if settings.json_output:
        documents = [_document(plan, settings, goals) for plan in plans]
        print(json.dumps({"schema_version": PLAN_SCHEMA_VERSION, "plans": documents}, indent=2))
        return 0
    console = stdout_console(pipe=160)
    for plan in plans:
        console.print(Text(f"{plan.about}.", style="bold"))
        for title, chance in goals.values():
            console.print(draw(_grid(plan, title, chance), console.width))
            console.print(Text(_cost(plan, chance)))
        for questions in plan.questions:
            if text := limit_text(plan.noise, Design(questions, 1, plan.seeds[0]), effect / 100):
                console.print(Text(f"{text}."))
    return 0


def _grid(plan: BenchmarkPlan, title: str, chance: Chance) -> Grid:
    rows: dict[tuple[int, int], list[str]] = {}
    for (questions, _, seeds), of in plan.strengths.items():
        row = rows.setdefault((seeds, questions), [str(seeds) if seeds else "models", f"{questions:,}"])
        row.append(f"{100 * chance(of):.0f} % ({points_text(Estimate.exactly(of.detectable()))})")
    head = ["seeds of each", "questions", *(f"{n} sample{'s' * (n > 1)}" for n in dict.fromkeys(plan.samples))]
    return Grid("plan", f"Chance {title} (in brackets: points that are seen with 80 %)", head, list(rows.values()))


def _cost(plan: BenchmarkPlan, chance: Chance) -> str:
    best = plan.cheapest(chance)
    if best is None:
        return f"None of these reaches 80 %{', with up to ' + str(MOST['seeds']) + ' seeds' if plan.seeds[0] else ''}."
    design, seeds = best
    completions = plan.completions(design)
    cost = f"{completions:,} completions"
    cost += f" or {completions * plan.tokens:,.0f} tokens" if plan.tokens else " (--tokens N says it in tokens)"
    of_seeds = f"{range_text(seeds, MOST['seeds'])} seeds of each, " if design.seeds else ""
    of_seeds += f"{design.questions:,} questions x {design.samples}"
    return f"Cheapest with 80 %: {of_seeds}: {cost}{', training not counted' * bool(design.seeds)}."


def _document(plan: BenchmarkPlan, settings: PlanSettings, goals: Goals) -> dict[str, Any]:
    chances = {name: chance for name, (_, chance) in goals.items()}
    designs = [
        {**design._asdict(), "sees": plain(of.detectable()), **{name: chance(of) for name, chance in chances.items()},
         "completions": plan.completions(design), "tokens": plan.tokens and plan.completions(design) * plan.tokens}
        for design, of in plan.strengths.items()
    ]  # fmt: skip
    cheapest: dict[str, Any] = {}
    for name, chance in chances.items():
        best = plan.cheapest(chance)
        cheapest["cheapest" if name == "power" else "cheapest_equivalent"] = best and {
            **best[0]._asdict(), "seeds_range": [plain(end) for end in best[1][1:]],
        }  # fmt: skip
    noise = {name: value and list(value) for name, value in asdict(plan.noise).items() if name != "paired"}
    return {
        "about": plan.about, "effect": settings.effect / 100, "margin": settings.margin and settings.margin / 100,
        "noise": noise, "designs": designs, **cheapest,
    }  # fmt: skip


def _without_pilot(settings: PlanSettings) -> Iterator[BenchmarkPlan]:
    sd = settings.seed_sd and settings.seed_sd / 100
    noise, like = power.assumed_noise(settings.accuracy, sd, models=settings.models)
    about = f"Noise as of {like}"
    about += "" if settings.accuracy is None else f", scaled to an accuracy of {settings.accuracy:g}"
    about += "" if sd is None else f"; seeds {settings.seed_sd:g} points apart"
    yield BenchmarkPlan(
        f"{about}. A pilot of your own says more", noise, settings.questions or QUESTIONS, settings.samples or SAMPLES,
        (0,) if settings.models else settings.seeds or SEEDS, settings.tokens,
    )  # fmt: skip


def _pilot(settings: PlanSettings) -> Iterator[BenchmarkPlan]:
    evals, trains, of_runs = find_runs(list(settings.runs or ()))
    comparison = compare(
        evals, trains, baseline=settings.baseline, metrics=[Column(PASS, 1)], details=False, notes=of_runs
    )
    notes = comparison.all_notes
    if len(comparison.methods) != 2:
        names = ", ".join(visible(method.name) for method in comparison.methods)
        raise UserError(f"a pilot is two methods or models, and these runs are {len(comparison.methods)}: {names}")
    name = next(method.name for method in comparison.methods if method.name != comparison.baseline)
    for table in comparison.benchmarks:
        measured = table.cells[name, Column(PASS, 1)].noise if name in table.sides else None
        if measured is None:
            notes.append(f"{table.benchmark} is no pilot: too few of its questions show a difference of the two")
            continue
        noise, design = measured[0].at_least_zero(measured[1]), measured[1]
        if settings.seed_sd is not None:
            noise = replace(noise, training=Estimate.exactly(2 * (settings.seed_sd / 100) ** 2))
        trained = noise.training is not None and not settings.models
        if settings.seeds and not trained:
            raise UserError("--seeds: what seeds add is not known of this pilot; say it with --seed-sd POINTS")
        if settings.samples and noise.samples is None:
            raise UserError("--samples: one sample of each question tells nothing of more; give a pilot with several")
        size = design.questions
        samples = sorted({*SAMPLES[:3], design.samples}) if noise.samples else [design.samples]
        means = [run.entry(table.benchmark).mean_tokens for side in table.sides.values() for run in side.runs]
        known = [mean for mean in means if mean is not None]
        tokens = settings.tokens or (sum(known) / len(known) if known else None)
        of_seeds = f"{design.seeds} seeds of each" if design.seeds else "what seeds add is not known"
        pilot = f"{size:,} questions, {design.samples} sample{'s' * (design.samples > 1)}"
        pilot += f", {of_seeds}" * (design.seeds > 0 or not trained)
        yield BenchmarkPlan(
            f"Noise of {visible(name)} against {visible(str(table.baseline))} on {visible(table.benchmark)} ({pilot})",
            noise, settings.questions or (size, 2 * size, 4 * size), settings.samples or samples,
            (settings.seeds or SEEDS) if trained else (0,), tokens,
        )  # fmt: skip
    for note in notes:
        print(f"note: {visible(note)}", file=sys.stderr)
