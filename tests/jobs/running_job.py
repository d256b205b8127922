"""A job that runs in processes of its own: what happens in it is heard, and each of its processes can be killed.

Invariant: whoever waits, waits for something that happens, with a limit; when the job is closed, none of its
processes is left.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

import pyarrow.parquet as pq

from snapshot.host.faults.crash_points import VARIABLE
from tests.jobs.catalogue import JOBS
from tests.jobs.comparison import Comparison
from tests.jobs.driver import Settings

Event: TypeAlias = Mapping[str, object]

PATIENCE: Final = 180.0
"""Seconds for anything that must happen, on a machine that has much else to do."""
_FAREWELL: Final = 60.0
_ROOT: Final = Path(__file__).parent.parent.parent


class Phase(Enum):
    """What a job is at when something is killed."""

    STARTING = "starting"
    """Processes come."""
    RESTORING = "restoring"
    RUNNING = "running"
    COMMITTING = "committing"
    """An epoch is complete, and not all of its output is known to be committed."""


class JobEnded(Exception):
    """The driver's process has ended while something else was waited for."""


@dataclass(slots=True)
class Course:
    """How far the job of one driver is, by its events."""

    workers: dict[str, int] = field(default_factory=dict)
    """The processes that are there, and their ids."""
    placed: frozenset[str] = frozenset()
    """Those that have a partition; the others stand by."""
    deployed: bool = False
    running: bool = False
    complete: str = ""
    committed: str = ""
    restarts: int = 0
    alone: int = 0
    """How often a partition has begun to restart while all others went on."""
    completed_at: float | None = None
    """When it was heard that the last epoch is complete, of the clock of `time.monotonic`."""

    @property
    def standbys(self) -> list[str]:
        """Processes that are there and have no partition."""
        return [worker for worker in self.workers if worker not in self.placed] if self.deployed else []

    @property
    def phase(self) -> Phase:
        if not self.deployed:
            return Phase.STARTING
        if not self.running:
            return Phase.RESTORING
        return Phase.RUNNING if self.complete == self.committed else Phase.COMMITTING

    def after(self, event: Event) -> None:
        match event["event"]:
            case "WorkerJoined":
                pid = event["pid"]
                assert isinstance(pid, int)
                self.workers[str(event["worker"])] = pid
            case "WorkerLost":
                self.workers.pop(str(event["worker"]), None)
            case "AttemptFailed":
                self.deployed = self.running = False
                self.restarts += 1
            case "PartitionLost":
                self.alone += 1
            case "PartitionReplaced":
                self.placed |= {str(event["worker"])}
            case "Deployed":
                self.deployed, self.running = True, False
                chosen = event["workers"]
                assert isinstance(chosen, list)
                self.placed = frozenset(chosen)
            case "Running":
                self.running = True
            case "EpochCompleted":
                self.complete = str(event["epoch"])
                self.completed_at = time.monotonic()
            case "EpochCommitted":
                self.committed = str(event["epoch"])
            case _:
                pass


