"""Bytes and JSON that are almost right: what was written, changed in a few places.

Invariant: the same random numbers give the same changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

_NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
_PIECES: Final = (
    b"", b"\0", b"\xff" * 8, b"9" * 30, b"-1", b"1e999", b"NaN", b"null",
    b"[" * 2000, b'{"a":' * 1000, b"struct<" * 400,
    b"../..", b"/", b"\\u0000", b"\x1b[2J", b"\xed\xa0\x80", b"(", b")", b"2147483648", b"18446744073709551616",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 2**31, 2**63, 2**64,
    10**400, 1.5, 1e308, "", "x", "../..", "\0", "\ud800", "\x1b[2J", [], {}, [[]],
    {"": None}, "9" * 5000, "1-1", "x" * 70_000,
)  # fmt: skip


def changed_bytes(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change some bytes, a few times over."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(9):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << random.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = random.randrange(256)
            case 2:
                del changed[at : at + random.choice((1, 2, 4, 8, len(changed)))]
            case 3:
                changed[at:at] = random.choice(_PIECES)
            case 4:
                size = random.choice((1, 2, 4, 8))
                number = random.choice(_NUMBERS) % (1 << 8 * size)
                changed[at : at + size] = number.to_bytes(size, random.choice(("big", "little")))
            case 5:
                start = random.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + random.randrange(64)]
            case 6:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                changed[at : at + random.randrange(64)] = other[start : start + random.randrange(64)]
            case 7 if changed:
                start = at % len(changed)
                changed[start : start + random.randrange(16)] = random.randbytes(random.randrange(16))
            case _:
                del changed[at:]
    return bytes(changed)


def changed_json(random: Random, value: Any) -> Any:
    """Change a JSON value in one place."""
    match value:
        case dict() if value and random.random() < 0.9:
            name = random.choice(list(value))
            if random.random() < 0.1:
                return {key: item for key, item in value.items() if key != name}
            if random.random() < 0.05:
                return {**value, random.choice(("x", "", *value)): random.choice(_VALUES)}
            return {**value, name: changed_json(random, value[name])}
        case list() if value and random.random() < 0.9:
            at = random.randrange(len(value))
            if random.random() < 0.1:
                return value[:at] + value[at + 1 :]
            if random.random() < 0.05:
                return [*value, value[at]]
            return [*value[:at], changed_json(random, value[at]), *value[at + 1 :]]
        case str() if value and random.random() < 0.5:
            return changed_bytes(random, value.encode(errors="replace"), [b"x"]).decode(errors="replace")
        case int() if random.random() < 0.3:
            return value + random.choice((-1, 1, 10, -(2**32)))
        case _:
            if random.random() < 0.03:
                return _nested(random.choice((50, 400, 900)))
            return random.choice(_VALUES)


def changed_text(random: Random, text: bytes, dumped: Callable[[Any], bytes]) -> bytes:
    """Change a document of JSON in a few places, and write it as its writer does; bytes of what is none any more."""
    try:
        value = json.loads(text)
    except ValueError:
        return changed_bytes(random, text, [text])
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        value = changed_json(random, value)
    return dumped(value)


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value
