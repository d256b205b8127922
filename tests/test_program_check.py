from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any, cast

import pyarrow as pa
import pytest

from snapshot import (
    ConnectedStreams,
    ControlledStream,
    InvalidProgram,
    KeyedCoProcess,
    KeyedProcess,
    KeyedStream,
    Program,
    Session,
    Sliding,
    Stream,
    ToHTTP,
    ToSQLite,
    Tumbling,
    WindowedStream,
)
from snapshot.operators.row_class import Row
from snapshot.program.plan import EventTime
from snapshot.program.sink import Abilities
from statebackend import Count, Sum
from statebackend.columns import SchemaLike
from statebackend.durations import NotADuration
from tests.program_parts import CLICKS, Nothing, Nowhere, clicks


class Echo(KeyedProcess):
    def on_event(self, event: Row, ctx: object) -> None: ...


class Both(KeyedCoProcess):
    output = CLICKS

    def on_first(self, event: Row, ctx: object) -> None: ...

    def on_second(self, event: Row, ctx: object) -> None: ...


def same(row: Row) -> Row:
    return row


def problems(program: Program, max_parallelism: int = 128) -> list[str]:
    with pytest.raises(InvalidProgram) as caught:
        program.check(max_parallelism)
    return [str(problem) for problem in caught.value.problems]


def written(stream: Stream) -> Program:
    return stream.write(Nowhere(), uid="out")


def echoed(stream: Stream, schema: SchemaLike = CLICKS) -> Stream:
    return stream.key_by("user").process(Echo, uid="echo", schema=schema)


def test_a_program_without_mistakes_passes() -> None:
    written(echoed(clicks().map(same))).check()


def test_all_mistakes_are_reported_at_once() -> None:
    program = clicks("a b").key_by("usr").count(uid="").write(Nowhere(), uid="out")
    with pytest.raises(InvalidProgram) as caught:
        program.plan(max_parallelism=0)
    assert str(caught.value).splitlines() == [
        "the program cannot run, 4 problems:",
        "  - max_parallelism is 0; it has to be from 1 to 32768",
        "  - 'a b': this uid cannot stand in the names of channels and files; use 1 to 100 ASCII letters, digits and "
        "_.-, and begin with none of . and -",
        "  - aggregate(count) behind a b: it has no uid; give it one that stays the same for ever, uid='...'",
        "  - aggregate(count) behind a b: key_by: there is no column 'usr'; did you mean 'user'?",
    ]


class WrongOutput(Echo):
    output = {"name": "strin", "n": "nix"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("program", "mistakes"),
    [
        (
            lambda: clicks().map(same, schema={"a": "strin", "b": "nix"}),
            ["'a' is declared as 'strin'", "'b' is declared as 'nix'"],
        ),
        (
            lambda: clicks().with_event_time("tme").key_by("usr").count(uid="n"),
            ["event time: there is no column 'tme'", "key_by: there is no column 'usr'"],
        ),
        (
            lambda: clicks().key_by("user").aggregate(uid="n", a=cast("Any", "cents"), b=Sum("user"), c=Sum("sense")),
            ["a='cents' is no aggregation", "there is no column 'sense'", "b: Sum('user') is over integers or floats"],
        ),
        (
            lambda: clicks().key_by("usr").process(WrongOutput, uid="n", sides={"x": {"y": "zzz"}}),
            [
                "key_by: there is no column 'usr'",
                "'name' is declared as 'strin'",
                "'n' is declared as 'nix'",
                "'y' is declared as 'zzz'",
            ],
        ),
        (
            lambda: clicks().select("nothing").key_by("user").process(WrongOutput, uid="n"),
            ["there is no column 'nothing'", "'name' is declared as 'strin'", "'n' is declared as 'nix'"],
        ),
    ],
)
def test_several_mistakes_of_a_step_and_what_they_do_not_concern_are_reported_at_once(
    program: Callable[[], Stream], mistakes: list[str]
) -> None:
    found = problems(written(program()))
    assert len(found) == len(mistakes)
    assert all(mistake in problem for mistake, problem in zip(mistakes, found, strict=True)), found


def test_an_error_can_be_pickled() -> None:
    with pytest.raises(InvalidProgram) as caught:
        Program(()).check()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_program_without_an_output_is_refused() -> None:
    assert problems(Program(())) == ["the program has no output; end a stream with write(sink, uid=...)"]


@pytest.mark.parametrize("bound", [0, -1, 32769])
def test_a_maximum_parallelism_out_of_bounds_is_refused(bound: int) -> None:
    assert problems(written(clicks()), bound) == [f"max_parallelism is {bound}; it has to be from 1 to 32768"]


