"""The settings that are fixed while a driver runs a job: the program, how it is spread, and the options of everything.

Invariant: it is an immutable value; whatever changes is said in messages and events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recovery.driver.tree.address import Made
from recovery.driver.tree.identity import Birth
from recovery.schemes.passive import Passive
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.host.net.tls import TlsSide
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import JobId
from snapshot.program.plan import Plan
from statebackend.ids import Uid


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
    scheme: Passive = field(default_factory=Passive)
    coordinator: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    host: HostOptions = field(default_factory=HostOptions)
    newborn: Birth | None = None
    """The job is to be born so, when all has been checked; None if there is one."""
    lost_after: int = 2_000
    """Milliseconds without a sign of life after which a process counts as lost."""
    allow_non_restored_state: bool = False
    """Drop what the epoch has of operators that the program no longer has."""
    ignore_state: frozenset[Uid] = frozenset()
    """Operators that begin anew, whatever the epoch has of them."""
    available_now: bool = False
    """Read what there is now, and then end."""
    accept_duplicates: bool = False
    """Go back behind an epoch that cannot be used, though its output may be committed."""
    store_patience: int = 300_000
    """For so many milliseconds the driver asks a store again that does not do what it is asked."""
    compact_after: int = 256
    """The journal is compacted when it has so many more entries."""
    program_version: str = ""
    """What the program's author calls this version of it."""
    inline_broadcast: int = 64 << 10
    """Broadcast state up to this size is put into the manifest itself."""


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """The options of the driver itself. Times are in seconds."""

    ports: Sequence[int] = (0,)
    start_timeout: float = 120.0
    """So long the job waits for enough processes at its start; if they are too few later, it says so this often."""
    stop_timeout: float = 10.0
    """So long its processes have to end by themselves."""
    give_up_after: float | None = 600.0
    """A job that completes no epoch for so long, though it tries, is over; None: it goes on trying."""
    folder: Path | None = None
    """Where to leave how the driver is reached from other processes of its host; see `address`."""
    made: Made = field(default_factory=Made)
    """What this start makes on its host, which is taken back if the start is refused."""
    tls: TlsSide | None = None
    """What all connections are encrypted with."""
    storage_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """What processes are told when they appear; see `UseStorage`."""
