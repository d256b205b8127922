"""A function with state and timers that numbers all it gives out: each key's numbers have no gap, and none comes twice.

Rows of one split come in their order, and a timer fires once, after all rows before its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from snapshot import KeyedProcess, ProcessContext, Stream
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.operators.row_class import Row as Event
from statebackend import ValueState
from tests.jobs.comparison import Comparison, by_sequence, compared, numbered
from tests.jobs.job import SPLITS, Job, Scale, values

_KEYS = 61
_EVERY = 700


_OUTPUT = {"k": int, "number": int, "row": int, "timer": int, "total": int}


class Numbered(KeyedProcess):
    """Each row and each timer of a key gets the key's next number."""

    number = ValueState(int, default=0)
    total = ValueState(int, default=0)

    def on_event(self, event: Event, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.v)
        ctx.timer((event.t // _EVERY + 1) * _EVERY)
        self._give(ctx, row=event.i, timer=-1)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        self._give(ctx, row=-1, timer=at)

    def _give(self, ctx: ProcessContext, row: int, timer: int) -> None:
        number = self.number.get() + 1
        self.number.set(number)
        ctx.emit((ctx.key, number, row, timer, self.total.get()))


def _rows(i: Indices) -> Columns:
    return {"k": i * 17 % _KEYS, "v": values(i), "i": i, "t": i}


def _stream(scale: Scale) -> Stream:
    read = Stream.read(scale.steady(_rows, {"k": int, "v": int, "i": int, "t": int}), uid="rows")
    return read.with_event_time("t").key_by("k").process(Numbered, uid="numbers", schema=_OUTPUT)


def _judge(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    made = _rows(np.arange(count, dtype=np.int64))
    columns = [np.asarray(made[name]).tolist() for name in ("k", "i", "t", "v")]
    value = dict(zip(columns[1], columns[3], strict=True))
    truth: set[tuple[object, ...]] = {(k, i, -1) for k, i, _, _ in zip(*columns, strict=True)}
    truth |= {(k, -1, (t // _EVERY + 1) * _EVERY) for k, _, t, _ in zip(*columns, strict=True)}
    ordered = by_sequence(rows, "k", "number")
    replayed = [_replay(some, value) for some in ordered.values()]
    verdict = compared(truth, [(row["k"], row["row"], row["timer"]) for row in rows])
    return sum(replayed, verdict + numbered(ordered, "number"))


def _replay(rows: Sequence[Mapping[str, object]], value: Mapping[int, int]) -> Comparison:
    """The same rows of one key in the same order, without a stream: totals, the order in a split and that of time."""
    total, newest, wrong = 0, [-1] * SPLITS, []
    fired = -1
    for row in rows:
        i, timer = row["row"], row["timer"]
        assert isinstance(i, int)
        assert isinstance(timer, int)
        if i >= 0:
            total += value[i]
            if newest[i % SPLITS] >= i or i < fired:
                wrong.append(f"row {i} comes behind row {newest[i % SPLITS]} and the timer at {fired}")
            newest[i % SPLITS] = i
        else:
            if timer <= fired:
                wrong.append(f"the timer at {timer} fires behind that at {fired}")
            fired = timer
        if row["total"] != total:
            wrong.append(f"{row!r}: the total is {total}")
    return Comparison(0, wrong=len(wrong), examples=tuple(wrong[:4]))


SEQUENCES = Job("sequences", _stream, _judge)
