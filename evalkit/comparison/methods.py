"""Methods: train runs that differ in nothing but their seed, taken as one.

A method is what a comparison is about. Runs are grouped by their resolved config (config.yaml of the train run): equal
in every key but the seeds, the name and where it ran, and evaluated with weights of one kind (best, final). What
differs beyond that is never merged without a word: runs of one preset with other settings stay apart, and the note says
which setting; `--group-by` and `--label` merge what they are told to, and the note says what differs inside.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError, did_you_mean
from gtpo.runs.eval_run import EvalRun
from gtpo.runs.train_run import TrainFolder

SEED_KEY = "model.random_seed"
NAME_KEYS = ("run_name",)
# Where a run ran: seeds of one method may differ here, which is noted.
WHERE_KEYS = ("env.CUDA_VISIBLE_DEVICES", "rollout.server_host", "rollout.server_port")
# Rows of one preset are called alike, and why they stay apart is said, up to so many settings that differ.
NEAR = 3


@dataclass(frozen=True)
class Member:
    """One run as grouping sees it: an eval run, the train run behind it, or both."""

    name: str
    run: EvalRun | None
    train: TrainFolder | None
    # Flattened config.yaml of the train run; None if there is none.
    config: dict[str, Any] | None = field(repr=False)

    @cached_property
    def preset(self) -> str:
        """The preset or method it was trained with; empty for a model that no train run made."""
        of_run = (self.run.record.model.preset or self.run.record.model.method) if self.run is not None else None
        return of_run or (self.train.preset if self.train else "")

    @cached_property
    def seed(self) -> str | None:
        """Its training seed; None if unknown."""
        seed = self.train.run().get("seed") if self.train is not None else None
        return None if seed is None else str(seed)

    @property
    def checkpoint(self) -> str | None:
        """Which weights of its train run were evaluated: best, final or a checkpoint; None if unknown."""
        return self.run.record.model.checkpoint if self.run is not None else None

    def same_training(self, other: Member) -> bool:
        """Return whether two members of known seeds are of one train run, or of a copy of it."""
        if self.train is None or other.train is None:
            return False
        alike = self.seed == other.seed and self.settings() == other.settings()
        return alike or self.train.root.resolve() == other.train.root.resolve()

    def settings(self) -> dict[str, Any] | None:
        """What must be equal within a method; None if it is unknown."""
        if self.config is None:
            return None
        skipped = (*NAME_KEYS, *WHERE_KEYS, SEED_KEY)
        return {key: value for key, value in self.config.items() if key not in skipped}


@dataclass(frozen=True)
class Method:
    """One row of every table: runs trained alike, each with its own seed."""

    name: str
    members: tuple[Member, ...]
    # Whether every other method began from its weights: differences to it are of this base, not of its own seed.
    is_base: bool = False

    @property
    def runs(self) -> list[EvalRun]:
        """Its eval runs, one per training seed."""
        return [member.run for member in self.members if member.run is not None]

    @property
    def trains(self) -> list[TrainFolder]:
        """Its train runs, each once."""
        return list({m.train.root.resolve(): m.train for m in self.members if m.train is not None}.values())

    @cached_property
    def doubt(self) -> str:
        """Why its runs are not known to be trained apart; empty if they are, and for a single run."""
        members = [member for member in self.members if member.run is not None] or list(self.members)
        if len(members) < 2:
            return ""
        for what, unknown in (("train run", [m for m in members if m.train is None]),
                              ("seed", [m for m in members if m.seed is None])):  # fmt: skip
            if unknown:
                return f"no {what} is known of {', '.join(member.name for member in unknown)}"
        for one, other in itertools.combinations(members, 2):
            if one.same_training(other):
                return f"{one.name} and {other.name} are of one training"
        return ""

    @property
    def counted(self) -> str:
        """`3 seeds`, or `3 runs` if they are not known to be trained apart; empty for one."""
        count = len(self.runs) or len(self.trains)
        return f"{count} {'runs' if self.doubt else 'seeds'}" if count > 1 else ""

    @property
    def preset(self) -> str:
        """The preset or method of its runs; empty for models that no train run made, or of several presets."""
        found = {member.preset for member in self.members}
        return found.pop() if len(found) == 1 else ""

    @property
    def trained(self) -> bool:
        """Return whether training made it, so that another seed could have come out otherwise."""
        return not self.is_base and any(member.train is not None or member.preset for member in self.members)

    def is_named(self, asked: str) -> bool:
        """Return whether `asked` is its name, its preset, or one of its runs by name or folder."""
        if asked in (self.name, self.preset):
            return True
        path = Path(os.path.abspath(asked))
        return any(
            asked == member.name
            or (member.run is not None and Path(os.path.abspath(member.run.folder)) == path)
            or (member.train is not None and Path(os.path.abspath(member.train.root)) == path)
            for member in self.members
        )


def members_of(runs: Iterable[EvalRun], trains: Iterable[TrainFolder]) -> list[Member]:
    """Eval runs with the train run behind each, then the train runs that no eval run stands for."""
    members = [Member(run.name, run, run.train, run.train.config() if run.train else None) for run in runs]
    evaluated = {run.train.root.resolve() for run in (m.run for m in members) if run is not None and run.train}
    rest = [train for train in trains if train.root.resolve() not in evaluated]
    return members + [Member(train.name, None, train, train.config()) for train in rest]


def group(members: list[Member], group_by: str, labels: Sequence[str], notes: list[str]) -> list[Method]:
    """The methods, in the order of their first runs. Adds to `notes` what a reader must know. Raises UserError.

    group_by: `config`, `none`, or config keys (and `method`) separated by commas; labels: NAME=RUN[,RUN...].
    """
    labelled = _read_labels(members, labels)
    rest = [member for member in members if member.name not in labelled]
    if group_by == "config":
        keys = {member.name: _config_group(member, rest) for member in rest}
    elif group_by == "none":
        keys = {member.name: ("run", member.name) for member in rest}
    else:
        wanted = [key.strip() for key in group_by.split(",") if key.strip()]
        keys = {member.name: _key_group(member, wanted, rest) for member in rest}
    keys |= {name: ("label", label) for name, label in labelled.items()}
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        groups.setdefault(keys[member.name], []).append(member)
    names = _names(groups)
    methods = [Method(names[key], tuple(found)) for key, found in groups.items()]
    for key, method in zip(groups, methods, strict=True):
        _note_inside(method, chosen=key[0] != "config", notes=notes)
    if group_by == "config":
        _note_near(methods, notes)
    return [_mark_common_base(method, methods) for method in methods]


def _mark_common_base(method: Method, methods: list[Method]) -> Method:
    """The method, marked if it is the one run from whose weights all others were trained."""
    others = [member for other in methods if other is not method for member in other.members]
    trained = [member.train for member in others if member.train is not None]
    if len(method.members) > 1 or method.trains == [] or not trained or len(trained) < len(others):
        return method
    folder = method.trains[0].root.resolve()
    bases = [train.base_run() for train in trained]
    return replace(method, is_base=all(base is not None and base.root.resolve() == folder for base in bases))


def _read_labels(members: list[Member], labels: Sequence[str]) -> dict[str, str]:
    """Run name -> label."""
    found: dict[str, str] = {}
    for text in labels:
        label, equals, given = text.partition("=")
        patterns = [part.strip() for part in given.split(",") if part.strip()]
        if not equals or not label.strip() or not patterns:
            raise UserError(f'--label "{text}": expected NAME=RUN[,RUN...], e.g. --label GTPO=gtpo-s1,gtpo-s2')
        for pattern in patterns:
            matching = [
                m.name for m in members if fnmatch.fnmatchcase(m.name, pattern) or Method("", (m,)).is_named(pattern)
            ]
            if not matching:
                names = [member.name for member in members]
                raise UserError(
                    f'--label "{text}": "{pattern}" is not among the runs compared: {", ".join(names)}.'
                    f"{did_you_mean(pattern, names)}"
                )
            for name in matching:
                if found.setdefault(name, label.strip()) != label.strip():
                    raise UserError(f'run "{name}" is given to two labels, "{found[name]}" and "{label.strip()}"')
    return found


def _config_group(member: Member, members: list[Member]) -> tuple[str, str]:
    """One key for members of equal settings, weights of one kind (best, final), and different seeds."""
    settings = member.settings()
    if settings is None:
        return ("config", f"run {member.name}")
    alike = [other for other in members if other.settings() == settings and other.preset == member.preset]
    kinds = [other.checkpoint for other in alike if other.run is not None]

    def kind(one: Member) -> str | None:  # a train run that was not evaluated has none: it goes with the first
        return one.checkpoint if one.run is not None else next(iter(kinds), None)

    alike = [other for other in alike if kind(other) == kind(member)]
    seeds = [other.seed for other in alike]
    # The same seed twice is no second draw of training.
    if seeds.count(member.seed) > 1 or member.seed is None:
        return ("config", f"run {member.name}")
    return ("config", alike[0].name)


def _key_group(member: Member, wanted: list[str], members: list[Member]) -> tuple[str, str]:
    values = []
    known = {"method"} | {key for other in members for key in other.config or {}}
    for key in wanted:
        if key not in known:
            raise UserError(
                f'--group-by "{key}": expected config, none, or config keys of the runs, e.g. '
                f"method,training.num_generations.{did_you_mean(key, known)}"
            )
        value = member.preset if key == "method" else (member.config or {}).get(key)
        if value in (None, ""):
            return ("run", member.name)
        values.append(str(value) if key == "method" else f"{key.rpartition('.')[2]} {value}")
    return ("keys", ", ".join(values))


def _names(groups: dict[tuple[str, str], list[Member]]) -> dict[tuple[str, str], str]:
    """A name for each group: as told, else the run's own, else what its runs' names begin with, else the preset."""
    names: dict[tuple[str, str], str] = {}
    for key, found in groups.items():
        if key[0] in ("label", "keys"):
            name = key[1]
        elif len(found) == 1:
            name = found[0].name
        else:
            names_inside = [member.name for member in found]
            stem = os.path.commonprefix(names_inside).rstrip("0123456789")  # noqa: RUF071  # by letters
            for ending in ("seed", "s"):
                cut = stem.removesuffix(ending)
                if cut != stem and (not cut or cut[-1] in "-_. /"):
                    stem = cut
            # `gtpo-s1`, `gtpo-s2` are seeds of `gtpo`; in `gtpo-seeds` the ending belongs to the name.
            name = stem.rstrip("-_. /") or found[0].preset or found[0].name
        taken = set(names.values())
        names[key] = name if name not in taken else f"{name} ({found[0].name})"
    return names


def _config_differences(members: Sequence[Member], ignored: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Config keys in which members differ, beside seeds and names, with their values."""
    configs = [member.config or {} for member in members]
    found = {key: [config.get(key) for config in configs] for config in configs for key in config}
    skipped = (*NAME_KEYS, *ignored, SEED_KEY)
    return {key: values for key, values in found.items() if key not in skipped and len(set(map(str, values))) > 1}


