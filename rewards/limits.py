"""How much of anything is looked at, computed or awaited: every limit of this package in one place."""

from __future__ import annotations

MAX_CORES = 10
"""Texts that an answer is judged as while the words around it are read away."""
MAX_STATEMENT = 600
"""Characters of a sentence that is read for its value."""
ANSWERS_KEPT = 1024
"""Answers kept as read: a question's gold and its candidates come again and again."""
PROBLEM_CHARACTERS = 8_000
"""Of a problem's text that are looked at, from its end: the question comes last."""
PROBLEM_EXPRESSIONS = 400
