"""Processes that write two transactions to files; each is killed one step later than the one before.

Invariant: what is in its journal was prepared; a transaction is committed only when it is in the journal.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from snapshot.connectors.files.sink import ToFiles
from snapshot.epochs.transaction_events import transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import Sealed, SinkContext
from snapshot.testing.sinks import SCHEMA, SinkEnvironment, attempt, write
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Partition, Uid

JOB, UID = JobId("a job"), Uid("out")
STEPS = 28
"""How many the process takes if nobody kills it."""

P = ParamSpec("P")
T = TypeVar("T")


def sink(folder: Path) -> ToFiles:
    return ToFiles(str(folder / "out"), "jsonl", roll_bytes=200)


def context(environment: SinkEnvironment, number: int) -> SinkContext:
    return SinkContext(JOB, UID, SCHEMA, attempt(number), Partition(0), environment, environment.deliver)


def rows_of(transaction: TransactionId) -> list[str]:
    return [f"{transaction}: row {number}" for number in range(10)]


def read_journal(folder: Path) -> list[tuple[TransactionId, CommitPayload]]:
    """What was prepared, in order; a line that is cut short was never written."""
    try:
        lines = (folder / "journal").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    whole = [line.rstrip("\n").partition(" ") for line in lines if line.endswith("\n")]
    return [(TransactionId(name.replace("%20", " ")), CommitPayload(Json(text))) for name, _, text in whole]


class Killer:
    """Kills this process before the step that was chosen."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.steps = 0

    def before(self, step: Callable[P, T]) -> Callable[P, T]:
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            self.tick()
            return step(*args, **kwargs)

        return run

    def tick(self) -> None:
        if self.steps == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1


def run(folder: Path, kill_at: int) -> None:
    """Write, prepare and commit two transactions, and die before that step."""
    killer = Killer(kill_at)
    os.fsync = killer.before(os.fsync)
    Path.open = killer.before(Path.open)  # type: ignore[method-assign,assignment]
    Path.rename = killer.before(Path.rename)  # type: ignore[method-assign]
    Path.mkdir = killer.before(Path.mkdir)  # type: ignore[method-assign]
    writer = sink(folder).open(context(SinkEnvironment(), 1))
    journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sealed: list[tuple[TransactionId, Sealed]] = []
    for n in range(2):
        transaction = transaction_id(JOB, UID, attempt(1), Partition(0), n)
        writer.begin(transaction)
        for row in rows_of(transaction):
            write(writer, [row])
        killer.tick()
        sealed.append((transaction, writer.seal()))
    for transaction, waiting in sealed:
        payload = waiting.prepare()
        assert payload is not None
        killer.tick()
        os.write(journal, f"{transaction.replace(' ', '%20')} {payload.value.text}\n".encode())
    for transaction, payload in read_journal(folder):
        writer.commit(transaction, payload)


def main(root: Path) -> None:
    """Let one process after the other run in a folder of its own; say what became of each."""
    for kill_at in range(STEPS + 1):
        folder = root / str(kill_at)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            run(folder, kill_at)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
