"""An epoch that is read from outside: which operators have state in it, and their files opened part by part.

Invariant: nothing but the epoch's own files is read, and of these only what the asked key groups need; what
was read is counted. Scratch is in a folder of its own, which is removed at the end.

While it is read, an epoch is pinned in the journal, and no clean-up removes it. A reader that is killed, or whose store
is away at its end, leaves its pin, which keeps the epoch until it is lifted (`recovery dispose --readers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex

from recovery.driver.tree.owned import JournalInDoubt, propose
from recovery.offline.job_tree import FoundEpoch, JobTree, NoSuchEpoch, journal_of
from recovery.scratch import scratch_folder
from snapshot.journal.entries import Body, JournalError, PinId, Pinned, Pinner, Unpinned
from snapshot.journal.writer import JournalWriter, Refused, Won
from snapshot.tree.manifest import OperatorSnapshot
from statebackend.canonical.schema import TableForm
from statebackend.canonical.source import StateSource
from statebackend.errors import SavepointError
from statebackend.files import FileRef, FileSet, rescaled
from statebackend.ids import Epoch, KeyGroup, Uid
from statebackend.keygroups import KeyGroupRange, key_group_of
from statebackend.keys.types import KeyType
from statebackend.operator import Operator
from statebackend.snapshots.transfer import MissingFile
from statebackend.state_reader import StateReader, read_schema
from statebackend.states.schema import Schema, StateSpec
from statebackend.stores.store import BlobStoreError


@contextmanager
def pinned(tree: JobTree, epoch: Epoch) -> Iterator[None]:
    """Pin an epoch while it is read; `NoSuchEpoch` if it is gone, `JournalInDoubt` if that cannot be told.

    No error is raised if the pin cannot be lifted, or was lifted by another process.
    """
    pin = PinId(f"reader-{epoch}-{token_hex(8)}")
    try:
        _write(tree, Pinned(pin, epoch, Pinner.READER))
        yield
    finally:  # also of a pin that was interrupted: it may be there
        with suppress(JournalInDoubt, JournalError, BlobStoreError, NoSuchEpoch):
            _write(tree, Unpinned(pin))


def _write(tree: JobTree, body: Body) -> None:
    journal = journal_of(tree.store)
    outcome = propose(journal, JournalWriter(journal.read()), body)
    match outcome:
        case Won():
            return
        case Refused(refusal):
            raise NoSuchEpoch(f"{tree.uri}: {refusal.text}")
        case _:
            raise JournalInDoubt(f"{tree.uri}: whether {body} is in the journal cannot be told: {outcome}")


class NoSuchState(SavepointError, LookupError):
    """The epoch has no such operator or state; the message lists those that it has."""


@dataclass(frozen=True, slots=True)
class BytesRead:
    """The number of opened files, and their size together."""

    files: int = 0
    bytes: int = 0

    def of(self, files: Sequence[FileRef]) -> BytesRead:
        """Return the sum of this and these files."""
        return BytesRead(self.files + len(files), self.bytes + sum(file.size for file in files))


class OperatorStates:
    """The keyed state of one operator in an epoch. For one thread."""

    def __init__(self, reading: EpochReading, operator: OperatorSnapshot) -> None:
        self._reading = reading
        self.uid = operator.uid
        self.parts = tuple(subtask.state for subtask in operator.subtasks if subtask.state is not None)
        """The file sets of all partitions, in order."""
        self._max_parallelism = reading.found.manifest.max_parallelism
        self._key_type = operator.key_type

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Return all files, each once."""
        return tuple({file.path: file for part in self.parts for file in part.files}.values())

    @cached_property
    def schema(self) -> Schema | None:
        """Return the states' declarations from the newest file, None if there is no file yet."""
        if not self.files:
            return None
        newest = max(file.epoch for file in self.files)
        file = min((file for file in self.files if file.epoch == newest), key=lambda file: file.size)
        self._reading.count([file])
        with self._reading.named_if_gone():
            return read_schema(file, self._reading.tree.store, self._reading.scratch)

    def declared(self) -> Schema:
        """Return the schema; `NoSuchState` if nothing was written yet."""
        if self.schema is None:
            raise NoSuchState(f"{self.uid} has no state in epoch {self._reading.epoch} yet: nothing was written")
        return self.schema

    @cached_property
    def key_type(self) -> KeyType:
        """Return the type of the keys, without opening a file if the manifest says it."""
        return KeyType.parse(self._key_type) if self._key_type else self.declared().key_type

    def group_of(self, key: object) -> KeyGroup:
        """Return the key group of a key."""
        return key_group_of(self.key_type.hash(key), self._max_parallelism)

    def check(self, state: str | None) -> None:
        """Raise `NoSuchState` if there is no state of this name; for None, if nothing was written at all."""
        if state is None:
            self.declared()
        else:
            self.state(state)

    def state(self, name: str) -> StateSpec:
        """Return the declaration of a state; `NoSuchState` if there is none of this name."""
        specs = self.declared().states
        for spec in specs:
            if spec.name == name:
                return spec
        raise NoSuchState(f"{self.uid} has no state {name!r}; it has {_listed([spec.name for spec in specs])}")

    def form(self, name: str) -> TableForm:
        """Return the form of a state's canonical table, as the newest file says; `NoSuchState` if there is none.

        Files of other key groups may be from before the state was declared.
        """
        spec, schema = self.state(name), self.declared()
        return StateSource(schema, KeyGroupRange.of_all(schema.max_parallelism), {}, {}, {}).form(spec)[0]

    def files_of(self, groups: KeyGroupRange) -> FileSet:
        """Return the files with the state of these key groups, in whichever partitions they are."""
        return rescaled(self.parts, groups)

    def files_of_group(self, group: KeyGroup) -> FileSet:
        """Return the files with the state of one key group."""
        return self.files_of(KeyGroupRange(group, KeyGroup(group + 1)))

    @contextmanager
    def opened(self, files: FileSet, declared: Operator | None = None) -> Iterator[StateReader]:
        """Open some of the files; raises as `StateReader` does, or `NoSuchEpoch` if the epoch was removed meanwhile."""
        self._reading.count(files.files)
        with self._reading.named_if_gone():
            reader = StateReader(files, self._reading.tree.store, self._reading.scratch, declared)
        with reader:
            yield reader


