"""A job's name, and what else is fixed when it is born: written into its tree once, and never changed.

Invariant: nothing is written before a start has checked all that it can; of any number of drivers that start a
new job in one tree, one begins it, and the others are refused; a tree that is begun anew after it was deleted is
another job, so that no transaction's id is ever made twice; where a tree is being made from what a job has
(`recovery.offline.new_tree`), no other job begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from recovery.driver.tree.evidence import about_lost_birth, left_without_birth
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.ids import JobId
from snapshot.tree.layout import JOB, MOVED, UNFINISHED
from statebackend import means
from statebackend.errors import JobError
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, LARGEST_MAX_PARALLELISM
from statebackend.stores.store import BlobNotFound, BlobStore, StoreUnavailable, UnsuitableStore

_FORMAT: Final = "epochcut.job"
_MOVED: Final = "epochcut.moved"
_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID: Final = re.compile(rf"({_NAME.pattern})-[0-9a-f]{{8}}")


class WrongJob(JobError, ValueError):
    """The tree belongs to another job, or to one that was born otherwise; the message says what to do."""


class JobMoved(WrongJob):
    """The job is somewhere else now; the message says where."""

    def __init__(self, uri: str, job: JobId, to: str) -> None:
        where = f"from {uri} " if uri else ""
        super().__init__(f"job {job} was moved {where}to {to}; use that; to begin another job there, empty the place")
        self.job, self.to = job, to


class BirthLost(WrongJob):
    """The tree of a job without its `job.json`; the message says what is there, and what to do."""


class JobOnItsWay(WrongJob):
    """The job is being moved; the message says where to, and what to do."""

    def __init__(self, to: str) -> None:
        super().__init__(
            f"the job is on its way to {to}, and is not started here any more; if that was interrupted, recovery move "
            f"--into {to} goes on with it; if it is done, start the job there"
        )
        self.to = to


@dataclass(frozen=True, slots=True)
class Birth:
    """The facts that are fixed when a job is born."""

    name: str
    job: JobId
    max_parallelism: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The job that a start is about; `is_new` if it is not born yet."""

    birth: Birth
    is_new: bool


def wanted_birth(store: BlobStore, uri: str, name: str | None, max_parallelism: int | None, parallelism: int) -> Wanted:
    """Return the job whose tree it is, or the one that would be born there; nothing is written.

    What is given must be what it was born with. `WrongJob` also where a job was moved away, or where a tree is made or
    was interrupted, which a new and empty job must not take the place of. `BirthLost` where there is a job already, but
    for its `job.json`. `ContradictingOptions` for a parallelism that a new job cannot have.
    """
    if name is not None:
        _check_name(name)
    try:
        birth = _birth_from(store.read(JOB))
    except BlobNotFound:
        _refuse_if_taken(store, uri)
        most = DEFAULT_MAX_PARALLELISM if max_parallelism is None else max_parallelism
        _check_new(parallelism, most)
        return Wanted(new_birth(name or "job", most), is_new=True)
    if name is not None and name != birth.name:
        raise WrongJob(
            f"the checkpoints at {uri} are those of job {birth.name!r}, not of {name!r}; say job={birth.name!r}, or "
            f"give {name!r} checkpoints of its own"
        )
    if max_parallelism is not None and max_parallelism != birth.max_parallelism:
        raise WrongJob(
            f"max_parallelism is {max_parallelism}, and job {birth.name!r} at {uri} was born with "
            f"{birth.max_parallelism}: it says which keys belong together and cannot change; leave the option out, or "
            "begin another job in an empty place"
        )
    if not 1 <= parallelism <= birth.max_parallelism:
        raise WrongJob(
            f"parallelism is {parallelism}, and job {birth.name!r} at {uri} was born with max_parallelism "
            f"{birth.max_parallelism}, which cannot change: 1 to {birth.max_parallelism} are possible; for more, begin "
            "another job in an empty place, with a greater max_parallelism"
        )
    return Wanted(birth, is_new=False)


@contextmanager
def naming_checkpoints(uri: str) -> Iterator[None]:
    """Let an error of the store say which option names the place, and what that has to be."""
    try:
        yield
    except (StoreUnavailable, UnsuitableStore) as error:
        error.args = (
            f"{error}; that is where the job's tree is to be, as option checkpoints says (checkpoints={uri!r}): a "
            "folder that this user may write to, or a URI such as 's3://bucket/jobs/clicks', which all hosts of the "
            "job reach",
        )
        raise


def bear(store: BlobStore, birth: Birth, uri: str) -> None:
    """Let the job be born; `WrongJob` if another start was quicker, or if the place was taken otherwise since.

    A crash leaves the job born or not; the next start finds out.
    """
    _refuse_if_taken(store, uri)
    store.create(JOB, bytes_of(birth))
    if store.read(JOB) != bytes_of(birth):
        raise WrongJob(f"another start has just begun a job at {uri}; start again to go on with that one")


def new_birth(name: str, max_parallelism: int) -> Birth:
    """Return a job with an id of its own; raise `WrongJob` if it cannot have this name, or so many key groups."""
    _check_name(name)
    _check_groups(max_parallelism)
    return Birth(name, JobId(f"{name}-{means.token_hex(4)}"), max_parallelism)


