"""Decoders of state: its files as a whole, and the names, keys and blocks in them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
from rocksdict import DBCompressionType, SstFileWriter

from recovery.command.exits import exit_of
from statebackend import entries
from statebackend.backends.rocksdb_tables import table_options
from statebackend.backends.sst import read_sst
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.types import BrokenKey, KeyType, UndeclarableKeyType
from statebackend.state_reader import StateReader
from statebackend.states.declarations import AggregatingState
from statebackend.tables.format import blocks
from tests.canonical_states import NAMESPACES, STATES, Workshop, change, content, epoch, operator
from tests.fuzz.decoder import Decoder, dumped, texts
from tests.fuzz.mutations import changed_bytes, changed_text


@cache
def state_as_stored() -> tuple[tuple[bytes, bytes], ...]:
    """Entries of state of all kinds, but for those that are pickled, as they stand in a file."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(Path(folder))
        with shop.opened(operator(16, _STATES)) as state:
            for number, name in enumerate(_STATES):
                for at, key in enumerate((None, "a", "key-1")):
                    change(state, name, key, NAMESPACES[(number + at) % 3], number + at)
            files = state.snapshot(epoch(1))
        path = Path(folder) / "one.sst"
        path.write_bytes(shop.store.read(files.files[0].path))
        with read_sst(path, Path(folder) / "scratch") as content:
            stamp = entries.STAMP.pack(content.stamp)
            meta = (entries.META_KEY, stamp + content.meta)
            return (*((name, stamp + payload) for name, payload in content.entries if payload is not None), meta)


_STATES: Final = {
    **{name: declared for name, declared in STATES.items() if name != "anything"},
    "all": AggregatingState(int, int, lambda total, one: total + one, int.bit_length),  # which takes every whole number
}


def _packed(some: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(len(part).to_bytes(3, "big") + part for entry in some for part in entry)


def _unpacked(data: bytes) -> dict[bytes, bytes]:
    parts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        parts.append(data[at + 3 : at + 3 + size])
        at += 3 + size
    return {name: value for name, value in zip(parts[::2], parts[1::2], strict=False) if name}


def _of_state(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change entries of a file of state; the file is written anew, so its checksums are right."""
    found = list(_unpacked(data).items())
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(found))
        name, value = found[at]
        if name == entries.META_KEY and random.random() < 0.8:
            value = value[:8] + changed_text(random, value[8:], dumped)
        elif random.random() < 0.4:
            name = changed_bytes(random, name, [one for one, _ in found])
        else:
            value = changed_bytes(random, value, [other for _, other in found])
        found[at] = name, value
    return _packed(found)


def _read_state(data: bytes) -> None:
    """Read a file of state from outside, and open it as a job does."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        shop = Workshop(Path(folder))
        files = forged(shop, _unpacked(data) or {b"x": b"x"})
        for read in (_listed, from_outside, _as_a_job):
            try:
                read(shop, files)
            except Exception as error:
                if exit_of(error) is None:
                    raise


def forged(shop: Workshop, content: Mapping[bytes, bytes]) -> FileSet:
    """Write a file of state with this content, sound by its checksum."""
    path = shop.folder / "forged.sst"
    writer = SstFileWriter(table_options(DBCompressionType.none()))
    writer.open(str(path))
    for name, value in sorted(content.items()):
        writer[name] = value
    writer.finish()
    written = path.read_bytes()
    shop.store.write("shared/0.sst", written)
    groups, checksum = KeyGroupRange.of_all(16), f"sha256:{hashlib.sha256(written).hexdigest()}"
    return FileSet(groups, (FileRef("shared/0.sst", (groups,), epoch(1), FileKind.DELTA, len(written), checksum),))


def _listed(shop: Workshop, files: FileSet) -> None:
    with read_sst(shop.folder / "forged.sst", shop.folder / "scratch") as found:
        for _ in found.entries:
            pass


def from_outside(shop: Workshop, files: FileSet) -> None:
    with StateReader(files, shop.store, shop.folder / "reader") as reader:
        for spec in reader.states():
            for batch in reader.batches(spec.name, expired=True):
                batch.validate(full=True)


def _as_a_job(shop: Workshop, files: FileSet) -> None:
    with shop.opened(operator(16, _STATES), files) as state:
        content([state])


def _table_blocks() -> list[bytes]:
    """The blocks of tables among the state."""
    found = []
    for name, value in state_as_stored():
        if name != entries.META_KEY and entries.parse_head(name)[2] == entries.BLOCK:
            found.append(value[len(entries.STAMP.pack(0)) :])
    return found


def _blocks(data: bytes) -> None:
    block = blocks.decode(data, "here")
    list(blocks.merge([data, data], "here"))
    list(blocks.decode_together([data, data], str))
    assert len(block.keys) < 1 << 30


def _names(data: bytes) -> None:
    for parsed in (entries.parse_head, entries.group_of, entries.parse_row, entries.parse_timer, entries.parse_block):
        with suppress(ValueError):
            parsed(data)
    entries.parse_row(data)


_KEYS: Final = [
    KeyType.of(declared)
    for declared in (
        int,
        float,
        str,
        bytes,
        bool,
        pa.date32(),
        pa.timestamp("us"),
        pa.decimal128(9, 2),
        (int, (str, bool)),
    )
]


def _keys(data: bytes) -> None:
    for kind in _KEYS:
        with suppress(BrokenKey):
            kind.decode(data)


STATE: Final[dict[str, Decoder]] = {
    "state": Decoder(_read_state, lambda: [_packed(state_as_stored())], (), _of_state, slow=True),
    "blocks of tables": Decoder(_blocks, _table_blocks, (blocks.BlockError,)),
    "names of entries": Decoder(_names, lambda: [name for name, _ in state_as_stored()], (ValueError,)),
    "types of keys": Decoder(
        lambda data: KeyType.parse(data.decode(errors="surrogateescape")),
        texts("int64", 'struct<"a": int8, "b": struct<decimal(5, 2), timestamp[us, UTC]>>', "binary[16]", "uint64"),
        (UndeclarableKeyType,),
    ),
    "keys": Decoder(
        _keys,
        lambda: [KeyType.of((int, (str, int))).encode((5, ("x", 7))) or b"", b"x", bytes(8)],
        (),
    ),
}
