"""Windows in plain Python: every row is kept, and every result is computed anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from snapshot.frames import EARLIEST
from snapshot.operators.windows import Sliding, Tumbling

Row = tuple[str | None, int | None]
Timed = tuple[Row, int]
Result = tuple[object, ...]
Emitted = tuple[Result, int]
Summarise = Callable[[list[int | None]], tuple[object, ...]]

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
