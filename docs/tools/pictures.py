"""Pictures of the published demo's page, for README and docs: `python docs/tools/pictures.py`, with Chromium.

Each is one section of results/published/demo/report.html, photographed in a window of a laptop's width.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "results/published/demo"
SECTIONS = {"verdicts": ("answer", 520), "tokens": ("tokens", 760)}
"""Picture -> id of the section of the page, height of the window."""

WIDTH = 1000
SECONDS = 20


def main() -> None:
    """Write figures/NAME.png beside the page."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={WIDTH},900":
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
        for name, (section, height) in SECTIONS.items():
            size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1.5, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for _ in range(2):  # what is above the section gets its height when it is first shown
                browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)
                time.sleep(1)
            path = DEMO / f"figures/{name}.png"
            browser.save_screenshot(str(path))
            print(f"wrote {path.relative_to(DEMO.parents[2])}")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
