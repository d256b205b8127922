"""The operator of a stage at work: for how long it works at once, and what is said of its calls before they are made.

Invariant: until its state is there, nothing comes to a keyed operator but the question when to wake it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from snapshot import fail_points
from snapshot.fail_points import reached
from snapshot.host.flow.pace import Pace
from snapshot.host.partition.last_words import LastWords, Notes
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.stage_operators import Awaited, KeyedRun, Passage
from snapshot.operators.operator import Emit, Note, Operator, TakingBatches
from snapshot.operators.rows import Rows
from snapshot.program.plan import Stage, Step
from statebackend.files import FileSet
from statebackend.ids import Epoch
from statebackend.keyed_state import KeyedState

_UNNOTED: Final = nullcontext()
_PIECE: Final = 0.02
"""Seconds that rows should take that are worked on at once; not all that they go through can be interrupted."""
_TOO_LONG: Final = 2 * _PIECE
"""Seconds after which those are interrupted that can be: later than they should have been done, as it costs something
to begin again.
"""


class OperatorRun:
    """The operator of a stage in one partition and attempt, which gives its rows to `emit`; it opens at this time."""

    def __init__(self, stage: Stage, placement: StatePlacement, emit: Emit, time: int, clock: StageClock) -> None:
        self._stage = stage
        self._placement = placement
        self._emit = emit
        self.time = time
        """The event time that the operator knows of."""
        self._clock = clock
        self._monotonic = clock.monotonic
        self.operator: Operator = Passage(emit) if stage.operator is None else Awaited()
        self.pending = stage.operator is not None
        """True if it waits for its state."""
        self.keyed: KeyedRun | None = None
        self._completed: list[tuple[Epoch, FileSet]] = []  # before the state was there
        self._pace = Pace(_PIECE, placement.options.batch_rows)
        self._interrupt_at = 0.0
        self._notes: Notes | None = None

    def open(self, state: KeyedState) -> None:
        """Go on with this state, which stays the caller's, and tell it what is complete meanwhile."""
        operator = self._stage.operator
        assert operator is not None
        with self.noting("its opening"):
            self.keyed = KeyedRun(
                operator,
                self._placement,
                state,
                self._emit,
                self.time,
                self._clock.now,
                self._is_too_long,
                self._note,
            )
        self.operator, self.pending = self.keyed.operator, False
        completed, self._completed = self._completed, []
        for epoch, files in completed:
            state.completed(epoch, files)

    # --- its calls ------------------------------------------------------------------------------------------------

    @property
    def at_once(self) -> int:
        """Return how many rows to work on at once, for them to take about as long as they should."""
        return self._pace.rows

    def worked(self, rows: int, began: float) -> None:
        """Learn how long these rows took, which were begun at this time."""
        self._pace.took(rows, self._monotonic() - began)

    def rows(self, input: int, rows: Rows) -> int:
        """Give it rows of an input; return how many of the first ones it took."""
        began = self._monotonic()
        self._interrupt_at = began + _TOO_LONG
        if self._notes is None:
            some = self.operator.rows(input, rows)
            taken = len(rows) if some is None else some
        else:
            taken = self._rows_noted(self._notes, input, rows)
        self._pace.took(taken, self._monotonic() - began)
        return taken

    def _rows_noted(self, notes: Notes, input: int, rows: Rows) -> int:
        taken = 0
        for some in notes.each(rows):
            of_these = self.operator.rows(input, some)
            taken += len(some) if of_these is None else of_these
            if self._is_too_long():
                break
        return taken

    def watermark(self, timestamp: int) -> bool:
        """Move its event time on; return False if there is more to do by then, and it is to be called again."""
        self._interrupt_at = self._monotonic() + _PIECE
        self.time = max(self.time, timestamp)
        with self.noting(f"what follows from the watermark {timestamp}"):
            return self.operator.watermark(timestamp) is not False

    def wakes_in(self) -> float | None:
        """Return in how many seconds it is to be woken, 0 or less if now; None for never."""
        at = self.operator.wakes_at()
        return None if at is None else (at - self._clock.now()) / 1000

    def wake(self) -> None:
        """Move its processing time on."""
        self._interrupt_at = self._monotonic() + _PIECE
        with self.noting("timers in processing time"):
            self.operator.wake(self._clock.now())

    def end(self) -> None:
        """Let it give its final results."""
        with self.noting("the end of its input"):
            self.operator.end()

    def cut(self, epoch: Epoch) -> None:
        """Cut its state."""
        if self.keyed is not None:
            self.keyed.cut(epoch)
            reached(fail_points.STATE_CUT)

    def completed(self, epoch: Epoch, files: FileSet | None) -> None:
        """Tell its state that the epoch is complete; from there on no more calls are noted.

        A shadow whose state is not there yet is told as soon as it is: the files that it goes on from may be deleted
        when a later epoch is complete, and then its own sets must be made of that one's.
        """
        self._notes = None
        if self.keyed is not None:
            self.keyed.state.completed(epoch, files)
        elif self.pending and files is not None:
            self._completed.append((epoch, files))

    def close(self) -> None:
        """Close it; its state stays as it left it."""
        if self.keyed is not None:
            self.keyed.close()

    def _is_too_long(self) -> bool:
        return self._monotonic() >= self._interrupt_at

    # --- what is called, for the case that it ends the process ----------------------------------------------------

    def note_calls(self, words: LastWords) -> None:
        """Say each call before it is made from now on, with rows one by one, as earlier processes died."""
        steps = [target.transform for target in self._stage.targets() if isinstance(target, Step)]
        batches = any(isinstance(one, TakingBatches) for one in (self._stage.operator, *steps))
        self._notes = Notes(self._stage.uid, words, batches=batches)

    def noted(self, rows: Rows) -> Iterable[Rows]:
        """Return rows in the pieces in which they are to go through the chain."""
        return (rows,) if self._notes is None else self._notes.each(rows)

    def noting(self, what: str) -> AbstractContextManager[None]:
        """Return a context for a call that is not about a row."""
        return _UNNOTED if self._notes is None else self._notes.during(what)

    def _note(self) -> Note | None:
        return None if self._notes is None else self._notes.at
