"""GTPOTrainer as a TRL user meets it (its refusals: tests/golden/refused-script.txt)."""

from __future__ import annotations

import copy
import io
import json
import logging
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from scripted import scripted
from trl import TrlParser

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.common.log import LOG
from gtpo.entropy import Calibration
from gtpo.objective import PRESETS
from gtpo.rewards import extract_answer
from gtpo.trainer import trl_seam

needs_trl_kernel = pytest.mark.skipif(
    version("trl").startswith("1.15.") and not torch.cuda.is_available(),
    reason="TRL 1.15 scores log-probabilities with a Triton kernel, which needs a GPU",
)
PROMPTS = [[{"role": "user", "content": f"What is {number} + 1?"}] for number in range(8)]


SETTINGS: dict[str, Any] = {
    "num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 8, "max_steps": 2,
    "logging_steps": 1, "bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no",
    "disable_tqdm": True,
}  # fmt: skip


def arguments(tmp_path: Path, **changes: Any) -> GTPOConfig:
    return GTPOConfig(**{"output_dir": str(tmp_path / "out"), **SETTINGS, **changes})


def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


def untrained(folder: Path, tmp_path: Path) -> GTPOTrainer:
    data = Dataset.from_dict({"prompt": PROMPTS})
    return GTPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments(tmp_path),
        train_dataset=data,
    )


@pytest.mark.parametrize(
    ("changes", "passes"),
    [({}, 0), ({"gradient_accumulation_steps": 2}, 0), pytest.param({"num_iterations": 2}, 1, marks=needs_trl_kernel)],
)
def test_no_old_policy_pass_where_a_round_feeds_one_step(
    folder: Path, tmp_path: Path, changes: dict[str, Any], passes: int
) -> None:
    calls: list[Any] = []

    class Counting(GTPOTrainer):
        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    data = Dataset.from_dict({"prompt": PROMPTS})
    settings = arguments(tmp_path, initial_entropy=0.1, **changes)
    Counting(model=str(folder), reward_funcs=reward, args=settings, train_dataset=data).train()
    assert len(calls) == passes


@pytest.mark.parametrize("fields", [{"entropy_temperature": "one"}, {"log_clamp": 0.01}])
def test_several_steps_per_round_take_statistics_of_one_distribution(
    folder: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    """At the first step the policy is the one that sampled: no token is clipped, and the entropy is the same."""

    first = {}
    for iterations in (1, 2):
        settings = arguments(
            tmp_path,
            objective={"filter": "never", **fields},
            num_iterations=iterations,
            temperature=0.5,
            epsilon=1e-5,
            steps_per_generation=2,
            gradient_accumulation_steps=2,
            max_steps=1,
        )
        data = Dataset.from_dict({"prompt": PROMPTS})
        trainer = GTPOTrainer(model=str(folder), reward_funcs=reward, args=settings, train_dataset=data)
        torch.manual_seed(0)
        with torch.no_grad():  # far from uniform, where temperature and clamp change the entropy
            trainer.model.get_input_embeddings().weight.normal_(std=0.5)
        trainer.train()
        first[iterations] = trainer.state.log_history[0]
    assert first[2]["clip_ratio/region_mean"] == 0
    assert first[2]["entropy/mean"] == pytest.approx(first[1]["entropy/mean"], rel=1e-6)
    assert first[2]["loss"] == pytest.approx(first[1]["loss"], rel=1e-6)


def test_objective_is_passed_whole_and_survives_json_and_pickle(tmp_path: Path) -> None:
    objective = replace(PRESETS["gtpo-eq7"], gamma=0.03)
    settings = arguments(tmp_path, objective=objective)
    assert settings.resolved_objective() == objective
    written = json.loads(settings.to_json_string())["objective"]
    assert written == asdict(objective)
    assert arguments(tmp_path, objective=written).resolved_objective() == objective
    buffer = io.BytesIO()
    torch.save(settings, buffer)  # training_args.bin of a checkpoint
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).resolved_objective() == objective
    assert "gamma" in str(settings)


def test_objective_from_trls_parser(tmp_path: Path) -> None:
    command = ["--output_dir", str(tmp_path), "--use_cpu", "--bf16", "no", "--objective", '{"gamma": 0.05}']
    (settings,) = TrlParser(GTPOConfig).parse_args_and_config(command)
    assert settings.resolved_objective() == replace(PRESETS["gtpo"], gamma=0.05)


