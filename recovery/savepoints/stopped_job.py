"""A job that is taken over while it does not run, to make epochs in its tree: claimed, written, published.

What always holds: whoever takes a job over has claimed its next generation, so that no driver that still runs somewhere
can complete anything any more; an epoch that is made here is there as a whole, and as the newest, or never was. A crash
leaves a claim, which the next start supersedes, perhaps files that nobody refers to (`recovery gc`), and an epoch that
is not yet pinned as a savepoint if it comes just before that.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Final

from recovery.attached import ConnectionLost, attach
from recovery.driver.claim import claim_next
from recovery.driver.reach import DriverSilent, JobNotRunning, home_of
from recovery.driver.tree import FencedOff, JournalInDoubt, note_end, propose
from recovery.losses import end_of
from recovery.savepoints import fail_points
from recovery.savepoints.fail_points import reached
from recovery.savepoints.job_tree import JobTree, journal_of
from recovery.savepoints.notes import provenance
from snapshot.journal_entries import Body, Completed, PinId, Pinned, Pinner
from snapshot.journal_writer import Fenced, Forgotten, JournalWriter, Refused, Won
from snapshot.layout import Content, ManifestFile, SharedFile, path_of
from snapshot.manifest import Manifest, ManifestKind, only_carries
from snapshot.manifest_json import digest, encode
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

_PATIENCE: Final = 10.0
"""Seconds in which a driver that runs has answered."""


class JobRuns(Exception):
    """The job runs, and would have to be stopped first; the message says where it runs and how."""


class NotAdmitted(Exception):
    """The journal does not admit what was to be done; the message is its reason. Nothing was done."""


class StoppedJob:
    """The tree of a job in the hands of `take_over`. One thread uses it."""

    def __init__(self, tree: JobTree, writer: JournalWriter, generation: Generation) -> None:
        self._writer = writer
        self._journal = journal_of(tree.store)
        self._tree = tree
        self.generation = generation

    @property
    def tree(self) -> JobTree:
        """The tree, with its journal as it was left by what was done here last."""
        return JobTree(self._tree.uri, self._tree.store, self._tree.birth, self._writer.state)

    @property
    def next_epoch(self) -> Epoch:
        """The epoch that would be made next."""
        return Epoch(self.generation, self._writer.state.newest_complete.number + 1)

    def names(self, partition: Partition, content: Content = Content.STATE) -> Callable[[], str]:
        """Names in the tree that nobody has used or will; asked for once per partition and content."""
        incarnation, numbers = Incarnation(self.generation, Attempt(0)), count(1)
        return lambda: path_of(SharedFile(incarnation, partition, next(numbers), content))

    def publish(self, manifest: Manifest) -> Epoch:
        """Let the job have this epoch, pinned as a savepoint; all files that it refers to are in the store already.

        The manifest's epoch is `next_epoch`. Raises `FencedOff` if somebody has started the job meanwhile.
        """
        data = encode(manifest)
        path = path_of(ManifestFile(manifest.epoch, token_hex(8)))
        self._tree.store.write(path, data)
        reached(fail_points.NEW_MANIFEST_WRITTEN)
        pending = any(one.committables for operator in manifest.operators for one in operator.subtasks)
        carried = only_carries(manifest, self._writer.state.newest_usable)
        self.propose(Completed(manifest.epoch, path, digest(data), pending, carried))
        reached(fail_points.NEW_EPOCH_ENTERED)
        self.pin(manifest.epoch)
        note_end(self._tree.store, self._writer.state)
        return manifest.epoch

    def pin(self, epoch: Epoch) -> None:
        """Let the epoch be a savepoint; it is none yet."""
        self.propose(Pinned(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT))

    def remade(self, manifest: Manifest, how: str) -> Manifest:
        """The same content as the next epoch of this generation, to be changed and published.

        `how` is the verb, for the notes. The caller owes that nothing in it is known to be committed: see
        `coming_back.Chosen.manifest`.
        """
        now = int(time.time() * 1000)
        return replace(
            manifest,
            epoch=self.next_epoch,
            attempt=Attempt(0),
            kind=ManifestKind.SAVEPOINT,
            created_at=now,
            parent=manifest.epoch,
            notes=provenance(manifest, how, self._tree.uri, now),
            journal=end_of(self._writer.state),
        )

    def propose(self, body: Body) -> None:
        """Bring this into the journal; `NotAdmitted`, `FencedOff` or `JournalInDoubt` if it is not there."""
        match propose(self._journal, self._writer, body):
            case Won():
                return
            case Refused(refusal):
                raise NotAdmitted(f"{self._tree.uri}: {refusal.text}")
            case Fenced(by):
                raise FencedOff(by)
            case Forgotten(number):
                raise JournalInDoubt(f"whether the journal's entry {number} is {body} cannot be told any more")


def take_over(tree: JobTree, verb: str, *, job_folder: Path | None = None) -> StoppedJob:
    """Claim a job that does not run. `verb` is what people find in the journal as the one who claimed it.

    `JobRuns` if it runs on this host, found out as `attach` does. One that runs on another host is fenced by the claim:
    its driver ends, and loses nothing that was complete.
    `JobOnItsWay` if it was moved away, or will be when somebody goes on with that.
    """
    refuse_if_it_runs(tree, job_folder)
    journal = journal_of(tree.store)
    writer = JournalWriter(journal.read())
    generation = claim_next(journal, writer, f"recovery {verb}, process {os.getpid()} on {socket.gethostname()}")
    reached(fail_points.TAKEN_OVER)
    return StoppedJob(tree, writer, generation)


def closed_job(tree: JobTree) -> StoppedJob:
    """A job whose journal is closed, in the hands of whoever goes on to move it: nothing can be brought in any more."""
    return StoppedJob(tree, JournalWriter(tree.state), tree.state.generation)


def refuse_if_it_runs(tree: JobTree, job_folder: Path | None = None) -> None:
    """`JobRuns` if the job's driver is on this host, also if it is paused; of another host nothing can be known."""
    try:
        with attach(tree.uri, job_folder=job_folder or home_of(tree.birth.job), timeout=_PATIENCE) as job:
            raise JobRuns(
                f"job {job.job} runs (driver process {job.pid}); stop it first: recovery stop --savepoint "
                f"--checkpoints {tree.uri}"
            )
    except DriverSilent as error:
        raise JobRuns(f"{error}; if it is paused, it would go on with the job: end that process first") from error
    except (JobNotRunning, ConnectionLost):
        return
