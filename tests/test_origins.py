"""What was prepared by one kind of sink is committed by no other, and is told apart from what is its own.

The same of PostgreSQL's, which needs psycopg, is in `tests/servers/test_postgres_client.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from snapshot import ToDelta, ToDriver, ToFiles, ToHTTP, ToKafka, ToRocksDB, ToSQLite
from snapshot.program.sink import Sink
from snapshot.sinks.heap_sink import ToHeap
from snapshot.testing.sinks import SCHEMA
from snapshot.transaction_events import CommitOutcome
from tests.foreign_commits import answer_to_a_foreign_commit, bench_of

SINKS: Final[dict[str, Callable[[Path], Sink]]] = {
    "ToFiles": lambda folder: ToFiles(str(folder / "files")),
    "ToSQLite": lambda folder: ToSQLite(str(folder / "rows.db"), "t", create=True),
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
    bench = bench_of(SINKS[former](tmp_path))
    if former == "ToDelta":
        assert bench.sink().examine(bench.job, bench.uid, SCHEMA) == []
    answer = answer_to_a_foreign_commit(bench, SINKS[now](tmp_path))
    assert answer.outcome is CommitOutcome.FAILED
    assert f"was prepared by {former}, and its sink is {now} by now" in answer.reason
