"""Of each micro-batch the rows of one attempt are committed, once, however often and by however many it is run."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

import snapshot
from snapshot.connectors.files.sink import ToFiles
from snapshot.connectors.http.sink import ToHTTP
from snapshot.connectors.kafka.sink import ToKafka
from snapshot.connectors.memory.heap_sink import ToHeap, _targets, forget_heap, read_heap
from snapshot.connectors.rocksdb.sink import ToRocksDB
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import CommitAnswer, Sink, SinkContext, SinkError, SinkWriter
from snapshot.structured.batch_log import BatchLog, Decision
from snapshot.structured.formats import FORMATS, HTTP, Files, RocksDB, _Message
from snapshot.structured.query import SinkQuery, Written
from snapshot.structured.sink_options import sink_of
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import Creation, UnknownOutcome

SCHEMA = pa.schema([("row", pa.string())])
PARTITIONS = 2


def rows_of(batch: int, partition: int) -> list[str]:
    """What the source gives: the same whenever the batch is run. One partition of every third batch is empty."""
    return [] if (batch + partition) % 3 == 0 else [f"{batch}/{partition}/{number}" for number in range(2)]


def a_store() -> MemoryStore:
    return MemoryStore("structured-query-" + str(next(_numbers)))


_numbers = iter(range(10**9))


@dataclass
class Queries:
    """Starts of one query, all with the same checkpoint."""

    name: str = field(default_factory=lambda: f"query-{next(_numbers)}")
    store: MemoryStore = field(default_factory=a_store)
    sink: Sink | None = None

    def start(self) -> SinkQuery:
        return SinkQuery("id", "heap", self.sink or ToHeap(self.name), self.store, 0.2, SCHEMA)

    def write(self, batch: int, run: str, again: bool = False) -> list[Written]:
        batches = [pa.RecordBatch.from_pydict({"row": rows_of(batch, p)}, SCHEMA) for p in range(PARTITIONS)]
        return [self.start().write(batch, p, run, again, [rows]) for p, rows in enumerate(batches)]

    def visible(self) -> list[str]:
        table = read_heap(self.name)
        return table.column("row").to_pylist() if table.num_columns else []

    def expect(self, batches: int) -> None:
        expected = [row for batch in range(batches) for p in range(PARTITIONS) for row in rows_of(batch, p)]
        assert Counter(self.visible()) == Counter(expected)

    def prepared(self) -> int:
        return len(_targets[self.name].prepared) if self.name in _targets else 0


class QueryMachine(RuleBasedStateMachine):
    """Spark runs batch after batch; attempts fail, drivers die at each step, and old ones wake up."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = Queries()
        self.batch = 0
        self.run = 0
        self.decided: dict[int, list[Written]] = {}
        self.written: list[list[Written]] = []
        self.committed = 0

    @rule(again=st.booleans())
    def all_tasks_have_written(self, again: bool) -> None:
        self.written.append(self.queries.write(self.batch, str(self.run), again))

    @rule()
    def one_task_has_written_and_another_failed(self) -> None:
        self.queries.write(self.batch, str(self.run))

    @rule()
    def the_driver_dies(self) -> None:
        self.run += 1

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def the_driver_dies_between_decision_and_commit(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.written))
        parts = tuple(one.part for one in chosen)
        BatchLog(self.queries.store).decide(self.batch, Decision(chosen[0].run, parts))
        self.run += 1

    @precondition(lambda self: self.written)
    @rule(data=st.data(), noted=st.booleans())
    def the_batch_is_committed(self, data: st.DataObject, noted: bool) -> None:
        """By whichever driver, with whichever attempt; Spark may not note that it is."""
        self.queries.start().commit(self.batch, data.draw(st.sampled_from(self.written)))
        self.committed = self.batch + 1
        if noted:
            self.batch += 1
            self.written = []

    @invariant()
    def each_row_of_a_committed_batch_is_there_once(self) -> None:
        self.queries.expect(self.committed)

    def teardown(self) -> None:
        for _ in range(2):
            self.run += 1
            self.queries.start().commit(self.batch, self.queries.write(self.batch, str(self.run)))
            self.batch += 1
        self.queries.expect(self.batch)
        assert self.queries.prepared() == 0, "leftovers are dropped when a query begins again"
        assert len(self.queries.store.list("shared")) == 0
        forget_heap(self.queries.name)


