"""The kits for sources and sinks find what is wrong with them: each wrong one fails by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from re import fullmatch
from secrets import token_hex

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from snapshot.epochs.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext
from snapshot.program.source import Available, Batch, Exhausted, Later, Reading, Source, SplitContext
from snapshot.testing import Violation, sources
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SinkEnvironment, SinkTrial, check_sink
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

SCHEMA = pa.schema([("n", pa.int64())])

Name = tuple[TransactionId, str]
"""A transaction, and what was drawn when it was begun."""
STAGED: dict[Name, list[str]] = {}
VISIBLE: list[tuple[Name, list[str]]] = []
STRANGE: list[str] = []
"""What lies beside the target."""
BY: dict[Name, Incarnation] = {}
"""Who committed it."""
REACHABLE = threading.Event()
LOCK = threading.Lock()
BOTH_HERE = threading.Barrier(2)
"""The target of the sinks here: as it outlives every sink object, it is the module's."""


@dataclass(frozen=True)
class Target:
    """A sink that keeps what it should, but for what `fault` names."""

    fault: str = ""
    exactly_once: bool = True
    abilities: Abilities = field(default_factory=lambda: Abilities(keeps_prepared=True))
    table: str = "good"
    password: str = field(default="open sesame", repr=False)

    def __str__(self) -> str:
        return f"{self!r} with {self.password}" if self.fault == "prints its password" else repr(self)

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        if self.fault == "complains of a good target":
            return ["I do not like it"]
        if self.fault == "says its password" and self.table != "good":
            return [f"no table for {self.password}"]
        if not REACHABLE.is_set() and self.fault != "is blind to outages":
            return ["it is down"]
        return ["no such table"] if self.table != "good" and self.fault != "is blind" else []

    def check(self, schema: pa.Schema) -> Sequence[str]:
        return ["no texts"] if self.fault == "refuses" else []

    def open(self, context: SinkContext) -> Writer:
        return Writer(self, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        if self.fault == "aborts what is committed":
            VISIBLE[:] = [(name, rows) for name, rows in VISIBLE if name[0] in named]
        for transaction, nonce in list(STAGED):
            name = parse_transaction_id(transaction)
            ours = (name.job, name.sink) == (job, uid) or self.fault == "aborts those of others"
            match self.fault:
                case "aborts what is named":
                    leftover = name.incarnation < older_than
                case "aborts its own":
                    leftover = transaction not in named
                case "aborts nothing":
                    leftover = False
                case "aborts in its own partition only":
                    leftover = may_be_aborted(transaction, older_than, named) and name.partition == 0
                case "aborts no attempt but the last":
                    leftover = may_be_aborted(transaction, older_than, named)
                    leftover &= name.incarnation.attempt == older_than.attempt - 1
                case _:
                    leftover = may_be_aborted(transaction, older_than, named)
            if ours and leftover:
                del STAGED[transaction, nonce]


class Writer:
    def __init__(self, sink: Target, context: SinkContext) -> None:
        self.sink, self.fault, self.context = sink, sink.fault, context
        self.rows: list[str] = []

    def begin(self, transaction: TransactionId) -> None:
        self.name = transaction, "" if self.fault == "knows a transaction by its id" else token_hex(8)
        self.rows = [] if self.fault != "mixes transactions" else self.rows

    def write(self, rows: Rows) -> None:
        self.rows += rows.batch.column("row").to_pylist()

    def seal(self) -> Sealed:
        rows = self.rows if self.fault == "mixes transactions" else list(self.rows)
        return Held(self.sink, self.name, rows)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        if not REACHABLE.is_set():
            return self.commit_in_an_outage()
        stored = payload.value.value()
        if self.fault == "asserts what a payload is":
            assert isinstance(stored, dict)
        nonce = stored.get("nonce") if isinstance(stored, dict) else None
        if self.fault not in ("believes any transaction", "asks again what is forged") and not self.is_mine(
            transaction
        ):
            return CommitAnswer(CommitOutcome.FAILED, "not of this sink")
        if self.fault == "goes where a payload says" and isinstance(nonce, str) and nonce.startswith("../"):
            STRANGE.append(nonce)
        if not isinstance(nonce, str) or not fullmatch("[0-9a-f]{16}|", nonce):
            if self.fault == "believes payloads":
                VISIBLE.append(((transaction, ""), ["forged"]))
                return CommitAnswer(CommitOutcome.COMMITTED)
            if self.fault == "shows what it refuses":
                VISIBLE.append(((transaction, "forged"), [f"{self.context.job}: forged"]))
            forged = CommitOutcome.RETRY_LATER if self.fault == "asks again what is forged" else CommitOutcome.FAILED
            return CommitAnswer(forged, "" if self.fault == "refuses without a word" else "forged")
        name = transaction, nonce
        if self.fault == "commits at the same time":
            return self.commit_unlocked(name)
        with LOCK:
            return self.commit_unlocked(name)

    def is_mine(self, transaction: TransactionId) -> bool:
        try:
            made = parse_transaction_id(transaction)
        except ValueError:
            return False
        return (made.job, made.sink) == (self.context.job, self.context.uid)

    def commit_unlocked(self, name: Name) -> CommitAnswer:
        done = any(visible == name for visible, _ in VISIBLE)
        by = BY.setdefault(name, self.context.incarnation)
        match self.fault:
            case "commits twice":
                done = False
            case "a new generation commits again":
                done = done and by.generation == self.context.incarnation.generation
            case "commits for its own partition only":
                if parse_transaction_id(name[0]).partition != self.context.partition:
                    return CommitAnswer(CommitOutcome.FAILED, "not mine")
            case "commits at the same time" if not done:
                with suppress(threading.BrokenBarrierError):
                    BOTH_HERE.wait(0.05)
                BOTH_HERE.reset()
            case "a commit empties what is open":
                self.rows = []
            case _:
                pass
        if done:
            answer = CommitOutcome.FAILED if self.fault == "forgets commits" else CommitOutcome.ALREADY_COMMITTED
            return CommitAnswer(answer)
        if name not in STAGED:
            return CommitAnswer(CommitOutcome.FAILED, "nothing is staged")
        VISIBLE.append((name, STAGED[name]))
        return CommitAnswer(CommitOutcome.COMMITTED)

    def commit_in_an_outage(self) -> CommitAnswer:
        match self.fault:
            case "takes an outage for success":
                return CommitAnswer(CommitOutcome.ALREADY_COMMITTED)
            case "takes an outage for a refusal":
                return CommitAnswer(CommitOutcome.FAILED, "it is down")
            case "raises in an outage":
                raise OSError("it is down")
            case "says its password in an outage":
                return CommitAnswer(CommitOutcome.RETRY_LATER, f"no answer to {self.sink.password}")
            case _:
                return CommitAnswer(CommitOutcome.RETRY_LATER, "it is down")

    def close(self) -> None:
        if self.fault == "forgets at close":
            STAGED.clear()


@dataclass
class Held:
    sink: Target
    name: Name
    rows: list[str]

    def prepare(self) -> CommitPayload | None:
        fault = self.sink.fault
        if not REACHABLE.is_set():
            raise OSError("it is down")
        if not self.rows and fault != "commits nothing":
            return None
        STAGED[self.name] = self.rows
        if fault == "shows what is prepared":
            VISIBLE.append((self.name, self.rows))
        more = {"password": self.sink.password} if fault == "writes its password" else {}
        return CommitPayload(Json.of({"nonce": self.name[1], **more}))


def visible(_: SinkEnvironment) -> Sequence[str]:
    return [row for _, rows in VISIBLE for row in rows]


def pending(job: JobId) -> int:
    committed = {name for name, _ in VISIBLE}
    return sum(parse_transaction_id(transaction).job == job for transaction, _ in STAGED.keys() - committed)


def clear() -> None:
    STAGED.clear()
    VISIBLE.clear()
    BY.clear()
    STRANGE.clear()
    REACHABLE.set()


@contextmanager
def outage() -> Iterator[None]:
    REACHABLE.clear()
    yield
    REACHABLE.set()


@pytest.fixture(autouse=True)
def nothing_is_there() -> None:
    clear()


def trial(fault: str = "") -> SinkTrial:
    bad = Target(fault, table="bad")
    return SinkTrial(
        Target(fault), visible, clear, outage, pending, [bad], ["open sesame"], outside=lambda: list(STRANGE)
    )


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
    "aborts nothing": "aborts the leftovers of all partitions",
    "aborts in its own partition only": "aborts the leftovers of all partitions",
    "aborts no attempt but the last": "aborts the leftovers of all partitions",
    "aborts what is committed": "keeps what is committed|there once after a crash",
    "commits for its own partition only": "can be committed; .*not mine",
    "a new generation commits again": "what was committed is not committed again",
    "knows a transaction by its id": "made again under the same names are others",
    "commits at the same time": "what several commit at once is there once",
    "a commit empties what is open": "has something to commit|readers see what is committed",
    "takes an outage for success": "an outcome that is not known says RETRY_LATER",
    "takes an outage for a refusal": "an outcome that is not known says RETRY_LATER",
    "raises in an outage": "answers RETRY_LATER; but it raised",
    "is blind to outages": "out of reach is found before anything starts",
    "is blind": "not right is found before anything starts",
    "complains of a good target": "nothing to say of a good target",
    "asserts what a payload is": "a payload that its sink did not write is refused; .* raised AssertionError",
    "believes payloads": "shows the rows of its transaction, once",
    "shows what it refuses": "a payload that is refused shows no rows but its transaction's",
    "asks again what is forged": "a payload that its sink did not write is refused for good",
    "refuses without a word": "a refusal says why",
    "goes where a payload says": "leads nowhere but to the sink's target",
    "believes any transaction": "refuses a transaction that is not its own",
    "writes its password": "no secret is written or printed; but one is in a payload",
    "prints its password": "no secret is written or printed; but one is in the sink as it is printed",
    "says its password": "no secret is written or printed; but one is in what is said",
    "says its password in an outage": "no secret is written or printed; but one is in the reason",
}


