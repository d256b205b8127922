"""Jobs that really run, as processes on this machine: killed, failed, ended, started again, and exact."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.command.status import in_words
from recovery.driver.settings.options import in_their_places
from recovery.events import AnyEvent, BadRows, EpochCompleted
from snapshot import PAUSE, Collection, Files, InvalidProgram, Program, Stream, ToDriver
from snapshot.epochs.trace import replay
from snapshot.operators.row_class import Row
from tests.program_parts import Nowhere

NUMBERS = pa.schema({"k": pa.string(), "n": pa.int64()})
KEYS = 5
ROWS = 60
PATIENCE = 120.0


def program() -> Program:
    rows: list[Any] = []
    for number in range(ROWS):
        rows += [(f"k{number % KEYS}", 1), PAUSE(0.04)]
    return counted(Stream.read(Collection(rows, NUMBERS, splits=1), uid="numbers"))


def counted(numbers: Stream) -> Program:
    return numbers.key_by("k").sum("n", uid="count").write(ToDriver(), uid="out")


def start(folder: Path, launcher: recovery.LocalProcesses, of: Program, **options: Any) -> recovery.Run:
    chosen: dict[str, Any] = {"every": "100ms", "parallelism": 2, "progress": False, **options}
    return recovery.run(
        of, checkpoints=folder / "tree", launcher=launcher, local=folder / "local", **in_their_places(chosen)
    )


def when_complete(run: recovery.Run, count: int, act: Any) -> None:
    """Do something once so many epochs are complete."""
    done: list[AnyEvent] = []

    def heard(event: AnyEvent) -> None:
        if isinstance(event, EpochCompleted):
            done.append(event)
            if len(done) == count:
                act()

    run._driver.events.listen(heard)


def check_exact(run: recovery.Run) -> None:
    counts: dict[object, list[int]] = {}
    for row in run.rows("out"):
        counts.setdefault(row["k"], []).append(int(str(row["n"])))
    assert counts == {f"k{key}": list(range(1, ROWS // KEYS + 1)) for key in range(KEYS)}


def test_targets_that_cannot_take_the_rows_are_named_before_anything_starts(tmp_path: Path) -> None:
    numbers = Stream.read(Collection([("a", 1)], NUMBERS), uid="numbers")
    broken = Nowhere(amiss=("there is no table counts", "its server refuses the password"))
    with pytest.raises(InvalidProgram) as caught:
        start(tmp_path, recovery.LocalProcesses(), numbers.write(broken, uid="out"))
    assert [str(problem) for problem in caught.value.problems] == [f"out: {sentence}" for sentence in broken.amiss]
    assert not list((tmp_path / "local").glob("*"))


def test_a_job_whose_process_is_killed_gives_every_row_once_and_its_trace_replays(tmp_path: Path) -> None:
    launcher, trace = recovery.LocalProcesses(), tmp_path / "trace.jsonl"
    run = start(tmp_path, launcher, program(), trace=trace)
    when_complete(run, 3, lambda: os.kill(launcher.pids[1], signal.SIGKILL))
    run.wait(PATIENCE)
    check_exact(run)
    assert run.status().restarts >= 1
    with trace.open() as lines:
        assert replay(lines) > 10


def refuse_seven(row: Row) -> bool:
    if row.n == 7:
        raise ValueError("seven is refused")
    return True


def test_a_line_that_never_fits_its_schema_ends_the_job_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("k,n\na,1\nb,5;0\n")
    orders = Stream.read(Files(str(tmp_path / "orders.csv"), "csv", {"k": str, "n": int}), uid="orders")
    run = start(tmp_path, recovery.LocalProcesses(), counted(orders), scheme=recovery.Passive(poisoned_after=2))
    with pytest.raises(recovery.JobFailed, match=r"(?s)failed 2 times in a row.*orders\.csv, line 3: .*b,5;0") as error:
        run.wait(PATIENCE)
    assert "failed 2 times in a row" in str(error.value)


def test_lines_that_do_not_fit_are_left_out_if_that_is_said_and_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, lines in {"a": "a,1\nb,5;0\na,2\n", "b": "a,3\n\nb\nb,1\nb,x\n"}.items():
        (tmp_path / f"{name}.csv").write_text(f"k,n\n{lines}")
    orders = Stream.read(Files(f"{tmp_path}/*.csv", "csv", {"k": str, "n": int}, on_bad="skip"), uid="orders")
    run = start(tmp_path, recovery.LocalProcesses(), counted(orders))
    run.wait(PATIENCE)
    assert max(row["n"] for row in run.rows("out") if row["k"] == "a") == 6
    status = run.status()
    assert status.bad_rows == {"orders": 3, "count": 0}
    assert "orders has left out 3 rows that do not fit" in in_words(status, 0.0)
    said = [event for event in run.events if isinstance(event, BadRows)]
    assert sum(event.rows for event in said) == 3
    [first, *_] = [record for record in caplog.records if "left out in this attempt" in record.getMessage()]
    assert (first.name, first.levelname) == ("epochcut.job", "WARNING")
    assert re.search(r"source orders, file [ab]\.csv, line \d: the line does not fit", first.getMessage())


def test_a_record_that_always_fails_ends_the_job_with_the_users_traceback(tmp_path: Path) -> None:
    numbers = Stream.read(Collection([("a", 7)], NUMBERS), uid="numbers").filter(refuse_seven)
    run = start(tmp_path, recovery.LocalProcesses(), counted(numbers), scheme=recovery.Passive(poisoned_after=2))
    with pytest.raises(recovery.JobFailed, match="seven is refused") as error:
        run.wait(PATIENCE)
    assert "in refuse_seven" in error.value.traceback
    assert "test_running_locally.py" in error.value.traceback


DRIVER = """
import sys
from pathlib import Path
import recovery
from tests.test_running_locally import program, start
start(Path(sys.argv[1]), recovery.LocalProcesses(), program()).wait()
"""


def test_a_driver_that_is_killed_and_started_again_goes_on(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=Path(__file__).parent.parent)
    try:
        wait_for_epoch(tmp_path / "tree" / "epochs", driver)
    finally:
        driver.kill()
        driver.wait()
    run = start(tmp_path, recovery.LocalProcesses(), program())
    run.wait(PATIENCE)
    assert run.status().generation == 2
    check_newest(run)


def check_newest(run: recovery.Run) -> None:
    """The rows before went to a driver that is gone."""
    newest: dict[object, int] = {}
    for row in run.rows("out"):
        newest[row["k"]] = max(newest.get(row["k"], 0), int(str(row["n"])))
    assert newest == {f"k{key}": ROWS // KEYS for key in range(KEYS)}


@pytest.mark.parametrize(
    ("sent", "name", "end", "code"),
    [
        (signal.SIGINT, "Ctrl-C", "KeyboardInterrupt", -signal.SIGINT),
        (signal.SIGTERM, "SIGTERM", "15 s without that epoch (option interrupt_timeout)", 143),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_ctrl_c_and_sigterm_stop_a_job_behind_one_more_epoch(
    tmp_path: Path, sent: signal.Signals, name: str, end: str, code: int
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_epoch(tmp_path / "tree" / "epochs", driver)
        if sent is signal.SIGINT:
            os.killpg(driver.pid, sent)
        else:
            for process in (driver.pid, *descendants(driver.pid)):  # as systemd does
                os.kill(process, sent)
        _, said = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert f"stopping job after one more epoch; {name} again cancels it" in said
    assert said.rstrip().endswith(end), said
    assert driver.returncode == code
    events = [json.loads(line) for line in (tmp_path / "local" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "Stopped"
    assert not [one for one in events if one["event"] in ("AttemptFailed", "WorkerLost")]
    epochs = {
        kind: [one["epoch"] for one in events if one["event"] == kind] for kind in ("EpochTriggered", "EpochCommitted")
    }
    assert epochs["EpochCommitted"][-1] in epochs["EpochTriggered"][-3:]


CANNOT_STOP = """
import sys
from pathlib import Path
import recovery
from tests.test_running_locally import program, start
start(Path(sys.argv[1]), recovery.LocalProcesses(), program(), interrupt_timeout="5s").wait()
"""


@pytest.mark.parametrize(
    ("sent", "name", "code"),
    [(signal.SIGINT, "Ctrl-C", -signal.SIGINT), (signal.SIGTERM, "SIGTERM", 143)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_job_that_can_complete_no_epoch_is_cancelled_soon_after_a_signal_and_loses_nothing(
    tmp_path: Path, sent: signal.Signals, name: str, code: int
) -> None:
    epochs, aside = tmp_path / "tree" / "epochs", tmp_path / "aside"
    driver = subprocess.Popen(
        [sys.executable, "-c", CANNOT_STOP, str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_epoch(epochs, driver)
        epochs.rename(aside)
        epochs.write_text("in the way")
        driver.send_signal(sent)
        _, said = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert driver.returncode == code
    assert (
        f"stopping job after one more epoch; {name} again cancels it, as do 5 s without that epoch (option "
        "interrupt_timeout)"
    ) in said
    (cancelling,) = (line for line in said.splitlines() if line.startswith("cancelling job"))
    assert cancelling.startswith("cancelling job: no epoch could be completed in 5 s; epoch ")
    assert "Not a directory" in cancelling
    assert "nothing is lost: its last complete epoch stands" in cancelling
    epochs.unlink()
    aside.rename(epochs)
    run = start(tmp_path, recovery.LocalProcesses(), program())
    run.wait(PATIENCE)
    check_newest(run)


def descendants(process: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    assert len(found) >= 4, "the driver, the process that forks, and two that it has forked"
    return found[1:]


def wait_for_epoch(folder: Path, driver: subprocess.Popen[Any]) -> None:
    """Return when the driver has written a manifest, which is looked for until then; there is nothing to wait on."""
    while not list(folder.glob("3-*/manifest.json")):
        with pytest.raises(subprocess.TimeoutExpired):
            driver.wait(0.05)


def test_a_job_that_was_stopped_with_a_savepoint_goes_on_from_it_at_another_parallelism(tmp_path: Path) -> None:
    first = start(tmp_path, recovery.LocalProcesses(), program())
    first.savepoint(PATIENCE)
    savepoint = first.stop(savepoint=True, timeout=PATIENCE)
    before = [(row["k"], int(str(row["n"]))) for row in first.rows("out")]
    second = start(tmp_path, recovery.LocalProcesses(), program(), parallelism=3)
    second.wait(PATIENCE)
    after = [(row["k"], int(str(row["n"]))) for row in second.rows("out")]
    assert savepoint is not None
    assert sorted(before + after) == sorted((f"k{key}", n + 1) for key in range(KEYS) for n in range(ROWS // KEYS))
    assert before
    assert after


ENDS_EARLY = """
import sys
from pathlib import Path
import recovery
from tests.test_running_locally import program, start
run = start(Path(sys.argv[1]), recovery.LocalProcesses(), program())
"""


def test_a_program_that_ends_without_waiting_is_told_that_its_job_ended_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS_EARLY, str(tmp_path)]
    ran = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=PATIENCE)
    assert "the program ended while job job was running" in ran.stderr


def failed_at_seven(tmp_path: Path) -> recovery.Run:
    numbers = Stream.read(Collection([("a", 7)], NUMBERS), uid="numbers").filter(refuse_seven)
    run = start(tmp_path, recovery.LocalProcesses(), counted(numbers), scheme=recovery.Passive(poisoned_after=1))
    assert run._driver.over.wait(PATIENCE)
    return run


def test_a_job_that_failed_raises_at_the_end_of_its_block(tmp_path: Path) -> None:
    with pytest.raises(recovery.JobFailed, match="seven is refused") as error, failed_at_seven(tmp_path):
        pass
    assert "in refuse_seven" in error.value.traceback


def test_a_failure_that_was_raised_in_the_block_is_not_raised_again(tmp_path: Path) -> None:
    with failed_at_seven(tmp_path) as run, pytest.raises(recovery.JobFailed):
        run.wait(PATIENCE)


def test_an_exception_of_the_block_comes_out_of_it_though_the_job_failed_as_well(tmp_path: Path) -> None:
    with pytest.raises(KeyError) as error, failed_at_seven(tmp_path):
        raise KeyError
    assert "job job had failed before" in error.value.__notes__[0]
    assert "seven is refused" in error.value.__notes__[0]


def test_rows_of_a_sink_that_does_not_exist_are_refused_with_the_name_that_was_meant(tmp_path: Path) -> None:
    with start(tmp_path, recovery.LocalProcesses(), program()) as run, pytest.raises(KeyError, match="mean 'out'"):
        run.rows("outt")


def test_a_second_start_that_has_nothing_to_read_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    few = counted(Stream.read(Collection([("a", 1)], NUMBERS), uid="numbers"))
    for _ in range(2):
        assert not caplog.records
        run = start(tmp_path, recovery.LocalProcesses(), few)
        run.wait(PATIENCE)
    assert "there was nothing to read: all input had been read by epoch" in caplog.text
