"""Large files are written in a process of their own: while RocksDB writes, it lets no other thread of Python run.

Invariant: the file, and the error if there is one, are what `write_sst` would have made here; the other
process ends when this one does, however that ends; and of all entries no more than a portion is in memory twice.

A portion lies in memory that both processes have: one fills it, the other reads it, by turns. Each entry is a frame,
which may go on in the next portion: the sizes of its name and its payload, then both. A file without entries is not
sent; what cannot be done over there because no process can be started is done here.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from statebackend.backends.backend import BackendError, DamagedFile, LocalDiskError, LocalDiskFull
from statebackend.backends.rocksdb_tables import named_errors
from statebackend.backends.sst import Compression, Entry, SstInfo, write_sst
from statebackend.child_python import command_of, environment, outlive_sigterm
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange

_MODULE: Final = "statebackend.backends.sst_process"
_PORTION: Final = 2 << 20
"""Small enough to stay in the processor's cache."""

_TOGETHER: Final = 1 << 16
"""Frames are put down together up to so many bytes; a payload that alone has as many is not copied for that."""

_FRAME: Final = struct.Struct("=Iq")
_END: Final = _FRAME.pack(0, 0)
"""No entry has an empty name."""

_DELETED: Final = -1
"""Stands for the size of a payload where an entry is deleted."""

_READY: Final = b"ready\n"
_MORE: Final = b"more\n"
_DIE_WITH_PARENT: Final = 1
"""`PR_SET_PDEATHSIG`."""

_ERRORS: Final = {error.__name__: error for error in (BackendError, DamagedFile, LocalDiskError, LocalDiskFull)}


class WriterDied(BackendError):
    """The process that wrote a file has ended before the file was whole; there is no file."""


class SstProcess:
    """Writes files in another process, which is started for the first of them. For one thread at a time."""

    def __init__(self) -> None:
        self._writer: _Writer | None = None
        self._can_start = sys.platform == "linux" and bool(sys.executable)

    def write(
        self, path: Path, entries: Iterable[Entry], stamp: int, meta: bytes, *, compression: Compression
    ) -> SstInfo | None:
        """Do what `write_sst` does; `WriterDied` if the other process has ended: the next call starts another one."""
        writer = self._running()
        if writer is None:
            return write_sst(path, entries, stamp, meta, compression=compression)
        request = {"path": str(path.absolute()), "stamp": stamp, "meta": meta.hex(), "compression": compression.value}
        answer = b""
        try:
            with named_errors(f"write {path}"):
                answer = writer.write(json.dumps(request).encode() + b"\n", entries)
        except _Died:
            raise WriterDied(
                f"the process that was writing {path} has ended with {self._stop()} before it was done; what was to be "
                f"in the file is still in memory, and goes into another file, which another process writes"
            ) from None
        finally:
            if not answer:
                self._stop()
                path.unlink(missing_ok=True)
        return _info(answer)

    def close(self) -> None:
        """End the other process. The next `write` would start another one."""
        self._stop()

    def _running(self) -> _Writer | None:
        if self._writer is not None and self._writer.has_died:
            self._stop()
        if self._writer is None and self._can_start:
            try:
                self._writer = _Writer()
            except OSError:
                self._can_start = False
        return self._writer

    def _stop(self) -> int | None:
        """End the other process, and return what it ended with."""
        writer, self._writer = self._writer, None
        return None if writer is None else writer.stop()


class _Died(Exception):
    """The other process is not there any more."""


