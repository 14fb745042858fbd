"""The page in a real browser: no console errors, filters and keys work, hostile text is text, phone width fits."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import HOSTILE, RUNS
from test_view import until

from gtpo.runs.find import find_runs

pytestmark = pytest.mark.chromium


@pytest.fixture
def page(driver: Any, page_home: Path) -> Iterator[Callable[[str], Any]]:
    """Opens the page afresh; called with JavaScript, returns its value. No console message may appear."""
    driver.get(f"file://{page_home}/page.html")
    run: Callable[[str], Any] = driver.execute_script
    until(driver, COMPLETE)
    yield run
    assert driver.get_log("browser") == []
    assert run("return window.hostile === undefined")


COMPLETE = "return document.documentElement.dataset.complete"
SET = """const set = (name, value) => { const node = document.querySelector(`#explorer [aria-label="${name}"]`);
  node.value = value; node.dispatchEvent(new Event(node.tagName === "SELECT" ? "change" : "input")); };
const count = () => Number(document.querySelector("#explorer [role=status]").textContent.split(" ")[0]);"""


def test_sections_are_drawn(page: Any) -> None:
    assert page("return document.querySelectorAll('#answer .forest').length") == 1 + 2  # the primary metric; the others
    said = page("return [...document.querySelectorAll('#answer .headline li')].map(n => n.textContent)")
    assert len(said) == 3 * 2
    assert "gtpo is undecided against grpo on arithmetic" in " ".join(said)
    assert "<b>x</b> is better than grpo on arithmetic: +" in said[0]
    first = page("return document.querySelector('#answer .headline').getBoundingClientRect().top")
    assert first < 300  # the verdicts are what the page begins with
    sizes = page("""
      const size = (q) => parseFloat(getComputedStyle(document.querySelector(q)).fontSize);
      return [size('.paper .v'), size('.paper td small'), size('.paper tbody th'), size('.paper th small'),
              size('.forest .value'), size('.forest .value small'),
              size('.headline li b'), size('.headline li .soft')]""")
    assert all(figure > below for figure, below in zip(sizes[::2], sizes[1::2], strict=True))
    axes = page("""
      return [...document.querySelectorAll('#answer .forest .axis')].map((axis) => [...axis.querySelectorAll('text')]
        .map((n) => [n.textContent, n.getBoundingClientRect().left, n.getBoundingClientRect().right]))""")
    for marks in (marks for marks in axes if marks[0][2]):  # a folded one has no size
        assert len({text for text, *_ in marks}) == len(marks) > 1
        assert all(one[2] < other[1] for one, other in itertools.pairwise(marks)), marks
    assert axes[0][0][2]
    assert page("return document.querySelectorAll('#answer .paper').length") == 2
    assert page("return document.querySelectorAll('#curves svg path.line').length") == 8
    assert 3 <= page("return document.querySelectorAll('#training .lead svg').length") <= 5
    assert page("return document.querySelectorAll('#training h3').length") >= 8
    assert page("return document.querySelectorAll('#explorer .completion').length") > 4
    assert "ln 2" in page("return document.querySelector('#training').textContent")


def test_hostile_text_is_shown_as_text(page: Any) -> None:
    shown = page(
        SET
        + f"set('Search text', {json.dumps(HOSTILE)}); return document.querySelector('#explorer .detail').textContent"
    )
    assert HOSTILE in shown
    assert page("return document.querySelectorAll('#explorer img, #explorer script, .chip b').length") == 0
    assert "<b>x</b>" in page("return document.querySelector('#runs').textContent")
    assert "<b>x</b>" in page("return document.querySelector('#tables').textContent")


def test_filters_count_what_the_files_hold(page: Any, page_home: Path) -> None:
    runs, _, _ = find_runs([str(page_home / f"results/eval/{name}-1") for name in RUNS])
    parts = [run.questions("arithmetic", "strict") for run in runs]
    rates = [part.correct / part.n for part in parts]
    by_question = list(zip(*rates, strict=True))
    wanted = {
        ("Samples", "all"): sum(all(r == 1 for r in q) for q in by_question),
        ("Samples", "none"): sum(all(r == 0 for r in q) for q in by_question),
        ("Samples", "some"): sum(any(0 < r < 1 for r in q) for q in by_question),
        ("Methods", "majority"): sum(max(q) > 0.5 > min(q) for q in by_question),
        ("Right in", "<b>x</b>"): sum(q[3] > 0.5 for q in by_question),
        ("Wrong in", "base"): sum(q[0] < 0.5 for q in by_question),
    }
    assert len(set(wanted.values())) > 3
    for (name, value), number in wanted.items():
        found = page(SET + f"set({name!r}, {value!r}); const out = count(); set({name!r}, 'any'); return out")
        assert found == number, (name, value)
    both = page(SET + "set('Right in', 'gtpo'); set('Wrong in', 'base'); return count()")
    assert both == sum(q[2] > 0.5 > q[0] for q in by_question)
    page(SET + "set('Right in', 'any'); set('Wrong in', 'any')")
    assert page(SET + "return count()") == 80
    assert page(SET + "set('Benchmark', '1'); return count()") == 25
    shown = "return [...document.querySelectorAll('#explorer .completion')].map(n => [n.className, n.textContent])"
    page(SET + "set('Benchmark', '0'); set('Verdict', 'INCORRECT')")
    assert {kind for kind, _ in page(shown)} == {"completion wrong"}
    found = page(SET + "set('Verdict', 'NO_ANSWER');" + shown)
    assert found
    assert all("no answer" in text and "nothing extracted" in text for _, text in found)


def test_keyboard(page: Any, driver: Any) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    page("document.querySelector('#explorer [role=listbox]').focus()")
    before = page("return document.querySelector('#explorer [aria-selected=true]').id")
    ActionChains(driver).send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN).perform()
    after = page("return document.querySelector('#explorer [aria-selected=true]').id")
    assert before != after
    assert page("return document.activeElement.getAttribute('aria-activedescendant')") == after
    ActionChains(driver).send_keys(Keys.END).perform()
    assert page("return document.querySelector('#explorer .list').scrollTop") > 500
    page("document.querySelector('#curves .chart').focus()")
    ActionChains(driver).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    tip = page("return document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
    assert tip.startswith("k 3")
    assert "gtpo" in tip
    ActionChains(driver).send_keys(Keys.ESCAPE).perform()
    assert page("return document.getElementById('tip').hidden")


def test_choices_change_the_curves(page: Any, driver: Any) -> None:
    """A run is hidden; k is linear, when the browser next has time."""
    lines = "[...document.querySelectorAll('#curves g[data-run]')].map(n => n.dataset.run)"
    assert set(page(f"return {lines}")) == set(RUNS)
    page("document.querySelectorAll('#runs button')[1].click()")
    assert set(page(f"return {lines}")) == set(RUNS) - {"grpo"}
    assert page("return document.querySelectorAll('#runs button')[1].getAttribute('aria-pressed')") == "false"
    path = "document.querySelector('#curves path.line')?.getAttribute('d')"
    before = page(f"return {path}")
    page("document.querySelector('#curves input[type=checkbox]').click()")
    until(driver, f"return ![undefined, {json.dumps(before)}].includes({path})")


def test_token_weights_are_coloured(page: Any) -> None:
    groups = page("return JSON.parse(document.getElementById('groups-0').textContent)")
    first = groups[0]["completions"]
    values = [c["values"][w] for c in first for w in c["weights"]]
    # groups-0 is the grpo run's log; the fixture writes GTPO's weights into both.
    assert page("return document.querySelectorAll('#tokens .group .tok.prot').length") == values.count(0.0) > 0
    assert page("return document.querySelectorAll('#tokens .group .tok.amp').length") == values.count(2.0) > 0
    dropped = sum(c["kept"] is False for c in first)
    assert page("return document.querySelectorAll('#tokens .dropped').length") == dropped
    head = page("return document.querySelector('#tokens .group header').textContent")
    assert "2 groups of 2 logged rollouts, spread" in page("return document.querySelector('#tokens').textContent")
    assert re.match(r"A [+−]\d\.\d\dH \d\.\d{3} [≤>] ln 2", head)


def test_both_themes_are_readable(page: Any) -> None:
    seen = []
    for _ in range(2):
        page("document.getElementById('theme').click()")
        seen.append(page("return getComputedStyle(document.body).backgroundColor"))
        ratio = page((Path(__file__).parent / "contrast.js").read_text())
        assert ratio["ink"] > 7
        assert all(found >= 4.5 for found in ratio.values())
        assert ("good" in ratio) or ("bad" in ratio)
    assert seen[0] != seen[1]
    page("localStorage.clear()")


def test_a_view_has_an_address(page: Any, driver: Any, page_home: Path) -> None:
    """Choosing changes the differences and the URL; opening that URL shows the same question, filters and baseline."""
    assert page("return [...document.querySelectorAll('#answer option')].map(n => n.value)") == list(RUNS)
    page("const s = document.querySelector('#answer select'); s.value = 'base'; s.dispatchEvent(new Event('change'))")
    assert "points against base" in page("return document.querySelector('#answer .forest').textContent")
    page(SET + "set('Benchmark', '1'); set('Order', 'id'); set('Right in', 'gtpo')")
    page("document.querySelectorAll('#explorer .q')[2].click()")
    chosen = page("return document.querySelector('#explorer [aria-selected=true]').textContent")
    url = page("return location.href")
    for part in ("base=base", "bench=hard", "order=id", "right=gtpo", "q=hard"):
        assert part in url
    driver.get("about:blank")
    driver.get(url)
    until(driver, COMPLETE)
    assert page("return document.querySelector('#explorer [aria-selected=true]').textContent") == chosen
    assert page("return document.querySelector('#answer select').value") == "base"
    assert page("""return document.querySelector('#explorer [aria-label="Right in"]').value""") == "gtpo"


def test_a_question_has_its_votes_and_its_mathematics(page: Any) -> None:
    page(SET + "set('Order', 'id')")
    tables = page(
        "return [...document.querySelectorAll('#explorer .votes')].map(t => "
        "[...t.querySelectorAll('td:not(.share)')].reduce((sum, n) => sum + Number(n.textContent), 0))"
    )
    assert tables == [8] * len(RUNS)
    pytest.importorskip("latex2mathml")
    assert page("return document.querySelector('#explorer .problem math mfrac') !== null")
    assert page("return document.querySelector('#explorer .problem math').getBoundingClientRect().height") > 15


def test_printed_pages_are_full(driver: Any, page: Any, page_home: Path, tmp_path: Path) -> None:
    """A4, at most five: the first page has the answer on it, the tables for a paper are in, nothing interactive is."""
    made = driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert 1 < len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(made["data"]))) <= 5
    if not shutil.which("pdftotext"):
        pytest.skip("pdftotext (poppler-utils) reads the printed page")
    (tmp_path / "page.pdf").write_bytes(base64.b64decode(made["data"]))
    text = subprocess.run(["pdftotext", "-layout", tmp_path / "page.pdf", "-"], capture_output=True, text=True).stdout
    first, *rest = text.split("\f")
    assert "primary metric" in first
    assert "better" in first
    assert "Baseline: " in " ".join(rest)
    assert "Copy Markdown" not in text


def test_phone_width_fits(page: Any, driver: Any) -> None:
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        until(driver, "return innerWidth === 390")
        assert page("return document.documentElement.scrollWidth") <= 390
        driver.refresh()
        until(driver, COMPLETE)
        assert page("return document.documentElement.scrollHeight") <= 4 * 844
        assert page("return [...document.querySelectorAll('main > details[open]')].map(n => n.id)") == ["answer"]
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
