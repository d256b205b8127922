"""A count for each key, one row for each row, which says of which row of the input it is.

Invariant: all rows of a key are of one split, so their order is fixed; from the number in a row of the output
follows which split's position its epoch must have passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from snapshot import Stream
from snapshot.connectors.memory.generate import Columns, Indices
from statebackend import Count, Max
from statebackend.columns import schema_of
from tests.jobs.comparison import Comparison, Row, compared
from tests.jobs.job import SPLITS, Job, Scale

SCHEMA: Final = schema_of({"k": int, "n": int, "i": int})
"""The output: a key, how often it has come, and the number of the row of the input."""
_KEYS: Final = 25
"""In each split."""


def _rows(i: Indices) -> Columns:
    return {"k": i // SPLITS % _KEYS * SPLITS + i % SPLITS, "i": i}


def _stream(scale: Scale) -> Stream:
    keyed = Stream.read(scale.steady(_rows, {"k": int, "i": int}), uid="rows").key_by("k")
    return keyed.aggregate(uid="counts", n=Count(), i=Max("i"))


def _judge(rows: Sequence[Mapping[str, object]], count: int) -> Comparison:
    keys = np.asarray(_rows(np.arange(count, dtype=np.int64))["k"]).tolist()
    truth: list[Row] = [(key, i // (SPLITS * _KEYS) + 1, i) for i, key in enumerate(keys)]
    return compared(truth, [(row["k"], row["n"], row["i"]) for row in rows])


NUMBERED = Job("numbered", _stream, _judge)
