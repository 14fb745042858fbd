"""Loading, flags, the published dialect and resolution of configs."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from logs import logged

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig, load_config
from gtpo.config.document import parse_flags
from gtpo.config.keys import SHORTCUTS, keys, sections
from gtpo.presets import PRESETS, Objective
from gtpo.run.command import choose_devices

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "configs" / "published" / "llama-math.yaml"
MINIMAL = "model:\n  model_name: org/model\n"
BUILT = {"model__model_name": None, "model__build__hidden_size": 128}
"""Overrides that build the model in place of MINIMAL's."""


def load_with_notices(path: Path, world_size: int = 1, **overrides: Any) -> tuple[TrainConfig, list[str]]:
    """Return a config and what was logged while it was loaded; overrides have `__` for the dot."""
    with logged() as notices:
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        return load_config(path, dotted, world_size=world_size), notices


class Loaded:
    """A config written from text and loaded, with its notices."""

    def __init__(self, folder: Path, text: str, world_size: int = 1, **overrides: Any) -> None:
        self.path = folder / "run.yaml"
        self.path.write_text(text, encoding="utf-8")
        self.config, self.notices = load_with_notices(self.path, world_size, **overrides)


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


def test_run_name_is_the_files_name(tmp_path: Path) -> None:
    assert Loaded(tmp_path, MINIMAL).config.run_name == "run"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training:\n  lora_rank: 8\n", 'run.yaml:4: unknown key "training.lora_rank". Did you mean "model.lora_rank"'),
        ("trainin:\n  learning_rate: 1\n", 'run.yaml:3: unknown key "trainin". Did you mean "training"?'),
        (
            "training:\n  num_generations: many\n",
            "run.yaml:4: training.num_generations must be a whole number >= 1; found 'many'",
        ),
        (
            "training:\n  warmup_ratio: 1.5\n",
            "run.yaml:4: training.warmup_ratio must be a number >= 0 and < 1; found 1.5",
        ),
        ("training:\n  warmup_ratio: .nan\n", "run.yaml:4: training.warmup_ratio must be a number"),
        (
            "training:\n  warmup_ratio: true\n",
            "run.yaml:4: training.warmup_ratio must be a number >= 0 and < 1; found True",
        ),
        ("training:\n  learning_rate: .inf\n", "run.yaml:4: training.learning_rate must be a number > 0; found inf"),
        ("run_name: 2024-01-01\n", "run.yaml:3: run_name must be text"),
        ("run_name: x\x01\n", "run.yaml: not valid YAML"),
        ("objective: &o\n  filter: auto\ngtpo_runtime:\n  <<: *o\n", 'unknown key "gtpo_runtime.filter"'),
        ("training:\n  report_to: [wand]\n", 'Did you mean "wandb"?'),
        ("training:\n  learning_rate:\n    nested: 1\n", "run.yaml:4: training.learning_rate must be a number > 0"),
        ("training: 3\n", "run.yaml:3: training must be a mapping, found 3"),
        ("objective:\n  filter: maybe\n", "run.yaml:4: objective.filter must be one of auto, always, never"),
        ("objective:\n  preset: gtpoo\n", 'Did you mean "gtpo"?'),
        ("objective:\n  filter: off\n", 'found False. Did you mean "never"? (YAML reads off and no as false)'),
        ("objective:\n  entropy_mode: no\n", 'found False. Did you mean "none"?'),
        (
            "training.learning_rate: 3\n",
            'run.yaml:3: unknown key "training.learning_rate". A file nests its keys: put "learning_rate:" under '
            '"training:"',
        ),
        ("model:\n  model_name: twice\n", 'run.yaml:3: duplicate key "model" (first at'),
        ("training:\n  - a\n", "run.yaml:3: training must be a mapping"),
        ("training: {learning_rate: 1e-6\n", "run.yaml:"),
        ("dataset:\n  name: gsm9k\n", 'Did you mean "gsm8k"?'),
        ("dataset:\n  name: gsm8k\n  split: dev\n", "gsm8k has the splits train, test"),
        ("run_name: ../elsewhere\n", "run_name must be a name that starts with a letter"),
        (f"a: {'[' * 3000}{']' * 3000}\n", "run.yaml: nested too deeply"),
    ],
)
def test_error_names_key_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(tmp_path, MINIMAL + text)


