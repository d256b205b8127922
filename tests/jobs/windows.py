"""Counts and sums in windows of event time: tumbling windows, and sessions. Their output has one right form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot import Session, Stream, Tumbling
from snapshot.connectors.memory.generate import Columns, Indices
from statebackend import Count, Sum
from tests.jobs.comparison import Comparison, Row, compared, compared_with_repeats
from tests.jobs.job import Job, Scale, values

_SCHEMA = {"k": int, "v": int, "t": int}
_SIZE = 500
_GAP = 40
_DISORDER = 60
_KEYS = 97
_COLUMNS = ("k", "window_start", "window_end", "n", "s")


def _rows(i: Indices) -> Columns:
    return {"k": i * 31 % _KEYS, "v": values(i), "t": i - i * 37 % _DISORDER}


def _bursts(i: Indices) -> Columns:
    """A key has some rows within a short time, then none for long."""
    burst, place = i // 64, i % 64
    return {"k": (burst + place // 16 * 11) % 23, "v": values(i), "t": burst * 64 + place // 4 * 3}


def _in_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as milliseconds, which every format keeps as they are."""
    columns = [
        pc.cast(column, pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _counted(stream: Stream, window: Tumbling | Session) -> Stream:
    timed = stream.with_event_time("t", out_of_order=f"{_DISORDER}ms")
    counted = timed.key_by("k").window(window).aggregate(uid="windows", n=Count(), s=Sum("v"))
    return counted.map_batches(_in_numbers, schema=dict.fromkeys(_COLUMNS, int))


def _tumbling(scale: Scale) -> Stream:
    return _counted(Stream.read(scale.steady(_rows, _SCHEMA), uid="rows"), Tumbling(f"{_SIZE}ms"))


def _tumbling_truth(count: int) -> list[Row]:
    made = _rows(np.arange(count, dtype=np.int64))
    windows: dict[tuple[int, int], list[int]] = {}
    for key, value, at in _listed(made):
        windows.setdefault((key, at // _SIZE * _SIZE), []).append(value)
    return [(key, start, start + _SIZE, len(some), sum(some)) for (key, start), some in windows.items()]


def _sessions(scale: Scale) -> Stream:
    return _counted(Stream.read(scale.steady(_bursts, _SCHEMA), uid="rows"), Session(f"{_GAP}ms"))


def _session_truth(count: int) -> list[Row]:
    made = _bursts(np.arange(count, dtype=np.int64))
    keys: dict[int, list[tuple[int, int]]] = {}
    for key, value, at in _listed(made):
        keys.setdefault(key, []).append((at, value))
    truth: list[Row] = []
    for key, rows in keys.items():
        rows.sort()
        session = [rows[0]]
        for row in rows[1:]:
            if row[0] - session[-1][0] >= _GAP:
                truth.append(_session(key, session))
                session = []
            session.append(row)
        truth.append(_session(key, session))
    return truth


def _session(key: int, rows: Sequence[tuple[int, int]]) -> Row:
    return key, rows[0][0], rows[-1][0] + _GAP, len(rows), sum(value for _, value in rows)


def _listed(made: Columns) -> list[tuple[int, int, int]]:
    return list(zip(*(np.asarray(made[name]).tolist() for name in ("k", "v", "t")), strict=True))


def _output(rows: Sequence[Mapping[str, object]]) -> list[Row]:
    return [tuple(row[name] for name in _COLUMNS) for row in rows]


def _judge_tumbling(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    return compared(_tumbling_truth(count), _output(rows))


def _judge_sessions(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    return compared(_session_truth(count), _output(rows))


def _judge_tumbling_repeats(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    """Every window has come, and has at least the rows that are in it."""
    truth, found = {row[:3]: row[3] for row in _tumbling_truth(count)}, _output(rows)
    verdict = compared_with_repeats(truth, [row[:3] for row in found])
    most: dict[Row, int] = {}
    for row in found:
        most[row[:3]] = max(most.get(row[:3], 0), int(str(row[3])))
    short = [window for window, had in truth.items() if most.get(window, 0) < int(str(had))]
    return verdict + Comparison(0, lost=len(short), examples=tuple(f"{window!r} lacks rows" for window in short[:4]))


TUMBLING = Job("tumbling", _tumbling, _judge_tumbling, _judge_tumbling_repeats)
SESSIONS = Job("sessions", _sessions, _judge_sessions)
