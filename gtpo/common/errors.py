"""The exception for the user's mistakes."""

from __future__ import annotations

import contextlib
import difflib
import errno
import sys
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """A mistake the user can fix: what is wrong, where, and what to do, in one or two sentences.

    The command line prints the message on stderr without a traceback and exits with code 2.
    """


# Error numbers of an OSError that says that no more can be written -> what is full, and what to do.
DISK_FULL = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("your quota of the disk is used up", "free some space"),
    errno.EFBIG: ("a file reaches the limit on the size of files", "raise it (ulimit -f unlimited)"),
}


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Let a UserError, or a full disk, that is raised inside end the process: a sentence on stderr, exit code 2."""
    try:
        yield
    except UserError as mistake:
        print(f"gtpo: {mistake}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        full, remedy = DISK_FULL[error.errno]
        print(
            f"gtpo: {error.filename or 'cannot write'}: {full}: {remedy}, then run the command again", file=sys.stderr
        )
        sys.exit(2)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the nearest of `known` in any case, or "" if none is near."""
    folded = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f' Did you mean "{folded[near[0]]}"?' if near else ""
