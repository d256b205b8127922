"""Drivers of a job in operating system processes of their own, with a real store and a real target.

A driver does what drivers do, in little: it claims, commits what its predecessor left, publishes one epoch with rows,
commits them and notes that. It can be stopped by SIGSTOP at named points, as by a long pause of its machine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path

from snapshot.epochs.token_commit import Ask, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.token_commit import Outcome as TokenOutcome
from snapshot.epochs.transaction_events import CommitOutcome, transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.journal.entries import Body, Claimed, Committed, Completed, Entry
from snapshot.journal.entry_json import decode_entry
from snapshot.journal.machine import Reason
from snapshot.journal.state import JournalState
from snapshot.journal.store import StoredJournal, fresh_nonce
from snapshot.journal.writer import Fenced, JournalWriter, Outcome, Refused, Won
from snapshot.tree.layout import JournalEntry, JournalSummary, ManifestFile, TreeItem, parse, path_of
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.store import BlobInfo, BlobStore, Creation
from statebackend.testing.blob_store import OpenStore

_PATIENCE = 120.0


class PassedOn(BlobStore):
    """A store that passes everything on to another; its subclasses say what they do besides."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store

    def create(self, path: str, data: bytes) -> Creation:
        return self.store.create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self.store.write(path, data)

    def read(self, path: str) -> bytes:
        return self.store.read(path)

    def stat(self, path: str) -> BlobInfo:
        return self.store.stat(path)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        return self.store.list(folder)

    def delete(self, path: str) -> None:
        self.store.delete(path)

    def remove_leftovers(self) -> int:
        return self.store.remove_leftovers()

    def upload(self, source: Path, path: str) -> None:
        self.store.upload(source, path)

    def download(self, path: str, target: Path) -> None:
        self.store.download(path, target)


# --- a race for the next generation


@dataclass(frozen=True, slots=True)
class Race:
    """What one racer was told, claim after claim, until it won."""

    outcomes: tuple[Outcome, ...]

    @property
    def won(self) -> Entry:
        last = self.outcomes[-1]
        assert isinstance(last, Won)
        return last.entry


class Start:
    """Where the racers of one process wait for the others."""

    barrier: threading.Barrier


def claim_until_won(open_store: OpenStore, name: str) -> Race:
    """Read the journal, wait until all others have, and claim the next generation until one is ours."""
    try:
        journal = StoredJournal(open_store())
        writer = JournalWriter(journal.read())
        Start.barrier.wait(_PATIENCE)
    except BaseException:
        with suppress(OSError):
            Start.barrier.abort()
        raise
    outcomes: list[Outcome] = []
    while not outcomes or not isinstance(outcomes[-1], Won):
        claim = Claimed(Generation(writer.state.generation + 1), name)
        outcomes.append(journal.propose(writer, fresh_nonce(), claim))
    return Race(tuple(outcomes))


def race_of_processes(open_store: OpenStore, racers: int = 32) -> list[Race]:
    """Let as many processes claim, each with a store of its own, all beginning at the same moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, type(open_store()).__module__])
    start = context.Barrier(racers)
    with ProcessPoolExecutor(racers, context, initializer=_take_place, initargs=(start,)) as pool:
        running = [pool.submit(claim_until_won, open_store, f"driver-{racer}") for racer in range(racers)]
        wait(running)
        return [racer.result() for racer in running]


def _take_place(start: threading.Barrier) -> None:
    Start.barrier = start


def check_race(races: list[Race], state: JournalState) -> None:
    """Every generation has exactly one owner, who knows it, and all others know that it is not theirs."""
    entries = sorted((race.won for race in races), key=lambda entry: entry.number)
    assert [entry.number for entry in entries] == list(range(1, len(races) + 1))
    bodies = [entry.body for entry in entries]
    assert [body.generation for body in bodies if isinstance(body, Claimed)] == list(range(1, len(races) + 1))
    assert tuple(entry.nonce for entry in entries) == state.nonces
    assert sum(isinstance(race.outcomes[0], Won) for race in races) == 1, "all began with the same claim"
    for race in races:
        for lost in race.outcomes[:-1]:
            assert isinstance(lost, Refused)
            assert lost.refusal.reason is Reason.GENERATION_TAKEN


# --- a target that keeps rows and tokens in one transaction


class SqliteTarget:
    """Leases, tokens and rows in one file. No constraint keeps rows from coming twice: only the protocol does."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._transaction() as database:
            database.execute("create table if not exists leases (producer text primary key, number integer not null)")
            database.execute("create table if not exists tokens (token text)")
            database.execute("create table if not exists rows (row text)")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=_PATIENCE, isolation_level=None)) as database:
            database.execute("begin immediate")
            yield database
            database.execute("commit")

    def fence(self, producer: str) -> int:
        """Take over the producer; whoever held it before has a lease that no longer holds."""
        with self._transaction() as database:
            database.execute(
                "insert into leases values (?, 1) on conflict (producer) do update set number = number + 1", (producer,)
            )
            return self._lease(database, producer)

    def has(self, token: str) -> bool:
        with self._transaction() as database:
            return database.execute("select 1 from tokens where token = ?", (token,)).fetchone() is not None

    def write(self, producer: str, lease: int, token: str, rows: tuple[str, ...]) -> TargetAnswer:
        """Rows and token in one transaction, if the lease still holds."""
        with self._transaction() as database:
            if self._lease(database, producer) != lease:
                return TargetAnswer.FENCED
            database.execute("insert into tokens values (?)", (token,))
            database.executemany("insert into rows values (?)", [(row,) for row in rows])
        return TargetAnswer.DONE

    def rows(self) -> list[str]:
        """All that readers of the target see."""
        with self._transaction() as database:
            return [row for (row,) in database.execute("select row from rows order by rowid")]

    @staticmethod
    def _lease(database: sqlite3.Connection, producer: str) -> int:
        (number,) = database.execute("select number from leases where producer = ?", (producer,)).fetchone()
        return int(number)


