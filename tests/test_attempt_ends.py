"""The end of an attempt and of its process: all is closed whatever goes wrong in it, and nothing is left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes

import pyarrow as pa
import pytest

from recovery.driver.attempts.workers import Appeared, WorkerEvent, Workers
from snapshot.connectors.files.sink import ToFiles
from snapshot.host.links import LinkNews, Links, Ready
from snapshot.host.net.control import OverLongMessage
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.partition.attempt import Environment, PartitionAttempt
from snapshot.host.partition.opening import placement_of
from snapshot.host.partition.sink_run import SinkIdentity, SinkRun
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.process.worker import Worker
from snapshot.host.protocol.messages import (
    Address,
    AllEnded,
    AssignSplits,
    Deploy,
    Failed,
    FailureKind,
    FromWorker,
    Hello,
    Leave,
    Role,
)
from snapshot.host.protocol.options import HostOptions
from snapshot.host.protocol.wiring import ByArrival
from snapshot.host.wiring import stage_parts
from snapshot.ids import JobId, Member
from snapshot.operators.rows import Rows
from snapshot.program.plan import Plan, Stage
from snapshot.program.sink import SinkContext
from snapshot.program.source import Exhausted, Later, Reading, SplitContext
from snapshot.tree.frozen_json import Json
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.memory_store import MemoryStore

LIMIT = 10.0
INCARNATION = Incarnation(Generation(1), Attempt(1))
SOURCE = Uid("source")
SCHEMA = pa.schema([("n", pa.int64())])


@dataclass(frozen=True)
class Splits:
    """A source whose readers cannot be closed; `closed` has the names of those that were asked to."""

    closed: list[str]
    empty: bool = False
    schema: pa.Schema = SCHEMA
    bounded: bool = True
    blocking: bool = False
    on_demand: bool = False
    discover_every: float | None = None

    def check(self) -> Sequence[str]:
        return ()

    def discover(self, parallelism: int) -> Sequence[str]:
        return ("one", "two")

    def open(self, context: SplitContext) -> Unclosable:
        return Unclosable(self, context.split)


class Unclosable:
    """A reader that has nothing."""

    def __init__(self, source: Splits, split: str) -> None:
        self._source, self._split = source, split

    def read(self, most: int) -> Reading:
        return Exhausted() if self._source.empty else Later(0.0)

    def close(self) -> None:
        self._source.closed.append(self._split)
        if not self._source.empty:
            raise OSError(f"{self._split} cannot be closed")


class Begun:
    """A partition of a source alone, and what it has told its driver; what is `too_long` it cannot tell."""

    def __init__(self, folder: Path, source: Splits, too_long: type[FromWorker] | None = None) -> None:
        self.loop = EventLoop()
        self.background = Background(self.loop, 1)
        self.told: list[FromWorker] = []
        self.ready: list[LinkNews] = []
        store = MemoryStore(folder.name)
        plan = Plan((Stage(SOURCE, (), {}, source=source),), 128)
        peers = {Member(Partition(0)): Address("127.0.0.1", 1)}
        roles, wiring = {SOURCE: Role()}, ByArrival()
        deploy = Deploy(
            INCARNATION,
            0,
            JobId("job"),
            None,
            Member(Partition(0)),
            1,
            peers,
            b"",
            roles,
            wiring,
            HostOptions(),
            "",
            str(folder),
        )
        files = TreeFiles(store, INCARNATION, Partition(0))

        def tell(message: FromWorker) -> None:
            if too_long is not None and isinstance(message, too_long):
                raise OverLongMessage("it is too long")
            self.told.append(message)

        self.links = Links(
            deploy, plan, token_bytes(32), self.loop, self.ready.append, lambda _copy, _frame: None, lambda: None
        )
        assert self.loop.run(lambda: self.ready == [Ready()], LIMIT)
        environment = Environment(self.loop, self.background, StateCache(), tell)
        placements = {SOURCE: placement_of(SOURCE, deploy, plan, files, store)}
        parts = stage_parts(wiring, lambda: 0)
        self.attempt = PartitionAttempt(deploy, plan, files, placements, {}, parts, environment)
        self.attempt.begin()
        self.attempt.told(AssignSplits(INCARNATION, SOURCE, ("one", "two"), last=True))

    def end(self) -> None:
        self.attempt.close()
        self.background.close()
        self.loop.close()


def test_an_attempt_closes_all_that_it_has_and_goes_on_if_some_of_it_cannot_be_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Splits([])
    begun = Begun(tmp_path, source)
    begun.end()
    assert sorted(source.closed) == ["one", "two"]
    assert "cannot be closed" in capsys.readouterr().err


def test_what_is_too_long_for_the_driver_ends_the_attempt_with_the_reason(tmp_path: Path) -> None:
    begun = Begun(tmp_path, Splits([], empty=True), AllEnded)
    begun.loop.run(lambda: isinstance(begun.told[-1], Failed), LIMIT)
    failed = begun.told[-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, "it is too long" in failed.reason) == (FailureKind.UNUSABLE, True)
    begun.end()


def test_a_program_without_state_leaves_no_thread_behind_when_it_is_deployed(tmp_path: Path) -> None:
    begun = Begun(tmp_path, Splits([], empty=True))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("opening state")]
    begun.end()


@dataclass(frozen=True)
class HalfThere(Splits):
    """A source of which one split cannot be opened."""

    def open(self, context: SplitContext) -> Unclosable:
        if context.split == "two":
            raise OSError("two cannot be opened")
        return Unclosable(self, context.split)


def test_a_split_that_cannot_be_opened_leaves_no_reader_of_another_one_open() -> None:
    source = HalfThere([])
    positions = dict.fromkeys(("one", "two"), Json.of({"at": 3}))
    with pytest.raises(OSError, match="two cannot be opened"):
        SourceRun(SOURCE, source, Partition(0), Attempt(1), positions, 10, lambda: None)
    assert source.closed == ["one"]


def test_what_a_sink_has_still_to_prepare_when_its_attempt_ends_is_not_begun(tmp_path: Path) -> None:
    loop = EventLoop()
    background = Background(loop, 1)
    context = SinkContext(
        JobId("job"),
        SOURCE,
        SCHEMA,
        INCARNATION,
        Partition(0),
        TreeFiles(MemoryStore(tmp_path.name), INCARNATION, Partition(0)),
        lambda _transaction, _rows: None,
    )
    writer = ToFiles(str(tmp_path)).open(context)
    identity = SinkIdentity(JobId("job"), SOURCE, INCARNATION, Partition(0))
    sink = SinkRun(identity, writer, (), None, loop, background, lambda _uid, _news: None, lambda: None)
    sink.begin()
    sink.rows(Rows(pa.record_batch([pa.array([1])], schema=SCHEMA)))
    ended = threading.Event()
    over: list[object] = []
    background.submit(ended.wait, lambda _: None)
    sink.cut(Epoch(Generation(1), 1))
    background.submit(lambda: None, over.append)
    sink.close()
    ended.set()
    assert loop.run(lambda: bool(over), LIMIT)
    assert not list(tmp_path.rglob("*.parquet"))
    background.close()
    loop.close()


def test_a_process_that_is_let_go_listens_no_more_though_it_may_live_on() -> None:
    loop, secret, there = EventLoop(), token_bytes(32), list[Hello]()

    def let_go(event: WorkerEvent) -> None:
        if isinstance(event, Appeared):
            there.append(event.hello)
            workers.send(event.hello.worker, Leave("there is nothing to do"))

    workers = Workers(loop, "127.0.0.1", secret, LIMIT, let_go)
    worker = Worker(workers.address, secret, 0, 1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert loop.run(lambda: not thread.is_alive(), LIMIT)
    address = there[0].address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.host, address.port), LIMIT)
    workers.close()
    loop.close()
