"""What happens in the jobs of `cluster_job`, as they say it; a test waits for something, and does something.

Invariant: whoever waits has a limit; at the end of the context the jobs' driver is gone.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeAlias

from tests.servers.cluster_job import Jobs
from tests.servers.spark_cluster import ROOT, Place, descendants

Event: TypeAlias = Mapping[str, object]
_PATIENCE: Final = 120.0


class Story:
    """The events of one driver's jobs, in their order."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.events: list[Event] = []
        self._process = process
        self._heard: queue.Queue[Event | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for(self, kind: str, matches: Callable[[Event], bool] = lambda _: True) -> Event:
        """The next event of this kind that nobody has waited for yet."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                event = self._heard.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"there was no {kind}; the last events were {self.events[-5:]}") from None
            if event is None:
                raise EOFError(f"the driver has ended, without a {kind}; the last events were {self.events[-5:]}")
            self.events.append(event)
            if event["event"] == kind and matches(event):
                return event

    def wait_for_epochs(self, count: int) -> None:
        """So many more are complete."""
        for _ in range(count):
            self.wait_for("EpochCompleted")

    def check_exact(self) -> None:
        """The job that runs comes to its end, and no row is lost, and none is there twice."""
        outcome = self.wait_for("Outcome")
        assert (outcome["lost"], outcome["twice"]) == (0, 0), outcome

    def interrupt(self) -> None:
        """Let the job that runs stop after one more epoch."""
        self._process.send_signal(signal.SIGINT)

    def executors(self) -> list[str]:
        """Which executor each partition is on that has one: as host and process id."""
        executor_of = {e["worker"]: str(e["executor"]) for e in self.events if e["event"] == "WorkerJoined"}
        deployed = [event["workers"] for event in self.events if event["event"] == "Deployed"]
        assert isinstance(deployed[-1], list)
        return [executor_of[worker] for worker in deployed[-1]]

    def workers(self) -> dict[str, int]:
        """The process ids of all that are there."""
        there: dict[str, int] = {}
        for event in self.events:
            if event["event"] == "WorkerJoined":
                there[str(event["worker"])] = int(str(event["pid"]))
            elif event["event"] == "WorkerLost":
                there.pop(str(event["worker"]), None)
            elif event["event"] == "Outcome":
                there = {}
        return there

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(json.JSONDecodeError):
                self._heard.put(json.loads(line))
        self._heard.put(None)


@contextmanager
def story_of(jobs: Jobs, place: Place) -> Iterator[Story]:
    """Run the jobs, with their driver in this place."""
    process = subprocess.Popen(
        [*place.prefix, sys.executable, "-m", "tests.servers.cluster_job", json.dumps(asdict(jobs))],
        cwd=ROOT,
        env=place.environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Story(process)
    finally:
        for pid in (*descendants(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def story_in(events: Path, process: subprocess.Popen[bytes]) -> Iterator[Story]:
    """Of jobs whose drivers append it to a file, one after the other; it ends when the process does."""
    threading.Thread(target=process.wait, daemon=True).start()  # who has ended and is not waited for seems to run
    command = ["tail", "--follow=name", "--retry", "--lines=+1", f"--pid={process.pid}", str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tail:
        try:
            yield Story(tail)
        finally:
            tail.kill()
