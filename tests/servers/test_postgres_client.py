"""What psycopg, or a sink that needs it, knows without asking a server."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from snapshot import ToPostgres, ToSQLite
from snapshot.connectors.sql.postgres_session import may_be_one_place, place_of
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkContext, UnwritableRow
from snapshot.testing.sinks import SinkEnvironment
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.foreign_commits import answer_to_a_foreign_commit, bench_of


@pytest.mark.parametrize(
    ("former", "now", "may_be"),
    [
        ("host=a dbname=d", "postgresql://somebody@a:5432/d?sslmode=require", True),
        ("host=a port=5433 dbname=d", "host=a dbname=d", False),
        ("host=a dbname=d", "host=a dbname=e", False),
        ("host=a dbname=d", "host=b dbname=d", False),
        ("host=a dbname=d", "host=a,b dbname=d", True),
        ("host=a,b port=1,2 dbname=d", "host=b,c port=2,3 dbname=d", True),
        ("host=a,b port=1,2 dbname=d", "host=b,a port=1,2 dbname=d", False),
        ("host=a user=d", "host=a dbname=d user=u", True),
        ("service=s", "host=a dbname=d", True),
        ("hostaddr=10.0.0.1 dbname=d", "hostaddr=10.0.0.2 dbname=d", False),
    ],
)
def test_two_dsns_may_lead_to_one_place_if_they_share_a_server_and_the_database(
    former: str, now: str, may_be: bool
) -> None:
    assert may_be_one_place(place_of(former), now) is may_be
    assert may_be_one_place(place_of(now), former) is may_be


def test_a_place_that_is_not_known_may_be_any_and_none_has_a_password() -> None:
    assert may_be_one_place({}, "host=a dbname=d")
    assert place_of("postgresql://u:secret@a/d") == {"servers": ["a:5432"], "database": "d"}


def test_a_sink_of_another_kind_commits_nothing_of_postgres_nor_the_other_way_round(tmp_path: Path) -> None:
    postgres = ToPostgres("host=127.0.0.1 port=1 dbname=d user=u", "t", mode="staged")
    sqlite = ToSQLite(str(tmp_path / "rows.db"), "t", create=True)
    for former, now in ((postgres, sqlite), (sqlite, postgres)):
        answer = answer_to_a_foreign_commit(bench_of(former), now)
        assert answer.outcome is CommitOutcome.FAILED
        names = f"prepared by {type(former).__name__}, and their sink is {type(now).__name__} by now"
        assert names in answer.reason


@pytest.mark.parametrize("texts", [pa.array(["a", "b\0c", None]), pa.array(["b\0"]).dictionary_encode()])
@pytest.mark.parametrize("key", ["n", ()], ids=["by key", "appended"])
def test_a_text_that_the_server_would_refuse_when_its_epoch_is_complete_is_refused_before(
    key: str, texts: pa.Array
) -> None:
    batch = pa.record_batch({"n": pa.array(range(len(texts))), "raw": pa.array([b"\0"] * len(texts)), "text": texts})
    context = SinkContext(
        JobId("clicks-01234567"),
        Uid("out"),
        batch.schema,
        Incarnation(Generation(3), Attempt(2)),
        Partition(0),
        SinkEnvironment(),
        lambda *_: None,
    )
    writer = ToPostgres("dbname=x", "t", key=key).open(context)
    writer.begin(TransactionId("clicks-01234567/out/3-2-0-1"))
    writer.write(Rows(batch.slice(0, 0)))
    with pytest.raises(UnwritableRow, match="sink out: a text in 'text' has a NUL, which PostgreSQL cannot hold"):
        writer.write(Rows(batch))
    writer.close()
