"""Functions of the user that end their process, or try to, at one row: the job does not loop, and says at which."""

from __future__ import annotations

import ast
import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.events import AttemptFailed, WorkerDied
from snapshot import PAUSE, Collection, KeyedProcess, Program, Stream, ToDriver, ToSQLite
from tests.certificates import Authority
from tests.test_running_locally import NUMBERS, PATIENCE, counted, start

ROOT = Path(__file__).parent.parent
ROWS = 40
OUTPUT = pa.schema({"k": pa.string(), "n": pa.int64()})


class Echo(KeyedProcess):
    """Gives every row again, but for what is done about one of them."""

    output = OUTPUT

    def __init__(self, end: Callable[[], object], at: int = 17) -> None:
        self.end, self.at = end, at

    def on_event(self, event: Any, ctx: Any) -> None:
        if event.n == self.at:
            self.end()
        ctx.emit((event.k, event.n))


class EchoLater(Echo):
    """The same, when a timer fires, for which the input has to last."""

    def on_event(self, event: Any, ctx: Any) -> None:
        ctx.emit((event.k, event.n))
        if event.n == self.at:
            ctx.processing_timer(0)

    def on_timer(self, at: int, ctx: Any) -> None:
        self.end()


def numbers(*then: PAUSE) -> Stream:
    rows: list[Any] = [*((f"k{n % 3}", n) for n in range(ROWS)), *then]
    return Stream.read(Collection(rows, NUMBERS, splits=1), uid="numbers")


def echoing(function: KeyedProcess, *then: PAUSE) -> Program:
    return numbers(*then).key_by("k").process(function, uid="echo").write(ToDriver(), uid="out")


def interrupted() -> None:
    raise KeyboardInterrupt


def closed() -> None:
    raise GeneratorExit


def cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("end", "said"),
    [(lambda: sys.exit("enough"), "SystemExit: enough"), (interrupted, "KeyboardInterrupt")],
    ids=["exit", "interrupt"],
)
def test_what_is_no_ordinary_exception_fails_a_function_as_any_other_does(
    tmp_path: Path, end: Callable[[], object], said: str
) -> None:
    run = start(tmp_path, recovery.LocalProcesses(), echoing(Echo(end)), scheme=recovery.Passive(poisoned_after=2))
    with pytest.raises(recovery.JobFailed, match="failed 2 times in a row") as error:
        run.wait(PATIENCE)
    assert f": echo: {said} (" in error.value.reason
    assert "in on_event" in error.value.traceback
    assert "for the key 'k2' and the row Row(k='k2', n=17)" in error.value.traceback
    failed = [event for event in run.events if isinstance(event, AttemptFailed) and event.uid == "echo"]
    assert failed, "the event names the operator"


# --- processes that die in a call


@pytest.mark.timeout(120)
def test_a_row_that_its_sink_can_never_take_ends_the_job_as_a_function_that_always_fails_does(tmp_path: Path) -> None:
    rows = Stream.read(Collection([("a", 1), (None, 2)], pa.schema({"k": pa.string(), "n": pa.int64()})), uid="rows")
    table = ToSQLite(str(tmp_path / "out.db"), "latest", key="k", create=True)
    run = start(tmp_path, recovery.LocalProcesses(), Program.of(rows.write(table, uid="out")), scheme=LIMIT)
    with pytest.raises(
        recovery.JobFailed, match=r"sink out: a row has no 'k'(.|\n)*the program failed 2 times in a row"
    ):
        run.wait(PATIENCE)


def leave() -> None:
    os._exit(3)


def crash() -> None:
    ctypes.string_at(0)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


LIMIT = recovery.Passive(poisoned_after=2, restarts=recovery.FixedDelay(99))


def died(run: recovery.Run) -> list[WorkerDied]:
    return [event for event in run.events if isinstance(event, WorkerDied)]


