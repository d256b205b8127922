"""One simulated job under one schedule: the real driver and the real partition hosts, from the first start to the end.

Invariant: the first bytes of the schedule decide the program and how it is run, the rest what befalls it. A history in
which a promise is broken ends in a `Violation`.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from os import getpid
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from recovery.testing.checks.beliefs import observing
from recovery.testing.checks.observer import JobObserver
from recovery.testing.programs.drawn import draw
from recovery.testing.scale import small_scale
from recovery.testing.whole.adversary import Adversary
from recovery.testing.whole.job import PROTOCOL, Job
from recovery.testing.whole.known_files import known_files
from recovery.testing.whole.messages import noted_messages
from recovery.testing.whole.shape import JobShape, draw_shape
from recovery.testing.world.kernel import Rest
from recovery.testing.world.means import of_this_thread
from snapshot.fail_points import POINTS
from snapshot.testing.history import Violation
from snapshot.testing.schedule import Schedule
from snapshot.testing.simulation import EXPLORED
from statebackend import means
from statebackend.fail_points import at
from statebackend.stores.fsspec_store import known

_PATIENCE: Final = 120.0
"""Seconds of the world in which a job comes to its end after the last fault."""
_LONGEST: Final = 600.0
"""Seconds of the world after which nothing more befalls the job."""
SHARED_MEMORY: Final = Path("/dev/shm")


def run(schedule: Schedule) -> JobObserver:
    """Run one history; the observer has seen it all. Raises `Violation` if it breaks a promise."""
    return run_job(schedule).observer


def run_job(schedule: Schedule, changed: Callable[[JobShape], JobShape] = lambda shape: shape) -> Job:
    """Run one history, and return the job, whose shape may be `changed`. Raises `Violation` if it breaks a promise."""
    with ExitStack() as stack:
        drawn = draw(schedule, "simulated")
        stack.callback(drawn.forget)
        shape = changed(draw_shape(schedule))
        folder = stack.enter_context(_folder())
        stack.enter_context(known_files())
        observer = JobObserver(drawn, exactly_once=shape.exactly_once)
        job = Job(shape, drawn, observer, folder / "local")
        stack.callback(lambda: setattr(schedule, "history", job.history_of_those_seen()))
        rest = _lived_through(job, schedule)
        job.output = drawn.output
        EXPLORED.steps += job.world.turns
        EXPLORED.histories += 1
        EXPLORED.seen.add(job.world.digest)
        EXPLORED.met.update(job.met)
        if job.world.failure is not None:
            raise job.world.failure
        if rest is not Rest.DONE:
            raise Violation(f"the job does not come to its end ({rest.name.lower()}):\n{job.where_all_waited}")
        observer.check_cuts(folder / "cuts")
        observer.check_end(complete=True)
    return job


def _lived_through(job: Job, schedule: Schedule) -> Rest:
    """Let the history happen, with its means in the place of the real ones, and unwind all threads after it."""
    if not faulthandler.is_enabled():  # or a simulated process would, at a simulated socket
        faulthandler.enable(sys.__stderr__ or 2)
    collecting = gc.isenabled()
    gc.disable()
    world, said = job.world, StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with ExitStack() as stack:
            stack.enter_context(means.replaced(of_this_thread(job.means)))
            stack.enter_context(known(PROTOCOL, lambda _: job.store_of(job.world.process)))
            stack.enter_context(redirect_stderr(said))
            stack.enter_context(observing(job.observer))
            stack.enter_context(noted_messages(job))
            stack.enter_context(small_scale(slice_bytes=job.shape.slice_bytes))
            for point in POINTS:
                stack.enter_context(at(point, partial(job.come_to, point), POINTS))
            stack.callback(job.means.close)
            stack.callback(world.close)
            stack.callback(job.see_where_all_wait)
            adversary = Adversary(job, schedule)
            job.start_driver()
            rest = world.run(lambda: job.is_over or adversary.over_at is not None, _LONGEST, job.shape.turns)
            if rest is not Rest.FAILED and not job.is_over:
                adversary.end()
                rest = world.run(lambda: job.is_over, world.now + _PATIENCE, world.turns + job.shape.turns)
        return rest
    finally:
        logging.disable(logging.NOTSET)
        if collecting:
            gc.enable()


@contextmanager
def _folder() -> Iterator[Path]:
    """Give a folder in memory, if there is one, of a path that is equally long for every process."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(gettempdir())
    folder = base / f"epochcut-world-{getpid():010}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
