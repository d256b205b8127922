"""The `recovery` command against jobs that really run: what it does, prints and answers, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import recovery
from recovery.command.exits import MEANINGS, Exit
from recovery.command.main import main
from recovery.driver.tree import address
from recovery.events import EpochCommitted, EpochCompleted
from snapshot.host.protocol.messages import Address
from snapshot.ids import JobId
from tests.endless_job import PATIENCE, start, wait_for, wait_until_all_run
from tests.jobs.driver import Settings
from tests.jobs.running_job import RunningJob

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, without what differs from run to run, and how it ended."""

    code: int
    out: str
    err: str
    raw: str = field(default="", compare=False)
    """As it was printed on the standard output."""


def plainly(text: str) -> str:
    for pattern, name in (
        (r"process \d+\b", "process PID"),
        (r"\b[0-9a-f]{16}\b", "NAME"),
        (r"\b\d+ ms after epoch \d+-\d+", "N ms after epoch E"),
        (r"endless-[0-9a-f]{8}", "JOB"),
        (r"(?<![:\w])\d+-1\b", "E"),
    ):
        text = re.sub(pattern, name, text)
    return text


class Terminal:
    """Runs the command in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["--job-folder", str(folder)]
        self._capsys = capsys

    def run(self, *arguments: str) -> Said:
        return self.run_alone(*arguments, *self._where)

    def run_alone(self, *arguments: str) -> Said:
        self._capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        printed = self._capsys.readouterr()
        return Said(code, plainly(printed.out), plainly(printed.err), printed.out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the files of a job with two partitions and a standby."""
    folder = tmp_path_factory.mktemp("job")
    run = start(folder, lost_after="5s")
    with recovery.attach(job_folder=folder / "local") as attached:
        wait_until_all_run(attached)
    yield folder / "local"
    run.cancel()


@pytest.fixture
def terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(folder, capsys)


def wait_until_recovered(folder: Path) -> None:
    with recovery.attach(job_folder=folder) as attached:
        wait_until_all_run(attached)


# --- with a job of its own each, before that of the others runs


def test_status_is_said_again_and_again_until_the_job_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, committed = start(tmp_path), threading.Semaphore(0)
    run.listen(lambda event: committed.release() if isinstance(event, EpochCommitted) else None)
    assert committed.acquire(timeout=PATIENCE)

    def stop_later() -> None:
        for _ in range(6):
            committed.acquire(timeout=PATIENCE)
        run.stop()

    stopping = threading.Thread(target=stop_later)
    stopping.start()
    assert main(["status", "--job-folder", str(tmp_path / "local"), "--watch", "0.1"]) == Exit.DONE
    stopping.join()
    assert capsys.readouterr().out.count("newest complete epoch: ") >= 2


@pytest.mark.timeout(300)
def test_a_driver_is_killed_and_its_job_awaited_and_another_user_of_its_folder_hears_that_it_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(tmp_path / "local", capsys)
    with RunningJob(Settings(folder=str(tmp_path), job="sequences", rows=8_000, every="150ms")) as job:
        job.start()
        job.wait_for_kind("EpochCommitted")
        said = terminal.run("inject", "kill", "--target", "driver", "--json")
        assert said.code == Exit.DONE
        assert json.loads(said.out)["worker"] is None
        assert job.await_end() == -signal.SIGKILL
        gone = terminal.run("status")
        assert gone.code == Exit.NOT_RUNNING
        assert "is gone; there is no such process any more" in gone.err
        job.start()
        job.wait_for_kind("EpochCommitted")
        hung = terminal.run("inject", "stop", "--target", "driver", "--for", "0.3s")
        assert hung.out.startswith("stop driver for 300 ms: process PID (the driver), ")
        job.wait_for_kind("EpochCommitted")
        assert job.finish().exact


