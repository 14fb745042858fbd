"""The run folder and the scoring thread when the world goes wrong."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import gtpo.evalkit.evaluation.scoring as scoring_module
from gtpo.common import files
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import Prompt, Reading
from gtpo.evalkit.evaluation.evaluate import check_prompts
from gtpo.evalkit.evaluation.plan import Rendering
from gtpo.evalkit.evaluation.scoring import ScoringPipeline, Tally, count_votes, score
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder, Sample
from gtpo.runs.eval_record import EvalRecord, check_identity
from gtpo.runs.prompt import PromptRecord

PROBLEM = Problem("q", "", "4")
PROBLEMS = {("b", "q"): PROBLEM}


def samples(count: int, start: int = 0, text: str = "<answer>4</answer>") -> list[Sample]:
    return [Sample("b", "q", i, text, tokens=3, finish_reason="stop", seed=i) for i in range(start, start + count)]


def pipeline(folder: EvalFolder, wanted: int = 9999, lots: list[int] | None = None) -> ScoringPipeline:
    """lots: takes how many are scored at a time."""
    lots = [] if lots is None else lots
    folder.add_problems({"b": [PROBLEM]})

    class Counting(Tally):
        def score(self, samples: Sequence[Sample]) -> None:
            lots.append(len(samples))
            super().score(samples)

    return ScoringPipeline(Counting(folder, Verifier()), {("b", "q"): wanted}, EvalRecord())


def test_a_full_disk_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EvalFolder(tmp_path / "run") as folder:
        first = pipeline(folder)
        first.put(samples(5))
        first.close()

        def full(path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        second = pipeline(folder)
        monkeypatch.setattr(files, "write_bytes", full)
        second.put(samples(5, start=5))
        with pytest.raises(OSError, match="No space left"):
            second.close()
        with pytest.raises(OSError, match="No space left"):
            second.put(samples(1, start=10))
        assert len([*Tally(folder, Verifier()).scored()]) == 5


def test_a_fault_of_the_scoring_reaches_the_caller(tmp_path: Path) -> None:
    with EvalFolder(tmp_path / "run") as folder:
        scoring = pipeline(folder)
        scoring.put(samples(2))
        scoring.put([Sample("b", "unknown question", 0, "x")])
        with pytest.raises(KeyError):
            scoring.close()


def test_a_folder_in_which_nothing_was_written_goes_again(tmp_path: Path) -> None:
    with EvalFolder(tmp_path / "run"):
        assert (tmp_path / "run/.lock").exists()
    assert not (tmp_path / "run").exists()


def test_every_setting_that_differs_is_named(tmp_path: Path) -> None:
    base = {"model": {"source": "a"}, "engine": {"name": "vllm"}, "sampling": {"temperature": 1.0, "n": 4}}
    old = EvalRecord.model_validate(base)
    check_identity(tmp_path, old, old.model_copy(update={"sampling": old.sampling.model_copy(update={"n": 64})}))
    other = {"model": {"source": "b", "adapter": "c"}, "engine": {"name": "recorded"}, "sampling": {"seed": 3}}
    said = r"model\.source \(.*\); model\.adapter \(.*\); engine\.name \([^;]*\); and 2 more\. Repeat those, or"
    with pytest.raises(UserError, match=said):
        check_identity(tmp_path, old, EvalRecord.model_validate(other))


def test_running_servers_are_sent_the_prompts_that_they_showed_at_first(tmp_path: Path) -> None:
    """Their template prints the date; what is no server of vLLM cannot be sent tokens."""
    messages = [{"role": "user", "content": "2 + 2?"}]
    key, first = ("b", "q"), Prompt(messages, "28 Feb: 2 + 2?", [1, 2])
    with EvalFolder(tmp_path / "run") as folder:
        folder.add_prompts({key: first})
        for owner in ("llamacpp", "vllm"):
            server = SimpleNamespace(out=None, card=lambda owner=owner: {"owned_by": owner}, takes_tokens=False)
            now = Rendering(
                {key: Prompt(messages, "14 Jul: 2 + 2?", [3, 2])}, PromptRecord(), Reading(), None, [server]
            )
            with pytest.raises(UserError, match="is another than") if owner == "llamacpp" else nullcontext():
                check_prompts(folder, now)
            assert (now.prompts[key] == first, server.takes_tokens) == ((owner == "vllm"),) * 2


def test_votes_are_counted_with_the_last_sample(tmp_path: Path) -> None:
    """As they would be from the stored rows; a question that is not whole is left to the summary."""
    texts = ["<answer>4</answer>", "<answer>1/2</answer>", "<answer>0.5</answer>", "so 0.5", "nothing"]
    with EvalFolder(tmp_path / "run") as folder:
        first = pipeline(folder, len(texts))
        for i, text in enumerate(texts[:3]):
            first.put(samples(1, start=i, text=text))
        first.close()
        assert not first.tally.questions["b", "q"].votes
        scoring = pipeline(folder, len(texts))  # those of an earlier session count too
        for i, text in enumerate(texts[3:], 3):
            scoring.put(samples(1, start=i, text=text))
        scoring.close()
        found = scoring.tally.questions["b", "q"].votes
        assert found == {"strict": (1, 2, [2]), "lenient": (1, 0, [3, 1])}
        assert [scoring.tally.questions["b", "q"].first(n).votes for n in (5, 4)] == [found, {}], "not counted again"
        with Verifier() as verifier:
            stored = Tally(folder, verifier).questions["b", "q"]
            for name, votes in found.items():
                assert [votes] == count_votes([(*stored.answers(name), PROBLEM)], verifier)


def test_samples_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes within the time of a lot is scored together; the end, or that time, ends the wait for more."""
    lots: list[int] = []
    monkeypatch.setattr(scoring_module, "LOT_SECONDS", 3600.0)
    with EvalFolder(tmp_path / "run") as folder:
        scoring = pipeline(folder, lots=lots)
        for start in range(0, 40, 4):
            scoring.put(samples(4, start=start))
        scoring.close()
        monkeypatch.setattr(scoring_module, "LOT_SECONDS", 0.0)
        scoring = pipeline(folder, lots=lots)
        for start in (40, 44):
            scoring.put(samples(4, start=start))
            while sum(lots) < start + 4:
                time.sleep(0.001)
        scoring.close()
        assert lots == [40, 4, 4]
        assert len([*Tally(folder, Verifier()).scored()]) == 48


def test_votes_by_meaning() -> None:
    """Equal answers share a class however they are written; undecided ones vote for themselves."""
    with Verifier() as verifier:
        answers = ["0.5", "1/2", "\\frac12", "3", "3.0", "seven", None, "4"]
        verdicts = [str(v) for v in verifier.verify_many([(a, "4") for a in answers])]
        silent: tuple[list[None], list[str]] = [None, None], ["NO_ANSWER", "NO_ANSWER"]
        alike = ["5", "5"], ["INCORRECT", "INCORRECT"]
        counted = count_votes([(answers, verdicts, PROBLEM), (*silent, PROBLEM), (*alike, PROBLEM)], verifier)
        assert counted == [(1, 1, [3, 2, 1]), (0, 2, []), (0, 0, [2])]
        (half,) = samples(1, text="\ud83d <answer>4</answer>")
        score([half], PROBLEMS, verifier)
        half.completion.encode("utf-8")
        assert (half.verdict_strict, half.answer_strict) == ("CORRECT", "4")
