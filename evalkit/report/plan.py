"""What `gtpo plan` does with its arguments: the power of designs before they are paid for."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gtpo.common.errors import UserError
from gtpo.common.settings import CommandSettings, option

if TYPE_CHECKING:
    from gtpo.evalkit.design import Design, Noise, Spread, Strength
    from gtpo.evalkit.report.grid import Grid

PLAN_SCHEMA_VERSION = 1
SEEDS, SAMPLES = (3, 5, 10, 20), (1, 4, 16, 64)
# AIME, AMC or a part of MATH, MATH-500, GSM8K.
QUESTIONS = (30, 100, 500, 1319)


class PlanSettings(CommandSettings):
    """One `gtpo plan` command."""

    COMMAND: ClassVar[str] = "gtpo plan"
    ARGUMENT: ClassVar[str] = "runs"

    runs: Sequence[str] | None = option(None, "A pilot: runs of two methods or models, as for gtpo compare.")
    accuracy: float | None = option(None, "Without a pilot: about how much is solved, 0 to 1.", gt=0.0, lt=1.0)
    seed_sd: float | None = option(
        None, "Standard deviation of a method's accuracy between its training seeds. Default: the pilot's, else as in "
        "published experiments.", gt=0.0, lt=50.0, about={"unit": "points"},
    )  # fmt: skip
    models: bool = option(False, "Two models as they are; nothing is said about training them.")
    effect: float = option(2.0, "The difference to be seen.", gt=0.0, lt=100.0, about={"unit": "points"})
    margin: float | None = option(
        None, "Also: the power to show two equal methods to be equivalent within so much.", gt=0.0, lt=100.0,
        about={"unit": "points"},
    )  # fmt: skip
    questions: list[int] | None = option(None, "Sizes of a benchmark. Default: the pilot's, twice and four times it.")
    samples: list[int] | None = option(None, "Samples of each question.")
    seeds: list[int] | None = option(None, "Training seeds of each method, from 3 on.")
    baseline: str | None = option(None, "Of a pilot: the method to compare with, as for gtpo compare.")
    tokens: int | None = option(None, "Tokens of an answer, for the cost. Default: the pilot's mean.", ge=1)
    json_output: bool = option(False, "Print the plan as JSON on stdout.", "--json")

    def check_together(self) -> None:
        """Check what more than one option decides."""
        if self.runs and self.accuracy is not None:
            raise UserError("--accuracy describes what has no pilot; runs are one: give one of the two")
        if self.models and (self.seeds or self.seed_sd):
            raise UserError("--models is about two models as they are, so --seeds and --seed-sd say nothing of it")
        for flag, counts, least in (
            ("questions", self.questions, 2),
            ("samples", self.samples, 1),
            ("seeds", self.seeds, 3),
        ):
            if counts is not None and (not counts or min(counts) < least):
                raise UserError(f"--{flag} must be whole numbers from {least} on, e.g. --{flag} {least},{4 * least}")


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

    def designs(self) -> Iterator[Design]:
        """Yield every design of the table."""
        from gtpo.evalkit.design import Design

        for seeds in self.seeds:
            for questions in self.questions:
                yield from (Design(questions, samples, seeds) for samples in self.samples)

    def completions(self, design: Design) -> int:
        """Return what both methods generate in the evaluation."""
        return 2 * design.questions * design.samples * max(design.seeds, 1)

    def cheapest(self, chance: Callable[[Strength], float]) -> tuple[Design, Spread] | None:
        """Return the design that is enough with the fewest seeds, then the fewest completions; and its seeds' range."""
        from gtpo.evalkit.design import ENDS, ENOUGH, Design, End, Spread, fewest, strength

        def enough(design: Design, end: End = "mean") -> bool:
            return chance(strength(self.noise, design, end=end)) >= ENOUGH

        best = []
        for questions, samples in itertools.product(self.questions, self.samples):
            design = Design(questions, samples, 0)
            seeds = fewest(design, "seeds", enough) if self.seeds[0] else 0 if enough(design) else None
            if seeds is not None:
                best.append((seeds, self.completions(design._replace(seeds=seeds)), design._replace(seeds=seeds)))
        if not best:
            return None
        design = min(best)[2]
        ends = [design.seeds] if not design.seeds else [
            fewest(design, "seeds", functools.partial(enough, end=end)) or math.inf for end in ENDS
        ]  # fmt: skip
        return design, Spread(design.seeds, min(ends), max(ends))


