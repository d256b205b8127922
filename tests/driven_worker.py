"""A worker in a thread, and its driver in the hands of a test: what is deployed, triggered and complete, the test says.

Invariant: the worker is the real one, with real sockets, state and files; whoever waits, waits for something
that the worker says, with a limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from time import time
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from recovery.driver.attempts.workers import Appeared, Reported, WorkerEvent, Workers
from recovery.driver.tree.manifests import DriversPart, manifest_of, roles_from, states_in
from snapshot.cut.frames import Marker, MarkerMode
from snapshot.epochs.coordinator_events import Publish
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.process.worker import DriverLost, Worker
from snapshot.host.protocol.messages import (
    Acknowledgement,
    AllEnded,
    AssignSplits,
    Delivery,
    Deploy,
    EpochIsOver,
    Figures,
    Follow,
    Followed,
    FromWorker,
    HasCommitted,
    Hello,
    Leave,
    ReadState,
    Restored,
    Role,
    StandBy,
    StandDown,
    StateRead,
    ToWorker,
    TriggerEpoch,
)
from snapshot.host.protocol.options import Following, HostOptions
from snapshot.host.protocol.wiring import ByArrival
from snapshot.ids import JobId, Member
from snapshot.program.pickling import dumps
from snapshot.program.program import Program
from snapshot.tree.manifest import Manifest
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

PATIENCE = 60.0
MEMBER = Member(Partition(0))
_MOST = 128

Message = TypeVar("Message", bound=FromWorker)


class DrivenWorker:
    """One partition that is the whole job. Use it as a context manager."""

    def __init__(self, folder: Path, program: Program, options: HostOptions | None = None) -> None:
        self.said: list[FromWorker] = []
        self._folder = folder
        (folder / "tree").mkdir(exist_ok=True)
        self._plan = program.plan(_MOST)
        self._pickled = dumps(self._plan)
        self._options = options or HostOptions(batch_rows=64, status_interval=20)
        self._loop = EventLoop()
        secret = token_bytes(32)
        self._workers = Workers(self._loop, "127.0.0.1", secret, PATIENCE, self._hears)
        self._hello: Hello | None = None
        self._worker = Worker(self._workers.address, secret, 0, 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._loop.run(lambda: self._hello is not None, PATIENCE)
        self._attempt = 0
        self._number = 0
        self._asked = 0
        self._manifest: Manifest | None = None
        self._broadcast: Mapping[Uid, bytes] = {}

    def _run(self) -> None:
        try:
            with suppress(DriverLost):
                self._worker.run()
        finally:
            self._loop.wake(self._thread.join)  # whoever waits for its end has a turn then

    # --- what the driver's port hears

    def _hears(self, event: WorkerEvent) -> None:
        match event:
            case Appeared(hello):
                self._hello = hello
            case Reported(_, message):
                self.said.append(message)
            case _:
                pass

    # --- what a test does

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(Generation(1), Attempt(self._attempt))

    def tell(self, message: ToWorker) -> None:
        assert self._hello is not None
        self._workers.send(self._hello.worker, message)

    def heard(self, kind: type[Message]) -> list[Message]:
        """What it has said of this kind in the present attempt."""
        found = [message for message in self.said if isinstance(message, kind)]
        return [message for message in found if getattr(message, "incarnation", None) == self.incarnation]

    def until(self, kind: type[Message], where: Callable[[Message], bool] = lambda _: True) -> Message:
        """Wait until it has said something of this kind in the present attempt; the last that it has."""

        def found() -> list[Message]:
            return [message for message in self.heard(kind) if where(message)]

        assert self._loop.run(lambda: bool(found()), PATIENCE), f"no {kind.__name__} in {self.said[-5:]}"
        return found()[-1]

    def until_read(self, rows: int) -> None:
        """Wait until its sources have given so many rows in the present attempt."""
        sources = self._plan.sources
        self.until(Figures, lambda said: sum(said.stages[uid].rows_in for uid in sources) >= rows)

    def deploy(self) -> None:
        """Give it its role in a new attempt, from the last complete epoch on."""
        assert self._hello is not None
        self._attempt += 1
        manifest, folder = self._manifest, self._folder
        roles: Mapping[Uid, Role] = roles_from(manifest, self._plan, 1, self._broadcast)[0]
        self.tell(
            Deploy(
                self.incarnation,
                _now(),
                JobId("driven"),
                None if manifest is None else manifest.epoch,
                MEMBER,
                1,
                {MEMBER: self._hello.address},
                self._pickled,
                roles,
                ByArrival(),
                self._options,
                str(folder / "tree"),
                str(folder / "local"),
            )
        )
        for uid, source in self._plan.sources.items():
            splits = tuple(source.discover(1)) if manifest is None else ()
            self.tell(AssignSplits(self.incarnation, uid, splits, last=True))

    def restored(self) -> Restored:
        """Wait until it is."""
        return self.until(Restored)

    def cut(self, mode: MarkerMode = MarkerMode.ALIGNED) -> Acknowledgement:
        """Trigger an epoch, and wait until all of it is durable."""
        self._number += 1
        epoch = Epoch(Generation(1), self._number)
        self.tell(TriggerEpoch(self.incarnation, _now(), Marker(epoch, mode)))
        return self.until(Acknowledgement, lambda said: said.epoch == epoch)

    def complete(self, said: Acknowledgement) -> None:
        """The epoch is complete, and what it carries committed."""
        publish = Publish(said.epoch, None, said.incarnation, False, {Partition(0): said}, said.has_committables)
        self._manifest = manifest_of(publish, DriversPart(JobId("driven"), _MOST, 0, {}, {}))
        self._broadcast = said.broadcast
        self.tell(EpochIsOver(self.incarnation, said.epoch, complete=True))
        self.until(HasCommitted, lambda committed: committed.epoch >= said.epoch)

    def stand_down(self) -> None:
        self.tell(StandDown(self.incarnation, "another process has its role"))

    def stand_by(self, how: Following) -> None:
        folder = self._folder
        told = JobId("driven"), how, self._pickled, 1, self._options, str(folder / "tree"), str(folder / "local")
        self.tell(StandBy(*told))

    def follow(self, how: Following) -> None:
        """Let it stand by, and wait until it has the last complete epoch."""
        assert self._manifest is not None
        epoch = self._manifest.epoch
        self.stand_by(how)
        self.tell(Follow(epoch, states_in(self._manifest, self._plan, 1)))
        assert self._loop.run(lambda: any(isinstance(s, Followed) and s.has == epoch for s in self.said), PATIENCE)

    def until_heard(self) -> None:
        """Wait until it has done what it was told."""
        self._asked += 1
        asked = self._asked
        self.tell(ReadState(self.incarnation, asked, Uid(""), None, None))
        assert self._loop.run(lambda: any(isinstance(s, StateRead) and s.number == asked for s in self.said), PATIENCE)

    def finish(self) -> None:
        """Let it process all input, and commit all output."""
        self.until(AllEnded)
        self.complete(self.cut())

    def rows(self, uid: str) -> Sequence[Mapping[str, object]]:
        """What it has delivered for a sink, each transaction once."""
        pieces: dict[object, list[Mapping[str, object]]] = {}
        for said in self.said:
            if isinstance(said, Delivery) and said.uid == uid:
                pieces.setdefault(said.transaction, pa.ipc.open_stream(said.rows).read_all().to_pylist())
        return [row for rows in pieces.values() for row in rows]

    def leave(self) -> None:
        """Let it go, and wait until its thread has ended."""
        self.tell(Leave("the test is over"))
        assert self._loop.run(lambda: not self._thread.is_alive(), PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.leave()
        self._workers.close()
        self._loop.close()


def _now() -> int:
    return int(time() * 1000)
