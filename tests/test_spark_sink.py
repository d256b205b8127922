"""Output for queries of Spark's: whole epochs, each row once, whatever is killed, rewound or read again."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql.streaming.datasource import ReadAllAvailable

import recovery
from recovery.offline.job_tree import open_tree
from recovery.savepoints import spark_output
from recovery.savepoints.copying import move
from recovery.savepoints.restoring import restore
from recovery.savepoints.spark_format import WrongOption
from recovery.savepoints.spark_output import (
    EpochcutFormat,
    OutputReader,
    OutputStreamReader,
    is_ahead,
    newest_committed,
    together,
)
from snapshot import Files, Generate, InvalidProgram, Program, Rows, SealsForEpochs, Source, Stream, ToSpark
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import TransactionId
from snapshot.journal.state import EpochRecord, EpochState, JournalState
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter
from snapshot.structured import output_log, spark_sink
from snapshot.structured.output_log import DamagedOutput, OutputLog, Owner, WrongOutput, open_output
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkBench, SinkEnvironment, SinkTrial, some, write
from snapshot.tree.manifest import CommitPayload
from statebackend.errors import JobError
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.stores.fsspec_store import known
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobInfo, StoreUnavailable
from tests.survey import watched

PATIENCE = 120.0
ROOT = Path(__file__).parent.parent
EVERYTHING = ReadAllAvailable()


def epoch(number: int, generation: int = 1) -> Epoch:
    return Epoch(Generation(generation), number)


@dataclass(frozen=True, slots=True)
class Numbered(ToSpark):
    """The sink as a program has it, for a kit that seals without epochs and has several jobs, each with its log."""

    def open(self, context: SinkContext) -> SinkWriter:
        return _Numbered(ToSpark(f"{self.log}/{context.job.replace(' ', '-')}").open(context))


class _Numbered:
    def __init__(self, writer: SinkWriter) -> None:
        self._writer = writer
        self._epochs = iter(range(1, 10**9))

    def begin(self, transaction: TransactionId) -> None:
        self._writer.begin(transaction)

    def write(self, rows: Rows) -> None:
        self._writer.write(rows)

    def seal(self) -> Sealed:
        assert isinstance(self._writer, SealsForEpochs)
        return self._writer.seal_for(epoch(next(self._epochs)))

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        return self._writer.commit(transaction, payload)

    def close(self) -> None:
        self._writer.close()


def trial(folder: Path) -> SinkTrial:
    sink = Numbered(str(folder))

    def visible(_: SinkEnvironment) -> Sequence[str]:
        logs = [open_output(str(path.parent)) for path in folder.glob("*/output.json")]
        files = [(log, file) for log in logs for file in log.files(NO_EPOCH, epoch(10**9))]
        return [str(row) for log, file in files for batch in log.rows(file.path) for row in batch["row"].to_pylist()]

    (folder.parent / "a file").write_text("")
    return SinkTrial(sink, visible, bad=[replace(sink, log=str(folder.parent / "a file"))])


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], tmp_path: Path) -> None:
    check(watched(trial(tmp_path / "target"), tmp_path / "target"))


def test_it_passes_any_order_of_events(tmp_path: Path) -> None:
    chosen = settings(max_examples=10, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(sink_machine(trial(tmp_path / "target")), settings=chosen)


def test_rows_that_have_no_epoch_are_refused(tmp_path: Path) -> None:
    bench = SinkBench(replace(trial(tmp_path / "target"), sink=ToSpark(str(tmp_path / "target"))))
    writer = bench.writer()
    writer.begin(bench.name())
    with pytest.raises(SinkError, match="can only be written by a stream program"):
        writer.seal()


def test_a_log_has_no_owner_before_rows_are_prepared_and_then_takes_none_of_another_job(tmp_path: Path) -> None:
    sink = ToSpark(str(tmp_path / "target"))
    refused, bench, late = (SinkBench(SinkTrial(sink, lambda _: [])) for _ in range(3))
    for one in (refused, bench):  # the first start may be refused for another reason, and its job is never born
        assert sink.examine(one.job, one.uid, SCHEMA) == []
    (transaction, ours), (_, theirs) = sealed_by(bench), sealed_by(late)
    payload = some(ours.prepare(), transaction)
    log = open_output(sink.log)
    assert log.owner() == Owner(bench.job, bench.uid, SCHEMA)
    with pytest.raises(SinkError, match=f"has the output of sink the/sink of job {bench.job}"):
        theirs.prepare()
    log._store.delete("output.json")
    assert log.own(Owner(late.job, late.uid, SCHEMA)) == ""
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert f"has the output of sink the/sink of job {late.job}" in answer.reason
    assert log.files(NO_EPOCH, epoch(10**9)) == []


def test_no_file_of_a_transaction_is_written_unless_all_of_them_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_sink, "_PART_BYTES", 1)
    bench = SinkBench(SinkTrial(ToSpark(str(tmp_path / "target")), lambda _: []))
    writer, transaction, rows = bench.writer(), bench.name(), bench.rows(4)
    writer.begin(transaction)
    for row in rows:
        write(writer, [row])
    assert isinstance(writer, SealsForEpochs)
    payload = some(writer.seal_for(epoch(1)).prepare(), transaction)
    assert len(payload.staged) > 1
    log, last = open_output(str(tmp_path / "target")), payload.staged[-1]
    content = bench.environment.stored.pop(last)
    assert writer.commit(transaction, payload).outcome is CommitOutcome.FAILED
    assert log.files(NO_EPOCH, epoch(1)) == []
    bench.environment.stored[last] = content
    assert writer.commit(transaction, payload).outcome is CommitOutcome.COMMITTED
    found = [row for file in log.files(NO_EPOCH, epoch(1)) for some in log.rows(file.path) for row in some["row"]]
    assert [row.as_py() for row in found] == rows
    assert writer.commit(transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED


def sealed_by(bench: SinkBench) -> tuple[TransactionId, Sealed]:
    """A transaction with rows in the first epoch, before it is prepared."""
    writer, transaction = bench.writer(), bench.name()
    writer.begin(transaction)
    write(writer, bench.rows(2))
    assert isinstance(writer, SealsForEpochs)
    return transaction, writer.seal_for(epoch(1))


# --- the log ----------------------------------------------------------------------------------------------------------


def a_log() -> OutputLog:
    return OutputLog("/out", MemoryStore(f"output-{token_hex(8)}"))


def test_a_log_belongs_to_one_sink_of_one_job_with_one_schema() -> None:
    log, owner = a_log(), Owner("clicks", "out", SCHEMA)
    assert log.fault_for(owner) == ""
    assert [log.own(owner), log.own(owner)] == ["", ""]
    assert "output of sink out of job clicks" in log.own(replace(owner, job="fork"))
    assert "a folder of its own; so also a fork" in log.own(replace(owner, uid="other"))
    assert log.fault_for(owner) == ""
    assert "output of sink out of job clicks" in log.fault_for(replace(owner, job="fork"))
    assert "has rows with row: string, and these have n: int64" in log.own(
        replace(owner, schema=pa.schema({"n": pa.int64()}))
    )
    assert log.owner() == owner
    with pytest.raises(WrongOutput, match="start the program with ToSpark"):
        a_log().owner()


class Hanging(MemoryStore):
    """A store that does not say what it has, until the test is over."""

    def __init__(self, root: str, over: threading.Event) -> None:
        super().__init__(root)
        self._over = over

    def stat(self, path: str) -> BlobInfo:
        self._over.wait(PATIENCE)
        return super().stat(path)


def test_a_start_waits_for_a_log_that_hangs_no_longer_than_for_other_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_log, "_SECONDS", 0.1)
    over, uri = threading.Event(), f"hangs://{token_hex(8)}"
    bench = SinkBench(SinkTrial(ToSpark(uri), lambda _: []))
    try:
        with known("hangs", lambda rest: Hanging(rest, over)):
            [fault] = bench.sink().examine(bench.job, bench.uid, SCHEMA)
    finally:
        over.set()
    assert "cannot be written: " in fault
    assert "there was no answer in 0.1 s" in fault


EPOCHS = st.builds(epoch, st.integers(1, 450), st.integers(1, 3))


@given(st.sets(EPOCHS, max_size=30), EPOCHS | st.just(NO_EPOCH), EPOCHS)
def test_the_files_between_two_epochs_are_those_after_the_one_and_up_to_the_other(
    there: set[Epoch], after: Epoch, until: Epoch
) -> None:
    log = a_log()
    for one in there:
        assert log.put(one, "a.arrow", str(one).encode())
        assert not log.put(one, "a.arrow", b"")
    found = log.files(after, until)
    assert [output_log._epoch_of(file.path) for file in found] == sorted(one for one in there if after < one <= until)


@given(st.sets(EPOCHS, max_size=30), st.lists(EPOCHS, min_size=1, max_size=4))
def test_deleted_output_is_gone_and_a_query_that_has_not_read_it_is_told(
    there: set[Epoch], deleted: list[Epoch]
) -> None:
    log = a_log()
    for one in there:
        log.put(one, "a.arrow", b"")
    for until in sorted(deleted):
        log.delete(until)
    newest = max(deleted)
    assert log.deleted == newest
    assert {output_log._epoch_of(file.path) for file in log._store.list("rows")} == {e for e in there if e > newest}
    with pytest.raises(WrongOutput, match=f"has the output after epoch {newest} only"):
        log.files(NO_EPOCH, epoch(1000, 9))
    log.files(newest, epoch(1000, 9))


class Interrupted(MemoryStore):
    """A store in which another query deletes output before each listing of the rows, or that fails to delete."""

    def __init__(self) -> None:
        super().__init__(f"output-{token_hex(8)}")
        self.before_rows: Callable[[], None] = lambda: None
        self.may_delete = True

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        if folder.startswith("rows"):
            before, self.before_rows = self.before_rows, lambda: None
            before()
        return super().list(folder)

    def delete(self, path: str) -> None:
        if not self.may_delete:
            raise StoreUnavailable(f"{path}: not now")
        super().delete(path)


def test_output_that_is_deleted_while_a_query_looks_for_it_is_not_taken_for_none() -> None:
    store = Interrupted()
    log = OutputLog("/out", store)
    for number in (5, 15, 20):
        log.put(epoch(number), "a.arrow", b"")
    log.delete(epoch(5))
    store.before_rows = lambda: log.delete(epoch(20))
    with pytest.raises(WrongOutput, match="has the output after epoch 20-1 only"):
        log.files(epoch(10), epoch(20))


def test_a_deletion_that_was_cut_off_is_ended_by_the_next_the_first_of_all_as_well() -> None:
    store = Interrupted()
    log = OutputLog("/out", store)
    for number in (5, 250, 260):
        log.put(epoch(number), "a.arrow", b"")
    for until in (epoch(150), epoch(255)):
        store.may_delete = False
        with pytest.raises(StoreUnavailable):
            log.delete(until)
        assert log.deleted == until
    store.may_delete = True
    log.delete(epoch(256))
    assert [output_log._epoch_of(file.path) for file in store.list("rows")] == [epoch(260)]
    assert len(store.list("deleted")) == 1


def test_what_is_foreign_or_damaged_is_named() -> None:
    log = a_log()
    for path in ("rows/1/x", "rows/0000000001/0000000000/notes.arrow"):
        log._store.write(path, b"no rows")
        with pytest.raises(DamagedOutput, match=f"{path} is no file of output"):
            log.files(NO_EPOCH, epoch(1))
        log._store.delete(path)
    log.put(epoch(1), "a.arrow", b"no rows")
    [file] = log.files(NO_EPOCH, epoch(1))
    with pytest.raises(DamagedOutput, match=f"{file.path} of /out is damaged"):
        log.rows(file.path)
    log.delete(epoch(1))
    with pytest.raises(WrongOutput, match="was deleted while a query read it"):
        log.rows(file.path)
    log._store.write("output.json", b"{}")
    with pytest.raises(DamagedOutput, match=r"output\.json of /out is damaged"):
        log.owner()


# --- the reader, as Spark calls it ------------------------------------------------------------------------------------


def record(number: int, state: EpochState, committables: bool = True) -> EpochRecord:
    return EpochRecord(epoch(number), "", "", committables, JournalState().output, state)


def test_the_newest_committed_epoch_is_one_that_has_nothing_left_to_commit() -> None:
    done, due, gone = EpochState.COMMITTED, EpochState.COMPLETE, EpochState.GIVEN_UP
    for epochs, newest in (
        ([], NO_EPOCH),
        ([record(1, due)], NO_EPOCH),
        ([record(1, done), record(2, due)], epoch(1)),
        ([record(1, due, committables=False), record(2, due)], epoch(1)),
        ([record(1, done), record(2, gone)], epoch(1)),
    ):
        assert newest_committed(JournalState(epochs=tuple(epochs))) == newest


def test_a_query_is_ahead_of_a_tree_that_would_make_its_epochs_again() -> None:
    now = JournalState(generation=Generation(2), newest_complete=epoch(50, 2))
    for read, ahead in (
        (NO_EPOCH, False),
        (epoch(50, 2), False),
        (epoch(51, 2), True),
        (epoch(3, 3), True),  # the next start is generation 3 once more
        (epoch(60, 1), False),
    ):
        assert is_ahead(read, now) == ahead
    assert not is_ahead(epoch(50, 2), replace(now, newest_complete=epoch(9, 2), generation=Generation(3)))


@given(st.sets(EPOCHS, max_size=20), st.lists(EPOCHS, max_size=8))
def test_offsets_are_epochs_with_rows_whichever_epochs_are_the_newest_when_a_query_looks(
    there: set[Epoch], newest: list[Epoch]
) -> None:
    reader = OutputStreamReader({"checkpoints": "", "path": f"memory://output-{token_hex(8)}", "delete": "false"})
    log = open_output(reader._output.path)
    for one in there:
        log.put(one, "a.arrow", b"")
    offset = NO_EPOCH
    for number, until in enumerate(newest):
        offset = reader._newest(offset, until)
        assert offset == max((one for one in there if one <= max(newest[: number + 1])), default=NO_EPOCH)


@given(st.lists(st.integers(0, 12 << 20)))
def test_a_task_reads_small_files_together_and_all_in_their_order(sizes: list[int]) -> None:
    files = [BlobInfo(str(number), size) for number, size in enumerate(sizes)]
    found = together(files)
    assert [file for some in found for file in some] == files
    assert all(some and (len(some) == 1 or sum(file.size for file in some) <= 8 << 20) for some in found)


def test_options_are_checked_and_a_log_of_another_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="lacks 'checkpoints': output is read with"):
        EpochcutFormat({"path": "/out"}).schema()
    with pytest.raises(WrongOption, match="no option 'keep' for output; it has checkpoints, path, delete"):
        EpochcutFormat({"path": "/out", "checkpoints": "/tree", "keep": "1d"}).schema()
    with pytest.raises(WrongOption, match="delete is 'yes'; expected true or false"):
        EpochcutFormat({"path": "/out", "checkpoints": "/tree", "delete": "yes"}).schema()
    state = EpochcutFormat({"checkpoints": "/tree", "uid": "totals", "state": "totals"})
    with pytest.raises(WrongOption, match=r"state is read with spark\.read"):
        state.streamReader(None)
    run_with(tmp_path, 0)
    open_output(str(tmp_path / "other")).own(Owner("other", "out", NUMBERS))
    options = {"checkpoints": str(tmp_path / "tree"), "path": str(tmp_path / "other"), "delete": "false"}
    with pytest.raises(WrongOutput, match=r"has the output of job other, and .* is the tree of job "):
        OutputReader(options).partitions()


NUMBERS = pa.schema([("n", pa.int64())])


def numbers(folder: Path, source: Source) -> Program:
    return Stream.read(source, uid="rows").write(ToSpark(str(folder / "out")), uid="out")


def generated(folder: Path, count: int, rate: float) -> Program:
    return numbers(folder, Generate(lambda i: {"n": i}, NUMBERS, count, rate, splits=2))


def run_with(folder: Path, *rows: int, tree: str = "tree") -> None:
    """Let a file with these rows appear, if there are any, and run the program."""
    (folder / "in").mkdir(exist_ok=True)
    if rows:
        (folder / "in" / f"{min(rows)}.jsonl").write_text("".join(json.dumps({"n": row}) + "\n" for row in rows))
    program = numbers(folder, Files(str(folder / "in"), "jsonl", NUMBERS))
    with recovery.run(program, checkpoints=str(folder / tree), available_now=True, progress=False):
        pass


def options_of(folder: Path, **more: str) -> dict[str, str]:
    return {"checkpoints": str(folder / "tree"), "path": str(folder / "out"), "delete": "false", **more}


class Query:
    """The calls that Spark makes for a query, batch by batch."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.options = options_of(folder, **options)
        self.reader = OutputStreamReader(self.options)
        self.offsets = [self.reader.initialOffset()]

    def next_batch(self) -> list[int] | None:
        """Return the rows of another batch; None if there is none yet."""
        start = self.offsets[-1]
        end = self.reader.latestOffset(start, EVERYTHING)
        if end == start:
            return None
        self.offsets.append(end)
        rows = self.rows(start, end)
        self.reader.commit(end)
        return rows

    def rows(self, start: dict[str, int], end: dict[str, int]) -> list[int]:
        """Plan the tasks here, and run them elsewhere."""
        elsewhere = pickle.loads(pickle.dumps(self.reader))
        return sorted(rows_of(elsewhere, self.reader.partitions(start, end)))


