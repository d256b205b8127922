"""Tests that need no server run without what only other extras bring, wherever they run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.extras import brought_by, hide, not_brought_by

IMPORTS = """
from importlib.util import find_spec
try:
    import client.parts
except ModuleNotFoundError as error:
    print(error.name, find_spec("client"))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Distributions of our name and others, instead of what is installed."""
    requirements = {
        "epochcut": [
            "always>=1",
            "epochcut[fast]; extra == 'test'",
            "tester; extra == 'test'",
            "quick[more]; extra == 'fast'",
            "old-ones; extra == 'fast' and python_version < '3'",
            "Client; extra == 'servers'",
            "tester; extra == 'servers'",
            "absent; extra == 'servers'",
        ],
        "always": ["epochcut"],
        "quick": ["deep; extra == 'more'", "never; extra == 'other'"],
        "client": ["the.Wire", "deep"],
        "the_wire": [],
        **{name: [] for name in ("tester", "deep", "never", "stranger", "old_ones")},
    }
    for name, lines in requirements.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        extras = ["test", "fast", "servers"] if name == "epochcut" else []
        text = [*(f"Provides-Extra: {extra}" for extra in extras), *(f"Requires-Dist: {line}" for line in lines)]
        folder.joinpath("METADATA").write_text("\n".join([f"Name: {name}", "Version: 1", *text]))
        folder.joinpath("top_level.txt").write_text("the_wire\nshared" if name == "the_wire" else name)
    tmp_path.joinpath("deep-1.dist-info", "top_level.txt").write_text("deep\nshared")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.usefixtures("installed")
def test_an_extra_brings_what_it_requires_and_what_that_requires() -> None:
    assert brought_by() == {"epochcut", "always"}
    assert brought_by("test") == {"epochcut", "always", "tester", "quick", "deep"}


@pytest.mark.usefixtures("installed")
def test_hidden_are_modules_which_other_extras_bring_and_nothing_else_does() -> None:
    assert not_brought_by("test") == ["client", "the_wire"]
    assert not_brought_by("servers") == ["quick"]


def test_without_the_project_nothing_can_be_hidden(installed: Path) -> None:
    installed.joinpath("epochcut-1.dist-info").rename(installed / "another-1.dist-info")
    with pytest.raises(metadata.PackageNotFoundError):
        not_brought_by("test")


def test_a_hidden_module_is_not_there_nor_is_it_in_processes_that_a_test_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("client").mkdir()
    tmp_path.joinpath("client/__init__.py").touch()
    tmp_path.joinpath("client/parts.py").touch()
    for name in ("client", "another"):
        monkeypatch.setitem(sys.modules, name, None)  # which forgets them afterwards
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert printed_by_a_process(environment) == ""
    hide(["client", "another"], environment)
    assert printed_by_a_process(environment) == "client None\n"


def printed_by_a_process(environment: dict[str, str]) -> str:
    run = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=True)
    return run.stdout


def test_this_run_has_the_modules_of_its_extra_alone_unless_servers_are_in_it(pytestconfig: pytest.Config) -> None:
    kept_apart = pytestconfig.option.markexpr == "not servers"
    assert [name for name in not_brought_by("test") if kept_apart and find_spec(name) is not None] == []
