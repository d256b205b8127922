"""One job in the simulated world: its store, its drivers, one after the other, and what is seen of it.

Invariant: the real driver and the real partition hosts run; a driver that is gone is started again, until one has
brought the job to its end.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Final

import cloudpickle

from recovery import events as log
from recovery.driver.attempts.requests import End, EndKind
from recovery.driver.claim import StartRefused
from recovery.driver.driver import Driver
from recovery.driver.report.event_log import EventLog
from recovery.driver.report.progress import ProgressLine
from recovery.driver.settings.job import DriverPlace, JobSettings
from recovery.driver.tree.evidence import DamagedTree
from recovery.driver.tree.identity import wanted_birth
from recovery.offline.job_tree import UnusableEpoch
from recovery.testing.checks.observer import JobObserver
from recovery.testing.programs.drawn import DrawnProgram
from recovery.testing.programs.shape import Output
from recovery.testing.whole.shape import JobShape
from recovery.testing.world.kernel import SimProcess, Task, World
from recovery.testing.world.launcher import Place, SimLauncher
from recovery.testing.world.means import SimMeans
from recovery.testing.world.network import Network
from recovery.testing.world.store import SimStore, StoreServer
from snapshot.testing.history import History, Kind, Violation
from statebackend.ids import Generation
from statebackend.stores.limited_store import LimitedStore
from statebackend.stores.store import BlobStore

DRIVERS: Final = ("driver1", "driver2")
WORKERS: Final = ("worker1", "worker2", "worker3", "worker4")
OTHER_WORKERS: Final = tuple(f"{name}'" for name in WORKERS)
"""Those that the second driver has started."""
READER, CLEANER = VISITORS = "reader", "cleaner"
_PLACES: Final = {
    driver: [Place(name, f"127.{number}.0.{slot + 1}") for slot, name in enumerate(names)]
    for number, (driver, names) in enumerate(zip(DRIVERS, (WORKERS, OTHER_WORKERS), strict=True), 1)
}
PROTOCOL: Final = "simulated"
URI: Final = f"{PROTOCOL}://tree"
_START_AGAIN: Final = 0.3
"""Seconds after which a driver is started again."""
_TOLD: Final = (
    log.Claimed, log.Deployed, log.Running, log.EpochTriggered, log.EpochCompleted, log.EpochCommitted,
    log.EpochAbandoned, log.AttemptFailed, log.WorkerLost, log.GaveUp, log.Finished, log.Stopped, log.Trouble,
    log.ReplicaLost, log.PrimaryMoved, log.Collapsed, log.Joining, log.NotJoined, log.RedundancyRestored,
    log.PartitionLost, log.PartitionReplaced,
)  # fmt: skip
"""The events of a driver that are in the history."""


class Job:
    """A job with a drawn program, of this shape, whose files are in the folder `local`."""

    def __init__(self, shape: JobShape, drawn: DrawnProgram, observer: JobObserver, local: Path) -> None:
        chance = Random(shape.chance) if shape.chance else None
        self.world = World(chance)
        self.network = Network(self.world, chance, shape.room)
        self.means = SimMeans(self.world, self.network)
        self.means.own_disks = shape.own_disks
        self.server = StoreServer(self.world, observer)
        observer.objects = self.server.objects
        observer.objected = self.world.fail
        self.history = History((*DRIVERS, *WORKERS, *OTHER_WORKERS, *VISITORS))
        self.shape = shape
        self.drawn = drawn
        self.observer = observer
        self.met: Counter[str] = Counter()
        """The kinds of faults and requests that there were, counted."""
        self.finished = False
        self.drivers: list[SimProcess] = []
        self.reached: Callable[[str], object] = lambda _: None
        """Called with each fail point that a process reaches, in its thread."""
        self.where_all_waited = ""
        self.output: Output = {}
        """The rows that were visible when the history was over."""
        self._running: dict[SimProcess, Driver] = {}
        self._local = local
        self._starts = 0
        self._lost: dict[str, bytes] = {}
        """The manifests that the store has lost, and that a person could put back."""
        self._accepts = self._is_told = False
        """True if the person would accept repeated output, and if the next driver is told so."""

    # --- drivers ------------------------------------------------------------------------------------------------------

    def start_driver(self, name: str = DRIVERS[0]) -> None:
        """Start a driver of the job."""
        parallelism = self.shape.parallelism[min(self._starts, len(self.shape.parallelism) - 1)]
        self._starts += 1
        host = f"127.0.0.{2 + DRIVERS.index(name)}"
        process = self.world.start(name, host, lambda: self._drive(parallelism), self._ended)
        self.drivers.append(process)
        self.note(process, Kind.STARTED, f"parallelism {parallelism}")

    @property
    def running(self) -> list[tuple[SimProcess, Driver]]:
        """Return the drivers that are there, and listen."""
        return [(process, driver) for process, driver in self._running.items() if process.alive]

    @property
    def alive(self) -> list[SimProcess]:
        """Return the processes that are there."""
        return [process for process in self.world.processes if process.alive]

    @property
    def is_over(self) -> bool:
        """True if a driver has brought the job to its end, and no process of it is left."""
        return self.finished and not self.alive

    def start_visitor(self, name: str, visit: Callable[[BlobStore, str], bool]) -> None:
        """Start a process that visits the job's tree from outside, unless it is there already."""
        if name in {process.name for process in self.alive}:
            return

        def main() -> int:
            store = LimitedStore(self.store_of(self.world.process), self.shape.options.host.store_timeout / 1000)
            try:
                return 0 if visit(store, URI) else 1
            except Violation as violation:
                self.world.fail(violation)
                raise
            except UnusableEpoch:
                if not self._lost:
                    raise
                return 1

        self.note(self.world.start(name, "127.0.1.1", main, lambda _: None), Kind.STARTED)

    def drain(self, driver: Driver) -> None:
        """Ask a driver to end all sources where they are: the job is not over then, if there is more to read."""
        self.observer.drained = True
        driver.ask(lambda generation: generation.drain())

    def lose_manifests(self, most: int, *, accepts: bool) -> None:
        """Lose the newest manifests, but for the oldest, together with all drivers: each finds them lost at its start.

        A person who is then told of output that would be made again accepts that, or puts the manifests back.
        """
        usable = self.observer.journal.state.usable
        there = [record.manifest for record in usable if record.manifest in self.server.objects]
        if len(there) > 1 and not any(process.name in VISITORS for process in self.alive):
            for process in self.drivers:
                self.world.end(process)
            for path in there[max(1, len(there) - most) :]:
                self._lost[path] = self.server.objects.pop(path)
                self.observer.lost.add(path)
                self.note(self.drivers[-1], Kind.NOTED, f"{path} is lost")
            self._accepts = accepts

    def lose_machine(self, process: SimProcess) -> None:
        """Lose the machine of a process, and its disk if it has one of its own."""
        self.network.lose(process)
        self.world.end(process)
        if self.shape.own_disks:
            rmtree(self.means.disk_of(process, self._local), ignore_errors=True)

    def store_of(self, process: SimProcess) -> BlobStore:
        """Return the store as a process sees it."""
        return SimStore(self.server, process)

    def _drive(self, parallelism: int) -> int:
        process, shape = self.world.process, self.shape
        told, self._is_told = self._is_told, False
        self.observer.accepting[process.name] = told
        store = LimitedStore(self.store_of(process), shape.options.host.store_timeout / 1000)
        try:
            wanted = wanted_birth(store, URI, "job", self.drawn.max_parallelism, parallelism)
        except Exception as error:  # it is started again
            self.note(process, Kind.NOTED, f"cannot start: {error}")
            return 1
        plan = self.drawn.plan
        settings = JobSettings(
            job=wanted.birth.job,
            plan=plan,
            pickled_plan=cloudpickle.dumps(plan),
            parallelism=parallelism,
            store=URI,
            local=str(self._local),
            scheme=shape.scheme,
            options=replace(shape.options, accept_duplicates=told),
            newborn=wanted.birth if wanted.is_new else None,
        )
        places = _PLACES[process.name]
        launcher = SimLauncher(self.world, process.host, places, self._worker_started, self._worker_ended)
        events = EventLog()
        events.listen(_Listener(self, process).hear)
        driver = Driver(settings, store, launcher, events, ProgressLine(None), DriverPlace())
        driver.start()
        self._running[process] = driver
        driver.over.wait()
        outcome = driver.outcome
        if isinstance(outcome, End) and outcome.kind is EndKind.FINISHED and self.observer.all_is_read:
            self.finished = True
        if isinstance(outcome, StartRefused | DamagedTree):
            self._refused(accepts=self._accepts and isinstance(outcome, StartRefused))
        return 0 if isinstance(outcome, End) else 1

    def _refused(self, *, accepts: bool) -> None:
        """Let a person who is told that manifests are lost accept what follows, or else put back what is needed."""
        self._is_told, self._accepts = accepts, False
        if not accepts:
            kept = {record.manifest for record in self.observer.journal.state.retained}
            self.server.objects.update({path: data for path, data in self._lost.items() if path in kept})
            self._lost.clear()

    def _ended(self, code: int) -> None:
        """Note the end of a driver, and start another one if none is there."""
        process = next(process for process in reversed(self.drivers) if process.exit_code is not None)
        self._running.pop(process, None)
        self.note(process, Kind.CRASHED if code < 0 else Kind.NOTED, None if code < 0 else f"ended with {code}")
        self.world.after(_START_AGAIN, self._go_on)

    def _go_on(self) -> None:
        if not self.finished and not any(process.alive for process in self.drivers):
            self.start_driver()

    # --- what is seen -------------------------------------------------------------------------------------------------

    def note(self, process: SimProcess, kind: Kind, payload: object = None, peer: str | None = None) -> None:
        """Record an event of a process."""
        self.history.append(process.name, process.incarnation, kind, peer, payload)
        self.world.note(f"{process.name} {kind.value} {self._without_folder(str(payload))}")

    def in_short(self, event: log.AnyEvent) -> str:
        """Return the beginning of what an event says."""
        said = [
            str(value)
            for name in ("epoch", "generation", "incarnation", "partition", "cause", "what", "reason")
            if (value := getattr(event, name, None)) is not None
        ]
        return self._without_folder(" ".join((type(event).__name__, *said)))[:200]

    def _without_folder(self, text: str) -> str:
        """Leave the job's folder out, which has another name in each Python process."""
        return text.replace(str(self._local), "")

    def come_to(self, point: str) -> None:
        """Record that a process, whose thread calls this, has come to a fail point."""
        self.note(self.world.process, Kind.NOTED, point)
        self.reached(point)

    def history_of_those_seen(self) -> History:
        """Return the history, with no place for processes that never were."""
        seen = {record.process for record in self.history}
        return self.history.among(name for name in self.history.processes if name in seen)

    def see_where_all_wait(self) -> None:
        """Note in `where_all_waited` where every thread of every process stands, if the job is not over."""
        if not self.is_over:
            tasks = [task for process in self.alive for task in process.tasks if not task.done]
            self.where_all_waited = "\n".join(map(_where, tasks)) or "no process is there"

    def _worker_started(self, process: SimProcess) -> None:
        self.note(process, Kind.STARTED)

    def _worker_ended(self, process: SimProcess, code: int) -> None:
        self.note(process, Kind.CRASHED if code < 0 else Kind.NOTED, None if code < 0 else f"ended with {code}")


class _Listener:
    """Hears the events of one driver."""

    def __init__(self, job: Job, process: SimProcess) -> None:
        self._job = job
        self._process = process
        self._generation: Generation | None = None

    def hear(self, event: log.AnyEvent) -> None:
        if isinstance(event, log.Claimed):
            self._generation = Generation(event.generation)
        if isinstance(event, _TOLD):
            self._job.note(self._process, Kind.NOTED, self._job.in_short(event))
        try:
            self._job.observer.heard(event, generation=self._generation)
        except AssertionError as violation:
            self._job.world.fail(violation)


def _where(task: Task) -> str:
    frame = None if task.greenlet is None else task.greenlet.gr_frame
    frames = [] if frame is None else traceback.extract_stack(frame)
    product = [one for one in frames if "/recovery/testing/" not in one.filename][-3:]
    way = " > ".join(f"{Path(one.filename).stem}.{one.name}:{one.lineno}" for one in product)
    return f"{task} waits in {way or 'nothing'}"
