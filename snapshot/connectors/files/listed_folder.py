"""Files for stores that can neither rename in one step nor complete an upload: a list says which of them are committed.

Invariant: a file is committed when an entry names it. An entry is of one transaction, and its name and content follow
from that: each commit, by any process, writes the same bytes under the same name, so that partitions have nothing to
agree on, and a store needs no more than to write an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import fsspec
import pyarrow as pa

from snapshot.connectors.files.folder import Published, StagedFile
from snapshot.tree.frozen_json import Json

_DATA: Final = "_epochcut/data"
_ENTRIES: Final = "_epochcut/committed"
"""Names that begin with an underscore are ignored by those who read folders."""
_ENTRY: Final = ".json"


def committed_files(uri: str, **options: object) -> list[str]:
    """List the URIs of the files that `ToFiles(uri, listed=True)` has committed, sorted.

    `options` are those of the file system. All files of a transaction come into the list together, and a file stays in
    the list, as far as the store shows objects as a whole.
    """
    files, root = fsspec.core.url_to_fs(uri, **options)
    paths = [path for path in _below(files, f"{root}/{_ENTRIES}") if path.endswith(_ENTRY)]
    entries: dict[str, bytes] = files.cat(paths) if paths else {}
    names = sorted(name for entry in entries.values() for name in _named_by(entry))
    return [str(files.unstrip_protocol(f"{root}/{_DATA}/{name}")) for name in names]


class ListedFolder:
    """The folder at a URI that fsspec knows."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._files, self._root = fsspec.core.url_to_fs(uri)

    def problems(self) -> Sequence[str]:
        """Return why the entries cannot be listed."""
        try:
            _below(self._files, f"{self._root}/{_ENTRIES}")
        except Exception as error:
            return [f"files cannot be written to {self._uri}: {error}"]
        return []

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """Write the file among the data, where no entry names it yet; its ticket is its size."""
        self._write(f"{_DATA}/{name}", data.to_pybytes())
        return StagedFile(name, Json.of(len(data)))

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """Write the entry of the transaction if all its files are whole.

        An entry that a crash has left half-written is written again.
        """
        entry, names = _entry_of(files[0].name), [file.name for file in files]
        self._files.invalidate_cache()
        with suppress(FileNotFoundError):
            if _named_by(self._files.cat_file(f"{self._root}/{_ENTRIES}/{entry}")) == names:
                return Published(already=True)
        missing = [file.name for file in files if not self._is_whole(file)]
        if not missing:
            self._write(f"{_ENTRIES}/{entry}", json.dumps({"files": names}).encode())
        return Published(missing)

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, data)

    def _is_whole(self, file: StagedFile) -> bool:
        try:
            return bool(self._files.info(f"{self._root}/{_DATA}/{file.name}")["size"] == file.ticket.value())
        except FileNotFoundError:
            return False

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """Return the data files whose names may go and whose transaction has no entry, whatever an entry says."""
        self._files.invalidate_cache()
        paths = self._files.find(f"{self._root}/{_DATA}")
        names = [str(path).rpartition(f"/{_DATA}/")[2] for path in paths]
        entries = {path.rpartition("/")[2] for path in _below(self._files, f"{self._root}/{_ENTRIES}")}
        return [StagedFile(name) for name in names if may_go(name) and _entry_of(name) not in entries]

    def drop(self, file: StagedFile) -> None:
        """Delete a data file, unless it is gone."""
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{_DATA}/{file.name}")


def _entry_of(name: str) -> str:
    """Return the name of the entry of the transaction that a file belongs to.

    It leaves out the folders and the file's number, which comes last: these tell only files of one transaction apart.
    """
    return name.rpartition("/")[2].rpartition("-")[0] + _ENTRY


def _below(files: fsspec.AbstractFileSystem, folder: str) -> list[str]:
    files.invalidate_cache()
    try:
        return [str(path) for path in files.ls(folder, detail=False)]
    except FileNotFoundError:
        return []


def _named_by(entry: bytes) -> list[str]:
    """Return the files that an entry names; none as long as the entry is being written."""
    try:
        return [str(name) for name in json.loads(entry)["files"]]
    except ValueError:
        return []