def test_all_errors_are_reported_at_once_under_the_key_as_typed(tmp_path: Path) -> None:
    text = MINIMAL + (
        "training:\n  learning_rate: -1\n  warmup_ratio: true\n  beta: 0.1\ntrainer:\n  class_path: trl.GRPOTrainer\n"
        "gtpo_runtime:\n  ent_threshold: -1\n  w_ra: 2\nmethod: gtpo\nrun: x\n"
    )
    found = [line.strip() for line in refused(tmp_path, text, model__max_seq="3").splitlines()]
    expected = [
        "run.yaml:8: trainer.class_path trl.GRPOTrainer trains with method grpo, but",
        'run.yaml:11: unknown key "gtpo_runtime.w_ra". Did you mean "gtpo_runtime.w_raw"?',
        "run.yaml:5: training.warmup_ratio must be",
        "run.yaml:4: training.learning_rate must be",
        "run.yaml:10: gtpo_runtime.ent_threshold must be a number > 0; found -1",
        'run.yaml:13: unknown key "run"',
        'unknown flag "--model.max_seq". Did you mean "--model.max_seq_length"?',
    ]
    for words in expected:
        assert sum(line.removeprefix(f"{tmp_path}/").startswith(words) for line in found) == 1, (words, found)


def test_all_contradictions_are_reported_at_once(tmp_path: Path) -> None:
    text = MINIMAL + "  load_in_4bit: true\ntraining:\n  beta: 0.1\n  max_steps: 0\ndataset:\n  name: gsm9k\n"
    lines = [line.strip().removeprefix(f"{tmp_path}/") for line in refused(tmp_path, text).splitlines()]
    assert [line.split(" ")[:2] for line in lines] == [
        ["run.yaml:3:", "model.load_in_4bit"],
        ["run.yaml:8:", "dataset.name"],
        ["run.yaml:6:", "training.max_steps"],
        ["run.yaml:5:", "training.beta"],
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just words\n"])
def test_empty_and_foreign_files_are_refused(tmp_path: Path, text: str) -> None:
    assert "run.yaml" in refused(tmp_path, text)


def test_yaml_cannot_build_objects(tmp_path: Path) -> None:
    assert "not valid YAML" in refused(tmp_path, "run_name: !!python/object/apply:os.getcwd []\n")


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


@pytest.mark.parametrize(("base", "expected"), [("run.yaml", "is circular"), ("none.yaml", "no such file")])
def test_extends_refuses_loops_and_absent_files(tmp_path: Path, base: str, expected: str) -> None:
    assert expected in refused(tmp_path, f"extends: {base}\n" + MINIMAL)


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "path", "overrides"),
    [
        ("run.yaml --training.learning_rate 2e-6", "run.yaml", {"training.learning_rate": "2e-6"}),
        ("--run_name Q run.yaml", "run.yaml", {"run_name": "Q"}),
        ("--training.max_steps -1 run.yaml", "run.yaml", {"training.max_steps": "-1"}),
        ("--training.learning_rate=2e-6 run.yaml", "run.yaml", {"training.learning_rate": "2e-6"}),
        ("run.yaml --dataset.subsets algebra geometry", "run.yaml", {"dataset.subsets": ["algebra", "geometry"]}),
        ("run.yaml --dataset.subsets algebra,geometry", "run.yaml", {"dataset.subsets": ["algebra", "geometry"]}),
        ("run.yaml --dataset.subsets [algebra,geometry]", "run.yaml", {"dataset.subsets": ["algebra", "geometry"]}),
        ("run.yaml --dataset.subsets [algebra, 'geometry']", "run.yaml", {"dataset.subsets": ["algebra", "geometry"]}),
        ("run.yaml --dataset.subsets []", "run.yaml", {"dataset.subsets": []}),
        ("--trainer.reward_funcs a.b c.d run.yaml", "run.yaml", {"trainer.reward_funcs": ["a.b", "c.d"]}),
        ("--model.load_in_4bit run.yaml", "run.yaml", {"model.load_in_4bit": "true"}),
        (
            "--model.load_in_4bit demo/gtpo --data run.yaml",
            "demo/gtpo",
            {"model.load_in_4bit": "true", "data": "run.yaml"},
        ),
        ("--model.load_in_4bit false run.yaml", "run.yaml", {"model.load_in_4bit": "false"}),
        ("run.yaml --model.lora_alpha none", "run.yaml", {"model.lora_alpha": None}),
        ("run.yaml --dataset-subset a --dataset-subset b", "run.yaml", {"dataset-subset": ["a", "b"]}),
        ("run.yaml --cuda 3 --model-name o/m", "run.yaml", {"cuda": "3", "model-name": "o/m"}),
        (
            "run.yaml --gtpo_runtime.torch_compile_options.trace.enabled false",
            "run.yaml",
            {"gtpo_runtime.torch_compile_options.trace.enabled": "false"},
        ),
        ("--training.report_to wandb --run-name x", None, {"training.report_to": ["wandb"], "run-name": "x"}),
    ],
)
def test_flags(words: str, path: str | None, overrides: dict[str, Any]) -> None:
    assert parse_flags(words.split()) == (path, overrides)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run.yaml --training.learning_rate", "--training.learning_rate needs a value: a number > 0"),
        ("run.yaml --training.learning_rate --run_name x", "needs a value"),
        ("run.yaml other.yaml", "one config file at a time"),
        ("run.yaml maybe", '"maybe" is neither a flag nor a config file'),
        ("run.yaml -q", '"-q" is neither a flag nor a config file; flags begin with two dashes'),
    ],
)
def test_wrong_flags_are_named(words: str, expected: str) -> None:
    with pytest.raises(UserError, match=r"--|config") as error:
        parse_flags(words.split())
    assert expected in str(error.value)


