"""What a payload of the job's tree may do: nothing that its sink would not, and nothing elsewhere unless it is allowed.

The same of PostgreSQL's, which needs psycopg, is in `tests/servers/test_postgres_client.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot import ToDelta, ToDriver, ToFiles, ToHTTP, ToKafka, ToPravega, ToRocksDB, ToSQLite
from snapshot.connectors.files.hive_folders import folders_of, is_folder
from snapshot.connectors.memory.heap_sink import ToHeap
from snapshot.connectors.staging.payloads import place_text, places_in
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.program.sink import Sink
from snapshot.testing.sinks import SCHEMA
from snapshot.tree.frozen_json import JsonLike
from tests.foreign_commits import answer_to_a_foreign_commit, bench_of

SINKS: Final[dict[str, Callable[[Path], Sink]]] = {
    "ToFiles": lambda folder: ToFiles(str(folder / "files")),
    "ToSQLite": lambda folder: ToSQLite(str(folder / "rows.db"), "t", create=True),
    "ToKafka": lambda _: ToKafka("127.0.0.1:1", "t", key="row"),
    "ToPravega": lambda _: ToPravega("tcp://127.0.0.1:1", "s", "t", key="row"),
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
    assert f"were prepared by {former}, and their sink is {now} by now" in answer.reason


ELSEWHERE: Final[dict[str, Callable[[Path], Sink]]] = {
    "ToFiles": lambda folder: ToFiles(str(folder / "others")),
    "ToSQLite": lambda folder: ToSQLite(str(folder / "rows.db"), "others", create=True),
    "ToDelta": lambda folder: ToDelta(str(folder / "others"), create=True),
    "ToRocksDB": lambda folder: ToRocksDB(str(folder / "others"), key="row"),
    "ToHeap": lambda _: ToHeap("another of origins"),
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_rows_for_a_place_that_is_not_the_sinks_any_more_are_committed_there_only_if_it_is_allowed_by_name(
    kind: str, tmp_path: Path
) -> None:
    former, now = bench_of(SINKS[kind](tmp_path)), bench_of(ELSEWHERE[kind](tmp_path))
    now.environment, now.job = former.environment, former.job
    for bench in (former, now):
        assert bench.sink().examine(bench.job, bench.uid, SCHEMA) == []
    transaction, payload, _ = former.prepared()
    [place] = places_in(payload)
    answer = now.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert f"are for {place}, and their sink writes to " in answer.reason
    assert f"accept_places=[{place!r}], or --accept-place of the command" in answer.reason
    now.accept_places = frozenset([place])
    assert now.settle(transaction, payload).outcome is CommitOutcome.COMMITTED
    assert former.settle(transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("file:///out/", "file:///out"),
        ("/", "/"),
        ("file:///my files", "file:///my files"),
        ("x\x1b[2J", '"x\\u001b[2J"'),
        ({"path": "/a", "table": "t"}, "path=/a table=t"),
        ({"path": "/a table=b", "table": "c"}, 'path="/a table=b" table=c'),
        ({"bootstrap": "a:1,b:2", "topic": "t"}, 'bootstrap="a:1,b:2" topic=t'),
        ({"servers": ["a:1", "b:2"], "database": ""}, 'database="" servers=a:1,b:2'),
    ],
)
def test_a_place_has_a_name_that_is_not_that_of_another_and_harms_no_terminal(place: JsonLike, text: str) -> None:
    assert place_text(place) == text


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@given(NAMES, st.none() | NAMES)
def test_every_folder_that_rows_are_divided_into_is_one_that_a_payload_may_name(column: str, value: str | None) -> None:
    [folder] = folders_of(column, pa.array([value], pa.string()))
    assert is_folder(folder)
    assert is_folder(f"{folder}/{folder}")


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a=b/..", "../a=b", "/a=b", "a=b/", "a=b//a=b", "a", "=b", "a=", "a=b\0", "a=" + "x" * 254]
)
def test_a_folder_that_rows_are_not_divided_into_is_none_that_a_payload_may_name(name: str) -> None:
    assert not is_folder(name)
