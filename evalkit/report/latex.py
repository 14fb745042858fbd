r"""A comparison as LaTeX: one booktabs table per metric, for pdfLaTeX, XeLaTeX and LuaLaTeX.

A table* spans the text width of a one-column article and both columns of a two-column one; what is still wider is
scaled down to it. Greek letters are written as mathematics, which every engine sets. Names in other scripts are set as
they are by XeLaTeX and LuaLaTeX (with a font that has them); pdfLaTeX, which cannot, gets them transliterated.
"""

from __future__ import annotations

import unicodedata

from gtpo.evalkit.comparison.compare import MethodComparison, Table
from gtpo.evalkit.comparison.verdicts import EQUIVALENT, UNDECIDED, Cell, Column
from gtpo.evalkit.report.summary import caption, legend, sentences
from gtpo.evalkit.report.tables import average_text, name_text
from gtpo.evalkit.report.text import bounds, difference, interval, percent, spread, visible

STARS = ((0.001, 3), (0.01, 2), (0.05, 1))
_MARKUP = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}", "·": r"$\cdot$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "-": "{-}",
    "▲": r"$\uparrow$", "≈": r"$\approx$", "▼": r"$\downarrow$", "†": r"$\dagger$",
}  # fmt: skip
_GREEK_NAMES = (
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon varphi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ", _GREEK_NAMES.split(), strict=True))


def latex(text: str) -> str:
    """Text that LaTeX sets as it is written, whatever it holds."""
    text = visible(text)
    if all(c in _MARKUP or c in _GREEK or ord(c) < 128 or _accented(c) for c in text):
        return "".join(map(_character, text))
    plain = "".join(_character(c) for c in _transliterated(text))
    other = "".join(_MARKUP.get(c, c) for c in text)
    return rf"\ifdefined\XeTeXversion {other}\else\ifdefined\directlua {other}\else {plain}\fi\fi{{}}"


def _accented(c: str) -> bool:
    """Return whether pdfLaTeX's default fonts can build the letter: a Latin one, with one common accent."""
    parts = unicodedata.normalize("NFD", c)
    return ord(c) < 0x180 and len(parts) == 2 and parts[0].isascii()


def _character(c: str) -> str:
    return rf"\ensuremath{{\{_GREEK[c]}}}" if c in _GREEK else _MARKUP.get(c, c)


def _transliterated(text: str) -> str:
    """ASCII for letters that decompose to it, U+6A21 for the others."""
    out = []
    for c in text:
        kept = unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode()
        out.append(c if c in _MARKUP or c in _GREEK or ord(c) < 128 or _accented(c) else kept or f"U+{ord(c):04X} ")
    return "".join(out).strip()


def as_latex(comparison: MethodComparison, *, details: bool = False) -> str:
    """The tables for a paper, and with `details` one of every k per benchmark."""
    lines = [r"% \usepackage{booktabs,graphicx,textcomp}"]
    lines += [f"% note: {visible(note)}" for note in comparison.all_notes]
    lines += [f"% verdict: {one.text}" for one in sentences(comparison)]
    for column in comparison.metrics if comparison.tables else []:
        lines += ["", *_paper_table(comparison, column)]
    for table in comparison.tables if details else [table for table in comparison.tables if table.group]:
        lines += ["", *_details_table(comparison, table)]
    return "\n".join(lines) + "\n"


def _paper_table(comparison: MethodComparison, column: Column) -> list[str]:
    tables = comparison.benchmarks
    average = len(tables) > 1
    heads = [latex(table.benchmark) for table in tables] + ["average"] * average
    counts = [rf"{{\scriptsize {table.questions:,}}}" for table in tables] + [""] * average
    body = [f" & {' & '.join(heads)} \\\\", rf"{{\scriptsize questions}} & {' & '.join(counts)} \\", r"\midrule"]
    for method in comparison.methods:
        cells = [(table, table.cells.get((method.name, column))) for table in tables]
        values = [_value(table, method.name, column, cell) for table, cell in cells]
        values += [latex(average_text(comparison, method.name, column))] * average
        body.append(f"{latex(name_text(comparison, method.name))} & {' & '.join(values)} \\\\")
        texts = ["" if c is None else f"{interval(c.value)} {bounds(c)}".rstrip() for _, c in cells]
        below = [text and rf"{{\scriptsize {latex(text)}}}" for text in texts]
        body.append(f" & {' & '.join(below + [''] * average)} \\\\")
        paired = [cell.paired if cell is not None else None for _, cell in cells]
        if any(paired):
            change = ["" if d is None else rf"{{\scriptsize ${difference(d)}$}}" for d in paired]
            body.append(f" & {' & '.join(change + [''] * average)} \\\\")
        body.append(r"\addlinespace[2pt]")
    said = " ".join(legend(comparison)).replace("▲ better or ▼ worse", "* better or † worse")
    text = f"{caption(comparison, column)}. {_marks(comparison)}{said}"
    return _environment(body[:-1], len(heads), text, column.label.replace("@", "-at-"))


def _marks(comparison: MethodComparison) -> str:
    if comparison.baseline is None:
        return ""
    return (
        "* better, † worse: corrected p <= 0.05; doubled for p <= 0.01, tripled for 0.001; "
        + "≈ equivalent; " * (comparison.margin is not None)
        + "? undecided. "
    )


def _value(table: Table, method: str, column: Column, cell: Cell | None) -> str:
    if cell is None:
        return "--"
    value, rank = percent(cell.value.mean), table.rank(method, column)
    value = rf"\textbf{{{value}}}" if rank == 1 else rf"\underline{{{value}}}" if rank == 2 else value
    if cell.direction and cell.p_corrected is not None:
        count = next((stars for level, stars in STARS if cell.p_corrected <= level), 0)
        value += f"$^{{{('*' if cell.direction > 0 else chr(92) + 'dagger ') * count}}}$"
    elif cell.verdict in (EQUIVALENT, UNDECIDED):
        value += r"$^{\approx}$" if cell.verdict == EQUIVALENT else "$^{?}$"
    return value + (rf" {{\scriptsize {latex(spread(cell.value))}}}" if spread(cell.value) else "")


def _details_table(comparison: MethodComparison, table: Table) -> list[str]:
    columns = table.columns
    body = [f" & {' & '.join(column.label for column in columns)} \\\\", r"\midrule"]
    for name in table.methods:
        cells = [table.cells[name, column] for column in columns]
        body.append(f"{latex(name_text(comparison, name))} & {' & '.join(percent(c.value.mean) for c in cells)} \\\\")
        small = [rf"{{\scriptsize {interval(c.value)}}}" for c in cells]
        body.append(f" & {' & '.join(small)} \\\\")
    text = f"{table.title}: {table.questions:,} questions, {table.samples} samples each, scoring {comparison.scoring}."
    return _environment(body, len(columns), text, table.title)


def _environment(body: list[str], columns: int, text: str, name: str) -> list[str]:
    label = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
    return [
        r"\begin{table*}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\sbox0{{\begin{{tabular}}{{@{{}}l{'r' * columns}@{{}}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\ifdim\wd0>\textwidth\resizebox{\textwidth}{!}{\usebox0}\else\usebox0\fi",
        rf"\caption{{{latex(text)}}}",
        rf"\label{{tab:{label}}}",
        r"\end{table*}",
    ]
