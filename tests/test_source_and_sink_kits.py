"""The kits for sources and sinks find what is wrong with them: each wrong one fails by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from snapshot.frozen_json import NULL
from snapshot.ids import JobId, TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext
from snapshot.program.source import Batch, Exhausted, Later, Reading, Source, SplitContext
from snapshot.testing import Violation, sources
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SinkTrial, Surroundings, check_sink
from snapshot.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from statebackend.ids import Incarnation, Uid

SCHEMA = pa.schema([("n", pa.int64())])

STAGED: dict[TransactionId, list[str]] = {}
VISIBLE: list[tuple[TransactionId, list[str]]] = []
"""The target of the sinks here: as it outlives every sink object, it is the module's."""


@dataclass(frozen=True)
class Target:
    """A sink that keeps what it should, but for what `fault` names."""

    fault: str = ""
    exactly_once: bool = True
    abilities: Abilities = field(default_factory=lambda: Abilities(keeps_prepared=True))

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        return []

    def check(self, schema: pa.Schema) -> Sequence[str]:
        return ["no texts"] if self.fault == "refuses" else []

    def open(self, context: SinkContext) -> Writer:
        return Writer(self.fault)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        for transaction in list(STAGED):
            name = parse_transaction_id(transaction)
            ours = (name.job, name.sink) == (job, uid) or self.fault == "aborts those of others"
            match self.fault:
                case "aborts what is named":
                    leftover = name.incarnation < older_than
                case "aborts its own":
                    leftover = transaction not in named
                case _:
                    leftover = may_be_aborted(transaction, older_than, named)
            if ours and leftover:
                del STAGED[transaction]


class Writer:
    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.rows: list[str] = []

    def begin(self, transaction: TransactionId) -> None:
        self.transaction = transaction
        self.rows = [] if self.fault != "mixes transactions" else self.rows

    def write(self, rows: Rows) -> None:
        self.rows += rows.batch.column("row").to_pylist()

    def seal(self) -> Sealed:
        return Held(self.fault, self.transaction, self.rows if self.fault == "mixes transactions" else list(self.rows))

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        done = any(visible == transaction for visible, _ in VISIBLE)
        if done and self.fault != "commits twice":
            answer = CommitOutcome.FAILED if self.fault == "forgets commits" else CommitOutcome.ALREADY_COMMITTED
            return CommitAnswer(answer)
        if transaction not in STAGED:
            return CommitAnswer(CommitOutcome.FAILED, "nothing is staged")
        VISIBLE.append((transaction, STAGED[transaction]))
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        if self.fault == "forgets at close":
            STAGED.clear()


@dataclass
class Held:
    fault: str
    transaction: TransactionId
    rows: list[str]

    def prepare(self) -> CommitPayload | None:
        if not self.rows and self.fault != "commits nothing":
            return None
        STAGED[self.transaction] = self.rows
        if self.fault == "shows what is prepared":
            VISIBLE.append((self.transaction, self.rows))
        return CommitPayload(NULL)


def visible(_: Surroundings) -> Sequence[str]:
    return [row for _, rows in VISIBLE for row in rows]


def clear() -> None:
    STAGED.clear()
    VISIBLE.clear()


FAULTS = {
    "refuses": "takes a column of texts",
    "shows what is prepared": "not visible",
    "commits twice": "repeated",
    "forgets commits": "can be committed",
    "forgets at close": "can be committed",
    "mixes transactions": "not what was written after its seal",
    "commits nothing": "without rows",
    "aborts what is named": "can be committed",
    "aborts its own": "can be committed",
    "aborts those of others": "can be committed",
}


def test_a_right_sink_passes() -> None:
    check_sink(SinkTrial(Target(), visible, clear))
    run_state_machine_as_test(sink_machine(SinkTrial(Target(), visible, clear)), settings=settings(max_examples=20))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_sink_fails(fault: str) -> None:
    with pytest.raises(Violation, match=FAULTS[fault]):
        check_sink(SinkTrial(Target(fault), visible, clear))


@pytest.mark.parametrize("fault", ["commits twice", "mixes transactions", "aborts what is named", "forgets commits"])
def test_the_machine_finds_a_wrong_sink_as_well(fault: str) -> None:
    machine = sink_machine(SinkTrial(Target(fault), visible, clear))
    with pytest.raises(Violation):
        run_state_machine_as_test(machine, settings=settings(phases=[Phase.generate], report_multiple_bugs=False))


def test_a_sink_that_is_not_exactly_once_is_not_checked_for_it() -> None:
    with pytest.raises(Violation, match="exactly-once"):
        CHECKS[0](SinkTrial(Target(exactly_once=False), visible))


@dataclass(frozen=True)
class Numbers:
    """The numbers up to 20, in one split; wrong in one way."""

    fault: str = ""
    schema: pa.Schema = SCHEMA
    bounded: bool = True
    blocking: bool = False
    on_demand: bool = False
    discover_every: float | None = None

    def check(self) -> Sequence[str]:
        return ["wrong"] if self.fault == "complains" else []

    def discover(self, parallelism: int) -> Sequence[str]:
        return ["0", "0"] if self.fault == "names twice" else ["0"]

    def open(self, context: SplitContext) -> WrongReader:
        return WrongReader(self.fault, context)


class WrongReader:
    def __init__(self, fault: str, context: SplitContext) -> None:
        self.fault = fault
        self.next = context.position if isinstance(context.position, int) else 0

    def read(self, most: int) -> Reading:
        end = min(20, self.next + most + (self.fault == "gives too many"))
        if self.next >= 20:
            return Later(0) if self.fault == "never ends" else Exhausted()
        numbers = list(range(self.next, end))
        if self.fault == "depends on the size":
            numbers = [number * most for number in numbers]
        self.next = end
        schema = pa.schema([("n", pa.int32())]) if self.fault == "has another schema" else SCHEMA
        behind = {"repeats": end - 1, "skips": end + 1}.get(self.fault, end)
        return Batch(batch(numbers, schema), behind)

    def close(self) -> None:
        pass


def batch(numbers: Sequence[int], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, schema.field(0).type)], schema=schema)


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("complains", "has no problems"),
        ("names twice", "a name of its own"),
        ("gives too many", "1 to 7 rows"),
        ("has another schema", "are of the schema"),
        ("depends on the size", "read 1 at once"),
        ("never ends", "every split of a bounded source ends"),
        ("repeats", "the same rows come"),
        ("skips", "the same rows come"),
    ],
)
def test_a_wrong_source_fails(fault: str, promise: str) -> None:
    with pytest.raises(Violation, match=promise):
        sources.check_source(Numbers(fault))


def test_a_right_source_passes() -> None:
    check: Callable[[Source], None] = sources.check_source
    check(Numbers())
