"""Schemas as Spark writes them, beside what PySpark itself makes of them in Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from snapshot import Collection, Generate
from statebackend.columns import NotASchema, schema_of

OF_SPARK = spark.StructType(
    [
        spark.StructField("tiny", spark.ByteType()),
        spark.StructField("small", spark.ShortType()),
        spark.StructField("whole", spark.IntegerType()),
        spark.StructField("long", spark.LongType(), nullable=False),
        spark.StructField("single", spark.FloatType()),
        spark.StructField("double", spark.DoubleType()),
        spark.StructField("text", spark.StringType()),
        spark.StructField("raw", spark.BinaryType()),
        spark.StructField("yes", spark.BooleanType()),
        spark.StructField("day", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("local", spark.TimestampNTZType()),
        spark.StructField("price", spark.DecimalType(18, 2)),
        spark.StructField("tags", spark.ArrayType(spark.StringType())),
        spark.StructField("counts", spark.MapType(spark.StringType(), spark.LongType())),
        spark.StructField("a, b:c", spark.StructType([spark.StructField("x", spark.LongType())])),
    ]
)
DDL = r"""
    tiny TINYINT, small smallint, whole int, long bigint NOT NULL COMMENT 'it\'s, so', single float, double double,
    text string, raw binary, yes boolean, day date, at timestamp, local timestamp_ntz, price decimal(18, 2),
    tags array<string>, counts map<string,bigint>, `a, b:c` struct<x: bigint>
"""


def test_a_struct_type_is_what_pyspark_makes_of_it() -> None:
    assert schema_of(OF_SPARK) == to_arrow_schema(OF_SPARK, timezone="UTC")


def test_a_text_is_the_same_as_the_struct_type() -> None:
    assert schema_of(DDL) == schema_of(OF_SPARK)
    assert schema_of("struct<user:string,n:bigint>") == schema_of("user string, n bigint")


def test_a_text_is_the_same_as_a_mapping() -> None:
    assert schema_of("user string, n bigint, x double") == schema_of({"user": str, "n": int, "x": float})


def test_a_decimal_without_digits_is_sparks() -> None:
    assert schema_of("a decimal, b decimal(5)").types == [pa.decimal128(10, 0), pa.decimal128(5, 0)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a column is missing"),
        ("user", "column 'user' has no type"),
        ("user strin", "column 'user' is of type 'strin', which is none of"),
        ("user string,", "a column is missing"),
        ("user string n bigint", "'n' is one thing too many"),
        ("tags array<string", "'>' is missing"),
        ("tags array string", "'<' is missing"),
        ("price decimal(50, 2)", "precision"),
        ("price decimal(a)", "'a' is no number"),
        ("n bigint not", "NULL is missing after NOT"),
        ("n bigint; drop", "'; drop' cannot be read"),
        ("a int, a int", "more than one column 'a'"),
    ],
)
def test_a_text_that_declares_no_schema_says_why(text: str, why: str) -> None:
    with pytest.raises(NotASchema) as caught:
        schema_of(text)
    assert why in str(caught.value)


def test_a_type_that_arrow_does_not_have_here_is_named_with_its_column() -> None:
    odd = spark.StructType([spark.StructField("since", spark.DayTimeIntervalType())])
    with pytest.raises(NotASchema, match="column 'since' is of type 'interval'"):
        schema_of(odd)


def test_sources_take_such_schemas() -> None:
    rows = Generate(lambda places: {"n": places}, "n bigint", rate=1.0)
    assert rows.schema == pa.schema({"n": pa.int64()})
    assert Collection([], "user string, n bigint").schema.names == ["user", "n"]
