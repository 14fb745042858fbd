"""Loading, flags, the published dialect and resolution of configs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal
from unittest.mock import Mock

import pytest
import yaml
from logs import logged

from gtpo.common.errors import UserError
from gtpo.common.settings import CommandSettings, JsonObject, option
from gtpo.config import load_config
from gtpo.config.load import RENAMED
from gtpo.config.schema import keys
from gtpo.demo import COMMANDS, run_demo
from gtpo.options import START, from_flags, read_command
from gtpo.presets import PRESETS
from gtpo.train.command import choose_devices

MINIMAL = "model:\n  model_name: org/model\n"


class Loaded:
    """A config written from text and loaded, with what was logged meanwhile; overrides have `__` for the dot."""

    def __init__(self, folder: Path, text: str, world_size: int = 1, **overrides: Any) -> None:
        self.path = folder / "run.yaml"
        self.path.write_text(text, encoding="utf-8")
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        with logged() as self.notices:
            self.config = load_config(self.path, dotted, world_size=world_size)


def refused(folder: Path, text: str, **overrides: Any) -> str:
    with pytest.raises(UserError) as error:
        Loaded(folder, text, **overrides)
    return str(error.value)


# -- files -------------------------------------------------------------------------------------------------------------


def test_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    config = Loaded(
        tmp_path, MINIMAL + "training:\n  learning_rate: 1e-6\n  beta: 0\nobjective:\n  gamma: 1E-6\n"
    ).config
    assert config.training.learning_rate == 1e-6
    assert config.resolved_objective().gamma == 1e-6


@pytest.mark.parametrize("text", ["run_name: x\x01\n", f"a: {'[' * 3000}{']' * 3000}\n"])
def test_text_that_is_no_yaml_is_refused(tmp_path: Path, text: str) -> None:
    """Further mistakes in a file: tests/golden/refused-config.txt."""
    assert "run.yaml: n" in refused(tmp_path, MINIMAL + text)


def test_extends_merges_sections_and_replaces_lists(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "base.yaml").write_text(
        MINIMAL + "dataset:\n  name: math\n  subsets: [algebra, geometry]\ntraining:\n  num_generations: 4\n"
        "objective:\n  gamma: 0.5\n"
    )
    loaded = Loaded(tmp_path, "extends: below/base.yaml\ndataset:\n  subsets: [precalculus]\nobjective: null\n")
    assert loaded.config.dataset.subsets == ["precalculus"]
    assert loaded.config.training.num_generations == 4
    assert loaded.config.resolved_objective() == PRESETS["gtpo"]


def test_extends_several_the_later_wins_and_places_are_kept(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(MINIMAL + "training:\n  num_generations: 4\n  max_steps: 3\n")
    (tmp_path / "two.yaml").write_text("training:\n  num_generations: 6\n  warmup_ratio: 3\n")
    text = "extends: [one.yaml, two.yaml]\n"
    assert "two.yaml:3: training.warmup_ratio" in refused(tmp_path, text)
    config = Loaded(tmp_path, text, training__warmup_ratio="0.1").config
    assert (config.training.num_generations, config.training.max_steps) == (6, 3)


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", (Path(__file__).parent / "flags.txt").read_text().splitlines())
def test_flags(line: str) -> None:
    words, parsed = line.split(" -> ")
    options, values = read_command(words.split())
    assert [options.config, values] == json.loads(parsed)


def test_every_key_is_a_flag_that_loads(tmp_path: Path) -> None:
    """Each key's flag, given its default as text, parses to that default."""
    reference = Loaded(tmp_path, MINIMAL).config.as_dict()
    for name, key in keys().items():
        value = key.default
        if value in (None, [], "") or name.startswith("model.build"):
            continue
        words = [str(item) for item in value] if key.many else [str(value)]
        options, overrides = read_command(["run.yaml", f"--{name}", *words])
        loaded = Loaded(tmp_path, MINIMAL, **{name.replace(".", "__"): overrides[name]}).config
        assert options.config == "run.yaml"
        assert loaded.as_dict() == reference, name


