"""A savepoint for another number of partitions, by manifest work alone: which file each new partition will read.

Invariant: no state is read or written, only a manifest; a job that starts from it at that parallelism finds
what it would have found anyway. It is made of the newest epoch, unless the user gives up what came after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from recovery.decisions.notes import from_json
from recovery.decisions.restore import plan_restore
from recovery.offline.epoch_choice import Chosen, choose, go_back
from recovery.offline.job_tree import JobTree
from recovery.offline.stopped_job import refuse_if_it_runs, take_over
from snapshot.ids import JobId
from snapshot.journal.state import OutputMade
from snapshot.tree.manifest import Manifest, OperatorSnapshot, SubtaskSnapshot
from statebackend.errors import SavepointError
from statebackend.ids import Epoch, Partition, Uid
from statebackend.keygroups import KeyGroupRange, owner_of

HOW = "rescale"


class CannotRescale(SavepointError, ValueError):
    """The epoch cannot be dealt out to so many partitions; the message says why, and what can be done instead."""


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file of state that a partition will read whole, and the key groups of it that it keeps."""

    path: str
    size: int
    groups: tuple[KeyGroupRange, ...]


@dataclass(frozen=True, slots=True)
class PartToRead:
    """The files that one partition of an operator will start from, and the bytes that it will read.

    `of` are the old partitions that had any of its keys.
    """

    uid: Uid
    partition: Partition
    groups: KeyGroupRange | None
    of: tuple[Partition, ...]
    files: tuple[FileToRead, ...]
    splits: tuple[str, ...]
    committables: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RescalePlan:
    """A plan of a rescale. `stored` is what an epoch's state occupies, each file counted once; `bytes` is what all
    partitions together will read of it.
    """

    job: JobId
    epoch: Epoch
    before: int
    after: int
    parts: tuple[PartToRead, ...]
    stored: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The rescaled savepoint: `made` is None for a dry run.

    `passed_over` are newer epochs that cannot be used, with the reasons; `gives_up` are complete ones that the job
    will not come back to, and `repeats` is output that it will make once more. The epoch is not new if the job had it
    already.
    """

    plan: RescalePlan
    made: Epoch | None
    new: bool
    passed_over: tuple[str, ...]
    gives_up: tuple[Epoch, ...]
    repeats: OutputMade


def rescale(
    tree: JobTree,
    epoch: str,
    to: int,
    *,
    accept_duplicates: bool = False,
    dry_run: bool = False,
    job_folder: Path | None = None,
) -> Rescaled:
    """Make a savepoint for so many partitions, as the job's newest epoch.

    Raises `CannotRescale`, `JobRuns`, what `epoch_choice.choose` raises, and `FencedOff` if the job was started
    meanwhile; then nothing was done. A crash leaves the savepoint or none: then it can be done again. If the newest
    epoch has so many partitions already, nothing is done but to pin it if an earlier rescale made it.
    """
    refuse_if_it_runs(tree, job_folder)
    chosen = choose(tree, epoch, accept_duplicates=accept_duplicates)
    plan = plan_rescale(chosen.manifest, to)
    passed_over = tuple(map(str, chosen.found.passed_over))
    new = plan.before != to or chosen.given_up.is_anything
    if dry_run:
        return Rescaled(plan, None, new, passed_over, chosen.gives_up, chosen.repeats)
    if not new:
        if _is_unpinned(tree, chosen):
            take_over(tree, HOW, job_folder=job_folder).pin(plan.epoch)
        return Rescaled(plan, plan.epoch, False, passed_over, (), chosen.repeats)
    job = take_over(tree, HOW, job_folder=job_folder)
    chosen = go_back(job, epoch, accept_duplicates=accept_duplicates)
    plan = plan_rescale(chosen.manifest, to)
    made = job.publish(rescaled_to(job.remade(chosen.manifest, HOW), to))
    return Rescaled(plan, made, True, passed_over, chosen.gives_up, chosen.repeats)


def plan_rescale(manifest: Manifest, to: int) -> RescalePlan:
    """Plan what each of `to` partitions would start from; `CannotRescale` if that is impossible."""
    before = parallelism_of(manifest)
    if not 1 <= to <= manifest.max_parallelism:
        raise CannotRescale(
            f"{to} partitions are out of bounds: 1 to {manifest.max_parallelism}, the maximum parallelism of job "
            f"{manifest.job}, which was fixed when it was born; a job with another one can be bootstrapped"
        )
    if to != before:
        _refuse_in_flight(manifest)
    parts = tuple(
        _part(operator, subtask, manifest.max_parallelism)
        for operator in manifest.operators
        for subtask in plan_restore(operator, to, manifest.max_parallelism)
    )
    files = {file.path: file.size for part in parts for file in part.files}
    return RescalePlan(
        manifest.job, manifest.epoch, before, to, parts, sum(files.values()), sum(part.bytes for part in parts)
    )


def rescaled_to(manifest: Manifest, to: int) -> Manifest:
    """Return the same content for `to` partitions; the caller makes sure that `plan_rescale` allows it."""
    operators = (
        operator
        if operator.parallelism == to
        else replace(
            operator,
            parallelism=to,
            subtasks=tuple(
                replace(subtask, channels=()) for subtask in plan_restore(operator, to, manifest.max_parallelism)
            ),
        )
        for operator in manifest.operators
    )
    return replace(manifest, operators=tuple(operators))


def parallelism_of(manifest: Manifest) -> int:
    """Return the number of partitions that made the epoch, 0 if it has no operators, as when nothing was ever in it."""
    return max((operator.parallelism for operator in manifest.operators), default=0)


def _refuse_in_flight(manifest: Manifest) -> None:
    channels = sorted(
        {
            f"{state.channel.source} -> {operator.uid}"
            for operator in manifest.operators
            for subtask in operator.subtasks
            for state in subtask.channels
            if state.parts
        }
    )
    if channels:
        raise CannotRescale(
            f"epoch {manifest.epoch} has rows in flight ({', '.join(channels)}), which are dealt out only when the job "
            "starts: start it at the other parallelism directly, or let it take a savepoint, which has none"
        )


def _part(operator: OperatorSnapshot, subtask: SubtaskSnapshot, max_parallelism: int) -> PartToRead:
    state = subtask.state
    files = () if state is None else tuple(FileToRead(file.path, file.size, file.ranges) for file in state.files)
    return PartToRead(
        operator.uid,
        subtask.partition,
        None if state is None else state.range,
        () if state is None else _owners(state.range, operator.parallelism, max_parallelism),
        files,
        tuple(position.split for position in subtask.positions),
        len(subtask.committables),
        sum(file.size for file in files),
    )


def _owners(groups: KeyGroupRange, parallelism: int, max_parallelism: int) -> tuple[Partition, ...]:
    return tuple(sorted({owner_of(group, parallelism, max_parallelism) for group in groups}))


def _is_unpinned(tree: JobTree, chosen: Chosen) -> bool:
    """True if an earlier rescale made the epoch and did not get as far as pinning it."""
    origin = from_json(chosen.found.manifest.notes).origin
    return origin is not None and origin.how == HOW and chosen.found.record.epoch not in tree.savepoints
