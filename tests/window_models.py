"""Windows in plain Python: every row is kept, and every result is computed anew. And how operators are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol

from hypothesis import strategies as st

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.operator import KeyedOperator
from snapshot.operators.windows.kinds import Sliding, Tumbling
from snapshot.testing.operators import OperatorHarness

Row = tuple[str | None, int | None]
Timed = tuple[Row, int]
Result = tuple[object, ...]
Emitted = tuple[Result, int]
Summarise = Callable[[list[int | None]], tuple[object, ...]]

Backend = Literal["heap", "rocksdb"]
Step = list[Timed] | int | None

GROUPS = 8

_rows = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.none() | st.integers(-5, 5))
_batches = st.lists(st.tuples(_rows, st.integers(-15, 15)), min_size=3, max_size=12)
_watermarks = st.integers(0, 9)
steps = st.lists(st.one_of(_batches, _batches, _watermarks, _watermarks, st.none()), min_size=5, max_size=12)
"""Rows, watermarks, and cuts after which it goes on from there. Times are counted from the last watermark."""


class WindowModel(Protocol):
    """What an operator is compared with; `late` is what it would give to the side output for the last rows."""

    late: list[Row]

    def rows(self, batch: Sequence[Timed]) -> list[Emitted]: ...

    def watermark(self, time: int) -> list[Emitted]: ...


def spans(least: int, most: int) -> st.SearchStrategy[str]:
    """Durations as people write them."""
    return st.integers(least, most).map("{}ms".format)


def compare(
    operator: Callable[[], KeyedOperator],
    model: WindowModel,
    work: Sequence[Step],
    sizes: list[int],
    backend: Backend,
    late: bool,
) -> None:
    """Do the same to both; after every cut the operator goes on, restored, with another parallelism."""
    now = 0
    with tempfile.TemporaryDirectory() as folder:
        harness = OperatorHarness(operator(), Path(folder), max_parallelism=GROUPS, backend=backend)
        try:
            for step in [*work, None, LATEST]:
                harness.clear()
                model.late.clear()
                if step is None:
                    snapshot = harness.cut()
                    harness.close()
                    harness = OperatorHarness(
                        operator(),
                        Path(folder),
                        parallelism=sizes.pop() if sizes else 1,
                        max_parallelism=GROUPS,
                        backend=backend,
                        snapshot=snapshot,
                    )
                    continue
                if isinstance(step, int):
                    now = min(now + step, LATEST)
                    expected = model.watermark(now)
                    harness.watermark(now)
                else:
                    batch = [(row, now + time) for row, time in step]
                    expected = model.rows(batch)
                    harness.rows([row for row, _ in batch], [time for _, time in batch])
                found = zip(map(tuple, harness.emitted()), harness.emitted_times(), strict=True)
                assert sorted(found, key=repr) == sorted(expected, key=repr)
                side = sorted(map(tuple, harness.emitted("late")), key=repr)
                assert side == (sorted(model.late, key=repr) if late else [])
        finally:
            harness.close()


ZERO = datetime(1970, 1, 1)


def moment(time: int) -> datetime:
    return ZERO + timedelta(milliseconds=time)


def count_and_sum(values: Sequence[int | None]) -> tuple[object, ...]:
    known = [value for value in values if value is not None]
    return len(values), sum(known) if known else None


def starts(kind: Tumbling | Sliding, time: int) -> Iterable[int]:
    """Tried one after the other, as slowly and as surely as one can."""
    return [start for start in range(time - kind.size + 1, time + 1) if (start - kind.offset) % kind.slide == 0]


@dataclass
class AlignedModel:
    """Windows of one size: (end, start, key) to the values in them."""

    kind: Tumbling | Sliding
    lateness: int
    summarise: Summarise = count_and_sum
    now: int = EARLIEST
    windows: dict[tuple[int, int, str | None], list[int | None]] = field(default_factory=dict)
    late: list[Row] = field(default_factory=list)

    def rows(self, batch: Sequence[Timed]) -> list[Emitted]:
        changed: dict[tuple[int, int, str | None], None] = {}
        for (key, value), time in batch:
            spans = [(start + self.kind.size, start, key) for start in starts(self.kind, time)]
            alive = [span for span in spans if span[0] + self.lateness > self.now]
            if not alive:
                self.late.append((key, value))
            for span in alive:
                self.windows.setdefault(span, []).append(value)
                if span[0] <= self.now:
                    changed[span] = None
        return [self.result(span) for span in changed]

    def watermark(self, time: int) -> list[Emitted]:
        due = sorted((span for span in self.windows if self.now < span[0] <= time), key=repr)
        given = [self.result(span) for span in due]
        self.now = max(self.now, time)
        self.windows = {span: values for span, values in self.windows.items() if span[0] + self.lateness > self.now}
        return given

    def result(self, span: tuple[int, int, str | None]) -> Emitted:
        end, start, key = span
        return (key, moment(start), moment(end), *self.summarise(self.windows[span])), end - 1