def run_plan(settings: PlanSettings) -> int:
    """Run the command and return its exit code. Raises UserError."""
    plans = list(_pilot(settings) if settings.runs else _without_pilot(settings))
    if settings.json_output:
        print(
            json.dumps(
                {"schema_version": PLAN_SCHEMA_VERSION, "plans": [_document(p, settings) for p in plans]}, indent=2
            )
        )
        return 0
    from gtpo.common.terminal import stdout_console
    from gtpo.evalkit.report.writers import draw

    console = stdout_console(pipe=160)
    for plan in plans:
        console.print(f"{plan.about}.", style="bold", markup=False, highlight=False)
        for title, chance in _goals(settings):
            console.print(draw(_grid(plan, title, chance), console.width))
            console.print(_cost(plan, chance), markup=False, highlight=False)
        for line in _limits(plan, settings.effect / 100):
            console.print(line, markup=False, highlight=False)
    return 0


def _goals(settings: PlanSettings) -> Iterator[tuple[str, Callable[[Strength], float]]]:
    effect, margin = settings.effect / 100, (settings.margin or 0) / 100
    yield f"to see a difference of {settings.effect:g} points", lambda of: of.power(effect)
    if settings.margin:
        yield (
            f"to show equal methods to be equivalent within ±{settings.margin:g} points",
            lambda of: of.equivalence(margin),
        )


def _grid(plan: BenchmarkPlan, title: str, chance: Callable[[Strength], float]) -> Grid:
    from gtpo.evalkit.design import Design, strength
    from gtpo.evalkit.report.grid import Grid

    rows = []
    for seeds in plan.seeds:
        for questions in plan.questions:
            found = [strength(plan.noise, Design(questions, samples, seeds)) for samples in plan.samples]
            cells = [f"{100 * chance(one):.0f} % ({100 * one.detectable():.1f})" for one in found]
            rows.append([str(seeds) if seeds else "models", f"{questions:,}", *cells])
    head = ["seeds of each", "questions", *(f"{n} sample{'s' * (n > 1)}" for n in plan.samples)]
    return Grid("plan", f"Chance {title} (in brackets: points that are seen with 80 %)", head, rows)


def _cost(plan: BenchmarkPlan, chance: Callable[[Strength], float]) -> str:
    from gtpo.evalkit.design import MOST
    from gtpo.evalkit.report.power import range_text

    found = plan.cheapest(chance)
    if found is None:
        return (
            f"None of these sizes reaches 80 %, with up to {MOST['seeds']} seeds."
            if plan.seeds[0]
            else "None of these designs reaches 80 %."
        )
    design, seeds = found
    completions = plan.completions(design)
    cost = f"{completions:,} completions"
    cost += f" or {completions * plan.tokens:,.0f} tokens" if plan.tokens else " (--tokens N says it in tokens)"
    of_seeds = f"{range_text(seeds, MOST['seeds'])} seeds of each, " if design.seeds else ""
    of_seeds += f"{design.questions:,} questions x {design.samples}"
    return f"Cheapest with 80 %: {of_seeds}: {cost}{', training not counted' * bool(design.seeds)}."


def _limits(plan: BenchmarkPlan, effect: float) -> Iterator[str]:
    from gtpo.evalkit.design import MOST, Design, strength

    for questions in plan.questions:
        endless = Design(questions, MOST["samples"], MOST["seeds"] if plan.seeds[0] else 0)
        if (least := strength(plan.noise, endless).detectable()) > effect:
            what = "samples and seeds" if plan.seeds[0] else "samples"
            yield f"{questions:,} questions show no less than {100 * least:.1f} points with any number of {what}."


