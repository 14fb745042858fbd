"""Training and evaluation ask a model the same prompt, to the last id, by whichever chat template and on any day."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trl
from commands import command_line
from hypothesis import given, settings
from hypothesis.strategies import datetimes, lists, sampled_from, text
from tokenizers.processors import TemplateProcessing
from trl import GRPOTrainer

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig, load_config
from gtpo.evalkit.comparison.questions import _other_differences
from gtpo.evalkit.engines.model_ref import chat_template
from gtpo.inputs.dataset import TrainingProblems
from gtpo.inputs.model import prepare_tokenizer
from gtpo.inputs.tiny import build_tokenizer
from gtpo.rewards.data.problem import Problem, chat_messages
from gtpo.runs.eval_folder import read_prompts, read_table, sample_parts
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.find import EvalRun
from gtpo.runs.prompt import PromptRenderer, begins_twice, text_ids
from gtpo.runs.train_run import TrainFolder

# Of public models, as TRL holds them, and what is peculiar to each.
PUBLIC = {
    "qwen2_5": "a system prompt of its own if there is none",
    "qwen3": "thoughts are dropped from history, the last turn gets an empty one, a switch puts that into the question",
    "qwen3_5_think": "the generation prompt opens a thought, and the answer keeps it",
    "deepseek_r1_distill": "the generation prompt opens a thought, and the answer loses it; BOS",
    "llama3_2": "the date in the system turn, if no date_string is given; BOS; content is trimmed",
    "gemma": "no system role: it raises; BOS",
    "gemma3": "the system text is folded into the question",
    "phi3": "a turn ends in a token that is not the end of the text",
    "gptoss": "the date; an answer in a channel that the generation prompt does not open",
    "cohere2": "system texts of its own; BOS",
    "glm4moe": "a switch writes into the question; the last turn gets an empty thought",
}
FOLDER = Path(trl.__file__).parent / "chat_templates"
TEMPLATES = {name: (FOLDER / f"{name}.jinja").read_text() for name in PUBLIC if (FOLDER / f"{name}.jinja").is_file()}
# Of further public ones, shortened to what is peculiar.
TEMPLATES |= {
    # The date, if there is no system text.
    "granite": "{% if messages[0].role != 'system' %}<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: "
    "April 2024.\nToday's Date: {{ strftime_now('%B %d, %Y') }}.\nYou are Granite.<|end_of_text|>\n{% endif %}"
    "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
    # It drops the system text without a word.
    "dropping": "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}{{ eos_token if m.role == "
    "'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
}  # fmt: skip
DATED = {"llama3_2", "granite", "gptoss"}
WITHOUT_SYSTEM = {"gemma", "granite"}
THEN, LATER = "2025-02-28T23:30:00+01:00", "2026-07-14T09:00:00+00:00"


def tokenizer_of(name: str, *, adds_bos: bool = False) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATES.get(name)
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    if adds_bos:
        tokenizer._tokenizer.post_processor = TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.bos_token_id)]
        )
    return tokenizer


class Plain:
    """A trainer as far as TRL's rendering asks for it: of what a run has not set it has nothing."""

    def __init__(self, renderer: PromptRenderer) -> None:
        self.processing_class, self.chat_template_kwargs = renderer.tokenizer, renderer.arguments
        self.chat_template = renderer.template if renderer.asks_for_time else None

    def __getattr__(self, name: str) -> None:
        return None


def by_trl(renderer: PromptRenderer, messages: Any) -> list[int]:
    """What TRL's GRPOTrainer samples from."""
    ids: list[int] = GRPOTrainer._tokenize_prompts(Plain(renderer), [messages])[0][0]  # type: ignore[arg-type]
    return ids


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_sampling_sft_and_evaluation_read_one_prompt(name: str, adds_bos: bool) -> None:
    tokenizer = tokenizer_of(name, adds_bos=adds_bos)
    system = "" if name in WITHOUT_SYSTEM else "Think  first.\nThen answer."
    messages = chat_messages("What is 2 + 3?", system)
    renderer = PromptRenderer(tokenizer, {"enable_thinking": False}, THEN)
    (asked,) = renderer.render([messages])
    assert by_trl(renderer, messages) == asked.ids
    evaluated = PromptRenderer(tokenizer, {"enable_thinking": False}, THEN, template=(tokenizer.chat_template, ""))
    assert evaluated.render([messages]) == [asked]

    about = renderer.fields(messages)
    writes_bos = "bos_token" in TEMPLATES[name]
    assert about["bos"] is writes_bos
    assert asked.ids.count(tokenizer.bos_token_id) == writes_bos
    assert about["time"] == (THEN if name in DATED else None)
    assert asked.text.endswith(about["generation_prompt"] or "")
    later = PromptRenderer(tokenizer, {"enable_thinking": False}, LATER).render([messages])
    assert (later != [asked]) is (name in DATED)


