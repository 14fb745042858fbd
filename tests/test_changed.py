"""Which tests `make check` runs for a change."""

from __future__ import annotations

import pytest
from changed import MOST, concerned

TESTS = {
    "tests/gtpo/test_fused.py": "from gtpo.objective import PRESETS\n",
    "tests/gtpo/test_objective.py": "",
    "tests/evalkit/test_store.py": "def late():\n    from gtpo.evalkit.results import find, store\n",
    "tests/evalkit/test_find.py": "import gtpo.evalkit.results.finder\n",
    "tests/bench/test_bench_loss.py": "",
    **{f"tests/test_{i}.py": "from gtpo.common.errors import UserError\n" for i in range(MOST + 1)},
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("gtpo/objective.py", ["tests/gtpo/test_fused.py", "tests/gtpo/test_objective.py"]),
        ("evalkit/results/store.py", ["tests/evalkit/test_store.py"]),
        ("evalkit/results/find.py", ["tests/evalkit/test_find.py", "tests/evalkit/test_store.py"]),
        ("bench/loss.py", ["tests/bench/test_bench_loss.py"]),
        ("tests/test_1.py", ["tests/test_1.py"]),
        ("gtpo/common/errors.py", []),
        ("README.md", []),
    ],
)
def test_a_change_concerns_what_is_named_after_it_or_imports_it(changed, expected):
    assert concerned([changed], TESTS) == expected
