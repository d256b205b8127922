"""A stream program reads each micro-batch of a query once, however often tasks, drivers and readers are begun again."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from snapshot.program.plan import EventTime
from snapshot.program.sink import SinkError
from snapshot.program.source import Exhausted, Later, SplitContext, WrongPosition
from snapshot.structured import stream_log
from snapshot.structured.spark_source import LogReader, NotStreaming, SparkSource
from snapshot.structured.stream_format import Stream, _Message, _StreamWriter
from snapshot.structured.stream_log import DamagedLog, LoggedBatch, Part, StreamLog, WrongLog, open_log, plain
from snapshot.testing.sources import CHECKS, read_through
from snapshot.tree.frozen_json import JsonLike
from statebackend import means
from statebackend.ids import Attempt, Partition

SCHEMA = pa.schema([("row", pa.string())])
TASKS = 3
_names = iter(range(10**9))


def rows_of(batch: int, task: int) -> list[str]:
    """What a task gives, in whatever order: some nothing."""
    return [] if (batch * 2 + task) % 4 == 0 else [f"{batch}/{task}/{number}" for number in range(5)]


def batch_of(rows: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"row": list(rows)}, SCHEMA)


def written(log: StreamLog, batch: int, tasks: int = TASKS) -> tuple[Part, ...]:
    """One attempt at all tasks."""
    return tuple(
        part for task in range(tasks) for part in log.write(batch, task, SCHEMA, [batch_of(rows_of(batch, task))])
    )


def added(
    log: StreamLog, batch: int, at: int = 0, query: str = "q", covers: str = "", tasks: int = TASKS
) -> LoggedBatch:
    return log.add(batch, LoggedBatch(query, covers or f"input {batch}", at, written(log, batch, tasks)), SCHEMA)


def a_log(batches: int = 0) -> StreamLog:
    log = open_log(f"memory://stream-log-{next(_names)}")
    for batch in range(batches):
        added(log, batch)
    return log


def source(log: StreamLog, **options: object) -> SparkSource:
    return SparkSource(SCHEMA, log._uri, **options)  # type: ignore[arg-type]


def everything(batches: int, first: int = 0) -> Counter[str]:
    return Counter(row for batch in range(first, batches) for task in range(TASKS) for row in rows_of(batch, task))


def read(where: SparkSource, splits: Sequence[str], most: int = 2) -> Counter[str]:
    return Counter(str(row["row"]) for split in splits for row in read_through(where, split, most=most).rows)


class LogMachine(RuleBasedStateMachine):
    """Spark runs batch after batch: attempts fail, are repeated and come late, drivers die around each commit, and old
    ones wake up; readers of two splits go on, or back to what they had noted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = a_log()
        self.source = source(self.log, splits=2)
        self.splits = self.source.discover(1)
        self.batch = 0  # the one that Spark runs now
        self.attempts: list[tuple[Part, ...]] = []
        self.counted: dict[int, LoggedBatch] = {}
        self.readers = [self.open(split, None) for split in self.splits]
        self.seen = [list[str]() for _ in self.splits]
        self.notes: list[list[tuple[JsonLike, int]]] = [[(None, 0)] for _ in self.splits]

    def open(self, split: str, position: JsonLike) -> LogReader:
        return self.source.open(SplitContext("rows", split, position, Partition(0), Attempt(1)))

    @rule()
    def all_tasks_write(self) -> None:
        self.attempts.append(written(self.log, self.batch))

    @rule(tasks=st.integers(1, TASKS))
    def an_attempt_fails_halfway_or_is_one_too_many(self, tasks: int) -> None:
        written(self.log, self.batch, tasks)

    @rule(data=st.data(), noted=st.booleans())
    def a_driver_commits(self, data: st.DataObject, noted: bool) -> None:
        """With whichever attempts at tasks; Spark may not note it, and runs the batch again."""
        if not self.attempts:
            return
        of_task = [data.draw(st.sampled_from(self.attempts)) for _ in range(TASKS)]
        parts = tuple(
            part
            for task, one in enumerate(of_task)
            for part in one
            if part.path.split("/")[-1].startswith(f"{task:05}")
        )
        proposed = LoggedBatch("q", f"input {self.batch}", 0, parts)
        found = self.log.add(self.batch, proposed, SCHEMA)
        assert self.counted.setdefault(self.batch, found) == found
        if noted:
            self.batch += 1
            self.attempts = []

    @rule(which=st.integers(0, 1), most=st.integers(1, 7))
    def a_reader_reads(self, which: int, most: int) -> None:
        reading = self.readers[which].read(most)
        if isinstance(reading, Later):
            return
        assert not isinstance(reading, Exhausted)
        assert reading.rows.num_rows <= most
        self.seen[which] += reading.rows.column("row").to_pylist()
        self.notes[which].append((reading.position, len(self.seen[which])))

    @rule(which=st.integers(0, 1), data=st.data())
    def a_reader_goes_back(self, which: int, data: st.DataObject) -> None:
        """The rest has to be what it was."""
        place = data.draw(st.integers(0, len(self.notes[which]) - 1))
        position, count = self.notes[which][place]
        former, self.seen[which] = self.seen[which], self.seen[which][:count]
        del self.notes[which][place + 1 :]
        self.readers[which] = self.open(self.splits[which], position)
        while len(self.seen[which]) < len(former):
            self.a_reader_reads(which, 3)
        assert self.seen[which][: len(former)] == former

    @invariant()
    def all_splits_together_have_each_row_of_each_batch_once(self) -> None:
        found = Counter[str]()
        for split, seen, notes in zip(self.splits, self.seen, self.notes, strict=True):
            found.update(seen)
            found.update(str(row["row"]) for row in read_through(self.source, split, notes[-1][0]).rows)
        assert found == everything(len(self.counted))


