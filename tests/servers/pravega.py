"""A real Pravega for tests, on free ports of the loopback interface: all of it in one process, and in memory.

Read with Pravega's own client, which shares no code with the sink. It is for Python 3.11 alone.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final

from pravega_client import StreamManager

from tests.servers.ports import free_ports

JARS: Final = Path(__file__).parents[2] / ".servers" / "pravega"
SCOPE: Final = "tests"
_START: Final = 240.0
"""Seconds in which a server comes up, on a machine that has much else to do."""
_PATIENCE: Final = 60.0
_JAVA: Final = ("java", "-Xmx384m", "-XX:MaxDirectMemorySize=320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG: Final = """
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""
_EVENT: Final = 8
"""Bytes before each event in a segment."""


class PravegaServer:
    """A controller and a segment store. All is lost when it ends; `settings` are of the standalone server."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "pravega.log"
        self.controller = ""

    def start(self) -> None:
        """Start, and return when requests are served."""
        if not JARS.is_dir():
            raise FileNotFoundError(f"{JARS} is not there; `make test-servers` fetches the jars of Pravega")
        (self._folder / "config").mkdir(exist_ok=True)
        (self._folder / "config" / "standalone-config.properties").touch()
        (self._folder / "log4j.properties").write_text(_LOG)
        for _ in range(3):
            if self._serves():
                self.make_scope()
                return
        raise RuntimeError(f"Pravega does not start:\n{self.end_of_log()}")

    def _serves(self) -> bool:
        controller, store, zookeeper = free_ports(3)
        settings = {
            "log4j.configuration": f"file:{self._folder / 'log4j.properties'}",
            "singlenode.controller.rpc.port": str(controller),
            "singlenode.controller.rest.enable": "false",
            "singlenode.segmentStore.port": str(store),
            "singlenode.zk.port": str(zookeeper),
            "singlenode.admin.gateway.enable": "false",
            "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
            **self._settings,
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        command = [*_JAVA, *options, "-cp", f"{JARS}/*", "io.pravega.local.LocalPravegaEmulator"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        self.controller = f"tcp://127.0.0.1:{controller}"
        give_up = time.monotonic() + _START
        while self._process.poll() is None and time.monotonic() < give_up:
            if listens(controller) and listens(store):
                return True
            time.sleep(0.1)
        self.kill()
        return False

    def kill(self) -> None:
        """Kill it without warning, and return when it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def make_scope(self) -> None:
        """Make the scope of the tests, as soon as the controller can."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                StreamManager(self.controller).create_scope(SCOPE)
            except ValueError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)
            else:
                return

    def make_stream(self, segments: int = 1) -> str:
        """Make a stream that nobody else uses, and return its name."""
        name = f"stream-{token_hex(8)}"
        assert StreamManager(self.controller).create_stream(SCOPE, name, segments)
        return name

    def events(self, stream: str) -> Sequence[bytes]:
        """Return what readers see in a stream now, which has had no other segments."""
        return asyncio.run(asyncio.wait_for(self._events(stream), _PATIENCE))

    async def _events(self, stream: str) -> Sequence[bytes]:
        manager = StreamManager(self.controller)
        ends = manager.create_reader_group(token_hex(8), SCOPE, stream, True, None).get_streamcut()
        group = manager.create_reader_group(token_hex(8), SCOPE, stream, False, None)
        size = sum(ends.get_segment_offset_map().values())
        reader, found = group.create_reader("reader"), list[bytes]()
        while sum(_EVENT + len(one) for one in found) < size:
            part = await reader.get_segment_slice_async()
            found += [bytes(event.data()) for event in part]
            reader.release_segment(part)
        reader.reader_offline()
        return found

    def end_of_log(self) -> str:
        """Return the last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])


def listens(port: int) -> bool:
    """True if something accepts connections there."""
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def running_pravega(folder: Path) -> Iterator[PravegaServer]:
    """Run a server for as long as the context lasts."""
    server = PravegaServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
