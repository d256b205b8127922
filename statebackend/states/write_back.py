"""A bounded cache of one state's values above its rows, which are written when a cut is made or memory runs short.

Invariant: a read gives what was written last. Values that no cut has seen yet are in `dirty`, are being
spilled, or were spilled into the rows; values of a cut that is on its way into a file are in its `FrozenValues`, which
never change; everything else is in the rows, and maybe kept here, too.

Two generations bound what is kept without need: whatever is used comes into the young one, and when that is full
it becomes the old one, and what was old and not used since is given up.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from statebackend.entries import StateId
from statebackend.errors import StoreError
from statebackend.states.key_context import Address, KeyContext

S = TypeVar("S")


class Absence(Enum):
    """The mark that is kept for a value that does not exist."""

    ABSENT = "absent"
    NOTHING = "nothing is known"


ABSENT: Final = Absence.ABSENT
NOTHING: Final = Absence.NOTHING
Kept: TypeAlias = S | Literal[Absence.ABSENT]
"""The entry of an address: a value in the form in which the state keeps it, or the mark that it has none."""

_SHARES: Final = 4
"""Young, old, dirty and frozen values may each take as much of the budget."""

_STEP: Final = 64
"""Every so many entries that come into the cache, a few others are spilled or given up."""

_SAMPLED: Final = 32
_ENTRY_OVERHEAD: Final = 150
"""The memory of an entry in the dicts themselves, which are at most two thirds full, about."""

_FIRST_GUESS: Final = 300
_ENOUGH: Final = 16 * _STEP
"""Entries are weighed again when so many have come."""

_SMALLEST: Final = 2 * _STEP

_FEW: Final = 8
"""If more than that part of what is kept must be given up, all of it is."""


class Rows(Protocol):
    """The rows of the partition, where the values rest."""

    def get(self, name: bytes, /) -> bytes | None:
        """Return the row's payload, None if there is none."""

    def get_many(self, names: Sequence[bytes], /) -> list[bytes | None]:
        """Return the rows' payloads, None for a row that is not there."""

    def put(self, name: bytes, payload: bytes, /) -> None:
        """Set a row."""

    def put_new(self, name: bytes, payload: bytes, /) -> None:
        """Set a row under a name that was never used."""

    def put_absent(self, name: bytes, payload: bytes, /) -> None:
        """Set a row that is not there now."""

    def delete(self, name: bytes, /) -> None:
        """Remove a row."""

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Return rows from `start` up to, not including, `end`, in order, as they are when this is called."""


class LayerOrder(StoreError, RuntimeError):
    """Frozen values were released before older ones, which would be read again instead of them."""


class FrozenValues:
    """The values that were written between two cuts. Never change; may be read by any thread.

    Where the rows of the same cut have an entry with the same name, these here are younger and hide it.
    """

    __slots__ = ("_layers", "_names", "_outdated", "_payloads")

    def __init__(
        self,
        layers: tuple[dict[Address, object], ...],
        names: Callable[[Sequence[Address]], list[bytes]],
        payloads: Callable[[Sequence[object]], list[bytes]],
    ) -> None:
        self._layers, self._names, self._payloads = layers, names, payloads
        self._outdated: dict[Address, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._layers))

    def entries(self) -> dict[bytes, bytes | None]:
        """Return payloads by name, in no order; None is a deletion. For a thread in the background."""
        newest, *older = self._layers
        found: dict[bytes, bytes | None] = {}
        for layer in older:
            found.update(self._encoded(layer))
        found.update(self._encoded(newest))
        return found

    def current(self) -> dict[bytes, bytes | None]:
        """Return names and payloads of what is not outdated. For the thread that owns the state."""
        outdated = set(self._names(list(self._outdated)))
        return {name: payload for name, payload in self.entries().items() if name not in outdated}

    def clear(self) -> None:
        """Give back the memory bit by bit: for a thread in the background, after the release."""
        for layer in self._layers:
            while layer:
                layer.popitem()

    def find(self, address: Address) -> object:
        """Return what was written at an address; NOTHING if nothing was, or the rows have had a younger value since."""
        if address in self._outdated:
            return NOTHING
        for layer in self._layers:
            if address in layer:
                return layer[address]
        return NOTHING

    def outdate(self, addresses: Iterable[Address], cuts: int) -> None:
        """Hide the values at these addresses: younger ones went into the rows, after so many cuts."""
        for address in addresses:
            if any(address in layer for layer in self._layers):
                self._outdated.setdefault(address, cuts)

    def rewind(self, cuts: int) -> None:
        """Show again the values hidden after so many cuts, or more: the younger ones are in the rows no more."""
        self._outdated = {address: when for address, when in self._outdated.items() if when < cuts}

    def addresses(self) -> Iterator[Address]:
        """Yield all addresses that were written; some may come twice."""
        return chain.from_iterable(self._layers)

    def _encoded(self, layer: dict[Address, object]) -> Iterator[tuple[bytes, bytes | None]]:
        kept = [value for value in layer.values() if value is not ABSENT]
        payloads = self._payloads(kept)
        if len(kept) < len(layer):
            left = iter(payloads)
            return zip(
                self._names(list(layer)),
                (None if value is ABSENT else next(left) for value in layer.values()),
                strict=True,
            )
        return zip(self._names(list(layer)), payloads, strict=True)


class _Generation(dict[Address, S]):
    """Values by address; one that is missing is looked for below."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[Address], S]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, address: Address) -> S:
        return self._find(address)


