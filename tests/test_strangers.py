"""Strangers at the ports of a running job: its output stays exact, and every one of them is refused and noted."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.driver.tree import address as reach
from snapshot.host.net.connection_kinds import ChannelOf, ConnectionKind, ControlOf
from snapshot.host.net.handshake import NONCE_SIZE, VERSION, CallerHandshake, HandshakeRefused
from snapshot.ids import ChannelId, Copy, Replica
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.jobs.driver import Settings
from tests.jobs.running_job import Event, RunningJob

Where = tuple[str, int]

PATIENCE = 60.0
LONG = 60.0
SHORT = 4.0
SECRET = b"a secret that is not the run's"


def address(text: object) -> Where:
    host, _, port = str(text).rpartition(":")
    return host, int(port)


# --- what strangers say


def noise(rng: random.Random, sock: socket.socket) -> None:
    sock.sendall(rng.randbytes(rng.choice((42, 64, 1000, 50_000))))


def nothing(rng: random.Random, sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def half_a_greeting(rng: random.Random, sock: socket.socket) -> None:
    sock.sendall(greeting(rng)[: rng.randrange(1, 42)])
    sock.shutdown(socket.SHUT_WR)


def other_version(rng: random.Random, sock: socket.socket) -> None:
    sock.sendall(greeting(rng, VERSION + 1))


def too_long_a_kind(rng: random.Random, sock: socket.socket) -> None:
    sock.sendall(greeting(rng))
    sock.recv(4096)
    sock.sendall(rng.randbytes(32) + struct.pack(">H", 65_535))


def wrong_secret(rng: random.Random, sock: socket.socket) -> None:
    channel = ChannelId(Uid("rows"), Uid("numbers"), Partition(0), Partition(1), 0)
    kinds: tuple[ConnectionKind, ...] = (
        ControlOf("somebody"),
        ChannelOf(Copy(channel, Replica(3), Replica(1)), Incarnation(Generation(1), Attempt(1))),
    )
    handshake = CallerHandshake(SECRET, rng.randbytes(NONCE_SIZE), rng.choice(kinds))
    sock.sendall(handshake.greeting)
    while not handshake.accepted:
        said = sock.recv(handshake.wanted)
        if not said:
            return
        sock.sendall(handshake.receive(said))


def greeting(rng: random.Random, version: int = VERSION) -> bytes:
    return b"epochcut" + bytes([version]) + b"c" + rng.randbytes(NONCE_SIZE)


KINDS: tuple[Callable[[random.Random, socket.socket], None], ...] = (
    noise, nothing, half_a_greeting, other_version, too_long_a_kind, wrong_secret,
)  # fmt: skip


def visit(rng: random.Random, where: Where) -> str:
    """Come, say something, and wait to be turned away; how the visitor is called there."""
    with socket.create_connection(where, PATIENCE) as sock:
        host, port = sock.getsockname()
        try:
            rng.choice(KINDS)(rng, sock)
            while sock.recv(4096):
                pass
        except (ConnectionError, HandshakeRefused):
            pass  # turned away in the middle of a word
    return f"{host}:{port}"


def refusals(event: Event) -> int:
    """How many an event tells of: one, or those for which there was no room in the log."""
    if event["event"] != "PeerRefused":
        return 0
    return 1 if event["peer"] else int(str(event["reason"]).split()[0])


@pytest.mark.timeout(600)
def test_strangers_at_all_ports_are_refused_and_noted_and_the_output_is_exact(
    tmp_path: Path, search_factor: int
) -> None:
    seconds = LONG if search_factor > 1 else SHORT
    settings = Settings(folder=str(tmp_path / "job"), job="sequences", mode="unaligned", every="150ms", rows=60_000)
    with RunningJob(settings) as job:
        job.start()
        job.wait_for_kind("Running")
        joined = [event for event in job.events if event["event"] == "WorkerJoined"]
        ports: dict[object, Where] = {event["worker"]: address(event["address"]) for event in joined}
        driver = reach.read(settings.local).address
        ports[None] = driver.host, driver.port
        visited = besieged(ports, time.monotonic() + seconds)
        assert all(len(some) > 20 for some in visited.values())
        noted = Counter[object]()
        for event in job.events:
            noted[event.get("worker")] += refusals(event)
        while any(noted[at] < len(some) for at, some in visited.items()):
            event = job.wait_for_kind("PeerRefused")
            noted[event["worker"]] += refusals(event)
        compared = job.finish()
    told = [event for event in job.events if event["event"] == "PeerRefused"]
    assert set(visited[None]) >= {event["peer"] for event in told if event["worker"] is None and event["peer"]}
    assert noted == {at: len(some) for at, some in visited.items()}
    assert compared.exact, compared.examples
    assert [event for event in job.events if event["event"] in ("AttemptFailed", "WorkerLost")] == []


def besieged(ports: Mapping[object, Where], until: float) -> dict[object, list[str]]:
    """Strangers come to each of the ports, one after the other, until it is time; how they were called there."""
    visited: dict[object, list[str]] = {at: [] for at in ports}

    def besiege(at: object) -> None:
        rng = random.Random(str(at))
        while time.monotonic() < until:
            visited[at].append(visit(rng, ports[at]))

    besiegers = [threading.Thread(target=besiege, args=(at,)) for at in ports]
    for thread in besiegers:
        thread.start()
    for thread in besiegers:
        thread.join()
    return visited


@contextmanager
def silent_strangers(where: Where, count: int, a_second: int) -> Iterator[None]:
    """A process of somebody else's holds so many connections, says nothing, and replaces those that are closed."""
    command = [sys.executable, "-m", "tests.silent_strangers", where[0], str(where[1]), str(count), str(a_second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            yield
        finally:
            process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("a_second", [1_000, 1_000_000_000], ids=["paced", "as fast as they can"])
def test_a_thousand_silent_strangers_do_not_hold_up_a_recovery(tmp_path: Path, a_second: int) -> None:
    settings = Settings(folder=str(tmp_path / "job"), job="sequences", every="150ms", rows=60_000)
    with RunningJob(settings) as job:
        job.start()
        job.wait_for_kind("EpochCommitted")
        driver = reach.read(settings.local).address
        took = []
        with silent_strangers((driver.host, driver.port), 1_000, a_second):
            began, events = time.monotonic(), len(job.events)
            for _ in range(3):
                assert job.kill_worker(sorted(job.course.placed)[0])
                marks = job.wait_for_kind("Recovered")["marks"]
                assert isinstance(marks, dict)
                took.append(marks["opened"])
                job.wait_for_kind("EpochCommitted")
            seconds = time.monotonic() - began
            refused = sum(map(refusals, job.events[events:]))
        compared = job.finish()
    assert compared.exact, compared.examples
    assert min(took) <= 300, took
    assert refused <= 1_500 * (seconds + 1), "a stranger that says nothing costs the driver something once a second"
