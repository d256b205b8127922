"""A real Pravega for tests, on free ports of the loopback interface: in one process, or as some that may be killed.

Invariant: a cluster that was killed starts again with the same ports and what it had stored.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import pbkdf2_hmac
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Final

from snapshot.connectors.pravega.address import access_to
from snapshot.connectors.pravega.calls import CallFailed, Calls
from snapshot.connectors.pravega.controller import Controller, Made
from tests.servers.ports import free_ports
from tests.servers.pravega_reader import events, events_by_another_process

JARS: Final = Path(__file__).parents[2] / ".servers" / "pravega"
SCOPE: Final = "tests"
_START: Final = 240.0
"""Seconds in which a server comes up, on a machine that has much else to do."""
_PHRASE: Final = "1111_aaaa"
"""The password of the files with keys: the standalone server knows no other."""
_JAVA: Final = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG: Final = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class _Java:
    """Processes of Java with a log, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "pravega.log"
        folder.mkdir(exist_ok=True)
        (folder / "logback.xml").write_text(_LOG)

    def run(self, main: str, memory: Sequence[str], settings: Mapping[str, object]) -> subprocess.Popen[bytes]:
        """Start a process."""
        if not JARS.is_dir():
            raise FileNotFoundError(f"{JARS} is not there; `make test-servers` fetches the jars of Pravega")
        given = {"logback.configurationFile": str(self.folder / "logback.xml"), **settings}
        options = [f"-D{name}={value}" for name, value in given.items()]
        with self.log.open("ab") as log:
            command = [*_JAVA, *memory, *options, "-cp", f"{JARS}/*", main]
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def end_of_log(self) -> str:
        """Return the last lines that were written."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])


class PravegaServer:
    """A controller and a segment store in one process, and in memory: all is lost when it ends.

    `settings` are of the standalone server, and `options` what clients need if those make it a guarded one.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, object] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self._java = _Java(folder)
        self._settings = settings or {}
        self.options = options or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.controller = ""

    def start(self) -> None:
        """Start, and return when requests are served."""
        (self._java.folder / "config").mkdir(exist_ok=True)
        (self._java.folder / "config" / "standalone-config.properties").touch()
        for _ in range(3):  # another process may be quicker to take the ports
            controller, store, zookeeper = free_ports(3)
            settings = {
                "singlenode.controller.rpc.port": controller,
                "singlenode.controller.rest.enable": "false",
                "singlenode.segmentStore.port": store,
                "singlenode.zk.port": zookeeper,
                "singlenode.admin.gateway.enable": "false",
                "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
                **self._settings,
            }
            memory = ("-Xmx384m", "-XX:MaxDirectMemorySize=320m")
            self._process = self._java.run("io.pravega.local.LocalPravegaEmulator", memory, settings)
            self.controller = f"{'tls' if self.options else 'tcp'}://127.0.0.1:{controller}"
            if _is_usable(self.controller, [self._process], self.options):
                return
            self.kill()
        raise RuntimeError(f"Pravega does not start:\n{self.end_of_log()}")

    def kill(self) -> None:
        """Kill it without warning, and return when it is dead."""
        _kill([self._process] if self._process is not None else [])

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop its process for some seconds, so that it neither answers nor breaks connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def make_stream(self, segments: int = 1) -> str:
        """Make a stream that nobody else uses, and return its name."""
        return _make_stream(self.controller, segments, self.options)

    def events(self, stream: str) -> Sequence[bytes]:
        """Return what readers see in a stream now."""
        return events(self.controller, SCOPE, stream)

    def end_of_log(self) -> str:
        """Return the last lines that it wrote."""
        return self._java.end_of_log()