@pytest.mark.timeout(120)
def test_a_job_that_is_over_while_a_moment_is_awaited_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(tmp_path, standbys=0)
    command = subprocess.Popen(
        [sys.executable, "-m", "recovery", "inject", "kill", "--target", "worker:0", "--at", "epoch:999999",
         "--job-folder", str(tmp_path / "local")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    something = threading.Event()
    run.listen(lambda _: something.set())
    serving = run._driver._serving
    assert serving is not None
    while not serving.commands._following and command.poll() is None:
        something.clear()
        assert something.wait(PATIENCE)
    run.cancel()
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (Exit.ENDED, ""), err
    assert "has ended: the job is over" in err
    assert Terminal(tmp_path / "local", capsys).run("status").code == Exit.NOT_RUNNING


# --- what it does


@pytest.mark.timeout(120)
def test_status_tells_how_the_job_stands(terminal: Terminal) -> None:
    said = terminal.run("status")
    assert said.code == Exit.DONE
    lines = said.out.splitlines()
    assert re.fullmatch(r"JOB is running, Passive with 2 partitions, after \d+ rollbacks? in generation 1", lines[0])
    assert re.fullmatch(r"newest complete epoch: E, [\d.]+ s old, took \d+ ms; all up to E committed", lines[1])
    processes = [re.sub(r", \d+ MB", "", line) for line in lines if "process" in line]
    assert processes == [
        "partition 0: 127.0.0.1, process PID (NAME)",
        "partition 1: 127.0.0.1, process PID (NAME)",
        "standing by: 127.0.0.1, process PID (NAME)",
    ]
    status = json.loads(terminal.run("status", "--json").raw)
    assert status["state"] == "running"
    assert sorted(status["roles"].values(), key=str) == ["0.0", "1.0", None]


def test_a_watch_that_would_never_pause_is_refused(terminal: Terminal) -> None:
    assert terminal.run("status", "--watch", "0").code == Exit.USAGE


@pytest.mark.timeout(120)
def test_a_worker_is_killed_so_long_after_the_next_epoch(terminal: Terminal, folder: Path) -> None:
    said = terminal.run("inject", "kill", "--target", "worker:1", "--at", "epoch:next+0.03s")
    assert said == Said(Exit.DONE, "kill worker:1: process PID (NAME), N ms after epoch E was complete\n", "")
    wait_until_recovered(folder)


@pytest.mark.timeout(120)
def test_the_answer_as_json_says_who_it_was_and_how_far_from_the_last_epoch(terminal: Terminal, folder: Path) -> None:
    said = terminal.run("inject", "stop", "--target", "random", "--seed", "3", "--for", "100ms", "--json")
    assert said.code == Exit.DONE
    done = json.loads(said.out)
    assert done["order"]["kind"] == "stop"
    assert done["order"]["lasting"] == 100
    assert done["since_complete_ms"] >= 0
    wait_until_recovered(folder)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "did"),
    [
        (("cut", "--target", "link:0-1", "--for", "300ms"), "cut link:0-1 for 300 ms"),
        (("cut", "--target", "worker:1-driver", "--mid-frame", "--at", "+10ms"), "break link:1-driver"),
        (("delay", "--target", "link:1-0", "--for", "0.2s", "--delay", "20ms"), "delay link:1-0 by 20 ms for 200 ms"),
        (("stop", "--target", "standby:0", "--for", "0.2s"), "stop standby:0 for 200 ms"),
    ],
)
def test_connections_and_processes_have_their_faults(
    terminal: Terminal, folder: Path, arguments: tuple[str, ...], did: str
) -> None:
    said = terminal.run("inject", *arguments)
    assert said.err == ""
    assert said.out == f"{did}: process PID (NAME), N ms after epoch E was complete\n"
    wait_until_recovered(folder)


@pytest.mark.timeout(180)
def test_faults_at_random_are_reported_kind_by_kind(terminal: Terminal, folder: Path) -> None:
    arguments = ("--kinds", "kill,break", "--count", "3", "--every", "0.1s..0.6s", "--seed", "2", "--who", "workers")
    said = terminal.run("inject", "random", *arguments)
    assert said.code == Exit.DONE
    lines = said.out.splitlines()
    assert all(re.match(r" +\d+\.\d\d s  (kill|break) worker:[01]: ", line) for line in lines[:3])
    assert lines[3].split() == [
        "fault",
        "done",
        "declined",
        "recovered",
        "output",
        "back,",
        "ms",
        "caught",
        "up,",
        "ms",
    ]
    assert sum(int(line.split()[1]) + int(line.split()[2]) for line in lines[5:]) == 3
    wait_until_recovered(folder)
    report = json.loads(terminal.run("inject", "random", *arguments, "--json").out)
    assert report["seed"] == 2
    assert [entry["order"]["kind"] for entry in report["faults"]] == [line.split()[2] for line in lines[:3]]
    wait_until_recovered(folder)


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_command_and_not_the_job(folder: Path) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "recovery", "inject", "random", "--count", "9", "--every", "50ms", "--kinds", "delay",
         "--for", "1ms", "--delay", "1ms", "--job-folder", str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert waiting.stdout is not None
    first = waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == Exit.INTERRUPTED, (first, out, err)
    assert err == "recovery: interrupted\n"
    assert "delay" in out.splitlines()[-1]
    with recovery.attach(job_folder=folder) as attached:
        wait_for(attached, EpochCompleted)


