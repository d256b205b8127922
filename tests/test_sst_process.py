"""Files that another process writes: as if it had been done here, whatever happens to the other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from statebackend.backends import sst_process
from statebackend.backends.backend import BackendError, LocalDiskError, LocalDiskFull
from statebackend.backends.sst import Compression, Entry, SstInfo, read_sst, write_sst
from statebackend.backends.sst_process import SstProcess, WriterDied
from statebackend.entries import StateId, row

META = b'{"uid": "clicks"}'


@pytest.fixture
def process() -> Iterator[SstProcess]:
    made = SstProcess()
    yield made
    made.close()


def name(group: int, key: bytes) -> bytes:
    return row(group, StateId(1), key, b"")


def some_entries(seed: int, largest: int = 300_000) -> list[Entry]:
    """Of all sizes: nothing, deleted, some bytes, and more than is sent at a time."""
    rng = Random(seed)
    sizes = (0, 1, 40, 65_535, 65_536, largest)
    names = sorted({name(rng.randrange(5), rng.randbytes(9)) for _ in range(200)})
    return [(key, None if rng.random() < 0.2 else rng.randbytes(rng.choice(sizes))) for key in names]


def write(process: SstProcess, path: Path, entries: list[Entry]) -> SstInfo | None:
    return process.write(path, entries, 7, META, compression=Compression.LZ4)


def read(path: Path) -> tuple[int, bytes, list[Entry]]:
    with read_sst(path, path.parent / "scratch") as content:
        return content.stamp, content.meta, list(content.entries)


def writer_of(process: SstProcess) -> int:
    """The process that writes, which is a child of this one."""
    assert process._writer is not None
    return process._writer._process.pid


def has_ended(pid: int) -> bool:
    """Whether nothing is left of it but what its parent has still to ask for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_another_process_writes_is_what_would_be_written_here(tmp_path: Path, process: SstProcess) -> None:
    for seed in range(3):
        entries = some_entries(seed)
        there, here = tmp_path / "there.sst", tmp_path / "here.sst"
        info = write(process, there, entries)
        alike = write_sst(here, entries, 7, META, compression=Compression.LZ4)
        assert info is not None
        assert alike is not None
        assert read(there) == (7, META, entries)
        assert (info.groups, info.entries) == (alike.groups, alike.entries)
        assert info.size == there.stat().st_size
        assert sst_checksum(there) == info.checksum


def sst_checksum(path: Path) -> str:
    return "sha256:" + subprocess.run(["sha256sum", path], check=True, stdout=subprocess.PIPE, text=True).stdout[:64]


