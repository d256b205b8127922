"""What is known of a PostgreSQL without asking one: where a dsn leads, and which columns hold which values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapshot.sinks.postgres_columns import declared_for, takes
from snapshot.sinks.postgres_session import may_be_one_place, place_of


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


@pytest.mark.parametrize(
    ("type", "declared", "fits"),
    [
        (pa.decimal128(20, 2), "numeric(5,2)", False),
        (pa.decimal128(20, 2), "numeric(20,2)", True),
        (pa.decimal128(20, 2), "numeric(20,3)", False),
        (pa.decimal128(20, 2), "numeric(21,3)", True),
        (pa.decimal128(5, 2), "numeric(10,1)", False),
        (pa.decimal128(5, 2), "numeric", True),
        (pa.decimal128(5, -2), "numeric(5)", False),
        (pa.decimal128(5, -2), "numeric(7,0)", True),
        (pa.decimal128(5, 2), "bigint", False),
        (pa.int64(), "numeric(5)", False),
        (pa.int64(), "numeric(18,0)", False),
        (pa.int64(), "numeric(19,0)", True),
        (pa.int64(), "numeric(21,2)", True),
        (pa.int64(), "numeric(20,2)", False),
        (pa.int64(), "numeric", True),
        (pa.int64(), "numeric(5,-2)", False),
        (pa.uint64(), "numeric(19)", False),
        (pa.uint64(), "numeric(20)", True),
        (pa.uint64(), "bigint", False),
        (pa.int32(), "numeric(10)", True),
        (pa.int8(), "numeric(3)", True),
        (pa.uint32(), "integer", False),
        (pa.uint32(), "bigint", True),
        (pa.string(), "name", False),
        (pa.string(), "character varying(5)", True),
        (pa.timestamp("us"), "timestamp(3) without time zone", False),
    ],
    ids=str,
)
def test_a_column_takes_a_type_if_it_holds_its_largest_values(type: pa.DataType, declared: str, fits: bool) -> None:
    assert takes(type, declared) is fits


@pytest.mark.parametrize(
    "type",
    [pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.decimal128(9, 2), pa.decimal128(5, -2), pa.decimal256(76, 0)],
    ids=str,
)
def test_the_column_that_is_made_for_a_type_takes_it(type: pa.DataType) -> None:
    assert takes(type, declared_for(type))
