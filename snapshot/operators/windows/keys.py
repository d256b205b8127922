"""Keys of windows: which are in a window, which have given its results, and how far in time their groups have come.

All of it is kept in one table. The keys of a window are in the namespace of the window, and are dropped with it. Keys
that have given results of a window that still owes others are in a namespace of their own, so that a restored operator
gives the others alone, wherever their key groups went. A key group that has ever given a result has, in each cut, the
event time of its partition at that cut: one key of the group is in a namespace that is the time. So the time goes where
the group goes, and a window whose results the group gave is told from one whose results it still owes. The end of event
time is no such time: a restored operator to which more comes begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.aggregated import key_arrays
from snapshot.operators.keyed_function import keys_of
from snapshot.operators.operator import Input, OperatorContext
from snapshot.operators.rows import Times, keys_in
from statebackend.entries import sortable, unsortable
from statebackend.keygroups import range_of
from statebackend.keys.columns import KeyColumn, canonical_column
from statebackend.keys.types import KeyType
from statebackend.states.aggregates import AggregateTable
from statebackend.states.namespaces import Window
from statebackend.tables.format.blocks import arrow_keys, hashed
from statebackend.tables.table import Accumulated, Table
from statebackend.tables.values.aggregations import Count
from statebackend.tables.values.rounds import last_rows

Already: TypeAlias = Callable[[KeyColumn], NDArray[np.bool_]]
"""A function that marks the keys that have given their results of a window."""

_SIZE_OF_TIME: Final = len(sortable(0))
_SIZE_OF_WINDOW: Final = len(Window(0, 1).namespace)


def windows_in(table: Table) -> Iterator[Window]:
    """Return the windows that have keys in a table; its namespaces for other things are left out.

    These are times of key groups, and keys of `PartlyGiven`.
    """
    return (Window.of(namespace) for namespace in table.namespaces() if len(namespace) == _SIZE_OF_WINDOW)


class GroupTimes:
    """The times of a partition's key groups. The caller owes `gave` before the first cut after keys gave results, and
    `before_cut` before each cut.
    """

    def __init__(self, table: Table, context: OperatorContext) -> None:
        self._table, self._key_type = table, context.state.key_type
        self._count = context.state.schema.max_parallelism
        self._restored = np.full(self._count, EARLIEST, dtype=np.int64)
        self._found = np.zeros(self._count, dtype=np.bool_)
        self._kept: set[int] = set()
        for namespace in table.namespaces():
            # What comes when event time has been at its end is of a new time, in which nothing was given.
            if len(namespace) == _SIZE_OF_TIME and (time := unsortable(namespace)) < LATEST:
                self._restore(time, table.accumulators(namespace).keys)
        self._latest = int(self._restored.max())
        groups = range_of(context.partition, context.parallelism, self._count)
        self._missing = len(groups) - int(np.count_nonzero(self._found))

    def _restore(self, time: int, keys: KeyColumn) -> None:
        groups = keys.groups(self._count)
        self._kept.add(time)
        self._found[groups] = True
        self._restored[groups] = np.maximum(self._restored[groups], time)

    # --- what was restored --------------------------------------------------------------------------------------------

    def ahead(self, now: int) -> bool:
        """True if some group has been at a later time than the partition is now."""
        return self._latest > now

    def of(self, keys: KeyColumn, now: int) -> NDArray[np.int64]:
        """Return the time of each key when the partition's time is `now`."""
        times: NDArray[np.int64] = np.maximum(self._restored[keys.groups(self._count)], now)
        return times

    def already(self, end: int) -> Already | None:
        """Return a test for keys that have given results of windows with this end; None if no key group has come there.

        The partition itself has still to come to this end.
        """
        if self._latest < end:
            return None
        return lambda keys: self._restored[keys.groups(self._count)] >= end

    # --- what is kept -------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """True if all groups have given results, so that `gave` does nothing."""
        return self._missing == 0

    def gave(self, keys: KeyColumn, now: int) -> None:
        """Note that results of these keys were given at this time."""
        if not self._missing:
            return
        groups = keys.groups(self._count)
        first = np.full(self._count, -1)
        first[groups] = np.arange(len(groups))
        first[self._found] = -1
        new = first[first >= 0]
        if len(new):
            self._found[groups] = True
            self._missing -= len(new)
            self._keep(hashed(arrow_keys(keys).take(pa.array(new)), self._key_type), now)

    def before_cut(self, now: int) -> None:
        """Move the groups that have given results to the time `now`, but for those that have been at a later one."""
        # Those that are there already are written again: a table all of which is written needs no older files.
        for time in sorted(self._kept):
            if time <= now:
                self._kept.remove(time)
                keys = self._table.accumulators(sortable(time)).keys
                self._table.drop(sortable(time))
                self._keep(keys, now)

    def _keep(self, keys: KeyColumn, time: int) -> None:
        _put(self._table, keys, sortable(time))
        self._kept.add(time)