class EpochReading:
    """An epoch in the hands of `read_epoch`."""

    def __init__(self, tree: JobTree, found: FoundEpoch, scratch: Path) -> None:
        self.tree = tree
        self.found = found
        self.epoch = found.record.epoch
        self.scratch = scratch
        self.read = BytesRead()
        """The bytes that have been read so far, without the manifest."""

    @cached_property
    def operators(self) -> tuple[OperatorStates, ...]:
        """Return all operators with keyed state."""
        keyed = (one for one in self.found.manifest.operators if one.subtasks[0].state is not None)
        return tuple(OperatorStates(self, one) for one in keyed)

    def operator(self, uid: str) -> OperatorStates:
        """Return the operator with this uid; `NoSuchState` if it is not there, or has no keyed state."""
        for operator in self.operators:
            if operator.uid == Uid(uid):
                return operator
        known = _listed([operator.uid for operator in self.operators])
        has = f"those with keyed state are {known}" if known else "none has keyed state"
        if any(operator.uid == uid for operator in self.found.manifest.operators):
            raise NoSuchState(f"{uid} has no keyed state in epoch {self.epoch}; {has}")
        raise NoSuchState(f"epoch {self.epoch} has no operator {uid!r}; {has}")

    def count(self, files: Sequence[FileRef]) -> None:
        """Count these files as read."""
        self.read = self.read.of(files)

    @contextmanager
    def named_if_gone(self) -> Iterator[None]:
        """Raise `NoSuchEpoch` for a missing file if the epoch was removed meanwhile."""
        try:
            yield
        except MissingFile as error:
            now = {record.epoch for record in self.tree.look_again().state.usable}
            if self.epoch not in now:
                raise NoSuchEpoch(
                    f"{self.tree.uri}: epoch {self.epoch} was removed while it was read; read a newer one"
                ) from error
            raise


@contextmanager
def read_epoch(tree: JobTree, which: str, *, pin: bool) -> Iterator[EpochReading]:
    """Read an epoch, pinned meanwhile if `pin`, as when it may take long; raises what `JobTree.find` does."""
    found = tree.find(which)
    with scratch_folder("reading") as scratch:
        reading = EpochReading(tree, found, scratch)
        if not pin:
            yield reading
            return
        with pinned(tree, found.record.epoch):
            yield reading


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
