"""The names of entries in a sorted file: key group, state, form, and what the entry is about.

Invariant: the key group comes first, so the entries of a range of key groups lie side by side; every part but
the last tells where it ends, so two different entries never share a name; and a name says nothing about the order of
keys, only map keys and timers within one key are sorted.

    group (2) | state (4) | form (1) | rest
    rest of a row       key | namespace | what follows is up to the kind of state (a map key, a place in a list)
    rest of a timer     time (8) | key | namespace
    rest of a block     namespace | epoch and form (8): twice the epoch's number, and one more if it is of a base
                        | what sets it apart from others like it, if there are any: a part (1 + 8)
    rest of kept keys   namespace | zeros (8) | 3 | the number of the epoch that wrote them (8)
    rest of values      namespace | zeros (8) | 4 | 0, or 1 if they are of a base (8)

Group 0xFFFF is no key group: under it a file says what it is. Every value in a file begins with the number of the
epoch that wrote it (8 bytes), which is how a store hides what a younger base has replaced.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NewType

from statebackend.errors import StoreError
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange


class BrokenEntry(StoreError, ValueError):
    """An entry of a file of state that was not written like this: its name, or what it begins with, is cut short."""


StateId = NewType("StateId", int)
"""A declared state in a file: a number that its name alone decides, the same in every partition and version."""

ROW: Final = 1
TIMER: Final = 2
BLOCK: Final = 3

STAMP: Final = struct.Struct(">Q")
"""The first bytes of a value in a file: the number of the epoch that wrote it."""

META_KEY: Final = b"\xff\xffmeta"
"""The name under which a file has the operator's uid and the declarations of its states; the newest file taken wins."""

_HEAD: Final = struct.Struct(">HIB")
_GROUP: Final = struct.Struct(">H")
_TIME: Final = struct.Struct(">Q")
_PART: Final = struct.Struct(">BQ")
_OF_BASE: Final = 1
_EARLY: Final = 2
_KEYS: Final = 3
_VALUES: Final = 4
_EARLIEST: Final = -(1 << 63)
_LONGEST_SHIFT: Final = 63
"""No part is so long that its length takes more bits."""
HEAD_SIZE: Final = _HEAD.size


def state_id(name: str) -> StateId:
    """Return the number of a state. No two names of one operator may share it; `Schema` checks that."""
    return StateId(zlib.crc32(name.encode()))


def head(group: int, state: StateId, form: int) -> bytes:
    """Return what the names of all entries of this form begin with, for a state in a key group."""
    return _HEAD.pack(group, state, form)


def parse_head(name: bytes) -> tuple[KeyGroup, StateId, int]:
    """Return the group, state and form of an entry; raise `BrokenEntry` if its name is cut short."""
    try:
        group, state, form = _HEAD.unpack_from(name)
    except struct.error:
        raise _cut_short(name) from None
    return KeyGroup(group), StateId(state), form


def is_of_blocks(start: bytes) -> bool:
    """True if `start` shows that all entries whose names begin with it are blocks."""
    return len(start) >= HEAD_SIZE and parse_head(start)[2] == BLOCK


def group_of(name: bytes) -> KeyGroup:
    """Return the key group of an entry; raise `BrokenEntry` if its name is cut short."""
    try:
        return KeyGroup(_GROUP.unpack_from(name)[0])
    except struct.error:
        raise _cut_short(name) from None


