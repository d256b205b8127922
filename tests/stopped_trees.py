"""Trees of a job that does not run, for tests of what is done with them; and how it goes on from there.

Invariant: the job's output is compared with the truth as a whole, so whatever was done with the tree in between
has lost and repeated nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import recovery
from recovery.driver.settings.options import in_their_places
from recovery.events import EpochCommitted
from recovery.offline.epoch_choice import choose
from recovery.offline.job_tree import JobTree, open_tree
from recovery.offline.stopped_job import take_over
from snapshot import Program
from snapshot.epochs.transaction_events import Committable, transaction_id
from snapshot.ids import JobId
from snapshot.tree.frozen_json import NULL
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Attempt, Epoch, Incarnation, Partition, Uid
from tests.jobs.catalogue import JOBS
from tests.jobs.comparison import Comparison
from tests.jobs.driver import Settings
from tests.jobs.job import OUT as SINK
from tests.jobs.job import Scale, sink_of
from tests.jobs.running_job import JobEnded, RunningJob

ROWS: Final = 8_000
RATE: Final = 4_000.0
PATIENCE: Final = 120.0
OUT: Final = Uid(SINK)

_PROGRAM = '''"""The job of a test."""

from tests.jobs.catalogue import JOBS
from tests.jobs.job import Scale, sink_of


def program():
    return JOBS["sequences"].program(Scale({rows}, {rate}, "{gate}"), sink_of("jsonl", "{output}"))
'''


@dataclass(frozen=True, slots=True)
class Stopped:
    """A job that does not run: its tree and its output, in a folder of its own. It keeps its last rows back until it is
    finished.
    """

    folder: Path
    job: JobId
    copied_from: tuple[Path, ...] = ()
    """Where it was before; output that was prepared there has been committed there."""

    @property
    def uri(self) -> str:
        return str(self.folder / "tree")

    @property
    def settings(self) -> Settings:
        return Settings(folder=str(self.folder), job="sequences", rows=ROWS, rate=RATE)

    @property
    def tree(self) -> JobTree:
        return open_tree(self.uri)

    def program(self) -> Program:
        settings = self.settings
        scale = Scale(settings.rows, settings.rate, str(settings.gate))
        return JOBS[settings.job].program(scale, sink_of(settings.sink, str(settings.output)))

    @property
    def program_file(self) -> Path:
        """A file with the function `program`."""
        file = self.folder / f"job_{self.folder.name.replace('-', '_')}.py"
        settings = self.settings
        text = _PROGRAM.format(rows=ROWS, rate=RATE, gate=settings.gate, output=settings.output)
        if not file.exists():
            file.write_text(text)
        return file

    def start(self, uri: str = "", parallelism: int = 2, **options: Any) -> recovery.Run:
        options.setdefault("accept_places", [f"file://{former}/output" for former in self.copied_from])
        return recovery.run(
            self.program(),
            checkpoints=uri or self.uri,
            every="100ms",
            parallelism=parallelism,
            local=self.folder / "local",
            progress=False,
            **in_their_places(options),
        )

    def finish(self, uri: str = "", parallelism: int = 2, **options: Any) -> Comparison:
        """Let it go on from a tree to its end, and compare all of its output."""
        self.settings.gate.touch()
        self.start(uri, parallelism, **options).wait(PATIENCE)
        return RunningJob(self.settings).compare()

    def copied(self, folder: Path) -> Stopped:
        """The same once more, in another folder, for whoever changes it; its output is there too."""
        for name in ("tree", "output"):
            shutil.copytree(self.folder / name, folder / name, dirs_exist_ok=True)
        return replace(self, folder=folder, copied_from=(*self.copied_from, self.folder))


def add_output(stopped: Stopped, *, held: bool = False) -> Epoch:
    """Let the tree have one more epoch, which carries output that nobody has committed, and nobody could; or, if it is
    `held`, rows that its sink holds back.
    """
    job = take_over(stopped.tree, "test")
    manifest = job.remade(choose(stopped.tree).manifest, "test")
    transaction = transaction_id(stopped.job, OUT, Incarnation(job.generation, Attempt(1)), Partition(0), 1)
    committable = Committable(transaction, manifest.epoch, CommitPayload(NULL, held=held))
    operators = (
        replace(one, subtasks=(replace(one.subtasks[0], committables=(committable,)), *one.subtasks[1:]))
        if one.uid == OUT
        else one
        for one in manifest.operators
    )
    return job.publish(replace(manifest, operators=tuple(operators)))


def stop_one(folder: Path, *, epochs: int = 2) -> Stopped:
    """Stop it with a savepoint behind some epochs; the newest three are retained."""
    stopped = Stopped(folder, JobId(""))
    run = stopped.start(job="sequences", retain=3)
    while sum(isinstance(event, EpochCommitted) for event in run.events) < epochs:
        assert not run._driver.over.wait(0.02), "the job is over"
    run.stop(savepoint=True, timeout=PATIENCE)
    return replace(stopped, job=run.job)


def kill_one(folder: Path) -> Stopped:
    """Kill it when an epoch has just been completed, so that the epoch's output is not committed by anybody.

    Of output that the epoch before has left to it some may be committed, which nobody has noted.
    """
    stopped = Stopped(folder, JobId(""))
    with RunningJob(stopped.settings) as job:
        job.set_crash(driver=f"epoch entered:2:{folder / 'crashed'}")
        job.start()
        try:
            job.wait_for_kind("Finished")
        except JobEnded:
            job.await_end()
    return replace(stopped, job=stopped.tree.birth.job)
