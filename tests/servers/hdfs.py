"""A real HDFS for tests: a name node and a data node on free ports of the loopback interface, and one folder.

Invariant: when they were killed, they start again at the same ports with what they had.
"""

from __future__ import annotations

import getpass
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

from fsspec import AbstractFileSystem

from tests.servers.hadoop import java, write_settings
from tests.servers.ports import free_ports

_PATIENCE = 120.0
_NODES = {
    "name node": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "data node": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_PORTS = (
    "dfs.namenode.rpc-address",
    "dfs.namenode.http-address",
    "dfs.datanode.address",
    "dfs.datanode.http.address",
    "dfs.datanode.ipc.address",
)
_SETTINGS = {
    "dfs.replication": "1",
    "dfs.datanode.hostname": "127.0.0.1",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.namenode.safemode.extension": "0",
    "dfs.heartbeat.interval": "1",
    "dfs.blockreport.initialDelay": "0s",
}


class HdfsServer:
    """Both nodes. They may be killed and started again with the same ports and files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = folder / "hadoop-settings"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._has_served = False
        self.logs = {node: folder / f"{node.replace(' ', '-')}.log" for node in _NODES}
        self.address = ""
        """Host and port of WebHDFS."""

    def start(self) -> None:
        """Start both, and return when a file can be written."""
        for _ in range(3):
            if not self._has_served:  # until then another process may be quicker to take the ports
                self._format()
            if self._serves():
                self._has_served = True
                return
        raise RuntimeError(f"HDFS does not start:\n{self.end_of_log()}")

    def _format(self) -> None:
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)}
        self.address = addresses["dfs.namenode.http-address"]
        data = self._folder / f"data-{token_hex(4)}"
        folders = {
            "hadoop.tmp.dir": str(data),
            "dfs.namenode.name.dir": (data / "names").as_uri(),
            "dfs.datanode.data.dir": (data / "blocks").as_uri(),
        }
        for pages in ("hdfs", "datanode", "static"):  # which the jars do not have, and the nodes want to have
            (self._settings / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        system = {"fs.defaultFS": f"hdfs://{addresses['dfs.namenode.rpc-address']}"}
        write_settings(self._settings, "core", system)
        write_settings(self._settings, "hdfs", {**addresses, **folders, **_SETTINGS})
        with self.logs["name node"].open("ab") as log:
            command = [*self._java, _NODES["name node"], "-format", "-nonInteractive"]
            subprocess.run(command, check=True, stdout=log, stderr=log, timeout=_PATIENCE)

    def _serves(self) -> bool:
        with ExitStack() as opened:
            for node, program in _NODES.items():
                log = opened.enter_context(self.logs[node].open("ab"))
                self._processes.append(subprocess.Popen([*self._java, program], stdout=log, stderr=log))
        give_up = time.monotonic() + _PATIENCE
        while all(process.poll() is None for process in self._processes) and time.monotonic() < give_up:
            try:
                self.files().pipe_file("/is-there-anybody", b"yes")
            except (OSError, RuntimeError):
                time.sleep(0.1)
            else:
                return True
        self.kill()
        return False

    def kill(self) -> None:
        """Kill both without warning, and return when they are dead."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes = []

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Connections are taken, and nothing is answered, for as long as the context lasts."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._processes:
                process.send_signal(signal.SIGCONT)

    def files(self) -> AbstractFileSystem:
        """The files, as the user sees them who may do everything."""
        from fsspec.implementations.webhdfs import WebHDFS

        host, _, port = self.address.partition(":")
        return WebHDFS(host, int(port), user=getpass.getuser(), skip_instance_cache=True)

    def make_folder(self, user: str = "writer", address: str = "") -> str:
        """Make a folder in which this user alone may write; its URI, with another address if one is given."""
        name, files = f"/folder-{token_hex(8)}", self.files()
        files.mkdir(name)
        files.chown(name, owner=user)
        return f"webhdfs://{user}@{address or self.address}{name}"

    def end_of_log(self) -> str:
        """The last lines that both wrote."""
        lines = {node: log.read_text(errors="replace").splitlines()[-40:] for node, log in self.logs.items()}
        return "\n".join(line for node, last in lines.items() for line in (f"{node}:", *last))

    @property
    def _java(self) -> Sequence[str]:
        return java(self._settings)


@contextmanager
def running_hdfs(folder: Path) -> Iterator[HdfsServer]:
    """Run both nodes with all they keep in the folder, for as long as the context lasts."""
    server = HdfsServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
