"""A transcript: what somebody does who has only read the page and `help`, and word for word what is answered."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import recovery
import snapshot
import statebackend
from snapshot import Collection, EventTime, KeyedProcess, ListOf, MapOf, ProcessContext, Row, Stream, ToDriver, Value
from snapshot.structured.sink_options import sink_of
from snapshot.testing.operators import OperatorHarness

PAYMENTS = pa.schema(
    [("user", pa.string()), ("cents", pa.int64()), ("at", pa.timestamp("ms")), ("tags", pa.list_(pa.string()))]
)
payments = Stream.read(Collection([], PAYMENTS), uid="payments")
timed = Stream.read(Collection([], PAYMENTS), uid="payments", event_time=EventTime("at"))
out = ToDriver()


class Fraud(KeyedProcess):
    """Does what a test tells it to."""

    output = {"user": str}  # noqa: RUF012
    amounts = ListOf(int)
    pages = MapOf(str, int)
    last = Value(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        exec(event.do, {"self": self, "ctx": ctx})

    def on_timer(self, at: int, ctx: ProcessContext) -> None: ...


NAMES = {
    **{name: getattr(package, name) for package in (statebackend, snapshot) for name in package.__all__},
    "snapshot": snapshot,
    "recovery": recovery,
    "pa": pa,
    "payments": payments,
    "timed": timed,
    "out": out,
    "sink_of": sink_of,
    "OperatorHarness": OperatorHarness,
    "Fraud": Fraud,
}


def in_function(do: str, folder: Path) -> None:
    with OperatorHarness(Fraud, folder, columns={"user": str, "do": str}, key="user") as harness:
        harness.rows([("ann", do)])


TRANSCRIPT = [
    (
        "the types of a state are guessed",
        "import decimal; Value(decimal.Decimal)",
        "NoCodec: there is no codec for Decimal; types that have one are int, float, bool, str, bytes, date, datetime, "
        "None, tuple[...] of these, T | None, and Arrow's, such as pa.struct(...) or 'int64'; else declare Pickled() "
        "or a Codec of your own, both from statebackend",
    ),
    (
        "a value is what no codec takes",
        "in_function('self.last.set(\"3\")', folder)",
        "WrongValueType: operator: state 'last' is declared as int: expected int, got str '3'",
    ),
    (
        "the method of a list is guessed",
        "in_function('self.amounts.append(3)', folder)",
        "AttributeError: a ListState has no 'append'; it has add, extend, get, replace and clear",
    ),
    (
        "the method of a map is guessed",
        "in_function('self.pages.update(a=1)', folder)",
        "AttributeError: a MapState has no 'update'; it has get, put, remove, in, items, keys and clear",
    ),
    (
        "the method of a value is guessed",
        "in_function('self.last.update(3)', folder)",
        "AttributeError: a ValueState has no 'update'; it has get, set and clear",
    ),
    (
        "the name of a type is misspelt",
        "class Spread(WindowFunction):\n"
        "    output = {'user': 'strin'}\n"
        "    def on_window(self, key, window, rows, ctx): ...\n"
        "timed.key_by('user').window(Tumbling('1m')).process(Spread, uid='s').write(out, uid='o').check()",
        "ProgramError: the program cannot run, 1 problem:\n  - s: column 'user' is declared as 'strin'; give an Arrow "
        "type such as pyarrow.string() or 'string', or one of int, float, str, bool, bytes, datetime, date, time, "
        "timedelta",
    ),
    (
        "the type of a sum is said",
        "Sum(int)",
        "AggregationError: Sum takes the name of a column, such as Sum('ms'), not <class 'int'>; the type is the "
        "column's",
    ),
    ("a sum is of nothing", "Sum()", "AggregationError: Sum needs the name of a column, such as Sum('ms')"),
    (
        "a column stands where an aggregation should",
        "payments.key_by('user').aggregate(uid='sums', spent='cents').write(out, uid='o').check()",
        "ProgramError: the program cannot run, 1 problem:\n  - sums: spent='cents' is no aggregation; give one such as "
        "spent=Sum('column')",
    ),
    (
        "texts are summed",
        "payments.key_by('user').aggregate(uid='sums', spent=Sum('user')).write(out, uid='o').check()",
        "ProgramError: the program cannot run, 1 problem:\n  - sums: spent: Sum('user') is over integers or floats, "
        "and its column is of string; cast it before",
    ),
    (
        "lists have no greatest",
        "payments.key_by('user').aggregate(uid='most', most=Max('tags')).write(out, uid='o').check()",
        "ProgramError: the program cannot run, 1 problem:\n  - most: most: Max('tags') cannot be over a column of "
        "list<item: string>: it takes numbers, decimals of up to 18 digits, times, booleans, texts and bytes; a Value "
        "or Reducing state keeps anything",
    ),
    (
        "a table alone does not know its columns",
        "Aggregates(spent=Sum('cents'))",
        "TableError: spent=Sum('cents') is over a column of which the type is not said; declare "
        "Aggregates({'cents': int, ...}, spent=Sum('cents'))",
    ),
    (
        "the key of a table is misspelt",
        "payments.select('user', 'cents').write(ToSQLite('a.db', 't', key='usr'), uid='o').check()",
        "ProgramError: the program cannot run, 1 problem:\n  - o: key: there is no column 'usr'; did you mean 'user'?",
    ),
    (
        "a record of Kafka has two keys",
        "ToKafka('broker:9092', 'totals', key=('user', 'at'))",
        "ValueError: key=('user', 'at') names several columns, and is one: make one of them before, in a map, and "
        "name that",
    ),
    (
        "the option of a format is misspelt",
        "sink_of('epochcut.sqlite', ToSQLite, {'path': 'a.db', 'table': 't', 'keys': 'user'})",
        "SinkError: epochcut.sqlite has no option 'keys'; it has path, table, key, deleted, create, exactly_once, "
        "journal and staging, checkpointLocation, commitPatience, queryName, batch",
    ),
    (
        "write is forgotten",
        "recovery.run(payments, checkpoints=folder)",
        "ProgramError: the program cannot run, 1 problem:\n  - the stream is written nowhere; end it with "
        ".write(sink, uid=...)",
    ),
    (
        "key_by is forgotten",
        "timed.window(Tumbling('1m'))",
        "AttributeError: window works for each key: say key_by(...) before it",
    ),
    (
        "a row is mapped by key",
        "payments.key_by('user').map(print)",
        "AttributeError: map works on rows, not on keys: use it before key_by(...), or on what count, process or the "
        "like give",
    ),
    (
        "windows are written",
        "timed.key_by('user').window(Tumbling('1m')).write(out)",
        "AttributeError: write works on what comes out of windows: say count, sum, aggregate, reduce or process "
        "before it",
    ),
    (
        "a step is misspelt",
        "payments.key_by('user').windw(Tumbling('1m'))",
        "AttributeError: a KeyedStream has no 'windw'; did you mean 'window' or 'min'?",
    ),
    (
        "windows have no event time",
        "payments.key_by('user').window(Tumbling('1m')).count(uid='c').write(out, uid='o').check()",
        "ProgramError: the program cannot run, 1 problem:\n  - c: the rows have no event time: say where it is with "
        "with_event_time, or use Tumbling.processing",
    ),
    (
        "a timer has no event time",
        "in_function('ctx.timer(ctx.timestamp + 1000)', folder)",
        "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'\n"
        "in process(Fraud), for the key 'ann' and the row Row(user='ann', do='ctx.timer(ctx.timestamp + 1000)')\n"
        "the rows of this stream have no event time, so ctx.timestamp is None: give them one with "
        "with_event_time(...) near the source, or use ctx.processing_timer(ctx.processing_time + ...)",
    ),
    (
        "a function is tested alone",
        "OperatorHarness(Fraud, folder)",
        "TypeError: a harness for Fraud has to know its rows: give columns={...} with their types, and key=...",
    ),
    (
        "a row reaches a partition that does not own it",
        "operator = Operator('sums', key=str, states={'sums': Aggregates(n=Count())})\n"
        "state = KeyedState(operator, folder / 'local', open_store(folder.as_uri()),\n"
        "                                lambda: 'unused', groups=operator.groups_of(1, 2))\n"
        "with state: state['sums'].update(state.keys(pa.array(['ann', 'bob', 'eve'])), {})",
        "ForeignKeys: 3 of 3 keys given to table 'sums' are not of its key groups [64, 128); send each key to the "
        "partition that owns its group (see Operator.owners_of)",
    ),
]


@pytest.mark.parametrize(("done", "answered"), [one[1:] for one in TRANSCRIPT], ids=[one[0] for one in TRANSCRIPT])
def test_a_mistake_is_answered_with_what_to_do(done: str, answered: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one, the answer says
        exec(done, {**NAMES, "in_function": in_function, "folder": tmp_path})
    error = caught.value
    notes = [note for note in getattr(error, "__notes__", []) if note in answered]
    assert "\n".join([f"{type(error).__name__}: {error}", *notes]) == answered
