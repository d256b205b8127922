"""The sink for Pravega as it stands in a program, what it prepares and what it refuses: without a server."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pyarrow as pa
import pytest

from snapshot.connectors.pravega.sink import ToPravega, encoded
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId
from snapshot.program.sink import UnwritableRow
from snapshot.testing.sinks import SCHEMA, SinkBench, SinkTrial, write
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Uid

NOWHERE = "tcp://127.0.0.1:1"
SECRETS = {"user": "u", "password": "hush"}


def test_it_is_plain_data_that_shows_no_secret() -> None:
    sink = ToPravega("tls://a:1,b:2", "shop", "totals", options=SECRETS)
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert "tls://a:1,b:2" in repr(sink)
    assert "hush" not in repr(sink)
    assert sink.check(SCHEMA) == []


def test_what_is_wrong_with_its_settings_is_found_by_check() -> None:
    def problem(schema: pa.Schema = SCHEMA, **given: object) -> str:
        [found] = ToPravega(**{"controller": NOWHERE, "scope": "s", "stream": "t", **given}).check(schema)  # type: ignore[arg-type]
        return found

    assert "'a:1' is no address of a controller, such as tcp://host:9090" in problem(controller="a:1")
    assert "there is no option 'username'; known are certificates, password, user" in problem(options={"username": "u"})
    assert "create is 0" in problem(create=0)
    assert "transaction_timeout is 5 s, and the lease of a transaction is 10 s or more" in problem(
        transaction_timeout=5
    )
    assert "there is no column 'rwo'; did you mean 'row'?" in problem(key="rwo")
    raw = pa.schema({"k": pa.binary(), "v": pa.string()})
    assert "a routing key is a text, and the column 'k' has bytes" in problem(raw, key="k", value="v")


def test_a_controller_that_is_away_is_found_by_examine() -> None:
    for address in (NOWHERE, "tcp://127.0.0.1:1,127.0.0.1:2"):
        [problem] = ToPravega(address, "s", "t").examine(JobId("job"), Uid("out"), SCHEMA)
        assert "no controller can be reached (127.0.0.1:1: " in problem
        assert problem.count("Connection refused") == address.count("127.0.0.1")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"k": "a", "v": None}, "1 of 1 have no value, and an event has one"),
        ({"k": "a", "v": "x" * (8 << 20) + "x"}, "an event has 8388609 bytes, and Pravega takes 8388608"),
    ],
    ids=["null", "large"],
)
def test_a_row_that_can_be_no_event_is_refused_when_it_comes(row: Mapping[str, str | None], why: str) -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.string()})
    shape = ToPravega(NOWHERE, "s", "t", key="k", value="v")._shape
    with pytest.raises(UnwritableRow, match=f"sink out: a row cannot be written as an event of Pravega: {why}"):
        encoded(shape, pa.RecordBatch.from_pylist([row], schema=schema), Uid("out"))
    good = pa.RecordBatch.from_pylist([{"k": None, "v": "x"}], schema=schema)
    assert encoded(shape, good, Uid("out")).to_pylist() == [{"key": None, "value": b"x"}]


def test_a_committable_says_where_it_goes_and_nothing_secret() -> None:
    bench = SinkBench(SinkTrial(ToPravega(NOWHERE, "shop", "totals", key="row", options=SECRETS), lambda _: []))
    writer = bench.writer(1, partition=3)
    for rows in ([], [], ["x"], ["y"]):
        writer.begin(bench.name(1, partition=3))
        write(writer, rows)
        payload = writer.seal().prepare()
        assert (payload is None) == (not rows)
        if rows == ["x"]:
            assert said(payload)["first"] == 1
    assert said(payload)["place"] == {"controller": NOWHERE, "scope": "shop", "stream": "totals"}
    assert said(payload)["first"] == 4
    for text in (str(payload), *map(str, bench.environment.stored.values())):
        assert "hush" not in text
    writer.close()


def test_what_was_prepared_for_other_controllers_is_not_committed_and_none_is_asked() -> None:
    bench = SinkBench(SinkTrial(ToPravega("tcp://a:1,b:2", "s", "t", key="row"), lambda _: []))
    transaction, payload, _ = bench.prepared()
    others = SinkBench(SinkTrial(ToPravega("tcp://c:3", "s", "t", key="row"), lambda _: []))
    others.job = bench.job
    writer = others.writer()
    answer = writer.commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "are for Pravega at tcp://a:1,b:2, and its sink writes to Pravega at tcp://c:3 by now" in answer.reason
    assert "name both: controller='tcp://c:3,a:1,b:2'" in answer.reason
    writer.close()


def said(payload: CommitPayload | None) -> Mapping[str, JsonLike]:
    assert payload is not None
    value = payload.value.value()
    assert isinstance(value, Mapping)
    return value
