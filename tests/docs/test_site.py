"""The documentation site: it builds without a warning, every link leads somewhere, nothing comes from a network."""

from __future__ import annotations

import importlib.util
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from commands import python

pytestmark = pytest.mark.docs

OUTSIDE = {"arxiv.org", "github.com", "squidfunk.github.io", "keepachangelog.com"}
"""The hosts that a page may link to. No page loads anything from them."""
HTML = frozenset(
    re.findall(
        r"\w+",
        """
        a article aside b blockquote body br button code dd details div dl dt em footer form h1 h2 h3 h4 h5
        h6 head header hr html
        iframe img input label li link main meta nav ol p path pre script section small span strong style sub summary
        sup svg table tbody td th thead title tr ul wbr
        math mfrac mi mn mo mover mrow mspace mstyle msub msubsup msup mtable mtd mtext mtr munder munderover
        """,
    )
)


class Page(HTMLParser):
    """The ids, links and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "iframe", "source", "video") and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=root, env=environment, timeout=240)
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    return {path: page for path, page in found.items() if path.name not in ("404.html", "report.html")}


def test_every_link_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                if parts.netloc not in OUTSIDE:
                    broken.append(f"{path.relative_to(site)}: {link}: a host that is not in OUTSIDE")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                broken.append(f"{path.relative_to(site)}: {link}: no such place on the page")
    assert len(pages) > 25
    assert broken == []


def test_no_text_is_taken_for_a_tag(site, pages):
    """`<H>` outside of code would vanish."""
    unknown = {str(path.relative_to(site)): page.tags - HTML for path, page in pages.items() if page.tags - HTML}
    assert unknown == {}


def test_nothing_is_loaded_from_a_network(site, pages):
    outside = [
        f"{path.relative_to(site)}: {name}"
        for path, page in pages.items()
        for name in page.loaded
        if urlsplit(name).scheme or name.startswith("//")
    ]
    assert outside == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_figures_are_drawn_from_the_committed_files(root, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("docs_figures", root / "docs/tools/figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    for draw in figures.DRAWN:
        draw()
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert len(drawn) == len(figures.DRAWN)
    assert [name for name, new in drawn.items() if new != (root / "docs/figures" / name).read_bytes()] == []


def test_markdown_links_of_the_repository_work_without_the_site(root):
    """As a repository's pages show them: files exist, and headings are named as there."""
    documents = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "examples").glob("*.md")]
    broken = []
    for document in documents:
        prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, fragment = link.partition("#")
            if "://" in link:
                continue
            target = (document.parent / name).resolve() if name else document
            if not target.exists():
                broken.append(f"{document.name}: {link}")
            elif fragment and target.suffix == ".md" and fragment not in headings(target):
                broken.append(f"{document.name}: {link}: no such heading")
    assert broken == []


def headings(document: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings, and the ids set in it by hand."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names = re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", name.lower()).replace(" ", "-") for name in names]
    return set(plain) | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.chromium
def test_the_search_works_from_a_folder_without_a_network(site, driver):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get((site / "index.html").as_uri())
    box = driver.find_element(By.CSS_SELECTOR, "input.md-search__input")
    driver.execute_script("document.getElementById('__search').click()")
    box.send_keys("gate/kept")
    found = WebDriverWait(driver, 200).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__list a.md-search-result__link")
    )
    assert any("METRICS.html" in link.get_attribute("href") for link in found)
