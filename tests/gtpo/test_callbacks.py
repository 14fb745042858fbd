"""`gtpo.callbacks`: the parts of `gtpo train`, in a script with a GTPOTrainer or a baseline."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from logs import logged
from peft import LoraConfig
from safetensors.torch import load_file
from test_trainer import PROMPTS, arguments, needs_trl_kernel, reward
from test_validation import scripted
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from gtpo import GTPOConfig, GTPOTrainer
from gtpo.callbacks import (
    CollapseWatch,
    ExactCheckpoints,
    GRPOBaseline,
    RunLog,
    SFTBaseline,
    UntrainedKL,
    Validation,
)
from gtpo.common.errors import UserError
from gtpo.common.files import lock_folder
from gtpo.config import BuiltModel
from gtpo.evalkit.comparison.compare import compare
from gtpo.evalkit.comparison.training_curves import read_curves
from gtpo.evalkit.engines.model_ref import resolve_model
from gtpo.evalkit.report.page import choose_groups
from gtpo.inputs.model import rounded_away, savable_generation_config
from gtpo.inputs.tiny import build_tiny_model
from gtpo.rewards.data.problem import Problem
from gtpo.runs.find import find_runs
from gtpo.runs.train_run import TrainFolder, run_by_id
from gtpo.train.health import Health, Judgement
from gtpo.trainer import RunTrainer

TWO_STEPS_A_ROUND = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "learning_rate": 1e-2}


class Keep(TrainerCallback):
    """Keeps the weights after each step, and stops after one."""

    def __init__(self, kept: list[Any], stop: int | None = None) -> None:
        self.kept, self.stop = kept, stop

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.kept.append([parameter.detach().clone() for parameter in kwargs["model"].parameters()])
        control.should_training_stop |= state.global_step == self.stop


def trainer_of(method: str, folder: Path, out: Path, eval_dataset: Any = None, **changes: Any) -> Any:
    saving = {"output_dir": str(out), "max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    given: dict[str, Any] = {**TWO_STEPS_A_ROUND, **saving, **changes}
    settings: Any = arguments(out, **given)
    kind: Any = GTPOTrainer
    if method != "gtpo":
        names = ("num_generations", "max_completion_length", "logging_steps", "bf16", "use_cpu", "report_to")
        plain = {name: getattr(settings, name) for name in names}
        kind = GRPOBaseline if method == "grpo" else GRPOTrainer
        settings = GRPOConfig(**plain, **given, disable_tqdm=True)
    return kind(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        eval_dataset=eval_dataset,
    )


@pytest.mark.parametrize("part", [ExactCheckpoints, lambda trainer: UntrainedKL(trainer, 1, trainer.model)])
def test_a_part_that_could_not_do_its_work_is_refused(part: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs a GTPOTrainer, or GRPOBaseline .* found GRPOTrainer"):
        part(trainer_of("trl", folder, tmp_path / "out"))
    with pytest.raises(ValueError, match="needs reference=, the untrained model"):
        UntrainedKL(trainer_of("gtpo", folder, tmp_path / "out", save_strategy="no"), every=2)
    for name in ("save_only_model", "ignore_data_skip"):
        with pytest.raises(ValueError, match=f"ExactCheckpoints: {name}=True "):
            ExactCheckpoints(trainer_of("gtpo", folder, tmp_path / "only", **{name: True}))


@needs_trl_kernel
@pytest.mark.parametrize("method", ["gtpo", "grpo"])
def test_a_script_that_resumes_ends_where_the_whole_one_does(method: str, folder: Path, tmp_path: Path) -> None:
    def run(name: str, *, stop: int | None = None, exact: bool = True, resume: bool = False) -> list[torch.Tensor]:
        trainer, kept = trainer_of(method, folder, tmp_path / name), list[Any]()
        for part in [*([ExactCheckpoints(trainer)] if exact else []), Keep(kept, stop)]:
            trainer.add_callback(part)
        cut = "checkpoint-2" if exact else "checkpoint-3"
        trainer.train(resume_from_checkpoint=str(tmp_path / name / cut) if resume else None)
        return kept[-1]

    whole = run("whole")
    run("cut", stop=3)
    assert not (tmp_path / "cut" / "checkpoint-3").exists(), "it lies within a round"
    assert all(map(torch.equal, run("cut", resume=True), whole))
    os.truncate(tmp_path / "cut" / "checkpoint-2" / "rng_state.pth", 100)
    with pytest.raises(UserError, match=r"holds 100 bytes of rng_state\.pth"):
        run("cut", resume=True)
    if method == "gtpo":  # without the part the round is lost, and the run another one
        run("plain", stop=3, exact=False)
        with logged() as told:
            lost = run("plain", exact=False, resume=True)
        assert not all(map(torch.equal, lost, whole))
        assert any("within a round of sampling" in line for line in told)


def test_a_resumed_run_is_one_run_in_wandb(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run of the process is another, and one that the user has named keeps its name."""
    monkeypatch.setattr(RunLog, "in_wandb", None)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setenv("WANDB_RESUME", "never")
    trainer, ids = trainer_of("gtpo", folder, tmp_path / "out", save_strategy="no"), []
    for name in ("one", "one", "other"):
        log = RunLog(trainer, tmp_path / name)
        log.write_about()
        ids.append(os.environ["WANDB_RUN_ID"])
        assert (ids[-1], os.environ["WANDB_RESUME"]) == (log.folder.run()["id"], "allow")
    assert ids[0] == ids[1] != ids[2]
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    RunLog(trainer, tmp_path / "one")
    assert os.environ["WANDB_RUN_ID"] == "mine"


