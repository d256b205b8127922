"""Which keys are in which windows: for operators that keep rows, found by the batch and dropped with the window.

What always holds: a key is in a window if it had a row there, until the window is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.operators.aggregated import key_arrays
from snapshot.operators.keyed_function import keys_of
from snapshot.operators.operator import Input, OperatorContext
from snapshot.operators.rows import keys_in
from snapshot.operators.windows.group_times import Already, windows_in
from statebackend.keys.columns import KeyColumn
from statebackend.states.aggregates import AggregateTable
from statebackend.states.namespaces import Window
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Count
from statebackend.tables.values.rounds import last_rows

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
