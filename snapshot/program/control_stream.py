"""A stream that every partition gets the whole of, so that it can configure what others do with their keys.

What always holds: every partition gets its rows in an order of its own, so what is kept of them must not depend on one.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.program.nodes import Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ControlStream:
    """What `Stream.broadcast` makes, and `KeyedStream.connect` takes."""

    node: Node
