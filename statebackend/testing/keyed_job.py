"""A job that is nothing but its keyed state: partitions that are opened, cut, completed, rewound and restored together.

Invariant: an epoch is complete when all partitions have reported it as durable, and only then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from statebackend import means
from statebackend.files import FileSet, rescaled
from statebackend.ids import NO_EPOCH, Epoch, Generation, Partition
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange, owner_of, range_of
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.uploads import Durable
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.testing.keyed_model import Key
from statebackend.testing.keyed_subjects import group_of

_PATIENCE: Final = 60.0
_LONGEST_CUT: Final = 5.0
_LONGEST_REWIND: Final = 5.0


class BrokenPromise(AssertionError):
    """Keyed state did not do what it promises; the message says what."""


@dataclass(slots=True)
class _Member:
    state: KeyedState
    options: Options
    waiting: list[Epoch] = field(default_factory=list)
    """Epochs that were cut and of which nothing was heard."""
    named: frozenset[str] | None = None
    """The files of the newest durable epoch; None if none was reported since the begin."""
    named_from: int = 0
    """The number of the oldest file that later epochs may name anew."""


class KeyedJob:
    """The partitions of one operator on one machine, with a store that may be disturbed. For one thread."""

    def __init__(self, operator: Operator, folder: Path, store: FaultyStore) -> None:
        self.store = store
        self.snapshots: dict[Epoch, tuple[FileSet, ...]] = {NO_EPOCH: (FileSet(operator.all_groups),)}
        """The complete epochs; before the first, there is no state."""
        self._operator = operator
        self._folder = folder
        self._machines = count()
        self._machine = 0
        self._paths = 0
        self._paths_at: dict[Epoch, int] = {}
        """How many files had a name when the epoch was cut."""
        self._naming = means.Lock()
        self._members: list[_Member] = []
        self._followers: list[tuple[Epoch, _Member]] = []
        self._durable: dict[Epoch, dict[int, FileSet]] = {}
        self._epoch = NO_EPOCH
        self._way_back = {NO_EPOCH}

    @property
    def states(self) -> list[KeyedState]:
        """Return the partitions."""
        return [member.state for member in self._members]

    @property
    def names_given(self) -> int:
        """Return how many files have got a name."""
        return self._paths

    @property
    def left_out_up_to(self) -> int:
        """Return the number of the youngest file that no later epoch names anew, of any partition."""
        return min(member.named_from for member in self._members)

    def start(self, epoch: Epoch, parallelism: int, options: Sequence[Options], *, elsewhere: bool) -> None:
        """Begin anew from a complete epoch; each partition takes the next of the options. `elsewhere` has no links."""
        self.stop()
        if elsewhere:
            self._machine = next(self._machines)
        # Numbers count on from the restored epoch: those of lost epochs are used again, by a later generation.
        self._epoch = Epoch(Generation(self._epoch.generation + 1), epoch.number)
        self._durable = {}
        self._way_back = {epoch}
        for partition in range(parallelism):
            groups = range_of(Partition(partition), parallelism, self._operator.max_parallelism)
            self._members.append(self._opened(partition, groups, epoch, options[partition % len(options)]))

    def _opened(
        self, partition: int, groups: KeyGroupRange, epoch: Epoch, options: Options, other: str = ""
    ) -> _Member:
        folder = self._folder / f"machine-{self._machine}" / f"{partition}{other}"
        files = rescaled(self.snapshots[epoch], groups)
        return _Member(KeyedState(self._operator, folder, self.store, self._name, files, options), options)

    def _name(self) -> str:
        with self._naming:
            self._paths += 1
            return f"shared/{self._paths}.sst"

    def rewind(self, epoch: Epoch) -> int:
        """Go back to an epoch in place, open anew those that cannot, and return how many could.

        It must not wait for the store.
        """
        rewound = 0
        if any(followed > epoch for followed, _ in self._followers):
            self._forget_followers()
        for partition, member in enumerate(self._members):
            groups = member.state.groups
            begun = time.monotonic()
            if member.state.rewind(epoch, rescaled(self.snapshots[epoch], groups), self._name):
                rewound += 1
                member.waiting.clear()
                member.named = None
            else:
                self.store.go_on()
                member.state.close()
                self._members[partition] = self._opened(partition, groups, epoch, member.options)
            if time.monotonic() - begun > _LONGEST_REWIND:
                raise BrokenPromise(f"going back to epoch {epoch} has waited for the store")
        self._durable = {}
        self._way_back = {epoch}
        return rewound

    def follow(self, epoch: Epoch) -> int:
        """Have another process open all partitions' state, or bring up to date what it has.

        Return how many partitions it could bring up to date.
        """
        self.store.go_on()
        followers, self._followers = self._followers, []
        caught_up = 0
        for partition, member in enumerate(self._members):
            follower = followers[partition][1] if followers else None
            files = rescaled(self.snapshots[epoch], member.state.groups)
            if follower is not None and follower.state.catch_up(files, self._name):
                caught_up += 1
            else:
                if follower is not None:
                    follower.state.close()
                place = f".{next(self._machines)}"
                follower = self._opened(partition, member.state.groups, epoch, member.options, place)
            follower.state.load()
            self._followers.append((epoch, follower))
        return caught_up

    def take_over(self, epoch: Epoch) -> None:
        """Let all processes die, and those that followed go on from this epoch."""
        self.follow(epoch)
        followers, self._followers = self._followers, []
        self.stop()
        self._members = [follower for _, follower in followers]
        self._epoch = Epoch(Generation(self._epoch.generation + 1), epoch.number)
        self._durable = {}
        self._way_back = {epoch}

    def _forget_followers(self) -> None:
        for _, follower in self._followers:
            follower.state.close()
        self._followers = []

    def stop(self) -> None:
        """Give up all that is on its way, as when a job is stopped."""
        self.store.go_on()
        self._forget_followers()
        for member in self._members:
            member.state.close()
        self._members = []

    def by_owner(self, keys: Iterable[Key]) -> list[tuple[KeyedState, list[Key]]]:
        """Return each partition, with its part of these keys."""
        parts: list[tuple[KeyedState, list[Key]]] = [(member.state, []) for member in self._members]
        for key in keys:
            group = group_of(self._members[0].state.key_type, key)
            parts[owner_of(group, len(parts), self._operator.max_parallelism)][1].append(key)
        return parts

    def advance(self, watermark: int | None, clock: int) -> None:
        """Say what time it is."""
        for member in self._members:
            member.state.advance(watermark=watermark, processing_time=clock)

    def cut(self) -> Epoch:
        """Cut all partitions; it must not wait for the store, which may be stalled."""
        self._epoch = Epoch(self._epoch.generation, self._epoch.number + 1)
        for member in self._members:
            begun = time.monotonic()
            self._paths_at.setdefault(self._epoch, self._paths)
            member.state.cut(self._epoch)
            if time.monotonic() - begun > _LONGEST_CUT:
                raise BrokenPromise(f"the cut of epoch {self._epoch} has waited for the store")
            member.waiting.append(self._epoch)
        return self._epoch

    def may_rewind(self, epoch: Epoch) -> bool:
        """True if partitions can go back to this epoch, as far as is known while they are not short of memory."""
        return epoch in self._way_back

    def hear(self, fault: Fault = Fault.NONE) -> list[Epoch]:
        """Wait until the fate of all epochs is known; return those that are complete now."""
        self.store.fault = fault
        self.store.go_on()
        for partition, member in enumerate(self._members):
            for durable in _heard(member):
                self._durable.setdefault(durable.epoch, {})[partition] = durable.files
                self._check_names(member, durable)
        self.store.fault = Fault.NONE
        complete = sorted(epoch for epoch, parts in self._durable.items() if len(parts) == len(self._members))
        for epoch in complete:
            parts = self._durable.pop(epoch)
            self.snapshots[epoch] = tuple(parts[partition] for partition in sorted(parts))
        self._way_back.update(complete)
        return complete

    def _check_names(self, member: _Member, durable: Durable) -> None:
        """Check that the epoch names anew no file that earlier ones have left out for good."""
        paths = frozenset(file.path for file in durable.files.files)
        for path in paths - (paths if member.named is None else member.named):
            if int(path.removeprefix("shared/").removesuffix(".sst")) <= member.named_from:
                raise BrokenPromise(f"epoch {durable.epoch} names {path}, which was said to be left out for good")
        member.named, member.named_from = paths, self._paths_at.get(durable.since, 0)

    def completed(self, epoch: Epoch) -> None:
        """Tell all partitions."""
        self._way_back = {known for known in self._way_back if known >= epoch}
        for member in self._members:
            member.state.completed(epoch)


def _heard(member: _Member) -> list[Durable]:
    durable: list[Durable] = []
    deadline = time.monotonic() + _PATIENCE
    while member.waiting:
        if time.monotonic() > deadline:
            raise BrokenPromise(f"nothing was heard of epoch {member.waiting[0]} for {_PATIENCE} s")
        for news in member.state.poll(timeout=1.0):
            if news.epoch not in member.waiting:
                raise BrokenPromise(f"epoch {news.epoch} was reported twice, or never cut: {news}")
            member.waiting.remove(news.epoch)
            if isinstance(news, Durable):
                durable.append(news)
    return durable
