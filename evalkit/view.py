"""`gtpo view`: one page that follows runs, and the server of its data, for the browser of the person who started it.

Run folders are read again and again while they grow; nothing is written. A folder may hold anything between nothing yet
and a finished run. What cannot be read is an `error` of that run, in words; the others go on.

The server listens on 127.0.0.1 only. Every address begins with a random token, and the Host header must be the local
one, so that neither another user nor a page in the browser can read the runs. GET only.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import webbrowser
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from aiohttp import web

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.evalkit.comparison.training_curves import LN2, METRICS, Metric
from gtpo.evalkit.report.excerpts import choose_groups, shortened
from gtpo.evalkit.report.page import SHARED, render, segments
from gtpo.evalkit.report.payload import training_payload
from gtpo.runs.eval_record import SCORINGS, BenchmarkRecord, EvalRecord, read_record
from gtpo.runs.eval_run import EvalRun
from gtpo.runs.find import RESULTS, evals_of, resolve, subfolders
from gtpo.runs.questions import AGAIN, load_problems
from gtpo.runs.tables import Sample, read_rows
from gtpo.runs.train_run import TrainFolder

# Samples that the page gets at a time.
PAGE = 50
# Characters of a completion or question that the page gets.
LONGEST = 60_000
# Text of the last rollout that the page gets.
ROLLOUT_BYTES = 600_000
_REST = tuple(metric for metric in METRICS if metric.key not in ("conflict/forward", "conflict/backward"))
# The curves of the page, after those of the reward functions.
SHOWN = (
    *_REST[:2],
    Metric("validation/pass@1", "Accuracy on held-out problems", "share", 0.0, 1.0),
    *_REST[2:],
    Metric("kl/untrained", "KL to the untrained model", "nats", 0.0),
    Metric("time/step", "Time of a step", "seconds", 0.0),
)
_RIGHT_LAST = ("INCORRECT", "UNSIMPLIFIED", "NO_ANSWER", "REJECTED", "TIMEOUT", "UNUSABLE_GOLD", "UNSCORED", "CORRECT")
_PLACE = {verdict: place for place, verdict in enumerate(_RIGHT_LAST)}
# Names under which the page is opened; another one is a page elsewhere that has its name point here.
HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


# What a request asks for.
Query = Mapping[str, str]


def find_folders(names: list[str]) -> list[Path]:
    """Return the folders of the runs of these names or paths, and of the eval runs made of them. Raises UserError."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        # The folder of a run that has only begun holds little more than its lock.
        begun = is_eval(path) or any((path / part).exists() for part in ("config.yaml", "run.json", ".lock"))
        folder = path if begun else resolve(name)
        found += [folder, *(entry for entry, _ in evals_of(folder))]
    return list({folder.resolve(): folder for folder in found}.values())


def every_folder() -> list[Path]:
    """Return the folders of all runs under results/, by name."""
    return [*subfolders(RESULTS / "train"), *subfolders(RESULTS / "eval")]


def is_eval(folder: Path) -> bool:
    """Return whether a folder is that of an eval run."""
    return (folder / "eval.json").is_file() or (folder / "samples").is_dir()


def stamp(folder: Path) -> str:
    """Return what changes whenever a run has something new to show."""
    # The time of a folder changes with its files.
    names = ("run.json", "metrics.jsonl", "trainer_state.json", "eval.json", "checkpoints", "completions", "samples")
    stats = [(path.stat().st_mtime_ns, path.stat().st_size) for path in (folder / n for n in names) if path.exists()]
    return f"{folder.stat().st_mtime_ns} {stats}"


def summary(folder: Path) -> dict[str, Any]:
    """Return what the page shows of a run before anything is asked for. Raises UserError, OSError."""
    return _evaluation(folder) if is_eval(folder) else _training(folder)


def _training(folder: Path) -> dict[str, Any]:
    run = TrainFolder(folder)
    rows, about = run.metrics(), run.document
    rewards = {key for row in rows.values() for key in row if key.startswith("rewards/") and key.endswith("/mean")}
    lost = {step: ", ".join(row["nonfinite"]) for step, row in rows.items() if row.get("nonfinite")}
    file = run.metrics_file()
    return {
        "method": run.preset,
        "status": run.status if about else "starting",
        "step": max(rows, default=about.get("step")),
        "steps": about.get("steps"),
        "stopped": str(about.get("stopped_because") or ""),
        "seconds": about.get("wall_time_s"),
        "written": file.stat().st_mtime if file and rows else None,
        "warnings": [f"values that were not finite at {len(lost)} steps, the last at step {max(lost):g} "
                     f"({lost[max(lost)]})"] if lost else [],
        "rollouts": [path.stem for path in run.completions_files()],
        **training_payload([run], [*(Metric(key, "", "") for key in sorted(rewards)), *SHOWN]),
    }  # fmt: skip


