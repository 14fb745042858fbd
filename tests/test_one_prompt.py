"""Training and evaluation ask a model the same prompt, to the last id, by whichever chat template and on any day."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import datetimes, lists, sampled_from, text
from tokenizers.processors import TemplateProcessing
from trl import GRPOTrainer

from gtpo.common.errors import UserError
from gtpo.config import TrainConfig, load_config
from gtpo.evalkit.comparison.like_for_like import _other_settings
from gtpo.evalkit.engines import local
from gtpo.inputs.dataset import TrainingProblems
from gtpo.inputs.model import prepare_tokenizer
from gtpo.inputs.tiny import build_tokenizer
from gtpo.rewards.data.problem import Problem, chat_messages
from gtpo.runs.eval_record import EvalRecord
from gtpo.runs.prompt import Clock, PromptRenderer, begins_twice, text_ids
from gtpo.runs.train_run import TrainFolder

# The first line of each: what is peculiar to it. Shortened to that from the public form.
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    # A system prompt of its own if there is none.
    "qwen2.5": "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
    + CHATML + CHATML_ASK,
    # Thoughts are dropped from history, the last turn gets an empty one, and a switch puts that into the question.
    "qwen3": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '' %}"
    "{% if loop.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    + CHATML_ASK[:-len("{% endif %}")]
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    # Thoughts are dropped, the generation prompt opens one, and the template writes BOS.
    "deepseek-r1": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% elif m.role == 'system' %}{{ m.content }}{% else %}<|Assistant|>{{ m.content.split('</think>')[-1] }}"
    "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}",
    # The date stands in the system turn; BOS in the template; content is trimmed.
    "llama3.2": "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {{ strftime_now('%d %b %Y') }}\n\n{{ messages[0].content | trim if messages[0].role == 'system' }}"
    "<|eot_id|>{% for m in messages if m.role != 'system' %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    # The system text is folded into the first question.
    "llama2": "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] "
    "{% if messages[0].role == 'system' and loop.index0 == 1 %}<<SYS>>\n{{ messages[0].content }}\n<</SYS>>"
    "\n\n{% endif %}{{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% endif %}"
    "{% endfor %}",
    # No system role: it raises.
    "gemma2": "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    # The system text is folded into the question.
    "gemma3": "{{ bos_token }}{% set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    # No generation prompt at all: the answer follows the closing bracket.
    "mistral": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{{ messages[0].content + '\n\n' if loop.index0 == 1 and messages[0].role == 'system' }}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    # A turn ends in a token that is not the end of the text.
    "phi3": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
    # The date stands in front of the system text.
    "granite": "<|start_of_role|>system<|end_of_role|>Today's Date: {{ strftime_now('%B %d, %Y') }}.\n"
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}<|end_of_text|>\n{% else %}"
    "<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
    # The date, and an answer in a channel that the generation prompt does not open.
    "gpt-oss": "{% macro system_message() %}{{ 'Current date: ' + strftime_now('%Y-%m-%d') }}{% endmacro %}"
    "<|start|>system<|message|>{{ system_message() }}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "<|return|>{% else %}<|start|>{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    # It drops the system text without a word.
    "dropping": "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}{{ eos_token if m.role == "
    "'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
}  # fmt: skip
DATED = {"llama3.2", "granite", "gpt-oss"}
NOT_FOR_SFT = {"deepseek-r1", "gpt-oss"}
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
    system = "" if name == "gemma2" else "Think  first.\nThen answer."
    messages = chat_messages("What is 2 + 3?", system)
    renderer = PromptRenderer(tokenizer, {"enable_thinking": False}, Clock(THEN))
    (asked,) = renderer.render([messages])
    assert by_trl(renderer, messages) == asked.ids
    evaluated = PromptRenderer(
        tokenizer, {"enable_thinking": False}, Clock(THEN), template=(tokenizer.chat_template, "")
    )
    assert evaluated.render([messages]) == [asked]

    about = renderer.fields(messages)
    writes_bos = "bos_token" in TEMPLATES[name]
    assert about["bos"] is writes_bos
    assert asked.ids.count(tokenizer.bos_token_id) == writes_bos
    assert about["time"] == (THEN if name in DATED else None)
    assert asked.text.endswith(about["generation_prompt"] or "")
    later = PromptRenderer(tokenizer, {"enable_thinking": False}, Clock(LATER)).render([messages])
    assert (later != [asked]) is (name in DATED)


@pytest.mark.parametrize("name", TEMPLATES)
def test_sft_trains_on_the_target_behind_the_prompt_of_sampling_or_is_refused(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name)
    system = "" if name == "gemma2" else "Think first."
    problems = training(tmp_path, "sft", system=system)
    if name in NOT_FOR_SFT:
        with pytest.raises(UserError, match=r"method sft: .*chat template(.|\n)*sampling asks(.|\n)*sft trains on"):
            problems.select(tokenizer)
        return
    rows, report = problems.select(tokenizer)
    row, n = rows[0], sum(not marked for marked in rows[0]["completion_mask"])
    assert row["input_ids"][:n] == by_trl(problems.prompts(tokenizer), row["prompt"])
    labels = tokenizer.decode(row["input_ids"][n:])
    assert labels.lstrip().removeprefix("<think>\n\n</think>").lstrip().startswith(row["completion"][0]["content"])
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
    flags = {"method": method, "dataset.system_instruction": system}
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


@given(when=datetimes(), form=lists(sampled_from([*"aAbBcdfHIjmMpSUwWxXyYGuV", "-d", "-m"])), between=text("aé1 ,.-\n"))
def test_the_clock_of_a_template_shows_what_strftime_does(when: datetime, form: list[str], between: str) -> None:
    tokenizer, asked = tokenizer_of("granite"), "%".join([between, *(code + between for code in form)])
    tokenizer.chat_template = "\n[{{ strftime_now(form) }}]"
    (prompt,) = PromptRenderer(tokenizer, {"form": asked}, Clock(when.isoformat())).render([chat_messages("2")])
    assert prompt.text == f"\n[{when.replace(microsecond=0).strftime(asked)}]"


def test_what_a_template_drops_is_said() -> None:
    messages = chat_messages("What is 2 + 3?", "Think  first.\nThen answer.")
    for name in TEMPLATES.keys() - {"gemma2"}:
        faults = list(PromptRenderer(tokenizer_of(name)).faults(messages))
        assert [fault.partition(" message")[0] for fault in faults] == (
            ["the chat template drops the system"] if name == "dropping" else []
        )


def test_a_text_that_was_rendered_before_begins_once() -> None:
    tokenizer = tokenizer_of("llama3.2", adds_bos=True)
    (prompt,) = PromptRenderer(tokenizer).render([chat_messages("What is 2 + 3?")])
    assert begins_twice(tokenizer, prompt.text)
    assert text_ids(tokenizer, prompt.text) == prompt.ids
    assert text_ids(tokenizer, "2 + 3 =")[0] == tokenizer.bos_token_id
    assert not begins_twice(tokenizer, "2 + 3 =")
    assert not begins_twice(tokenizer_of("llama3.2"), prompt.text)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_tokenizer_without_a_chat_template_gets_one_template_in_training_and_evaluation(adds_bos: bool) -> None:
    trained, evaluated = tokenizer_of("none", adds_bos=adds_bos), tokenizer_of("none", adds_bos=adds_bos)
    prepare_tokenizer(trained)
    template = local.chat_template(evaluated, None)
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
    assert Clock.of(record).show("%d %b %Y") == "28 Feb 2025"
    assert Clock.of(record).guessed
    run.update_run(prompt={"system": "", "time": THEN, "schema_version": 1})
    assert not Clock.of(run.prompt()).guessed
    assert (run.prompt().system, run.prompt().time) == ("", THEN)


def test_an_evaluation_of_before_the_record_differs_in_no_other_setting() -> None:
    fields = PromptRenderer(tokenizer_of("qwen2.5")).fields(chat_messages("2 + 3"))
    before = {name: fields[name] for name in ("chat_template_hash", "chat_template_kwargs")}
    records = [EvalRecord.model_validate({"prompt": {"system": "", **prompt}}) for prompt in (before, fields)]
    old, new = map(_other_settings, records)
    assert {key for key in old | new if old.get(key) != new.get(key)} == set()
