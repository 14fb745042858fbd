"""Dates: `May 2, 1966`, `Monday, 2 May 1966`, `the 2nd of May, 1966`, `1966-05-02`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from gtpo.rewards.equality.answers import Answer, Kind, Part, Same
from gtpo.rewards.equality.reading import SAYS

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)(?![a-z])\.?"
)
_DAY, _YEAR = r"(?:the\s+)?(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?:\s*,?\s*(?P<year>\d{4}))?"
_WEEKDAY = r"^(?:on\s+)?(?:(?P<weekday>(?:mon|tues|wednes|thurs|fri|satur|sun)day),?\s+)?"
_FORMS = [
    re.compile(rf"{_WEEKDAY}{_MONTH}\s+{_DAY}{_YEAR}$", re.IGNORECASE),
    re.compile(rf"{_WEEKDAY}{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}$", re.IGNORECASE),
    re.compile(r"^(?P<weekday>)(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)$"),
]


@dataclass(frozen=True)
class Date(Kind):
    """A day of the calendar; without a year it is of any."""

    marks = re.compile(rf"(?i)(?<![a-z]){_MONTH}|\d{{4}}-\d\d-\d\d")
    day: int
    month: int
    year: str
    weekday: str

    @classmethod
    def read(cls, text: str, part: Part) -> Answer | None:
        """Return the date that a text is."""
        plain = SAYS.text.sub(r"\1", text).strip(" .")
        match = next(filter(None, (form.match(plain) for form in _FORMS)), None)
        if match is None:
            return None
        word = match["month"].lower()
        month = int(word) if word.isdigit() else _MONTHS.index(word[:3]) + 1
        with suppress(ValueError):  # February 30; the 29th is in some years
            day = date(int(match["year"] or 2000), month, int(match["day"]))
            return cls(day.day, month, match["year"] or "", (match["weekday"] or "").lower())
        return None

    @classmethod
    def same(cls, p: Answer, g: Answer, equal: Same, problem: Any) -> bool:
        """Return whether two dates are one day; only what the problem says of the gold's may be left out."""
        if not (isinstance(p, Date) and isinstance(g, Date)) or (p.day, p.month) != (g.day, g.month):
            return False
        known = {"", *problem.tokens, *problem.vocabulary}
        parts = ((p.year, g.year), (p.weekday, g.weekday))
        return all(wanted in ("", ours) or (not ours and wanted in known) for ours, wanted in parts)

    def parts(self) -> Sequence[Answer]:
        """Return nothing: a date leaves no work."""
        return ()