class RunningJob:
    """A job whose driver is a process; `start` again when that was killed. Use it as a context manager.

    `environment` is that of the processes, beside what they have anyway.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self.course = Course()
        self.events: list[Event] = []
        self.restarts = self.alone = 0
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._heard: queue.Queue[Event | None] = queue.Queue()
        self._reader: threading.Thread | None = None
        Path(settings.folder).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start the driver, which starts the others."""
        assert self._process is None, "there is a driver"
        self.course = Course()
        self._heard = queue.Queue()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.jobs.driver", json.dumps(asdict(self.settings))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=_ROOT,
                env={**os.environ, **self._environment},
            )
        self._reader = threading.Thread(target=self._read, args=(self._process, self._heard), daemon=True)
        self._reader.start()

    @property
    def log(self) -> Path:
        """What the processes print."""
        return Path(self.settings.folder) / "log.txt"

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_for(self, wanted: Callable[[Event], bool], seconds: float = PATIENCE) -> Event:
        """The next event that is wanted; `JobEnded` if the driver ends before, `TimeoutError` if it does not come."""
        deadline = time.monotonic() + seconds
        while True:
            event = self._next(deadline)
            if event is None:
                raise TimeoutError(f"nothing of that kind came in {seconds} s; {self.story()}")
            if wanted(event):
                return event

    def wait_for_kind(self, *kinds: str) -> Event:
        """The next event of one of these kinds."""
        return self.wait_for(lambda event: event["event"] in kinds)

    def listen(self, seconds: float) -> None:
        """Take in for so long what happens."""
        deadline = time.monotonic() + seconds
        while self._next(deadline) is not None:
            pass

    def _next(self, deadline: float) -> Event | None:
        """The next event, or None when it is time; `JobEnded` behind the last."""
        try:
            event = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if event is None:
            self._heard.put(None)
            raise JobEnded(self.story())
        self.course.after(event)
        self.events.append(event)
        return event

    def _read(self, process: subprocess.Popen[str], heard: queue.Queue[Event | None]) -> None:
        """In a thread. The pipe ends when the driver and all processes that it started have."""
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                heard.put(json.loads(line))
        heard.put(None)

    # --- killing ------------------------------------------------------------------------------------------------------

    def kill_worker(self, worker: str) -> bool:
        """Kill one of the job's processes; False if it is not there any more."""
        return _kill(self.course.workers[worker])

    def kill_driver(self) -> None:
        """Kill the driver, and wait until all processes that it started have gone for want of it."""
        assert self._process is not None
        self._process.kill()
        self.await_end()

    def await_end(self) -> int:
        """Wait until all processes have ended; how the driver has."""
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(PATIENCE)
        self._reader.join(_FAREWELL)
        alive = self._reader.is_alive()
        while not self._heard.empty():
            try:
                self.listen(0)
            except JobEnded:
                break
        self.restarts += self.course.restarts
        self.alone += self.course.alone
        if alive:
            for pid in self.course.workers.values():
                _kill(pid)
            self._reader.join(_FAREWELL)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        if alive:
            raise AssertionError(f"processes were left over {_FAREWELL} s after their driver's end; {self.story()}")
        return code

    # --- the end ------------------------------------------------------------------------------------------------------

    def open_gate(self) -> None:
        """Let the source give its last rows."""
        self.settings.gate.touch()

    def finish(self) -> Comparison:
        """Let the job come to its end, and compare its output with the truth."""
        self.open_gate()
        code = self.await_end()
        if code != 0:
            raise AssertionError(f"the driver ended with {code}; {self.story()}")
        return self.compare()

    def compare(self) -> Comparison:
        job = JOBS[self.settings.job]
        judge = job.judge if self.settings.scheme != "acks" else job.judge_repeats
        assert judge is not None, f"nothing can be said of {job.name} if rows come twice"
        return judge(self.output(), self.settings.rows)

    def output(self) -> Sequence[Mapping[str, object]]:
        """All rows that are to be seen."""
        settings = self.settings
        match settings.sink:
            case "driver" | "plain":
                return _parquet_rows(settings.delivered) if settings.delivered.exists() else []
            case "parquet":
                return [row for file in sorted(settings.output.glob("part-*")) for row in _parquet_rows(file)]
            case "given":
                raise ValueError("what was written to a sink that was given is for who gave it to read")
            case "jsonl":
                files = sorted(settings.output.glob("part-*"))
                return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def set_crash(self, driver: str = "", partitions: str = "") -> None:
        """Where the processes of the next start kill themselves."""
        self.settings = replace(self.settings, crash=driver)
        self._environment[VARIABLE] = partitions

    def story(self) -> str:
        """What happened last, and what was printed, for people."""
        printed = self.log.read_text()[-3000:] if self.log.exists() else ""
        dull = ("EpochTriggered", "EpochSkipped", "EpochsRemoved", "EpochCompleted", "EpochCommitted")
        last = "\n".join(str(event)[:600] for event in [e for e in self.events if e["event"] not in dull][-12:])
        return f"{self.settings}, {self.course.phase.value}\n{last}\nprinted:\n{printed}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill_driver()


def _parquet_rows(file: Path) -> Sequence[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = pq.read_table(file).to_pylist()
    return rows


def _kill(pid: int) -> bool:
    """Kill a process that runs partitions; False if it is not there any more."""
    try:
        if b"snapshot.host." not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return False
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True
