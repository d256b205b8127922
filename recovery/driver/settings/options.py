"""All options of a run, by name; what is left out has the value that is given with it.

Invariant: an unknown option, or one with a value that cannot be meant, is refused before anything starts.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from pickle import dumps
from typing import Any, Final, TypedDict, cast

from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions, Rhythm
from snapshot.host.net.tls import Tls as Tls
from snapshot.host.net.tls import UnusableTls as UnusableTls
from snapshot.host.protocol.options import HostOptions
from statebackend.durations import Duration, milliseconds
from statebackend.errors import OptionError
from statebackend.ids import Uid


class UnknownOption(OptionError, TypeError):
    """An option that does not exist; the message names the one that was probably meant."""


class Advanced(TypedDict, total=False):
    """Options of `recovery.run` that few need: `advanced={"lost_after": "5s"}`. Units are as for the others."""

    timeout: Duration
    """How long an epoch may take until all partitions have acknowledged it; then it is given up (60s)."""
    min_pause: Duration
    """The least time from the end of an epoch to the next trigger (0)."""
    max_in_flight: int
    """How many epochs may be in flight; further triggers are skipped (2; 1 under `Synchronous` and
    `MicroBatches`, which have one after the other)."""
    tolerated_failures: int | None
    """How many epochs in a row may fail until the attempt fails; None: any number (None)."""
    heartbeat: Duration
    """How often a process says that it lives (250ms)."""
    lost_after: Duration
    """How long a process may show no sign of life until it is lost; at least three times `heartbeat` (2s)."""
    start_timeout: Duration
    """How long the job waits at its start for enough processes (2m)."""
    stop_timeout: Duration
    """How long processes may take to exit after the job ends (10s)."""
    connect_timeout: Duration
    """How long a partition tries to reach another (10s)."""
    channel_timeout: Duration
    """How long a connection may go without an answer of its peer's machine, in whole seconds; then it is broken. A
    slow partition breaks none, as its machine answers in its place (3s)."""
    store_patience: Duration
    """How long the driver asks a failing store again before it gives up the job (5m)."""
    store_timeout: Duration
    """How long a call of the store may take until it has failed; an upload gets 1 s more for each MiB (1m)."""
    batch_rows: int
    """The most rows that are read from a source, or sent on a channel, at once (16384)."""
    linger: Duration
    """How long rows wait for others before they are sent (2ms)."""
    channel_buffer: int
    """How much data may wait to be sent on one channel until its stage stops working; about as much is worked on at
    once (1 MiB)."""
    input_buffer: int
    """How much data may wait in one stage until its channels are no longer read (4 MiB)."""
    socket_buffer: int
    """How much the kernel may hold of a channel at each end (256 KiB)."""
    max_frame: int
    """The longest frame on a channel (64 MiB)."""
    report_stall_after: Duration
    """How long an operator or an epoch may make no progress, though it could, until an event says what it waits for;
    likewise a job that completes no epoch (1m)."""
    status_interval: Duration
    """How often a partition tells the driver its figures (500ms)."""
    state_backend: str
    """"rocksdb" or "heap" ("rocksdb")."""
    trace: str | Path
    """The file that records what the coordinator was told and what it answered; see `snapshot.epochs.trace` (none)."""
    compact_after: int
    """How many new entries the journal takes until it is compacted (256)."""


class RunOptions(TypedDict, total=False):
    """Options of `recovery.run`. Times are durations such as "5s", "1 second" or a `timedelta`; a number without a unit
    is refused. Sizes are in bytes. The values of those that are left out stand at the end of each.
    """

    # --- epochs

    retain: int
    """How many complete epochs are kept (1)."""
    alignment_timeout: Duration | None
    """How long an epoch may align until it turns unaligned; None: for ever (None)."""
    give_up_after: Duration | None
    """How long a job may run without completing an epoch that was due; then it ends with the reason. None: for
    ever (10m). Attempts that fail are not counted here: `restarts` and `poisoned_after` limit those."""

    # --- the job

    max_parallelism: int
    """The number of key groups, fixed when the job is born (128)."""
    allow_non_restored_state: bool
    """Drop the state of operators that the program no longer has (False)."""
    ignore_state: Collection[str]
    """The uids of operators that begin anew at this start, whatever the epoch has of them, rows in flight included. Say
    it for one start only: the next one would drop what they have by then (())."""
    program_version: str
    """Your name for this version of the program; every epoch has it, for people ("")."""
    available_now: bool
    """Read what there is when the job starts, and then end with all of it committed, as a daily run does: files that
    are new since the last run, also where the source does not grow; of Kafka's partitions all up to where they end now.
    The next start reads what is new by then. Aggregates with per="end" give their results; windows that are open stay
    open, as more may come for them. Not for sources that cannot say where they end (False)."""
    take_over: bool
    """Start though a driver of the job lives on this host, which is ended by that. Say it for one start only, or two
    programs that are started again and again end each other for ever (False)."""
    accept_duplicates: bool
    """Go back behind epochs that are damaged, or start a copy that is older than its job, though output of later epochs
    may be committed and is made once more then. Say it for one start only (False)."""
    accept_places: Collection[str]
    """The places to which the job may commit output that was prepared for them, though its sinks write elsewhere by
    now, as `recovery sinks list` names them. The writer of the tree may have named any place there, so only those of
    the program's own sinks are written to unless they are given here (())."""

    # --- network and store

    driver_host: str
    """The address at which processes reach the driver (127.0.0.1, or `spark.driver.host`)."""
    ports: Sequence[int]
    """The ports at which the driver may listen; it takes the first free one ((0,), any)."""
    tls: Tls | None
    """Encrypt all connections of the job, with these files, which every host must have (None: do not). Without it,
    only who knows the run's secret gets in and can steer the job, but others on the network can read what connections
    carry, passwords in the program included, and change rows."""
    storage_options: Mapping[str, Mapping[str, object]]
    """Options of fsspec's file systems by protocol, such as {"s3": {"key": ..., "secret": ...}}, for the job's tree and
    its sources ({}). Better give none: on every host what is usual there is found anyway, such as a role of the
    machine, AWS_* in the environment (`spark.executorEnv.AWS_*`), fsspec's own files and FSSPEC_*, and for HDFS the
    ticket of Kerberos. These here become fsspec's defaults in the job's processes, and in this one. They are told to
    each process over its connection with the driver, so use `tls` on a network that is not yours alone, and are
    written nowhere: not to the tree, nor to events or logs. They have to be given again at the next start."""

    # --- processes

    state_memory: int
    """The memory that one operator's keyed state may take in one partition (256 MiB)."""
    local: str | Path
    """The folder for a job's files on each host. It is made if it is absent, and refused if another user could change
    it; state is removed from it when the job has finished (the job's own in `epochcut-<user id>`, which is closed to
    all others, in the system's folder for temporary files)."""
    events: str | Path
    """The file to which events are appended as lines of JSON. When it has 32 MiB, it is renamed to end with `.1`, in
    place of the one before, and a new one is begun (`events.jsonl` in the folder above, on the driver)."""
    metrics: str
    """The address at which the job's metrics are served for Prometheus while it runs, such as "127.0.0.1:9249"; port 0
    takes any that is free, and `Run.metrics_url` says which ("", nowhere)."""
    page: str
    """The address of a page that shows the job to a browser while it runs, such as "127.0.0.1:4050"; `Run.page_url`
    says where it is. It shows, and changes nothing. It has the metrics as well ("", nowhere)."""
    web_token: str
    """The token that a scraper has to send (`Authorization: Bearer ...`), and a browser once, as `?token=...`. Without
    one both are served on the loopback only ("")."""
    traces: str
    """The collector to which the job's epochs and recoveries are sent as traces of OpenTelemetry, by OTLP over HTTP,
    such as "http://127.0.0.1:4318". OTEL_EXPORTER_OTLP_HEADERS and the other variables of OpenTelemetry hold. Needs the
    extra `traces` ("", nowhere)."""
    interrupt_timeout: Duration
    """Ctrl-C or SIGTERM stops a job after one more epoch; if that is not complete after so long, the job is cancelled,
    and nothing is lost: it goes on from its last complete epoch when it is started again. With `stop_timeout` it is
    less than the 30 s that Kubernetes leaves (15s)."""
    progress: bool
    """Show a line of progress on standard error (where that is a terminal)."""

    advanced: Advanced
    """Options that few need, as in advanced={"lost_after": "5s"}; they are listed after these ({})."""