def rows_of(reader: OutputReader | OutputStreamReader, partitions: Sequence[object]) -> Iterator[int]:
    for partition in partitions:
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            yield from batch["n"].to_pylist()


@pytest.mark.timeout(240)
def test_rows_of_a_program_whose_partitions_are_killed_come_once_and_a_batch_is_the_same_when_it_is_read_again(
    tmp_path: Path,
) -> None:
    count, launcher = 900, recovery.LocalProcesses()
    run = recovery.run(
        generated(tmp_path, count, 300.0),
        checkpoints=str(tmp_path / "tree"),
        launcher=launcher,
        every="50ms",
        progress=False,
    )
    run.savepoint(PATIENCE)  # until the job has begun there is no tree to read
    query, batches = Query(tmp_path), list[list[int]]()
    while sum(map(len, batches)) < count:
        batch = query.next_batch()
        if batch is not None:
            batches.append(batch)
            if len(batches) in (3, 8):
                os.kill(launcher.pids[len(batches) % 2], signal.SIGKILL)
    run.wait(PATIENCE)
    assert Counter(row for batch in batches for row in batch) == Counter(range(count))
    again = [query.rows(*pair) for pair in zip(query.offsets, query.offsets[1:], strict=False)]
    assert again == batches
    whole = OutputReader(options_of(tmp_path))
    assert sorted(rows_of(whole, whole.partitions())) == list(range(count))
    assert run.status().restarts >= 1


