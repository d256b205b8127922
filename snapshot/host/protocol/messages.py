"""The messages between the driver and the processes that run partitions, once both have proved the run's secret.

Invariant: a message is an immutable value that carries the incarnation that it is about, so that what an older
one says is refused. On one connection messages arrive in the order in which they were sent, so a split that is assigned
before a trigger is read from before its cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from snapshot.cut.frames import Marker, Watermark
from snapshot.cut.pauses import Then
from snapshot.epochs.transaction_events import Committable
from snapshot.host.protocol.interpreter import Interpreter, this_interpreter
from snapshot.host.protocol.options import Following, HostOptions
from snapshot.host.protocol.stage_now import StageNow
from snapshot.host.protocol.wiring import Wiring
from snapshot.ids import JobId, Member, Replica, TransactionId
from snapshot.replication.agreement import View
from snapshot.replication.positions import Position
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import ChannelState, CommitPayload, SubtaskSnapshot
from statebackend.files import FileSet
from statebackend.ids import Epoch, Incarnation, Partition, Uid
from statebackend.stores.store_calls import StoreCalls


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AtWork:
    """A call of a stage that was made, and from which the process has not come back."""

    uid: Uid
    what: str
    """For which row, timers or split."""
    nth: int
    """The number of this call among the calls of the attempt that look the same; 0 if that is not known, or if it names
    no row, as the opening of a function does. Rows of one content make the same state in the order in which they come,
    so the call with the same number is the same call in two attempts."""

    def __str__(self) -> str:
        return f"{self.uid} was at {self.what}"


# --- from a process to the driver ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A process is there and free for any role. `worker` is a name that no other process ever has."""

    worker: str
    address: Address
    pid: int
    slot: int
    """The number of its slot, that is, of its launched task; any slot can get any role."""
    launch: int = 0
    """The number of the launch of that slot that brought the process."""
    executor: str = ""
    """The executor whose processes are lost together; empty for a process that shares its fate with no other."""
    interpreter: Interpreter = field(default_factory=this_interpreter)

    @property
    def dies_with(self) -> str:
        """Return the executor; for a process without one, a name that no other process has."""
        return self.executor or self.worker


@dataclass(frozen=True, slots=True)
class Restored:
    """A partition has its state, its channels stand, and it waits for nothing."""

    incarnation: Incarnation
    partition: Partition
    downloaded_ms: float
    """From the begin of the opening until all files were there; that may have waited for an opening before it."""
    opened_ms: float
    """From then until the state could be read."""
    in_place: bool
    """It has keyed state, and all of that was open in the process already: nothing was read from files."""


@dataclass(frozen=True, slots=True)
class FirstOutput:
    """A partition has given rows to a sink for the first time in this attempt."""

    incarnation: Incarnation
    partition: Partition


@dataclass(frozen=True, slots=True)
class WantsSplit:
    """A source's reader has nothing more to read, and would take another split.

    `heard` is how many `AssignSplits` of the source have come, by which the driver sees whether one is under way.
    """

    incarnation: Incarnation
    partition: Partition
    uid: Uid
    heard: int


@dataclass(frozen=True, slots=True)
class AllEnded:
    """Every source of the partition has ended, and so has all that came to it: it has nothing more to do."""

    incarnation: Incarnation
    partition: Partition


@dataclass(frozen=True, slots=True)
class PartitionCost:
    """The cost of an epoch in one partition: milliseconds from its trigger's arrival there, and stored bytes."""

    partition: Partition
    since_trigger_ms: float
    """From the trigger until the driver heard that all is durable; 0 in what the partition itself says."""
    alignment_ms: float
    """The longest of its stages."""
    sync_ms: float
    """In which its event loop did nothing else, all stages together."""
    async_ms: float
    """From the last cut until all was durable."""
    state_bytes: int
    """The size of the files that were written for this epoch."""
    channel_bytes: int
    """The size of the in-flight data."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A partition's part of an epoch, all of it durable. `overtaken` is what the marker overtook in its own queues.

    `broadcast` is the broadcast state of its operators, the same in all partitions; the first alone says it. The parts
    of later epochs name, beside files of this one, only state and in-flight data with numbers from `named_from` on.
    """

    incarnation: Incarnation
    partition: Partition
    epoch: Epoch
    subtasks: Mapping[Uid, SubtaskSnapshot]
    overtaken: tuple[ChannelState, ...]
    broadcast: Mapping[Uid, bytes]
    cost: PartitionCost
    named_from: int = 0

    @property
    def has_committables(self) -> bool:
        """True if anything is to be committed."""
        return any(subtask.committables for subtask in self.subtasks.values())


