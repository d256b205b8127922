"""The keyed states of one partition on their way into an attempt, each in a thread beside the event loop.

What always holds: of each state exactly one of `on_opened` and `on_failed` is told, once, in the loop's thread, unless
it is closed before; a state that nobody was told of is kept at hand if it was there in time, and closed if it comes
later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from snapshot.host.event_loop import Background, EventLoop
from snapshot.host.failures import kind_of, text_of, traceback_of
from snapshot.host.heads import OpenedState, Seat, open_state
from snapshot.host.messages import Deploy, Failed
from snapshot.host.states_at_hand import StatesAtHand
from snapshot.program.plan import KeyedHead, Plan
from statebackend.ids import Uid

_AT_ONCE: Final = 4


class Opening:
    """Begins at once. `wake` is for the states: called in any thread when one has news.

    When all are there, what is still at hand has no use in this attempt, and is closed.
    """

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        seats: Mapping[Uid, Seat],
        at_hand: StatesAtHand,
        loop: EventLoop,
        wake: Callable[[], None],
        on_opened: Callable[[Uid, OpenedState], object],
        on_failed: Callable[[Failed], object],
    ) -> None:
        self._deploy = deploy
        self._at_hand = at_hand
        self._on_opened = on_opened
        self._on_failed = on_failed
        self._over = False
        keyed = {stage.uid: stage.head.operator for stage in plan.stages if isinstance(stage.head, KeyedHead)}
        self._outstanding = len(keyed)
        # Threads of its own: what an earlier attempt still does in the background may take long.
        self._background = Background(loop, min(len(keyed), _AT_ONCE), "opening state")
        for uid, operator in keyed.items():
            self._background.submit(
                partial(open_state, operator, seats[uid], deploy.epoch, at_hand, wake), partial(self._came, uid)
            )

    @property
    def done(self) -> bool:
        """Whether all of them have come, or failed to."""
        return not self._outstanding

    def close(self) -> None:
        """Nobody waits for what is still to come."""
        self._over = True

    def _came(self, uid: Uid, outcome: OpenedState | BaseException) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self._background.close()
        if isinstance(outcome, BaseException):
            self._fail(uid, outcome)
        elif self._over:
            self._at_hand.discard([outcome.state])
        else:
            if not self._outstanding:
                self._at_hand.discard_all()
            self._on_opened(uid, outcome)

    def _fail(self, uid: Uid, error: BaseException) -> None:
        if not self._over:
            self._over = True
            deploy, kind = self._deploy, kind_of(error)
            self._on_failed(
                Failed(deploy.incarnation, deploy.partition, kind, text_of(error), uid, traceback_of(error))
            )
