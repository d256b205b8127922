"""From frozen changes to durable file sets: what of a partition's state may be acknowledged.

What always holds: the file set of an epoch is reported only when every file that it names is durable, those of
earlier epochs included, whether these were completed, abandoned or failed. So an abandoned epoch loses nothing: its
delta is in the file set of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Epoch


@dataclass(frozen=True, slots=True)
class Persist:
    """Write what was frozen for this epoch to the store, in the background; answer with `persisted` or `failed`."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Durable:
    """This is the state at the epoch, and all of it is in the store."""

    epoch: Epoch
    files: FileSet


@dataclass(frozen=True, slots=True)
class NotDurable:
    """The epoch must be declined; what was frozen for it goes with the next one."""

    epoch: Epoch
    reason: str


@dataclass(slots=True)
class _Frozen:
    settled: bool = False
    """Whether the epoch's acknowledgement was decided: possible, or declined."""
    failed: bool = False
    files: tuple[FileRef, ...] | None = None
    """None until it is durable."""


class Uploads:
    """The frozen changes of one state in one attempt, on top of the file set that it was restored from.

    The caller owes: epochs frozen in rising order, and one answer to every `Persist`. A crash loses this; files that
    no complete epoch names are then orphans.
    """

    def __init__(self, restored: FileSet) -> None:
        self._files = restored
        self._frozen: dict[Epoch, _Frozen] = {}

    def freeze(self, epoch: Epoch) -> list[Persist]:
        """The state was cut. What could not be persisted for an earlier epoch is tried again."""
        failed = [earlier for earlier, frozen in self._frozen.items() if frozen.failed]
        for earlier in failed:
            self._frozen[earlier].failed = False
        self._frozen[epoch] = _Frozen()
        return [Persist(due) for due in [*failed, epoch]]

    def persisted(self, epoch: Epoch, files: Sequence[FileRef]) -> list[Durable]:
        """What was frozen for this epoch is in these files: a delta, bases of a consolidation, or none."""
        self._frozen[epoch].files = tuple(sorted(files, key=lambda file: file.restore_order))
        return self._report()

    def failed(self, epoch: Epoch, reason: str) -> list[NotDurable]:
        """What was frozen for this epoch is not durable: neither it nor a later epoch can be acknowledged now."""
        self._frozen[epoch].failed = True
        declined = [later for later, frozen in self._frozen.items() if later >= epoch and not frozen.settled]
        for later in declined:
            self._frozen[later].settled = True
        return [NotDurable(later, f"persisting what epoch {epoch} changed failed: {reason}") for later in declined]

    def _report(self) -> list[Durable]:
        durable: list[Durable] = []
        for epoch, frozen in list(self._frozen.items()):
            if frozen.files is None:
                break
            for file in frozen.files:
                self._files = self._files.consolidated(file) if file.kind is FileKind.BASE else self._files.added(file)
            del self._frozen[epoch]
            if not frozen.settled:
                durable.append(Durable(epoch, self._files))
        return durable
