"""Every command that gtpo prints runs as it is printed: each story is followed by what the command before it says."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers import completion

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
