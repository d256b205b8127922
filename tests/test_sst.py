"""Files of entries: what was written comes back, deletions too, and nothing else is ever taken for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import DBCompressionType, SstFileWriter

from statebackend.backends.backend import BackendError, DamagedFile, LocalDiskError, LocalDiskFull
from statebackend.backends.rocksdb_tables import table_options
from statebackend.backends.sst import DELETED, Compression, Entry, SstInfo, read_sst, write_sst
from statebackend.entries import META_KEY, STAMP, StateId, row
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange

META = b'{"uid": "clicks"}'

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where searches put their folders: what they try a hundred times need not reach a disk."""


def name(group: int, key: bytes) -> bytes:
    return row(group, StateId(1), key, b"")


def some_entries(count: int, groups: int = 3) -> list[Entry]:
    rng = Random(count)
    written = {name(rng.randrange(groups), rng.randbytes(9)): rng.randbytes(rng.randrange(40)) for _ in range(count)}
    return [(key, None if rng.random() < 0.3 else payload) for key, payload in sorted(written.items())]


def write(path: Path, entries: list[Entry], compression: Compression = Compression.ZSTD) -> SstInfo:
    info = write_sst(path, entries, 7, META, compression=compression)
    assert info is not None
    return info


def read(path: Path, scratch: Path) -> tuple[int, bytes, list[Entry]]:
    with read_sst(path, scratch) as content:
        return content.stamp, content.meta, list(content.entries)


@pytest.mark.parametrize("compression", Compression)
def test_what_was_written_comes_back_with_its_deletions_stamp_and_meta(
    tmp_path: Path, compression: Compression
) -> None:
    entries = some_entries(5000)
    write(tmp_path / "a.sst", entries, compression)
    assert read(tmp_path / "a.sst", tmp_path / "scratch") == (7, META, entries)


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 32767), st.binary(max_size=20)), st.none() | st.binary(max_size=50), min_size=1
    )
)
def test_any_entries_come_back(written: dict[tuple[int, bytes], bytes | None]) -> None:
    entries = sorted((name(group, key), payload) for (group, key), payload in written.items())
    with TemporaryDirectory(prefix="files-", dir=IN_MEMORY) as folder:
        path = Path(folder, "a.sst")
        write(path, entries)
        assert read(path, Path(folder, "scratch"))[2] == entries


def test_a_million_bytes_of_deleted_names_come_back(tmp_path: Path) -> None:
    entries: list[Entry] = [(name(1, b"%0100d" % i), None) for i in range(25_000)]
    write(tmp_path / "a.sst", entries)
    assert read(tmp_path / "a.sst", tmp_path / "scratch")[2] == entries


def test_reading_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a.sst", some_entries(100))
    before = (tmp_path / "a.sst").read_bytes()
    read(tmp_path / "a.sst", tmp_path / "scratch")
    assert (tmp_path / "a.sst").read_bytes() == before
    assert list((tmp_path / "scratch").iterdir()) == []
    assert (tmp_path / "a.sst").stat().st_nlink == 1


def test_what_is_told_of_a_file_is_so(tmp_path: Path) -> None:
    entries: list[Entry] = [(name(group, b"k"), None if group == 5 else b"v") for group in (1, 2, 3, 5, 9)]
    info = write(tmp_path / "a.sst", entries)
    content = (tmp_path / "a.sst").read_bytes()
    assert info == SstInfo(
        groups=tuple(KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in ((1, 4), (5, 6), (9, 10))),
        size=len(content),
        entries=5,
        checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
    )


def test_no_entries_make_no_file(tmp_path: Path) -> None:
    assert write_sst(tmp_path / "a.sst", [], 7, META, compression=Compression.ZSTD) is None
    assert list(tmp_path.iterdir()) == []


def test_small_files_are_compressed_well_and_large_ones_fast() -> None:
    assert Compression.for_size(1 << 20) is Compression.ZSTD
    assert Compression.for_size(1 << 30) is Compression.LZ4


# --- what goes wrong when writing