def rollout(folder: Path, log: str) -> list[dict[str, Any]]:
    """Return the groups of a logged rollout (else of the last one), the most telling first."""
    files = TrainFolder(folder).completions_files()
    return choose_groups([path for path in files if path.stem == log] or files[-1:], ROLLOUT_BYTES)


def _record(folder: Path) -> EvalRecord:
    return read_record(folder) if (folder / "eval.json").is_file() else EvalRecord()


def _evaluation(folder: Path) -> dict[str, Any]:
    record, stored = _record(folder), _stored(folder, stamp(folder))
    samples = Counter(sample.benchmark for _, _, sample in stored)
    questions = Counter(name for name, _ in {sample.key[:2] for _, _, sample in stored})
    benchmarks = []
    for name in dict.fromkeys([*record.benchmarks, *samples]):
        entry = record.benchmarks.get(name, BenchmarkRecord())
        rate, most = entry.pass_at_k.get(1), max(entry.maj_at_k, default=1)
        benchmarks.append({
            "name": name,
            "questions": questions[name],
            "samples": samples[name],
            "asked": entry.questions * (entry.n_asked or entry.n or 0),
            "pass1": [rate.mean, rate.low, rate.high] if rate else None,
            "maj": [most, entry.maj_at_k[most].mean] if most > 1 else None,
            "format": entry.format_rate,
            "truncated": entry.truncation_rate,
            "tokens": entry.mean_tokens,
        })  # fmt: skip
    return {"status": record.status, "scoring": record.scoring, "benchmarks": benchmarks}


@lru_cache(maxsize=4)
def _stored(folder: Path, stamp: str) -> list[tuple[Path, int, Sample]]:
    """Return (file, row, sample without its completion) of every sample; stamp: makes a changed folder another one."""
    names = ["benchmark", "question_id", "sample_index", "format_ok", "tokens", "finish_reason", "error"]
    names += [f"{what}_{scoring}" for what in ("verdict", "answer") for scoring in SCORINGS]
    files = sorted((folder / "samples").glob("part-*.parquet"))
    parts = ((path, read_rows(path, names, remedy=AGAIN)) for path in files)
    return [(path, place, Sample(**row)) for path, rows in parts for place, row in enumerate(rows)]