TestQueryMachine = QueryMachine.TestCase


def test_an_attempt_that_was_made_again_has_its_leftovers_dropped() -> None:
    queries = Queries()
    queries.start().commit(0, queries.write(0, "run"))
    queries.write(1, "run")
    queries.start().commit(1, queries.write(1, "run"))
    assert queries.prepared() > 0, "without a hint nobody looks at every batch"
    queries.start().commit(2, queries.write(2, "run", again=True))
    assert queries.prepared() == 0
    queries.expect(3)


def test_a_batch_that_is_decided_is_run_to_its_end_and_prepares_nothing() -> None:
    queries = Queries()
    queries.start().commit(1, queries.write(1, "run"))
    rows = iter([pa.RecordBatch.from_pydict({"row": ["again"]}, SCHEMA)] * 3)
    assert queries.start().write(1, 1, "other", False, rows).part.committables == ()
    assert list(rows) == []
    assert queries.prepared() == 0


def test_rows_that_are_staged_are_kept_until_the_next_batch_is_committed() -> None:
    queries = Queries(sink=_Staged())
    for batch in (1, 2, 4):
        written = queries.write(batch, "run")
        queries.start().commit(batch, written)
        queries.start().commit(batch, written)
        [kept] = {path.path.split("/")[1].split("-")[0] for path in queries.store.list("shared")}
        assert int(kept) == batch + 1


def test_decisions_are_kept_for_a_while_and_not_for_ever() -> None:
    store, nothing = a_store(), Decision("run", ())
    log = BatchLog(store)
    for batch in range(301):
        log.decide(batch, nothing)
        log.forget_before(batch)
    assert [log.decision(batch) for batch in (0, 199, 200, 300)] == [None, None, nothing, nothing]


def test_the_first_decision_counts() -> None:
    log = BatchLog(a_store())
    queries = Queries()
    first, second = (Decision("run", tuple(one.part for one in queries.write(1, "run"))) for _ in range(2))
    assert first != second
    assert log.decide(1, first) == first
    assert log.decide(1, second) == first
    assert log.decision(1) == first


@pytest.mark.parametrize("created", [True, False])
def test_a_decision_whose_answer_was_lost_is_asked_for_again(created: bool) -> None:
    class Losing(MemoryStore):
        lost = 0

        def create(self, path: str, data: bytes) -> Creation:
            if self.lost < 2:
                self.lost += 1
                if created:
                    super().create(path, data)
                raise UnknownOutcome("no answer")
            return super().create(path, data)

    store, decision = Losing(f"losing-{next(_numbers)}"), Decision("run", ())
    assert BatchLog(store).decide(0, decision) == decision
    store.lost = -10
    with pytest.raises(UnknownOutcome):
        BatchLog(store).decide(1, decision)


def test_a_target_that_refuses_fails_the_query_with_its_words_and_the_batch_can_be_committed_later() -> None:
    queries = Queries()
    written = queries.write(1, "run")
    prepared = dict(_targets[queries.name].prepared)
    _targets[queries.name].prepared.clear()
    with pytest.raises(SinkError, match=r"heap: partition 0 of batch 1 could not be committed: .* its own has ended"):
        queries.start().commit(1, written)
    _targets[queries.name].prepared.update(prepared)
    queries.start().commit(1, written)
    assert Counter(queries.visible()) == Counter(rows_of(1, 0) + rows_of(1, 1))