def test_an_error_of_the_entries_passes_through_and_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[Entry]:
        yield name(0, b"a"), b"1"
        raise ArithmeticError("cannot be encoded")

    with pytest.raises(ArithmeticError, match="cannot be encoded"):
        write_sst(tmp_path / "a.sst", failing(), 7, META, compression=Compression.ZSTD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keys", [b"ba", b"aa"], ids=["disordered", "repeated"])
def test_entries_out_of_order_are_refused(tmp_path: Path, keys: bytes) -> None:
    entries: list[Entry] = [(name(0, bytes((key,))), b"") for key in keys]
    with pytest.raises(BackendError, match=r"could not write .*a\.sst.*ascending order"):
        write_sst(tmp_path / "a.sst", entries, 7, META, compression=Compression.ZSTD)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    full = tmp_path / "a.sst"
    full.symlink_to("/dev/full")
    with pytest.raises(LocalDiskFull, match=r"could not write .*a\.sst: the local disk is full.*Make room"):
        write(full, some_entries(100_000))
    assert not os.path.lexists(full)


def test_a_folder_that_is_not_there_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match=r"could not write .*gone/a\.sst on the local disk"):
        write(tmp_path / "gone" / "a.sst", some_entries(10))


# --- files that are not as they were written


def flipped(content: bytes, place: int) -> bytes:
    damaged = bytearray(content)
    damaged[place] ^= 0x10
    return bytes(damaged)


@pytest.mark.parametrize("compression", Compression)
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path: Path, compression: Compression) -> None:
    entries = some_entries(400)
    whole, damaged = tmp_path / "whole.sst", tmp_path / "damaged.sst"
    write(whole, entries, compression)
    content = whole.read_bytes()
    rng = Random(1)
    # Blocks of data come first; the last third holds the filter, the index, properties and the footer.
    places = [rng.randrange(len(content)) for _ in range(40)] + [len(content) - back for back in range(1, 80, 4)]
    messages: list[str] = []
    for place in places:
        damaged.write_bytes(flipped(content, place))
        try:
            assert read(damaged, tmp_path / "scratch") == (7, META, entries), f"byte {place} of {len(content)}"
        except DamagedFile as error:
            messages.append(str(error))
    assert len(messages) > len(places) / 2
    assert all("damaged.sst" in message for message in messages)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_short_is_damaged(tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.sst"
    write(path, some_entries(400))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DamagedFile, match=r"could not read .*a\.sst"):
        read(path, tmp_path / "scratch")


def test_a_file_of_something_else_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.sst"
    path.write_text("a song about the sea\n" * 100)
    with pytest.raises(DamagedFile, match=r"could not read .*a\.sst"):
        read(path, tmp_path / "scratch")


@pytest.mark.parametrize("meta", [False, True])
def test_a_file_of_another_user_of_rocksdb_is_not_taken_for_ours(tmp_path: Path, meta: bool) -> None:
    writer = SstFileWriter(table_options(DBCompressionType.zstd()))
    writer.open(str(tmp_path / "a.sst"))
    writer[b"abc"] = b"1"
    if meta:
        writer[META_KEY] = STAMP.pack(1) + META
        writer[b"\xff\xffmore"] = STAMP.pack(1)
    writer.finish()
    with pytest.raises(DamagedFile, match=r"a\.sst is a file of RocksDB"):
        read(tmp_path / "a.sst", tmp_path / "scratch")


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (b"\0\0\0\x10garbage", "decompression failed"),
        (bytes(4) + pa.compress(b"\x02a", codec="zstd", asbytes=True), "decompression failed"),
        (b"\xff" * 4 + pa.compress(bytes(100_000), codec="zstd", asbytes=True), f"that {2**32 - 1} bytes are deleted"),
        (b"\0\0\0\3" + pa.compress(b"\x09ab", codec="zstd", asbytes=True), "cut short"),
    ],
    ids=["garbage", "another size", "4 GiB", "a name cut short"],
)
def test_a_list_of_deletions_that_is_not_as_it_was_written_is_damage_and_takes_no_memory(
    tmp_path: Path, listed: bytes, why: str
) -> None:
    writer = SstFileWriter(table_options(DBCompressionType.zstd()))
    writer.open(str(tmp_path / "a.sst"))
    writer[name(0, b"key")] = STAMP.pack(1)
    writer[DELETED + (0).to_bytes(4, "big")] = STAMP.pack(1) + listed
    writer[META_KEY] = STAMP.pack(1) + META
    writer.finish()
    with pytest.raises(DamagedFile, match=rf"the list of what .*a\.sst deletes is not as it was written: .*{why}"):
        read(tmp_path / "a.sst", tmp_path / "scratch")


def test_a_file_that_is_not_there_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match=r"could not read .*a\.sst"):
        read(tmp_path / "a.sst", tmp_path / "scratch")
    assert list((tmp_path / "scratch").iterdir()) == []
