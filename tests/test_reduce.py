"""Reducing the rows of each key against a plain dictionary, cut, restored and rescaled anywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.operators.operator import Input
from snapshot.operators.reduce import Reduce
from snapshot.testing.operators import OperatorHarness, OperatorSnapshot
from statebackend.states.codecs import NotEncodable

GROUPS = 8
SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("tags", pa.dictionary(pa.int32(), pa.string()))])

Row = tuple[str | None, int, str | None]

rows = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(-5, 5), st.none() | st.text(max_size=3))
work = st.lists(st.tuples(st.lists(st.lists(rows, min_size=1, max_size=20), max_size=4), st.integers(1, 3)), max_size=4)


def added(before: Any, row: Any) -> tuple[object, ...]:
    return before.user, before.amount + row.amount, (before.tags or "") + (row.tags or "")


def operator(function: Any = added) -> Reduce:
    return Reduce(function, Input(SCHEMA, ("user",), timed=True))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=settings().max_examples // 4)
@given(work=work)
def test_each_row_gives_what_its_key_has_come_to(
    backend: Literal["heap", "rocksdb"], work: list[tuple[list[list[Row]], int]]
) -> None:
    model: dict[str | None, Row] = {}
    snapshot: OperatorSnapshot | None = None
    with tempfile.TemporaryDirectory() as folder:
        for batches, parallelism in work:
            with OperatorHarness(
                operator(),
                Path(folder),
                parallelism=parallelism,
                max_parallelism=GROUPS,
                backend=backend,
                snapshot=snapshot,
            ) as harness:
                for batch in batches:
                    harness.clear()
                    harness.rows(batch, times=range(len(batch)))
                    expected = []
                    for time, row in enumerate(batch):
                        before = model.get(row[0])
                        total = (
                            row
                            if before is None
                            else (*row[:1], before[1] + row[1], (before[2] or "") + (row[2] or ""))
                        )
                        model[row[0]] = total
                        expected.append((total, time))
                    found = zip(map(tuple, harness.emitted()), harness.emitted_times(), strict=True)
                    assert sorted(found, key=repr) == sorted(expected, key=repr)
                snapshot = harness.cut()


def test_a_result_that_is_no_row_is_told_with_the_function_and_its_rows(tmp_path: Path) -> None:
    with OperatorHarness(operator(lambda a, b: {"user": a.user, "total": 1}), tmp_path) as harness:
        harness.rows([("a", 1, None)], [0])
        with pytest.raises(NotEncodable, match="has no field total") as raised:
            harness.rows([("a", 2, None)], [0])
        assert raised.value.__notes__[0].startswith("in reduce(lambda), for the row Row(user='a', amount=2")


def test_what_cannot_be_kept_is_found_without_running() -> None:
    assert operator().check() == []
    schema = pa.schema([("key", pa.string()), ("items", pa.list_(pa.int64())), ("from", pa.int64())])
    problems = Reduce(added, Input(schema, ("key",), timed=False)).check()
    assert len(problems) == 2
    assert "'from' cannot be an attribute" in problems[0]
    assert problems[1] == (
        "the column 'items' is list<item: int64>, which cannot be kept in state: cast it, or leave it out"
    )
    finer = [("at", pa.timestamp("ns", "UTC")), ("span", pa.struct([("start", pa.timestamp("ns"))]))]
    schema = pa.schema([("key", pa.string()), ("coarse", pa.timestamp("us")), *finer])
    assert Reduce(added, Input(schema, ("key",), timed=False)).check() == [
        f"the column {name!r} is {kind}, finer than Python's times: cast it to microseconds, or leave it out"
        for name, kind in finer
    ]