# --- a driver


class Point(Enum):
    """Where a driver can be paused."""

    PUBLISHING = "right before it creates the entry that completes its epoch"
    WRITING = "right before it writes rows and token, having found no token"
    NOTING = "right before it creates the entry that says that its epoch is committed"


Reached = Callable[[Point], None]


def go_on(point: Point) -> None:
    """Pause nowhere."""


class _Watched(PassedOn):
    """Tells of the points at which an entry is created, and notes the answers."""

    def __init__(self, store: BlobStore, reached: Reached) -> None:
        super().__init__(store)
        self._reached = reached
        self.told: list[Creation] = []

    def create(self, path: str, data: bytes) -> Creation:
        place = parse(path)
        if isinstance(place, JournalEntry):
            match decode_entry(place.number, data).body:
                case Completed():
                    self._reached(Point.PUBLISHING)
                case Committed():
                    self._reached(Point.NOTING)
                case _:
                    pass
        self.told.append(super().create(path, data))
        return self.told[-1]


class Driver:
    """One start of the job. `commits` are the outcomes of its commits, `told` the answers to its creates."""

    def __init__(self, store: BlobStore, target: SqliteTarget, reached: Reached = go_on) -> None:
        watched = _Watched(store, reached)
        self.told = watched.told
        self.commits: list[CommitOutcome] = []
        self.journal = StoredJournal(watched)
        self._store = store
        self._target = target
        self._reached = reached
        self.writer = JournalWriter(self.journal.read())
        self.generation = Generation(self.writer.state.generation + 1)
        assert isinstance(self.propose(Claimed(self.generation, f"driver-{self.generation}")), Won)

    def propose(self, body: Body) -> Outcome:
        return self.journal.propose(self.writer, fresh_nonce(), body)

    def recover(self) -> None:
        """Commit what an earlier start has published and may not have committed."""
        for record in self.writer.state.usable:
            if record.awaits_commit:
                assert isinstance(self.commit(record.epoch, record.manifest), Won)

    def run_epoch(self) -> Outcome:
        """Publish the next epoch, and commit its rows only if it is published; the outcome of what came last."""
        epoch = Epoch(self.generation, self.writer.state.newest_complete.number + 1)
        manifest = path_of(ManifestFile(epoch, fresh_nonce()))
        content = "\n".join(rows_of(epoch)).encode()
        self._store.write(manifest, content)
        digest = f"sha256:{sha256(content).hexdigest()}"
        published = self.propose(Completed(epoch, manifest, digest, has_committables=True))
        return self.commit(epoch, manifest) if isinstance(published, Won) else published

    def commit(self, epoch: Epoch, manifest: str) -> Outcome:
        rows = tuple(self._store.read(manifest).decode().split("\n"))
        made_by = Incarnation(epoch.generation, Attempt(0))
        token = transaction_id(JobId("job"), Uid("sink"), made_by, Partition(0), epoch.number)
        while True:
            self.commits.append(self._try_to_commit(token, rows))
            if self.commits[-1] is not CommitOutcome.RETRY_LATER:
                return self.propose(Committed(self.generation, epoch))

    def _try_to_commit(self, token: TransactionId, rows: tuple[str, ...]) -> CommitOutcome:
        commit, lease = TokenCommit(), 0
        step: Ask | TokenOutcome = commit.begin()
        while isinstance(step, Ask):
            match step.step:
                case TokenStep.FENCE:
                    lease = self._target.fence(token)
                    answer = TargetAnswer.DONE
                case TokenStep.READ_TOKEN:
                    answer = TargetAnswer.TOKEN_FOUND if self._target.has(token) else TargetAnswer.TOKEN_MISSING
                case TokenStep.WRITE:
                    self._reached(Point.WRITING)
                    answer = self._target.write(token, lease, token, rows)
            step = commit.handle(answer)
        return step.outcome


