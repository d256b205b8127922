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

from recovery.driver.report.event_log import EventLog, line_of
from recovery.driver.report.line_file import LineFile
from recovery.events import EpochSkipped, Trouble


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


def test_a_file_that_has_grown_is_put_aside_and_two_are_kept(tmp_path: Path) -> None:
    file, path = LineFile(tmp_path / "log", largest=30), tmp_path / "log"
    for number in range(10):
        assert file.write(f"line {number:04}\n") == ""
    file.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log", "log.1"]
    assert Path(f"{path}.1").read_text() == "line 0006\nline 0007\nline 0008\n"
    assert path.read_text() == "line 0009\n"
    again = LineFile(path, largest=5)
    again.write("a line that is longer than all that a file takes\n")
    again.close()
    assert Path(f"{path}.1").read_text() == "line 0009\n"
    assert path.read_text() == "a line that is longer than all that a file takes\n"


def test_a_file_that_cannot_be_put_aside_grows_on_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LineFile(tmp_path / "log", largest=10)

    def refuse(_path: Path, _target: object) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    assert file.write("one, two\n") == ""
    assert "cannot be, so it grows on" in file.write("three\n")
    assert file.write("four\n") == ""
    monkeypatch.undo()
    file.write("five\n")
    file.close()
    assert (tmp_path / "log.1").read_text() == "one, two\nthree\nfour\n"
    assert (tmp_path / "log").read_text() == "five\n"


def test_two_processes_that_put_the_same_file_aside_lose_no_new_file(tmp_path: Path) -> None:
    one, other = (LineFile(tmp_path / "log", largest=10) for _ in range(2))
    one.write("123456789\n")
    one.write("of one\n")
    other.write("of two\n")
    one.close()
    other.close()
    assert (tmp_path / "log.1").read_text() == "123456789\n"
    assert (tmp_path / "log").read_text() == "of one\nof two\n"


def test_no_link_is_followed_to_a_file_of_lines(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("mine\n")
    (tmp_path / "log").symlink_to(tmp_path / "profile")
    with pytest.raises(OSError, match="it is a link, which is not followed") as refused:
        LineFile(tmp_path / "log")
    assert refused.value.errno == errno.ELOOP
    assert (tmp_path / "profile").read_text() == "mine\n"
    (tmp_path / "log").unlink()
    file = LineFile(tmp_path / "log", largest=10)
    file.write("123456789\n")
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    (tmp_path / "log").symlink_to(tmp_path / "profile")
    assert "it is a link" in file.write("more\n"), "nor when a new one is begun"
    file.close()
    assert (tmp_path / "profile").read_text() == "mine\n"


def test_no_file_of_another_user_and_none_with_another_name_takes_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profile").write_text("mine\n")
    (tmp_path / "log").hardlink_to(tmp_path / "profile")
    with pytest.raises(PermissionError, match="it has another name as well"):
        LineFile(tmp_path / "log")
    (tmp_path / "log").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 61001)
    found = os.fstat

    def of_another(file: int) -> os.stat_result:
        return os.stat_result((*found(file)[:4], 61002, *found(file)[5:]))

    monkeypatch.setattr(os, "fstat", of_another)
    with pytest.raises(PermissionError, match="it belongs to user 61002; name another one"):
        LineFile(tmp_path / "profile")
    assert (tmp_path / "profile").read_text() == "mine\n"


def test_a_file_of_lines_is_closed_to_others_and_keeps_the_mode_that_it_was_given(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "log", largest=10)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    (tmp_path / "log").chmod(0o640)
    file.write("123456789\n")
    file.write("more\n")
    file.close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640
    LineFile(Path("/dev/stdout")).close()


def test_the_log_of_events_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.driver.report.event_log.LARGEST", 1000)
    events = EventLog(tmp_path / "events.jsonl")
    for number in range(200):
        events.add(EpochSkipped(at=number, reason="none"))
    events.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["events.jsonl", "events.jsonl.1"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert line_of(EpochSkipped(at=199, reason="none")) in files[0].read_text()
