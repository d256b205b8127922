from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapshot
from snapshot import (
    BatchProcess,
    EventTime,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    Program,
    Session,
    Sliding,
    Stream,
    Tumbling,
    WindowFunction,
)
from snapshot.operators.row_class import Row
from snapshot.program.pickling import dumps, loads
from snapshot.program.plan import Plan, Stage
from snapshot.program.problems import columns_in_words
from statebackend import Count, Last, MapState, Max, Mean, Sum, Ttl, ValueState
from statebackend.columns import schema_of
from statebackend.durations import Duration, NotADuration, in_words, milliseconds
from statebackend.ids import Uid
from tests.program_parts import CLICKS, Nothing, Nowhere, clicks
from tests.public_names import typed_names


class Echo(KeyedProcess):
    output = CLICKS
    seen = ValueState(int, default=0)
    pages = MapState(str, float, ttl=Ttl("1000ms"))

    def on_event(self, event: Row, ctx: object) -> None: ...

    def on_timer(self, at: int, ctx: object) -> None: ...


class Totals(BatchProcess):
    output: ClassVar[dict[str, object]] = {"total": int}

    def on_batch(self, batch: pa.RecordBatch, ctx: object) -> None: ...


class Sizes(WindowFunction):
    output: ClassVar[dict[str, object]] = {"size": int}

    def on_window(self, key: object, window: object, rows: object, ctx: object) -> None: ...


class Both(KeyedCoProcess):
    output = CLICKS

    def on_first(self, event: Row, ctx: object) -> None: ...

    def on_second(self, event: Row, ctx: object) -> None: ...


class Ruled(KeyedBroadcastProcess):
    output: ClassVar[dict[str, object]] = {"alarm": bool}

    def on_event(self, event: Row, ctx: object) -> None: ...

    def on_broadcast(self, event: Row, ctx: object) -> None: ...


def split(row: Row) -> list[tuple[str, int]]:
    return [(word, 1) for word in row.line.split()]


def schema_behind(stream: Stream) -> str:
    """What a sink behind the stream would get."""
    plan = stream.write(Nowhere(), uid="out").plan()
    (sink,) = [sink for stage in plan.stages for sink in stage.sinks]
    return columns_in_words(sink.schema)


def stage(plan: Plan, uid: str) -> Stage:
    (found,) = [stage for stage in plan.stages if stage.uid == uid]
    return found


# --- what users write ------------------------------------------------------------------------------------------------


def test_words_are_counted_in_windows_in_one_line() -> None:
    text = Stream.read(Nothing(pa.schema({"line": pa.string(), "at": pa.timestamp("ms")})), uid="text")
    words = (
        text.with_event_time("at", out_of_order="5s")
        .flat_map(split, schema={"word": str, "count": int})
        .key_by("word")
        .window(Tumbling("5s"))
        .sum("count", uid="counts")
    )
    assert schema_behind(words) == "word: string, window_start: timestamp[ms], window_end: timestamp[ms], count: int64"


def test_a_process_is_given_as_a_class_or_as_an_instance() -> None:
    for process in (Echo, Echo()):
        plan = clicks().key_by("user").process(process, uid="count").write(Nowhere(), uid="out").plan()
        assert plan.keyed[Uid("count")].label == "process(Echo)"


def test_every_kind_of_operator_gives_a_stream() -> None:
    keyed = clicks().key_by("user")
    windows = clicks(timed=True).key_by("user").window(Tumbling("5s"))
    in_windows = "user: string, window_start: timestamp[ms], window_end: timestamp[ms]"
    assert schema_behind(keyed.reduce(max, uid="a")) == schema_behind(clicks())
    assert schema_behind(keyed.process_batch(Totals, uid="a")) == "total: int64"
    assert schema_behind(windows.reduce(max, uid="a")) == schema_behind(clicks())
    assert schema_behind(windows.process(Sizes, uid="a")) == "size: int64"
    assert schema_behind(windows.min("cents", uid="a")) == f"{in_windows}, cents: int64"
    assert schema_behind(windows.max("cents", uid="a")) == f"{in_windows}, cents: int64"
    assert schema_behind(windows.mean("cents", uid="a")) == f"{in_windows}, cents: double"
    both = keyed.connect(clicks("other").key_by("user")).process(Both, uid="a")
    assert schema_behind(both) == schema_behind(clicks())
    ruled = keyed.connect(clicks("rules", schema={"limit": int}).broadcast()).process(Ruled, uid="a")
    assert schema_behind(ruled) == "alarm: bool"


