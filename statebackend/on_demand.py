"""Packages whose names are loaded when they are first asked for, so that importing a package alone loads nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def on_demand(
    package: str, home: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package; `home` says which names each module has."""
    module_of = {name: module for module, names in home.items() for name in names}

    def get(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            here = sys.modules[package]  # told so that Python says which name is near
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=here)
        return getattr(import_module(module), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return sorted(module_of), get, names
