"""Pickle programs by value, with the functions and classes that they are made of.

Invariant: what was pickled here can be read by any process with the same packages. A function or class of a
script, a notebook or a test travels as its code; one of a module that other processes can import travels as its name.
"""

from __future__ import annotations

import io
import pickle
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import cast

import cloudpickle


def dumps(value: object) -> bytes:
    """Pickle a value; the pickler's own error if it holds what cannot be pickled, such as a lock or a Spark session."""
    sink = io.BytesIO()
    pickler = _Pickler(sink)
    try:
        pickler.dump(value)
    finally:
        pickler.forget()
    return sink.getvalue()


def loads(data: bytes) -> object:
    """Unpickle a value, which runs the pickle's code.

    Only for bytes from a peer that has proved the run's secret, received over TLS or under a seal
    (`snapshot.cut.seals`).
    """
    return cast("object", pickle.loads(data))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Tells cloudpickle about modules that only this process can import, such as a test that pytest loaded by its path:
    cloudpickle itself takes every loaded module for one that can be imported elsewhere.
    """

    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink)
        self._seen: set[str] = set()
        self._registered: list[ModuleType] = []

    def reducer_override(self, obj: object) -> object:
        if isinstance(obj, type | FunctionType) and obj.__module__ not in self._seen:
            self._seen.add(obj.__module__)
            self._look_at(sys.modules.get(obj.__module__))
        return super().reducer_override(obj)

    def _look_at(self, module: ModuleType | None) -> None:
        if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value() or _is_found(module):
            return
        cloudpickle.register_pickle_by_value(module)
        self._registered.append(module)

    def forget(self) -> None:
        """Leave cloudpickle as it was."""
        for module in self._registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(module: ModuleType) -> bool:
    """True if a process with the same search path would import the same file under the module's name."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__" or module.__name__.partition(".")[0] in sys.stdlib_module_names:
        return True  # cloudpickle itself tells the program's script, and what lies in no file, from the others
    try:
        spec = _spec(module.__name__)
    except OSError:  # its folder was closed to this user after the import: then no other file is found either
        return True
    if spec is None or spec.origin is None or not spec.has_location:
        return spec is not None
    return Path(spec.origin).resolve() == Path(file).resolve()


def _spec(name: str) -> ModuleSpec | None:
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        found = _spec(parent)
        if found is None or found.submodule_search_locations is None:
            return None
        path = found.submodule_search_locations
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
