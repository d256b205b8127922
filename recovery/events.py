"""The events of a run, as people and programs see them: one immutable value for each.

Invariant: events are in the order in which the driver learnt of what they tell; times of day are for people,
and spans of time are measured with a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snapshot.host.protocol.messages import PartitionCost
from snapshot.ids import Member
from statebackend.ids import Epoch, Generation, Incarnation, Partition, Uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `at` is in seconds since 1970."""

    at: float


# --- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribedStage:
    """A stage of the program, as `explain()` says it."""

    uid: str
    title: str
    lines: tuple[str, ...]
    """The rest of what `explain()` says of it."""
    inputs: tuple[tuple[str, str], ...]
    """The stages whose rows it takes, and how they are divided."""


@dataclass(frozen=True, slots=True)
class DescribedOption:
    """An option of a run, its value as text, and whether that differs from the default."""

    name: str
    value: str
    given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Described(Event):
    """The program and the options of this run, before anything else of it is told; the values of secrets are not."""

    job: str
    scheme: str
    parallelism: int
    stages: tuple[DescribedStage, ...]
    options: tuple[DescribedOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Event):
    """This driver has the job now; every older one is fenced. `restores` is the epoch it goes on from."""

    job: str
    generation: Generation
    restores: Epoch | None
    skipped: tuple[str, ...] = ()
    """Complete epochs that could not be used, and why."""
    repeats: int = 0
    """The number of epochs whose output is made once more, as was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """All input has been processed, and all output is committed.

    `nothing_since` is the epoch from which the job went on, if everything had been read by then; `looked` if the run
    has looked for what was new (option `available_now`).
    """

    nothing_since: Epoch | None = None
    looked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The job was stopped by its user; `savepoint` is the epoch that was pinned for it.

    `cancelled` if it was ended at once: started again, it goes on from its last complete epoch.
    """

    savepoint: Epoch | None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp(Event):
    """The job is over without its user's wish; started again, it goes on from its last complete epoch."""

    reason: str
    traceback: str = ""


# --- workers and attempts --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A process is there and free."""

    worker: str
    slot: int
    pid: int
    address: str
    executor: str = ""
    """The Spark executor in which it runs, as host and process id; empty if there is none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """A process is gone; `partition` is the role that it had."""

    worker: str
    partition: Partition | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event):
    """The death of a partition's process, found out after it was lost; not reported of one that hangs.

    `uid` and `at_work` are known if several have died, so that the last one was asked to say what it calls.
    """

    worker: str
    partition: Partition
    how: str
    uid: Uid | None
    at_work: str
    stack: str
    """The stack of Python, if the process crashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRefused(Event):
    """A caller was turned away at a port, the driver's own if there is no worker, and why.

    At most twenty of a port are told one by one in a second; the others are one event without a peer.
    """

    worker: str | None
    peer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed(Event):
    """All partitions were given to workers, which restore them from `epoch`."""

    incarnation: Incarnation
    epoch: Epoch | None
    workers: tuple[str, ...]
    members: tuple[Member, ...]
    """The role of each of them, in the same order."""
    primaries: tuple[Member, ...] = ()
    """Those that stand for their partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestored(Event):
    """A partition has its state; those that need none, or have theirs, give rows before the last one has."""

    incarnation: Incarnation
    partition: Partition
    in_place: bool
    """It has keyed state, and all of that was open in its process already and was rewound."""
    downloaded_ms: float
    """From the deployment until all files were there, in the process's own time; nothing if it was in place."""
    opened_ms: float
    """From then until the state could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Event):
    """All partitions are restored, and epochs are triggered again."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(Event):
    """An attempt is over, and what is done about it."""

    incarnation: Incarnation
    partition: Partition | None
    uid: Uid | None
    cause: str
    reason: str
    traceback: str
    then: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """A failure is made up for. The marks are milliseconds since it happened to be noticed (see `Marks`)."""

    incarnation: Incarnation
    epoch: Epoch | None
    epoch_age_ms: float | None
    """The age of that epoch when the failure was detected: work since then is done again."""
    marks: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The seven phases of a recovery, each in milliseconds after it was detected; None if it did not come to it.

    Up to `opened` each comes after the one before it. The last two are not in this order always: a partition does not
    wait for the others, so that `first_output`, the first one's, may come before `opened`, the last one's; and where
    output comes late, as from windows, the sources may have caught up before it.
    """

    detected: float = 0.0
    decided: float | None = None
    """That all roll back, and to which epoch."""
    restarted: float | None = None
    """As many processes as are needed are there and have their roles."""
    downloaded: float | None = None
    """The last partition has all its files."""
    opened: float | None = None
    """The last partition can read its state, and the driver knows."""
    first_output: float | None = None
    """A sink of any partition has been given rows again: also those of partitions that were open before the last."""
    caught_up: float | None = None
    """No partition is further behind its sources' schedule than before; never before `opened`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Event):
    """A partition runs on another executor, as the one that it left has others: that is no failure, and was planned."""

    partition: Partition
    worker: str
    executor: str
    left: str
    """The executor before, as host and process id."""
    epoch: Epoch | None
    """From which all went on."""
    took_ms: float
    """From the moment in which the attempt was ended until all partitions had their state again."""


