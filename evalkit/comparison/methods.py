"""Methods: what a comparison is about; and the one rule of what is one draw of training.

Runs are grouped by their resolved config (config.yaml of the train run): equal in every key but the seeds, the name and
where it ran, and evaluated with weights of one kind (best, final). Runs of one preset with other settings stay apart,
and a note says which setting. `--group-by` and `--label` merge what they are told to, and a note says what differs.

**A draw of training.** Equal weights, or one train folder, are one draw, whatever a run is called: their scores are
averaged. Other weights prove nothing, as the checkpoints of one training differ too. Runs are independent draws, seeds,
only if their train folders say so (`trained_apart`), or if `--seeds NAME=RUN,RUN,RUN` declares it and nothing
contradicts it. What is neither is not known; and `--label` names outputs, which never count as seeds.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gtpo.common.errors import UserError, did_you_mean
from gtpo.common.files import read_json
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.find import EvalRun, evals_of, resolve
from gtpo.runs.train_run import TrainFolder

# Keys of a config in which the runs of a method always differ; and where they ran, which is noted.
OWN_KEYS = ("run_name", "model.random_seed")
WHERE_KEYS = ("env.CUDA_VISIBLE_DEVICES", "rollout.server_host", "rollout.server_port")
# Rows of one preset are called alike, and why they stay apart is said, up to so many settings that differ.
NEAR = 3
# Who says which runs are one method. LABEL names outputs, DECLARED independent trainings of one recipe.
CONFIG, PRESET, SINGLE, LABEL, DECLARED = "config", "method", "run", "label", "seeds"


@dataclass(frozen=True)
class Member:
    """One run as grouping sees it: an eval run, the train run behind it, or both."""

    name: str
    run: EvalRun | None
    train: TrainFolder | None
    # Flattened config.yaml of the train run, and what came of it; None if there is none.
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

    @cached_property
    def evaluations(self) -> list[EvalRecord]:
        """Records of all evaluations of its training; none if it is best/, which other questions chose."""
        return [*evals_of(self.train.root).values()] if self.train is not None and self.checkpoint != "best" else []

    @cached_property
    def settings(self) -> dict[str, Any] | None:
        """What must be equal within a method; None if it is unknown."""
        skipped = (*OWN_KEYS, *WHERE_KEYS)
        return None if self.config is None else {k: v for k, v in self.config.items() if k not in skipped}

    def is_named(self, word: str) -> bool:
        """Return whether a word is a pattern of its name, its preset, or one of its folders."""
        if fnmatch.fnmatchcase(self.name, word) or word == self.preset:
            return True
        with suppress(UserError):  # no folder of that name
            folder = resolve(word).resolve()
            places = self.run.folder if self.run else None, self.train.root if self.train else None
            return any(place is not None and place.resolve() == folder for place in places)
        return False

    @cached_property
    def ancestors(self) -> list[Path]:
        """Folders of the train runs from whose weights its own began, the nearest first."""
        return [run.root.resolve() for run in self.train.lineage()[1:]] if self.train else []

    @cached_property
    def marks(self) -> dict[Hashable, str]:
        """What only runs of one training share, with its name."""
        marks: dict[Hashable, str] = {}
        if self.train is not None:
            marks[self.train.root.resolve()] = "one train folder"
            if (of_run := self.train.run().get("id")) or self.settings:
                # A copy of a folder that has no id shows by what it says of itself.
                marks[of_run or f"{self.seed} {self.settings}"] = "one id" if of_run else "equal settings and seed"
            best = self.train.best / "best.json"
            # Several trainings may end in the untrained model, which competes for best/.
            if self.checkpoint == "best" and best.is_file() and read_json(best).get("step") == 0:
                return marks
        if self.run is None:
            return marks
        model, engine, texts = self.run.record.model, self.run.record.engine, self.run.record.engine.canaries or {}
        weights = Path(os.path.abspath(model.adapter or model.source or ""))
        if self.train is None and re.fullmatch(r"checkpoint-\d+", weights.name):  # as trainers name them
            marks[weights.parent.resolve()] = "checkpoints in one folder"
        content = model.weights or model.fingerprint
        # A Hub name stands for one model; the name that a server gives may be that of the next weights.
        if content is None and self.train is None and engine.name in ("vllm", "transformers"):
            content = f"{model.source} {model.adapter}"
        marks |= {} if content is None else {content: "equal " + ("files" if engine.name == "recorded" else "weights")}
        # Greedy decoding, and a policy that always begins alike, give other weights the same text.
        told = [tuple(of) for of in texts.get("texts", {}).values() if self.run.record.sampling.temperature != 0]
        return marks | {of: "a server that wrote the same texts" for of in told if of and len(set(of)) == len(of)}


def one_training(a: Member, b: Member) -> str:
    """Say what shows that two runs are of one training; empty if nothing does."""
    if a.train and b.train and (a.train.root.resolve() in b.ancestors or b.train.root.resolve() in a.ancestors):
        return "one began from the other"
    return next((what for mark, what in a.marks.items() if mark in b.marks), "")


def trained_apart(a: Member, b: Member) -> bool:
    """Return whether two runs that are not of one training are known to be trained apart, by their train folders."""
    # Trained twice with one seed: the same order of data, and on some machines the same weights.
    return None not in (a.seed, b.seed) and a.seed != b.seed


@dataclass(frozen=True)
class Method:
    """One row of every table: runs trained alike, each with its own seed; or outputs under one name."""

    name: str
    members: tuple[Member, ...]
    chosen_by: str = CONFIG

    @property
    def runs(self) -> list[EvalRun]:
        """Its eval runs."""
        return [member.run for member in self.members if member.run is not None]

    @property
    def trains(self) -> list[TrainFolder]:
        """Its train runs, each once."""
        return list({m.train.root.resolve(): m.train for m in self.members if m.train is not None}.values())

    @cached_property
    def evaluated(self) -> list[Member]:
        """The members with an eval run; all if there are none."""
        return [member for member in self.members if member.run is not None] or list(self.members)

    @cached_property
    def doubt(self) -> str:
        """Why it is not known which of its runs are draws of training; empty if it is, and for a single run."""
        pairs = list(itertools.combinations(self.evaluated, 2))
        if self.chosen_by == DECLARED or not pairs:
            return ""
        if self.chosen_by == LABEL:
            return "--label names outputs"
        unknown = [pair for pair in pairs if not one_training(*pair) and not trained_apart(*pair)]
        names = dict.fromkeys(m.name for pair in unknown for m in pair if m.train is None or m.seed is None)
        if names:
            return f"no train run with a seed is known of {', '.join(names)}"
        return " and ".join(m.name for m in unknown[0]) + " have the same seed" if unknown else ""

    @cached_property
    def draws(self) -> dict[str, int]:
        """Number of the draw of training that each run is of; of all the same if it is not known."""
        numbers: dict[str, int] = {}
        for i, member in enumerate(self.evaluated):
            earlier = (one for one in self.evaluated[:i] if self.doubt or one_training(one, member))
            numbers[member.name] = next((numbers[one.name] for one in earlier), i)
        return numbers

    def by_draw(self, runs: Sequence[EvalRun]) -> list[list[int]]:
        """Return the places of some of its runs, those of one draw of training together."""
        places: dict[int, list[int]] = {}
        for i, run in enumerate(runs):
            places.setdefault(self.draws[run.name], []).append(i)
        return list(places.values())

    @property
    def counted(self) -> str:
        """`3 seeds`, `3 seeds, declared`, `6 runs of 3 seeds`, `3 runs` if it is not known; empty for a single run."""
        runs, draws = len(self.evaluated), len(set(self.draws.values()))
        if runs < 2:
            return ""
        seeds = f"{draws} seed{'s' * (draws > 1)}"
        if self.doubt or runs > draws:
            return f"{runs} runs" + f" of {seeds}" * (not self.doubt)
        return seeds + ", declared" * (self.chosen_by == DECLARED)

    @property
    def preset(self) -> str:
        """The preset or method of its runs; empty for models that no train run made, or of several presets."""
        presets = {member.preset for member in self.members}
        return presets.pop() if len(presets) == 1 else ""

    @property
    def trained(self) -> bool:
        """Return whether training made it, so that another seed could have come out otherwise."""
        return self.chosen_by == DECLARED or any(member.train is not None or member.preset for member in self.members)

    def is_base_of(self, other: Method) -> bool:
        """Return whether every run of another method began from its weights, which are then as they are."""
        folders = [train.root.resolve() for train in self.trains]
        begun = [member.train.base_run() if member.train else None for member in other.members]
        return len(self.members) == len(folders) == 1 and all(of and of.root.resolve() == folders[0] for of in begun)


def members_of(runs: Sequence[EvalRun], trains: Iterable[TrainFolder]) -> list[Member]:
    """Eval runs with the train run behind each, then the train runs that no eval run stands for."""
    members = [Member(run.name, run, run.train, _settings_of(run.train)) for run in runs]
    evaluated = {run.train.root.resolve() for run in runs if run.train is not None}
    rest = [train for train in trains if train.root.resolve() not in evaluated]
    return members + [Member(train.name, None, train, _settings_of(train)) for train in rest]


def _settings_of(train: TrainFolder | None) -> dict[str, Any] | None:
    """Return the flattened config of a train run, and what came of it; None if there is no config."""
    if train is None or (config := train.config()) is None:
        return None
    # A file of problems may have changed under its name, and a script's config names neither data nor adapter.
    about = {key: train.run().get(key) or {} for key in ("parameters", "dataset")}
    measured = {"parameters.trained": about["parameters"].get("trained"), "dataset.kept": about["dataset"].get("kept")}
    return config | {key: value for key, value in measured.items() if value is not None}


def group(
    members: list[Member], group_by: str, labels: Sequence[str], declared: Sequence[str], notes: list[str]
) -> list[Method]:
    """The methods, in the order of their first runs. Adds to `notes` what a reader must know. Raises UserError.

    group_by: `config`, `method` (the preset) or `none`; labels, declared: NAME=RUN[,RUN...].
    """
    named = _read_names(members, {LABEL: labels, DECLARED: declared})
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        key = named.get(member.name, (SINGLE, member.name))
        if key[0] == SINGLE and group_by == PRESET and member.preset:
            key = PRESET, member.preset
        if key[0] == SINGLE and group_by == CONFIG and None not in (member.settings, member.seed):
            alike = (
                key for key, (first, *_) in groups.items()
                # A train run that was not evaluated has no kind of weights.
                if key[0] == CONFIG and (member.run is None or first.checkpoint == member.checkpoint)
                and (first.settings, first.preset) == (member.settings, member.preset)
            )  # fmt: skip
            like = next(alike, None)
            # What is of the same training, or seed, as an earlier run is shown apart: it may be compared with it.
            if like is None or member.seed not in [other.seed for other in groups[like]]:
                key = like or (CONFIG, member.name)
        groups.setdefault(key, []).append(member)
    methods: list[Method] = []
    for (how, told), members in groups.items():
        name = told if how in (LABEL, DECLARED, PRESET) else _common_name(members)
        if name in [method.name for method in methods]:
            name = f"{name} ({members[0].name})"
        methods.append(Method(name, tuple(members), how))
    notes += [note for method in methods for note in _notes_inside(method)]
    notes += _notes_near(methods) if group_by == CONFIG else ()
    return methods


def named_by(word: str, members: Iterable[Member]) -> list[Member]:
    """Return the runs that a word names: the one of that name, else by pattern, preset or folder."""
    every = list(members)
    return [member for member in every if member.name == word] or [one for one in every if one.is_named(word)]


def _read_names(members: list[Member], options: dict[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Run -> (option, name) of those that an option names. UserError if what is declared is not so."""
    named: dict[str, tuple[str, str]] = {}
    for option, text in ((option, text) for option, texts in options.items() for text in texts):
        name, _, words = text.partition("=")
        for word in words.split(","):
            if not (matching := named_by(word, members)):
                names = [member.name for member in members]
                raise UserError(
                    f'--{option} "{text}": "{word}" is not among the runs compared: {", ".join(names)}.'
                    f"{did_you_mean(word, names)}"
                )
            for member in matching:
                if named.setdefault(member.name, (option, name)) != (option, name):
                    other = " ".join(named[member.name])
                    raise UserError(f'run "{member.name}" is given to two names, --{other} and --{option} {name}')
        together = [m for m in members if named.get(m.name) == (DECLARED, name) and m.run is not None]
        for one, two in itertools.combinations(together, 2):
            if why := one_training(one, two):
                raise UserError(
                    f"--seeds {name}: {one.name} and {two.name} are one training ({why}); name one run of each"
                )
    return named


