"""The options of a partition's process: sizes and times of its event loop, and the options that reach storage.

Invariant: options of storage, such as the credentials that a job was given, are in memory alone; options that
are given where a file system is opened count before them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from fsspec.config import conf

from snapshot.epochs.coordinator_options import ContradictingOptions


class Following(Enum):
    """The part of the newest complete epoch that a standby has ready; a slow one passes over epochs."""

    WARM = "warm"
    """Nothing: it is a process that has imported everything."""
    FILES = "files"
    """The files of all keyed state are on its machine: links where they are there anyway, else downloads."""
    OPEN = "open"
    """The state itself is open and in memory, as far as there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The same in every partition of a job. Times are in milliseconds, sizes in bytes."""

    batch_rows: int = 16_384
    """The most rows that are read from a source, or sent on a channel, at once."""
    linger: int = 2
    """Rows wait no longer than this for others before they are sent."""
    channel_buffer: int = 1 << 20
    """Data that may wait to be sent on one channel before its stage stops working, which works on no more rows at once
    than come to about as much; also without it, no more rows are under way than the receiver works off in a quarter of
    a second, or in a second if they take up to 50 us each."""
    input_buffer: int = 4 << 20
    """Data that may wait to be processed in one stage before its channels are no longer read."""
    socket_buffer: int = 256 << 10
    """The number of bytes that the kernel may hold of a channel at each end: an unaligned marker cannot overtake them.
    """
    max_frame: int = 64 << 20
    """No frame on a channel is longer."""
    alignment_timeout: int | None = None
    """An alignment that takes longer turns unaligned; None: never."""
    heartbeat: int = 250
    """The interval of a process's signs of life."""
    status_interval: int = 500
    """The interval at which a partition tells the driver its figures."""
    report_stall_after: int = 60_000
    """The time after which a lack of progress is reported, if there is something to do."""
    connect_timeout: int = 10_000
    """For so long a partition tries to reach another, before its attempt fails."""
    channel_timeout: int = 3_000
    """A channel whose other end does not react for so long is broken; see `snapshot.host.net.liveness`."""
    store_timeout: int = 60_000
    """A call of the store that is not answered for so long has failed; see `LimitedStore`."""
    state_memory: int = 256 << 20
    """The most memory of the keyed state of one operator in one partition."""
    state_backend: str = "rocksdb"
    accept_places: Collection[str] = frozenset()
    """The places beside its own to which a sink may commit what was prepared for them."""

    def __post_init__(self) -> None:
        if isinstance(self.accept_places, str):
            raise ContradictingOptions(f"accept_places is a list of places: accept_places=[{self.accept_places!r}]")
        object.__setattr__(self, "accept_places", frozenset(self.accept_places))
        least = (("batch_rows", 1), ("linger", 0), ("channel_buffer", 1), ("input_buffer", 1), ("socket_buffer", 4096))
        coarse = (("channel_timeout", 1000), ("store_timeout", 1))
        for name, smallest in (*least, ("heartbeat", 10), ("status_interval", 10), *coarse):
            if getattr(self, name) < smallest:
                raise ContradictingOptions(f"{name} is {getattr(self, name)}; it must be at least {smallest}")
        if self.state_backend not in ("rocksdb", "heap"):
            raise ContradictingOptions(f"state_backend is {self.state_backend!r}; it must be 'rocksdb' or 'heap'")


def use_storage(options: Mapping[str, Mapping[str, object]]) -> None:
    """Make these options, by protocol, the defaults of every file system that fsspec opens in this process."""
    for protocol, given in options.items():
        conf[protocol] = {**conf.get(protocol, {}), **given}