# --- uids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "where"),
    [
        (lambda: clicks().write(Nowhere(), uid=""), "write(Nowhere) behind clicks"),
        (lambda: written(clicks().rebalance(uid="")), "rebalance behind clicks"),
        (lambda: written(clicks().map(same).key_by("user").sum("cents", uid="")), "aggregate(cents) behind clicks"),
        (lambda: written(clicks().key_by("user").process(Echo, uid="", schema=CLICKS)), "process(Echo) behind clicks"),
        (lambda: written(clicks("")), "read(Nothing)"),
    ],
)
def test_an_empty_uid_is_refused(program: Callable[[], Program], where: str) -> None:
    assert problems(program()) == [f"{where}: it has no uid; give it one that stays the same for ever, uid='...'"]


@pytest.mark.parametrize("kind", [Stream, KeyedStream, WindowedStream, ConnectedStreams, ControlledStream])
def test_each_step_that_is_found_again_by_its_uid_requires_one(kind: type) -> None:
    steps = {
        name: signature(getattr(kind, name)) for name in vars(kind) if name[0] != "_" and callable(getattr(kind, name))
    }
    uids = {name: step.parameters["uid"] for name, step in steps.items() if "uid" in step.parameters}
    assert uids
    assert {uid.kind for uid in uids.values()} == {Parameter.KEYWORD_ONLY}
    assert {uid.default for uid in uids.values()} == {Parameter.empty}
    assert {uid.annotation for uid in uids.values()} == {"str"}


def test_a_uid_that_is_there_twice_is_refused_with_all_that_have_it() -> None:
    program = written(clicks("a").union(clicks("a")).key_by("user").process(Echo, uid="a", schema=CLICKS))
    assert problems(program) == [
        "a: 3 steps have this uid: read(Nothing), read(Nothing), process(Echo); give each its own (to use a stream "
        "more than once, keep it in a variable)"
    ]


@pytest.mark.parametrize("uid", ["a b", "a/b", "a#1", "a->b", ".a", "-a", "ä", "a" * 101, "a\n", "a:b"])
def test_a_uid_that_cannot_be_a_name_is_refused(uid: str) -> None:
    (problem,) = problems(written(clicks(uid)))
    assert problem.startswith(f"{uid!r}: this uid cannot stand in the names of channels and files")


@pytest.mark.parametrize("uid", ["a", "A-b_c.9", "9", "_", "a" * 100])
def test_other_uids_are_fine(uid: str) -> None:
    written(clicks(uid)).check()


# --- columns and schemas ---------------------------------------------------------------------------------------------


def test_an_unknown_column_is_refused_with_the_names_that_are_meant_perhaps() -> None:
    assert problems(written(clicks().select("user", "cent"))) == [
        "select(user, cent) behind clicks: there is no column 'cent'; did you mean 'cents'?"
    ]
    assert problems(written(echoed(clicks(schema={"name": int})))) == [
        "echo: key_by: there is no column 'user'; there are: name"
    ]
    assert problems(written(clicks().key_by("user").sum("sense", uid="sum"))) == [
        "sum: there is no column 'sense'; did you mean 'cents'?"
    ]
    assert problems(written(clicks().with_event_time("time"))) == [
        "with_event_time(time) behind clicks: event time: there is no column 'time'; there are: user, cents, at"
    ]


def test_what_stands_behind_a_mistake_is_not_reported_again() -> None:
    broken = clicks().select("nothing").map(same).key_by("user").count(uid="count").map(same)
    assert len(problems(written(broken) + broken.write(Nowhere(), uid="other"))) == 1


def test_a_key_without_columns_or_with_one_twice_is_refused() -> None:
    assert problems(written(clicks().key_by().count(uid="count"))) == [
        "count: key_by names no column; name at least one"
    ]
    assert problems(written(clicks().key_by("user", "user").count(uid="count"))) == [
        "count: key_by names a column twice"
    ]


def test_names_of_columns_are_given_one_by_one() -> None:
    why = "['user', 'at'] is no name of a column; give names as texts, one after the other"
    columns = cast("Any", ["user", "at"])
    assert problems(written(clicks().key_by(columns).count(uid="count"))) == [f"count: key_by: {why}"]
    (problem,) = problems(written(clicks().select(columns)))
    assert problem.endswith(why)


def test_a_column_that_cannot_be_a_key_is_refused() -> None:
    (problem,) = problems(written(clicks(schema={"user": list[int]}).key_by("user").count(uid="count")))
    assert problem.startswith("count: key_by: column 'user' cannot be a key: keys cannot be declared as Arrow's list")


