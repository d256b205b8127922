"""Reads of a key in the state of a running job, through the process that has the key.

Invariant: each read is answered once: with what the process found, or with the reason why there is no answer, a
process that is gone and an attempt that is over among them. A read never changes the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recovery.driver.attempts.workers import Workers
from recovery.driver.remote.command_messages import LiveRows, ReadLive
from recovery.driver.remote.commands import Reply
from recovery.driver.report.status import RunStatus
from recovery.driver.settings.job import JobSettings
from recovery.json_values import WrongText, typed_key
from snapshot.host.protocol.messages import ReadState, StateRead
from statebackend.errors import JobError
from statebackend.ids import Partition
from statebackend.keygroups import key_group_of, owner_of


class NotReadable(JobError):
    """The wanted state is not there, or not now; the message says why."""


@dataclass(frozen=True, slots=True)
class _Pending:
    worker: str
    partition: Partition
    reply: Reply


class LiveReads:
    """Asks processes on behalf of the driver's callers."""

    def __init__(self, settings: JobSettings, workers: Workers, status: Callable[[], RunStatus]) -> None:
        self._workers = workers
        self._status = status
        self._parallelism, self._most = settings.parallelism, settings.plan.max_parallelism
        self._keys = {uid: operator.inputs[0].key_type for uid, operator in settings.plan.keyed.items()}
        self._pending: dict[int, _Pending] = {}
        self._last = 0

    def read(self, wish: ReadLive, reply: Reply) -> None:
        """Ask the process that has the key, and answer `LiveRows`, or `NotReadable`."""
        key_type = self._keys.get(wish.uid)
        if key_type is None:
            known = ", ".join(sorted(self._keys)) or "none"
            reply(NotReadable(f"there is no operator {wish.uid!r} with keyed state; there are: {known}"))
            return
        try:
            canonical = key_type.encode(typed_key(wish.key, key_type))
        except WrongText as error:
            reply(NotReadable(str(error)))
            return
        group = key_group_of(key_type.hash_of(canonical), self._most)
        partition, status = owner_of(group, self._parallelism, self._most), self._status()
        worker = next((name for name, has in status.workers.items() if has == partition), None)
        if worker is None or worker not in self._workers.there or status.incarnation is None:
            reply(NotReadable(f"partition {partition}, which has the key, has no process just now; ask again"))
            return
        self._last += 1
        self._pending[self._last] = _Pending(worker, partition, reply)
        self._workers.send(worker, ReadState(status.incarnation, self._last, wish.uid, canonical, wish.state))

    def said(self, worker: str, said: StateRead) -> None:
        """Answer the read that this process has answered."""
        pending = self._pending.get(said.number)
        if pending is not None and pending.worker == worker:
            del self._pending[said.number]
            answer = NotReadable(said.problem) if said.problem else LiveRows(pending.partition, said.tables)
            pending.reply(answer)

    def lost(self, worker: str) -> None:
        """Answer the reads of a process that is gone, which answers no more."""
        for number in [number for number, one in self._pending.items() if one.worker == worker]:
            self._pending.pop(number).reply(NotReadable("the process that has the key is gone just now; ask again"))
