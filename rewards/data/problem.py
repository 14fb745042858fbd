"""One question with its gold answer, and the prompt and target format that training and evaluation share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer. `answer` is bare: no `####`, no `\\boxed`."""

    id: str
    problem: str
    answer: str
    # Worked solution, the source of SFT targets; may be empty.
    solution: str = ""
    subject: str = ""
    level: int | None = None
    # Family of questions that are not independent of each other; intervals count families. Empty: its own.
    cluster: str = ""
    # `text`: the answer is compared as text, without case and outer space.
    answers: Literal["mathematics", "text"] = "mathematics"
    # Rule by which its answer is found in a completion (`extract_by`); empty: by the scoring.
    extract: str = ""


# The system prompt of the published runs (PUBLISHED recipe, GTPO paper, Listing 1).
SYSTEM_INSTRUCTION = (
    "You are a helpful assistant for solving math problems. Given a question, first think step by step between "
    "<reasoning> and </reasoning>. Then, give the final answer between <answer> and </answer>."
)


def chat_messages(problem: str, system_instruction: str = SYSTEM_INSTRUCTION) -> list[dict[str, str]]:
    """Return the [system, user] conversation for one problem; an empty system instruction is left out."""
    system = [{"role": "system", "content": system_instruction}] if system_instruction else []
    return [*system, {"role": "user", "content": problem}]


def target_text(reasoning: str, answer: str) -> str:
    """Return the supervised target: the published `<reasoning>…</reasoning>`, `<answer>…</answer>` layout."""
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>{answer}</answer>"


_PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '### ' + message['role'].capitalize() + '\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant\n' }}{% endif %}"
)


def plain_chat_template(tokenizer: Any) -> str:
    """Return the template for a tokenizer that has none, the same in training and in evaluation.

    It begins with the token that this tokenizer itself puts before a text, if it puts one: templates are rendered
    to text and tokenised without special tokens.
    """
    begins = tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    return ("{{ bos_token }}" if begins else "") + _PLAIN_CHAT_TEMPLATE