class PravegaCluster:
    """A controller and a segment store, each in a process, which keep what they have in a BookKeeper that lives on."""

    def __init__(self, folder: Path) -> None:
        self._java = _Java(folder)
        self._bookkeeper: subprocess.Popen[bytes] | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.controller = ""

    def start(self) -> None:
        """Start, and return when requests are served; the first time with BookKeeper, and ZooKeeper in it."""
        if self._bookkeeper is None:
            self._start_bookkeeper()
            self._ports = free_ports(3)
            self.controller = f"tcp://127.0.0.1:{self._ports[0]}"
        for _ in range(5):  # a controller may end when it comes in the middle of the end of the one before
            for name, run in (("store", self._store), ("controller", self._controller)):
                if name not in self._processes or self._processes[name].poll() is not None:
                    self._processes[name] = run()
            if _is_usable(self.controller, list(self._processes.values())):
                return
        self.kill()
        raise RuntimeError(f"Pravega does not start:\n{self.end_of_log()}")

    def kill(self) -> None:
        """Kill controller and segment store without warning, and return when they are dead."""
        _kill(self._processes.values())

    def close(self) -> None:
        """Kill all of it."""
        _kill([*self._processes.values(), *([self._bookkeeper] if self._bookkeeper is not None else [])])

    def make_stream(self, segments: int = 1) -> str:
        """Make a stream that nobody else uses, and return its name."""
        return _make_stream(self.controller, segments)

    def events(self, stream: str) -> Sequence[bytes]:
        """Return what readers see in a stream now; `subprocess.SubprocessError` while the cluster is down."""
        return events_by_another_process(self.controller, SCOPE, stream)

    def end_of_log(self) -> str:
        """Return the last lines that it wrote."""
        return self._java.end_of_log()

    def _start_bookkeeper(self) -> None:
        give_up = time.monotonic() + _START
        zookeeper, bookie = free_ports(2)
        self._zookeeper = f"127.0.0.1:{zookeeper}"
        (self._java.folder / "ledgers").mkdir()
        settings = {
            "basePort": bookie,
            "bookieCount": 1,
            "zkPort": zookeeper,
            "startZk": "true",
            "zkLedgersPath": "/pravega/bookkeeper/ledgers",
            "ledgersDir": self._java.folder / "ledgers",
            "java.io.tmpdir": self._java.folder,
        }
        main = "io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperServiceRunner"
        self._bookkeeper = self._java.run(main, ("-Xmx192m",), settings)
        while not _listens(bookie):
            if self._bookkeeper.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"BookKeeper does not start:\n{self.end_of_log()}")
            time.sleep(0.1)

    def _store(self) -> subprocess.Popen[bytes]:
        controller, store, _ = self._ports
        (self._java.folder / "config.properties").touch()
        settings = {
            "pravegaservice.container.count": 1,
            "pravegaservice.service.listener.port": store,
            "pravegaservice.service.listener.host.nameOrIp": "127.0.0.1",
            "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
            "pravegaservice.zk.connect.uri": self._zookeeper,
            "pravegaservice.zk.connect.sessionTimeout.milliseconds": 4000,
            "pravegaservice.dataLog.impl.name": "BOOKKEEPER",
            "pravegaservice.storage.impl.name": "FILESYSTEM",
            "pravegaservice.cache.size.max": 128 << 20,
            "pravegaservice.rest.listener.enable": "false",
            "filesystem.root": self._java.folder / "segments",
            "bookkeeper.zk.connect.uri": self._zookeeper,
            "bookkeeper.ledger.path": "/pravega/bookkeeper/ledgers",
            "bookkeeper.ensemble.size": 1,
            "bookkeeper.ack.quorum.size": 1,
            "bookkeeper.write.quorum.size": 1,
            "autoScale.controller.connect.uri": f"tcp://127.0.0.1:{controller}",
            "durablelog.start.retry.delay.millis": 500,
        }
        main = "io.pravega.segmentstore.server.host.ServiceStarter"
        return self._java.run(main, ("-Xmx256m", "-XX:MaxDirectMemorySize=256m"), settings)

    def _controller(self) -> subprocess.Popen[bytes]:
        controller, _, rest = self._ports
        settings = {
            "controller.container.count": 1,
            "controller.service.rpc.listener.port": controller,
            "controller.service.rpc.published.port": controller,
            "controller.service.rpc.published.host.nameOrIp": "127.0.0.1",
            "controller.service.rest.listener.port": rest,
            "controller.service.rest.listener.host.ip": "127.0.0.1",
            "controller.service.asyncTaskPool.size": 10,
            "controller.zk.connect.uri": self._zookeeper,
            "controller.zk.connect.session.timeout.milliseconds": 4000,
            "controller.zk.connect.retries.interval.milliseconds": 500,
            "controller.rebalance.interval.seconds.min": 1,
        }
        return self._java.run("io.pravega.controller.server.Main", ("-Xmx192m",), settings)