def bounds(groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """Return the first name that may lie in these groups, and the first that comes after all of them."""
    return _GROUP.pack(groups.first), _GROUP.pack(groups.end)


def after(prefix: bytes) -> bytes:
    """Return the first name after all that begin with the prefix, which must not be all 0xFF."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def delimited(part: bytes | None) -> bytes:
    """Return a part with its own length before it; None, which is a null, differs from every part."""
    if part is None:
        return b"\x00"
    length = len(part) + 1
    if length < 0x80:
        return bytes((length,)) + part
    size = bytearray()
    while length >= 0x80:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes(size) + part


def undelimited(name: bytes, start: int) -> tuple[bytes | None, int]:
    """Return the part at `start`, and where the bytes after it begin; raise `BrokenEntry` if it is cut short."""
    length, shift, at = 0, 0, start
    while True:
        if at >= len(name) or shift > _LONGEST_SHIFT:
            raise _cut_short(name)
        byte = name[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if length == 0:
        return None, at
    end = at + length - 1
    if end > len(name):
        raise _cut_short(name)
    return name[at:end], end


def _cut_short(name: bytes) -> BrokenEntry:
    return BrokenEntry(f"an entry's name is cut short: {name[:100].hex()}")


def sortable(time: int) -> bytes:
    """Return a signed 64-bit time as bytes that sort as it does."""
    return _TIME.pack(time - _EARLIEST)


def unsortable(data: bytes, start: int = 0) -> int:
    """Return the time that `sortable` wrote; raise `BrokenEntry` if it is cut short."""
    try:
        return int(_TIME.unpack_from(data, start)[0]) + _EARLIEST
    except struct.error:
        raise _cut_short(data) from None


def row(group: int, state: StateId, key: bytes | None, namespace: bytes, rest: bytes = b"") -> bytes:
    """Return the name of a row."""
    return _HEAD.pack(group, state, ROW) + delimited(key) + delimited(namespace) + rest


def parse_row(name: bytes) -> tuple[bytes | None, bytes, bytes]:
    """Return the key, namespace and rest of a row's name."""
    key, at = undelimited(name, HEAD_SIZE)
    namespace, at = undelimited(name, at)
    return key, namespace or b"", name[at:]


def timer(group: int, state: StateId, time: int, key: bytes | None, namespace: bytes) -> bytes:
    """Return the name of a timer; timers of a state in a group sort by time."""
    return _HEAD.pack(group, state, TIMER) + sortable(time) + delimited(key) + delimited(namespace)


def parse_timer(name: bytes) -> tuple[int, bytes | None, bytes]:
    """Return the time, key and namespace of a timer's name."""
    key, at = undelimited(name, HEAD_SIZE + _TIME.size)
    namespace, _ = undelimited(name, at)
    return unsortable(name, HEAD_SIZE), key, namespace or b""


def block(group: int, state: StateId, namespace: bytes, epoch_number: int, *, of_base: bool = False) -> bytes:
    """Return the name of a block of many keys of a table; blocks of a namespace sort by the epochs that wrote them.

    A base's block sorts after what the same epoch has changed, and has another name: a merge of deltas may bring that
    block again on top of the base.
    """
    return _HEAD.pack(group, state, BLOCK) + delimited(namespace) + STAMP.pack(epoch_number << 1 | of_base)


def base_part(group: int, state: StateId, namespace: bytes, epoch_number: int, part: int) -> bytes:
    """Return the name of one of several blocks of a base in a namespace, in any order, as one would be large."""
    return block(group, state, namespace, epoch_number, of_base=True) + _PART.pack(_OF_BASE, part)


def early_block(group: int, state: StateId, namespace: bytes, epoch_number: int, part: int) -> bytes:
    """Return the name of a block that was written before the cut it belongs to: the next one after this epoch's.

    It sorts after all blocks of the epoch, and before those of later ones; such blocks sort by their parts.
    """
    return block(group, state, namespace, epoch_number, of_base=True) + _PART.pack(_EARLY, part)


def kept_keys(group: int, state: StateId, namespace: bytes, epoch_number: int) -> bytes:
    """Return the name of keys written without accumulators, for values to refer to; it sorts before all blocks."""
    return block(group, state, namespace, 0) + _PART.pack(_KEYS, epoch_number)


def values(group: int, state: StateId, namespace: bytes, *, of_base: bool = False) -> bytes:
    """Return the name of accumulators of kept keys; it sorts after these keys, and before all blocks.

    The same in each epoch, as they say all there is: younger ones take the place of older ones. Those of a base have
    another name: a merge of deltas may bring older ones again on top of the base.
    """
    return block(group, state, namespace, 0) + _PART.pack(_VALUES, of_base)


def are_kept_keys(name: bytes) -> bool:
    """True if a block's name is one that `kept_keys` gives."""
    return _part_of(name)[0] == _KEYS


def are_values(name: bytes) -> bool:
    """True if a block's name is one that `values` gives."""
    return _part_of(name)[0] == _VALUES


def number_of(name: bytes) -> int:
    """Return the number of the epoch that wrote kept keys; for values, 1 if they are of a base, else 0."""
    return _part_of(name)[1]


def _part_of(name: bytes) -> tuple[int, int]:
    """Return what sets a block apart from others like it: its kind of part and its number; zeros if it has none."""
    at = len(block_place(name)) + STAMP.size
    return _PART.unpack_from(name, at) if len(name) == at + _PART.size else (0, 0)


def block_place(name: bytes) -> bytes:
    """Return what the names of all blocks of the same group, state and namespace begin with."""
    return name[: undelimited(name, HEAD_SIZE)[1]]


def parse_block(name: bytes) -> tuple[bytes, int]:
    """Return the namespace of a block and the number of the epoch that wrote it."""
    namespace, at = undelimited(name, HEAD_SIZE)
    try:
        return namespace or b"", int(STAMP.unpack_from(name, at)[0]) >> 1
    except struct.error:
        raise _cut_short(name) from None
