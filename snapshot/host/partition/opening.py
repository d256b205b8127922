"""The keyed states of one partition on their way into an attempt, each in a thread beside the event loop.

What always holds: of each state exactly one of `on_opened` and `on_failed` is told, once, in the loop's thread, unless
it is closed before. A state that comes after that is kept at hand for the next opening, which waits for it a while; if
that has not waited, it is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.partition.failures import kind_of, text_of, traceback_of
from snapshot.host.partition.stage_operators import OpenedState, StatePlacement, open_state
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.protocol.messages import Deploy, Failed
from snapshot.program.plan import Plan
from statebackend.ids import Uid

_AT_ONCE: Final = 4
_PATIENCE: Final = 2.0
"""Seconds for which an opening waits for the one before: a state that is open at last is at hand at once, but a store
that does not answer would hold up all."""


class Opening:
    """Begins when the one `before` it, which must be closed, has come to its end. `wake` is for the states: called in
    any thread when one has news.
    """

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        placements: Mapping[Uid, StatePlacement],
        cache: StateCache,
        loop: EventLoop,
        wake: Callable[[], None],
        on_opened: Callable[[Uid, OpenedState], object],
        on_failed: Callable[[Failed], object],
        before: Opening | None,
    ) -> None:
        self._deploy = deploy
        self._cache = cache
        self._on_opened = on_opened
        self._on_failed = on_failed
        self._over = False
        self._began = False
        self._left = False
        self._overtaken = False  # the next one has begun, and waits for nothing of this one
        self._next: Callable[[], None] | None = None
        self._work = {
            uid: partial(open_state, operator, placements[uid], deploy.epoch, cache, wake)
            for uid, operator in plan.keyed.items()
        }
        self._outstanding = len(self._work)
        self._loop = loop
        self._before = _at_work(before)
        if self._before is None or self._before._overtaken:
            self._begin()
        else:
            self._before._next = self._begin
            loop.call_at(loop.now() + _PATIENCE, self._begin)

    def _begin(self) -> None:
        if self._began or self._over:
            return
        self._began = True
        if self._before is not None:
            self._before._overtaken = True
        # Threads of its own: what an earlier attempt still does in the background may take long.
        self._background = Background(self._loop, min(len(self._work), _AT_ONCE), "opening state")
        for uid, work in self._work.items():
            self._background.submit(partial(self._open, work), partial(self._came, uid))

    @property
    def done(self) -> bool:
        """True if every state has come, or has failed to."""
        return not self._outstanding

    def close(self) -> None:
        """Tell nothing more; a state that still comes is kept for the next opening, or closed if that did not wait."""
        self._over = True

    def forget(self) -> None:
        """Keep no state for the next attempt either, neither from this opening nor from any before it."""
        self._over = self._overtaken = True
        if self._before is not None:
            self._before.forget()

    def leave(self) -> None:
        """Tell nothing more, as the process ends its part; a state that is still being opened is closed as it comes."""
        self._over = self._left = True
        if self._began:
            self._background.close()
        if self._before is not None:
            self._before.leave()

    def _open(self, work: Callable[[], OpenedState]) -> OpenedState:
        """Open a state, in a thread."""
        opened = work()
        if self._left:
            opened.state.close(leave_uploads=True)
        return opened

    def _came(self, uid: Uid, outcome: OpenedState | BaseException) -> None:
        self._outstanding -= 1
        if isinstance(outcome, BaseException):
            self._fail(uid, outcome)
        elif not self._over:
            self._on_opened(uid, outcome)
        elif self._overtaken:
            self._cache.discard([outcome.state])
        else:
            self._cache.put(outcome.state)
        if not self._outstanding:
            self._background.close()
            if self._next is not None:
                self._next()

    def _fail(self, uid: Uid, error: BaseException) -> None:
        if not self._over:
            self._over = True
            deploy, kind = self._deploy, kind_of(error)
            self._on_failed(
                Failed(deploy.incarnation, deploy.partition, kind, text_of(error), uid, traceback_of(error))
            )


def _at_work(opening: Opening | None) -> Opening | None:
    """Return the newest opening that still has something under way: this one, or one before it."""
    while opening is not None and (opening.done or not opening._began):
        opening = opening._before
    return opening
