"""A real YARN for tests: a resource manager and node managers on the loopback interface, and one folder.

Invariant: when the context ends, no process of it is left, those in its containers included, and of these also
the ones whose parents were killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.servers.hadoop import java, write_settings
from tests.servers.ports import free_ports
from tests.servers.spark_cluster import SPARK, Place

_PATIENCE: Final = 90.0
_PROGRAMS: Final = "org.apache.hadoop.yarn.server"
_MANAGER: Final = f"{_PROGRAMS}.resourcemanager.ResourceManager"
_NODE: Final = f"{_PROGRAMS}.nodemanager.NodeManager"
_PARTS: Final = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
_PORTS: Final = tuple(f"yarn.resourcemanager.{part}address" for part in _PARTS)
_ANY_PORT: Final = {f"yarn.nodemanager.{part}address": "127.0.0.1:0" for part in ("", "localizer.", "webapp.")}
_MANAGED: Final = {
    "yarn.resourcemanager.scheduler.class": f"{_PROGRAMS}.resourcemanager.scheduler.fifo.FifoScheduler",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
    "yarn.resourcemanager.am.max-attempts": "4",
}
_NODES: Final = {
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}
_QUICKLY: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options with which a JVM starts with less work."""
_SPARK_SETTINGS: Final = {
    "spark.executor.instances": "2",
    "spark.executor.cores": "2",
    "spark.executor.memory": "600m",
    "spark.driver.memory": "600m",
    "spark.yarn.jars": f"local:{SPARK}/jars/*",
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
    "spark.yarn.report.interval": "200ms",
    "spark.yarn.scheduler.heartbeat.interval-ms": "200",
    "spark.driver.extraJavaOptions": _QUICKLY,
    "spark.executor.extraJavaOptions": _QUICKLY,
    "spark.yarn.am.extraJavaOptions": _QUICKLY,
    "spark.ui.enabled": "false",
}


@dataclass(slots=True)
class Yarn:
    """A running one, all of which is on this machine: every node manager has folders of its own."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Where its clients run."""
        return Place(prefix=("env", f"HADOOP_CONF_DIR={self.folder / 'settings'}"))

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """For an application of two executors, each with two cores, for which nothing is copied but the program."""
        return {**_SPARK_SETTINGS, "spark.yarn.stagingDir": (self.folder / "staging").as_uri()}

    def start(self, nodes: int) -> None:
        """Return when all nodes have registered."""
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)}
        write_settings(self.folder / "settings", "yarn", {**addresses, **_MANAGED})
        self._start("manager", self.folder / "settings", _MANAGER)
        for name in (f"node-{number}" for number in range(nodes)):
            own = {f"yarn.nodemanager.{kind}-dirs": str(self.folder / name / kind) for kind in ("local", "log")}
            write_settings(self.folder / name / "settings", "yarn", {**addresses, **_ANY_PORT, **_NODES, **own})
            self._start(name, self.folder / name / "settings", _NODE)
        log, give_up = self.folder / "manager.log", time.monotonic() + _PATIENCE
        while log.read_text(errors="replace").count("registered with capability") < nodes:
            if time.monotonic() > give_up or any(process.poll() is not None for process in self.processes):
                raise RuntimeError(f"YARN does not start:\n{self.end_of_logs()}")
            time.sleep(0.05)

    def submit(self, program: Path, *arguments: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a program in cluster mode; the process ends when YARN has ended it, with 0 if it has succeeded."""
        chosen = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = [str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster", *chosen]
        with (self.folder / "submit.log").open("wb") as log:
            process = subprocess.Popen(
                [*self.place.prefix, *command, str(program), *arguments],
                env=self.place.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def running(self, program: str) -> list[int]:
        """The ids of the Java processes in containers that run this."""
        commands = {pid: _read(pid, "cmdline").split(b"\0") for pid in self._in_containers()}
        return [pid for pid, (java, *rest) in commands.items() if java.endswith(b"/java") and program.encode() in rest]

    def state_folders(self, job: str) -> list[Path]:
        """Those that a job of ours has among what belongs to its application, on all nodes."""
        return list(self.folder.glob(f"node-*/local/usercache/*/appcache/*/epochcut/{job}"))

    def end_of_logs(self) -> str:
        """The last lines of each process, those in containers included."""
        logs = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("node-*/log/*/*/std*"))]
        lines = {log: log.read_text(errors="replace").splitlines()[-20:] for log in logs}
        return "\n".join(line for log, last in lines.items() for line in (f"{log}:", *last))

    def kill(self) -> None:
        """Kill all of it, and return when it is dead."""
        for process in self.processes:
            process.kill()
            process.wait()
        while left := self._in_containers():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _start(self, name: str, settings: Path, program: str) -> None:
        command = shutil.which("java")
        assert command is not None
        home = {"JAVA_HOME": str(Path(command).resolve().parents[1])}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*java(settings), program], env={**os.environ, **home}, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)

    def _in_containers(self) -> list[int]:
        """By what a node manager puts into the environment of each; who has ended has none any more."""
        mark = f"LOCAL_DIRS={self.folder}".encode()
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in sorted(pids) if mark in _read(pid, "environ")]


@contextmanager
def running_yarn(folder: Path, nodes: int) -> Iterator[Yarn]:
    """Run YARN with all it keeps in the folder, for as long as the context lasts."""
    yarn = Yarn(folder)
    try:
        yarn.start(nodes)
        yield yarn
    finally:
        yarn.kill()


def _read(pid: int, what: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{what}").read_bytes()
    return b""
