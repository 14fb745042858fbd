"""The verifier in other tools, each with the real library where it is installed; from the shell, and on its page."""

import asyncio
import itertools
import json
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import python

from gtpo.common.errors import UserError
from gtpo.rewards import Verdict, Verifier, default_verifier
from gtpo.rewards import __main__ as rewards_command
from gtpo.rewards.__main__ import serve
from gtpo.rewards.adapters import correct_answer, inspect_scorer, lm_eval_results, verl_score

ASKED = "What is 65-4?"


def test_verl_loads_the_score() -> None:
    extra = {"question": ASKED}
    assert verl_score("openai/gsm8k", "#### 61", "61", extra) == 1.0
    assert verl_score("openai/gsm8k", "#### 65-4", "61", extra) == 0.0
    reward = pytest.importorskip("verl.trainer.ppo.reward", reason="verl is not installed")
    import gtpo.rewards.adapters as adapters

    omegaconf = pytest.importorskip("omegaconf")
    function = {"path": adapters.__file__, "name": "verl_score"}
    config = omegaconf.OmegaConf.create({"reward": {"custom_reward_function": function}})
    assert reward.get_custom_reward_fn(config)("x", "#### 61", "61", extra) == 1.0


def test_a_rubric_of_verifiers() -> None:
    vf = pytest.importorskip("verifiers", reason="verifiers is not installed")
    if not hasattr(vf, "Rubric"):
        pytest.skip("verifiers 0.4 has no rubrics: a task's @reward calls the function")
    rubric = vf.Rubric(funcs=[correct_answer])
    for text, score in ((r"\boxed{61}", 1.0), (r"\boxed{65-4}", 0.0)):
        state = {
            "prompt": [{"role": "user", "content": ASKED}],
            "completion": [{"role": "assistant", "content": text}],
            "answer": "61", "task": "default", "info": {}, "trajectory": [],
            "timing": {"scoring_ms": 0.0, "total_ms": 0.0},
        }  # fmt: skip
        asyncio.run(rubric.score_rollout(state))
        assert state["reward"] == score


def test_a_scorer_of_inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it makes a folder logs/
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed")
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import CORRECT, INCORRECT, Target
    from inspect_ai.solver import TaskState

    scorer = inspect_scorer()
    for text, value in ((r"\boxed{61}", CORRECT), (r"\boxed{65-4}", INCORRECT)):
        output = ModelOutput.from_content("mockllm/model", text)
        state = TaskState("mockllm/model", sample_id=1, epoch=1, input=ASKED, messages=[], output=output)
        assert asyncio.run(scorer(state, Target("61"))).value == value


def test_a_metric_of_lm_eval() -> None:
    doc = {"question": ASKED, "answer": "#### 61"}
    assert lm_eval_results(doc, [r"It is \boxed{61}."]) == {"exact_match": 1.0}
    with pytest.raises(UserError, match=r"the gold \['1', '2'\] can score no answer"):
        lm_eval_results({"answer": ["1", "2"]}, [r"\boxed{2}"])
    api = pytest.importorskip("lm_eval.api.task", reason="lm-eval is not installed")
    task = api.ConfigurableTask.__new__(api.ConfigurableTask)
    task._config = api.TaskConfig(task="x", process_results=lm_eval_results)
    assert task.process_results(doc, [r"It is \boxed{65-4}."]) == {"exact_match": 0.0}


