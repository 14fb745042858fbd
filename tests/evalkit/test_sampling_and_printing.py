"""How a model is sampled by default or as it recommends, what a run prints at its end, and that every command that gtpo
prints runs as it is printed: each story is followed by what the command before it says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from servers import Reply, Server, completion

from gtpo.evalkit.evaluation.scoring import EvalProgress
from gtpo.runs import prompt
from gtpo.runs.eval_folder import Sample, read_prompts
from gtpo.runs.eval_record import EvalRecord, SamplingRecord, read_record

EVAL = ("--benchmarks", "arithmetic", "--limit", "2", "--engine", "transformers")


def test_what_the_model_recommends(gtpo, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 2}
    (model / "generation_config.json").write_text(json.dumps(config))
    command = ("eval", model, *EVAL, "--max-tokens", "8")
    done = gtpo(*command, "--sampling", "model", "--top-p", "0.9", "--out", "own")
    assert "sampling: temperature 0.6, top_p 0.9, top_k 20, min_p 0" in done.stderr
    found = read_record(tmp_path / "own").sampling
    assert (found.temperature, found.top_p, found.top_k, found.min_p) == (0.6, 0.9, 20, 0.0)
    gtpo(*command, "--out", "plain")
    found = read_record(tmp_path / "plain").sampling
    assert (found.temperature, found.top_k) == (1.0, 0)
    assert "sampling.top_k (0 there, 5 now)" in gtpo(*command, "--top-k", "5", "--out", "plain", code=2).stderr
    (model / "generation_config.json").write_text('{"do_sample": false}')
    message = "--sampling model: temperature 0 gives the same completion every time"
    assert message in gtpo(*command, "--sampling", "model", "--k", "4", "--out", "greedy", code=2).stderr
    (model / "generation_config.json").unlink()
    assert "has no generation_config.json here" in gtpo(*command, "--sampling", "model", code=2).stderr


def test_max_tokens_by_default(gtpo, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What the context of 256 tokens leaves; a server's context where it says it; the resumed run keeps its own."""
    done = gtpo("eval", tiny_model, *EVAL, "--prompt", "", "--out", "local")
    most = read_record(tmp_path / "local").sampling.max_tokens
    assert 200 < most < 256
    assert f"--max-tokens is {most}: what the context of 256 tokens leaves" in done.stderr
    for context, expected in ((100_000, 32_768), (8192, None), (None, 4096)):
        server = Server()
        server.models = Reply(body={"data": [{"id": "m"} | ({"max_model_len": context} if context else {})]})
        out = tmp_path / str(context)
        done = gtpo("eval", "m", *EVAL[:-2], "--engine", "openai", "--base-url", server.url, "--out", out)
        server.close()
        most = read_record(out).sampling.max_tokens
        assert most == expected if expected else 7000 < most < 8100
        assert f"--max-tokens is {most}: " in done.stderr
        assert {request["max_tokens"] for request in server.requests} == {most}


