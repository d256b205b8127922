"""A job that is taken over while it does not run, to make epochs in its tree: claimed, written, published.

Invariant: a command that takes a job over has claimed its next generation, so that no driver that still runs somewhere
can complete anything any more; an epoch that is made here is there as a whole, and as the newest, or never was. A crash
leaves a claim, which the next start supersedes, perhaps files without a reference (`recovery gc`), and an epoch that is
not yet pinned as a savepoint if it comes just before that.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Final

from recovery.attached import ConnectionLost, attach
from recovery.decisions.losses import end_of
from recovery.decisions.notes import provenance
from recovery.driver.claim import claim_next
from recovery.driver.tree.address import DriverSilent, JobNotRunning, NotAllowed, home_of, read
from recovery.driver.tree.owned import FencedOff, JournalInDoubt, note_end, propose
from recovery.offline import fail_points
from recovery.offline.fail_points import reached
from recovery.offline.job_tree import JobTree, journal_of
from snapshot.ids import JobId
from snapshot.journal.entries import Body, Completed, PinId, Pinned, Pinner
from snapshot.journal.writer import Fenced, Forgotten, JournalWriter, Refused, Won
from snapshot.tree.layout import Content, ManifestFile, SharedFile, path_of
from snapshot.tree.manifest import Manifest, ManifestKind, only_carries
from snapshot.tree.manifest_json import digest, encode
from statebackend.errors import JobError, SavepointError
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

_PATIENCE: Final = 10.0
"""Seconds in which a driver that runs has answered."""


class JobRuns(JobError):
    """The job runs, and would have to be stopped first; the message says where it runs and how."""


class NotAdmitted(SavepointError):
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
        """Return the tree, with its journal as the last step here left it."""
        return JobTree(self._tree.uri, self._tree.store, self._tree.birth, self._writer.state)

    @property
    def next_epoch(self) -> Epoch:
        """Return the id of the epoch that would be made next."""
        return Epoch(self.generation, self._writer.state.newest_complete.number + 1)

    def names(self, partition: Partition, content: Content = Content.STATE) -> Callable[[], str]:
        """Return a function that makes names never used in the tree; to be asked for once per partition and content."""
        incarnation, numbers = Incarnation(self.generation, Attempt(0)), count(1)
        return lambda: path_of(SharedFile(incarnation, partition, next(numbers), content))

    def publish(self, manifest: Manifest) -> Epoch:
        """Publish this epoch of the job, pinned as a savepoint; all files that it refers to are in the store already.

        The manifest's epoch is `next_epoch`. Raises `FencedOff` if the job was started meanwhile.
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
        """Pin the epoch as a savepoint; it is none yet."""
        self.propose(Pinned(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT))

    def remade(self, manifest: Manifest, how: str) -> Manifest:
        """Return the same content as the next epoch of this generation, to be changed and published.

        `how` is the verb, for the notes. The caller makes sure that nothing in the manifest is known to be committed:
        see `epoch_choice.Chosen.manifest`.
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
        """Append this to the journal; `NotAdmitted`, `FencedOff` or `JournalInDoubt` if it is not there."""
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
    """Claim a job that does not run; `verb` stands in the journal as the claimant.

    `JobRuns` if it runs on this host, found out as `attach` does. One that runs on another host is fenced by the claim:
    its driver ends, and loses nothing that was complete. `JobOnItsWay` if it was moved away, or will be when that move
    is continued.
    """
    refuse_if_it_runs(tree, job_folder)
    journal = journal_of(tree.store)
    writer = JournalWriter(journal.read())
    generation = claim_next(journal, writer, f"recovery {verb}, process {os.getpid()} on {socket.gethostname()}")
    reached(fail_points.TAKEN_OVER)
    return StoppedJob(tree, writer, generation)


def closed_job(tree: JobTree) -> StoppedJob:
    """Return a job whose journal is closed, for a move to go on; nothing can be proposed to it any more."""
    return StoppedJob(tree, JournalWriter(tree.state), tree.state.generation)


def refuse_if_it_runs(tree: JobTree, job_folder: Path | None = None) -> None:
    """Raise `JobRuns` if the job's driver is on this host, also if it is paused; other hosts are not checked."""
    _refuse(tree.uri, job_folder or home_of(tree.birth.job))


def refuse_second_start(job: JobId, uri: str, folders: Iterable[Path]) -> None:
    """Raise `JobRuns` if a driver of the job is on this host, also if it is paused; its address is in one of `folders`.

    A driver that does not answer and had the number of this process is gone: containers begin to count anew.
    """
    for folder in folders:
        with suppress(JobNotRunning, NotAllowed):
            left = read(folder)
            try:
                if left.job == job:
                    _refuse(uri, folder)
            except JobRuns as error:
                if isinstance(error.__cause__, DriverSilent) and left.pid == os.getpid():
                    continue
                raise JobRuns(f"{error}; or start with take_over=True, which ends that driver's run") from error


def _refuse(uri: str, folder: Path) -> None:
    try:
        with attach(uri, job_folder=folder, timeout=_PATIENCE) as job:
            raise JobRuns(
                f"job {job.job} runs (driver process {job.pid}); stop it first: recovery stop --savepoint "
                f"--checkpoints {uri}"
            )
    except DriverSilent as error:
        raise JobRuns(f"{error}; if it is paused, it would go on with the job: end that process first") from error
    except (JobNotRunning, ConnectionLost):
        return
