"""A transcript: what somebody does who has only read the page and `help`, and word for word what is answered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
import snapshot
import statebackend
from recovery.driver.settings.options import PARAMETERS, Advanced, RunOptions
from snapshot import (
    PAUSE,
    Collection,
    EventTime,
    Generate,
    KeyedProcess,
    ListState,
    MapState,
    ProcessContext,
    Row,
    Stream,
    ToDriver,
    Tumbling,
    ValueState,
)
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
    amounts = ListState(int)
    pages = MapState(str, int)
    last = ValueState(int, default=0)

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
        "import decimal; ValueState(decimal.Decimal)",
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
        "AttributeError: a ListHandle has no 'append'; it has add, extend, get, replace and clear",
    ),
    (
        "the method of a map is guessed",
        "in_function('self.pages.update(a=1)', folder)",
        "AttributeError: a MapHandle has no 'update'; it has get, put, remove, in, items, keys and clear",
    ),
    (
        "the method of a value is guessed",
        "in_function('self.last.update(3)', folder)",
        "AttributeError: a ValueHandle has no 'update'; it has get, set and clear",
    ),
    (
        "the name of a type is misspelt",
        "class Spread(WindowFunction):\n"
        "    output = {'user': 'strin'}\n"
        "    def on_window(self, key, window, rows, ctx): ...\n"
        "timed.key_by('user').window(Tumbling('1m')).process(Spread, uid='s').write(out, uid='o').check()",
        "InvalidProgram: the program cannot run, 1 problem:\n  - s: column 'user' is declared as 'strin'; give an "
        "Arrow type such as pyarrow.string() or 'string', or one of int, float, str, bool, bytes, datetime, date, "
        "time, timedelta",
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
        "InvalidProgram: the program cannot run, 1 problem:\n  - sums: spent='cents' is no aggregation; give one such "
        "as spent=Sum('column')",
    ),
    (
        "texts are summed",
        "payments.key_by('user').aggregate(uid='sums', spent=Sum('user')).write(out, uid='o').check()",
        "InvalidProgram: the program cannot run, 1 problem:\n  - sums: spent: Sum('user') is over integers or floats, "
        "and its column is of string; cast it before",
    ),
    (
        "lists have no greatest",
        "payments.key_by('user').aggregate(uid='most', most=Max('tags')).write(out, uid='o').check()",
        "InvalidProgram: the program cannot run, 1 problem:\n  - most: most: Max('tags') cannot be over a column of "
        "list<item: string>: it takes numbers, decimals of up to 18 digits, times, booleans, texts and bytes; a "
        "ValueState or ReducingState keeps anything",
    ),
    (
        "a table alone does not know its columns",
        "AggregateTable(spent=Sum('cents'))",
        "TableError: spent=Sum('cents') is over a column of which the type is not said; declare "
        "AggregateTable({'cents': int, ...}, spent=Sum('cents'))",
    ),
    (
        "the key of a table is misspelt",
        "payments.select('user', 'cents').write(ToSQLite('a.db', 't', key='usr'), uid='o').check()",
        "InvalidProgram: the program cannot run, 1 problem:\n"
        "  - o: key: there is no column 'usr'; did you mean 'user'?",
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
        "InvalidProgram: the program cannot run, 1 problem:\n  - the stream is written nowhere; end it with "
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
        "InvalidProgram: the program cannot run, 1 problem:\n  - c: the rows have no event time: say where it is with "
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
        "operator = Operator('sums', key=str, states={'sums': AggregateTable(n=Count())})\n"
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


# --- what is done with jobs: they run, in the way that a script runs them


def script(text: str, folder: Path) -> None:
    """Run it as a program of its own, and say what it says."""
    file = folder / "script.py"
    file.write_text(SCRIPT + text)
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parent.parent)}
    ran = subprocess.run(
        [sys.executable, file], env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0
    print(ran.stderr)


SCRIPT = """
import time
import recovery
from snapshot import Generate, Stream, ToFiles
numbers = Generate(lambda rows: {"n": rows}, {"n": int}, rate=100.0)
endless = Stream.read(numbers, uid="numbers").write(ToFiles("output", "jsonl"), uid="out")
"""
PATIENCE = 60.0

LATE: list[Any] = [("ann", 5, 20_000, []), PAUSE(0.3), ("ann", 5, 1_000, [])]
few = Stream.read(Collection([("ann", 5, 0, [])], PAYMENTS), uid="payments").write(out, uid="out")
endless = Stream.read(Generate(lambda rows: {"n": rows}, {"n": int}, rate=100.0), uid="n").write(out, uid="out")
late = (
    Stream.read(Collection(LATE, PAYMENTS, splits=1), uid="payments", event_time=EventTime("at"))
    .key_by("user")
    .window(Tumbling("1s"))
    .count(uid="counts")
    .write(out, uid="out")
)

TOLD = [
    (
        "the name of an output is misspelt",
        "with run(few) as job:\n    job.rows('outt')",
        "KeyError: \"the program has no output 'outt' to the driver, write(ToDriver(), uid='outt'); did you mean "
        "'out'?\"",
    ),
    (
        "an epoch each second is written as in Python",
        "run(few, every=1)",
        "NotADuration: every: 1 is no duration: a number has no unit; say '1s' or '1ms'",
    ),
    (
        "an epoch each second is written as a text",
        "run(few, every='1')",
        "NotADuration: every: '1' is no duration: a number has no unit; say '1s' or '1ms'",
    ),
    (
        "files are divided by a column that is not there",
        "payments.select('user', 'cents').write(ToFiles('out', partition_by='usr'), uid='o').check()",
        "InvalidProgram: the program cannot run, 1 problem:\n  - o: partition_by: there is no column 'usr'; did you "
        "mean 'user'?",
    ),
    (
        "options are misspelt",
        "run(few, evry='1s', rows=3)",
        "UnknownOption: there is no option 'evry'; did you mean 'every'?\nthere is no option 'rows'\n"
        f"There are: {', '.join(sorted([*RunOptions.__annotations__, *PARAMETERS]))}\n"
        f"Advanced: {', '.join(sorted(Advanced.__annotations__))}",
    ),
    (
        "a second start has nothing to read",
        "for _ in range(2):\n    run(few).wait()",
        "job job-ID: there was nothing to read: all input had been read by epoch 1-1, from which the job went on; with "
        "available_now=True it looks for what is new, with other checkpoints it begins anew",
    ),
    (
        "a job is started twice on one host",
        "with run(endless) as job:\n    job.savepoint()\n    run(endless)",
        "JobRuns: job job-ID runs (driver process PID); stop it first: recovery stop --savepoint --checkpoints FOLDER; "
        "or start with take_over=True, which ends that driver's run",
    ),
    (
        "rows come too late for their window",
        "with run(late) as job:\n    list(job.rows('out'))\nprint(dict(job.status().late_rows))",
        "{'payments': 0, 'counts': 1}",
    ),
    (
        "nobody waits for the job",
        "script('recovery.run(endless, checkpoints=\"tree\")', folder)",
        "epochcut: the program ended while job job was running, which ended the job too; call wait() or stop() of the "
        "run before, or use it in a with statement; started again, the job goes on from its last complete epoch",
    ),
    (
        "checkpoints are where no folder can be",
        "(folder / 'file').touch()\nrecovery.run(few, checkpoints=folder / 'file' / 'tree')",
        "StoreUnavailable: could not open the store in LocalStore('FOLDER/file/tree'): [Errno 20] Not a directory: "
        "'FOLDER/file/tree'; that is where the job's tree is to be, as option checkpoints says "
        "(checkpoints='FOLDER/file/tree'): a folder that this user may write to, or a URI such as "
        "'s3://bucket/jobs/clicks', which all hosts of the job reach",
    ),
]


@pytest.mark.parametrize(("done", "answered"), [one[1:] for one in TOLD], ids=[one[0] for one in TOLD])
def test_a_mistake_with_a_job_is_answered_with_what_to_do(
    done: str,
    answered: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run: Callable[..., Any] = partial(recovery.run, checkpoints=tmp_path, progress=False)
    names = {**NAMES, "few": few, "endless": endless, "late": late, "run": run, "script": script, "folder": tmp_path}
    said = []
    try:
        exec(done, names)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
    said += [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    said += capsys.readouterr().out.splitlines()
    assert "\n".join(anonymous(line, tmp_path) for line in said if line) == answered


def anonymous(text: str, folder: Path) -> str:
    """Without what is another one in each run."""
    text = text.replace(str(folder), "FOLDER").replace(f"process {os.getpid()}", "process PID")
    return re.sub(r"job-[0-9a-f]{8}", "job-ID", text)
