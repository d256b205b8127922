"""Rows for the tests of states: in dicts, without layers or with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from statebackend.ids import KeyGroup, Uid
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.types import KeyType
from statebackend.states.key_context import KeyContext
from statebackend.states.write_back import FrozenValues

UID = Uid("count")
ALL = KeyGroupRange(KeyGroup(0), KeyGroup(128))


@dataclass
class RowsInADict:
    """Rows that remember how they were asked."""

    content: dict[bytes, bytes] = field(default_factory=dict)
    reads: list[int] = field(default_factory=list)
    scans: int = 0

    def get(self, name: bytes, /) -> bytes | None:
        self.reads.append(1)
        return self.content.get(name)

    def get_many(self, names: Sequence[bytes], /) -> list[bytes | None]:
        self.reads.append(len(names))
        return [self.content.get(name) for name in names]

    def put(self, name: bytes, payload: bytes, /) -> None:
        self.content[name] = payload

    def put_new(self, name: bytes, payload: bytes, /) -> None:
        assert name not in self.content
        self.put(name, payload)

    def put_absent(self, name: bytes, payload: bytes, /) -> None:
        assert name not in self.content
        self.put(name, payload)

    def delete(self, name: bytes, /) -> None:
        self.content.pop(name, None)

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return iter(sorted((name, payload) for name, payload in self.content.items() if start <= name < end))

    def take(self, frozen: FrozenValues) -> None:
        for name, payload in frozen.entries().items():
            if payload is None:
                self.delete(name)
            else:
                self.put(name, payload)


def a_context(declared: object = str, groups: KeyGroupRange = ALL, restored_epoch: int = 0) -> KeyContext:
    return KeyContext(UID, KeyType.of(declared), 128, groups, restored_epoch)


class LayeredRows(RowsInADict):
    """Rows whose cuts lie above what they have taken, with deletions said like values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[dict[bytes, bytes | None]] = [{}]
        self.below: dict[bytes, bytes] = {}

    def get(self, name: bytes, /) -> bytes | None:
        for layer in reversed(self.layers):
            if name in layer:
                return layer[name]
        return self.below.get(name)

    def get_many(self, names: Sequence[bytes], /) -> list[bytes | None]:
        return [self.get(name) for name in names]

    def put(self, name: bytes, payload: bytes, /) -> None:
        self.layers[-1][name] = payload

    def delete(self, name: bytes, /) -> None:
        self.layers[-1][name] = None

    def cut(self) -> None:
        self.layers.append({})

    def take_oldest(self, frozen: FrozenValues) -> None:
        for name, payload in {**self.layers.pop(0), **frozen.entries()}.items():
            if payload is None:
                self.below.pop(name, None)
            else:
                self.below[name] = payload
