"""A job that runs until it is stopped, for tests that do something to it from another process."""

from __future__ import annotations

from pathlib import Path

import recovery
from recovery import FailureRate, LocalProcesses, Passive
from recovery.events import AnyEvent
from snapshot import Generate, Program, Stream, ToFiles
from snapshot.connectors.memory.generate import Columns, Indices
from statebackend.columns import schema_of

PATIENCE = 60.0


def _rows(i: Indices) -> Columns:
    return {"k": i % 17, "v": i}


def program(output: Path) -> Program:
    rows = Generate(_rows, schema_of({"k": int, "v": int}), rate=2_000.0)
    return (
        Stream.read(rows, uid="rows").key_by("k").sum("v", uid="sums").write(ToFiles(str(output), "jsonl"), uid="out")
    )


def start(
    folder: Path, *, parallelism: int = 2, standbys: int = 1, lost_after: str = "30s", every: str = "150ms"
) -> recovery.Run:
    return recovery.run(
        program(folder / "output"),
        checkpoints=folder / "tree",
        job="endless",
        every=every,
        parallelism=parallelism,
        scheme=Passive(standbys=standbys, restarts=FailureRate(1000, "1s", delay=0)),
        launcher=LocalProcesses(),
        local=folder / "local",
        advanced={"lost_after": lost_after},
        progress=False,
    )


def wait_for(attached: recovery.Attached, kind: type[AnyEvent]) -> AnyEvent:
    """The next event of this kind that the job tells."""
    while True:
        event = attached.next_event(PATIENCE)
        assert event is not None, f"no {kind.__name__} came"
        if isinstance(event, kind):
            return event


def wait_until_all_run(attached: recovery.Attached) -> None:
    """All partitions run, and all standbys are there."""
    attached.follow()
    while True:
        status = attached.status()
        if status.state is recovery.RunState.RUNNING and None in status.workers.values() and status.committed:
            return
        assert attached.next_event(PATIENCE) is not None
