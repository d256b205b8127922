"""Event time in a stage: where it is to be, what has been announced of it, and whether it was at its end before.

Invariant: a watermark is announced after all that it makes due has been done.
"""

from __future__ import annotations

from snapshot.cut.frames import EARLIEST, LATEST, Watermark
from snapshot.cut.watermarks import going_on
from snapshot.host.partition.operator_run import OperatorRun
from snapshot.host.partition.stage_inputs import Input, StageInputs
from snapshot.host.partition.stage_outputs import StageOutputs
from snapshot.host.protocol.stage_now import StageNow


class StageTime:
    """Event time in one stage and attempt; `restored` is its watermark in the epoch that the attempt starts from."""

    def __init__(
        self, restored: Watermark | None, inputs: StageInputs, operator: OperatorRun, outputs: StageOutputs
    ) -> None:
        self._restored = restored
        self._inputs = inputs
        self._operator = operator
        self._outputs = outputs
        # Whether event time was at its end in the epoch, and the stage has not said yet how it goes on.
        self._had_ended = restored is not None and restored.timestamp == LATEST
        self.is_moving = False
        """True if more is due by the time to which event time moves on."""
        self._coming: Watermark | None = None
        self.announced: Watermark | None = None
        """The last watermark that was announced."""

    def begin(self) -> None:
        """Announce the restored watermark.

        If event time was at its end, nothing is announced before it shows what follows: an end alone, or more rows.
        """
        self.announce(going_on(self._restored))

    def announce(self, watermark: Watermark | None) -> None:
        """Announce a watermark, if there is one."""
        if watermark is not None:
            self.announced = watermark
            self._had_ended = self._had_ended and watermark.idle
            self._outputs.watermark(watermark)

    @property
    def had_ended(self) -> bool:
        """True if event time was at its end in the epoch, and has not gone on since."""
        return self._had_ended

    def go_on(self, announced: Watermark | None, *, had_ended: bool) -> None:
        """Begin where another process is, which has announced this."""
        self.announced, self._had_ended = announced, had_ended

    # --- after the end of the epoch -------------------------------------------------------------------------------

    def heard_more(self, place: Input) -> None:
        """Note that more comes on an input; if no input has event time, each of them says whether it goes on."""
        if self._had_ended and (place.edge.timed or not self._inputs.any_timed):
            self.begin_anew()

    def begin_anew(self) -> None:
        """Take event time back from its end, if it was there, here and in all stages after, with or without rows."""
        if self._had_ended:
            self.announce(Watermark(EARLIEST))

    # --- moving on ------------------------------------------------------------------------------------------------

    def advance(self, watermark: Watermark) -> None:
        """Begin to move event time on."""
        self._coming, self.is_moving = watermark, True
        self.move_on()

    def move_on(self) -> None:
        """Move event time on to where it is to be, or some of the way."""
        watermark = self._coming
        assert watermark is not None
        # What follows from the end was done. Only an operator with other inputs still has to know what time it is.
        others = self._inputs.any_timed and not self._inputs.all_timed
        knows = self._had_ended and watermark.timestamp == LATEST and not others
        if watermark.timestamp > EARLIEST and not knows and not self._operator.watermark(watermark.timestamp):
            return
        self._coming, self.is_moving = None, False
        self.announce(watermark)

    @property
    def at_end(self) -> bool:
        """True if its end has been announced."""
        return self.announced is not None and self.announced.timestamp == LATEST

    @property
    def at_cut(self) -> Watermark | None:
        """Return the watermark that belongs to a cut made now."""
        return Watermark(LATEST) if self._had_ended else self.announced


def time_at_opening(restored: Watermark | None, now: StageNow | None) -> int:
    """Return the event time at which an operator opens: that of its peers `now`, if it joins them.

    It may be at its end there though more comes, as of a control stream. After a restart it begins anew then.
    """
    if now is not None:
        return now.time
    time = going_on(restored)
    return EARLIEST if time is None else time.timestamp