def test_every_key_is_a_flag_that_loads(tmp_path: Path) -> None:
    """Each key's flag, given its default as text, parses to that default."""
    reference = Loaded(tmp_path, MINIMAL).config.as_dict()
    for name, key in keys().items():
        value = key.default
        if value in (None, [], "") or name.startswith("model.build"):
            continue
        words = [str(item) for item in value] if key.many else [str(value)]
        path, overrides = parse_flags(["run.yaml", f"--{name}", *words])
        loaded = Loaded(tmp_path, MINIMAL, **{name.replace(".", "__"): overrides[name]}).config
        assert path == "run.yaml"
        assert loaded.as_dict() == reference, name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--training.learning_rate -1", "--training.learning_rate must be a number > 0; found '-1'."),
        ("--gtpo_runtime.ent_threshold -1", "--gtpo_runtime.ent_threshold must be a number > 0; found '-1'."),
        ("--dataset-name gsm9k", '--dataset-name "gsm9k" is not known. Did you mean "gsm8k"?'),
        ("--learning_rate 1", 'unknown flag "--learning_rate". Did you mean "--training.learning_rate"?'),
        ("--learning-rat 1", 'unknown flag "--learning-rat". Did you mean "--training.learning_rate"?'),
        (
            "--trainin.learning_rate 1",
            'unknown flag "--trainin.learning_rate". Did you mean "--training.learning_rate"?',
        ),
        (
            "--objective.initial_entropy 1",
            'unknown flag "--objective.initial_entropy". Did you mean "--training.initial',
        ),
        ("--gtpo_runtime.w_ra 1", 'unknown flag "--gtpo_runtime.w_ra". Did you mean "--gtpo_runtime.w_raw"?'),
        ("--training 3", "--training must be a mapping, found '3'"),
    ],
)
def test_flag_errors_name_the_flag_as_typed(tmp_path: Path, words: str, expected: str) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    _, overrides = parse_flags(words.split())
    with pytest.raises(UserError) as error:
        load_config(tmp_path / "run.yaml", overrides)
    assert str(error.value).startswith(expected)


# -- the schema --------------------------------------------------------------------------------------------------------


def test_every_key_is_documented_and_typed() -> None:
    for key in keys().values():
        assert key.doc, f"{key.name} has no documentation"
        assert key.expects
    for name, section in sections().items():
        assert section.__doc__, name


