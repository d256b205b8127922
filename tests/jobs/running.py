"""Running aggregates, one row for each row. All rows of a key are of one split, so their order is fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from snapshot import Stream
from snapshot.connectors.memory.generate import Columns, Indices
from statebackend import Count, Max, Sum
from tests.jobs.comparison import Comparison, Row, compared
from tests.jobs.job import SPLITS, Job, Scale, values

_FEW = 40 * SPLITS
_MANY = 6_000 * SPLITS


def _rows(keys: int, i: Indices) -> Columns:
    return {"k": (i // SPLITS * 7 % (keys // SPLITS)) * SPLITS + i % SPLITS, "v": values(i)}


def _stream(keys: int, scale: Scale) -> Stream:
    keyed = Stream.read(scale.steady(partial(_rows, keys), {"k": int, "v": int}), uid="rows").key_by("k")
    return keyed.aggregate(uid="totals", n=Count(), s=Sum("v"), m=Max("v"))


def _judge(keys: int, rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    made = _rows(keys, np.arange(count, dtype=np.int64))
    totals: dict[int, tuple[int, int, int]] = {}
    truth: list[Row] = []
    for key, value in zip(np.asarray(made["k"]).tolist(), np.asarray(made["v"]).tolist(), strict=True):
        n, s, m = totals.get(key, (0, 0, value))
        totals[key] = (n + 1, s + value, max(m, value))
        truth.append((key, *totals[key]))
    return compared(truth, [tuple(row[name] for name in ("k", "n", "s", "m")) for row in rows])


RUNNING = Job("running", partial(_stream, _FEW), partial(_judge, _FEW))
MANY_KEYS = Job("many_keys", partial(_stream, _MANY), partial(_judge, _MANY))
"""So much state that its files are rewritten when enough of it has changed."""