def rows_of(epoch: Epoch) -> list[str]:
    """The rows that an epoch brings."""
    return [f"{epoch}, row {number}" for number in range(3)]


# --- a driver that is paused and comes back


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a driver: the outcome of what it proposed last, and the answer to the create for it."""

    outcome: Outcome
    told: Creation
    commits: tuple[CommitOutcome, ...]


@dataclass(frozen=True, slots=True)
class PausedDriver:
    """A driver in a process that is stopped."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection

    def come_back(self) -> Report:
        """Let it run on to its end."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)
        report = self.pipe.recv()
        assert isinstance(report, Report)
        self.process.join()
        assert self.process.exitcode == 0
        return report


@contextmanager
def paused_driver(open_store: OpenStore, target: Path, point: Point) -> Iterator[PausedDriver]:
    """Start a driver in a process of its own, and have it when it is stopped at the point."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_drive, args=(open_store, target, point, there))
    process.start()
    there.close()
    try:
        assert here.recv() is point
        assert process.pid is not None
        stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stopped is not None
        assert (stopped.si_code, stopped.si_status) == (os.CLD_STOPPED, signal.SIGSTOP)
        yield PausedDriver(process, here)
    finally:
        process.kill()
        process.join()
        here.close()


def _drive(open_store: OpenStore, target: Path, stop_at: Point, pipe: Connection) -> None:
    points: list[Point] = []

    def reached(point: Point) -> None:
        points.append(point)
        if point is stop_at and points.count(point) == 1:
            pipe.send(point)
            signal.raise_signal(signal.SIGSTOP)

    driver = Driver(open_store(), SqliteTarget(target), reached)
    outcome = driver.run_epoch()
    pipe.send(Report(outcome, driver.told[-1], tuple(driver.commits)))


EXPECTED_COMMITS = {
    Point.PUBLISHING: (),
    Point.WRITING: (CommitOutcome.RETRY_LATER, CommitOutcome.ALREADY_COMMITTED),
    Point.NOTING: (CommitOutcome.COMMITTED,),
}


def check_that_a_paused_driver_changes_nothing(
    open_store: OpenStore, target_file: Path, point: Point, *, compacted: bool
) -> None:
    """Pause a driver, let another take the job over and go on, and have the first come back."""
    with paused_driver(open_store, target_file, point) as paused:
        target = SqliteTarget(target_file)
        successor = Driver(open_store(), target)
        tried = successor.writer.state.number
        successor.recover()
        assert isinstance(successor.run_epoch(), Won)
        if compacted:
            successor.journal.compact(successor.writer.state, 0)
        journal = StoredJournal(open_store())
        said, rows = journal.read(), target.rows()
        report = paused.come_back()
    assert report.outcome == Fenced(Generation(2))
    expected = Creation.CREATED if compacted else Creation.EXISTED
    assert report.told is expected, f"entry {tried} was {'free again' if compacted else 'taken'}"
    assert report.commits == EXPECTED_COMMITS[point]
    assert journal.read() == said
    assert target.rows() == rows
    assert rows == [row for record in said.usable for row in rows_of(record.epoch)], "each published row once"
    assert not any(record.awaits_commit for record in said.usable)
    _check_that_the_successor_goes_on(successor, target, said)
    assert journal_places(open_store()) == {JournalSummary(said.number + 2)} | (
        {JournalSummary(said.number)} if compacted else set()
    )


def journal_places(store: BlobStore) -> set[TreeItem | None]:
    """The entries and summaries that are there as objects, whether they count or not."""
    return {parse(info.path) for info in store.list("journal")}


def _check_that_the_successor_goes_on(successor: Driver, target: SqliteTarget, said: JournalState) -> None:
    """What the paused driver left behind hinders nobody, and goes with the next compaction."""
    rows = target.rows()
    assert isinstance(successor.run_epoch(), Won)
    state = successor.journal.read()
    assert state.number == said.number + 2
    assert target.rows() == [*rows, *rows_of(state.newest_complete)]
    successor.journal.compact(state, 0)
