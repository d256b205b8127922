"""Files in a real HDFS: staged and renamed at commit, whatever happens to its nodes or to us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from snapshot import ToFiles
from snapshot.connectors.files import renaming_folder as hdfs_folder
from snapshot.connectors.files.names import transaction_of
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, DONE, SCHEMA, SinkBench, SinkEnvironment, SinkTrial, some, write
from tests.servers.hdfs import HdfsServer
from tests.servers.postgres_proxy import Proxy, running_proxy
from tests.target_kills import carry_out
from tests.targets import TARGETS


class Folder:
    """A folder of the server, as its owner sees it: past the sink, past what is between the sink and the server."""

    def __init__(self, server: HdfsServer, wire: Proxy) -> None:
        self.uri = server.make_folder(address=f"127.0.0.1:{wire.port}")
        self.path = f"/{self.uri.rpartition('/')[2]}"
        self.files: AbstractFileSystem = server.files()

    def names(self, folder: str = "") -> Sequence[str]:
        try:
            return [str(path).rpartition("/")[2] for path in self.files.ls(f"{self.path}{folder}", detail=False)]
        except FileNotFoundError:
            return []

    def rows(self) -> Sequence[str]:
        parts = [name for name in self.names() if name.startswith("part-")]
        tables = [pq.read_table(BytesIO(self.files.cat_file(f"{self.path}/{name}"))) for name in parts]
        return [row for table in tables for row in table.column("row").to_pylist()]

    def pending(self, job: JobId) -> int:
        made = {transaction_of(name) for name in self.names("/.staged")}
        return sum(name is not None and name.startswith(f"{job}/") for name in made)

    def clear(self) -> None:
        for name in self.names():
            self.files.rm(f"{self.path}/{name}", recursive=True)


@dataclass(frozen=True, slots=True)
class Wired:
    """A folder, the wire to its name node, and the trial of a sink that writes to it through the wire."""

    folder: Folder
    wire: Proxy
    trial: SinkTrial


@contextmanager
def wired(server: HdfsServer) -> Iterator[Wired]:
    with running_proxy(int(server.address.rpartition(":")[2])) as wire:
        folder = Folder(server, wire)

        def visible(_: SinkEnvironment) -> Sequence[str]:
            return folder.rows()

        bad = [
            ToFiles(folder.uri.replace("writer@", "somebody@")),
            ToFiles(f"{folder.uri.replace('writer@', 'somebody@')}/below/it"),
            ToFiles("webhdfs://writer@127.0.0.1:1/x"),
        ]
        sink = ToFiles(folder.uri, roll_bytes=1)
        yield Wired(folder, wire, SinkTrial(sink, visible, folder.clear, wire.cut, folder.pending, bad))


@pytest.fixture(scope="module")
def steady(hdfs_server: HdfsServer) -> Iterator[Wired]:
    with wired(hdfs_server) as found:
        yield found


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], steady: Wired) -> None:
    check(steady.trial)
    steady.folder.clear()


def test_it_passes_any_order_of_events(steady: Wired) -> None:
    chosen = settings(max_examples=3, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(sink_machine(steady.trial), settings=chosen)


def test_a_user_who_may_not_write_is_told_before_anything_starts(steady: Wired) -> None:
    bench = SinkBench(SinkTrial(ToFiles(steady.folder.uri.replace("writer@", "somebody@")), lambda _: ()))
    [problem] = bench.sink().examine(bench.job, bench.uid, SCHEMA)
    assert "this user may not write to" in problem
    assert "user=somebody" in problem


def test_a_folder_that_is_taken_from_its_user_loses_no_commit(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, rows = bench.prepared()
    steady.folder.files.chown(steady.folder.path, owner="somebody")
    answer = bench.writer().commit(transaction, payload)
    steady.folder.files.chown(steady.folder.path, owner="writer")
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "Permission denied: user=writer" in answer.reason
    bench.settle(transaction, payload)
    bench.expect(rows, "the next try commits")


def test_a_rename_whose_answer_is_lost_is_found_out_and_not_repeated(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, rows = bench.prepared()
    before = steady.wire.lost
    steady.wire.lose_the_answer_to(b"op=RENAME")
    assert bench.writer().commit(transaction, payload).outcome is CommitOutcome.RETRY_LATER
    assert steady.wire.lost == before + 1
    assert bench.settle(transaction, payload).outcome in DONE
    assert bench.settle(transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED
    bench.expect(rows, "the file is there once")


def test_a_file_whose_writing_was_interrupted_is_written_again_as_a_whole(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    writer, transaction, rows = bench.writer(), bench.name(), bench.rows(1)
    writer.begin(transaction)
    before = steady.wire.lost
    steady.wire.lose_the_answer_to(b"op=APPEND")  # the file is made, and empty
    write(writer, rows)
    payload = some(writer.seal().prepare(), transaction)
    assert steady.wire.lost == before + 1
    bench.settle(transaction, payload)
    bench.expect(rows, "the file is there as a whole")


def test_a_large_file_is_written_in_several_steps(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    writer, transaction = bench.writer(), bench.name()
    rows = [f"{bench.job}: {number:08}" for number in range(900_000)]
    writer.begin(transaction)
    write(writer, rows)
    bench.settle(transaction, some(writer.seal().prepare(), transaction))
    assert bench.visible() == rows
    [name] = [name for name in steady.folder.names() if transaction_of(name) == transaction]
    assert steady.folder.files.info(f"{steady.folder.path}/{name}")["size"] > steady.folder.files.blocksize
    steady.folder.clear()


def test_nodes_that_die_or_are_silent_cost_no_row_when_they_are_back(
    mortal_hdfs_server: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wired(mortal_hdfs_server) as found:
        bench = SinkBench(found.trial)
        (one, first, rows), (other, second, others) = bench.prepared(), bench.prepared()
        bench.settle(one, first)
        with monkeypatch.context() as patch, mortal_hdfs_server.silent():
            patch.setattr(hdfs_folder, "_TIMEOUTS", (1.0, 1.0))
            assert bench.writer().commit(other, second).outcome is CommitOutcome.RETRY_LATER
        writer, transaction, more = bench.writer(), bench.name(), bench.rows(3)
        writer.begin(transaction)
        write(writer, more[:1])
        mortal_hdfs_server.kill()
        write(writer, more[1:2])
        sealed = writer.seal()
        with pytest.raises(OSError, match="onnection"):
            sealed.prepare()
        for known, payload in ((one, first), (other, second)):
            answer = bench.writer().commit(known, payload)
            assert answer.outcome is CommitOutcome.RETRY_LATER
            assert "could not be made visible now" in answer.reason
        mortal_hdfs_server.start()
        bench.recover(2, [one, other, transaction])
        for known, payload in ((one, first), (other, second), (transaction, some(sealed.prepare(), transaction))):
            assert bench.settle(known, payload, 2).outcome in DONE
        bench.expect(rows + others + more[:2], "each row is there once")
        bench.expect_pending(0, "nothing is left")


@pytest.mark.timeout(600)
def test_a_job_whose_workers_and_nodes_are_killed_leaves_each_row_once(tmp_path: Path) -> None:
    report = carry_out("hdfs", TARGETS["hdfs"], tmp_path / "trial", kills=1, restarts=1, seed=5)
    assert report.workers + report.drivers == 1
    assert report.restarts == 1
    assert report.reads > 0
    assert report.exact, (report.compared.examples, report.seen)
