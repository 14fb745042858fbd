"""`make check`: the tests nearest to what changed since main, within a time limit, and lint beside them.

Tests are picked by what `.ci/recorder.py` wrote when they last ran: first the files that ran a changed function, or
opened a changed file, then those that ran anything of its module. What no test has run yet is looked up by imports.
Exit code 0: all passed, and each changed function ran. 1: something failed. 3: nothing failed, but not all was run.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recorder import AT_IMPORT, MARKED, ROOT, named_functions, read_record, record_file

# What the packages hold beside Python counts as modules.
PRODUCT = (*(folder for folder in MARKED if folder != "bench/"), "configs/")
# Seconds for a test file that never ran.
UNKNOWN = 15.0
# So many test files that run what changed make those that run only what is beside it needless.
ENOUGH = 3
Record = dict[str, dict[str, Any]]


def git(*words: str) -> str:
    """Return what git prints; nothing if it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout


# -- what changed ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A file that differs from the base."""

    path: str
    before: str
    """Its path in the base, which is another if it moved."""
    functions: frozenset[str]
    """The functions that differ; "" stands for what lies outside functions, and for all of a file of data."""
    gone: bool = False

    @property
    def is_code(self) -> bool:
        """Whether its functions are recorded."""
        return self.path.endswith(".py") and self.path.startswith(MARKED)

    @property
    def is_product(self) -> bool:
        """Whether it counts as a changed module."""
        return self.path.startswith(PRODUCT) and not self.gone


