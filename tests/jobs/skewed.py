"""Large rows, and a key for which the function is slow: its partition cannot keep up with the source by far.

The rows of a key of one split come in their order, and each key's numbers have no gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from snapshot import KeyedProcess, ProcessContext, Stream
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.operators.row_class import Row as Event
from statebackend import ValueState
from tests.jobs.comparison import Comparison, by_sequence, compared, numbered
from tests.jobs.job import Job, Scale

ROW_BYTES: Final = 16_000
SLOW_KEY: Final = 0
_KEYS = 32
_PAUSE = 0.0005
"""What the function takes for a row of the slow key, which has every fourth row."""

_PAYLOAD = b"x" * ROW_BYTES


class Laboured(KeyedProcess):
    number = ValueState(int, default=0)

    def on_event(self, event: Event, ctx: ProcessContext) -> None:
        if event.k == SLOW_KEY:
            time.sleep(_PAUSE)
        self.number.set(self.number.get() + 1)
        ctx.emit((ctx.key, self.number.get(), event.i, len(event.payload)))


def _keys(i: Indices) -> Indices:
    return np.where(i // 4 % 4 == 0, SLOW_KEY, 1 + i % (_KEYS - 1))


def _rows(i: Indices) -> Columns:
    return {"k": _keys(i), "i": i, "payload": pa.array([_PAYLOAD] * len(i), pa.binary())}


def _stream(scale: Scale) -> Stream:
    rows = Stream.read(scale.steady(_rows, {"k": int, "i": int, "payload": bytes}), uid="rows")
    return rows.key_by("k").process(Laboured, uid="laboured", schema={"k": int, "number": int, "i": int, "size": int})


def _judge(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    truth = [(key, i, ROW_BYTES) for i, key in enumerate(_keys(np.arange(count, dtype=np.int64)).tolist())]
    verdict = compared(truth, [(row["k"], row["i"], row["size"]) for row in rows])
    return verdict + numbered(by_sequence(rows, "k", "number"), "number")


SKEWED = Job("skewed", _stream, _judge)
