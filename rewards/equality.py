"""Runs in workers only: equality of two answers that are not plain numbers."""

from __future__ import annotations

from typing import Any

from math_verify import parse, verify


def _wrap(text: str) -> str:
    return text if "$" in text else f"${text}$"


def outcome(task: dict[str, Any]) -> str:
    """Return CORRECT or INCORRECT."""
    gold = parse(_wrap(task["gold"]), parsing_timeout=None)
    prediction = parse(_wrap(task["prediction"]), parsing_timeout=None)
    return "CORRECT" if verify(gold, prediction, timeout_seconds=None) else "INCORRECT"