def _common_name(members: list[Member]) -> str:
    """The run's own name, else what its runs' names begin with, else the preset."""
    if len(members) == 1:
        return members[0].name
    stem = os.path.commonprefix([member.name for member in members])  # noqa: RUF071  # by letters
    # `gtpo-s1`, `gtpo-s2` are seeds of `gtpo`; in `gtpo-seeds` the ending belongs to the name.
    stem = re.sub(r"((^|(?<=[-_. /]))(seed|s))?\d*$", "", stem)
    return stem.rstrip("-_. /") or members[0].preset or members[0].name


def _config_differences(members: Sequence[Member], ignored: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Config keys in which members differ, beside seeds and names, with their values; and whether all have one."""
    configs = [member.config or {} for member in members]
    if {} in configs:
        configs = [{"config.yaml": "there" if config else "missing"} for config in configs]
    values = {key: [config.get(key) for config in configs] for config in configs for key in config}
    return {k: of for k, of in values.items() if k not in (*OWN_KEYS, *ignored) and len(set(map(str, of))) > 1}


def _notes_inside(method: Method) -> Iterator[str]:
    """Say what differs between the runs of one method, beside the seed, and which of them are seeds."""
    name, members = method.name, method.members
    if differing := _config_differences(members):
        listed = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in differing.items())
        yield f"{name}: its runs differ in more than the seed ({listed})"
    versions = [(member.train and member.train.run().get("packages")) or {} for member in members]
    if moved := sorted({key for of in versions for key in of if len({str(other.get(key)) for other in versions}) > 1}):
        yield f"{name}: its runs were trained with different versions of {', '.join(moved)}"
    if method.doubt and method.chosen_by != LABEL:
        yield f"{name}: {method.doubt}, so its runs are no seeds: their mean is shown as one run"
    for one, other in itertools.combinations(method.evaluated, 2):
        if not method.doubt and (why := one_training(one, other)):
            yield f"{name}: {one.name} and {other.name} are one training ({why}): their mean counts as one seed"
            break


def _notes_near(methods: list[Method]) -> Iterator[str]:
    """Say why rows of one preset that look like seeds of one method were not taken as one."""
    for i, method in enumerate(methods):
        for other in methods[:i]:
            first, second = other.members[0], method.members[0]
            differing = _config_differences((first, second), WHERE_KEYS)
            if not first.preset or first.preset != second.preset or len(differing) > NEAR:
                continue
            reason = "they have the same seed" if first.config else "they have no config.yaml to compare"
            if differing:
                reason = "they differ in " + ", ".join(f"{k} ({v[0]}, {v[1]})" for k, v in differing.items())
            elif first.run and second.run and first.checkpoint != second.checkpoint:
                reason = f"they are of different checkpoints ({first.checkpoint}, {second.checkpoint})"
            one = one_training(first, second)
            mend = "which is one training and not two seeds" if one else "--seeds NAME=RUN,RUN takes them as one method"
            yield f"{other.name} and {method.name} are both {first.preset} and shown apart: {reason}. {mend}"
            break
