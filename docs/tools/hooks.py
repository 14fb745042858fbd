"""What MkDocs does besides: pages may link to files of the repository outside docs/, and name them in code spans.

Such a file becomes a page of its own below `code/` (text, with line anchors), or is copied as it is. Markdown files at
the repository's root that the navigation names (CONTRIBUTING.md, ...) become pages. Figures open at full size, and
long names in tables may break after a dot, a slash or an underscore. Equations (```math) become MathML and notes
(> [!NOTE]) admonitions, both as on a repository's page. On a phone the rows of the widest tables are shown
as blocks, each cell with its column's name (extra.css).
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BESIDES = (ROOT / "results", ROOT / "configs")
"""Their Markdown files are pages, outside of the navigation."""

LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
ANCHOR = re.compile(r"(?<![`\[\w])`((?:[\w-]+/)+[\w.-]+\.(?:py|yaml))(?:::([\w.]+))?`(?![`\]])")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
TEXT = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".md": "markdown", ".json": "json", ".jsonl": "json"} | {
    ".txt": "text", ".log": "text", ".sh": "bash", ".cff": "yaml", ".ipynb": "json", ".toml": "toml", "": "text",
}  # fmt: skip
NOTE = re.compile(r"^> \[!(NOTE|TIP|WARNING)\]\n((?:^>.*\n?)+)", re.MULTILINE)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
NAME = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
BREAK = re.compile(r"(?<=\w)([_/]+|\.(?!(?:py|md|yaml|jsonl?|parquet)\b))(?=[A-Za-z])")
CODE = re.compile(r"<code>(?:[^<]|<wbr>)+</code>")
FIGURE = re.compile(r'<img [^>]*?src="([^"]+)"[^>]*>')
WIDE = {"CONTRIBUTING.md", "config.md", "results/published/paper_vs_code.md", "configs/README.md", "verification.md"}
"""Pages whose tables or figures take the width of the table of contents."""
LONGEST_PAGE = 200_000
"""Bytes above which a text is copied instead of shown."""


def source_of(page: str) -> Path:
    """Return the repository file that a page of the site (its path below docs/) is made from."""
    inside, outside = DOCS / page, ROOT / page
    return inside if inside.exists() or not outside.exists() else outside


def is_shown(path: Path) -> bool:
    """Return whether a file outside docs/ gets a page (as opposed to being copied)."""
    return path.is_dir() or (path.suffix in TEXT and path.stat().st_size < LONGEST_PAGE)


def is_beside(path: Path) -> bool:
    """Return whether a file lies in a folder whose Markdown files are pages."""
    return any(path.is_relative_to(folder) for folder in BESIDES)


def place(path: Path) -> str:
    """Return where on the site (below docs/) a repository file is found."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md" and ((path.parent == ROOT and path.name != "README.md") or is_beside(path)):
        return name
    return f"code/{name}.md" if is_shown(path) else f"code/{name}"


def linked(markdown: str, source: Path) -> set[Path]:
    """Return the repository files outside docs/ that a page links to or names. PluginError where one is missing."""
    found = set()
    prose = FENCE.sub("", markdown)
    for target, _ in LINK.findall(prose):
        if "://" not in target and not target.startswith("mailto:"):
            path = Path(os.path.normpath(source.parent / target))
            if not path.is_relative_to(ROOT) or not path.exists():
                raise PluginError(f"{source.relative_to(ROOT)}: link to {target}, which does not exist")
            found.add(path)
    for name, _ in ANCHOR.findall(prose):
        if (ROOT / name).is_file():
            found.add(ROOT / name)
    return {path for path in found if not path.is_relative_to(DOCS)}


@functools.cache
def line_of(path: Path, name: str) -> int | None:
    """Return the line of a definition (`function`, `Class.method`) in a Python file."""
    body: Any = ast.parse(path.read_text(encoding="utf-8")).body
    line = None
    for part in name.split("."):
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
            if part in names:
                body, line = getattr(node, "body", []), node.lineno
                break
        else:
            return None
    return line


