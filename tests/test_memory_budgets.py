"""What states keep in memory follows the bytes they were given, however large keys and values turn out to be."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from statebackend.ids import Attempt, Epoch, Generation, Partition
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import Place, ValueState
from statebackend.stores.fsspec_store import open_store
from statebackend.tables.values.aggregations import Count, Last, Max, Sum
from statebackend.testing.faulty_store import Fault, FaultyStore
from tests.rows_in_a_dict import RowsInADict, a_context

BUDGET = 3 << 20


def test_values_are_weighed_as_they_are_written_although_none_was_there_when_they_were_read() -> None:
    declared, context, rows = ValueState(bytes), a_context(int), RowsInADict()
    value = declared.open(Place(declared.spec("value"), context, rows, BUDGET))
    for start in range(0, 20_000, 1_000):
        keys = range(start, start + 1_000)
        value.prefetch(keys)
        for key in keys:
            context.set_key(key)
            value.set(key.to_bytes(1_000, "big"))
        assert value.memory_bytes() < 2 * BUDGET
    context.set_key(7)
    assert value.get() == (7).to_bytes(1_000, "big")
    assert len(rows.content) > 15_000


def test_a_table_of_long_keys_has_fewer_of_them_in_memory() -> None:
    declared, rows = AggregateTable(count=Count()), RowsInADict()
    table = declared.open(Place(declared.spec("table"), a_context(str), rows, BUDGET))
    for start in range(0, 30_000, 1_000):
        keys = pa.array([f"{number:0>1000}" for number in range(start, start + 1_000)])
        table.update(key_column(keys, KeyType.of(str)), {})
    assert table.memory_bytes() < 2 * BUDGET
    assert len(table) < 10_000
    assert len(table.keys_and_results().keys) == 30_000


def test_a_table_of_long_texts_has_fewer_of_them_in_memory() -> None:
    declared, rows = AggregateTable({"text": str}, longest=Max("text"), count=Count()), RowsInADict()
    table = declared.open(Place(declared.spec("table"), a_context(int), rows, BUDGET))
    for start in range(0, 30_000, 1_000):
        numbers = range(start, start + 1_000)
        texts = pa.array([f"{number:0>1000}" for number in numbers])
        table.update(key_column(pa.array(numbers), KeyType.of(int)), {"text": texts})
        assert table.memory_bytes() < 2 * BUDGET
        if start % 10_000 == 0:
            rows.content.update(table.freeze(start + 1).blocks())
    assert len(table) < 10_000
    found = table.read(key_column(pa.array([7, 29_999]), KeyType.of(int)))
    assert found["longest"].to_pylist() == [f"{7:0>1000}", f"{29_999:0>1000}"]


def test_texts_that_grow_after_a_table_was_weighed_are_weighed_again() -> None:
    declared, rows = AggregateTable({"text": str}, last=Last("text")), RowsInADict()
    table = declared.open(Place(declared.spec("table"), a_context(int), rows, BUDGET))
    for length in (1, 5_000):
        for start in range(0, 6_000, 100):
            keys = key_column(pa.array(range(start, start + 100)), KeyType.of(int))
            table.update(keys, {"text": pa.array([f"{start:x>{length}}"] * 100)})
            assert table.memory_bytes() < 2 * BUDGET
        rows.content.update(table.freeze(length).blocks())


def test_keys_that_left_a_table_take_no_memory_although_a_cut_was_not_yet_made_into_a_file() -> None:
    declared, rows = AggregateTable(count=Count()), RowsInADict()
    table = declared.open(Place(declared.spec("table"), a_context(str), rows, BUDGET))
    waiting = []
    for start in range(0, 100_000, 1_000):
        keys = pa.array([f"{number:0>80}" for number in range(start, start + 1_000)])
        table.update(key_column(keys, KeyType.of(str)), {})
        if start % 10_000 == 0:
            waiting.append(table.freeze(start + 1))
    assert table.memory_bytes() < 2 * BUDGET
    assert sum(len(frozen.blocks()) > 0 for frozen in waiting) == len(waiting)


def test_a_table_that_fits_into_memory_is_read_ahead_as_a_whole() -> None:
    declared, rows = AggregateTable({"value": float}, count=Count(), sum=Sum("value")), RowsInADict()
    place, number = Place(declared.spec("table"), a_context(int), rows, 8 * BUDGET), 200_000
    table = declared.open(place)
    table.update(key_column(pa.array(np.arange(number)), KeyType.of(int)), {"value": pa.array(np.ones(number))})
    assert len(table) == number
    rows.content.update(table.freeze(1).blocks())
    table = declared.open(place)
    table.read_ahead()
    scans = rows.scans
    while table.load_more():
        pass
    assert (len(table), rows.scans) == (number, scans), "all was read ahead"


def test_cuts_whose_files_wait_for_the_store_keep_no_tables_in_memory(tmp_path: Path) -> None:
    states = {"totals": AggregateTable({"value": float}, count=Count(), sum=Sum("value"))}
    store = FaultyStore("cuts-whose-files-wait")
    names = SnapshotFolder.names(Generation(1), Partition(0), Attempt(0))
    operator = Operator("totals", key=str, states=states)
    keys = pa.array([f"{number:0>400}" for number in range(20_000)])
    values = pa.array(np.ones(len(keys)))
    with (
        KeyedState(operator, tmp_path / "local", store, names, None, Options(memory=512 << 20)) as state,
        _refusing(store),
        _traced() as taken,
    ):
        state["totals"].update(state.keys(keys), {"value": values})
        for number in range(1, 9):
            state["totals"].update(state.keys(keys[:10_000]), {"value": values[:10_000]})
            state.cut(Epoch(Generation(1), number))
            while not state.poll(timeout=1.0):
                pass
            if number == 3:
                before = taken()
        assert taken() - before < 1.5 * keys.nbytes, "five cuts more"


@contextmanager
def _refusing(store: FaultyStore) -> Iterator[None]:
    store.fault = Fault.REFUSED
    yield
    store.fault = Fault.NONE


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """How much memory is in use that numpy and Python have asked for."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_million_numbers_with_count_and_sum_stay_in_half_a_gibibyte(tmp_path: Path) -> None:
    states = {"totals": AggregateTable({"value": float}, count=Count(), sum=Sum("value"))}
    store = open_store((tmp_path / "store").as_uri())
    names = SnapshotFolder.names(Generation(1), Partition(0), Attempt(0))
    operator, options = Operator("totals", key=int, states=states), Options(memory=512 << 20)
    with KeyedState(operator, tmp_path / "local", store, names, None, options) as state:
        for start in range(0, 1_000_000, 50_000):
            values = pa.array(np.ones(50_000))
            state["totals"].update(state.keys(pa.array(np.arange(start, start + 50_000))), {"value": values})
        assert len(state["totals"]) == 1_000_000
