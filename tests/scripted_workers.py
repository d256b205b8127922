"""Processes that do nothing but speak with a driver, over real sockets: what they say is in the hands of a test."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TypeVar

import pyarrow as pa

from snapshot.epochs.transaction_events import Committable
from snapshot.host.net.connection_kinds import ControlOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.tls import Tls
from snapshot.host.process.heartbeat import Heartbeat
from snapshot.host.protocol.interpreter import Interpreter, this_interpreter
from snapshot.host.protocol.messages import (
    Acknowledgement,
    Address,
    AllEnded,
    AssignSplits,
    Delivery,
    Deploy,
    Drain,
    EpochIsOver,
    Expect,
    Expecting,
    Follow,
    Followed,
    FromWorker,
    HasCommitted,
    Hello,
    Leave,
    PartitionCost,
    Restored,
    ToWorker,
    TriggerEpoch,
)
from snapshot.ids import TransactionId
from snapshot.tree.frozen_json import NULL, Json
from snapshot.tree.manifest import ChannelState, CommitPayload, SplitPosition, SubtaskSnapshot
from statebackend.ids import Epoch, Partition, Uid

PATIENCE = 20.0
OUT = Uid("out")
SOURCE = Uid("numbers")
SCHEMA = pa.schema({"row": pa.string()})


def cost(partition: Partition) -> PartitionCost:
    """What an epoch costs a scripted worker."""
    return PartitionCost(partition, 0.0, 1.0, 2.0, 3.0, 10, 5)


Message = TypeVar("Message")


@dataclass(slots=True)
class Habits:
    """What the workers do by themselves; a test turns off what it wants to do in their place."""

    restore: bool = True
    acknowledge: bool = True
    commit: bool = True
    output: bool = True
    end: bool = False
    """Say that all input has ended once no more splits will come."""
    relaunch: bool = True
    follow: bool = False
    """Say of each epoch at once that it is ready."""
    overtaken: tuple[ChannelState, ...] = ()
    broadcast: dict[Uid, bytes] = field(default_factory=dict)
    pythons: dict[int, Interpreter] = field(default_factory=dict)
    """The Python of the processes in some slots; others have that of this process."""
    named_from: int = 0


class ScriptedWorker:
    """One process, in a thread."""

    def __init__(
        self,
        cluster: ScriptedCluster,
        driver: Address,
        secret: bytes,
        slot: int,
        launch: int = 0,
        executor: str = "",
    ) -> None:
        self.cluster = cluster
        self.slot = slot
        self.launch = launch
        self.executor = executor
        self.name = token_hex(8)
        self.received: list[ToWorker] = []
        self.deploy: Deploy | None = None
        self._driver = driver
        self._secret = secret
        self._loop = EventLoop()
        self._control: ControlConnection[FromWorker, ToWorker] | None = None
        self._heart: Heartbeat | None = None
        self._over = False
        self._positions: dict[str, Json] = {}
        self._committables: list[Committable[CommitPayload]] = []
        self._made = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # --- for tests

    def say(self, message: FromWorker) -> None:
        """Tell the driver something."""
        self._loop.wake(lambda: self._tell(message))

    def die(self) -> None:
        """Be gone, as after SIGKILL; when this returns, the socket is closed."""
        self._over = True
        self._loop.wake()
        self._thread.join()

    def fall_silent(self) -> None:
        """Keep the connection, and beat no more, as after SIGSTOP."""
        if self._heart is not None:
            self._heart.stop()
            self._heart = None

    @property
    def there(self) -> bool:
        return self._thread.is_alive()

    def acknowledge(self, epoch: Epoch) -> None:
        """Say that the partition's part is durable."""
        self._loop.wake(lambda: self._acknowledge(epoch))

    # --- the thread

    def _run(self) -> None:
        Connector(self._loop, self._driver, self._secret, ControlOf(self.name), self._reached, self._lost, seconds=5)
        self._loop.run(lambda: self._over)
        if self._heart is not None:
            self._heart.stop()
        if self._control is not None:
            self._control.close()
        self._loop.close()
        self.cluster.gone(self)

    def _reached(self, proved: Proved) -> None:
        self._control = ControlConnection(self._loop, proved, self._told, self._lost)
        self._heart = Heartbeat(self._driver, self._secret, self.name, 0.05)
        python = self.cluster.habits.pythons.get(self.slot, this_interpreter())
        address = Address("127.0.0.1", 1)
        self._tell(Hello(self.name, address, os.getpid(), self.slot, self.launch, self.executor, python))

    def _lost(self, _reason: str) -> None:
        self._over = True

    def _tell(self, message: FromWorker) -> None:
        if self._control is not None:
            self._control.send(message)

    def _told(self, message: ToWorker) -> None:
        self._obey(message)
        with self.cluster.changed:
            self.received.append(message)
            self.cluster.changed.notify_all()

    def _obey(self, message: ToWorker) -> None:
        habits = self.cluster.habits
        match message:
            case Deploy(joins=True):
                self.deploy = message
            case Expect(incarnation=incarnation, member=member):
                self._tell(Expecting(incarnation, member))
            case Deploy():
                self.deploy = message
                self._positions = dict(message.roles[SOURCE].positions)
                self._committables = list(message.roles[OUT].committables)
                if habits.restore:
                    self._tell(Restored(message.incarnation, message.partition, 0.0, 0.0, in_place=False))
                if habits.commit and message.epoch is not None:
                    self._commit(message.epoch)
            case TriggerEpoch(marker=marker) if habits.acknowledge:
                self._acknowledge(marker.epoch)
            case EpochIsOver(epoch=epoch, complete=True) if habits.commit:
                self._commit(epoch)
            case AssignSplits(splits=splits, last=last):
                self._positions.update(dict.fromkeys(splits, Json.of(0)))
                if last and habits.end:
                    self._end()
            case Drain():
                self._end()
            case Follow(epoch=epoch) if habits.follow:
                self._tell(Followed(epoch, epoch))
            case Leave():
                self._over = True
            case _:
                pass

    def _end(self) -> None:
        assert self.deploy is not None
        self._positions = dict.fromkeys(self._positions, NULL)
        self._tell(AllEnded(self.deploy.incarnation, self.deploy.partition))

    def _acknowledge(self, epoch: Epoch) -> None:
        deploy, habits = self.deploy, self.cluster.habits
        assert deploy is not None
        if habits.output:
            self._made += 1
            name = f"{deploy.job}/out/{deploy.incarnation}-{deploy.partition}-{self._made}"
            row = CommitPayload(Json.of(f"{epoch}/{deploy.partition}"))
            self._committables.append(Committable(TransactionId(name), epoch, row))
        subtasks = {
            uid: SubtaskSnapshot(
                deploy.partition,
                role.state,
                tuple(SplitPosition(s, at) for s, at in sorted(self._positions.items())) if uid == SOURCE else (),
                committables=tuple(self._committables) if uid == OUT else (),
            )
            for uid, role in deploy.roles.items()
        }
        overtaken = tuple(state for state in habits.overtaken if state.channel.sender == deploy.partition)
        self._tell(
            Acknowledgement(
                deploy.incarnation,
                deploy.partition,
                epoch,
                subtasks,
                overtaken,
                habits.broadcast,
                cost(deploy.partition),
                habits.named_from,
            )
        )

    def _commit(self, epoch: Epoch) -> None:
        deploy = self.deploy
        assert deploy is not None
        for committable in [one for one in self._committables if one.sealed_in <= epoch]:
            self._committables.remove(committable)
            rows = pa.table({"row": [str(committable.payload.value.value())]}, schema=SCHEMA)
            self._tell(Delivery(deploy.incarnation, deploy.partition, OUT, committable.transaction, arrow_stream(rows)))
        self._tell(HasCommitted(deploy.incarnation, deploy.partition, epoch))