def parts(source: str) -> dict[str, str]:
    """Return the functions of a module by name, and the rest under "", without what does not act: comments, places."""
    tree = ast.parse(source)
    found: dict[str, str] = {}
    outermost = {id(node): name for name, node in named_functions(tree)}

    class Rest(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            if id(node) not in outermost:
                return self.generic_visit(node)
            name = outermost[id(node)]
            found[name] = found.get(name, "") + ast.dump(node)
            return None

    return found | {"": ast.dump(Rest().visit(tree))}


def changed_functions(before: str, after: str) -> frozenset[str]:
    """Return which functions of a module differ."""
    try:
        old, new = parts(before), parts(after)
    except SyntaxError:
        return frozenset({""})
    return frozenset(name for name in old | new if old.get(name) != new.get(name))


def changes(base: str) -> list[Change]:
    """Return what differs from the base: committed, changed and new files."""
    start = git("merge-base", "HEAD", base).strip() or "HEAD"
    found = []
    for line in git("diff", "--name-status", "-M", start).splitlines():
        status, *paths = line.split("\t")
        path, before = paths[-1], paths[0]
        functions = frozenset({""})
        if path.endswith(".py") and status[0] in "MR":
            functions = changed_functions(git("show", f"{start}:{before}"), (ROOT / path).read_text())
        elif path.endswith(".py") and status[0] != "D":
            functions = changed_functions("", (ROOT / path).read_text())
        if functions:
            found.append(Change(path, before, functions, gone=status[0] == "D"))
    new = git("ls-files", "--others", "--exclude-standard").splitlines()
    for path in filter(lambda path: (ROOT / path).is_file(), new):
        code = path.endswith(".py")
        functions = changed_functions("", (ROOT / path).read_text()) if code else frozenset({""})
        found.append(Change(path, path, functions))
    return found


# -- which tests are near ----------------------------------------------------------------------------------------------


class Imports:
    """Who imports whom, for what no test has run yet."""

    @cached_property
    def graph(self) -> Any:
        """The product's imports."""
        import grimp

        sys.path.insert(0, str(ROOT / ".types"))
        return grimp.build_graph("gtpo", cache_dir=None)

    @staticmethod
    def module(path: str) -> str:
        """Return the name under which a file of the product is imported."""
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return name if name.startswith("gtpo") else f"gtpo.{name}"

    @cached_property
    def of_tests(self) -> dict[str, set[str]]:
        """Test file -> the modules that it names in imports."""
        found = {}
        for path in (ROOT / "tests").rglob("*.py"):
            names = found[str(path.relative_to(ROOT))] = set[str]()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
                    if node.module == "commands":
                        names.add("gtpo.cli")
        return found

    def importers(self, path: str, *, all_of_them: bool = False) -> set[str]:
        """Return the modules that import this one."""
        module = self.module(path)
        if not path.endswith(".py") or module not in self.graph.modules:
            return set()
        if all_of_them:
            return set(self.graph.find_downstream_modules(module))
        return set(self.graph.find_modules_that_directly_import(module))


def ran(entry: dict[str, Any], change: Change) -> set[str]:
    """Return the functions of a changed module that a test file ran, or declares to run in another process: "*"."""
    names = {*entry["functions"].get(change.path, ()), *entry["functions"].get(change.before, ())}
    declared = any(path.endswith("/") and change.path.startswith(path) for path in entry["functions"])
    return tested(names) | ({"*"} if declared else set())


def tested(names: Iterable[str]) -> set[str]:
    """Return the functions that did not run on import only."""
    return {name for name in names if not name.startswith(AT_IMPORT)}


def on_import(record: Record, change: Change) -> set[str]:
    """Return the functions of a changed module that run when it is imported."""
    names = (name for entry in record.values() for name in entry["functions"].get(change.path, ()))
    return {name.removeprefix(AT_IMPORT) for name in names if name.startswith(AT_IMPORT)}


def readers_of(record: Record, change: Change) -> set[str]:
    """Return the modules that open a changed file of data."""
    return {reader for entry in record.values() for reader in entry["opened"].get(change.path, ())}


def modules_run(entry: dict[str, Any]) -> set[str]:
    """Return the modules of which a test file ran a function, by the names of their imports."""
    return {Imports.module(path) for path, names in entry.get("functions", {}).items() if tested(names)}


def is_near(change: Change, entry: dict[str, Any], readers: set[str]) -> int | None:
    """Return 1 for a test file that runs what changed, 2 for one that runs what is beside it, None for any other."""
    if change.path in entry["opened"]:
        return 1
    names = ran(entry, change)
    if names & {*change.functions, "*"} or (change.functions == {""} and names):
        return 1
    return 2 if names or any(tested(entry["functions"].get(reader, ())) for reader in readers) else None


def nearest(change: Change, record: Record, imports: Imports) -> list[str]:
    """Return the test files that may see a change, the nearest first."""
    if change.path.startswith("tests/") and Path(change.path).name.startswith("test_"):
        return [] if change.gone else [change.path]
    readers = readers_of(record, change)
    order: dict[str, tuple[Any, ...]] = {}
    if change.path.endswith(".py") and not change.is_code:  # what tests share, and scripts
        order = {file: (1, True, 0, 0) for file, names in imports.of_tests.items() if Path(change.path).stem in names}
    for file, entry in record.items():
        near = is_near(change, entry, readers)
        if near is not None and file not in order:
            total = sum(map(len, entry["functions"].values())) + len(entry["opened"])
            share = max(1, len(ran(entry, change))) / total
            named = Path(file).stem == f"test_{Path(change.path).stem}"
            order[file] = (near, not named, -share, entry["seconds"])
    # One or two files may only be the first of their processes that filled a cache.
    if sum(near == 1 for near, *_ in order.values()) >= ENOUGH:
        order = {file: key for file, key in order.items() if key[0] == 1}
    # What lies outside functions acts through the modules that import it.
    if not order or "" in change.functions or change.functions & on_import(record, change):
        owners = {change.path} if change.is_code else readers
        direct = {name for path in owners for name in imports.importers(path)}
        every = {name for path in owners for name in imports.importers(path, all_of_them=True)} if not order else set()
        for file, names in imports.of_tests.items():
            if file in order or not Path(file).name.startswith("test_"):
                continue
            runs = names | modules_run(record.get(file, {}))
            distance = 3 if {*map(imports.module, owners)} & names else 4 if direct & runs else 5
            if distance < 5 or every & names:
                order[file] = (distance, len(names), 0, 0)
    return sorted(order, key=order.__getitem__)


def chosen(queues: list[list[str]], record: Record, jobs: int, limit: float) -> tuple[list[str], list[str], float]:
    """Return the test files that fit, those that do not, and the seconds of the longest job.

    Each change in turn gets its next nearest file.
    """
    loads, inside, outside = [0.0] * jobs, list[str](), list[str]()
    for file in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*queues))):
        if file in inside or file in outside or not (ROOT / file).exists():
            continue
        seconds = record.get(file, {}).get("seconds", UNKNOWN)
        least = loads.index(min(loads))
        if loads[least] + seconds <= limit:
            loads[least] += seconds
            inside.append(file)
        else:
            outside.append(file)
    return inside, outside, max(loads)