@dataclass(frozen=True, slots=True)
class Declining:
    """A partition cannot contribute to an epoch."""

    incarnation: Incarnation
    partition: Partition
    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class HasCommitted:
    """Every sink of the partition has committed all up to this epoch; said by partitions without a sink as well."""

    incarnation: Incarnation
    partition: Partition
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CannotCommit:
    """A target refuses a committable for good."""

    incarnation: Incarnation
    partition: Partition
    epoch: Epoch
    uid: Uid
    reason: str


@dataclass(frozen=True, slots=True)
class CommitPutOff:
    """A target has put a commit off again and again, or not answered; it is still tried."""

    incarnation: Incarnation
    partition: Partition
    uid: Uid
    reason: str


class FailureKind(Enum):
    """The cause of a partition's failure, which tells whether trying again can help."""

    PROGRAM = "a function of the program raised an exception"
    CHANNEL = "a channel to another partition broke"
    RESOURCE = "the store, the disk, a source or a sink failed"
    FORGED = "messages between partitions are changed on the network"
    UNUSABLE = "the program does not fit the state, or a file of the epoch is damaged: the same will happen again"


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt is over for this partition. `traceback` is the user's own, as Python prints it, if there is one."""

    incarnation: Incarnation
    partition: Partition
    kind: FailureKind
    reason: str
    uid: Uid | None = None
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows for the driver's program, as an Arrow stream. Those of a transaction count once.

    Other rows have the position of the first of them, if each member of the partition delivers them: of these the first
    copy counts.
    """

    incarnation: Incarnation
    partition: Partition
    uid: Uid
    transaction: TransactionId | None
    rows: bytes
    at: Position | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A caller was turned away at the process's port, and why; for the log."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class CannotHear:
    """A message of the driver cannot be used; `reason` says why. The process ends, and this is its last message."""

    reason: str


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The work of one stage in this attempt, and its present state."""

    rows_in: int
    rows_out: int
    watermark: Watermark | None
    queued_bytes: int
    held_back: int
    """Channels that an alignment holds back at the moment."""
    blocked_ms: float
    """For how long it could not work because an output was full."""
    late_rows: int = 0
    """Rows that came when all their windows were gone: dropped, or given to the side output for them."""
    waits_for: str = ""
    """The condition that its source waits for, if something is wrong."""
    bad_rows: int = 0
    """Lines or records that do not fit the schema, and that its source has left out, as its `on_bad` says."""
    bad_row: str = ""
    """The last of them, and its fault."""
    window: int = 0
    """The number of rows that each of its senders may have under way to it; 0 while its pace is not known."""
    busy_ms: float = 0.0
    """For how long it has worked. One thread works for all stages of a partition, one after the other."""
    bytes_out: Mapping[Uid, int] = field(default_factory=dict)
    """The bytes of rows that went out to each stage after it: as they were encoded, or, within the process, as they are
    in memory."""
    resent_rows: int = 0
    """Rows that it sent again, as they were not acknowledged: their receivers may have had them twice."""


@dataclass(frozen=True, slots=True)
class SinkFigures:
    """The commits of one sink in this attempt; nothing of a sink that only holds rows."""

    pending: int = 0
    """Transactions of complete epochs that are not committed yet."""
    commits: int = 0
    commit_ms: float = 0.0
    """From the first try of each until its target had it, all together."""
    put_off: int = 0
    """Tries that are to be made again."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A partition's figures, now and then. `lag_ms` is how far its paced sources are behind their schedule."""

    incarnation: Incarnation
    partition: Partition
    stages: Mapping[Uid, StageFigures]
    memory_bytes: int
    lag_ms: float
    longest_gap_ms: float
    """The longest that the event loop took for one turn since the last figures."""
    running_ms: float = 0.0
    """For how long this attempt has been there."""
    sinks: Mapping[Uid, SinkFigures] = field(default_factory=dict)
    store: Mapping[str, StoreCalls] = field(default_factory=dict)
    """The calls of its process to the store in this attempt, by their kind."""