def shown(path: Path) -> str:
    """Return the page of a repository file or folder."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\nhide: [navigation]\n---\n\n# {name}\n\n"
    if path.is_dir():
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith(("_", ".")))
        return head + "\n".join(f"- [{entry.name}]({name.rpartition('/')[2]}/{entry.name})" for entry in entries)
    text = path.read_text(encoding="utf-8")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text) or [""]))
    return f'{head}{fence}{TEXT[path.suffix]} linenums="1"\n{text.rstrip()}\n{fence}\n'


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's files that the pages of docs/ lead to."""
    waiting = {source_of(file.src_uri) for file in files.documentation_pages()}
    waiting |= {ROOT / name for name in re.findall(r"\b[A-Z]+\.md", (ROOT / "mkdocs.yml").read_text())}
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        where = place(path)
        if not path.is_relative_to(DOCS):
            if where.endswith(".md") and where.startswith("code/"):
                made = File.generated(config, where, content=shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
            elif where.endswith(".md"):
                kind = InclusionLevel.NOT_IN_NAV if is_beside(path) else InclusionLevel.UNDEFINED
                made = File.generated(config, where, content=path.read_text(encoding="utf-8"), inclusion=kind)
            else:
                made = File.generated(config, where, abs_src_path=str(path))
            files.append(made)
        if path.is_dir():
            waiting |= {entry for entry in path.iterdir() if not entry.name.startswith(("_", "."))} - done
        elif path.suffix == ".md" and not where.startswith("code/"):
            waiting |= linked(path.read_text(encoding="utf-8"), path) - done
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links and code spans that name repository files to the pages made of them."""
    here = page.file.src_uri
    source = ROOT / here.removeprefix("code/").removesuffix(".md") if here.startswith("code/") else source_of(here)

    def to(path: Path) -> str:
        return os.path.relpath(place(path), Path(here).parent)

    def link(match: re.Match[str]) -> str:
        target, fragment = match.group(1), match.group(2) or ""
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        return to(Path(os.path.normpath(source.parent / target))) + fragment

    def anchor(match: re.Match[str]) -> str:
        path = ROOT / match.group(1)
        if not path.is_file() or not is_shown(path) or path.is_relative_to(DOCS / "tools"):  # which is not in the site
            return match.group(0)
        line = line_of(path, match.group(2)) if match.group(2) else None
        if line is None:
            return f"[{match.group(0)}]({to(path)})"
        page = to(path).removesuffix(".md")  # as HTML: MkDocs does not know of the anchors of lines
        return f'<a href="{page}.html#line-0-{line}">{match.group(0)}</a>'

    def prose(text: str) -> str:
        return NOTE.sub(admonition, ANCHOR.sub(anchor, LINK.sub(link, text)))

    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [prose(markdown[at : fence.start()]), equation(fence.group(0))]
        at = fence.end()
    return "".join([*parts, prose(markdown[at:])])


def admonition(match: re.Match[str]) -> str:
    """Return a note of a repository's page as an admonition of the site."""
    text = re.sub(r"^> ?", "    ", match.group(2), flags=re.MULTILINE)
    return f"!!! {match.group(1).lower()}\n\n{text}"


def equation(fence: str) -> str:
    """Return a block of LaTeX as MathML, which browsers show without a script; any other block as it is."""
    if not fence.startswith("```math"):
        return fence
    from latex2mathml.converter import convert

    return (
        f'<p class="equation">{convert(fence.removeprefix("```math").removesuffix("```").strip(), display="block")}</p>'
    )


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Let names in tables break where they may, keep the dashes of a flag with it, open figures at full size."""
    wide = page.file.src_uri in WIDE
    if wide:
        page.meta.setdefault("hide", []).append("toc")

    def table(match: re.Match[str]) -> str:
        text = NAME.sub(lambda name: BREAK.sub(r"\1<wbr>", name.group(0)), match.group(0))
        heads = re.findall(r"<th[^>]*>(.*?)</th>", text)
        if len(heads) < 3:
            return text
        label = itertools.cycle(re.sub(r"<.*?>", "", head) for head in heads)
        return re.sub(r"<td(?=[ >])", lambda cell: f'{cell.group(0)} data-label="{next(label)}"', text)

    def flags(match: re.Match[str]) -> str:
        return re.sub(r"(?<![\w-])--\w", r'<span class="flag">\g<0></span>', match.group(0))

    html = CODE.sub(flags, TABLE.sub(table, html))
    return FIGURE.sub(r'<a href="\1">\g<0></a>', html)
