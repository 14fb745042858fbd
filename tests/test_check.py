"""`make check` picks tests by what they run, and does not pass what no test ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".ci"))
import check
import planted
import recorder

SCRIPT = "evalkit/report/templates/base.js"
BEFORE = """
LIMIT = 3

class A:
    def f(self, x=1):
        return x  # why

    def g(self):
        return 2
"""


@pytest.mark.parametrize(
    ("old", "new", "functions"),
    [
        ("# why", "# another reason", set()),
        ("x=1", "x=2", {"A.f"}),
        ("return 2", "return 3", {"A.g"}),
        ("LIMIT = 3", "LIMIT = 4", {""}),
        ("def g", "def h", {"A.g", "A.h"}),
    ],
)
def test_what_changed_is_named_by_functions(old, new, functions):
    assert check.changed_functions(BEFORE, BEFORE.replace(old, new)) == functions


def test_a_marked_module_says_what_ran_and_is_what_it_was():
    seen: set[Any] = set()
    names: dict[str, Any] = {recorder.MARK: seen.add}
    source = '"""Module."""\ndef f():\n    """Say."""\n    def inner():\n        return 3\n    return inner()\n'
    source += "def g(): pass\n"
    exec(recorder.marked(source.encode(), str(recorder.ROOT / "gtpo/m.py")), names)
    assert names["f"]() == 3
    assert names["f"].__doc__ == "Say."
    assert seen == {("gtpo/m.py", "f")}


def entry(functions: dict[str, list[str]], seconds: float = 1.0, **other: Any) -> dict[str, Any]:
    return {"functions": functions, "opened": {}, "seconds": seconds, "passed": 1, "failed": 0, "marks": [], **other}


def test_the_nearest_tests_come_first_within_the_limit():
    path = "gtpo/conflict.py"
    record = {
        "tests/test_examples.py": entry({path: ["f"], "gtpo/cli.py": ["a", "b", "c"]}),
        "tests/gtpo/test_conflict.py": entry({path: ["f", "g"]}, 5),
        "tests/gtpo/test_head.py": entry({path: ["g"]}),
        "tests/gtpo/test_data.py": entry({"gtpo/cli.py": ["a"]}),
    }
    change = check.Change(path, path, frozenset({"f"}))
    order = check.nearest(change, record, check.Imports())
    assert order == ["tests/gtpo/test_conflict.py", "tests/test_examples.py", "tests/gtpo/test_head.py"]
    assert check.chosen([order], record, 1, 6.5) == (order[:2], order[2:], 6.0)


@pytest.mark.parametrize(
    ("path", "functions", "this_run", "code"),
    [
        ("gtpo/conflict.py", {"span_weights"}, {"t": entry({"gtpo/conflict.py": ["span_weights"]})}, 0),
        ("gtpo/conflict.py", {"span_weights"}, {"t": entry({"gtpo/conflict.py": ["conflict_weights"]})}, 3),
        ("gtpo/conflict.py", {"span_weights"}, {"t": entry({"gtpo/": ["*"]})}, 0),
        (
            "evalkit/report/templates/base.js",
            {""},
            {"t": entry({}, opened={"evalkit/report/templates/base.js": []})},
            3,
        ),
        ("gtpo/conflict.py", {"span_weights"}, {}, 3),
    ],
)
def test_what_no_test_ran_does_not_pass(path, functions, this_run, code, capsys):
    change = check.Change(path, path, frozenset(functions))
    assert check.verdict([change], {}, this_run, check.Imports(), failed=False) == code
    assert ("NOT KNOWN" in capsys.readouterr().out) == (code == 3)


def test_a_planted_fault_is_one_change_that_parses():
    paths = planted.modules("HEAD")[:30]
    faults = [fault for path in paths if (fault := planted.draw(path, "HEAD", 0))]
    assert len(faults) > 20
    for fault in faults:
        compile(fault["text"], fault["module"], "exec")
        before = check.git("show", f"HEAD:{fault['module']}")
        assert len(check.changed_functions(before, fault["text"])) == 1
