"""Lines on a disk that is full for a while: whole, in order, and said if any is missing."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.driver.event_log import EventLog, line_of
from recovery.driver.events import EpochSkipped, Trouble
from recovery.driver.line_file import LineFile


class Disk:
    """Has room for so many bytes more; a write takes what fits, and the next one fails."""

    def __init__(self) -> None:
        self.room = 0
        self.most_at_once = 1 << 20
        self.write = os.write

    def take(self, file: int, data: memoryview) -> int:
        size = min(len(data), self.room, self.most_at_once)
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= size
        return self.write(file, data[:size])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "write", disk.take)
    yield disk
    monkeypatch.undo()


def test_lines_that_found_no_room_come_when_there_is_some(tmp_path: Path, disk: Disk) -> None:
    file, disk.room = LineFile(tmp_path / "log"), 7
    assert file.write("one\n") == ""
    assert "takes no line" in file.write("two\n")
    assert file.write("three\n") == "", "it is said once"
    assert (tmp_path / "log").read_text() == "one\n", "no half line"
    disk.room = 100
    assert file.write("four\n") == f"{tmp_path / 'log'} takes lines again, and nothing is missing"
    file.close()
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\nfour\n"


def test_lines_for_which_there_is_no_memory_are_counted(tmp_path: Path, disk: Disk) -> None:
    file = LineFile(tmp_path / "log", most_waiting=10)
    for number in range(5):
        file.write(f"line {number}\n")
    disk.room = 100
    assert "takes lines again; 4 lines are missing" in file.write("after\n")
    assert (tmp_path / "log").read_text() == "line 4\nafter\n"


def test_a_file_that_may_have_no_gap_ends_instead(tmp_path: Path, disk: Disk) -> None:
    file, disk.room = LineFile(tmp_path / "log", gaps=False, most_waiting=10), 8
    file.write("line 0\n")
    file.write("line 1\n")
    assert "ends here" in file.write("line 2\n")
    disk.room = 100
    assert file.write("line 3\n") == ""
    assert (tmp_path / "log").read_text() == "line 0\n"


def test_a_pipe_whose_line_was_cut_short_goes_on_with_a_new_line(disk: Disk) -> None:
    reading, writing = os.pipe()
    file, disk.room = LineFile(Path(f"/dev/fd/{writing}")), 2
    assert "takes no line" in file.write("one\n")
    disk.room = 100
    file.write("two\n")
    assert os.read(reading, 100) == b"on\none\ntwo\n"
    file.close()
    os.close(reading)
    os.close(writing)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=20), st.integers(1, 5))
def test_whatever_room_there_is_the_file_has_the_first_lines_whole(steps: list[tuple[int, int]], most: int) -> None:
    disk = Disk()
    disk.most_at_once = most
    lines = [f"{number}{'x' * length}\n" for number, (_, length) in enumerate(steps)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", disk.take)
        path = Path(folder) / "log"
        file = LineFile(path)
        for line, (room, _) in zip(lines, steps, strict=True):
            disk.room = room
            file.write(line)
            written = path.read_text()
            assert written == "".join(lines[: written.count("\n")])
        disk.room = 10_000
        file.write("end\n")
        file.close()
        assert path.read_text() == "".join([*lines, "end\n"])


def test_the_log_of_events_says_that_its_disk_is_full_and_that_it_is_not_any_more(tmp_path: Path, disk: Disk) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    heard: list[object] = []
    events.listen(heard.append)
    skipped = EpochSkipped(at=1.0, reason="none")
    events.add(skipped)
    disk.room = 10_000
    events.add(skipped)
    events.close()
    full, again = [event for event in events.events if isinstance(event, Trouble)]
    assert full.what == again.what == "the file of events"
    assert "No space left on device" in full.reason
    assert "nothing is missing" in again.reason
    assert len(heard) == 4
    assert (tmp_path / "events.jsonl").read_text() == "".join(line_of(one) for one in (skipped, full, skipped, again))