def test_a_target_that_puts_a_commit_off_is_asked_again_and_given_up_in_the_end() -> None:
    queries = Queries(sink=_Staged(put_off=2))
    queries.start().commit(1, queries.write(1, "run"))
    queries = Queries(sink=_Staged(put_off=10**6))
    with pytest.raises(SinkError, match="could not be committed: it is busy"):
        queries.start().commit(1, queries.write(1, "run"))


def test_a_target_that_cannot_take_the_rows_is_found_before_they_are_written() -> None:
    queries = Queries()
    queries.sink = replace(ToHeap(queries.name), process=1)
    with pytest.raises(SinkError, match=r"epochcut\.heap: .* is in the memory of process 1"):
        queries.write(0, "another run")


@dataclass(frozen=True)
class _Staged(ToHeap):
    """Rows staged in the query's tree, so often put off."""

    name: str = "staged"
    put_off: int = 0

    def examine(self, job: object, uid: object, schema: pa.Schema) -> list[str]:
        return []

    def open(self, context: SinkContext) -> SinkWriter:
        from snapshot.connectors.memory.driver_sink import ToDriver

        put_off = self.put_off

        class Writer:
            def __init__(self) -> None:
                self.rows = ToDriver().open(replace(context, deliver=lambda *_: None))
                self.begin, self.write, self.seal, self.close = (
                    self.rows.begin,
                    self.rows.write,
                    self.rows.seal,
                    self.rows.close,
                )
                self.asked = 0

            def commit(self, transaction: object, payload: CommitPayload) -> CommitAnswer:
                self.asked += 1
                busy = self.asked <= put_off
                return CommitAnswer(CommitOutcome.RETRY_LATER if busy else CommitOutcome.COMMITTED, "it is busy")

        return Writer()


@dataclass(frozen=True)
class _Unmade(ToHeap):
    """A target in which something has to be made before it can be asked for leftovers."""

    made: ClassVar[set[str]] = set()
    reason: ClassVar[str] = ""

    def examine(self, job: object, uid: object, schema: pa.Schema) -> list[str]:
        if self.reason:
            return [self.reason]
        self.made.add(self.name)
        return []

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        if self.name not in self.made:
            raise SinkError("something is missing")


OPTIONS: Mapping[str, str] = {"path": "/x", "rollBytes": "7", "format": "csv", "checkpointLocation": "/c"}


def test_options_are_the_fields_of_the_sink_in_any_writing() -> None:
    assert sink_of("epochcut.files", ToFiles, OPTIONS) == ToFiles("/x", "csv", roll_bytes=7)
    for key, expected in (("user", "user"), ("user, day", ("user", "day"))):
        given = {"path": "/x", "key": key, "DELETED": "gone"}
        assert sink_of("epochcut.rocksdb", ToRocksDB, given) == ToRocksDB("/x", expected, "gone")


@dataclass(frozen=True)
class _Every(ToHeap):
    flag: bool = False
    share: float = 0.5
    most: int | None = None
    kind: Literal["a", "b"] = "a"
    more: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()


def test_options_have_the_types_of_the_fields() -> None:
    given = {
        "name": "n",
        "process": "1",
        "flag": "TRUE",
        "share": "2",
        "most": "3",
        "kind": "b",
        "keys": "a,b",
        "codes": "4, 5",
    }
    every = sink_of("epochcut.every", _Every, {**given, "more": '{"k": "v"}'})
    assert every == _Every("n", 1, True, 2.0, 3, "b", {"k": "v"}, ("a", "b"), (4, 5))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"roll": "7"}, "has no option 'roll'; it has name, process, flag"),
        ({}, "needs the option 'name'"),
        ({"flag": "yes"}, "the option 'flag' of epochcut.every is 'yes': expected true or false"),
        ({"most": "many"}, "the option 'most' of epochcut.every is 'many': invalid literal"),
        ({"kind": "c"}, "expected one of a, b"),
        ({"more": "[]"}, "expected a JSON object"),
        ({"codes": "4, four"}, "the option 'codes' of epochcut.every is '4, four': invalid literal"),
        ({"more": "{"}, "the option 'more' of epochcut.every is '{'"),
    ],
)
def test_options_that_are_wrong_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(SinkError) as raised:
        sink_of("epochcut.every", _Every, options)
    assert problem in str(raised.value)


