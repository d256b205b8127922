"""How programs travel: by value, with the functions that they are made of.

What always holds: what was pickled here can be read by any process with the same packages, also functions and classes
of the script that was run. Without PySpark only what Python can find by its name again is picklable.
"""

from __future__ import annotations

import pickle
from importlib import import_module
from typing import Protocol, cast


class _Pickler(Protocol):
    def dumps(self, obj: object) -> bytes: ...


def dumps(value: object) -> bytes:
    """Pickle it; whatever the pickler raises if it holds what cannot be pickled, such as a lock or a Spark session."""
    return _pickler().dumps(value)


def loads(data: bytes) -> object:
    """What was pickled. It runs the pickle's code: only for bytes from somebody who has proved the run's secret."""
    return cast("object", pickle.loads(data))


def prepare() -> None:
    """Load what pickling needs now, so that the first program is there the sooner."""
    _pickler()


def _pickler() -> _Pickler:
    try:
        return cast("_Pickler", import_module("pyspark.cloudpickle"))
    except ImportError:
        return cast("_Pickler", pickle)