# --- epochs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTriggered(Event):
    """The marker went out."""

    epoch: Epoch
    mode: str
    savepoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSkipped(Event):
    """An epoch was due and was not triggered."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCompleted(Event):
    """The epoch is in the journal."""

    epoch: Epoch
    savepoint: bool
    since_trigger_ms: float
    alignment_ms: float
    """The longest of all partitions, as the next two."""
    sync_ms: float
    async_ms: float
    state_bytes: int
    """The bytes that were written for it, of all partitions together, as the next figure."""
    channel_bytes: int
    partitions: tuple[PartitionCost, ...] = ()
    states: Mapping[Uid, Mapping[Partition, int]] = field(default_factory=dict)
    """The bytes of all files that it names, of each operator's state in each partition."""
    output: bool = True
    """True if its sinks have output of its own to commit; an `EpochCommitted` follows then, at it or a later epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAbandoned(Event):
    """The epoch will never be; while the attempt runs on, nothing of it is lost."""

    epoch: Epoch
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted(Event):
    """Everything up to this epoch is committed by all sinks."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsRemoved(Event):
    """These epochs were removed, as none is needed any more; `files` were deleted."""

    epochs: tuple[Epoch, ...]
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEpochs(Event):
    """No epoch has been completed for so long (`report_stall_after`), so nothing is committed either.

    `abandoned` epochs were tried meanwhile, the last of which was given up because of `reason`. The job ends in
    `gives_up_in` seconds (`give_up_after`), unless an epoch is completed before; None: it does not end for this.
    """

    seconds: float
    abandoned: int
    reason: str
    gives_up_in: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansDeleted(Event):
    """Files were deleted that processes had uploaded in vain: killed or rolled back ones, or for epochs given up.

    `unfinished` are files, beside these, whose writers died before they had a name.
    """

    files: int
    bytes: int
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(Event):
    """Something in a partition has made no progress for so long (`report_stall_after`); nothing is done about it.

    It is an operator that has something to do, or that an epoch waits for; `stack` is where a call is that does not
    return.
    """

    incarnation: Incarnation
    partition: Partition
    uid: Uid | None
    epoch: Epoch | None
    seconds: float
    waits_for: str
    stack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRows(Event):
    """A source has left out lines or records that do not fit its schema, as its `on_bad` says: `rows` since the last
    event of the partition, `in_attempt` in this attempt; `last` says which the last one is, and what is wrong with it.
    """

    partition: Partition
    uid: Uid
    rows: int
    in_attempt: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble(Event):
    """Something did not work that does not stop the job: a clean-up, a look for new splits, a recovery of a sink."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjected(Event):
    """A fault was asked for, and the process that it is about was told so."""

    order: str
    worker: str | None
    """The process; None if it is the driver."""
    partition: Partition | None
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost(Event):
    """A member of a partition is gone, and the `left` others go on as if nothing had happened.

    A member that is on its way to be one of them is not counted: it could not go on alone.
    """

    member: Member
    reason: str
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryMoved(Event):
    """This member decides for its partition from now on: what a round of its sources has, and what is written."""

    member: Member
    view: int
    """The number of the view of the partition's members that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining(Event):
    """A process is to be a member of a partition that lacks one; the others go on meanwhile."""

    member: Member
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJoined(Event):
    """A process did not come to be a member after all; nothing is lost, and another try follows."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class JoinMarks:
    """The times of a join, in milliseconds since the process for it was chosen."""

    connected: float
    """It had all connections with the others."""
    complete: float
    """The epoch was complete from which it goes on."""
    joined: float
    """It had its state, its peers waited for its word in all that they decided, and all others had come to the marker
    of the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundancyRestored(Event):
    """A process is a member of a partition that lacked one: the loss of any other member of it is masked again."""

    member: Member
    worker: str
    left: int
    """The number of members that the partition has now."""
    lacked_ms: float
    """For how long the partition had lacked one when a process was chosen."""
    marks: JoinMarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapsed(Event):
    """No member of a partition is left that could go on: every partition rolls back to the last complete epoch."""

    partition: Partition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLost(Event):
    """The process of a partition is gone; the partition restarts alone, and all others go on."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplaced(Event):
    """A partition that restarted alone has its state again, as this member."""

    member: Member
    worker: str
    epoch: Epoch | None
    """From which it goes on; None from the beginning."""
    took_ms: float
    """From the loss of its process until then."""


AnyEvent = (
    Described
    | Claimed
    | Finished
    | Stopped
    | GaveUp
    | WorkerJoined
    | WorkerLost
    | WorkerDied
    | PeerRefused
    | Deployed
    | PartitionRestored
    | Running
    | AttemptFailed
    | Recovered
    | Moved
    | ReplicaLost
    | PrimaryMoved
    | Joining
    | NotJoined
    | RedundancyRestored
    | Collapsed
    | PartitionLost
    | PartitionReplaced
    | EpochTriggered
    | EpochSkipped
    | EpochCompleted
    | EpochAbandoned
    | EpochCommitted
    | EpochsRemoved
    | NoEpochs
    | OrphansDeleted
    | Stalled
    | BadRows
    | Trouble
    | FaultInjected
)
