"""Windows whose results are given in several goes, because a function of the user takes its time for each key.

What always holds: in each cut the window's table has the keys whose results were given of a window that owes others, in
a namespace of their own. So a restored operator gives the others alone, wherever their key groups went.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np

from snapshot.operators.rows import Times
from statebackend.keys.columns import KeyColumn, canonical_column
from statebackend.keys.types import KeyType
from statebackend.states.namespaces import Window
from statebackend.tables.table import Accumulated, Table

Key: TypeAlias = "bytes | None"
"""A key in its canonical bytes."""

Firing: TypeAlias = Iterator[list[object]]
"""Gives the results of a window. Wherever it is interrupted it says the keys whose results it has given since."""

_MARK: Final = b"g"
_SIZE: Final = len(Window(0, 1).namespace + _MARK)


class PartlyGiven:
    """The windows of a partition that have given the results of some keys, and not of all."""

    def __init__(self, table: Table, key_type: KeyType) -> None:
        self._table, self._key_type = table, key_type
        self._given: dict[Window, set[Key]] = {}
        self._to_keep: dict[Window, list[Key]] = {}
        self._kept: set[Window] = set()
        for namespace in table.namespaces():
            if len(namespace) == _SIZE:
                window, keys = Window.of(namespace[: -len(_MARK)]), table.accumulators(namespace).keys
                self._given[window] = set(_each(keys))
                self._kept.add(window)

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._given)

    def of(self, window: Window) -> Collection[Key]:
        """Return the keys whose results the window has given."""
        return self._given.get(window, ())

    def add(self, window: Window, keys: Iterable[object]) -> None:
        """Note that the results of these keys were given, and that others may be left."""
        encoded = [self._key_type.encode(key) for key in keys]
        self._given.setdefault(window, set()).update(encoded)
        self._to_keep.setdefault(window, []).extend(encoded)

    def over(self, window: Window) -> None:
        """Note that the window has given all its results."""
        self._given.pop(window, None)
        self._to_keep.pop(window, None)
        if window in self._kept:
            self._kept.remove(window)
            self._table.drop(_namespace(window))

    def reached(self, keys: KeyColumn, times: Times) -> Times:
        """Return these times of keys, or for a key whose results were given the end of that window, if it is later."""
        each = list(_each(keys))
        for window, given in self._given.items():
            is_given = np.fromiter((key in given for key in each), dtype=np.bool_, count=len(each))
            times = np.where(is_given, np.maximum(times, window.end), times)
        return times

    def before_cut(self) -> None:
        """Put what is new into the table, which is cut next."""
        for window, encoded in self._to_keep.items():
            keys = canonical_column(encoded, self._key_type)
            columns = {
                name: np.full(len(keys), one.initial, one.dtype) for name, one in self._table.spec.accumulators.items()
            }
            self._table.put(Accumulated(keys, columns), _namespace(window))
            self._kept.add(window)
        self._to_keep.clear()


def _namespace(window: Window) -> bytes:
    return window.namespace + _MARK


def _each(keys: KeyColumn) -> Iterator[Key]:
    return (keys.key(index) for index in range(len(keys)))
