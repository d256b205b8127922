"""Processes that write two transactions to a Delta table; each is killed one step later than the one before.

Invariant: what is in its journal was prepared; a transaction is committed only when it is in the journal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet

from snapshot import ToDelta
from snapshot.connectors.delta.table import DeltaPlace
from snapshot.epochs.transaction_events import transaction_id
from snapshot.ids import TransactionId
from snapshot.program.sink import Sealed
from snapshot.testing.sinks import SCHEMA, SinkEnvironment, attempt, write
from statebackend.ids import Partition
from tests.file_sink_worker import JOB, UID, Killer, context, read_journal, rows_of

STEPS = 26
"""How many the process takes if nobody kills it."""


def sink(folder: Path) -> ToDelta:
    return ToDelta(str(folder / "out"), create=True)


def run(folder: Path, kill_at: int) -> None:
    """Write, prepare and commit two transactions, and die before that step."""
    assert sink(folder).examine(JOB, UID, SCHEMA) == []
    killer = Killer(kill_at)
    table, fsync = deltalake.DeltaTable, os.fsync
    os.fsync = killer.before(fsync)
    pyarrow.parquet.write_table = killer.before(pyarrow.parquet.write_table)
    table.__init__ = killer.before(table.__init__)  # type: ignore[method-assign]
    table.create_write_transaction = killer.before(table.create_write_transaction)  # type: ignore[method-assign]
    DeltaPlace.missing = killer.before(DeltaPlace.missing)  # type: ignore[method-assign]
    DeltaPlace.sync_log = killer.before(DeltaPlace.sync_log)  # type: ignore[method-assign]
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
    os.fsync = fsync  # how many entries of the log are synced depends on the clock
    for transaction, payload in read_journal(folder):
        for _ in range(2):
            killer.tick()
            writer.commit(transaction, payload)


def main(root: Path) -> None:
    """Let one process after the other run in a folder of its own; say what became of each."""
    pa.array(["a text"])  # loads pandas here, which would take every process longer than all else
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
