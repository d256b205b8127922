"""The address of a controller, and how a client connects there and to the segment stores that it names.

Invariant: nothing that is printed holds a password; a connection is encrypted and verified if the address says `tls`.
"""

from __future__ import annotations

import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_ADDRESS: Final = re.compile(r"(tcp|tls)://([^/,\s@]+:\d+(?:,[^/,\s@]+:\d+)*)/?")


@dataclass(frozen=True, slots=True)
class Host:
    """A process that listens."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Access:
    """The controllers to ask, in order, and what a client shows and trusts.

    `certificates` is a file of those that are trusted, beside the system's own; `user` and `password` may be empty.
    """

    controllers: Sequence[Host]
    tls: bool
    certificates: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def connect(self, host: Host, seconds: float, protocol: str = "") -> socket.socket:
        """Connect to a controller or a segment store; `OSError` if that is not possible."""
        context = ssl.create_default_context(cafile=self.certificates or None) if self.tls else None
        connection = socket.create_connection((host.name, host.port), seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return connection
        if protocol:
            context.set_alpn_protocols([protocol])
        try:
            return context.wrap_socket(connection, server_hostname=host.name)
        except BaseException:
            connection.close()
            raise

    @property
    def headers(self) -> Mapping[str, str]:
        """Return what every call to the controller carries."""
        if not self.user:
            return {}
        return {"authorization": "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()}


def access_to(address: str, options: Mapping[str, str]) -> Access:
    """Return how to reach the controllers of an address; `ValueError`, with what to write instead, if it is none."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        shown = "an address with a user" if "@" in address else repr(address)  # and maybe a password
        raise ValueError(
            f"{shown} is no address of a controller, such as tcp://host:9090 or tls://one:9090,two:9090; user and "
            "password are options"
        )
    hosts = [host.rpartition(":") for host in found[2].split(",")]
    return Access(
        tuple(Host(name.strip("[]"), int(port)) for name, _, port in hosts),
        found[1] == "tls",
        options.get("certificates", ""),
        options.get("user", ""),
        options.get("password", ""),
    )
