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
from snapshot.program.operator import Input, OperatorContext
from snapshot.program.rows import keys_in
from statebackend.states.namespaces import Window
from statebackend.tables.aggregates import Aggregates
from statebackend.tables.aggregations import Count
from statebackend.tables.table import Table
from statebackend.tables.table_spec import Aggregated
from statebackend.tables.turns import last_rows

KEYS: Final = "keys of windows"
"""Under which name they are kept: no attribute of a class can be called so."""

KEYS_DECLARED: Final = Aggregates(ttl=None, rows=Aggregated(Count()))


class WindowKeys:
    """The keys of the windows of a partition."""

    def __init__(self, input: Input, context: OperatorContext) -> None:
        self._input, self._state = input, context.state
        self._table: Table = context.state[KEYS]

    def windows(self) -> Iterator[Window]:
        """Those that have keys."""
        return map(Window.of, self._table.namespaces())

    def add(self, window: Window, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Take the keys of these rows into a window; for each key its last row."""
        return last_rows(self._table.update(self._state.keys(keys_in(batch, self._input.keys)), {}, window.namespace))

    def keys(self, window: Window) -> list[object]:
        """All keys of a window in plain Python."""
        found = self._table.keys_and_results(window.namespace)
        columns = key_arrays(found.keys, self._state.key_type, self._input)
        return keys_of(pa.RecordBatch.from_arrays(columns, names=list(self._input.keys)), self._input.keys)

    def drop(self, window: Window) -> None:
        """Forget a window."""
        self._table.drop(window.namespace)
