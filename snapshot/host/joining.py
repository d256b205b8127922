"""From a deployment to the moment when a partition can begin: its state is opened while its channels are connected.

What always holds: exactly one of `on_ready` and `on_failed` is called, once, in the loop's thread, unless it is closed
before; whatever comes of it after that is closed as it comes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from snapshot import fail_points
from snapshot.fail_points import reached
from snapshot.host.connector import Connecting
from snapshot.host.event_loop import Background, EventLoop
from snapshot.host.failures import kind_of, text_of, traceback_of
from snapshot.host.heads import OpenedState, Seat, open_state
from snapshot.host.messages import Deploy, Failed, FailureKind, Role
from snapshot.host.purposes import ChannelOf
from snapshot.host.tree_files import TreeFiles
from snapshot.ids import ChannelId
from snapshot.program.plan import KeyedHead, Plan
from statebackend.ids import Uid
from statebackend.stores.store import BlobStore

NOTHING: Final = Role()
"""What an operator starts from that the epoch knows nothing of."""


@dataclass(frozen=True, slots=True)
class Joined:
    """All that a partition needs to begin: a socket for each channel from and to another partition, and its states."""

    outgoing: dict[ChannelId, socket.socket]
    incoming: dict[ChannelId, socket.socket]
    states: dict[Uid, OpenedState]


class Joining:
    """One partition on its way into an attempt. `wake` is for states: called in any thread when one has news."""

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        files: TreeFiles,
        store: BlobStore,
        secret: bytes,
        loop: EventLoop,
        wake: Callable[[], None],
        on_ready: Callable[[Joined], object],
        on_failed: Callable[[Failed], object],
    ) -> None:
        self._deploy = deploy
        self._plan = plan
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._joined = Joined({}, {}, {})
        self._over = False
        self.seats = {stage.uid: _seat(stage.uid, deploy, plan, files, store) for stage in plan.stages}
        self._expected_out, self._expected_in = _channels(plan, deploy)
        self._connecting = {
            channel: Connecting(
                loop,
                deploy.peers[channel.receiver],
                secret,
                ChannelOf(channel, deploy.incarnation),
                partial(self._connected, channel),
                self._not_connected,
                seconds=deploy.options.connect_timeout / 1000,
            )
            for channel in self._expected_out
        }
        self._keyed = {stage.uid: stage.head.operator for stage in plan.stages if isinstance(stage.head, KeyedHead)}
        # Threads of its own: what an earlier attempt still does in the background may take long.
        self._background = Background(loop, min(len(self._keyed), 4), "opening state")
        for uid, operator in self._keyed.items():
            seat = self.seats[uid]
            self._background.submit(
                partial(open_state, operator, seat, wake),
                partial(self._opened, uid),
            )
        self._outstanding = len(self._keyed)
        loop.call_soon(self._ready_if_all_is_there)

    def accept(self, channel: ChannelId, sock: socket.socket) -> None:
        """Another partition has connected a channel that ends here."""
        if self._over or channel not in self._expected_in:
            sock.close()
            return
        self._joined.incoming[channel] = sock
        self._ready_if_all_is_there()

    def expects(self, channel: ChannelId) -> bool:
        """Whether this channel ends here and is not connected yet."""
        return channel in self._expected_in and channel not in self._joined.incoming

    def close(self) -> None:
        """Give it up, and close all that was opened for it."""
        if self._over:
            return
        self._over = True
        for connecting in self._connecting.values():
            connecting.cancel()
        for sock in (*self._joined.outgoing.values(), *self._joined.incoming.values()):
            sock.close()
        for opened in self._joined.states.values():
            opened.state.close(leave_uploads=True)

    def _connected(self, channel: ChannelId, sock: socket.socket) -> None:
        self._joined.outgoing[channel] = sock
        self._ready_if_all_is_there()

    def _not_connected(self, reason: str) -> None:
        self._fail(FailureKind.CHANNEL, reason)

    def _opened(self, uid: Uid, outcome: OpenedState | BaseException) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self._background.close()
        if isinstance(outcome, BaseException):
            self._fail(kind_of(outcome), text_of(outcome), uid, traceback_of(outcome))
        elif self._over:
            outcome.state.close(leave_uploads=True)
        else:
            self._joined.states[uid] = outcome
            self._ready_if_all_is_there()

    def _fail(self, kind: FailureKind, reason: str, uid: Uid | None = None, traceback: str = "") -> None:
        if not self._over:
            self.close()
            deploy = self._deploy
            self._on_failed(Failed(deploy.incarnation, deploy.partition, kind, reason, uid, traceback))

    def _ready_if_all_is_there(self) -> None:
        joined = self._joined
        if (
            not self._over
            and len(joined.outgoing) == len(self._expected_out)
            and len(joined.incoming) == len(self._expected_in)
            and len(joined.states) == len(self._keyed)
        ):
            self._over = True
            reached(fail_points.JOINED)
            self._on_ready(joined)


def _seat(uid: Uid, deploy: Deploy, plan: Plan, files: TreeFiles, store: BlobStore) -> Seat:
    return Seat(
        uid,
        deploy.partition,
        deploy.parallelism,
        plan.max_parallelism,
        deploy.roles.get(uid, NOTHING),
        deploy.options,
        store,
        files,
        Path(deploy.local),
    )


def _channels(plan: Plan, deploy: Deploy) -> tuple[set[ChannelId], set[ChannelId]]:
    """The channels between this partition and others: those that begin here, and those that end here."""
    own, parallelism = deploy.partition, deploy.parallelism
    edges = [edge for stage in plan.stages for edge in stage.edges]
    outgoing = {edge.channel(own, to) for edge in edges for to in edge.receivers(own, parallelism) if to != own}
    incoming = {edge.channel(by, own) for edge in edges for by in edge.senders(own, parallelism) if by != own}
    return outgoing, incoming
