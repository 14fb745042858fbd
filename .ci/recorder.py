"""A pytest plugin: which functions of the project each test file runs, and which of the project's files it opens.

`make test` and `make check` load it, and `.ci/check.py` picks tests by what it writes. Every function of a module
of the checkout says that it ran: a call of `set.add`, put before its first statement when the module is imported.
A tracer would slow down every line of every library. What only another process runs cannot be seen: a test file
declares it as `IN_A_PROCESS = ("gtpo/module.py", ...)`.

The record is a JSON in git's common folder, which all worktrees share:
test file -> seconds (of the processor, children included), passed, marks of the tests that passed,
functions {path: names, of those that run on import with a prefix}, opened {path: the modules that open it}.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Folders whose modules are imported by name: these are marked.
MARKED = ("gtpo/", "evalkit/", "rewards/", "bench/", "cli.py")
MARK = "__ran__"
AT_IMPORT = "on import: "
COMPILED = re.compile(r"__pycache__/([^./]+)\.[^/]*$")


def path_of(file: str | os.PathLike[str]) -> str | None:
    """Return a file of the project, relative to the checkout; None for any other, and for caches."""
    path, prefix = os.path.abspath(file), f"{ROOT}{os.sep}"
    name = path.removeprefix(prefix)
    return None if name == path or name.startswith((".", "gtpo.egg-info")) else name


def named_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with the name of the outermost one that holds it, `Class.method` for a method."""

    def walk(node: ast.AST, prefix: str, outermost: str | None) -> Iterator[Any]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = outermost or prefix + child.name
                yield name, child
                yield from walk(child, prefix, name)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", outermost)
            else:
                yield from walk(child, prefix, outermost)

    return walk(tree, "", None)


def marked(source: bytes, path: str) -> CodeType:
    """Compile a module whose functions say that they run."""
    tree = ast.parse(source, path)
    name = path_of(path)
    for function, node in [*named_functions(tree)]:
        first = node.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        mark = ast.parse(f"{MARK}({(name, function)!r})").body[0]
        for part in ast.walk(mark):
            if isinstance(part, ast.expr | ast.stmt):
                part.lineno = part.end_lineno = first.lineno
                part.col_offset = part.end_col_offset = first.col_offset
        node.body.insert(int(documented), mark)
    return compile(tree, path, "exec", dont_inherit=True)


class Recorder:
    """What each test file of this process ran; `seen`: since the last call of `switch`."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()
        self.files: dict[str, dict[str, Any]] = {}
        self.current: str | None = None
        self.clock = sum(os.times()[:4])

    def switch(self, file: str | None) -> None:
        """Book what was seen and the time that passed on the file in use, and go on with another."""
        if self.current is not None:
            entry = self.entry(self.current)
            for what, *rest in self.seen:
                if what == "opened":
                    name, module = rest
                    entry["opened"].setdefault(name, set()).update({module} - {None})
                else:
                    entry["functions"].setdefault(what, set()).add(rest[0])
            entry["seconds"] += sum(os.times()[:4]) - self.clock
        self.seen.clear()
        self.current, self.clock = file, sum(os.times()[:4])

    def entry(self, file: str) -> dict[str, Any]:
        """Return the record of a test file."""
        empty = {"seconds": 0.0, "passed": 0, "failed": 0, "marks": set(), "functions": {}, "opened": {}}
        return self.files.setdefault(file, empty)

    def opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear of each file that Python opens."""
        if event != "open" or not isinstance(arguments[0], str | os.PathLike) or self.current is None:
            return
        name = path_of(arguments[0])
        if name is not None and name.endswith(".pyc"):
            name = COMPILED.sub(r"\1.py", name)
        if name is None or not os.path.isfile(os.path.join(ROOT, name)):
            return
        if name.endswith(".py") and name.startswith((*MARKED, "tests/")):
            return
        # A file that is read once a process is needed by all tests of the module that reads it.
        frame: FrameType | None = sys._getframe()
        module = None
        while frame is not None and module is None:
            here, frame = path_of(frame.f_code.co_filename), frame.f_back
            module = here if here is not None and here.startswith(MARKED) and "/common/" not in here else None
        if module is not None or not name.startswith(MARKED):  # a test that copies a package does not use its data
            self.seen.add(("opened", name, module))


