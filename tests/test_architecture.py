"""What `make lint` cannot say of the code: start-up and the base stay light, files short, requirements bounded.

Who imports whom and what is declared are the contracts of pyproject.toml, which `make lint` checks. Here they are held
against a copy of the packages with a violation of each kind.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from layout import copy_packages

LONGEST = 400
HEAVY = (
    "torch",
    "transformers",
    "trl",
    "vllm",
    "datasets",
    "sympy",
    "pandas",
    "scipy",
    "numpy",
    "pyarrow",
    "rich.console",
)


def check(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an installed program in a folder."""
    command = [str(Path(sys.executable).parent / program), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def plant(folder: Path, lines: dict[str, str]) -> None:
    """Add lines to the files of a copy."""
    for name, line in lines.items():
        with (folder / name).open("a") as handle:
            handle.write(f"\n{line}\n")


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The packages as they are installed, and pyproject.toml beside them."""
    copy_packages(root, tmp_path)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_contracts_find_what_they_are_for(copy):
    contracts = ("lint-imports", "--no-cache", "--no-logo")
    done = check(copy, *contracts)
    assert done.returncode == 0, done.stdout + done.stderr

    plant(
        copy,
        {
            "gtpo/attic.py": "",
            "gtpo/kernels/matmul.py": "from gtpo.run import folder",
            "gtpo/conflict.py": "def late():\n    import gtpo.presets",
            "gtpo/config/flags.py": "from gtpo import GTPOTrainer",
            "gtpo/run/folder.py": "def late():\n    from gtpo.evalkit import metrics",
            "gtpo/evalkit/report/tables.py": "import gtpo.presets",
            "gtpo/evalkit/metrics.py": "def late():\n    from gtpo import cli",
            "gtpo/evalkit/results/store.py": "from gtpo.evalkit import report",
            "gtpo/evalkit/attic.py": "",
            "gtpo/rewards/text.py": "if TYPE_CHECKING:\n    from gtpo.rewards import Verifier",
            "gtpo/rewards/equality/reading/__init__.py": "import gtpo.rewards.equality.comparing",
            "gtpo/config/schema.py": "def late():\n    from gtpo.config.load import load_config",
        },
    )
    done = check(copy, *contracts)
    assert done.returncode == 1, done.stderr
    assert "0 kept, 6 broken" in done.stdout
    said = " ".join(done.stdout.split())
    for words in (
        "gtpo.attic",
        "gtpo.kernels.matmul -> gtpo.run.folder",
        "gtpo.conflict -> gtpo.presets",
        "gtpo.config.flags -> gtpo (",
        "gtpo.evalkit.report.tables -> gtpo.presets",
        "gtpo.evalkit.metrics -> gtpo.cli",
        "gtpo.run.folder -> gtpo.evalkit.metrics",
        "gtpo.evalkit.results.store -> gtpo.evalkit.report",
        "gtpo.evalkit.attic",
        "gtpo.rewards.text -> gtpo.rewards (",
        "gtpo.rewards.equality.reading -> gtpo.rewards.equality.comparing",
        ".schema -> .load",
    ):
        assert words in said, f"{words}\n{done.stdout}"


def test_the_check_of_dependencies_finds_what_it_is_for(copy):
    assert check(copy, "deptry", "gtpo").returncode == 0
    plant(copy, {"gtpo/rewards/text.py": "def late():\n    import pandas", "gtpo/evalkit/metrics.py": "import pytest"})
    project = copy / "pyproject.toml"
    project.write_text(project.read_text().replace('"filelock>=3.20"', '"filelock>=3.20", "leftpad"'))
    done = check(copy, "deptry", "gtpo", "--no-ansi", "--json-output", "found.json")
    assert done.returncode == 1, done.stderr
    found = {(issue["error"]["code"], issue["module"]) for issue in json.loads((copy / "found.json").read_text())}
    assert found == {("DEP003", "pandas"), ("DEP004", "pytest"), ("DEP002", "leftpad")}


STRICT = (
    "objective",
    "conflict",
    "entropy",
    "fused",
    "evalkit.metrics",
    "evalkit.statistics",
    "evalkit.training_variance",
    "evalkit.differences",
)
LOOSE = """
import json
class Box(dict): ...
class Of(json.Unknown): ...
def generic(values: list) -> None: ...
def partial(value: int, other): ...
def untyped(value): ...
def calls() -> int:
    untyped(1)
    return json.loads("1")
@untyped
def decorated() -> None: ...
def compares(value: int) -> bool:
    return value == "1"
"""


def test_the_mathematics_is_type_checked_strictly(root, tmp_path):
    """A module with what --strict alone refuses, under each of these names and under another one."""
    sources = [(root if "." in name else root / "gtpo") / f"{name.replace('.', '/')}.py" for name in STRICT]
    assert [path for path in sources if not path.is_file()] == []
    for name in (*STRICT, "other"):
        path = tmp_path / ".types/gtpo" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(LOOSE)
    done = check(
        tmp_path, "mypy", "--config-file", str(root / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")
    )
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if matched := re.match(r"\.types/gtpo/(.*)\.py:\d+: error: .*\[([a-z-]+)\]$", line):
            found.setdefault(matched[1].replace("/", "."), set()).add(matched[2])
    refused = {
        "type-arg",
        "no-untyped-def",
        "no-untyped-call",
        "no-any-return",
        "untyped-decorator",
        "comparison-overlap",
    }
    assert {name: refused - found.get(name, set()) for name in STRICT} == {name: set() for name in STRICT}, done.stdout
    assert not refused & found.get("other", set())


def requirements(pyproject: str) -> tuple[list[str], list[str]]:
    """Return the requirements of the base and those of all extras, without the references to gtpo itself."""
    project = tomllib.loads(pyproject)["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return project["dependencies"], [line for line in extras if not line.startswith("gtpo[")]


def test_every_requirement_has_a_lower_bound(root):
    base, extras = requirements((root / "pyproject.toml").read_text())
    assert [line for line in base + extras if ">=" not in line] == []


def test_no_file_is_longer_than_one_sitting(root):
    lengths = {
        path.relative_to(root): len(path.read_text().splitlines())
        for package in ("gtpo", "rewards", "evalkit")
        for path in (root / package).rglob("*.py")
    }
    assert len(lengths) > 150
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


# What imports torch and its companions as soon as it is imported itself. Everything else works in the light base.
NEEDS_TRAIN = (
    "gtpo.callbacks",
    "gtpo.common.vllm_cpu",
    "gtpo.completions",
    "gtpo.conflict",
    "gtpo.doctor.loss",
    "gtpo.entropy",
    "gtpo.fused",
    "gtpo.inputs.model",
    "gtpo.integrations.verl.advantages",
    "gtpo.integrations.verl.trainer",
    "gtpo.kernels",
    "gtpo.objective",
    "gtpo.run",
    "gtpo.trainer",
    "gtpo.evalkit.engines.kv_cache",
)

IMPORT_ALL = """
import importlib, sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent)
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error.name)
"""


def needing_an_extra(folder: Path) -> dict[str, str]:
    """Return the modules that cannot be imported without extras, and which package each misses."""
    base, extras = ({re.split(r"[\[>]", line)[0].replace("-", "_") for line in lines} for lines in requirements(
        (folder / "pyproject.toml").read_text()
    ))  # fmt: skip
    absent = extras - base - {"huggingface_hub"}  # datasets brings it
    paths = [path.relative_to(folder).with_suffix("") for path in sorted((folder / "gtpo").rglob("*.py"))]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    script = IMPORT_ALL.format(absent=sorted(absent), modules=modules)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def test_the_base_is_imported_without_extras(copy):
    outside = re.compile("|".join(rf"{re.escape(name)}(\..*)?" for name in NEEDS_TRAIN))
    found = needing_an_extra(copy)
    assert {name: package for name, package in found.items() if not outside.fullmatch(name)} == {}
    assert [name for name in NEEDS_TRAIN if not any(f"{module}.".startswith(f"{name}.") for module in found)] == []

    plant(copy, {"gtpo/evalkit/metrics.py": "import torch", "gtpo/config/load.py": "import gtpo.conflict"})
    found = needing_an_extra(copy)
    assert (found["gtpo.evalkit.metrics"], found["gtpo.config.load"]) == ("torch", "torch")


@pytest.mark.parametrize("command", [[], ["train"], ["eval"], ["compare"]], ids="gtpo {}".format)
def test_help_imports_nothing_heavy(root, command):
    script = (
        "import sys; from gtpo import cli\n"
        "try:\n    cli.app()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *command, "--help"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().endswith("loaded: []"), done.stderr
    assert "Usage" in done.stdout
