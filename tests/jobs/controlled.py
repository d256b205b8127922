"""A keyed stream that a control stream configures. When a setting comes to a key is not fixed, that it stays is.

Each row says which version it was treated with: the versions of a key never go back, the result follows from the
version, and each key's numbers have no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from snapshot import Broadcast, Collection, KeyedBroadcastProcess, ProcessContext, Stream
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.operators.row_class import Row as Event
from statebackend import ValueState
from statebackend.columns import schema_of
from tests.jobs.comparison import Comparison, by_sequence, compared, numbered
from tests.jobs.job import Job, Scale, values
from tests.jobs.steady import Steady

_KEYS = 71
_VERSIONS = 200


def factor_of(version: int) -> int:
    return version * 3 + 1


_OUTPUT = {"k": int, "number": int, "row": int, "version": int, "result": int}


class Controlled(KeyedBroadcastProcess):
    number = ValueState(int, default=0)
    settings = Broadcast(str, int)

    def on_event(self, event: Event, ctx: ProcessContext) -> None:
        self.number.set(self.number.get() + 1)
        factor = self.settings.get("factor", factor_of(0))
        ctx.emit((ctx.key, self.number.get(), event.i, self.settings.get("version", 0), event.v * factor))

    def on_broadcast(self, event: Event, ctx: ProcessContext) -> None:
        self.settings.put("version", event.version)
        self.settings.put("factor", event.factor)


def _rows(i: Indices) -> Columns:
    return {"k": i * 13 % _KEYS, "v": values(i), "i": i}


def _stream(scale: Scale) -> Stream:
    versions = [(version, factor_of(version)) for version in range(1, _VERSIONS + 1)]
    control = Collection(versions, schema_of({"version": int, "factor": int}))
    rate = scale.rate * _VERSIONS / scale.rows
    steady = Steady(control, rate, _VERSIONS * 9 // 10, scale.gate)
    rows = Stream.read(scale.steady(_rows, {"k": int, "v": int, "i": int}), uid="rows")
    settings = Stream.read(steady, uid="settings").broadcast()
    return rows.key_by("k").connect(settings).process(Controlled, uid="controlled", schema=_OUTPUT)


def _judge(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    made = _rows(np.arange(count, dtype=np.int64))
    keys, value = np.asarray(made["k"]).tolist(), np.asarray(made["v"]).tolist()
    ordered = by_sequence(rows, "k", "number")
    verdict = compared(
        [(key, i) for i, key in enumerate(keys)],
        [(row["k"], row["row"]) for row in rows],
    )
    wrong = []
    for some in ordered.values():
        before = 0
        for row in some:
            i, version = row["row"], row["version"]
            assert isinstance(i, int)
            assert isinstance(version, int)
            if not before <= version <= _VERSIONS or row["result"] != value[i] * factor_of(version):
                wrong.append(f"{row!r} behind version {before}")
            before = version
    replayed = Comparison(0, wrong=len(wrong), examples=tuple(wrong[:4]))
    return verdict + numbered(ordered, "number") + replayed


CONTROLLED = Job("controlled", _stream, _judge)
