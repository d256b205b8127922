"""A job meets a full disk, a lack of permission, a lost folder or a journal that cannot be read.

Invariant: within ten seconds it is on standard error, in `logging`, in `Run.status()` and in `recovery status`.
When the trouble is over, the job goes on, and no row is lost or there twice.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from recovery.command.main import main

PATIENCE = 120.0
SOON = 10.0
ROOT = Path(__file__).parent.parent


class Job:
    """The job, and what it has said until now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._heard = threading.Condition()
        self.said: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.troubled_job", str(folder)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stderr, self.said, str), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stdout, self.told, json.loads), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, lines: Any, into: list[Any], as_what: Callable[[str], Any]) -> None:
        for line in lines:
            with self._heard:
                into.append(as_what(line))
                self._heard.notify_all()

    def _wait(self, what: str, found: Callable[[], bool]) -> None:
        with self._heard:
            assert self._heard.wait_for(found, PATIENCE), f"nothing of {what!r}; it has said: {self.said}"

    def wait_for(self, kind: str, count: int = 1, **what: str) -> dict[str, Any]:
        """Wait until so many more of them have been told; the last one."""
        before = len(self.told)

        def found() -> list[dict[str, Any]]:
            wanted = {"kind": kind, **what}
            return [one for one in self.told[before:] if wanted.items() <= one.items()]

        self._wait(kind, lambda: len(found()) >= count)
        return found()[-1]

    def wait_for_words(self, words: str) -> None:
        """Wait until standard error has them, and `logging` too, as a warning or an error."""
        self._wait(words, lambda: any(words in line for line in self.said))
        self._wait(words, lambda: any(words in one["text"] for one in self.told if one["kind"] == "logged"))
        logged = next(one for one in self.told if one["kind"] == "logged" and words in one["text"])
        assert logged["name"].startswith("epochcut.")
        assert logged["level"] in ("WARNING", "ERROR")

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def status(self) -> dict[str, Any]:
        """What `Run.status` is in its program."""
        before = len(self.told)
        self.ask("status")
        self._wait("status", lambda: any(one["kind"] == "status" for one in self.told[before:]))
        return next(one for one in self.told[before:] if one["kind"] == "status")

    def stop(self) -> int:
        self.ask("stop")
        return self.ended()

    def ended(self) -> int:
        """Its exit code, when all that it has said is there."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join()
        return code

    def close(self) -> None:
        self.ended()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def processes(self) -> list[int]:
        """The program and all that it has started, parents first."""
        found = [self.process.pid]
        for process in found:
            for task in Path(f"/proc/{process}/task").glob("*/children"):
                found += map(int, task.read_text().split())
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Job]]:
    started: list[Job] = []

    def begin() -> Job:
        started.append(Job(tmp_path))
        return started[-1]

    yield begin
    for job in started:
        for process in job.processes() if job.process.poll() is None else ():
            os.kill(process, signal.SIGKILL)
        job.close()


@contextmanager
def no_room(job: Job) -> Iterator[None]:
    """Keep all processes of the job from adding a byte to any file, as a full disk does; a pipe is no file."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def limit(bytes: int) -> None:
        for process in job.processes():
            resource.prlimit(process, resource.RLIMIT_FSIZE, (bytes, hard))

    limit(0)
    try:
        yield
    finally:
        limit(hard)


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Take all permissions of the folder away, and give them back."""
    mode = folder.stat().st_mode & 0o7777
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(mode)


@contextmanager
def removed(folder: Path) -> Iterator[None]:
    """Take the folder away, and put it back as it was."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    try:
        yield
    finally:
        aside.rename(folder)


def check_told(job: Job, words: str, capsys: pytest.CaptureFixture[str], state: str = "running") -> None:
    """Check that these words are everywhere within ten seconds."""
    begin = time.monotonic()
    job.wait_for_words(words)
    status = job.status()
    capsys.readouterr()
    assert main(["status", "--job-folder", str(job.folder / "local")]) == 0
    shown = capsys.readouterr().out
    took = time.monotonic() - begin
    assert status["state"] == state
    assert words in status["trouble"]
    assert f"trouble: {status['trouble'].split(':')[0]}" in shown
    assert words in shown
    assert took < SOON, f"it took {took:.1f} s"


def check_rows(output: Path) -> None:
    """Check that each key was counted row by row, no row left out and none twice."""
    counts = defaultdict(list)
    for file in output.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            counts[row["k"]].append(row["one"])
    assert len(counts) == 17
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"key {key}"


def goes_on(job: Job) -> None:
    """Check that epochs are committed again, and that the output is exact."""
    job.wait_for("event", 2, name="EpochCommitted")
    assert not job.status()["trouble"]
    assert job.stop() == 0
    check_rows(job.folder / "output")


TROUBLES: dict[str, tuple[Callable[[Job], Any], str]] = {
    "no room on any disk": (no_room, "File too large"),
    "no permission for the output": (lambda job: closed(job.folder / "output"), "Permission denied"),
    "no folder for the output": (lambda job: removed(job.folder / "output"), "the folder of the output is gone"),
    "no permission for the tree": (lambda job: closed(job.folder / "tree"), "Permission denied"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_is_told_everywhere_and_when_it_is_over_the_job_goes_on(
    name: str, start: Callable[[], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    trouble, words = TROUBLES[name]
    job = start()
    job.wait_for("event", 2, name="EpochCommitted")
    with trouble(job):
        check_told(job, words, capsys)
    goes_on(job)


def test_a_journal_that_cannot_be_read_at_a_start_is_told_everywhere(
    start: Callable[[], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    first = start()
    first.wait_for("event", 2, name="EpochCommitted")
    assert first.stop() == 0
    with closed(first.folder / "tree" / "journal"):
        second = start()
        second.wait_for("started")
        check_told(second, "Permission denied", capsys, state="starting")
    goes_on(second)