TestLogMachine = LogMachine.TestCase


@pytest.mark.parametrize("check", CHECKS)
def test_the_source_keeps_what_sources_promise(check: object) -> None:
    check(source(a_log(batches=7)))  # type: ignore[operator]


def test_parts_are_cut_where_they_are_large_and_shared_out_among_the_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_log, "_PART_BYTES", 1)
    log = a_log()
    parts = log.write(0, 0, SCHEMA, [batch_of(["a", "b"]), batch_of([]), batch_of(["c"])])
    assert [part.rows for part in parts] == [2, 1]
    log.add(0, LoggedBatch("q", "", 0, parts), SCHEMA)
    where = source(log)
    assert [read(where, [split]) for split in where.discover(2)] == [Counter("ab"), Counter("c")]


def test_a_log_may_begin_in_the_middle_of_a_query_and_a_program_with_what_is_there() -> None:
    log = a_log()
    for batch in range(40, 43):
        added(log, batch)
    where = source(log)
    splits = where.discover(2)
    assert read(where, splits) == everything(43, first=40)
    assert where.available(splits, dict.fromkeys(splits)).ends == {split: [43, 0, 0] for split in splits}


def test_a_program_may_be_born_before_the_log_has_begun_wherever_that_is() -> None:
    log = a_log()
    where = source(log)
    splits = where.discover(2)
    log.add(40, LoggedBatch("", "", 0, ()), SCHEMA)
    added(log, 41)
    assert read(where, splits) == everything(42, first=41)


def test_a_batch_without_tasks_leaves_no_gap() -> None:
    log = a_log(batches=1)
    log.add(1, LoggedBatch("", "", 0, ()), SCHEMA)
    added(log, 2)
    where = source(log)
    assert read(where, where.discover(3)) == everything(1) + everything(3, first=2)


@pytest.mark.parametrize(
    ("batch", "query", "covers", "sentence"),
    [
        (2, "other", "", "has the batches of query q, and this is query other. Give each query a log of its own"),
        (1, "q", "other input", "its batch 1 covers other input than batch 1 of the query has now"),
        (5, "q", "", "its newest batch is 1, and the query commits batch 5: the rows between were written elsewhere"),
    ],
)
def test_a_batch_that_does_not_belong_to_the_log_fails_its_query(
    batch: int, query: str, covers: str, sentence: str
) -> None:
    log = a_log(batches=2)
    with pytest.raises(WrongLog, match=sentence):
        added(log, batch, query=query, covers=covers)
    assert log.batches() == range(2)


def test_a_checkpoint_that_was_put_back_to_before_all_batches_is_noticed() -> None:
    log = a_log()
    for batch in range(3):
        added(log, batch, at=batch)
    assert log.forget_before(2, newest=2) == 2
    with pytest.raises(WrongLog, match="its newest batch is 2, and the query commits batch 0"):
        added(log, 0)


def a_writer(**options: str) -> _StreamWriter:
    return Stream({"path": f"memory://stream-log-{next(_names)}", **options}).streamWriter(COLUMNS, False)


