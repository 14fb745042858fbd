"""`gtpo view`: a real server in a process of its own, over real run folders, in a real browser."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp.test_utils import TestServer
from run_folders import HOSTILE, write_eval, write_train
from test_compare import gtpo

from gtpo.evalkit.comparison.training_curves import Band, bands
from gtpo.evalkit.view import Runs, application

IN_A_PROCESS = ("evalkit/view.py",)

pytestmark = pytest.mark.chromium
SIZES = {"arithmetic": 40, "hard": 20}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("view")
    for i, name in enumerate(("gtpo", "grpo")):
        write_train(home / f"results/train/{name}", method=name, steps=120)
        write_eval(home / f"results/eval/{name}-1", name=name, skill=0.5 * i, seed=i, method=name, benchmarks=SIZES,
                   hostile=True, train_run=name)  # fmt: skip
    write_train(home / "results/train/<b>x<i>", method="gtpo", steps=12)
    return home


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """The address that the program prints, in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gtpo", "view"]
    process = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=str)
def page(request: pytest.FixtureRequest, driver: Any, address: str) -> Iterator[Callable[[str], Any]]:
    width, theme = request.param
    yield from opened(driver, address, width, theme)


def opened(driver: Any, address: str, width: int = 1280, theme: str = "light") -> Iterator[Callable[[str], Any]]:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    driver.get("about:blank")
    driver.get_log("browser")  # what an earlier page said after its server had ended
    driver.get(address)
    until(driver, "return document.documentElement.dataset.complete")
    yield driver.execute_script
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hostile === undefined")


