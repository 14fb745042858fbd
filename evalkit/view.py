"""`gtpo view`: one page that follows runs, and the server of its data, for the browser of the person who started it.

Run folders are read again and again while they grow; nothing is written. A folder may hold anything between nothing yet
and a finished run. What cannot be read is an `error` of that run, in words; the others go on.

The server listens on 127.0.0.1 only. Every address begins with a random token, and the Host header must be the local
one, so that neither another user nor a page in the browser can read the runs. GET only.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import webbrowser
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from aiohttp import web

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.evalkit.comparison.methods import members_of
from gtpo.evalkit.comparison.training_curves import CURVES, LN2
from gtpo.evalkit.report.page import SHARED, choose_groups, render, segments, shorten, training_payload
from gtpo.rewards.data.problem import Problem
from gtpo.runs.eval_folder import Sample, read_problems, read_table, sample_parts
from gtpo.runs.eval_record import SCORINGS, BenchmarkRecord, EvalRecord, read_record
from gtpo.runs.find import evals_of, every_folder, is_eval, resolve
from gtpo.runs.train_run import TrainFolder

# Samples that the page gets at a time.
PAGE = 50
# Characters of a completion or question that the page gets.
LONGEST = 60_000
# Text of the last rollout that the page gets.
ROLLOUT_BYTES = 600_000
_RIGHT_LAST = ("INCORRECT", "UNSIMPLIFIED", "NO_ANSWER", "REJECTED", "TIMEOUT", "UNUSABLE_GOLD", "UNSCORED", "CORRECT")
# Names under which the page is opened; another one is a page elsewhere that has its name point here.
HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


def stamp(folder: Path) -> str:
    """Return what changes whenever a run has something new to show."""
    # The time of a folder changes with its files.
    names = ("run.json", "metrics.jsonl", "eval.json", "checkpoints", "completions", "samples")
    stats = [(path.stat().st_mtime_ns, path.stat().st_size) for path in (folder / n for n in names) if path.exists()]
    return f"{folder.stat().st_mtime_ns} {stats}"


def training(folder: Path) -> dict[str, Any]:
    """Return what the page shows of a train run before anything is asked for. Raises UserError, OSError."""
    run = TrainFolder(folder)
    rows, about = run.metrics(), run.run()
    rewards = {key for row in rows.values() for key in row if key.startswith("rewards/") and key.endswith("/mean")}
    lost = {step: ", ".join(row["nonfinite"]) for step, row in rows.items() if row.get("nonfinite")}
    settings = members_of([], [run])[0].settings
    return {
        "method": run.preset, "status": run.status if about else "starting",
        # Equal for the seeds of one method, which share a colour.
        "recipe": json.dumps(settings, sort_keys=True, default=str) if settings else None,
        "step": max(rows, default=about.get("step")), "steps": about.get("steps"),
        "stopped": str(about.get("stopped_because") or ""), "seconds": about.get("wall_time_s"),
        "written": run.metrics_jsonl.stat().st_mtime if rows else None,
        "warnings": [f"values that were not finite at {len(lost)} steps, the last at step {max(lost):g} "
                     f"({lost[max(lost)]})"] if lost else [],
        "rollouts": [path.stem for path in run.completions_files()],
        **training_payload([run], sorted(rewards)),
    }  # fmt: skip


def rollout(folder: Path, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the groups of a train run's logged rollout, the most telling first; without a `log` of the last."""
    files = TrainFolder(folder).completions_files()
    asked = [path for path in files if path.stem == query.get("log")]
    return {"groups": choose_groups(asked or files[-1:], ROLLOUT_BYTES)}


