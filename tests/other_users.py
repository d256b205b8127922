"""Jobs of two users on one host: a process of root that becomes each of them. `python -m tests.other_users FOLDER`.

Invariant: what a user's process does it does with the rights of that user alone. It may not even read the
interpreter's files, so all is imported before, and the processes of a job are forked before it starts.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Final

import numpy as np
import pyarrow as pa
import rocksdict  # noqa: F401  # it is imported when a state is opened

import recovery
import recovery.driver.tree.address
import snapshot
import statebackend
from recovery.driver.settings.options import in_their_places
from snapshot import EOF, Collection, Program, Stream, ToDriver
from snapshot.host.net.tls import Tls
from snapshot.host.process.worker import run_worker
from snapshot.host.protocol.messages import Address

ALICE: Final = 61001
BOB: Final = 61002
SCHEMA: Final = pa.schema({"k": pa.string(), "n": pa.int64()})
KEYS, ROWS = 4, 40
PATIENCE: Final = 60.0


class As:
    """A process of this user that does something, which talks with the one that has started it."""

    def __init__(self, user: int, do: Callable[[As], object]) -> None:
        self._ours, its = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            its.close()
            self._ours.settimeout(PATIENCE)
            return
        self._ours = its
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            self.say(do(self))
        except BaseException:
            self.say(RuntimeError(traceback.format_exc()))
        finally:
            os._exit(0)

    def say(self, something: object) -> None:
        """Tell the other one, who waits for it."""
        data = pickle.dumps(something)
        self._ours.sendall(len(data).to_bytes(4) + data)

    def hear(self) -> Any:
        """Wait until the other one says something; an error is raised."""
        with self._ours.makefile("rb") as file:
            said = pickle.loads(file.read(int.from_bytes(file.read(4))))
        if isinstance(said, Exception):
            raise said
        return said

    def result(self) -> Any:
        """What it has said last."""
        said = self.hear()
        os.waitpid(self.pid, 0)
        return said


class ForkedBefore(recovery.LocalProcesses):
    """A launcher whose processes wait to be told where the driver is."""

    def __init__(self, processes: int) -> None:
        super().__init__()
        self._children = [self._fork() for _ in range(processes)]

    @staticmethod
    def _fork() -> tuple[int, socket.socket]:
        ours, its = socket.socketpair()
        pid = os.fork()
        if pid:
            its.close()
            return pid, ours
        ours.close()
        try:
            with its.makefile("rb") as file:
                told = file.read()
            if told:
                run_worker(*pickle.loads(told))
        finally:
            os._exit(0)

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[Any], object],
        tls: Tls | None = None,
    ) -> None:
        for slot, (_, child) in enumerate(self._children):
            child.sendall(pickle.dumps((driver, secret, slot, slot)))
            child.shutdown(socket.SHUT_WR)  # which counts though others have inherited it

    def appeared(self, launch: int, worker: str) -> bool:
        return True

    def lost(self, worker: str, *, silent: bool) -> None:
        pass

    def release(self) -> None:
        pass

    def stop(self, seconds: float) -> None:
        for pid, child in self._children:
            with suppress(OSError):
                child.shutdown(socket.SHUT_WR)
            child.close()
            os.waitpid(pid, 0)


def program() -> Program:
    rows = [(f"k{number % KEYS}", 1) for number in range(ROWS)]
    numbers = Stream.read(Collection([*rows, EOF(), ("never", 1)], SCHEMA), uid="numbers")
    return numbers.key_by("k").sum("n", uid="count").write(ToDriver(), uid="out")


def run_job(folder: Path, me: As, **options: Any) -> dict[str, Any]:
    """Run a job until its input is drained; in the middle of it, look as far as one is asked to."""
    launcher = ForkedBefore(2)
    with recovery.run(
        program(),
        checkpoints=folder / "tree",
        job="clicks",
        every="100ms",
        progress=False,
        launcher=launcher,
        **in_their_places(options),
    ) as run:
        rows = run.rows("out")
        counts = {str(row["k"]): row["n"] for _, row in zip(range(ROWS), rows, strict=False)}
        home = Path(options.get("local") or recovery.driver.tree.address.home_of(run.job))
        me.say({"home": home, "tree": folder / "tree", "state": names(home), "events": str(run.events_file)})
        seen = {str(place): look(place) for place in me.hear()}
        with recovery.attach(folder / "tree", job_folder=options.get("local")) as attached:
            seen["own"] = attached.status().state.value
        run.drain()
    return {"seen": seen, "counts": counts, "left": names(home)}


def names(folder: Path) -> list[str]:
    """Of all files below it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def look(place: Path) -> str:
    """Try to see what is there, or to write there."""
    for attempt in (
        lambda: list(place.iterdir()),
        place.read_bytes,
        lambda: (place / "mine").write_text("mine"),
        lambda: place.rename(place.with_name("gone")),
        lambda: recovery.attach(job_folder=place),
    ):
        try:
            attempt()
        except (PermissionError, NotADirectoryError, recovery.NotAllowed):
            continue
        return "seen or changed"
    return "refused"


def both(folder: Path) -> dict[str, Any]:
    """Both run a job at the same time; each looks for what the other one has."""
    users = {name: As(user, lambda me, name=name: run_job(folder / name, me)) for name, user in USERS.items()}  # type: ignore[misc]
    running = {name: user.hear() for name, user in users.items()}
    homes = [place for found in running.values() for place in (found["home"].parent, found["home"])]
    for name, other in (("alice", "bob"), ("bob", "alice")):
        users[name].say([running[other]["home"], running[other]["home"].parent, Path(running[other]["events"])])
    return {
        "modes": [oct(place.stat().st_mode & 0o7777) for place in homes],
        "state": {name: [path for path in found["state"] if "links" in path] for name, found in running.items()},
        "ended": {name: user.result() for name, user in users.items()},
    }


def squatted(folder: Path) -> dict[str, Any]:
    """Bob is there first; Alice is told, and has a way out."""
    place = folder / "tmp" / f"epochcut-{ALICE}"

    def refused(_me: As) -> str:
        try:
            recovery.run(program(), checkpoints=folder / "alice" / "tree", job="clicks", progress=False)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "it runs"

    def open_folder(_me: As) -> None:
        place.mkdir()
        place.chmod(0o777)

    told: dict[str, Any] = {}
    As(BOB, open_folder).result()
    told["open"] = As(ALICE, refused).result()
    As(BOB, lambda _: place.rmdir()).result()
    As(BOB, lambda _: place.symlink_to(folder / "alice")).result()
    told["link"] = As(ALICE, refused).result()
    told["alice"] = sorted(path.name for path in (folder / "alice").iterdir())
    alice = As(ALICE, lambda me: run_job(folder / "alice", me, local=folder / "alice" / "local"))
    alice.hear()
    alice.say([])
    told["elsewhere"] = alice.result()
    return told


USERS: Final = {"alice": ALICE, "bob": BOB}
TRIALS: Final = {"both": both, "squatted": squatted}


def import_all() -> None:
    """Import what a job may need."""
    pa.array(np.zeros(1)).to_pylist()
    for package in (statebackend, snapshot, recovery):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with suppress(ImportError):
                    import_module(module.name)


def main(trial: str, folder: Path) -> None:
    """Say as JSON what came of it."""
    for name, user in USERS.items():
        (folder / name).mkdir(0o700)
        os.chown(folder / name, user, user)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    tempfile.tempdir = str(folder / "tmp")
    os.chdir(folder)
    import_all()
    print(json.dumps(TRIALS[trial](folder), default=str))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
