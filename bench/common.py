"""What the benches share: options, turns, times and memory, tables, files, and the material of other projects."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gtpo.common.files import read_jsonl, write_json

SEED = 20250819
SHARED = Path(os.environ.get("GTPO_SHARED_DIR", "../shared"))
"""Recorded completions, data and grader cases of others, which are not part of the repository."""


def parser(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser whose options are given as their defaults, or as types where they have none.

    A tuple: one of these texts, the first where it is not given. A list: several values. False: a flag.
    """
    made = argparse.ArgumentParser(program(), description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        rest: dict[str, Any] = {"default": default, "type": type(default)}
        if isinstance(default, type):
            rest = {"type": default}
        elif default is False:
            rest = {"action": "store_true"}
        elif isinstance(default, tuple):
            rest = {"default": default[0], "choices": default}
        elif isinstance(default, list):
            rest = {"default": default, "nargs": "+", "type": type(default[0])}
        said = f"default: {rest['default']}" if "default" in rest else ""
        made.add_argument(f"--{name.replace('_', '-')}", help=said, **rest)
    return made


def with_shared(made: argparse.ArgumentParser, *parts: str) -> argparse.Namespace:
    """Return the arguments, with --shared; ends with a sentence where one of the parts is not in that folder."""
    made.add_argument("--shared", type=Path, default=SHARED, help="folder of recorded completions and data")
    asked = made.parse_args()
    for part in parts:
        if not (asked.shared / part).is_dir():
            made.exit(2, f"{made.prog}: {asked.shared}/{part}: no such folder; name it by --shared\n")
    return asked


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [row for _, row in read_jsonl(path)]


def program() -> str:
    """Return the name of the module that is running."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else Path(sys.argv[0]).stem


def command() -> str:
    """Return the command that is running, as a file names it."""
    return shlex.join(["python", "-m", program(), *sys.argv[1:]])


def in_turns(names: Iterable[str], rounds: int, seed: int = SEED) -> Iterator[tuple[int, str]]:
    """Yield (round, name): each name once a round, in an order drawn anew, so that none always follows another."""
    draw, names = random.Random(seed), list(names)
    for number in range(rounds):
        for name in draw.sample(names, len(names)):
            yield number, name


def seconds(call: Callable[[], Any], calls: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of one call, the mean of several."""
    begin = clock()
    for _ in range(calls):
        call()
    return (clock() - begin) / calls


def with_temporaries(call: Callable[[], Any], tensors: Callable[[Any], Sequence[Any]]) -> tuple[Any, int]:
    """Return what a call returns, and the allocator's peak bytes during it on a CPU less the bytes of its tensors."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return result, peak - bytes_of(tensors(result))


def bytes_of(tensors: Sequence[Any]) -> int:
    """Return the bytes that tensors hold."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table; a column whose name begins with > is aligned to the right, numbers have four digits."""
    columns = list(columns)
    marks = "|".join("--:" if name.startswith(">") else ":--" for name in columns)
    texts = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = [" | ".join(cells) for cells in ((name.removeprefix(">") for name in columns), *texts)]
    return "\n".join([f"| {lines[0]} |", f"|{marks}|", *(f"| {line} |" for line in lines[1:])])


def save(path: Path, document: Any) -> None:
    """Write a result and say where."""
    write_json(path, document)
    print(f"written to {path}")
