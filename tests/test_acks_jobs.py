"""Jobs under `Acks` in real processes: a lost partition restarts alone, and no row is lost."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

import recovery
from recovery import Acks, PartitionLost, PartitionReplaced, Run
from recovery.decisions.restarts import Cause
from recovery.schemes.acks import AcksRun
from recovery.schemes.scheme import Broken, Replaced
from snapshot import PAUSE, Collection, Last, Program, Stream, ToDriver, Tumbling
from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.ids import Member, Replica
from statebackend import Count
from statebackend.ids import Partition

KEYS, ROWS = 5, 400
NUMBERS = {"k": str, "n": int}
PLAIN = ToDriver(at_commit=False)


def numbers() -> Stream:
    items: list[Any] = []
    for number in range(ROWS):
        items += [(f"k{number % KEYS}", number), PAUSE(0.01)]
    return Stream.read(Collection(items, NUMBERS), uid="numbers")


def counts() -> Program:
    return numbers().rebalance(uid="spread").key_by("k").count(uid="counts").write(PLAIN, uid="out")


@contextmanager
def running(folder: Path, program: Program, **options: Any) -> Iterator[Run]:
    run = recovery.run(
        program,
        checkpoints=folder / "tree",
        local=folder / "local",
        launcher=recovery.LocalProcesses(),
        job="acks",
        scheme=Acks(timeout="5s"),
        parallelism=2,
        every="150ms",
        advanced={"lost_after": "30s"},
        progress=False,
        **options,
    )
    try:
        yield run
    finally:
        run.cancel()


def processes(run: Run) -> dict[Partition, int]:
    """Return the process of each partition."""
    status = run.status()
    return {
        member.partition: int(status.pids[worker].rpartition(" ")[2])
        for worker, member in status.roles.items()
        if member is not None
    }


def rows_with(run: Run, at: int, fault: Callable[[], object]) -> list[dict[str, Any]]:
    """Return all rows that come out, while a fault happens when so many have."""
    found = []
    for row in run.rows("out"):
        found.append(row)
        if len(found) == at:
            fault()
    return found


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_partition_restarts_alone_and_no_row_is_lost(tmp_path: Path, victim: int) -> None:
    with running(tmp_path, counts()) as run:
        before: dict[Partition, int] = {}

        def kill() -> None:
            before.update(processes(run))
            os.kill(before[Partition(victim)], signal.SIGKILL)

        rows = rows_with(run, ROWS // 4, kill)
        status, events = run.status(), list(run.events)
        best = {f"k{key}": max(row["count"] for row in rows if row["k"] == f"k{key}") for key in range(KEYS)}
        resent = sum(stage.resent_rows for some in status.work.values() for stage in some.values())
        assert min(best.values()) >= ROWS // KEYS, "no row is missing in a count"
        assert status.restarts == 0, "nothing has rolled back"
        assert status.restarted_alone == 1
        assert [event.member for event in events if isinstance(event, PartitionLost)] == [Member(Partition(victim))]
        (back,) = (event for event in events if isinstance(event, PartitionReplaced))
        assert back.member == Member(Partition(victim), Replica(1))
        assert sum(best.values()) - ROWS <= resent + ROWS, "what comes twice was sent or read again"


def test_windows_have_every_row_though_a_partition_restarts(tmp_path: Path) -> None:
    """Rows that are sent again are not late: event time waits for acknowledgements."""
    timed = numbers().with_event_time("n", out_of_order="10ms").key_by("k")
    program = timed.window(Tumbling("50ms")).aggregate(uid="windows", count=Count()).write(PLAIN, uid="out")
    with running(tmp_path, program) as run:
        rows = rows_with(run, 10, lambda: os.kill(processes(run)[Partition(1)], signal.SIGKILL))
        found: dict[tuple[str, Any], int] = {}
        for row in rows:
            key = (row["k"], row["window_start"])
            found[key] = max(found.get(key, 0), row["count"])
        assert len(found) == KEYS * ROWS // 50
        assert min(found.values()) >= 10
        assert run.status().restarts == 0


# --- rows between stages with state ---------------------------------------------------------------------------------


def slowly(once: str, row: Any) -> Any:
    """Take longer for a row than the source; fail in the middle, once, if there is a place to note it."""
    sleep(0.012)
    if once and row.n == ROWS // 2 and not Path(once).exists():
        Path(once).touch()
        raise RuntimeError("it fails once")
    return row


def between_keyed_stages(once: Path | None = None) -> Program:
    """Hand each row from a stage with state over one that keeps nothing to another one with state."""
    first = numbers().key_by("k").aggregate(uid="first", n=Last("n"))
    spread = first.rebalance(uid="spread").map(partial(slowly, str(once or "")), schema=NUMBERS)
    return spread.key_by("k").aggregate(uid="second", n=Last("n")).write(PLAIN, uid="out")


def test_no_row_between_stages_with_state_is_lost_by_kills_and_a_roll_back(tmp_path: Path) -> None:
    def kill(victim: int) -> None:
        os.kill(processes(run)[Partition(victim)], signal.SIGKILL)

    found: set[int] = set()
    with running(tmp_path, between_keyed_stages(tmp_path / "failed")) as run:
        due = deque([(ROWS // 4, 0), (3 * ROWS // 4, 1)])
        for row in run.rows("out"):
            found.add(row["n"])
            if due and len(found) >= due[0][0]:
                kill(due.popleft()[1])
        status = run.status()
    assert found == set(range(ROWS))
    assert status.restarts >= 1, "the function has failed"
    assert status.restarted_alone >= 1


def test_a_drained_job_that_has_lost_a_process_leaves_no_row_out(tmp_path: Path) -> None:
    def lose_and_drain() -> None:
        os.kill(processes(run)[Partition(1)], signal.SIGKILL)
        drains.start()

    with running(tmp_path, between_keyed_stages()) as run:
        drains = Thread(target=run.drain)
        first = {row["n"] for row in rows_with(run, ROWS // 4, lose_and_drain)}
        drains.join()
    assert len(first) < ROWS
    with running(tmp_path, between_keyed_stages()) as run:
        assert first | {row["n"] for row in run.rows("out")} == set(range(ROWS))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "options", "complaint"),
    [
        (numbers().write(ToDriver(), uid="out"), {}, "the sinks out write every row once, and the scheme is Acks"),
        (numbers().write(PLAIN, uid="out"), {"mode": "unaligned"}, "mode is unaligned, and the scheme is Acks"),
        (numbers().write(PLAIN, uid="out"), {"alignment_timeout": "1s"}, "alignment_timeout is set"),
        (numbers().write(PLAIN, uid="out"), {"every": "20s"}, "timeout is 30000 ms: almost all would be sent again"),
    ],
)
def test_what_contradicts_it_is_refused_before_anything_starts(
    tmp_path: Path, program: Program, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ContradictingOptions, match=complaint):
        recovery.run(program, checkpoints=tmp_path / "tree", job="refused", scheme=Acks(), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_control_stream_is_refused_by_the_name_of_its_operator(tmp_path: Path) -> None:
    from tests.jobs.controlled import CONTROLLED
    from tests.jobs.job import Scale

    program = CONTROLLED.program(Scale(100, 1.0, str(tmp_path / "gate")), PLAIN)
    with pytest.raises(ContradictingOptions, match="have a control stream, and the scheme is Acks"):
        recovery.run(program, checkpoints=tmp_path / "tree", job="refused", scheme=Acks())


def test_markers_may_be_of_the_weakest_kind_as_there_are_none(tmp_path: Path) -> None:
    with running(tmp_path, counts(), mode=MarkerMode.AT_LEAST_ONCE) as run:
        assert sum(1 for _ in run.rows("out")) >= ROWS


@pytest.mark.parametrize(
    ("options", "complaint"), [({"timeout": "0s"}, "at least 1ms"), ({"max_pending": 0}, "at least 1 row, or None")]
)
def test_an_option_without_sense_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Acks(**options)


# --- its decisions ---------------------------------------------------------------------------------------------------


def test_a_partition_restarts_as_a_member_that_no_other_was() -> None:
    run, first = AcksRun(2), Member(Partition(1))
    second, third = Member(Partition(1), Replica(1)), Member(Partition(1), Replica(2))
    assert run.lost(first, Cause.PROCESS) == Replaced(second)
    assert run.lost(second, Cause.SILENT) == Replaced(third)
    assert (run.stands_for(second), run.stands_for(third)) == (False, True)


@pytest.mark.parametrize("cause", [Cause.PROGRAM, Cause.UNUSABLE, Cause.FORGED, Cause.RESOURCE])
def test_a_failure_that_its_successor_would_have_rolls_everything_back(cause: Cause) -> None:
    assert AcksRun(2).lost(Member(Partition(0)), cause) == Broken()