def _note_inside(method: Method, *, chosen: bool, notes: list[str]) -> None:
    """Say what differs between the runs of one method, beside the seed."""
    if len(method.members) < 2:
        return
    differing = _config_differences(method.members)
    if differing:
        listed = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in differing.items())
        notes.append(f"{method.name}: its runs differ in more than the seed ({listed})")
    if not method.doubt and any(member.config is None for member in method.members):
        notes.append(f"{method.name}: not every run has a config.yaml, so what else differs in it is unknown")
    packages = [member.train.run().get("packages") if member.train else None for member in method.members]
    versions = [found if isinstance(found, dict) else {} for found in packages]
    moved = sorted({k for found in versions for k in found if len({str(v.get(k)) for v in versions}) > 1})
    if moved:
        notes.append(f"{method.name}: its runs were trained with different versions of {', '.join(moved)}")
    weights = {m.name: m.checkpoint or "unknown" for m in method.members if m.run is not None}
    if len(set(weights.values())) > 1:
        listed = ", ".join(f"{name}: {kind}" for name, kind in weights.items())
        notes.append(f"{method.name}: its runs are of different checkpoints ({listed})")
    if method.doubt:
        notes.append(f"{method.name}: {method.doubt}, so its runs are no seeds: their mean is shown as one run")
    seeds = [member.seed for member in method.members if member.seed is not None]
    if chosen and len(set(seeds)) < len(seeds):
        notes.append(f"{method.name}: a training seed occurs twice ({', '.join(seeds)})")


def _note_near(methods: list[Method], notes: list[str]) -> None:
    """Say why rows of one preset that look like seeds of one method were not taken as one."""
    for i, method in enumerate(methods):
        for other in methods[:i]:
            first, second = other.members[0], method.members[0]
            if not first.preset or first.preset != second.preset:
                continue
            differing = _config_differences((first, second), WHERE_KEYS)
            if first.config is None or second.config is None:
                reason = "not both have a config.yaml to compare"
            elif len(differing) > NEAR:
                continue
            elif differing:
                reason = "they differ in " + ", ".join(f"{k} ({v[0]}, {v[1]})" for k, v in differing.items())
            elif first.run and second.run and first.checkpoint != second.checkpoint:
                kinds = (first.checkpoint or "unknown", second.checkpoint or "unknown")
                reason = f"they are of different checkpoints ({', '.join(kinds)})"
            else:
                reason = "they have the same seed"
            mend = "which is one training and not two seeds"
            if not Method("", (first, second)).doubt:
                mend = "--label NAME=RUN,RUN takes them as one method"
            notes.append(f"{other.name} and {method.name} are both {first.preset} and shown apart: {reason}. {mend}")
            break
