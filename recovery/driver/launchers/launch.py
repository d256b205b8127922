"""The contract of a launcher, which starts the processes for a job's partitions.

Invariant: as long as a launcher is not stopped, a process that ends, or cannot be started, is started again in
its slot; the run's secret is never on a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from snapshot.host.net.tls import Tls
from snapshot.host.protocol.messages import Address
from statebackend.errors import JobError


class CannotLaunch(JobError):
    """The job's processes cannot be started as things are; the message says what to change. Nothing was started."""


class Launcher(Protocol):
    """Starts processes that run `snapshot.host.process.worker`, and keeps so many of them running."""

    @property
    def host(self) -> str:
        """Return at which of the driver's addresses the processes reach it."""

    @property
    def local(self) -> str | None:
        """Return the folder for jobs' files if the processes have their own, relative to their working directory."""

    def check(self, processes: int) -> Sequence[str]:
        """Return what is unwise, in sentences; raise `CannotLaunch` if so many processes cannot run."""

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str | CannotLaunch], object],
        tls: Tls | None = None,
    ) -> None:
        """Start them. `trouble` is told, in any thread, why a process could not be started or ended; `CannotLaunch` if
        none will ever be started again, which ends the job.

        With `tls` all connections are encrypted, from the first one to the driver on.
        """

    def appeared(self, launch: int, worker: str) -> bool:
        """Count a process of this launch that says hello; return False if it is one too many, and has to leave."""

    def lost(self, worker: str, *, silent: bool) -> None:
        """Start another process at once for one that counted and is lost; return at once, as `appeared` does.

        `silent` if the lost process only gives no sign of life: then it is to be ended, as it may hold what the other
        one needs.
        """

    def release(self) -> None:
        """Start no process again: they have been told to end. Return at once, as `start` does."""

    def stop(self, seconds: float) -> None:
        """Wait so long, after `release`, for the processes to end by themselves, and then end those that have not."""


@runtime_checkable
class TellsExitCodes(Protocol):
    """A launcher that sees how its processes end."""

    def exit_code(self, launch: int) -> int | None:
        """Return the exit code of this launch's process, or its signal's number as a negative one.

        None if the process has not ended, or that is not known (yet). Any thread may ask, and gets an answer at once.
        """


@runtime_checkable
class Scouting(Protocol):
    """A launcher whose processes may share executors, and that can find out where there is room. All return at once."""

    def scout(self, tasks: int, over: Callable[[], object]) -> None:
        """Start so many processes more, on as many executors as possible, or fewer if there are not so many free slots.

        `over` is called in any thread when none of them comes any more, or when one that was kept has ended.
        """

    def is_scout(self, launch: int) -> bool:
        """True if this launch, of a process that says hello, is one of several scouts, none of which was kept yet."""

    def keep(self, launch: int, worker: str) -> None:
        """Keep this process: from now on there is one slot more. All others of its launch are turned away."""

    def recall(self) -> None:
        """End the last ones that were started to look, unless one of them was kept."""

    def retire(self, slot: int) -> None:
        """Give up this slot; its process, if there is one, has been told to leave."""
