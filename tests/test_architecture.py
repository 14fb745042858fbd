"""What `make lint` cannot say of the code: start-up and the base stay light, files short, requirements bounded."""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from commands import copy_packages, python

LONGEST = 750
"""Lines of a file: about one subject."""
HEAVY = (
    "torch", "transformers", "trl", "vllm", "datasets", "sympy", "pandas", "scipy", "numpy", "pyarrow",
    "rich.console",
)  # fmt: skip


def requirements(pyproject: str) -> tuple[list[str], list[str]]:
    """Return the requirements of the base and those of all extras, without the references to gtpo itself."""
    project = tomllib.loads(pyproject)["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return project["dependencies"], [line for line in extras if not line.startswith("gtpo[")]


def test_every_requirement_has_a_lower_bound(root):
    base, extras = requirements((root / "pyproject.toml").read_text())
    assert [line for line in base + extras if ">=" not in line] == []


def sources(root: Path) -> dict[str, str]:
    """Path -> text of every module of the packages."""
    paths = (path for package in ("gtpo", "rewards", "evalkit") for path in (root / package).rglob("*.py"))
    return {str(path.relative_to(root)): path.read_text() for path in paths}


def test_no_file_is_longer_than_one_subject(root):
    lengths = {name: len(text.splitlines()) for name, text in sources(root).items()}
    assert len(lengths) > 100
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_a_class_name_means_one_thing(root):
    names = Counter(
        node.name
        for text in sources(root).values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


# What imports torch and its companions as soon as it is imported itself. Everything else works in the light base.
NEEDS_TRAIN = (
    "gtpo.callbacks", "gtpo.completions", "gtpo.conflict", "gtpo.entropy", "gtpo.fused", "gtpo.head",
    "gtpo.inputs.model", "gtpo.integrations.verl.advantages", "gtpo.integrations.verl.trainer", "gtpo.objective",
    "gtpo.own_loss", "gtpo.train", "gtpo.trainer", "gtpo.triton_head",
)  # fmt: skip

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
    return dict(line.split() for line in python("-c", script, cwd=folder).stdout.splitlines())


def test_the_base_is_imported_without_extras(root, tmp_path):
    copy_packages(root, tmp_path)
    shutil.copy(root / "pyproject.toml", tmp_path)
    outside = re.compile("|".join(rf"{re.escape(name)}(\..*)?" for name in NEEDS_TRAIN))
    found = needing_an_extra(tmp_path)
    assert {name: package for name, package in found.items() if not outside.fullmatch(name)} == {}
    assert [name for name in NEEDS_TRAIN if not any(f"{module}.".startswith(f"{name}.") for module in found)] == []


JUDGE = ("gtpo.rewards.verify", "gtpo.rewards.equality", "gtpo.evalkit.evaluation.command", "sympy")
# Typer itself takes pydantic for the options of a command; what compares takes NumPy and pyarrow.
LIGHT = {
    "train --help; eval --help; compare --help": (*HEAVY, "yaml", "pyarrow"),
    "--help": (*HEAVY, "pydantic"),
    "train --help-config": HEAVY,
    "eval --list": ("torch", "transformers", "datasets", "vllm", "sympy", "pyarrow"),
    "compare grpo-s1 gtpo-s1": ("torch", "transformers", "pandas", "scipy.stats", "matplotlib", *JUDGE),
    "train refused.yaml": ("torch", "transformers", "datasets", "sympy"),
}


@pytest.mark.parametrize("words", LIGHT)
def test_what_is_imported_is_needed(root, words, tmp_path):
    shutil.copytree(root / "tests/golden/runs", tmp_path, dirs_exist_ok=True)
    (tmp_path / "refused.yaml").write_text("model: {model_name: o/m}\ntraining: {learning_rate: -1}\n")
    script = (
        "import sys; from gtpo import cli\n"
        "for words in sys.argv.pop().split('; '):\n"
        "    sys.argv[1:] = words.split()\n"
        "    try:\n        cli.app()\n"
        "    except SystemExit as stop:\n        assert stop.code in (None, 0, 2), stop.code\n"
        f"print('loaded:', [name for name in {LIGHT[words]!r} if name in sys.modules], file=sys.stderr)"
    )
    done = python("-c", script, words, cwd=tmp_path)
    assert done.stderr.strip().endswith("loaded: []"), done.stderr
    assert ("learning_rate must be" in done.stderr) if "refused" in words else done.stdout


def test_a_script_in_a_checkout_finds_the_packages_beside_gtpo(root: Path) -> None:
    """A script's own folder comes before what is installed. -S: nothing is installed at all."""
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import gtpo.evalkit, gtpo.rewards.extract"
    python("-S", "-c", code, cwd=root.parent)
