"""The target of simulated sinks: a server outside of the job, which keeps what is prepared, tokens and tables.

Invariant: a call takes effect in one step, wholly or not at all, and each call may be disturbed: it is refused, or its
answer is lost. A row is visible from the moment at which a call shows it, and never goes away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeAlias, TypeVar

from snapshot.connectors.staging.commit_tokens import Token
from snapshot.epochs.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from statebackend.errors import JobError
from statebackend.ids import Incarnation, Uid

ShownRow: TypeAlias = "tuple[Any, ...]"
"""The values of a row, in the order of its columns."""


_T = TypeVar("_T")


class TargetAway(JobError):
    """The target did not answer. The call may have been carried out."""


class Disturbance(Enum):
    """The fate of one call of the target."""

    NONE = auto()
    REFUSED = auto()
    """Nothing is done, and the caller gets an error."""
    LOST = auto()
    """It is done, and the caller gets an error."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows that became visible in one step: of which sink, by whom, and in which transaction, if in any."""

    job: JobId
    sink: Uid
    transaction: TransactionId | None
    rows: tuple[ShownRow, ...]


def _undisturbed(_: str) -> Disturbance:
    return Disturbance.NONE


def _unobserved(_: Shown) -> None:
    return None


@dataclass(slots=True)
class SimulatedTarget:
    """A target. `disturb` is asked, with the name of the call, before each call takes effect, and may take its time.

    `observe` hears of rows right before they become visible, and may object by raising.
    """

    disturb: Callable[[str], Disturbance] = _undisturbed
    observe: Callable[[Shown], object] = _unobserved
    shown: list[Shown] = field(default_factory=list)
    """All that became visible, in order."""
    _prepared: dict[Token, tuple[JobId, Uid, tuple[ShownRow, ...]]] = field(default_factory=dict)
    _committed: set[Token] = field(default_factory=set)
    _leases: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, sink: Uid) -> list[ShownRow]:
        """Return the rows of a sink that readers see, in the order in which they became visible."""
        return [row for shown in self.shown if shown.sink == sink for row in shown.rows]

    def table(self, sink: Uid, keys: int) -> Mapping[ShownRow, ShownRow]:
        """Return the last row of each key; so many leading columns are the key."""
        return {row[:keys]: row for row in self.rows(sink)}

    def pending(self, job: JobId) -> int:
        """Return how many transactions of a job are prepared, and neither committed nor aborted."""
        return sum(owner == job for owner, _, _ in self._prepared.values())

    def show(self, job: JobId, sink: Uid, rows: Sequence[ShownRow]) -> None:
        """Make rows visible at once."""
        self._call("show", lambda: self._show(Shown(job, sink, None, tuple(rows))))

    # --- transactions that the target keeps ---------------------------------------------------------------------------

    def prepare(self, token: Token, job: JobId, sink: Uid, rows: Sequence[ShownRow]) -> None:
        """Keep rows, invisible, until they are committed or aborted."""

        def prepare() -> None:
            if token not in self._committed:
                self._prepared[token] = job, sink, tuple(rows)

        self._call("prepare", prepare)

    def commit(self, token: Token) -> CommitOutcome:
        """Make prepared rows visible."""

        def commit() -> CommitOutcome:
            if token in self._committed:
                return CommitOutcome.ALREADY_COMMITTED
            if token not in self._prepared:
                return CommitOutcome.FAILED
            job, sink, rows = self._prepared[token]
            self._show(Shown(job, sink, token.transaction, rows))
            del self._prepared[token]
            self._committed.add(token)
            return CommitOutcome.COMMITTED

        return self._call("commit", commit)

    def abort(self, job: JobId, sink: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Drop what is prepared of a sink, by older attempts, but for what is named."""

        def abort() -> None:
            for token in list(self._prepared):
                made = parse_transaction_id(token.transaction)
                if (made.job, made.sink) == (job, sink) and may_be_aborted(token.transaction, older_than, named):
                    del self._prepared[token]

        self._call("abort", abort)

    # --- rows with a token --------------------------------------------------------------------------------------------

    def fence(self, producer: str) -> int:
        """Take a producer over, and return the lease to write with; no earlier lease of it holds any more."""

        def fence() -> int:
            self._leases[producer] = self._leases.get(producer, 0) + 1
            return self._leases[producer]

        return self._call("fence", fence)

    def has(self, token: Token) -> bool:
        """True if the token is committed."""
        return self._call("read the token", lambda: token in self._committed)

    def write(self, producer: str, lease: int, token: Token, job: JobId, sink: Uid, rows: Sequence[ShownRow]) -> bool:
        """Make rows visible together with their token; return False if the lease does not hold any more."""

        def write() -> bool:
            if self._leases.get(producer) != lease:
                return False
            self._show(Shown(job, sink, token.transaction, tuple(rows)))
            self._committed.add(token)
            return True

        return self._call("write", write)

    # --- in short -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Do nothing; raise `TargetAway` if the target does not answer."""
        self._call("check", lambda: None)

    def _show(self, shown: Shown) -> None:
        self.observe(shown)
        self.shown.append(shown)

    def _call(self, what: str, effect: Callable[[], _T]) -> _T:
        fate = self.disturb(what)
        if fate is Disturbance.REFUSED:
            raise TargetAway(f"the target refused to {what}")
        with self._lock:
            answer = effect()
        if fate is Disturbance.LOST:
            raise TargetAway(f"the answer to {what} was lost")
        return answer


_TARGETS: Final[dict[str, SimulatedTarget]] = {}


def target(name: str) -> SimulatedTarget:
    """Return the target of this name in this process; it is made when it is first asked for."""
    return _TARGETS.setdefault(name, SimulatedTarget())


def forget_target(name: str) -> None:
    """Forget the target of this name, with all rows."""
    _TARGETS.pop(name, None)