@pytest.mark.parametrize(
    ("target", "text", "refused"),
    [
        (
            "tags",
            "<reasoning>\n{n} and 1 so {m}\n</reasoning>\n<answer>{m}</answer>",
            {"deepseek_r1_distill", "gptoss"},
        ),
        ("think", "<think>\n{n} and 1 so {m}\n</think>\n\n\\boxed{{{m}}}", {"gptoss"}),
        ("So {reasoning}: {answer}!", "So {n} and 1 so {m}: {m}!", {"deepseek_r1_distill", "gptoss"}),
    ],
)
def test_sft_trains_on_the_target_behind_the_prompt_of_sampling_or_is_refused(
    target: str, text: str, refused: set[str], tmp_path: Path
) -> None:
    for name in TEMPLATES:
        tokenizer = tokenizer_of(name)
        problems = training(tmp_path, "sft", "" if name in WITHOUT_SYSTEM else "Think first.")
        problems.config.dataset.sft_target = target
        if name in refused:
            with pytest.raises(UserError, match=r"method sft: .*chat template(.|\n)*sampling asks(.|\n)*sft trains on"):
                problems.select(tokenizer)
            continue
        rows, report = problems.select(tokenizer)
        row, n = rows[0], sum(not marked for marked in rows[0]["completion_mask"])
        assert row["input_ids"][:n] == by_trl(problems.prompts(tokenizer), row["prompt"]), name
        asked, labels = ("".join(tokenizer.decode(ids).split()) for ids in (row["input_ids"][:n], row["input_ids"][n:]))
        wanted = "".join(text.format(n=row["id"], m=int(row["id"]) + 1).split())
        # A thought that the prompt opens is gone on with; an empty one may stand before the target.
        opened = "<think>" * asked.endswith("<think>")
        assert (opened + labels).removeprefix("<think></think>").startswith(wanted), name
        assert report.longest == n


def test_sft_refuses_a_template_that_drops_a_part_of_the_target(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("dropping")
    tokenizer.chat_template = TEMPLATES["dropping"].replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    assert training(tmp_path, "sft").select(tokenizer)[0]
    thought = Problem("1", "What is 2 + 3?", "5", solution="<think> 2 and 3 </think> so 5")
    with pytest.raises(UserError, match=r"to be trained .*<think> 2 and 3 </think>"):
        TrainingProblems(training(tmp_path, "sft").config, [thought]).select(tokenizer)


def training(folder: Path, method: str, system: str = "Think first.", **training: Any) -> TrainingProblems:
    path = folder / "run.yaml"
    path.write_text("model: {model_name: org/model}\ndataset: {name: arithmetic}\n")
    flags = {"method": method, "dataset.system_instruction": system, "model.max_seq_length": 8192}
    training = {"max_prompt_length": 4096, **training}
    more = {f"training.{name}": value for name, value in training.items()}
    config: TrainConfig = load_config(path, flags | more, world_size=1)
    rows = [Problem(str(n), f"What is {n} + 1?", str(n + 1), solution=f"{n} and 1 so {n + 1}") for n in range(8)]
    return TrainingProblems(config, rows)


def test_lengths_are_counted_with_the_arguments_of_the_template(tmp_path: Path) -> None:
    tokenizer, switch = tokenizer_of("qwen3"), {"chat_template_kwargs.enable_thinking": "false"}
    plain, switched = (training(tmp_path, "gtpo", **more).select(tokenizer)[1].longest for more in ({}, switch))
    assert switched > plain
    assert len(training(tmp_path, "gtpo", max_prompt_length=plain).select(tokenizer)[0]) == 8
    with pytest.raises(UserError):
        training(tmp_path, "gtpo", max_prompt_length=plain, **switch).select(tokenizer)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(when=datetimes(), form=lists(sampled_from([*"aAbBcdfHIjmMpSUwWxXyYGuV", "-d", "-m"])), between=text("aé1 ,.-\n"))
def test_the_clock_of_a_template_shows_what_strftime_does(when: datetime, form: list[str], between: str) -> None:
    tokenizer, asked = tokenizer_of("granite"), "%".join([between, *(code + between for code in form)])
    tokenizer.chat_template = "\n[{{ strftime_now(form) }}]"
    (prompt,) = PromptRenderer(tokenizer, {"form": asked}, when.isoformat()).render([chat_messages("2")])
    assert prompt.text == f"\n[{when.strftime(asked)}]"


def test_what_a_template_drops_is_said(caplog: pytest.LogCaptureFixture) -> None:
    messages = chat_messages("What is 2 + 3?", "Think  first.\nThen answer.")
    for name in TEMPLATES.keys() - {"gemma"}:
        caplog.clear()
        PromptRenderer(tokenizer_of(name)).fields(messages)
        assert [fault.partition(" message")[0] for fault in caplog.messages] == (
            ["the chat template drops the system"] if name == "dropping" else []
        )
    with pytest.raises(UserError, match=r"System role not supported.*--dataset.system_instruction"):
        PromptRenderer(tokenizer_of("gemma")).fields(messages)


def test_a_text_that_was_rendered_before_begins_once() -> None:
    tokenizer = tokenizer_of("llama3_2", adds_bos=True)
    (prompt,) = PromptRenderer(tokenizer).render([chat_messages("What is 2 + 3?")])
    assert begins_twice(tokenizer, prompt.text)
    assert text_ids(tokenizer, prompt.text) == prompt.ids
    assert text_ids(tokenizer, "2 + 3 =")[0] == tokenizer.bos_token_id
    assert not begins_twice(tokenizer, "2 + 3 =")
    assert not begins_twice(tokenizer_of("llama3_2"), prompt.text)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_tokenizer_without_a_chat_template_gets_one_template_in_training_and_evaluation(adds_bos: bool) -> None:
    trained, evaluated = tokenizer_of("none", adds_bos=adds_bos), tokenizer_of("none", adds_bos=adds_bos)
    prepare_tokenizer(trained)
    template = chat_template(evaluated, None)
    assert template == (trained.chat_template, "plain")
    messages = chat_messages("What is 2 + 2?")
    (prompt,) = PromptRenderer(evaluated, template=template).render([messages])
    assert prompt.ids == by_trl(PromptRenderer(trained), messages)
    assert (prompt.ids[0] == trained.bos_token_id) is adds_bos


def test_a_run_of_before_the_record_has_the_prompt_that_its_config_says(tmp_path: Path) -> None:
    run = TrainFolder(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 1, "started": "2025-02-28T12:00:00+00:00"}))
    run.config_yaml.write_text(
        "dataset: {system_instruction: Think hard.}\ntraining: {chat_template_kwargs: {enable_thinking: false}}\n"
    )
    record = run.prompt()
    assert (record.system, record.chat_template_kwargs) == ("Think hard.", {"enable_thinking": False})
    assert record.time == "2025-02-28T12:00:00+00:00"
    run.update_run(prompt={"system": "", "time": THEN, "schema_version": 1})
    assert (run.prompt().system, run.prompt().time) == ("", THEN)


