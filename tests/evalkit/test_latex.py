"""The LaTeX table compiles, in one column and in two, whatever a run is called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from run_folders import write_eval
from test_compare import gtpo

from gtpo.evalkit.report.latex import latex

NAMES = ("50 % \\input{x} $#_&~^{}", "λ=0.5 Ω·ß é", "模型-Привет", "plain-grpo")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a_b & 5 %", r"a\_b \& 5 \%"),
        ("λ", r"\ensuremath{\lambda}"),
        ("é", "é"),
        ("a\u202eb", r"a\textbackslash{}u202eb"),
        ("模", r"\ifdefined\XeTeXversion 模\else\ifdefined\directlua 模\else U+6A21\fi\fi{}"),
    ],
)
def test_names_are_set_as_written(text: str, wanted: str) -> None:
    assert latex(text) == wanted


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("latex")
    sizes = {f"bench_{i}": 12 for i in range(5)}
    for i, name in enumerate(NAMES):
        method = "grpo" if i == 3 else "gtpo"
        write_eval(home / f"run-{i}", name=name, skill=i, seed=i, method=method, benchmarks=sizes)
    ran = gtpo("compare", *(f"run-{i}" for i in range(4)), "--details", "--format", "latex", cwd=home)
    assert ran.returncode == 0, ran.stderr
    (home / "tables.tex").write_text(ran.stdout)
    return home


@pytest.mark.parametrize("options", ["", "twocolumn"])
@pytest.mark.parametrize("engine", ["pdflatex", "xelatex"])
def test_tables_compile_and_fit(engine: str, options: str, tables: Path) -> None:
    if not shutil.which(engine):
        pytest.skip(f"{engine} is not installed (Debian: texlive-latex-recommended, texlive-xetex)")
    name = f"{engine}-{options}"
    (tables / f"{name}.tex").write_text(
        rf"\documentclass[{options}]{{article}}\usepackage{{booktabs,graphicx,textcomp}}"
        r"\begin{document}\input{tables.tex}\end{document}"
    )
    done = subprocess.run(
        [engine, "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"],
        cwd=tables, capture_output=True, text=True, errors="replace", timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout
    assert (tables / f"{name}.pdf").read_bytes().startswith(b"%PDF")
