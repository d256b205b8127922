"""The parts of recently used lists and maps: all parts of each, so that no layer of rows need be asked.

Invariant: what is known of an address is exactly what its rows say, the expired ones included; nothing waits
here to be written. What is known takes about as much memory as it may, and what was used longest ago is given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from statebackend.states.key_context import Address

_MOST: Final = 1024
"""So many parts of one address may be known: reading these takes about a millisecond."""

_LEAST_KNOWN: Final = 8
"""One address may take this part of the memory."""

_ADDRESS_OVERHEAD: Final = 400
_PART_OVERHEAD: Final = 120
"""The memory of the dicts and the objects, about."""

_REMEMBERED: Final = 1 << 12


class Parts:
    """All parts of one address: payloads by the ends of their rows' names.

    `cuts` is how many cuts had been made when they were read or written last.
    """

    __slots__ = ("_is_sorted", "_last", "by_rest", "cuts", "size")

    def __init__(self, cuts: int) -> None:
        self.by_rest: dict[bytes, bytes] = {}
        self.size, self.cuts = _ADDRESS_OVERHEAD, cuts
        self._is_sorted, self._last = True, b""

    def in_order(self) -> list[tuple[bytes, bytes]]:
        """Return the parts as they are now, sorted."""
        if not self._is_sorted:
            self.by_rest = dict(sorted(self.by_rest.items()))
            self._is_sorted, self._last = True, next(reversed(self.by_rest), b"")
        return list(self.by_rest.items())

    def put(self, rest: bytes, payload: bytes) -> int:
        """Set a part, and return by how much they have grown."""
        before = self.by_rest.get(rest)
        self.by_rest[rest] = payload
        if before is not None:
            grown = len(payload) - len(before)
        else:
            grown = _PART_OVERHEAD + len(rest) + len(payload)
            if rest > self._last:
                self._last = rest
            else:
                self._is_sorted = False
        self.size += grown
        return grown

    def remove(self, rest: bytes) -> int:
        """Remove a part, which need not be there, and return by how much they have grown."""
        before = self.by_rest.pop(rest, None)
        if before is None:
            return 0
        grown = -(_PART_OVERHEAD + len(rest) + len(before))
        self.size += grown
        return grown


class KnownParts:
    """All parts of the addresses that were used last. For one thread."""

    __slots__ = ("_budget", "_cuts", "_known", "_too_large", "memory_bytes")

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._known: OrderedDict[Address, Parts] = OrderedDict()
        self._too_large: set[Address] = set()
        self._cuts = 0
        self.memory_bytes = 0
        """The memory that it takes, about."""

    def of(self, address: Address) -> Parts | None:
        """Return what is known of an address; None if that may not be all."""
        found = self._known.get(address)
        if found is not None:
            self._known.move_to_end(address)
        return found

    def learn(self, address: Address, rows: Iterator[tuple[bytes, bytes]]) -> Parts | Iterator[tuple[bytes, bytes]]:
        """Keep all parts of an address, given in order, and return them; or give them back if they are too many."""
        if address in self._too_large:
            return self._counted(address, rows)
        parts, most = Parts(self._cuts), self._budget // _LEAST_KNOWN
        for rest, payload in rows:
            parts.put(rest, payload)
            if len(parts.by_rest) > _MOST or parts.size > most:
                self._remember_as_too_large(address)
                return _first(parts.in_order(), rows)
        self._keep(address, parts)
        return parts

    def put(self, address: Address, parts: Parts, rest: bytes, payload: bytes) -> None:
        """Set a part of an address that is known."""
        parts.cuts = self._cuts
        self.memory_bytes += parts.put(rest, payload)
        if len(parts.by_rest) > _MOST or parts.size > self._budget // _LEAST_KNOWN:
            self.give_up(address)
            self._remember_as_too_large(address)
        elif self.memory_bytes > self._budget:
            self._make_room()

    def remove(self, parts: Parts, rest: bytes) -> None:
        """Remove a part of an address that is known."""
        parts.cuts = self._cuts
        self.memory_bytes += parts.remove(rest)

    def cleared(self, address: Address) -> None:
        """Note that an address has no parts now."""
        self._too_large.discard(address)
        self.give_up(address)
        self._keep(address, Parts(self._cuts))

    def cut(self) -> None:
        """Note that a cut is made."""
        self._cuts += 1

    def rewind(self, cuts: int) -> None:
        """Forget addresses read or written since so many cuts ago: the rows have taken back what was written since."""
        for address in [address for address, parts in self._known.items() if parts.cuts >= self._cuts - cuts]:
            self.give_up(address)
        self._cuts -= cuts

    def forget(self) -> None:
        """Forget all addresses: the rows have changed."""
        self._known.clear()
        self._too_large.clear()
        self.memory_bytes = 0

    def _keep(self, address: Address, parts: Parts) -> None:
        self._known[address] = parts
        self.memory_bytes += parts.size
        self._make_room()

    def _make_room(self) -> None:
        while self.memory_bytes > self._budget:
            self.memory_bytes -= self._known.popitem(last=False)[1].size

    def give_up(self, address: Address) -> None:
        """Forget what is known of an address."""
        parts = self._known.pop(address, None)
        if parts is not None:
            self.memory_bytes -= parts.size

    def _counted(self, address: Address, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        count = 0
        for row in rows:
            count += 1
            yield row
        if count <= _MOST:
            self._too_large.discard(address)

    def _remember_as_too_large(self, address: Address) -> None:
        """Remember an address, so that its first parts are not read again each time one part is asked for."""
        if len(self._too_large) >= _REMEMBERED:
            self._too_large.clear()
        self._too_large.add(address)


def _first(some: list[tuple[bytes, bytes]], others: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    yield from some
    yield from others