def test_a_query_whose_checkpoint_cannot_be_watched_is_refused_unless_it_accepts_that(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"needs the option 'checkpointLocation', .* With the option unchecked=true"):
        a_writer()
    checkpoint = str(tmp_path / "checkpoint")
    writer = a_writer(checkpointLocation=checkpoint)
    with pytest.raises(
        SinkError, match=rf"what batch 0 covers, {checkpoint}/offsets/0: .* With the option unchecked=true"
    ):
        writer.commit([_Message("q", ())], 0)
    assert writer._log().batches() == range(0)
    for unwatched in (
        a_writer(unchecked="true"),
        a_writer(unchecked="true", checkpointLocation="x"),
    ):
        unwatched.commit([_Message("q", ())], 0)
        assert unwatched._log().batches() == range(1)
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    for noted, fault in (("one", False), ("one", False), ("other", True)):
        (tmp_path / "checkpoint" / "offsets" / "0").write_text(noted)
        with pytest.raises(WrongLog, match="its batch 0 covers other input") if fault else nullcontext():
            writer.commit([_Message("q", ())], 0)


def test_old_batches_go_but_for_the_newest_one_and_a_reader_that_needs_them_says_so() -> None:
    log = a_log()
    where = source(log)
    [split] = where.discover(1)
    for batch in range(4):
        added(log, batch, at=batch)
    half_way = read_through(where, split, until=[1, 1, 0]).batches[-1].position
    reader = where.open(SplitContext("rows", split, half_way, Partition(0), Attempt(1)))
    reader.read(1)
    assert log.forget_before(3, newest=3) == 3
    assert log.batches() == range(3, 4)
    assert {blob.path.split("/")[1] for blob in log._store.list("parts")} == {f"{3:020}"}
    with pytest.raises(WrongPosition, match=r"batch 2 is no longer in the log at .*, which begins with batch 3"):
        [reader.read(1) for _ in range(9)]
    with pytest.raises(WrongPosition, match=r"batch 1 is no longer in the log"):
        read_through(where, split, half_way)
    assert log.forget_before(99, newest=3) == 0


