"""The exception for the user's mistakes."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """A mistake the user can fix: what is wrong, where, and what to do, in one or two sentences.

    The command line prints the message on stderr without a traceback and exits with code 2.
    """


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Let a UserError that is raised inside end the process: its message on stderr, exit code 2."""
    try:
        yield
    except UserError as mistake:
        print(f"gtpo: {mistake}", file=sys.stderr)
        sys.exit(2)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the nearest of `known` in any case, or "" if none is near."""
    folded = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f' Did you mean "{folded[near[0]]}"?' if near else ""