def samples(folder: Path, benchmark: str, verdict: str, find: str, page: int) -> dict[str, Any]:
    """Return one page of the samples of a benchmark, wrong answers first, and how many there are of each verdict.

    verdict: a verdict, format (a wrong one), truncated, or any. find: part of a question's id or text; a whole id is
    that question only.
    """
    record = _record(folder)
    problems = load_problems(EvalRun("", folder, record), benchmark)
    rows = [row for row in _stored(folder, stamp(folder)) if row[2].benchmark == benchmark]
    ids, word = {sample.question_id for _, _, sample in rows}, find.strip()
    if word not in ids:  # part of an id or a text
        ids = {i for i in ids if word.casefold() in f"{i}\n{problems.get(i, ('',))[0]}".casefold()}
    else:
        ids = {word}
    rows = [row for row in rows if row[2].question_id in ids]

    def judged(sample: Sample) -> str:
        return str(getattr(sample, f"verdict_{record.scoring}") or "UNSCORED")

    def kinds(sample: Sample) -> list[str]:
        found = ["any", judged(sample)] + ["format"] * (not sample.format_ok)
        return found + ["truncated"] * (sample.finish_reason == "length")

    shown = [row for row in rows if verdict in kinds(row[2])]
    # The first sample of each question before a second of any.
    shown.sort(key=lambda row: (_PLACE.get(judged(row[2]), 0), row[2].sample_index))
    page = max(0, min(page, -(-len(shown) // PAGE) - 1))
    found = []
    for path, place, sample in shown[page * PAGE : (page + 1) * PAGE]:
        text, cut = shortened(_completions(path, path.stat().st_mtime_ns)[place] or "", LONGEST)
        problem, gold = problems.get(sample.question_id, ("", ""))
        found.append({
            "question": sample.question_id, "problem": [segments(shortened(problem, LONGEST)[0]), gold],
            "index": sample.sample_index, "verdict": judged(sample), "format": bool(sample.format_ok),
            "answer": getattr(sample, f"answer_{record.scoring}"), "tokens": sample.tokens,
            "finish": sample.finish_reason, "error": sample.error, "text": text, "cut": cut,
        })  # fmt: skip
    counts = Counter(kind for *_, sample in rows for kind in kinds(sample))
    return {"total": len(shown), "counts": {"any": 0} | counts, "page": page, "each": PAGE, "samples": found}


@lru_cache(maxsize=PAGE)
def _completions(path: Path, changed: int) -> list[str]:
    return [row["completion"] for row in read_rows(path, ["completion"], remedy=AGAIN)]


class Runs:
    """The runs of a page: those that were named, else all under results/, new ones included."""

    def __init__(self, folders: list[Path] | None) -> None:
        self._named = folders
        self._known: dict[str, tuple[str, int]] = {}
        """Folder -> its stamp, and the version of the page's state in which it came."""

    def _folders(self) -> dict[str, Path]:
        return {str(folder): folder for folder in self._named or every_folder() if folder.is_dir()}

    def state(self, query: Query) -> dict[str, Any]:
        """Return every run, in full if it has changed after the version that the page knows (`since`)."""
        since = _whole(query, "since")
        found: dict[str, Any] = {}
        for key, folder in self._folders().items():
            now = stamp(folder)
            if self._known.get(key, ("", 0))[0] != now:
                self._known[key] = now, 1 + max((version for _, version in self._known.values()), default=0)
            version = self._known[key][1]
            found[key] = {}
            if version > since:
                about = {"name": folder.resolve().name, "kind": "eval" if is_eval(folder) else "train"}
                found[key] = about | {"version": version} | _told(partial(summary, folder))
        return {"version": max((version for _, version in self._known.values()), default=0), "runs": found}

    def rollout(self, query: Query) -> dict[str, Any]:
        """Return the groups of a train run's logged rollout; of the last one if `log` names none."""
        folder = self._folders().get(query.get("run", ""))
        return _told(lambda: {"groups": rollout(folder, query.get("log", "")) if folder else []})

    def samples(self, query: Query) -> dict[str, Any]:
        """Return one page of an eval run's samples: of a `benchmark` and `verdict`, with what is to `find` in them."""
        folder = self._folders().get(query.get("run", ""))
        if folder is None:
            return {"error": "no such run"}
        benchmark, verdict, find = query.get("benchmark", ""), query.get("verdict", "any"), query.get("find", "")
        return _told(lambda: samples(folder, benchmark, verdict, find, _whole(query, "page")))


def _told(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return act()
    except (UserError, OSError) as error:  # a folder that is being removed or rewritten
        return {"error": str(error)}


def _whole(query: Query, name: str) -> int:
    return int(text) if (text := query.get(name, "")).isdecimal() else 0


def application(runs: Runs, token: str) -> web.Application:
    """Return the app: the page under /TOKEN/, its data under /TOKEN/state, /rollout and /samples."""
    turn = asyncio.Lock()

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path == "/favicon.ico":  # every browser asks for it, without the token
            return web.Response(status=204)
        first = request.path.split("/")[1]
        if request.url.host not in HOSTS or not hmac.compare_digest(
            first.encode("utf-8", "surrogateescape"), token.encode()
        ):
            return web.Response(status=403, text="Open the address that gtpo view printed.\n", headers=HEADERS)
        response: web.StreamResponse = await handler(request)
        response.headers.update(HEADERS)
        return response

    def data(act: Callable[[Query], dict[str, Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            async with turn:  # one reader at a time; the server stays able to answer
                return web.json_response(await asyncio.to_thread(act, request.query))

        return answer

    async def page(request: web.Request) -> web.Response:
        core = {"methods": [], "training": [], "benchmarks": [], "groups": [], "baseline": None,
                "curve_metrics": [list(metric) for metric in SHOWN], "ln2": LN2}  # fmt: skip
        text = render(core, {}, name="view", scripts=(*SHARED, "view.js"), connect="'self'")
        return web.Response(text=text, content_type="text/html")

    app = web.Application(middlewares=[guarded])
    app.router.add_get(f"/{token}/", page)
    for act in (runs.state, runs.rollout, runs.samples):
        app.router.add_get(f"/{token}/{act.__name__}", data(act))
    return app


def run_view(names: list[str], *, port: int, open_browser: bool) -> None:
    """Serve the page until Ctrl-C. UserError on a run that is not there and on a port that is taken."""
    runs = Runs(find_folders(names) if names else None)
    listener = socket.socket()
    # So that the same --port works again right after Ctrl-C.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        # A browser that opens the printed address early has to wait; it is not refused.
        listener.listen()
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; leave --port out for a free one") from None
    number = listener.getsockname()[1]
    token = secrets.token_urlsafe(16)
    address = f"http://127.0.0.1:{number}/{token}/"
    print(address, flush=True)
    LOG.info(f"Ctrl-C stops it. From another machine: ssh -L {number}:127.0.0.1:{number} HOST, then the same address")
    if open_browser:
        webbrowser.open(address)
    app = application(runs, token)
    web.run_app(app, sock=listener, print=None, access_log=None, handle_signals=True)