@pytest.mark.parametrize(("first", "batches", "gone"), [(0, 1, 0), (0, 2, 1), (5, 3, 0), (0, 300, 0), (7, 300, 120)])
def test_the_numbers_of_all_batches_are_found_by_a_few_questions(
    first: int, batches: int, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log()
    for batch in range(first, first + batches):
        log.add(batch, LoggedBatch("", "", batch, ()), SCHEMA)
    if gone:
        assert log.forget_before(first + gone, newest=first + batches - 1) == gone
    asked = list[str]()

    def noting(ask: Callable[[str], Any]) -> Callable[[str], Any]:
        def noted(path: str) -> Any:
            asked.append(path)
            return ask(path)

        return noted

    for name in ("stat", "list"):
        monkeypatch.setattr(log._store, name, noting(getattr(log._store, name)))
    assert log.batches() == range(first + gone, first + batches)
    assert len(asked) <= 20
    assert "batches" not in asked


@pytest.mark.parametrize("deletions", range(9))
def test_a_crash_while_old_batches_go_leaves_a_whole_log_and_the_next_look_leaves_nothing_of_them(
    deletions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log()
    for batch in range(7, 12):
        added(log, batch, at=batch)
    delete, left = log._store.delete, iter(range(deletions))

    def dies(path: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        delete(path)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(log._store, "delete", dies)
        log.forget_before(10, newest=11)
    where = source(log)
    assert read(where, where.discover(2)) == everything(12, first=log.batches().start)
    log.forget_before(10, newest=11)
    assert log.batches() == range(10, 12)
    assert {blob.path.split("/")[1] for blob in log._store.list("parts")} == {f"{10:020}", f"{11:020}"}


def test_a_query_looks_for_old_batches_once_in_a_minute_however_few_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = a_writer(unchecked="true", keep="90s")
    for batch, (second, there) in enumerate([(0, 1), (30, 2), (61, 3), (91, 4), (119, 5), (121, 4), (3600, 1)]):
        monkeypatch.setattr(time, "time", lambda second=second: second)
        writer.commit([_Message("q", ())], batch)
        assert len(writer._log().batches()) == there


def test_a_query_with_other_columns_and_a_program_with_other_columns_are_refused() -> None:
    log = a_log(batches=1)
    other = pa.schema([("row", pa.int64())])
    for refused in (lambda: log.check_schema(other), lambda: log.add(1, LoggedBatch("q", "", 0, ()), other)):
        with pytest.raises(WrongLog, match=r"its rows have row: string, and these have row: int64\. Begin a new log"):
            refused()
    with pytest.raises(WrongLog, match="row: string, and these have row: int64"):
        read_through(SparkSource(other, log._uri), source(log).discover(1)[0])


def test_another_log_in_the_place_of_the_first_and_an_older_copy_are_refused() -> None:
    log, other = a_log(batches=2), a_log(batches=5)
    [split], [of_other] = source(log).discover(1), source(other).discover(1)
    with pytest.raises(WrongPosition, match="is not the one that the job began with"):
        read_through(source(other), split)
    for path in (blob.path for blob in other._store.list("batches")):
        if path > f"batches/{2:020}":
            other._store.delete(path)
    with pytest.raises(WrongPosition, match="ends before batch 2, and the job has read to batch 4: an older copy"):
        read_through(source(other), of_other, [4, 0, 0])


@pytest.mark.parametrize("position", ["x", [1], [1, 2, -1], [0, 9, 0], [0, 0, 99]])
def test_a_position_that_the_source_never_gave_is_refused(position: JsonLike) -> None:
    where = source(a_log(batches=1))
    with pytest.raises(WrongPosition, match="is no position"):
        read_through(where, where.discover(1)[0], position)


def test_a_split_of_another_source_is_refused() -> None:
    with pytest.raises(WrongPosition, match="'0' is no split of a log; the source was another one"):
        read_through(source(a_log()), "0")


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"version": 1}', b'{"version": 2}', b"[" * 9999])
@pytest.mark.parametrize("path", ["batches/" + "0" * 20 + ".json", "query.json", "log.json"])
def test_a_damaged_blob_is_named(damage: bytes, path: str) -> None:
    log = a_log(batches=1)
    split = source(log).discover(1)[0]
    log._store.delete(path)
    log._store.write(path, damage)
    with pytest.raises(DamagedLog, match=path):
        read_through(source(log), split)


def test_a_damaged_part_is_named() -> None:
    log = a_log(batches=1)
    [part, *_] = [blob.path for blob in log._store.list("parts")]
    data = log._store.read(part)
    log._store.delete(part)
    log._store.write(part, data[: len(data) // 2])
    with pytest.raises(DamagedLog, match=part):
        read_through(source(log), source(log).discover(1)[0])


def test_a_query_that_is_silent_for_too_long_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    where = source(a_log(batches=1), expect_every="1m")
    [split] = where.discover(1)
    reader = where.open(SplitContext("rows", split, [1, 0, 0], Partition(0), Attempt(1)))
    assert reader.read(1).why == ""  # type: ignore[union-attr]
    now = means.monotonic()
    monkeypatch.setattr(means, "monotonic", lambda: now + 61)
    reading = reader.read(1)
    assert isinstance(reading, Later)
    assert reading.why.startswith(f"the log at {where.log} has had no batch for more than 1 min; see whether")


class Frame:
    """What a source asks of a DataFrame."""

    def __init__(self, schema: StructType, streaming: bool) -> None:
        self.schema, self.isStreaming = schema, streaming


COLUMNS = StructType(
    [
        StructField("n", LongType(), nullable=False),
        StructField("at", TimestampType(), metadata={"spark.watermarkDelayMs": 2_000}),
        StructField("tags", ArrayType(StringType())),
    ]
)


def test_a_dataframe_gives_its_columns_and_has_to_be_streaming() -> None:
    made = SparkSource(Frame(COLUMNS, streaming=True), "/log")
    assert made == SparkSource("n bigint, at timestamp, tags array<string>", "file:///log")
    assert made.event_time == EventTime("at", out_of_order="2s")
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(NotStreaming, match=r"is not streaming, .* make it with spark\.readStream"):
        SparkSource(Frame(COLUMNS, streaming=False), "/log")


def test_rows_are_made_to_fit_whatever_is_said_of_nulls(tmp_path: Path) -> None:
    element = pa.list_(pa.field("item", pa.struct([pa.field("n", pa.int64(), nullable=False)]), nullable=False))
    given = pa.schema([pa.field("tags", element, nullable=False), pa.field("at", pa.timestamp("us", "Europe/Berlin"))])
    kept = plain(pa.schema([("tags", element), ("at", pa.timestamp("us", "UTC"))]))
    log = open_log(str(tmp_path / "log"))
    rows = pa.RecordBatch.from_pylist([{"tags": [{"n": 1}], "at": 5}], given)
    log.add(0, LoggedBatch("q", "", 0, log.write(0, 0, kept, [rows])), kept)
    where = SparkSource(kept, str(tmp_path / "log"))
    [row] = read_through(where, where.discover(1)[0]).rows
    assert row["tags"] == [{"n": 1}]


def test_bad_arguments_are_sentences() -> None:
    assert SparkSource(SCHEMA, "/log", splits=0).check() == ["a log cannot have 0 splits; splits must be 1 or more"]
    assert SparkSource(SCHEMA, "/log", look_every="0ms").check() == [
        "look_every is 0; a log is looked at every millisecond at most"
    ]
    assert "has a password" in SparkSource(SCHEMA, "s3://user:secret@bucket/log").check()[0]