def _document(plan: BenchmarkPlan, settings: PlanSettings) -> dict[str, Any]:
    from gtpo.evalkit.design import strength

    designs = []
    for design in plan.designs():
        found, completions = strength(plan.noise, design), plan.completions(design)
        designs.append({
            **design._asdict(), "sees": found.detectable(), "power": found.power(settings.effect / 100),
            "equivalence": found.equivalence(settings.margin / 100) if settings.margin else None,
            "completions": completions, "tokens": completions * plan.tokens if plan.tokens else None,
        })  # fmt: skip
    best = [found and {**found[0]._asdict(), "seeds_range": [None if math.isinf(end) else end for end in found[1][1:]]}
            for found in (plan.cheapest(chance) for _, chance in _goals(settings))]  # fmt: skip
    noise = {name: value and list(value) for name, value in asdict(plan.noise).items() if name != "paired"}
    return {
        "about": plan.about, "effect": settings.effect / 100, "margin": settings.margin and settings.margin / 100,
        "noise": noise, "designs": designs, "cheapest": best[0], "cheapest_equivalent": best[1] if best[1:] else None,
    }  # fmt: skip


def _without_pilot(settings: PlanSettings) -> Iterator[BenchmarkPlan]:
    from gtpo.evalkit.design import assumed_noise

    sd = None if settings.seed_sd is None else settings.seed_sd / 100
    noise, like = assumed_noise(settings.accuracy, sd, weights=settings.models)
    scale = "" if settings.accuracy is None else f", scaled to an accuracy of {settings.accuracy:g}"
    of_seeds = f"; seeds {settings.seed_sd:g} points apart" if sd is not None else ""
    about = f"Noise as of {like.name}{scale}{of_seeds} ({like.source}). A pilot of your own says more"
    yield BenchmarkPlan(
        about, noise, settings.questions or QUESTIONS, settings.samples or SAMPLES,
        (0,) if settings.models else settings.seeds or SEEDS, settings.tokens,
    )  # fmt: skip


def _pilot(settings: PlanSettings) -> Iterator[BenchmarkPlan]:
    from gtpo.common.terminal import visible
    from gtpo.evalkit.comparison.columns import PASS, Column
    from gtpo.evalkit.comparison.compare import compare
    from gtpo.evalkit.comparison.verdicts import noise_of
    from gtpo.evalkit.design import Spread
    from gtpo.runs.find import find_runs

    evals, trains, notes = find_runs(list(settings.runs or ()))
    comparison = compare(
        evals, trains, baseline=settings.baseline, metrics=[Column(PASS, 1)], details=False, notes=notes
    )
    if len(comparison.methods) != 2:
        names = ", ".join(visible(method.name) for method in comparison.methods)
        raise UserError(f"a pilot is two methods or models, and these runs are {len(comparison.methods)}: {names}")
    name = next(method.name for method in comparison.methods if method.name != comparison.baseline)
    for table in comparison.benchmarks:
        measured = noise_of(table, name, str(table.baseline), Column(PASS, 1)) if table.baseline else None
        if measured is None:
            continue
        noise, design = measured
        if settings.seed_sd is not None:
            noise = replace(noise, training=Spread.exactly(2 * (settings.seed_sd / 100) ** 2))
        trained = noise.training is not None and not settings.models
        size, mean = design.questions, None
        samples = sorted({*SAMPLES[:3], design.samples}) if noise.samples else [design.samples]
        found = [run.entry(table.benchmark).mean_tokens for of in table.runs.values() for run in of]
        if tokens := [one for one in found if one is not None]:
            mean = sum(tokens) / len(tokens)
        of_seeds = f"{design.seeds} seeds of each" if design.seeds else "what seeds add is not known"
        pilot = f"{size:,} questions, {design.samples} samples" + f", {of_seeds}" * (design.seeds > 0 or not trained)
        yield BenchmarkPlan(
            f"Noise of {visible(name)} against {visible(str(table.baseline))} on {visible(table.benchmark)} ({pilot})",
            noise, settings.questions or (size, 2 * size, 4 * size), settings.samples or samples,
            (settings.seeds or SEEDS) if trained else (0,), settings.tokens or mean,
        )  # fmt: skip