def test_a_schema_that_is_given_wins_over_the_one_of_the_class() -> None:
    keyed = clicks().key_by("user")
    assert schema_behind(keyed.process(Echo, uid="a")) == "user: string, cents: int64, at: timestamp[ms]"
    assert schema_behind(keyed.process(Echo, uid="a", schema={"n": int})) == "n: int64"


def test_a_step_leaves_its_stream_as_it_was() -> None:
    stream = clicks()
    stream.map(split, schema={"n": int})
    assert schema_behind(stream) == "user: string, cents: int64, at: timestamp[ms]"


def test_rows_keep_their_schema_unless_another_is_declared() -> None:
    assert schema_behind(clicks().map(lambda row: row)) == schema_behind(clicks())
    assert schema_behind(clicks().map_batches(lambda batch: batch, schema={"n": int})) == "n: int64"
    assert schema_behind(clicks().filter_batches(lambda batch: [])) == schema_behind(clicks())
    assert schema_behind(clicks().flat_map_batches(lambda batch: (batch, []))) == schema_behind(clicks())
    assert schema_behind(clicks().select("cents", "user")) == "cents: int64, user: string"


def test_the_short_forms_name_their_column_after_the_one_they_are_over() -> None:
    keyed = clicks(schema={"user": str, "cents": int, "price": float}).key_by("user")
    assert schema_behind(keyed.count(uid="a")) == "user: string, count: int64"
    assert schema_behind(keyed.sum("cents", uid="a")) == "user: string, cents: int64"
    assert schema_behind(keyed.sum("price", uid="a", per="batch")) == "user: string, price: double"
    assert schema_behind(keyed.min("cents", uid="a")) == "user: string, cents: int64"
    assert schema_behind(keyed.max("price", uid="a")) == "user: string, price: double"
    assert schema_behind(keyed.mean("cents", uid="a")) == "user: string, cents: double"


def test_aggregates_are_named_by_their_user() -> None:
    n, spent = Count(), Sum("cents")
    keyed = clicks(timed=True).key_by("user")
    assert schema_behind(keyed.aggregate(uid="a", n=n, spent=spent)) == "user: string, n: int64, spent: int64"
    for window in (Tumbling("5s"), Sliding("10s", "5s"), Session("1m")):
        assert schema_behind(keyed.window(window, lateness="1s").aggregate(uid="a", n=n, spent=spent)) == (
            "user: string, window_start: timestamp[ms], window_end: timestamp[ms], n: int64, spent: int64"
        )


def test_aggregates_have_the_types_of_their_columns() -> None:
    keyed = clicks(schema={"user": str, "page": str, "at": pa.timestamp("us", "UTC"), "ms": pa.int32()}).key_by("user")
    totals = keyed.aggregate(uid="a", page=Last("page"), until=Max("at"), ms=Sum("ms"), mean=Mean("ms"), n=Count("ms"))
    assert schema_behind(totals) == (
        "user: string, page: string, until: timestamp[us, tz=UTC], ms: int64, mean: double, n: int64"
    )
    assert schema_behind(keyed.max("at", uid="a")) == "user: string, at: timestamp[us, tz=UTC]"


def test_late_rows_come_out_as_they_went_in() -> None:
    counts = clicks(timed=True).key_by("user").window(Tumbling("5s"), lateness="1s", late=True).count(uid="a")
    assert schema_behind(counts.side("late")) == schema_behind(clicks())


def test_programs_are_added_and_an_output_of_both_is_written_once() -> None:
    stream = clicks()
    first, second = stream.write(Nowhere(), uid="x"), stream.write(Nowhere(), uid="y")
    both = first + second
    assert Program.of(both, first).outputs == both.outputs == (*first.outputs, *second.outputs)
    assert [sink.uid for sink in stage(both.plan(), "clicks").sinks] == ["x", "y"]
    assert repr(both) == "Program(writes x, y)"