def test_a_selection_of_nothing_or_of_a_column_twice_is_refused() -> None:
    assert problems(written(clicks().select())) == ["select() behind clicks: it names no column; name at least one"]
    assert problems(written(clicks().select("at", "at"))) == ["select(at, at) behind clicks: it names a column twice"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"a": complex}, "column 'a' is declared as <class 'complex'>; give an Arrow type"),
        ({1: int}, "a column is called 1; a name is a text"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "the schema has more than one column 'a'"),
        ("a in", "the schema 'a in' cannot be read: column 'a' is of type 'in', which is none of tinyint"),
        (["a"], "['a'] is no schema; give a pyarrow.Schema, a dict"),
    ],
)
def test_what_declares_no_schema_is_refused(schema: SchemaLike, why: str) -> None:
    (problem,) = problems(written(clicks().map(same, schema=schema)))
    assert problem.startswith(f"map(same) behind clicks: {why}")
    (problem,) = problems(written(echoed(clicks(), schema)))
    assert problem.startswith(f"echo: {why}")


def test_streams_of_different_schemas_cannot_be_united() -> None:
    other = clicks("other", schema={"user": str, "cents": float})
    assert problems(written(clicks().select("user", "cents").union(other))) == [
        "union behind clicks: the rows of select(user, cents) behind clicks are (user: string, cents: int64), those of "
        "other (user: string, cents: double); bring them to one schema with select or map"
    ]


def test_schemas_that_differ_only_in_nulls_cannot_be_united_either() -> None:
    other = clicks("b", schema=pa.schema([pa.field("user", pa.string(), nullable=False)]))
    (problem,) = problems(written(clicks("a", schema={"user": str}).union(other)))
    assert "(user: string), those of b (user: string not null)" in problem


def test_a_dictionary_column_cannot_go_through_an_exchange() -> None:
    packed = clicks(schema={"user": pa.dictionary(pa.int32(), pa.string())})
    why = "column 'user' is dictionary-encoded (dictionary<values=string, indices=int32, ordered=0>)"
    for stream in (packed.key_by("user").count(uid="x"), packed.rebalance(uid="x")):
        (problem,) = problems(written(stream))
        assert problem.startswith(f"x: {why}")
    written(packed).check()


def test_a_column_of_views_cannot_go_through_an_exchange() -> None:
    viewed = clicks(schema={"user": str, "tags": pa.list_(pa.string_view())})
    for stream in (viewed.key_by("user").count(uid="x"), viewed.rebalance(uid="x")):
        (problem,) = problems(written(stream))
        assert problem.startswith("x: column 'tags' is list<item: string_view>, and views cannot be divided")
    written(viewed).check()


def test_a_row_of_columns_that_are_no_identifiers_cannot_go_to_a_function() -> None:
    (problem,) = problems(written(clicks(schema={"the user": str}).map(same)))
    assert problem.startswith("map(same) behind clicks: ")
    assert "'the user'" in problem


# --- event time and windows ------------------------------------------------------------------------------------------


def test_event_time_of_a_column_that_is_no_time_is_refused() -> None:
    why = "event time cannot be taken from column 'user' of string; it has to be of timestamps, or of integers"
    (problem,) = problems(written(clicks().with_event_time("user")))
    assert problem.startswith(f"with_event_time(user) behind clicks: {why}")
    read = Stream.read(Nothing(pa.schema({"user": pa.string()})), uid="a", event_time=EventTime("user"))
    (problem,) = problems(written(read))
    assert problem.startswith(f"a: {why}")


def test_a_split_that_would_be_idle_at_once_is_refused() -> None:
    assert problems(written(clicks().with_event_time("at", idle_after="0s"))) == [
        "with_event_time(at) behind clicks: a split would be idle at once with idle_after=0; give more, or None for "
        "never"
    ]


def test_event_time_can_be_given_once() -> None:
    why = "the rows have event times already; give them once on every way from a source"
    assert problems(written(clicks(timed=True).with_event_time("at"))) == [f"with_event_time(at) behind clicks: {why}"]


def test_event_time_can_be_given_only_before_the_first_exchange() -> None:
    why = "event time is given behind an exchange; give it before key_by or rebalance, nearer to the source"
    for stream in (echoed(clicks()), clicks().rebalance(uid="echo")):
        assert problems(written(stream.with_event_time("at"))) == [f"with_event_time(at) behind echo: {why}"]
    united = clicks("a").union(clicks("b").rebalance(uid="deal")).with_event_time("at")
    assert problems(written(united)) == [f"with_event_time(at) behind a: {why}"]
    written(clicks("a").union(clicks("b")).with_event_time("at")).check()


