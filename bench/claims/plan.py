"""The plans: which regime x method x seed is run, in which order, the config of each run, and what is tested.

A plan is a YAML file (plan.yaml says how it reads). A run's config extends the repository's own files, so that a
setting that methods share is written once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import write_text

PLAN, SECOND = Path("bench/claims/plan.yaml"), Path("bench/claims/second.yaml")
CONFIGS = Path("results/claims/configs")
"""Where the configs of the runs are written; the working directory is the repository's root."""
TRAIN_RUNS, EVAL_RUNS = Path("results/train"), Path("results/eval")


@dataclass(frozen=True)
class Run:
    """One training run; a base where `method` is `base`."""

    name: str
    regime: str
    """A base's: the name that its runs share."""
    method: str
    seed: int
    fragment: dict[str, Any] = field(repr=False)
    """The config, with `extends` relative to the repository's root."""
    evaluate: dict[str, Any] | None = field(repr=False)
    """Arguments of `gtpo eval`; None where the run is not evaluated."""
    weights: Path | None = None
    """A base's: where its runs read its last weights."""
    half: bool = False
    """A base's: whether these are rounded to float16, to be committed at half the size."""
    base: Run | None = field(default=None, repr=False)
    """The run whose weights it starts from; None for a base, and where the config names the model."""

    def write_config(self) -> Path:
        """Write the run's config file and return its path."""
        path = CONFIGS / f"{self.name}.yaml"
        document = dict(self.fragment)
        files = document.pop("extends")
        if files:
            document = {"extends": [os.path.relpath(file, path.parent) for file in files], **document}
        write_text(path, yaml.safe_dump(document, sort_keys=False))
        return path


class Test(NamedTuple):
    """A primary test: a - b of one number per run, paired by seed."""

    __test__ = False  # not one of pytest's
    claim: str
    regime: str
    a: str
    b: str
    measure: str
    expected: int
    margin: float
    matters: float
    source: str
    slower: float = 1.0


@dataclass(frozen=True)
class Plan:
    """An experiment: its runs in their order, each base before the first run that needs it."""

    runs: list[Run]
    evidence: Path
    """Where the record of each finished run is committed."""
    environment: dict[str, str]
    """Variables that every run is given."""
    arguments: list[str]
    """What tells another process to load this plan."""
    seeds: dict[tuple[str, str], int]
    """(regime, method) -> seeds planned."""
    packed: Path | None = None
    """Where `bench.claims.pack` puts the records, a file a regime; None where each is committed as it is."""
    thin: bool = False
    """Whether records have no tags, and fewer points."""
    commit: str | None = None
    """The commit that every run is made at, without changes; None where any will do."""
    tests: tuple[Test, ...] = ()
    """The primary tests, of a plan that names them itself."""

    @property
    def regimes(self) -> list[str]:
        """Regimes with methods, in the order of the plan."""
        return list(dict.fromkeys(regime for regime, _ in self.seeds))

    def methods(self, regime: str) -> list[str]:
        """The methods of a regime, in the order of the plan."""
        return [method for its, method in self.seeds if its == regime]

    def record(self, run: Run) -> Path:
        """The committed record of a run."""
        return self.evidence / "records" / f"{run.name}.json"

    def evaluation(self, regime: str) -> tuple[str, int]:
        """(benchmark, samples per question) of a regime's runs; the harder benchmark has `_hard` behind its name."""
        given = next(run.evaluate for run in self.runs if run.regime == regime)
        assert given is not None
        return given["benchmarks"].split(",")[0], given["k"]

    def choose(self, names: list[str]) -> list[Run]:
        """The runs of these names and the bases they need; all without names. UserError for a name not planned."""
        known = {run.name: run for run in self.runs}
        for name in names:
            if name not in known:
                raise UserError(f'no run "{name}" in the plan.{did_you_mean(name, known)} --list lists all')
        wanted = set(names or known)
        wanted |= {run.base.name for run in self.runs if run.base is not None and run.name in wanted}
        return [run for run in self.runs if run.name in wanted]