def evaluation(folder: Path) -> dict[str, Any]:
    """Return what the page shows of an eval run before anything is asked for. Raises UserError, OSError."""
    record, stored = _record(folder), [sample for _, _, sample in _stored(folder, stamp(folder))]
    samples = Counter(sample.benchmark for sample in stored)
    questions = Counter(name for name, _ in {sample.key[:2] for sample in stored})
    benchmarks = []
    for name in dict.fromkeys([*record.benchmarks, *samples]):
        entry = record.benchmarks.get(name, BenchmarkRecord())
        rate, most = entry.pass_at_k.get(1), max(entry.maj_at_k, default=1)
        benchmarks.append({
            "name": name, "questions": questions[name], "samples": samples[name],
            "asked": entry.questions * (entry.n_asked or entry.n or 0),
            "pass1": [rate.mean, rate.low, rate.high] if rate else None,
            "maj": [most, entry.maj_at_k[most].mean] if most > 1 else None,
            "format": entry.format_rate, "truncated": entry.truncation_rate, "tokens": entry.mean_tokens,
        })  # fmt: skip
    return {"status": record.status, "scoring": record.scoring, "benchmarks": benchmarks}


def samples(folder: Path, query: Mapping[str, str]) -> dict[str, Any]:
    """Return one page of an eval run's samples, wrong answers first, and how many there are of each verdict.

    The query has the `benchmark`, the `page`, a `verdict` (also format: a wrong one; truncated; any) and what to
    `find`: part of a question's id or text; a whole id is that question only.
    """
    record, benchmark, word = _record(folder), query.get("benchmark", ""), query.get("find", "").strip()
    problems = read_problems(folder, everything=True).get(benchmark, {})
    unknown = Problem("", "", "")
    rows = [row for row in _stored(folder, stamp(folder)) if row[2].benchmark == benchmark]
    ids = {sample.question_id for _, _, sample in rows}
    texts = {i: f"{i}\n{problems.get(i, unknown).problem}".casefold() for i in ids}
    ids = {word} if word in ids else {i for i in ids if word.casefold() in texts[i]}
    found: list[tuple[str, Path, int, Sample]] = []
    counts = Counter({"any": 0})
    for path, place, sample in (row for row in rows if row[2].question_id in ids):
        judged = sample.verdict(record.scoring) or "UNSCORED"
        kinds = ["any", judged] + ["format"] * (not sample.format_ok) + ["truncated"] * bool(sample.cut_off)
        counts.update(kinds)
        found += [(judged, path, place, sample)] * (query.get("verdict", "any") in kinds)
    # The first sample of each question before a second of any.
    order = {verdict: place for place, verdict in enumerate(_RIGHT_LAST)}
    found.sort(key=lambda row: (order.get(row[0], 0), row[3].sample_index))
    page = max(0, min(_whole(query, "page"), -(-len(found) // PAGE) - 1))
    shown = []
    for judged, path, place, sample in found[page * PAGE : (page + 1) * PAGE]:
        text, cut = shorten(_completions(path, path.stat().st_mtime_ns)[place] or "", LONGEST)
        problem = problems.get(sample.question_id, unknown)
        shown.append({
            "question": sample.question_id,
            "problem": [segments(shorten(problem.problem, LONGEST)[0]), problem.answer],
            "index": sample.sample_index, "verdict": judged, "format": bool(sample.format_ok),
            "answer": sample.answer(record.scoring), "tokens": sample.tokens,
            "finish": sample.finish_reason, "error": sample.error, "text": text, "cut": cut,
        })  # fmt: skip
    return {"total": len(found), "counts": counts, "page": page, "each": PAGE, "samples": shown}


def _record(folder: Path) -> EvalRecord:
    return read_record(folder) if (folder / "eval.json").is_file() else EvalRecord()


@lru_cache(maxsize=4)
def _stored(folder: Path, stamp: str) -> list[tuple[Path, int, Sample]]:
    """Return (file, row, sample without its completion) of every sample; stamp: makes a changed folder another one."""
    names = ["benchmark", "question_id", "sample_index", "format_ok", "tokens", "finish_reason", "error"]
    names += [f"{what}_{scoring}" for what in ("verdict", "answer") for scoring in SCORINGS]
    parts = ((path, read_table(path, names).to_pylist()) for path in sample_parts(folder))
    return [(path, place, Sample(**row)) for path, rows in parts for place, row in enumerate(rows)]


@lru_cache(maxsize=PAGE)
def _completions(path: Path, changed: int) -> list[str]:
    found: list[str] = read_table(path, ["completion"])["completion"].to_pylist()
    return found


class Runs:
    """The runs of a page: those that were named, and the eval runs made of them, else all under results/, new ones too.

    Raises UserError on a name that is none.
    """

    def __init__(self, names: list[str]) -> None:
        named = [place for folder in map(resolve, names) for place in (folder, *evals_of(folder))]
        self._named = list({folder.resolve(): folder for folder in named}.values())
        # Folder -> its stamp, and the version of the page's state in which it came.
        self._known: dict[str, tuple[str, int]] = {}
        self._latest = 0

    def folders(self) -> dict[str, Path]:
        """Return the runs' folders by the keys under which the page knows them."""
        return {str(folder): folder for folder in self._named or every_folder() if folder.is_dir()}

    def state(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return every run, in full if it has changed after the version that the page knows (`since`)."""
        found: dict[str, Any] = {}
        for key, folder in self.folders().items():
            now, (before, version), found[key] = stamp(folder), self._known.get(key, ("", 0)), {}
            if now != before:
                version = self._latest = self._latest + 1
                self._known[key] = now, version
            if version > _whole(query, "since"):
                kind, of_kind = ("eval", evaluation) if is_eval(folder) else ("train", training)
                about = {"name": folder.resolve().name, "kind": kind, "version": version}
                found[key] = about | _readable(of_kind, folder)
        return {"version": self._latest, "runs": found}


def _readable(act: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    try:
        return act(*arguments)
    except (UserError, OSError) as error:  # a folder that is being removed or rewritten
        return {"error": str(error)}


def _whole(query: Mapping[str, str], name: str) -> int:
    return int(text) if (text := query.get(name, "")).isdecimal() else 0


def application(runs: Runs, token: str) -> web.Application:
    """Return the app: the page under /TOKEN/, its data under /TOKEN/state, /rollout and /samples."""
    turn = asyncio.Lock()

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
        # Every browser asks for it, without the token.
        if request.path == "/favicon.ico":
            return web.Response(status=204)
        first = request.path.split("/")[1].encode("utf-8", "surrogateescape")
        if request.url.host not in HOSTS or not hmac.compare_digest(first, token.encode()):
            return web.Response(status=403, text="Open the address that gtpo view printed.\n", headers=HEADERS)
        response: web.StreamResponse = await handler(request)
        response.headers.update(HEADERS)
        return response

    def data(name: str, query: Mapping[str, str]) -> dict[str, Any]:
        if name == "state":
            return runs.state(query)
        folder = runs.folders().get(query.get("run", ""))
        act = rollout if name == "rollout" else samples
        return {"error": "no such run"} if folder is None else _readable(act, folder, query)

    async def answer(request: web.Request) -> web.Response:
        # One reader at a time; the server stays able to answer.
        async with turn:
            return web.json_response(await asyncio.to_thread(data, request.match_info["name"], request.query))

    async def page(request: web.Request) -> web.Response:
        core = {"methods": [], "training": [], "benchmarks": [], "groups": [], "baselines": [], "baseline": None,
                "curve_metrics": [list(metric) for metric in CURVES], "ln2": LN2}  # fmt: skip
        text = render(core, {}, name="view", scripts=(*SHARED, "view.js"), connect="'self'")
        return web.Response(text=text, content_type="text/html")

    app = web.Application(middlewares=[guarded])
    app.router.add_get(f"/{token}/", page)
    app.router.add_get(f"/{token}/{{name:state|rollout|samples}}", answer)
    return app


def run_view(names: list[str], *, port: int, open_browser: bool) -> None:
    """Serve the page until Ctrl-C. UserError on a run that is not there and on a port that is taken."""
    runs = Runs(names)
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
