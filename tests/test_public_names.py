"""What a program imports from the package itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import statebackend

SOURCE = Path(statebackend.__file__).read_text()
TYPED = {
    alias.asname or alias.name: f"{node.module}"
    for node in ast.walk(ast.parse(SOURCE))
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statebackend.")
    for alias in node.names
}


@pytest.mark.parametrize("name", sorted(TYPED))
def test_each_name_that_a_type_checker_sees_is_there_at_run_time(name: str) -> None:
    found = getattr(statebackend, name)
    assert found.__name__ == name
    assert found.__module__ == TYPED[name] or callable(found)
    assert name in dir(statebackend)


def test_a_star_brings_all_of_them_and_nothing_else() -> None:
    found: dict[str, object] = {}
    exec("from statebackend import *", found)
    assert found.keys() - {"__builtins__"} == TYPED.keys()


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Valeu'"):
        statebackend.Valeu  # noqa: B018


def test_the_package_alone_loads_neither_arrow_nor_rocksdb() -> None:
    code = "import sys, statebackend.ids; print(sorted({'pyarrow', 'rocksdict', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