class WriteBack(Generic[S]):
    """The values of one state. For one thread, except for what `FrozenValues` allows.

    `payloads` and `parse` turn values as they are kept into payloads of rows, and back. What is kept must not change.
    `absent` is what to hand out where there is no value.

    A value is read as `young[address]`, and written by `admit(address)` if `young` does not have the address, and then
    into `young` and `dirty`, as `write` does; these two are public for callers that cannot afford the calls.
    """

    __slots__ = (
        "_absent", "_budget", "_came", "_context", "_cuts", "_frozen", "_limit", "_old", "_parse", "_payloads",
        "_retired", "_rows", "_spilled", "_spilling", "_state", "_unweighed", "_weight", "dirty", "young",
    )  # fmt: skip

    def __init__(
        self,
        context: KeyContext,
        rows: Rows,
        state: StateId,
        payloads: Callable[[Sequence[S]], list[bytes]],
        parse: Callable[[Sequence[bytes]], list[S]],
        absent: S,
        budget: int,
    ) -> None:
        self._context, self._rows, self._state = context, rows, state
        self._payloads, self._parse, self._absent, self._budget = payloads, parse, absent, budget
        self._came = 0
        self._weight, self._unweighed = _FIRST_GUESS, 0
        self._limit = max(_SMALLEST, budget // (_SHARES * _FIRST_GUESS))
        self.young: dict[Address, S] = _Generation(self._find)
        self.dirty: dict[Address, Kept[S]] = {}
        self._old: dict[Address, S] = {}
        self._retired: dict[Address, S] = {}
        self._spilling: dict[Address, Kept[S]] = {}
        self._frozen: deque[FrozenValues] = deque()
        self._cuts = 0
        self._spilled = -1
        """After how many cuts a value went into the rows last."""

    def write(self, address: Address, kept: S) -> None:
        """Keep this value at an address."""
        if address not in self.young:
            self.admit(address)
        self.young[address] = self.dirty[address] = kept

    def remove(self, address: Address) -> None:
        """Keep no value at an address."""
        if address not in self.young:
            self.admit(address)
        self.young[address] = self._absent
        self.dirty[address] = ABSENT

    def admit(self, address: Address) -> None:
        """Make room for the current address, which is not in `young`; `ForeignKey` if it may not be written here."""
        if address not in self._old and address not in self.dirty:
            self._context.row(self._state)
        self._make_room()

    def prefetch(self, addresses: Sequence[Address]) -> None:
        """Read from the rows, all at once, the values at these addresses that are not here."""
        missing = [address for address in addresses if address not in self.young and address not in self._old]
        if self.dirty or self._spilling or self._frozen:
            missing = [address for address in missing if self._above_rows(address) is NOTHING]
        if not missing:
            return
        names = self._context.rows(self._state, missing)
        self._context.check_ours(names, missing)
        payloads = self._rows.get_many(names)
        found = self._parse([payload for payload in payloads if payload is not None])
        if len(found) < len(missing):
            absent, left = self._absent, iter(found)
            found = [absent if payload is None else next(left) for payload in payloads]
        for at in range(0, len(missing), _STEP):
            self._make_room(min(_STEP, len(missing) - at))
            self.young.update(zip(missing[at : at + _STEP], found[at : at + _STEP], strict=True))

    def freeze(self) -> FrozenValues:
        """Cut, and return what was written since the last cut. Costs the same whatever its size."""
        frozen = self._of(self.dirty, self._spilling) if self._spilling else self._of(self.dirty)
        self._frozen.append(frozen)
        self._cuts += 1
        self.dirty, self._spilling = {}, {}
        return frozen

    def release(self, frozen: FrozenValues) -> None:
        """Forget a cut's values, now that the rows have them; raise `LayerOrder` unless it is the oldest cut."""
        if not self._frozen or self._frozen[0] is not frozen:
            raise LayerOrder(
                f"{self._context.uid}: {len(frozen)} frozen values cannot be released: they are not the oldest of "
                f"{len(self._frozen)} cuts"
            )
        self._frozen.popleft()

    def rewind(self, since: Sequence[FrozenValues]) -> FrozenValues:
        """Forget what was frozen since a cut, the oldest first, and what was not frozen yet; none was released.

        The rows have to be those of that cut before the next read. The caller clears what is returned.
        """
        written = [*since, self.freeze()]
        for frozen in reversed(written):
            if self._frozen[-1] is not frozen:
                raise LayerOrder(f"{self._context.uid}: {len(since)} cuts cannot be dropped: they are not the youngest")
            self._frozen.pop()
        self._cuts -= len(written)
        for frozen in self._frozen:
            frozen.rewind(self._cuts)
        if self._spilled < self._cuts and _FEW * sum(map(len, written)) <= len(self.young) + len(self._old):
            for address in chain.from_iterable(frozen.addresses() for frozen in written):
                self.young.pop(address, None)
                self._old.pop(address, None)
            return written[-1]
        given_up = self._of(self.young, self._old, self._retired)
        self.young, self._old, self._retired = _Generation(self._find), {}, {}
        self._spilled = min(self._spilled, self._cuts - 1)
        return given_up

    def spill(self) -> None:
        """Write into the rows all values that no cut has seen yet, so that the next cut has them there."""
        self._spill(len(self._spilling))
        self._spilling, self.dirty = self.dirty, {}
        self._spill(len(self._spilling))

    def pending_bytes(self) -> int:
        """Return about how much memory holds what the rows do not have yet."""
        return self._weight * (len(self.dirty) + len(self._spilling) + sum(map(len, self._frozen)))

    def above_rows(self) -> dict[bytes, bytes | None]:
        """Return all that the rows do not have yet, by the names of the rows; None is a deletion. Changes nothing."""
        found: dict[bytes, bytes | None] = {}
        for frozen in self._frozen:
            found.update(frozen.current())
        found.update(self._of(self.dirty, self._spilling).entries())
        return found

    def _of(self, *layers: Mapping[Address, Kept[S]]) -> FrozenValues:
        context, state = self._context, self._state
        return FrozenValues(
            cast("tuple[dict[Address, object], ...]", layers),
            lambda addresses: context.rows(state, addresses),
            cast("Callable[[Sequence[object]], list[bytes]]", self._payloads),
        )

    def memory_bytes(self) -> int:
        """Return about how much memory the values and what is around them take."""
        return self._weight * (len(self.young) + len(self._old) + len(self._retired)) + self.pending_bytes()

    def _find(self, address: Address) -> S:
        """Return the value of the current address, which is not in `young`, and put it there."""
        if address in self._old:
            kept = self._old[address]
        else:
            above = self._above_rows(address)
            if above is NOTHING:
                payload = self._rows.get(self._context.row(self._state))
                kept = self._absent if payload is None else self._parse((payload,))[0]
            else:
                kept = self._absent if isinstance(above, Absence) else above
        self._make_room()
        self.young[address] = kept
        return kept

    def _above_rows(self, address: Address) -> S | Absence:
        for layer in (self.dirty, self._spilling):
            if address in layer:
                return layer[address]
        for frozen in reversed(self._frozen):
            found = frozen.find(address)
            if found is not NOTHING:
                return cast("Kept[S]", found)
        return NOTHING

    def _make_room(self, coming: int = 1) -> None:
        """Do what is due before so many values, at most a step, come into `young`."""
        self._came += coming
        if self._came >= _STEP:
            self._came = 0
            self._tidy()

    def _tidy(self) -> None:
        """Do a little of what is to be done: in steps, so that no call waits for all of it."""
        for _ in range(min(2 * _STEP, len(self._retired))):
            self._retired.popitem()
        self._unweighed += _STEP
        if len(self.young) >= self._limit or self._unweighed >= min(_ENOUGH, len(self.young)):
            self._weigh()
        if len(self.young) >= self._limit:
            self._retired, self._old = self._old, self.young
            self.young = _Generation(self._find)
        if len(self.dirty) > self._limit:
            self._spill(len(self._spilling))
            self._spilling, self.dirty = self.dirty, {}
        else:
            self._spill(4 * _STEP)

    def _spill(self, count: int) -> None:
        taken = [self._spilling.popitem() for _ in range(min(count, len(self._spilling)))]
        taken = [(address, kept) for address, kept in taken if address not in self.dirty]
        if not taken:
            return
        try:
            self._put(taken)
        except BaseException:
            self._spilling.update(taken)
            raise

    def _put(self, written: Sequence[tuple[Address, Kept[S]]]) -> None:
        addresses = [address for address, _ in written]
        left = iter(self._payloads([kept for _, kept in written if not isinstance(kept, Absence)]))
        for name, (_, kept) in zip(self._context.rows(self._state, addresses), written, strict=True):
            if kept is ABSENT:
                self._rows.delete(name)
            else:
                self._rows.put(name, next(left))
        self._spilled = self._cuts
        for frozen in self._frozen:
            frozen.outdate(addresses, self._cuts)

    def _weigh(self) -> None:
        """Learn how large the latest entries are, and the latest written, as those that were read may be absent."""
        self._unweighed = 0
        samples = [list(islice(reversed(kept.items()), _SAMPLED)) for kept in (self.young, self.dirty)]
        sizes = [sum(_size(address) + _size(kept) for address, kept in some) // len(some) for some in samples if some]
        if sizes:
            self._weight = _ENTRY_OVERHEAD + max(sizes)
            self._limit = max(_SMALLEST, self._budget // (_SHARES * self._weight))


def _size(value: object) -> int:
    size = sys.getsizeof(value)
    return size + sum(map(_size, value)) if isinstance(value, tuple) else size
