r"""A comparison as LaTeX: one booktabs table per metric, for pdfLaTeX, XeLaTeX and LuaLaTeX.

A table* spans the text width of a one-column article and both columns of a two-column one; what is still wider is
scaled down to it. Greek letters are written as mathematics, which every engine sets. Names in other scripts need
XeLaTeX or LuaLaTeX, and a font that has them.
"""

from __future__ import annotations

from collections.abc import Iterable

from gtpo.evalkit.comparison.compare import MethodComparison
from gtpo.evalkit.comparison.verdicts import EQUIVALENT, UNDECIDED, Cell
from gtpo.evalkit.report.summary import is_judged, legend, sentences
from gtpo.evalkit.report.tables import Grid, detail_grids, paper_grids
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
    return "".join(rf"\ensuremath{{\{_GREEK[c]}}}" if c in _GREEK else _MARKUP.get(c, c) for c in visible(text))


def as_latex(comparison: MethodComparison, *, details: bool = False) -> str:
    """The tables for a paper, and with `details` those of every test and k."""
    lines = [r"% \usepackage{booktabs,graphicx,textcomp}"]
    lines += [f"% note: {visible(note)}" for note in comparison.all_notes]
    lines += [f"% verdict: {one.text}" for one in sentences(comparison)]
    words = " ".join(legend(comparison)).replace("▲ better or ▼ worse", "* better or † worse")
    if is_judged(comparison):
        equal = "≈ equivalent; " * (comparison.margin is not None)
        stars = f"* better, † worse: corrected p <= 0.05; doubled for p <= 0.01, tripled for 0.001; {equal}? undecided."
        words = f"{stars} {words}"
    for grid in paper_grids(comparison):
        lines += ["", *_table(grid, f"{grid.title}. {words}")]
    for grid in detail_grids(comparison, details):
        lines += ["", *_table(grid, f"{grid.title}, scoring {comparison.scoring}.")]
    return "\n".join(lines) + "\n"


def _table(grid: Grid, text: str) -> list[str]:
    body = [_line(map(latex, ["", *grid.head[1:]])), r"\midrule"]
    for row in grid.rows:
        body.append(_line(_value(one) if isinstance(one, Cell) else latex(one or "–") for one in row))
        cells = [one if isinstance(one, Cell) else None for one in row]
        # A cell's interval and its difference go below it, small.
        if any(cells):
            body.append(_line(_small(f"{interval(c.value)} {bounds(c)}".rstrip()) if c else "" for c in cells))
        if any(c and c.paired for c in cells):
            body.append(_line(f"{{\\scriptsize ${difference(c.paired)}$}}" if c and c.paired else "" for c in cells))
        body.append(r"\addlinespace[2pt]")
    label = "".join(c if c.isascii() and c.isalnum() else "-" for c in grid.name.replace("@", "-at-"))
    return [
        r"\begin{table*}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\sbox0{{\begin{{tabular}}{{@{{}}l{'r' * (len(grid.head) - 1)}@{{}}}}",
        r"\toprule",
        *body[:-1],
        r"\bottomrule",
        r"\end{tabular}}",
        r"\ifdim\wd0>\textwidth\resizebox{\textwidth}{!}{\usebox0}\else\usebox0\fi",
        rf"\caption{{{latex(text)}}}",
        rf"\label{{tab:{label}}}",
        r"\end{table*}",
    ]


def _line(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _small(text: str) -> str:
    return rf"{{\scriptsize {latex(text)}}}"


def _value(cell: Cell) -> str:
    value = percent(cell.value.mean)
    if cell.direction and cell.p_corrected is not None:
        count = next((stars for level, stars in STARS if cell.p_corrected <= level), 0)
        value += f"$^{{{('*' if cell.direction > 0 else chr(92) + 'dagger ') * count}}}$"
    elif cell.verdict in (EQUIVALENT, UNDECIDED):
        value += r"$^{\approx}$" if cell.verdict == EQUIVALENT else "$^{?}$"
    return value + (f" {_small(spread(cell.value))}" if spread(cell.value) else "")
