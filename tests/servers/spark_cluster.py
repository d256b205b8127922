"""A standalone Spark cluster for tests, from what PySpark brings: a master and workers, here or elsewhere.

Invariant: when the context ends, no process of the cluster is left, those of its applications' executors
included.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

ROOT: Final = Path(__file__).parent.parent.parent
_PATIENCE: Final = 90.0
SPARK: Final = Path(pyspark.__file__).parent
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part of the cluster runs: an address, and what a command begins with there."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """For processes of this place; the modules of this checkout are found by all."""
        mine = {"SPARK_LOCAL_IP": self.address, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        return {**os.environ, **mine, "SPARK_HOME": str(SPARK)}


@dataclass(slots=True)
class SparkCluster:
    """A running one; `cores` is what each of its workers offers, whatever the machine has."""

    folder: Path
    cores: int
    master: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def executors(self) -> list[int]:
        """The process ids of all executors, of the oldest first."""
        return [pid for process in self.processes for pid in descendants(process.pid) if is_executor(pid)]

    def start_master(self, place: Place) -> None:
        """Return when workers can come."""
        port = str(_free_port())
        self.master = f"spark://{place.address}:{port}"
        self._start(place, "master", "master.Master", ["--host", place.address, "--port", port])
        self._wait_for("master", "New state: ALIVE")

    def start_worker(self, place: Place, name: str) -> None:
        """Return when it has registered."""
        offers = ["--cores", str(self.cores), "--memory", "4g", "--work-dir", str(self.folder / f"work-{name}")]
        self._start(place, name, "worker.Worker", ["--host", place.address, *offers, self.master])
        self._wait_for(name, "Successfully registered")

    def end_of_logs(self) -> str:
        """The last lines of each process."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-20:])

    def kill(self) -> None:
        """Kill all of it, and return when it is dead."""
        pids = [pid for process in self.processes for pid in (process.pid, *descendants(process.pid))]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _start(self, place: Place, name: str, kind: str, arguments: Sequence[str]) -> None:
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*place.prefix, *command, "--webui-port", str(_free_port()), *arguments],
                env=place.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)

    def _wait_for(self, name: str, line: str) -> None:
        log, give_up = self.folder / f"{name}.log", time.monotonic() + _PATIENCE
        while line not in log.read_text(errors="replace"):
            if time.monotonic() > give_up or self.processes[-1].poll() is not None:
                raise RuntimeError(f"the Spark {name} does not start:\n{self.end_of_logs()}")
            time.sleep(0.05)


@contextmanager
def running_cluster(folder: Path, cores: int, master: Place, workers: Sequence[Place]) -> Iterator[SparkCluster]:
    """Run a cluster with all it keeps in the folder, for as long as the context lasts."""
    cluster = SparkCluster(folder, cores)
    try:
        cluster.start_master(master)
        for number, place in enumerate(workers):
            cluster.start_worker(place, f"worker-{number}")
        yield cluster
    finally:
        cluster.kill()


def descendants(pid: int) -> list[int]:
    """All processes below this one, each before its children."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def is_executor(pid: int) -> bool:
    """Whether it is the Java process of an executor."""
    with suppress(OSError):
        return _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def executor_of(pid: int) -> int:
    """The executor in which a task's Python process runs."""
    while not is_executor(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
