"""Several hosts on one machine: network namespaces around one in their midst, with links that can be cut and healed.

What always holds: nothing of the machine's own network is touched; when the context ends, the namespaces are gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from secrets import token_hex

from tests.servers.spark_cluster import Place

_NET = "10.213.7"


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts, each with a link to the bridge in the centre, which is a host too."""

    name: str
    centre: Place
    hosts: tuple[Place, ...]

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
    try:
        for space in spaces:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", name, "address", "add", f"{_NET}.1/24", "dev", "bridge")
        _ip("-n", name, "link", "set", "bridge", "up")
        for number, space in enumerate(spaces[1:]):
            _connect(name, space, number)
        yield Network(name, places[0], tuple(places[1:]))
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def _connect(centre: str, space: str, number: int) -> None:
    _ip("-n", centre, "link", "add", f"to{number}", "type", "veth", "peer", "name", "net", "netns", space)
    _ip("-n", centre, "link", "set", f"to{number}", "master", "bridge", "up")
    _ip("-n", space, "address", "add", f"{_NET}.{number + 2}/24", "dev", "net")
    _ip("-n", space, "link", "set", "net", "up")


@cache
def no_namespaces() -> str:
    """Why there can be no such network here; nothing if there can."""
    if shutil.which("ip") is None:
        return "the command ip is not installed"
    if os.geteuid() != 0:
        return "only root may make network namespaces with ip netns"
    try:
        with running_network(hosts=1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses network namespaces: {error.stderr.strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)