class MarkedLoader(SourceFileLoader):
    """Loads a module of the checkout from its source: nothing compiled is read or written."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the module's code with its marks."""
        return marked(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, in which the mark is a name."""
        seen = RECORDER.seen
        setattr(module, MARK, seen.add)
        before = set(seen)
        super().exec_module(module)
        # What runs on import runs for whichever test file comes first.
        for what in [what for what in seen - before if what[0] != "opened"]:
            seen.remove(what)
            seen.add((what[0], AT_IMPORT + what[1].removeprefix(AT_IMPORT)))


class Finder:
    """Gives every module of the checkout the loader that marks it."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders have, with our loader."""
        for finder in sys.meta_path:
            spec = None if finder is Finder else finder.find_spec(fullname, path, target)
            if spec is not None:
                loader = spec.loader
                if type(loader) is SourceFileLoader and (path_of(loader.path) or "").startswith(MARKED):
                    spec.loader = MarkedLoader(loader.name, loader.path)
                return spec
        return None


RECORDER = Recorder()


def record_file() -> Path:
    """Return the record of all worktrees."""
    folder = subprocess.run(
        ["git", "rev-parse", "--git-common-dir"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    return (ROOT / folder / "gtpo-tests.json").resolve()


def read_record(file: Path) -> dict[str, dict[str, Any]]:
    """Return what is recorded; nothing if there is none, or it cannot be read."""
    try:
        record: dict[str, dict[str, Any]] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return record


def write_record(file: Path, files: dict[str, dict[str, Any]]) -> None:
    """Renew the entries of these test files, while no other process does."""
    with open(f"{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = read_record(file) | files  # other worktrees have other test files
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(record, sort_keys=True))
        partial.replace(file)


# -- pytest ------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    # Before the first conftest.py imports a module of the product.
    sys.meta_path.insert(0, Finder)
    sys.addaudithook(RECORDER.opened)


def _file(node: Any) -> str:
    return str(node.path.relative_to(ROOT))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    if not isinstance(collector, pytest.Module):
        return (yield)
    RECORDER.switch(_file(collector))
    try:
        report = yield
        for path in getattr(collector.obj, "IN_A_PROCESS", ()) if report.passed else ():
            RECORDER.seen.add((path, "*"))
        return report
    finally:
        RECORDER.switch(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    RECORDER.switch(_file(item))
    try:
        return (yield)
    finally:
        RECORDER.switch(None)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    # What is set up once a process belongs to no test file.
    file = RECORDER.current
    if fixturedef.scope != "session" or file is None:
        return (yield)
    RECORDER.switch(None)
    try:
        return (yield)
    finally:
        RECORDER.switch(file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    entry = RECORDER.entry(_file(item))
    if report.failed:
        entry["failed"] += 1
    elif report.when == "call" and report.passed:
        entry["passed"] += 1
        entry["marks"].update(mark.name for mark in item.iter_markers())
    return report


ENDED: dict[str, dict[str, Any]] = {}


def _plain(files: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the test files that ran, as JSON has them."""
    return {
        name: entry
        | {"seconds": round(entry["seconds"], 2), "marks": sorted(entry["marks"])}
        | {part: {path: sorted(names) for path, names in entry[part].items()} for part in ("functions", "opened")}
        for name, entry in files.items()
        if entry["passed"] or entry["failed"]
    }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ENDED.update(getattr(node, "workeroutput", {}).get("recorded", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    RECORDER.switch(None)
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["recorded"] = _plain(RECORDER.files)
        return
    ENDED.update(_plain(RECORDER.files))
    if this_run := os.environ.get("RECORD_OF_THIS_RUN"):
        Path(this_run).write_text(json.dumps(ENDED))
    # A test that failed, or was cut off, has not run all that it runs.
    whole = {name: entry for name, entry in ENDED.items() if not entry["failed"]}
    if not config.getoption("keyword") and not any("::" in argument for argument in config.args):
        write_record(record_file(), whole)
