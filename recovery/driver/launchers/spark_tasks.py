"""The processes for a job's partitions as Spark tasks: one Spark job of one long-running task for each.

Invariant: a task that ends while the job runs is launched again, whatever Spark's own limit of failures says;
nothing is started on a cluster that has too few slots, because Spark would wait for them without a word.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from recovery.driver.launchers.application import Application, PythonTask, WarmUp, reason_of
from recovery.driver.launchers.launch import CannotLaunch
from recovery.driver.launchers.launch_rules import Launch
from recovery.driver.launchers.spark_settings import DAEMON, daemon_of
from recovery.driver.launchers.supervisor import Keeper
from snapshot.host.net.tls import Tls
from snapshot.host.process.preload import MODULES, loaded_modules
from snapshot.host.protocol.messages import Address
from statebackend.child_python import SAME_HASHES

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_WAIT_FOR_EXECUTORS: Final = 30.0
_LOOK: Final = 0.2
_AGAIN: Final = 0.1
_AGAIN_SLOWLY: Final = 0.5
"""Seconds in which Spark itself starts a task again whose process was killed; the longer one without our daemon."""


class SparkTasks:
    """Tasks of a Spark session: of `local[N]`, `local-cluster[...]`, a standalone cluster, YARN or Kubernetes.

    A context serves as well as a session. `host` is the address of the driver as executors see it, if it is not
    `spark.driver.host`. If the main thread makes it, PySpark's answer to Ctrl-C is replaced by Python's: it cancels all
    tasks, so that no job could stop cleanly.
    """

    def __init__(self, spark: SparkSession | SparkContext, host: str | None = None) -> None:
        _leave_interrupts_to_the_job()
        self._spark = Application(spark)
        self._host = host
        self._tag = f"epochcut-{token_hex(4)}"
        self._where: tuple[Address, bytes, Tls | None] | None = None
        self._keeper: Keeper | None = None
        self._trouble: Callable[[str | CannotLaunch], object] = print
        self._threads: dict[int, threading.Thread] = {}
        self._processes = 0
        self._scouts: Launch | None = None
        """The last ones, until one of them is kept."""
        self._warm_up = WarmUp(self._spark, self._free_slots)

    @property
    def host(self) -> str:
        """Return at which of the driver's addresses the executors reach it."""
        if self._host is not None:
            return self._host
        return "127.0.0.1" if _LOCAL.fullmatch(self._master) else self._spark.setting("spark.driver.host", "127.0.0.1")

    @property
    def local(self) -> str | None:
        """Return, on a standalone cluster and YARN, a folder in the one that a replaced executor finds; see `_task`."""
        return "epochcut" if self._master.startswith("spark://") or self._master == "yarn" else None

    def check(self, processes: int) -> Sequence[str]:
        """Check the slots, and the settings that do not go together with tasks that run for ever."""
        if why := self._spark.over:
            raise CannotLaunch(f"{why}, and nothing runs there any more; run the job with a new session")
        if self._spark.is_on("spark.python.worker.killOnIdleTimeout"):
            raise CannotLaunch(
                "spark.python.worker.killOnIdleTimeout is on, and would kill the tasks of a stream, which run for ever "
                "without a word to Spark; set it to false"
            )
        slots = self._slots(processes)
        if slots is not None and slots < processes:
            raise CannotLaunch(
                f"the job needs {processes} task slots (its parallelism and standbys), and Spark's {self._master} has "
                f"{slots}; {self._how_to_get(processes)}"
            )
        slowly = (
            []
            if self._forks_quickly
            else [
                f"processes start half a second faster, after a failure too, with {DAEMON[0]}={DAEMON[1]}; see "
                f"recovery.spark_settings()"
            ]
        )
        return slowly + [
            f"{name} is on: {why}; turn it off"
            for name, why in (
                ("spark.speculation", "Spark may start a second copy of a task, which stands by and takes a slot"),
                ("spark.dynamicAllocation.enabled", "Spark may take away executors that seem idle"),
                ("spark.excludeOnFailure.enabled", "Spark may refuse to start a task again where it has failed"),
            )
            if self._spark.is_on(name)
        ]

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str | CannotLaunch], object],
        tls: Tls | None = None,
    ) -> None:
        """Begin to run so many Spark tasks, and to launch those again that end."""
        self._where, self._processes, self._trouble = (driver, secret, tls), processes, trouble
        self._spark.environment = {MODULES: ",".join(loaded_modules()), **SAME_HASHES}
        again = _AGAIN if self._forks_quickly else _AGAIN_SLOWLY
        self._keeper = Keeper(self, processes, again, trouble, "Spark task")
        self._keeper.begin()

    def appeared(self, launch: int, worker: str) -> bool:
        """Count the process of this launch, and warm executors up soon; return False if it is one too many."""
        self._warm_up.soon()
        return self._keeper is not None and self._keeper.appeared(launch, worker)

    def lost(self, worker: str, *, silent: bool) -> None:
        """Have the keeper bring another process for a lost one."""
        if self._keeper is not None:
            self._keeper.lost(worker, silent=silent)

    def release(self) -> None:
        """Launch no task any more, and warm no executor up."""
        self._warm_up.stop()
        if self._keeper is not None:
            self._keeper.release()

    def stop(self, seconds: float) -> None:
        """Wait so long for the tasks to end, interrupt those that have not, and wait as long for these."""
        self.release()
        if self._keeper is not None:
            self._keeper.join()
        threads = list(self._threads.values())
        _join(threads, seconds)
        if any(thread.is_alive() for thread in threads):
            self._spark.interrupt(self._tag)
            _join(threads, seconds)

    # --- where there is room ------------------------------------------------------------------------------------------

    def scout(self, tasks: int, over: Callable[[], object]) -> None:
        """Run the scouts as one Spark job, whose tasks Spark deals out to all executors in turn."""
        try:
            threading.Thread(target=self._scout, args=(tasks, over), name="scouts", daemon=True).start()
        except RuntimeError:  # too many threads
            over()

    def is_scout(self, launch: int) -> bool:
        """True if this is the launch of the last scouts, and none of them has been kept or recalled."""
        return self._scouts is not None and self._scouts.number == launch

    def keep(self, launch: int, worker: str) -> None:
        """Keep this scout, in a slot of its own, if its launch is that of the last scouts."""
        scouts, self._scouts = self._scouts, None
        if self._keeper is not None and scouts is not None and scouts.number == launch:
            self._processes += 1
            self._keeper.keep(scouts, worker)

    def recall(self) -> None:
        """Cancel the Spark job of the last scouts, unless one was kept, in a thread of its own."""
        scouts, self._scouts = self._scouts, None
        if scouts is not None:
            with suppress(RuntimeError):  # too many threads; whoever comes is turned away
                threading.Thread(target=self.cancel, args=(scouts.number,), name="recall", daemon=True).start()

    def retire(self, slot: int) -> None:
        """Give up this slot, and count one process less."""
        if self._keeper is not None:
            self._processes -= 1
            self._keeper.retire(slot)

    def _scout(self, tasks: int, over: Callable[[], object]) -> None:
        room = 0
        with suppress(Exception):  # the session may be gone
            room = min(tasks, self._free_slots())
        scouts = self._keeper.scouts() if room > 0 and self._keeper is not None else None
        if scouts is not None:
            self._scouts = scouts
            self._threads[scouts.number] = threading.current_thread()
            self._run(scouts, room)
        over()

    # --- what the keeper asks for -------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        """Run a Spark job of one task, in a thread of its own."""
        thread = threading.Thread(target=self._run, args=(launch,), name=f"slot-{launch.slot}", daemon=True)
        self._threads[launch.number] = thread
        try:
            thread.start()
        except RuntimeError:  # too many threads
            del self._threads[launch.number]
            raise

    def cancel(self, number: int) -> None:
        """Interrupt the Spark job of this launch."""
        self._spark.interrupt(self._tag_of(number))

    def _run(self, launch: Launch, tasks: int = 1) -> None:
        assert self._where is not None
        assert self._keeper is not None
        reason = "it returned"
        try:
            self._spark.run(tasks, _task(*self._where, launch), (self._tag, self._tag_of(launch.number)))
        except Exception as error:
            reason = reason_of(error)
            if over := self._spark.over:
                self._keeper.release()
                self._trouble(CannotLaunch(over))
        self._threads.pop(launch.number, None)
        self._keeper.ended(launch, f"ended and is launched again: {reason}")

    def _tag_of(self, number: int) -> str:
        return f"{self._tag}-{number}"

    # --- what Spark says ----------------------------------------------------------------------------------------------

    @property
    def _master(self) -> str:
        return self._spark.setting("spark.master", "")

    @property
    def _forks_quickly(self) -> bool:
        return daemon_of(self._spark.setting) == DAEMON[1]

    def _slots(self, wanted: int) -> int | None:
        """Return how many tasks can run at once; None if Spark does not say, as through Spark Connect."""
        each = float(self._spark.setting("spark.task.cpus", "1"))
        if match := _LOCAL_CLUSTER.fullmatch(self._master):
            return int(int(match[2]) / each + 1e-9) * int(match[1])
        cores = self._cores(int(wanted * each + 1 - 1e-9))
        return None if cores is None else int(cores / each + 1e-9)

    def _free_slots(self) -> int:
        """Return a cluster's slots that the job has not taken; 0 on one machine, where no executor could be cold."""
        slots = None if _LOCAL.fullmatch(self._master) else self._slots(0)
        return 0 if slots is None else slots - self._processes

    def _cores(self, wanted: int) -> int | None:
        """Return the cores; for those of a cluster's executors, wait a while. None through Spark Connect."""
        match = _LOCAL.fullmatch(self._master)
        if match is not None and match[1] != "*":
            return int(match[1] or 1)
        context = self._spark.context
        if context is None:
            return None
        deadline = time.monotonic() + (0.0 if match is not None else _WAIT_FOR_EXECUTORS)
        while (cores := int(context.defaultParallelism)) < wanted and time.monotonic() < deadline:
            time.sleep(_LOOK)  # Spark tells nobody
        return cores

    def _how_to_get(self, processes: int) -> str:
        if _LOCAL.fullmatch(self._master):
            return f"start the session with master('local[{processes}]') or more"
        return (
            "give it more executors or cores (spark.executor.instances, spark.executor.cores, spark.cores.max), or let "
            "tasks share a core with spark.task.cpus=0.5"
        )


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _task(driver: Address, secret: bytes, tls: Tls | None, launch: Launch) -> PythonTask:
    """Return what Spark runs in the task, in `lasting_folder` if there is one.

    It travels in Spark's own pickled function.
    """
    slot, number = launch.slot, launch.number

    def task(_nothing: Iterator[object]) -> Iterator[object]:
        import os
        from contextlib import chdir, nullcontext

        from snapshot.host.process.worker import run_worker
        from snapshot.host.protocol.executor import lasting_folder

        files = None if tls is None else tls.absolute()
        lasting = lasting_folder(os.environ)
        with chdir(lasting) if lasting else nullcontext():
            run_worker(driver, secret, slot, number, files)
        yield from ()

    return task


def _leave_interrupts_to_the_job() -> None:
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if (getattr(handler, "__module__", None) or "").startswith("pyspark."):
            signal.signal(signal.SIGINT, signal.default_int_handler)
