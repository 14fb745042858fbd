"""The reference pages are what the code declares, and every field of every format says what it means."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import yaml


@pytest.fixture(scope="module")
def reference(root):
    spec = importlib.util.spec_from_file_location("docs_reference", root / "docs/tools/reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(reference, root):
    for name, content in reference.PAGES.items():
        written = (root / name).read_text(encoding="utf-8")
        assert written == content().rstrip() + "\n", f"{name}: run python docs/tools/reference.py"


def test_every_option_says_what_it_does(reference):
    import typer

    from gtpo import cli

    for name, command in typer.main.get_command(cli.app).commands.items():
        assert [p.name for p in command.params if not p.help] == [], name


def test_no_two_metrics_share_a_name(root):
    sections = yaml.compose((root / "docs/tools/run_reference.yaml").read_text())
    for _, section in sections.value:
        names = [key.value for key, _ in section.value]
        assert len(names) == len(set(names))