@needs_trl_kernel
def test_deep_copy_of_the_model_computes_with_its_own_weights(folder: Path, tmp_path: Path) -> None:
    trainer = untrained(folder, tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    original = trainer.model(ids).logits
    copied = copy.deepcopy(trainer.model)
    assert torch.equal(copied(ids).logits, original)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert copied(ids).logits.abs().max() == 0
    assert copied(ids, of_hidden=lambda hidden, head: hidden).value.abs().max() == 0
    found = copied(ids, labels=ids, fused_lm_head=True).log_probs
    uniform = -torch.log(torch.tensor(float(copied.config.vocab_size)))
    torch.testing.assert_close(found, uniform.expand_as(found))
    assert torch.equal(trainer.model(ids).logits, original)


def test_the_head_is_not_copied_for_each_row_that_is_sampled(folder: Path, tmp_path: Path) -> None:
    """As torch does on a CPU if frozen weights multiply rows that do not lie one behind another."""
    trainer, whole = untrained(folder, tmp_path), list[bool]()
    trainer.model.lm_head.register_forward_pre_hook(lambda _, rows: whole.append(rows[0].is_contiguous()))
    trl_seam.sample(trainer, [{"prompt": prompt} for prompt in PROMPTS])
    assert set(whole) == {True}


def test_a_script_without_logging_of_its_own_sees_the_gates_decision(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(LOG, name, [] if name == "handlers" else getattr(LOG, name))
    trainer = untrained(folder, tmp_path)
    trainer.gate.calibration = Calibration(0.1)
    trainer.gate.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert "entropy filter on: 0.100 < 0.693" in capsys.readouterr().err


def test_evaluation_without_training_and_training_after_it(folder: Path, tmp_path: Path) -> None:
    data = Dataset.from_dict({"prompt": PROMPTS})

    def build(name: str) -> GTPOTrainer:
        settings = arguments(tmp_path / name, per_device_eval_batch_size=4)
        return GTPOTrainer(str(folder), reward, settings, data, eval_dataset=data.select(range(2)))

    trainer, plain = build("evaluated"), build("plain")
    found = trainer.evaluate()
    assert {"eval_loss", "eval_reward", "eval_entropy/mean", "eval_gate/kept"} <= set(found)
    trainer.train()
    plain.train()
    assert trainer.initial_entropy == plain.initial_entropy


def test_model_card_names_the_paper(folder: Path, tmp_path: Path) -> None:
    untrained(folder, tmp_path).create_model_card(model_name="mine")
    assert "huggingface.co/papers/2508.03772" in (tmp_path / "out/README.md").read_text()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the default of a machine without a GPU")
def test_defaults_are_those_of_the_machine(tmp_path: Path) -> None:
    assert GTPOConfig(output_dir=str(tmp_path)).bf16 is False
    assert GTPOConfig(output_dir=str(tmp_path), bf16=True, use_cpu=True).bf16 is True


def test_what_the_objective_decides_may_be_said_as_it_decides_it(tmp_path: Path) -> None:
    settings = arguments(tmp_path, preset="gtpo-published", scale_rewards="none", loss_type="grpo", entropy_target=0.2)
    assert (settings.scale_rewards, settings.loss_type) == ("none", "grpo")
    assert arguments(tmp_path, use_vllm=True, vllm_importance_sampling_correction=True, preset="gtpo-published")


@pytest.mark.parametrize("conversational", [True, False])
@pytest.mark.parametrize("thought", ["", "<think> "])
def test_the_reward_reads_what_gtpo_eval_reads(tmp_path: Path, conversational: bool, thought: str) -> None:
    """TRL decodes without special tokens; a thought that the prompt opened, and nothing closes, holds no answer."""
    text, tags = (
        "<reasoning> add </reasoning> <answer> 42 </answer>",
        ("<reasoning>", "</reasoning>", "<answer>", "</answer>"),
    )
    model, seen = scripted(tmp_path / "model", thought + text, tags), list[Any]()

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        seen.extend(completions)
        return [float(i) for i in range(len(completions))]

    prompts: list[Any] = [f"What is {number} + 1? Go {thought}" for number in range(8)]
    if conversational:
        prompts = PROMPTS
        template = model / "chat_template.jinja"
        template.write_text(f"{template.read_text()} {thought}")
    args = arguments(tmp_path, max_steps=1, max_completion_length=16, model_init_kwargs={"dtype": "float32"})
    GTPOTrainer(
        model=str(model), reward_funcs=reward, args=args, train_dataset=Dataset.from_dict({"prompt": prompts})
    ).train()
    read = {found[0]["content"] if conversational else found for found in seen[-4:]}
    assert read == {f"<think>{text}" if thought else text}
    assert {extract_answer(found) for found in read} == {None if thought else "42"}