def test_an_evaluation_of_before_the_record_differs_in_no_other_setting() -> None:
    fields = PromptRenderer(tokenizer_of("qwen2_5")).fields(chat_messages("2 + 3"))
    before = {name: fields[name] for name in ("chat_template_hash", "chat_template_kwargs")}
    records = [EvalRecord.model_validate({"prompt": {"system": "", **prompt}}) for prompt in (before, fields)]
    runs = [EvalRun(name, Path(name), record) for name, record in zip("ab", records, strict=True)]
    assert _other_differences(runs) == []


def today(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    for module in ("runs.prompt", "inputs.dataset"):
        monkeypatch.setattr(f"gtpo.{module}.local_time", lambda: when)


def test_a_run_goes_on_and_is_evaluated_on_other_days(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if eval.json is damaged in between: what was sampled stays, and the rest is asked with the same date."""
    shutil.copytree(root / "tests/golden/0.2/results/train/gtpo/final", tmp_path / "model")
    dated = "{{ strftime_now('%d %b %Y') }} {% for m in messages %}{{ m.content }}{% endfor %} A:"
    (tmp_path / "model/chat_template.jinja").write_text(dated)
    train = (
        "train --model model --data arithmetic --run-name r --dataset.limit 8 --dataset.system_instruction= --quiet "
        "--model.max_seq_length 96 --training.max_prompt_length 80 --training.max_completion_length 8 "
        "--training.num_generations 4 --training.max_steps 2 --training.save_steps 1 --training.initial_entropy 1"
    )
    today(monkeypatch, THEN)
    done = command_line(*train.split(), cwd=tmp_path)
    assert not done.returncode, done.stderr
    run = TrainFolder(tmp_path / "results/train/r")
    began = run.prompt()
    shutil.rmtree(run.checkpoints / "checkpoint-2")
    run.update_run(status="running")
    today(monkeypatch, LATER)
    done = command_line(*train.split(), cwd=tmp_path)
    assert (done.returncode, run.status, run.prompt()) == (0, "finished", began), done.stderr

    samples, folder = "eval r --benchmarks arithmetic --limit 2 --max-tokens 4 --quiet --k", tmp_path / "results/eval/r"
    for k, damage in ((1, "{"), (2, None), (3, None)):
        before = [row for part in sample_parts(folder) for row in read_table(part).to_pylist()]
        done = command_line(*samples.split(), k, cwd=tmp_path)
        assert not done.returncode, done.stderr
        rows = [row for part in sample_parts(folder) for row in read_table(part).to_pylist()]
        assert (len(rows), rows[: len(before)]) == (2 * k, before)
        prompts = [text or "" for _, text, _ in read_prompts(folder).values()]
        assert all(text.startswith("28 Feb 2025 ") for text in prompts), prompts
        if damage:
            (folder / "eval.json").write_text(damage)
