"""A program as it is compared: at another rate, for a given time, and with sinks that tell when rows are there.

Invariant: nothing but sources' pace and length and the sinks are replaced, so all schemes run the user's own steps; no
target of the user's is written to. A sink in place of another one promises what that one does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from pathlib import Path

import pyarrow as pa

from snapshot.connectors.memory.driver_sink import ToDriver
from snapshot.connectors.memory.generate import Generate
from snapshot.program.nodes import Aggregating, Changed, Node, Operated, Processing, Read, Reducing, United, in_order
from snapshot.program.program import Program
from snapshot.program.sink import Sink, TakesCopies, WaitsForEpochs
from statebackend.errors import ProgramError


class NotComparable(ProgramError, ValueError):
    """The program cannot be compared under several schemes; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Timed(ToDriver):
    """Rows for the process that measures, in place of a sink of the program; `copies` if that one takes copies."""

    copies: bool = True

    @property
    def takes_copies(self) -> bool:
        """True if every member of a partition writes, as to the sink in whose place this is."""
        return self.copies and not self.at_commit


@dataclass(frozen=True, slots=True)
class Output:
    """An output whose rows are timed."""

    exactly_once: bool
    """True if rows are there when their epoch is committed, and each once; else they are there when they are made."""
    created: str | None
    """The column with the time for which a row was scheduled; None: its rows are compared and not timed."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program that is ready for a run."""

    program: Program
    rate: float
    """Rows per second of all paced sources together."""
    outputs: Mapping[str, Output]
    moments: frozenset[str]
    """The columns that hold moments of the run."""


def own_rate(program: Program) -> float:
    """Return the rows per second of all paced sources together; `NotComparable` if none is, or one cannot be read."""
    sources = [node.source for node in in_order(program.outputs) if isinstance(node, Read)]
    for source in sources:
        if not isinstance(source, Generate) and not source.bounded:
            raise NotComparable(
                f"a source of the program is {type(source).__name__}, which neither ends nor gives the same rows at "
                "the same times in each run; let the program read Generate with a rate, or a source that ends"
            )
    paced = [source for source in sources if isinstance(source, Generate) and source.rate is not None]
    if not paced or not any(source.scheduled for source in paced):
        raise NotComparable(
            "no source of the program has a schedule, from which latency is measured; let one be Generate(..., "
            "rate=..., scheduled='made'), and let the column come through to an output"
        )
    return sum(source.rate for source in paced if source.rate is not None)


def prepare(program: Program, rate: float | None, seconds: float, *, shown_at_once: bool = False) -> Prepared:
    """Return the program at this rate, or its own, with rows for so many seconds.

    Each paced source keeps its share of the rate. With `shown_at_once` all sinks show rows when they are made.
    """
    own = own_rate(program)
    wanted = own if rate is None else rate
    done: dict[Node, Node] = {}
    for node in in_order(program.outputs):
        done[node] = _with_inputs(_paced(node, wanted / own, seconds), done)
    moments = frozenset(
        node.source.scheduled
        for node in done
        if isinstance(node, Read) and isinstance(node.source, Generate) and node.source.scheduled
    )
    plan = program.plan()
    schemas = {sink.uid: sink.schema for stage in plan.stages for sink in stage.sinks}
    written, outputs = [], {}
    for output in program.outputs:
        at_commit = output.sink.exactly_once and not shown_at_once
        written.append(replace(output, input=done[output.input], sink=_timed(output.sink, at_commit)))
        outputs[output.uid] = Output(at_commit, _created(schemas[output.uid], moments))  # type: ignore[index]
    if not any(output.created for output in outputs.values()):
        raise NotComparable(
            f"no output of the program has a column {' or '.join(map(repr, sorted(moments)))} with the time for which "
            "a row was scheduled; let it come through, such as by select, or by Last in an aggregate"
        )
    return Prepared(Program(tuple(written)), wanted, outputs, moments)


def _timed(sink: Sink, at_commit: bool) -> Timed:
    waits = isinstance(sink, WaitsForEpochs) and sink.waits_for_epochs
    return Timed(at_commit or waits, copies=isinstance(sink, TakesCopies) and sink.takes_copies)


def _paced(node: Node, factor: float, seconds: float) -> Node:
    if not isinstance(node, Read) or not isinstance(node.source, Generate) or node.source.rate is None:
        return node
    rate = node.source.rate * factor
    return replace(node, source=replace(node.source, rate=rate, count=ceil(rate * seconds)))


def _with_inputs(node: Node, done: Mapping[Node, Node]) -> Node:
    match node:
        case Read():
            return node
        case United(inputs):
            return replace(node, inputs=tuple(done[one] for one in inputs))
        case Operated(inputs=incoming):
            return replace(node, inputs=tuple(replace(one, node=done[one.node]) for one in incoming))
        case _:
            return replace(node, input=done[node.input])


def _created(schema: pa.Schema, moments: frozenset[str]) -> str | None:
    return next((name for name in schema.names if name in moments and _is_time(schema.field(name).type)), None)


def _is_time(kind: pa.DataType) -> bool:
    return bool(kind == pa.int64() or pa.types.is_timestamp(kind))


def code_of(program: Program) -> Mapping[str, str]:
    """Return a digest of each file that has a function or class of the program, by module, to tell that it changed."""
    found: dict[str, str] = {}
    for part in _functions(program):
        name = getattr(part, "__module__", None) or type(part).__module__
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and Path(file).is_file():
            found[name] = sha256(Path(file).read_bytes()).hexdigest()[:16]
    return dict(sorted(found.items()))


def _functions(program: Program) -> Iterator[object]:
    """Yield the functions, classes and instances that a program is made of."""
    for node in in_order(program.outputs):
        match node:
            case Read(source=Generate(function=function)) | Changed(function=function):
                yield function
            case Operated(work=Processing(function=function) | Reducing(function=function)):
                yield function
            case Operated(work=Aggregating(outputs=outputs)):
                yield from outputs.values()
            case _:
                pass
