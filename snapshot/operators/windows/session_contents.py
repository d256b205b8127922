"""The contents of sessions: aggregates, a reduced row, or all of their rows.

Invariant: rows count in the order in which they came; where a row joins two sessions, what the earlier one had
come to counts first, then that of the later one, then the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.operators.aggregated import key_fields, read_columns
from snapshot.operators.operator import Emit, Input
from snapshot.operators.reduce import Fold
from snapshot.operators.row_class import Row, batch_of, rows_of
from snapshot.operators.rows import Rows
from snapshot.operators.windows.calls import WindowCalls
from snapshot.operators.windows.declaration import SPAN_FIELDS
from snapshot.operators.windows.session_operator import Given
from snapshot.operators.windows.sessions import SequenceCodec
from statebackend.states.codec_shapes import TupleCodec
from statebackend.states.codecs import BytesCodec, Codec, FloatCodec, IntCodec, StrCodec
from statebackend.tables.values.accumulators import OBJECTS, Accumulator
from statebackend.tables.values.aggregations import Accumulators, Aggregation, Merging

_AT_ONCE: Final = 4096
"""So many results that no function of the user is called for are given together at most."""

Kept: TypeAlias = "int | float | str | bytes | None"
Totals: TypeAlias = tuple[Kept, ...]
"""The accumulators of a session, of one output after the other."""


def totals_codec(outputs: Mapping[str, Aggregation]) -> Codec[Any]:
    """Return the codec with which the accumulators of a session are kept."""
    parts: list[Any] = [
        _codec(accumulator) for aggregation in outputs.values() for accumulator in aggregation.accumulators.values()
    ]
    return TupleCodec(parts)


def _codec(accumulator: Accumulator) -> Codec[Any]:
    if accumulator.dtype == OBJECTS:
        return StrCodec() if isinstance(accumulator.initial, str) else BytesCodec()
    return FloatCodec() if accumulator.dtype.kind == "f" else IntCodec()


def rows_codec(row: Codec[Row]) -> Codec[Any]:
    """Return the codec with which all rows of a session are kept."""
    return SequenceCodec(row)


class SessionTotals:
    """Aggregates of sessions."""

    at_once: ClassVar[int] = _AT_ONCE

    def __init__(
        self, outputs: Mapping[str, Aggregation], input: Input, output: pa.Schema, timed: bool, emit: Emit
    ) -> None:
        self._outputs, self._input, self._output, self._timed, self._emit = outputs, input, output, timed, emit

    def merged(self, rows: Rows, groups: NDArray[np.int64], kept: Sequence[Sequence[Totals]]) -> list[Totals]:
        """Merge the accumulators of each group, and fold its rows in, without Python for each row."""
        count = len(kept)
        columns = read_columns(self._outputs, rows.batch)
        before = [totals for some in kept for totals in some]
        sizes = np.array([len(some) for some in kept])
        group = np.repeat(np.arange(count), sizes)
        turn = np.arange(len(before)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        merged: list[list[Kept]] = []
        at = 0
        for aggregation in self._outputs.values():
            accumulators = {
                name: np.full(count + len(before), kind.initial, dtype=kind.dtype)
                for name, kind in aggregation.accumulators.items()
            }
            for column in accumulators.values():
                column[count:] = [totals[at] for totals in before]
                column[group[turn == 0]] = column[count:][turn == 0]
                at += 1
            if isinstance(aggregation, Merging):
                for later in range(1, int(sizes.max(initial=0))):
                    which = np.flatnonzero(turn == later)
                    aggregation.merge(accumulators, group[which], count + which)
            values = None if aggregation.column is None else columns[aggregation.column]
            aggregation.update(accumulators, groups, values)
            merged += [column[:count].tolist() for column in accumulators.values()]
        return list(zip(*merged, strict=True))

    def give(self, results: Sequence[Given[Totals]]) -> None:
        """Emit the results as one batch."""
        slots = np.arange(len(results))
        columns = [*_keys(results, self._input), *_spans(results)]
        at = 0
        for one in self._outputs.values():
            accumulators: dict[str, NDArray[np.generic]] = {}
            for name, kind in one.accumulators.items():
                accumulators[name] = np.array([given.content[at] for given in results], dtype=kind.dtype)
                at += 1
            filled: Accumulators = accumulators
            columns.append(one.result(filled, slots))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._output)
        self._emit(Rows(batch, _times(results) if self._timed else None))

    def flush(self) -> None:
        """Do nothing: nothing is collected."""

    def advance(self, watermark: int) -> None:
        """Do nothing: event time is not looked at."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class SessionRow:
    """The reduced rows of sessions."""

    at_once: ClassVar[int] = _AT_ONCE

    def __init__(self, fold: Fold, input: Input, label: str, timed: bool, emit: Emit) -> None:
        self._fold, self._input, self._label, self._timed, self._emit = fold, input, label, timed, emit

    def merged(self, rows: Rows, groups: NDArray[np.int64], kept: Sequence[Sequence[Row]]) -> list[Row]:
        """Reduce for each group the rows that were kept, and then its new rows, in order."""
        reduced: list[Row | None] = [None] * len(kept)
        for group, some in enumerate(kept):
            for row in some:
                reduced[group] = self._fold(reduced[group], row)
        for group, row in zip(groups.tolist(), rows_of(rows.batch), strict=True):
            reduced[group] = self._fold(reduced[group], row)
        return reduced

    def give(self, results: Sequence[Given[Row]]) -> None:
        """Emit the reduced rows as one batch."""
        batch = batch_of([given.content for given in results], self._input.schema, self._label)
        self._emit(Rows(batch, _times(results) if self._timed else None))

    def flush(self) -> None:
        """Do nothing: nothing is collected."""

    def advance(self, watermark: int) -> None:
        """Do nothing: event time is not looked at."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class SessionRows:
    """The rows of sessions, for a function of all of them."""

    at_once: ClassVar[int] = 1

    def __init__(self, calls: WindowCalls, row: Codec[Row]) -> None:
        self._calls, self._accept = calls, row.accept
        self.advance, self.flush, self.close = calls.at, calls.flush, calls.close

    def merged(
        self, rows: Rows, groups: NDArray[np.int64], kept: Sequence[Sequence[tuple[Row, ...]]]
    ) -> list[tuple[Row, ...]]:
        """Append to the kept rows of each group its new rows, in order."""
        together: list[list[Row]] = [[row for one in some for row in one] for some in kept]
        for group, row in zip(groups.tolist(), rows_of(rows.batch), strict=True):
            together[group].append(self._accept(row))
        return [tuple(some) for some in together]

    def give(self, results: Sequence[Given[tuple[Row, ...]]]) -> None:
        """Call the function for each session with its rows."""
        for given in results:
            self._calls.call(given.key, given.span, given.content)


def _keys(results: Sequence[Given[Any]], input: Input) -> list[pa.Array]:
    fields = key_fields(input)
    if len(fields) == 1:
        return [pa.array([given.key for given in results], fields[0].type)]
    parts = zip(*[given.key for given in results], strict=True)
    return [pa.array(list(part), field.type) for part, field in zip(parts, fields, strict=True)]


def _spans(results: Sequence[Given[Any]]) -> list[pa.Array]:
    starts, ends = [given.span.start for given in results], [given.span.end for given in results]
    return [
        pa.array(times, pa.int64()).cast(field.type) for times, field in zip((starts, ends), SPAN_FIELDS, strict=True)
    ]


def _times(results: Sequence[Given[Any]]) -> NDArray[np.int64]:
    return np.array([given.span.end - 1 for given in results], dtype=np.int64)
