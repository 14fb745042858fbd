"""The page of `gtpo compare --html`: one file that holds its data, style and code, and works without a network.

Text that a model wrote is data here, never markup: it lies in JSON blocks in which every `<` is written `\\u003c`,
the page's code puts it on screen through textContent only, and a Content-Security-Policy with the hashes of the
page's own script and style stops anything else from running or loading. Without JavaScript the tables are shown as
plain HTML.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from gtpo.common.files import write_text
from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.report.payload import payload
from gtpo.evalkit.report.tables import as_markdown

SHARED = ("dom.js", "base.js", "charts.js", "samples.js", "weights.js", "tokens.js")
"""What the pages of `gtpo compare` and `gtpo view` are both made of."""
SCRIPTS = (*SHARED, "answer.js", "tables.js", "curves.js", "explorer.js", "question.js", "start.js")


def embedded(value: Any) -> str:
    """JSON that is inert inside a script element: no `<`, `>` or `&`, and no line separators of JavaScript."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    # A lone surrogate (half an emoji that a token cut) is no UTF-8: it stays an escape.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def render(
    core: dict[str, Any],
    blocks: dict[str, Any],
    static: str = "",
    *,
    name: str = "compare",
    scripts: Sequence[str] = SCRIPTS,
    connect: str = "'none'",
) -> str:
    """The whole page: the frame that all have, with the body of templates/NAME.html.

    static: HTML of the tables for a browser without JavaScript. connect: where its code may fetch from, as in a
    Content-Security-Policy.
    """
    templates = resources.files("gtpo.evalkit.report") / "templates"
    style = (templates / "report.css").read_text(encoding="utf-8")
    script = "\n".join((templates / name).read_text(encoding="utf-8") for name in scripts)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )
    data = [("core", core), *blocks.items()]
    pieces = {
        "POLICY": html.escape(policy),
        "STYLE": style,
        "STATIC": static,
        "DATA": "\n".join(
            f'<script type="application/json" id="{name}">{embedded(value)}</script>' for name, value in data
        ),
        "SCRIPT": script,
    }
    page, body = ((templates / f"{part}.html").read_text(encoding="utf-8") for part in ("page", name))
    page = page.replace("@@NAME@@", name).replace("@@BODY@@", body.strip())
    head, *rest = page.split("@@")
    # Pieces are put in once, left to right: text that looks like a placeholder stays text.
    return head + "".join(pieces[part] if i % 2 == 0 else part for i, part in enumerate(rest))


def write_page(comparison: MethodComparison, path: Path, *, samples_bytes: int) -> int:
    """Write the page by write-then-rename; return its size in bytes."""
    # For a browser without JavaScript: the tables of the Markdown, in which all names are escaped.
    static = MarkdownIt("commonmark", {"html": True}).enable("table").render(as_markdown(comparison))
    page = render(*payload(comparison, samples_bytes=samples_bytes), static)
    write_text(path, page)
    return len(page.encode())
