"""Which tests `make check` runs for a change."""

from __future__ import annotations

from changed import MOST, concerned

TESTS = {
    "tests/gtpo/test_fused.py": "from gtpo.objective import PRESETS\n",
    "tests/gtpo/test_objective.py": "",
    "tests/evalkit/test_store.py": "def late():\n    from gtpo.evalkit.results import find, store\n",
    "tests/evalkit/test_find.py": "import gtpo.evalkit.results.finder\n",
    "tests/bench/test_bench_loss.py": "",
    **{f"tests/test_{i}.py": "from gtpo.common.errors import UserError\n" for i in range(MOST + 1)},
}


def test_a_module_concerns_the_tests_that_are_named_after_it_or_import_it():
    assert concerned(["gtpo/objective.py"], TESTS)[0] == ["tests/gtpo/test_fused.py", "tests/gtpo/test_objective.py"]
    assert concerned(["evalkit/results/store.py"], TESTS)[0] == ["tests/evalkit/test_store.py"]
    assert concerned(["evalkit/results/find.py"], TESTS)[0] == [
        "tests/evalkit/test_find.py",
        "tests/evalkit/test_store.py",
    ]
    assert concerned(["bench/loss.py"], TESTS)[0] == ["tests/bench/test_bench_loss.py"]
    assert concerned(["README.md", "gtpo/presets.py"], TESTS) == ([], [])


def test_a_changed_test_concerns_itself():
    assert concerned(["tests/test_1.py", "tests/conftest.py"], TESTS) == (["tests/test_1.py"], [])


def test_what_everything_imports_is_left_to_the_whole_run_and_said():
    chosen, (note,) = concerned(["gtpo/common/errors.py"], TESTS)
    assert chosen == []
    assert f"{MOST + 1} test files" in note
