"""The completions that wait until a state can adopt the file sets that they bring.

Invariant: file sets are adopted in the order of their epochs, each only when what was cut here up to its epoch is in
local files: then the local backend can take that, and the file set says the same.
"""

from __future__ import annotations

from statebackend.files import FileSet
from statebackend.ids import Epoch


class Completions:
    """The complete epochs whose file sets another state has written, and this one has not adopted."""

    def __init__(self) -> None:
        self._awaited: dict[Epoch, FileSet] = {}

    def __bool__(self) -> bool:
        return bool(self._awaited)

    def come(self, epoch: Epoch, files: FileSet) -> None:
        """Take the word that the epoch is complete with these files."""
        self._awaited[epoch] = files

    def due(self, last_cut: Epoch | None, first_unwritten: Epoch | None) -> list[tuple[Epoch, FileSet]]:
        """Return those that need wait no longer, the oldest first; they are awaited no more.

        `first_unwritten` is the oldest cut that is not in local files.
        """
        due: list[tuple[Epoch, FileSet]] = []
        for epoch in sorted(self._awaited):
            if last_cut is None or epoch > last_cut or (first_unwritten is not None and first_unwritten <= epoch):
                break
            due.append((epoch, self._awaited.pop(epoch)))
        return due

    def forget(self) -> None:
        """Await none of them any more, as the state goes back."""
        self._awaited.clear()
