"""What is committed of the demo: `python docs/tools/demo_evidence.py PAGE`, with Chromium, after `make publish-demo`.

Two sections of the page of `gtpo compare`, photographed in a window of a laptop's width, and of each eval.json the
numbers at three k.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

DEMO = Path(__file__).resolve().parents[2] / "results/published/demo"
SECTIONS = {"verdicts": ("answer", ".forest"), "tokens": ("tokens", None)}
"""Picture -> id of the section of the page, and what the picture ends with; None: HEIGHT is shown."""
HEIGHT = 760

WIDTH = 1000
SECONDS = 20
KS = ("1", "8", "32")


def thin(benchmark: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark of eval.json with pass@k and maj@k at KS only."""

    def at_ks(metric: dict[str, Any]) -> dict[str, Any]:
        return {k: {name: metric[k][name] for name in ("mean", "low", "high")} for k in KS}

    left_out = ("pass@k", "pass^k", "maj@k", "strict", "lenient")
    kept = {key: value for key, value in benchmark.items() if key not in left_out}
    lenient = {"pass@k": at_ks(benchmark["lenient"]["pass@k"])}
    return kept | {metric: at_ks(benchmark[metric]) for metric in ("pass@k", "maj@k")} | {"lenient": lenient}


def main() -> None:
    """Thin every eval.json, and write figures/NAME.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page.resolve()
    for path in DEMO.glob("*/eval.json"):
        run = json.loads(path.read_text())
        run["benchmarks"] = {name: thin(benchmark) for name, benchmark in run["benchmarks"].items()}
        path.write_text(json.dumps(run, indent=1) + "\n")
    photograph(page)


@contextlib.contextmanager
def chromium(width: int) -> Iterator[Any]:
    """Open a headless browser with a window of this width; it ends with the block."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars", f"window-size={width},900"):
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium") or ""
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


def save_screenshot(browser: Any, path: Path) -> None:
    """Write what the window shows, in 128 colours."""
    browser.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def photograph(page: Path) -> None:
    """Write a picture of each of SECTIONS."""
    with chromium(WIDTH) as browser:
        browser.get(f"file://{page}")
        deadline = time.monotonic() + SECONDS
        while not browser.execute_script("return document.documentElement.dataset.complete"):
            if time.monotonic() > deadline:
                raise SystemExit(f"{page} is not complete after {SECONDS} s")
            time.sleep(0.1)
        for name, (section, last) in SECTIONS.items():
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1.5, "mobile": False}
            for _ in range(2):  # what is above the section gets its height when it is first shown
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)
                time.sleep(1)
                if last is not None:
                    end = "return Math.ceil(document.querySelector(arguments[0]).getBoundingClientRect().bottom) + 24"
                    size["height"] = browser.execute_script(end, last)
            path = DEMO / f"figures/{name}.png"
            save_screenshot(browser, path)
            print(f"wrote {path.relative_to(DEMO.parents[2])}")


if __name__ == "__main__":
    main()
