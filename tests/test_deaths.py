"""What is known of how a process died is told once, with all that could be found out, and explains why a job ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from recovery.decisions.restarts import Cause, Death, Failure, RestartLimit
from recovery.driver.attempts import deaths
from recovery.driver.attempts.deaths import Deaths
from recovery.events import AttemptFailed, WorkerDied
from recovery.restart_strategies import NoRestart
from recovery.schemes.rolling_back import Failures, GiveUpJob
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.partition.last_words import WordsHeard
from snapshot.host.process.worker import DRIVER_LOST
from snapshot.host.protocol.messages import Address, AtWork, Hello
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid

LIMIT = 20.0
HELLO = Hello("w", Address("h", 1), 42, 0, 7)
STACK = "Fatal Python error: Aborted\n\nStack (most recent call first):\n  File ..."


@dataclass
class Codes:
    """A launcher that knows how its processes ended."""

    codes: dict[int, int] = field(default_factory=dict)
    asked: int = 0

    def exit_code(self, launch: int) -> int | None:
        self.asked += 1
        return self.codes.get(launch)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


def words(loop: EventLoop, said: bytes) -> WordsHeard:
    ours, its = socket.socketpair()
    its.setblocking(False)
    ours.sendall(said)
    ours.close()
    return WordsHeard(loop, its)


def told(loop: EventLoop, codes: Codes | None, said: bytes = b"", memory: int = 0) -> Death:
    found: list[Death] = []
    Deaths(loop, codes, found.append).lost(HELLO, Partition(2), "it hung up", memory, words(loop, said))
    assert not found, "not inside the call"
    assert loop.run(lambda: bool(found), LIMIT)
    loop.run_once(0)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("code", "said", "how", "by_itself"),
    [
        (3, "", "ended itself with exit code 3, as os._exit does", True),
        (0, "", "ended itself with exit code 0, as os._exit does", True),
        (DRIVER_LOST, "", "has lost its connection to the driver", False),
        (-6, STACK, "crashed with SIGABRT", True),
        (-11, "", "crashed with SIGSEGV", True),
        (-15, "", "was killed by SIGTERM", False),
        (-9, "", "was killed by SIGKILL (the kernel's out-of-memory killer does that;", False),
        (-63, "", "was killed by signal 63", False),
        (None, STACK, "crashed: Fatal Python error: Aborted", True),
        (None, "", "is gone without a word, as after os._exit or a SIGKILL (", False),
    ],
)
def test_how_a_process_died_follows_from_its_code_and_its_words(
    loop: EventLoop, code: int | None, said: str, how: str, by_itself: bool
) -> None:
    death = told(loop, None if code is None else Codes({7: code}), said.encode())
    assert death.how.startswith(f"its process 42 on h {how}")
    assert (death.by_itself, death.stack, death.at_work) == (by_itself, said, None)


@pytest.mark.parametrize("codes", [None, Codes({7: DRIVER_LOST})], ids=["nobody knows its code", "it has left"])
def test_a_process_that_was_given_up_for_what_came_on_its_connection_is_not_told_to_have_been_killed(
    loop: EventLoop, codes: Codes | None
) -> None:
    found = list[Death]()
    Deaths(loop, codes, found.append).lost(HELLO, Partition(2), "ForgedRecord: turn on tls", 5, None, unusable=True)
    assert loop.run(lambda: bool(found), LIMIT)
    assert found[0].how == (
        "its process 42 on h was given up with its connection to the driver: ForgedRecord: turn on tls"
    )
    assert not found[0].by_itself


def test_a_process_that_crashed_is_told_so_though_its_connection_was_given_up(loop: EventLoop) -> None:
    found = list[Death]()
    Deaths(loop, Codes({7: -11}), found.append).lost(HELLO, Partition(2), "ForgedRecord", 0, None, unusable=True)
    assert loop.run(lambda: bool(found), LIMIT)
    assert found[0].how.endswith("crashed with SIGSEGV")


def test_the_memory_of_a_process_that_was_killed_is_told(loop: EventLoop) -> None:
    assert told(loop, Codes({7: -9}), memory=3 << 30).how.endswith("; it had 3,072 MB when it last said so")
    assert "MB" not in told(loop, Codes({7: -11}), memory=3 << 30).how


def test_a_code_that_comes_late_is_waited_for_and_one_that_never_comes_is_not(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, found = Codes(), list[Death]()
    Deaths(loop, codes, found.append).lost(HELLO, Partition(2), "it hung up", 0, None)
    assert loop.run(lambda: codes.asked > 3, LIMIT)
    assert not found
    codes.codes[7] = 3
    assert loop.run(lambda: bool(found), LIMIT)
    assert found[0].by_itself
    monkeypatch.setattr(deaths, "_PATIENCE", 0.05)
    assert "is gone without a word" in told(loop, Codes()).how


def test_a_job_that_is_not_tried_again_after_a_lost_process_ends_with_how_it_died() -> None:
    failures = Failures(RestartLimit(NoRestart()))
    lost = Failure(Incarnation(Generation(1), Attempt(1)), Cause.PROCESS, "w is lost", Partition(2))
    noted, later = failures.failed(lost, now=1.0, at=1.0, chance=0.5)
    assert isinstance(noted, AttemptFailed)
    assert isinstance(later, GiveUpJob)
    assert later.after > 0, "a better cause may come"
    at_work = AtWork(Uid("count"), "the row 7", 1)
    death = Death(Partition(2), "w", "its process 42 on h crashed with SIGSEGV", True, at_work, STACK)
    died, end = failures.died(death, at=1.1)
    assert isinstance(end, GiveUpJob)
    assert end.after == 0
    assert end.error.reason == (
        "partition 2: its process 42 on h crashed with SIGSEGV; count was at the row 7 (the job is not to be restarted)"
    )
    assert end.error.traceback == STACK
    assert isinstance(died, WorkerDied)
    assert (died.uid, died.at_work, died.stack) == ("count", "the row 7", STACK)
