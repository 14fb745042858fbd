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


def raise_all(errors: Iterable[str]) -> None:
    """Raise one UserError with a line per error, if there are any."""
    if lines := list(dict.fromkeys(errors)):
        raise UserError("\n      ".join(lines))


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
        return
    except UserError as mistake:
        sentence = str(mistake)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        full, remedy = DISK_FULL[error.errno]
        sentence = f"{error.filename or 'cannot write'}: {full}: {remedy}, then run the command again"
    print(f"gtpo: {sentence}", file=sys.stderr)
    sys.exit(2)


# What other programs call an option -> what it is called here, whichever of these the command has.
_ELSEWHERE = {
    "lr": ("learning_rate",),
    "epochs": ("num_train_epochs",),
    "batch_size": ("per_device_train_batch_size",),
    "seed": ("random_seed",),
    "warmup": ("warmup_ratio",),
    "gpu": ("cuda",),
    "use_vllm": ("engine",),
    "reward": ("reward_funcs",),
    "tasks": ("benchmarks",),
    "dataset": ("benchmarks",),
    "n": ("samples", "num_generations"),
    **dict.fromkeys(("out", "output", "output_dir", "save_dir"), ("out", "run-name", "run_name")),
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the nearest of `known` in any case, or "" if none is near.

    Names are compared without dashes before them; what other programs call an option or dotted key is known.
    """
    known = list(known)
    folded = {entry.lower().lstrip("-"): entry for entry in known}
    leaves = {entry.lstrip("-").rpartition(".")[2]: entry for entry in known}
    ours = _ELSEWHERE.get(name.lstrip("-").rpartition(".")[2].lower().replace("-", "_"), ())
    near = [leaves[leaf] for leaf in ours if leaf in leaves]
    near += [folded[each] for each in difflib.get_close_matches(name.lower().lstrip("-"), folded, 1, 0.5)]
    return f' Did you mean "{near[0]}"?' if near else ""
