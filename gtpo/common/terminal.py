"""What a command prints on stdout, at the width that is there."""

from __future__ import annotations

import copy
import os
import sys
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def visible(text: str) -> str:
    """Return text with control characters, marks of writing direction and the like written out, e.g. `\\u202e`."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c
        for c in text
    )


def stdout_console(pipe: int) -> Console:
    """Return the console of stdout: as wide as its terminal, else as COLUMNS, else as `pipe`.

    Prose is folded only on a terminal: who reads a pipe searches it for sentences.
    """
    from rich.console import Console

    folded, columns = sys.stdout.isatty(), os.environ.get("COLUMNS", "")
    width = None if folded or columns.isdecimal() else pipe  # rich reads COLUMNS itself
    # Brackets and colons in a name are no markup of rich's.
    return Console(width=width, highlight=False, soft_wrap=not folded, markup=False, emoji=False)


def stacked(table: Table, width: int, *, keep: int = 1) -> list[Table]:
    """Return the table, or several that hold its columns in turn behind the first `keep`, so that each fits."""
    from rich.console import Console

    console = Console(width=10_000, markup=False, emoji=False)
    pieces: list[Table] = []
    for column in table.columns[keep:]:
        wider = copy.copy(pieces[-1] if pieces else table)
        before = wider.columns if pieces else table.columns[:keep]
        wider.columns = [replace(each, no_wrap=True) for each in (*before, column)]
        if len(before) > keep and console.measure(wider).maximum > width:  # it begins the next one
            wider.title = None
            wider.columns = [*wider.columns[:keep], wider.columns[-1]]
            pieces.append(wider)
        else:
            pieces[-1:] = [wider]
    return pieces if len(pieces) > 1 else [table]