@dataclass(frozen=True, slots=True)
class Injected:
    """The result of an `Inject`: `problem` is empty if the process does it now, or for a kill is about to."""

    number: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Followed:
    """A process that stands by has done what it could with a `Follow` of epoch `heard`; it would take the next one."""

    heard: Epoch
    has: Epoch | None
    """The epoch that the process has ready now: `heard` if all went well, None if it has none."""
    problem: str = ""
    """The reason why it could not make `heard` ready; empty if the epoch was removed in the meantime."""
    took_ms: float = 0.0
    linked_bytes: int = 0
    """The bytes of files that were on the machine already, since the process began to stand by."""
    downloaded_bytes: int = 0
    """The bytes of files that were downloaded, since the process began to stand by."""
    cpu_ms: float = 0.0
    """The CPU time of the whole process, since it began to stand by."""
    memory_bytes: int = 0
    """The memory of the whole process, now."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Something in a partition has made no progress for so long; nothing is done about it.

    It is of an operator, or of an `epoch` that is not acknowledged. `stack` is where Python is, if a call does not
    return.
    """

    incarnation: Incarnation
    partition: Partition
    uid: Uid | None
    seconds: float
    waits_for: str
    epoch: Epoch | None = None
    stack: str = ""


@dataclass(frozen=True, slots=True)
class StateRead:
    """The present content of states for a key, each an Arrow stream by the state's name; or a `problem`."""

    number: int
    tables: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Suspects:
    """The member `by` of a partition cannot reach the member `of` any more, in the view of this number."""

    incarnation: Incarnation
    partition: Partition
    view: int
    by: Replica
    of: Replica
    reason: str


@dataclass(frozen=True, slots=True)
class Expecting:
    """An answer to `Expect`: the member may connect now."""

    incarnation: Incarnation
    member: Member


@dataclass(frozen=True, slots=True)
class Reached:
    """All connections with a member that is to join stand, or cannot: then `problem` says why.

    Each member says it, and the joining one of itself when it has all connections with the others.
    """

    incarnation: Incarnation
    member: Member
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StandsAt:
    """All stages of a partition have cut for an epoch that admits others, and this is where they were.

    `place` is that behind the epoch's marker in what the members agree on.
    """

    incarnation: Incarnation
    partition: Partition
    epoch: Epoch
    place: int
    stages: Mapping[Uid, StageNow]


