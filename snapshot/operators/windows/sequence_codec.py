"""Sequences of values of another codec, kept as one value.

What always holds: what comes back is a tuple, which nobody can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from statebackend.entries import delimited, undelimited
from statebackend.states.codecs import Codec, refusal

T = TypeVar("T")


class SequenceCodec(Codec[tuple[T, ...]]):
    """Tuples of any length. A tuple is taken as it is: the caller owes items that the inner codec takes."""

    exact = tuple

    def __init__(self, inner: Codec[T]) -> None:
        self._inner = inner
        self.name = f"sequence<{inner.name}>"
        self.immutable = inner.immutable

    def encode(self, value: tuple[T, ...]) -> bytes:
        """Write each item with its length."""
        return b"".join([delimited(self._inner.encode(item)) for item in value])

    def decode(self, data: bytes) -> tuple[T, ...]:
        """Read the items that `encode` wrote."""
        items: list[T] = []
        at = 0
        while at < len(data):
            item, at = undelimited(data, at)
            items.append(self._inner.decode(item or b""))
        return tuple(items)

    def accept(self, value: object) -> tuple[T, ...]:
        """Return a plain tuple of the items as the inner codec takes them; raise `NotEncodable` for no sequence."""
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise refusal(self.name, value)
        items: Sequence[Any] = value
        return tuple([self._inner.accept(item) for item in items])
