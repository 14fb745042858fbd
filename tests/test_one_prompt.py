"""A model is evaluated on the prompt it was trained on."""

from __future__ import annotations

import pytest

from gtpo.evalkit.engines import local
from gtpo.inputs.model import prepare_tokenizer
from gtpo.inputs.tiny import build_tokenizer
from gtpo.rewards.data.problem import chat_messages


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_tokenizer_without_a_chat_template_gets_one_template_in_training_and_evaluation(adds_bos: bool) -> None:
    trained, evaluated = build_tokenizer(), build_tokenizer()
    for tokenizer in (trained, evaluated):
        tokenizer.chat_template = None
        if adds_bos:
            from tokenizers.processors import TemplateProcessing

            token = tokenizer.eos_token
            tokenizer.bos_token = token
            tokenizer._tokenizer.post_processor = TemplateProcessing(
                single=f"{token} $A", special_tokens=[(token, tokenizer.eos_token_id)]
            )
    prepare_tokenizer(trained)
    template = local.chat_template(evaluated, None)
    assert template == trained.chat_template
    messages = chat_messages("What is 2 + 2?")
    ids = trained.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert local.render(evaluated, template, messages).ids == ids
    assert (ids[0] == trained.bos_token_id) is adds_bos
