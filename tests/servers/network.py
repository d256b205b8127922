"""Several hosts on one machine: network namespaces around one in their midst, with links that can be slow, and be
cut and healed.

Invariant: nothing of the machine's own network is touched; when the context ends, or the process dies, nothing
carries frames any more, and when the context ends, the namespaces are gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Final

from statebackend.durations import Duration, milliseconds
from tests.servers import slow_link
from tests.servers.spark_cluster import ROOT, Place

_NET = "10.213.7"
_ROUND_TRIP: Final = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 1)).close()
except ConnectionRefusedError:
    print(time.monotonic() - began)
"""
"""Nobody listens at this port, and that is what is answered."""


class Link:
    """From the bridge in the centre to one host, by a process of its own."""

    def __init__(self, centre: str, space: str, number: int) -> None:
        near, far = f"to{number}", f"far{number}"
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", centre, sys.executable, "-m", "tests.servers.slow_link", near, far],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._hear("linked")
            _ip("-n", centre, "link", "set", far, "netns", space, "name", "net")
        except BaseException:
            self.close()
            raise

    def delay(self, by: float, jitter: float) -> None:
        """In seconds, in each direction; it is in effect when this returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{by} {jitter}\n")
        self._process.stdin.flush()
        self._hear("set")

    def close(self) -> None:
        """Carry nothing any more; its devices are gone."""
        self._process.communicate()

    def _hear(self, line: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != f"{line}\n":
            _, error = self._process.communicate()
            raise RuntimeError(f"a link was not {line}: {error}")


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts, each with a link to the bridge in the centre, which is a host too."""

    name: str
    centre: Place
    hosts: tuple[Place, ...]
    links: tuple[Link, ...]

    def delay(self, host: int, by: Duration, jitter: Duration = 0) -> None:
        """From now on what goes between this host and the centre takes so long each way, and longer by up to `jitter`,
        by chance. What is between two hosts passes both their links.
        """
        self.links[host].delay(milliseconds(by) / 1000, milliseconds(jitter) / 1000)

    def round_trip(self, host: int) -> float:
        """Seconds until something that this host asks the centre is answered."""
        command = [*self.hosts[host].prefix, sys.executable, "-c", _ROUND_TRIP, self.centre.address]
        answered = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
        return float(answered.stdout)

    def cut(self, host: int) -> None:
        """From now on nothing gets through between this host and all others, and no connection is closed by that."""
        _ip("-n", self.name, "link", "set", f"to{host}", "down")

    def heal(self, host: int) -> None:
        """What was sent and not received comes now, if its sender still tries."""
        _ip("-n", self.name, "link", "set", f"to{host}", "up")


@contextmanager
def running_network(hosts: int) -> Iterator[Network]:
    """Namespaces of a random name."""
    name = f"ec{token_hex(3)}"
    spaces = [name, *(f"{name}-{number}" for number in range(hosts))]
    places = [Place(f"{_NET}.{number + 1}", ("ip", "netns", "exec", space)) for number, space in enumerate(spaces)]
    links = []
    with ExitStack() as stack:
        for space in spaces:
            stack.callback(subprocess.run, ["ip", "netns", "delete", space], check=False, capture_output=True)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", name, "address", "add", f"{_NET}.1/24", "dev", "bridge")
        _ip("-n", name, "link", "set", "bridge", "up")
        for number, space in enumerate(spaces[1:]):
            link = Link(name, space, number)
            stack.callback(link.close)
            _ip("-n", name, "link", "set", f"to{number}", "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{_NET}.{number + 2}/24", "dev", "net")
            _ip("-n", space, "link", "set", "net", "up")
            links.append(link)
        yield Network(name, places[0], tuple(places[1:]), tuple(links))


@cache
def no_namespaces() -> str:
    """Why there can be no such network here; nothing if there can."""
    if shutil.which("ip") is None:
        return "the command ip is not installed"
    if os.geteuid() != 0:
        return "only root may make network namespaces with ip netns"
    if not Path(slow_link.DEVICE).exists():
        return f"there is no {slow_link.DEVICE}, which links are made with"
    try:
        with running_network(hosts=1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses network namespaces: {error.stderr.strip()}"
    except RuntimeError as error:
        return f"the kernel refuses TAP devices: {error}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)
