"""The page of `gtpo compare --html`: one file that holds its data, style and code, and works without a network.

Text that a model wrote is data here, never markup: it lies in JSON blocks in which every `<` is written `\\u003c`,
the page's code puts it on screen through textContent only, and a Content-Security-Policy with the hashes of the
page's own script and style stops anything else from running or loading. Without JavaScript the tables are shown as
plain HTML.

A problem's LaTeX between $, $$, \\( \\) and \\[ \\] becomes MathML, which browsers set themselves: no font to load. It
travels as a tree of plain lists, of which the page builds elements one by one: no markup of a problem's text is ever
parsed by the browser. What cannot be converted stays as it is written.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any
from xml.etree import ElementTree

# What the pages of `gtpo compare` and `gtpo view` are both made of.
SHARED = ("dom.js", "base.js", "charts.js", "samples.js", "weights.js", "tokens.js")
SCRIPTS = (*SHARED, "grid.js", "answer.js", "curves.js", "explorer.js", "question.js", "start.js")


# Text, or [tag, attributes, *children].
Node = str | list[Any]

_MATHS = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$])\$(?!\s)([^$\n]+?)(?<![\s\\])\$(?!\d)", re.DOTALL
)
_TAG_NAMES = (
    "math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts "
    "mtable mtr mtd mstyle mpadded mphantom menclose mfenced merror mprescripts none"
)
_TAGS = frozenset(_TAG_NAMES.split())
_ATTRIBUTE_NAMES = (
    "display displaystyle scriptlevel mathvariant stretchy fence form separator lspace rspace width height depth "
    "linethickness columnalign rowalign columnlines rowlines rowspacing columnspacing notation accent accentunder "
    "movablelimits minsize maxsize symmetric largeop open close"
)
_ATTRIBUTES = frozenset(_ATTRIBUTE_NAMES.split())


def inert_json(value: Any) -> str:
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
            f'<script type="application/json" id="{name}">{inert_json(value)}</script>' for name, value in data
        ),
        "SCRIPT": script,
    }
    page, body = ((templates / f"{part}.html").read_text(encoding="utf-8") for part in ("page", name))
    page = page.replace("@@NAME@@", name).replace("@@BODY@@", body.strip())
    head, *rest = page.split("@@")
    # Pieces are put in once, left to right: text that looks like a placeholder stays text.
    return head + "".join(pieces[part] if i % 2 == 0 else part for i, part in enumerate(rest))


def segments(text: str) -> list[Node]:
    """A text in pieces: plain strings, and a tree for each formula that can be converted."""
    out: list[Node] = []
    at = 0
    for match in _MATHS.finditer(text):
        tree = _tree_of(next(filter(None, match.groups()), ""), block=match[0][:2] in ("$$", "\\["))
        if tree is None:
            continue
        out += [text[at : match.start()], tree]
        at = match.end()
    pieces = [*out, text[at:]]
    return [piece.replace("\\$", "$") if isinstance(piece, str) else piece for piece in pieces if piece]


def _tree_of(formula: str, *, block: bool) -> Node | None:
    try:
        from latex2mathml.converter import convert_to_element
    except ImportError:  # the extra `report`: the text is shown as it is written
        return None
    try:
        element = convert_to_element(formula, display="block" if block else "inline")
    except Exception:  # whatever a formula does to the converter, the page shows its source
        return None
    return None if "\\" in "".join(element.itertext()) else _tree(element)


def _tree(element: ElementTree.Element) -> Node | None:
    tag = element.tag.rpartition("}")[2]
    if tag not in _TAGS:
        return None
    children: list[Node] = [element.text] if element.text else []
    for child in element:
        tree = _tree(child)
        if tree is None:
            return None
        children.append(tree)
    # latex2mathml writes operators as entities in places: &#x003C; is the character itself in a tree.
    children = [html.unescape(child) if isinstance(child, str) else child for child in children]
    return [tag, {k: v for k, v in element.attrib.items() if k in _ATTRIBUTES}, *children]
