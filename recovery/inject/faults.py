"""A fault with its moment as people write it in one line, such as `stop worker:0 for 5s at epoch:next+0.3s`.

Invariant: a text means one fault or is refused, and the message says which part of it does not fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from recovery.inject.moments import Moment, parse_moment
from recovery.inject.targets import Kind, Order, parse_target
from statebackend.durations import milliseconds
from statebackend.errors import OptionError

_FAULT: Final = re.compile(r"(\w+) (\S+)(?: by (\S+))?(?: for (\S+))?(?: at (\S+))?")


class NotAFault(OptionError, ValueError):
    """The text says no fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the moment at which it is to happen."""

    order: Order
    at: Moment

    def __str__(self) -> str:
        return f"{self.order}, {self.at}"


def parse_fault(text: str) -> Fault:
    """Parse a fault; `NotAFault` if it is none, and the errors of its target, times and moment as they are."""
    found = _FAULT.fullmatch(" ".join(text.split()))
    kinds = {kind.value: kind for kind in Kind}
    if found is None or found[1] not in kinds:
        raise NotAFault(
            f"{text!r} is no fault; write KIND TARGET [by TIME] [for TIME] [at MOMENT], such as 'kill worker:0 at "
            f"epoch:next+0.3s' or 'delay link:0-1 by 200ms for 5s'; kinds are {', '.join(kinds)}"
        )
    kind, target, by, lasting, moment = found.groups()
    order = Order(
        kinds[kind],
        parse_target(target),
        None if lasting is None else milliseconds(lasting),
        None if by is None else milliseconds(by),
    )
    return Fault(order, parse_moment(moment or "now"))
