"""The one JSON form of file sets: read back as written, and anything else refused with its place."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.files import FileKind, FileRef, FileSet, FileSetError, PathError
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keygroups import KeyGroupRange, joined
from statebackend.snapshots.file_set_json import FileSetJsonError, from_json, to_json

ALL = KeyGroupRange(KeyGroup(0), KeyGroup(16))


def some_range(bounds: list[int]) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(min(bounds)), KeyGroup(max(bounds)))


RANGES = st.lists(st.integers(0, 16), min_size=2, max_size=2, unique=True).map(some_range)


@st.composite
def file_sets(draw: st.DrawFn) -> FileSet:
    files = FileSet(ALL)
    for number in range(1, draw(st.integers(0, 5)) + 1):
        epoch = Epoch(Generation(draw(st.integers(1, 3)) + 3 * number), number)
        ranges = joined(draw(st.lists(RANGES, min_size=1, max_size=3)))
        kind = draw(st.sampled_from(FileKind))
        file = FileRef(f"shared/{number}.sst", ranges, epoch, kind, draw(st.integers(0, 2**40)), "sha256:00ff")
        files = files.consolidated(file) if kind is FileKind.BASE else files.added(file)
    return files


SET = FileSet(ALL, (FileRef("shared/a.sst", (ALL,), Epoch(Generation(2), 17), FileKind.DELTA, 7, "sha256:ab"),))
TEXT = (
    '{"key_groups":[0,16],"files":[{"path":"shared/a.sst","key_groups":[[0,16]],"epoch":"17-2",'
    '"kind":"delta","size":7,"checksum":"sha256:ab"}]}'
)


def test_the_form_stays_as_it_is() -> None:
    assert to_json(SET) == TEXT
    assert from_json(TEXT) == SET


@given(file_sets())
def test_a_set_is_read_back_as_it_was_written(files: FileSet) -> None:
    assert from_json(to_json(files)) == files


@given(file_sets())
def test_a_set_crosses_processes_whole(files: FileSet) -> None:
    assert pickle.loads(pickle.dumps(files)) == files


@pytest.mark.parametrize(
    ("old", "new", "error", "complaint"),
    [
        ("{", "", FileSetJsonError, "it is not JSON"),
        (TEXT, "[]", FileSetJsonError, r"expected an object, found \[\]"),
        ('"key_groups":[0,16],', "", FileSetJsonError, r"missing fields \['key_groups'\], unknown fields \[\]"),
        ('"files":[', '"more":1,"files":[', FileSetJsonError, r"unknown fields \['more'\]"),
        ("[0,16]", "[16,0]", FileSetJsonError, r"\.key_groups: key groups \[16, 0\) are no range"),
        ("[[0,16]]", "[[0,true]]", FileSetJsonError, r"\.files\[0\]\.key_groups\[0\]: expected \[first, end\]"),
        ('"size":7', '"size":"7"', FileSetJsonError, r"\.files\[0\]\.size: expected a whole number, found '7'"),
        ('"shared/a.sst"', "5", FileSetJsonError, r"\.files\[0\]\.path: expected a text, found 5"),
        ('"files":[{', '"files":[3,{', FileSetJsonError, r"\.files\[0\]: expected an object, found 3"),
        ("shared/a.sst", "../a.sst", PathError, "it climbs out of its tree"),
        ('"size":7', '"size":-7', FileSetError, "a size of -7 bytes"),
        ("delta", "gamma", ValueError, "gamma"),
        ("[[0,16]]", "[[0,17]]", FileSetError, r"is valid for \[0, 17\) in a set of key groups \[0, 16\)"),
    ],
)
def test_what_was_not_written_so_is_refused(old: str, new: str, error: type[ValueError], complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(error, match=complaint):
        from_json(TEXT.replace(old, new, 1))
