"""One sink in a member of a partition that is not its primary: rows are held, and written when it takes over.

Invariant: the target is not opened before. From then on the sink is what `SinkRun` makes of it; the first transaction
has all rows that the newest complete epoch has not, so that none is lost and none written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from snapshot.epochs.transaction_events import Committable
from snapshot.host.partition.sink_run import Output
from snapshot.host.protocol.messages import SinkFigures
from snapshot.operators.rows import Rows
from snapshot.replication.held_output import HeldOutput, NotYetCut
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import NO_EPOCH, Epoch

Committables: TypeAlias = Sequence[Committable[CommitPayload]]


@dataclass(frozen=True, slots=True)
class _TakeOver:
    epoch: Epoch | None
    committables: Committables


class HeldSink:
    """Holds rows from the restored epoch on. `write` opens the target, and goes on from the epoch that it is given."""

    def __init__(self, restored: Epoch | None, write: Callable[[Epoch | None, Committables], Output]) -> None:
        self._write = write
        self._held: HeldOutput[Rows] = HeldOutput(NO_EPOCH if restored is None else restored)
        self._no_more_rows = False
        self._waiting: _TakeOver | None = None
        self._output: Output | None = None

    @property
    def held_bytes(self) -> int:
        """Return how much memory the rows take that are held."""
        return self._held.size

    def take_over(self, epoch: Epoch | None, committables: Committables) -> None:
        """Write from now on: first commit what the newest complete epoch carries, then write what it has not.

        If that epoch is not cut here yet, this waits for its cut.
        """
        if epoch is not None:
            self._held.completed(epoch)
        self._waiting = _TakeOver(epoch, committables)
        self._write_if_cut()

    def _write_if_cut(self) -> None:
        if self._waiting is None:
            return
        try:
            held = self._held.take_over()
        except NotYetCut:
            return
        asked, self._waiting = self._waiting, None
        self._output = output = self._write(asked.epoch, asked.committables)
        output.begin()
        for rows in held:
            output.rows(rows)
        if self._no_more_rows:
            output.no_more_rows()

    def begin(self) -> None:
        """Do nothing: the primary commits what the restored epoch carries."""

    def rows(self, rows: Rows) -> None:
        """Hold rows, or write them."""
        if self._output is not None:
            self._output.rows(rows)
        elif len(rows):
            self._held.add(rows, rows.size)

    def cut(self, epoch: Epoch) -> None:
        """Let all that came until now belong to the epoch, whose state is being cut."""
        if self._output is not None:
            self._output.cut(epoch)
            return
        self._held.cut(epoch)
        self._write_if_cut()

    def completed(self, epoch: Epoch) -> None:
        """Drop what the epoch has, as it is complete, or commit it."""
        if self._output is not None:
            self._output.completed(epoch)
        else:
            self._held.completed(epoch)

    def no_more_rows(self) -> None:
        """Take the word that the input has ended."""
        self._no_more_rows = True
        if self._output is not None:
            self._output.no_more_rows()

    @property
    def figures(self) -> SinkFigures:
        """Return what was committed since it took over."""
        return SinkFigures() if self._output is None else self._output.figures

    def close(self) -> None:
        """End the attempt."""
        if self._output is not None:
            self._output.close()
