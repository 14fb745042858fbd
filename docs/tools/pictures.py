"""Pictures of the published demo's page, for README and docs: `python docs/tools/pictures.py`, with Chromium.

Each is one section of results/published/demo/report.html, photographed in a window of a laptop's width.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "results/published/demo"
SECTIONS = {"verdicts": ("answer", ".forest"), "tokens": ("tokens", None)}
"""Picture -> id of the section of the page, and what the picture ends with; None: HEIGHT is shown."""
HEIGHT = 760

WIDTH = 1000
SECONDS = 20


def main() -> None:
    """Write figures/NAME.png beside the page."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--window-size={WIDTH},900",
    ):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(f"file://{DEMO}/report.html")
        deadline = time.monotonic() + SECONDS
        while not browser.execute_script("return document.documentElement.dataset.complete"):
            if time.monotonic() > deadline:
                raise SystemExit(f"{DEMO}/report.html is not complete after {SECONDS} s")
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
            browser.save_screenshot(str(path))
            print(f"wrote {path.relative_to(DEMO.parents[2])}")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