@pytest.mark.timeout(240)
def test_a_rewind_brings_the_rows_after_it_again_as_later_epochs_and_a_fork_needs_a_folder_of_its_own(
    tmp_path: Path,
) -> None:
    program = generated(tmp_path, 40, 200.0)
    recovery.run(program, checkpoints=str(tmp_path / "tree"), every="20ms", retain=99, progress=False).wait(PATIENCE)
    query = Query(tmp_path)
    assert query.next_batch() == list(range(40))
    assert query.next_batch() is None
    tree = open_tree(str(tmp_path / "tree"))
    middle = tree.state.usable[1].epoch
    before = sorted(query.rows(query.offsets[0], {"generation": middle.generation, "epoch": middle.number}))
    restore(tree, str(middle), program, accept_duplicates=True, progress=False).wait(PATIENCE)
    assert sorted([*before, *(query.next_batch() or [])]) == list(range(40))
    fork = tmp_path / "fork"
    recovery.fork(open_tree(str(tmp_path / "tree")), "newest", str(fork), accept_duplicates=True)
    with pytest.raises(InvalidProgram, match="so also a fork"):
        recovery.run(program, checkpoints=str(fork), progress=False)


@pytest.mark.timeout(240)
def test_a_query_may_delete_what_it_has_read_and_others_are_told_so(tmp_path: Path) -> None:
    run_with(tmp_path, *range(10))
    deleting, late = Query(tmp_path, delete="true"), Query(tmp_path)
    assert deleting.next_batch() == list(range(10))
    assert deleting.next_batch() is None
    assert not list((tmp_path / "out" / "rows").glob("**/*.arrow"))
    with pytest.raises(WrongOutput, match="a query with the option delete=true has read what came before"):
        late.next_batch()


