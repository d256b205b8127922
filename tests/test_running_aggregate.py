"""Aggregates against a plain dictionary: per record, per batch and at the end, cut, restored and rescaled anywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import LATEST
from snapshot.operators.aggregate import RunningAggregate
from snapshot.operators.operator import Input, Per
from snapshot.testing.operators import OperatorHarness, OperatorSnapshot
from statebackend.tables.values.aggregations import Count, Last, Max, Min, Sum

GROUPS = 8
SCHEMA = pa.schema([("user", pa.string()), ("shop", pa.int32()), ("amount", pa.int64())])
OUTPUTS = {
    "count": Count(),
    "sum": Sum("amount"),
    "least": Min("amount"),
    "most": Max("amount"),
    "last": Last("amount"),
}

Key = tuple[str | None, int | None]
Row = tuple[str | None, int | None, int | None]
Result = tuple[int, int | None, int | None, float | None, int | None]

rows = st.tuples(st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, 1]), st.none() | st.integers(-5, 5))
batches = st.lists(st.lists(st.tuples(rows, st.integers(0, 20)), min_size=1, max_size=40), max_size=4)
steps = st.lists(st.tuples(batches, st.integers(1, 3)), min_size=1, max_size=3)


def operator(per: Per, timed: bool = True) -> RunningAggregate:
    return RunningAggregate(OUTPUTS, Input(SCHEMA, ("user", "shop"), timed), per)


class Model:
    """Each key's values so far."""

    def __init__(self) -> None:
        self.values: dict[Key, list[int | None]] = {}

    def add(self, row: Row) -> tuple[object, ...]:
        self.values.setdefault(row[:2], []).append(row[2])
        return self.result(row[:2])

    def result(self, key: Key) -> tuple[object, ...]:
        values = self.values[key]
        known = [value for value in values if value is not None]
        if not known:
            return (*key, len(values), None, None, None, None)
        return (*key, len(values), sum(known), min(known), float(max(known)), known[-1])


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("per", ["record", "batch"])
@settings(max_examples=settings().max_examples // 4)
@given(work=steps)
def test_what_comes_out_is_what_a_dictionary_says(
    backend: Literal["heap", "rocksdb"], per: Per, work: list[tuple[list[list[tuple[Row, int]]], int]]
) -> None:
    model = Model()
    snapshot: OperatorSnapshot | None = None
    with tempfile.TemporaryDirectory() as folder:
        for batches, parallelism in work:
            with OperatorHarness(
                operator(per),
                Path(folder),
                parallelism=parallelism,
                max_parallelism=GROUPS,
                backend=backend,
                snapshot=snapshot,
            ) as harness:
                for batch in batches:
                    harness.clear()
                    harness.rows([row for row, _ in batch], [time for _, time in batch])
                    found = zip(map(tuple, harness.emitted()), harness.emitted_times(), strict=True)
                    assert sorted(found, key=repr) == sorted(expected(model, per, batch), key=repr)
                snapshot = harness.cut()


def expected(model: Model, per: Per, batch: list[tuple[Row, int]]) -> list[tuple[object, int]]:
    each = [(model.add(row), time) for row, time in batch]
    if per == "record":
        return list(each)
    latest: dict[Key, int] = {}
    for row, time in batch:
        latest[row[:2]] = max(time, latest.get(row[:2], time))
    return [(model.result(key), time) for key, time in latest.items()]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=settings().max_examples // 4)
@given(work=st.lists(st.tuples(batches, st.integers(1, 3), st.booleans()), min_size=1, max_size=4))
def test_at_the_end_each_key_with_new_rows_is_said_once_wherever_it_is_cut(
    backend: Literal["heap", "rocksdb"], work: list[tuple[list[list[tuple[Row, int]]], int, bool]]
) -> None:
    model, unsaid = Model(), set[Key]()
    snapshot: OperatorSnapshot | None = None
    with tempfile.TemporaryDirectory() as folder:
        for batches, parallelism, ends in work:
            with OperatorHarness(
                operator("end"),
                Path(folder),
                parallelism=parallelism,
                max_parallelism=GROUPS,
                backend=backend,
                snapshot=snapshot,
            ) as harness:
                for batch in batches:
                    harness.rows([row for row, _ in batch], [time for _, time in batch])
                    unsaid.update(model.add(row)[:2] for row, _ in batch)  # type: ignore[misc]
                harness.watermark(LATEST)
                assert harness.emitted() == []
                if ends:
                    harness.end()
                    found = sorted(map(tuple, harness.emitted()), key=repr)
                    assert found == sorted(map(model.result, unsaid), key=repr)
                    assert harness.emitted_times() == [None] * len(found)
                    unsaid.clear()
                snapshot = harness.cut()


def test_rows_come_out_in_the_order_in_which_they_came_in(tmp_path: Path) -> None:
    with OperatorHarness(operator("record", timed=False), tmp_path) as harness:
        harness.rows([("a", 1, 5), ("b", 1, 1), ("a", 1, 3), ("a", 1, None)])
        assert [tuple(row)[:4] for row in harness.emitted()] == [
            ("a", 1, 1, 5),
            ("b", 1, 1, 1),
            ("a", 1, 2, 8),
            ("a", 1, 3, 8),
        ]
        assert harness.emitted_times() == [None] * 4


def test_mistakes_are_found_without_running() -> None:
    assert operator("record").check() == []
    wrong = RunningAggregate(
        {"user": Count(), "ttl": Sum("amounts"), "name": Sum("user")},
        Input(SCHEMA, ("user", "nobody"), timed=False),
        "row",  # type: ignore[arg-type]
    )
    assert wrong.check() == [
        "there is no column 'nobody' to be the key; there are user, shop, amount",
        "two columns of the output are called 'user': give the aggregate another name",
        "an aggregate cannot be called 'ttl': give it another name",
        "ttl: there is no column 'amounts'; there are user, shop, amount",
        "name: Sum('user') is over integers or floats, and its column is of string; cast it before",
        "results can be given per 'record', per 'batch' or at the 'end', not per 'row'",
    ]
    assert RunningAggregate({}, Input(SCHEMA, (), timed=False)).check() == [
        "the input is not divided by key: use key_by before",
        "no output is named: name at least one aggregation",
    ]