@pytest.mark.parametrize(
    ("end", "how", "deaths"),
    [
        (leave, "ended itself with exit code 3, as os._exit does", 2),
        (crash, "crashed with SIGSEGV", 2),
        (os.abort, "crashed with SIGABRT", 2),
        (killed, "was killed by SIGKILL (the kernel's out-of-memory killer does that", 3),
    ],
    ids=["exit", "segfault", "abort", "kill"],
)
def test_a_row_that_always_ends_the_process_ends_the_job_and_is_named(
    tmp_path: Path, end: Callable[[], object], how: str, deaths: int
) -> None:
    run = start(tmp_path, recovery.LocalProcesses(), echoing(Echo(end)), scheme=LIMIT)
    with pytest.raises(recovery.JobFailed) as error:
        run.wait(PATIENCE)
    assert len(died(run)) == deaths, "a process that is itself to blame counts as an exception does"
    last = died(run)[-1]
    assert f" on 127.0.0.1 {how}" in error.value.reason
    assert "; echo was at the row {'k': 'k2', 'n': 17} (" in error.value.reason
    assert f"processes of partition {last.partition} have " in error.value.reason
    assert (last.uid, last.at_work) == ("echo", "the row {'k': 'k2', 'n': 17}")
    if how.startswith("crashed"):
        assert "test_functions_that_end.py" in error.value.traceback
        assert "in on_event" in error.value.traceback


def leave_at_17(row: Any) -> bool:
    if row.n == 17:
        leave()
    return True


@pytest.mark.parametrize(
    ("program", "at_work"),
    [
        (counted(numbers().filter(leave_at_17)), ("numbers", "the row {'k': 'k2', 'n': 17}")),
        (echoing(EchoLater(leave), PAUSE(PATIENCE)), ("echo", "the timer in processing time at 0 of the key 'k2'")),
    ],
    ids=["source's chain", "timer"],
)
def test_it_is_known_where_a_process_died_that_was_not_at_a_keyed_row(
    tmp_path: Path, program: Program, at_work: tuple[str, str]
) -> None:
    run = start(tmp_path, recovery.LocalProcesses(), program, scheme=LIMIT)
    with pytest.raises(recovery.JobFailed, match="ended itself with exit code 3"):
        run.wait(PATIENCE)
    assert (died(run)[-1].uid, died(run)[-1].at_work) == at_work


def test_over_encrypted_connections_it_is_known_too(tmp_path: Path) -> None:
    files = Authority(tmp_path / "tls").issue()
    run = start(tmp_path, recovery.LocalProcesses(), echoing(Echo(crash)), scheme=LIMIT, tls=files)
    with pytest.raises(recovery.JobFailed, match=r"crashed with SIGSEGV; echo was at the row {'k': 'k2', 'n': 17} "):
        run.wait(PATIENCE)


class EchoOnce(Echo):
    """Ends in each of these ways, once, at a row of its own."""

    def __init__(self, folder: Path, ends: Sequence[Callable[[], object]]) -> None:
        self.folder, self.ends = folder, ends

    def on_event(self, event: Any, ctx: Any) -> None:
        at, rest = divmod(event.n, 5)
        mark = self.folder / str(at)
        if not rest and at < len(self.ends) and not mark.exists():
            mark.touch()
            self.ends[at]()
        ctx.emit((event.k, event.n))


def test_what_ends_a_process_only_once_costs_no_row_and_gives_none_twice(tmp_path: Path) -> None:
    ends = (sys.exit, leave, interrupted, crash, closed, os.abort, killed, cancelled)
    scheme = recovery.Passive(poisoned_after=len(ends), restarts=recovery.FixedDelay(99))
    run = start(tmp_path, recovery.LocalProcesses(), echoing(EchoOnce(tmp_path, ends)), scheme=scheme)
    run.wait(PATIENCE)
    assert sorted((row["k"], row["n"]) for row in run.rows("out")) == sorted((f"k{n % 3}", n) for n in range(ROWS))
    assert all((tmp_path / str(at)).exists() for at in range(len(ends)))
    assert len(died(run)) == 4


