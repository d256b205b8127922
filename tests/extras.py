"""The modules that `make test` does not install, hidden where they are installed nevertheless.

A developer's `.venv` has the packages of all extras, a stranger's those of `epochcut[test]`. The tests that need no
server run without the others in both, so that a test which needs one fails before a stranger meets it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_OURS: Final = "epochcut"
_AT_THE_START: Final = str(Path(__file__).parent / "hidden")
_HIDDEN: Final = "EPOCHCUT_HIDDEN_MODULES"


def brought_by(*extras: str) -> set[str]:
    """Return the distributions that epochcut with these extras requires, with what those require in turn."""
    found: set[tuple[str, str]] = set()
    asked = [(_OURS, extra) for extra in ("", *extras)]
    while asked:
        name, extra = one = asked.pop()
        if one in found:
            continue
        found.add(one)
        for line in _requirements(name):
            required = Requirement(line)
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                asked.extend((canonicalize_name(required.name), its) for its in ("", *required.extras))
    return {name for name, _ in found}


def _requirements(name: str) -> Iterable[str]:
    try:
        return metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        if name == _OURS:
            raise
        return ()  # of an extra that is not installed


def not_brought_by(extra: str) -> list[str]:
    """Return the installed modules that only other extras bring."""
    others = brought_by(*(metadata.metadata(_OURS).get_all("Provides-Extra") or ())) - brought_by(extra)
    owners = metadata.packages_distributions()
    return sorted(name for name, of in owners.items() if {canonicalize_name(each) for each in of} <= others)


def hide(modules: Iterable[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Make modules as good as not installed: in this process, and in those that are started with the environment."""
    names = list(modules)
    sys.modules.update(dict.fromkeys(names, cast("ModuleType", None)))
    hide_from_processes(names, environment)


def hide_from_processes(modules: Iterable[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Make these modules, too, as good as not installed in processes that are started with the environment.

    Processes of jobs are started with the path of this process, not with that of its environment.
    """
    if _AT_THE_START not in sys.path:
        sys.path.append(_AT_THE_START)
    environment[_HIDDEN] = " ".join([*environment.get(_HIDDEN, "").split(), *modules])
    path = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one not in ("", _AT_THE_START)]
    environment["PYTHONPATH"] = os.pathsep.join([_AT_THE_START, *path])


@contextmanager
def shown_to_processes(module: str, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Do not hide this module from processes that are started in the block."""
    given = environment.get(_HIDDEN, "")
    environment[_HIDDEN] = " ".join(name for name in given.split() if name != module)
    try:
        yield
    finally:
        environment[_HIDDEN] = given
