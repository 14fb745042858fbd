"""Whose commit a result names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import copy_packages, process, python

from gtpo.common.provenance import command_line


def git(folder: Path, *words: str) -> str:
    return process("git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words, cwd=folder).stdout.strip()


def commit(folder: Path, file: str) -> None:
    git(folder, "init", "-q")
    git(folder, "add", file)
    git(folder, "commit", "-qm", "one")


def test_a_package_inside_another_repository_does_not_name_its_commit(root: Path, tmp_path: Path) -> None:
    """As with a virtual environment in a project's folder: the project's commit is not this program's."""
    (tmp_path / "README").write_text("a user's project")
    commit(tmp_path, "README")
    installed = tmp_path / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    copy_packages(root, installed)
    script = "from gtpo.common import provenance as p; print(p.CHECKOUT, p.git_commit())"
    told = python("-c", script, cwd=installed, env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"})
    assert told.stdout.split() == [str(installed), "None"]


def test_a_checkout_names_its_own_commit_and_whether_files_are_changed(tmp_path: Path, monkeypatch) -> None:
    from gtpo.common import provenance

    (tmp_path / "file").write_text("1")
    commit(tmp_path, "file")
    head = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setattr(provenance, "CHECKOUT", tmp_path)
    assert provenance.git_commit() == head
    (tmp_path / "file").write_text("2")
    assert provenance.git_commit() == head + "+"


def test_command_is_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv, told in (
        (["/somewhere/bin/gtpo", "eval", "my model"], "gtpo eval 'my model'"),
        (["/somewhere/gtpo/__main__.py", "eval", "m"], "python -m gtpo eval m"),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        assert command_line() == told
