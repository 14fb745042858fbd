"""A problem's mathematics as MathML, which browsers set themselves: no network, no script, no font to load.

LaTeX between $, $$, \\( \\) and \\[ \\] is turned into MathML by latex2mathml and travels as a tree of plain lists, of
which the page builds elements one by one: no markup of a problem's text is ever parsed by the browser. What cannot be
converted stays as it is written.
"""

from __future__ import annotations

import html
import re
from typing import Any
from xml.etree import ElementTree

Node = str | list[Any]
"""Text, or [tag, attributes, *children]."""

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