@pytest.mark.parametrize("method", ["gtpo", "grpo", "sft"])
def test_flags_alone_make_a_config_that_its_file_repeats(method: str, tmp_path: Path) -> None:
    typed = {
        "model": "org/Some-Model", "data": "arithmetic", "method": method, "training.learning_rate": "2e-6",
        "data-dir": str(tmp_path), "training.lr_scheduler_kwargs.num_cycles": "2", "training.epsilon": "1e-3",
    }  # fmt: skip
    overrides = from_flags(typed)
    config = load_config(START, overrides, world_size=1)
    assert config.run_name == f"some-model-arithmetic-{method}"
    (tmp_path / "mine.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "mine.yaml", world_size=1).as_dict() == config.as_dict()


@pytest.mark.parametrize("failing", [None, 3])
def test_demo_stops_at_the_first_command_that_fails(
    failing: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = (CompletedProcess([], 5 if number == failing else 0) for number in range(len(COMMANDS)))
    run = Mock(side_effect=codes)
    monkeypatch.setattr("gtpo.demo.subprocess.run", run)
    assert run_demo(["gtpo"]) == (0 if failing is None else 5)
    ran = [tuple(word for word in call.args[0][1:] if word != "--quiet") for call in run.call_args_list]
    assert ran == list(COMMANDS[: None if failing is None else failing + 1])
    shown = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert shown == ["gtpo " + " ".join(command) for command in ran]


# -- the published dialect ---------------------------------------------------------------------------------------------


# Two values of each key that has another name.
TWO_VALUES: dict[str, tuple[Any, Any]] = {
    "dataset.subsets": ("algebra", "geometry"), "training.optimizer": ("sgd", "adafactor"),
    "rollout.server_host": ("a", "b"), "rollout.importance_sampling_correction": ("false", "true"),
    "model.max_seq_length": ("4096", "8192"), "rollout.server_port": ("81", "82"),
}  # fmt: skip


@pytest.mark.parametrize("in_file", [False, True], ids=["file: our name", "file: other name"])
@pytest.mark.parametrize(("other", "ours"), RENAMED.items())
def test_a_flag_wins_over_a_file_whatever_they_call_the_key(
    other: str, ours: str, in_file: bool, tmp_path: Path
) -> None:
    below, above = TWO_VALUES.get(ours, ("0.25", "0.5") if float in keys()[ours].kinds else ("2", "3"))
    name, flag = (other, ours) if in_file else (ours, other)

    def written(*values: tuple[str, str]) -> str:
        sections = {"model": {"model_name": "org/model"}, "dataset": {"name": "math"}}
        for key, value in values:
            section, _, leaf = key.partition(".")
            sections.setdefault(section, {})[leaf] = [value] if key in keys() and keys()[key].many else value
        return yaml.safe_dump(sections)

    config = Loaded(tmp_path, written((name, below)), **{flag.replace(".", "__"): above}).config
    assert config.as_dict() == Loaded(tmp_path, written((ours, above))).config.as_dict()
    assert config.as_dict() != Loaded(tmp_path, written((ours, below))).config.as_dict()
    # In one file they contradict each other.
    assert "set the same thing; remove one" in refused(tmp_path, written((other, below), (ours, above)))


# -- resolution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "accumulation", "rounds", "processes", "resolved"),
    [
        (8, 1, None, 1, 8),
        (1, 8, None, 1, 1),
        (1, 1, None, 1, 8),
        (4, 1, None, 2, 4),
        (2, 1, None, 2, 8),
        (3, 1, None, 1, 8),
        (16, 1, None, 1, 16),
        (4, 1, 2, 1, 4),
        (12, 2, None, 1, 12),
        (12, 1, None, 1, 8),
        (127, 1, None, 1, 128),
        (20, 3, None, 1, 16),
    ],
)
def test_every_round_holds_complete_groups(
    tmp_path: Path, batch: int, accumulation: int, rounds: int | None, processes: int, resolved: int
) -> None:
    loaded = Loaded(
        tmp_path,
        MINIMAL,
        world_size=processes,
        training__per_device_train_batch_size=batch,
        training__gradient_accumulation_steps=accumulation,
        training__steps_per_generation=rounds,
    )
    training = loaded.config.training
    assert training.per_device_train_batch_size == resolved
    per_round = resolved * (rounds or accumulation) * processes
    assert per_round % training.num_generations == 0
    assert any("per_device_train_batch_size" in notice for notice in loaded.notices) == (batch != resolved)


@pytest.mark.parametrize(("shell", "flag", "taken"), [(None, None, "0"), ("3", None, "3"), ("3", "5", "5")])
def test_devices_flag_over_shell_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str | None, flag: str | None, taken: str
) -> None:
    monkeypatch.setattr(os, "environ", {} if shell is None else {"CUDA_VISIBLE_DEVICES": shell})
    flags = {} if flag is None else {"env__CUDA_VISIBLE_DEVICES": flag}
    config = Loaded(tmp_path, MINIMAL + 'env:\n  CUDA_VISIBLE_DEVICES: "0"\n', **flags).config
    with logged() as notices:
        choose_devices(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken
    assert ["run.yaml:4: env.CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES=3" in notice for notice in notices] == (
        [True] if taken == "3" else []
    )


@pytest.mark.parametrize(
    ("optimizer", "beta", "resolved"),
    [("paged_adamw_8bit", 0.999999, "paged_adamw_32bit"), ("adamw_8bit", 0.99999, "adamw_torch"),
     ("lion_8bit", 0.99995, "lion_32bit"), ("paged_adamw_8bit", 0.9999, "paged_adamw_8bit"),
     ("adamw_torch", 0.999999, "adamw_torch")],
)  # fmt: skip
def test_8bit_states_are_widened_at_extreme_betas(tmp_path: Path, optimizer: str, beta: float, resolved: str) -> None:
    for name in ("training__adam_beta1", "training__adam_beta2"):
        loaded = Loaded(tmp_path, MINIMAL, training__optimizer=optimizer, **{name: beta})
        assert loaded.config.training.optimizer == resolved
        assert any("8-bit states would round" in notice for notice in loaded.notices) == (optimizer != resolved)


def test_16bit_states_are_widened_too(tmp_path: Path) -> None:
    high = {"training__adam_beta1": 0.999999, "model__dtype": "bfloat16"}
    loaded = Loaded(tmp_path, MINIMAL, **high)
    assert loaded.config.model.dtype == "float32"
    assert any("16-bit states" in notice for notice in loaded.notices)
    assert Loaded(tmp_path, MINIMAL, **high, model__lora_rank=8).config.model.dtype == "bfloat16"  # frozen weights
    assert Loaded(tmp_path, MINIMAL, model__dtype="bfloat16").config.model.dtype == "bfloat16"


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_resolve_to_themselves_and_survive_a_round_trip(tmp_path: Path, preset: str) -> None:
    config = Loaded(tmp_path, MINIMAL, objective__preset=preset).config
    assert config.resolved_objective() == PRESETS[preset]
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    again = load_config(tmp_path / "again.yaml")
    assert again.as_dict() == config.as_dict()
    assert again.resolved_objective() == PRESETS[preset]


@pytest.mark.parametrize("value", ["none", ["none"], []])
def test_no_tracker_in_a_file_and_as_a_flag(tmp_path: Path, value: Any) -> None:
    assert Loaded(tmp_path, MINIMAL, training__report_to=value).config.training.report_to == []


# -- options of a command, by every spelling (refusals: tests/golden) --------------------------------------------------


class Example(CommandSettings):
    COMMAND = "gtpo example"
    ARGUMENT = "model"

    model: str | None = option(None, "What is read.")
    count: int = option(1, "How many.", ge=1, le=9)
    share: float | None = option(None, "How much.", gt=0.0)
    kind: Literal["plain", "other"] = option("plain", "Which.", "--kind", "-t")
    name: Sequence[str] | None = option(None, "Of whom (repeatable).")
    body: JsonObject | None = option(None, "Further fields.")
    out: Path | None = option(None, "Where.")
    quiet: bool = option(False, "Say less.")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("m", {"model": "m"}),
        ("--count 3 m --quiet", {"model": "m", "count": 3, "quiet": True}),
        ("--quiet m", {"model": "m", "quiet": True}),
        ("--quiet false --count=2", {"count": 2, "quiet": False}),
        ("-t other --name a --name b m", {"model": "m", "kind": "other", "name": ["a", "b"]}),
        ("--count 2 --count 4", {"count": 4}),
        ("--share .5 m", {"model": "m", "share": 0.5}),
        ('--body {"a":1}', {"body": {"a": 1}}),
        ("--out=--strange", {"out": Path("--strange")}),
        ("--out --strange", {"out": Path("--strange")}),
    ],
)
def test_words(words: str, values: dict[str, Any]) -> None:
    settings = Example.from_words(words.split())
    assert {name: getattr(settings, name) for name in settings.given} == values


def test_what_was_not_set_is_filled() -> None:
    settings = Example.from_words(["--count", "3"]).filled({"count": 5, "kind": "other", "out": None})
    assert (settings.count, settings.kind, settings.given) == (3, "other", {"count", "kind"})
