"""Functions of a keyed stream that a control stream configures.

Invariant: every partition gets every row of the control stream, and nothing else changes broadcast state; so it
is the same in all partitions at a cut, if what control rows of different senders do does not depend on their order.

Equal maps have equal bytes; what was written by another declaration or another version is refused with the name of the
state, or migrated by its codec.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar, cast, overload

from snapshot.operators.function_operator import FunctionOperator
from snapshot.operators.keyed_function import FunctionRun, KeyedFunction, NoKeyHere, Outputs, ProcessContext
from snapshot.operators.operator import OperatorContext
from snapshot.operators.row_class import Row
from snapshot.operators.rows import Rows
from statebackend.errors import ProgramError
from statebackend.ids import Uid
from statebackend.states.codec_choice import Declared, codec_of
from statebackend.states.codecs import Codec, NotEncodable
from statebackend.states.declarations import NotOpen
from statebackend.states.map_keys import MapKeys, map_keys_of
from statebackend.states.row_form import WrongValueType

K = TypeVar("K")
V = TypeVar("V")

_FORMAT: Final = 1


class BroadcastMismatch(ProgramError):
    """Broadcast state in a snapshot that the program declares otherwise, or that is damaged."""


class BroadcastReadOnly(ProgramError, TypeError):
    """Broadcast state was changed for a row that is not of the control stream, so other partitions would not know."""


class Broadcast(Generic[K, V]):
    """Declares a map that rows of the control stream write, and that is the same for all keys and partitions.

    `rules = Broadcast(str, float)` as an attribute of a `KeyedBroadcastProcess`. Keys and values are of types as in
    `MapState(keys, values)`. All of it is in memory in every partition, and in every snapshot once.
    """

    def __init__(self, keys: Declared[K], values: Declared[V]) -> None:
        self.keys: Final[MapKeys[K]] = map_keys_of(keys)
        self.values: Final[Codec[V]] = codec_of(values)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> BroadcastMap[K, V]: ...

    def __get__(self, instance: object | None, owner: type) -> Self | BroadcastMap[K, V]:
        if instance is None:
            return self
        raise NotOpen(f"a broadcast state of {owner.__qualname__} is used before it is opened")


class BroadcastMap(Mapping[K, V]):
    """A broadcast state at work: a mapping that is written with `put`, `remove` and `clear`, for control rows alone.

    Iterating is in the order of the keys' bytes, so that it is the same after a restore.
    """

    def __init__(self, name: str, declared: Broadcast[K, V], gate: Gate) -> None:
        self._name, self._declared, self._gate = name, declared, gate
        self._plain = declared.values.immutable
        self._kept: dict[K, object] = {}
        """Values that could change under us are kept as bytes, so that a cut has what was put."""

    def put(self, key: K, value: V) -> None:
        """Set the value of a key; `WrongValueType` if one of them is not of the declared type."""
        self._gate.check(self._name)
        values = self._declared.values
        try:
            accepted = values.accept(value)
        except NotEncodable as error:
            raise WrongValueType(self._gate.uid, self._name, values.name, str(error)) from error
        self._kept[self._normal(key)] = accepted if self._plain else values.encode(accepted)

    def remove(self, key: K) -> None:
        """Remove a key, which need not be there."""
        self._gate.check(self._name)
        self._kept.pop(self._normal(key), None)

    def clear(self) -> None:
        """Remove all keys."""
        self._gate.check(self._name)
        self._kept.clear()

    def __getitem__(self, key: K) -> V:
        kept = self._kept[key]
        return cast("V", kept) if self._plain else self._declared.values.decode(cast("bytes", kept))

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self._kept, key=self._declared.keys.encode))

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def to_json(self) -> dict[str, Any]:
        """Return the whole map as JSON: the same for equal maps."""
        keys, values = self._declared.keys, self._declared.values
        entries = sorted(
            (keys.encode(key).hex(), (values.encode(cast("V", kept)) if self._plain else cast("bytes", kept)).hex())
            for key, kept in self._kept.items()
        )
        codec = {"name": values.name, "version": values.version}
        return {"keys": keys.name, "values": codec, "entries": entries}

    def restore(self, found: dict[str, Any]) -> None:
        """Take what `to_json` gave, now or in an earlier version of the program."""
        keys, values = self._declared.keys, self._declared.values
        name, version = str(found["values"]["name"]), int(found["values"]["version"])
        if found["keys"] != keys.name or name not in {values.name, *values.replaces}:
            self._refuse(
                f"it was declared as a map of {found['keys']} to {name}, and is now one of {keys.name} to {values.name}"
            )
        as_before = name == values.name and version == values.version
        if not as_before and not values.oldest <= version < values.version:
            self._refuse(
                f"its values were written by version {version} of {name}, and the program reads versions "
                f"{values.oldest} to {values.version}"
            )
        for key, data in found["entries"]:
            payload = bytes.fromhex(data)
            value = values.decode(payload) if as_before else values.migrate(payload, version)
            self._kept[keys.decode(bytes.fromhex(key))] = value if self._plain else values.encode(value)

    def _normal(self, key: K) -> K:
        """Return the key as it comes back from its bytes; raise `WrongValueType` if it cannot be one."""
        keys = self._declared.keys
        try:
            normal = keys.decode(keys.encode(key))
        except NotEncodable as error:
            raise WrongValueType(self._gate.uid, self._name, f"a map of {keys.name}", str(error)) from error
        if normal != normal:
            raise WrongValueType(self._gate.uid, self._name, f"a map of {keys.name}", "NaN cannot be found again")
        return normal

    def _refuse(self, why: str) -> NoReturn:
        raise BroadcastMismatch(f"{self._gate.uid}: broadcast state {self._name!r}: {why}")


@dataclass(slots=True)
class Gate:
    """A gate that says whether broadcast state may be written at the moment."""

    uid: Uid
    writable: bool = False

    def check(self, name: str) -> None:
        """Raise `BroadcastReadOnly` if broadcast state may not be written now."""
        if not self.writable:
            raise BroadcastReadOnly(
                f"{self.uid}: broadcast state {name!r} can be changed in on_broadcast alone, as other partitions do "
                f"not see what happens here"
            )


class BroadcastStates:
    """All broadcast state of an operator in one partition."""

    def __init__(self, uid: Uid, declared: Mapping[str, Broadcast[Any, Any]], restored: bytes | None) -> None:
        """Open it; `BroadcastMismatch` if it does not fit what is declared. A state that is new begins empty."""
        self.gate: Final = Gate(uid)
        self.maps: Final = {name: BroadcastMap(name, broadcast, self.gate) for name, broadcast in declared.items()}
        if restored is not None:
            self._restore(restored)

    def to_bytes(self) -> bytes:
        """Return all states as bytes: the same for equal states, in every partition and process."""
        states = {name: state.to_json() for name, state in self.maps.items()}
        text = json.dumps({"format": _FORMAT, "states": states}, sort_keys=True, separators=(",", ":"))
        return text.encode()

    def _restore(self, data: bytes) -> None:
        uid = self.gate.uid
        try:
            found = json.loads(data)
            if found["format"] != _FORMAT:
                raise BroadcastMismatch(
                    f"{uid}: the broadcast state has format {found['format']}, and this program reads format {_FORMAT}"
                )
            states = dict(found["states"])
            unknown = sorted(states.keys() - self.maps.keys())
            if unknown:
                raise BroadcastMismatch(
                    f"{uid}: the snapshot has broadcast state {', '.join(map(repr, unknown))}, which the program does "
                    f"not declare: declare it, and clear it if it is not needed any more"
                )
            for name, state in states.items():
                self.maps[name].restore(state)
        except BroadcastMismatch:
            raise
        except Exception as error:  # whatever a codec does with bytes that it did not write
            raise BroadcastMismatch(
                f"{uid}: {len(data)} bytes are no broadcast state ({type(error).__name__}: {error}): a codec was "
                f"changed without a new version, or the snapshot is damaged"
            ) from error


class KeyedBroadcastProcess(KeyedFunction):
    """A function of keyed rows, and of control rows that every partition gets.

        class Alert(KeyedBroadcastProcess):
            limits = Broadcast(str, float)
            spent = ValueState(float, default=0.0)

            def on_event(self, payment, ctx):
                self.spent.set(self.spent.get() + payment.amount)
                if self.spent.get() > self.limits.get(payment.country, 100.0):
                    ctx.emit((payment.user, self.spent.get()))

            def on_broadcast(self, limit, ctx):
                self.limits.put(limit.country, limit.amount)

    Nothing says in which order keyed rows and control rows come.
    """

    def broadcasts(self) -> Mapping[str, Broadcast[Any, Any]]:
        """Return the broadcast states by name: the attributes that are `Broadcast`. Override it to declare others."""
        found: dict[str, Broadcast[Any, Any]] = {}
        for members in (*map(vars, reversed(type(self).__mro__)), vars(self)):
            found = {name: declared for name, declared in found.items() if name not in members}
            found.update((name, member) for name, member in members.items() if isinstance(member, Broadcast))
        return found

    def on_event(self, event: Row, ctx: ProcessContext, /) -> None:
        """Handle each keyed row; broadcast state can be read."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_event(self, event, ctx)")

    def on_broadcast(self, event: Row, ctx: ProcessContext, /) -> None:
        """Handle each control row, in every partition; broadcast state can be written, and there is no key.

        Changes to broadcast state must depend on the row and the broadcast state alone. Rows that it emits are emitted
        by every partition.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method on_broadcast(self, event, ctx)")


@dataclass(frozen=True, slots=True, eq=False)
class BroadcastProcess(FunctionOperator[KeyedBroadcastProcess]):
    """The operator that calls a `KeyedBroadcastProcess`; its second input is the control stream."""

    kind: ClassVar[str] = "broadcast"
    base: ClassVar[type[KeyedFunction]] = KeyedBroadcastProcess
    handlers: ClassVar[tuple[str, ...]] = ("on_event", "on_broadcast")

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        problems = FunctionOperator.check(self)
        if self.inputs[1].keys:
            problems.append("the control stream is divided by keys; every partition must get the whole of it")
        if isinstance(self.function, KeyedBroadcastProcess):
            both = self.function.broadcasts().keys() & self.function.states().keys()
            problems += [f"{name!r} is declared as keyed state and as broadcast state" for name in sorted(both)]
        return problems

    def open(self, context: OperatorContext) -> BroadcastRun:
        """Open it in a partition; `BroadcastMismatch` if the broadcast state of the snapshot is another."""
        states = BroadcastStates(context.uid, self.function.broadcasts(), context.broadcast)
        return BroadcastRun(self.function, context, self.outputs, states, self.inputs[0].keys)


class BroadcastRun(FunctionRun):
    """A `KeyedBroadcastProcess` at work in one partition."""

    def __init__(
        self,
        function: KeyedBroadcastProcess,
        context: OperatorContext,
        outputs: Outputs,
        broadcast: BroadcastStates,
        keys: tuple[str, ...],
    ) -> None:
        super().__init__(function, context, outputs, broadcast.maps)
        assert isinstance(self.function, KeyedBroadcastProcess)
        self._broadcast, self._keys = broadcast, keys
        self._on_event, self._on_broadcast = self.function.on_event, self.function.on_broadcast
        self._out_of_reach = {name: _OutOfReach(f"{self.label}: state {name!r}") for name in self.states}

    def rows(self, input: int, rows: Rows) -> int:
        """Call `on_event` or `on_broadcast` for each row until `overdue`; return for how many."""
        if input == 0:
            return self.feed(self._on_event, self._keys, rows)
        self.bind(self._out_of_reach)
        self._broadcast.gate.writable = True
        taken = self.feed_unkeyed(self._on_broadcast, rows)
        self._broadcast.gate.writable = False
        self.bind(self.states)
        return taken

    def broadcast(self) -> bytes | None:
        """Return the broadcast state for the cut."""
        return self._broadcast.to_bytes()


class _OutOfReach:
    """The stand-in for a key's state where there is no key: it would be that of whichever key came last."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise NoKeyHere(f"{self._what} is used in on_broadcast, where there is no key; use broadcast state there")
