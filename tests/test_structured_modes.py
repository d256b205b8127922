"""Which output mode writes what into which sink, from a session that knows nothing else of ours."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from snapshot.connectors.pravega.sink import ToPravega
from snapshot.program.sink import SinkError
from snapshot.structured.batch_log import identity_of, target_of
from snapshot.structured.formats import FORMATS, HTTP, Files, Kafka, SQLite, _Format
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import Creation, UnknownOutcome
from tests.spark_programs import answer_of
from tests.structured_modes_job import ROWS

pytestmark = pytest.mark.usefixtures("with_pandas")

COUNTS = [[user, count] for user, count in sorted(Counter(user for users in ROWS for user in users).items())]
NUMBERS = sorted(batch * 10 + place for batch, users in enumerate(ROWS) for place in range(len(users)))
PLACED = sorted([user, batch * 10 + place] for batch, users in enumerate(ROWS) for place, user in enumerate(users))
COLUMNS = StructType([StructField("user", StringType()), StructField("count", LongType())])
EACH = [pytest.param(one, marks=pytest.mark.servers if "postgres" in one.name() else ()) for one in FORMATS]
"""What needs a client that only tests of servers install is tested with these."""
NEEDED = {
    "files": {"path": "/out"},
    "kafka": {"bootstrap": "host:9092", "topic": "totals"},
    "pravega": {"controller": "tcp://host:9090", "scope": "shop", "stream": "totals"},
    "postgres": {"dsn": "host=host", "table": "totals"},
    "sqlite": {"path": "/out", "table": "totals"},
    "rocksdb": {"path": "/out"},
    "delta": {"path": "/out"},
    "http": {"url": "http://host/rows", "exactlyOnce": "false"},
}


def options_of(format: type[_Format], **more: str) -> dict[str, str]:
    return {**NEEDED[format.name().rpartition(".")[2]], "staging": "/staging", **more}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("modes")
    found: dict[str, Any] = answer_of("-m", "tests.structured_modes_job", str(folder))
    return found


@pytest.mark.timeout(600)
def test_a_plain_count_is_written_by_its_key_in_complete_mode(said: dict[str, Any]) -> None:
    assert said["complete"] == ["", ""]
    assert said["seen"]["complete"] == [COUNTS, COUNTS]


@pytest.mark.timeout(600)
def test_what_a_batch_changed_is_written_by_its_key_in_foreach_batch(said: dict[str, Any]) -> None:
    failed, again = said["updates by batch"]
    assert "all of it was written" in failed, failed
    assert again == ""
    assert said["seen"]["updates"] == [COUNTS, COUNTS]


@pytest.mark.timeout(600)
def test_a_batch_that_is_run_again_in_foreach_batch_adds_nothing_to_any_sink(said: dict[str, Any]) -> None:
    failed, again = said["rows by batch"]
    assert "all of it was written" in failed, failed
    assert again == ""
    seen = said["seen"]
    assert seen["sqlite"] == sorted([*NUMBERS, *NUMBERS]), "two writes in one function are two"
    assert (seen["delta"], seen["http"]) == (NUMBERS, NUMBERS)
    assert seen["files"] == PLACED, "spark.read finds the folders' column"


@pytest.mark.timeout(600)
def test_spark_refuses_update_mode_itself_and_complete_mode_names_the_way(said: dict[str, Any]) -> None:
    assert "epochcut.sqlite does not support Update mode" in said["update"]
    assert "outputMode('append'), or one that takes a key" in said["complete without a key"]


@pytest.mark.parametrize("format", EACH)
def test_complete_mode_is_for_sinks_with_a_key(format: type[_Format]) -> None:
    if format.upserts:
        format(options_of(format, key="user")).streamWriter(COLUMNS, True)
    if format.name() != "epochcut.rocksdb":  # which cannot be without one
        with pytest.raises(SinkError, match=r"outputMode\('complete'\) gives the whole result anew") as raised:
            format(options_of(format)).streamWriter(COLUMNS, True)
        assert "update" not in str(raised.value)
        assert ("the option 'key'" in str(raised.value)) == format.upserts


def test_a_key_that_only_tells_requests_apart_replaces_nothing() -> None:
    with pytest.raises(SinkError, match="this sink can only add rows"):
        HTTP(options_of(HTTP, key="user")).streamWriter(COLUMNS, True)


@pytest.mark.parametrize("format", EACH)
def test_a_batch_is_written_by_its_id_and_replaces_nothing_else(format: type[_Format]) -> None:
    options = options_of(format, key="user") if format.upserts else options_of(format)
    assert format({**options, "batch": "7"}).writer(COLUMNS, False)._batch == 7
    for given, problem in (({}, "missing"), ({"batch": "-1"}, "'-1'")):
        with pytest.raises(SinkError, match=rf"needs the option 'batch', a number that grows \(it is {problem}"):
            format({**options, **given}).writer(COLUMNS, False)
    with pytest.raises(SinkError, match=r"write with mode\('append'\)"):
        format({**options, "batch": "7"}).writer(COLUMNS, True)


def test_two_writes_may_not_share_a_staging_folder() -> None:
    store = MemoryStore("two-writes")
    places = [target_of("sqlite", SQLite(options_of(SQLite, table=t, batch="0")).writer(COLUMNS, False)._target.sink)
              for t in ("one", "other")]  # fmt: skip
    assert identity_of(store, places[0]) == identity_of(store, places[0])
    with pytest.raises(SinkError, match=r"batches written to sqlite, path /out, table one, .* a folder of its own"):
        identity_of(store, places[1])
    given = [ToPravega("tcp://a:1", "s", "t"), ToPravega("tcp://b:1", "s", "t"), ToPravega("tcp://a:1", "o", "t"),
             ToPravega("tcp://a:1", "s", "o")]  # fmt: skip
    assert len({target_of("pravega", sink) for sink in given}) == len(given)


def test_a_secret_is_not_in_what_is_written_of_a_target() -> None:
    sink = Kafka(options_of(Kafka, options='{"sasl.password": "secret"}'))._target(COLUMNS).sink
    assert "secret" not in target_of("kafka", sink)


def test_an_identity_whose_answer_was_lost_is_read_again() -> None:
    class Losing(MemoryStore):
        def create(self, path: str, data: bytes) -> Creation:
            super().create(path, data)
            raise UnknownOutcome("no answer")

    store = Losing("losing-identity")
    assert identity_of(store, "files, path /out") == identity_of(store, "files, path /out")
    assert Files(options_of(Files, batch="0")).writer(COLUMNS, False)._target.staging == "/staging"