@dataclass(frozen=True, slots=True)
class InSync:
    """In the view of this number, the primary of a partition waits for this member's word in all that is decided.

    The member has everything that was decided before.
    """

    incarnation: Incarnation
    partition: Partition
    replica: Replica
    view: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """All stages here have come to the marker behind which a member joins: they send to it, and take what it sends.

    Until then the member's predecessor is missed here, if it is gone.
    """

    incarnation: Incarnation
    member: Member


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A channel with this member of another partition has broken; the partition goes on without it."""

    incarnation: Incarnation
    partition: Partition
    member: Member
    reason: str


FromWorker = (
    Hello
    | Expecting
    | Reached
    | StandsAt
    | InSync
    | Admitted
    | Stalled
    | Suspects
    | Unreachable
    | Followed
    | Restored
    | FirstOutput
    | WantsSplit
    | AllEnded
    | Acknowledgement
    | Declining
    | HasCommitted
    | CannotCommit
    | CommitPutOff
    | Failed
    | Delivery
    | Refusal
    | CannotHear
    | Figures
    | Injected
    | StateRead
)


# --- from the driver to a process ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Role:
    """The start of one operator of a partition; everything is empty at the beginning of a job.

    A split that was read to its end stays among the `positions`, with null. `ends` is how far splits are read in this
    run that would not end.
    """

    state: FileSet | None = None
    positions: Mapping[str, Json] = field(default_factory=dict)
    watermark: Watermark | None = None
    channels: tuple[ChannelState, ...] = ()
    committables: tuple[Committable[CommitPayload], ...] = ()
    broadcast: bytes | None = None
    ends: Mapping[str, JsonLike] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deploy:
    """Take the role of this member from `epoch` on, or from the beginning if that is None; drop whatever you do now.

    `plan` is a pickled `Plan`, `peers` has the address of each member, and `roles` one for each operator of the
    plan; a keyed operator's has a file set of the partition's key groups. `store` is the URI of the job's tree,
    `local` the folder for files of this job on the process's host; empty for the one in the folder of its user.
    """

    incarnation: Incarnation
    sent_at: int
    """The driver's clock, in milliseconds since 1970."""
    job: JobId
    epoch: Epoch | None
    member: Member
    parallelism: int
    """The number of partitions."""
    peers: Mapping[Member, Address]
    plan: bytes
    roles: Mapping[Uid, Role]
    wiring: Wiring
    options: HostOptions
    store: str
    local: str
    time_goes_on: bool = False
    """The end of input is that of this run alone: event time does not come to its end with it."""
    careful: bool = False
    """Processes of this partition died: say what is called before it is called (see `last_words`)."""
    windows: Mapping[Uid, int] = field(default_factory=dict)
    """`StageFigures.window` of this partition's stages in earlier attempts, for the time until their state is open."""
    view: View | None = None
    """The members of the partition at the start of the attempt; None if there is no other one."""
    joins: bool = False
    """The attempt goes on: only connect to the others and keep what they send; `Join` follows, with roles."""
    outgoing: tuple[ChannelState, ...] = ()
    """The rows that the partition had sent when the epoch was cut, and that it sends again: none acknowledged them."""

    @property
    def partition(self) -> Partition:
        """Return the partition of the role."""
        return self.member.partition

    @property
    def primary(self) -> bool:
        """True if this member stands for its partition when the attempt starts."""
        return self.view is None or self.view.primary == self.member.replica


@dataclass(frozen=True, slots=True)
class Join:
    """Go on from this epoch, behind whose marker the others have begun to send, as a member that is no primary.

    Where the stages of the partition were, and the place in what its members agree on, is as they said it then.
    `given_up` are later epochs that will not be complete.
    """

    incarnation: Incarnation
    epoch: Epoch
    roles: Mapping[Uid, Role]
    view: View
    place: int
    stages: Mapping[Uid, StageNow]
    given_up: tuple[Epoch, ...] = ()


@dataclass(frozen=True, slots=True)
class Expect:
    """Connect with a member that is to join; behind the next marker that admits, of an epoch `after` this one, it gets
    its copies of all that you send. Answer `Expecting` at once, and `Reached` when all connections stand.
    """

    incarnation: Incarnation
    member: Member
    address: Address
    after: Epoch


@dataclass(frozen=True, slots=True)
class Forget:
    """Close all connections with this member: it does not join, or is gone."""

    incarnation: Incarnation
    member: Member


@dataclass(frozen=True, slots=True)
class TriggerEpoch:
    """Cut: sources note their positions and send the marker; `then` says how they go on."""

    incarnation: Incarnation
    sent_at: int
    """The driver's clock, in milliseconds since 1970."""
    marker: Marker
    then: Then = Then.READ_ON


