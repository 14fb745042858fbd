"""The program of a verification worker: one task a line on stdin, its outcome on stdout.

`python -m gtpo.rewards.verification.worker MEMORY_MB TIMEOUT_S`. The address space is limited, so that runaway terms
end in a MemoryError and not in the machine's swap. What an answer costs is bounded by counted work; two timers are the
guard, with the default action, which ends the process even inside C code. One counts the processor time that a task has
used, half the timeout: its end is the answer's own doing. The other counts wall-clock time and is for a worker whose
caller is gone; the caller's own deadline comes first.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

from gtpo.rewards.limits import ORPHAN_GRACE_S, PROCESSOR_SHARE


def _lines() -> Iterator[tuple[bytes, bool]]:
    """Yield (line of stdin, whether it had to be awaited) until stdin closes or the caller has died."""
    parent, rest = os.getppid(), b""
    while True:
        # Every 5 seconds, as a caller that was killed closes no pipe that another child of its holds.
        if not select.select([0], [], [], 5.0)[0]:
            if os.getppid() != parent:
                return
            continue
        if not (part := os.read(0, 65536)):
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from zip(lines, [True, *[False] * len(lines)], strict=False)


def _arm(timeout_s: float) -> None:
    """Start both timers for one task, or stop them (0)."""
    signal.setitimer(signal.ITIMER_PROF, timeout_s * PROCESSOR_SHARE)
    signal.setitimer(signal.ITIMER_REAL, timeout_s and timeout_s + ORPHAN_GRACE_S)


def _limit_memory(memory_mb: int) -> None:
    """Limit the address space, if the system knows such a limit (Linux; macOS takes it and does not enforce it)."""
    try:
        import resource

        # A worker that runs out of memory in C code aborts, and would leave a core file of a gigabyte.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    except (ImportError, ValueError, OSError) as error:
        print(f"gtpo: the memory of verification workers is not limited here ({error})", file=sys.stderr)


def _math_verify(prediction: str, gold: str, problem: None = None) -> str:
    """Return Math-Verify's own verdict, from its extraction and its comparison, as its documentation asks for it."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    # Its timeouts are off (0): they are signals, and the worker has clocks of its own.
    golds = parse(f"${gold}$", parsing_timeout=0)
    if not golds:
        return "UNUSABLE_GOLD"
    answers = parse(prediction, parsing_timeout=0)
    if not answers:
        return "NO_ANSWER"
    return "CORRECT" if verify(golds, answers, timeout_seconds=0) else "INCORRECT"


def main() -> None:
    """Serve tasks until the caller goes away."""
    memory_mb, timeout_s = int(sys.argv[1]), float(sys.argv[2])
    # Prints of a library must not reach the protocol: keep a private copy of stdout, point fd 1 at stderr.
    replies = os.dup(1)
    os.dup2(2, 1)

    def send(*message: str) -> None:
        # One system call, so that the caller never waits for the rest of a line.
        os.write(replies, json.dumps(message).encode() + b"\n")

    _limit_memory(memory_mb)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # A product of hundreds of factors is a term that is as deep, and terms are walked by recursion.
    sys.setrecursionlimit(2000)
    try:
        _serve(send, timeout_s)
    except ImportError as error:  # of Math-Verify, too, which few answers need: no verdict on this one
        send("lacks", f"{error}; install gtpo again with its dependencies")
        os._exit(1)
    except MemoryError:
        send("lacks", f"memory_mb {memory_mb} is too little")
        os._exit(1)
    os._exit(0)


def _serve(send: Callable[..., None], timeout_s: float) -> None:
    from gtpo.rewards.equality.arithmetic import TooBig
    from gtpo.rewards.equality.comparing.decide import decide, explain
    from gtpo.rewards.extract import extract_by

    send("ready")
    for line, awaited in _lines():
        if awaited:  # the caller's clock for a task that was sent ahead starts with the outcome before it
            send("begin")
        _arm(timeout_s)
        try:
            task = json.loads(line)
            by = task.pop("by", None)
            if by == "math-verify":
                if "math_verify" not in sys.modules:
                    # Its import, with SymPy's, takes a second: off the clock, which starts again with "begin".
                    _arm(0)
                    send("load")
                    _math_verify("$x$", "x")
                    send("begin")
                    _arm(timeout_s)
                outcome = _math_verify(**task)
            elif by == "rule":
                outcome = f"={extract_by(**task) or ''}"
            else:
                outcome = (explain if by == "explain" else decide)(**task)
        except MemoryError:
            send("retire", "REJECTED")  # a fresh process for the next: this one's memory may be fragmented
            return
        except ImportError:
            raise
        except (RecursionError, TooBig):
            outcome = "REJECTED"
        except Exception:  # a fault of ours: said on stderr with the pair, and no reason to lose the worker
            print(f"gtpo: verifying {line[:400]!r} failed", file=sys.stderr)
            traceback.print_exc()
            outcome = "REJECTED"
        _arm(0)
        send("done", outcome)


if __name__ == "__main__":
    main()
