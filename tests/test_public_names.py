"""What a program imports from the packages themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import recovery
import recovery.savepoints
import recovery.testing
import snapshot
import snapshot.connectors.staging
import statebackend
from recovery import events
from snapshot.program import sink, source
from tests.public_names import typed_names

PACKAGES = (statebackend, snapshot, snapshot.connectors.staging, recovery, recovery.savepoints, recovery.testing)
ROOT = Path(__file__).parent.parent
PUBLIC = {
    **{package.__name__: package.__all__ for package in PACKAGES},
    "recovery.savepoints": recovery.savepoints.__all__,
    "recovery.testing": recovery.testing.__all__,
    "snapshot.structured": ["register"],
}
KITS = ("snapshot.testing",)
"""Packages whose modules are public as they are."""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_name_that_a_type_checker_sees_is_there_at_run_time(package: ModuleType) -> None:
    for name, module in typed_names(package).items():
        assert getattr(package, name) is getattr(sys.modules[module], name), name
        assert name in dir(package)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_star_brings_all_of_them_and_nothing_else(package: ModuleType) -> None:
    found: dict[str, object] = {}
    exec(f"from {package.__name__} import *", found)
    assert found.keys() - {"__builtins__"} == typed_names(package).keys()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_name_that_two_packages_have_is_one_thing(package: ModuleType) -> None:
    for other in PACKAGES[:-1] if package in PACKAGES[:-1] else ():  # simulated jobs are run in another way
        for name in typed_names(other).keys() & typed_names(package).keys():
            assert getattr(other, name) is getattr(package, name), name


def imports_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of all that is imported from the three packages."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in {
            one.__name__ for one in PACKAGES
        }:
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_import_public_names_only(example: Path) -> None:
    private = [
        f"{module}.{name}"
        for module, name in imports_of(example.read_text())
        if not module.startswith(KITS) and name not in PUBLIC.get(module, ())
    ]
    assert private == []


def test_a_private_name_in_an_example_is_noticed() -> None:
    (found,) = imports_of("def f():\n    from snapshot.cut.frames import Data")
    assert found == ("snapshot.cut.frames", "Data")
    assert not found[0].startswith(KITS)
    assert found[0] not in PUBLIC


@pytest.mark.parametrize("module", [sink, source, events])
def test_what_writers_of_sinks_sources_and_listeners_need_is_exported(module: ModuleType) -> None:
    package = sys.modules[module.__name__.partition(".")[0]]
    kinds = {
        name for name, kind in vars(module).items() if isinstance(kind, type) and kind.__module__ == module.__name__
    }
    assert kinds <= set(package.__all__)


@pytest.mark.parametrize("name", sorted(recovery.savepoints.__all__))
def test_verbs_that_choose_an_epoch_take_the_tree_and_then_the_epoch(name: str) -> None:
    verb = getattr(recovery.savepoints, name)
    if isinstance(verb, FunctionType):
        given = list(signature(verb).parameters)
        assert "which" not in given
        assert "tree" not in given[1:]
        assert "epoch" not in given or given[:2] == ["tree", "epoch"]


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Valeu'"):
        statebackend.Valeu  # noqa: B018


def test_the_package_alone_loads_neither_arrow_nor_rocksdb() -> None:
    code = "import sys, statebackend.ids; print(sorted({'pyarrow', 'rocksdict', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
