"""A page to try the judge: `python -m gtpo.rewards --page` serves it on this machine until Ctrl-C."""

from __future__ import annotations

import html
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from gtpo.rewards import Verifier, extract_answer

FIELDS = (("problem", "Problem (may be empty)"), ("gold", "Gold"), ("answer", "Answer, or a whole completion"))
LARGEST = 200_000
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gtpo judge</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; form-action 'self'">
<style>body {{ font: 16px system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }}
textarea {{ width: 100%; box-sizing: border-box; font: inherit }} code {{ overflow-wrap: anywhere }}</style>
<h1>gtpo judge</h1><form method="post">{fields}<p><button>Judge</button></p></form>{result}</html>"""


def rendered(values: dict[str, str], result: str = "") -> bytes:
    """Return the page with what was typed; every text is shown as text."""
    fields = "".join(
        f'<p><label>{label}<br><textarea name="{name}" rows="3">{html.escape(values.get(name, ""))}</textarea></label>'
        for name, label in FIELDS
    )
    return PAGE.format(fields=fields, result=result).encode()


def judged(verifier: Verifier, values: dict[str, str]) -> str:
    """Return the verdict, how both answers were read and the rule that decided, as HTML."""
    text, problem = values.get("answer", ""), values.get("problem") or None
    found = extract_answer(text, "lenient") if len(text) > 200 or "\\boxed" in text or "<answer>" in text else text
    verdict, why = verifier.verify(found, values.get("gold", ""), problem=problem, explain=True)
    read = "" if found == text else f"<p>The answer in it: <code>{html.escape(str(found))}</code></p>"
    return f"<h2>{html.escape(str(verdict))}</h2>{read}<p><code>{html.escape(why)}</code></p>"


def serve(verifier: Verifier, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page on 127.0.0.1, whose address begins with a random token; the caller runs it."""
    path = f"/{secrets.token_urlsafe(16)}/"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(rendered({}))

        def do_POST(self) -> None:
            size = min(int(self.headers.get("Content-Length") or 0), LARGEST)
            typed = {name: words[0].strip() for name, words in parse_qs(self.rfile.read(size).decode()).items()}
            self._answer(rendered(typed, judged(verifier, typed)) if self.path == path else b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200 if self.path == path else 403)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body if self.path == path else b"Open the address that was printed.")

        def log_message(self, *args: object) -> None:
            """Print no line for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}{path}   Ctrl-C ends it", flush=True)
    return server