# --- wrong use


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("kill", "--target", "worker:7"), 1, "there is no partition 7; the job has partitions 0 to 1"),
        (("kill", "--target", "standby:5"), 1, "there is no standby 5: 1 stand by, counted from 0"),
        (("kill", "--target", "executor:1"), 1, "the process is not in a Spark executor of its own"),
        (("kill", "--target", "worker:0", "--at", "epoch:1"), 1, "epoch 1 is over already: epoch "),
        (("kill", "--target", "everybody"), 2, "'everybody' is no target; write worker:2, replica:2.1, primary:2"),
        (("kill", "--target", "link:0-0"), 2, "'link:0-0' is no target"),
        (("kill", "--target", "link:0-1"), 2, "link:0-1 is a connection, which cannot be told to kill; cut it"),
        (("kill", "--target", "worker:0", "--at", "soon"), 2, "'soon' is no moment; write now, +3s, epoch:17"),
        (("kill", "--target", "worker:0", "--at", "+3 parsecs"), 2, "'+3 parsecs' is no moment: '3 parsecs' is no dur"),
        (("stop", "--target", "worker:0"), 2, "stop needs a time to last (--for)"),
        (("stop", "--target", "worker:0", "--for", "long"), 2, "'long' is no duration; write '250ms'"),
        (("stop", "--target", "worker:0", "--for", "0s"), 2, "stop for no time at all is nothing"),
        (("cut", "--target", "driver", "--for", "1s"), 2, "cut is for a worker, a standby or a link, not for driver"),
        (("cut", "--target", "link:0-1", "--for", "1s", "--mid-frame"), 2, "break is over at once, and has no time"),
        (("delay", "--target", "link:0-1", "--for", "1s"), 2, "delay needs the delay (--delay)"),
        (("random", "--kinds", "kill,burn"), 2, "'burn' is not a valid Kind"),
        (("random", "--kinds", "cut", "--who", "driver"), 2, "cut happens to none of these groups"),
        (("random", "--every", "4s..1s"), 2, "a span from 4000 to 1000 ms is none"),
        (("random", "--count", "0"), 2, "0 faults are none"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_a_code(
    terminal: Terminal, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    said = terminal.run("inject", *arguments)
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith("recovery: ")
    assert sentence in said.err
    assert said.err.count("\n") == 1


@pytest.mark.timeout(120)
def test_which_job_has_to_be_said_and_it_has_to_run(terminal: Terminal, folder: Path, tmp_path: Path) -> None:
    tree, nowhere = folder.parent / "tree", tmp_path / "nothing"
    for arguments, code, sentence in (
        ((), Exit.USAGE, "which job? give --checkpoints, or --job-folder"),
        (("--job-folder", str(nowhere)), Exit.NOT_RUNNING, "does not run on this host: no driver has left"),
        (("--checkpoints", str(nowhere)), Exit.DECLINED, "there is no such folder"),
        (("--checkpoints", str(tree)), Exit.NOT_RUNNING, "if it was started with another folder"),
        (("--checkpoints", "gopher://x/y"), Exit.DECLINED, "the store behind gopher:// is not known"),
    ):
        said = terminal.run_alone("status", *arguments)
        assert (said.code, said.out) == (code, ""), said
        assert sentence in said.err
        assert said.err.count("\n") == 1


@pytest.mark.timeout(120)
def test_a_wrong_secret_is_not_allowed(terminal: Terminal, folder: Path) -> None:
    right = address.read(folder)
    try:
        address.leave(folder, address.Reach(JobId("other"), "/data/tree", right.address, os.getpid(), b"w" * 32))
        said = terminal.run("status")
    finally:
        address.leave(folder, right)
    assert said.code == Exit.NOT_ALLOWED
    assert "the process that listens there is not the driver that wrote driver.json" in said.err


def test_a_file_that_is_not_closed_to_others_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address.leave(tmp_path, address.Reach(JobId("job"), "/data/tree", Address("127.0.0.1", 9), os.getpid(), b"w" * 32))
    (tmp_path / address.FILE).chmod(0o644)
    said = Terminal(tmp_path, capsys).run("status")
    assert said.code == Exit.NOT_ALLOWED
    assert "is not ours alone" in said.err


FAULTS = ("kill", "stop", "cut", "delay", "random")


@pytest.mark.parametrize("verb", [(), ("status",), ("inject",), *(("inject", fault) for fault in FAULTS)])
def test_help_has_an_example_for_each_verb(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*verb, "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    if verb:
        assert f"$ recovery {' '.join(verb)} " in said
        assert "--checkpoints /data/clicks" in said
    else:
        assert all(meaning in said for meaning in MEANINGS.values())


def test_nothing_to_do_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("inject",), ("unheard-of",), ("inject", "kill")):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == Exit.USAGE
        assert "usage: recovery" in capsys.readouterr().err