def test_an_option_that_is_wrong_and_not_printed_is_not_in_the_refusal() -> None:
    given = {"bootstrap": "b:1", "topic": "t", "options": '{"sasl.password": "secret",}'}
    with pytest.raises(
        SinkError, match=r"the option 'options' of epochcut.kafka is not what it should be: .*"
    ) as raised:
        sink_of("epochcut.kafka", ToKafka, given)
    assert "secret" not in str(raised.value)


COLUMNS = StructType([StructField("n", LongType()), StructField("at", TimestampType())])
PLACE = {"path": "/out", "checkpointLocation": "/checkpoint"}


def test_every_format_is_named_after_a_sink_that_there_is() -> None:
    assert [format.name().removeprefix("epochcut.") for format in FORMATS] == [
        "files", "kafka", "pravega", "postgres", "sqlite", "rocksdb", "delta", "http"
    ]  # fmt: skip
    for format in FORMATS:
        assert hasattr(snapshot, format.sink)


def test_what_is_staged_lies_in_the_checkpoint_or_where_the_option_says() -> None:
    assert Files(PLACE).streamWriter(COLUMNS, False)._target.staging == "/checkpoint/epochcut"
    assert Files({**PLACE, "staging": "/elsewhere"}).streamWriter(COLUMNS, False)._target.staging == "/elsewhere"
    with pytest.raises(SinkError, match="needs the option 'checkpointLocation', or 'staging'"):
        Files({"path": "/out"}).streamWriter(COLUMNS, False)


def test_a_writer_can_be_sent_to_another_process() -> None:
    writer = pickle.loads(pickle.dumps(Files(PLACE).streamWriter(COLUMNS, False)))
    assert (writer._target.sink, writer._target.patience) == (ToFiles("/out"), 60.0)
    assert writer._target.schema.field("at").type == pa.timestamp("us", "UTC")


def test_a_query_that_cannot_work_is_refused_when_its_writer_is_made() -> None:
    with pytest.raises(SinkError, match=r"epochcut\.rocksdb: key: there is no column 'user'"):
        RocksDB({**PLACE, "key": "user"}).streamWriter(COLUMNS, False)


def test_a_target_that_cannot_be_asked_is_at_least_once_and_only_if_that_is_accepted() -> None:
    options = {"url": "http://host/rows", "known": "409", "checkpointLocation": "/checkpoint"}
    with pytest.raises(SinkError, match="rows may come twice; accept that with the option exactlyOnce=false"):
        HTTP(options).streamWriter(COLUMNS, False)
    writer = HTTP({**options, "exactlyOnce": "false"}).streamWriter(COLUMNS, False)
    assert writer._target.sink == ToHTTP("http://host/rows", exactly_once=False, known=(409,))


def test_what_the_target_lacks_is_made_though_the_first_batch_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = Queries()
    queries.sink = sink = _Unmade(queries.name)
    queries.start().commit(0, [queries.start().write(0, 0, "run", False, [])])
    assert _Unmade.made == {sink.name}
    monkeypatch.setattr(_Unmade, "reason", "it is locked")
    queries.sink = replace(sink, name="another")
    with pytest.raises(SinkError, match=r"epochcut\.heap: it is locked"):
        queries.start().commit(0, [])


def test_an_abort_drops_nothing_that_may_have_been_decided() -> None:
    queries = Queries()
    written = queries.write(1, "run")
    writer = Files(PLACE).streamWriter(COLUMNS, False)
    writer.abort([None, *map(_Message, written)], 1)
    queries.start().commit(1, written)
    assert Counter(queries.visible()) == Counter(rows_of(1, 0) + rows_of(1, 1))