def test_objective_section_has_exactly_the_objectives_fields() -> None:
    names = {key.removeprefix("objective.") for key in keys() if key.startswith("objective.")}
    assert names == {field.name for field in fields(Objective)} | {"preset"}


# -- the published dialect ---------------------------------------------------------------------------------------------


def published(**overrides: Any) -> tuple[TrainConfig, list[str]]:
    return load_with_notices(PUBLISHED, **overrides)


def test_published_file_runs_unchanged_and_says_what_it_did() -> None:
    config, notices = published()
    assert config.run_name == "GTPO_LLAMA8B_MATH"
    assert config.method == "gtpo"
    assert config.trainer.class_path is None
    assert config.trainer.reward_funcs == ["gtpo.rewards.final_reward"]
    assert config.training.num_generations == 8
    assert config.training.max_completion_length == 1500
    assert config.model.lora_alpha == 128
    assert config.env.CUDA_VISIBLE_DEVICES == "0"
    assert config.dataset.system_instruction.endswith("</answer>.\n")
    expected = replace(PRESETS["gtpo"], entropy_threshold=0.7, gamma=0.1, positive_weight=2.0, log_clamp=1e-6)
    assert config.resolved_objective() == expected
    for words in (
        "gtpo.gtpo_training.UnslothGTPOTrainer ->",
        "reward_math.final_reward -> gtpo.rewards.final_reward",
        'num_generations "8/12": taking 8',
        "gtpo_runtime.pad_id has no effect",
        "gtpo_runtime.torch_compile_options has no effect",
        "model.max_prompt_length has no effect",
        "ent_threshold -> objective.entropy_threshold 0.7",
        "paged_adamw_8bit -> paged_adamw_32bit",
        "per_device_train_batch_size is taken as 8, not 1",
        "training.temperature 1.0, which nothing in this file sets",
    ):
        assert sum(words in notice for notice in notices) == 1, words


def test_a_temperature_that_is_set_needs_no_word() -> None:
    config, notices = published(training__temperature="0.9")
    assert config.training.temperature == 0.9
    assert not any("training.temperature" in notice for notice in notices)


@pytest.mark.parametrize(
    ("overrides", "method", "words"),
    [
        ({"trainer__class_path": "custom_trainer.original.UnslothGRPOTrainer"}, "grpo", "UnslothGRPOTrainer -> trl"),
        ({"trainer__reward_funcs": ["reward_math.formatting_penalty"]}, "gtpo", "-> gtpo.rewards.format_reward"),
        (
            {"trainer__reward_funcs": ["reward_math:scaled_adaptive_reward_func"]},
            "gtpo",
            "-> gtpo.rewards.accuracy_reward",
        ),
        ({"dataset__name": "gsm8k", "dataset__subsets": ["main"], "dataset__split": "train"}, "gtpo", "class_path"),
        ({"dataset__name": "gsm8k"}, "gtpo", "no effect on dataset gsm8k (they are MATH's subjects): dataset.subsets"),
        (
            {"training__per_device_train_batch_size": "2", "training__gradient_accumulation_steps": "3"},
            "gtpo",
            "is taken as 8, not 2",
        ),
    ],
)
def test_published_variants(overrides: dict[str, Any], method: str, words: str) -> None:
    config, notices = published(**overrides)
    assert config.method == method
    assert any(words in notice for notice in notices), notices


def test_runtime_section_has_no_effect_with_grpo_and_says_so() -> None:
    config, notices = published(trainer__class_path="custom_trainer.original.UnslothGRPOTrainer")
    assert config.resolved_objective() == PRESETS["grpo"]
    assert any("gtpo_runtime has no effect with method grpo" in notice for notice in notices)


def test_threshold_777_turns_the_gate_off_as_in_the_notebook() -> None:
    config, _ = published(gtpo_runtime__ent_threshold="777")
    assert config.resolved_objective().entropy_threshold == 777


def test_two_values_for_one_thing_are_refused() -> None:
    with pytest.raises(UserError, match=r"gtpo_runtime.ent_scale 0.1 and --objective.gamma 0.5 set the same thing"):
        published(objective__gamma=0.5)


