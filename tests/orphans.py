"""Jobs whose driver is killed while each of their processes is in the middle of slow calls of a user's function.

Invariant: whatever the driver has started, and what that has started, is watched by the kernel's own word for
each process, and killed in the end.

    python -m tests.orphans --tries 20
    python -m tests.orphans --tries 3 --spark
"""

from __future__ import annotations

import argparse
import os
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import recovery
from recovery import LocalProcesses, Passive
from snapshot import Generate, KeyedProcess, ProcessContext, Program, Stream, ToFiles
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.operators.row_class import Row
from statebackend.columns import schema_of

PARALLELISM: Final = 2
SLOW: Final = 0.02
"""Seconds that a call of the function takes."""
_PATIENCE: Final = 120.0
_WORD: Final = b"."
_ROOT: Final = Path(__file__).parent.parent


class Slow(KeyedProcess):
    """Says once, in each partition, that it is at work."""

    def __init__(self, said: str, call: float) -> None:
        self._said, self._call = said, call
        self._began = False

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        if not self._began:
            object.__setattr__(self, "_began", True)
            with open(self._said, "w") as said:  # noqa: PTH123  a named pipe
                said.write(_WORD.decode())
        time.sleep(self._call)
        ctx.emit((event.k, event.i))


def _rows(i: Indices) -> Columns:
    return {"k": i % 64, "i": i}


def program(folder: Path, call: float) -> Program:
    rows = Stream.read(Generate(_rows, schema_of({"k": int, "i": int})), uid="rows")
    slow = rows.key_by("k").process(Slow(str(folder / "said"), call), uid="slow", schema={"k": int, "i": int})
    return slow.write(ToFiles(str(folder / "output"), "jsonl"), uid="out")


def drive(folder: Path, call: float, *, spark: bool) -> None:
    """The driver: run the job until it is killed."""
    session = None
    if spark:
        from tests.jobs.driver import session as session_of

        session = session_of(f"local[{PARALLELISM + 1}]")
    recovery.run(
        program(folder, call),
        session,
        checkpoints=folder / "tree",
        local=folder / "local",
        every="1s",
        parallelism=PARALLELISM,
        scheme=Passive(standbys=1),
        launcher=None if spark else LocalProcesses(),
        progress=False,
    ).wait()


def orphans_of(folder: Path, seconds: float, call: float = SLOW, *, spark: bool = False) -> list[str]:
    """Start the job, kill its driver while the function is being called in all partitions, and say which processes of
    the job are there so many seconds later.
    """
    said = folder / "said"
    os.mkfifo(said)
    with _driver(folder, call, spark=spark) as driver, said.open("r+b", buffering=0) as saying:
        for _ in range(PARALLELISM):
            assert select.select([saying], [], [], _PATIENCE)[0], (folder / "log.txt").read_text()[-3000:]
            assert saying.read(len(_WORD)) == _WORD
        processes = _descendants(driver.pid)
        driver.kill()
        return _alive_after(processes, seconds)


@contextmanager
def _driver(folder: Path, call: float, *, spark: bool) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.orphans", "--drive", str(folder), f"--call={call}"]
    command += ["--spark"] if spark else []
    with (folder / "log.txt").open("w") as log, ExitStack() as stack:
        driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=_ROOT)
        stack.callback(driver.wait)
        stack.callback(driver.kill)
        yield driver


def _descendants(pid: int) -> dict[int, str]:
    """All processes that it has started, and those that they have started, with their commands."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found: dict[int, str] = {}
    left = [pid]
    while left:
        for child in children.get(left.pop(), ()):
            left.append(child)
            with suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return found


def _alive_after(processes: dict[int, str], seconds: float) -> list[str]:
    """Those that have not ended after so long; they are killed."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for pid in processes:
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                stack.callback(os.close, handle)
                selector.register(handle, selectors.EVENT_READ, pid)
        deadline = time.monotonic() + seconds
        while (watched := selector.get_map()) and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fd)
        alive = []
        for key in watched.values():
            alive.append(f"{key.data}: {processes[key.data]}")
            signal.pidfd_send_signal(key.fd, signal.SIGKILL)
    return alive


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Kill drivers in the middle of slow calls and count what is left.")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--call", type=float, default=SLOW, help="seconds that each call of the function takes")
    parser.add_argument("--spark", action="store_true", help="partitions are tasks of Spark on this machine")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.drive is not None:
        drive(given.drive, given.call, spark=given.spark)
        return 0
    without = 0
    for number in range(given.tries):
        with tempfile.TemporaryDirectory(prefix="epochcut-orphans-") as folder:
            orphans = orphans_of(Path(folder), given.seconds, given.call, spark=given.spark)
        without += not orphans
        print(f"try {number + 1}: {len(orphans)} left after {given.seconds} s", *orphans, sep="\n  ", flush=True)
    print(f"no process was left in {without} of {given.tries} tries")
    return 0 if without == given.tries else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
