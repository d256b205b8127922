"""Every mistake of a program that can be found without running it.

Invariant: nothing is read, written or started here; a program that passes has a plan.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from snapshot.operators.operator import name_of
from snapshot.program.nodes import Node, Operated, Read, Rebalanced, United, Written, before, label_of, place_of
from snapshot.program.pickling import dumps
from snapshot.program.problems import InvalidProgram, Problem
from snapshot.program.resolve import Resolution, resolved
from snapshot.program.sink import Abilities
from statebackend.keygroups import LARGEST_MAX_PARALLELISM

_UID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""The form of a name that a channel, a file and a folder can have on every system."""

_MOST_WAYS: Final = 1_000
"""Each way that rows can take into an operator is an edge of its own; more of them are a mistake in a loop."""

_MOST_CHAINED: Final = 100
"""Steps that are chained lie within each other, and what lies deeper may not be picklable."""


def checked(outputs: Sequence[Written], max_parallelism: int) -> Resolution:
    """Return what follows from the program's steps; raise `InvalidProgram` if anything is wrong with them."""
    found = resolved(outputs)
    problems = [
        *_bounds(outputs, max_parallelism),
        *_uids([*found.order, *outputs]),
        *found.problems,
        *_sinks(outputs, found),
        *_ways(outputs, found),
        *_lengths(found),
        *_unpicklable(outputs, found),
    ]
    if problems:
        raise InvalidProgram(list(dict.fromkeys(problems)))
    return found


def _bounds(outputs: Sequence[Written], max_parallelism: int) -> Iterator[Problem]:
    if not outputs:
        yield Problem("", "the program has no output; end a stream with write(sink, uid=...)")
    if not 1 <= max_parallelism <= LARGEST_MAX_PARALLELISM:
        yield Problem("", f"max_parallelism is {max_parallelism}; it has to be from 1 to {LARGEST_MAX_PARALLELISM}")


def _uids(nodes: Sequence[Node | Written]) -> Iterator[Problem]:
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, Read | Operated | Rebalanced | Written):
            if not node.uid:
                yield Problem(place_of(node), "it has no uid; give it one that stays the same for ever, uid='...'")
            elif not _UID.fullmatch(node.uid):
                yield Problem(
                    repr(node.uid),
                    "this uid cannot stand in the names of channels and files; use 1 to 100 ASCII letters, digits and "
                    "_.-, and begin with none of . and -",
                )
            else:
                owners[node.uid].append(label_of(node))
    for uid, labels in owners.items():
        if len(labels) > 1:
            yield Problem(
                uid,
                f"{len(labels)} steps have this uid: {', '.join(labels)}; give each its own (to use a stream "
                "more than once, keep it in a variable)",
            )


def _sinks(outputs: Sequence[Written], found: Resolution) -> Iterator[Problem]:
    for output in outputs:
        flow = found.flows.get(output.input)
        if isinstance(output.sink, type):
            name = name_of(output.sink)
            yield Problem(place_of(output), f"{name} is a class; give an instance of it, {name}(...)")
        elif flow is not None:
            sink = output.sink
            if sink.exactly_once and sink.abilities == Abilities():
                yield Problem(
                    place_of(output),
                    f"{name_of(sink)} cannot be exactly-once: its target can neither keep a prepared transaction nor "
                    "read back a token that was committed with the rows, so nothing could tell after a crash whether "
                    "they are there; use it at-least-once, or another target",
                )
            for sentence in sink.check(flow.schema):
                yield Problem(place_of(output), sentence)


def _ways(outputs: Sequence[Written], found: Resolution) -> Iterator[Problem]:
    ways: dict[Node, int] = {}
    for node in found.order:
        through = before(node)
        if not through or isinstance(node, Operated | Rebalanced):
            ways[node] = 1
        else:
            ways[node] = sum(ways[input] for input in through)
    ends = [node for node in found.order if isinstance(node, Operated | Rebalanced)]
    for end in [*ends, *outputs]:
        many = max(ways[input] for input in before(end))
        if many > _MOST_WAYS:
            yield Problem(
                place_of(end), f"rows come here in {many} ways through unions; more than {_MOST_WAYS} cannot be run"
            )


def _lengths(found: Resolution) -> Iterator[Problem]:
    lengths: dict[Node, int] = {}
    for node in found.order:
        through = () if isinstance(node, Operated | Rebalanced) else before(node)
        lengths[node] = max((lengths[input] for input in through), default=-1) + (not isinstance(node, United))
        if lengths[node] == _MOST_CHAINED + 1:
            yield Problem(
                place_of(node), f"more than {_MOST_CHAINED} steps are chained without an exchange; put some into one"
            )


def _unpicklable(outputs: Sequence[Written], found: Resolution) -> Iterator[Problem]:
    parts: list[tuple[Node | Written, object]] = [
        *((node, node.source) for node in found.order if isinstance(node, Read)),
        *found.transforms.items(),
        *found.operators.items(),
        *((output, output.sink) for output in outputs),
    ]
    for node, part in parts:
        try:
            dumps(part)
        except Exception as error:  # whatever a user's object does when it is pickled
            yield Problem(
                place_of(node),
                f"{label_of(node)} cannot be sent to other processes: {type(error).__name__}: {error}; make what "
                "cannot be pickled, such as connections, locks or a Spark session, inside of the function",
            )
