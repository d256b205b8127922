"""A real S3 server for tests: on a free port of the loopback interface, with its own credentials and folder."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

PROGRAM = Path(__file__).parents[2] / ".servers" / "versitygw"
_PATIENCE = 30.0


class S3Server:
    """A server that may be killed and started again with the same objects, credentials and port."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / "objects"
        self.objects.mkdir()
        self.log = folder / "s3-server.log"
        self._key, self._secret = token_hex(10), token_hex(20)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.endpoint = ""

    def start(self) -> None:
        """Start, and return when requests are served."""
        if not PROGRAM.exists():
            raise FileNotFoundError(f"{PROGRAM} is not built; `make test-servers` builds it")
        self._give_back_interrupted_completions()
        for _ in range(3):
            port = self._port or _free_port()
            self.endpoint = f"http://127.0.0.1:{port}"
            if self._serves(port):
                self._port = port
                return
        raise RuntimeError(f"the S3 server does not start:\n{self.end_of_log()}")

    def _serves(self, port: int) -> bool:
        """Whether it came up; not if another process was quicker to take the port."""
        flags = ["--port", f"127.0.0.1:{port}", "--health", "/health", "--keep-alive"]
        secrets = {"ROOT_ACCESS_KEY": self._key, "ROOT_SECRET_KEY": self._secret}
        with self.log.open("ab") as log:
            command = [str(PROGRAM), *flags, "posix", str(self.objects)]
            self._process = subprocess.Popen(command, env=secrets, stdout=log, stderr=log)
        give_up = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < give_up:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1):
                    return True
            except OSError:
                time.sleep(0.02)
        self.kill()
        return False

    def _give_back_interrupted_completions(self) -> None:
        """This server calls an upload complete for ever, and has neither it nor the object, if it is killed while it
        completes it. Others do not, and no client could do anything about it.
        """
        for upload in self.objects.glob("*/.sgwtmp/multipart/*/*.inprogress"):
            upload.rename(upload.with_name(upload.name.partition(".")[0]))

    def kill(self) -> None:
        """Kill it without warning, and return when it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def options(self) -> dict[str, str]:
        """What `open_store` needs beside the URI."""
        return {"key": self._key, "secret": self._secret, "endpoint_url": self.endpoint}

    def make_bucket(self) -> str:
        """Make a bucket that nobody else uses, and return its URI."""
        from s3fs import S3FileSystem

        name = f"bucket-{token_hex(8)}"
        S3FileSystem(**self.options, skip_instance_cache=True).mkdir(name)
        return f"s3://{name}"

    def end_of_log(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])


@contextmanager
def running_s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server with all it keeps in the folder, for as long as the context lasts."""
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