# -- what was looked at ------------------------------------------------------------------------------------------------


def not_run(change: Change, record: Record, this_run: Record, imports: Imports) -> list[str] | None:
    """Return the changed functions that no test of this run ran, empty if all did; None if nothing of it ran."""
    entries = [*this_run.values()]
    if change.path.endswith(".js"):
        # Python opens a script for the page; only a browser runs it.
        entries = [entry for entry in entries if "chromium" in entry["marks"]]
    if not change.is_code:
        readers = readers_of(record | this_run, change)
        importers = {name for path in readers for name in imports.importers(path)}
        near = (is_near(change, entry, readers) or importers & modules_run(entry) for entry in entries)
        return [] if any(near) else None
    names = {name for entry in entries for name in ran(entry, change)}
    wanted = change.functions & set(parts((ROOT / change.path).read_text())) - {""} - on_import(this_run, change)
    if not wanted:
        importers = imports.importers(change.path)
        return [] if names or any(importers & modules_run(entry) for entry in entries) else None
    return [] if "*" in names else sorted(wanted - names) if wanted & names else None


def main() -> int:
    """Pick the tests, run them beside lint, and say what they looked at."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="main", help="what to compare with")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=50, help="limit of the tests' time, by their last run")
    parser.add_argument("--dry-run", action="store_true", help="name the tests and run nothing")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    options = parser.parse_args()
    record, imports, changed = read_record(record_file()), Imports(), changes(options.base)
    changed.sort(key=lambda change: not change.path.startswith("tests/"))
    queues = [nearest(change, record, imports) for change in changed]
    files, outside, seconds = chosen(queues, record, options.jobs, options.seconds)
    modules = [change for change in changed if change.is_product]
    print(
        f"check: {len(changed)} files differ from {options.base}, {len(modules)} of them modules; "
        f"{len(files)} test files, about {seconds:.0f} s on {options.jobs} cores "
        f"(limit {options.seconds:.0f} s, CHECK_SECONDS)",
        flush=True,
    )
    if not record:
        print("check: no record of what tests run (make test writes one): by imports", flush=True)
    if outside:
        print(f"check: no time for {len(outside)}: {' '.join(outside[:6])}{' ...' * (len(outside) > 6)}", flush=True)
    if options.dry_run:
        print("\n".join(files))
        return 0
    lint = subprocess.Popen(
        ["make", "--no-print-directory", "lint"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    this_run, failed = tests_of(files, options.jobs, options.pytest)
    said, _ = lint.communicate()
    print(said, end="")
    failed = failed or lint.returncode != 0
    return verdict(modules, record, this_run, imports, failed)


def tests_of(files: list[str], jobs: int, words: list[str]) -> tuple[Record, bool]:
    """Run test files; return what they ran, and whether one failed."""
    if not files:
        return {}, False
    with tempfile.TemporaryDirectory() as folder:
        this_run = Path(folder) / "run.json"
        paths = filter(None, [str(ROOT / ".ci"), os.environ.get("PYTHONPATH")])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RECORD_OF_THIS_RUN": str(this_run)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "recorder", "-q", "-n", str(min(jobs, len(files))),
             "--dist", "loadfile", "--no-loadscope-reorder", *words, *files], cwd=ROOT, env=environment,
        )  # fmt: skip
        # 5: each test of these files is left out by its marks.
        return read_record(this_run), done.returncode not in (0, 5)


def verdict(modules: list[Change], record: Record, this_run: Record, imports: Imports, failed: bool) -> int:
    """Print the last line, and return the exit code."""
    unseen = []
    for change in modules:
        functions = not_run(change, record, this_run, imports)
        if functions is None:
            unseen.append(change.path)
        elif functions:
            unseen.append(f"{change.path} ({', '.join(functions)})")
    words = "FAILED" if failed else "passed" if not unseen else "NOT KNOWN"
    if not modules:
        print(f"check: {words}: no module changed")
    else:
        covered = f"{len(modules) - len(unseen)} of {len(modules)} changed modules are covered by a test that ran"
        rest = f"; not: {', '.join(unseen)}. Run: make test" if unseen else ""
        print(f"check: {words}: {covered}{rest}")
    return 1 if failed else 3 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
