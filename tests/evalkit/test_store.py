"""The run folder and the scoring thread when the world goes wrong; a run's summary against figures by hand."""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gtpo.evalkit.evaluation.scoring as scoring_module
from gtpo.common import files
from gtpo.common.errors import UserError
from gtpo.evalkit.engines.base import Prompt, Reading
from gtpo.evalkit.evaluation.evaluate import check_prompts
from gtpo.evalkit.evaluation.plan import Rendering
from gtpo.evalkit.evaluation.scoring import ScoringPipeline, Tally, count_votes, score
from gtpo.evalkit.evaluation.summary import score_held_out, summarise
from gtpo.rewards.data.problem import Problem
from gtpo.rewards.verify import Verifier
from gtpo.runs.eval_folder import EvalFolder, Sample
from gtpo.runs.eval_record import BenchmarkRecord, EvalRecord, check_identity
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
        folder.sampled.add(key)
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


def row(question: str, index: int, text: str, reason: str = "stop") -> Sample:
    return Sample("b", question, index, text, tokens=10 + index, finish_reason=reason, seed=index)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchmarkRecord, list[dict[str, Any]]]:
    """Two questions, four samples: a is 2 of 4 right under strict scoring (3 under lenient), b never."""
    right = "<reasoning>r</reasoning>\n<answer>4</answer>"
    rows = [
        *(row("a", i, text) for i, text in enumerate([right, right, "the answer is 4", "<answer>5</answer>"])),
        *(row("b", i, text) for i, text in enumerate(["<answer>1</answer>", "<answer>1.0</answer>", "", "so 9"])),
    ]
    rows[-2].finish_reason = "length"
    problems = [Problem("a", "p", "4", subject="s", level=1), Problem("b", "p", "7", subject="t", level=1)]
    with EvalFolder(tmp_path_factory.mktemp("runs") / "run") as folder, Verifier() as verifier:
        score(rows, {("b", p.id): p for p in problems}, verifier)
        folder.append(rows[:3])
        folder.append([*rows[2:], rows[0]])  # two samples stored twice count once
        tally = Tally(folder, verifier)
        return summarise("b", BenchmarkRecord(), problems, "strict", tally, 4, 4)


def test_means(summary) -> None:  # type: ignore[no-untyped-def]
    entry, _ = summary
    assert (entry.questions, entry.samples) == (2, 8)
    assert entry.pass_at_k[1].mean == pytest.approx(0.25)
    assert entry.pass_at_k[4].mean == pytest.approx(0.5)
    assert entry.lenient.pass_at_k[1].mean == pytest.approx(3 / 8)
    assert entry.format_rate == pytest.approx(2 / 8)
    assert entry.truncation_rate == pytest.approx(1 / 8)
    assert entry.no_answer_rate == pytest.approx(3 / 8)
    assert entry.mean_tokens == pytest.approx(11.5)
    assert entry.verdicts == {"CORRECT": 2, "INCORRECT": 3, "NO_ANSWER": 3}
    # maj@2 of a, strict: right, right, silent, wrong; the six pairs give 1, 1, 1, 1/2, 1/2, 0.
    assert entry.maj_at_k[2].mean == pytest.approx((4 / 6) / 2)


def test_questions(summary) -> None:  # type: ignore[no-untyped-def]
    _, rows = summary
    found = {(r["question_id"], r["scoring"]): r for r in rows}
    assert (found["b", "strict"]["votes"], found["b", "strict"]["abstentions"]) == ([2], 2)
    assert (found["b", "lenient"]["votes"], found["b", "lenient"]["abstentions"]) == ([2, 1], 1)