def merge(*fragments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fragments laid over each other; sections merge key by key, `extends` are joined."""
    out: dict[str, Any] = {"extends": []}
    for fragment in fragments:
        for key, value in fragment.items():
            if key == "extends":
                out["extends"] += [value] if isinstance(value, str) else value
            elif isinstance(value, Mapping) and isinstance(out.get(key), dict):
                out[key] = {**out[key], **value}
            else:
                out[key] = dict(value) if isinstance(value, Mapping) else value
    return out


def load_plan(path: Path = PLAN, *, prefix: str | None = None, evidence: Path | None = None) -> Plan:
    """Read a plan. UserError where it names what it does not define.

    prefix, evidence: in place of the plan's own, for runs that must not meet the recorded ones. The bases stay.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a plan that can be read ({' '.join(str(error).split())})") from None
    own, prefix = document["prefix"], prefix or document["prefix"]
    runs: dict[str, Run] = {}
    seeds: dict[tuple[str, str], set[int]] = {}

    def defined(section: str, name: str) -> dict[str, Any]:
        if name not in document[section]:
            raise UserError(f"{path}: {section} has no {name}.{did_you_mean(name, document[section])}")
        found: dict[str, Any] = document[section][name] or {}
        return found

    def base_of(name_of_base: str, seed: int, scale: dict[str, Any]) -> Run:
        group = f"base-{name_of_base}"
        committed = document.get("weights", {}).get(name_of_base, {})
        seed = committed.get("seed", seed)
        name = f"{own}-{group}-s{seed}"
        folder = Path(committed["folder"]) / name if committed else TRAIN_RUNS / name / "final"
        fragment = merge(defined("bases", name_of_base), _identity(name, seed))
        evaluate = scale.get("evaluate_base", scale.get("evaluate"))
        half = committed.get("dtype") == "float16"
        return runs.setdefault(name, Run(name, group, "base", seed, fragment, evaluate, folder, half))

    for phase in document["phases"]:
        regime = defined("regimes", phase["regime"])
        scale = defined("scales", regime["scale"])
        for seed in _seeds(phase["seeds"]):
            base = base_of(regime["base"], seed, scale) if "base" in regime else None
            for method in phase["methods"]:
                name = f"{prefix}-{phase['regime']}-{method}-s{seed}"
                start = {"model": {"model_name": str(base.weights)}} if base else {}
                own_settings = {k: v for k, v in defined("methods", method).items() if k != "extends"}
                fragment = merge(
                    {"extends": scale.get("extends", [])}, defined("methods", method), scale.get("settings", {}),
                    regime.get("settings", {}), own_settings, start, _identity(name, seed),
                )  # fmt: skip
                run = Run(name, phase["regime"], method, seed, fragment, scale.get("evaluate"), base=base)
                runs.setdefault(name, run)
                seeds.setdefault((phase["regime"], method), set()).add(seed)
    environment = {key: str(value) for key, value in document.get("environment", {}).items()}
    evidence = evidence or Path(document["evidence"])
    arguments = ["--plan", str(path), "--prefix", prefix, "--evidence", str(evidence)]
    planned = {key: len(found) for key, found in seeds.items()}
    packed = Path(document["packed"]) if "packed" in document else None
    tests = tuple(Test(source=row.pop("from"), **row) for row in document.get("tests", []))
    further = {key: document[key] for key in ("thin", "commit") if key in document}
    return Plan(list(runs.values()), evidence, environment, arguments, planned, packed, **further, tests=tests)


def _seeds(given: int | str | list[int]) -> list[int]:
    """3: the first three; "11-27": from, to; or a list."""
    if isinstance(given, list):
        return given
    first, last = map(int, given.split("-")) if isinstance(given, str) else (1, given)
    return list(range(first, last + 1))


def _identity(name: str, seed: int) -> dict[str, Any]:
    return {"run_name": name, "model": {"random_seed": seed}}


# --- what is tested

TASKS = {"micro": "arithmetic", "small": "word_problems"}
"""Scale -> its benchmark; the harder one has `_hard` behind its name."""
ACCURACY = ("pass@1", "hard:pass@1", "maj@n", "pass@n", "hard:maj@n", "hard:pass@n", "format")
"""What a test of `accuracy` compares."""


class PairedTest(NamedTuple):
    """a - b of one measure in one regime, paired by seed; b None: a against 0.

    measure: a name of measures.MEASURES, or `benchmark:metric` with metric pass@1, pass@n, maj@n or format.
    """

    regime: str
    a: str
    b: str | None
    measure: str

    @property
    def scale(self) -> str:
        """micro or small: how the regime's name begins."""
        return self.regime.partition("-")[0]


class Question(NamedTuple):
    """One question; plan.yaml says what its fields are."""

    name: str
    short: str
    asks: str
    claim: str
    expected: int
    tests: tuple[PairedTest, ...]
    stays: bool = False


def _tests(regime: str, a: str, b: str | None, *measures: str) -> Iterator[PairedTest]:
    """The tests of one row of the plan."""
    task = TASKS[regime.partition("-")[0]]
    for name in measures:
        for each in ACCURACY if name == "accuracy" else (name,):
            hard, metric = "_hard" if each.startswith("hard:") else "", each.removeprefix("hard:")
            yield PairedTest(regime, a, b, f"{task}{hard}:{metric}" if metric in ACCURACY else metric)


QUESTIONS = tuple(
    Question(**{**row, "tests": tuple(test for given in row["tests"] for test in _tests(*given))})
    for row in yaml.safe_load(Path(__file__).with_name("plan.yaml").read_text(encoding="utf-8"))["questions"]
)


def primaries() -> Iterator[tuple[str, Question, PairedTest]]:
    """(scale, question, its primary test there), scale by scale."""
    for scale in TASKS:
        for question in QUESTIONS:
            test = next((test for test in question.tests if test.scale == scale), None)
            if test is not None:
                yield scale, question, test