class _Writer:
    """The other process as it is seen from here, ready for work; `OSError` if it cannot be started."""

    def __init__(self) -> None:
        self._portion = os.memfd_create("epochcut-entries")
        self._filled = 0
        try:
            self._process = subprocess.Popen(
                command_of(_MODULE, [str(os.getpid()), str(self._portion)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
                pass_fds=(self._portion,),
                # What is typed to end a program must not end this before the program has finished with it.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._portion)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        if self._answers.readline() != _READY:
            self.stop()
            raise OSError("the process did not get ready")

    @property
    def has_died(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> int:
        self._process.kill()
        code = self._process.wait()
        self._requests.close()
        self._answers.close()
        os.close(self._portion)
        return code

    def write(self, request: bytes, entries: Iterable[Entry]) -> bytes:
        """Send the entries and return the answer, which comes before the last of them if it is an error."""
        self._tell(request)
        self._filled = 0
        pieces: list[bytes] = []
        size = 0
        for name, payload in entries:
            length = _DELETED if payload is None else len(payload)
            pieces += (_FRAME.pack(len(name), length), name)
            size += _FRAME.size + len(name)
            if payload is not None and length < _TOGETHER:
                pieces.append(payload)
                size += length
            if size >= _TOGETHER or length >= _TOGETHER:
                answer = self._put(b"".join(pieces)) or (self._put(payload) if payload and length >= _TOGETHER else b"")
                if answer:
                    return answer
                pieces.clear()
                size = 0
        return self._put(b"".join((*pieces, _END))) or self._hand_over()

    def _put(self, data: bytes) -> bytes:
        """Put data into the portion, handing it over whenever it is full; return any answer but a request for more."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self._portion, left[: _PORTION - self._filled], self._filled)
            self._filled += written
            left = left[written:]
            if self._filled == _PORTION:
                answer = self._hand_over()
                if answer != _MORE:
                    return answer
                self._filled = 0
        return b""

    def _hand_over(self) -> bytes:
        self._tell(b"%d\n" % self._filled)
        answer = self._answers.readline()
        if not answer.endswith(b"\n"):
            raise _Died
        return answer

    def _tell(self, line: bytes) -> None:
        # Past the buffer that Python has for the pipe: a fork of this process would send what is in there once more.
        try:
            os.write(self._requests.fileno(), line)
        except BrokenPipeError:
            raise _Died from None


def _info(answer: bytes) -> SstInfo | None:
    found = json.loads(answer)
    if found is None:
        return None
    if "error" in found:
        raise _ERRORS.get(found["error"], BackendError)(found["message"])
    groups = tuple(KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in found["groups"])
    return SstInfo(groups, found["size"], found["entries"], found["checksum"])


# --- in the other process ---------------------------------------------------------------------------------------------


class _Portions(io.RawIOBase):
    """One file's entries: what comes in the shared memory, portion by portion. Ends if it is not filled any more."""

    def __init__(self, portion: int, requests: BinaryIO, answers: BinaryIO) -> None:
        self._portion = portion
        self._requests = requests
        self._answers = answers
        self._at = self._filled = 0
        self._first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the base's type has another name
        if self._at == self._filled:
            if not self._first:
                self._answers.write(_MORE)
                self._answers.flush()
            self._first = False
            self._at, self._filled = 0, int(self._requests.readline() or 0)
        count = os.preadv(self._portion, [buffer[: self._filled - self._at]], self._at)
        self._at += count
        return count


def serve(portion: int, requests: BinaryIO, answers: BinaryIO) -> None:
    """Write files as they are asked for, until the other side is gone. A file that is unfinished then is removed."""
    answers.write(_READY)
    answers.flush()
    while request := requests.readline():
        entries = io.BufferedReader(_Portions(portion, requests, answers), _TOGETHER)
        answers.write(json.dumps(_answer(json.loads(request), entries)).encode() + b"\n")
        answers.flush()


def _answer(request: dict[str, str], entries: BinaryIO) -> dict[str, object] | None:
    try:
        info = write_sst(
            Path(request["path"]),
            _received(entries),
            int(request["stamp"]),
            bytes.fromhex(request["meta"]),
            compression=Compression(request["compression"]),
        )
    except EOFError:
        raise SystemExit from None
    except BaseException as error:  # a panic in RocksDB's library is no `Exception`
        return {"error": type(error).__name__, "message": str(error) or repr(error)}
    if info is None:
        return None
    groups = [(part.first, part.end) for part in info.groups]
    return {"groups": groups, "size": info.size, "entries": info.entries, "checksum": info.checksum}


def _received(entries: BinaryIO) -> Iterator[Entry]:
    while True:
        name_size, size = _FRAME.unpack(_exactly(entries, _FRAME.size))
        if not name_size:
            return
        name = _exactly(entries, name_size)
        yield name, None if size == _DELETED else _exactly(entries, size)


def _exactly(entries: BinaryIO, size: int) -> bytes:
    data = entries.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _die_with(parent: int) -> None:
    """End at once when the parent does, although a fork of it may hold the pipes open."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit


if __name__ == "__main__":
    outlive_sigterm()
    _die_with(int(sys.argv[1]))
    serve(int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
