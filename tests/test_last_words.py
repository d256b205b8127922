"""What a process says as it dies: the last call and the crash are heard, whatever came before, and nothing else is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from snapshot.host.net.event_loop import EventLoop
from snapshot.host.partition import last_words
from snapshot.host.partition.last_words import LastWords, Notes, WordsHeard
from snapshot.host.protocol.messages import AtWork
from snapshot.operators.rows import Rows
from statebackend.ids import Uid

LIMIT = 20.0
COUNT = Uid("count")
CRASH = 'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "a.py", line 7 in on_event\n'


class Line:
    """A process and its driver, in one loop."""

    def __init__(self) -> None:
        ours, self.its = socket.socketpair()
        ours.setblocking(False)
        self.its.setblocking(False)
        self.loop = EventLoop()
        self.heard = WordsHeard(self.loop, self.its)
        self.sock = ours
        self.words = LastWords()
        self.words.connected(ours)

    def die(self) -> WordsHeard:
        self.words.close()
        assert self.loop.run(lambda: self.heard.over, LIMIT)
        return self.heard


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.words.close()
    line.heard.close()
    line.loop.close()


def rows(*numbers: int) -> Rows:
    return Rows(pa.record_batch({"n": pa.array(numbers, pa.int64())}))


def test_the_row_is_heard_from_which_the_process_did_not_come_back(line: Line) -> None:
    notes = Notes(COUNT, line.words)
    given = notes.each(rows(1, 2, 1, 3))
    assert [next(given).batch.column("n")[0].as_py() for _ in range(3)] == [1, 2, 1]
    heard = line.die()
    assert heard.at_work == AtWork(COUNT, "the row {'n': 1}", 2)
    assert heard.stack == ""


def test_a_process_that_came_back_was_at_nothing(line: Line) -> None:
    notes = Notes(COUNT, line.words)
    assert len(list(notes.each(rows(1, 2)))) == 2
    with pytest.raises(ValueError, match="no"), notes.during("its opening"):
        raise ValueError("no")
    assert line.die().at_work is None


def test_what_python_says_of_a_crash_comes_after_the_call_and_without_what_is_of_no_use(line: Line) -> None:
    line.words.say(AtWork(COUNT, "the row 7", 1))
    line.sock.sendall(f"{CRASH}\nExtension modules: numpy.core (total: 1)\n".encode())
    heard = line.die()
    assert heard.at_work == AtWork(COUNT, "the row 7", 1)
    assert heard.stack == CRASH.strip()


def test_a_process_that_is_killed_while_it_says_something_was_at_nothing_that_is_known(line: Line) -> None:
    line.words.say(AtWork(COUNT, "the row 7", 1))
    line.sock.sendall(b'{"uid": "count", "wh')
    assert line.die().at_work is None


@pytest.mark.parametrize("said", [[], {"uid": 3}, {"uid": "count", "what": "x", "nth": "many"}])
def test_what_makes_no_sense_is_no_call(line: Line, said: object) -> None:
    line.sock.sendall(json.dumps(said).encode() + b"\n")
    assert line.die().at_work is None


def test_what_is_nested_too_deeply_is_no_call(line: Line) -> None:
    line.sock.sendall(b'{"uid":' * 5_000 + b"\n")
    assert line.die().at_work is None


def test_of_a_long_life_the_end_is_kept(line: Line) -> None:
    for number in range(5_000):
        line.words.say(AtWork(COUNT, f"the row {number} " + "x" * 100, 1))
        line.loop.run_once(0)
    heard = line.die()
    assert heard.at_work is not None
    assert heard.at_work.what.startswith("the row 4999 ")
    assert len(heard._said) <= 4 * last_words._KEPT


def test_a_driver_that_does_not_read_is_waited_for_and_then_left(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "_PATIENCE", 0.05)
    for _ in range(100_000):
        line.words.say(AtWork(COUNT, "x" * 200, 1))
    assert line.words._sock is None
    assert line.loop.run(lambda: line.heard.over, LIMIT)


def test_a_batch_stays_whole_where_a_function_is_called_for_batches(line: Line) -> None:
    (given,) = Notes(COUNT, line.words, batches=True).each(rows(4, 2))
    assert len(given) == 2
    left = Notes(COUNT, line.words, batches=True).each(rows(4, 2))
    next(left)
    heard = line.die()
    assert heard.at_work == AtWork(COUNT, "a batch of 2 rows, the first of which is {'n': 4}", 1)


def test_where_no_row_is_named_no_two_calls_are_the_same(line: Line) -> None:
    notes = Notes(COUNT, line.words)
    for _ in range(2):
        opening = notes.during("its opening")
        opening.__enter__()
        line.loop.run_once(1.0)
        assert line.heard.at_work == AtWork(COUNT, "its opening", 0)
    list(notes.each(rows()))
    assert line.die().at_work is None


def test_rows_whose_values_python_does_not_have_come_one_by_one_too(line: Line) -> None:
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("s"))
    given = Notes(COUNT, line.words).each(Rows(pa.record_batch({"class": far}), np.array([5])))
    assert next(given).times == [5]
    heard = line.die()
    assert heard.at_work is not None
    assert heard.at_work.what.startswith("the row ")


def test_calls_are_counted_as_long_as_they_can_be_told_apart(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "_COUNTED", 2)
    given = Notes(COUNT, line.words).each(rows(1, 2, 3, 1))
    for _ in range(3):
        next(given)
    line.loop.run_once(1.0)
    assert line.heard.at_work == AtWork(COUNT, "the row {'n': 3}", 0)
    next(given)
    assert line.die().at_work == AtWork(COUNT, "the row {'n': 1}", 2)
