"""The commands to the driver of a running job, and its answers, over a connection that has proved the secret.

Invariant: everything that is asked is answered once, with a value of the type that its command names, or with
the reason why not; answers may come in another order than what was asked.

A new command is a class here, a case in `driver.Driver.command`, and a method of `attached.Attached`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from recovery.driver.report.status import RunStatus
from recovery.events import AnyEvent
from recovery.inject.report import Injected
from recovery.inject.targets import Order
from statebackend.ids import Epoch, Partition, Uid

Answer = TypeVar("Answer")


class Command(Generic[Answer]):
    """Something that is asked; `Answer` is what is answered."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ShowStatus(Command[RunStatus]):
    """A request for the status of the job."""


@dataclass(frozen=True, slots=True)
class FollowEvents(Command[None]):
    """Tell of everything that happens from now on, as `Told`."""


@dataclass(frozen=True, slots=True)
class InjectFault(Command[Injected]):
    """Bring a fault about at once. A driver that is to be killed answers first."""

    order: Order


@dataclass(frozen=True, slots=True)
class TakeSavepoint(Command[Epoch]):
    """Take a savepoint while the job runs. The answer is its epoch, when it is complete and pinned."""


@dataclass(frozen=True, slots=True)
class StopJob(Command[None]):
    """Stop after one more epoch, which is pinned if it is to be a savepoint. Answered at once; `Stopped` is told."""

    savepoint: bool


@dataclass(frozen=True, slots=True)
class DrainJob(Command[None]):
    """Let all sources end where they are, and then the job. Answered at once; `Finished` is told."""


@dataclass(frozen=True, slots=True)
class CancelJob(Command[None]):
    """End at once. Answered before that; `Stopped` is told."""


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The present content of a process's states for a key, as Arrow streams by name: no epoch has it yet."""

    partition: Partition
    tables: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ReadLive(Command[LiveRows]):
    """A request for the present content of one state, or of all, for a key. The key is as a person types it."""

    uid: Uid
    key: str
    state: str | None


ToCarryOut = ShowStatus | InjectFault | TakeSavepoint | StopJob | DrainJob | CancelJob | ReadLive
"""The commands that the driver carries out on the job."""

AnyCommand = ToCarryOut | FollowEvents


@dataclass(frozen=True, slots=True)
class Asked:
    """A command on its way to the driver."""

    number: int
    command: AnyCommand


@dataclass(frozen=True, slots=True)
class Answered:
    """The command with this number is done."""

    number: int
    answer: object


@dataclass(frozen=True, slots=True)
class Declined:
    """The command with this number is not done; `reason` says why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Told:
    """Something has happened in the job."""

    event: AnyEvent


FromDriver = Answered | Declined | Told
