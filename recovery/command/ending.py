"""`recovery stop`, `savepoint` and `cancel`: a running job is asked for an epoch, or to end.

Invariant: when `stop` and `savepoint` have printed an epoch, it is complete and pinned. Ctrl-C ends the waiting
and nothing else: what was asked for is done.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from recovery.command.arguments import Verbs, add_running_job, add_verb, attached_to, show
from recovery.command.exits import WrongUsage
from statebackend.durations import NotADuration, milliseconds
from statebackend.ids import Epoch

_STOP = """example:
  $ recovery stop --savepoint --checkpoints /data/clicks
  clicks-5f0c21aa has stopped with savepoint 212-2
"""

_SAVEPOINT = """example:
  $ recovery savepoint --checkpoints /data/clicks
  savepoint 213-2 of clicks-5f0c21aa
"""

_CANCEL = """example:
  $ recovery cancel --checkpoints /data/clicks
  clicks-5f0c21aa is cancelled; started again, it goes on from its last complete epoch
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of an ended job. `savepoint` is the epoch that was pinned, if one was asked for."""

    job: str
    savepoint: Epoch | None


def add_to(verbs: Verbs) -> None:
    """Add the verbs."""
    stopped = add_verb(verbs, "stop", "stop a running job after one more epoch, all output committed", _STOP, _stop)
    add_running_job(stopped)
    how = stopped.add_mutually_exclusive_group()
    how.add_argument("--savepoint", action="store_true", help="pin that epoch as a savepoint")
    how.add_argument("--drain", action="store_true", help="let all sources end, and windows and timers with them")
    stopped.add_argument("--dry-run", action="store_true", help="only say which job would be stopped")
    taken = add_verb(verbs, "savepoint", "take a savepoint of a running job", _SAVEPOINT, _savepoint)
    add_running_job(taken)
    taken.add_argument("--timeout", metavar="DURATION", default="10m", help="how long to wait for it (%(default)s)")
    cancelled = add_verb(verbs, "cancel", "end a running job at once", _CANCEL, _cancel)
    add_running_job(cancelled)
    cancelled.add_argument("--dry-run", action="store_true", help="only say which job would be cancelled")


def _stop(arguments: argparse.Namespace) -> None:
    with attached_to(arguments) as job:
        if arguments.dry_run:
            show(Ended(job.job, None), f"{job.job} (process {job.pid}) would be stopped", as_json=arguments.json)
            return
        epoch = None
        if arguments.drain:
            job.drain()
        else:
            epoch = job.stop(savepoint=arguments.savepoint)
        behind = f" with savepoint {epoch}" if epoch is not None else ""
        show(Ended(job.job, epoch), f"{job.job} has stopped{behind}", as_json=arguments.json)


def _savepoint(arguments: argparse.Namespace) -> None:
    try:
        seconds = milliseconds(arguments.timeout) / 1000
    except NotADuration as error:
        raise WrongUsage(f"--timeout: {error}") from error
    with attached_to(arguments) as job:
        epoch = job.savepoint(seconds)
        show(Ended(job.job, epoch), f"savepoint {epoch} of {job.job}", as_json=arguments.json)


def _cancel(arguments: argparse.Namespace) -> None:
    with attached_to(arguments) as job:
        if arguments.dry_run:
            show(Ended(job.job, None), f"{job.job} (process {job.pid}) would be cancelled", as_json=arguments.json)
            return
        job.cancel()
        text = f"{job.job} is cancelled; started again, it goes on from its last complete epoch"
        show(Ended(job.job, None), text, as_json=arguments.json)