def test_streams_with_and_without_event_time_cannot_be_united() -> None:
    assert problems(written(clicks("a").union(clicks("b", timed=True)))) == [
        "union behind a: the rows of b have event times, those of a have none; give them with event_time= or "
        "with_event_time to all streams, or to none"
    ]


def test_windows_of_event_time_need_event_times() -> None:
    (problem,) = problems(written(clicks().key_by("user").window(Tumbling("5s")).sum("cents", uid="sums")))
    assert problem.startswith("sums: the rows have no event time: say where it is with with_event_time")
    written(clicks().key_by("user").window(Tumbling.processing("5s")).sum("cents", uid="sums")).check()


@pytest.mark.parametrize(
    ("window", "why"),
    [
        (Tumbling("0s"), "windows last longer than 0 ms"),
        (Sliding("1s", 0), "windows slide by more than 0 ms"),
        (Sliding("1s", "2s"), "leave out what is between them"),
        (Session("0s"), "sessions end after a gap of more than 0 ms"),
    ],
)
def test_windows_that_cannot_be_are_refused(window: Tumbling | Sliding | Session, why: str) -> None:
    (problem,) = problems(written(clicks(timed=True).key_by("user").window(window).count(uid="count")))
    assert problem.startswith("count: ")
    assert why in problem


def test_nothing_is_late_in_processing_time() -> None:
    windows = clicks().key_by("user").window(Tumbling.processing("1s"), lateness="1s")
    assert problems(written(windows.count(uid="count"))) == [
        "count: no row is late in processing time: leave lateness and late out"
    ]


def test_a_duration_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(NotADuration, match="out_of_order: '5 apples' is no duration"):
        clicks().with_event_time("at", out_of_order="5 apples")
    with pytest.raises(NotADuration, match="lateness: -1 is no duration: a number has no unit"):
        clicks().key_by("user").window(Tumbling("1s"), lateness=-1)  # type: ignore[arg-type]


# --- operators, sides, sinks, sources --------------------------------------------------------------------------------


def test_a_side_output_that_is_not_there_is_refused_with_how_to_have_it() -> None:
    sides: dict[str, SchemaLike] = {"odd": {"why": str}}
    echo = clicks().key_by("user").process(Echo, uid="echo", schema=CLICKS, sides=sides)
    assert problems(written(echo.side("even"))) == [
        "side(even) behind echo: there is no side output 'even'; there are: odd"
    ]
    assert problems(written(echoed(clicks()).side("odd"))) == [
        "side(odd) behind echo: there is no side output 'odd'; there are: none; declare it with sides={...}"
    ]
    windows = clicks(timed=True).key_by("user").window(Tumbling("1s"))
    assert problems(written(windows.count(uid="count").side("late"))) == [
        "side(late) behind count: there is no side output 'late'; there are: none; "
        "ask for it with window(..., late=True)"
    ]


def test_a_step_without_state_has_no_side_outputs() -> None:
    assert problems(written(clicks().map(same).side("late"))) == [
        "side(late) behind clicks: map(same) has no side outputs; take side('late') of the stream that process or "
        "window(...) gives, before any other step"
    ]


def test_keys_of_connected_streams_are_of_one_type() -> None:
    both = clicks("a").key_by("user").connect(clicks("b").key_by("cents")).process(Both, uid="both")
    assert problems(written(both)) == [
        "both: the keys of the connected streams are string and int64; they have to be of one type, cast one"
    ]


def test_what_the_source_and_the_sink_say_is_reported() -> None:
    source = Nothing(pa.schema({"user": pa.string()}), problems=("there is no path",))
    program = Stream.read(source, uid="in").write(Nowhere(wants=["cents"]), uid="out")
    assert problems(program) == ["in: there is no path", "out: the rows have no column 'cents'"]


def test_a_sink_whose_target_can_neither_keep_nor_show_what_was_committed_is_refused_as_exactly_once() -> None:
    (problem,) = problems(clicks().write(Nowhere(abilities=Abilities()), uid="out"))
    assert problem.startswith("out: Nowhere cannot be exactly-once")
    clicks().write(Nowhere(abilities=Abilities(), exactly_once=False), uid="out").check()
    clicks().write(Nowhere(abilities=Abilities(reads_tokens=True)), uid="out").check()