def test_pairs_from_the_shell(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [
        {"prediction": "61", "gold": 61},
        {"completion": "<answer>(A) 65-4</answer>", "answer": "61", "problem": ASKED},
    ]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    done = python("-m", "gtpo.rewards", file)
    assert [json.loads(line)["verdict"] for line in done.stdout.splitlines()] == [Verdict.CORRECT, Verdict.INCORRECT]
    assert "CORRECT: 1" in done.stderr
    file.write_text("{}\n")
    done = python("-m", "gtpo.rewards", file, code=2)
    assert f"{file}:1: expected prediction or pred or completion" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_may_stand_in_a_field_is_judged_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any value in any field: a sentence, or a verdict for each sample; one that failed is no wrong answer."""
    said = [{"role": "assistant", "content": "4"}]
    values = [None, True, 4, 1.5, "4", "", [], ["4"], [None], ["4", None], [[]], [4], said, [said], [{}], {}, {"a": 1}]
    fields, judged = ("prediction", "completion", "completions", "gold", "problem"), list[dict[str, Any]]()
    refused: list[str] = []
    for field, value in itertools.product(fields, values):
        row = {field: value} | ({} if field.startswith(("pred", "comp")) else {"prediction": "4"})
        try:
            judged += rewards_command._samples({"gold": "4"} | row, {}, "rows:1")
        except UserError as error:
            refused.append(str(error))
    assert all(sentence.startswith("rows:1: ") for sentence in refused)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in judged))
    monkeypatch.setattr(sys, "argv", ["gtpo.rewards", str(file), "--workers", "1"])
    assert rewards_command.main() == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(judged) > 40
    assert all((row["verdict"] is None) == (row.get("completion", "") is None) for row in rows)


@pytest.mark.parametrize("gold", [None, ["61"], "", {"answer": 61}])
def test_a_gold_that_can_score_nothing_is_an_error(gold: object) -> None:
    with pytest.raises(UserError, match="can score no answer"):
        verl_score("openai/gsm8k", "#### 61", gold)


def test_a_verdict_says_why() -> None:
    judge = default_verifier()
    copied = judge.verify("65-4", "61", problem=ASKED, explain=True)
    assert copied.verdict is Verdict.UNSIMPLIFIED
    assert "(-4 + 65) | gold 61: equal, but copied from the problem; it leaves numbers that are added" in copied.why
    assert judge.verify(r"x \equiv 3 \pmod 5", "3", explain=True).why.startswith("x = residue [3] | gold 3: equal")
    assert "not equal" in judge.verify("2x", "3x", explain=True).why
    assert "empty" in judge.verify("", "3", explain=True).why


def test_a_reward_function_is_audited(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(completions, answer, **columns):\n"
        "    return [float(a in c) if a else None for c, a in zip(completions, answer)]\n"
    )
    rows = ["text,target", "It is 12,2", "It is 12,12", '"\\boxed{\\frac12}",0.5', "It is 7,8"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    command = ["-m", "gtpo.rewards", "rows.csv", "--fields", "completion=text", "gold=target", "--scoring", "lenient"]
    done = python(*command, "--against", "mine:score", cwd=tmp_path)
    assert "2 of 4 differ (15.00 to 85.00 %)" in done.stdout
    assert "paid: 'It is 12' | gold '2': INCORRECT" in done.stdout
    python(*command, "--against", "mine:score", "--fail-above", "0.4", cwd=tmp_path, code=5)
    judged = python(*command, "--explain", cwd=tmp_path)
    assert [json.loads(line)["verdict"] for line in judged.stdout.splitlines()] == [
        "INCORRECT", "CORRECT", "CORRECT", "INCORRECT",
    ]  # fmt: skip
    for wrong in (["--workers", "0"], ["--workers", "two"], ["--fields", "gold"]):
        refused = python(*command, *wrong, cwd=tmp_path, code=2)
        assert (refused.stdout, "Traceback" in refused.stderr) == ("", False)


@pytest.fixture
def address(capsys: pytest.CaptureFixture[str], verifier: Verifier) -> Iterator[str]:
    with serve(verifier) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield capsys.readouterr().out.split()[0]
        server.shutdown()


def asked(address: str, **typed: str) -> str:
    data = urllib.parse.urlencode(typed).encode() if typed else None
    with urllib.request.urlopen(address, data, timeout=60) as reply:
        return str(reply.read().decode())


def test_it_judges_and_shows_text_as_text(address: str) -> None:
    assert "<form" in asked(address)
    page = asked(address, problem="What is 65-4?", gold="61", answer="65-4<script>")
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<h2>UNSIMPLIFIED</h2>" in asked(address, problem="What is 65-4?", gold="61", answer="65-4")
    page = asked(address, gold="0.5", answer=r"So it is $\boxed{\frac12}$.")
    assert "<h2>CORRECT</h2>" in page
    assert r"<code>\frac12</code>" in page
    for typed in ({}, {"gold": "1", "answer": "1"}):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked(address.rstrip("/") + "x/", **typed)


def test_a_gold_is_no_completion() -> None:
    for gold, part, whole in (("2 hours 30 minutes", "30", "2 h 30 min"), ("$-1$, $2$, $-2$", "-2", "-2, 2, -1")):
        scores = (
            lm_eval_results({"problem": "What?", "answer": gold}, [rf"\boxed{{{text}}}"]) for text in (part, whole)
        )
        assert [score["exact_match"] for score in scores] == [0, 1]
