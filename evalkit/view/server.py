"""The server behind `gtpo view`: one page and its data, for the browser of the person who started it.

It listens on 127.0.0.1 only. Every address begins with a random token, and the Host header must be the local one, so
that neither another user nor a page in the browser can read the runs. GET only; nothing is written.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import webbrowser
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from gtpo.common.errors import UserError
from gtpo.common.log import LOG
from gtpo.evalkit.comparison.training_curves import LN2
from gtpo.evalkit.report.page import SHARED, render
from gtpo.evalkit.view.runs import SHOWN, Evaluation, Training, every_folder, find_folders, is_eval, stamp

HOSTS = ("127.0.0.1", "localhost")
"""Names under which the page is opened; another one is a page elsewhere that has its name point here."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


Query = Mapping[str, str]
"""What a request asks for."""


class Runs:
    """The runs of a page: those that were named, else all under results/, new ones included."""

    def __init__(self, folders: list[Path] | None) -> None:
        self._named = folders
        self._held: dict[Path, Training | Evaluation] = {}
        self._stamps: dict[str, tuple[str, int]] = {}
        self._version = 0

    def _all(self) -> dict[str, Training | Evaluation]:
        for folder in every_folder() if self._named is None else self._named:
            if folder not in self._held or isinstance(self._held[folder], Evaluation) != is_eval(folder):
                self._held[folder] = Evaluation(folder) if is_eval(folder) else Training(folder)
        return {str(folder): run for folder, run in self._held.items() if folder.is_dir()}

    def state(self, query: Query) -> dict[str, Any]:
        """Return every run, in full if it has changed after the version that the page knows (`since`)."""
        since = _whole(query, "since")
        found: dict[str, Any] = {}
        for key, run in self._all().items():
            now = stamp(run.folder)
            if key not in self._stamps or self._stamps[key][0] != now:
                self._version += 1
                self._stamps[key] = now, self._version
            version = self._stamps[key][1]
            found[key] = {}
            if version > since:
                kind = "eval" if isinstance(run, Evaluation) else "train"
                found[key] = {"name": run.folder.resolve().name, "kind": kind, "version": version}
                found[key] |= _told(run.summary)
        return {"version": self._version, "runs": found}

    def rollout(self, query: Query) -> dict[str, Any]:
        """Return the groups of a train run's logged rollout; of the last one if `log` names none."""
        run = self._all().get(query.get("run", ""))
        return _told(lambda: {"groups": run.rollout(query.get("log", "")) if isinstance(run, Training) else []})

    def samples(self, query: Query) -> dict[str, Any]:
        """Return one page of an eval run's samples: of a `benchmark` and `verdict`, with what is to `find` in them."""
        run = self._all().get(query.get("run", ""))
        if not isinstance(run, Evaluation):
            return {"error": "no such run"}
        benchmark, verdict, find = query.get("benchmark", ""), query.get("verdict", "any"), query.get("find", "")
        return _told(lambda: run.samples(benchmark, verdict, find, _whole(query, "page")))


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
