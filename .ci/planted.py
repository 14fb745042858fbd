"""Plant a fault in a module and see whether `make check` fails: python .ci/planted.py [--faults 20].

Modules and lines are drawn with the commit as the seed, from those whose tests `make test` can run. A fault flips a
comparison, swaps a sign, is off by one or changes a default. Each stands alone in a worktree of its own, which is made
beside this one and removed at the end. What is known is kept in results/planted-COMMIT.json, so that the same command
goes on where it was stopped. A fault that changes nothing that a user could see is drawn again and stays listed:
--equivalent MODULE:LINE.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from check import git
from recorder import ROOT

# vLLM, verl and a GPU are not on each machine.
LEFT_OUT = ("evalkit/engines/vllm", "gtpo/trainer/adapter_sync.py", "gtpo/triton_head.py", "gtpo/integrations/verl")
LIMIT = 90.0
FLIPPED = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
SWAPPED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}


def modules(commit: str) -> list[str]:
    """Return the product's modules in an order drawn with the commit."""
    paths = git("ls-tree", "-r", "--name-only", commit, "gtpo", "evalkit", "rewards").split()
    names = sorted(path for path in paths if path.endswith(".py") and not path.startswith(LEFT_OUT))
    random.Random(commit).shuffle(names)
    return names


class Source:
    """The text of a module, by the places of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.raw = text.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(text)

    def start(self, node: Any) -> int:
        """Byte at which a node begins."""
        return self.starts[int(node.lineno) - 1] + int(node.col_offset)

    def end(self, node: Any) -> int:
        """Byte behind a node."""
        return self.starts[int(node.end_lineno) - 1] + int(node.end_col_offset)

    def between(self, left: Any, right: Any, operator: tuple[str, str]) -> tuple[int, int, str] | None:
        """Return the change of the operator that stands between two nodes."""
        begin, stop = self.end(left), self.start(right)
        word = re.compile(rf"(?<![\w<>=!]){re.escape(operator[0])}(?![\w=])".replace(r"\ ", r"\s+").encode())
        match = word.search(self.raw, begin, stop)
        return (match.start(), match.end(), operator[1]) if match else None

    def faults(self) -> Iterator[tuple[str, int, tuple[int, int, str]]]:
        """Yield each possible fault: its kind, its line, and the bytes that another text replaces."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                change = self.between(node.left, node.comparators[0], FLIPPED[type(node.ops[0])])
                if change:
                    yield "comparison", node.lineno, change
            elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED and not _is_text(node):
                change = self.between(node.left, node.right, SWAPPED[type(node.op)])
                if change:
                    yield "sign", node.lineno, change
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
                    yield from self.constant("default", default)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                yield from self.constant("default", node.value)
            elif isinstance(node, ast.Subscript | ast.BinOp | ast.Call | ast.Compare | ast.Slice):
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.Constant) and type(child.value) is int:
                        yield from self.constant("off by one", child)

    def constant(self, kind: str, node: ast.AST) -> Iterator[tuple[str, int, tuple[int, int, str]]]:
        """Yield the change of a number or a truth value."""
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool | int | float):
            other = str(not value) if isinstance(value, bool) else repr(value + 1)
            yield kind, node.lineno, (self.start(node), self.end(node), other)  # type: ignore[attr-defined]


def _is_text(node: ast.BinOp) -> bool:
    """Return whether a sum joins texts or lists, from which nothing can be subtracted."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple)
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def draw(path: str, commit: str, times: int) -> dict[str, Any] | None:
    """Return the fault of a module, drawn with the commit for the n-th time; None if it has no further one."""
    source = Source(git("show", f"{commit}:{path}"))
    every = sorted(set(source.faults()))
    random.Random(f"{commit} {path}").shuffle(every)
    if times >= len(every):
        return None
    kind, line, (begin, stop, text) = every[times]
    whole = (source.raw[:begin] + text.encode() + source.raw[stop:]).decode()
    before = source.raw.splitlines()[line - 1].decode().strip()
    return {"module": path, "line": line, "kind": kind, "was": before, "text": whole,
            "change": f"{source.raw[begin:stop].decode()} -> {text}"}  # fmt: skip


def plant(fault: dict[str, Any], folder: Path, command: list[str]) -> dict[str, Any]:
    """Run the check with the fault; return whether it failed, its last line, and its seconds."""
    path = folder / fault["module"]
    original = path.read_bytes()
    path.write_text(fault["text"])
    begin, before = time.monotonic(), os.times()
    # Commands that tests start find this worktree's package before the one that is installed.
    environment = os.environ | {"PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    finally:
        path.write_bytes(original)
    after = os.times()
    lines = [line for line in printed.splitlines() if line.strip()]
    # Tests that failed, or findings of lint.
    finders = [line for line in lines if re.match(r"(FAILED|ERROR) |.*: error: |.*:\d+:\d+: ", line)]
    verdict = next((line for line in reversed(lines) if line.startswith("check: ")), lines[-1] if lines else "")
    return {
        "caught": process.returncode != 0 and "NOT KNOWN" not in verdict,
        "by": finders[:3],
        "said": verdict,
        "seconds": round(time.monotonic() - begin, 1),
        "processor_seconds": round(sum(after[2:4]) - sum(before[2:4]), 1),
    }


def main() -> int:
    """Plant what is not yet known, and print all that is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="HEAD", help="the commit, and what is checked")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--equivalent", action="append", default=[], metavar="MODULE:LINE", help="draw these again")
    parser.add_argument("--command", default="check", help="target of make")
    options = parser.parse_args()
    commit = git("rev-parse", options.commit).strip()
    file = ROOT / f"results/planted-{commit[:8]}{'' if options.command == 'check' else '-' + options.command}.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for place in options.equivalent:
        known[place]["equivalent"] = True
    folder = ROOT.parent / f"planted-{os.getpid()}"
    subprocess.run(["git", "worktree", "add", "-q", "--detach", str(folder), commit], cwd=ROOT, check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        os.utime(folder / name, (0, 0))  # older than the environment, which is this checkout's: nothing is installed
    command = ["make", "--no-print-directory", options.command, f"BASE={commit}"]
    counted: list[str] = []
    try:
        for path in modules(commit):
            fault, times = draw(path, commit, 0), 0
            while fault and known.get(place := f"{path}:{fault['line']}", {}).get("equivalent"):
                times += 1
                fault = draw(path, commit, times)
            if fault is None:
                continue
            if place not in known:
                known[place] = fault | plant(fault, folder, command)
                del known[place]["text"]
            counted.append(place)
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(known, indent=1))
            print(line_of(place, known[place]), flush=True)
            if len(counted) == options.faults:
                break
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT)
        shutil.rmtree(folder, ignore_errors=True)
    for place, fault in known.items():
        if fault.get("equivalent"):
            print(f"drawn again: {line_of(place, fault)}")
    caught = [place for place in counted if known[place]["caught"]]
    slow = [place for place in counted if known[place]["seconds"] > LIMIT]
    print(f"{len(caught)} of {len(counted)} are caught; {len(slow)} took more than {LIMIT:.0f} s")
    return 0


def line_of(place: str, fault: dict[str, Any]) -> str:
    """Return what is known of a fault on one line."""
    by = fault["by"][0][:100] if fault["by"] else fault["said"][:100]
    verdict = "caught" if fault["caught"] else "MISSED"
    times = f"{fault['seconds']:.0f} s, {fault['processor_seconds']:.0f} of the processor"
    return f"{verdict} {place} ({fault['kind']}: {fault['change']}; {fault['was'][:60]}) in {times}: {by}"


if __name__ == "__main__":
    sys.exit(main())