@pytest.mark.parametrize("sink", [ToHTTP("http://host/rows"), ToSQLite("rows.db", "rows", journal="off")])
def test_targets_without_transactions_are_refused_unless_at_least_once_is_asked_for(sink: ToHTTP | ToSQLite) -> None:
    (problem,) = problems(clicks().write(sink, uid="out"))
    assert f"{type(sink).__name__} cannot be exactly-once: its target can neither" in problem
    clicks().write(replace(sink, exactly_once=False), uid="out").check()


def test_a_class_in_the_place_of_a_source_or_a_sink_is_refused() -> None:
    assert problems(Stream.read(cast("Any", Nothing), uid="in").write(cast("Any", Nowhere), uid="out")) == [
        "in: Nothing is a class; give an instance of it, Nothing(...)",
        "out: Nowhere is a class; give an instance of it, Nowhere(...)",
    ]


def test_a_process_has_to_say_what_comes_out() -> None:
    assert problems(written(clicks().key_by("user").process(Echo, uid="echo"))) == [
        "echo: the output schema is missing; pass schema={...}, or give the class an attribute output = {...}"
    ]


def test_a_class_that_needs_arguments_has_to_be_given_as_an_instance() -> None:
    class Needy(Echo):
        def __init__(self, limit: int) -> None:
            self.limit = limit

    (problem,) = problems(written(clicks().key_by("user").process(Needy, uid="echo", schema=CLICKS)))
    assert problem.startswith("echo: Needy() raises TypeError: ")
    assert problem.endswith("give an instance where it needs arguments")
    written(clicks().key_by("user").process(Needy(1), uid="echo", schema=CLICKS)).check()


def test_what_the_operator_finds_is_reported_with_its_uid() -> None:
    class Empty(KeyedProcess): ...

    (problem,) = problems(written(clicks().key_by("user").process(Empty, uid="empty", schema=CLICKS)))
    assert problem.startswith("empty: Empty has no method on_event")


def test_a_sum_of_what_is_no_number_is_refused() -> None:
    assert problems(written(clicks().key_by("user").sum("at", uid="sum"))) == [
        "sum: at: Sum('at') is over integers or floats, and its column is of timestamp[ms]; cast it before"
    ]
    assert problems(written(clicks().key_by("user").aggregate(uid="sums", ms=Sum("cent")))) == [
        "sums: there is no column 'cent'; did you mean 'cents'?"
    ]


def test_an_aggregate_needs_outputs_with_names_of_their_own() -> None:
    keyed = clicks().key_by("user")
    (problem,) = problems(written(keyed.aggregate(uid="none")))
    assert problem.startswith("none: it aggregates nothing")
    (problem,) = problems(written(keyed.aggregate(uid="key", user=Count())))
    assert problem == "key: its output 'user' is called as a column of the key is; give it another name"
    strange = keyed.aggregate(uid="odd", total="cents")  # type: ignore[arg-type]
    (problem,) = problems(written(strange))
    assert problem == "odd: total='cents' is no aggregation; give one such as total=Sum('column')"


# --- pickling and size -----------------------------------------------------------------------------------------------


def test_a_function_that_cannot_be_sent_to_others_is_refused() -> None:
    lock = threading.Lock()

    def locked(row: Row) -> Row:
        with lock:
            return row

    class Locked(Echo):
        lock = threading.Lock()

    program = clicks().map(locked).key_by("user").process(Locked, uid="echo", schema=CLICKS)
    found = problems(program.write(Nowhere(held=lock), uid="out"))
    where = ["map(locked) behind clicks", "process(Locked)", "write(Nowhere)"]
    assert [problem.split(" cannot be sent to other processes: ")[0].split(": ")[-1] for problem in found] == [
        "map(locked)",
        *where[1:],
    ]
    assert all("cannot pickle '_thread.lock' object" in problem for problem in found)
    assert found[0].startswith(where[0])
    assert found[1].startswith("echo: ")


def test_a_function_of_the_script_itself_can_be_sent_to_others() -> None:
    factor = 2
    written(clicks().map(lambda row: (row.user, row.cents * factor, row.at))).check()


def test_ways_through_unions_are_limited() -> None:
    stream = clicks()
    for _ in range(11):
        stream = stream.union(stream)
    assert problems(written(stream)) == [
        "out: rows come here in 2048 ways through unions; more than 1000 cannot be run"
    ]


def test_a_chain_that_is_too_long_is_refused_and_a_long_one_can_be_run() -> None:
    stream = clicks()
    for _ in range(100):
        stream = stream.select("user", "cents", "at")
    written(stream).check()
    (problem,) = problems(written(stream.select("user").select("user").map(same)))
    assert problem == (
        "select(user) behind clicks: more than 100 steps are chained without an exchange; put some into one"
    )