def test_what_is_missing_is_bounded() -> None:
    """a: 2 of 4 right; b: 1 of 2, two failed; c: all four failed. By hand, for every k."""
    right, wrong = "<answer>4</answer>", "<answer>5</answer>"
    rows = [
        *(row("a", i, text) for i, text in enumerate([right, right, wrong, wrong])),
        *(row("b", i, text) for i, text in enumerate([right, wrong])),
        *(Sample("b", "b", i, "half", finish_reason="error", error="HTTP 500") for i in (2, 3)),
        *(Sample("b", "c", i, "", finish_reason="refused", error="HTTP 400") for i in range(4)),
    ]
    problems = [Problem(name, "p", "4") for name in "abc"]
    with Verifier() as verifier, tempfile.TemporaryDirectory() as scratch, EvalFolder(Path(scratch) / "run") as folder:
        score(rows, {("b", p.id): p for p in problems}, verifier)
        folder.append(rows)
        tally = Tally(folder, verifier)
        assert min(tally.questions["b", p.id].reached() for p in problems) == 4
        entry, rows = summarise("b", BenchmarkRecord(), problems, "strict", tally, 4, 4)
    assert (entry.samples, entry.unscored, entry.refused) == (6, 6, 4)
    assert (entry.lacking, entry.unscored_questions) == ({"b": 2}, ["c"])
    assert {k: interval.questions for k, interval in entry.pass_at_k.items()} == {1: None, 2: None, 3: 1, 4: 1}
    means = {1: (1 / 2 + 1 / 2) / 2, 2: (5 / 6 + 1) / 2, 3: 1.0, 4: 1.0}
    assert {k: interval.mean for k, interval in entry.pass_at_k.items()} == pytest.approx(means)
    worst = {1: (1 / 2 + 1 / 4 + 0) / 3, 2: (5 / 6 + 1 / 2) / 3, 3: (1 + 3 / 4) / 3, 4: 2 / 3}
    best = {1: (1 / 2 + 3 / 4 + 1) / 3, 2: (5 / 6 + 1 + 1) / 3, 3: 1.0, 4: 1.0}
    assert {k: interval.worst for k, interval in entry.pass_at_k.items()} == pytest.approx(worst)
    assert {k: interval.best for k, interval in entry.pass_at_k.items()} == pytest.approx(best)
    assert entry.maj_at_k[4].worst == pytest.approx((1 / 2 + 0 + 0) / 3)  # b: one right, three alike that are wrong
    assert entry.maj_at_k[4].best == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert {(r["question_id"], len(r["pass_at_k"])) for r in rows} == {("a", 4), ("b", 2)}


# -- scores of held-out problems, by brute force -----------------------------------------------------------------------

RIGHT, WRONG, OTHER = (f"<reasoning>x</reasoning>\n<answer>{answer}</answer>" for answer in ("4", "5", "6"))
SILENT = "I do not know"
SAMPLES = [[RIGHT, WRONG, RIGHT, OTHER], [WRONG, WRONG, RIGHT, SILENT], [SILENT] * 4, [RIGHT, RIGHT, WRONG, WRONG]]
HELD_OUT = [Problem(id=str(number), problem="2 + 2?", answer="4") for number in range(4)]


def test_rates_are_those_counted_by_hand() -> None:
    found = score_held_out(HELD_OUT, SAMPLES)
    assert found.pop("problems") == [0.5, 0.25, 0.0, 0.5]
    assert list(found) == ["pass@1", "maj@4", "format"]
    assert found["pass@1"].mean == pytest.approx((2 + 1 + 0 + 2) / 16)
    assert found["maj@4"].mean == pytest.approx((1 + 0 + 0 + 1 / 2) / 4), "of the last two answers tie"
    assert found["format"].mean == pytest.approx((4 + 3 + 0 + 4) / 16)
    for interval in found.values():
        assert 0 <= interval.low < interval.mean < interval.high <= 1
    assert list(score_held_out(HELD_OUT, [[RIGHT]] * 4)) == ["pass@1", "format", "problems"], "one has no majority"


@pytest.mark.parametrize("completions", [[], [[]] * 4, [[RIGHT], [RIGHT], [RIGHT], [RIGHT, WRONG]], [[RIGHT]] * 3])
def test_ragged_samples_are_refused(completions: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="equally many completions"):
        score_held_out(HELD_OUT, completions)
