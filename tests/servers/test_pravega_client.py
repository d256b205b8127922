"""What Pravega's own client for Python cannot do, and a sink needs: why the sink speaks Pravega's protocols itself.

Each test fails when the client has learnt it.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from snapshot.connectors.pravega.address import access_to
from snapshot.connectors.pravega.calls import Calls
from snapshot.connectors.pravega.controller import Controller, TransactionState
from tests.servers.pravega import SCOPE, PravegaServer

WRITES = """
import os, signal, sys
from pravega_client import StreamManager
manager = StreamManager(sys.argv[1])
writer = manager.create_transaction_writer(sys.argv[2], sys.argv[3], 1)
transaction = writer.begin_txn()
for number in range(int(sys.argv[4])):
    transaction.write_event_bytes(b"%d" % number)
print(transaction.get_txn_id(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Writes events to a transaction, and is killed as soon as the client has taken the last of them.

The manager has a name, as the client panics when one is no longer referred to and what it made is still used.
"""


def left_open(server: PravegaServer, stream: str, events: int) -> int:
    """Return the transaction that a process has left open which was killed."""
    command = [sys.executable, "-c", WRITES, server.controller, SCOPE, stream, str(events)]
    died = subprocess.run(command, check=False, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    return int(died.stdout)


def controller_of(server: PravegaServer) -> Controller:
    return Controller(Calls(access_to(server.controller, {}), 10.0), SCOPE)


def test_a_transaction_that_is_open_can_be_found_by_its_id_but_not_committed_or_aborted(
    pravega_server: PravegaServer,
) -> None:
    from pravega_client import StreamManager, TxnFailedException

    stream = pravega_server.make_stream()
    id = left_open(pravega_server, stream, 1)
    manager = StreamManager(pravega_server.controller)
    writer = manager.create_transaction_writer(SCOPE, stream, 2)
    found = writer.get_txn(id)
    assert found.is_open()
    for refused in (found.commit, found.abort, lambda: found.write_event("more")):
        with pytest.raises(TxnFailedException):
            refused()
    assert found.is_open()
    controller = controller_of(pravega_server)
    assert controller.commit(stream, id) is TransactionState.COMMITTED  # Pravega itself can
    controller.close()


def test_events_that_the_client_has_taken_are_lost_with_its_process(pravega_server: PravegaServer) -> None:
    stream = pravega_server.make_stream()
    id = left_open(pravega_server, stream, 20_000)
    controller = controller_of(pravega_server)
    assert controller.commit(stream, id) is TransactionState.COMMITTED
    controller.close()
    assert len(pravega_server.events(stream)) < 20_000


def test_a_committed_transaction_and_an_aborted_one_look_alike(pravega_server: PravegaServer) -> None:
    from pravega_client import StreamManager

    stream = pravega_server.make_stream()
    manager = StreamManager(pravega_server.controller)
    writer = manager.create_transaction_writer(SCOPE, stream, 1)
    committed, aborted = writer.begin_txn(), writer.begin_txn()
    committed.commit()
    aborted.abort()
    assert [writer.get_txn(one.get_txn_id()).is_open() for one in (committed, aborted)] == [False, False]


def test_a_transaction_is_aborted_when_its_lease_is_over(pravega_server: PravegaServer) -> None:
    stream, controller = pravega_server.make_stream(), controller_of(pravega_server)
    id = controller.begin(stream, 10.0).transaction
    began = time.monotonic()
    while controller.state(stream, id) is TransactionState.OPEN:
        assert time.monotonic() < began + 60
        threading.Event().wait(0.2)
    assert controller.commit(stream, id) is TransactionState.ABORTED
    controller.close()


HANGS = """
import sys, threading, time
from pravega_client import StreamManager
manager = StreamManager(sys.argv[1])
manager.list_scope()
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=manager.create_scope, args=("another",), daemon=True).start()
while True:
    print(time.monotonic(), flush=True)
    time.sleep(0.1)
"""


def test_no_other_thread_runs_while_a_call_waits_for_the_server(pravega_server: PravegaServer) -> None:
    hung = subprocess.Popen(
        [sys.executable, "-c", HANGS, pravega_server.controller], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert hung.stdin is not None
    assert hung.stdout is not None
    assert hung.stdout.readline() == b"ready\n"
    with pravega_server.stopped():
        hung.stdin.write(b"\n")
        hung.stdin.flush()
        lines: list[bytes] = []
        reading = threading.Thread(target=lambda: lines.extend(hung.stdout or ()), daemon=True)
        reading.start()
        reading.join(3.0)
        assert len(lines) < 5  # of some thirty
        hung.kill()
    hung.wait()
    reading.join()
    hung.stdin.close()
    hung.stdout.close()


def test_a_position_in_a_stream_cannot_be_kept_for_another_process(pravega_server: PravegaServer) -> None:
    from pravega_client import StreamCuts, StreamManager

    stream, manager = pravega_server.make_stream(), StreamManager(pravega_server.controller)
    writer = manager.create_writer(SCOPE, stream)
    writer.write_event("one")
    writer.flush()
    cut = manager.create_reader_group("positions", SCOPE, stream, True, None).get_streamcut()
    assert cut.get_segment_offset_map() == {0: len("one") + 8}  # may be read, and given to a group of this process
    with pytest.raises(TypeError, match="No constructor defined"):
        StreamCuts({0: 11})
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(cut)
    reader = manager.create_reader_group("reading", SCOPE, stream, False, None).create_reader("reader")

    async def first() -> object:
        return next(iter(await reader.get_segment_slice_async()))

    said = {name for name in dir(asyncio.run(first())) if not name.startswith("_")}
    assert said == {"data", "offset", "to_str"}  # an event has an offset, and does not say in which segment
