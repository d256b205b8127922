"""What operators with state make of the streams that they take: streams again.

What always holds: an operator that gives several outputs is one node, however many of them are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snapshot.program.nodes import Incoming, Operated, Work

if TYPE_CHECKING:
    from snapshot.program.stream import Stream


def operated(uid: str | None, inputs: tuple[Incoming, ...], work: Work) -> Stream:
    """The main output of a new operator."""
    from snapshot.program.stream import Stream  # streams can be keyed, and keyed ones are streams again

    return Stream(Operated(uid, inputs, work))
