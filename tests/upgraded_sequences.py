"""The job of `tests.jobs.sequences` as later versions of its program declare it; it gives the same output."""

from __future__ import annotations

from pathlib import Path

from snapshot import KeyedProcess, Program, Stream, ToDriver
from statebackend import ValueState
from statebackend.states.codecs import Codec, IntCodec
from tests.jobs import sequences
from tests.jobs.job import OUT, Scale, sink_of
from tests.jobs.sequences import Numbered
from tests.stopped_trees import RATE, ROWS


class Decimal(Codec[int]):
    """Numbers as text, which were binary before."""

    name = "decimal"
    version = 2
    immutable = True
    replaces = frozenset({IntCodec.name})

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)

    def migrate(self, data: bytes, version: int) -> int:
        assert version == 1
        return IntCodec().decode(data)


class Unmigrated(Decimal):
    """The same, and nothing is said of what was before."""

    replaces = frozenset()


class InDecimal(Numbered):
    """Its totals are text now, and it has a new state."""

    total = ValueState(Decimal(), default=0)
    seen = ValueState(bool, default=False)


class NotMigrated(Numbered):
    total = ValueState(Unmigrated(), default=0)


class WithoutTotal(Numbered):
    """It counts no totals any more."""

    total = None  # type: ignore[assignment]


def program(folder: Path, process: type[KeyedProcess], uid: str = "numbers") -> Program:
    """The job, whose keyed operator is this one."""
    scale = Scale(ROWS, RATE, str(folder / "gate"))
    read = Stream.read(
        scale.steady(sequences._rows, {"k": int, "v": int, "i": int, "t": int}), uid="rows"
    ).with_event_time("t")
    numbered = read.key_by("k").process(process, uid=uid, schema=sequences._OUTPUT)
    return numbered.write(sink_of("jsonl", str(folder / "output")), uid=OUT)


def program_elsewhere(folder: Path) -> Program:
    """Another program altogether."""
    scale = Scale(ROWS, RATE, str(folder / "gate"))
    rows = Stream.read(scale.steady(sequences._rows, {"k": int, "v": int, "i": int, "t": int}), uid="rows")
    return rows.key_by("k").sum("v", uid="sums").write(ToDriver(), uid="others")
