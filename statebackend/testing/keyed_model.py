"""Keyed state as plain dictionaries: what every `KeyedState` has to be like, whatever happens to it.

Invariant: nothing is here but dictionaries and what time it is; a copy never changes with its original.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Final

from statebackend.states.ttl import Ttl

Key = str | int | None

_FOREVER: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Place:
    """The name of a state, the key and the namespace."""

    state: str
    key: Key
    namespace: bytes = b""


class Model:
    """All keyed state of a job: under each place its parts, in the order in which they came, each with its expiry."""

    def __init__(self) -> None:
        self.watermark: int | None = None
        self.clock = 0
        self._places: dict[Place, dict[object, tuple[object, int]]] = {}

    def copy(self) -> Model:
        """Return the same, for good."""
        copied = Model()
        copied.watermark, copied.clock = self.watermark, self.clock
        copied._places = {place: dict(parts) for place, parts in self._places.items()}
        return copied

    def put(self, place: Place, part: object, value: object, ttl: Ttl | None = None) -> None:
        """Set a part; its time to live begins."""
        self._places.setdefault(place, {})[part] = _own(value), self._expiry(ttl)

    def remove(self, place: Place, part: object) -> None:
        """Forget a part, which need not be there."""
        self._places.get(place, {}).pop(part, None)

    def clear(self, place: Place) -> None:
        """Forget all parts."""
        self._places.pop(place, None)

    def parts(self, place: Place, ttl: Ttl | None = None) -> dict[object, object]:
        """Return the parts that have not expired."""
        now = self._now(ttl)
        parts = self._places.get(place, {}).items()
        return {part: _own(value) for part, (value, expires) in parts if now is None or expires > now}

    def value(self, place: Place, ttl: Ttl | None = None) -> object:
        """Return the only part, called None, for states with one value; None if it is not there."""
        return self.parts(place, ttl).get(None)

    def refresh(self, place: Place, ttl: Ttl) -> None:
        """Begin the time to live of all parts that are there anew, as they have been read."""
        for part, value in self.parts(place, ttl).items():
            self.put(place, part, value, ttl)

    def places(self, state: str) -> set[Place]:
        """Return all places at which the state has parts, or had some that expired."""
        return {place for place, parts in self._places.items() if place.state == state and parts}

    def _now(self, ttl: Ttl | None) -> int | None:
        if ttl is None:
            return None
        return self.watermark if ttl.time == "event" else self.clock

    def _expiry(self, ttl: Ttl | None) -> int:
        now = self._now(ttl)
        return _FOREVER if ttl is None or now is None else now + ttl.milliseconds


def _own(value: object) -> object:
    """Return a copy of what could be changed."""
    return deepcopy(value) if isinstance(value, list | dict) else value
