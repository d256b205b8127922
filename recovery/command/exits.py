"""The exit codes of the `recovery` command, and which error leads to which.

Invariant: a code means the same for every verb, and never means anything else in a later version.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from recovery.attached import ConnectionLost
from recovery.driver.claim import StartRefused
from recovery.driver.tree.address import JobNotRunning, NotAllowed
from recovery.driver.tree.identity import BirthLost, WrongJob
from recovery.driver.tree.owned import DamagedBroadcast
from recovery.json_values import WrongText
from recovery.offline.job_tree import NoSuchEpoch, UnusableEpoch
from recovery.offline.new_tree import TargetExists
from recovery.offline.reading import NoSuchState
from recovery.offline.stopped_job import JobRuns
from recovery.savepoints.comparing import CannotCompare
from recovery.savepoints.repairing import CannotRepair
from recovery.schemes.rolling_back import JobFailed
from snapshot.journal.entries import JournalError
from snapshot.tree.manifest import ManifestError
from statebackend.backends.backend import DamagedFile
from statebackend.canonical.schema import CanonicalError
from statebackend.entries import BrokenEntry
from statebackend.errors import JobError, OptionError, ProgramError, SavepointError, StoreError
from statebackend.keys.types import BrokenKey
from statebackend.snapshots.transfer import MissingFile, UnknownChecksum
from statebackend.state_reader import UnreadableState
from statebackend.tables.format.blocks import BlockError


class Exit(IntEnum):
    """The exit code of a command."""

    DONE = 0
    DECLINED = 1
    USAGE = 2
    NOT_RUNNING = 3
    NOT_ALLOWED = 4
    ENDED = 5
    NOTHING_THERE = 6
    DAMAGED = 7
    EXISTS = 8
    RUNS = 9
    UNFIT = 10
    FAILED = 11
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Final = {
    Exit.DONE: "done",
    Exit.DECLINED: "the job, or the store, cannot do it, or did not say whether it did",
    Exit.USAGE: "the command makes no sense as it was given",
    Exit.NOT_RUNNING: "there is no such job, or it does not run on this host",
    Exit.NOT_ALLOWED: "this user may not speak to the job",
    Exit.ENDED: "the job ended, or its driver died, before it was done",
    Exit.NOTHING_THERE: "the job has no such epoch, operator or state, or has it no more",
    Exit.DAMAGED: "what is to be read is damaged, missing, or of a newer version",
    Exit.EXISTS: "the target is there already, and is not replaced",
    Exit.RUNS: "the job runs, and has to be stopped first",
    Exit.UNFIT: "the program cannot be imported, is wrong, or does not fit what the job left",
    Exit.FAILED: "the job ran, and did not end well",
    Exit.INTERRUPTED: "Ctrl-C",
    Exit.TERMINATED: "SIGTERM",
}


class FoundDamage(Exception):
    """The verified tree is damaged; the message says how much of it."""


class WrongUsage(Exception):
    """The arguments make no sense together; the message says why."""


ERRORS: Final[tuple[tuple[type[Exception], Exit], ...]] = (
    (WrongUsage, Exit.USAGE),
    (WrongText, Exit.USAGE),
    (CanonicalError, Exit.USAGE),
    (CannotCompare, Exit.USAGE),
    (JobNotRunning, Exit.NOT_RUNNING),
    (BirthLost, Exit.DAMAGED),
    (WrongJob, Exit.NOT_RUNNING),
    (NotAllowed, Exit.NOT_ALLOWED),
    (NoSuchEpoch, Exit.NOTHING_THERE),
    (NoSuchState, Exit.NOTHING_THERE),
    (FoundDamage, Exit.DAMAGED),
    (UnusableEpoch, Exit.DAMAGED),
    (ManifestError, Exit.DAMAGED),
    (JournalError, Exit.DAMAGED),
    (DamagedFile, Exit.DAMAGED),
    (MissingFile, Exit.DAMAGED),
    (UnknownChecksum, Exit.DAMAGED),
    (StartRefused, Exit.DAMAGED),
    (CannotRepair, Exit.DAMAGED),
    (DamagedBroadcast, Exit.DAMAGED),
    (UnreadableState, Exit.DAMAGED),
    (BrokenEntry, Exit.DAMAGED),
    (BrokenKey, Exit.DAMAGED),
    (BlockError, Exit.DAMAGED),
    (TargetExists, Exit.EXISTS),
    (JobRuns, Exit.RUNS),
    (ConnectionLost, Exit.ENDED),
    (JobFailed, Exit.FAILED),
    (OptionError, Exit.USAGE),
    (ProgramError, Exit.UNFIT),
    (SavepointError, Exit.DECLINED),
    (JobError, Exit.DECLINED),
    (StoreError, Exit.DECLINED),
    (OSError, Exit.DECLINED),
)
"""The first that fits counts; any other error is a mistake of ours, and is shown in full."""


def exit_of(error: Exception) -> Exit | None:
    """Return the exit code for an error that people can do something about, None for any other."""
    return next((code for kind, code in ERRORS if isinstance(error, kind)), None)
