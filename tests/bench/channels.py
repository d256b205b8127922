"""What carries rows between two processes of one machine best: a channel of ours, or Arrow Flight's exchange.

Invariant: all carry the same batches, three columns of eight bytes, to a process that reads each as Arrow and
answers; they take turns, run by run. The CPU time is that of both processes. A round trip is a batch there and back.
"encrypted" is a channel of ours with TLS, which Flight does not have here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyarrow import flight

from snapshot.cut.frames import Data, End, Frame, Watermark
from snapshot.host.net.channels import ReceivingChannel, SendingChannel
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.net.tls import Tls
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId, Copy
from snapshot.operators.rows import Rows
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.certificates import Authority
from tests.connections import FAR, NEAR

WORKLOAD = "channels"
HOME = "127.0.0.1"
TRIP_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Load:
    """How many batches of which sizes, and how many round trips."""

    batches: tuple[tuple[int, int], ...]
    trips: int


FULL = Load(((100, 20_000), (1_000, 10_000), (10_000, 3_000), (16_384, 2_000)), 3_000)
SMALL = Load(((100, 20), (1_000, 10)), 20)

_SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.float64())])
_TIMED = pa.schema([*_SCHEMA, ("time", pa.int64())])
_US = Incarnation(Generation(1), Attempt(1))
_THERE = Copy(ChannelId(Uid("a"), Uid("b"), Partition(0), Partition(1)))
_BACK = Copy(ChannelId(Uid("b"), Uid("a"), Partition(1), Partition(0)))
_OPTIONS = HostOptions()
_ECHO, _COUNT = Watermark(1), Watermark(2)
"""What the other process is to do with the data that follows."""


class Transport(Protocol):
    """A way to another process that is there already."""

    def stream(self, rows: Rows, count: int) -> int:
        """Send so many batches, and wait until all have been read; the CPU nanoseconds of the other process so far."""

    def trip(self, rows: Rows, count: int) -> list[float]:
        """The seconds of so many round trips, one after the other."""


def figures(load: Load) -> Iterator[Figure]:
    """All figures of the workload."""
    with contextlib.ExitStack() as stack:
        sockets = stack.enter_context(_sockets())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        encrypted = stack.enter_context(_sockets(Authority(folder / "authority").issue()))
        exchange = stack.enter_context(_flight())
        ways: dict[str, Transport] = {"channel": sockets, "encrypted": encrypted, "flight": exchange}
        for size, count in load.batches:
            yield from _throughput(ways, size, count)
        yield from _trips(ways, load.trips)


def _throughput(ways: dict[str, Transport], size: int, count: int) -> Iterator[Figure]:
    rows = _rows(size)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    cpu = dict.fromkeys(ways, 0.0)
    for run in range(RUNS + 1):
        for name, way in ways.items():
            progress(f"{WORKLOAD}: {count} batches of {size} rows through {name}, run {run}")
            theirs, ours, began = way.stream(rows, 1), time.process_time(), time.perf_counter()
            theirs = way.stream(rows, count) - theirs
            if run:  # the first only warms up
                speeds[name].append(size * count / (time.perf_counter() - began) / 1e6)
                cpu[name] += time.process_time() - ours + theirs / 1e9
    for name in ways:
        yield figure(WORKLOAD, f"{name}, batches of {size}", "M rows/s", speeds[name], cpu[name])
        spent = [cpu[name] / (RUNS * size * count) * 1e9]
        yield figure(WORKLOAD, f"{name}, batches of {size}: CPU of both ends", "ns/row", spent, cpu[name])


def _trips(ways: dict[str, Transport], count: int) -> Iterator[Figure]:
    rows = _rows(TRIP_ROWS)
    taken: dict[str, list[list[float]]] = {name: [] for name in ways}
    cpu = dict.fromkeys(ways, 0.0)
    for run in range(RUNS + 1):
        for name, way in ways.items():
            progress(f"{WORKLOAD}: {count} round trips through {name}, run {run}")
            ours = time.process_time()
            trips = way.trip(rows, count)
            if run:
                taken[name].append(trips)
                cpu[name] += time.process_time() - ours
    for name, runs in taken.items():
        for percentile in (50, 99):
            values = [float(np.percentile(run, percentile)) * 1e6 for run in runs]
            yield figure(WORKLOAD, f"{name}, round trip of {TRIP_ROWS} rows, p{percentile}", "us", values, cpu[name])


def _rows(size: int) -> Rows:
    numbers = np.arange(size)
    return Rows(pa.record_batch([numbers, numbers / 2], schema=_SCHEMA), numbers)


# --- a channel in each direction -------------------------------------------------------------------------------------


@dataclass
class _Sockets:
    """This end of both channels."""

    loop: EventLoop
    there: Proved
    back: Proved
    arrived: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wire = RowsWire(_SCHEMA, timed=True)
        self._sending = _sender(self.loop, self.there, _THERE)
        self._receiving = ReceivingChannel(
            self.loop,
            self.back,
            _BACK,
            _US,
            lambda _, frame: self.arrived.append(frame),
            _broken,
            options=_OPTIONS,
        )

    def stream(self, rows: Rows, count: int) -> int:
        self.arrived.clear()
        self._sending.put(_COUNT)
        for _ in range(count):
            self._sending.put(self._wire.encode(rows))
            if self._sending.bytes >= _OPTIONS.channel_buffer:
                self.loop.run(lambda: self._sending.bytes < _OPTIONS.channel_buffer // 2)
        self._sending.put(_COUNT)
        self.loop.run(lambda: len(self.arrived) == 2)
        answer = self.arrived[-1]
        assert isinstance(answer, Watermark)
        return answer.timestamp

    def trip(self, rows: Rows, count: int) -> list[float]:
        self._sending.put(_ECHO)
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            self.arrived.clear()
            self._sending.put(self._wire.encode(rows))
            self.loop.run(lambda: bool(self.arrived))
            answer = self.arrived[0]
            assert isinstance(answer, Data)
            self._wire.decode(answer)
            taken.append(time.perf_counter() - began)
        return taken

    def close(self) -> None:
        self._sending.put(End())
        self.loop.run(lambda: self._sending.bytes == 0)
        self.loop.run_once(0)
        self._sending.close()
        self._receiving.close()
        self.loop.close()


@contextlib.contextmanager
def _sockets(tls: Tls | None = None) -> Iterator[_Sockets]:
    serve = partial(_serve_sockets, tls)
    with socket.create_server((HOME, 0)) as listener, _other(serve, listener.getsockname()[1]):
        accepted = listener.accept()[0], listener.accept()[0]
        if tls is None:
            there, back = (Proved(sock, NEAR) for sock in accepted)
        else:
            there, back = (Proved(tls.load().accept(sock), None) for sock in accepted)
        ours = _Sockets(EventLoop(), there, back)
        yield ours
        ours.close()


def _serve_sockets(tls: Tls | None, port: int, ready: Connection) -> None:
    """The other process: reads data, sends it back if told to, and answers a `_COUNT` with its CPU time."""
    loop, wire = EventLoop(), RowsWire(_SCHEMA, timed=True)
    said: list[Frame] = [_COUNT]
    called = socket.create_connection((HOME, port)), socket.create_connection((HOME, port))
    if tls is None:
        there, back = (Proved(sock, FAR) for sock in called)
    else:
        there, back = (Proved(tls.load().call(sock), None) for sock in called)
    answers = _sender(loop, back, _BACK)

    def arrived(_: Copy, frame: Frame) -> None:
        if isinstance(frame, Data):
            rows = wire.decode(frame)
            if said[0] == _ECHO:
                answers.put(wire.encode(rows))
            return
        said[0] = frame
        if frame == _COUNT:
            answers.put(Watermark(time.process_time_ns()))

    receiving = ReceivingChannel(loop, there, _THERE, _US, arrived, _broken, options=_OPTIONS)
    ready.send(None)
    loop.run(lambda: isinstance(said[0], End))
    receiving.close()
    answers.close()
    loop.close()


def _sender(loop: EventLoop, proved: Proved, channel: Copy) -> SendingChannel:
    return SendingChannel(loop, proved, channel, _US, lambda: None, _broken, ordered=False, options=_OPTIONS)


def _broken(reason: str) -> None:
    raise RuntimeError(reason)


# --- Arrow Flight ----------------------------------------------------------------------------------------------------


class _FlightHost(flight.FlightServerBase):  # type: ignore[misc]
    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        echo = descriptor.command == b"echo"
        writer.begin(_TIMED)
        for chunk in reader:
            chunk.data.validate(full=True)
            if echo:
                writer.write_batch(chunk.data)
        if not echo:
            now = time.process_time_ns()
            writer.write_batch(pa.record_batch([[now], [0.0], [0]], schema=_TIMED))


@dataclass
class _Flight:
    client: flight.FlightClient

    def stream(self, rows: Rows, count: int) -> int:
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(b"count"))
        with writer:
            writer.begin(_TIMED)
            for _ in range(count):
                writer.write_batch(_with_times(rows))
            writer.done_writing()
            return int(reader.read_chunk().data.column(0)[0].as_py())

    def trip(self, rows: Rows, count: int) -> list[float]:
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(b"echo"))
        taken = []
        with writer:
            writer.begin(_TIMED)
            for _ in range(count):
                began = time.perf_counter()
                writer.write_batch(_with_times(rows))
                reader.read_chunk().data.validate(full=True)
                taken.append(time.perf_counter() - began)
            writer.done_writing()
        return taken


def _with_times(rows: Rows) -> pa.RecordBatch:
    return rows.batch.append_column(
        _TIMED.field(2), pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.times)])
    )


@contextlib.contextmanager
def _flight() -> Iterator[_Flight]:
    with socket.socket() as free:
        free.bind((HOME, 0))
        port = int(free.getsockname()[1])
    with _other(_serve_flight, port), flight.connect(f"grpc://{HOME}:{port}") as client:
        yield _Flight(client)


def _serve_flight(port: int, ready: Connection) -> None:
    host = _FlightHost(f"grpc://{HOME}:{port}")
    ready.send(None)
    host.serve()


class _Serve(Protocol):
    def __call__(self, port: int, ready: Connection) -> None: ...


@contextlib.contextmanager
def _other(serve: _Serve, port: int) -> Iterator[None]:
    """Another process that serves at this port, or connects to it, until it is not needed any more."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(port, theirs), daemon=True)
    process.start()
    try:
        ours.recv()
        yield
    finally:
        process.terminate()
        process.join()
        process.close()
        ours.close()
        theirs.close()
