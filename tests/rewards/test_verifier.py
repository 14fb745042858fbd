"""The verifier: hostile text, threads, death of workers, the caller's alarms, no zombies, no orphans."""

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import copy_packages, python
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo.common.errors import UserError
from gtpo.rewards import Verdict, Verifier, accuracy_reward, math_verify_reward
from gtpo.rewards.golds import find_unverifiable
from gtpo.rewards.verification import pool
from gtpo.rewards.verify import reject_reason

IN_A_PROCESS = ("rewards/verification/worker.py", "rewards/equality/")

SLOW = r"\frac{d^{7}}{dx^{7}} \tan(\tan(\tan(\tan(\tan(x^{x^{x}})))))"
"""Math-Verify keeps SymPy busy with it for long."""


@pytest.fixture(scope="module")
def hasty():
    with Verifier(workers=1, timeout_s=2) as shared:
        yield shared


_unused = itertools.count()


def new_pairs(count: int) -> list[tuple[str, str]]:
    """Equal pairs that were never verified before."""
    return [(f"x+{i}", f"{i}+x") for i in itertools.islice(_unused, count)]


HOSTILE = dict(line.split(" = ", 1) for line in (Path(__file__).parent / "hostile.txt").read_text().splitlines())
"""What it is -> an expression of Python for the text."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_harmless(name: str, hasty: Verifier, tmp_path) -> None:
    text = eval(HOSTILE[name]).replace("{witness}", str(tmp_path / "witness"))
    for gold in ("5", r"[1,2]\cup[3,4]"):
        assert hasty.verify(text, gold) is not Verdict.CORRECT
    assert not (tmp_path / "witness").exists()
    assert hasty.verify("x+x", "2x") is Verdict.CORRECT  # the workers are intact


def test_a_worker_that_takes_too_long_is_killed() -> None:
    with Verifier(workers=1, timeout_s=1) as verifier:
        assert verifier.verify("x+x", "2x") is Verdict.CORRECT
        (worker,) = verifier._pool._alive
        (verdict,) = verifier.math_verify_many([(f"${SLOW}$", r"\frac{d}{dx} x^{x^x}")])
        assert verdict in (Verdict.TIMEOUT, Verdict.REJECTED)
        assert verifier.verify("y+y", "2y") is Verdict.CORRECT
        assert worker.process.returncode is not None


@pytest.mark.parametrize("end", ["kill", "suspend"])
def test_a_worker_that_dies_or_stops_is_replaced(end: str) -> None:
    others = {process.pid for process in psutil.Process().children()}
    with Verifier(workers=1, timeout_s=1) as verifier:
        assert verifier.verify("x+x", "2x") is Verdict.CORRECT
        getattr(next(process for process in psutil.Process().children() if process.pid not in others), end)()
        assert verifier.verify("y+y", "2y") is Verdict.CORRECT
        assert not [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE]


def test_each_task_that_was_sent_ahead_gets_its_own_outcome() -> None:
    """A timeout and a death in the middle of what one worker was sent touch no other task."""
    slow = {"prediction": f"${SLOW}$", "gold": r"\frac{d^{8}}{dx^{8}} \tan(\tan(x^{x^{x}}))", "by": "math-verify"}
    right = [{"prediction": f"x+{i}", "gold": f"{i}+x"} for i in range(40)]
    for timeout_s, memory_mb, outcomes in (1, 1024, ("TIMEOUT", "REJECTED")), (60, 48, ("REJECTED",)):
        workers = pool.WorkerPool(1, timeout_s, memory_mb)  # 48 MiB are too little for SymPy
        found = workers.run([*right[:20], slow, *right[20:]])
        workers.close()
        assert found.pop(20) in outcomes
        assert set(found) == {"CORRECT"}


def test_what_few_answers_need_is_loaded_off_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    said = b""
    read = os.read

    def heard(file: int, size: int) -> bytes:
        nonlocal said
        said += (part := read(file, size))
        return part

    monkeypatch.setattr(os, "read", heard)
    with Verifier(workers=1, timeout_s=60) as verifier:
        assert verifier.math_verify_many([("$x+x$", "2x")]) == [Verdict.CORRECT]
    kinds = [json.loads(line)[0] for line in said.splitlines()]
    assert kinds == ["ready", "begin", "load", "begin", "done"], "the clock starts anew with the second begin"


def test_a_pool_starts_one_worker_and_grows_behind_tasks_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GROW_AFTER_S", 3600.0)
    with Verifier(workers=2, timeout_s=30) as verifier:
        workers = verifier._pool
        (first,) = workers._take(1, True)
        assert workers._take(1, True) == [], "the start of a worker is no reason to grow"
        workers._give_back([first])
        verifier.verify_many(new_pairs(40))
        assert workers._alive == {first}
        monkeypatch.setattr(pool, "GROW_AFTER_S", 0.0)
        while len(workers._alive) < 2:
            verifier.verify_many(new_pairs(200))


@pytest.mark.parametrize("works", [False, True])
def test_a_pool_may_close_while_a_worker_starts_or_works(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = Verifier(workers=1, timeout_s=60)
    begun, plain = threading.Event(), pool.WorkerPool._awaited

    def awaited(self: pool.WorkerPool, held: Any, until: float) -> Any:
        if held[0].ready == works:
            begun.set()
        return plain(self, held, until)

    monkeypatch.setattr(pool.WorkerPool, "_awaited", awaited)
    caller = ThreadPoolExecutor(1).submit(verifier.verify, "x+x", "2x")
    assert begun.wait(120)
    worker, *_ = verifier._pool._alive
    verifier.close()
    assert str(caller.exception(120) or caller.result()) in ("the verifier is closed", "CORRECT", "REJECTED")
    assert worker.process.returncode is not None
    assert worker.stdout.closed


def no_process(*arguments: Any, **options: Any) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


PROCESS = subprocess.Popen
SHORT = "; verification goes on with 1 of up to 2 workers"


def ends_at_once(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    return PROCESS([sys.executable, "-c", "raise SystemExit(3)"], **options)


def test_what_the_system_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Verifier(workers=1, memory_mb=8) as verifier, pytest.raises(UserError, match="did not start"):
        verifier.verify("x+x", "2x")
    with Verifier(workers=1, timeout_s=30) as verifier:
        with monkeypatch.context() as patch:
            patch.setattr("subprocess.Popen", no_process)
            with pytest.raises(UserError, match=r"worker did not start: .*unavailable"):
                verifier.verify("x+x", "2x")
        assert verifier.verify("x+x", "2x") is Verdict.CORRECT


def verify_new(verifier: Verifier) -> None:
    assert set(verifier.verify_many(new_pairs(200))) == {Verdict.CORRECT}


@pytest.mark.parametrize(
    ("refuse", "said"),
    [
        (no_process, "[Errno 11] Resource temporarily unavailable"),
        (ends_at_once, "it ended with exit status 3; its message is on stderr"),
    ],
)
def test_a_second_worker_that_cannot_start_fails_nothing(
    refuse: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "GROW_AFTER_S", 0.0)
    with Verifier(workers=2, timeout_s=30) as verifier:
        assert verifier.verify("x+x", "2x") is Verdict.CORRECT
        workers = verifier._pool
        with monkeypatch.context() as patch:
            patch.setattr("subprocess.Popen", refuse)
            while not caplog.records:
                verify_new(verifier)
            assert [record.message.split("start: ")[1] for record in caplog.records] == [said + SHORT]
            verify_new(verifier)  # not asked again so soon
            assert (len(workers._alive), len(caplog.records)) == (1, 1)
        workers._grows_at = 0.0  # a minute later
        while len(workers._alive) < 2:
            verify_new(verifier)
        assert len(caplog.records) == 1, "nothing was refused this time"


def test_a_killed_worker_without_successor_leaves_its_tasks_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GROW_AFTER_S", 0.0)
    said: list[object] = []

    class Verifies(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append((record.getMessage().split("unavailable")[1], verifier.verify("x+x", "2x")))

    with Verifier(workers=2, timeout_s=30) as verifier:
        while [worker.ready for worker in verifier._pool._alive] != [True, True]:
            verify_new(verifier)
        monkeypatch.setattr(subprocess, "Popen", no_process)
        monkeypatch.setattr(pool.LOG, "handlers", [*pool.LOG.handlers, Verifies()])
        killed, other = verifier._pool._alive
        os.kill(killed.process.pid, signal.SIGKILL)
        while not said:
            verify_new(verifier)
        assert said == [(SHORT, Verdict.CORRECT)]
        assert verifier._pool._alive == {other}


def test_what_a_worker_lacks_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mpmath.py").write_text("raise ModuleNotFoundError(\"No module named 'mpmath'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Verifier(workers=1) as verifier, pytest.raises(UserError, match="No module named 'mpmath'; install gtpo"):
        verifier.verify("x+x", "2x")
    (tmp_path / "mpmath.py").rename(tmp_path / "latex2sympy2_extended.py")
    with Verifier(workers=1) as verifier:
        assert verifier.verify("x+x", "2x") is Verdict.CORRECT  # needs no SymPy
        with pytest.raises(UserError, match="No module named 'mpmath'"):
            verifier.math_verify_many([("$x+x$", "2x")])


def test_a_worker_killed_while_it_starts_is_replaced_once(monkeypatch) -> None:
    started: list[pool._Worker] = []
    initialise = pool._Worker.__init__
    doomed = 1

    def start(self: pool._Worker, *arguments: Any) -> None:
        initialise(self, *arguments)
        started.append(self)
        if len(started) <= doomed:
            self.process.kill()

    monkeypatch.setattr(pool._Worker, "__init__", start)
    with Verifier(workers=1) as verifier:
        assert verifier.verify("x+x", "2x") is Verdict.CORRECT
    assert len(started) == 2
    started.clear()
    doomed = 9
    with Verifier(workers=1) as verifier, pytest.raises(RuntimeError, match="it ended with signal 9"):
        verifier.verify("x+x", "2x")
    assert len(started) == 2


def test_threads_share_the_workers_and_alarms_stay(verifier: Verifier) -> None:
    rang: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 600)
    pairs = [[(f"x+{index}+{i}", f"{i}+{index}+x") for i in range(20)] for index in range(6)]
    try:
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(verifier.verify_many, pairs))
        remaining, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert 0 < remaining <= 600
    assert not rang
    assert found == [[Verdict.CORRECT] * 20] * 6


def test_equal_pairs_cost_one_verification() -> None:
    with Verifier(workers=1) as verifier:
        asked: list[int] = []
        run = verifier._pool.run
        verifier._pool.run = lambda tasks: asked.append(len(tasks)) or run(tasks)  # type: ignore[method-assign]
        pairs = [("x+x", "2x"), ("12", "13"), ("y", "2x")] * 64
        verifier.verify_many(pairs)
        verifier.verify_many(pairs)
        assert sum(asked) == 2  # plain numbers never leave the process


def test_verdicts_of_the_caller() -> None:
    with Verifier(workers=1) as verifier:
        assert verifier.verify("", "5") is Verdict.NO_ANSWER
        assert verifier.verify(None, "5") is Verdict.NO_ANSWER
        assert verifier.verify("120", "12") is Verdict.INCORRECT
        assert verifier.verify("1,000", "1000") is Verdict.CORRECT
        for gold in ("", " ", None, "9" * 5000):
            assert verifier.verify("5", gold) is Verdict.UNUSABLE_GOLD  # type: ignore[arg-type]
        assert verifier.verify_many([("5", ""), ("6", "6")]) == [Verdict.UNUSABLE_GOLD, Verdict.CORRECT]
        assert not verifier._pool._alive  # none of these needed a worker
    with pytest.raises(RuntimeError, match="closed"):
        verifier.verify("x+x", "2x")


FORMS_OF_A_NUMBER = r"{} {}.0 0{} +{} \frac{{{}}}{{1}} \text{{{}}} ({},7) x+{} {}+x {}\% 1,00{} 100{}"
FORMS = st.sampled_from([*FORMS_OF_A_NUMBER.split(), "{}" + "9" * 300])  # the last is beyond the limits
SAMPLES = st.lists(st.none() | st.just("") | st.builds(str.format, FORMS, st.integers(0, 3)), max_size=12)


@given(questions=st.lists(SAMPLES, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_classes_are_those_of_comparing_one_by_one(verifier: Verifier, questions: list[list[str | None]]) -> None:
    """Many questions at once, with whole numbers told apart by value, against the definition of the classes."""
    for answers, found in zip(questions, verifier.answer_classes_many([(q, "3") for q in questions]), strict=True):
        members: list[str] = []  # the first answer of each class
        labels: list[int | None] = []

        def same(first: str, second: str) -> bool:
            right = [verifier.verify(each, "3") is Verdict.CORRECT for each in (first, second)]
            equal = Verdict.CORRECT in (verifier.verify(first, second), verifier.verify(second, first))
            return first == second or all(right) or (equal and not any(right))

        for answer in answers:
            if not answer:
                labels.append(None)
                continue
            labels.append(next((at for at, first in enumerate(members) if same(first, answer)), len(members)))
            members += [answer] * (labels[-1] == len(members))
        assert found == labels


def test_self_test_names_what_to_leave_out(verifier: Verifier) -> None:
    golds = [("a", "12"), ("b", ""), ("c", r"\frac{1}{2}"), ("d", "1" * 300)]
    failures = find_unverifiable(golds, verifier)
    assert [failure.id for failure in failures] == ["b", "d"]
    assert "empty" in failures[0].reason
    assert "digits" in failures[1].reason


def test_static_limits_name_themselves() -> None:
    assert reject_reason("1" * 200) is None
    for text, words in {
        "1" * 201: "digits", "(" * 41: "nested", "x" * 3001: "characters", "+" * 801: "tokens",
        "2^{10000000}": "exponent", "a\u2066b": "bidirectional",
    }.items():  # fmt: skip
        assert words in (reject_reason(text) or "")


SCRIPT = """
import os, sys
from gtpo.rewards import Verifier
verifier = Verifier(workers=1)
print(verifier.verify("x+x", "2x"), flush=True)
import psutil
print(psutil.Process().children()[0].pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_workers_go_when_the_program_ends(end: str) -> None:
    done = python("-c", SCRIPT, end, code=0 if end == "finished" else -9, timeout=240)
    verdict, pid = done.stdout.split()
    assert verdict == "CORRECT"
    while psutil.pid_exists(int(pid)):
        time.sleep(0.05)


def test_forks_beside_a_verifying_thread_neither_hang_nor_fail(verifier: Verifier) -> None:
    """TRL's dataloader workers and servers fork while other threads hold the verifier's locks."""
    stop = threading.Event()

    def work() -> None:
        count = 0
        while not stop.is_set():
            verifier.verify_many([(f"x+{count}+{i}", f"{i}+{count}+x") for i in range(50)])
            verifier.verify_many([(str(count + i), str(i)) for i in range(2000)])  # the lock, much of the time
            count += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for index in range(4):
            child = os.fork()
            if child == 0:
                signal.alarm(240)
                right = verifier.verify(f"w+{index}", f"{index}+w") is Verdict.CORRECT
                right = right and accuracy_reward(["<answer>5</answer>"], ["5"]) == [10.0]
                os._exit(0 if right else 1)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
    finally:
        stop.set()
        thread.join()


def test_verdicts_do_not_depend_on_the_number_of_workers() -> None:
    """Near the bounds too, where a clock would decide one way or the other."""
    costly = [rf"\sum_{{k=1}}^{{{n}}} k^k + \frac{{d}}{{dx}} x" for n in (400, 10**12)]
    costly += [rf"\sum_{{i=1}}^{{{n}}} \sum_{{j=1}}^{{{n}}} i^j" for n in (180, 220)]
    pairs = [(text, "5") for text in costly]
    found = []
    for workers in (1, 3):
        with Verifier(workers=workers, timeout_s=120) as verifier:
            found.append(verifier.verify_many(pairs))
    assert found[0] == found[1]
    assert Verdict.REJECTED in found[0]
    assert Verdict.TIMEOUT not in found[0]


ELSEWHERE = """
import os, pathlib, sys
pathlib.WindowsPath = pathlib.PosixPath  # the files are on this system, under whatever name
import gtpo.common.provenance  # with the standard library's modules that ask which system this is
{missing}
from gtpo.common.errors import UserError
from gtpo.rewards import Verdict, Verifier, accuracy_reward, math_verify_reward
print(accuracy_reward(["<answer>5</answer>"], ["5"]))
try:
    print(Verifier(workers=1).verify("x+x", "2x"))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "printed"),
    [
        ("del os.sched_getaffinity", "CORRECT"),  # macOS
        ("del os.sched_getaffinity, os.register_at_fork\nsys.modules['resource'] = None\nos.name = 'nt'", "WSL"),
    ],
)
def test_where_it_does_not_run_it_says_so(root: Path, tmp_path: Path, missing: str, printed: str) -> None:
    # As installed: the finder of an editable install asks which system this is.
    copy_packages(root, tmp_path)
    done = python("-c", ELSEWHERE.format(missing=missing), cwd=tmp_path, timeout=120)
    assert done.stdout.startswith("[10.0]"), done.stderr
    assert printed in done.stdout


def test_math_verify_has_the_same_verdicts(verifier: Verifier) -> None:
    pairs = [(r"so $x = \frac{1}{2}$.", "0.5"), ("$3$", "4"), ("I do not know.", "4"), ("$4$", ""), ("", "4")]
    expected = [Verdict.CORRECT, Verdict.INCORRECT, Verdict.NO_ANSWER, Verdict.UNUSABLE_GOLD, Verdict.NO_ANSWER]
    assert verifier.math_verify_many(pairs) == expected
    assert math_verify_reward(["<answer>1/2</answer>", "3"], [0.5, None]) == [10.0, None]