class Tomorrow(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(days=1)


@pytest.mark.parametrize("written_by", ["now", "0.2"])
def test_a_larger_k_on_another_day_asks_as_on_the_first(
    written_by: str, gtpo: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%d %b %Y') }}: {{ messages[-1]['content'] }}")
    command = ("eval", tiny_model, *EVAL, "--max-tokens", "8", "--prompt", "", "--chat-template", "dated.jinja")
    gtpo(*command, "--out", "run")
    asked, record = read_prompts(tmp_path / "run"), json.loads((tmp_path / "run/eval.json").read_text())
    if written_by == "0.2":
        for name in ("schema_version", "chat_template_source", "generation_prompt", "bos", "time"):
            del record["prompt"][name]
        (tmp_path / "run/eval.json").write_text(json.dumps(record | {"schema_version": 2}))
    monkeypatch.setattr(prompt, "datetime", Tomorrow)
    done = gtpo(*command, "--k", "2", "--out", "run")
    assert "keeping 2 stored samples" in done.stderr
    assert read_prompts(tmp_path / "run") == asked
    gtpo(*command, "--like", "run", "--out", "like")
    assert read_prompts(tmp_path / "like") == asked
    gtpo(*command, "--out", "another")
    assert read_prompts(tmp_path / "another") != asked


def test_a_train_run_is_asked_as_it_was_trained(gtpo: Any, serve: Any, tiny_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "results/train/r"
    shutil.copytree(tiny_model, run / "best")
    (run / "run.json").write_text(json.dumps({"schema_version": 1, "method": "gtpo", "status": "finished"}))
    (run / "config.yaml").write_text(
        "dataset: {system_instruction: Hard.}\n"
        "training: {max_completion_length: 24, chat_template_kwargs: {enable_thinking: true}}\n"
    )
    (tmp_path / "t.jinja").write_text("{{ messages[-1]['content'] }}{% if enable_thinking %} Think.{% endif %}")
    command = ("eval", "r", *EVAL, "--max-tokens", "8", "--chat-template", "t.jinja")
    done = gtpo(*command, "--out", "as-trained")
    assert 'chat template: {"enable_thinking": true}, as the model was trained' in done.stderr
    assert "the chat template drops the system message" in done.stderr
    assert all(text.endswith(" Think.") for _, text, _ in read_prompts(tmp_path / "as-trained").values())
    done = gtpo(*command, "--chat-template-kwargs", "{}", "--prompt", "", "--out", "otherwise")
    assert not any(text.endswith(" Think.") for _, text, _ in read_prompts(tmp_path / "otherwise").values())
    assert "drops" not in done.stderr
    # Behind a server by its own name.
    other, server = serve(lambda payload, times: Reply(404, {"error": "no such model"})), serve(model="r")
    served = ("eval", "r", *EVAL[:-2], "--out", "served", "--base-url")
    assert 'does not list "r". It lists: m' in gtpo(*served, other.url, code=2).stderr
    gtpo(*served, server.url)
    asked = {(r["model"], r["max_tokens"], r["messages"][0]["content"]) for r in server.requests}
    assert asked == {("r", 24, "Hard.")}
    model = read_record(tmp_path / "served").model
    assert (model.train_run, model.fingerprint is None) == ("r", False)


def test_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the length of what has ended to the limit: the first to end are short, so their length promises too much."""
    import gtpo.evalkit.evaluation.scoring as module

    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    def said(*, running: tuple[int, int], most: int | None, ended: int, tokens: int | None = 50) -> str:
        clock[0] = 100.0
        engine: Any = SimpleNamespace(running=lambda: running, retried=3)
        progress = EvalProgress(EvalRecord(sampling=SamplingRecord(max_tokens=most)), {"b": 10}, {}, engine)
        progress.count([Sample("b", "q", i, "", tokens=tokens) for i in range(ended)])
        clock[0] = 120.0
        return ", ".join(progress._speed())

    one = "1 in flight with 25 tokens, 3 requests sent again, 11 tokens/s"
    assert said(running=(1, 25), most=None, ended=4) == f"{one}, about 0:24 left"
    assert said(running=(1, 25), most=60, ended=4) == f"{one}, about 0:24 left"
    assert said(running=(1, 25), most=200, ended=4) == f"{one}, 0:24 to 1:44 left"
    # What runs is longer already than what has ended: that says nothing of how long it takes.
    assert said(running=(9, 900), most=200, ended=1).endswith("0:00 to 0:18 left")
    assert "left" not in said(running=(9, 900), most=None, ended=1)
    assert "left" not in said(running=(9, 900), most=200, ended=0)
    assert said(running=(0, 0), most=200, ended=5, tokens=None) == "3 requests sent again, about 0:20 left"


Run = Callable[..., subprocess.CompletedProcess[str]]
# Two spaces, a bracket or the end of a sentence or line ends a command; a name may hold a dot.
COMMAND = re.compile(r"\bgtpo (?:train|eval|compare|plan) .+?(?=$|  |;|\)| && |\. [A-Z])", re.MULTILINE)


def printed(done: subprocess.CompletedProcess[str], **placeholders: str) -> list[list[str]]:
    """Return the words of each command that a command printed. placeholders: NAME -> what a reader types for it."""
    commands = [shlex.split(line)[1:] for line in COMMAND.findall(done.stdout + "\n" + done.stderr)]
    return [[placeholders.get(word.removesuffix("..."), word) for word in words] for words in commands]


def test_the_examples_lead_to_a_verdict(gtpo: Run) -> None:
    (compare,) = printed(gtpo("examples"))
    assert "after is better than before" in " ".join(gtpo(*compare).stdout.split())


def test_a_train_run_leads_to_its_evaluation_and_page(gtpo: Run) -> None:
    trained = gtpo("train", "demo/base", "--run-name", "tiny", "--training.max_steps", 1, "--training.save_steps", 1)
    (evaluate,) = printed(trained)
    evaluated = gtpo(*evaluate, "--limit", 2, "--max-tokens", 4)
    page, _ = printed(evaluated)
    gtpo(*page)
    assert Path("tiny.html").is_file()


def test_the_mend_of_served_models_makes_them_comparable(gtpo: Run, serve: Callable[..., Any]) -> None:
    """One of them asked in another form, of a server that takes no min_p."""

    def refuses_min_p(payload: dict[str, Any], times: int) -> Any:
        refusal = {"error": {"message": "unknown field min_p"}}
        return completion(payload)._replace(status=400, body=refusal) if "min_p" in payload else completion(payload)

    asked = ("--benchmarks", "arithmetic", "--limit", 3, "--k", 2)
    gtpo("eval", "m", "--base-url", serve().url, "--out", "results/eval/first", *asked)
    other = serve(refuses_min_p)
    other.canary = refuses_min_p
    second = gtpo("eval", "m", "--base-url", other.url, "--out", "results/eval/a second", "--protocol", "boxed", *asked)
    page, compare = printed(second, OTHER_RUN="first")
    gtpo(*page)
    (mend,) = printed(gtpo(*compare, "--scoring", "lenient", code=2))
    _, again = printed(gtpo(*mend), OTHER_RUN="results/eval/a second")
    compared = gtpo(*again, "--scoring", "lenient")
    assert "a second is undecided against first-like-a second on arithmetic: +0.0 points" in compared.stdout


def test_a_mend_names_runs_that_lie_elsewhere_by_path(gtpo: Run, serve: Callable[..., Any]) -> None:
    url = serve().url
    asked = ("--base-url", url, "--benchmarks", "arithmetic", "--limit", 2)
    gtpo("eval", "m", "--out", "mine/first", "--k", 1, *asked)
    gtpo("eval", "m", "--out", "mine/second", "--k", 2, *asked)
    (mend,) = printed(gtpo("compare", "mine/first", "mine/second", code=2))
    mended = gtpo(*mend)
    assert "published set" not in mended.stderr, "its questions are a part, by --limit of the run that it is like"
    assert "second-like-first is undecided against first" in gtpo("compare", "mine/first", "second-like-first").stdout