@pytest.mark.timeout(240)
def test_a_query_is_refused_when_the_tree_is_put_back_from_a_copy_that_does_not_know_what_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_output, "_LOOK_EVERY", 0.0)
    tree, backup = tmp_path / "tree", tmp_path / "backup"
    run_with(tmp_path, *range(10))
    query = Query(tmp_path)
    assert query.next_batch() == list(range(10))
    shutil.copytree(tree, backup)
    assert query.next_batch() is None
    run_with(tmp_path, *range(10, 20))
    assert query.next_batch() == list(range(10, 20))
    shutil.rmtree(tree)
    backup.rename(tree)
    with pytest.raises(WrongOutput, match=r"the tree was put back from an older copy.*Put back the newer tree"):
        query.next_batch()


@pytest.mark.timeout(240)
def test_a_query_whose_job_was_moved_is_told_where_to_and_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_output, "_LOOK_EVERY", 0.0)
    run_with(tmp_path, *range(10))
    query, moved = Query(tmp_path), str(tmp_path / "moved")
    assert query.next_batch() == list(range(10))
    move(open_tree(str(tmp_path / "tree")), moved)
    for one in (query, Query(tmp_path)):
        with pytest.raises(JobError, match=f"moved.* to {moved}"):
            one.next_batch()
    there = Query(tmp_path, checkpoints=moved)
    there.offsets = query.offsets
    assert there.next_batch() is None
    run_with(tmp_path, *range(10, 20), tree="moved")
    assert there.next_batch() == list(range(10, 20))