@contextmanager
def served(home: Path, driver: Any, name: str) -> Iterator[Callable[[str], Any]]:
    """Open the page of a run that a thread of this process serves."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        server = TestServer(application(Runs([name]), "token"))
        asyncio.run_coroutine_threadsafe(server.start_server(), loop).result()
        yield from opened(driver, str(server.make_url("/token/")))
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)


def until(driver: Any, script: str) -> Any:
    """Wait for what a script returns once it is true."""
    while not (found := driver.execute_script(script)):
        time.sleep(0.05)
    return found


def get(address: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, bytes]:
    try:
        with urlopen(Request(address + path, headers=headers, method=method), timeout=240) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def digest(home: Path) -> str:
    files = sorted(path for path in home.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def test_sections_are_drawn_at_every_width_and_nothing_is_written(page: Any, home: Path) -> None:
    before = digest(home)
    rows = page("return [...document.querySelectorAll('#list tbody tr')].map((row) => row.textContent)")
    assert [re.match(r"(.+?)(?:gtpo|grpo)\d", row)[1] for row in rows[:3]] == ["<b>x<i>", "grpo", "gtpo"]
    assert len(rows) == 3 + 2 * len(SIZES)
    first, other, twin = page("return [...document.querySelectorAll('#list tbody .swatch')].map((n) => n.className)")
    assert first == twin != other, "seeds of one method share a colour"
    assert 3 <= page("return document.querySelectorAll('#training .lead svg path.line').length") <= 12
    page("document.querySelector('#training details').open = true")
    assert page("return document.querySelectorAll('#training h3').length") >= 8
    assert "ln 2" in page("return document.querySelector('#training').textContent")
    assert page("return document.querySelectorAll('#tokens .completion').length") > 1
    assert page("return document.querySelectorAll('#tokens .tok.prot, #tokens .tok.amp').length") > 0
    cards = page("return [...document.querySelectorAll('#evaluations .completion b')].map((b) => b.textContent)")
    assert len(cards) == 50
    assert cards[0] == "✗ wrong"
    assert page("return document.documentElement.scrollWidth <= innerWidth")
    assert digest(home) == before


def test_hostile_text_is_shown_as_text(page: Any) -> None:
    assert page("return document.querySelectorAll('main img, main script, main b b').length") == 0
    assert "<b>x<i>" in page("return document.querySelector('#runs').textContent")


def test_samples_are_filtered_and_turned(driver: Any, address: str) -> None:
    (page,) = [next(view := opened(driver, address))]
    pick = """const node = document.querySelector(`#evaluations [aria-label="${arguments[0]}"]`);
      node.value = arguments[1]; node.dispatchEvent(new Event("change"));"""
    driver.execute_script(pick, "Benchmark", "hard")
    driver.execute_script(pick, "Verdict", "CORRECT")
    words = "return [...document.querySelectorAll('#evaluations .completion header > b')].map((b) => b.textContent)"
    until(
        driver, f"const words = (() => {{ {words} }})(); return words.length && words.every((w) => w === '✓ correct')"
    )
    driver.execute_script(pick, "Verdict", "any")
    until(driver, "return document.querySelector('#evaluations [role=status]').textContent.startsWith('1 to 50 of')")
    page("document.querySelector('#evaluations [aria-label=\"Next samples\"]').click()")
    until(driver, "return document.querySelector('#evaluations [role=status]').textContent.startsWith('51 to ')")
    texts = page("return document.querySelector('#evaluations').textContent")
    assert HOSTILE in texts or "<script>" in texts
    next(view, None)


def test_a_run_is_followed_while_it_goes(driver: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results/train/live"
    write_train(folder, method="gtpo", steps=20)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").unlink()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"")
    with served(tmp_path, driver, "live") as page:
        page("const later = setTimeout; window.setTimeout = (act) => later(act, 20)")  # it asks often
        step = "return document.querySelector('#list tbody tr td:nth-child(4)').textContent"
        assert page(step) == "–"
        assert "starting" in page("return document.querySelector('#list').textContent")
        assert "Waiting for the first step" in page("return document.querySelector('#training').textContent")
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write(b"".join(lines[:10]) + lines[10][:20])  # the eleventh line is being written
        until(driver, f"{step} === '10'")
        (folder / "run.json").write_text(json.dumps(document | {"status": "running", "steps": 20}))
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write(lines[10][20:] + lines[11])
        until(driver, f"{step} === '12 of 20'")
        document |= {"status": "collapsed", "stopped_because": "accuracy fell"}
        (folder / "run.json").write_text(json.dumps(document))
        until(driver, "return document.querySelector('#list').textContent.includes('live collapsed: accuracy fell')")
    until(driver, "return !document.querySelector('#lost').hidden")


def test_only_the_printed_address_opens_it(address: str) -> None:
    token = address.rstrip("/").rpartition("/")[2]
    assert len(token) >= 20
    assert get(address)[0] == 200
    assert get(address, "state?since=x", Host="localhost:1")[0] == 200  # as through ssh -L
    for wrong in (address.replace(token, "a" * len(token)), address.replace(f"{token}/", ""), address[:-2]):
        assert get(wrong)[0] == 403
    root = address.rstrip("/").rpartition("/")[0]
    for path in ("/%ff/state", "/%00/", "//", "/x/../state"):
        assert get(root + path)[0] == 403, path
    for method in ("POST", "PUT", "DELETE"):
        assert get(address, method=method)[0] == 405
    assert get(address, Host="evil.example")[0] == 403
    assert get(address, "../../etc/passwd")[0] in (403, 404)
    assert get(address, "samples?run=/etc&benchmark=x&verdict=any&page=-1")[1] == b'{"error": "no such run"}'


def test_a_run_that_cannot_be_read_says_so_and_the_others_are_shown(tmp_path: Path, monkeypatch: Any) -> None:
    broken = tmp_path / "results/train/broken"
    write_train(tmp_path / "results/train/gtpo", steps=5)
    broken.mkdir()
    (broken / "run.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    runs = Runs([]).state({})["runs"]
    assert "run.json" in runs["results/train/broken"]["error"]
    assert runs["results/train/gtpo"]["curves"]


@pytest.mark.skipif(os.geteuid() == 0, reason="this user may take any port")
def test_a_port_that_may_not_be_taken_is_one_sentence(tmp_path: Path) -> None:
    done = gtpo("view", "--port", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "gtpo: --port 1: Permission denied\n")


def test_samples_of_one_question_and_texts_that_do_harm(driver: Any, tmp_path: Path) -> None:
    """The search by question; marks of writing direction and a line of a megabyte are shown, written out and cut."""
    run = write_eval(tmp_path / "results/eval/odd", benchmarks={"arithmetic": 12}, hostile=True)
    path = next((run / "samples").glob("*.parquet"))
    table = pq.read_table(path)
    texts = table["completion"].to_pylist()
    texts[1:3] = ["abc\u202egpj.exe", "y" * 1_000_000]
    pq.write_table(table.set_column(table.column_names.index("completion"), "completion", pa.array(texts)), path)
    with served(tmp_path, driver, "odd") as page:
        status = "document.querySelector('#evaluations [role=status]').textContent"
        assert page(f"return {status}") == "1 to 50 of 96"
        assert page("return document.querySelector('#evaluations .problem math mfrac') !== null")
        page("""const node = document.querySelector('#evaluations [aria-label="Question"]');
          node.value = "arithmetic/00000"; node.dispatchEvent(new Event("input"));""")
        until(driver, f"return {status} === '1 to 8 of 8'")
        shown = page("return [...document.querySelectorAll('#evaluations .completion pre')].map((n) => n.textContent)")
        assert any(text.startswith(HOSTILE) for text in shown)
        assert "abc\\u202egpj.exe" in shown
        assert "940,000 characters left out" in page("return document.querySelector('#evaluations').textContent")
        assert page("return document.documentElement.scrollWidth <= innerWidth")


def test_a_train_run_brings_its_evaluations_its_warnings_and_earlier_rollouts(driver: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results/train/warned"
    write_train(folder, method="gtpo", steps=1200, status="running")
    with (folder / "metrics.jsonl").open("a") as out:
        for step in range(1201, 1231):
            row = {"step": step, "entropy/mean": 0.9, "rewards/mine/mean": 2.0, "loss": None, "nonfinite": ["loss"]}
            out.write(json.dumps(row) + "\n")
    write_eval(tmp_path / "results/eval/of-warned", benchmarks={"arithmetic": 8}, train_run="warned")
    os.utime(folder / "metrics.jsonl", (1e9, 1e9))
    with served(tmp_path, driver, "warned") as page:
        told = page("return document.querySelector('#list').textContent")
        assert "of-warned" in told
        assert "warned: values that were not finite at 30 steps, the last at step 1230 (loss)" in told
        assert "warned: no step for more than 10 minutes" in told
        titles = page("return [...document.querySelectorAll('#training h3')].map((n) => n.textContent)")
        assert titles[:2] == ["Accuracy reward", "Mean token entropy"]
        assert titles[titles.index("All other metrics") + 1] == "Reward: mine"
        assert page("return document.querySelectorAll('#training path.band').length") == 3
        node = """const node = document.querySelector('#tokens [aria-label="Rollout"]');"""
        assert page(node + "return node.options.length") == 24
        page(node + "node.value = 'step-000050'; node.dispatchEvent(new Event('change'));")
        until(driver, "return document.querySelector('#tokens').textContent.includes('step 50, group 0')")
        origin, *asked = page("return [origin, ...performance.getEntriesByType('resource').map((e) => e.name)]")
        assert len(asked) > 2
        assert all(one.startswith((f"{origin}/token/", f"{origin}/favicon.ico")) for one in asked)


def test_a_thinned_curve_keeps_its_extremes() -> None:
    values = np.arange(7500) % 10.0
    values[4000] = 1000.0
    thin = bands([{"loss": Band(np.arange(7500.0), values, values, values)}], 500)["loss"]
    assert thin.low.size == thin.high.size == thin.mean.size == 500
    assert (thin.low.min(), thin.high.max()) == (0.0, 1000.0)
    assert np.all((thin.low <= thin.mean) & (thin.mean <= thin.high))