def described(kind: type[object] = RunOptions) -> Mapping[str, str]:
    """Return what each option does, by its name, for readers who cannot see the texts below the fields."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except OSError:  # there are no sources, as in an archive of compiled modules
        return {}
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for left, text in pairwise(body.body):
        match left, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = " ".join(said.split())
            case _:
                pass
    return found


def in_a_list() -> str:
    """Return the list of all options, with what they do, as `help` shows it."""
    return f"{_listed(RunOptions)}\n\nAdvanced options, given as advanced={{...}}:\n\n{_listed(Advanced)}"


def _listed(kind: type[object]) -> str:
    return "\n".join(
        f"{name}\n" + textwrap.fill(said, 100, initial_indent="    ", subsequent_indent="    ")
        for name, said in described(kind).items()
    )


RunOptions.__doc__ = f"{inspect.cleandoc(RunOptions.__doc__ or '')}\n\n{in_a_list()}"

PARAMETERS: Final = ("checkpoints", "job", "every", "parallelism", "scheme", "mode", "launcher")
"""The options of `recovery.run` that it has by name."""

_BEATS: Final = 3
"""So many in a row have to fail to come before a process may be taken for lost."""
_KINDS: Final = {
    name: str(getattr(kind, "__forward_arg__", ""))
    for name, kind in (RunOptions.__annotations__ | Advanced.__annotations__).items()
}
_TIMES: Final = frozenset(name for name, kind in _KINDS.items() if "Duration" in kind)
_TIMES_OR_NONE: Final = frozenset(name for name in _TIMES if "None" in _KINDS[name])
_PATHS: Final = frozenset(("local", "events", "trace"))


def check_names(options: Mapping[str, object]) -> None:
    """Raise `UnknownOption`, with all names that do not exist, or that belong among the advanced ones."""
    known, advanced = RunOptions.__annotations__, Advanced.__annotations__
    complaints = [
        f"{name} is an advanced option; give it as advanced={{{name!r}: ...}}"
        if name in advanced
        else _unknown(name, [*known, *PARAMETERS])
        for name in options
        if name not in known
    ]
    given = options.get("advanced", {})
    if not isinstance(given, Mapping):
        raise UnknownOption(f"advanced is {given!r}; give a dict of options, such as advanced={{'lost_after': '5s'}}")
    complaints += [
        f"{name} is no advanced option; give it as {name}=..."
        if name in known
        else f"advanced: {_unknown(name, list(advanced))}"
        for name in given
        if name not in advanced
    ]
    if complaints:
        all_names = f"There are: {', '.join(sorted([*known, *PARAMETERS]))}\nAdvanced: {', '.join(sorted(advanced))}"
        raise UnknownOption("\n".join([*complaints, all_names]))


def in_their_places(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that were given as one list, with the advanced ones among `advanced`."""
    advanced = {name: value for name, value in options.items() if name in Advanced.__annotations__}
    others = {name: value for name, value in options.items() if name not in advanced}
    return others | ({"advanced": advanced} if advanced else {})


