"""The address of a running job for other processes of its driver's host: a file with its port and its secret.

Invariant: the file is in the job's folder on the driver's host, never in its tree, and only its owner can read it; it
is there whole or not at all. A driver that ends takes its own file away; one that is killed leaves it, and a caller
that tries it finds no driver there. A file of another user is not believed. It stands for the driver's own tree, and
for no copy of it.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from recovery.driver.tree.identity import as_folder
from snapshot.host.net.tls import Tls
from snapshot.host.partition.folders import user_folder
from snapshot.host.protocol.messages import Address
from snapshot.ids import JobId
from statebackend import means
from statebackend.errors import JobError
from statebackend.stores.fsspec_store import same_place

FILE: Final = "driver.json"
_FORMAT: Final = "epochcut.driver"
_VERSION: Final = 1
_MOST: Final = 64 << 10


class JobNotRunning(JobError):
    """No driver of the job runs on this host; the message says where it was looked for, and what was found."""


class OtherTree(JobNotRunning):
    """The job that runs has another tree than the one that was asked for; the message names both."""


class DriverSilent(JobNotRunning):
    """The process of the job's driver is there and does not answer: it may be paused. The message names it."""


class NotAllowed(JobError):
    """The job runs, or has run, and this user may not speak to it; the message says why."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The address of a job's driver, and the proof that one may speak to it."""

    job: JobId
    tree: str
    """The URI of the job's tree, which tells it from a copy that names the same job."""
    address: Address
    pid: int
    secret: bytes = field(repr=False)
    tls: Tls | None = None
    """The files with which its connections are encrypted; their paths are absolute."""


class Made:
    """Files and folders that a start makes on its host before it is sure that the job runs.

    A start that is refused takes back what was not there before, and no file that it has not named itself.
    """

    def __init__(self) -> None:
        self._new: list[Path] = []

    def expect(self, *paths: Path) -> None:
        """Note the paths that are about to be made, in this order, without those that exist."""
        self._new += [path for path in paths if not path.exists()]

    def take_back(self) -> None:
        """Remove them, but no folder with something in it, and no file beside which another driver left its own."""
        for path in reversed(self._new):
            with suppress(OSError):
                if path.is_dir():
                    path.rmdir()
                elif not (path.parent / FILE).exists():
                    path.unlink()


def home_of(job: JobId) -> Path:
    """Return the folder of a job's files on a host, unless the job was started with another one."""
    return user_folder() / as_folder(job)


def leave(folder: Path, reach: Reach) -> None:
    """Write the file, in place of one that there may be, into this folder. `OSError` if it does not take the file."""
    content = {"format": _FORMAT, "version": _VERSION, **asdict(reach), "secret": reach.secret.hex()}
    fresh = folder / f".{FILE}-{means.token_hex(8)}"
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file)
        fresh.replace(folder / FILE)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def read(folder: Path) -> Reach:
    """Return what the last driver left; raise `JobNotRunning` if that is nothing, `NotAllowed` if it is not for us."""
    path = folder / FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would keep us waiting
    except FileNotFoundError:
        raise JobNotRunning(
            f"the job does not run on this host: no driver has left {folder / FILE}; if it runs elsewhere, run this "
            "there; if it was started with another folder (its option `local`), say --job-folder"
        ) from None
    except OSError as error:
        raise NotAllowed(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, encoding="utf-8") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise NotAllowed(f"{path} is not ours alone: it must be a file of this user, and closed to all others")
        return _parsed(path, file.read(_MOST))


def read_for(folder: Path, uri: str) -> Reach:
    """Read the same, if it is of the job with that tree; raise `OtherTree` if that is a copy, or a forgery, of it."""
    found = read(folder)
    if not same_place(found.tree, uri):
        raise OtherTree(
            f"the job of {uri} does not run on this host: the driver of {found.job} that left {folder / FILE} has "
            f"another tree, {found.tree}; name that one if its job is meant"
        )
    return found


def take_away(folder: Path, reach: Reach) -> None:
    """Remove the file, if it is still the one of this driver."""
    with suppress(OSError, JobNotRunning, NotAllowed):
        if read(folder).secret == reach.secret:
            (folder / FILE).unlink()


def _parsed(path: Path, text: str) -> Reach:
    try:
        found: object = json.loads(text)
        match found:
            case {
                "format": "epochcut.driver",
                "version": 1,
                "job": str(job),
                "tree": str(tree),
                "address": {"host": str(host), "port": int(port)},
                "pid": int(pid),
                "secret": str(secret),
                "tls": None | {"certificate": str(), "key": str(), "authorities": str()} as tls,
            }:
                files = None if tls is None else Tls(tls["certificate"], tls["key"], tls["authorities"])
                return Reach(JobId(job), tree, Address(host, port), pid, bytes.fromhex(secret), files)
            case {"format": "epochcut.driver", "version": int(version)}:
                raise JobNotRunning(f"{path} is of version {version}; the job runs with another version of epochcut")
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    raise JobNotRunning(f"{path} is damaged, so the job's driver cannot be reached; is the disk full?")
