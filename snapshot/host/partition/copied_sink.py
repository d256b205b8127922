"""One sink to which every member of a partition writes: its receiver keeps the first copy of each row.

Invariant: a row has the same position in each member, as members take the same rows between the same markers.
"""

from __future__ import annotations

from snapshot.host.partition.sink_run import Output
from snapshot.host.protocol.messages import SinkFigures
from snapshot.operators.rows import Rows
from snapshot.replication.positions import Position
from statebackend.ids import NO_EPOCH, Epoch


class CopiedSink:
    """Counts the rows from the restored epoch on; `make` opens the target."""

    def __init__(self, restored: Epoch | None) -> None:
        self.at = Position(NO_EPOCH if restored is None else restored)
        """The position of the row that comes next, or of the first that is being written."""
        self._output: Output | None = None

    def write_to(self, output: Output) -> None:
        """Hand all on to this output."""
        self._output = output

    @property
    def _to(self) -> Output:
        assert self._output is not None
        return self._output

    def begin(self) -> None:
        """Go on from the restored epoch."""
        self._to.begin()

    def rows(self, rows: Rows) -> None:
        """Write rows."""
        self._to.rows(rows)
        self.at = Position(self.at.segment, self.at.element + len(rows))

    def cut(self, epoch: Epoch) -> None:
        """Let all that came until now belong to the epoch, whose state is being cut."""
        self._to.cut(epoch)
        self.at = Position(epoch)

    def completed(self, epoch: Epoch) -> None:
        """Take the coordinator's word that the epoch is complete."""
        self._to.completed(epoch)

    def no_more_rows(self) -> None:
        """Take the word that the input has ended."""
        self._to.no_more_rows()

    @property
    def figures(self) -> SinkFigures:
        """Return what was committed in this attempt."""
        return self._to.figures

    def close(self) -> None:
        """End the attempt."""
        self._to.close()