def _unknown(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of a run, in the units in which its parts count: milliseconds and bytes. `options_of` makes it, once.

    What each means stands in `RunOptions`.
    """

    coordinator: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    """Those of epochs."""
    host: HostOptions = field(default_factory=HostOptions)
    """Those that every partition is told."""
    max_parallelism: int | None = None
    allow_non_restored_state: bool = False
    program_version: str = ""
    ignore_state: Collection[Uid] = ()
    available_now: bool = False
    take_over: bool = False
    accept_duplicates: bool = False
    give_up_after: int | None = 600_000
    driver_host: str | None = None
    ports: Sequence[int] = (0,)
    lost_after: int = 2_000
    start_timeout: int = 120_000
    stop_timeout: int = 10_000
    interrupt_timeout: int = 15_000
    tls: Tls | None = None
    storage_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    store_patience: int = 300_000
    compact_after: int = 256
    local: Path | None = None
    events: Path | None = None
    trace: Path | None = None
    metrics: str = ""
    page: str = ""
    web_token: str = field(default="", repr=False)
    traces: str = ""
    progress: bool | None = None

    def __post_init__(self) -> None:
        least = _BEATS * self.host.heartbeat
        if self.lost_after < least:
            raise ContradictingOptions(
                f"lost_after is {self.lost_after} ms; with a heartbeat each {self.host.heartbeat} ms it must be at "
                f"least {least}, or processes that live are taken for lost"
            )
        _check_storage(self.storage_options)
        object.__setattr__(self, "ignore_state", frozenset(map(Uid, self.ignore_state)))


def options_of(
    every: Duration, mode: MarkerMode | str, given: RunOptions, rhythm: Rhythm = Rhythm.OVERLAPPING
) -> Options:
    """Convert the options of a run; refuse those that do not exist, and values that cannot be meant.

    The rhythm of epochs is that of the run's scheme.
    """
    check_names(given)
    flat: dict[str, object] = {**given, **given.get("advanced", {})}
    plain = {name: _plain(name, value) for name, value in flat.items() if name != "advanced"}

    def of(kind: type[CoordinatorOptions | HostOptions | Options]) -> dict[str, Any]:
        return {one.name: plain[one.name] for one in fields(kind) if one.name in plain}

    at_most = {} if rhythm is Rhythm.OVERLAPPING else {"max_in_flight": 1}
    coordinator = CoordinatorOptions(
        **{**at_most, **of(CoordinatorOptions)},
        interval=milliseconds(every, "every"),
        mode=MarkerMode(mode),
        rhythm=rhythm,
    )
    return Options(coordinator=coordinator, host=HostOptions(**of(HostOptions)), **of(Options))


def _plain(name: str, value: object) -> object:
    if name in _TIMES and not (value is None and name in _TIMES_OR_NONE):
        return milliseconds(cast("Duration", value), name)
    if name in _PATHS:  # an empty path is none: `Path("")` would be the folder in which the driver runs
        return Path(cast("str", value)) if value else None
    return value


def _check_storage(given: Mapping[str, object]) -> None:
    """Refuse options of file systems that processes cannot be told. No message has any of them in it."""
    for protocol, of_protocol in given.items():
        if not isinstance(of_protocol, Mapping):
            raise ContradictingOptions(f"storage_options go by protocol, as in {{'s3': {{{protocol!r}: ...}}}}")
    try:
        dumps(given)
    except Exception:
        reason = "storage_options cannot be sent to the job's processes: they must be plain values, such as texts"
        raise ContradictingOptions(reason) from None
