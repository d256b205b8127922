"""`recovery status`: how a running job stands."""

from __future__ import annotations

import argparse

from recovery.command.arguments import Verbs, add_running_job, add_verb, attached_to, show
from recovery.driver.status import RunStatus

_EXAMPLE = """example:
  $ recovery status --checkpoints /data/clicks
  clicks-5f0c21aa is running, with 2 partitions, since 3 rollbacks in generation 2
  last complete epoch: 212-2, all up to 212-2 committed
  partition 0: process 8f3a90d25b1e44c7
  partition 1: process 01b77c3d9e2f6a58
  standing by: 9c4de8a1f0b35726
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "status", "how a running job stands", _EXAMPLE, _run)
    add_running_job(parser)


def _run(arguments: argparse.Namespace) -> None:
    with attached_to(arguments) as job:
        status = job.status()
    show(status, in_words(status), as_json=arguments.json)


def in_words(status: RunStatus) -> str:
    """For people."""
    partitions = f"{status.parallelism} partition{'s' if status.parallelism > 1 else ''}"
    rollbacks = f"after {status.restarts} rollback{'' if status.restarts == 1 else 's'} in generation"
    committed = "nothing is committed yet" if status.committed is None else f"all up to {status.committed} committed"
    lines = [
        f"{status.job} is {status.state.value}, with {partitions}, {rollbacks} {status.generation or 'none yet'}",
        f"last complete epoch: {status.complete or 'none yet'}, {committed}",
    ]
    placed = sorted((has, worker) for worker, has in status.workers.items() if has is not None)
    lines += [f"partition {has}: process {worker}" for has, worker in placed]
    lines += [f"standing by: {worker}" for worker, has in status.workers.items() if has is None]
    if status.failure:
        lines.append(f"last failure: {status.failure}")
    return "\n".join(lines)
