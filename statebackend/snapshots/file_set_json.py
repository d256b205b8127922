"""File sets as JSON: the one form in which manifests, snapshots and rows of a table name the files of a state.

Invariant: equal sets give equal texts, and a text is read as the set that it was written from or refused; no
field is skipped and none is made up.

    {"key_groups":[0,64],"files":[
        {"path":"...","key_groups":[[0,64]],"epoch":"17-2","kind":"delta","size":4096,"checksum":"sha256:..."}]}

The text of a file is put together here and not by the `json` module, which takes four times as long: a driver writes
thousands in every epoch.
"""

from __future__ import annotations

import json
from reprlib import repr as _shown
from typing import NoReturn

from statebackend.errors import StoreError
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Epoch, KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.readable import readable

_IS_DELTA, _DELTA, _BASE = FileKind.DELTA, f'"{FileKind.DELTA.value}"', f'"{FileKind.BASE.value}"'
_FILE = frozenset({"path", "key_groups", "epoch", "kind", "size", "checksum"})
_SET = frozenset({"key_groups", "files"})


class FileSetJsonError(StoreError, ValueError):
    """Not what was written for a file or a set; `place` says where in the value, as in `.key_groups[0]`."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return readable(f"{self.place}: {self.reason}" if self.place else self.reason)


def to_json(files: FileSet) -> str:
    """Return the set as a text, for a row of a table or a message."""
    groups = f"[{files.range.first},{files.range.end}]"
    return f'{{"key_groups":{groups},"files":[{",".join([file_text(file) for file in files.files])}]}}'


def from_json(text: str) -> FileSet:
    """Return the set that `to_json` wrote.

    Raise `FileSetJsonError`, `FileSetError` or `PathError` (all `ValueError`) for anything else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileSetJsonError("", f"it is not JSON ({error})") from error
    return file_set_of(value)


def file_set_of(value: object) -> FileSet:
    """Return the set in a value that was parsed from JSON; errors as those of `from_json`."""
    fields = _fields(value, _SET)
    files = []
    for index, item in enumerate(_list(fields, "files")):
        try:
            files.append(file_of(item))
        except FileSetJsonError as error:
            raise FileSetJsonError(f".files[{index}]{error.place}", error.reason) from error
    return FileSet(key_groups_of(fields["key_groups"], ".key_groups"), tuple(files))


def file_text(file: FileRef) -> str:
    """Return one file as it stands in the text of a set."""
    epoch, ranges = file.epoch, file.ranges
    groups = f"[{ranges[0].first},{ranges[0].end}]"
    if len(ranges) > 1:
        groups = ",".join([f"[{part.first},{part.end}]" for part in ranges])
    return (
        f'{{"path":"{file.path}","key_groups":[{groups}],"epoch":"{epoch.number}-{epoch.generation}",'
        f'"kind":{_DELTA if file.kind is _IS_DELTA else _BASE},"size":{file.size},"checksum":"{file.checksum}"}}'
    )


def file_of(value: object) -> FileRef:
    """Return the file in a value that was parsed from JSON; errors as those of `from_json`."""
    fields = _fields(value, _FILE)
    ranges = _list(fields, "key_groups")
    return FileRef(
        path=_text(fields, "path"),
        ranges=tuple(key_groups_of(item, f".key_groups[{index}]") for index, item in enumerate(ranges)),
        epoch=Epoch.parse(_text(fields, "epoch")),
        kind=FileKind(_text(fields, "kind")),
        size=_integer(fields, "size"),
        checksum=_text(fields, "checksum"),
    )


def key_groups_of(value: object, place: str) -> KeyGroupRange:
    """Return the range in `[first, end]`; `place` says where it was found."""
    if not isinstance(value, list) or [type(bound) for bound in value] != [int, int]:
        _complain(place, f"expected [first, end], found {_shown(value)}")
    try:
        return KeyGroupRange(KeyGroup(value[0]), KeyGroup(value[1]))
    except ValueError as error:
        raise FileSetJsonError(place, str(error)) from error


def _fields(value: object, names: frozenset[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        _complain("", f"expected an object, found {_shown(value)}")
    if value.keys() != names:
        missing, unknown = sorted(names - value.keys()), sorted(value.keys() - names)
        _complain("", f"missing fields {missing}, unknown fields {unknown}")
    return value


def _list(fields: dict[str, object], name: str) -> list[object]:
    value = fields[name]
    if not isinstance(value, list):
        _complain(f".{name}", f"expected a list, found {_shown(value)}")
    return value


def _text(fields: dict[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        _complain(f".{name}", f"expected a text, found {_shown(value)}")
    return value


def _integer(fields: dict[str, object], name: str) -> int:
    value = fields[name]
    if type(value) is not int:
        _complain(f".{name}", f"expected a whole number, found {_shown(value)}")
    return value


def _complain(place: str, reason: str) -> NoReturn:
    raise FileSetJsonError(place, reason)
