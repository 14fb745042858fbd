"""From an answer as written to its parts, and what the problem says about them. The tables are in tables.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gtpo.rewards.completions import Phrases, words

# Data in a file of data: who adds a unit or a spelling reads no code.
TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
WORDS = SimpleNamespace(**{name: words(text) for name, text in TABLES["words"].items()})


def patterns(table: str) -> list[tuple[re.Pattern[str], str]]:
    """Return a table whose keys are regular expressions, in its order."""
    return [(re.compile(pattern), value) for pattern, value in TABLES[table].items()]


SAYS = Phrases(TABLES["phrases"])
