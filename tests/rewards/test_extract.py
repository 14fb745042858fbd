"""The answer of a completion: where it stands, what is thought, and where a turn ends, by family of models."""

from pathlib import Path

import pytest

from gtpo.rewards import accuracy_reward, extract_answer, format_ok, gsm8k_gold, last_boxed, published_final_reward
from gtpo.rewards.completions import closes_unopened, opened_thought, plain, unfinished, without_end, words
from gtpo.rewards.extract import check_rule, extract_both, extract_by
from gtpo.rewards.verify import Verdict, Verifier


def test_the_answer_of_each_completion() -> None:
    lines = Path(__file__).with_name("completions.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.replace("⏎", "\n").split("\t") for line in lines if line[0] != "#"]
    found = [(rules, answer, text, extract_by(rule, text)) for rules, answer, text in rows for rule in rules.split(" ")]
    assert len(found) > 125
    assert [row for row in found if (row[3] or "") != row[1]] == []
    for text in {row[2] for row in rows}:
        assert extract_both(text) == (extract_answer(text), extract_answer(text, "lenient"))
        assert extract_both(text, check_rule("number"))[0] == extract_by("number", text)
    with pytest.raises(ValueError, match="strict"):
        extract_answer("1", "loose")  # type: ignore[arg-type]


def test_boxes_and_hashes() -> None:
    for text, content in {
        r"\boxed{\{1,2\}}": r"\{1,2\}", r"\boxed 5.": "5", r"\fbox{7}": "7", r"\boxed{\boxed{7}}": r"\boxed{7}",
        r"\boxed{1} and \boxed{2}": "2", r"\boxed{3} and later \boxed{4": "3", "none": None,
    }.items():  # fmt: skip
        assert last_boxed(text) == content
    golds = ("work <<1+1=2>>\n#### 1,080\n", "no mark", "####  ")
    assert [*map(gsm8k_gold, golds)] == ["1080", None, None]


@pytest.mark.parametrize(
    "piece",
    sorted(
        words(
            r"\boxed{ \ <answer> <think> </think> <think></think> <reasoning> \[ $$ $ ( { 9 1, #### answer "
            r"the_answer_is I_hope_it_is_correct \boxed{1},_ \frac{1}{2} 1_ <|pad|> <|odd|> [EOS] <_ _ -_ ¶ ¶*_"
        )
    ),
)
def test_long_hostile_text_is_linear(piece: str) -> None:
    """Quadratic work on this length would not end before the limit of a test."""
    text = (piece.replace("_", " ").replace("¶", "\n") * 200_000)[:200_000]
    for scoring in ("strict", "lenient"):
        assert accuracy_reward([text], answer=["7"], scoring=scoring) == [0.0]
    assert (last_boxed(text) or "1") == "1"
    assert not format_ok(text)
    extract_both(text, "choice")
    assert len(published_final_reward([text, "<reasoning>" + text], ["1", "1"])) == 2


FAMILIES = {
    "DeepSeek-R1, Qwen3": ("<think>", "</think>"),
    "spelling": ("<think >", "</think >"),
    "case": ("<Think>", "</Think>"),
    "capitals": ("<THINK>", "</THINK>"),
    "thinking": ("<thinking>", "</thinking>"),
    "EXAONE": ("<thought>", "</thought>"),
    "Seed-OSS": ("<seed:think>", "</seed:think>"),
    "LongCat": ("<longcat_think>", "</longcat_think>"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "OpenThinker": ("<|begin_of_thought|>", "<|end_of_thought|><|begin_of_solution|>"),
    "Command A": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "Kimi": ("◁think▷", "◁/think▷"),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "a longer name": ("<extended_thinking>", "</extended_thinking>"),
    "scratchpad": ("<scratchpad>", "</scratchpad>"),
    "Granite 3.2": ("Here is my thought process:", "\nHere is my response:"),
    "Solar Open": ("<|think|>", "<|end|><|begin|>assistant<|content|>"),
    "Solar Open 2": ("<|think:start|>", "<|think:end|>"),
    "PLaMo 3": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "K2": ("<think_fast>", "</think_fast>"),
    "Kimi K3": ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    "Inkling": ("<|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    "Pangu": ("[unused16]", "[unused17]"),
    "s1": ("<|im_start|>think\n", "<|im_start|>answer\n"),
    "MedGemma": ("<unused94>thought\n", "<unused95>"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "gpt-oss without its tokens": ("analysis", "assistantfinal"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    opening, closing = FAMILIES[family]
    thought = f"{opening}Is it \\boxed{{7}}? <answer>7</answer> No, that is wrong."
    for scoring in ("strict", "lenient"):
        assert extract_answer(thought, scoring) is None
        assert extract_answer(f"{thought}{closing}<answer>42</answer>", scoring) == "42"
    assert extract_answer(f"{thought}{closing}The answer is 42.", "lenient") == "42"
    assert unfinished(plain(thought))
    assert not unfinished(plain(thought + closing))
    # Others begin with words that open a thought only there, or end one as a message of its own ends.
    words, message = "Here" in opening or "analysis" in opening, closing.endswith(("_text|>", "content|>", "answer\n"))
    if not words and not message:
        assert opened_thought(f"<|user|>What is it?<|assistant|>{opening}\n")
        assert closes_unopened(plain(f"It is 7.{closing}42"))
    assert not opened_thought(f"{opening}\n\n{closing}\n")


def test_words_that_only_look_like_a_thought() -> None:
    for text in ("analysis of it: \\boxed{3}", "I think \\boxed{3}", "<b>think</b> \\boxed{3}", "Analysis: \\boxed{3}",
                 "<think_off>\\boxed{3}", "\\boxed{3} <https://think.org/x>"):  # fmt: skip
        assert extract_answer(text, "lenient") == "3"
        assert not unfinished(plain(text))
    for mathematics in ("|x|<|y|>", "-1<|x|<1", "<a, b>", "[1, 2]", "(0, 1]"):
        assert without_end(mathematics) == mathematics


ENDS = (
    "<|im_end|>", "</s>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "<|end|>", "<｜end▁of▁sentence｜>", "<eos>",
    "<|end_of_text|>", "[|endofturn|]", "<turn|>", "<|return|>", "<|user|>", "<|eot|>", "<pad><pad>",
    "</s>\n<|some_pad_token|>", "<end_of_utterance>", "[UNUSED_TOKEN_145]", "<unk><extra_id_1>", "<|plamo:tag|>",
    "<|im_end|>\n<|im_start|>user\nAnd 3 + 4?<|im_end|>\n<|im_start|>assistant\n#### 7",
)  # fmt: skip
FORMS = {
    "#### 1,234": "1,234", "Answer: x+1": "x+1", "The answer is B": "B", "\\boxed{42}": "42", "42": "42",
    "<think>or <|im_end|> 7?</think>so 42": "42", "<reasoning>r</reasoning><answer>42</answer>": "42",
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_is_left_of_the_end_of_a_turn(end: str) -> None:
    for text, answer in FORMS.items():
        assert extract_answer(text + end, "lenient") == answer, text
        assert without_end(text + end) == text
    assert format_ok("<reasoning>r</reasoning>\n<answer>42</answer>" + end)
    assert extract_answer(f"<|im_start|>assistant\n#### 42{end}", "lenient") == "42"


@pytest.mark.parametrize("lead", ["The answer is ", "So the final answer is: "])
def test_a_phrase_is_read_whole(lead: str, verifier: Verifier) -> None:
    """What stands behind or before its value: a unit, a remark, a word that makes another number of it."""
    right = ["{} units^2", "{} 1/2 hours", "{} × 10^5 kg", "{} thousand dollars", "{}, which is 4 less", "{} for all x"]
    told = [extract_answer(f"{lead}{each.format(8)}.", "lenient") for each in right]
    golds = ["8", "17/2", "800000", "8000", "8", "8"]
    assert set(verifier.verify_many(list(zip(told, golds, strict=True)))) == {Verdict.CORRECT}
    wrong = ["5 or {}", "one of 5 and {}", "from 5 to {}", "greater than {}", "{} or more", "over {}", "twice {}"]
    wrong += ["negative {}", "the square root of {}", "B because x = {}", "5 cm^{}", "7, which is less than {}"]
    said = [extract_answer(f"{lead}{each.format(8)}.", "lenient") for each in wrong]
    assert Verdict.CORRECT not in verifier.verify_many([(each, "8") for each in said])
