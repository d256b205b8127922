"""What was prepared by one kind of sink is committed by no other, and is told apart from what is its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from snapshot import ToDelta, ToDriver, ToFiles, ToHTTP, ToKafka, ToPostgres, ToRocksDB, ToSQLite
from snapshot.program.sink import Sink
from snapshot.sinks.heap_sink import ToHeap
from snapshot.testing.sinks import SCHEMA, SinkBench, SinkTrial
from snapshot.transaction_events import CommitOutcome

SINKS: Final[dict[str, Callable[[Path], Sink]]] = {
    "ToFiles": lambda folder: ToFiles(str(folder / "files")),
    "ToSQLite": lambda folder: ToSQLite(str(folder / "rows.db"), "t", create=True),
    "ToPostgres": lambda _: ToPostgres("host=127.0.0.1 port=1 dbname=d user=u", "t", mode="staged"),
    "ToKafka": lambda _: ToKafka("127.0.0.1:1", "t", key="row"),
    "ToDriver": lambda _: ToDriver(),
    "ToDelta": lambda folder: ToDelta(str(folder / "delta"), create=True),
    "ToRocksDB": lambda folder: ToRocksDB(str(folder / "rocksdb"), key="row"),
    "ToHeap": lambda _: ToHeap("test of origins"),
    "ToHTTP": lambda _: ToHTTP("http://127.0.0.1:1/", exactly_once=False),
}
FOLLOWING: Final = dict(zip(SINKS, [*list(SINKS)[1:], "ToFiles"], strict=True))


@pytest.mark.parametrize("former", SINKS)
def test_a_sink_refuses_what_another_kind_of_sink_has_prepared_and_says_which(former: str, tmp_path: Path) -> None:
    now = FOLLOWING[former]
    bench = SinkBench(SinkTrial(SINKS[former](tmp_path), lambda around: around.delivered))
    if former == "ToDelta":
        assert bench.sink().examine(bench.job, bench.uid, SCHEMA) == []
    transaction, payload, _ = bench.prepared()
    other = SinkBench(SinkTrial(SINKS[now](tmp_path), lambda around: around.delivered))
    other.around = bench.around
    writer = other.writer()
    answer = writer.commit(transaction, payload)
    writer.close()
    assert answer.outcome is CommitOutcome.FAILED
    assert f"was prepared by {former}, and its sink is {now} by now" in answer.reason
    assert other.visible() == []