# -- resolution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"training__num_generations": "1"}, "training.num_generations 1 contradicts method gtpo"),
        ({"training__max_steps": "0"}, "training.max_steps 0 trains nothing"),
        ({"model__random_seed": str(2**32)}, "model.random_seed must be a whole number >= 0 and <= 4294967295"),
        ({"lora__use_dora": "true"}, "lora.use_dora has no effect: model.lora_rank is 0"),
        ({"model__lora_rank": "4", "lora__lora_dropout": "0.1"}, "lora.lora_dropout has no effect"),
        ({"model__lora_rank": "4", "model__target_modules": ["q_proj", "lm_head"]}, "model.target_modules lm_head"),
        ({"training__beta": "0.04"}, "training.beta 0.04 contradicts method gtpo"),
        (
            {"method": "grpo", "training__initial_entropy": "0"},
            "initial_entropy 0.0 contradicts method grpo, which has no entropy gate",
        ),
        ({"method": "sft", "training__beta": "0.04"}, "contradicts method sft"),
        ({"method": "sft", "objective__filter": "never"}, "objective.filter contradicts method sft"),
        ({"method": "sft", "objective__preset": "gtpo"}, "objective.preset contradicts method sft"),
        ({"method": "grpo", "objective__preset": "gtpo"}, "objective.preset gtpo contradicts method grpo"),
        ({"method": "grpo", "objective__preset": "grpo-filtered"}, "method gtpo takes it"),
        ({"method": "grpo", "objective__filter": "always"}, "objective.filter always contradicts method grpo"),
        ({"method": "grpo", "trainer__class_path": "gtpo.GTPOTrainer"}, "trains with method gtpo, but --method is"),
        ({"model__build__hidden_size": "64"}, "model.model_name contradicts model.build"),
        ({"model__load_in_4bit": "true"}, "model.load_in_4bit needs lora_rank > 0"),
        ({"training__max_prompt_length": "2048"}, "max_prompt_length 2048 leaves no room in model"),
        ({"training__max_completion_length": "1800"}, "1800 + max_prompt_length 512 leaves no room in"),
        ({"dataset__name": "gsm8k", "dataset__subset": "socratic"}, "has only main"),
        (
            {"dataset__name": "gsm8k_train", "dataset__split": "test"},
            'split "test" contradicts dataset.name gsm8k_train',
        ),
        ({**BUILT, "model__backend": "unsloth"}, "model.backend contradicts model.build"),
        ({"dataset__name": "math", "dataset__subset": "algebra", "dataset__subsets": ["geometry"]}, "remove one"),
    ],
)
def test_contradictions_are_refused_by_name(tmp_path: Path, overrides: dict[str, Any], expected: str) -> None:
    assert expected in refused(tmp_path, MINIMAL, **overrides)


def test_model_is_needed(tmp_path: Path) -> None:
    assert "run.yaml: model needs model_name" in refused(tmp_path, "run_name: x\n")
    assert "needs model_name" in refused(tmp_path, "model:\n  lora_rank: 4\n")


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


def test_processes_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL + "training:\n  per_device_train_batch_size: 4\n")
    assert load_config(path).training.per_device_train_batch_size == 4


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
    [
        ("paged_adamw_8bit", 0.999999, "paged_adamw_32bit"),
        ("adamw_8bit", 0.99999, "adamw_torch"),
        ("lion_8bit", 0.99995, "lion_32bit"),
        ("paged_adamw_8bit", 0.9999, "paged_adamw_8bit"),
        ("paged_adamw_8bit", 0.95, "paged_adamw_8bit"),
        ("adamw_torch", 0.999999, "adamw_torch"),
    ],
)
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


def test_grpo_may_vary_what_trl_has(tmp_path: Path) -> None:
    config = Loaded(tmp_path, MINIMAL, method="grpo", objective__scale_rewards="none").config
    assert config.resolved_objective() == replace(PRESETS["grpo"], scale_rewards="none")


@pytest.mark.parametrize("value", ["none", ["none"], []])
def test_no_tracker_in_a_file_and_as_a_flag(tmp_path: Path, value: Any) -> None:
    assert Loaded(tmp_path, MINIMAL, training__report_to=value).config.training.report_to == []


def test_shortcuts_name_existing_keys() -> None:
    assert set(SHORTCUTS.values()) <= set(keys())
