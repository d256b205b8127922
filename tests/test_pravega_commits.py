"""Committers of one transaction at a Pravega that is played in memory: what may happen between two of their steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from snapshot.connectors.pravega import commits, slot
from snapshot.connectors.pravega.address import Host
from snapshot.connectors.pravega.controller import Begun, Segment, TransactionState
from snapshot.connectors.pravega.segment_store import Extent, events_in, framed
from snapshot.connectors.pravega.sink import ToPravega
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.testing.sinks import SinkBench, SinkTrial

COMMITTED, ALREADY, RETRY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED, CommitOutcome.RETRY_LATER


@dataclass
class Pravega:
    """A controller and a segment store, for streams with one segment and transactions that are never aborted."""

    data: dict[str, bytes] = field(default_factory=dict)
    transactions: list[TransactionState] = field(default_factory=list)

    def segments(self, stream: str) -> tuple[Sequence[Segment], str]:
        return [Segment("s", stream, 0, 0.0, 1.0)], ""

    def host_of(self, segment: Segment) -> Host:
        return Host("host", 1)

    def begin(self, stream: str, lease: float) -> Begun:
        self.transactions.append(TransactionState.OPEN)
        return Begun(len(self.transactions) - 1, self.segments(stream)[0], "")

    def commit(self, stream: str, transaction: int) -> TransactionState:
        if self.transactions[transaction] is TransactionState.OPEN:
            [segment], _ = self.segments(stream)
            staged = self.data.get(segment.of_transaction(transaction), b"")
            self.data[segment.name] = self.data.get(segment.name, b"") + staged
            self.transactions[transaction] = TransactionState.COMMITTED
        return self.transactions[transaction]

    def extent(self, segment: str) -> Extent:
        return Extent(0, len(self.data.get(segment, b"")))

    def read(self, segment: str, extent: Extent) -> Sequence[bytes]:
        return events_in(self.data.get(segment, b"")[extent.start : extent.end])

    def append(self, segment: str, events: Sequence[bytes]) -> None:
        self.data[segment] = self.data.get(segment, b"") + b"".join(map(framed, events))

    def append_at(self, segment: str, event: bytes, offset: int) -> bool:
        fits = self.extent(segment).end == offset
        if fits:
            self.append(segment, [event])
        return fits

    def close(self) -> None:
        pass


def test_a_committer_that_was_paused_until_its_log_is_stale_writes_nothing_that_another_has_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pravega = Pravega()
    monkeypatch.setattr(slot.PravegaClients, "controller", lambda _: pravega)
    monkeypatch.setattr(slot.PravegaClients, "store", lambda *_: pravega)
    bench = SinkBench(SinkTrial(ToPravega("tcp://127.0.0.1:1", "s", "t"), lambda _: []))
    transaction, payload, rows = bench.prepared()
    write, paused = commits._Commit.write, list[bool]()

    def pauses(commit: commits._Commit) -> None:
        if not paused:
            paused.append(True)
            assert bench.settle(transaction, payload, 2).outcome is COMMITTED
            commit._slot._until = 0.0
        write(commit)

    monkeypatch.setattr(commits._Commit, "write", pauses)
    writer = bench.writer()
    answers = [writer.commit(transaction, payload) for _ in range(2)]
    writer.close()
    assert [answer.outcome for answer in answers] == [RETRY, ALREADY]
    assert "another process has added to the log" in answers[0].reason
    [stream], _ = pravega.segments("t")
    found = Counter(json.loads(event)["row"] for event in pravega.read(stream.name, pravega.extent(stream.name)))
    assert found == Counter(rows)
