"""A stream program as a graph of plain data: what its user said, step by step, and nothing that follows from it.

Invariant: a node is immutable and knows only what is before it, so that a graph has no cycle. A node is itself
and no other that looks the same: what is built twice is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from snapshot.operators.operator import Per, name_of
from snapshot.operators.row_class import RowLike
from snapshot.program.plan import EventTime
from snapshot.program.sink import Sink
from snapshot.program.source import Source
from statebackend.columns import SchemaLike
from statebackend.tables.values.aggregations import Aggregation

if TYPE_CHECKING:
    from snapshot.operators.windows.kinds import Window

Function: TypeAlias = Callable[[Any], Any]
"""Takes a row, which is a named tuple, or a batch of Arrow's; what it gives, its step says."""

NO_SIDES: Final[Mapping[str, SchemaLike]] = {}
"""No side outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A source of rows."""

    uid: str
    source: Source
    event_time: EventTime | None


class Change(Enum):
    """The kind of a function without state; the value is the method that it is given to."""

    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    MAP_BATCHES = "map_batches"
    FLAT_MAP_BATCHES = "flat_map_batches"
    FILTER_BATCHES = "filter_batches"


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A function without state; where no schema is declared, rows stay of the one that they have."""

    input: Node
    change: Change
    function: Function
    schema: SchemaLike | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Some of the columns, in this order."""

    input: Node
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """From here on rows have event times."""

    input: Node
    event_time: EventTime


@dataclass(frozen=True, slots=True, eq=False)
class United:
    """The rows of all inputs, in no order."""

    inputs: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rebalanced:
    """The rows dealt out evenly over all partitions."""

    uid: str
    input: Node


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """One input of an operator with state: keyed by these columns, or broadcast where there are none."""

    node: Node
    keys: tuple[str, ...]
    broadcast: bool = False


class Way(Enum):
    """The way in which a user's class is called."""

    EVENTS = "process"
    BATCHES = "process_batch"
    WINDOWS = "window process"
    CONNECTED = "connected process"
    CONTROLLED = "controlled process"


@dataclass(frozen=True, slots=True, eq=False)
class Windowing:
    """The windows that an operator works in; with `late`, rows that come too late are a side output."""

    window: Window
    lateness: int
    late: bool


@dataclass(frozen=True, slots=True, eq=False)
class Processing:
    """A class of the user's, or an instance of it. Without a schema its own attribute `output` says what comes out."""

    way: Way
    function: object
    schema: SchemaLike | None
    sides: Mapping[str, SchemaLike]
    windowing: Windowing | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reducing:
    """Two rows of a key make one, again and again."""

    function: Callable[[Any, Any], RowLike]
    windowing: Windowing | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Aggregating:
    """Built-in or other aggregations, by the names of their output columns. `per` is for running ones."""

    outputs: Mapping[str, Aggregation]
    per: Per = "record"
    windowing: Windowing | None = None


Work: TypeAlias = "Processing | Reducing | Aggregating"


@dataclass(frozen=True, slots=True, eq=False)
class Operated:
    """An operator with state."""

    uid: str
    inputs: tuple[Incoming, ...]
    work: Work


@dataclass(frozen=True, slots=True, eq=False)
class SideOf:
    """A side output of the operator that `input` has to be."""

    input: Node
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """An output of a program: rows that go to a sink."""

    uid: str
    input: Node
    sink: Sink


Node: TypeAlias = "Read | Changed | Selected | Timed | United | Rebalanced | Operated | SideOf"


def before(node: Node | Written) -> tuple[Node, ...]:
    """Return the nodes that a node takes its rows from."""
    match node:
        case Read():
            return ()
        case United(inputs):
            return inputs
        case Operated(inputs=incoming):
            return tuple(one.node for one in incoming)
        case _:
            return (node.input,)


def in_order(outputs: Sequence[Written]) -> list[Node]:
    """Return every node that an output needs, once each, after all that it takes rows from."""
    done: dict[Node, None] = {}
    waiting: list[tuple[Node, bool]] = [(output.input, False) for output in reversed(outputs)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            done[node] = None
        elif node not in done:
            waiting.append((node, True))
            waiting.extend((input, False) for input in reversed(before(node)))
    return list(done)


def label_of(node: Node | Written) -> str:
    """Describe a node in a few words, as its user wrote it."""
    match node:
        case Changed(_, change, function):
            return f"{change.value}({name_of(function)})"
        case Selected(_, columns):
            return f"select({', '.join(map(str, columns))})"
        case Timed(_, event_time):
            return f"with_event_time({event_time.column})"
        case United():
            return "union"
        case SideOf(_, name):
            return f"side({name})"
        case Rebalanced():
            return "rebalance"
        case Read(source=source):
            return f"read({name_of(source)})"
        case Written(sink=sink):
            return f"write({name_of(sink)})"
        case Operated(work=work):
            return _work_label(work)


def place_of(node: Node | Written) -> str:
    """Return the place of a node, for messages: its uid, or its label and the uid that it comes after."""
    if isinstance(node, Read | Rebalanced | Operated | Written) and node.uid:
        return node.uid
    behind = before(node)
    while behind:
        first = behind[0]
        if isinstance(first, Read | Rebalanced | Operated) and first.uid:
            return f"{label_of(node)} behind {first.uid}"
        behind = before(first)
    return label_of(node)


def _work_label(work: Work) -> str:
    match work:
        case Processing(way, function):
            return f"{'process_batch' if way is Way.BATCHES else 'process'}({name_of(function)})"
        case Reducing(function):
            return f"reduce({name_of(function)})"
        case Aggregating(outputs):
            return f"aggregate({', '.join(outputs)})"
