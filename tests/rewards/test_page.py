"""The page to try the judge: it judges, shows text as text, and opens only at the printed address."""

from __future__ import annotations

import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from gtpo.rewards import Verifier
from gtpo.rewards.__main__ import serve


@pytest.fixture
def address(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    with Verifier(workers=1) as verifier:
        server = serve(verifier)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield capsys.readouterr().out.split()[0]
        server.shutdown()
        server.server_close()


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


def test_another_address_shows_nothing(address: str) -> None:
    for typed in ({}, {"gold": "1", "answer": "1"}):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked(address.rstrip("/") + "x/", **typed)
