"""Functions of whole batches: tables, row-wise states, watermarks, and what they may emit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.operators.keyed_function import UnknownSide
from snapshot.operators.operator import Input
from snapshot.operators.process_batch import BatchProcess, ProcessBatches, WrongBatch
from snapshot.testing.operators import OperatorHarness, OperatorSnapshot
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import ValueState
from statebackend.tables.values.aggregations import Sum

GROUPS = 8
SCHEMA = pa.schema([("the user", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("total", pa.int64())])

rows = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(-5, 5))
work = st.lists(st.tuples(st.lists(st.lists(rows, min_size=1, max_size=20), max_size=4), st.integers(1, 3)), max_size=4)


class Totals(BatchProcess):
    """What every key has after the batch, for each row; with each watermark, all keys and how often that was."""

    totals = AggregateTable({"amount": int}, total=Sum("amount"))
    calls = ValueState(int, default=0)

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        slots = self.totals.update(ctx.keys, {"amount": batch.column("amount")})
        results = self.totals.results(slots)
        ctx.emit(pa.RecordBatch.from_arrays([batch.column("the user"), results.column("total")], schema=OUTPUT))

    def on_watermark(self, timestamp: int, ctx: Any) -> None:
        assert len(ctx.keys) == 0
        found = self.totals.keys_and_results()
        (keys,) = ctx.key_columns(found.keys)
        counts = []
        for key in keys.to_pylist():
            ctx.state.set_key(key)
            self.calls.set(self.calls.get() + 1)
            counts.append(self.calls.get())
        ctx.emit(pa.RecordBatch.from_arrays([keys, found.results.column("total")], schema=OUTPUT), ctx.watermark)
        ctx.emit_to("calls", pa.RecordBatch.from_arrays([keys, pa.array(counts, pa.int64())], schema=OUTPUT), timestamp)


def operator(function: Any = None, timed: bool = True) -> ProcessBatches:
    function = function or Totals()
    return ProcessBatches(function, (Input(SCHEMA, ("the user",), timed),), OUTPUT, {"calls": OUTPUT})


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=settings().max_examples // 4)
@given(work=work)
def test_tables_and_states_are_those_of_a_plain_model(
    backend: Literal["heap", "rocksdb"], work: list[tuple[list[list[tuple[str | None, int]]], int]]
) -> None:
    totals: dict[str | None, int] = {}
    calls: dict[str | None, int] = {}
    snapshot: OperatorSnapshot | None = None
    with tempfile.TemporaryDirectory() as folder:
        for time, (batches, parallelism) in enumerate(work):
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
                    for key, amount in batch:
                        totals[key] = totals.get(key, 0) + amount
                    expected = [((key, totals[key]), at) for at, (key, _) in enumerate(batch)]
                    found = zip(map(tuple, harness.emitted()), harness.emitted_times(), strict=True)
                    assert sorted(found, key=repr) == sorted(expected, key=repr)
                harness.clear()
                harness.watermark(time)
                calls = {key: calls.get(key, 0) + 1 for key in totals}
                assert dict(map(tuple, harness.emitted())) == totals
                assert set(harness.emitted_times()) <= {time}
                assert dict(map(tuple, harness.emitted("calls"))) == calls
                snapshot = harness.cut()


class Emits(BatchProcess):
    def __init__(self, batch: Any, times: Any = None, side: str | None = None) -> None:
        self.given = (batch, times, side)

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        given, times, side = self.given
        if side is None:
            ctx.emit(given, times)
        else:
            ctx.emit_to(side, given, times)


ONE = pa.RecordBatch.from_pylist([{"user": "a", "total": 1}], OUTPUT)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (Emits({"user": "a"}), WrongBatch, "takes record batches of Arrow, not a dict"),
        (Emits(ONE.select(["user"])), WrongBatch, r"declared as \(user: string, total: int64\), and given \(user"),
        (Emits(ONE), WrongBatch, "1 rows for the output have 2 event times"),
        (Emits(ONE, np.arange(3), "calls"), WrongBatch, "1 rows for side output 'calls' have 3 event times"),
        (Emits(ONE, 1, "late"), UnknownSide, "side output 'late' is not declared"),
        (Emits(ONE, np.array([1.5])), WrongBatch, "event times of rows for the output are float64; give whole"),
        (Emits(ONE, 1.5), WrongBatch, "event times of rows for the output are float64; give whole"),
        (Emits(ONE, np.array([1], "datetime64[s]")), WrongBatch, r"the output are datetime64\[s\]; give whole"),
    ],
)
def test_what_does_not_fit_an_output_is_refused(
    tmp_path: Path, function: Emits, error: type[Exception], message: str
) -> None:
    with OperatorHarness(operator(function), tmp_path) as harness:
        with pytest.raises(error, match=message) as raised:
            harness.rows([("a", 1), ("b", 2)], [1, 2])
        assert raised.value.__notes__ == ["in process_batch(Emits), for a batch of 2 rows"]


@pytest.mark.parametrize("times", [7, np.int64(7), np.uint32(7), np.array([7], np.int16), [7]], ids=repr)
def test_event_times_may_be_whole_numbers_of_any_kind(tmp_path: Path, times: Any) -> None:
    with OperatorHarness(operator(Emits(ONE, times)), tmp_path) as harness:
        harness.rows([("a", 1), ("b", 2)], [1, 2])
        assert harness.emitted_times() == [7]
    with OperatorHarness(operator(Emits(ONE.slice(1), [])), tmp_path) as harness:
        harness.rows([("a", 1), ("b", 2)], [1, 2])
        assert harness.emitted() == []


def test_mistakes_are_found_without_running() -> None:
    class Strange(Totals):
        on_watermark = ValueState(int)  # type: ignore[assignment]

        def on_timer(self, at: int, ctx: Any) -> None: ...

    assert operator().check() == []
    assert operator(BatchProcess()).check() == ["BatchProcess has no method on_batch(self, batch, ctx)"]
    assert operator(Strange()).check() == [
        "Strange declares a state 'on_watermark', which is the name of a method: choose another",
        "Strange has a method on_timer, and functions of batches have on_watermark instead",
    ]
    assert operator(len).check() == [f"{len!r} is no instance of a subclass of BatchProcess"]