def test_a_right_sink_passes() -> None:
    check_sink(trial())
    run_state_machine_as_test(sink_machine(trial()), settings=settings(max_examples=20))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_sink_fails(fault: str) -> None:
    with pytest.raises(Violation, match=FAULTS[fault]):
        check_sink(trial(fault))


@pytest.mark.parametrize("fault", ["commits twice", "mixes transactions", "aborts what is named", "forgets commits"])
def test_the_machine_finds_a_wrong_sink_as_well(fault: str) -> None:
    machine = sink_machine(trial(fault))
    enough = settings(phases=[Phase.generate], report_multiple_bugs=False, max_examples=500)
    with pytest.raises(Violation):
        run_state_machine_as_test(machine, settings=enough)


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

    def unavailable(self) -> Sequence[str]:
        return []

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:
        new = ("0",) if self.fault == "is new again" else ()
        return Available(new, dict.fromkeys(reading, 12))

    def open(self, context: SplitContext) -> WrongReader:
        return WrongReader(self.fault, context)


class WrongReader:
    def __init__(self, fault: str, context: SplitContext) -> None:
        self.fault = fault
        self.next = context.position if isinstance(context.position, int) else 0
        self.end = context.until if isinstance(context.until, int) else 20
        if context.position == 12 and fault == "begins anew":
            self.next = 0

    def read(self, most: int) -> Reading:
        end = min(self.end, self.next + most + (self.fault == "gives too many"))
        if self.next >= self.end:
            waits = self.fault == "never ends" or (self.fault == "waits" and self.end < 20)
            return Later(0) if waits else Exhausted()
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
        ("gives too many", "7 rows at most"),
        ("has another schema", "are of the schema"),
        ("depends on the size", "read 1 at once"),
        ("never ends", "every split of a bounded source ends"),
        ("is new again", "what is new is not known"),
        ("waits", "read until 12, is not exhausted"),
        ("begins anew", "until 12 and then on from 12"),
        ("repeats", "the same rows come"),
        ("skips", "the same rows come"),
    ],
)
def test_a_wrong_source_fails(fault: str, promise: str) -> None:
    with pytest.raises(Violation, match=promise):
        sources.check_source(Numbers(fault))


def test_a_bounded_source_may_have_as_many_rows_as_the_kit_reads_and_is_told_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "_AT_MOST", 20)
    sources.check_source(Numbers())
    monkeypatch.setattr(sources, "_AT_MOST", 19)
    for check in (sources.a_bounded_source_ends, sources.how_much_is_read_at_once_changes_nothing):
        with pytest.raises(Violation, match=r"split 0 has more than 19 rows, .* give the kit a source with fewer"):
            check(Numbers())


def test_a_right_source_passes() -> None:
    check: Callable[[Source], None] = sources.check_source
    check(Numbers())
