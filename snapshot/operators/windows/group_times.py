"""How far in event time each key group has come: partitions that are made into one may have come to different times.

What always holds: a key group that has ever given a result has, in each cut, the event time of its partition at that
cut. That is kept in the operator's table, under one key of the group, in a namespace that is the time: so it goes where
the group goes, and a window whose results the group gave is told from one whose results it still owes. The end of event
time is no such time: a restored operator to which more comes begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.operator import OperatorContext
from statebackend.entries import sortable, unsortable
from statebackend.keygroups import range_of
from statebackend.keys.columns import KeyColumn
from statebackend.states.namespaces import Window
from statebackend.tables.format.blocks import arrow_keys, hashed
from statebackend.tables.table import Accumulated, Table

Already: TypeAlias = Callable[[KeyColumn], NDArray[np.bool_]]
"""Which of these keys have given their results of a window."""

_SIZE: Final = len(sortable(0))
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
            if len(namespace) == _SIZE and (time := unsortable(namespace)) < LATEST:
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
        kept = {name: np.full(len(keys), one.initial, one.dtype) for name, one in self._table.spec.accumulators.items()}
        self._table.put(Accumulated(keys, kept), sortable(time))
        self._kept.add(time)