@pytest.mark.timeout(240)
def test_epochs_without_rows_make_no_batches_and_a_query_that_deletes_later_takes_nothing_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_output, "_LOOK_EVERY", 0.0)
    run_with(tmp_path, *range(10))
    query, deleting = Query(tmp_path), Query(tmp_path, delete="true")
    assert query.next_batch() == list(range(10))
    before = newest_committed(open_tree(str(tmp_path / "tree")).state)
    run_with(tmp_path)
    assert newest_committed(open_tree(str(tmp_path / "tree")).state) > before
    assert query.next_batch() is None
    assert deleting.next_batch() == list(range(10))
    run_with(tmp_path, *range(10, 20))
    assert query.next_batch() == list(range(10, 20))
    assert deleting.next_batch() == list(range(10, 20))


@pytest.mark.timeout(240)
def test_a_run_that_takes_what_is_there_goes_no_further(tmp_path: Path) -> None:
    run_with(tmp_path, *range(10))
    reader = OutputStreamReader(options_of(tmp_path))
    reader.prepareForTriggerAvailableNow()
    run_with(tmp_path, *range(10, 20))
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    assert sorted(rows_of(reader, reader.partitions(reader.initialOffset(), end))) == list(range(10))
    assert reader.latestOffset(end, EVERYTHING) == end
    query = Query(tmp_path)
    assert query.next_batch() == list(range(20))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("with_pandas")
def test_a_query_reads_each_epoch_once_though_a_task_is_killed_and_the_query_fails_and_the_program_is_started_again(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_output_job", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    first, second, third = (list(range(start, start + 100)) for start in (0, 100, 200))
    assert "all of it was written" in said["failed"]
    assert said["again"] == ["", "", "", ""]
    assert said["killed"]
    assert said["batches"] == [[0, first], [0, first], [1, second], [2, third]]
    assert said["columns"] == ["n: bigint", "at: timestamp"]
    assert said["once"] == [*first, *second, *third]
    assert said["table"] == [300, sum(range(300))]
    assert "a query with the option delete=true has read what came before" in said["late"]
    assert said["wider"] == {
        "numbers": [1, 2], "structs": [[200]], "map": {"a": "18446744073709551615"}, "pair": [1, 2],
        "day": "1970-01-02", "time": "00:00:05", "took": "0:00:00.000005", "times": ["1970-01-01 00:00:00.000005"],
        "word": "x", "large": "y", "view": "z", "cents": "1.25", "half": 1.5, "code": "6162", "none": None,
    }  # fmt: skip
