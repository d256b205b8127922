"""What is known of a PostgreSQL without one, and without psycopg: which columns hold which values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapshot import ToPostgres
from snapshot.connectors.sql.postgres_types import declared_for, takes


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


def test_without_psycopg_types_that_have_no_column_are_named_beside_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snapshot.connectors.sql.postgres_sink.find_spec", lambda _: None)
    no_column, missing = ToPostgres("host=x", "t").check(pa.schema({"tags": pa.list_(pa.string()), "n": pa.int64()}))
    assert "no column for 'tags'" in no_column
    assert "pip install 'epochcut[postgres]'" in missing