@pytest.mark.parametrize("portion", [1, 13, 64, 1000])
def test_entries_may_lie_across_portions(
    tmp_path: Path, process: SstProcess, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(sst_process, "_PORTION", portion)
    monkeypatch.setattr(sst_process, "_TOGETHER", 50)
    rng = Random(portion)
    names = sorted({name(1, rng.randbytes(9)) for _ in range(60)})
    entries: list[Entry] = [(key, rng.choice([None, b"", rng.randbytes(49), rng.randbytes(50)])) for key in names]
    for count in range(1, 60, 7):
        write(process, tmp_path / "a.sst", entries[:count])
        assert read(tmp_path / "a.sst")[2] == entries[:count]


def test_a_payload_that_is_larger_than_a_portion_arrives(tmp_path: Path, process: SstProcess) -> None:
    entries = some_entries(1, largest=5 << 20)
    write(process, tmp_path / "a.sst", entries)
    assert read(tmp_path / "a.sst")[2] == entries


def test_no_entries_make_no_file(tmp_path: Path, process: SstProcess) -> None:
    assert write(process, tmp_path / "a.sst", []) is None
    assert list(tmp_path.iterdir()) == []


def test_all_files_are_written_by_one_process(tmp_path: Path, process: SstProcess) -> None:
    write(process, tmp_path / "a.sst", some_entries(1))
    first = writer_of(process)
    write(process, tmp_path / "b.sst", some_entries(2))
    assert writer_of(process) == first


# --- what goes wrong


def test_an_error_of_the_entries_passes_through_and_leaves_no_file(tmp_path: Path, process: SstProcess) -> None:
    def failing() -> Iterator[Entry]:
        yield from some_entries(1)
        raise ArithmeticError("cannot be encoded")

    with pytest.raises(ArithmeticError, match="cannot be encoded"):
        process.write(tmp_path / "a.sst", failing(), 7, META, compression=Compression.LZ4)
    assert list(tmp_path.iterdir()) == []
    assert write(process, tmp_path / "b.sst", some_entries(2)) is not None


def test_what_is_refused_there_has_the_name_that_it_has_here(tmp_path: Path, process: SstProcess) -> None:
    full = tmp_path / "full.sst"
    full.symlink_to("/dev/full")
    with pytest.raises(LocalDiskFull, match=r"could not write .*full\.sst: the local disk is full.*Make room"):
        write(process, full, some_entries(1))
    assert not os.path.lexists(full)
    with pytest.raises(LocalDiskError, match=r"could not write .*gone/a\.sst on the local disk"):
        write(process, tmp_path / "gone" / "a.sst", some_entries(1))
    with pytest.raises(BackendError, match=r"could not write .*a\.sst.*ascending order"):
        write(process, tmp_path / "a.sst", some_entries(1)[::-1])
    assert list(tmp_path.iterdir()) == []


def test_after_an_error_the_same_process_writes_the_next_file(tmp_path: Path, process: SstProcess) -> None:
    write(process, tmp_path / "a.sst", some_entries(1))
    first = writer_of(process)
    with pytest.raises(LocalDiskError):
        write(process, tmp_path / "gone" / "a.sst", some_entries(1))
    write(process, tmp_path / "b.sst", some_entries(2))
    assert writer_of(process) == first
    assert read(tmp_path / "b.sst")[2] == some_entries(2)


@pytest.mark.parametrize("at", [0, 100, 199])
def test_a_process_that_is_killed_in_a_file_is_told_of_and_replaced(
    tmp_path: Path, process: SstProcess, at: int
) -> None:
    entries = some_entries(1)

    def killing() -> Iterator[Entry]:
        for place, entry in enumerate(entries):
            if place == at:
                os.kill(writer_of(process), signal.SIGKILL)
            yield entry

    with pytest.raises(WriterDied, match=r"writing .*a\.sst has ended with -9"):
        process.write(tmp_path / "a.sst", killing(), 7, META, compression=Compression.LZ4)
    assert list(tmp_path.iterdir()) == []
    assert write(process, tmp_path / "a.sst", entries) is not None
    assert read(tmp_path / "a.sst")[2] == entries


def test_a_process_that_was_killed_between_two_files_is_replaced(tmp_path: Path, process: SstProcess) -> None:
    write(process, tmp_path / "a.sst", some_entries(1))
    killed = writer_of(process)
    os.kill(killed, signal.SIGKILL)
    while not has_ended(killed):
        os.sched_yield()
    write(process, tmp_path / "b.sst", some_entries(2))
    assert read(tmp_path / "b.sst")[2] == some_entries(2)


def test_without_another_process_files_are_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for executable in ("", "/nowhere/python", "/bin/true"):
        monkeypatch.setattr(sys, "executable", executable)
        process = SstProcess()
        assert write(process, tmp_path / "a.sst", some_entries(1)) is not None
        assert read(tmp_path / "a.sst")[2] == some_entries(1)
        assert process._writer is None


def test_closing_ends_the_process(tmp_path: Path, process: SstProcess) -> None:
    write(process, tmp_path / "a.sst", some_entries(1))
    writer = writer_of(process)
    process.close()
    assert not Path(f"/proc/{writer}").exists()
    process.close()


PARENT = """
import os, sys, time
from pathlib import Path
from statebackend.backends.sst import Compression
from statebackend.backends.sst_process import SstProcess

process = SstProcess()
process.write(Path(sys.argv[1]), [(b"\\0\\0a", b"1")], 7, b"", compression=Compression.LZ4)
fork = os.fork()
if fork == 0:
    time.sleep(60)
    os._exit(0)
print(process._writer._process.pid, fork, flush=True)
time.sleep(60)
"""


def test_the_process_ends_with_its_parent_although_a_fork_of_that_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "a.sst")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}) as parent:
        assert parent.stdout is not None
        writer, fork = map(int, parent.stdout.readline().split())
        assert not has_ended(writer)
        parent.kill()
        parent.wait()
        while not has_ended(writer):
            os.sched_yield()
        assert not has_ended(fork)
        os.kill(fork, signal.SIGKILL)
