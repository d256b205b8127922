"""State as a Spark DataFrame: what an export has, and of filtered keys only their groups' files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, In
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from recovery.offline.job_tree import open_tree
from recovery.offline.reading import read_epoch
from recovery.savepoints.editing import ChangedRows, edit
from recovery.savepoints.spark_format import StateRowsReader, StateSource, WrongOption, wanted_groups
from snapshot import ToSpark
from snapshot.structured.spark_types import NoSparkType, of_spark, with_types
from statebackend.ids import Uid
from statebackend.keygroups import key_group_of
from statebackend.keys.types import KeyType
from statebackend.states.schema import Schema
from tests import visits_job
from tests.shop_job import baskets, totals, tree_of
from tests.spark_programs import answer_of

pytestmark = pytest.mark.usefixtures("with_pandas")


@pytest.mark.timeout(300)
def test_state_is_a_dataframe_with_filters_on_keys(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    old = str(open_tree(str(tree)).find().record.epoch)
    edit(open_tree(str(tree)), "newest", [ChangedRows("totals", "totals", pa.table({"key": ["tea"]}))])
    found = answer_of("-m", "tests.spark_format_job", str(tree), old)
    assert found["partitions"] == [2, 1]
    assert {(region, user): cents for region, user, cents in found["cents"]} == {
        key: one["cents"] for key, one in baskets().items()
    }
    assert (found["tea"], found["tea now"]) == ([totals()["tea"]], 0)
    assert found["us 5"] == [baskets()["us", 5]["cents"]]
    assert "has no operator 'nobody'; those with keyed state are 'baskets', 'totals'" in found["nobody"]


def test_tasks_read_the_files_of_their_own_groups_alone(tmp_path: Path) -> None:
    tree = str(tree_of(tmp_path))
    options = {"checkpoints": tree, "uid": "baskets", "state": "cents", "epoch": "newest", "partitions": ""}
    reader = StateRowsReader(options)
    with read_epoch(open_tree(tree), "newest", pin=False) as reading:
        parts = reading.operator("baskets").parts
        group = key_group_of(KeyType.of((str, int)).hash(("eu", 0)), 128)
        files = reading.operator("baskets").files_of_group(group)
    assert [one.files for one in reader.partitions()] == list(parts)
    filters = [EqualTo(("key", "f0"), "eu"), EqualTo(("key", "f1"), 0), GreaterThan(("value",), 0)]
    assert reader.pushFilters(filters) == filters
    (one,) = reader.partitions()
    assert one.files == files
    rows = [row for batch in reader.read(one) for row in batch.to_pylist()]
    assert {"f0": "eu", "f1": 0} in [row["key"] for row in rows]
    assert {row["key_group"] for row in rows} == {group}
    for outside in (-1, 128):
        reader.pushFilters([EqualTo(("key_group",), outside)])
        assert [batch for one in reader.partitions() for batch in reader.read(one)] == []


def test_tasks_whose_files_are_from_before_there_was_the_state_have_no_rows(tmp_path: Path) -> None:
    tree, first, _ = visits_job.scored(tmp_path)
    options = {"checkpoints": str(tree), "uid": visits_job.UID, "state": "score"}
    assert {"key", "value"} <= set(StateSource(options).schema().names)
    reader = StateSource(options).reader(StateSource(options).schema())
    rows = [[row for batch in reader.read(one) for row in batch.to_pylist()] for one in reader.partitions()]
    assert [[(row["key"], row["value"]) for row in some] for some in rows] == [[(first, 5)], []]


def test_filters_leave_the_groups_that_can_have_rows() -> None:
    schema = Schema(Uid("count"), KeyType.of(str), 128, ())
    a, b = (key_group_of(KeyType.of(str).hash(key), 128) for key in ("a", "b"))
    assert wanted_groups([EqualTo(("key",), "a")], schema) == {a}
    assert wanted_groups([In(("key",), ("a", "b"))], schema) == {a, b}
    assert wanted_groups([In(("key",), ("a", "b")), EqualTo(("key_group",), b)], schema) == {b}
    assert wanted_groups([EqualTo(("key",), "a"), EqualTo(("key",), "b")], schema) == set()
    null = key_group_of(KeyType.of(str).hash(None), 128)
    assert wanted_groups([EqualNullSafe(("key",), None)], schema) == {null}
    for anything in (EqualTo(("value",), "a"), GreaterThan(("key",), "a"), EqualTo(("key",), 7)):
        assert wanted_groups([anything], schema) is None
    pair = Schema(Uid("count"), KeyType.of((str, int)), 128, ())
    assert wanted_groups([EqualTo(("key", "f0"), "a")], pair) is None


def test_options_that_are_missing_or_make_no_sense_are_named(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="'uid', 'state'"):
        StateSource({"checkpoints": "/data"}).schema()
    options = {"checkpoints": str(tree_of(tmp_path)), "uid": "totals", "state": "totals", "epoch": "newest"}
    for partitions in ("0", "129", "many"):
        with pytest.raises(WrongOption, match="are out of bounds: 1 to 128"):
            StateRowsReader(options | {"partitions": partitions}).partitions()


def test_types_that_spark_lacks_become_wider_ones() -> None:
    ours = pa.schema([("a", pa.uint16()), ("b", pa.struct([("c", pa.uint64()), ("d", pa.timestamp("ns", "UTC"))])),
                       ("e", pa.float16()), ("f", pa.binary(3)), ("g", pa.decimal128(5, 1))])  # fmt: skip
    assert of_spark(ours).types == [
        pa.int32(), pa.struct([("c", pa.decimal128(20, 0)), ("d", pa.timestamp("us", "UTC"))]), pa.float32(),
        pa.binary(), pa.decimal128(5, 1),
    ]  # fmt: skip


PLAIN = (
    pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(),
    pa.float64(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(3),
    pa.binary_view(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("s"),
    pa.timestamp("ns", "Europe/Berlin"), pa.duration("ns"), pa.decimal32(5, 2), pa.decimal256(38, 38),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.uint16()),
)  # fmt: skip


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    lists = [pa.list_, pa.large_list, lambda one: pa.list_(one, 2)]
    of_one = st.builds(lambda kind, one: kind(one), st.sampled_from(lists), inner)
    maps = st.builds(pa.map_, st.sampled_from([pa.string(), pa.uint32()]), inner)
    fields = st.dictionaries(st.sampled_from("abc"), st.builds(pa.field, st.just(""), inner), min_size=1)
    structs = fields.map(lambda some: pa.struct([field.with_name(name) for name, field in some.items()]))
    return of_one | maps | structs


@given(st.recursive(st.sampled_from(PLAIN), nested, max_leaves=4))
def test_every_type_that_is_taken_is_one_of_spark_and_rows_get_it(kind: pa.DataType) -> None:
    of_ours = pa.schema([("column", kind)])
    schema = of_spark(of_ours)
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema)
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, kind)], schema=of_ours)
    assert with_types(batch, schema).column(0).to_pylist() == [None, None]
    assert ToSpark("/out").check(of_ours) == []


def test_a_sink_refuses_columns_for_which_spark_has_no_type_however_deep_they_are() -> None:
    strange = pa.run_end_encoded(pa.int32(), pa.string())
    for deep in (strange, pa.list_(pa.struct([("c", strange)])), pa.map_(pa.string(), strange)):
        [fault] = ToSpark("/out").check(pa.schema([("a", pa.int64()), ("b", deep)]))
        assert fault.startswith("column b is ")
        assert fault.endswith(f"and Spark has no type for {strange}")
        with pytest.raises(NoSparkType, match="column b is "):
            of_spark(pa.schema([("b", deep)]))
    assert ToSpark("/out").check(pa.schema([("b", pa.list_view(pa.int64()))]))
    [fault] = ToSpark("/out").check(pa.schema([("b", pa.decimal256(50, 2))]))
    assert "decimal256(50, 2): it has up to 38 digits" in fault
