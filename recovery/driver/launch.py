"""How the processes for a job's partitions come to be: the contract.

What always holds: as long as a launcher is not stopped, a process that ends, or cannot be started, is started again in
its slot; the run's secret is never on a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from snapshot.host.messages import Address
from snapshot.host.tls import Tls


class CannotLaunch(Exception):
    """The job's processes cannot be started as things are; the message says what to change. Nothing was started."""


class Launcher(Protocol):
    """Starts processes that run `snapshot.host.worker`, and keeps so many of them running."""

    @property
    def host(self) -> str:
        """At which of the driver's addresses the processes reach it."""

    @property
    def local(self) -> str | None:
        """The folder for jobs' files, if the processes have one of their own; relative to their working directory."""

    def check(self, processes: int) -> Sequence[str]:
        """What is unwise, in sentences; `CannotLaunch` if so many processes cannot run."""

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str], object],
        tls: Tls | None = None,
    ) -> None:
        """Start them. `trouble` is told, in any thread, why a process could not be started or ended.

        With `tls` all connections are encrypted, from the first one to the driver on.
        """

    def appeared(self, launch: int, worker: str) -> bool:
        """A process of this launch says hello. False if it is one too many: it has to leave, and does not count."""

    def lost(self, worker: str, *, silent: bool) -> None:
        """A process that counted is lost, and another one is wanted at once. `silent` if it only gives no sign of
        life: then it is to be ended, as it may hold what the other one needs. Returns at once, as `appeared` does.
        """

    def release(self) -> None:
        """Start none again: they have been told to end. Returns at once, as `start` does."""

    def stop(self, seconds: float) -> None:
        """After `release`: wait so long for them to end by themselves, and then end those that have not."""
