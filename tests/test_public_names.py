"""What a program imports from the packages themselves."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import recovery
import snapshot
import statebackend
from tests.public_names import typed_names

PACKAGES = (statebackend, snapshot, recovery)


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
    for other in PACKAGES:
        for name in typed_names(other).keys() & typed_names(package).keys():
            assert getattr(other, name) is getattr(package, name), name


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Valeu'"):
        statebackend.Valeu  # noqa: B018


def test_the_package_alone_loads_neither_arrow_nor_rocksdb() -> None:
    code = "import sys, statebackend.ids; print(sorted({'pyarrow', 'rocksdict', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
