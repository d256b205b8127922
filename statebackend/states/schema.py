"""The declarations of all keyed states of one operator, as its files store them.

Invariant: no two states of a schema have entries under the same number, those dropped included; and equal
schemas have equal text.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeVar, cast, get_args

from statebackend.entries import StateId, state_id
from statebackend.errors import ProgramError, StoreError
from statebackend.ids import Uid
from statebackend.keygroups import check_parallelism
from statebackend.keys.types import KeyType
from statebackend.states.codecs import Codec
from statebackend.states.ttl import TimeKind

T = TypeVar("T")

_FORMAT: Final = 1
_FORMAT_OF_META: Final = 1


class StateMismatch(ProgramError, ValueError):
    """State that was declared otherwise when it was written; the message says which, and what can be done."""

    def __init__(self, uid: Uid, state: str | None, reason: str) -> None:
        super().__init__(f"{uid}: " + (reason if state is None else f"state {state!r}: {reason}"))
        self.uid, self.state = uid, state


class BrokenSchema(StoreError, ValueError):
    """Text that is no schema of ours: damaged, or written by a newer version."""


class StateKind(Enum):
    """The kind of a state, as files store it."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    TABLE = "table"
    TIMERS = "timers"


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """A codec: as it is declared, it reads the versions from `oldest` on; as it stands in files, they hold such.

    `replaces` are the names of codecs whose values a declared one reads, too; it is not in files.
    """

    name: str
    version: int
    oldest: int
    replaces: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, codec: Codec[T]) -> CodecSpec:
        """Return what a program that declares this codec reads and writes."""
        return cls(codec.name, codec.version, codec.oldest, codec.replaces)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One declared state.

    `stored_as` is the name that decides under which number its entries lie: its own, unless it was renamed or an
    earlier state of that name was dropped. `detail` is JSON that must stay as it is (a table says there what it
    aggregates). `expires` says in which time, for a state with a time to live.
    """

    name: str
    kind: StateKind
    codec: CodecSpec | None = None
    map_keys: str | None = None
    expires: TimeKind | None = None
    detail: str = "null"
    stored_as: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a state needs a name")
        if not self.stored_as:
            object.__setattr__(self, "stored_as", self.name)
        object.__setattr__(self, "detail", _canonical(json.loads(self.detail)))

    @property
    def id(self) -> StateId:
        """Return the number under which its entries lie."""
        return state_id(self.stored_as)

    def begun(self) -> StateSpec:
        """Return the spec of a state that is still empty: only the present version of its codec is in its files."""
        codec = self.codec
        return self if codec is None else replace(self, codec=replace(codec, oldest=codec.version))


@dataclass(frozen=True, slots=True)
class Schema:
    """All keyed states of one operator. `dropped` are the stored names of states that are declared no longer."""

    uid: Uid
    key_type: KeyType
    max_parallelism: int
    states: tuple[StateSpec, ...]
    dropped: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        check_parallelism(1, self.max_parallelism)
        for name, count in Counter(spec.name for spec in self.states).items():
            if count > 1:
                raise StateMismatch(self.uid, name, f"{count} states have this name; each needs one of its own")
        owners: dict[StateId, str] = {}
        for stored_as in [*(spec.stored_as for spec in self.states), *self.dropped]:
            other = owners.get(state_id(stored_as))
            if other is not None:
                raise StateMismatch(
                    self.uid, stored_as, f"its number in files is that of {other!r}: choose another name"
                )
            owners[state_id(stored_as)] = stored_as

    def state(self, name: str) -> StateSpec:
        """Return the state with this name; raise `StateMismatch` if there is none."""
        for spec in self.states:
            if spec.name == name:
                return spec
        raise StateMismatch(self.uid, name, "there is no such state")

    def begun(self) -> Schema:
        """Return the schema to write for an operator without state so far. One with state uses `schema_fit.fitted`."""
        return replace(self, states=tuple(spec.begun() for spec in self.states))

    def to_json(self) -> str:
        """Return the schema as text, the same for equal schemas."""
        return _canonical(
            {
                "format": _FORMAT,
                "uid": self.uid,
                "key_type": self.key_type.name,
                "max_parallelism": self.max_parallelism,
                "states": [_spec_json(spec) for spec in self.states],
                "dropped": list(self.dropped),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` wrote; raise `BrokenSchema` if it is anything else."""
        try:
            found = json.loads(text)
            if found["format"] != _FORMAT:
                raise BrokenSchema(f"it has format {found['format']}, and this program reads format {_FORMAT}")
            uid, key_type = Uid(_text(found["uid"])), KeyType.parse(_text(found["key_type"]))
            states = tuple(_spec(item) for item in found["states"])
            dropped = tuple(_text(name) for name in found["dropped"])
            return cls(uid, key_type, _number(found["max_parallelism"]), states, dropped)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenSchema(f"{text[:80]!r} is no schema of keyed state: {error}") from error

    def to_meta(self) -> bytes:
        """Return what a file says of its states under `META_KEY`."""
        return json.dumps({"format": _FORMAT_OF_META, "schema": json.loads(self.to_json())}).encode()

    @classmethod
    def from_meta(cls, meta: bytes) -> Schema:
        """Read what `to_meta` wrote; raise `BrokenSchema` if this version cannot."""
        try:
            found = json.loads(meta)
            if found["format"] != _FORMAT_OF_META:
                raise BrokenSchema(f"it has format {found['format']}, and this program reads format {_FORMAT_OF_META}")
            return cls.from_json(json.dumps(found["schema"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrokenSchema(str(error)) from error


def _spec_json(spec: StateSpec) -> dict[str, object]:
    codec = spec.codec
    return {
        "name": spec.name,
        "kind": spec.kind.value,
        "codec": None if codec is None else {"name": codec.name, "version": codec.version, "oldest": codec.oldest},
        "map_keys": spec.map_keys,
        "expires": spec.expires,
        "detail": json.loads(spec.detail),
        "stored_as": spec.stored_as,
    }


def _spec(found: dict[str, object]) -> StateSpec:
    expires, map_keys = found["expires"], found["map_keys"]
    if expires is not None and expires not in get_args(TimeKind):
        raise BrokenSchema(f"{expires!r} is no kind of time")
    return StateSpec(
        name=_text(found["name"]),
        kind=StateKind(found["kind"]),
        codec=_codec_spec(found["codec"]),
        map_keys=None if map_keys is None else _text(map_keys),
        expires=cast("TimeKind | None", expires),
        detail=_canonical(found["detail"]),
        stored_as=_text(found["stored_as"]),
    )


def _codec_spec(found: object) -> CodecSpec | None:
    if found is None:
        return None
    if not isinstance(found, dict):
        raise BrokenSchema(f"{found!r} is no codec")
    return CodecSpec(_text(found["name"]), _number(found["version"]), _number(found["oldest"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BrokenSchema(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BrokenSchema(f"{value!r} is no whole number")
    return value


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