class ScriptedCluster:
    """A launcher of scripted workers. With `first`, those of these slots alone; the test launches the others."""

    def __init__(self, first: Collection[int] | None = None, **habits: object) -> None:
        self._first = first
        self.habits = Habits(**habits)  # type: ignore[arg-type]
        self.changed = threading.Condition()
        self.workers: list[ScriptedWorker] = []
        self.driver: Address | None = None
        self.secret = b""
        self._stopping = False

    # --- what a launcher does

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def local(self) -> str | None:
        return None

    def check(self, processes: int) -> Sequence[str]:
        return ()

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str], object],
        tls: Tls | None = None,
    ) -> None:
        self.driver, self.secret = driver, secret
        for slot in range(processes) if self._first is None else self._first:
            self._launch(slot)

    def appeared(self, launch: int, worker: str) -> bool:
        return True

    def lost(self, worker: str, *, silent: bool) -> None:
        pass

    def release(self) -> None:
        self._stopping = True

    def stop(self, seconds: float) -> None:
        self._stopping = True
        for worker in list(self.workers):
            worker._thread.join(seconds)
            if worker.there:
                worker.die()

    def gone(self, worker: ScriptedWorker) -> None:
        if self.habits.relaunch and not self._stopping:
            self._launch(worker.slot)

    def _launch(self, slot: int, launch: int = 0, executor: str = "") -> None:
        assert self.driver is not None
        with self.changed:
            self.workers.append(ScriptedWorker(self, self.driver, self.secret, slot, launch, executor))
            self.changed.notify_all()

    # --- for tests

    def wait_for(self, found: Callable[[], Message | None]) -> Message:
        """Wait until this gives something, asked whenever a worker has heard something."""
        with self.changed:
            result = found()
            while result is None:
                assert self.changed.wait(PATIENCE), "what the test waits for did not happen"
                result = found()
            return result

    def heard(self, kind: type[Message], where: Callable[[Message], bool] = lambda _: True) -> list[Message]:
        """All messages of a kind that any worker has heard."""
        return [m for worker in self.workers for m in worker.received if isinstance(m, kind) and where(m)]

    def await_heard(
        self, kind: type[Message], count: int = 1, where: Callable[[Message], bool] = lambda _: True
    ) -> list[Message]:
        """Wait until so many such messages were heard."""
        return self.wait_for(lambda: found if len(found := self.heard(kind, where)) >= count else None)

    def worker_of(self, partition: int) -> ScriptedWorker:
        """The process that has a partition now."""

        def newest() -> ScriptedWorker | None:
            found = [
                worker
                for worker in self.workers
                if worker.there and worker.deploy is not None and worker.deploy.partition == partition
            ]
            return max(found, key=lambda worker: worker.deploy.incarnation if worker.deploy else 0, default=None)

        return self.wait_for(newest)


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