@dataclass(frozen=True, slots=True)
class EpochIsOver:
    """The epoch is complete, or was given up: sources that stand still for it go on as `Then` says.

    Where the partition has several members, `files` has for each keyed operator what the complete epoch says of it, as
    the primary has acknowledged it; the others adopt it.
    """

    incarnation: Incarnation
    epoch: Epoch
    complete: bool
    files: Mapping[Uid, FileSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Stand for the partition: acknowledge its epochs, upload its state and write to its sinks, as its primary is gone.

    `epoch` is the last complete one; all members have been told of it, and no other epoch that was triggered before can
    be complete. `committables` are the transactions that it leaves to be committed in the partition, by sink; none if
    the attempt began from it, as they are then in the role.
    """

    incarnation: Incarnation
    epoch: Epoch | None
    committables: Mapping[Uid, tuple[Committable[CommitPayload], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssignSplits:
    """Read these splits from their beginning. If `last`, no other will ever be assigned in this attempt."""

    incarnation: Incarnation
    uid: Uid
    splits: tuple[str, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class ViewIs:
    """The members of your partition are these from now on; said to each of them."""

    incarnation: Incarnation
    view: View


@dataclass(frozen=True, slots=True)
class ReplacedBy:
    """Another process has the role of a partition from now on: send to it, and expect it, instead of the former one."""

    incarnation: Incarnation
    member: Member
    address: Address
    instead_of: Member


@dataclass(frozen=True, slots=True)
class Drain:
    """Let all sources end where they are, as if there were no more to read."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class StandDown:
    """The attempt is over; give up its channels and wait for the next role."""

    incarnation: Incarnation
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The job is over, or has no use for this process: it is one too many, or was taken for lost. End its task.

    `forget` names operators whose state will not be read any more; what the host has of it is removed.
    """

    reason: str
    forget: tuple[Uid, ...] = ()


@dataclass(frozen=True, slots=True)
class BeatEvery:
    """Say so often that you live, in milliseconds; the first that is said."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class UseStorage:
    """Reach storage with these options, by protocol; said before any role, if there are any. They may be secret."""

    options: Mapping[str, Mapping[str, object]] = field(repr=False)


# --- to a process that stands by -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StandBy:
    """An order to stand by, ready for any role of this job. `Follow` says what is to be ready of each epoch.

    It counts until the next deployment. `plan`, `store` and `local` are as in `Deploy`. With `only`, nothing is to be
    ready but what this partition has. If it is `awaited`, the job waits for it: it need not stand back.
    """

    job: JobId
    how: Following
    plan: bytes
    parallelism: int
    options: HostOptions
    store: str
    local: str
    only: Partition | None = None
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """This epoch is complete. `states` has the file sets of all partitions of each keyed operator; answer `Followed`.

    Its files may be removed once a later epoch is complete; then there will be a `Follow` of that one.
    """

    epoch: Epoch
    states: Mapping[Uid, tuple[FileSet, ...]]


# --- faults that a person asks for -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Links:
    """Some of a process's connections: those with the partitions that listen at `peers`, and with the driver."""

    peers: frozenset[Address] | None = frozenset()
    """None: with every other partition."""
    driver: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """Die at once, by SIGKILL; with `executor` the whole Spark executor does."""

    executor: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Hang for so many milliseconds, by SIGSTOP; with `executor` the Spark executor hangs, and this process with it."""

    milliseconds: int
    executor: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """For so many milliseconds these connections carry nothing, and new ones carry nothing either; none is closed."""

    links: Links
    milliseconds: int


@dataclass(frozen=True, slots=True)
class BreakInside:
    """These connections are closed inside the next message or frame."""

    links: Links


@dataclass(frozen=True, slots=True)
class Delay:
    """For so many milliseconds, what these connections carry comes later by so many milliseconds, in order."""

    links: Links
    milliseconds: int
    by: int


Fault = Kill | Stop | Cut | BreakInside | Delay


@dataclass(frozen=True, slots=True)
class Inject:
    """Let this happen to yourself, and answer `Injected` with the same number first."""

    number: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class ReadState:
    """Say what there is now of a key, in canonical bytes, in one state of an operator or in all; answer `StateRead`."""

    incarnation: Incarnation
    number: int
    uid: Uid
    key: bytes | None
    state: str | None


ToWorker = (
    Deploy
    | Join
    | Expect
    | Forget
    | TriggerEpoch
    | EpochIsOver
    | TakeOver
    | AssignSplits
    | ViewIs
    | ReplacedBy
    | Drain
    | StandDown
    | Leave
    | BeatEvery
    | UseStorage
    | StandBy
    | Follow
    | Inject
    | ReadState
)
