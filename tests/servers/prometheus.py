"""A real Prometheus for tests: it scrapes what it is told to, on a port of the loopback interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from tests.servers.ports import free_ports

_HERE = Path(__file__).parent.parent.parent / ".servers" / "prometheus" / "usr" / "bin"
_PATIENCE = 60.0


def program(name: str) -> str:
    """The path of one of Prometheus' programs."""
    found = _HERE / name if (_HERE / name).exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not there; `make test-servers` fetches Debian's prometheus")
    return str(found)


class Prometheus:
    """A server that answers queries."""

    def __init__(self, port: int, log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._log = log

    def get(self, path: str, **arguments: str) -> Any:
        """What its interface answers."""
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(arguments)}", timeout=_PATIENCE) as answer:
            return json.loads(answer.read())["data"]

    def values(self, query: str) -> list[float]:
        """The values of all series that a query finds."""
        return [float(one["value"][1]) for one in self.get("query", query=query)["result"]]

    def wait_for(self, query: str) -> list[float]:
        """The same, as soon as there are any."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                if found := self.values(query):
                    return found
            except URLError:
                pass  # it is starting
            time.sleep(0.1)
        raise TimeoutError(f"{query} has no value after {_PATIENCE} s\n{self._log.read_text()[-3000:]}")


@contextmanager
def scraping(url: str, folder: Path, token: str) -> Iterator[Prometheus]:
    """Start a server that scrapes this endpoint twice a second."""
    (port,), log = free_ports(1), folder / "prometheus.log"
    settings = {
        "global": {"scrape_interval": "500ms"},
        "scrape_configs": [
            {
                "job_name": "epochcut",
                "authorization": {"credentials": token},
                "static_configs": [{"targets": [urlsplit(url).netloc]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    with log.open("wb") as told, subprocess.Popen(
        [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=told, stderr=told,
    ) as process:  # fmt: skip
        try:
            yield Prometheus(port, log)
        finally:
            process.kill()
