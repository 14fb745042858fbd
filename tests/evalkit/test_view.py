"""`gtpo view`: a real server in a process of its own, over real run folders, in a real browser."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from run_folders import HOSTILE, write_eval, write_train
from test_compare import gtpo

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


def start(home: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start the program; return its process and the address that it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gtpo", "view", *words]
    process = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    process, address = start(home)
    yield address
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu":
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield browser
    browser.quit()


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=str)
def page(request: pytest.FixtureRequest, driver: Any, address: str) -> Iterator[Callable[[str], Any]]:
    width, theme = request.param
    yield from opened(driver, address, width, theme)


def opened(driver: Any, address: str, width: int = 1280, theme: str = "light") -> Iterator[Callable[[str], Any]]:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    driver.get(address)
    until(driver, "return document.documentElement.dataset.complete")
    yield driver.execute_script
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hostile === undefined")


def until(driver: Any, script: str, seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := driver.execute_script(script)):
        assert time.monotonic() < deadline, (script, driver.get_log("browser"))
        time.sleep(0.05)
    return found


def get(address: str, path: str = "", **headers: str) -> tuple[int, bytes]:
    try:
        with urlopen(Request(address + path, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def digest(home: Path) -> str:
    files = sorted(path for path in home.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def test_sections_are_drawn_at_every_width_and_nothing_is_written(page: Any, home: Path) -> None:
    before = digest(home)
    rows = page("return [...document.querySelectorAll('#list tbody tr')].map((row) => row.textContent)")
    assert [row.split("finished")[0].removesuffix("gtpo").removesuffix("grpo") for row in rows[:3]] == [
        "<b>x<i>", "grpo", "gtpo"
    ]  # fmt: skip
    assert len(rows) == 3 + 2 * len(SIZES)
    assert page("return document.querySelectorAll('#training svg path.line').length") >= 16
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


def test_a_run_is_followed_while_it_goes(driver: Any, home: Path) -> None:
    folder = home / "results/train/live"
    write_train(folder, method="gtpo", steps=20)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").unlink()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"")
    process, address = start(home, "live")
    view = opened(driver, address)
    page = next(view)
    step = "return document.querySelector('#list tbody tr td:nth-child(3)').textContent"
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
    (folder / "run.json").write_text(json.dumps(document | {"status": "collapsed", "stopped_because": "accuracy fell"}))
    until(driver, "return document.querySelector('#list').textContent.includes('live collapsed: accuracy fell')")
    next(view, None)
    process.terminate()
    assert process.wait(10) == 0
    until(driver, "return !document.querySelector('#lost').hidden")
    shutil.rmtree(folder)


def test_only_the_printed_address_opens_it(address: str) -> None:
    token = address.rstrip("/").rpartition("/")[2]
    assert len(token) >= 20
    assert get(address)[0] == 200
    assert get(address, "state?since=x", Host="localhost:1")[0] == 200  # as through ssh -L
    for wrong in (address.replace(token, "a" * len(token)), address.replace(f"{token}/", ""), address[:-2]):
        assert get(wrong)[0] == 403
    assert get(address, Host="evil.example")[0] == 403
    assert get(address, "../../etc/passwd")[0] in (403, 404)
    assert get(address, "samples?run=/etc&benchmark=x&verdict=any&page=-1")[1] == b'{"error": "no such run"}'


def test_a_run_that_cannot_be_read_says_so_and_the_others_are_shown(home: Path) -> None:
    broken = home / "results/train/broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    process, address = start(home)
    runs = json.loads(get(address, "state")[1])["runs"]
    assert "run.json" in runs["results/train/broken"]["error"]
    assert runs["results/train/gtpo"]["curves"]
    process.terminate()
    assert process.wait(10) == 0
    shutil.rmtree(broken)


@pytest.mark.parametrize(
    ("words", "said"), [(("gtpp",), 'no run "gtpp"'), (("gtpo", "--port", "1"), "--port 1: Permission denied")]
)
def test_mistakes_are_one_sentence(words: tuple[str, ...], said: str, home: Path) -> None:
    if "--port" in words and os.geteuid() == 0:
        pytest.skip("this user may take any port")
    done = gtpo("view", *words, cwd=home)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
