"""A real PostgreSQL for tests: in a folder of its own, on a port of the loopback interface that it keeps.

Invariant: it runs as another user if the tests run as root, which PostgreSQL refuses; it is durable, so that
what it has confirmed is there after it was killed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

_DEBIAN = Path("/usr/lib/postgresql")
_PATIENCE = 60.0
_SETTINGS = {
    "fsync": "on",
    "max_prepared_transactions": "40",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "recovery_init_sync_method": "syncfs",
    "listen_addresses": "127.0.0.1",
    "lc_messages": "C",
}


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs."""
    for folder in sorted(_DEBIAN.glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; `make test-servers` installs Debian's postgresql as root")
    return found


class PostgresServer:
    """A server that may be killed and started again with the same data, port and password."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = {**_SETTINGS, **(settings or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._data = self._folder / "data"
        self.log = self._folder / "log.txt"
        self.password = token_hex(12)
        self.port = _free_port()
        self._user = "postgres" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self._folder, self._user, pwd.getpwnam(self._user).pw_gid)
        self._make()

    def _make(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self.password)
        if self._user is not None:
            shutil.chown(secret, self._user)
        flags = [
            "-A",
            "scram-sha-256",
            "-U",
            "tester",
            "--pwfile",
            str(secret),
            "--no-sync",
            "--no-locale",
            "-E",
            "UTF8",
        ]
        command = [program("initdb"), "-D", str(self._data), *flags]
        done = subprocess.run(command, user=self._user, cwd="/", capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start, and return when it takes connections."""
        settings = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self._folder)}
        flags = [flag for name, value in settings.items() for flag in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), "-D", str(self._data), *flags], user=self._user, cwd="/", stdout=log, stderr=log
            )
        give_up = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < give_up:
            if self._serves():
                return
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"PostgreSQL does not start:\n{self.end_of_log()}")

    def _serves(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Kill all of it without warning, and return when it is dead."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut it down, in order, with whatever is under way."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        runs = self._process.poll() is None
        children = _children(self._process.pid) if runs and how is signal.SIGKILL else []
        self._process.send_signal(how)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        self._process.wait(_PATIENCE)
        give_up = time.monotonic() + _PATIENCE
        while any(_is_alive(pid) for pid in children) and time.monotonic() < give_up:
            time.sleep(0.005)  # until then they hold memory that the next server asks for
        self._process = None

    def dsn(self, database: str = "postgres", port: int | None = None) -> str:
        """How to connect, with the password."""
        return f"postgresql://tester:{self.password}@127.0.0.1:{port or self.port}/{database}"

    def make_database(self) -> str:
        """Make a database that nobody else uses, and return how to connect to it."""
        import psycopg

        name = f"db_{token_hex(6)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.dsn(name)

    def end_of_log(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def remove(self) -> None:
        """Kill it, and delete all that it kept."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def running_postgres(settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """Run a server for as long as the context lasts."""
    server = PostgresServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def small_folder() -> Iterator[Path]:
    """A folder that the server may use, on a disk of its own with room for two megabytes; only root can make one."""
    folder = Path(tempfile.mkdtemp(prefix="small-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "small", str(folder)], check=True, timeout=20)
    try:
        place = folder / "space"
        place.mkdir()
        shutil.chown(place, "postgres")
        yield place
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)
        folder.rmdir()


def _children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in text.split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
