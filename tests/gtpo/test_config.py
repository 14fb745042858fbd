"""Loading, flags, the published dialect and resolution of configs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from logs import logged

from gtpo.common.errors import UserError
from gtpo.common.settings import CommandSettings
from gtpo.config import load_config
from gtpo.config.load import RENAMED
from gtpo.config.schema import keys
from gtpo.demo import COMMANDS, run_demo
from gtpo.evalkit.evaluation.settings import EvalSettings
from gtpo.evalkit.report.command import CompareSettings, PlanSettings
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


@pytest.mark.parametrize("text", ["run_name: x\x01\n", f"a: {'[' * 3000}{']' * 3000}\n"])
def test_text_that_is_no_yaml_is_refused(tmp_path: Path, text: str) -> None:
    """Further mistakes in a file: tests/golden/refused-config.txt."""
    assert "run.yaml: n" in refused(tmp_path, MINIMAL + text)


def test_extends_merges_sections_replaces_lists_and_keeps_places(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "base.yaml").write_text(
        MINIMAL + "dataset:\n  name: math\n  subsets: [algebra, geometry]\ntraining:\n  num_generations: 4\n"
        "  max_steps: 3\nobjective:\n  gamma: 1E-3\n"
    )
    (tmp_path / "two.yaml").write_text("training:\n  num_generations: 6\n  warmup_ratio: 3\n")
    text = "extends: [below/base.yaml, two.yaml]\ndataset:\n  subsets: [precalculus]\n"
    assert "two.yaml:3: training.warmup_ratio" in refused(tmp_path, text)
    config = Loaded(tmp_path, text, training__warmup_ratio="0.1").config
    assert (config.training.num_generations, config.training.max_steps) == (6, 3)
    assert config.dataset.subsets == ["precalculus"]
    assert config.resolved_objective().gamma == 1e-3
    config = Loaded(tmp_path, text + "objective: null\n", training__warmup_ratio="0.1").config
    assert config.resolved_objective() == PRESETS["gtpo"]


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


@pytest.mark.parametrize("method", ["grpo", "sft", *PRESETS])
def test_flags_alone_make_a_config_that_its_file_repeats(method: str, tmp_path: Path) -> None:
    typed = {
        "model": "org/Some-Model", "data": "arithmetic", "method": method, "training.learning_rate": "2e-6",
        "data-dir": str(tmp_path), "training.lr_scheduler_kwargs.num_cycles": "2", "training.epsilon": "1e-3",
    }  # fmt: skip
    if method not in ("grpo", "sft"):
        typed |= {"method": "gtpo", "objective.preset": method}
    config = load_config(START, from_flags(typed), world_size=1)
    assert config.run_name == f"some-model-arithmetic-{typed['method']}"
    assert method == "sft" or config.resolved_objective() == PRESETS[method]
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


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 4, 8, 12, 20, 127])
def test_every_round_holds_complete_groups(tmp_path: Path, batch: int, processes: int) -> None:
    """A batch that does not divide into groups of eight becomes the nearest multiple, of two the smaller."""
    nearest = min(range(8, 200, 8), key=lambda multiple: (abs(multiple - batch), multiple))
    for accumulation, rounds in ((1, None), (2, None), (3, None), (8, None), (1, 2)):
        steps = {"training__gradient_accumulation_steps": accumulation, "training__steps_per_generation": rounds}
        loaded = Loaded(tmp_path, MINIMAL, processes, training__per_device_train_batch_size=batch, **steps)
        fits = batch * (rounds or accumulation) * processes % 8 == 0
        assert loaded.config.training.per_device_train_batch_size == (batch if fits else nearest)
        assert any("per_device_train_batch_size" in notice for notice in loaded.notices) != fits


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


@pytest.mark.parametrize("name", ["adam_beta1", "adam_beta2"])
@pytest.mark.parametrize(
    ("key", "value", "beta", "rank", "resolved"),
    [("training__optimizer", "paged_adamw_8bit", 0.999999, 0, "paged_adamw_32bit"),
     ("training__optimizer", "adamw_8bit", 0.99999, 0, "adamw_torch"),
     ("training__optimizer", "lion_8bit", 0.99995, 0, "lion_32bit"),
     ("training__optimizer", "paged_adamw_8bit", 0.9999, 0, "paged_adamw_8bit"),
     ("training__optimizer", "adamw_torch", 0.999999, 0, "adamw_torch"),
     ("model__dtype", "bfloat16", 0.999999, 0, "float32"),
     ("model__dtype", "bfloat16", 0.999999, 8, "bfloat16"),  # frozen weights
     ("model__dtype", "bfloat16", 0.99, 0, "bfloat16")],
)  # fmt: skip
def test_states_of_few_bits_are_widened_at_extreme_betas(
    tmp_path: Path, name: str, key: str, value: str, beta: float, rank: int, resolved: str
) -> None:
    given = {key: value, f"training__{name}": beta, "model__lora_rank": rank}
    loaded = Loaded(tmp_path, MINIMAL, **given)
    section, _, leaf = key.partition("__")
    assert getattr(getattr(loaded.config, section), leaf) == resolved
    assert any("bit states would round" in notice for notice in loaded.notices) == (value != resolved)


@pytest.mark.parametrize("value", ["none", ["none"], []])
def test_no_tracker_in_a_file_and_as_a_flag(tmp_path: Path, value: Any) -> None:
    assert Loaded(tmp_path, MINIMAL, training__report_to=value).config.training.report_to == []


# -- options of a command, by every spelling (refusals: tests/golden) --------------------------------------------------


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("m", {"model": "m"}),
        ("--k 3 m --quiet", {"model": "m", "k": "3", "quiet": "true"}),
        ("--quiet m", {"model": "m", "quiet": "true"}),
        ("--quiet false --k=2", {"k": "2", "quiet": "false"}),
        ("-b b --question a --question b m", {"model": "m", "benchmarks": "b", "questions": ["a", "b"]}),
        ("--k 2 --k 4", {"k": "4"}),
        ("--max_tokens 5 m", {"model": "m", "max_tokens": "5"}),
        ("--out=--strange", {"out": "--strange"}),
        ("--out --strange", {"out": "--strange"}),
    ],
)
def test_words(words: str, values: dict[str, Any]) -> None:
    assert EvalSettings.split(words.split()) == (values, {})


@pytest.mark.parametrize("command", [EvalSettings, CompareSettings, PlanSettings])
def test_an_option_that_a_script_misspells_is_named_with_what_is_near(command: type[CommandSettings]) -> None:
    for name in command.model_fields:
        with pytest.raises(UserError, match=f'has no option "{name}x".'):
            command(**{f"{name}x": 1})
