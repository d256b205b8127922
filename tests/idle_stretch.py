"""A job that was idle for some epochs after its last output, so that no epoch with output is left but a savepoint.

Invariant: its first rows are in the savepoint, and all others come after it; every row has gone out once.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

import recovery
from recovery.driver.settings.options import in_their_places
from recovery.driver.tree.manifests import without_output
from recovery.events import EpochCompleted
from recovery.offline.epoch_choice import choose, go_back
from recovery.offline.job_tree import NEWEST_SAVEPOINT, JobTree, journal_of, open_tree
from recovery.offline.stopped_job import StoppedJob, take_over
from recovery.savepoints.gc import clean_up, let_go, plan_cleanup
from snapshot import Files, KeyedProcess, ProcessContext, Program, Stream, ToFiles
from snapshot.epochs.transaction_events import Committable, transaction_id
from snapshot.journal.entries import Committed, Unpinned
from snapshot.operators.row_class import Row
from snapshot.tree.frozen_json import NULL
from snapshot.tree.manifest import CommitPayload, Manifest
from statebackend import ValueState
from statebackend.ids import Attempt, Epoch, Incarnation, Partition, Uid
from tests.upgraded_sequences import Decimal

EARLY: Final = range(200)
"""The rows before the savepoint."""
LATE: Final = range(200, 400)
IDLE: Final = 4
PATIENCE: Final = 120.0
ONCE: Final = Counter([*EARLY, *LATE])
LATE_TWICE: Final = ONCE + Counter(LATE)

_ROWS: Final = pa.schema([("row", pa.int64()), ("key", pa.string())])
_OUT: Final = Uid("out")
_PROGRAM: Final = '''"""The job of a test."""

from tests.idle_stretch import program as its


def program():
    return its("{rows}", "{output}")
'''


class Tallied(KeyedProcess):
    """Each row goes out, with how many of its key there were."""

    output: ClassVar = {"row": int, "tally": int}
    tally = ValueState(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.tally.set(self.tally.get() + 1)
        ctx.emit((event.row, self.tally.get()))


class TalliedInText(Tallied):
    """A later version, which keeps its tallies as text."""

    tally = ValueState(Decimal(), default=0)


def program(rows: str, output: str, of: type[Tallied] = Tallied) -> Program:
    read = Stream.read(Files(rows, "jsonl", _ROWS, grows="50ms"), uid="rows")
    return read.key_by("key").process(of, uid="tallies").write(ToFiles(output, "jsonl"), uid=_OUT)


@dataclass(frozen=True, slots=True)
class IdleJob:
    """The job, which does not run, and its output, in a folder of its own. Whoever goes on does so in one partition."""

    rows: Path
    folder: Path

    @property
    def uri(self) -> str:
        return str(self.folder / "tree")

    @property
    def tree(self) -> JobTree:
        return open_tree(self.uri)

    @property
    def savepoint(self) -> Epoch:
        return self.tree.record(NEWEST_SAVEPOINT).epoch

    def program(self, of: type[Tallied] = Tallied) -> Program:
        return program(str(self.rows), str(self.folder / "output"), of)

    @property
    def program_file(self) -> str:
        """As a command takes it."""
        file = self.folder / f"job_{self.folder.name.replace('-', '_')}.py"
        file.write_text(_PROGRAM.format(rows=self.rows, output=self.folder / "output"))
        return f"{file}:program"

    def start(self, uri: str = "", of: type[Tallied] = Tallied, **options: Any) -> recovery.Run:
        return recovery.run(
            self.program(of),
            checkpoints=uri or self.uri,
            every="50ms",
            parallelism=1,
            local=self.folder / "local",
            progress=False,
            **in_their_places(options),
        )

    def output(self) -> Counter[int]:
        """How often each row is to be seen."""
        files = sorted((self.folder / "output").glob("part-*"))
        return Counter(json.loads(line)["row"] for file in files for line in file.read_text().splitlines())

    def outcome(self, run: recovery.Run, expected: Counter[int]) -> Counter[int]:
        """What there is to be seen when the job has gone on for long enough to make that, and was stopped then."""
        until(run, lambda: self.output().total() >= expected.total())
        run.stop(savepoint=True, timeout=PATIENCE)
        return self.output()

    def tallies(self, rows: range) -> dict[int, int]:
        """What went out for these rows."""
        files = sorted((self.folder / "output").glob("part-*"))
        found = (json.loads(line) for file in files for line in file.read_text().splitlines())
        return {one["row"]: one["tally"] for one in found if one["row"] in rows}

    def copied(self, folder: Path) -> IdleJob:
        """The same once more, in another folder, for whoever changes it."""
        for name in ("tree", "output"):
            shutil.copytree(self.folder / name, folder / name)
        return replace(self, folder=folder)

    def lose_what_came_after(self) -> None:
        """The manifests of all epochs after the savepoint are gone."""
        savepoint, tree = self.savepoint, self.tree
        for record in tree.state.usable:
            if record.epoch > savepoint:
                tree.store.delete(record.manifest)


def idle_job(folder: Path) -> IdleJob:
    """Run it: 200 rows, a savepoint, 200 rows more, four epochs without any; then it is cancelled."""
    job = IdleJob(folder / "rows", folder)
    job.rows.mkdir()
    put(job.rows, EARLY)
    run = job.start()
    until(run, lambda: job.output() == Counter(EARLY))
    run.savepoint(PATIENCE)
    put(job.rows, LATE)
    until(run, lambda: job.output() == ONCE)
    so_far = _completed(run)
    until(run, lambda: _completed(run) > so_far + IDLE)
    run.cancel()
    run.wait(PATIENCE)
    return job


def idle_for(job: IdleJob, epochs: int) -> Epoch:
    """Let the tree be as after one epoch with output behind the savepoint, and so many without, with retention at its
    default and the journal compacted after each. Returns the one that had output, which is removed.
    """
    stopped = take_over(job.tree, "test")
    go_back(stopped, NEWEST_SAVEPOINT, accept_duplicates=True)
    with_output = add_output(stopped)
    for _ in range(epochs):
        _next(stopped, without_output(stopped.remade(choose(stopped.tree).manifest, "test")))
        let_go(stopped)
        clean_up(stopped.tree, plan_cleanup(stopped.tree))
        journal_of(stopped.tree.store).compact(stopped.tree.state, stopped.tree.state.number)
    return with_output


def add_output(stopped: StoppedJob) -> Epoch:
    """Let the tree have one more epoch, with output that is committed, as far as the journal knows."""
    with_output = _next(stopped, _with_output(stopped, choose(stopped.tree).manifest))
    stopped.propose(Committed(stopped.generation, with_output))
    return with_output


def _next(stopped: StoppedJob, manifest: Manifest) -> Epoch:
    """An epoch as a running job completes it, which is no savepoint."""
    epoch = stopped.publish(manifest)
    stopped.propose(Unpinned(next(pin.pin for pin in stopped.tree.state.pins if pin.epoch == epoch)))
    return epoch


def _with_output(stopped: StoppedJob, of: Manifest) -> Manifest:
    manifest = stopped.remade(of, "test")
    transaction = transaction_id(of.job, _OUT, Incarnation(stopped.generation, Attempt(1)), Partition(0), 1)
    committable = Committable(transaction, manifest.epoch, CommitPayload(NULL))
    operators = (
        replace(one, subtasks=(replace(one.subtasks[0], committables=(committable,)), *one.subtasks[1:]))
        if one.uid == _OUT
        else one
        for one in manifest.operators
    )
    return replace(manifest, operators=tuple(operators))


def put(folder: Path, rows: range) -> None:
    """Have these rows as input, if they are not yet."""
    written = folder / f".{rows.start}"
    written.write_text("".join(json.dumps({"row": row, "key": str(row % 7)}) + "\n" for row in rows))
    final = folder / f"{rows.start:06}.jsonl"
    if not final.exists():
        written.rename(final)


def _completed(run: recovery.Run) -> int:
    return sum(isinstance(event, EpochCompleted) for event in run.events)


def until(run: recovery.Run, reached: Callable[[], bool]) -> None:
    """Wait for it, as long as the job runs."""
    while not reached():
        assert not run._driver.over.wait(0.02), "the job is over"