Key: TypeAlias = "bytes | None"
"""A key in its canonical bytes."""

Firing: TypeAlias = Iterator[list[object]]
"""Gives the results of a window. Wherever it is interrupted it says the keys whose results it has given since."""

_MARK: Final = b"g"
_SIZE_OF_PARTLY_GIVEN: Final = len(Window(0, 1).namespace + _MARK)


class PartlyGiven:
    """The windows of a partition that have given the results of some keys, and not of all."""

    def __init__(self, table: Table, key_type: KeyType) -> None:
        self._table, self._key_type = table, key_type
        self._given: dict[Window, set[Key]] = {}
        self._to_keep: dict[Window, list[Key]] = {}
        self._kept: set[Window] = set()
        for namespace in table.namespaces():
            if len(namespace) == _SIZE_OF_PARTLY_GIVEN:
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
            _put(self._table, canonical_column(encoded, self._key_type), _namespace(window))
            self._kept.add(window)
        self._to_keep.clear()


def _put(table: Table, keys: KeyColumn, namespace: bytes) -> None:
    """Put keys into a namespace of the table, with accumulators that no row was folded into."""
    empty = {name: np.full(len(keys), one.initial, one.dtype) for name, one in table.spec.accumulators.items()}
    table.put(Accumulated(keys, empty), namespace)


def _namespace(window: Window) -> bytes:
    return window.namespace + _MARK


def _each(keys: KeyColumn) -> Iterator[Key]:
    return (keys.key(index) for index in range(len(keys)))


KEYS: Final = "keys of windows"
"""Under which name they are kept: no attribute of a class can be called so."""

KEYS_DECLARED: Final = AggregateTable(rows=Count())


class WindowKeys:
    """The keys of the windows of a partition."""

    def __init__(self, input: Input, context: OperatorContext) -> None:
        self._input, self._state = input, context.state
        self.table: Final[Table] = context.state[KEYS]

    def windows(self) -> Iterator[Window]:
        """Return the windows that have keys."""
        return windows_in(self.table)

    def add(self, window: Window, batch: pa.RecordBatch) -> tuple[KeyColumn, NDArray[np.int64]]:
        """Take the keys of these rows into a window; return them, and for each key the place of its last row."""
        keys = self._state.keys(keys_in(batch, self._input.keys))
        return keys, last_rows(self.table.update(keys, {}, window.namespace))

    def keys(self, window: Window) -> KeyColumn:
        """Return all keys of a window."""
        return self.table.keys_and_results(window.namespace).keys

    def plain(self, keys: KeyColumn, already: Already | None = None) -> list[object]:
        """Return keys in plain Python, without those that `already` is true for."""
        columns = key_arrays(keys, self._state.key_type, self._input)
        batch = pa.RecordBatch.from_arrays(columns, names=list(self._input.keys))
        if already is not None:
            batch = batch.filter(pa.array(~already(keys)))
        return keys_of(batch, self._input.keys, self._state.key_type)

    def drop(self, window: Window) -> None:
        """Forget a window."""
        self.table.drop(window.namespace)