class KilledInTheMiddle(Echo):
    """Its process is killed so many times, each time when it has come further."""

    calls = 0  # of this process

    def __init__(self, folder: Path, kills: int) -> None:
        self.folder, self.kills = folder, kills

    def on_event(self, event: Any, ctx: Any) -> None:
        KilledInTheMiddle.calls += 1
        killed_before = len(list(self.folder.glob("killed-*")))
        if killed_before < self.kills and KilledInTheMiddle.calls == 20 + killed_before:
            (self.folder / f"killed-{killed_before}").touch()
            killed()
        ctx.emit((event.k, event.n))


def test_processes_that_are_killed_at_different_rows_that_look_alike_do_not_end_the_job(tmp_path: Path) -> None:
    alike = Stream.read(Collection([("k", 1)] * ROWS, NUMBERS, splits=1), uid="alike").key_by("k")
    program = alike.process(KilledInTheMiddle(tmp_path, 6), uid="echo").write(ToDriver(), uid="out")
    scheme = recovery.Passive(restarts=recovery.FixedDelay(99))
    run = start(tmp_path, recovery.LocalProcesses(), program, every="1h", scheme=scheme, parallelism=1)
    run.wait(PATIENCE)
    assert len(list(run.rows("out"))) == ROWS
    assert [event.at_work for event in died(run)] == [""] * 2 + ["the row {'k': 'k', 'n': 1}"] * 4


class KilledWhileItOpens(Echo):
    """Its process is killed so many times in a long `open`, as by somebody who knows nothing of it."""

    def __init__(self, folder: Path, kills: int) -> None:
        self.folder, self.kills = folder, kills

    def open(self, ctx: Any) -> None:
        killed_before = len(list(self.folder.glob("killed-*")))
        if killed_before < self.kills:
            (self.folder / f"killed-{killed_before}").touch()
            killed()

    def on_event(self, event: Any, ctx: Any) -> None:
        ctx.emit((event.k, event.n))


def test_processes_that_are_killed_while_a_function_is_opened_end_the_job_only_when_restarts_say_so(
    tmp_path: Path,
) -> None:
    scheme = recovery.Passive(restarts=recovery.FixedDelay(6))
    (tmp_path / "one").mkdir()
    program = echoing(KilledWhileItOpens(tmp_path / "one", 6))
    run = start(tmp_path / "one", recovery.LocalProcesses(), program, scheme=scheme, parallelism=1)
    run.wait(PATIENCE)
    assert len(list(run.rows("out"))) == ROWS
    assert [event.at_work for event in died(run)] == [""] * 2 + ["its opening"] * 4
    (tmp_path / "more").mkdir()
    program = echoing(KilledWhileItOpens(tmp_path / "more", 7))
    run = start(tmp_path / "more", recovery.LocalProcesses(), program, scheme=scheme, parallelism=1)
    with pytest.raises(recovery.JobFailed, match="it was restarted 6 times, as often as it may be"):
        run.wait(PATIENCE)
    assert len(died(run)) == 7


def notes_of(tree: ast.AST) -> list[tuple[int, str]]:
    """Each handler that says of an error where it came from: its line, and what it catches."""
    return [
        (handler.lineno, ast.unparse(handler.type) if handler.type is not None else "")
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and "add_note" in map(_called, ast.walk(handler))
    ]


def _called(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def test_whoever_says_for_which_row_a_function_failed_says_it_of_an_exit_too() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": caught
        for folder in ("operators", "host", "program")
        for path in (ROOT / "snapshot" / folder).rglob("*.py")
        for line, caught in notes_of(ast.parse(path.read_text()))
    }
    assert len(found) >= 10
    assert {place: caught for place, caught in found.items() if caught != "BaseException"} == {}
