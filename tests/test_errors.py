"""All errors have one base, and each is in one of five families."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest

import recovery
import snapshot
import statebackend
from statebackend.errors import EpochcutError, JobError, OptionError, ProgramError, SavepointError, StoreError
from statebackend.on_demand import on_demand

FAMILIES = (ProgramError, OptionError, StoreError, JobError, SavepointError)
OF_THE_COMMAND = {"FoundDamage", "WrongUsage", "Cancelled"}
"""They end a verb or a driver, and reach no caller."""


def errors() -> Iterator[type[Exception]]:
    """Yield all exceptions that the three packages define, but for private ones and those of kits."""
    for package in (statebackend, snapshot, recovery):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__") or ".testing" in found.name:
                continue
            try:
                module = import_module(found.name)
            except ModuleNotFoundError as missing:
                if str(missing.name).partition(".")[0] in {"snapshot", "statebackend", "recovery"}:
                    raise
                continue  # it needs an extra that is not installed
            for name, member in inspect.getmembers(module, inspect.isclass):
                if member.__module__ == found.name and issubclass(member, Exception) and not name.startswith("_"):
                    yield member


def test_each_error_is_in_one_family() -> None:
    found = {
        error for error in errors() if not issubclass(error, AssertionError) and error.__name__ not in OF_THE_COMMAND
    }
    astray = {error for error in found if sum(issubclass(error, family) for family in FAMILIES) != 1}
    assert astray == {EpochcutError}


def test_each_error_that_is_exported_says_what_it_means() -> None:
    for package in (statebackend, snapshot, recovery):
        exported = [getattr(package, name) for name in package.__all__]
        for error in exported:
            if isinstance(error, type) and issubclass(error, Exception):
                assert error.__doc__, error


@pytest.mark.parametrize("family", FAMILIES)
def test_families_can_be_imported_from_every_package(family: type[EpochcutError]) -> None:
    for package in (statebackend, snapshot, recovery):
        assert getattr(package, family.__name__) is family
        assert package.EpochcutError is EpochcutError


def test_an_error_of_a_family_and_of_python_crosses_processes() -> None:
    given = statebackend.NotADuration("5", "a number has no unit", option="every")
    assert isinstance(given, OptionError)
    assert isinstance(given, ValueError)
    assert isinstance(given, EpochcutError)
    assert str(pickle.loads(pickle.dumps(recovery.JobRuns("it runs")))) == "it runs"


def test_a_package_without_a_module_for_a_name_says_so() -> None:
    _, get, _ = on_demand("statebackend", {"statebackend.ids": ("Epoch",)})
    assert get("Epoch") is statebackend.Epoch
    with pytest.raises(AttributeError, match="module 'statebackend' has no attribute 'Epich'"):
        get("Epich")