@needs_trl_kernel
@pytest.mark.parametrize("method", ["gtpo", "trl"])
def test_a_script_rolls_back_to_its_best_weights(
    method: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `gtpo train` does: best/ as it was at step 2, and half the learning rate."""
    verdicts = {2: Judgement(new_best=True), 3: Judgement(collapsed="made up")}
    monkeypatch.setattr(Health, "observe", lambda self, step, row: verdicts.get(step, Judgement()))
    trainer = trainer_of(method, folder, tmp_path / "out", steps_per_generation=1, lr_scheduler_type="constant")
    with pytest.raises(ValueError, match="needs best="):
        CollapseWatch(trainer, on_collapse="rollback")
    trainer.add_callback(CollapseWatch(trainer, on_collapse="rollback", best=tmp_path / "best"))
    with logged() as told:
        trainer.train()
    assert any("rolled back to the weights of step" in line for line in told)
    saved = [load_file(tmp_path / name / "model.safetensors") for name in ("best", "out/checkpoint-3")]
    assert all(torch.equal(saved[1][name], value) for name, value in saved[0].items())
    rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    assert rates[3] == pytest.approx(rates[0] / 2)


HELD_OUT = [Problem(id=str(number), problem=f"{number} + 1?", answer=str(number + 1)) for number in range(3)]


def validated(trainer: Any, *rates: float) -> Validation:
    prompts = [f"{problem.problem} ?" for problem in HELD_OUT]
    return Validation(trainer, HELD_OUT, scripted(*rates), every=2, samples=2, prompts=prompts)


def plain(value: Any) -> Any:
    """Return an object's attributes, and theirs, as numbers and lists."""
    if isinstance(value, dict) or type(value).__module__ == Health.__module__:
        return {name: plain(each) for name, each in (value if isinstance(value, dict) else vars(value)).items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("rates", "rollbacks"), [((0.1, 0.4, 0.7), 0), ((0.7, 0.0, 0.7), 1)])
def test_a_watch_goes_on_where_the_checkpoint_was(
    rates: tuple[float, ...], rollbacks: int, folder: Path, tmp_path: Path
) -> None:
    def watched(name: str, *, resume: bool = False) -> dict[str, Any]:
        trainer = trainer_of("gtpo", folder, tmp_path / name, logging_steps=4)
        validation = validated(trainer, *(rates[2:] if resume else rates))
        watch = CollapseWatch(trainer, validation=validation, on_collapse="rollback", best=tmp_path / name / "best")
        for part in (validation, watch, ExactCheckpoints(trainer)):
            trainer.add_callback(part)
        trainer.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-2") if resume else None)
        assert trainer.state.log_history[-2]["validation/pass@1"] == pytest.approx(rates[2]), "trackers see it"
        return plain(watch.health)

    whole = watched("out")
    assert watched("out", resume=True) == whole
    assert whole["first"] == pytest.approx([rates[0]] * 3)
    assert whole["rollbacks"] == rollbacks


def sft(method: str, folder: Path, out: Path, peft_config: Any = None, **changes: Any) -> Any:
    """TRL's own SFTTrainer."""
    config = SFTConfig(output_dir=str(out), max_steps=4, per_device_train_batch_size=2, logging_steps=1, report_to=[],
                       bf16=False, use_cpu=True, disable_tqdm=True, **changes)  # fmt: skip
    rows = Dataset.from_dict({"text": [f"{prompt} 4" for prompt in PROMPTS]})
    return SFTTrainer(str(folder), args=config, train_dataset=rows, peft_config=peft_config)


@needs_trl_kernel
@pytest.mark.parametrize("method", ["gtpo", "grpo", "trl", "sft"])
def test_a_script_writes_a_run_folder(method: str, folder: Path, tmp_path: Path) -> None:
    """Curves, tokens and settings as readers find them; seeds of one script are one method; nothing is overwritten."""
    names = []
    for seed in (1, 2):
        trainer = (sft if method == "sft" else trainer_of)(method, folder, tmp_path / f"out-{seed}", seed=seed,
                                                           save_strategy="no")  # fmt: skip
        names.append(str(tmp_path / f"results/train/{method}-s{seed}"))
        trainer.add_callback(RunLog(trainer, names[-1], completions_steps=2))
        with logged(logging.INFO) as told:
            trainer.train()
        assert told[-1] == f"{names[-1]}; next: gtpo eval {names[-1]} --benchmarks NAME --k 16"
    runs, trains, _ = find_runs(names)
    assert [(run.preset, run.run()["seed"], run.status) for run in trains] == [
        ("grpo" if method == "trl" else method, seed, "finished") for seed in (1, 2)
    ]
    curves = read_curves(trains[0])
    assert curves["loss"].steps.tolist() == [1, 2, 3, 4]
    shared = {"entropy/mean", *(() if method == "sft" else ("groups/zero_variance", "completions/length"))}
    assert shared <= trains[0].metrics()[1].keys()
    assert ("reward" in trains[0].metrics()[1]) == (method == "trl")
    files = trains[0].completions_files()
    rounds = ["step-000001", "step-000003"] if method in ("gtpo", "grpo") else []  # the second has step 4 too
    assert [file.stem for file in files] == rounds
    if files:
        assert len(choose_groups(files[:1], 10**6)[0]["completions"]) == trainer.args.num_generations
    assert [[member.seed for member in found.members] for found in compare(runs, trains).trained] == [["1", "2"]]
    settings = trains[0].config() or {}
    assert settings.get("trainer.reward_funcs") == (None if method == "sft" else ["reward"])
    assert ("dataset.problems" in settings) == (method != "sft")
    assert len({run.run()["id"] for run in trains}) == 2
    assert resolve_model(names[0]).source == str(trains[0].root / "final")
    about = trains[0].run()
    assert about["parameters"]["trained"] == sum(p.numel() for p in trainer.model.parameters())
    assert about["wall_time_s"] >= 0
    assert ("time/generation" in trains[0].metrics()[1]) == (method in ("gtpo", "grpo"))
    again = (sft if method == "sft" else trainer_of)(method, folder, tmp_path / "again", save_strategy="no")
    again.add_callback(RunLog(again, names[0]))
    with pytest.raises(UserError, match="holds a run already"):
        again.train()


def test_other_adapters_are_no_seeds_of_one_method(folder: Path, tmp_path: Path) -> None:
    names = [str(tmp_path / f"results/train/rank-{rank}") for rank in (2, 4)]
    for seed, name in enumerate(names):
        lora = LoraConfig(r=int(name[-1]), target_modules=["q_proj", "v_proj"])
        trainer = sft("sft", folder, tmp_path / "out", lora, seed=seed, save_strategy="no")
        trainer.add_callback(RunLog(trainer, name))
        trainer.train()
    runs, trains, _ = find_runs(names)
    assert [train.config()["lora.default.target_modules"] for train in trains] == [["q_proj", "v_proj"]] * 2
    assert [len(found.members) for found in compare(runs, trains).trained] == [1, 1]


class EndsIn(TrainerCallback):
    """Raises at the beginning of steps, once of each."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.errors = errors

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if error := self.errors.pop(state.global_step, None):
            raise error


@needs_trl_kernel
def test_a_process_goes_on_with_a_run_that_ended_in_an_error(folder: Path, tmp_path: Path) -> None:
    """As in a notebook: with the same trainer, and with another. At its end the folder is free."""
    name, errors = tmp_path / "run", {1: RuntimeError("crash"), 2: KeyboardInterrupt()}
    held = []  # a notebook keeps what raised
    for ends_in in (RuntimeError, KeyboardInterrupt, None):
        if ends_in is not KeyboardInterrupt:
            trainer = trainer_of("trl", folder, tmp_path / "out", steps_per_generation=1)
            held.append(RunLog(trainer, name))
            for part in (held[-1], EndsIn(errors)):
                trainer.add_callback(part)
        with pytest.raises(ends_in) if ends_in else nullcontext():
            trainer.train(resume_from_checkpoint=ends_in is not RuntimeError)
        assert TrainFolder(name).status == ("running" if ends_in else "finished")
    assert list(TrainFolder(name).metrics()) == [1, 2, 3, 4]
    lock_folder(name).release()


def test_weights_that_lie_elsewhere_lead_to_their_run(folder: Path, tmp_path: Path) -> None:
    out, name = tmp_path / "out", tmp_path / "results/train/script"
    trainer = trainer_of("gtpo", folder, out)
    trainer.add_callback(RunLog(trainer, name, weights=False))
    trainer.train()
    run = TrainFolder(name)
    assert not run.final.exists()
    assert resolve_model(str(name)).source == str(out / "checkpoint-4")
    assert resolve_model(str(name), checkpoint="checkpoint-2").source == str(out / "checkpoint-2")
    found = resolve_model(str(out / "checkpoint-3"))
    assert (found.source, found.train_run, found.method) == (str(out / "checkpoint-3"), "script", "gtpo")
    assert (found.name, resolve_model(str(name)).name) == ("script-checkpoint-3", "script")
    assert run_by_id(out / "checkpoint-3").root == name
    for other in (tmp_path / "results/train/other", name):
        again = trainer_of("gtpo", folder, tmp_path / "out-of-other", max_steps=2 if other != name else 4)
        again.add_callback(ExactCheckpoints(again))
        again.add_callback(RunLog(again, other))
        with pytest.raises(UserError, match="script holds a run already") if other == name else nullcontext():
            again.train(resume_from_checkpoint=other == name)
    assert list(run.metrics()) == [1, 2, 3, 4], "resumed into the folder of another run, nothing of it is dropped"
    trainer.save_model(str(out))
    assert resolve_model(str(name)).source == str(out)
    assert resolve_model(str(out)).train_run == "script"
    # Another run took the folder's place: its id is not that of the weights.
    run.update_run(id="another")
    assert run_by_id(out / "checkpoint-3") is None
    assert resolve_model(str(out / "checkpoint-3")).train_run is None


def test_resume_with_another_objective_is_refused(folder: Path, tmp_path: Path) -> None:
    given = {"initial_entropy": 0.9, "max_steps": 1, "steps_per_generation": 1}
    trainer_of("gtpo", folder, tmp_path / "out", **given).train()
    for changes, words in (
        ({"preset": "gtpo-no-filter"}, "another objective: filter 'auto', now 'never'"),
        ({"initial_entropy": 0.1}, "initial_entropy 0.9, now 0.1; leave initial_entropy out"),
    ):
        other = trainer_of("gtpo", folder, tmp_path / "out", **given | {"max_steps": 2} | changes)
        with pytest.raises(ValueError, match=f"checkpoint-1 was trained with {words}"):
            other.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("optim", "beta", "dtype", "rate", "words"),
    [
        ("adamw_8bit", 0.99999, torch.float32, 1e-6, "8-bit states round the updates away"),
        ("adamw_torch", 0.99999, torch.bfloat16, 1e-6, "bfloat16 states round the updates away"),
        ("adamw_torch", 0.99999, torch.float32, 1e-6, None),
        ("adamw_torch", 0.999, torch.bfloat16, 1e-6, "weights trained in bfloat16 round the updates away"),
        ("sgd", 0.99999, torch.bfloat16, 1.0, None),
        ("adamw_torch", 0.999, torch.bfloat16, 0.1, None),
    ],
)
def test_updates_that_would_be_rounded_away_are_warned_of(
    tmp_path: Path, optim: str, beta: float, dtype: torch.dtype, rate: float, words: str | None
) -> None:
    settings: GTPOConfig = arguments(tmp_path, optim=optim, adam_beta2=beta, learning_rate=rate)
    told = list(rounded_away(settings, torch.nn.Linear(2, 2).to(dtype)))
    assert bool(told) == (words is not None)
    assert words is None or any(words in line for line in told)


def test_the_best_checkpoint_is_kept_and_loaded_at_the_end(folder: Path, tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_reward", "save_total_limit": 1}
    whole_rounds = {"steps_per_generation": 1, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 4}
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": Dataset.from_dict({"prompt": PROMPTS[:1]})}
    trainer = trainer_of("gtpo", folder, tmp_path / "out", **best, **whole_rounds, **evaluated)
    trainer.add_callback(ExactCheckpoints(trainer))
    scores, plain, kept = iter([9.0, 1.0, 1.0, 1.0]), trainer._determine_best_metric, []
    trainer._determine_best_metric = lambda metrics, trial: plain({**metrics, "eval_reward": next(scores)}, trial)

    trainer.add_callback(Keep(kept))
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "out" / "checkpoint-1")
    assert (tmp_path / "out" / "checkpoint-1").is_dir()
    assert all(map(torch.equal, trainer.model.parameters(), kept[0]))


def test_rows_are_shuffled_if_the_arguments_say_so(folder: Path, tmp_path: Path) -> None:
    orders = []
    for shuffled in (True, False):
        trainer = trainer_of("gtpo", folder, tmp_path / str(shuffled), shuffle_dataset=shuffled)
        for epoch in (0, 1):
            trainer.state.epoch = epoch
            orders.append(list(dict.fromkeys(ExactCheckpoints(trainer).order())))
    assert orders[0] != orders[1] != orders[2] == orders[3] == sorted(orders[0])


def test_a_gradient_that_is_not_finite_changes_nothing(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of("gtpo", folder, tmp_path / "out", save_strategy="no", max_steps=3)
    after, plain = [], trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> Any:
        loss = plain(*args, **kwargs)
        if trainer.state.global_step == 1:
            next(iter(trainer.model.parameters())).grad[0, 0] = float("nan")
        return loss

    trainer.training_step = training_step
    trainer.add_callback(Keep(after))
    with logged() as told:
        trainer.train()
    assert any("step 2: the gradient's norm is nan; the step is skipped" in line for line in told)
    assert all(map(torch.equal, after[0], after[1]))
    assert not all(map(torch.equal, after[1], after[2]))
    next(iter(trainer.model.parameters())).data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"step 4: the weight \S+ is not finite"):
        trainer._get_grad_norm(trainer.model, torch.tensor(float("nan")))


@pytest.mark.parametrize("rendered", [False, True])
def test_texts_that_would_begin_twice_are_refused(rendered: bool, folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)]
    )
    rows = Dataset.from_dict({"prompt": [tokenizer.bos_token * rendered + text for text in ("1 + 1", "2 + 3")]})
    refused = pytest.raises(ValueError, match="the tokenizer puts another before it") if rendered else nullcontext()
    with refused:
        GTPOTrainer(
            str(folder), reward_funcs=reward, args=arguments(tmp_path), train_dataset=rows, processing_class=tokenizer
        )


def test_a_generation_config_that_cannot_be_saved_is_dropped() -> None:
    model = build_tiny_model(BuiltModel(), max_seq_length=32, seed=0)[0]
    assert savable_generation_config(model) == ""
    model.generation_config.update(temperature=0.6, top_p=0.9)  # without do_sample, as Llama 2 has it
    assert "its sampling defaults are dropped" in savable_generation_config(model)
    assert savable_generation_config(model) == ""


def test_a_script_trains_without_attention_of_cudnn(folder: Path, tmp_path: Path) -> None:
    """Every trainer switches it off, so that a script has what `gtpo train` has."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    trainer_of("grpo", folder, tmp_path)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert all(issubclass(kind, RunTrainer) for kind in (GTPOTrainer, SFTBaseline))
