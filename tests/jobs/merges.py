"""Two inputs that share the state of each key, in an order that nothing fixes; the output records it.

The judge runs the recorded order through the same function one after the other: the state has to be the same after
every row, each key's numbers have no gap, and rows of one split of one input come in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from snapshot import KeyedCoProcess, ProcessContext, Stream
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.operators.row_class import Row as Event
from statebackend import ValueState
from tests.jobs.comparison import Comparison, Row, by_sequence, compared, compared_with_repeats, numbered
from tests.jobs.job import SPLITS, Job, Scale, values

_KEYS = 53
_SECOND_ROWS = 3
"""The second input has a row for so many of the first."""


def after(state: int, side: int, value: int) -> int:
    """What the state is after one more row: it depends on the order of all rows."""
    return (state * (31 + 2 * side) + value) % 1_000_003


_OUTPUT = {"k": int, "number": int, "side": int, "row": int, "state": int}


class Merged(KeyedCoProcess):
    number = ValueState(int, default=0)
    state = ValueState(int, default=1)

    def on_first(self, event: Event, ctx: ProcessContext) -> None:
        self._take(event, ctx, 0)

    def on_second(self, event: Event, ctx: ProcessContext) -> None:
        self._take(event, ctx, 1)

    def _take(self, event: Event, ctx: ProcessContext, side: int) -> None:
        self.number.set(self.number.get() + 1)
        self.state.set(after(self.state.get(), side, event.v))
        ctx.emit((ctx.key, self.number.get(), side, event.i, self.state.get()))


def _first(i: Indices) -> Columns:
    return {"k": i * 29 % _KEYS, "v": values(i), "i": i}


def _second(i: Indices) -> Columns:
    return {"k": i * 5 % _KEYS, "v": values(i + 500), "i": i}


_SIDES = (_first, _second)


def _stream(scale: Scale) -> Stream:
    schema = {"k": int, "v": int, "i": int}
    first = Stream.read(scale.steady(_first, schema), uid="first")
    second = Stream.read(scale.steady(_second, schema, scale.rows // _SECOND_ROWS), uid="second")
    return first.key_by("k").connect(second.key_by("k")).process(Merged, uid="merged", schema=_OUTPUT)


def _judge(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    truth: list[tuple[object, ...]] = []
    value: dict[tuple[int, int], int] = {}
    for side, rows_of_side in enumerate((count, count // _SECOND_ROWS)):
        made = _SIDES[side](np.arange(rows_of_side, dtype=np.int64))
        keys, some = np.asarray(made["k"]).tolist(), np.asarray(made["v"]).tolist()
        truth += [(key, side, i) for i, key in enumerate(keys)]
        value.update({(side, i): given for i, given in enumerate(some)})
    ordered = by_sequence(rows, "k", "number")
    verdict = compared(truth, [(row["k"], row["side"], row["row"]) for row in rows])
    replayed = [_replay(some, value) for some in ordered.values()]
    return sum(replayed, verdict + numbered(ordered, "number"))


def _replay(rows: Sequence[Mapping[str, object]], value: Mapping[tuple[int, int], int]) -> Comparison:
    state, wrong = 1, []
    newest: dict[tuple[int, int], int] = {}
    for row in rows:
        side, i = row["side"], row["row"]
        assert isinstance(side, int)
        assert isinstance(i, int)
        state = after(state, side, value[side, i])
        if row["state"] != state:
            wrong.append(f"{row!r}: in this order the state is {state}")
            break
        if newest.get((side, i % SPLITS), -1) >= i:
            wrong.append(f"row {i} of input {side} comes behind row {newest[side, i % SPLITS]}")
        newest[side, i % SPLITS] = i
    return Comparison(0, wrong=len(wrong), examples=tuple(wrong))


def _judge_repeats(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    """Every row has come, and each key's state has counted as many rows as the key has."""
    truth: list[Row] = []
    for side, rows_of_side in enumerate((count, count // _SECOND_ROWS)):
        made = _SIDES[side](np.arange(rows_of_side, dtype=np.int64))
        truth += [(key, side, i) for i, key in enumerate(np.asarray(made["k"]).tolist())]
    verdict = compared_with_repeats(truth, [(row["k"], row["side"], row["row"]) for row in rows])
    counted = {key: some[-1]["number"] for key, some in by_sequence(rows, "k", "number").items()}
    short = [(key, had) for key, had in Counter(row[0] for row in truth).items() if int(str(counted.get(key, 0))) < had]
    return verdict + Comparison(
        0, lost=len(short), examples=tuple(f"key {key} has not counted {n}" for key, n in short)
    )


MERGES = Job("merges", _stream, _judge, _judge_repeats)
