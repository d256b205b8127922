"""The settings that are fixed while a driver runs a job: the program, how it is spread, and the options of everything.

Invariant: it is an immutable value; whatever changes is said in messages and events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from recovery.driver.settings.options import Options
from recovery.driver.tree.address import Made
from recovery.driver.tree.identity import Birth
from recovery.schemes.passive import usual_scheme
from recovery.schemes.scheme import Scheme
from snapshot.host.net.tls import TlsSide
from snapshot.ids import JobId
from snapshot.program.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One job as one driver runs it."""

    job: JobId
    plan: Plan
    pickled_plan: bytes
    parallelism: int
    store: str
    """The URI of the job's tree, as the partitions open it."""
    local: str
    """The folder for files of this job on each host; empty for the one in the folder of the processes' user."""
    scheme: Scheme = field(default_factory=usual_scheme)
    options: Options = field(default_factory=Options)
    newborn: Birth | None = None
    """The job is to be born so, when all has been checked; None if there is one."""

    @property
    def processes(self) -> int:
        """Return how many processes the job is to have."""
        return self.scheme.processes(self.parallelism)


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """The place where the driver runs, and the files that it has made there."""

    folder: Path | None = None
    """The folder for the file by which other processes of the host reach the driver; see `address`."""
    made: Made = field(default_factory=Made)
    """The files and folders that this start makes on its host, which are removed if the start is refused."""
    tls: TlsSide | None = None
    """The settings with which all connections are encrypted."""