def _is_usable(
    address: str, processes: Sequence[subprocess.Popen[bytes]], options: Mapping[str, str] | None = None
) -> bool:
    """Wait until transactions can be begun; false if a process ends, or it takes too long."""
    give_up = time.monotonic() + _START
    while all(process.poll() is None for process in processes) and time.monotonic() < give_up:
        controller = Controller(Calls(access_to(address, options or {}), 5.0), SCOPE)
        try:
            controller.make_scope()
            controller.make_stream("usable", 1)
            controller.abort("usable", controller.begin("usable", 20.0).transaction)
        except CallFailed:
            time.sleep(0.1)
        else:
            return True
        finally:
            controller.close()
    return False


def _make_stream(address: str, segments: int, options: Mapping[str, str] | None = None) -> str:
    name, controller = f"stream-{token_hex(8)}", Controller(Calls(access_to(address, options or {}), 10.0), SCOPE)
    assert controller.make_stream(name, segments) is Made.NEW
    controller.close()
    return name


def _kill(processes: Collection[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _listens(port: int) -> bool:
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


@contextmanager
def running_guarded_pravega(folder: Path) -> Iterator[PravegaServer]:
    """Run a server that speaks TLS alone and wants a password: `options` has both."""
    user, password = "somebody", token_hex(8)
    hashed = pbkdf2_hmac("sha256", password.encode(), salt := token_bytes(32), 5000, 64)
    account = f"5000:{salt.hex()}:{hashed.hex()}".encode().hex()
    (folder / "accounts").write_text(f"{user}:{account}:prn::*,READ_UPDATE;\n")
    (folder / "phrase").write_text(_PHRASE)
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=pravega", "-keyout", "key.pem")
    _run(folder, "openssl", *new, "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", "certificate.pem")
    both = ("-inkey", "key.pem", "-in", "certificate.pem", "-out", "both.p12", "-passout", f"pass:{_PHRASE}")
    _run(folder, "openssl", "pkcs12", "-export", *both)
    stored = ("-srckeystore", "both.p12", "-srcstorepass", _PHRASE, "-destkeystore", "keys.jks")
    _run(folder, "keytool", "-importkeystore", *stored, "-deststorepass", _PHRASE, "-noprompt")
    trusted = ("-file", "certificate.pem", "-keystore", "trusted.jks", "-storepass", _PHRASE)
    _run(folder, "keytool", "-importcert", *trusted, "-noprompt")
    settings = {
        "security.auth.enable": "true",
        "security.auth.credentials.username": user,
        "security.auth.credentials.pwd": password,
        "security.auth.pwdAuthHandler.accountsDb.location": folder / "accounts",
        "security.tls.enable": "true",
        "security.tls.privateKey.location": folder / "key.pem",
        "security.tls.certificate.location": folder / "certificate.pem",
        "security.tls.keyStore.location": folder / "keys.jks",
        "security.tls.keyStore.pwd.location": folder / "phrase",
        "security.tls.trustStore.location": folder / "trusted.jks",
    }
    options = {"user": user, "password": password, "certificates": str(folder / "certificate.pem")}
    server = PravegaServer(folder, {f"singlenode.{name}": value for name, value in settings.items()}, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@contextmanager
def running_cluster(folder: Path) -> Iterator[PravegaCluster]:
    """Run a cluster for as long as the context lasts."""
    cluster = PravegaCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