def test_a_plan_can_be_pickled_with_functions_of_the_script() -> None:
    limit = 3
    plan = clicks().filter(lambda row: row.cents > limit).write(Nowhere(), uid="out").plan()
    again = loads(dumps(plan))
    assert isinstance(again, Plan)
    assert again.uids == plan.uids == ("clicks", "out")


# --- durations and schemas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("250ms", 250), ("5s", 5_000), ("1.5s", 1_500), ("1m", 60_000), ("2 min", 120_000), ("2h", 7_200_000),
     ("1d", 86_400_000), (" 5 s ", 5_000), ("1 second", 1_000), ("5 sec", 5_000), ("10 minutes", 600_000),
     ("3 hours", 10_800_000), ("2 days", 172_800_000), ("20 milliseconds", 20), (0, 0), ("0", 0),
     (dt.timedelta(seconds=1, milliseconds=5), 1_005)],
)  # fmt: skip
def test_durations_are_milliseconds(given: Duration, wanted: int) -> None:
    assert milliseconds(given) == wanted


@pytest.mark.parametrize(
    "given", ["s", "5 apples", "-5s", "1e3s", "", "0.5ms", float("nan"), float("inf"), True, None, [5]]
)
def test_what_is_no_duration_is_refused_with_what_would_be_one(given: Duration) -> None:
    with pytest.raises(NotADuration, match=r"is no duration.*write '250ms', '5s'"):
        milliseconds(given)


@pytest.mark.parametrize("given", [1, 250, 0.5, "1", 60.0])
def test_a_number_without_a_unit_is_refused_with_both_that_may_be_meant(given: Duration) -> None:
    with pytest.raises(NotADuration, match=f"every: {given!r} is no duration: .* say '{given}s' or '{given}ms'"):
        milliseconds(given, "every")


@given(st.integers(0, 10**15))
def test_a_duration_in_words_is_the_same_duration(duration: int) -> None:
    assert milliseconds(in_words(duration)) == duration


def test_event_time_takes_durations_and_keeps_milliseconds() -> None:
    timed = EventTime("at", "5s", "1m")
    assert (timed.out_of_order, timed.idle_after) == (5_000, 60_000)
    assert (EventTime("at").out_of_order, EventTime("at").idle_after) == (0, None)


def test_a_schema_of_many_columns_is_gone_through_once() -> None:
    columns, calls = 2_000, 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "c_call" and getattr(argument, "__name__", "") in ("count", "names")

    wide = pa.schema([(f"c{number}", pa.int64()) for number in range(columns)])
    sys.setprofile(counted)
    try:
        schema_of(wide)
    finally:
        sys.setprofile(None)
    assert calls < columns


def test_schemas_are_declared_with_types_of_python_or_of_arrow() -> None:
    declared = {
        "a": int, "b": float, "c": str, "d": bool, "e": bytes, "f": dt.datetime, "g": dt.date, "h": dt.time,
        "i": dt.timedelta, "j": list[int], "k": {"x": int, "y": list[str]}, "l": pa.int8(),
    }  # fmt: skip
    assert columns_in_words(schema_of(declared)) == (
        "a: int64, b: double, c: string, d: bool, e: binary, f: timestamp[us], g: date32[day], h: time64[us], "
        "i: duration[us], j: list<item: int64>, k: struct<x: int64, y: list<item: string>>, l: int8"
    )
    own = pa.schema([pa.field("a", pa.int64(), nullable=False)], metadata={"of": "somebody"})
    assert schema_of(own).equals(own.remove_metadata(), check_metadata=True)


# --- what a snapshot depends on --------------------------------------------------------------------------------------


def test_a_star_brings_all_of_them_and_nothing_else() -> None:
    found: dict[str, object] = {}
    exec("from snapshot import *", found)
    assert found.keys() - {"__builtins__"} == typed_names(snapshot).keys()


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Steam'"):
        snapshot.Steam  # noqa: B018


def test_the_protocols_alone_load_neither_arrow_nor_rocksdb() -> None:
    code = "import sys, snapshot.cut.aligner; print(sorted({'pyarrow', 'rocksdict', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


ROOT = Path(snapshot.__file__).parent.parent
