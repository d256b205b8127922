"""Rows sent by HTTP: at least once, the same rows under the same key, whatever happens to the server or to us."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from snapshot import ToHTTP
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import TransactionId
from snapshot.program.sink import Abilities, SinkError, SinkWriter
from snapshot.structured.query import SinkQuery
from snapshot.structured.sink_options import sink_of
from snapshot.testing.sinks import CHECKS, SinkEnvironment, SinkTrial, it_is_plain_data_without_a_fault, settled
from snapshot.tree.manifest import CommitPayload
from statebackend.stores.memory_store import MemoryStore
from tests.sql_bench import CHANGES, SqlBench, change
from tests.targets.http_rows import Deed, RowServer, row_server

KEYED = pa.schema({"id": pa.string(), "n": pa.int64()})
IN_THE_KIT = [check for check in CHECKS if check is not it_is_plain_data_without_a_fault]
"""That check wants a sink to say that it is exactly-once."""


@pytest.fixture
def server() -> Iterator[RowServer]:
    with row_server() as server:
        yield server


def bench_of(server: RowServer, schema: pa.Schema = CHANGES, **options: object) -> SqlBench:
    sink = ToHTTP(server.url, exactly_once=False, **options)  # type: ignore[arg-type]
    bench = SqlBench(sink, schema)
    assert bench.examine() == []
    return bench


def committed(
    server: RowServer, prepared: tuple[TransactionId, CommitPayload], writer: SinkWriter, *deeds: Deed
) -> str:
    """Try once to commit, while the server does this with the requests that come; why it has to be tried again."""
    server.next.extend(deeds)
    answer = writer.commit(*prepared)
    assert not server.next
    assert answer.outcome is CommitOutcome.RETRY_LATER
    return answer.reason


@pytest.mark.parametrize("rows_per_request", [1, 2])
@pytest.mark.parametrize("check", IN_THE_KIT)
def test_with_a_server_that_takes_each_key_once_it_passes_the_kit(
    check: Callable[[SinkTrial], None], rows_per_request: int, server: RowServer
) -> None:
    sink = ToHTTP(
        server.url, exactly_once=False, rows_per_request=rows_per_request, headers={"Authorization": "Bearer hidden"}
    )

    def visible(_: SinkEnvironment) -> Sequence[str]:
        return [row["row"] for row in server.rows()]

    @contextmanager
    def down() -> Iterator[None]:
        server.stop()
        yield
        server.start()

    with row_server() as other:
        nowhere = replace(sink, url=other.url)
    check(SinkTrial(sink, visible, server.taken.clear, down, lambda _: 0, [nowhere], ["hidden"]))


def test_a_row_is_a_request_with_a_key_of_its_own(server: RowServer) -> None:
    bench = bench_of(server, headers={"X-Team": "a"})
    bench.commit(bench.open(), [change(1, "é\n"), change(2)], [change(2)])
    assert [json.loads(one.body) for one in server.came] == [
        {"k": 1, "v": "é\n", "gone": False},
        {"k": 2, "v": None, "gone": False},
        {"k": 2, "v": None, "gone": False},
    ]
    assert len({one.key for one in server.came}) == 3
    assert {one.headers["Content-Type"] for one in server.came} == {"application/json"}
    assert {one.headers["X-Team"] for one in server.came} == {"a"}


def test_several_rows_of_a_request_are_json_lines(server: RowServer) -> None:
    bench = bench_of(server, rows_per_request=2)
    bench.commit(bench.open(), [change(1), change(2), change(3)], [change(4), change(5)])
    assert [[json.loads(line)["k"] for line in one.body.splitlines()] for one in server.came] == [[1, 2], [3, 4], [5]]
    assert {one.headers["Content-Type"] for one in server.came} == {"application/x-ndjson"}
    assert len({one.key for one in server.came}) == 3


@pytest.mark.parametrize("rows_per_request", [1, 2])
def test_whoever_sends_a_transaction_again_sends_the_same_rows_under_the_same_keys(
    server: RowServer, rows_per_request: int
) -> None:
    bench = bench_of(server, rows_per_request=rows_per_request)
    prepared = bench.prepared(bench.open(), [change(k) for k in range(5)])
    settled(bench.open(), *prepared)
    first, server.came = server.came, []
    now = SqlBench(replace(bench.sink, rows_per_request=3))  # type: ignore[type-var]
    now.environment = bench.environment
    settled(now.open(2, partition=3), *prepared)
    assert server.came == first


def test_rows_that_are_made_anew_have_other_keys_unless_they_bring_their_own(server: RowServer) -> None:
    for key in ("", "id"):
        server.came = []
        for _ in range(2):
            bench = bench_of(server, KEYED, key=key)
            bench.commit(bench.open(), [{"id": "a", "n": 1}], [{"id": "b", "n": 2}])
        keys = [one.key for one in server.came]
        assert keys == ["a", "b", "a", "b"] if key else len(set(keys)) == 4


def test_a_key_of_a_row_stands_in_the_header_so_that_it_can_be_told_apart(server: RowServer) -> None:
    bench = bench_of(server, KEYED, key="id")
    bench.commit(bench.open(), [{"id": text} for text in ("7/a:b", "ü %", "a\r\nX: y", '"')])
    assert [one.key for one in server.came] == ["7/a:b", "%C3%BC%20%25", "a%0D%0AX:%20y", "%22"]
    bench = bench_of(server, KEYED, key="n")
    bench.commit(bench.open(), [{"n": -7}])
    assert server.came[-1].key == "-7"


@pytest.mark.parametrize("row", [{"id": None, "n": 1}, {"id": "", "n": 1}])
def test_a_row_without_its_key_fails_the_attempt(server: RowServer, row: dict[str, object]) -> None:
    bench = bench_of(server, KEYED, key="id")
    writer = bench.open()
    bench.begin(writer)
    with pytest.raises(SinkError, match=r"sink out: a row has no key in 'id': \{'id': .*'n': 1\}"):
        writer.write(bench.batch([{"id": "a", "n": 0}, row]))


def test_a_number_that_json_does_not_have_fails_the_attempt_with_its_row(server: RowServer) -> None:
    bench = bench_of(server, pa.schema([("id", pa.string()), ("x", pa.float64())]))
    writer = bench.open()
    bench.begin(writer)
    with pytest.raises(SinkError, match=r"sink out: .*the column 'x' has one; the row is \{'id': 'b'"):
        writer.write(bench.batch([{"id": "a", "x": 0.5}, {"id": "b", "x": float("nan")}]))


@pytest.mark.parametrize("status", [500, 502, 503, 408, 409, 425, 429])
def test_a_server_in_trouble_is_asked_again_from_where_it_was(server: RowServer, status: int) -> None:
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1), change(2), change(3)])
    reason = committed(server, prepared, writer, 200, status)
    assert f"row 1 of {prepared[0]}: {server.url} said {status} " in reason
    assert reason.endswith("no such thing")
    assert committed(server, prepared, writer, status)
    settled(writer, *prepared)
    assert [json.loads(one.body)["k"] for one in server.came] == [1, 2, 2, 2, 3]
    assert len({one.key for one in server.came}) == 3


def test_a_server_that_says_when_is_not_asked_before(server: RowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("snapshot.connectors.http.sender.monotonic", lambda: now)
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1)])
    committed(server, prepared, writer, (503, {"Retry-After": "20"}))
    now = 1019.0
    assert "asked not to be asked for another 1 s" in committed(server, prepared, writer)
    assert len(server.came) == 1
    now = 1020.0
    settled(writer, *prepared)
    committed(server, bench.prepared(writer, [change(2)]), writer, (503, {"Retry-After": "Fri, 31 Dec 1999"}))
    settled(writer, *bench.prepared(writer, [change(3)]))


def test_rows_whose_answer_was_lost_are_sent_again_under_the_same_key(server: RowServer) -> None:
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1), change(2)])
    assert "did not answer" in committed(server, prepared, writer, "lose")
    settled(writer, *prepared)
    assert [json.loads(one.body)["k"] for one in server.came] == [1, 1, 2]
    assert [row["k"] for row in server.rows()] == [1, 2]


@pytest.mark.parametrize("deed", ["close", "lose"])
def test_a_connection_that_has_come_of_age_is_replaced_within_a_try(server: RowServer, deed: Deed) -> None:
    bench = bench_of(server)
    writer = bench.open()
    server.next.extend([200, deed])
    prepared = bench.prepared(writer, [change(1), change(2), change(3)])
    assert writer.commit(*prepared).outcome is CommitOutcome.COMMITTED
    assert [row["k"] for row in server.rows()] == [1, 2, 3]


def test_a_server_that_does_not_answer_in_time_is_asked_again(server: RowServer) -> None:
    bench = bench_of(server, timeout=0.5)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1), change(2)])
    assert "did not answer: timed out" in committed(server, prepared, writer, "hang")
    settled(writer, *prepared)
    assert [row["k"] for row in server.rows()] == [1, 2]


def test_what_is_no_answer_is_none(server: RowServer) -> None:
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1)])
    assert "did not answer: what is it" in committed(server, prepared, writer, "babble")
    settled(writer, *prepared)


def test_a_server_that_was_stopped_and_started_again_gets_the_rest(server: RowServer) -> None:
    bench = bench_of(server)
    writer = bench.open()
    bench.commit(writer, [change(1)])
    prepared = bench.prepared(writer, [change(2), change(3)])
    server.stop()
    assert "Connection refused" in committed(server, prepared, writer)
    [problem] = bench.examine()
    assert problem.startswith(f"{server.url} cannot be reached: ")
    server.start()
    settled(writer, *prepared)
    assert [row["k"] for row in server.rows()] == [1, 2, 3]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 301])
def test_what_the_server_refuses_fails_with_its_words_and_the_row(server: RowServer, status: int) -> None:
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1), change(2, "bad")])
    server.next.extend([200, (status, {"Location": "/elsewhere"})])
    answer = writer.commit(*prepared)
    assert answer.outcome is CommitOutcome.FAILED
    assert f"{server.url} said {status} " in answer.reason
    assert "no such thing" in answer.reason
    assert ("Location '/elsewhere'" in answer.reason) == (status == 301)
    refused = f"row 1 of transaction {prepared[0]}, sent with the key {server.came[-1].key}, is refused: "
    assert answer.reason.endswith(refused + '{"k":2,"v":"bad","gone":false}')
    settled(bench.open(2), *prepared)
    assert [row["k"] for row in server.rows()] == [1, 2]


def test_of_several_rows_that_are_refused_the_first_is_told(server: RowServer) -> None:
    bench = bench_of(server, rows_per_request=2)
    writer = bench.open()
    server.next.extend([200, 400])
    answer = writer.commit(*bench.prepared(writer, [change(k) for k in range(4)]))
    assert "rows 2 to 3, of which this is the first," in answer.reason
    assert answer.reason.endswith('{"k":2,"v":null,"gone":false}')


def test_a_status_may_say_that_a_row_is_known(server: RowServer) -> None:
    bench = bench_of(server, known=(409,))
    writer = bench.open()
    server.next.extend([409])
    assert writer.commit(*bench.prepared(writer, [change(1), change(2)])).outcome is CommitOutcome.COMMITTED
    assert len(server.came) == 2


def test_an_attempt_that_is_over_sends_nothing_more(server: RowServer) -> None:
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1)])
    writer.close()
    assert committed(server, prepared, writer) == "the attempt is over"
    assert server.came == []


def test_staged_rows_that_are_gone_fail_the_commit(server: RowServer) -> None:
    bench = bench_of(server)
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1)])
    bench.environment.stored.clear()
    answer = writer.commit(*prepared)
    assert answer.outcome is CommitOutcome.FAILED
    assert "the rows that were staged in the job's tree cannot be had" in answer.reason


def test_what_cannot_be_right_is_said_without_the_server() -> None:
    good = ToHTTP("https://example.org:8443/in?x=1", exactly_once=False)
    assert good.check(CHANGES) == []
    assert good.abilities == Abilities()
    for url in ("example.org", "ftp://example.org", "http://", "http://h:x/", "http://h/a b", "http://h/\n"):
        [problem] = replace(good, url=url).check(CHANGES)
        assert "is no URL of an HTTP server" in problem
    assert "a header Authorization" in replace(good, url="https://me:secret@example.org/").check(CHANGES)[0]
    assert "secret" not in replace(good, url="https://me:secret@example.org/").check(CHANGES)[0]
    assert "behind #" in replace(good, url="https://example.org/#x").check(CHANGES)[0]
    assert "known are POST" in replace(good, method="GET").check(CHANGES)[0]  # type: ignore[arg-type]
    assert "at least 1" in replace(good, rows_per_request=0).check(CHANGES)[0]
    assert "above 0" in replace(good, timeout=float("nan")).check(CHANGES)[0]
    assert "200 cannot say" in replace(good, known=(200,)).check(CHANGES)[0]
    assert "is set for each request" in replace(good, headers={"idempotency-key": "x"}).check(CHANGES)[0]
    assert "no header can have" in replace(good, headers={"A": "x\r\nB: y"}).check(CHANGES)[0]
    assert "key: there is no column 'id'" in replace(good, key="id").check(CHANGES)[0]
    assert "of texts or integers" in replace(good, key="gone").check(CHANGES)[0]
    assert "with several" in replace(good, key="k", rows_per_request=2).check(CHANGES)[0]
    assert "'raw' of binary" in good.check(pa.schema({"raw": pa.binary()}))[0]


def test_headers_are_neither_printed_nor_compared_away() -> None:
    sink = ToHTTP("http://h/", headers={"Authorization": "secret"})
    assert "secret" not in repr(sink)
    assert sink != replace(sink, headers={})


def test_a_server_that_speaks_no_tls_is_found_before_anything_starts(server: RowServer) -> None:
    bench = SqlBench(ToHTTP(server.url.replace("http:", "https:"), exactly_once=False))
    [problem] = bench.examine()
    assert "cannot be reached: [SSL" in problem


def test_a_batch_of_a_query_has_the_same_keys_however_often_it_is_written_and_committed(server: RowServer) -> None:
    store = MemoryStore(f"http {server.port}")
    rows = [pa.RecordBatch.from_pylist([change(1, "a")], CHANGES)]

    def start() -> SinkQuery:
        return SinkQuery("query", "http", ToHTTP(server.url, exactly_once=False), store, 1.0, CHANGES)

    for run in ("first", "second"):
        written = [start().write(0, partition, run, False, rows) for partition in range(2)]
        for _ in range(2):
            start().commit(0, written)
    assert len(server.came) == 8
    assert server.rows() == [change(1, "a")] * 2


def test_options_of_a_query_make_it() -> None:
    options = {"path": "http://h/", "exactlyOnce": "false", "known": "409,422", "headers": '{"A": "b"}', "timeout": "5"}
    made = sink_of("epochcut.http", ToHTTP, options)
    assert made == ToHTTP("http://h/", exactly_once=False, known=(409, 422), headers={"A": "b"}, timeout=5.0)