def find_birth(store: BlobStore, uri: str) -> Birth:
    """Return the job whose tree is there; raise `WrongJob` if there is none."""
    try:
        return _birth_from(store.read(JOB))
    except BlobNotFound:
        _refuse_if_moved(store, uri)
        if not store.list(UNFINISHED):
            _refuse_if_lost(store, uri)
        raise WrongJob(f"there is no job at {uri}: it has no {JOB}") from None


def mark_moved(store: BlobStore, birth: Birth, to: str) -> None:
    """Let the job be at another place from now on, for all who look for it.

    Its journal says so already, so that nothing starts here even if the machine crashes and the deletion is undone.
    """
    moved = json.dumps({"format": _MOVED, "version": _VERSION, "job": birth.job, "to": to}).encode()
    store.create(MOVED, moved)
    if store.read(MOVED) != moved:  # it is of an earlier move, from which the job came back
        store.delete(MOVED)
        store.create(MOVED, moved)
    store.delete(JOB)


def _check_new(parallelism: int, max_parallelism: int) -> None:
    if not 1 <= max_parallelism <= LARGEST_MAX_PARALLELISM:
        raise ContradictingOptions(f"max_parallelism is {max_parallelism}; 1 to {LARGEST_MAX_PARALLELISM} are possible")
    if not 1 <= parallelism <= max_parallelism:
        more = f", or give a max_parallelism of at least {parallelism}" if parallelism > max_parallelism else ""
        raise ContradictingOptions(
            f"parallelism is {parallelism}, and the job would be born with max_parallelism {max_parallelism}, which is "
            f"fixed for good then: choose 1 to {max_parallelism}{more}"
        )


def _refuse_if_taken(store: BlobStore, uri: str) -> None:
    """Refuse to begin a job where something is left of another one."""
    _refuse_if_moved(store, uri)
    _refuse_if_unfinished(store)
    _refuse_if_lost(store, uri)


def _refuse_if_moved(store: BlobStore, uri: str) -> None:
    try:
        data = store.read(MOVED)
    except BlobNotFound:
        return
    match _json_of(data):
        case {"format": "epochcut.moved", "version": 1, "job": str(job), "to": str(to)} if (
            name_in(job) is not None and to.isprintable()
        ):
            raise JobMoved(uri, JobId(job), to)
        case _:
            raise WrongJob(f"{uri}: there is a {MOVED} that says not where the job is: {data[:100]!r}")


def _refuse_if_unfinished(store: BlobStore) -> None:
    if store.list(UNFINISHED):
        raise WrongJob(
            "the checkpoints are not there as a whole: a fork, copy, move or bootstrap makes them just now, or was "
            f"interrupted, as {UNFINISHED}/ shows; wait for it or do it again, or empty the place to begin a new job"
        )


def _refuse_if_lost(store: BlobStore, uri: str) -> None:
    """Raise `BirthLost` if files of a job are there without its `job.json`, which is written before them.

    Not if another start was quicker, and `job.json` is there by now.
    """
    left = left_without_birth(store)
    if not left:
        return
    try:
        store.stat(JOB)
    except BlobNotFound:
        raise BirthLost(about_lost_birth(uri, left)) from None


def _json_of(data: bytes) -> object:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found


def name_in(job: str) -> str | None:
    """Return the name in a job's id; None if no job was ever born with this id."""
    match = _ID.fullmatch(job)
    return match[1] if match else None


def as_folder(job: JobId) -> str:
    """Return the name of the folder for a job's files; `WrongJob` for an id that would be another place."""
    if name_in(job) is None:
        raise WrongJob(f"{job[:100]!r} is no id of a job, so no folder is named after it")
    return job


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WrongJob(f"{name!r} is no name of a job; use 1 to 64 letters, digits, '_', '.' and '-'")


def _check_groups(count: int) -> None:
    if isinstance(count, bool) or not 1 <= count <= LARGEST_MAX_PARALLELISM:
        raise WrongJob(f"no job has {count} key groups (max_parallelism); there are 1 to {LARGEST_MAX_PARALLELISM}")


def bytes_of(birth: Birth) -> bytes:
    """Return the content of `job.json`."""
    return json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "name": birth.name,
            "job": birth.job,
            "max_parallelism": birth.max_parallelism,
        }
    ).encode()


def _birth_from(data: bytes) -> Birth:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WrongJob(f"{JOB} of the checkpoints is damaged: {error}") from error
    match found:
        case {"format": "epochcut.job", "version": 1, "name": str(name), "job": str(job), "max_parallelism": int(most)}:
            if name_in(job) != name:
                raise WrongJob(f"{JOB} of the checkpoints is damaged: job {job[:100]!r} cannot be named {name[:100]!r}")
            _check_groups(most)
            return Birth(name, JobId(job), most)
        case {"format": "epochcut.job", "version": int(version)} if version > _VERSION:
            raise WrongJob(f"{JOB} of the checkpoints has version {version}; a newer program wrote it, use that")
        case _:
            raise WrongJob(f"{JOB} of the checkpoints is not one: {data[:100]!r}")
