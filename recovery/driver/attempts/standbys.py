"""Tell standbys of each complete epoch, so that the next role finds them ready.

Invariant: a process is told to stand by once, and then of one epoch at a time: when it has answered, of the newest. So
a slow standby hears of fewer epochs, and the job never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from recovery.driver.attempts.workers import Workers
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.manifests import states_in
from recovery.driver.tree.owned import Tree
from snapshot.host.protocol.messages import Follow, Followed, StandBy
from snapshot.host.protocol.options import Following
from statebackend.errors import JobError
from statebackend.ids import Epoch, Partition

Trouble = Callable[[str, BaseException], object]


class CannotFollow(JobError):
    """A process that stands by could not get an epoch ready; it tries the next one, and the job goes on as before."""


@dataclass(slots=True)
class _Standby:
    busy: bool = False
    heard: Epoch | None = None
    has: Epoch | None = None
    hindered: bool = False
    only: Partition | None = None
    """It follows this partition alone, as that is to move there."""


class Standbys:
    """The processes without a role. All calls come in the loop's thread; `trouble` hears what hinders one, once."""

    def __init__(self, settings: JobSettings, workers: Workers, tree: Tree, trouble: Trouble) -> None:
        self._settings = settings
        self._workers = workers
        self._tree = tree
        self._trouble = trouble
        self._standbys: dict[str, _Standby] = {}
        self._newest: Epoch | None = None
        self._follow: Follow | None = None
        self._prepared: tuple[str, Partition] | None = None
        self._left_out = ""

    @property
    def ready(self) -> Mapping[str, Epoch]:
        """Return which epoch each process has ready, without those that have none."""
        return {worker: standby.has for worker, standby in self._standbys.items() if standby.has is not None}

    @property
    def only(self) -> Mapping[str, Partition]:
        """Return the partition of each process that follows one partition alone."""
        return {worker: standby.only for worker, standby in self._standbys.items() if standby.only is not None}

    @property
    def newest(self) -> Epoch | None:
        """Return the newest complete epoch."""
        return self._newest

    def prepare(self, move: tuple[str, Partition] | None) -> None:
        """Have this free process open the state of this partition, in place of the move before; None for no move."""
        if move == self._prepared:
            return
        before, self._prepared = self._prepared, move
        for worker in dict.fromkeys(worker for worker, _ in filter(None, (before, move))):
            if worker in self._workers.there:
                self._standbys.pop(worker, None)
                self._begin(worker)
        self._tell_all()

    def begin_early(self, worker: str, partition: Partition) -> None:
        """Have this process open the state of the partition that it will have when the job has started."""
        self._standbys[worker] = _Standby(only=partition)
        self._workers.send(worker, self._stand_by(Following.OPEN, partition, awaited=True))
        self._tell_all()

    def leave_out(self, worker: str) -> None:
        """Have this process not stand by once it has no role: it is about to leave (see `dismissed`)."""
        self._left_out = worker

    def look(self, deployed: Collection[str]) -> None:
        """Keep track of the processes without a role, after one has come or all roles were dealt out."""
        if self._prepared is not None and self._prepared[0] in deployed:
            self._prepared = None
        if self._left_out in deployed:
            self._left_out = ""
        there = self._workers.there
        for worker in [known for known in self._standbys if known in deployed or known not in there]:
            del self._standbys[worker]
        if self._settings.scheme.ready is Following.WARM:
            return
        for worker in there:
            if worker not in deployed and worker not in self._standbys and worker != self._left_out:
                self._begin(worker)
        self._tell_all()

    def lost(self, worker: str) -> None:
        """Forget a process that is gone."""
        self._standbys.pop(worker, None)

    def dismissed(self, worker: str, deployed: Collection[str]) -> None:
        """Forget a process that was let go as one too many; one that was to leave and has not stands by again."""
        self._standbys.pop(worker, None)
        self._left_out = ""
        self.look(deployed)

    def completed(self, epoch: Epoch) -> None:
        """Tell the processes of an epoch that is complete, or that the job goes on from."""
        self._newest, self._follow = epoch, None
        self._tell_all()

    def followed(self, worker: str, message: Followed) -> None:
        """Take a process's answer, and tell it of the newest epoch if it has not heard of it."""
        standby = self._standbys.get(worker)
        if standby is None:
            return
        standby.busy, standby.has = False, message.has
        if message.problem and not standby.hindered:
            self._trouble(
                f"{worker}, which stands by, getting epoch {message.heard} ready", CannotFollow(message.problem)
            )
        standby.hindered = bool(message.problem)
        self._tell_all()

    def _begin(self, worker: str) -> None:
        """Tell a process once how to stand by; one that is to be warm alone forgets what it was told before."""
        move = self._prepared
        only = move[1] if move is not None and move[0] == worker else None
        how = self._settings.scheme.ready if only is None else Following.OPEN
        if how is not Following.WARM:
            self._standbys[worker] = _Standby(only=only)
        self._workers.send(worker, self._stand_by(how, only))

    def _tell_all(self) -> None:
        for worker, standby in self._standbys.items():
            if self._newest is not None and not standby.busy and standby.heard != self._newest:
                standby.busy, standby.heard = True, self._newest
                self._workers.send(worker, self._news(self._newest))

    def _news(self, epoch: Epoch) -> Follow:
        if self._follow is None:
            settings = self._settings
            self._follow = Follow(epoch, states_in(self._tree.manifest(epoch), settings.plan, settings.parallelism))
        return self._follow

    def _stand_by(self, how: Following, only: Partition | None, *, awaited: bool = False) -> StandBy:
        settings = self._settings
        return StandBy(
            settings.job,
            how,
            settings.pickled_plan,
            settings.parallelism,
            settings.options.host,
            settings.store,
            settings.local,
            only,
            awaited,
        )
