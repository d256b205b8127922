"""One simulated job under one schedule: drivers, workers, store and target, put together and run to their rest.

Invariant: the first bytes of the schedule decide the job's shape (mode, target, parallelism of each start,
options), the rest what happens to it. A history in which a promise is broken ends in a `Violation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from recovery.testing.attempt import WorkerPlan
from recovery.testing.driver import Driver
from recovery.testing.external_readers import Disaster, Janitor, Reader
from recovery.testing.generation import DriverPlan, Person
from recovery.testing.observer import Observer
from recovery.testing.sink import TargetKind
from recovery.testing.store import SimulatedStore
from recovery.testing.stream import Stream
from recovery.testing.target import SimulatedTarget
from recovery.testing.worker import STORE, TARGET, Worker
from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.testing.faults import Faults
from snapshot.testing.history import Channel
from snapshot.testing.process import Process
from snapshot.testing.schedule import Schedule
from snapshot.testing.simulation import Simulation

DRIVERS = ("driver1", "driver2")
WORKERS = ("worker1", "worker2", "worker3", "worker4")
READER, JANITOR, DISASTER = "reader", "janitor", "disaster"
_MODES = (MarkerMode.ALIGNED, MarkerMode.UNALIGNED, MarkerMode.AT_LEAST_ONCE)
_PARALLELISM = ((2,), (2, 4, 3), (3, 1, 4), (1, 2))


def run(schedule: Schedule) -> Observer:
    """Run one history; the observer has seen it all. Raises `Violation` if it breaks a promise."""
    return _run(schedule, goes_back=False)


def run_going_back(schedule: Schedule) -> Observer:
    """Run one history of a job whose newest manifests get lost, and that a person starts from a savepoint."""
    return _run(schedule, goes_back=True)


def _run(schedule: Schedule, *, goes_back: bool) -> Observer:
    mode = _MODES[schedule.choose((3, 3, 2)) or 0]
    parallelism = _PARALLELISM[schedule.number(len(_PARALLELISM))]
    target = (TargetKind.STAGES, TargetKind.TOKENS)[schedule.number(2)]
    stream = Stream(splits=1 + schedule.number(4), length=2 + schedule.number(5), window=(20, 50)[schedule.number(2)])
    options = CoordinatorOptions(
        interval=10,
        timeout=60,
        max_in_flight=1 + schedule.number(3),
        retain=1 + schedule.number(2),
        tolerated_failures=(None, 1)[schedule.number(2)],
        mode=mode,
    )
    work = WorkerPlan(stream, target, consolidate_every=1 + schedule.number(3), repeats=schedule.number(5))
    observer = Observer(stream, exactly_once=mode is not MarkerMode.AT_LEAST_ONCE)
    plan = DriverPlan(stream, WORKERS, parallelism, options, suspicions=schedule.number(4))
    drivers = DRIVERS[: 1 + schedule.number(2)]
    losses = 0
    if goes_back:
        person = Person(behind=1 + schedule.number(6), looks=60, accepts=schedule.number(2) == 0)
        plan = replace(plan, idle=schedule.number(5), person=person)
        drivers, losses = DRIVERS, schedule.number(4)
    processes: dict[str, Callable[[], Process]] = {
        STORE: partial(SimulatedStore, observer.objects, observer, schedule.number(3)),
        TARGET: partial(SimulatedTarget, observer.rows, observer),
        **{name: partial(Driver, name, plan, observer, starts=name == DRIVERS[0]) for name in drivers},
        **{name: partial(Worker, drivers, work) for name in WORKERS},
        READER: partial(Reader, READER, observer, turns=schedule.number(5)),
        JANITOR: partial(Janitor, JANITOR, observer, turns=schedule.number(3)),
        **({DISASTER: partial(Disaster, observer, losses)} if losses else {}),
    }
    Simulation(processes, schedule, faults(drivers)).run(fair_steps=5_000)
    observer.check_output()
    observer.check_leaks()
    return observer


def faults(drivers: Sequence[str]) -> Faults:
    """Return the faults that may befall the job: everything but the loss of what the store and the target hold."""
    active = (*drivers, *WORKERS)
    servers = (STORE, TARGET)
    return Faults(
        crashes=3,
        cuts=2,
        losses=4,
        pauses=3,
        calms=6,
        crashable=active,
        pausable=(*active, READER),
        cuttable=[Channel(a, b) for a in active for b in (*active, *servers) if a != b],
        lossy=[Channel(server, name) for server in servers for name in active],
    )
